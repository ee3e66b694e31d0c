"""Twin of twinlog.engines.translated.writers, with a log in memory instead of a control topic."""

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import COMMIT, batch, marker, record
from sole_owner import owned_for_good
from stored_beginnings import MemoryBeginnings

from twinlog.engines.base import LaneContext, Sealed, Sealing
from twinlog.engines.destination.data_id import DataId
from twinlog.engines.ports import ActiveProducers, DestinationPort, LogEnd, ProducerIdentity
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated import writers as writers_module
from twinlog.engines.translated.found_losses import ShorterLogs
from twinlog.engines.translated.location import NotLocated, ToLocate
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ControlTopicLost, Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LeaderEpoch, LogBounds, Offset, ProducerState, TopicPartition
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.record_losses import RecordLoss
from twinlog.store.map_chunks import CHUNK_RUNS, MapChunk
from twinlog.store.offset_log import StoredOffsets, fold_offsets
from twinlog.store.offset_records import (
    OffsetRecord,
    OffsetsOwner,
    OffsetsProducer,
    StoredPlan,
    encode,
)
from twinlog.store.state_records import LastMirrored
from twinlog.store.topic_reader import ControlRecord

NAME = MirrorPartition("flow", "orders", 0)
KEY = TopicPartition("a.orders", 0)
NEW = {NAME: ToLocate(KEY, Offset(100), owned_before=False)}
OWNED = {NAME: ToLocate(KEY, Offset(0), owned_before=True)}


