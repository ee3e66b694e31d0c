"""Applies DataFrame transforms to micro-batches: the main module of `DataFrameProcess`.

    rows ──► createDataFrame ──► records ──► SQL or function ──► columns of records ──► rows

One Spark application with one slot. Rows go to the JVM as pickled lists, and come back so.

A transform is analysed with an empty table first. What fails there is the transform's fault, and is
reported with Spark's words. What fails later may have a record's content in its message: only the
condition's name is reported.
"""

import contextlib
import importlib
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, BinaryIO, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from twinlog.engines.dataframes import QueryUnusable, ResultRows, SourceRow
from twinlog.kafka.client.references import Grants
from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import (
    FUNCTION,
    IGNORED_COLUMNS,
    PREFIX,
    RECORD_COLUMNS,
    RECORDS,
    RESULT_COLUMNS,
    SQL,
    TABLES,
    TIME_ZONE,
    DataFrameTransform,
    PartColumn,
    PartFormat,
    StaticTable,
)
from twinlog.runtime import json_parts
from twinlog.runtime.avro_parts import AvroNotInstalled, AvroPart
from twinlog.runtime.dataframe_process import (
    LENGTH,
    Answer,
    TransformFailure,
    TransformRequest,
    pickled,
    unpickling,
)
from twinlog.runtime.schema_registry import (
    NotAvro,
    RegistryRefusal,
    RegistryTrouble,
    SchemaRegistry,
    UnsupportedSchema,
)
from twinlog.runtime.session import start_spark
from twinlog.runtime.spark_errors import first_line
from twinlog.runtime.static_tables import UnreadTable, read_whole
from twinlog.runtime.whole_results import collected

