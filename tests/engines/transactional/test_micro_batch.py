"""Micro-batches without Spark: what is written for a result, and who is to blame for a failure."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from loop_beats import beating

from twinlog.engines import loop_steps
from twinlog.engines.dataframes import QueryFailed, ResultRows, SourceRow
from twinlog.engines.transactional.micro_batch import frame_outputs
from twinlog.engines.transactional.outputs import Outputs
from twinlog.kafka.errors import CorruptBatch, Retriable
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.record_parts import AT_ONCE
from twinlog.kafka.log.records import RawRecord, Record, build, decode, each_record, encode_tail
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.plan import Data

ONE, TWO = TopicPartition("A.t", 0), TopicPartition("A.t", 1)
TRANSFORM = DataFrameTransform(sql="SELECT * FROM records")
STAYING = DataFrameTransform(sql="SELECT * FROM records", routes=False)
Query = Callable[[Sequence[SourceRow]], ResultRows]


class Frames:
    """A query in Python, which counts its runs (`DataFrames`)."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.runs = 0

    async def run(self, transform: DataFrameTransform, rows: Sequence[SourceRow]) -> ResultRows:
        assert transform in {TRANSFORM, STAYING}
        self.runs += 1
        return self._query(rows)


def batch(start: int, values: Sequence[bytes], codec: Codec = Codec.NONE) -> Data:
    raw = [
        RawRecord(
            start + at,
            1000 + at,
            0,
            memoryview(encode_tail(b"k", value, [("h", b"1"), ("n", None)])),
        )
        for at, value in enumerate(values)
    ]
    built = build(raw, codec)
    return Data(Offset(start), Offset(start + len(values)), built.header, built.records)


def outputs(
    query: Query, batches: dict[TopicPartition, list[Data]]
) -> dict[TopicPartition, Outputs]:
    found = asyncio.run(frame_outputs(Frames(query), TRANSFORM, batches))
    assert found.keys() == batches.keys()
    return {key: one for key, one in found.items() if isinstance(one, Outputs)}


def written(found: Outputs) -> dict[TopicPartition, list[Record]]:
    return {
        to: [decode(raw) for one in built for raw in each_record(one.header, one.records)]
        for to, built in found.batches.items()
    }


def values(found: Outputs, to: TopicPartition) -> list[bytes | None]:
    return [record.value for record in written(found).get(to, [])]


def test_columns_that_a_result_lacks_stay_as_they_are() -> None:
    """Goal: a filter changes no byte; timestamps, headers, codec and order stay."""

    def even(rows: Sequence[SourceRow]) -> ResultRows:
        return ResultRows(("record",), [(row.record,) for row in reversed(rows) if row.offset % 2])

    source = batch(10, [b"a", b"b", b"c", b"d"], Codec.ZSTD)
    found = outputs(even, {ONE: [source]})[ONE]
    kept = [raw for raw in each_record(source.header, source.records) if raw.offset % 2]
    (built,) = found.batches[ONE]
    again = list(each_record(built.header, built.records))
    assert [(raw.timestamp, raw.tail) for raw in again] == [(r.timestamp, r.tail) for r in kept]
    assert built.header.codec is Codec.ZSTD


def test_rows_are_routed_and_changed_and_keep_the_order_of_the_source() -> None:
    """Goal: each column of a result has its meaning, and one record may give several rows."""
    columns = ("record", "topic", "partition", "timestamp", "key", "value", "headers")

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        found: list[tuple[object, ...]] = []
        for row in rows:
            found.append(
                (row.record, "gold", 3, 7, None, bytearray(row.value or b""), [("x", b"y")])
            )
            found.append((row.record, row.topic, row.partition, 8, row.key, None, None))
        return ResultRows(columns, found[::-1])

    found = outputs(query, {ONE: [batch(0, [b"a", b"b"])], TWO: [batch(5, [b"c"])]})
    gold = TopicPartition("gold", 3)
    assert written(found[ONE]) == {
        gold: [Record(at, 7, None, value, (("x", b"y"),)) for at, value in enumerate((b"a", b"b"))],
        ONE: [Record(at, 8, b"k", None, ()) for at in range(2)],
    }
    assert values(found[TWO], gold) == [b"c"]
    assert found[TWO].failure is None


