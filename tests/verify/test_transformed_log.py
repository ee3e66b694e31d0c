"""`transformed_log`: flows with transforms, compared on logs that are written down.

The remote logs are written by this file's own idea of the transforms: mask the field `card`, drop
what has a header `drop`, and route what has a header `vip` to the topic `vip`.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_flows import FACTS
from written_logs import WrittenLog

from twinlog.kafka.log.records import Headers, Record, decode
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Run, encode_runs
from twinlog.verify import flow_walk
from twinlog.verify.flow_job import (
    DELETED,
    FOREIGN,
    REPEATED,
    UNWANTED,
    flow_comparison,
)
from twinlog.verify.flow_task import (
    NO_BEGIN,
    FlowClaim,
    FlowCompared,
    FlowPair,
    FlowTask,
)
from twinlog.verify.job import Sides
from twinlog.verify.log_view import Kind
from twinlog.verify.map_check import MapClaim
from twinlog.verify.transformed_log import (
    MappedReader,
    Omission,
    TransformedLogs,
    TransformSettings,
)
from twinlog.verify.verdict import DifferenceKind, Tally

VALUES = {
    "transforms": "drop,mask,vip",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "dropped",
    "transforms.mask.type": "MaskField$Value",
    "transforms.mask.fields": "card",
    "transforms.vip.type": "RegexRouter",
    "transforms.vip.regex": ".*",
    "transforms.vip.replacement": "vip",
    "transforms.vip.predicate": "important",
    "predicates": "dropped,important",
    "predicates.dropped.type": "HasHeaderKey",
    "predicates.dropped.name": "drop",
    "predicates.important.type": "HasHeaderKey",
    "predicates.important.name": "vip",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
SETTINGS = TransformSettings(values=VALUES, topic="a.t")
REMOTE, VIP = TopicPartition("a.t", 0), TopicPartition("vip", 0)
DROP: Headers = (("drop", b""),)


def original(number: int, headers: Headers = (), card: str = "secret") -> Record:
    value = json.dumps({"n": number, "card": card}).encode()
    return Record(0, number, b"k%d" % number, value, headers)


def copy(number: int, headers: Headers = ()) -> Record:
    """What the transforms make of it, as another writer of JSON would write it."""
    value = b'{ "card": "", "n": %d }' % number
    return Record(0, number, b"k%d" % number, value, headers)


def headers_of(number: int) -> Headers:
    """Each third record is dropped, and each fifth important."""
    drop: Headers = DROP if number % 3 == 2 else ()
    return (*drop, ("vip", b"")) if number % 5 == 4 else drop


def source_of(count: int) -> WrittenLog:
    return WrittenLog().batch(original(number, headers_of(number)) for number in range(count))


def numbers_in(target: TopicPartition, count: int) -> list[int]:
    """Those that should be in the target's log."""
    return [
        number
        for number in range(count)
        if number % 3 != 2 and (number % 5 == 4) == (target == VIP)
    ]


def copies(numbers: Iterable[int]) -> list[Record]:
    return [copy(number, headers_of(number)) for number in numbers]


def compare(
    source: WrittenLog,
    remote: WrittenLog,
    claimed: int | None = None,
    target: TopicPartition = REMOTE,
    **claim: Any,
) -> FlowCompared:
    """Compare two logs; check that each offset has one class."""
    task = FlowTask(
        source={},
        destination={},
        cluster_ids=Sides("s", "d"),
        topic_ids=Sides(UUID(int=1), UUID(int=2)),
        pair=FlowPair("a-to-b", TopicPartition("t", 0), target),
        bounds=Sides(source.bounds, remote.bounds),
        claim=FlowClaim(end=source.end if claimed is None else claimed, **claim),
        in_transactions=True,
        transforms=SETTINGS,
    )
    result = asyncio.run(flow_comparison(task, lambda: Sides(source, remote), FACTS).run())
    assert result.source.length + result.behind == source.end - source.start
    assert result.remote.length == remote.end - remote.start
    return result


def ranges(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.differences]


def unseen(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.unseen]


def same(result: FlowCompared) -> bool:
    tallies = (result.source, result.remote)
    return not any(tally.differences or tally.unseen for tally in tallies)


