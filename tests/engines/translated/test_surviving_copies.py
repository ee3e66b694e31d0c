"""Twin of twinlog.engines.translated.surviving_copies, with a log in memory."""

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest
from batch_builders import COMMIT, marker, record

from twinlog.engines.ports import DestinationPort
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.engines.translated.surviving_copies import (
    DamagedLog,
    MapWithoutLoss,
    former_positions_end,
    with_loss,
    without_loss,
)
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    LogBounds,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import NOTHING, SequencePlan, SourceRun, Taken
from twinlog.store.map_chunks import CHUNK_RUNS, MapChunk
from twinlog.store.offset_records import LostCopies, MapTail, Route, StoredPlan

NAME = MirrorPartition("flow", "orders", 0)
KEY = TopicPartition("a.orders", 0)
OWN, FORMER, FOREIGN = 7, 6, 99
LOSS = LostEnd("found")
_BASE = struct.Struct(">q")


def own(at: int, count: int, sequence: int, *, epoch: int = 2, producer: int = OWN) -> bytes:
    """A batch that the flow has written, at an offset."""
    made = whole(
        build([record(index) for index in range(count)], Codec.NONE),
        producer_id=producer,
        epoch=epoch,
        sequence=sequence,
    )
    return _BASE.pack(at) + made[8:]


def foreign(at: int, count: int = 1) -> bytes:
    return own(at, count, 0, epoch=0, producer=FOREIGN)


class MemoryPort:
    """`DestinationPort` of one log; an answer has a batch or two."""

    def __init__(self, *log: bytes, start: int = 0) -> None:
        self.log = list(log)
        self.start = start
        self.read_from: list[int] = []

    async def bounds(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        return {key: LogBounds(0, self.start, 1 << 40, 1 << 40) for key in keys}

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        assert partition_max_bytes > 0
        [(key, at)] = partitions.items()
        self.read_from.append(at)
        if at < self.start:
            return {key: Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, (), memoryview(b""))}
        ends = [next(iter(batches(memoryview(one)))).next_offset for one in self.log]
        found = [one for one, end in zip(self.log, ends, strict=True) if end > at][:2]
        return {key: Fetched(0, 1 << 40, 1 << 40, 0, (), memoryview(b"".join(found)))}


# Source 100..109 is at 50..59: batches of 2. Of the plan, 110..113 was to follow.
RUNS = (Run(Offset(100), Offset(50), 10),)
CHUNKS = [MapChunk(NAME, 0, Ends(Offset(100), Offset(50)), RUNS)]
PLANNED: tuple[SourceRun, ...] = ((Offset(110), Offset(114)),)
POSITIONS_END = Offset(65)
"""In the lost log, a reader may have been behind 110..113 at 60..63, at 64."""


def stored(
    runs: tuple[SourceRun, ...] = PLANNED, *, end: int = 60, source: int = 110, tail: int = OWN
) -> StoredPlan:
    plan = SequencePlan(
        ProducerId(OWN),
        ProducerEpoch(2),
        SequenceNumber(10),
        runs,
        Ends(Offset(source), Offset(end)),
    )
    last = MapTail(ProducerId(tail), ProducerEpoch(2), SequenceNumber(9))
    return StoredPlan(NAME, plan, Route(UUID(int=1), KEY.topic, None), tail=last)


def copies(up_to: int) -> list[bytes]:
    return [own(at, 2, at - 50) for at in range(50, up_to, 2)]


def found(
    port: MemoryPort,
    fence: int,
    plan: StoredPlan | None = None,
    chunks: Sequence[MapChunk] = CHUNKS,
    *,
    is_another: bool = False,
) -> MapWithoutLoss:
    damaged = DamagedLog(cast("DestinationPort", port), KEY, Offset(fence), 5.0, is_another)
    return asyncio.run(without_loss(damaged, plan or stored(), chunks, LOSS))


def fence(at: int) -> bytes:
    return marker(at, OWN, COMMIT)


