"""Static tables, read whole by Spark, or not at all.

Spark lists the files of a table once, with their lengths, and reads them later. Two things would
give a table that lacks rows, without an error, and a query would drop all records that it joins
with them, or keep those that it is to drop:

- Spark takes a folder without files of data for an empty table, if the schema is given: also while
  another program replaces it, or was killed at that. A file that is being written is one without
  data at first.
- A file that is replaced between the two is read up to the length of its former version.

And a column of the schema that the files of a Parquet table lack is null in each row.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from twinlog.mirror.dataframe_transform import StaticTable
from twinlog.runtime.spark_errors import first_line
from twinlog.runtime.whole_results import collected

_WRITING: Final = "_temporary"
"""The folder in which Hadoop's writers keep files until all are written."""

_ELEMENT: Final = "element"
_KEY: Final = "key"
_VALUE: Final = "value"
"""How Parquet names what is in an array, and in a map."""


class UnreadTable(Exception):
    """A table may be incomplete; the text says why."""


def read_whole(spark: SparkSession, reader: DataFrameReader, table: StaticTable) -> DataFrame:
    """A table as it was at one moment, read to its end.

    Args:
        spark: the session.
        reader: of the table's format, with all options.
        table: what is read.

    Raises:
        UnreadTable: it may not be written to its end, was replaced while it was read, or lacks a
            column of its schema.
        Exception: Spark cannot read it.
    """
    before = _files(spark, table.path)
    loaded = reader.load(table.path)
    if why := _unfinished(spark, loaded, table.path):
        raise UnreadTable(why)
    # cache() would give what another transform, or a former one, has read of this path.
    rows = loaded.coalesce(1).localCheckpoint()
    if table.schema is not None and table.format == "parquet":
        _check_columns(spark, rows, table.path)
    if _files(spark, table.path) != before:
        raise UnreadTable("it was replaced while it was read")
    return rows


def _check_columns(spark: SparkSession, rows: DataFrame, path: str) -> None:
    """Check that the files have the columns of the schema that are null in all rows.

    Others exist. So only these are looked for: Spark's reader without a schema refuses files that
    it can read with one, because of types of other columns, or that differ between files.

    Raises:
        UnreadTable: a column is absent, or it is not known whether it is.
        Exception: Spark has ended.
    """
    columns = _columns(rows.schema)
    there = [
        _exists(rows[f"`{first.replace('`', '``')}`"], rows.schema[first].dataType, inner)
        for first, *inner in columns
    ]
    (counts,) = collected(rows.agg(*(f.count(f.when(column, 1)) for column in there)))
    if not (empty := [column for column, count in zip(columns, counts, strict=True) if not count]):
        return
    try:
        found = spark.read.option("mergeSchema", "true").parquet(path).schema
    except (PySparkException, Py4JJavaError) as error:  # others are of a JVM that has ended
        names = ", ".join(map(".".join, empty))
        raise UnreadTable(
            f"these columns are null in all rows, and whether its files have them cannot be read: "
            f"{names}: {first_line(error)}"
        ) from error
    known = {_folded(column) for column in _columns(found)}
    if absent := [".".join(column) for column in empty if _folded(column) not in known]:
        raise UnreadTable(f"its files lack columns of its schema: {', '.join(absent)}")


def _columns(kind: DataType) -> list[Sequence[str]]:
    """The paths of all columns, and of what is in them, from the outermost on; named as Parquet's.

    The elements of arrays, and the keys and values of maps, are themselves in each of their rows.
    """
    columns: list[Sequence[str]] = []
    for name, inner in _inner(kind).items():
        if isinstance(kind, StructType):
            columns.append((name,))
        columns += [(name, *path) for path in _columns(inner)]
    return columns


def _inner(kind: DataType) -> Mapping[str, DataType]:
    match kind:
        case StructType():
            return {field.name: field.dataType for field in kind}
        case ArrayType():
            return {_ELEMENT: kind.elementType}
        case MapType():
            return {_KEY: kind.keyType, _VALUE: kind.valueType}
        case _:
            return {}


def _exists(column: Column, kind: DataType, path: Sequence[str]) -> Column:
    """Whether a row has a value at a path within a column; null counts as none."""
    if not path:
        return column.isNotNull()
    name, *rest = path
    inner = _inner(kind)[name]
    if isinstance(kind, StructType):
        return _exists(column.getField(name), inner, rest)
    if isinstance(kind, MapType):
        column = f.map_keys(column) if name == _KEY else f.map_values(column)
    return f.exists(column, lambda one: _exists(one, inner, rest))


def _folded(column: Sequence[str]) -> Sequence[str]:
    """Spark compares names without their case."""
    return tuple(name.lower() for name in column)


def _files(spark: SparkSession, path: str) -> set[tuple[object, ...]]:
    """The files of a table, each with its time of change and its length, listed now."""
    files = spark.read.format("binaryFile").load(path)
    return {tuple(row) for row in collected(files.select("path", "modificationTime", "length"))}


def _unfinished(spark: SparkSession, table: DataFrame, path: str) -> str | None:
    """Why a table may not be written to its end yet; None: nothing shows that.

    Args:
        spark: the session.
        table: as Spark's reader has loaded it.
        path: where from. Of other file systems than this machine's, sizes are not known.
    """
    if _is_being_written(spark, path):
        return f"a program writes it, or was killed at that: it has a folder {_WRITING}"
    files = [urlsplit(uri) for uri in table.inputFiles()]
    if not files:
        return "it has no file with data"
    if all(one.scheme == "file" and not Path(unquote(one.path)).stat().st_size for one in files):
        return (
            "its files are empty; a table without rows has a header in CSV, or a line end in JSON"
        )
    return None


def _is_being_written(spark: SparkSession, path: str) -> bool:
    """Whether a folder that the path names, by a pattern or not, has one of Hadoop's writers."""
    # Hadoop's own, as PySpark has no list of folders.
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    hadoop_path = jvm.org.apache.hadoop.fs.Path
    root = hadoop_path(path)
    system = root.getFileSystem(settings)
    return any(
        one.isDirectory() and system.exists(hadoop_path(one.getPath(), _WRITING))
        for one in system.globStatus(root) or ()
    )