@pytest.mark.parametrize("target", [REMOTE, VIP])
def test_transformed_records_are_the_same(target: TopicPartition) -> None:
    """Goal: what is dropped or routed is counted, and how JSON is written is no matter."""
    numbers = numbers_in(target, 30)
    remote = WrittenLog().skip(1).batch(copies(numbers)).skip(1)
    result = compare(source_of(30), remote, target=target)
    assert same(result)
    assert result.source.compared == result.remote.compared == len(numbers)
    assert result.source.absent == {"filtered": 10, "routed": 20 - len(numbers)}


def test_what_is_not_claimed_is_behind() -> None:
    source = source_of(15)
    assert same(result := compare(source, WrittenLog().batch(copies([0, 1])), 3))
    # What is dropped has no copy to wait for.
    assert (result.behind, result.source.absent) == (12, {"filtered": 1})
    assert same(result := compare(source, WrittenLog(), 0))
    assert result.behind == 15
    assert ranges(compare(source, WrittenLog().batch(copies([0, 1])), 4).source) == [
        (3, 4, DifferenceKind.LOST)
    ]


@pytest.mark.parametrize("target", [REMOTE, VIP])
def test_each_lost_record_is_found(target: TopicPartition) -> None:
    numbers = numbers_in(target, 30)
    for lost in numbers:
        kept = [number for number in numbers if number != lost]
        result = compare(source_of(30), WrittenLog().batch(copies(kept)), target=target)
        assert ranges(result.source) == [(lost, lost + 1, DifferenceKind.LOST)]
        assert not result.remote.differences


def test_each_doubled_record_is_found() -> None:
    numbers = numbers_in(REMOTE, 20)
    for at, number in enumerate(numbers):
        doubled = copies([*numbers[: at + 1], number, *numbers[at + 1 :]])
        result = compare(source_of(20), WrittenLog().batch(doubled))
        assert ranges(result.remote) == [(at + 1, at + 2, REPEATED)]
        assert not result.source.differences


@pytest.mark.parametrize(
    "altered",
    [
        copy(6)._replace(value=b'{"card":"","n":7}'),
        copy(6)._replace(value=b'{"card":"","n":6.0}'),
        copy(6)._replace(value=b'{"card":"","n":6,"more":null}'),
        copy(6)._replace(value=b'{"card":"","card":"","n":6}'),
        copy(6)._replace(value=None),
        copy(6)._replace(key=b"k6 "),
        copy(6)._replace(headers=(("x", b""),)),
        copy(6)._replace(headers=(("vip", b""),)),
        original(6),
    ],
)
def test_an_altered_record_is_found(altered: Record) -> None:
    """Goal: also one that was not masked, beside records that are dropped."""
    records = copies(numbers_in(REMOTE, 20))
    at = numbers_in(REMOTE, 20).index(6)
    records[at] = altered
    result = compare(source_of(20), WrittenLog().batch(records))
    assert ranges(result.source) == [(6, 7, DifferenceKind.CONTENT)]
    assert ranges(result.remote) == [(at, at + 1, DifferenceKind.CONTENT)]


def test_the_map_of_a_flow_that_drops_records() -> None:
    """Goal: right ones are equal, and an entry of a record that is dropped is wrong.

    If the record is there, as transforms that were altered have left it, the entry is not judged.
    """
    numbers = numbers_in(REMOTE, 12)
    runs = [Run(Offset(number), Offset(at), 1) for at, number in enumerate(numbers)]

    def checked(stored: Sequence[Run], records: Iterable[Record]) -> FlowCompared:
        claim = MapClaim(
            start=NO_BEGIN, position=12, runs=encode_runs(NO_BEGIN, stored), may_repeat=True
        )
        result = compare(source_of(12), WrittenLog().batch(records).skip(1), map=claim)
        assert result.recorded is not None
        return result

    result = checked(runs, copies(numbers))
    assert same(result)
    assert result.recorded == Tally(compared=len(numbers))
    wrong = [*runs[:2], Run(Offset(2), Offset(2), 1), Run(Offset(3), Offset(3), 1), *runs[4:]]
    result = checked(wrong, copies(numbers))
    assert same(result)
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(2, 3), (3, 4), (6, 7)]
    moved = [run._replace(destination=Offset(run.destination + 1)) for run in runs[2:]]
    former = [*runs[:2], Run(Offset(2), Offset(2), 1), *moved]
    result = checked(former, copies([0, 1, 2, *numbers[2:]]))
    assert ranges(result.remote) == [(2, 3, UNWANTED)]
    assert result.recorded is not None
    assert not result.recorded.differences
    assert [one[:2] for one in unseen(result.recorded)] == [(2, 3)]
    assert (result.recorded.compared, result.recorded.not_seen) == (len(numbers), 1)