def test_a_log_that_is_shorter_keeps_what_is_left_of_the_map() -> None:
    passed = found(MemoryPort(foreign(0, 50), *copies(54), fence(54)), 54)
    assert passed.chunks == [MapChunk(NAME, 0, CHUNKS[0].start, (Run(*RUNS[0][:2], 4),))]
    assert passed.position == 110
    assert passed.tail == MapTail(ProducerId(OWN), ProducerEpoch(2), SequenceNumber(3))
    assert passed.lost == LostCopies(Offset(104), Offset(110), Offset(54), POSITIONS_END)
    assert (passed.loss.start, passed.loss.end) == (54, 60)
    assert not passed.dropped
    assert not passed.is_lost


def test_records_of_others_in_place_of_copies_are_not_in_the_map() -> None:
    passed = found(MemoryPort(*copies(56), foreign(56, 9), fence(65)), 65)
    assert passed.chunks[-1].end == (106, 56)
    assert passed.lost == LostCopies(Offset(106), Offset(110), Offset(56), Offset(66))


def test_a_log_that_was_cut_off_where_nothing_is_lost_loses_nothing() -> None:
    """Goal: an earlier version has stored a loss, or a broker that was cut off has told one."""
    passed = found(MemoryPort(*copies(60), fence(60)), 60)
    assert passed.chunks == CHUNKS
    assert (passed.lost.source_start, passed.lost.source_end) == (110, 110)
    assert passed.loss.offsets == 0


def test_batches_of_the_plan_that_have_landed_since_are_not_copied_again() -> None:
    log = [*copies(54), foreign(54), own(55, 2, 10), foreign(57), fence(58)]
    passed = found(MemoryPort(*log), 58)
    assert passed.chunks[-1].runs == (Run(*RUNS[0][:2], 4), Run(Offset(110), Offset(55), 2))
    assert passed.position == 112
    assert passed.tail == MapTail(ProducerId(OWN), ProducerEpoch(2), SequenceNumber(11))
    assert passed.lost == LostCopies(Offset(104), Offset(110), Offset(54), POSITIONS_END)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ([*copies(54), own(54, 2, 12), fence(56)], "has sequence 12, expected 10"),
        ([own(40, 2, 10), *copies(52), fence(52)], "a batch of the plan is before it, at 40"),
        ([own(52, 2, 4), own(54, 2, 10), own(56, 2, 6), fence(58)], "a batch of the plan is"),
        ([own(52, 2, 2, epoch=3), fence(54)], "is of epoch 3, the stored plan of 2"),
        ([own(59, 2, 4, epoch=1), fence(61)], "neither in the map nor in the plan"),
        ([own(50, 2, 0), foreign(55), fence(56)], "is not known"),  # compacted between
        ([own(50, 2, 0), own(54, 2, 10), foreign(58), fence(59)], "is not known"),
        # A batch that was removed before the second one, or is of the log that is lost.
        ([own(50, 2, 0), own(55, 2, 12), fence(57)], "has sequence 12, expected 10"),
        ([own(40, 2, 12), fence(57)], "has sequence 12, expected 10"),
    ],
)
def test_what_no_plan_explains_is_not_passed(log: list[bytes], text: str) -> None:
    """Goal: nothing is copied twice where the log does not show what has landed."""
    with pytest.raises(LostEnd, match=f"^found; .*{text}"):
        found(MemoryPort(*log), next(reversed(list(batches(memoryview(log[-1]))))).base_offset)


# Behind a loss, the flow went on at 55 in epoch 2: 110..115 is at 55..60.
_AFTER_LOSS = (Run(Offset(100), Offset(50), 4), Run(Offset(110), Offset(55), 6))
_PASSED = LostCopies(
    Offset(104), Offset(110), Offset(54), Offset(55), ProducerId(OWN), ProducerEpoch(2)
)


def after_loss(*, producer: int = OWN) -> tuple[StoredPlan, list[MapChunk]]:
    """A plan of epoch 3, and its map, whose copies of [104, 110) were lost."""
    known = stored((), source=116, end=61)
    plan = known.plan._replace(epoch=ProducerEpoch(3), producer_id=ProducerId(producer))
    return replace(known, plan=plan, losses=(_PASSED,)), [replace(CHUNKS[0], runs=_AFTER_LOSS)]


