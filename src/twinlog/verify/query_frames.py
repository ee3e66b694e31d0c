"""What a flow's query or function should make of records: computed by Spark, for the check.

The engine's code around a query (runtime/dataframe_worker.py, json_parts.py) is not used, and
`pyproject.toml` forbids it. This module has the columns of `records`, the formats of keys and
values, and the columns of a result once more, from docs/operations/transforms.md:

    records of the source --formats--> table `records` --the user's own query--> rows --> records

Keys and values are decoded as text, and checked, by Python; Spark parses JSON, as its types decide
what a query sees. A batch is any number of records: the plan shows that each row depends on one of
them (query_plan.py). A function is called twice for each batch: its plan may hold the time, or a
random number, as a constant.

A batch in which a record fails is halved until the record is alone: nothing is expected of it.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.records import Record
from twinlog.mirror.dataframe_transform import (
    RECORD_COLUMNS,
    RECORDS,
    DataFrameTransform,
    PartColumn,
    PartFormat,
    StaticTable,
)
from twinlog.runtime.static_tables import UnreadTable, read_whole
from twinlog.runtime.whole_results import collected
from twinlog.verify.json_meaning import JsonNumber, JsonValue, NotJson, read_unique_json
from twinlog.verify.query_plan import NotDecidable, check_plan, check_text
from twinlog.verify.query_results import Failed, InputRecord, Output, OutputRow

MAX_FAILURES: Final = 100
"""Records of a batch that may fail; then the whole batch has failed."""
_PARTS: Final = ("key", "value")
_WRITTEN: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""JSON of results: null stays, and times keep their microseconds."""
_AS_JSON: Final = (t.StructType, t.MapType, t.ArrayType, t.VariantType)
_REPLACEMENT: Final = "\ufffd".encode()
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_PARTITION: Final = (1 << 31) - 1
_MINUTE: Final = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}"
_SPELLINGS: Final[Mapping[type[t.DataType], re.Pattern[str]]] = {
    kind: re.compile(text, re.ASCII)
    for kind, text in (
        (t.DateType, r"\d{4}-\d{2}-\d{2}"),
        (t.TimestampType, rf"{_MINUTE}(:\d{{2}}(\.\d{{1,6}})?( ?(Z|[+-]\d{{2}}(:?\d{{2}})?))?)?)?"),
        (t.TimestampNTZType, rf"{_MINUTE}(:\d{{2}}(\.\d{{1,6}})?)?)?"),
        (t.DecimalType, r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
    )
}
"""Texts that dates, times and decimals of JSON are written as."""


class _BadRow(Exception):
    """A row of a result is no record."""


class QueryFrames:
    """A flow's query or function, on a Spark of its own.

    Args:
        spark: with one slot, ANSI SQL, and nobody else's views.
        transform: the flow's; without Avro.

    Raises:
        NotDecidable: a check cannot tell what a result should be.
    """

    def __init__(self, spark: SparkSession, transform: DataFrameTransform) -> None:
        if transform.registries is not None:
            raise NotDecidable("keys or values are in Avro, which verify does not read")
        self._spark = spark
        self._transform = transform
        self._function: Callable[[DataFrame], object] | None = None
        try:
            spark.conf.set("spark.sql.session.timeZone", transform.time_zone)
            for table in transform.tables:
                self._read(table)
            if transform.function is not None:
                module, _, name = transform.function.partition(":")
                self._function = getattr(importlib.import_module(module), name)
            check_text(transform.sql or "")
            result, plan = self._result([])
            self.has_tables = check_plan(_analysed(result), plan)
            """Whether it reads tables, which may have been others when records were copied."""
            self._columns = result.schema
        except NotDecidable:
            raise
        except Exception as error:  # whatever a function raises
            raise NotDecidable(f"it cannot be analysed here: {_first_line(error)}") from error
        if "record" not in {field.name.lower() for field in self._columns.fields}:
            raise NotDecidable("the result has no column record")
        self.meant_parts = frozenset(
            field.name.lower()
            for field in self._columns.fields
            if field.name.lower() in _PARTS and isinstance(field.dataType, _AS_JSON)
        )
        """Which of key and value are written as JSON: their meaning is compared."""

    @property
    def is_function(self) -> bool:
        """Whether it is a function: Python code may read what a plan does not show."""
        return self._function is not None

    @property
    def routes(self) -> bool:
        """Whether a result may name topics or partitions."""
        named = {"topic", "partition"} & {name.lower() for name in self._columns.names}
        return self._transform.routes and bool(named)

    def outputs(self, records: Sequence[InputRecord]) -> list[Output]:
        """What should become of records, one by one.

        Raises:
            NotDecidable: a function gives another result the second time, or another schema.
            Retriable: Spark has ended.
        """
        texts = [self._texts(one.record) for one in records]
        good = [at for at, one in enumerate(texts) if not isinstance(one, Failed)]
        outputs: list[Output] = [one if isinstance(one, Failed) else () for one in texts]
        budget = [MAX_FAILURES]
        for at, output in zip(good, self._halved(records, texts, good, budget), strict=True):
            outputs[at] = output
        return outputs

    def _halved(
        self,
        records: Sequence[InputRecord],
        texts: Sequence[object],
        numbers: Sequence[int],
        budget: list[int],
    ) -> list[Output]:
        if not numbers:
            return []
        try:
            return self._computed(records, texts, numbers)
        except NotDecidable:
            raise
        except Exception as error:  # whatever a query or function raises
            self._require_jvm()
            reason = f"the query fails: {_condition(error)}"
        if len(numbers) == 1:
            budget[0] -= 1
        if len(numbers) == 1 or budget[0] <= 0:
            return [Failed(reason)] * len(numbers)
        middle = len(numbers) // 2
        return [
            *self._halved(records, texts, numbers[:middle], budget),
            *self._halved(records, texts, numbers[middle:], budget),
        ]

    def _require_jvm(self) -> None:
        """Check that Spark has not ended: then a failure says nothing of the records.

        Raises:
            Retriable: it has.
        """
        try:
            _ = self._spark.version  # asks the JVM
        except (Py4JError, OSError) as error:
            raise Retriable(
                "Spark's JVM has ended",
                hint="if it had too little memory, raise twinlog.transform.spark.memory",
            ) from error

    def _computed(
        self, records: Sequence[InputRecord], texts: Sequence[object], numbers: Sequence[int]
    ) -> list[Output]:
        rows = [_row(at, records[numbers[at]], texts[numbers[at]]) for at in range(len(numbers))]
        found = self._collected(rows)
        # A function may put what changes into its plan.
        if self._function is not None and sorted(map(repr, self._collected(rows))) != sorted(
            map(repr, found)
        ):
            raise NotDecidable("the function gives another result each time")
        by_record: list[list[Mapping[str, Any]]] = [[] for _ in rows]
        for row in found:
            if not isinstance(row["record"], int) or not 0 <= row["record"] < len(rows):
                raise NotDecidable("column record of the result names no record")
            by_record[row["record"]].append(row)
        outputs: list[Output] = []
        for number, own in zip(numbers, by_record, strict=True):
            try:
                outputs.append([self._output(records[number], row) for row in own])
            except _BadRow as error:
                outputs.append(Failed(str(error)))
        return outputs

    def _collected(self, rows: Sequence[tuple[object, ...]]) -> list[dict[str, Any]]:
        result, plan = self._result(rows)
        if self._function is not None:  # a query has the same plan each time
            check_plan(_analysed(result), plan)
            if result.schema != self._columns:
                raise NotDecidable("the function gives other columns each time")
        result = _as_records(result)
        return [row.asDict(recursive=True) for row in collected(result)]

    def _read(self, table: StaticTable) -> None:
        reader = self._spark.read.format(table.format).option("mode", "FAILFAST")
        if table.format == "csv":
            reader = reader.options(header="true", enforceSchema="false")
            reader = reader.option("inferSchema", "false" if table.schema else "true")
        if table.schema is not None:
            reader = reader.schema(table.schema)
        try:
            found = read_whole(self._spark, reader, table)
        except UnreadTable as error:
            raise NotDecidable(f"table {table.name}: {error}") from error
        found.createOrReplaceTempView(table.name)

    def _texts(self, record: Record) -> "tuple[object, object] | Failed":
        """Key and value as they are handed to Spark: bytes, or text that is as the format says."""
        try:
            for name, _ in record.headers:
                name.encode()
            return (
                _text(record.key, self._transform.key),
                _text(record.value, self._transform.value),
            )
        except (UnicodeError, NotJson, _BadRow) as error:
            return Failed(f"it is not of the format: {type(error).__name__}")

    def _result(self, rows: Sequence[tuple[object, ...]]) -> tuple[DataFrame, Any]:
        """The result for these rows, and the plan of the table that they are read from."""
        parts = (("key", self._transform.key), ("value", self._transform.value))
        schema = self._spark.createDataFrame([], RECORD_COLUMNS).schema
        for name, part in parts:
            if part.format is not PartFormat.BYTES:
                schema[name].dataType = t.StringType()
        records = self._spark.createDataFrame(list(rows), schema, verifySchema=False)
        plan = _analysed(records)
        for name, part in parts:
            if part.schema is not None:
                column = f.from_json(f.col(name), part.schema, {"mode": "FAILFAST"})
                records = records.withColumn(name, column)
        records.createOrReplaceTempView(RECORDS)
        if self._function is None:
            return self._spark.sql(self._transform.sql or ""), plan
        before = self._jobs()
        result = self._function(records)
        if self._jobs() != before:
            raise NotDecidable("the function runs a Spark job, whose result may be in its plan")
        if not isinstance(result, DataFrame):
            raise NotDecidable("the function returns no DataFrame")
        return result, plan

    def _jobs(self) -> int:
        """How many jobs this Spark has begun; its status would come later, from another thread."""
        context = self._spark.sparkContext._jsc.sc()  # noqa: SLF001 - no public way
        return int(context.dagScheduler().numTotalJobs())

    def _output(self, source: InputRecord, row: Mapping[str, Any]) -> OutputRow:
        record = source.record
        topic = row.get("topic", source.topic)
        partition = row.get("partition", source.partition)
        timestamp = row.get("timestamp", record.timestamp)
        if topic is None or partition is None or timestamp is None:
            raise _BadRow("its topic, partition or timestamp is null")
        allowed = _TOPIC.fullmatch(topic) and topic not in {".", ".."}
        if topic != source.topic and (not allowed or topic.startswith("__")):
            raise _BadRow("it is routed where nothing may be")
        if not 0 <= partition <= _MAX_PARTITION:
            raise _BadRow("there is no such partition")
        if (topic, partition) != (source.topic, source.partition) and not self._transform.routes:
            raise _BadRow("it is routed, and no record of the flow is")
        for part in self.meant_parts:
            if row[part] is not None and _REPLACEMENT in row[part]:
                raise _BadRow(f"its {part} may have text that is no UTF-8")
        headers = record.headers
        if "headers" in row:
            headers = tuple(map(_header, row["headers"] or ()))
        return OutputRow(
            topic,
            partition,
            timestamp,
            _bytes(row["key"]) if "key" in row else record.key,
            _bytes(row["value"]) if "value" in row else record.value,
            headers,
        )


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way


def _row(number: int, source: InputRecord, texts: object) -> tuple[object, ...]:
    assert isinstance(texts, tuple)
    record = source.record
    return (
        *(number, source.topic, source.partition, record.offset, record.timestamp),
        *texts,
        [(name, data) for name, data in record.headers],
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _header(header: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    lower = {name.lower(): value for name, value in (header or {}).items()}
    if lower.get("key") is None:
        raise _BadRow("a header has no name")
    return lower["key"], _bytes(lower.get("value"))


def _as_records(result: DataFrame) -> DataFrame:
    """A result with columns as records have them."""
    columns = []
    for field in result.schema.fields:
        name, kind = field.name.lower(), field.dataType
        column = f.col(f"`{field.name}`")
        if name in _PARTS and isinstance(kind, _AS_JSON):
            column = f.to_json(column, _WRITTEN).cast("binary")
        elif name in _PARTS and isinstance(kind, t.StringType):
            column = column.cast("binary")
        elif name == "timestamp" and isinstance(kind, t.TimestampType):
            column = f.unix_millis(column)
        if name != "offset":
            columns.append(column.alias(name))
    return result.select(columns)


def _text(data: bytes | None, part: PartColumn) -> object:
    """A key or value as it is handed to Spark.

    Raises:
        UnicodeError, NotJson, _BadRow: it is not of its format.
    """
    if data is None or part.format is PartFormat.BYTES:
        return data
    text = data.decode()
    if part.schema is not None:
        value = read_unique_json(data)
        if not isinstance(value, dict):
            raise _BadRow
        _check_spelling(value, t.StructType.fromDDL(part.schema))
    return text


def _check_spelling(value: JsonValue, kind: t.DataType) -> None:
    """Refuse texts of dates, times and decimals that Spark would guess the meaning of.

    Raises:
        _BadRow, UnicodeError: there is one.
    """
    if isinstance(value, str):
        value.encode()  # half a surrogate pair
    match kind:
        case _ if value is None:
            return
        case t.StructType() if isinstance(value, dict):
            for name, item in value.items():
                name.encode()
                field = next((one for one in kind.fields if one.name == name), None)
                _check_spelling(item, t.StringType() if field is None else field.dataType)
        case t.ArrayType() if isinstance(value, list):
            for item in value:
                _check_spelling(item, kind.elementType)
        case t.MapType() if isinstance(value, dict):
            for item in value.values():
                _check_spelling(item, kind.valueType)
        case t.DecimalType() if isinstance(value, JsonNumber):
            return
        case _ if type(kind) in _SPELLINGS:
            if not isinstance(value, str) or not _SPELLINGS[type(kind)].fullmatch(value):
                raise _BadRow


def _condition(error: Exception) -> str:
    """What has failed, without the contents of records."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or type(error).__name__


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]
