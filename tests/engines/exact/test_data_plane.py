"""Twin of twinlog.engines.exact.data_plane, for what the simulation's model does not do."""

import asyncio
import random
from collections.abc import Collection, Mapping
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import batch, record
from positions import START
from sole_owner import owned_for_good

from model.world import World, scenario
from twinlog.engines import loop_steps
from twinlog.engines.exact.append import Position
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.engine import ExactEngine
from twinlog.engines.exact.events import (
    LOOK,
    BatchAnswered,
    DestinationLed,
    FetchRefused,
    Queued,
    RoundBegan,
    RoundEnded,
    SourceBounds,
    SourceLed,
)
from twinlog.engines.exact.filler_ids import FillerIds
from twinlog.engines.exact.marker_epochs import LastMarker
from twinlog.engines.exact.marker_writer import MarkerWriter
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.loop_steps import Steps
from twinlog.engines.ports import (
    WHOLE_TOPIC,
    Appended,
    DestinationPort,
    FetchResult,
    LeaderReport,
    LogEnd,
    ProducerIdentity,
    SourcePort,
)
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.log.batch import LOG_APPEND_TIME
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    EpochEnd,
    FetchPosition,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)
from twinlog.mirror.plan import STEP_RECORDS, Gap

KEY = TopicPartition("t", 0)


def engine(port: object = None) -> DataPlane:
    """Build an engine with this object as both ports; by default they are never called."""
    ports = cast("SourcePort", port), cast("DestinationPort", port)
    return DataPlane(
        *ports,
        LaneSettings(),
        random.Random(1),
        lambda _: None,
        brokers_time_ms=lambda: 0,
        confirm_ownership=owned_for_good,
    )


def placed_partition(plane: DataPlane, *, node: int = -1) -> ExactPartition:
    """Return a partition whose position is known; `node` leads it on the destination."""
    shard = Shard(0, "p", plane.destination, LaneSettings(fillers=0))
    spec = PartitionSpec(partition=KEY, source_topic_id=UUID(int=1), shard=0, compacted=False)
    plane.own(shard, [spec], lease_s=0.0)
    partition = plane.partitions[KEY]
    partition.destination_node = node
    partition.append.place(START, plane.now(), compared=True)
    return partition


def appending(plane: DataPlane) -> ExactPartition:
    """Return a partition with a batch in flight."""
    partition = placed_partition(plane)
    plane.emit(partition, Queued([empty_records(Offset(0), Offset(5))]))
    assert partition.append.take(0) is not None
    return partition