@pytest.mark.parametrize("producer", [OWN, OWN + 1])
def test_a_log_that_was_lost_and_is_back_is_not_taken_for_the_map(producer: int) -> None:
    """Goal: its copies are at offsets where the map has others (two unclean elections)."""
    plan, chunks = after_loss(producer=producer)
    log = [own(at, 2, at - 50, epoch=1) for at in range(50, 60, 2)]
    with pytest.raises(LostEnd, match=r"offset 54 is of a log that was lost before"):
        found(MemoryPort(*log, fence(60)), 60, plan, chunks)


@pytest.mark.parametrize("producer", [OWN, OWN + 1])
def test_what_was_copied_behind_an_earlier_loss_is_kept(producer: int) -> None:
    plan, chunks = after_loss(producer=producer)
    log = [own(50, 4, 0, epoch=1), fence(54), own(55, 2, 0), own(57, 2, 2), fence(59)]
    passed = found(MemoryPort(*log), 59, plan, chunks)
    assert passed.chunks[-1].end == (114, 59)
    assert passed.lost == LostCopies(Offset(114), Offset(116), Offset(59), Offset(62))


def test_holes_below_the_last_copy_prove_nothing_about_the_plan() -> None:
    passed = found(MemoryPort(own(50, 2, 0), own(54, 2, 4), fence(56)), 56)
    assert (passed.position, passed.chunks[-1].end) == (110, (106, 56))


def test_holes_in_front_of_planned_batches_leave_nothing_out() -> None:
    passed = found(MemoryPort(own(50, 2, 0), own(55, 2, 10), own(57, 2, 12), fence(59)), 59)
    assert (passed.position, passed.chunks[-1].end) == (114, (114, 59))


def test_an_empty_log_keeps_the_beginning_of_the_map() -> None:
    passed = found(MemoryPort(fence(0)), 0)
    assert passed.chunks == [MapChunk(NAME, 0, Ends(Offset(100), Offset(0)), ())]
    assert (passed.position, passed.tail, passed.is_lost) == (110, None, False)
    assert passed.lost == LostCopies(Offset(100), Offset(110), Offset(0), POSITIONS_END)


def test_where_others_have_written_and_no_copy_is_left_the_map_begins_anew() -> None:
    """Goal: copies of a former producer id may be left, and nothing tells them from others'."""
    passed = found(MemoryPort(foreign(0, 58), own(58, 1, 3, producer=FORMER), fence(59)), 59)
    assert passed.chunks == [MapChunk(NAME, 0, Ends(Offset(110), Offset(60)), ())]
    assert passed.is_lost
    assert passed.loss.start is None


def test_copies_of_the_producer_of_the_last_one_are_known() -> None:
    log = [own(at, 2, at, producer=FORMER) for at in range(50, 54, 2)]
    passed = found(MemoryPort(*log, fence(54)), 54, stored(tail=FORMER))
    assert passed.chunks[-1].end == (104, 54)


def test_batches_of_the_plan_are_looked_for_below_the_map() -> None:
    """Goal: the log was cut below the map's start; what has landed there is not copied again."""
    log = [foreign(0, 20), own(20, 2, 10), foreign(22, 40), fence(62)]
    passed = found(MemoryPort(*log), 62)
    assert passed.position == 112
    assert passed.chunks[-1].end == (112, 22)
    with pytest.raises(LostEnd, match="is not known"):  # it may have been deleted
        found(MemoryPort(foreign(30, 32), fence(62), start=30), 62)
    # Nothing was planned, so nothing of it can be there.
    port = MemoryPort(foreign(0, 20), foreign(20, 42), fence(62))
    assert found(port, 62, stored(())).position == 110
    assert min(port.read_from) == 50


