"""Twin of twinlog.engines.translated.reader, with a source whose answers are given."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from batch_builders import altered, batch, record
from flow_assignment import ASSIGNMENT
from loop_beats import beating

from twinlog.engines import loop_steps
from twinlog.engines.base import PartitionProgress
from twinlog.engines.ports import FetchResult, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, FlowStage
from twinlog.engines.translated.reader import FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.log.batch import LOG_APPEND_TIME
from twinlog.kafka.log.leader_epochs import EpochRun
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    EpochEnd,
    FetchPosition,
    LeaderEpoch,
    LogBounds,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from twinlog.mirror.absence import Absence
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import STEP_RECORDS, Gap
from twinlog.mirror.record_losses import RecordLosses
from twinlog.mirror.throttle import Throttle

KEY = ASSIGNMENT.source
NODE = 3
OnePartition = FlowPartition[FlowWriters, PartitionSequence]


class Answering:
    """`SourcePort` with one answer, which then takes the partition away from the reader."""

    def __init__(
        self, partition: OnePartition, answer: Fetched, starts_at: int = 12, ends_at: int = 20
    ) -> None:
        self.positions: list[Mapping[TopicPartition, FetchPosition]] = []
        self.waits_ms: list[int] = []
        self._partition, self._answer = partition, answer
        self._bounds = LogBounds(0, starts_at, ends_at, ends_at)

    async def fetch(
        self,
        node: int,
        positions: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        **_: int,
    ) -> FetchResult:
        assert node == NODE
        self.positions.append(positions)
        self.waits_ms.append(max_wait_ms)
        self._partition.source_node = -1
        return FetchResult({KEY: self._answer}, len(self._answer.records))

    async def bounds(self, keys: object) -> Mapping[TopicPartition, LogBounds]:
        del keys
        return {KEY: self._bounds}

    async def compacts(self, topics: object) -> Mapping[str, bool | None]:
        del topics
        return {}


class Flow:
    """A flow of one partition that has copied up to offset 10 of leader epoch 4."""

    def __init__(self) -> None:
        self.rows: list[PartitionProgress] = []
        self.partitions = FlowPartitions[FlowWriters, PartitionSequence](
            LaneSettings(), random.Random(1), self.rows.append
        )
        writers = cast("FlowWriters", None)
        self.partition = OnePartition(
            ASSIGNMENT, writers, owned_before=True, locate_at=0.0, unguarded_until=0.0
        )
        self.sequence = PartitionSequence(
            (ProducerId(7), ProducerEpoch(1)),
            Ends(Offset(10), Offset(50)),
            Offset(10),
            [EpochRun(Offset(0), Offset(10), LeaderEpoch(4))],
        )
        self.partition.sequence, self.partition.stage = self.sequence, FlowStage.COPYING
        self.partition.source_node, self.partition.source_leader_epoch = NODE, 5
        self.partition.destination_node = NODE
        self.partitions.all[ASSIGNMENT.name] = self.partition

    def relocate(self, position: int) -> None:
        """Give the partition another sequence, which begins at this offset of the source."""
        self.sequence = PartitionSequence(
            (ProducerId(7), ProducerEpoch(2)), Ends(Offset(position), Offset(60)), Offset(position)
        )
        self.partition.sequence = self.sequence

    async def read(self, answer: Fetched, *, starts_at: int = 12, ends_at: int = 20) -> Answering:
        """Read once; the source's log starts at `starts_at`, and ends at `ends_at`."""
        source = Answering(self.partition, answer, starts_at, ends_at)
        reader = FlowReader(self.partitions, cast("SourcePort", source))
        for loop in reader.loops():
            await reader.read(loop)
        return source


def _fetched(records: bytes = b"", diverging: EpochEnd | None = None) -> Fetched:
    end = 10 if not records else 13
    return Fetched(0, end, end, 0, (), memoryview(records), diverging)


