"""`flow_targets`: topics that are named by time, and topics that several topics are routed to."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_flows import FACTS
from written_logs import WrittenLog

from twinlog.kafka.log.records import Record
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.verify import flow_targets, flow_walk
from twinlog.verify.flow_job import FOREIGN, REPEATED, flow_comparison
from twinlog.verify.flow_targets import (
    AMBIGUOUS,
    NEIGHBOUR_LACKS,
    NO_NEIGHBOURS,
    Neighbour,
    NeighbourRecords,
    TooManyRecords,
    dated_topics,
    is_empty,
    neighbour_records,
    unexpected,
)
from twinlog.verify.flow_task import FlowClaim, FlowCompared, FlowPair, FlowTask
from twinlog.verify.job import Sides
from twinlog.verify.log_cursor import SpanSource
from twinlog.verify.log_view import Kind
from twinlog.verify.transformed_log import TransformSettings
from twinlog.verify.verdict import DifferenceKind, Tally

DAY = 86_400_000
MERGED = {
    "transforms": "all",
    "transforms.all.type": "RegexRouter",
    "transforms.all.regex": ".*",
    "transforms.all.replacement": "all",
}
DATED = {
    "transforms": "drop,day",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "tombstone",
    "transforms.day.type": "TimestampRouter",
    "transforms.day.topic.format": "days.${timestamp}",
    "transforms.day.timestamp.format": "yyyy-MM-dd",
    "predicates": "tombstone",
    "predicates.tombstone.type": "RecordIsTombstone",
}
ALL = TopicPartition("all", 0)


def record(timestamp: int, value: bytes | None) -> Record:
    return Record(0, timestamp, None, value, ())


def records(name: str, numbers: Iterable[int]) -> list[Record]:
    return [record(number, b"%s%d" % (name.encode(), number)) for number in numbers]


def neighbour(name: str) -> Neighbour:
    return Neighbour(source=TopicPartition(name, 0), topic_id=UUID(int=1), remote=f"A.{name}")


def known(
    logs: dict[str, WrittenLog], bounds: dict[str, LogBounds] | None = None
) -> NeighbourRecords:
    """What these neighbours have in the topic `all`."""

    async def read_bounds(
        _cluster: object, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, LogBounds]:
        given_bounds = bounds or {}
        return {one: given_bounds.get(one.topic, logs[one.topic].bounds) for one in partitions}

    def reader(partition: TopicPartition, _topic_id: UUID) -> SpanSource:
        return logs[partition.topic]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_targets, "read_bounds", read_bounds)
        return asyncio.run(
            neighbour_records(
                None,  # type: ignore[arg-type]
                reader,
                [neighbour(name) for name in logs],
                TransformSettings(values=MERGED, topic="A.t"),
                ALL,
            )
        )


def compare(
    source: WrittenLog, remote: WrittenLog, others: NeighbourRecords, claimed: int | None = None
) -> FlowCompared:
    """Compare the topic `t` with `all`; check that each offset has one class."""
    task = FlowTask(
        source={},
        destination={},
        cluster_ids=Sides("s", "d"),
        topic_ids=Sides(UUID(int=1), UUID(int=2)),
        pair=FlowPair("a-to-b", TopicPartition("t", 0), ALL),
        bounds=Sides(source.bounds, remote.bounds),
        claim=FlowClaim(end=source.end if claimed is None else claimed),
        in_transactions=True,
        transforms=TransformSettings(values=MERGED, topic="A.t"),
    )
    result = asyncio.run(flow_comparison(task, lambda: Sides(source, remote), FACTS, others).run())
    assert result.source.length + result.behind == source.end - source.start
    assert result.remote.length == remote.end - remote.start
    return result


def ranges(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.differences]


def unseen(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.unseen]


def log_of(*parts: Iterable[Record]) -> WrittenLog:
    log = WrittenLog()
    for part in parts:
        log.batch(part)
    return log


def test_records_of_other_topics_are_passed_over() -> None:
    """Goal: each topic's records once and in order, however they are mixed."""
    t, u = records("t", range(6)), records("u", range(4))
    others = known({"u": log_of(u)})
    assert (len(others.keys), others.lack) == (4, "")
    remote = log_of([t[0], u[0], u[1], t[1], t[2], u[2], t[3], u[3], t[4], t[5]])
    result = compare(log_of(t), remote, others)
    assert not result.source.differences
    assert not result.remote.differences
    assert (result.source.compared, result.remote.compared) == (6, 6)
    assert result.remote.absent == {"other_topics": 4}
    assert known({}) == NO_NEIGHBOURS


def test_faults_among_records_of_other_topics_are_found() -> None:
    t, u = records("t", range(5)), records("u", range(3))
    others = known({"u": log_of(u)})

    def found(*remote: Record) -> tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]:
        result = compare(log_of(t), log_of(remote), others)
        return ranges(result.source), ranges(result.remote)

    assert found(t[0], u[0], t[1], u[1], t[3], u[2], t[4]) == ([(2, 3, DifferenceKind.LOST)], [])
    assert found(t[0], u[0], t[1], t[2], u[1], t[2], t[3], t[4]) == (
        [],
        [(5, 6, f"{REPEATED}")],
    )
    lost, repeated = found(t[0], t[2], u[0], t[1], t[3], t[4])
    assert (len(lost), [reason for _, _, reason in repeated]) == (1, [REPEATED])
    altered = t[2]._replace(value=b"t9")
    assert found(t[0], t[1], u[0], altered, t[3], t[4]) == (
        [(2, 3, DifferenceKind.CONTENT)],
        [(3, 4, DifferenceKind.CONTENT)],
    )
    foreign = record(77, b"x")
    assert found(t[0], foreign, *t[1:], u[0]) == ([], [(1, 2, FOREIGN)])


