"""Transforms by real Spark, in the process that a lane starts."""

import asyncio
import io
import os
import signal
import struct
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import fastavro
import process_tree
import pytest
from flow_kinds import QUERY
from tiny_registry import tiny_registry
from waiting import until

from twinlog.engines.dataframes import QueryFailed, QueryUnusable, ResultRows, SourceRow
from twinlog.kafka.errors import Retriable
from twinlog.mirror.dataframe_transform import DataFrameTransform, parse_dataframe_transform
from twinlog.runtime.dataframe_process import DataFrameProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

T = TypeVar("T")
JSON = {"value.format": "json", "value.schema": "id BIGINT, card STRING, tags ARRAY<STRING>"}
SAME = "SELECT record FROM records"


class Spark:
    """A process, and the loop that it is used in."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.process = self.result(self._made())

    async def _made(self) -> DataFrameProcess:
        return DataFrameProcess()

    def result(self, coroutine: Coroutine[object, object, T]) -> T:
        return self.runner.run(coroutine)

    def run(self, transform: DataFrameTransform, *values: bytes | None) -> ResultRows:
        return self.result(self.process.run(transform, rows(*values)))

    @property
    def pid(self) -> int:
        assert self.process._process is not None
        return self.process._process.pid


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    """One process for all tests: its start takes 10 s."""
    one = Spark()
    yield one
    one.result(one.process.close())
    one.runner.close()


def transform(properties: Mapping[str, str]) -> DataFrameTransform:
    found = parse_dataframe_transform({f"twinlog.transform.{n}": v for n, v in properties.items()})
    assert found is not None
    return found


def rows(*values: bytes | None) -> list[SourceRow]:
    return [
        SourceRow(at, "A.t", 2, 100 + at, 1_700_000_000_000 + at, b"k%d" % at, value, [("h", b"x")])
        for at, value in enumerate(values)
    ]


def test_a_query_filters_masks_routes_and_rekeys(spark: Spark) -> None:
    """Goal: the columns of records, and those of a result; null fields and tombstones stay."""
    query = """
        SELECT record, partition + 1 AS partition, timestamp_millis(timestamp + 1) AS timestamp,
               CASE WHEN value.id > 5 THEN 'vip' ELSE topic END AS topic,
               CAST(value.id AS STRING) AS key, headers,
               CASE WHEN value IS NOT NULL
                    THEN struct(value.id, '****' AS card, value.tags) END AS value
        FROM records WHERE value.id IS NULL OR value.id <> 2 ORDER BY record DESC
    """
    result = spark.run(
        transform({"sql": query, **JSON}),
        b'{"id": 9, "card": "4111", "tags": ["a"]}',
        b'{"id": 2}',
        b'{"card": "4112"}',
        None,
    )
    assert result.columns == (
        "record",
        "topic",
        "partition",
        "timestamp",
        "key",
        "value",
        "headers",
    )
    headers = [("h", b"x")]
    assert sorted(result.rows) == [
        (
            0,
            "vip",
            3,
            1_700_000_000_001,
            b"9",
            b'{"id":9,"card":"****","tags":["a"]}',
            headers,
        ),
        (
            2,
            "A.t",
            3,
            1_700_000_000_003,
            None,
            b'{"id":null,"card":"****","tags":null}',
            headers,
        ),
        (3, "A.t", 3, 1_700_000_000_004, None, None, headers),
    ]


def test_all_columns_come_back_unchanged(spark: Spark) -> None:
    """Goal: `SELECT *` keeps any bytes; a value that is no UTF-8 too."""
    result = spark.run(transform({"sql": "SELECT * FROM records"}), b"\xff\x00", None, b"")
    assert [(row[0], *row[4:6]) for row in result.rows] == [
        (0, b"k0", b"\xff\x00"),
        (1, b"k1", None),
        (2, b"k2", b""),
    ]


def test_a_query_joins_a_static_table(spark: Spark, tmp_path: Path) -> None:
    """Goal: the table is read once, with a schema or without; records without a match are kept."""
    table = tmp_path / "prices.csv"
    table.write_text("id,price\n1,9.50\n2,7.25\n")
    query = """
        SELECT record, named_struct('id', value.id, 'price', p.price) AS value
        FROM records LEFT JOIN prices p ON p.id = value.id
    """
    values = [b'{"id":%d}' % number for number in (2, 3, 1)]
    with_schema = {"tables.prices.schema": "id BIGINT, price DECIMAL(10, 2)"}
    for schema, third in (({}, b'{"id":1,"price":9.5}'), (with_schema, b'{"id":1,"price":9.50}')):
        join = transform({"sql": query, "tables.prices": str(table), **JSON, **schema})
        result = spark.run(join, *values)
        assert sorted(result.rows) == [
            (0, b'{"id":2,"price":7.25}'),
            (1, b'{"id":3,"price":null}'),
            (2, third),
        ]


def test_a_table_is_read_again_for_an_altered_transform(spark: Spark, tmp_path: Path) -> None:
    """Goal: what another transform has read of the same path does not count."""
    table = tmp_path / "prices.csv"
    query = "SELECT record, string(p.price) AS value FROM records JOIN prices p ON p.id = value.id"
    for comment, price in (("", 5), (" -- altered", 1_000_000)):
        table.write_text(f"id,price\n1,{price}\n")
        join = transform({"sql": query + comment, "tables.prices": str(table), **JSON})
        assert spark.run(join, b'{"id":1}').rows == [(0, b"%d" % price)]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "it has no file with data"),
        ({"_temporary/0/part-0": "id\n1\n"}, "a program writes it, or was killed at that"),
        ({"_temporary/0/part-1": "", "part-0": ""}, "a program writes it, or was killed at that"),
    ],
)
def test_a_table_that_is_not_written_yet_is_not_empty(
    spark: Spark, tmp_path: Path, form: str, content: Mapping[str, str], reason: str
) -> None:
    """Goal: no record is dropped, or let pass, for want of rows that another program writes."""
    table = tmp_path / f"prices.{form}"
    table.mkdir()
    for name, text in content.items():
        file = table / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    known = {"tables.prices": str(table), "tables.prices.schema": "id BIGINT"}
    query = "SELECT record FROM records JOIN prices ON true"
    with pytest.raises(QueryUnusable, match=rf"tables\.prices: {reason}") as caught:
        spark.run(transform({"sql": query, **known}), b"")
    assert caught.value.only_here


@pytest.mark.parametrize("path", ["file://{0}/prices.csv", "{0}/price*.csv"])
@pytest.mark.parametrize("data", ["part-0", "p=1/part-0", "../prices0.csv"])
def test_a_table_that_is_being_written_is_known_by_any_form_of_its_path(
    spark: Spark, tmp_path: Path, path: str, data: str
) -> None:
    table = tmp_path / "prices.csv"
    (table / "_temporary").mkdir(parents=True)
    (table / data).parent.mkdir(exist_ok=True)
    (table / data).write_text("id\n1\n")
    query = {"sql": "SELECT record FROM records, prices", "tables.prices": path.format(tmp_path)}
    with pytest.raises(QueryUnusable, match=r"tables\.prices: a program writes it"):
        spark.run(transform({**query, "tables.prices.schema": "id BIGINT"}), b"")


def test_a_file_beside_one_that_is_being_written_is_read(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "prices.csv").write_text("id\n1\n")
    query = {"sql": "SELECT record FROM records, prices"}
    query["tables.prices"] = str(tmp_path / "prices.csv")
    assert spark.run(transform(query), b"").rows == [(0,)]


def _write_parquet(spark: Spark, table: Path, query: str) -> None:
    """Write a table; the statement gives no records, which is an error behind it."""
    statement = f"INSERT OVERWRITE DIRECTORY '{table}' USING parquet {query}"
    with pytest.raises(QueryUnusable):
        spark.run(transform({"sql": statement}), b"")
    assert list(table.glob("part-*"))


def test_a_parquet_table_has_all_columns_of_its_schema(spark: Spark, tmp_path: Path) -> None:
    """Goal: a column with another name is not null in all rows, as Spark would have it."""
    table = tmp_path / "prices.parquet"
    columns = "1L AS product_id, named_struct('EUR', 5L) AS price"
    _write_parquet(spark, table, f"SELECT {columns}")
    query = {"sql": "SELECT record FROM records, prices", "tables.prices": str(table)}
    schema = "id BIGINT, Price STRUCT<eur: BIGINT, usd: BIGINT>"
    with pytest.raises(
        QueryUnusable, match=r"lack columns of its schema: id, Price\.usd"
    ) as caught:
        spark.run(transform({**query, "tables.prices.schema": schema}), b"")
    assert caught.value.only_here
    query["tables.prices.schema"] = "PRODUCT_ID BIGINT, price STRUCT<EUR: BIGINT>"
    assert spark.run(transform(query), b"").rows == [(0,)]


def test_a_parquet_table_has_what_its_schema_has_in_arrays_and_maps(
    spark: Spark, tmp_path: Path
) -> None:
    """Goal: no condition on a field of an element is null for each row, and drops all records."""
    table = tmp_path / "prices.parquet"
    offer = "named_struct('amount', 5L)"
    _write_parquet(spark, table, f"SELECT array({offer}) AS offers, map('a', {offer}) AS named")
    query = {"sql": "SELECT record FROM records, prices", "tables.prices": str(table)}
    fields = "STRUCT<amount: BIGINT, {0}: BIGINT>"
    schema = f"offers ARRAY<{fields}>, named MAP<STRING, {fields}>".format
    absent = r"lack columns of its schema: offers\.element\.price, named\.value\.price"
    with pytest.raises(QueryUnusable, match=absent):
        spark.run(transform({**query, "tables.prices.schema": schema("price")}), b"")
    query["tables.prices.schema"] = schema("amount").replace("amount: BIGINT, ", "")
    assert spark.run(transform(query), b"").rows == [(0,)]


def test_a_query_reads_no_files_itself(spark: Spark, tmp_path: Path) -> None:
    """Goal: a table that is being replaced is read whole, or not at all; so by `tables` only."""
    (tmp_path / "prices.csv").write_text("id\n1\n")
    query = f"SELECT record FROM records JOIN csv.`{tmp_path}/prices.csv` ON true"
    with pytest.raises(QueryUnusable, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.run(transform({"sql": query}), b"")


def test_a_parquet_table_is_read_by_its_schema_whatever_else_it_has(
    spark: Spark, tmp_path: Path
) -> None:
    """Goal: Spark's reader without a schema refuses columns that differ between files."""
    table = tmp_path / "prices.parquet"
    for number, columns in enumerate(("1 AS id, 'a' AS other", "2L AS id, 2 AS other")):
        _write_parquet(spark, table / f"of={number}", f"SELECT {columns}")
    query = {"sql": "SELECT record, string(id) AS value FROM records, prices ORDER BY id"}
    query |= {"tables.prices": str(table), "tables.prices.schema": "id BIGINT"}
    assert spark.run(transform(query), b"").rows == [(0, b"1"), (0, b"2")]
    query["tables.prices.schema"] = "id BIGINT, price BIGINT"
    unknown = (
        r"null in all rows, and whether its files have them .*: price: .*CANNOT_MERGE_INCOMPATIBLE"
    )
    with pytest.raises(QueryUnusable, match=unknown):
        spark.run(transform(query), b"")


