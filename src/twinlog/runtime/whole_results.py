"""The rows of a DataFrame: all of them, or an error.

The JVM writes rows to a socket, and PySpark takes the end of that stream for the end of the rows
(`DataFrame.collect`, 4.3). So it is, too, if the JVM is killed in between: then some rows are
missing, or all, and nothing tells. The JVM knows whether it has written everything, and is asked.
"""

from typing import Any, cast

from pyspark.sql import DataFrame, Row


class _Noting:
    """A DataFrame of the JVM that keeps what serves its rows."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.server: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    def collectToPython(self) -> Any:  # noqa: N802 - the JVM's name
        """Begin to serve the rows: the address, a secret, and the server."""
        served = self._frame.collectToPython()
        self.server = served[-1]
        return served


def collected(frame: DataFrame) -> list[Row]:
    """The rows of a DataFrame.

    Raises:
        Exception: the query fails, or the JVM has not written all rows, or does not answer.
    """
    noting = _Noting(frame._jdf)  # noqa: SLF001 - no public way
    rows = DataFrame(cast("Any", noting), frame.sparkSession).collect()
    noting.server.getResult()
    return rows