class Silent:
    """A destination that answers an append when the test does, and gives no producer id."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Mapping[TopicPartition, Appended]]
        self.answer = asyncio.get_running_loop().create_future()

    def produce(self, *_: object) -> asyncio.Future[Mapping[TopicPartition, Appended]]:
        """Append."""
        return self.answer

    async def init_producer(self, _: str) -> None:
        """Never answer."""
        await asyncio.Event().wait()


async def not_sent() -> Mapping[TopicPartition, Appended]:
    raise Retriable("no broker with this id in the metadata")


def test_metadata_is_refreshed_if_a_leader_is_unreachable() -> None:
    """If a leader is unreachable, the cluster's metadata is fetched again.

    Without that, a partition of a killed broker stood still until that broker was back.
    """

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        plane.leaders._stale_destination.clear()
        plane.leaders._request.clear()
        await plane.sender._answer(3, [partition], not_sent(), before_gap=False)
        assert plane.leaders._stale_destination == {"t"}
        assert plane.leaders._request.is_set()

    asyncio.run(body())


def test_a_closed_engine_withdraws_a_request_whose_task_has_not_begun() -> None:
    """Goal: what waits to be sent is withdrawn, whatever the tasks have reached."""

    async def body() -> None:
        port = Silent()
        plane = engine(port)
        partition = placed_partition(plane, node=1)
        partition.append.offer([empty_records(Offset(0), Offset(5))])
        plane.sender.want(partition)
        plane.pump(1)
        await plane.close()
        assert port.answer.cancelled()

    asyncio.run(body())


@pytest.mark.parametrize("answered", [True, False])
def test_a_gap_waits_briefly_to_share_a_request_with_others(answered: bool) -> None:
    """Goal: they share a request; a broker that does not answer delays none of them for long."""

    async def body() -> None:
        port = Silent()
        plane = engine(port)
        await plane.gather_gaps(3)  # nothing is in flight
        partition = placed_partition(plane, node=3)
        gap = Gap(Offset(5), Offset(6), seen=True)
        plane.emit(partition, Queued([empty_records(Offset(0), Offset(5)), gap]))
        plane.sender.want(partition)
        plane.sender.pump(3)
        gathering = asyncio.ensure_future(plane.gather_gaps(3))
        await asyncio.sleep(0)
        assert not gathering.done()
        if answered:
            port.answer.set_result({KEY: Appended(0, 0, 0)})
        async with asyncio.timeout(60):
            await gathering
        assert (partition.append.gap_to_fill == gap) is answered
        await plane.close()

    asyncio.run(body())


def test_a_gap_without_a_leader_is_sent_in_no_shared_request() -> None:
    """Goal: nothing is sent for it, so that it does not wait for the lease."""

    async def body() -> None:
        plane = engine()
        partition = placed_partition(plane, node=1)
        markers = plane.shard(partition).markers
        markers._identity = ProducerIdentity("m", 1, 0)
        markers._lasts[KEY] = LastMarker(0, 0)
        partition.append.offer([Gap(Offset(0), Offset(5), seen=True)])
        gap = partition.append.gap_to_fill
        assert plane.gap_filler._key(partition, gap) == (-1, 1)
        partition.destination_node = -1
        assert plane.gap_filler._key(partition, gap) == (0, -1)
        await plane.close()

    asyncio.run(body())


def test_the_time_spent_on_gaps_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: from the batch before a marker to the marker's answer; nothing while it is idle."""
    now = 100.0

    async def body() -> None:
        nonlocal now
        plane = engine(Silent())
        monkeypatch.setattr(plane, "now", lambda: now)
        partition = placed_partition(plane, node=3)
        gap = Gap(Offset(5), Offset(6), seen=True)
        plane.emit(partition, Queued([empty_records(Offset(0), Offset(5)), gap]))
        plane.sender.want(partition)
        plane.sender.pump(3)
        now += 2.0
        plane.emit(partition, BatchAnswered(Appended(0, 0, 0)))
        plane.emit(partition, RoundBegan())
        now += 3.0
        plane.emit(partition, RoundEnded(None))
        assert partition.gap_seconds == 5.0
        now += 60.0
        plane.emit(partition, RoundBegan())
        now += 1.0
        plane.emit(partition, RoundEnded(None))
        assert partition.gap_seconds == 6.0
        await plane.close()

    asyncio.run(body())