def test_settings_of_the_host_do_not_change_what_a_table_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a damaged file is an error, whatever jobs of this host make of one."""
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text("spark.sql.files.ignoreCorruptFiles true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(defaults.parent))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {defaults} pyspark-shell")
    spark, table = Spark(), tmp_path / "prices.parquet"
    try:
        _write_parquet(spark, table, "SELECT /*+ REPARTITION(2) */ id FROM range(1000)")
        one, *_ = sorted(table.glob("part-*"))
        one.write_bytes(one.read_bytes()[:100])
        (table / f".{one.name}.crc").unlink()
        query = {"sql": "SELECT record FROM records, prices", "tables.prices": str(table)}
        with pytest.raises(QueryUnusable, match=r"tables\.prices"):
            spark.run(transform({**query, "tables.prices.schema": "id BIGINT"}), b"")
    finally:
        spark.result(spark.process.close())
        spark.runner.close()


@pytest.mark.parametrize(("form", "text"), [("csv", "id\n"), ("json", "\n")])
def test_a_table_without_rows_says_so(spark: Spark, tmp_path: Path, form: str, text: str) -> None:
    """Goal: an empty file is one that is about to be written."""
    table = tmp_path / f"prices.{form}"
    known = {"tables.prices": str(table), "tables.prices.schema": "id BIGINT"}
    query = transform({"sql": "SELECT record FROM records JOIN prices ON true", **known})
    table.write_text("")
    with pytest.raises(QueryUnusable, match=r"tables\.prices: its files are empty"):
        spark.run(query, b"")
    table.write_text(text)
    assert spark.run(query, b"").rows == []


def test_columns_of_a_table_are_those_of_its_header(spark: Spark, tmp_path: Path) -> None:
    """Goal: a schema in another order is refused; by position, prices would be ids."""
    table = tmp_path / "prices.csv"
    table.write_text("price,id\n5,1\n")
    schema = {"tables.prices": str(table), "tables.prices.schema": "id BIGINT, price BIGINT"}
    with pytest.raises(QueryUnusable, match=r"tables\.prices: CSV header does not conform to"):
        spark.run(transform({"sql": "SELECT record FROM records, prices", **schema}), b"")


@pytest.mark.parametrize("fields", ["'k' AS key, b AS value", "b AS value, 'k' AS key"])
def test_headers_go_by_the_names_of_their_fields(spark: Spark, fields: str) -> None:
    query = f"SELECT record, array(struct({fields})) AS headers FROM records, (SELECT X'76' AS b)"
    assert spark.run(transform({"sql": query}), b"").rows == [(0, [("k", b"v")])]


def test_a_limit_on_a_table_is_no_limit_on_records(spark: Spark, tmp_path: Path) -> None:
    """Goal: the best price may be taken; a query that counts has one micro-batch."""
    table = tmp_path / "prices.csv"
    table.write_text("id,price\n1,5\n2,7\n")
    best = "SELECT price FROM prices ORDER BY price DESC LIMIT 1"
    query = f"SELECT record, string(p.price) AS value FROM records JOIN ({best}) p ORDER BY record"
    found = spark.run(transform({"sql": query, "tables.prices": str(table)}), b"", b"")
    assert found.rows == [(0, b"7"), (1, b"7")]
    query = (
        "SELECT max(record) AS record, string(count(*)) AS value FROM records HAVING count(*) > 0"
    )
    assert spark.run(transform({"sql": query}), b"", b"", b"").rows == [(2, b"3")]


def test_timestamps_in_results_keep_their_microseconds(spark: Spark) -> None:
    query = "SELECT record, struct(timestamp_micros(1700000000123456) AS at) AS value FROM records"
    assert spark.run(transform({"sql": query}), b"").rows == [
        (0, b'{"at":"2023-11-14T22:13:20.123456Z"}')
    ]


def test_timestamps_are_those_of_the_time_zone(spark: Spark) -> None:
    """Goal: a setting of one transform only; the instant is the same."""
    query = """
        SELECT record, struct(at, string(at) AS text) AS value
        FROM records, (SELECT timestamp_micros(1700000000000000) AS at)
    """
    zone = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    for more, at, text in (
        (zone, "2023-11-15T07:13:20.000000+09:00", "2023-11-15 07:13:20"),
        ({}, "2023-11-14T22:13:20.000000Z", "2023-11-14 22:13:20"),
    ):
        value = f'{{"at":"{at}","text":"{text}"}}'.encode()
        assert spark.run(transform({"sql": query, **more}), b"").rows == [(0, value)]


@pytest.mark.parametrize(
    ("zone", "at", "written"),
    [
        ("Europe/Berlin", "0001-01-01T00:00:00Z", "0001-01-01T00:53:28.000000+00:53:28"),
        ("Africa/Monrovia", "1970-01-01T00:00:00Z", "1969-12-31T23:15:30.000000-00:44:30"),
        ("Europe/Berlin", "2024-07-01T00:00:00Z", "2024-07-01T02:00:00.000000+02:00"),
    ],
)
def test_an_offset_of_former_times_keeps_its_seconds(
    spark: Spark, zone: str, at: str, written: str
) -> None:
    """Goal: the instant stays, such as the zero time of Go and .NET."""
    more = {"spark.sql.session.timeZone": zone, "value.format": "json"}
    query = transform(
        {"sql": "SELECT record, value FROM records", "value.schema": "at TIMESTAMP", **more}
    )
    assert spark.run(query, f'{{"at":"{at}"}}'.encode()).rows == [
        (0, f'{{"at":"{written}"}}'.encode())
    ]


def test_a_flow_that_wants_more_memory_gets_it(spark: Spark) -> None:
    """Goal: Spark is started again with the most that was asked for, and keeps it."""

    def run(**more: str) -> tuple[int, list[str]]:
        assert spark.run(transform({"sql": SAME, **more}), b"a").rows == [(0,)]
        commands = [one.command for one in process_tree.below(spark.pid)]
        return spark.pid, [word for text in commands for word in text.split() if "-Xmx" in word]

    pid, _ = run()
    more_pid, sizes = run(**{"spark.memory": "1300m"})
    assert more_pid != pid
    assert sizes == ["-Xmx1300m"]
    assert run() == run(**{"spark.memory": "1200m"}) == (more_pid, sizes)


def test_a_python_function(spark: Spark, tmp_path: Path) -> None:
    """Goal: DataFrame -> DataFrame, with the static tables of its session."""
    table = tmp_path / "prices.json"
    table.write_text('{"id": 1, "price": 5}\n{"id": 3, "price": 6}\n')
    function = {"function": "frame_functions:gold", "tables.prices": str(table), **JSON}
    result = spark.run(transform(function), b'{"id":3}', b'{"id":1}', b'{"id":1}')
    assert result.columns == ("record", "topic", "value")
    assert sorted(result.rows) == [
        (0, "gold", b'{"id":3,"price":6}'),
        (2, "gold", b'{"id":1,"price":5}'),
    ]


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def wire(number: int, **fields: object) -> bytes:
    """An order as a producer's serializer writes it."""
    stream = io.BytesIO()
    stream.write(struct.pack(">bI", 0, number))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), fields)
    return stream.getvalue()