CONF: Final = {
    "spark.app.name": "twinlog DataFrames",
    "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""ANSI: a cast that is not possible is an error, not null. One task does all: plans need not adapt.
A query reads files as `tables` only, which are read whole or not at all (static_tables.py).
Spark logs nothing, as it would log the contents of records; what fails is in the answer."""
_OF_RECORDS: Final = (NotAvro, RegistryRefusal, UnsupportedSchema)
"""Errors of single records whose texts hold nothing of them."""
_OF_THE_HOST: Final = (RegistryTrouble, AvroNotInstalled)
"""Errors that say nothing about the transform itself."""
_MISSING_PATH: Final = "PATH_NOT_FOUND"
_CUTS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample"})
"""Operators of Spark's plans that drop rows whatever they hold."""
_MOST_TRANSFORMS: Final = 32
_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""They print each failed query with its message, which may have a record's content."""


class SparkEnded(Exception):
    """The JVM has ended, and its sessions with it: this process cannot go on."""


class PreparedTransform:
    """A transform with its session: its tables are read, and it was analysed.

    Raises:
        QueryUnusable: it cannot be applied to any record.
    """

    def __init__(self, spark: SparkSession, transform: DataFrameTransform, grants: Grants) -> None:
        self._spark = spark.newSession()
        self._transform, self._grants = transform, grants
        self._schema = self._spark.createDataFrame([], RECORD_COLUMNS).schema
        self._function: Callable[[DataFrame], object] | None = None
        self._avro = self._avro_parts()
        self._schema = t.StructType(
            [
                t.StructField(one.name, self._avro[one.name].column_type)
                if one.name in self._avro
                else one
                for one in self._schema.fields
            ]
        )
        with self._blaming(TIME_ZONE):
            self._spark.conf.set("spark.sql.session.timeZone", transform.time_zone)
        for part, column in self._parts:
            if column.schema is not None:
                with self._blaming(f"{PREFIX}{part}.schema"):
                    json_parts.check_schema(t.StructType.fromDDL(column.schema))
        for table in transform.tables:
            with self._blaming(f"{TABLES}{table.name}"):
                self._read(table)
        with self._blaming(FUNCTION if transform.sql is None else SQL):
            if transform.function is not None:
                self._function = _imported(transform.function)
            _check_cuts(self._result([]), self._schema.names)

    @property
    def _parts(self) -> tuple[tuple[str, PartColumn], ...]:
        return ("key", self._transform.key), ("value", self._transform.value)

    def _avro_parts(self) -> dict[str, AvroPart]:
        """The parts of records that are in Avro."""
        registries = self._transform.registries
        if registries is None:
            return {}
        source, target = (
            SchemaRegistry(each, self._grants) for each in (registries.source, registries.target)
        )
        found = {}
        for part, column in self._parts:
            if column.subject is not None:
                with self._blaming(f"{PREFIX}{part}.subject"):
                    found[part] = AvroPart(part, column.subject, source, target)
        return found

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        """Report whatever is raised as an error of this property."""
        try:
            yield
        except QueryUnusable as error:
            raise QueryUnusable(error.reason, name=name, only_here=error.only_here) from error
        except _OF_THE_HOST as error:
            raise QueryUnusable(str(error), name=name, only_here=True) from error
        except _OF_RECORDS as error:
            raise QueryUnusable(str(error), name=name) from error
        except Exception as error:  # a function may raise anything
            _check_spark(self._spark)
            missing = isinstance(error, PySparkException) and error.getCondition() == _MISSING_PATH
            raise QueryUnusable(first_line(error), name=name, only_here=missing) from error

    def result(self, rows: Sequence[SourceRow]) -> ResultRows:
        """The result for these records."""
        try:
            result = self._result([self._decoded(row) for row in rows])
            columns, found = tuple(result.columns), [tuple(row) for row in collected(result)]
            for part, avro in self._avro.items():
                columns, found = _with_avro(avro, part, columns, found, rows)
        except RegistryTrouble as error:
            raise QueryUnusable(str(error)) from error
        return ResultRows(columns, found)

    def _decoded(self, row: SourceRow) -> tuple[object, ...]:
        cells: dict[str, object] = row._asdict()
        for part, avro in self._avro.items():
            cells[part] = avro.decoded(getattr(row, part))
        return tuple(cells.values())

    def _read(self, table: StaticTable) -> None:
        reader = self._spark.read.format(table.format).option("mode", "FAILFAST")
        if table.format == "csv":
            # Else columns of a schema are taken by their position, whatever the header says.
            reader = reader.option("header", "true").option("enforceSchema", "false")
        if table.schema is not None:
            reader = reader.schema(table.schema)
        elif table.format == "csv":
            reader = reader.option("inferSchema", "true")
        try:
            found = read_whole(self._spark, reader, table)
        except UnreadTable as error:
            raise QueryUnusable(str(error), only_here=True) from error
        found.createOrReplaceTempView(table.name)

    def _result(self, rows: Sequence[tuple[object, ...]]) -> DataFrame:
        raw = self._spark.createDataFrame(list(rows), self._schema, verifySchema=False)
        records = raw.withColumns(
            {
                "key": _decoded(f.col("key"), self._transform.key),
                "value": _decoded(f.col("value"), self._transform.value),
            }
        )
        records.createOrReplaceTempView(RECORDS)
        if self._function is None:
            result: object = self._spark.sql(self._transform.sql or "")
        else:
            result = self._function(records)
        if not isinstance(result, DataFrame):
            raise QueryUnusable(
                f"{self._transform.function} returned {type(result).__name__}: expected a DataFrame"
            )
        return projected(result, self._avro)


def _check_cuts(result: DataFrame, record_columns: Sequence[str]) -> None:
    """Refuse what drops records by their number in a micro-batch, which is arbitrary.

    `records` is told by its columns: its plan has no other mark in all kinds of queries.

    Raises:
        QueryUnusable: LIMIT, OFFSET or TABLESAMPLE applies to records.
    """
    shared: dict[int, bool] = {}  # the parts of WITH, which come before what refers to them

    def reads_records(plan: Any) -> bool:
        """Whether a part of a plan reads records; its own parts are checked as well."""
        parts = [
            reads_records(part)
            for part in [*_sequence(plan.children()), *_sequence(plan.subqueries())]
        ]
        kind, found = plan.nodeName(), any(parts)
        if kind == "CTERelationRef":
            found = shared.get(plan.cteId(), True)
        elif not parts:
            found = [one.name() for one in _sequence(plan.output())] == list(record_columns)
        if kind == "CTERelationDef":
            shared[plan.id()] = found
        if found and kind in _CUTS:
            raise QueryUnusable(
                "the query has LIMIT, OFFSET or TABLESAMPLE on records: which records it drops "
                "depends on how they arrive. Select them with WHERE"
            )
        return found

    reads_records(result._jdf.queryExecution().analyzed())  # noqa: SLF001 - no public way


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(at) for at in range(scala.size())]


def projected(result: DataFrame, avro: Collection[str] = ()) -> DataFrame:
    """The columns of a result that mean something, with the types of records.

    All but bytes in the columns of `avro` stays as it is.

    Raises:
        QueryUnusable: a column is missing, unknown, there twice, or of another type.
    """
    types: dict[str, t.DataType] = {}
    for column in result.schema.fields:
        name = column.name.lower()
        if name in types:
            raise QueryUnusable(f"the result has two columns {name}")
        if name not in RESULT_COLUMNS and name not in IGNORED_COLUMNS:
            raise QueryUnusable(
                f"the result has a column {column.name}: expected {', '.join(RESULT_COLUMNS)}"
            )
        types[name] = column.dataType
        _check_fields(name, column.dataType)
        if name in avro:
            _check_times(name, column.dataType)
    if "record" not in types:
        raise QueryUnusable(
            "the result lacks the column record: select it from records, as it tells which record "
            "a row comes from"
        )
    return result.select(
        *(
            (
                json_parts.only_utf8(f.col(f"`{name}`"), types[name])
                if name in avro and not isinstance(types[name], t.BinaryType | t.NullType)
                else _converted(name, types[name])
            ).alias(name)
            for name in RESULT_COLUMNS
            if name in types
        )
    )