def test_records_are_queued_behind_the_epoch_that_was_read_before() -> None:
    async def body() -> None:
        flow = Flow()
        source = await flow.read(_fetched(batch([record(at) for at in range(10, 13)])))
        assert source.positions == [{KEY: FetchPosition(10, 4, 5)}]
        assert (flow.sequence.position, flow.partition.source_end) == (13, 13)

    asyncio.run(body())


def test_a_fetch_does_not_wait_while_another_partition_has_no_room() -> None:
    """The broker waits for news of the others, and that one would be empty long before."""

    async def body(*, full: bool) -> list[int]:
        flow = Flow()
        other = Flow()
        other.partition.assignment = replace(
            other.partition.assignment, name=MirrorPartition("flow", KEY.topic, 1)
        )
        other.sequence.queued_bytes = LaneSettings().partition_queue_bytes if full else 0
        flow.partitions.all[other.partition.name] = other.partition
        source = Answering(flow.partition, _fetched())
        reader = FlowReader(flow.partitions, cast("SourcePort", source))
        other.partition.source_node = NODE if full else -1
        await reader.read((NODE, False))
        return source.waits_ms

    settings = LaneSettings()
    assert asyncio.run(body(full=True)) == [settings.fetch_busy_wait_ms]
    assert asyncio.run(body(full=False)) == [settings.fetch_max_wait_ms]


def test_a_source_that_has_lost_copied_records_is_not_read_on() -> None:
    """Goal: the records that replace them would be left out without a word (KIP-320)."""

    async def body() -> None:
        flow = Flow()
        await flow.read(_fetched(diverging=EpochEnd(3, 8)))
        assert flow.partition.stage is FlowStage.FAILED
        assert not flow.partition.transient
        assert "copied up to offset 10 of leader epoch 4" in (flow.partition.reason or "")

    asyncio.run(body())


def test_a_source_that_has_lost_only_queued_records_is_located_again() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.read(_fetched(batch([record(at) for at in range(10, 13)])))
        flow.partition.source_node = NODE
        await flow.read(_fetched(diverging=EpochEnd(4, 11)))
        assert flow.partition.stage is FlowStage.LOCATING
        assert flow.partition.sequence is None

    asyncio.run(body())


def test_a_source_that_has_lost_what_lands_meanwhile_is_not_read_on() -> None:
    """Goal: it is noticed once more where the partition goes on, behind any of its batches.

    What is in flight lands although the source has lost it.
    """

    async def body() -> None:
        flow = Flow()
        flow.sequence = PartitionSequence(
            (ProducerId(7), ProducerEpoch(1)), Ends(Offset(0), Offset(50)), Offset(0)
        )
        flow.partition.sequence = flow.sequence
        for epoch, starts in ((4, (0, 3, 6)), (6, (9,))):
            batches = [batch([record(at + n) for n in range(3)]) for at in starts]
            records = b"".join(altered(one, leader_epoch=epoch) for one in batches)
            flow.partition.source_node = NODE
            await flow.read(_fetched(records)._replace(high_watermark=12))
        assert [flow.sequence.epochs.before(Offset(at)) for at in (3, 6, 9, 12)] == [4, 4, 4, 6]
        runs = flow.sequence.epochs.runs
        flow.partition.source_node = NODE
        await flow.read(_fetched(diverging=EpochEnd(4, 5)))
        assert flow.partition.stage is FlowStage.LOCATING, "nothing has landed behind offset 5 yet"
        flow.sequence = PartitionSequence(
            (ProducerId(7), ProducerEpoch(2)), Ends(Offset(6), Offset(56)), Offset(6), runs
        )
        flow.partition.sequence, flow.partition.stage = flow.sequence, FlowStage.COPYING
        flow.partition.source_node = NODE
        source = await flow.read(_fetched(diverging=EpochEnd(4, 5)))
        assert source.positions == [{KEY: FetchPosition(6, 4, 5)}]
        assert flow.partition.stage is FlowStage.FAILED
        assert not flow.partition.transient

    asyncio.run(body())