def test_avro_with_the_ids_of_one_registry_or_two(spark: Spark) -> None:
    """Goal: what is changed is written by the topic's schema; all else changes only the id."""
    masked = """
        SELECT record, if(value.id > 1, 'gold', topic) AS topic,
               if(value.id > 1, struct(value.id, value.at, '****' AS note), NULL) AS value
        FROM records WHERE value.note <> 'drop' OR value IS NULL
    """
    filtered = "SELECT record FROM records WHERE value.id > 1"
    with tiny_registry(7) as source, tiny_registry(100) as target:
        number = source.add("orders-value", ORDER)
        target.add("other-value", {"type": "string"})
        gold = target.add("gold-value", ORDER)
        values = [
            wire(number, id=1, at=1_700_000_000_123, note="x"),
            wire(number, id=2, at=1_700_000_000_123, note="y"),
            wire(number, id=3, at=0, note="drop"),
            None,
        ]
        avro = {
            "value.format": "avro",
            "value.subject": "orders-value",
            "registry.url": source.url,
        }
        two = {**avro, "target.registry.url": target.url}
        result = spark.run(transform({"sql": masked, **two}), *values)
        assert sorted(result.rows) == [
            (0, "A.t", None),
            (1, "gold", wire(gold, id=2, at=1_700_000_000_123, note="****")),
            (3, "A.t", None),
        ]
        result = spark.run(transform({"sql": filtered, **two}), *values)
        assert dict(zip(result.columns, result.rows[0], strict=True)) == {
            "record": 1,
            "value": wire(gold, id=2, at=1_700_000_000_123, note="y"),
        }
        assert target.subjects["A.t-value"] == [gold]
        result = spark.run(transform({"sql": filtered, **avro}), *values)
        assert (result.columns, list(result.rows)) == (("record",), [(1,), (2,)])
        source.add("A.t-value", ORDER)
        result = spark.run(transform({"sql": "SELECT * FROM records", **avro}), *values)
        assert [row[result.columns.index("value")] for row in result.rows] == values

        with pytest.raises(QueryFailed, match="a value does not fit its schema 7"):
            spark.run(transform({"sql": filtered, **avro}), wire(number, id=1, at=1, note="x")[:-1])
        with pytest.raises(QueryFailed, match="answers 404 to /schemas/ids/8"):
            spark.run(transform({"sql": filtered, **avro}), wire(8, id=1, at=1, note="x"))
    with pytest.raises(QueryUnusable, match=f"{source.url} does not answer"):
        spark.run(transform({"sql": "SELECT record FROM records", **avro}), *values)