@pytest.mark.parametrize(
    ("columns", "cells", "text"),
    [
        (("topic",), (None,), "column topic of the result is null"),
        (("topic",), ("a b",), "no name of a topic"),
        (("topic",), ("__consumer_offsets",), "an internal topic"),
        (("partition",), (None,), "column partition of the result is None"),
        (("partition",), (-1,), "column partition of the result is -1"),
        (("timestamp",), (None,), "column timestamp of the result is null"),
        (("headers",), ([(None, b"")],), "a header without a name"),
        (("headers",), ([None],), "a header without a name"),
    ],
)
def test_a_row_that_cannot_be_written_stops_its_partition_only(
    columns: tuple[str, ...], cells: tuple[object, ...], text: str
) -> None:
    """Goal: what is before it is written; what is behind it is not."""

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        good = {"topic": "t", "partition": 0, "timestamp": 1, "headers": []}
        return ResultRows(
            ("record", *columns),
            [
                (row.record, *(cells if row.value == b"bad" else (good[name] for name in columns)))
                for row in rows
            ],
        )

    found = outputs(query, {ONE: [batch(4, [b"a", b"bad", b"c"])], TWO: [batch(0, [b"d", b"e"])]})
    failure = found[ONE].failure
    assert failure is not None
    assert failure.offset == 5
    assert text in failure.reason
    assert sum(map(len, written(found[ONE]).values())) == 1
    assert sum(map(len, written(found[TWO]).values())) == 2
    assert found[TWO].failure is None


def mapped(
    query: Query, batches: dict[TopicPartition, list[Data]]
) -> dict[TopicPartition, Outputs]:
    found = asyncio.run(frame_outputs(Frames(query), STAYING, batches, is_mapped=True))
    return {key: one for key, one in found.items() if isinstance(one, Outputs)}


def test_the_offsets_of_rows_are_known_for_a_map() -> None:
    """Goal: one for each record that is written, of its own partition, in the log's order."""

    def dropping(rows: Sequence[SourceRow]) -> ResultRows:
        kept = [(row.record, row.topic) for row in rows if row.value != b"x"]
        return ResultRows(("record", "topic"), kept[::-1])

    first, second = batch(3, [b"a", b"b", b"x", b"c"]), batch(9, [b"x", b"d"])
    found = mapped(dropping, {ONE: [first, second], TWO: [batch(0, [b"x"])]})
    assert found[ONE].sources == [(3, 5), (6, 7), (10, 11)]
    assert values(found[ONE], ONE) == [b"a", b"b", b"c", b"d"]
    assert found[TWO] == Outputs({})
    assert outputs(dropping, {ONE: [first]})[ONE].sources == []


@pytest.mark.parametrize(
    ("columns", "rows_of", "text"),
    [
        (("topic",), [("B",)], "its row is for another topic or partition"),
        (("partition",), [(1,)], "its row is for another topic or partition"),
        (("topic",), [("A.t",), ("A.t",)], "it has several rows"),
    ],
)
def test_what_a_map_cannot_have_stops_its_partition(
    columns: tuple[str, ...], rows_of: list[tuple[object, ...]], text: str
) -> None:
    """Goal: what is before such a record is written, with its offsets; the record is not."""
    stays: dict[str, object] = {"topic": "A.t", "partition": 0}

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        kept = tuple(stays[name] for name in columns)
        found = [
            (row.record, *cells)
            for row in rows
            for cells in (rows_of if row.value == b"bad" else [kept])
        ]
        return ResultRows(("record", *columns), found)

    one = mapped(query, {ONE: [batch(4, [b"a", b"bad", b"c"])]})[ONE]
    assert one.failure is not None
    assert one.failure.offset == 5
    assert text in one.failure.reason
    assert (values(one, ONE), one.sources) == ([b"a"], [(4, 5)])