@pytest.mark.parametrize(
    ("why", "believed"),
    [
        ("it stays shorter", True),
        ("it is as long again meanwhile", False),
        ("its log holds the offset", False),
        ("its leader is a former one", False),
    ],
)
def test_a_source_that_stays_shorter_than_what_was_read_is_not_read_on(
    why: str, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: once its log has grown again, other records would be left out without a word."""

    async def body() -> None:
        flow, now = Flow(), 100.0
        monkeypatch.setattr(flow.partitions, "now", lambda: now)
        end = 20 if why == "its log holds the offset" else 9
        if why == "its leader is a former one":
            flow.partition.source_leader_epoch = 3
        for seconds in (0.0, 29.0, 2.0):
            now += seconds
            flow.relocate(10)
            flow.sequence.epochs.learn(Offset(10), LeaderEpoch(4))
            flow.partition.stage, flow.partition.source_node = FlowStage.COPYING, NODE
            if why == "it is as long again meanwhile" and seconds == 2.0:
                await flow.read(_fetched())
                flow.partition.source_node = NODE
            assert flow.partition.stage is FlowStage.COPYING
            await flow.read(OUT_OF_RANGE, starts_at=5, ends_at=end)
        assert flow.partition.stage is (FlowStage.FAILED if believed else FlowStage.LOCATING)
        if believed:
            assert not flow.partition.transient
            assert "the source's log ends at 9, and was copied up to 10" in str(
                flow.partition.reason
            )

    asyncio.run(body())


STEPS = 8


@pytest.fixture
def long_answer(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """An answer that takes `STEPS` steps to plan, on a machine of any speed."""
    monkeypatch.setattr(loop_steps, "_STEP_S", 0.0)
    records = [record(10 + at) for at in range(STEPS * STEP_RECORDS)]
    return _fetched(batch(records, attributes=LOG_APPEND_TIME))


def test_other_tasks_have_their_turns_while_an_answer_is_planned(long_answer: Fetched) -> None:
    """Goal: heartbeats and other partitions do not wait for a batch that has to be decoded."""

    async def body() -> None:
        flow = Flow()
        async with beating() as beats:
            await flow.read(long_answer)
        assert flow.sequence.position == 10 + STEPS * STEP_RECORDS
        assert beats.count > STEPS // 2

    asyncio.run(body())


@pytest.mark.parametrize("beat", range(1, STEPS))
def test_a_plan_of_a_partition_that_is_revoked_meanwhile_is_dropped(
    long_answer: Fetched, beat: int
) -> None:
    """Goal: nothing is queued, nor reported, of what this lane does not own any more."""

    async def body() -> None:
        flow = Flow()

        def revoke(count: int) -> None:
            if count == beat:
                flow.partition.gone, flow.partition.sequence = True, None

        async with beating(revoke):
            await flow.read(long_answer)
        assert flow.sequence.position == 10
        assert flow.sequence.idle
        assert flow.partition.failures == 0
        assert flow.rows == []

    asyncio.run(body())


@pytest.mark.parametrize("corrupt", [False, True])
def test_a_plan_is_dropped_if_the_partition_was_located_again_meanwhile(
    long_answer: Fetched, corrupt: bool
) -> None:
    """Goal: neither records nor errors go to another sequence than the one that has asked."""
    if corrupt:
        records = altered(bytes(long_answer.records), num_records=STEPS * STEP_RECORDS - 1)
        long_answer = long_answer._replace(records=memoryview(records))

    async def body() -> None:
        flow = Flow()
        former = flow.sequence

        def relocate(count: int) -> None:
            if count == 2:
                flow.relocate(10)

        async with beating(relocate):
            await flow.read(long_answer)
        assert former.idle
        assert flow.partition.sequence is flow.sequence is not former
        assert (flow.sequence.position, flow.sequence.idle) == (10, True)

    asyncio.run(body())


def test_records_that_another_broker_has_answered_meanwhile_are_queued_once(
    long_answer: Fetched,
) -> None:
    """Goal: a partition that has another leader is read by two loops; each record is queued once.

    The answer that is planned first counts, whichever was asked for first.
    """

    async def body() -> None:
        flow = Flow()
        reading: list[asyncio.Task[Answering]] = []

        def move(count: int) -> None:
            if count == 2:
                flow.partition.source_node = NODE
                short = _fetched(batch([record(at) for at in range(10, 13)]))
                reading.append(asyncio.ensure_future(flow.read(short)))

        async with beating(move):
            await flow.read(long_answer)
        await asyncio.gather(*reading)
        assert flow.sequence.position == 13
        assert flow.sequence.queued_bytes < len(long_answer.records)

    asyncio.run(body())


def test_a_plan_that_is_cancelled_queues_nothing(long_answer: Fetched) -> None:
    """Goal: an engine that ends leaves no half answer behind."""

    async def body() -> None:
        flow = Flow()
        reading = asyncio.create_task(flow.read(long_answer))

        def cancel(count: int) -> None:
            if count == 3:
                reading.cancel()

        async with beating(cancel):
            await asyncio.wait([reading])
        assert reading.cancelled()
        assert (flow.sequence.position, flow.sequence.idle) == (10, True)

    asyncio.run(body())


OUT_OF_RANGE = Fetched(1, -1, -1, -1, (), memoryview(b""))


def test_records_that_were_deleted_before_they_were_copied_are_a_failure() -> None:
    """Goal: lost records are named, not passed over without a word."""

    async def body() -> None:
        flow = Flow()
        await flow.read(OUT_OF_RANGE)
        assert flow.partition.stage is FlowStage.FAILED
        assert flow.partition.reason == (
            "the source deleted records [10, 12) before they were copied"
        )
        lost = RecordLosses(1, 2, "orders-0, offsets [10, 12)")
        assert flow.rows[-1].source_losses == lost

    asyncio.run(body())


def test_records_that_were_deleted_before_a_takeover_are_a_failure() -> None:
    """Goal: what another program has not copied, and the source has deleted, is lost."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh = True
        flow.partition.assignment = replace(flow.partition.assignment, begin=10)
        await flow.read(OUT_OF_RANGE)
        assert flow.partition.stage is FlowStage.FAILED
        assert "deleted records [10, 12)" in (flow.partition.reason or "")

    asyncio.run(body())


@pytest.mark.parametrize("located_again", [False, True])
def test_records_that_are_deleted_while_earlier_ones_are_in_flight_are_a_failure(
    located_again: bool,
) -> None:
    """Goal: a flow has begun with the first record that it has read, landed or not."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh = True
        await flow.read(_fetched(batch([record(at) for at in range(10, 13)])))
        assert flow.partition.records == 0
        if located_again:  # its answer was lost, and it has landed
            flow.relocate(13)
        flow.partition.source_node = NODE
        await flow.read(OUT_OF_RANGE, starts_at=20)
        assert flow.partition.stage is FlowStage.FAILED
        start = 13 if located_again else 10  # what was read is forgotten, and cannot be read again
        assert flow.partition.reason == (
            f"the source deleted records [{start}, 20) before they were copied"
        )

    asyncio.run(body())


def test_records_that_are_deleted_after_the_end_was_reached_are_a_failure() -> None:
    """Goal: an empty source, or one without committed records, is no beginning for ever."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh = True
        await flow.read(_fetched())
        flow.partition.source_node = NODE
        await flow.read(OUT_OF_RANGE)
        assert flow.partition.stage is FlowStage.FAILED
        assert "deleted records [10, 12)" in (flow.partition.reason or "")

    asyncio.run(body())


def test_a_transaction_that_is_open_where_a_flow_begins_is_not_the_end_of_the_log() -> None:
    """Goal: what retention deletes behind it was there when the flow began."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh = True
        await flow.read(_fetched()._replace(high_watermark=20))
        assert flow.partition.begins

    asyncio.run(body())


def test_the_end_of_a_follower_is_not_the_end_of_the_log() -> None:
    """Goal: a follower that lags, where a flow begins, does not make it FAILED for good."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh, flow.partition.source_replica = True, NODE
        flow.partition.redirect_at = flow.partitions.now() + 30
        await flow.read(_fetched())
        assert flow.partition.begins

    asyncio.run(body())


@pytest.mark.parametrize("begins", [True, False])
def test_deleted_records_are_passed_over_and_counted_where_that_is_wanted(begins: bool) -> None:
    """Goal: retention may delete records while a flow begins; later only on request."""

    async def body() -> None:
        flow = Flow()
        flow.partition.fresh, flow.partitions.passes_lost = begins, not begins
        await flow.read(OUT_OF_RANGE)
        assert flow.partition.stage is FlowStage.COPYING
        assert flow.sequence.position == 12
        row = flow.partition.row(0.0)
        assert row.filled[Absence.LOG_START] == 2
        assert row.source_losses.times == (not begins)

    asyncio.run(body())


@pytest.mark.parametrize("goes_on", [False, True])
def test_records_that_were_read_and_deleted_before_they_landed_count(goes_on: bool) -> None:
    """Goal: the source deletes them while the target is slow; what is queued is dropped then."""

    async def body() -> None:
        flow = Flow()
        flow.partitions.passes_lost = goes_on
        await flow.read(_fetched(batch([record(10), record(11)])))
        assert (flow.sequence.position, flow.sequence.mirrored_end) == (12, 10)
        flow.partition.source_node = NODE
        await flow.read(OUT_OF_RANGE, starts_at=15)
        if goes_on:
            assert flow.partition.source_losses.offsets == 3
            assert flow.sequence.drop() > 0
            assert flow.sequence.position == 10
            flow.partition.source_node = NODE
            await flow.read(OUT_OF_RANGE, starts_at=15)
        else:
            assert "deleted records [10, 15)" in (flow.partition.reason or "")
        assert flow.partition.source_losses.offsets == 5

    asyncio.run(body())


def test_deleted_records_count_once_also_if_they_are_read_again() -> None:
    """Goal: an owner that locates a partition again, before it has stored that it has passed them.

    What the source has deleted since is another loss.
    """

    async def body() -> None:
        flow = Flow()
        flow.partitions.passes_lost = True
        for start, offsets in ((12, 2), (12, 2), (15, 5)):
            flow.relocate(10)
            flow.partition.source_node = NODE
            await flow.read(OUT_OF_RANGE, starts_at=start)
            assert flow.sequence.position == start
            assert flow.partition.source_losses.offsets == offsets
        assert flow.partition.source_losses == (2, 5, "orders-0, offsets [12, 15)")
        assert flow.partitions.news == {0}

    asyncio.run(body())


def test_an_answer_without_records_changes_nothing() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.read(_fetched())
        assert (flow.sequence.position, flow.sequence.mirrored_end) == (10, 10)

    asyncio.run(body())


@pytest.mark.parametrize("error", [0, 6])
def test_a_broker_that_refuses_a_partition_is_no_contact_with_its_source(error: int) -> None:
    """Goal: while nobody has read from the new leader, the lag is not 0."""

    async def body() -> None:
        flow = Flow()
        await flow.read(_fetched()._replace(error=error))
        assert (flow.partition.heard_at is None) is (error > 0)
        row = flow.partition.row(flow.partitions.now())
        assert (row.lag_ms, row.source_time_ms is None) == ((None, True) if error else (0, False))

    asyncio.run(body())


def test_an_answer_whose_records_come_too_late_tells_how_far_the_source_reaches() -> None:
    """Goal: the source is heard of, so its end is known as well; otherwise the lag would be 0."""

    class Late(Answering):
        async def fetch(self, *asked: Any, **how: Any) -> FetchResult:
            flow.sequence.offer([Gap(Offset(10), Offset(11), seen=True)])
            return await super().fetch(*asked, **how)

    async def body() -> None:
        answer = _fetched()._replace(high_watermark=20, last_stable=20)
        reader = FlowReader(flow.partitions, cast("SourcePort", Late(flow.partition, answer)))
        await reader.read((NODE, False))
        assert flow.partition.heard_at is not None
        row = flow.partition.row(flow.partitions.now())
        assert (row.source_end, row.source_last_stable) == (20, 20)
        assert flow.partition.behind_since is not None

    flow = Flow()
    asyncio.run(body())


@pytest.mark.parametrize(("topics", "throttled"), [(None, True), ({}, False)])
def test_throttled_partitions_are_read_by_themselves(
    topics: dict[str, frozenset[int]] | None, throttled: bool
) -> None:
    async def body() -> None:
        flow = Flow()
        flow.partitions.throttle = Throttle(1 << 30, topics)
        reader = FlowReader(flow.partitions, cast("SourcePort", None))
        assert reader.loops() == {(NODE, throttled)}

    asyncio.run(body())


def test_blocked_partitions_without_room_are_tried_in_turn() -> None:
    """Goal: one of which the source has nothing does not keep the others from being tried."""

    async def body() -> None:
        flow = Flow()
        flow.partitions.settings = LaneSettings(partition_queue_bytes=LaneSettings().buffer_bytes)
        for index in (0, 1, 2):
            other = Flow().partition
            name, key = MirrorPartition("flow", KEY.topic, index), TopicPartition(KEY.topic, index)
            other.assignment = replace(ASSIGNMENT, name=name, source=key)
            other.refusals = 1
            flow.partitions.all[name] = other
        assert other.sequence is not None
        other.sequence.queued_bytes = flow.partitions.settings.buffer_bytes // 8
        reader = FlowReader(flow.partitions, cast("SourcePort", None))
        asked = [set(reader._due((NODE, False)).asked) for _ in range(4)]
        first, second = TopicPartition(KEY.topic, 0), TopicPartition(KEY.topic, 1)
        assert asked == [{first}, {second}] * 2
        other.sequence.queued_bytes = flow.partitions.settings.buffer_bytes // 2
        assert reader._due((NODE, False)).asked == {}, "the rest of the buffer is for others"

    asyncio.run(body())


@pytest.mark.parametrize("by", ["replicas", "leader"])
@pytest.mark.parametrize("room", [True, False])
def test_blocked_partitions_are_read_only_within_their_share(by: str, room: bool) -> None:
    """Goal: what no destination takes does not fill the buffer, and nobody polls for it."""

    async def body() -> None:
        flow = Flow()
        other = Flow()
        name = MirrorPartition("flow", KEY.topic, 1)
        key = TopicPartition(KEY.topic, 1)
        other.partition.assignment = replace(ASSIGNMENT, name=name, source=key)
        flow.partitions.all[name] = other.partition
        if by == "replicas":
            other.partition.refusals = 1
        else:
            other.partition.destination_node = -1
        settings = LaneSettings(partition_queue_bytes=LaneSettings().buffer_bytes)
        flow.partitions.settings = settings
        share = settings.buffer_bytes // 8
        other.sequence.queued_bytes = share - 1 if room else share
        source = Answering(flow.partition, _fetched())
        reader = FlowReader(flow.partitions, cast("SourcePort", source))
        reading = asyncio.create_task(reader.read((NODE, False)))
        while not source.positions:
            await asyncio.sleep(0)
        other.partition.source_node = -1
        await reading
        assert [set(one) for one in source.positions] == [{KEY, key} if room else {KEY}]
        assert source.waits_ms == [settings.fetch_max_wait_ms]
        other.partition.source_node = NODE
        other.partition.read_at = flow.partitions.now() + 60
        assert reader._due((NODE, False)).asked == {}

    asyncio.run(body())