@pytest.mark.parametrize(
    "value",
    [
        "struct(1L AS id, {} AS at, '' AS note)",
        "struct(array(map('a', {})) AS at)",
    ],
)
def test_times_without_a_zone_are_no_timestamps_of_avro(spark: Spark, value: str) -> None:
    """Goal: 12:00 in Berlin is not written as 12:00 UTC."""
    query = f"SELECT record, {value} AS value FROM records"
    local, instant = (f"TIMESTAMP{kind}'2024-07-01 12:00:00'" for kind in ("_NTZ", ""))
    with tiny_registry(7) as source:
        number = source.add("A.t-value", ORDER)
        avro = {
            "value.format": "avro",
            "value.subject": "A.t-value",
            "registry.url": source.url,
            "spark.sql.session.timeZone": "Europe/Berlin",
        }
        with pytest.raises(QueryUnusable, match=r"TIMESTAMP_NTZ.*: cast it to TIMESTAMP"):
            spark.run(transform({"sql": query.format(local), **avro}), b"")
        if "id" in value:
            found = spark.run(transform({"sql": query.format(instant), **avro}), None)
            at = 1_719_828_000_000
            assert found.rows == [(0, wire(number, id=1, at=at, note=""))]


def test_avro_keys_that_are_no_records_keep_their_id(spark: Spark) -> None:
    """Goal: a key of the schema `string` is no text without the id of its schema."""
    with tiny_registry(7) as source:
        number = source.add("orders-key", {"type": "string"})
        source.add("A.t-key", {"type": "string"})
        key = struct.pack(">bI", 0, number) + b"\x04k1"
        avro = {"key.format": "avro", "key.subject": "orders-key", "registry.url": source.url}
        given = [SourceRow(0, "A.t", 0, 0, 0, key, b"v", [])]
        asked = spark.process.run(transform({"sql": "SELECT * FROM records", **avro}), given)
        result = spark.result(asked)
        assert [row[result.columns.index("key")] for row in result.rows] == [key]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"sql": "SELEC record FROM records"}, "PARSE_SYNTAX_ERROR"),
        ({"sql": "SELECT record, nothing AS value FROM records"}, "UNRESOLVED_COLUMN"),
        ({"sql": "SELECT value FROM records"}, "lacks the column record"),
        ({"sql": "SELECT record, 1 AS vaule FROM records"}, "has a column vaule: expected record,"),
        ({"sql": "SELECT record, record FROM records"}, "two columns record"),
        ({"sql": "SELECT record, 1 AS value FROM records"}, "column value of the result is INT"),
        (
            {"sql": "SELECT record, array(struct(1 AS a, 2 AS a)) AS value FROM records"},
            "column value of the result has two fields a",
        ),
        *(
            ({"sql": query}, "LIMIT, OFFSET or TABLESAMPLE on records")
            for query in (
                "SELECT record FROM records LIMIT 10",
                "SELECT * FROM records OFFSET 1",
                "SELECT record FROM records TABLESAMPLE (50 PERCENT)",
                "WITH r AS (SELECT * FROM records LIMIT 1) SELECT a.record FROM r a, r b",
                "WITH r AS (SELECT record FROM records) SELECT a.record FROM r a, (FROM r LIMIT 1)",
                "SELECT record FROM records WHERE record IN (SELECT record FROM records LIMIT 1)",
            )
        ),
        ({"function": "frame_functions:first"}, "LIMIT, OFFSET or TABLESAMPLE on records"),
        ({"sql": "SELECT record, 1 AS topic FROM records"}, "is INT: expected STRING"),
        ({"sql": "SELECT record, 'x' AS partition FROM records"}, "expected a whole number"),
        ({"sql": "SELECT record, 1 AS headers FROM records"}, "DATATYPE_MISMATCH"),
        (
            {"sql": "SELECT record, array(struct('k' AS a, 'v' AS b)) AS headers FROM records"},
            "expected key and value",
        ),
        ({"sql": SAME, "tables.a": "/nowhere/a.csv"}, "tables.a: .*PATH_NOT_FOUND"),
        ({"sql": SAME, "spark.sql.session.timeZone": "Mars"}, "timeZone: .*Mars"),
        ({"sql": SAME, "value.format": "json", "value.schema": "id WHAT WHAT"}, "PARSE_SYNTAX"),
        (
            {"sql": SAME, "value.format": "json", "value.schema": "a ARRAY<STRUCT<b: TINYINT>>"},
            "value.schema: TINYINT is not supported",
        ),
        *(
            (
                {"sql": SAME, "value.format": "json", "value.schema": f"a MAP<STRING, {kind}>"},
                f"value.schema: {kind.partition('(')[0]}.* is not supported",
            )
            for kind in ("VOID", "INTERVAL", "INTERVAL DAY", "CHAR(3)", "VARCHAR(3)")
        ),
        ({"sql": "SELECT record, map(1, 2) AS value FROM records"}, "expected keys of STRING"),
        ({"function": "no_such_module:f"}, "cannot be imported"),
        ({"function": "frame_functions:missing"}, "cannot be imported"),
        ({"function": "frame_functions:NOTHING"}, "not callable"),
        ({"function": "frame_functions:broken"}, "returned list: expected a DataFrame"),
    ],
)
def test_a_transform_that_no_record_can_pass_is_told(
    spark: Spark, properties: Mapping[str, str], text: str
) -> None:
    """Goal: Spark's words where the transform itself is wrong."""
    with pytest.raises(QueryUnusable, match=text):
        spark.run(transform(properties), b"{}")