def test_the_search_goes_back_until_it_finds_a_copy() -> None:
    """Goal: a log with much of others behind the last copy, and a map of many parts."""
    runs = [Run(Offset(2 * at), Offset(3 * at), 1) for at in range(2 * CHUNK_RUNS + 10)]
    parts = [
        MapChunk(NAME, 0, Ends(Offset(0), Offset(0)), tuple(runs[:CHUNK_RUNS])),
        MapChunk(NAME, 1, Ends(*_end(runs[CHUNK_RUNS - 1])), tuple(runs[CHUNK_RUNS:-10])),
        MapChunk(NAME, 2, Ends(*_end(runs[-11])), tuple(runs[-10:])),
    ]
    last = 3 * (CHUNK_RUNS - 5)
    log = [own(3 * at, 1, 2 * at, epoch=1) for at in range(CHUNK_RUNS - 4)]
    port = MemoryPort(*log, foreign(last + 1, 3 * CHUNK_RUNS + 80), fence(last + 3081))
    plan = stored((), end=runs[-1].destination_end, source=9_000)
    passed = found(port, last + 3081, plan, parts)
    assert passed.dropped == [1, 2]
    assert passed.chunks == [MapChunk(NAME, 0, parts[0].start, tuple(runs[: CHUNK_RUNS - 4]))]
    assert passed.position == 9_000


def _end(run: Run) -> tuple[Offset, Offset]:
    return run.source_end, run.destination_end


def test_a_log_that_cannot_be_read_is_read_again() -> None:
    class Refusing(MemoryPort):
        async def read(
            self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
        ) -> Mapping[TopicPartition, Fetched]:
            del partition_max_bytes
            refused = Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, (), memoryview(b""))
            return dict.fromkeys(partitions, refused)

    with pytest.raises(Retriable, match=r"cannot read .* at 0: NOT_LEADER"):
        found(Refusing(), 54)