def test_the_time_of_last_contact_is_kept_for_partitions_not_fetched() -> None:
    """Also for a partition that is not fetched now: its broker is gone, or its queue is full."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        partition.source_node = 4
        assert plane.fetcher.answered_at(partition) is None
        plane.fetcher.update(partition)
        assert plane.fetcher.answered_at(partition) is None
        plane.fetcher._answer_times[plane.fetcher._keys[partition]] = 7.0
        assert plane.fetcher.answered_at(partition) is None, "it joined the loop later"
        plane.fetcher._counts_from[partition] = 7.0
        assert plane.fetcher.answered_at(partition) == 7.0
        plane.fetcher.leave(partition)
        partition.source_node = -1
        assert plane.fetcher.answered_at(partition) == 7.0
        partition.source_node = 5
        plane.fetcher.update(partition)
        assert plane.fetcher.answered_at(partition) == 7.0, "the new broker has not answered yet"
        await plane.close()

    asyncio.run(body())


def test_answers_for_other_partitions_are_no_contact_with_the_leader() -> None:
    """The leader moved to a broker that answers others: the lag stays unknown until it answers."""

    async def body() -> None:
        exact_engine = ExactEngine(
            "m",
            lambda *_: None,
            source=None,
            destination=cast("DestinationPort", None),
            settings=LaneSettings(),
            random=random.Random(1),
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        plane = exact_engine.plane
        shard = Shard(0, "p", plane.destination, LaneSettings())
        keys = TopicPartition("t", 0), TopicPartition("t", 1)
        specs = [
            PartitionSpec(partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False)
            for key in keys
        ]
        plane.own(shard, specs, lease_s=0.0)
        moved, other = (plane.partitions[key] for key in keys)
        hour_ago = plane.now() - 3600  # below 0 on a host that has just started
        for partition, node in ((moved, 1), (other, 2)):
            partition.destination_node = 1
            partition.append.place(START, plane.now(), compared=True)
            plane.emit(partition, SourceLed(LeaderReport(node, 5, UUID(int=1))))
            plane.emit(partition, SourceBounds(Offset(0), Offset(0), 0, at_least=False))
            plane.fetcher._counts_from[partition] = hour_ago
        plane.fetcher._answer_times.update({(1, 0): hour_ago, (2, 0): plane.now()})
        plane.emit(moved, SourceLed(LeaderReport(2, 6, UUID(int=1))))
        lag_ms = {row.name.partition: row.lag_ms for row in exact_engine.progress()}
        assert lag_ms == {0: None, 1: 0}
        assert plane.fetcher.answered_at(moved) == hour_ago
        await plane.close()

    asyncio.run(body())


@pytest.mark.parametrize("code", [6, 56, 75])
def test_a_refused_fetch_is_no_contact(code: int) -> None:
    """The leader refuses each fetch: the lag becomes unknown, and the row says why."""

    @scenario
    async def body(world: World) -> None:
        await world.mirror()
        world.write("a")
        await world.arrived()
        await asyncio.sleep(1)
        real = world.source.fetch

        def refusing(*arguments: Any, **named: Any) -> Fetched:
            found = real(*arguments, **named)
            return found._replace(error=code, records=memoryview(b""), high_watermark=-1)

        world.source.fetch = refusing  # type: ignore[method-assign]
        heard_until = world.engine.now()
        for at in range(60):
            world.write(f"unseen {at}")
            await asyncio.sleep(1)
        partition = world.partition
        answered = world.engine.fetcher.answered_at(partition)
        assert answered is not None
        assert answered <= heard_until
        assert "refuses fetches" in partition.held_back
        world.source.fetch = real  # type: ignore[method-assign]
        await world.arrived()
        assert not partition.held_back

    body()


def test_a_gap_is_filled_by_the_shard_of_the_new_owner() -> None:
    """The state partition was taken over again while a round of the former shard waited."""

    class Answering(Shard):
        def __init__(self, *, answers: bool) -> None:
            super().__init__(0, "p", cast("DestinationPort", None), LaneSettings())
            self.answers, self.calls = answers, 0

        async def fill_gaps(
            self, gaps: Mapping[TopicPartition, Gap]
        ) -> Mapping[TopicPartition, LogEnd]:
            self.calls += 1
            if not self.answers:
                raise Retriable("no answer")
            return {p: LogEnd(0, gap.end, -1) for p, gap in gaps.items()}

    async def body() -> None:
        plane = engine()
        plane.backoff = lambda _: 0.05  # type: ignore[assignment]
        spec = PartitionSpec(partition=KEY, source_topic_id=UUID(int=1), shard=0, compacted=False)

        def begin(shard: Shard) -> ExactPartition:
            plane.own(shard, [spec], lease_s=0.0)
            partition = plane.partitions[KEY]
            partition.source_node = partition.destination_node = 1
            partition.append.place(START, plane.now(), compared=True)
            plane.emit(partition, Queued([Gap(Offset(0), Offset(5), seen=True)]))
            plane.emit(partition, LOOK)
            return partition

        former, now = Answering(answers=False), Answering(answers=True)
        begin(former)
        async with asyncio.timeout(60):
            while not former.calls:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)  # the round has failed: it waits for its backoff
            await plane.disown([KEY])
            partition = begin(now)
            while partition.append.log_end < 5:
                await asyncio.sleep(0.01)
        assert (former.calls, now.calls) == (1, 1)
        await plane.close()

    asyncio.run(body())


def test_a_partition_failed_by_a_defect_is_reported_as_changed() -> None:
    """The row of a partition that a defect has FAILED is read again."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        plane.take_news()
        with plane.guard([partition]):
            _ = 1 / 0
        assert plane.take_news() == {0}
        await plane.close()

    asyncio.run(body())


def test_a_topic_without_rights_is_not_a_missing_topic() -> None:
    """A broker reports no partitions of a topic that a lane may not see."""

    class Refusing:
        async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
            return {
                TopicPartition(t, WHOLE_TOPIC): LeaderReport(-1, -1, UUID(int=0), 29)
                for t in topics
            }

    async def body() -> None:
        plane = engine(Refusing())
        partition = appending(plane)
        for event in (SourceLed, DestinationLed):
            await plane.leaders._ask(plane.source, {KEY.topic}, event)
            assert partition.stage is PartitionStage.FAILED
            assert partition.reason.endswith(" refuses: TOPIC_AUTHORIZATION_FAILED (29)")
        await plane.close()

    asyncio.run(body())