@pytest.mark.parametrize(
    ("properties", "value", "text"),
    [
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id": "secret"}', "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b"secret", "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b"", "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b"null", "USER_RAISED_EXCEPTION"),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1}{"id":2}', "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1} secret', "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1},"x":2', "MALFORMED_RECORD"),
        (
            {"sql": "SELECT * FROM records", **JSON},
            b'{"id":1},"object":{"id":2}',
            "MALFORMED_RECORD",
        ),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1},{"id":2}', "USER_RAISED_EXCEPTION"),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1},"x"] "', "USER_RAISED_EXCEPTION"),
        ({"sql": "SELECT * FROM records", **JSON}, b'[{"id":1}]', "MALFORMED_RECORD"),
        ({"sql": "SELECT * FROM records", **JSON}, b'{"id":1,"id":2}', "MALFORMED_RECORD"),
        (
            {"sql": "SELECT * FROM records", **JSON},
            b'{"x":{"secret":1,"secret":2}}',
            "MALFORMED_RECORD",
        ),
        *(
            ({"sql": "SELECT * FROM records", **JSON}, b'{"card":"%s"}' % text, "MALFORMED")
            for text in (
                rb"\ud800",
                rb"\udc00",
                rb"\\\ud800",
                rb"\ud800\ud800\udc00",
                rb"\uD83D\uDE00\uDE00",
                rb"\ud800\\\udc00",
            )
        ),
        ({"sql": "SELECT * FROM records", "value.format": "string"}, b"\xff", "INVALID_UTF8"),
        (
            {"sql": "SELECT record, string(int(string(value))) AS value FROM records"},
            b"secret",
            "CAST_INVALID_INPUT",
        ),
    ],
)
def test_a_record_that_a_query_cannot_read_fails_it(
    spark: Spark, properties: Mapping[str, str], value: bytes, text: str
) -> None:
    """Goal: nothing becomes null by itself, and no message has a record's content."""
    with pytest.raises(QueryFailed, match=text) as failure:
        spark.run(transform(properties), value)
    assert "secret" not in str(failure.value)