def test_a_search_goes_on_for_as_long_as_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: some GB of others' records are behind the last copy; a new search is not faster.

    Without progress it ends after 5 s.
    """

    class Slow(MemoryPort):
        stops_at = 1 << 40

        async def read(
            self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
        ) -> Mapping[TopicPartition, Fetched]:
            self.reads += 1
            if self.reads > self.stops_at:
                empty = Fetched(0, 1 << 40, 1 << 40, 0, (), memoryview(b""))
                return dict.fromkeys(partitions, empty)
            return await super().read(partitions, partition_max_bytes=partition_max_bytes)

        reads = 0

    log = [*copies(54), *(foreign(at) for at in range(54, 80)), fence(80)]
    port = Slow(*log)
    monkeypatch.setattr(
        asyncio.BaseEventLoop, "time", lambda _: time.monotonic() + 4.0 * port.reads
    )
    assert found(port, 80).chunks[-1].end == (104, 54)
    assert port.reads > 10
    port = Slow(*log)
    port.stops_at = 5
    with pytest.raises(Retriable, match=r"cannot read a\.orders-0 from 0 up to 80: read to 62"):
        found(port, 80)
    assert port.reads == 7


@pytest.mark.parametrize(
    ("planned", "taken", "end"),
    [
        ((), None, 61),  # it has read all copies, and has committed their end
        (PLANNED, None, 65),  # and what was sent
        ((), Taken(NOTHING, Offset(62)), 63),  # and two fences
        (PLANNED, Taken(NOTHING, Offset(62)), 67),
    ],
)
def test_positions_may_be_behind_all_that_was_sent_and_the_fence(
    planned: tuple[SourceRun, ...], taken: Taken | None, end: int
) -> None:
    """Goal: none of the lost log is taken for one of the log that has taken its place."""
    plan = replace(stored(planned), taken=taken)
    assert former_positions_end(plan, Ends(Offset(110), Offset(60))) == end


def test_many_losses_become_one() -> None:
    losses: tuple[LostCopies, ...] = ()
    for at in range(0, 300, 10):
        one = LostCopies(Offset(at), Offset(at + 2), Offset(at + 5), Offset(at + 6))
        losses = with_loss(losses, one)
    assert len(losses) == 20
    assert losses[0][:4] == (0, 102, 5, 106)
    assert losses[-1][:4] == (290, 292, 295, 296)


# ---- topics that were recreated ------------------------------------------------------------------


def anew(*log: bytes, plan: StoredPlan | None = None) -> MapWithoutLoss:
    """What is left in the log of a recreated topic, which ends with a fence."""
    end = next(reversed(list(batches(memoryview(log[-1]))))).next_offset if log else 0
    return found(MemoryPort(*log, fence(end)), end, plan, is_another=True)


@pytest.mark.parametrize("others", [0, 3, 40, 5000])
def test_a_recreated_topic_has_nothing_of_the_map(others: int) -> None:
    """Goal: all copies are lost, whatever others have written, and nothing is copied again."""
    passed = anew(*([foreign(0, others)] if others else []))
    assert passed.chunks == [MapChunk(NAME, 0, Ends(Offset(100), Offset(min(50, others))), ())]
    assert (passed.position, passed.tail, passed.is_lost) == (110, None, False)
    assert passed.lost[:4] == (100, 110, min(50, others), others + 1)
    assert (passed.loss.start, passed.loss.end) == (50, 60)


@pytest.mark.parametrize("before", [0, 52])
def test_a_batch_of_the_plan_that_landed_in_a_recreated_topic_is_not_copied_again(
    before: int,
) -> None:
    """Goal: a request to an older broker names a topic, and not its id; it was under way.

    It may have an offset at which the map has copies in the former log.
    """
    log = [foreign(0, before)] if before else []
    passed = anew(*log, own(before, 2, 10), foreign(before + 2))
    assert passed.position == 112
    assert passed.tail == MapTail(ProducerId(OWN), ProducerEpoch(2), SequenceNumber(11))
    [chunk] = passed.chunks
    assert chunk.start == (100, min(50, before))
    assert chunk.runs == (Run(Offset(110), Offset(before), 2),)
    assert passed.lost[:4] == (100, 110, min(50, before), before)
    assert not passed.is_lost


def test_a_recorded_batch_in_a_recreated_topic_is_in_no_map() -> None:
    """Goal: it was answered with an offset of the new log; nothing tells where the others are.

    What it holds is below the position, so it is there once. No offset below is translated.
    """
    passed = anew(own(0, 2, 8), own(2, 2, 10))
    assert (passed.position, passed.is_lost) == (112, True)
    assert passed.chunks == [MapChunk(NAME, 0, *_begun_with(Run(Offset(110), Offset(2), 2)))]
    assert (passed.loss.start, passed.loss.end) == (50, 60)


def _begun_with(run: Run) -> tuple[Ends, tuple[Run, ...]]:
    return Ends(run.source, run.destination), (run,)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        # A former owner's: its plan was replaced, so it may hold what is to be copied next.
        ([own(0, 2, 4, epoch=1)], "of epoch 1, before the stored plan's 2"),
        ([foreign(0, 50), own(50, 2, 0, epoch=1)], "of epoch 1, before the stored plan's 2"),
        ([own(0, 2, 0, epoch=3)], "of epoch 3, the stored plan of 2"),
        ([own(0, 2, 12)], "has sequence 12, expected 10"),  # the one before it is lost
        ([foreign(5)], "the log lacks offsets"),  # it may have held some of the plan
    ],
)
def test_what_no_plan_explains_in_a_recreated_topic_is_not_passed(
    log: list[bytes], text: str
) -> None:
    """Goal: nothing is copied twice into the new topic."""
    with pytest.raises(LostEnd, match=text):
        anew(*log)


def test_a_former_producers_batch_in_a_recreated_topic_is_not_passed() -> None:
    with pytest.raises(LostEnd, match="of epoch 1, before"):
        anew(own(0, 2, 4, epoch=1, producer=FORMER), plan=stored(tail=FORMER))


def test_where_nothing_was_planned_a_hole_in_a_recreated_topic_hides_nothing() -> None:
    assert anew(foreign(5), plan=stored(())).position == 110


def test_a_batch_of_a_former_owner_is_found_below_the_maps_start_too() -> None:
    """Goal: also where nothing is planned, and others have filled the new log past that."""
    with pytest.raises(LostEnd, match="of epoch 1, before"):
        anew(own(0, 2, 4, epoch=1), foreign(2, 60), plan=stored(()))