def test_a_record_that_two_topics_have_alike_is_not_seen() -> None:
    t = records("t", range(3))
    others = known({"u": log_of([t[1]])})
    result = compare(log_of(t), log_of([t[0], t[1], t[1], t[2]]), others)
    assert unseen(result.source) == [(1, 2, AMBIGUOUS)]
    assert not result.source.differences
    assert not result.remote.differences
    assert result.remote.absent == {"other_topics": 2}


def test_what_a_neighbour_may_have_had_is_not_foreign() -> None:
    """Goal: records of a deleted part of another topic; a record that is lost stays lost."""
    t, u = records("t", range(3)), records("u", range(4))
    purged = WrittenLog(start=2).batch(u[2:])
    others = known({"u": purged})
    assert others.lack == NEIGHBOUR_LACKS
    result = compare(log_of(t), log_of([u[0], t[0], u[1], t[2], u[2], u[3]]), others)
    assert not result.remote.differences
    reason = f"no original: source: {NEIGHBOUR_LACKS}"
    assert unseen(result.remote) == [(0, 1, reason), (2, 3, reason)]
    assert ranges(result.source) == [(1, 2, DifferenceKind.LOST)]
    unreadable = known({"u": log_of(u)}, {"u": LogBounds(6, -1, -1, -1)})
    assert unreadable == NeighbourRecords(set(), NEIGHBOUR_LACKS)
    assert known({"u": WrittenLog().records(["x"]).sparse(["y", None])}).lack == NEIGHBOUR_LACKS


def test_too_many_records_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_targets, "MAX_NEIGHBOUR_KEYS", 3)
    log = log_of(records("u", range(4)))
    with pytest.raises(TooManyRecords):
        known({"u": log})


@given(
    order=st.permutations([0] * 8 + [1] * 5 + [2] * 3),
    edit=st.sampled_from(["", "lose", "repeat", "alter", "swap", "foreign"]),
    place=st.integers(0, 7),
    window=st.integers(1, 4),
)
@settings(max_examples=300, deadline=None)
def test_only_a_right_mixture_is_good(
    *, order: Sequence[int], edit: str, place: int, window: int
) -> None:
    """Goal: any interleaving of three topics is good; a fault in one of them is found there."""
    parts = [records(name, range(count)) for name, count in (("t", 8), ("u", 5), ("v", 3))]
    t = list(parts[0])
    if edit == "lose":
        del t[place]
    elif edit == "repeat":
        t.insert(place, t[place])
    elif edit == "alter":
        t[place] = t[place]._replace(value=b"other")
    elif edit == "swap":
        at = min(place, 6)
        t[at], t[at + 1] = t[at + 1], t[at]
    elif edit == "foreign":
        t.insert(place, record(50, b"x"))
    queues = [iter(t), iter(parts[1]), iter(parts[2])]
    mixed = [one for side in order if (one := next(queues[side], None)) is not None]
    mixed += list(queues[0])
    others = known({"u": log_of(parts[1]), "v": log_of(parts[2])})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_walk, "WINDOWS", (window,))
        result = compare(log_of(parts[0]), log_of(mixed[:5], mixed[5:]), others)
    assert not result.source.unseen
    assert not result.remote.unseen
    assert bool(result.source.differences or result.remote.differences) == bool(edit), mixed
    assert result.remote.absent == {"other_topics": 8}


def test_topics_that_are_named_by_time_are_found() -> None:
    """Goal: each one once; dropped records and those of fixed topics name none."""
    log = WrittenLog().batch(
        [
            record(DAY, b"a"),
            record(0, b"b"),
            record(DAY + 5, b"c"),
            record(2 * DAY, None),
            record(1 << 60, b"no date"),
        ]
    )
    log.skip(1).batch([record(-1, b"d")])
    given_settings = TransformSettings(values=DATED, topic="A.t")

    def topics(of: TransformSettings) -> set[str]:
        found = asyncio.run(dated_topics(log, log.bounds, of, 0))
        assert not found.lack
        return set(found.topics)

    assert topics(given_settings) == {"days.1970-01-02", "days.1970-01-01", "days.1969-12-31"}
    plain = {**DATED, "transforms.day.topic.format": "${topic}"}
    assert topics(replace(given_settings, values=plain)) == set()


def test_no_more_topics_are_named_than_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_targets, "MAX_TOPICS", 2)
    log = WrittenLog()
    for day in range(9):
        log.batch([record(day * DAY, b"a")])
    found = asyncio.run(
        dated_topics(log, log.bounds, TransformSettings(values=DATED, topic="A.t"), 0)
    )
    assert len(found.topics) == 3


def test_topics_of_offsets_that_were_not_seen_may_be_lacking() -> None:
    """Goal: a source that answers nothing has not said that there are no more topics."""
    log = WrittenLog().batch([record(0, b"a")]).skip(3, Kind.UNSEEN, "no answer")
    log.batch([record(DAY, b"b")])
    found = asyncio.run(
        dated_topics(log, log.bounds, TransformSettings(values=DATED, topic="A.t"), 0)
    )
    assert found.topics == {"days.1970-01-01", "days.1970-01-02"}
    assert found.lack == "source offset 1: no answer"


def test_partitions_where_no_record_is_expected() -> None:
    places = [TopicPartition("vip", 1), TopicPartition("gone", 0)]
    found = unexpected(places, {"vip": [0, 1, 2], "other": [0]})
    assert found == [TopicPartition("vip", 0), TopicPartition("vip", 2)]
    assert is_empty(LogBounds(0, 3, 3, 3))
    assert not is_empty(LogBounds(0, 3, 4, 3)), "an open transaction"
    assert not is_empty(LogBounds(6, -1, -1, -1))