TYPES = {
    "value.format": "json",
    "value.schema": "at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, p DECIMAL(10, 2), "
    "more ARRAY<STRUCT<days: MAP<STRING, DATE>>>",
}


@pytest.mark.parametrize(
    "value",
    [
        b'{"day":"20240101"}',
        b'{"day":"17"}',
        b'{"day":"202405"}',
        b'{"day":"2024-01-01Tsecret"}',
        b'{"day":"2024-02-30"}',
        b'{"day":"2024-01-01\\n"}',
        b'{"at":1704103200}',
        b'{"at":1704103200000}',
        b'{"at":1704103200000000}',
        b'{"at":"1704103"}',
        b'{"at":"10:00"}',
        b'{"at":"202405-01-01 10:00"}',
        b'{"at":"2024-01-01T10:00:00.1234567Z"}',
        b'{"at":"2024-01-01T25:00:00Z"}',
        b'{"at":"2024-01-01T10:00Z"}',
        b'{"local":"2024-01-01T10:00:00Z"}',
        b'{"p":"1,50"}',
        '{"p":"\u0661"}'.encode(),
        b'{"p":" 1"}',
        b'{"more":[null,{"days":null},{"days":{"a":null,"b":"17"}}]}',
    ],
)
def test_what_spark_would_read_as_something_else_fails_the_record(
    spark: Spark, value: bytes
) -> None:
    """Goal: no day 20,240,101, no seconds that were milliseconds, no 150 that was 1.50."""
    with pytest.raises(QueryFailed, match=r"USER_RAISED_EXCEPTION|MALFORMED_RECORD") as failure:
        spark.run(transform({"sql": "SELECT * FROM records", **TYPES}), value)
    assert "secret" not in str(failure.value)


