"""Whether a static table that Spark has read may be complete.

Spark takes a folder without files of data for an empty table, if the schema is given: also while
another program replaces it, or was killed at that. A file that is being written is one without
data at first. A query would drop all records that it joins with such a table, or keep those that
it is to drop.
"""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

_WRITING: Final = "_temporary"
"""The folder in which Hadoop's writers keep files until all are written."""


def unfinished(table: DataFrame, path: str) -> str | None:
    """Why a table may not be written to its end yet; None: nothing shows that.

    Args:
        table: as Spark's reader has loaded it.
        path: where from. Of other file systems than this machine's, sizes are not known.
    """
    files = [urlsplit(uri) for uri in table.inputFiles()]
    if (Path(path) / _WRITING).exists():
        return f"a program writes it, or was killed at that: it has a folder {_WRITING}"
    if not files:
        return "it has no file with data"
    if all(one.scheme == "file" and not Path(unquote(one.path)).stat().st_size for one in files):
        return (
            "its files are empty; a table without rows has a header in CSV, or a line end in JSON"
        )
    return None