@pytest.mark.parametrize("bad", range(9))
def test_a_record_that_the_query_fails_for_is_found(bad: int) -> None:
    """Goal: wherever it is, what is before it is written; the other partition goes on."""

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        if any(row.value == b"bad" for row in rows):
            raise QueryFailed("CAST_INVALID_INPUT")
        return ResultRows(("record",), [(row.record,) for row in rows])

    wanted = [b"%d" % at for at in range(9)]
    source = [b"bad" if at == bad else value for at, value in enumerate(wanted)]
    batches = {ONE: [batch(100, source[:4]), batch(110, source[4:])], TWO: [batch(0, [b"x"])]}
    frames = Frames(query)
    found = asyncio.run(frame_outputs(frames, TRANSFORM, batches))
    one, two = found[ONE], found[TWO]
    assert isinstance(one, Outputs)
    assert isinstance(two, Outputs)
    assert values(one, ONE) == wanted[:bad]
    assert one.failure is not None
    assert one.failure.offset == (100 + bad if bad < 4 else 106 + bad)
    assert "cannot be transformed: CAST_INVALID_INPUT" in one.failure.reason
    assert (values(two, TWO), two.failure) == ([b"x"], None)
    assert frames.runs <= 10


@pytest.mark.parametrize("bad_row", [False, True])
def test_a_result_is_of_the_records_that_are_committed_with_it(bad_row: bool) -> None:
    """Goal: a query that counts has counted no record that will come again."""
    batches = {ONE: [batch(0, [b"a", b"b", b"bad", b"c"])], TWO: [batch(0, [b"d", b"e", b"f"])]}

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        bad = any(row.value == b"bad" for row in rows)
        if bad and not bad_row:
            raise QueryFailed("CAST_INVALID_INPUT")
        total = b"%d" % len(rows)
        topic = {True: None, False: "t"}
        return ResultRows(
            ("record", "topic", "value"),
            [(row.record, topic[row.value == b"bad"], total) for row in rows],
        )

    found = outputs(query, batches)
    to = [TopicPartition("t", index) for index in (0, 1)]
    assert values(found[ONE], to[0]) == [b"5", b"5"]
    assert values(found[TWO], to[1]) == [b"5"] * 3
    assert (failure := found[ONE].failure) is not None
    assert failure.offset == 2
    assert found[TWO].failure is None


def test_a_query_that_fails_for_all_partitions_together_goes_on_with_one() -> None:
    """Goal: no endless loop, and nothing is passed over."""

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        if len({row.partition for row in rows}) > 1:
            raise QueryFailed("too much")
        return ResultRows(("record",), [(row.record,) for row in rows])

    found = outputs(query, {ONE: [batch(0, [b"a"])], TWO: [batch(3, [b"b", b"c"])]})
    assert (values(found[ONE], ONE), found[ONE].failure) == ([b"a"], None)
    assert found[TWO].batches == {}
    assert (failure := found[TWO].failure) is not None
    assert failure.offset == 3


def test_a_failure_that_does_not_come_again_stops_nothing() -> None:
    """Goal: a query that fails for all records together may succeed for each partition."""
    runs = count()

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        if next(runs) == 0:
            raise QueryFailed("once")
        return ResultRows(("record",), [(row.record,) for row in rows])

    found = outputs(query, {ONE: [batch(0, [b"a", b"b"])], TWO: []})
    assert values(found[ONE], ONE) == [b"a", b"b"]
    assert found[ONE].failure is None
    assert found[TWO] == Outputs({})


def test_no_record_is_blamed_for_a_worker_that_is_killed_twice() -> None:
    """Goal: a failure counts if it comes again for the same records."""
    runs = count()

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        if next(runs) < 2:
            raise QueryFailed("the Python worker has exited")
        return ResultRows(("record",), [(row.record,) for row in rows])

    found = outputs(query, {ONE: [batch(10, [b"a", b"b", b"c", b"d"])]})[ONE]
    assert found.failure is None
    assert values(found, ONE) == [b"a", b"b", b"c", b"d"]