def test_times_and_decimals_are_read_in_their_usual_spellings(spark: Spark) -> None:
    """Goal: ISO 8601 with its options, null, and decimals as numbers or texts."""
    query = "SELECT record, to_json(value, map('ignoreNullFields', 'true')) AS value FROM records"
    given = [
        (f'{{"at":"{at}"}}', '{"at":"2024-01-01T10:00:00.000Z"}')
        for at in (
            "2024-01-01T10:00:00Z",
            "2024-01-01 10:00:00",
            "2024-01-01T10:00",
            "2024-01-01T11:00:00.000000+01:00",
            "2024-01-01T11:00:00+0100",
            "2024-01-01 11:00:00 +01",
        )
    ]
    given += [
        ('{"at":"2024-01-01"}', '{"at":"2024-01-01T00:00:00.000Z"}'),
        ('{"at":null,"day":null,"p":null,"more":null}', "{}"),
        ('{"local":"2024-01-01T10:00:00.5"}', '{"local":"2024-01-01T10:00:00.500"}'),
        ('{"day":"2024-01-01"}', '{"day":"2024-01-01"}'),
        ('{"more":[{"days":{"a":"2024-01-01"}}]}',) * 2,
        ('{"p":-1.5}', '{"p":-1.50}'),
        ('{"p":"1.50"}', '{"p":1.50}'),
        ('{"p":1.5E+1}', '{"p":15.00}'),
    ]
    found = spark.run(transform({"sql": query, **TYPES}), *(text.encode() for text, _ in given))
    assert [row[1] for row in found.rows] == [expected.encode() for _, expected in given]


@pytest.mark.parametrize(
    "column",
    [
        "struct(1 AS id, string(value) AS text) AS value",
        "array(map(string(value), 1)) AS value",
        "array(struct(string(value) AS key, value)) AS headers",
    ],
)
def test_text_that_is_no_utf_8_fails_the_record(spark: Spark, column: str) -> None:
    """Goal: a cast of bytes is no U+FFFD in JSON or in a header's name; U+FFFD itself is text."""
    query = transform({"sql": f"SELECT record, {column} FROM records"})
    with pytest.raises(QueryFailed, match=r"INVALID_UTF8_STRING|USER_RAISED_EXCEPTION"):
        spark.run(query, b"\xff")
    found = spark.run(query, "\ufffd".encode(), "é".encode(), *([None] * ("struct(1" in column)))
    assert "\ufffd" in str(found.rows[0]) or b"\xef\xbf\xbd" in found.rows[0][1]  # type: ignore[operator]
    assert len(found.rows) >= 2


def test_text_that_is_no_utf_8_is_not_written_in_avro(spark: Spark) -> None:
    """Goal: the same, where rows go to fastavro."""
    value = "struct(1L AS id, timestamp_millis(1) AS at, string(key) AS note) AS value"
    query = f"SELECT record, {value} FROM records"
    with tiny_registry(7) as source:
        number = source.add("A.t-value", ORDER)
        avro = {"value.format": "avro", "value.subject": "A.t-value", "registry.url": source.url}
        asked = transform({"sql": query, **avro})
        assert spark.run(asked, None).rows == [(0, wire(number, id=1, at=1, note="k0"))]
        given = [SourceRow(0, "A.t", 0, 0, 0, b"\xff", None, [])]
        with pytest.raises(QueryFailed, match="USER_RAISED_EXCEPTION"):
            spark.result(spark.process.run(asked, given))


