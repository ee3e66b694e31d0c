"""`query_frames` and `query_plan` on real Spark: results, refusals, and the same as a lane's."""

import asyncio
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twinlog.engines.dataframes import QueryFailed, ResultRows, SourceRow
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.records import Record
from twinlog.mirror.dataframe_transform import DataFrameTransform, parse_dataframe_transform
from twinlog.runtime.dataframe_process import DataFrameProcess
from twinlog.runtime.session import start_spark
from twinlog.verify.json_meaning import normal_form
from twinlog.verify.query_frames import QueryFrames
from twinlog.verify.query_plan import NotDecidable
from twinlog.verify.query_results import Failed, InputRecord, Output, OutputRow
from twinlog.verify.query_worker import CONF

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    # Spark leaves the sockets open that it has collected results through.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BEGAN_MS = 1_700_000_000_000
JSON = {"value.format": "json", "value.schema": "id BIGINT, card STRING, tags ARRAY<STRING>"}
TIMES = {"value.format": "json", "value.schema": "d DATE, t TIMESTAMP, n DECIMAL(10,2), x DOUBLE"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession(start_spark("local[1]", CONF, max_failures=1))
    yield session
    session.stop()


def transform(properties: Mapping[str, str]) -> DataFrameTransform:
    found = parse_dataframe_transform({f"twinlog.transform.{n}": v for n, v in properties.items()})
    assert found is not None
    return found


def inputs(*values: bytes | None) -> list[InputRecord]:
    return [
        InputRecord("A.t", 2, Record(100 + at, BEGAN_MS + at, b"k%d" % at, value, (("h", b"x"),)))
        for at, value in enumerate(values)
    ]


def outputs(spark: SparkSession, sql: str, *values: bytes | None, **more: str) -> list[Output]:
    names = {name.replace("_", "."): text for name, text in more.items()}
    return QueryFrames(spark.newSession(), transform({"sql": sql, **names})).outputs(
        inputs(*values)
    )


def values_of(found: Sequence[Output]) -> list[list[bytes | None] | str]:
    return [one.reason if isinstance(one, Failed) else [row.value for row in one] for one in found]


def test_a_query_filters_masks_routes_and_rekeys(spark: SparkSession) -> None:
    query = """
        SELECT record, partition + 1 AS partition, timestamp_millis(timestamp + 1) AS timestamp,
               CASE WHEN value.id > 5 THEN 'vip' ELSE topic END AS topic,
               CAST(value.id AS STRING) AS key, array(struct('n' AS key, key AS value)) AS headers,
               CASE WHEN value IS NOT NULL
                    THEN struct(value.id, '****' AS card, value.tags) END AS value
        FROM records WHERE value.id IS NULL OR value.id <> 2 ORDER BY record DESC
    """
    frames = QueryFrames(spark.newSession(), transform({"sql": query, **JSON}))
    assert (frames.meant_parts, frames.routes, frames.has_tables) == (
        frozenset({"value"}),
        True,
        False,
    )
    found = frames.outputs(
        inputs(b'{"id": 9, "card": "4111", "tags": ["a"]}', b'{"id": 2}', b'{"card": "x"}', None)
    )
    value = b'{"id":%s,"card":"****","tags":%s}'
    assert found == [
        [
            OutputRow(
                *("vip", 3, BEGAN_MS + 1, b"9", value % (b"9", b'["a"]')),
                (("n", b"k0"),),
            )
        ],
        [],
        [OutputRow("A.t", 3, BEGAN_MS + 3, None, value % (b"null", b"null"), (("n", b"k2"),))],
        [OutputRow("A.t", 3, BEGAN_MS + 4, None, None, (("n", b"k3"),))],
    ]


def test_what_the_result_lacks_keeps_its_bytes(spark: SparkSession) -> None:
    found = outputs(spark, "SELECT record FROM records", b"\xff\x00", None, b"")
    assert found == [
        [OutputRow("A.t", 2, BEGAN_MS + at, b"k%d" % at, value, (("h", b"x"),))]
        for at, value in enumerate((b"\xff\x00", None, b""))
    ]
    everything = outputs(spark, "SELECT * FROM records", b"\xff\x00", None, b"")
    assert everything == found


def test_a_record_that_fails_is_alone(spark: SparkSession) -> None:
    """Goal: the others of its batch are computed; nothing is expected of it."""
    cast = "SELECT record, CAST(CAST(value AS STRING) AS INT) + 1 AS partition FROM records"
    found = outputs(spark, cast, *(b"1", b"2", b"x", b"4", b"5", b"", b"7"))
    assert [one.reason if isinstance(one, Failed) else one[0].partition for one in found] == [
        *(2, 3, "the query fails: CAST_INVALID_INPUT", 5, 6),
        *("the query fails: CAST_INVALID_INPUT", 8),
    ]
    bad = [b"{", b"[1]", b"null", b'{"id":1,"id":2}', b'{"id":"x"}', b"\xff", b'{"card":"\\ud800"}']
    found = outputs(
        spark,
        "SELECT record, value.id AS partition FROM records",
        *bad,
        **{name.replace(".", "_"): text for name, text in JSON.items()},
    )
    assert all(isinstance(one, Failed) for one in found)
    null = "SELECT record, CAST(value AS STRING) AS topic FROM records"
    found = outputs(spark, null, *(None, b"__x", b"a b", b"ok", b".."))
    assert [isinstance(one, Failed) for one in found] == [True, True, True, False, True]


def test_a_table_that_is_not_written_yet_is_not_empty(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: verify expects nothing of what a query makes of a table that is not there."""
    table = tmp_path / "names.csv"
    table.write_text("")
    known = {"tables.names": str(table), "tables.names.schema": "id BIGINT"}
    query = transform({"sql": "SELECT record FROM records JOIN names ON true", **known})
    with pytest.raises(NotDecidable, match="table names: its files are empty"):
        QueryFrames(spark.newSession(), query)


def test_a_row_that_is_routed_where_none_may_be_fails(spark: SparkSession) -> None:
    """Goal: the flow fails there, too; such a query says nothing of other logs."""
    sql = "SELECT record, CAST(CAST(value AS STRING) AS INT) AS partition, topic FROM records"
    frames = QueryFrames(spark.newSession(), transform({"sql": sql, "routes": "false"}))
    stays, leaves = frames.outputs(inputs(b"2", b"3"))
    assert not isinstance(stays, Failed)
    assert isinstance(leaves, Failed)
    assert not frames.routes


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (b'{"d":"20240131"}', b'{"d":"2024-01-31"}'),
        (b'{"t":1706695200}', b'{"t":"2024-01-31T10:00:00.123456Z"}'),
        (b'{"n":"1,50"}', b'{"n":"1.50"}'),
        (b'{"n":[1]}', b'{"n":1e1,"x":1.5}'),
    ],
)
def test_texts_that_spark_would_guess_fail(spark: SparkSession, bad: bytes, good: bytes) -> None:
    frames = QueryFrames(
        spark.newSession(), transform({"sql": "SELECT record, value FROM records", **TIMES})
    )
    first, second = frames.outputs(inputs(bad, good))
    assert isinstance(first, Failed)
    assert not isinstance(second, Failed)
    assert len(second) == 1


DECIDABLE = [
    "SELECT record FROM records WHERE length(value) > 1",
    "SELECT record FROM records WHERE timestamp_millis(timestamp) > DATE '2020-01-01'",
    "SELECT record FROM records WHERE timestamp_millis(timestamp) > CAST('2020-01-01' AS DATE)",
    "SELECT record, upper(CAST(value AS STRING)) AS value FROM records ORDER BY timestamp",
    "WITH r AS (SELECT * FROM records WHERE offset > 100) SELECT record, topic FROM r",
    "SELECT record, 'x' AS topic FROM records UNION ALL SELECT record, 'y' FROM records",
    "SELECT record, t AS value FROM (SELECT record, explode(array('a', 'b')) AS t FROM records)",
    "SELECT record, CAST(count(*) AS STRING) AS value FROM records GROUP BY record",
    "SELECT r.record, n.name AS value FROM records r LEFT JOIN names n ON n.id = r.offset - 99",
    "SELECT r.record FROM records r LEFT ANTI JOIN names n ON n.id = r.offset - 99",
    "SELECT n AS record, o AS key FROM (SELECT record AS n, key AS o FROM records) ORDER BY n DESC",
    "WITH r AS (SELECT record AS n, key FROM records) SELECT n AS record FROM r GROUP BY n",
    "SELECT record FROM names n RIGHT JOIN records r ON n.id = r.offset - 99",
    "SELECT record FROM records WHERE records.offset - 99 IN (SELECT max(id) FROM names)",
    "SELECT record FROM records r JOIN (SELECT DISTINCT id FROM names) n ON n.id = r.offset - 99",
]
UNDECIDABLE = {
    "SELECT max(record) AS record FROM records GROUP BY key": "Aggregate",
    "SELECT DISTINCT 0L AS record FROM records": "Distinct|Aggregate",
    "SELECT record, CAST(row_number() OVER (ORDER BY offset) AS INT) AS partition FROM records": (
        "Window"
    ),
    "SELECT a.record FROM records a JOIN records b ON a.key = b.key": "joined with records",
    "SELECT record FROM records WHERE offset = (SELECT max(offset) FROM records)": "Aggregate",
    "SELECT record FROM records WHERE offset IN (SELECT offset + 1 FROM records)": "a subquery",
    "SELECT record, CAST(rand() AS STRING) AS value FROM records": "not deterministic",
    "SELECT record, uuid() AS value FROM records": "not deterministic",
    "SELECT record, CAST(current_timestamp() AS STRING) AS value FROM records": "when it is",
    "SELECT record, CAST(now() AS STRING) AS value FROM records": "when it is",
    "SELECT record, CAST(current_date() AS STRING) AS value FROM records": "when it is",
    "SELECT record FROM records WHERE timestamp < unix_millis(current_timestamp())": "when it is",
    "SELECT record, CAST(unix_timestamp() AS STRING) AS value FROM records": "when it is",
    "SELECT record FROM records FULL JOIN names n ON n.id = offset": "FullOuter",
    "SELECT record FROM names n LEFT JOIN records r ON n.id = offset": "LeftOuter",
    "SELECT record FROM records LIMIT 3": "Limit",
    "SELECT record FROM records EXCEPT SELECT id FROM names": "Except",
    "SELECT id AS record FROM names": "does not read the records",
    "SELECT DATE 'today' AS key, record FROM records": "when it is computed: 'today'",
    'SELECT record FROM records WHERE timestamp < unix_millis(TIMESTAMP " Now ")': "when it is",
    "SELECT record, CAST(CAST(concat('yester', 'day') AS DATE) AS STRING) AS key FROM records": (
        "when it is"
    ),
    "SELECT topic FROM records": "no column record",
    "SELECT record, CAST(record % 3 AS INT) AS partition FROM records": "used as data",
    "SELECT record FROM records WHERE record % 100 = 0": "used as data",
    "SELECT record, record AS timestamp FROM records": "timestamp of the result: .* used as data",
    "SELECT n AS record, CAST(n AS STRING) AS key FROM (SELECT record AS n FROM records)": (
        "used as data"
    ),
    "WITH r AS (SELECT record AS n FROM records) SELECT n AS record FROM r WHERE n > 1": (
        "used as data"
    ),
    "SELECT record FROM records r JOIN names n ON n.id = r.record": "used as data",
    "SELECT record FROM records WHERE EXISTS (SELECT 1 FROM names WHERE id = record)": (
        "used as data"
    ),
    "SELECT record, explode(array(record)) AS timestamp FROM records": "used as data",
    "SELECT record FROM records ORDER BY record % 3": "used as data",
    "SELECT offset - 100 AS record FROM records": "taken for `record`",
    "SELECT record FROM records UNION ALL SELECT id FROM names": "taken for `record`",
    "SELECT n AS record FROM (SELECT record AS n, offset AS o FROM records UNION ALL "
    "SELECT offset, record FROM records) GROUP BY n": "taken for `record`",
    "SELECT nothing FROM records": "cannot be analysed here",
}


def with_names(folder: Path, sql: str) -> dict[str, str]:
    table = folder / "names.csv"
    table.write_text("id,name\n1,one\n3,three\n")
    return {"sql": sql, "tables.names": str(table)}


@pytest.mark.parametrize("sql", DECIDABLE)
def test_results_do_not_depend_on_the_batch(spark: SparkSession, sql: str, tmp_path: Path) -> None:
    """Goal: what is not refused gives the same for one record as for all of them, and as a lane."""
    frames = QueryFrames(spark.newSession(), transform(with_names(tmp_path, sql)))
    assert frames.has_tables == ("names" in sql)
    records = inputs(b"a", b"bb", b"c", None)
    alone = [frames.outputs([record])[0] for record in records]
    assert frames.outputs(records) == alone


def test_tables_are_those_that_a_query_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: also files that no property names, which may change; rows of the query do not."""
    table = tmp_path / "ids.csv"
    table.write_text("1\n")
    for source, is_table in ((f"csv.`{table}` AS v(id)", True), ("VALUES (1) AS v(id)", False)):
        sql = f"SELECT record FROM records JOIN {source} ON CAST(id AS INT) = records.offset - 99"
        frames = QueryFrames(spark.newSession(), transform({"sql": sql}))
        assert frames.has_tables == is_table, source
        assert [len(one) for one in frames.outputs(inputs(b"a", b"b"))] == [1, 0]


@pytest.mark.parametrize(("sql", "reason"), UNDECIDABLE.items())
def test_what_cannot_be_decided_is_refused(
    spark: SparkSession, sql: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NotDecidable, match=reason):
        QueryFrames(spark.newSession(), transform(with_names(tmp_path, sql)))


def test_avro_is_refused(spark: SparkSession) -> None:
    avro = {"value.format": "avro", "value.subject": "s", "registry.url": "http://r:1"}
    with pytest.raises(NotDecidable, match="in Avro"):
        QueryFrames(spark.newSession(), transform({"sql": "SELECT record FROM records", **avro}))


def kept(records: DataFrame) -> DataFrame:
    return records.where("length(value) > 1").select("record", f.upper("topic").alias("topic"))


def random_values(records: DataFrame) -> DataFrame:
    return records.select("record", f.lit(str(random.random())).alias("value"))


calls = [0]


def random_columns(records: DataFrame) -> DataFrame:
    calls[0] += 1
    return records.select("record") if calls[0] == 1 else records.select("record", "topic")


def checkpointed(records: DataFrame) -> DataFrame:
    return records.dropDuplicates(["key"]).localCheckpoint()


def created(records: DataFrame) -> DataFrame:
    return records.sparkSession.createDataFrame([], records.schema)


def created_and_joined(records: DataFrame) -> DataFrame:
    return created(records).alias("c").join(records, "offset").select("c.record")


def behind_the_first(records: DataFrame) -> DataFrame:
    first = records.agg(f.min("offset")).first()
    return records.where(f.col("offset") > (first[0] if first is not None else 0))


def with_udf(records: DataFrame) -> DataFrame:
    shout = f.udf(lambda text: text.upper() + "!", "string", useArrow=False)
    return records.select("record", shout(f.col("key").cast("string")).alias("key"))


def with_table_function(records: DataFrame) -> DataFrame:
    class Count:
        def eval(self, key: str) -> Iterator[tuple[str]]:
            yield (key,)

    count_it: Any = f.udtf(Count, returnType="k: string", useArrow=False)
    records.sparkSession.udtf.register("count_it", count_it)
    return records.sparkSession.sql(
        "SELECT record, k AS key FROM records, LATERAL count_it(CAST(key AS STRING))"
    )


def until_yesterday(records: DataFrame) -> DataFrame:
    return records.where(f.timestamp_millis("timestamp") < f.lit(" Yesterday").cast("date"))


def whole_batch(records: DataFrame) -> DataFrame:
    return records.mapInPandas(lambda frames: frames, "record BIGINT")


def test_a_function_is_applied_like_a_query(spark: SparkSession) -> None:
    """Goal: a function of the plan; others that hide what changes, or see whole batches."""
    sys.modules.setdefault("query_functions", sys.modules[__name__])

    def frames(name: str) -> QueryFrames:
        return QueryFrames(spark.newSession(), transform({"function": f"query_functions:{name}"}))

    found = frames("kept").outputs(inputs(b"a", b"bb"))
    assert [[row.topic for row in one] for one in found if not isinstance(one, Failed)] == [
        [],
        ["A.T"],
    ]
    with pytest.raises(NotDecidable, match="another result each time"):
        frames("random_values").outputs(inputs(b"a"))
    with pytest.raises(NotDecidable, match="other columns each time"):
        frames("random_columns").outputs(inputs(b"a"))
    (shouted,) = frames("with_udf").outputs(inputs(b"a"))
    assert not isinstance(shouted, Failed)
    assert [row.key for row in shouted] == [b"K0!"]
    with pytest.raises(NotDecidable, match=r"several records|not deterministic"):
        frames("with_table_function")
    with pytest.raises(NotDecidable, match=r"MapInPandas|cannot be analysed"):
        frames("whole_batch")
    with pytest.raises(NotDecidable, match="cannot be analysed here"):
        frames("missing")
    for name in ("checkpointed", "behind_the_first"):
        with pytest.raises(NotDecidable, match="runs a Spark job"):
            frames(name)
    with pytest.raises(NotDecidable, match="does not read the records"):
        frames("created")
    with pytest.raises(NotDecidable, match="taken for `record`"):
        frames("created_and_joined")
    assert frames("kept").is_function
    with pytest.raises(NotDecidable, match="when it is computed: Cast"):
        frames("until_yesterday")


LANE_QUERIES: list[tuple[dict[str, str], list[bytes | None]]] = [
    (
        {"sql": "SELECT record, value FROM records WHERE value.x IS NULL OR value.x > 0", **TIMES},
        [
            b'{"d":"2024-01-31","t":"2024-01-31 10:00","n":1.239,"x":0.1}',
            b'{"t":"2024-01-31T10:00:00+01:00","n":"1.5","x":1e300}',
            b'{"n":12345678.90, "x": -0.0, "more": [1]}',
            b'{"d":null}',
            None,
            b'{"d":"20240131"}',
            b"null",
            b"{} x",
        ],
    ),
    (
        {
            "sql": "SELECT record, struct(value.*, size(value.tags) AS n) AS value FROM records",
            **JSON,
        },
        [
            '{"id":1,"card":"é\\u0001","tags":[]}'.encode(),
            b'{"id":9223372036854775807,"tags":["a",null]}',
            b'{"card":5.10}',
            b'{"ID":1}',
            b'{"id":1.5}',
            b'{"id":9223372036854775808}',
        ],
    ),
    (
        {
            "sql": "SELECT record, from_json(value, 'a MAP<STRING, INT>').a AS value, "
            "map_values(from_json(value, 'a MAP<STRING, INT>').a) AS key FROM records",
            "value.format": "string",
        },
        [b'{"a":{"x":1,"y":null}}', b'{"a":{}}', b"", b"\xff", b"no"],
    ),
]


def in_a_lane(given: DataFrameTransform, values: Sequence[bytes | None]) -> list[ResultRows | str]:
    """What a lane's process makes of each record alone."""

    async def run() -> list[ResultRows | str]:
        process, found = DataFrameProcess(), list[ResultRows | str]()
        try:
            for at, one in enumerate(inputs(*values)):
                record = one.record
                row = SourceRow(
                    *(0, one.topic, one.partition, record.offset, BEGAN_MS + at),
                    *(record.key, record.value, record.headers),
                )
                try:
                    found.append(await process.run(given, [row]))
                except QueryFailed as error:
                    found.append(str(error))
        finally:
            await process.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize(("properties", "values"), LANE_QUERIES)
def test_a_lane_makes_the_same_of_each_record(
    spark: SparkSession, properties: dict[str, str], values: list[bytes | None]
) -> None:
    """Goal: both fail for the same records, and results mean the same."""
    given = transform({**properties, "spark.sql.session.timeZone": "Europe/Berlin"})
    found = QueryFrames(spark.newSession(), given).outputs(inputs(*values))
    for value, own, lanes in zip(values, found, in_a_lane(given, values), strict=True):
        if isinstance(own, Failed) or isinstance(lanes, str):
            assert isinstance(own, Failed), (value, lanes)
            assert isinstance(lanes, str), (value, own)
            continue
        at = lanes.columns.index("value")
        cells = [row[at] for row in lanes.rows]
        assert [normal_form(row.value) for row in own] == [
            normal_form(bytes(cell) if isinstance(cell, bytes | bytearray) else None)
            for cell in cells
        ], value
        assert all(row.value is None or json.loads(row.value) is not None for row in own)


def test_a_spark_that_has_ended_says_nothing_of_records(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a JVM that runs out of memory fails the comparison, and no record."""
    frames = QueryFrames(spark.newSession(), transform({"sql": "SELECT record FROM records"}))

    def fail(_rows: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(frames, "_collected", fail)
    (output,) = frames.outputs(inputs(b"1"))
    assert isinstance(output, Failed), "the JVM lives"

    class Ended:
        @property
        def version(self) -> str:
            raise ConnectionRefusedError

    monkeypatch.setattr(frames, "_spark", Ended())
    with pytest.raises(Retriable, match="JVM has ended"):
        frames.outputs(inputs(b"1"))