def test_other_tasks_have_their_turns_before_and_after_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: heartbeats do not wait for the rows of a batch with very many records."""
    monkeypatch.setattr(loop_steps, "_STEP_S", 0.0)  # on a machine of any speed
    steps = 10

    async def body() -> None:
        at_query: list[int] = []

        def query(rows: Sequence[SourceRow]) -> ResultRows:
            at_query.append(beats.count)
            return ResultRows(("record",), [(row.record,) for row in rows[::-1]])

        values = [b"v"] * steps * AT_ONCE
        async with beating() as beats:
            found = await frame_outputs(Frames(query), TRANSFORM, {ONE: [batch(0, values)]})
        one = found[ONE]
        assert isinstance(one, Outputs)
        assert len(written(one)[ONE]) == len(values)
        assert at_query[0] > steps, "records are cut, and rows are made of them"
        assert beats.count - at_query[0] > steps, "rows are put in order, and written"

    asyncio.run(body())


@pytest.mark.parametrize("record", [None, -1, 2, "0"])
def test_a_row_that_names_no_record_fails(record: object) -> None:
    """Goal: such a row is never written, nor passed over."""
    query = lambda _: ResultRows(("record",), [(record,)])  # noqa: E731
    found = outputs(query, {ONE: [batch(0, [b"a", b"b"])]})
    assert found[ONE].batches == {}
    assert (failure := found[ONE].failure) is not None
    assert failure.offset == 0


@pytest.mark.parametrize("columns", [("record",), ("record", "headers")])
def test_names_of_headers_that_are_no_text_are_kept_or_refused(columns: tuple[str, ...]) -> None:
    """Goal: a name of any bytes passes if the result has no headers, and is never altered."""
    tail = encode_tail(b"k", b"v", [("\udcff", b"1")])
    built = build([RawRecord(0, 1, 0, memoryview(tail))], Codec.NONE)
    source = Data(Offset(0), Offset(1), built.header, built.records)

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        return ResultRows(columns, [(row.record, [("?", b"1")])[: len(columns)] for row in rows])

    found = outputs(query, {ONE: [source]})[ONE]
    if "headers" in columns:
        assert found.batches == {}
        assert found.failure is not None
        assert "the name of a header is not in UTF-8" in found.failure.reason
    else:
        assert written(found)[ONE] == [Record(0, 1, b"k", b"v", (("\udcff", b"1"),))]


def test_a_corrupt_batch_is_told_from_the_others() -> None:
    """Goal: one partition's corrupt batch does not keep the others from their transaction."""
    good, bad = batch(0, [b"a"]), batch(0, [b"b"])
    bad = Data(bad.start, bad.end, bad.header, bad.records[:-1])
    query: Query = lambda rows: ResultRows(("record",), [(row.record,) for row in rows])  # noqa: E731
    found = asyncio.run(frame_outputs(Frames(query), TRANSFORM, {ONE: [bad], TWO: [good]}))
    assert isinstance(found[ONE], CorruptBatch)
    two = found[TWO]
    assert isinstance(two, Outputs)
    assert values(two, TWO) == [b"a"]


def test_a_query_that_fails_again_after_it_has_passed_is_tried_later() -> None:
    """Goal: a query that fails for some numbers of records does not run for ever."""

    def query(rows: Sequence[SourceRow]) -> ResultRows:
        if any(row.value == b"bad" for row in rows) or len(rows) == 3:
            raise QueryFailed("x")
        topics = [None if row.value == b"n" else row.topic for row in rows]
        return ResultRows(
            ("record", "topic"), list(zip((row.record for row in rows), topics, strict=True))
        )

    taken = [b"a", b"b", b"c", b"n", b"d", b"e", b"f", b"bad"]
    with pytest.raises(Retriable, match="x"):
        outputs(query, {ONE: [batch(0, taken)]})