def test_escapes_in_json_stay_what_they_mean(spark: Spark) -> None:
    """Goal: pairs of surrogates, and backslashes in front of what only looks like an escape."""
    query = {"sql": "SELECT record, value.card AS value FROM records", **JSON}
    texts = (rb"\uD83D\ude00", rb"\\ud800", rb"\u00e9\n\\", "\U0001f600é".encode())
    found = spark.run(transform(query), *(b'{"card":"%s"}' % text for text in texts))
    assert [row[1] for row in found.rows] == [
        "\U0001f600".encode(),
        rb"\ud800",
        "é\n\\".encode(),
        "\U0001f600é".encode(),
    ]


def test_a_record_is_not_read_where_its_value_is_not_asked_for(spark: Spark) -> None:
    """Goal: a filter on the key passes values of any kind."""
    query = {"sql": "SELECT record FROM records WHERE key = 'k1'", **JSON}
    assert spark.run(transform(query), b"{", b"{").rows == [(1,)]


def test_requests_at_the_same_time_get_their_own_rows(spark: Spark) -> None:
    """Goal: one after another; one that fails does not fail the others."""
    query = transform(
        {"sql": "SELECT record, string(int(string(value)) + 1) AS value FROM records"}
    )
    asked = [rows(*(b"%d" % (10 * at + n) for n in range(at))) for at in range(1, 6)]
    asked.append(rows(b"1", b"x"))

    async def all_of_them() -> list[ResultRows | BaseException]:
        answers = [spark.process.run(query, each) for each in asked]
        return await asyncio.gather(*answers, return_exceptions=True)

    *found, failed = spark.result(all_of_them())
    assert isinstance(failed, QueryFailed)
    for at, answer in enumerate(found, 1):
        assert isinstance(answer, ResultRows)
        assert sorted(answer.rows) == [(n, b"%d" % (10 * at + n + 1)) for n in range(at)]


@pytest.mark.parametrize("which", ["python", "java"])
def test_a_process_that_was_killed_is_started_again(spark: Spark, which: str) -> None:
    """Goal: the request is to be repeated, and the next one is answered."""
    with pytest.raises(QueryUnusable):  # Spark keeps its version then, and needs no JVM for it
        spark.run(transform({"sql": "SELEC record FROM records"}), b"a")
    assert spark.run(transform({"sql": SAME}), b"a").rows == [(0,)]
    below = [one.pid for one in process_tree.below(spark.pid)]
    os.kill(spark.pid if which == "python" else below[0], signal.SIGKILL)
    with pytest.raises(Retriable, match="process that runs Spark has ended"):
        spark.run(transform({"sql": SAME}), b"a")
    until(lambda: not any(map(_lives, below)), what="the end of the JVM")
    assert spark.run(transform({"sql": SAME}), b"a").rows == [(0,)]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_spark_that_starts_slowly_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: on a busy host it would be ended and started again for ever."""
    monkeypatch.setattr("twinlog.runtime.dataframe_process.ANSWER_S", 0.2)
    one, reasons = Spark(), list[str]()
    try:
        for _ in range(12):
            try:
                answer = one.run(transform({"sql": SAME}), b"a")
            except Retriable as error:
                reasons.append(str(error))
            else:
                break
        assert answer.rows == [(0,)]
        assert reasons[:2] == [f"Spark has not answered within {s} s" for s in ("0.2", "0.4")]
        assert one.process._patience_s == 0.2
    finally:
        one.result(one.process.close())
        one.runner.close()


@pytest.mark.parametrize("parts", [("worker",), ("daemon", "worker")])
def test_a_python_worker_that_was_killed_is_started_again(
    spark: Spark, parts: Sequence[str]
) -> None:
    """Goal: the process stays, and fails one query at most, which is then run again."""
    assert spark.run(transform({"sql": SAME}), b"a").rows == [(0,)]
    (found,) = process_tree.await_lane_sparks(os.getpid())
    assert found.session.pid == spark.pid
    for part in parts:
        process_tree.end(getattr(found, part))
    with suppress(QueryFailed):
        spark.run(transform({"sql": SAME}), b"a")
    assert spark.run(transform({"sql": SAME}), b"a").rows == [(0,)]
    (again,) = process_tree.await_lane_sparks(os.getpid())
    assert again.jvm == found.jvm
    assert again.worker != found.worker


def test_a_flow_that_is_killed_has_the_expected_values(spark: Spark) -> None:
    """Goal: what `make chaos` expects of a query is what Spark gives."""
    query = parse_dataframe_transform(QUERY.settings)
    assert query is not None
    values = [b'{"a":"b"}', None, b"", b"x" * 2000]
    expected = [(at, QUERY.changed("A.t-2", 100 + at, value)) for at, value in enumerate(values)]
    result = spark.run(query, *values)
    assert result.columns == ("record", "value")
    assert sorted(result.rows) == expected


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