def test_another_timestamp_is_found() -> None:
    records = copies([0, 1, 3])
    records[1] = records[1]._replace(timestamp=5)
    result = compare(source_of(4), WrittenLog().batch(records))
    assert ranges(result.source) == [(1, 2, DifferenceKind.TIMESTAMP)]


def test_records_in_another_order_are_found() -> None:
    numbers = numbers_in(REMOTE, 20)
    for at in range(len(numbers) - 1):
        order = [*numbers[:at], numbers[at + 1], numbers[at], *numbers[at + 2 :]]
        result = compare(source_of(20), WrittenLog().batch(copies(order)))
        assert result.source.differs == result.remote.differs == 1, order
        assert [reason for _, _, reason in ranges(result.remote)] == [REPEATED]


def test_a_record_that_should_have_been_dropped_or_routed_is_found() -> None:
    """Goal: a dropped record, transformed otherwise; and one of another topic."""
    for extra in (2, 4):
        numbers = [0, 1, extra, 3, 6]
        result = compare(source_of(7), WrittenLog().batch(copies(sorted(numbers))))
        assert [reason for _, _, reason in ranges(result.remote)] == [UNWANTED], extra
        assert not result.source.differences
    raw = [*copies([0, 1]), original(2, headers_of(2)), *copies([3, 6])]
    result = compare(source_of(7), WrittenLog().batch(raw))
    assert ranges(result.remote) == [(2, 3, FOREIGN)], "not masked either"


def test_a_record_in_the_wrong_topic_is_found_in_both() -> None:
    source = source_of(15)
    remote = WrittenLog().batch(copies([0, 1, 3, 4, 6, 7, 10, 12, 13]))
    vip = WrittenLog().batch(copies([9]))
    assert ranges(compare(source, remote).remote) == [(3, 4, UNWANTED)]
    result = compare(source, vip, target=VIP)
    assert ranges(result.source) == [(4, 5, DifferenceKind.LOST)]


def test_a_foreign_record_is_found() -> None:
    records = [*copies([0, 1]), copy(99), *copies([3])]
    result = compare(source_of(4), WrittenLog().batch(records))
    assert ranges(result.remote) == [(2, 3, FOREIGN)]


def test_purged_records_are_not_seen() -> None:
    source = WrittenLog(start=3).batch(original(n, headers_of(n)) for n in range(3, 10))
    numbers = numbers_in(REMOTE, 10)
    result = compare(source, WrittenLog().batch(copies(numbers)))
    assert unseen(result.remote) == [(0, 2, f"no original: source: {DELETED}")]
    assert not result.remote.differences
    remote = WrittenLog(start=3).batch(copies(numbers[3:]))
    result = compare(source_of(10), remote)
    reason = f"no copy: remote log: {DELETED}"
    assert unseen(result.source) == [(0, 2, reason), (3, 4, reason)]
    assert not result.source.differences


def test_a_topic_that_does_not_exist_is_no_evidence() -> None:
    """Goal: what should be in it is not seen; if nothing should be, nothing is wrong."""
    lacks = Sides("", "it does not exist")
    result = compare(source_of(5), WrittenLog(), target=VIP, lacks=lacks)
    assert unseen(result.source) == [(4, 5, "no copy: remote log: it does not exist")]
    assert same(compare(source_of(4), WrittenLog(), target=VIP, lacks=lacks))


def test_a_record_that_cannot_be_transformed_is_not_seen() -> None:
    """Goal: nothing is concluded of it or of a copy beside it, and the others are compared."""
    records = [original(n, headers_of(n)) for n in range(5)]
    records[1] = records[1]._replace(value=b"{")
    source = WrittenLog().batch(records)
    result = compare(source, WrittenLog().batch(copies([0, 3])))
    ((start, end, reason),) = unseen(result.source)
    assert (start, end) == (1, 2)
    assert reason.startswith("the record cannot be transformed: transform mask: the value is no")
    assert (result.source.compared, result.source.differs) == (2, 0)
    result = compare(source, WrittenLog().batch(copies([0, 1, 3])))
    assert [(start, end) for start, end, _ in unseen(result.remote)] == [(1, 2)]


