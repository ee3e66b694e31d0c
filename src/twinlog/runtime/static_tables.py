"""Static tables, read whole by Spark, or not at all.

Spark lists the files of a table once, with their lengths, and reads them later. Two things would
give a table that lacks rows, without an error, and a query would drop all records that it joins
with them, or keep those that it is to drop:

- Spark takes a folder without files of data for an empty table, if the schema is given: also while
  another program replaces it, or was killed at that. A file that is being written is one without
  data at first.
- A file that is replaced between the two is read up to the length of its former version.
"""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from twinlog.runtime.whole_results import collected

_WRITING: Final = "_temporary"
"""The folder in which Hadoop's writers keep files until all are written."""


class UnreadTable(Exception):
    """A table may be incomplete; the text says why."""


def read_whole(spark: SparkSession, reader: DataFrameReader, path: str) -> DataFrame:
    """A table as it was at one moment, read to its end.

    Args:
        spark: the session.
        reader: of the table's format, with all options.
        path: where the table is.

    Raises:
        UnreadTable: it may not be written to its end, or was replaced while it was read.
        Exception: Spark cannot read it.
    """
    before = _files(spark, path)
    loaded = reader.load(path)
    if why := _unfinished(loaded, path):
        raise UnreadTable(why)
    # cache() would give what another transform, or a former one, has read of this path.
    table = loaded.coalesce(1).localCheckpoint()
    if _files(spark, path) != before:
        raise UnreadTable("it was replaced while it was read")
    return table


def _files(spark: SparkSession, path: str) -> set[tuple[object, ...]]:
    """The files of a table, each with its time of change and its length, listed now."""
    files = spark.read.format("binaryFile").load(path)
    return {tuple(row) for row in collected(files.select("path", "modificationTime", "length"))}


def _unfinished(table: DataFrame, path: str) -> str | None:
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