def _check_fields(name: str, data_type: t.DataType) -> None:
    """Refuse two fields of one name, of which a reader takes one."""
    match data_type:
        case t.StructType():
            for field in data_type.fields:
                if data_type.names.count(field.name) > 1:
                    raise QueryUnusable(f"column {name} of the result has two fields {field.name}")
                _check_fields(name, field.dataType)
        case t.ArrayType():
            _check_fields(name, data_type.elementType)
        case t.MapType():
            if not isinstance(data_type.keyType, t.StringType):  # to_json has numbers of them
                raise QueryUnusable(f"column {name} has a map: expected keys of STRING; cast them")
            _check_fields(name, data_type.valueType)


def _check_times(name: str, data_type: t.DataType) -> None:
    """Refuse times without a zone: Avro's timestamps are instants, and rows do not tell them."""
    match data_type:
        case t.TimestampNTZType():
            raise QueryUnusable(
                f"column {name} of the result has a TIMESTAMP_NTZ, which Avro's timestamps are "
                "not: cast it to TIMESTAMP"
            )
        case t.StructType():
            for field in data_type.fields:
                _check_times(name, field.dataType)
        case t.ArrayType():
            _check_times(name, data_type.elementType)
        case t.MapType():
            _check_times(name, data_type.valueType)


def _decoded(column: Column, part: PartColumn) -> Column:
    """Keys or values as the query sees them. Bytes that are not of the format are an error."""
    if part.format in {PartFormat.BYTES, PartFormat.AVRO}:  # Avro is decoded before
        return column
    text = f.validate_utf8(column.cast("string"))
    if part.format is PartFormat.STRING:
        return text
    assert part.schema is not None
    return json_parts.parsed(text, part.schema)


def _converted(name: str, data_type: t.DataType) -> Column:
    """A column of the result as records have it."""
    column = f.col(f"`{name}`")
    if name in {"key", "value"}:
        return _encoded(name, column, data_type)
    if name == "headers":
        return _headers(column, data_type)
    if name == "timestamp" and isinstance(data_type, t.TimestampType):
        return f.unix_millis(column)
    if name == "topic":
        expected: tuple[type[t.DataType], ...] = (t.StringType,)
    else:
        expected = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
    if not isinstance(data_type, expected):
        raise QueryUnusable(
            f"column {name} of the result is {data_type.simpleString().upper()}: expected "
            f"{'STRING' if name == 'topic' else 'a whole number'}"
        )
    return column


def _headers(column: Column, data_type: t.DataType) -> Column:
    """Headers, by the names of their fields: a cast would go by position."""
    element = data_type.elementType if isinstance(data_type, t.ArrayType) else None
    if isinstance(element, t.StructType):
        if sorted(name.lower() for name in element.names) != ["key", "value"]:
            raise QueryUnusable(
                f"column headers of the result has the fields {', '.join(element.names)}: "
                "expected key and value"
            )
        column = f.transform(
            column,
            lambda one: f.when(
                one.isNotNull(),
                f.struct(
                    f.validate_utf8(one["key"].cast("string")).alias("key"),
                    one["value"].alias("value"),
                ),
            ),
        )
    return column.cast("array<struct<key: string, value: binary>>")


def _encoded(name: str, column: Column, data_type: t.DataType) -> Column:
    match data_type:
        case t.BinaryType():
            return column
        case t.StringType():
            return column.cast("binary")
        case t.StructType() | t.MapType() | t.ArrayType() | t.VariantType():
            return json_parts.written(column, data_type)
        case t.NullType():
            return column.cast("binary")
        case _:
            raise QueryUnusable(
                f"column {name} of the result is {data_type.simpleString().upper()}: expected "
                "BINARY, STRING, or a STRUCT, MAP, ARRAY or VARIANT, which becomes JSON"
            )