def test_a_batch_that_cannot_be_decoded_is_not_seen() -> None:
    source = WrittenLog().records(["x"])
    (span,) = source.spans
    assert span.batch is not None
    (raw,) = span.batch.by_offset().values()
    span.batch.by_offset()[raw.offset] = raw._replace(tail=raw.tail[:2])
    reader = MappedReader(source, TransformedLogs(SETTINGS, REMOTE).expected)
    result = asyncio.run(reader.span(0, 1))
    assert (result.kind, result.start, result.end) == (Kind.UNSEEN, 0, 1)
    assert result.reason


def test_spans_keep_holes_and_omissions_apart() -> None:
    """Goal: runs of one kind are one span; what compaction has removed stays a hole."""
    logs = TransformedLogs(SETTINGS, REMOTE)
    log = WrittenLog().batch(
        original(n, headers) for n, headers in enumerate([(), DROP, DROP, (), (("vip", b""),)])
    )
    (span,) = log.spans
    assert span.batch is not None
    log.spans = [span._replace(end=7)]
    del span.batch.by_offset()[3]
    reader = MappedReader(log, logs.expected)

    async def run() -> list[tuple[int, int, Kind]]:
        found, at = [], 0
        while at < 7:
            piece = await reader.span(at, 7)
            found.append((piece.start, piece.end, piece.kind))
            at = piece.end
        return found

    assert asyncio.run(run()) == [
        (0, 1, Kind.DATA),
        (1, 3, Kind.FILTERED),
        (3, 4, Kind.HOLE),
        (4, 5, Kind.ROUTED),
        (5, 7, Kind.HOLE),
    ]
    copied = TransformedLogs(SETTINGS, REMOTE).unfiltered(
        next(iter(span.batch.by_offset().values()))
    )
    assert not isinstance(copied, Omission)
    assert decode(copied).key == b"k0"


def batched(records: Sequence[Record], size: int) -> WrittenLog:
    log = WrittenLog()
    for first in range(0, len(records), size):
        log.batch(records[first : first + size]).skip(1)
    return log


@given(
    count=st.integers(0, 25),
    edits=st.lists(
        st.tuples(
            st.sampled_from(["lose", "repeat", "alter", "foreign", "swap", "unwanted"]),
            st.integers(0, 25),
        ),
        max_size=3,
    ),
    claimed=st.integers(0, 25),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    target=st.sampled_from([REMOTE, VIP]),
    window=st.integers(1, 8),
)
@settings(max_examples=300, deadline=None)
def test_only_a_right_copy_is_good(
    *,
    count: int,
    edits: list[tuple[str, int]],
    claimed: int,
    sizes: tuple[int, int],
    target: TopicPartition,
    window: int,
) -> None:
    """Goal: good exactly if the log is what the transforms make of the source's first records."""
    sources = [original(number, headers_of(number)) for number in range(25)]
    wanted = numbers_in(target, 25)
    records = copies(number for number in wanted if number < count)
    good = list(records)
    for edit, place in edits:
        at = min(place, len(records))
        if edit == "foreign":
            records.insert(at, copy(100 + place))
        elif edit == "unwanted":
            number = place % 8 * 3 + 2
            records.insert(at, copy(number, headers_of(number)))
        elif edit == "repeat" and records:
            records.insert(at, records[place % len(records)])
        elif edit == "swap" and at + 1 < len(records):
            records[at : at + 2] = reversed(records[at : at + 2])
        elif edit == "alter" and at < len(records):
            records[at] = records[at]._replace(value=b'{"n":%d}' % (200 + place))
        elif edit == "lose" and at < len(records):
            del records[at]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_walk, "WINDOWS", (window,))
        result = compare(batched(sources, sizes[0]), batched(records, sizes[1]), claimed, target)
    whole = copies(wanted)
    offsets = [number + number // sizes[0] for number in wanted]
    due = sum(offset < claimed for offset in offsets)
    is_good = records == whole[: len(records)] and len(records) >= due
    assert same(result) == is_good, (ranges(result.source), ranges(result.remote), good)
    assert not result.source.unseen
    assert not result.remote.unseen
    assert result.source.compared == result.remote.compared