def test_a_gap_that_waits_for_another_producer_id_is_reported_so() -> None:
    """Goal: `--describe` has the reason, of partitions with a gap only."""

    class Renaming(MarkerWriter):
        held_back = "a gap waits for another producer id"

    async def body() -> None:
        exact_engine = ExactEngine(
            "m",
            lambda *_: None,
            source=None,
            destination=cast("DestinationPort", Silent()),
            settings=LaneSettings(),
            random=random.Random(1),
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        plane = exact_engine.plane
        partition = placed_partition(plane)
        shard = plane.shard(partition)
        shard.markers = Renaming("p.0.marker", plane.destination, 10)
        assert exact_engine._row(partition, plane.now()).held_back is None
        partition.append.offer([Gap(Offset(0), Offset(5), seen=True)])
        row = exact_engine._row(partition, plane.now())
        assert row.held_back == "a gap waits for another producer id"
        shard.markers = MarkerWriter("p.0.marker", plane.destination, 10)
        assert exact_engine._row(partition, plane.now()).held_back is None
        await plane.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LogEnd(29, -1, -1), "a gap cannot be filled: TOPIC_AUTHORIZATION_FAILED (29)"),
        (Refusal(53).error("initialise the producer id of p.0.filler.1"), "a gap cannot be filled"),
    ],
)
def test_a_refused_gap_fails_only_its_partition(answer: LogEnd | TwinlogError, reason: str) -> None:
    """The partition is FAILED and retried, and the engine continues with all others."""

    class Refused(FillerIds):
        async def fill(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
            if isinstance(answer, TwinlogError):
                raise answer
            return dict.fromkeys(gaps, answer)

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        shard = Shard(0, "p", plane.destination, LaneSettings())
        shard.fillers = Refused(0, "p.0.filler", plane.destination, LaneSettings())
        shard.markers.allowed = False
        plane._shards[shard.number] = shard
        gaps = {partition: Gap(Offset(5), Offset(6), seen=True)}
        assert await plane.gap_filler._round(gaps, (0, -1)) == {partition}
        assert (partition.stage, partition.transient) == (PartitionStage.FAILED, True)
        assert partition.reason.startswith(reason)
        assert not partition.filling
        await plane.close()

    asyncio.run(body())


def test_a_hung_broker_delays_only_its_own_gaps() -> None:
    """Of two gaps of one shard, the one whose broker answers is filled."""
    hung, other = TopicPartition("t", 0), TopicPartition("t", 1)

    class Writer(MarkerWriter):
        async def write(
            self, gaps: Mapping[TopicPartition, Gap]
        ) -> Mapping[TopicPartition, LogEnd]:
            if hung in gaps:
                await asyncio.Event().wait()
            return {p: LogEnd(0, gap.end, -1) for p, gap in gaps.items()}

    async def body() -> None:
        plane = engine()
        shard = Shard(0, "p", plane.destination, LaneSettings(fillers=0))
        shard.markers = Writer("p.0.marker", plane.destination, 10)
        start = Position(
            log_end=Offset(0),
            producer_id=ProducerId(7),
            epoch=ProducerEpoch(0),
            sequence=Sequence(0),
            guarded=True,
        )
        for key in (hung, other):
            spec = PartitionSpec(
                partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False
            )
            plane.own(shard, [spec], lease_s=0.0)
            partition = plane.partitions[key]
            partition.destination_node = key.partition
            partition.append.place(start, plane.now(), compared=True)
            plane.emit(partition, Queued([Gap(Offset(0), Offset(5), seen=True)]))
        for partition in plane.partitions.values():
            plane.emit(partition, LOOK)
        async with asyncio.timeout(60):
            while plane.partitions[other].append.log_end < 5:
                await asyncio.sleep(0)
        assert plane.partitions[hung].filling
        assert plane.partitions[hung].append.log_end == 0
        await plane.close()

    asyncio.run(body())


def test_a_partition_assigned_to_an_ended_engine_is_failed() -> None:
    """It is FAILED for what has ended the engine, as the engine's other partitions are."""

    async def body() -> None:
        plane = engine()
        first = appending(plane)
        plane.fail_all("the source refuses us")
        other = TopicPartition("t", 1)
        spec = PartitionSpec(partition=other, source_topic_id=UUID(int=1), shard=0, compacted=False)
        plane.own(plane.shard(first), [spec], lease_s=10.0)
        for partition in (first, plane.partitions[other]):
            assert (partition.stage, partition.reason) == (
                PartitionStage.FAILED,
                "the source refuses us",
            )
        await plane.disown([other])
        await plane.close()

    asyncio.run(body())


def test_a_defect_fails_only_its_own_partition() -> None:
    """An unforeseen exception ends one partition's work, which is retried, and no engine."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        other = TopicPartition("t", 1)
        spec = PartitionSpec(partition=other, source_topic_id=UUID(int=1), shard=0, compacted=False)
        plane.own(plane.shard(partition), [spec], lease_s=0.0)
        plane._failure = asyncio.get_running_loop().create_future()

        async def breaks() -> None:
            raise ZeroDivisionError("a test")

        plane.start(breaks(), about=[partition])
        for _ in range(3):
            await asyncio.sleep(0)
        assert partition.stage is PartitionStage.FAILED
        assert partition.transient
        assert partition.reason == ("internal error, see the lane's log: ZeroDivisionError: a test")
        assert plane.partitions[other].stage is not PartitionStage.FAILED
        assert not plane._failure.done()
        await plane.close()

    asyncio.run(body())


def test_fetching_continues_at_the_end_of_a_gap_being_filled() -> None:
    """Otherwise the same bytes are fetched again until the destination has filled the gap (E4)."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        partition.source_node = 1
        plane.emit(partition, LOOK)
        partition.filling = True
        plane.emit(partition, Queued([Gap(Offset(5), Offset(9), seen=True)]))
        plane.emit(partition, LOOK)
        assert plane.fetcher._positions[1, 0][partition.key].offset == 9
        await plane.close()

    asyncio.run(body())


def test_a_new_destination_leader_epoch_invalidates_the_position() -> None:
    """With nothing in flight no answer reports the move, and the new leader may know less (A6)."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        partition.append.answered(0)
        for epoch, phase in ((4, "APPENDING"), (4, "APPENDING"), (-1, "APPENDING"), (5, "PLACING")):
            node = 1 if epoch >= 0 else -1
            plane.emit(partition, DestinationLed(LeaderReport(node, epoch, UUID(int=0))))
            assert partition.append.phase.name == phase, epoch
        await plane.close()

    asyncio.run(body())


def test_the_preferred_replica_is_read_until_an_error() -> None:
    """The leader answers without records and names a replica (KIP-392): that replica is read."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        partition.source_node = 1
        plane.emit(partition, LOOK)
        empty = Fetched(0, 9, 9, 0, (), memoryview(b""), None, 2)
        await plane.fetcher._take(partition, empty, plane.fetcher.clock, Steps(), follower=False)
        assert (partition.source_node, partition.read_node) == (1, 2)
        assert partition.key in plane.fetcher._positions[2, 0]
        assert partition.key not in plane.fetcher._positions[1, 0]
        plane.emit(partition, FetchRefused(78))
        assert partition.read_node == 1
        assert partition.append.phase.name == "APPENDING"
        await plane.fetcher._take(partition, empty, plane.fetcher.clock, Steps(), follower=False)
        assert partition.read_node == 1, "not again at once"
        await plane.close()

    asyncio.run(body())


class Redirecting(Silent):
    """A source that has lost its end: 9 records of epoch 6, and 3 of epoch 4 before them.

    Its leader, broker 1, names broker 2 to each session; that is noted before it reads, and so it
    compares no epochs. It answers a request for one partition alone itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alone: list[tuple[int, int]] = []

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, FetchPosition], **_: int
    ) -> FetchResult:
        """Name broker 2, or say as broker 2 where the log diverges."""
        await asyncio.sleep(0.01)
        answer = Fetched(0, 9, 9, 0, (), memoryview(b""))
        if node == 1:
            answer = answer._replace(preferred_replica=2)
        elif positions[KEY].last_epoch == 5:
            answer = answer._replace(diverging=EpochEnd(4, 3))
        return FetchResult({KEY: answer}, 0)

    def round_trip_s(self, node: int) -> float:
        """A broker that is near."""
        del node
        return 0.0

    async def read_alone(
        self, partition: TopicPartition, offset: int, *, last_epoch: int = -1, **_: int
    ) -> ReadAlone:
        """The records from this offset on, if it is not told what was read before it."""
        assert partition == KEY
        self.alone.append((offset, last_epoch))
        answer = Fetched(0, 9, 9, 0, (), memoryview(b""), EpochEnd(4, 3))
        if last_epoch != 5:
            records = batch([record(at) for at in range(offset, 9)])
            answer = answer._replace(diverging=None, records=memoryview(records))
        return ReadAlone(answer, 0, 6)


def test_a_source_that_has_lost_its_end_is_noticed_though_its_leader_names_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no records are appended behind ones that the source has lost (KIP-320, KIP-392)."""
    monkeypatch.setattr("twinlog.engines.source.absences.SUSPECT_S", 0.05)

    async def body() -> None:
        source = Redirecting()
        plane = engine(source)
        partition = appending(plane)
        partition.source_epochs.learn(Offset(5), LeaderEpoch(5))
        partition.source_node, partition.source_leader_epoch = 1, LeaderEpoch(6)
        plane.emit(partition, LOOK)
        async with asyncio.timeout(60):
            while not source.alone or partition.append.phase.name == "APPENDING":
                assert partition.append.planned_end == 5, "records of the other history"
                await asyncio.sleep(0.01)
        assert source.alone == [(5, 5)]
        assert partition.append.planned_end <= 5
        await plane.close()

    asyncio.run(body())


def test_the_bounds_of_a_lagging_follower_are_not_used() -> None:
    """Neither a lost end of the source, nor where its log begins and ends (KIP-392)."""

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        partition.source_node, partition.source_replica = 1, 2
        partition.source_high_watermark = partition.source_stable = Offset(9)
        behind = Fetched(0, 7, 6, 3, (), memoryview(b""), None, -1)
        await plane.fetcher._take(partition, behind, plane.fetcher.clock, Steps(), follower=True)
        assert (partition.source_high_watermark, partition.source_stable) == (9, 9)
        assert partition.source_start < 3
        assert partition not in plane.log_starts._partitions
        diverging = behind._replace(diverging=EpochEnd(0, 3))
        await plane.fetcher._take(partition, diverging, plane.fetcher.clock, Steps(), follower=True)
        assert partition.stage is not PartitionStage.FAILED
        assert partition.append.phase.name == "APPENDING"
        assert partition.read_node == 1, "the leader is asked"
        await plane.fetcher._take(
            partition, diverging, plane.fetcher.clock, Steps(), follower=False
        )
        assert partition.append.phase.name != "APPENDING", "the leader is believed"
        await plane.close()

    asyncio.run(body())


def test_a_fetch_response_becomes_one_produce_per_destination_broker() -> None:
    """If each partition were sent separately, each batch would be a request of its own."""

    async def body() -> None:
        plane = engine()
        pumped: list[int] = []
        plane.pump = pumped.append  # type: ignore[assignment]
        keys = [TopicPartition("t", index) for index in range(3)]
        shard = Shard(0, "p", plane.destination, LaneSettings())
        specs = [
            PartitionSpec(partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False)
            for key in keys
        ]
        plane.own(shard, specs, lease_s=0.0)
        for partition in plane.partitions.values():
            partition.append.place(START, plane.now(), compared=True)
            partition.source_node, partition.destination_node = 1, 7
        answer = Fetched(0, 1, 1, 0, (), memoryview(batch([record(0)])))
        await plane.fetcher._take_all(
            FetchResult(dict.fromkeys(keys, answer), 0), plane.fetcher.clock
        )
        assert [plane.partitions[key].append.planned_end for key in keys] == [1, 1, 1]
        assert pumped == [7]
        await plane.close()

    asyncio.run(body())


@pytest.mark.parametrize("alone", [False, True], ids=["of a session", "alone"])
def test_other_tasks_run_between_the_steps_of_a_plan(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Goal: heartbeats do not wait for a batch whose records have to be decoded (B5)."""
    monkeypatch.setattr(loop_steps, "_STEP_S", 0.0)  # on a machine of any speed
    steps = 8
    count = steps * STEP_RECORDS
    data = batch([record(5 + at) for at in range(count)], attributes=LOG_APPEND_TIME)
    answer = Fetched(0, 5 + count, 5 + count, 0, (), memoryview(data))

    async def body() -> None:
        plane = engine()
        partition = appending(plane)
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        beating = asyncio.create_task(beat())
        if alone:
            await plane.fetcher.take_alone(partition, answer, plane.fetcher.clock)
        else:
            await plane.fetcher._take_all(
                FetchResult({KEY: answer}, len(data)), plane.fetcher.clock
            )
        assert partition.append.planned_end == 5 + count
        assert beats > steps // 2
        beating.cancel()
        await plane.close()

    asyncio.run(body())