def _with_avro(
    avro: AvroPart,
    part: str,
    columns: tuple[str, ...],
    found: Sequence[tuple[object, ...]],
    rows: Sequence[SourceRow],
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """A result with keys or values as bytes, whose ids are those of the target's registry."""
    topic_at = columns.index("topic") if "topic" in columns else None

    def topic(row: tuple[object, ...]) -> str:
        return str(row[topic_at]) if topic_at is not None else _source(rows, row).topic

    if part in columns:
        at = columns.index(part)
        return columns, [
            (*row[:at], avro.encoded(row[at], topic(row)), *row[at + 1 :]) for row in found
        ]
    if avro.keeps_ids:
        return columns, list(found)
    return (*columns, part), [
        (*row, avro.mapped(getattr(_source(rows, row), part), topic(row))) for row in found
    ]


def _source(rows: Sequence[SourceRow], row: tuple[object, ...]) -> SourceRow:
    number = row[0]
    if not isinstance(number, int) or not 0 <= number < len(rows):
        raise NotAvro("column record of the result names no record")
    return rows[number]


def _imported(name: str) -> Callable[[DataFrame], object]:
    module_name, _, function_name = name.partition(":")
    try:
        function: object = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise QueryUnusable(
            f"{name} cannot be imported on this host: {error}",
            only_here=isinstance(error, ModuleNotFoundError),
        ) from error
    if not callable(function):
        raise QueryUnusable(f"{name} is not callable")
    return function


def condition_of(error: Exception) -> str:
    """What has failed, without the contents of records."""
    if isinstance(error, _OF_RECORDS):
        return str(error)
    condition = None
    if isinstance(error, PySparkException):
        condition = error.getCondition()
    elif isinstance(error, Py4JJavaError):
        with contextlib.suppress(Py4JError):  # it may be of a class without conditions
            condition = error.java_exception.getCondition()
    return condition or f"{type(error).__name__} in the query or function"


class Worker:
    """Answers requests, with one session for each transform."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._spark: SparkSession | None = None
        self._prepared: dict[DataFrameTransform, PreparedTransform] = {}

    def answer(self, request: TransformRequest) -> Answer:
        """The answer to a request.

        Raises:
            SparkEnded: the JVM has ended, for want of memory for example.
        """
        if self._spark is None:
            try:
                self._spark = _session(self._memory_mib)
            except UserError as error:
                return TransformFailure(str(error), for_all=True, only_here=True)
        try:
            prepared = self._latest(request)
            if request.rows is None:
                return ResultRows((), ())
            return prepared.result(request.rows)
        except QueryUnusable as error:
            _check_spark(self._spark)
            return TransformFailure(error.reason, True, error.name, error.only_here)
        except Exception as error:  # a query or function may raise anything
            _check_spark(self._spark)
            return TransformFailure(condition_of(error), for_all=False)

    def _latest(self, request: TransformRequest) -> PreparedTransform:
        """The request's transform, prepared, as the last one that was used.

        The least recently used one is dropped where there are too many: of a flow that was altered,
        rather than of one that runs, whose tables would be read again.
        """
        assert self._spark is not None
        prepared = self._prepared.pop(request.transform, None)
        if prepared is None:
            prepared = PreparedTransform(self._spark, request.transform, request.grants)
            if len(self._prepared) >= _MOST_TRANSFORMS:
                del self._prepared[next(iter(self._prepared))]
        self._prepared[request.transform] = prepared
        return prepared


def _check_spark(spark: SparkSession) -> None:
    """Find out, after an error of any kind, whether the JVM still answers.

    Where it has ended, py4j raises errors of its own or of the network. So may a flow's function.

    Raises:
        SparkEnded: it does not; the error was not the query's or a record's.
    """
    try:
        _ = spark.sparkContext.defaultParallelism  # the JVM's; others, as `version`, are kept
    except Exception:
        raise SparkEnded from None  # the error before may have a record's contents


def _session(memory_mib: int) -> SparkSession:
    os.environ["TZ"] = "UTC"  # else collect() makes local times of Spark's timestamps
    time.tzset()
    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    size = f"{memory_mib}m"
    conf = {
        **CONF,
        "spark.driver.maxResultSize": size,  # a result beyond is an error of the query
        "spark.driver.memory": size,
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="twinlog-sql-"),
    }
    return SparkSession(start_spark("local[1]", conf, max_failures=1, obeys_host=False))


def _read_requests(stream: BinaryIO, requests: "queue.SimpleQueue[bytes]") -> None:
    """Queue requests; end the process with the stream, whatever the main thread does."""
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        requests.put(stream.read(length))
    os._exit(0)  # the lane has ended, or does not want this process any more


def main() -> None:
    """Answer the requests of standard input until it ends."""
    requests_from, answers_to = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what Spark or a function prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the lane ends this process
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests_from, requests), daemon=True).start()
    worker = Worker(int(sys.argv[1]))
    while True:
        request = _unpickled(requests.get())
        parts = list(pickled(worker.answer(request)))
        with contextlib.suppress(BrokenPipeError):
            answers_to.write(LENGTH.pack(sum(map(len, parts))))
            answers_to.writelines(parts)
            answers_to.flush()


def _unpickled(data: bytes) -> TransformRequest:
    reading = unpickling(data)
    while True:
        try:
            next(reading)
        except StopIteration as stop:
            request = stop.value
            assert isinstance(request, TransformRequest)
            return request


if __name__ == "__main__":
    main()