@pytest.fixture(autouse=True)
def fences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences stand at the log end that was read before."""

    async def put(
        _: DataId, identity: ProducerIdentity, ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, int], ProducerIdentity]:
        return {key: Offset(end) for key, end in ends.items()}, {}, identity

    monkeypatch.setattr(DataId, "put_fences", put)


class MemoryLog:
    """`OffsetLog`, in memory."""

    def __init__(self) -> None:
        self.records: list[OffsetRecord] = []
        self.takeovers = 0
        self.beginnings = MemoryBeginnings()
        """In `__mirror_state`, which stays when the log is lost."""
        self.broken = False
        self.topic_id = UUID(int=9)

    async def take_over(self) -> StoredOffsets:
        self.takeovers += 1
        entries = [encode(stored) for stored in self.records]
        stored = fold_offsets(ControlRecord(0, at, 0, *entry) for at, entry in enumerate(entries))
        return replace(stored, topic_id=self.topic_id)

    async def write(self, records: Sequence[OffsetRecord]) -> None:
        if self.broken:
            raise Retriable("no answer")
        self.records += records


class OnePartition:
    """`DestinationPort` of a partition; the broker may remember a last number.

    `batches` is what a Fetch returns.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.remembered: tuple[ProducerState, ...] = ()
        self.epoch = 0
        self.batches = b""
        self.short: set[TopicPartition] = set()
        self.silent = False
        self.start = 0

    async def init_producer(self, name: str) -> ProducerIdentity:
        self.epoch += 1
        return ProducerIdentity(name, 8 if name.endswith(".1") else 7, self.epoch)

    async def producers(
        self, keys: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ActiveProducers]:
        code = ErrorCode.LEADER_NOT_AVAILABLE if self.silent else 0
        return {key: ActiveProducers(code, self.remembered) for key in keys}

    async def lacking_replicas(self, keys: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        return [key for key in keys if key in self.short]

    async def log_ends(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {key: LogEnd(0, self.end, 0) for key in keys}

    async def bounds(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        return {key: LogBounds(0, self.start, self.end, self.end) for key in keys}

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        assert partition_max_bytes > 0
        if min(partitions.values()) < self.start:
            refused = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1, (), memoryview(b""))
            return dict.fromkeys(partitions, refused)
        fetched = Fetched(0, self.end, self.end, 0, (), memoryview(self.batches))
        return dict.fromkeys(partitions, fetched)


def _writers(log: MemoryLog, port: OnePartition) -> FlowWriters:
    lane = LaneContext(
        destination=cast("KafkaCluster", None),
        settings=LaneSettings(),
        id_prefix="twinlog",
        may_write=lambda: True,
        confirm_ownership=owned_for_good,
        random=random.Random(1),
    )
    writers = FlowWriters(3, lane, cast("DestinationPort", port))
    writers._log = log  # type: ignore[assignment]
    writers._beginnings = log.beginnings
    return writers


def _data(start: int, end: int) -> Data:
    whole = memoryview(batch([record(at) for at in range(start, end)]))
    (header,) = batches(whole)
    return Data(Offset(start), Offset(end), header, header.records(whole))


def _run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


async def _located(
    writers: FlowWriters,
    wanted: Mapping[MirrorPartition, ToLocate] = NEW,
    *,
    passes_lost: bool = False,
) -> PartitionSequence:
    result = (await writers.locate(wanted, passes_lost=passes_lost))[NAME]
    assert isinstance(result, PartitionSequence)
    return result


def test_a_new_partition_begins_at_the_source_and_at_the_end_of_the_remote_log() -> None:
    async def body() -> None:
        log = MemoryLog()
        sequence = await _located(_writers(log, OnePartition(50)))
        assert (sequence.position, sequence.recorded) == (100, (100, 51))  # behind its fence
        assert not sequence.has_begun
        assert [type(stored) for stored in log.records] == [MapChunk, StoredPlan]

    _run(body())


def test_a_former_flow_goes_on_behind_what_another_program_has_copied() -> None:
    """Goal: on the way back from MirrorMaker 2, the former flow's position is not the last one."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _located(_writers(log, port))
        copied = {NAME: replace(OWNED[NAME], copied_to=Offset(130))}
        sequence = await _located(_writers(log, port), copied)
        assert (sequence.position, sequence.recorded) == (130, (130, 51))
        assert sequence.has_begun
        [chunk] = (await log.take_over()).chunks[NAME]
        assert chunk.decoded() == MapChunk(NAME, 0, Ends(Offset(130), Offset(51)), ())
        assert (await log.take_over()).plans[NAME].behind_another
        port.end = 51  # with the fence
        lower = {NAME: replace(OWNED[NAME], copied_to=Offset(90))}
        sequence = await _located(_writers(log, port), lower)
        assert sequence.position == 130
        # Also when the flow is created again without a takeover.
        assert (await _located(_writers(log, port), OWNED)).position == 130
        port.end = 40  # the fences are lost, and the map begins again behind the next one
        assert (await _located(_writers(log, port), OWNED)).recorded == (130, 41)
        stored = (await log.take_over()).plans[NAME]
        assert stored.behind_another
        # No copy is lost, and a group may have been set to 51.
        assert [one[:4] for one in stored.losses] == [(130, 130, 41, 53)]
        port.end = 41
        copied = {NAME: replace(OWNED[NAME], copied_to=Offset(200))}
        assert (await _located(_writers(log, port), copied)).position == 200
        assert (await log.take_over()).plans[NAME].losses == stored.losses

    _run(body())


def test_what_another_program_has_copied_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: behind all that a former flow had planned, the map begins anew however long that is."""

    async def never(*_: object) -> None:
        raise Retriable("it takes too long to read")

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        writers = _writers(log, port)
        sequence = await _located(writers)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        monkeypatch.setattr(writers_module, "read_end", never)
        port.end = 9_000_000
        # What may have landed is looked for, if it may be more than the other program has copied.
        copied = {NAME: replace(OWNED[NAME], copied_to=Offset(102))}
        assert isinstance((await _writers(log, port).locate(copied))[NAME], NotLocated)
        copied = {NAME: replace(OWNED[NAME], copied_to=Offset(104))}
        sequence = await _located(_writers(log, port), copied)
        assert (sequence.position, sequence.recorded) == (104, (104, 9_000_001))
        assert (await log.take_over()).plans[NAME].plan.runs == ()

    _run(body())


def test_the_plan_of_a_former_sequence_is_not_stored() -> None:
    """Goal: a plan that waited for the log is dropped if its partition was located again.

    It would hide the new epoch's plan: the next owner would copy again what has landed since.
    """

    async def body() -> None:
        log = MemoryLog()
        writers = _writers(log, OnePartition(50))
        former = await _located(writers)
        current = await _located(writers, OWNED)
        stored = list(log.records)
        former.offer([_data(100, 103)])
        await writers.record({NAME: former})
        assert log.records == stored
        current.offer([_data(100, 103)])
        await writers.record({NAME: current})
        last = log.records[-1]
        assert isinstance(last, StoredPlan)
        assert (last.plan.epoch, last.plan.runs) == (current.epoch, ((100, 103),))

    _run(body())


def test_the_log_is_read_again_after_a_write_of_unknown_outcome() -> None:
    async def body() -> None:
        log = MemoryLog()
        writers = _writers(log, OnePartition(50))
        sequence = await _located(writers)
        log.broken = True
        sequence.offer([_data(100, 103)])
        with pytest.raises(Retriable, match="no answer"):
            await writers.record({NAME: sequence})
        log.broken = False
        with pytest.raises(Retriable, match="not known"):
            await writers.record({NAME: sequence})
        assert log.takeovers == 1
        await _located(writers, OWNED)
        assert log.takeovers == 2

    _run(body())


def test_what_was_forgotten_is_read_again() -> None:
    """Goal: an owner that goes on does not go on with the plan of a flow that was deleted."""
    again = {NAME: replace(NEW[NAME], begin=Offset(500))}

    async def body() -> None:
        log = MemoryLog()
        writers = _writers(log, OnePartition(0))
        await _located(writers)
        log.records.clear()
        writers.forget(set())
        writers.forget({("flow", "other"), ("another", "orders")})
        assert (await _located(writers, again)).position == 100, "nothing of it was deleted"
        log.records.clear()
        writers.forget({("flow", "orders")})
        writers.forget(set())
        assert (await _located(writers, again)).position == 500
        assert log.takeovers == 2

    _run(body())


def test_what_is_forgotten_while_it_is_read_is_read_again() -> None:
    """Goal: the answer may be from before the deletion."""
    again = {NAME: replace(NEW[NAME], begin=Offset(500))}

    class Deleting(MemoryLog):
        async def take_over(self) -> StoredOffsets:
            stored = await super().take_over()
            if self.records:
                self.records.clear()
                next_owner.forget({("flow", "orders")})
            return stored

    async def body() -> None:
        await _located(_writers(log, OnePartition(0)))
        assert (await _located(next_owner, again)).position == 500

    log = Deleting()
    next_owner = _writers(log, OnePartition(0))
    _run(body())


def test_without_a_stored_plan_a_log_that_is_not_empty_is_not_written_to() -> None:
    """Goal: the lost records of a former owner are no reason to copy everything again."""

    async def fences(_: object, identity: ProducerIdentity, ends: Mapping[TopicPartition, int]):
        return {key: Offset(end) for key, end in ends.items()}, {}, identity

    async def body() -> None:
        found = (await _writers(MemoryLog(), OnePartition(50)).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert not found.transient
        assert "nothing of a former owner is stored" in found.reason
        empty = (await _writers(MemoryLog(), OnePartition(0)).locate(OWNED))[NAME]
        assert isinstance(empty, PartitionSequence)

    _run(body())


def test_every_owner_knows_that_what_was_stored_is_lost() -> None:
    """Goal: nothing is copied again by a later owner than the first one that finds a log lost.

    The first one leaves a trace in it, and so do its own takeovers. The partition was begun by an
    earlier version, which has not stored that it has begun.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        same = {NAME: replace(OWNED[NAME], offsets_topic_id=log.topic_id)}
        trace: list[OffsetRecord] = [OffsetsOwner("7.1"), OffsetsProducer(7)]
        first = _writers(log, port)
        assert _is_lost(await first.locate(same))
        log.records = [*trace]  # its own
        first._log_known = False  # a write has failed
        assert _is_lost(await first.locate(same))
        for _ in range(2):
            assert _is_lost(await _writers(log, port).locate(same))
        for known in (None, UUID(int=8), UUID(int=9)):  # the topic was created again
            log.beginnings.known.clear()
            wanted = {NAME: replace(OWNED[NAME], offsets_topic_id=known)}
            assert _is_lost(await _writers(log, port).locate(wanted)) is (known == UUID(int=8))
            log.records = [*trace]

    _run(body())


@pytest.mark.parametrize("trace", [True, False])
def test_a_plan_that_is_lost_alone_is_known_to_be_lost(trace: bool) -> None:
    """Goal: a log that has lost its end has the traces of all owners before, and the same id."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        same = {NAME: replace(NEW[NAME], offsets_topic_id=log.topic_id)}
        sequence = await _located(_writers(log, port), same)
        sequence.offer([_data(100, 103)])
        assert log.beginnings.known == {NAME: True}
        log.records = [OffsetsOwner("7.1"), OffsetsProducer(7)] if trace else []
        for owned_before in (True, True, False):
            again = {NAME: replace(same[NAME], owned_before=owned_before)}
            assert _is_lost(await _writers(log, port).locate(again))
        assert len(log.records) == (2 if trace else 0)
        port.end = 0  # nothing of it is in the log of an empty topic
        assert (await _located(_writers(log, port), same)).position == 100

    _run(body())


def test_an_owner_that_has_sent_nothing_leaves_no_partition_failed() -> None:
    """Goal: killed before its plan is stored, or behind that, it has begun nothing.

    That a partition has begun is stored last: then a plan that is missing is always one of which
    something may have been sent.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        log.beginnings.known = {NAME: False}  # stored with PREPARING
        wanted = {NAME: replace(OWNED[NAME], offsets_topic_id=UUID(int=8))}
        log.broken = log.beginnings.broken = True
        with pytest.raises(Retriable, match="no answer"):
            await _writers(log, port).locate(wanted)
        log.broken = False
        with pytest.raises(Retriable, match="the states cannot be written"):
            await _writers(log, port).locate(wanted)
        assert [type(stored) for stored in log.records] == [MapChunk, StoredPlan]
        log.records = []  # and the plan is lost
        log.beginnings.broken = False
        assert (await _located(_writers(log, port), wanted)).position == 0
        assert log.beginnings.known == {NAME: True}

    _run(body())


def test_a_seal_begins_nothing() -> None:
    """Goal: a partition that was stopped before it was copied can begin later."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        log.beginnings.known = {NAME: False}
        last = LastMirrored(LeaderEpoch(-1), Offset(-1))
        await _writers(log, port).seal({NAME: Sealing(KEY, None, last)})
        assert log.beginnings.known == {NAME: False}

    _run(body())


def _is_lost(located: Mapping[MirrorPartition, PartitionSequence | NotLocated]) -> bool:
    """Whether the partition is FAILED for good, as its plan is lost."""
    found = located[NAME]
    if isinstance(found, PartitionSequence):
        return False
    assert "nothing of a former owner is stored" in found.reason
    return not found.transient


def test_a_plan_without_a_map_is_no_beginning() -> None:
    """Goal: an owner that outlives `__mirror_offsets` stores its next plan in a new one.

    Its successor sees a plan, and no part of the map; all that was copied would be copied again.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        writers = _writers(log, port)
        sequence = await _located(writers)
        log.records = []
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        assert [type(stored) for stored in log.records] == [StoredPlan]
        port.end = 60
        found = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert not found.transient
        assert "no part of its map" in found.reason

    _run(body())


def test_an_owner_reads_what_is_stored_before_it_begins_with_a_partition() -> None:
    """Goal: one that dies before it has located a partition leaves a trace.

    Its successor would take a log without one for a log that was lost.
    """

    async def body() -> None:
        log = MemoryLog()
        writers = _writers(log, OnePartition(0))
        await writers.open(MemoryBeginnings())
        assert log.takeovers == 1
        await writers.close()

    _run(body())


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "lost"])
def test_mirrors_without_flows_do_not_wait_for_a_lost_record_of_flows(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `open` is on the way of all mirrors of the state partition."""

    async def take_over(_: object) -> StoredOffsets:
        if silent:
            await asyncio.Event().wait()
        raise ControlTopicLost("no broker has it")

    async def body() -> None:
        monkeypatch.setattr(MemoryLog, "take_over", take_over)
        monkeypatch.setattr(writers_module, "_TRACE_S", 0.01)
        writers = _writers(MemoryLog(), OnePartition(0))
        await writers.open(MemoryBeginnings())
        await writers.close()

    _run(body())


def test_a_partition_is_not_fenced_before_its_last_number_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: its broker would forget the number, and a compacted log would not tell it either."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _killed_before_a_fence(log, port)
        port.silent = True

        async def never(*_: object) -> None:
            raise AssertionError

        with monkeypatch.context() as context:
            context.setattr(DataId, "put_fences", never)
            found = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert found.transient
        assert "producers" in found.reason
        port.silent = False
        assert (await _located(_writers(log, port), OWNED)).position == 102

    _run(body())


def test_no_number_is_sent_under_a_producer_id_without_a_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the epochs of the id have ended with the fence, so the next owner fences by the new id.

    A stop is complete all the same.
    """

    async def put(
        data: DataId, identity: ProducerIdentity, ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, int], ProducerIdentity]:
        data.renamed = True
        fences = {key: Offset(end) for key, end in ends.items()}
        return fences, {}, ProducerIdentity(identity.transactional_id, 70, 0)

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        monkeypatch.setattr(DataId, "put_fences", put)
        writers = _writers(log, port)
        found = (await writers.locate(NEW))[NAME]
        assert isinstance(found, NotLocated)
        assert found.transient
        assert writers.must_be_taken_over
        assert (await log.take_over()).plans[NAME].plan.producer_id == 70
        port.end = 51
        sealing = Sealing(KEY, None, LastMirrored(LeaderEpoch(-1), Offset(-1)))
        writers = _writers(log, port)
        writers.settings = LaneSettings(lease_s=0.0)
        sealed = (await writers.seal({NAME: sealing}))[NAME]
        assert sealed == Sealed(Offset(51))

    _run(body())


def test_a_log_that_has_lost_only_fences_has_lost_no_copy() -> None:
    """Goal: a partition of which nothing was sent goes on, though its log is shorter now."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        assert (await _located(_writers(log, port))).recorded == (100, 51)
        port.end = 40
        sequence = await _located(_writers(log, port), OWNED)
        assert (sequence.position, sequence.recorded) == (100, (100, 41))
        port.end = 30
        sequence = await _located(_writers(log, port), OWNED)
        sequence.offer([_data(100, 103)])
        writers = _writers(log, port)
        port.end = 31
        sequence = await _located(writers, OWNED)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        port.end = 20  # what was sent may have been lost
        found = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert "it has lost records" in found.reason

    _run(body())


def test_a_shorter_log_is_asked_for_again() -> None:
    """Goal: one answer of a former leader that is cut off does not end a healthy flow."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        writers = _writers(log, port)
        sequence = await _located(writers)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        stored = list(log.records)
        port.end = 20
        for _ in range(2):
            found = (await writers.locate(OWNED))[NAME]
            assert isinstance(found, NotLocated)
            assert found.transient
            assert "it has lost records" in found.reason
        assert log.records == stored, "nothing is concluded, and no fence makes it longer"
        port.end = 51
        assert (await _located(writers, OWNED)).position == 100

    _run(body())


def test_two_partitions_that_are_copied_to_one_have_producer_ids_of_their_own() -> None:
    """Goal: with the same sequence numbers, the broker would take one of the two."""

    async def body() -> None:
        log, other = MemoryLog(), MirrorPartition("flow", "orders-2", 0)
        found = await _writers(log, OnePartition(0)).locate({**NEW, other: NEW[NAME]})
        first, second = found[NAME], found[other]
        assert isinstance(first, PartitionSequence)
        assert isinstance(second, PartitionSequence)
        assert (first.producer_id, second.producer_id) == (7, 8)
        # The next owner keeps them, whichever it locates first.
        writers = _writers(log, OnePartition(0))
        writers.settings = LaneSettings(lease_s=0.0)
        later = (await writers.locate({other: OWNED[NAME]}))[other]
        assert isinstance(later, PartitionSequence)
        assert later.producer_id == 8

    _run(body())


@pytest.mark.parametrize(
    "route",
    [
        {"source_topic_id": UUID(int=5), "topic_id": UUID(int=2)},
        {"source_topic_id": UUID(int=1), "topic_id": UUID(int=5)},
        {"source_topic_id": UUID(int=1), "destination": TopicPartition("b.orders", 0)},
    ],
)
def test_a_topic_that_was_recreated_or_renamed_is_copied_from_its_beginning(
    route: dict[str, Any],
) -> None:
    """Goal: neither plan nor map of the former topic are taken for those of the new one."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        known = replace(NEW[NAME], source_topic_id=UUID(int=1), topic_id=UUID(int=2))
        writers = _writers(log, port)
        sequence = await _located(writers, {NAME: known})
        runs = [Run(Offset(100 + 2 * at), Offset(51 + 2 * at), 1) for at in range(CHUNK_RUNS + 5)]
        sequence._landed = list(runs)
        await writers.record({NAME: sequence})
        assert len((await log.take_over()).chunks[NAME]) == 2
        port.end = 9000
        anew = replace(known, begin=Offset(3), owned_before=True, **route)
        sequence = await _located(_writers(log, port), {NAME: anew})
        assert (sequence.position, sequence.recorded) == (3, (3, 9001))
        stored = await log.take_over()
        assert (stored.map(NAME).start, stored.map(NAME).runs()) == ((3, 9001), [])
        assert len(stored.chunks[NAME]) == 1
        assert stored.plans[NAME].route.topic == anew.destination.topic

    _run(body())


FORMER_ID, PRESENT_ID, LATER_ID = (UUID(int=at) for at in (2, 3, 4))
KNOWN = replace(NEW[NAME], source_topic_id=UUID(int=1), topic_id=FORMER_ID)
RECREATED = replace(
    KNOWN, begin=Offset(3), owned_before=True, topic_id=PRESENT_ID, lost_topic_ids=(FORMER_ID,)
)


async def _copied_and_recreated(log: MemoryLog, port: OnePartition) -> None:
    """[100, 103) of the source is at [51, 54), 103 is planned; then the topic is recreated."""
    writers = _writers(log, port)
    sequence = await _located(writers, {NAME: KNOWN})
    sequence.offer([_data(100, 103)])
    await writers.record({NAME: sequence})
    sequence.stored()
    numbered = sequence.take(0, guarded=True)
    assert numbered is not None
    sequence.answered(numbered, Offset(51))
    sequence.offer([_data(103, 104)])
    await writers.record({NAME: sequence})
    port.end, port.batches = 0, b""


def test_a_flow_goes_on_in_a_recreated_topic_at_its_position() -> None:
    """Goal: nothing is copied twice or left out; the loss is found once, and the map begins anew.

    The topic is recreated twice, and another owner locates it in between.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _copied_and_recreated(log, port)
        writers = _writers(log, port)
        sequence = await _located(writers, {NAME: RECREATED}, passes_lost=True)
        assert (sequence.position, sequence.recorded) == (103, (103, 0))
        assert sequence.has_begun
        found = writers.losses.take(NAME, located=True)
        assert [one.text for one in found] == ["a.orders-0, offsets [51, 54)"]
        stored = await log.take_over()
        plan = stored.plans[NAME]
        assert (plan.route.topic_id, plan.plan.runs) == (PRESENT_ID, ())
        assert [one[:4] for one in plan.losses] == [(100, 103, 0, 1)]
        assert (stored.map(NAME).start, stored.map(NAME).runs()) == ((100, 0), [])
        # The next owner finds no loss any more.
        port.end, port.batches = 1, marker(0, 7, COMMIT)
        writers = _writers(log, port)
        sequence = await _located(writers, {NAME: RECREATED}, passes_lost=True)
        assert (sequence.position, len(writers.losses.take(NAME, located=True))) == (103, 0)
        # Once more, before anything was copied: no copy is lost.
        port.end, port.batches = 0, b""
        again = replace(RECREATED, topic_id=LATER_ID, lost_topic_ids=(FORMER_ID, PRESENT_ID))
        writers = _writers(log, port)
        sequence = await _located(writers, {NAME: again}, passes_lost=True)
        assert (sequence.position, len(writers.losses.take(NAME, located=True))) == (103, 0)
        assert (await log.take_over()).plans[NAME].route.topic_id == LATER_ID

    _run(body())


@pytest.mark.parametrize("epoch", [1, 2])
def test_what_was_under_way_to_a_topic_that_was_recreated_is_not_copied_again(epoch: int) -> None:
    """Goal: requests to older brokers name a topic, and not its id: they land in the new one.

    One of the plan has landed, and is in the map. One of an epoch before it is not explained.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        port.epoch = 1  # so that an earlier one exists
        await _copied_and_recreated(log, port)
        late = build([record(103)], Codec.NONE)
        port.batches = bytes(whole(late, producer_id=7, epoch=epoch, sequence=3))
        port.batches += marker(1, 7, COMMIT)
        port.end = 1
        found = (await _writers(log, port).locate({NAME: RECREATED}, passes_lost=True))[NAME]
        if epoch == 1:
            assert isinstance(found, NotLocated)
            assert not found.transient
            assert "of epoch 1, before the stored plan's 2" in found.reason
        else:
            assert isinstance(found, PartitionSequence)
            assert found.position == 104
            assert (await log.take_over()).map(NAME).runs() == [(103, 0, 1)]

    _run(body())


def test_what_a_former_owner_has_sent_is_looked_for_where_nothing_is_recorded() -> None:
    """Goal: it is not copied again: what its owner had planned may have landed in the new topic."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _located(_writers(log, port), {NAME: KNOWN})  # epoch 1: its plan is replaced
        await _located(_writers(log, port), {NAME: replace(KNOWN, owned_before=True)})
        late = build([record(100)], Codec.NONE)
        port.batches = bytes(whole(late, producer_id=7, epoch=1, sequence=0))
        port.batches += marker(1, 7, COMMIT)
        port.end = 1
        found = (await _writers(log, port).locate({NAME: RECREATED}, passes_lost=True))[NAME]
        assert isinstance(found, NotLocated)
        assert "of epoch 1, before the stored plan's 2" in found.reason

    _run(body())


def test_an_owner_that_dies_before_the_plan_is_stored_leaves_the_loss_to_the_next() -> None:
    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _copied_and_recreated(log, port)
        log.broken = True
        with pytest.raises(Retriable):
            await _writers(log, port).locate({NAME: RECREATED}, passes_lost=True)
        log.broken, port.end, port.batches = False, 1, marker(0, 7, COMMIT)
        writers = _writers(log, port)
        sequence = await _located(writers, {NAME: RECREATED}, passes_lost=True)
        assert sequence.position == 103
        assert len(writers.losses.take(NAME, located=True)) == 1

    _run(body())


def test_a_recreated_topic_is_failed_for_good_without_continue() -> None:
    """Goal: also if the settings were changed back after its id was stored. Later it goes on."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _copied_and_recreated(log, port)
        found = (await _writers(log, port).locate({NAME: RECREATED}))[NAME]
        assert isinstance(found, NotLocated)
        assert (found.transient, found.reason) == (
            False,
            "the destination's topic was deleted and recreated",
        )
        port.end, port.batches = 1, marker(0, 7, COMMIT)
        sequence = await _located(_writers(log, port), {NAME: RECREATED}, passes_lost=True)
        assert sequence.position == 103

    _run(body())


def test_a_recreated_topic_is_sealed_with_its_reason() -> None:
    """Goal: it is not stored that nothing was copied, before the partition has gone on there."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _copied_and_recreated(log, port)
        last = LastMirrored(LeaderEpoch(-1), Offset(-1))
        sealing = Sealing(KEY, PRESENT_ID, last, lost_topic_ids=(FORMER_ID,))
        sealed = await _writers(log, port).seal({NAME: sealing})
        reason = "the destination's topic was deleted and recreated"
        assert sealed == {NAME: Sealed(Offset(0), reason)}

    _run(body())


def test_a_sequence_does_not_go_on_when_its_plan_was_lost_meanwhile() -> None:
    """Goal: no plan counts as stored behind another map than the one that it goes on with.

    The topic is read again after a write of another partition has had no answer.
    """

    async def body() -> None:
        log, other = MemoryLog(), MirrorPartition("flow", "orders", 1)
        writers = _writers(log, OnePartition(0))
        second = ToLocate(TopicPartition("a.orders", 1), Offset(0), owned_before=False)
        found = await writers.locate({**NEW, other: second})
        sequences = {n: one for n, one in found.items() if isinstance(one, PartitionSequence)}
        sequences[NAME].offer([_data(100, 103)])
        log.broken = True
        with pytest.raises(Retriable, match="no answer"):
            await writers.record({other: sequences[other]})
        log.broken = False
        log.records.clear()
        await writers.locate({other: second})
        with pytest.raises(Retriable, match=r"what was stored of .*orders"):
            await writers.record({NAME: sequences[NAME]})

    _run(body())


def test_a_partition_that_has_copied_nothing_is_sealed_at_its_fence() -> None:
    """Goal: a stop stores no map of a topic that was never read."""

    async def body() -> None:
        log = MemoryLog()
        sealing = Sealing(KEY, None, LastMirrored(LeaderEpoch(-1), Offset(-1)))
        sealed = await _writers(log, OnePartition(0)).seal({NAME: sealing})
        assert sealed == {NAME: Sealed(Offset(0), "nothing was copied to this topic")}
        assert log.records == []

    _run(body())


def test_a_partition_whose_records_are_lost_is_not_sealed_as_one_that_has_copied_nothing() -> None:
    """Goal: the reason that is stored is true, also where the topic of offsets was recreated."""

    async def body() -> None:
        log = MemoryLog()
        last = LastMirrored(LeaderEpoch(-1), Offset(-1))
        log.records = [OffsetsOwner("7.1"), OffsetsProducer(7)]
        sealing = Sealing(KEY, None, last, offsets_topic_id=UUID(int=8))
        found = (await _writers(log, OnePartition(5)).seal({NAME: sealing}))[NAME]
        assert isinstance(found, Sealed)
        assert "nothing of a former owner is stored" in (found.reason or "")

    _run(body())


async def _killed_before_a_fence(log: MemoryLog, port: OnePartition) -> None:
    """An owner plans three records, sends two, and is killed; these are compacted away.

    The log ends with a foreign record.
    """
    writers = _writers(log, port)
    sequence = await _located(writers)
    sequence.offer([_data(100, 103)])
    await writers.record({NAME: sequence})
    port.remembered = (ProducerState(7, sequence.epoch, 1),)
    port.end = 54
    port.batches = batch([record(52)]) + batch([record(53)])


def test_what_was_compacted_away_is_not_copied_again_by_any_later_owner() -> None:
    """Goal: only the broker remembers that records have landed, and only until the fence."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _killed_before_a_fence(log, port)
        assert (await _located(_writers(log, port), OWNED)).position == 102
        port.remembered = ()
        assert (await _located(_writers(log, port), OWNED)).position == 102

    _run(body())


def test_an_owner_that_is_killed_behind_its_fence_leaves_what_the_broker_had_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a compacted partition is not FAILED because its broker has forgotten the numbers."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _killed_before_a_fence(log, port)

        async def killed(*_: object, **__: object) -> None:
            raise Retriable("killed")

        with monkeypatch.context() as context:
            context.setattr(FlowWriters, "_landed", killed)
            found = (await _writers(log, port).locate(OWNED))[NAME]
            assert isinstance(found, NotLocated)
        port.remembered = ()  # the fence has cleared them
        assert (await _located(_writers(log, port), OWNED)).position == 102
        # A log that lacks what came behind the question does not show what has landed.
        port.batches = batch([record(60)])
        port.end = 61
        del log.records[-2:]
        found = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert "does not remember the producer" in found.reason

    _run(body())


def test_a_plan_that_was_taken_whole_is_known_whatever_was_removed_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: retention behind a killed owner's fence leaves no partition FAILED without need."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _killed_before_a_fence(log, port)
        (known,) = port.remembered
        port.remembered = (known._replace(last_sequence=2),)

        async def killed(*_: object, **__: object) -> None:
            raise Retriable("killed")

        with monkeypatch.context() as context:
            context.setattr(FlowWriters, "_landed", killed)
            found = (await _writers(log, port).locate(OWNED))[NAME]
            assert isinstance(found, NotLocated)
        # The fence has cleared the number, and retention passes all that came before it.
        port.remembered, port.batches, port.end = (), batch([record(60)]), 61
        sequence = await _located(_writers(log, port), OWNED)
        assert sequence.position == 103
        # Nothing new is in the map: what is below the log's start is not there any more.
        assert log.records[-2] == MapChunk(NAME, 0, Ends(Offset(100), Offset(51)), ())

    _run(body())


def test_a_log_without_holes_shows_what_has_landed_whatever_its_policy_is() -> None:
    """Goal: `cleanup.policy` may change at any time, and a broker may forget a producer."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        writers = _writers(log, port)
        sequence = await _located(writers)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        port.end = 51
        port.batches = batch([record(50)])
        assert (await _located(_writers(log, port), OWNED)).position == 100

    _run(body())


def test_plans_are_stored_while_a_fence_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a partition below min.insync.replicas holds up no other one of its state partition."""

    async def body() -> None:
        log, other = MemoryLog(), MirrorPartition("flow", "orders", 1)
        writers = _writers(log, OnePartition(50))
        sequence = await _located(writers)
        fencing, replicas = asyncio.Event(), asyncio.Event()
        put = DataId.put_fences

        async def wait(*arguments: Any) -> Any:
            fencing.set()
            await replicas.wait()
            return await put(*arguments)

        monkeypatch.setattr(DataId, "put_fences", wait)
        short = ToLocate(TopicPartition("a.orders", 1), Offset(0), owned_before=True)
        locating = asyncio.create_task(writers.locate({other: short}))
        await fencing.wait()
        sequence.offer([_data(100, 103)])
        async with asyncio.timeout(60):
            await writers.record({NAME: sequence})
        stored = log.records[-1]
        assert isinstance(stored, StoredPlan)
        assert stored.plan.runs == ((100, 103),)
        replicas.set()
        await locating

    _run(body())


async def _recorded(log: MemoryLog, port: OnePartition) -> bytes:
    """Copy three records to offset 50, and record them; return their batch as the log holds it."""
    port.end = 49  # before its fence
    writers = _writers(log, port)
    sequence = await _located(writers)
    sequence.offer([_data(100, 103)])
    await writers.record({NAME: sequence})
    sequence.stored()
    out = sequence.take(0)
    assert out is not None
    sequence.answered(out, Offset(50))
    await writers.record({NAME: sequence})
    port.end = 53
    port.remembered = (ProducerState(7, sequence.epoch, 2),)
    built = build([record(at) for at in range(50, 53)], Codec.NONE)
    whole_batch = whole(built, producer_id=7, epoch=sequence.epoch, sequence=0)
    return Offset(50).to_bytes(8, "big") + whole_batch[8:]


def test_a_log_that_lost_its_end_and_was_filled_again_is_not_written_to() -> None:
    """Goal: copied records that are lost are found though the broker has forgotten the producer.

    It is still known when compaction or retention has removed what showed it.
    """

    async def body() -> None:
        for foreign in (
            batch([record(50), record(51), record(52)]),
            batch([record(52), record(53)]),
            marker(52, 7, COMMIT),
        ):
            log, port = MemoryLog(), OnePartition(50)
            await _recorded(log, port)
            port.batches, port.end, port.remembered = foreign, 54, ()
            found = (await _writers(log, port).locate(OWNED))[NAME]
            assert isinstance(found, NotLocated)
            assert not found.transient
            assert "the record at offset 52 is not the one that was copied there" in found.reason
            port.batches = batch([record(53)])
            assert (await _writers(log, port).locate(OWNED))[NAME] == found
        # Where retention has removed it before, there is nothing to compare.
        log, port = MemoryLog(), OnePartition(50)
        own = await _recorded(log, port)
        port.batches, port.end, port.remembered = batch([record(53)]), 54, ()
        assert (await _located(_writers(log, port), OWNED)).position == 103
        port.batches, port.end = own, 53
        later = await _located(_writers(log, port), OWNED)
        assert (later.position, later.recorded.destination) == (103, 53)

    _run(body())


@pytest.mark.parametrize("passes_lost", [False, True])
def test_a_map_whose_last_parts_were_dropped_is_not_continued_behind_them(
    passes_lost: bool,
) -> None:
    """Goal: an owner that ends while it replaces a map leaves no hole in it that nobody sees."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        port.batches = await _recorded(log, port)
        log.records.append(MapChunk(NAME, 0, Ends(Offset(100), Offset(50)), ()))
        result = await _writers(log, port).locate(OWNED, passes_lost=passes_lost)
        found = result[NAME]
        assert isinstance(found, NotLocated)
        if not passes_lost:
            assert "the last parts of its map were dropped" in found.reason
        plans = [one for one in log.records if isinstance(one, StoredPlan)]
        assert plans[-1].lost is not None, "groups are not set to its end"

    _run(body())


def test_the_record_at_the_recorded_end_is_known_after_a_takeover_too() -> None:
    """Goal: the epoch that has written it is over, and the next one has written nothing yet."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        port.batches = await _recorded(log, port)
        await _located(_writers(log, port), OWNED)
        port.remembered = ()
        await _located(_writers(log, port), OWNED)
        port.batches, port.end = batch([record(at) for at in range(50, 60)]), 60
        found = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(found, NotLocated)
        assert "is not the one that was copied there" in found.reason

    _run(body())


def test_a_batch_is_mapped_though_the_log_starts_within_it() -> None:
    """Goal: a group at one of its last records is not moved behind it; and it has landed.

    Retention and DeleteRecords remove whole batches, and move the log's start into one.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(49)
        writers = _writers(log, port)
        sequence = await _located(writers)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        built = build([record(at) for at in range(50, 53)], Codec.NONE)
        own = whole(built, producer_id=7, epoch=sequence.epoch, sequence=0)
        port.batches, port.start, port.end = Offset(50).to_bytes(8, "big") + own[8:], 51, 53
        located = await _located(_writers(log, port), OWNED)
        assert located.position == 103
        assert (await log.take_over()).map(NAME).runs() == [(100, 50, 3)]

    _run(body())


def test_a_partition_that_lacks_replicas_is_fenced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the fences of the others do not wait for it."""

    async def body() -> None:
        log, port, other = MemoryLog(), OnePartition(0), MirrorPartition("flow", "orders", 1)
        short = ToLocate(TopicPartition("a.orders", 1), Offset(0), owned_before=True)
        port.short.add(short.destination)
        fenced: list[TopicPartition] = []
        put = DataId.put_fences

        async def note(data: DataId, identity: ProducerIdentity, ends: Any) -> Any:
            fenced.extend(ends)
            return await put(data, identity, ends)

        monkeypatch.setattr(DataId, "put_fences", note)
        found = await _writers(log, port).locate({**OWNED, other: short})
        assert fenced == [KEY]
        assert isinstance(found[NAME], PartitionSequence)
        late = found[other]
        assert isinstance(late, NotLocated)
        assert late.transient
        assert "min.insync.replicas" in late.reason

    _run(body())


def test_what_a_log_lacks_before_the_epoch_began_does_not_matter() -> None:
    """Goal: nothing of an epoch is in front of its fence, and its plan is stored behind that."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        await _located(_writers(log, port))
        port.end, port.batches = 70, batch([record(69)])  # others wrote, and it was compacted
        writers = _writers(log, port)
        sequence = await _located(writers, OWNED)
        sequence.offer([_data(100, 103)])
        await writers.record({NAME: sequence})
        port.end, port.batches = 73, batch([record(71), record(72)])
        assert (await _located(_writers(log, port), OWNED)).position == 100

    _run(body())


def _batch_at(offset: int, count: int, sequence: PartitionSequence, number: int) -> bytes:
    """A batch of an epoch as the destination's log holds it."""
    built = build([record(at) for at in range(count)], Codec.NONE)
    data = whole(built, producer_id=7, epoch=sequence.epoch, sequence=number)
    return Offset(offset).to_bytes(8, "big") + data[8:]


async def _recorded_twice(log: MemoryLog, port: OnePartition) -> tuple[bytes, bytes]:
    """Copy records to 50..52 and 53..54; return these two batches."""
    port.end = 49
    writers = _writers(log, port)
    sequence = await _located(writers)
    for start, end, place in ((100, 103, 50), (103, 105, 53)):
        sequence.offer([_data(start, end)])
        await writers.record({NAME: sequence})
        sequence.stored()
        out = sequence.take(0)
        assert out is not None
        sequence.answered(out, Offset(place))
        await writers.record({NAME: sequence})
        sequence.stored()
    port.end = 55
    return _batch_at(50, 3, sequence, 0), _batch_at(53, 2, sequence, 3)


def _impatient(log: MemoryLog, port: OnePartition) -> FlowWriters:
    """Writers for which one comparison is enough."""
    writers = _writers(log, port)
    writers._shorter = ShorterLogs(LaneSettings(lease_s=0.0), writers.losses)
    return writers


@pytest.mark.parametrize("refilled", [False, True])
def test_a_flow_that_passes_losses_goes_on_behind_what_is_left(refilled: bool) -> None:
    """Goal: the map keeps what is left, the source's position stays, and the loss counts once."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, _ = await _recorded_twice(log, port)
        before = list(log.records)
        port.batches = first + (batch([record(53), record(54), record(55)]) if refilled else b"")
        port.end = 56 if refilled else 53
        writers = _writers(log, port)
        if not refilled:
            for _ in range(2):
                found = (await writers.locate(OWNED, passes_lost=True))[NAME]
                assert isinstance(found, NotLocated)
                assert "it is compared again" in found.reason
            assert log.records == before
            assert not writers.losses.take(NAME, located=False)
            writers = _impatient(log, port)
        port.batches += marker(port.end, 7, COMMIT)
        sequence = await _located(writers, OWNED, passes_lost=True)
        assert (sequence.position, sequence.recorded) == (105, (105, 53))
        assert sequence.has_begun
        assert writers.losses.take(NAME, located=True) == [RecordLoss(KEY, Offset(53), Offset(55))]
        stored = await log.take_over()
        assert stored.map(NAME).runs() == [(100, 50, 3)]
        plan = stored.plans[NAME]
        assert (plan.lost, plan.behind_another) == (None, False)
        [lost] = plan.losses
        assert lost[:4] == (103, 105, 53, 57 if refilled else 56), "up to behind the former end"
        assert lost[4:] == (plan.plan.producer_id, plan.plan.epoch), "of the plan behind it"
        # What follows is recorded behind it, by this owner and the next one.
        sequence.offer([_data(105, 107)])
        await writers.record({NAME: sequence})
        sequence.stored()
        out = sequence.take(0)
        assert out is not None
        sequence.answered(out, Offset(60))
        await writers.record({NAME: sequence})
        assert (await log.take_over()).map(NAME).runs() == [(100, 50, 3), (105, 60, 2)]
        port.batches, port.end = _batch_at(60, 2, sequence, 0), 62
        later = await _located(_writers(log, port), OWNED)
        assert (later.position, later.recorded) == (107, (107, 62))
        assert (await log.take_over()).plans[NAME].losses == plan.losses

    _run(body())


def test_a_flow_that_passes_losses_goes_on_where_a_former_owner_has_failed() -> None:
    """Goal: the loss is stored, and what showed it may be gone; the setting is changed later."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, _ = await _recorded_twice(log, port)
        foreign = batch([record(53), record(54)])
        port.batches, port.end = first + foreign, 55
        writers = _writers(log, port)
        for _ in range(2):
            assert isinstance((await writers.locate(OWNED))[NAME], NotLocated)
        assert writers.losses.take(NAME, located=False) == [RecordLoss(KEY, None, Offset(55))]
        assert (await log.take_over()).plans[NAME].lost
        port.end = 56
        port.batches = first + foreign + marker(55, 7, COMMIT)
        sequence = await _located(_writers(log, port), OWNED, passes_lost=True)
        assert (sequence.position, sequence.recorded) == (105, (105, 53))
        assert (await log.take_over()).plans[NAME].lost is None

    _run(body())


def test_a_log_that_is_longer_after_all_has_lost_nothing() -> None:
    """Goal: a broker that was cut off for a lease has said so; the fence is in the real log."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, second = await _recorded_twice(log, port)

        async def put(_: object, identity: ProducerIdentity, ends: Mapping[TopicPartition, int]):
            return {key: Offset(55) for key in ends}, {}, identity

        port.end = 50
        port.batches = first + second + marker(55, 7, COMMIT)
        with pytest.MonkeyPatch.context() as context:
            context.setattr(DataId, "put_fences", put)
            sequence = await _located(_impatient(log, port), OWNED, passes_lost=True)
        assert (sequence.position, sequence.recorded) == (105, (105, 55))
        assert (await log.take_over()).map(NAME).runs() == [(100, 50, 5)]

    _run(body())


def test_a_flow_that_passes_losses_fails_where_the_plan_is_not_explained() -> None:
    """Goal: a batch of the plan is there, and an earlier one is not: it may never have landed."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, second = await _recorded_twice(log, port)
        port.batches = first + second + marker(55, 7, COMMIT)
        writers = _writers(log, port)
        sequence = await _located(writers, OWNED)
        sequence.offer([_data(105, 108), _data(108, 110)])
        await writers.record({NAME: sequence})
        port.batches = first + _batch_at(53, 2, sequence, 3) + marker(55, 7, COMMIT)
        port.end = 55
        writers = _writers(log, port)
        found = (await writers.locate(OWNED, passes_lost=True))[NAME]
        assert isinstance(found, NotLocated)
        assert not found.transient
        assert "has sequence 3, expected 0" in found.reason
        assert (await log.take_over()).plans[NAME].lost == found.reason
        again = (await _writers(log, port).locate(OWNED, passes_lost=True))[NAME]
        assert again == found

    _run(body())


def test_planned_batches_that_were_taken_and_are_gone_are_copied_again() -> None:
    """Goal: they are not in the log, nor in the map; with `fail` the partition stays FAILED."""

    async def body() -> None:
        for passes_lost in (False, True):
            log, port = MemoryLog(), OnePartition(50)
            writers = _writers(log, port)
            sequence = await _located(writers)
            sequence.offer([_data(100, 103)])
            await writers.record({NAME: sequence})
            port.remembered = (ProducerState(7, sequence.epoch, 2),)
            port.end = 51
            port.batches = batch([record(at) for at in range(50)]) + batch([record(50)])
            writers = _writers(log, port)
            found = (await writers.locate(OWNED, passes_lost=passes_lost))[NAME]
            assert isinstance(found, PartitionSequence) is passes_lost
            assert writers.losses.take(NAME, located=True) == [RecordLoss(KEY, None, None)]
            if isinstance(found, PartitionSequence):
                assert found.position == 100
            else:
                assert "the broker has taken numbers up to 2" in found.reason

    _run(body())


@pytest.mark.parametrize(("at", "end"), [(40, 50), (45, 55)])
def test_planned_batches_in_front_of_a_lost_end_are_not_copied_again(at: int, end: int) -> None:
    """Goal: an election has cut the log below the fence, before anything was copied.

    The batch lands in front of the recorded end then, and the log is as long as before.
    """

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(49)
        writers = _writers(log, port)
        sequence = await _located(writers)
        sequence.offer([_data(100, 110)])
        await writers.record({NAME: sequence})
        sequence.stored()
        foreign = batch([record(number) for number in range(at)])
        port.batches = foreign + _batch_at(at, 10, sequence, 0) + marker(end, 7, COMMIT)
        port.end = end
        port.remembered = (ProducerState(7, sequence.epoch, 9),)
        refused = (await _writers(log, port).locate(OWNED))[NAME]
        assert isinstance(refused, NotLocated)
        assert not refused.transient
        writers = _writers(log, port)
        found = await _located(writers, OWNED, passes_lost=True)
        assert found.position == 110
        assert (await log.take_over()).map(NAME).runs() == [(100, at, 10)]
        [loss] = writers.losses.take(NAME, located=True)
        assert loss.start is None

    _run(body())


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_another_program_has_copied_is_not_copied_again_after_a_loss(is_lost: bool) -> None:
    """Goal: nothing of the plan has landed, and the other program ended where the plan does."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, second = await _recorded_twice(log, port)
        port.batches = first + second + marker(55, 7, COMMIT)
        writers = _writers(log, port)
        sequence = await _located(writers, OWNED)
        sequence.offer([_data(105, 108)])
        await writers.record({NAME: sequence})
        tail = batch([record(53), record(54)]) if is_lost else second
        other = batch([record(55), record(56), record(57)])
        port.batches, port.end = first + tail + other + marker(58, 7, COMMIT), 58
        copied_to = Offset(108)
        taken = {NAME: ToLocate(KEY, copied_to, owned_before=True, copied_to=copied_to)}
        writers = _writers(log, port)
        found = await _located(writers, taken, passes_lost=True)
        assert (found.position, found.recorded) == (108, (108, 59))
        assert len(writers.losses.take(NAME, located=True)) == is_lost
        stored = await log.take_over()
        losses = [one[:4] for one in stored.plans[NAME].losses]
        assert losses == ([(103, 105, 53, 60)] if is_lost else [])
        assert stored.map(NAME).runs() == []
        assert stored.plans[NAME].behind_another

    _run(body())


@pytest.mark.parametrize("passes_lost", [False, True])
def test_a_loss_that_others_have_partly_replaced_is_counted_in_full(passes_lost: bool) -> None:
    """Goal: the log was cut to 53, and ends at 54; with `fail` it is not known where it was cut."""

    async def body() -> None:
        log, port = MemoryLog(), OnePartition(50)
        first, _ = await _recorded_twice(log, port)
        port.batches, port.end = first + batch([record(53)]) + marker(54, 7, COMMIT), 54
        writers = _impatient(log, port)
        found = (await writers.locate(OWNED, passes_lost=passes_lost))[NAME]
        assert isinstance(found, PartitionSequence) is passes_lost
        [loss] = writers.losses.take(NAME, located=passes_lost)
        start = 53 if passes_lost else 54
        assert loss == RecordLoss(KEY, Offset(start), Offset(55), at_least=not passes_lost)
        if passes_lost:
            [stored] = (await log.take_over()).plans[NAME].losses
            assert (stored.source_start, stored.destination_start) == (103, 53)

    _run(body())
