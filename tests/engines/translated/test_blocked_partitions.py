"""Partitions whose destination takes nothing, and what they leave of the buffer to the others."""

import asyncio
import random
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest
from batch_builders import THEN, altered, batch, record
from clients import client
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from flow_assignment import ASSIGNMENT
from lane_processes import lanes
from stored_flows import store_flow
from transformed_flows import consumed, flow_properties
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.ports import Appended, Batch, FetchResult, LeaderReport
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated import sender
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import LACKS_REPLICAS, FlowPartition, FlowStage
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.log.batch import batches
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.stage import Stage
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Gap

NODE: Final = 1
COUNT: Final = 12
RECORDS: Final = 40
"""Of each partition; a batch has one, of 1,000 bytes."""
LEADER_EPOCH: Final = 4
SETTINGS: Final = LaneSettings(
    buffer_bytes=32_000,
    fetch_max_bytes=8_000,
    partition_fetch_bytes=2_500,
    partition_queue_bytes=4_000,
    fetch_max_wait_ms=5,
    fetch_pace_s=0.002,
    backoff_s=0.002,
    backoff_max_s=0.01,
)
_Partition = FlowPartition[FlowWriters, PartitionSequence]


@cache
def stored(at: int) -> bytes:
    """The batch at an offset of each partition of the source."""
    return altered(batch([record(at, THEN + at, b"v" * 1000)]), leader_epoch=LEADER_EPOCH)


class Source:
    """A source (`SourcePort`) in which each partition has `RECORDS` batches of one record."""

    def __init__(self) -> None:
        self.reads = 0

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        return {
            TopicPartition(topic, index): LeaderReport(NODE, 0, UUID(int=1))
            for topic in topics
            for index in range(COUNT)
        }

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        return dict.fromkeys(topics, False)

    async def fetch(
        self,
        node: int,
        positions: Mapping[TopicPartition, FetchPosition],
        *,
        max_bytes: int,
        partition_max_bytes: int,
        **_: int,
    ) -> FetchResult:
        """Read, beginning with another partition each time."""
        assert node == NODE
        await asyncio.sleep(0.001)
        self.reads += 1
        keys = sorted(positions)
        first = self.reads % len(keys)
        found: dict[TopicPartition, Fetched] = {}
        size = 0
        for key in (*keys[first:], *keys[:first]):
            records = b""
            for at in range(positions[key].offset, RECORDS):
                one = stored(at)
                if len(records) + len(one) > partition_max_bytes or size + len(one) > max_bytes:
                    break
                records += one
                size += len(one)
            found[key] = Fetched(0, RECORDS, RECORDS, 0, (), memoryview(records))
        return FetchResult(found, size)


class Destination:
    """A destination (`DestinationPort`) whose logs have the source's offset of each record.

    Like a broker it takes numbers in their order only.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.lacking: set[int] = set()
        self.leaderless: set[int] = set()
        self.logs: dict[int, list[int]] = {index: [] for index in range(COUNT)}

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        self.asked += 1
        return {
            TopicPartition(topic, index): LeaderReport(
                -1 if index in self.leaderless else NODE,
                -1,
                UUID(int=2),
                int(ErrorCode.LEADER_NOT_AVAILABLE) if index in self.leaderless else 0,
            )
            for topic in topics
            for index in range(COUNT)
        }

    def appends_to(self, *_: object) -> bool:
        return True

    async def produce(
        self, node: int, requested: Sequence[Batch]
    ) -> Mapping[TopicPartition, Appended]:
        assert node == NODE
        await asyncio.sleep(0.001)
        return {one.partition: self._append(one) for one in requested}

    def _append(self, one: Batch) -> Appended:
        index = one.partition.partition
        log = self.logs[index]
        if index in self.lacking:
            return Appended(ErrorCode.NOT_ENOUGH_REPLICAS, -1, -1)
        whole = memoryview(bytes(one.header) + bytes(one.records))
        (header,) = batches(whole)
        if header.base_sequence != len(log):
            return Appended(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
        offset, last = len(log), header.max_timestamp - THEN
        log += range(last + 1 - header.num_records, last + 1)
        return Appended(0, offset, -1)


class Writers:
    """Plans that are stored at once (`FlowWriters`), or are being stored for long."""

    def __init__(self) -> None:
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def record(self, sequences: Mapping[MirrorPartition, PartitionSequence]) -> None:
        await asyncio.sleep(0)
        for sequence in sequences.values():
            if sequence.landed:
                last = sequence.landed[-1]
                sequence.record(Ends(last.source_end, last.destination_end))
            sequence.plan()
        await self.may_store.wait()


class Flow:
    """A flow of `COUNT` partitions that are being copied."""

    def __init__(self) -> None:
        self.source, self.destination = Source(), Destination()
        cluster = SimpleNamespace(brokers_time=SimpleNamespace(now_ms=lambda: 0))
        lane: Any = SimpleNamespace(
            settings=SETTINGS, random=random.Random(1), destination=cluster, id_prefix="lanes"
        )
        self.engine = FlowEngine(
            lane, cast("Any", self.source), cast("Any", self.destination), lambda *_: None
        )
        self.writers = Writers()
        self.partitions = [self._partition(index, self.writers) for index in range(COUNT)]

    def _partition(self, index: int, writers: Writers) -> _Partition:
        topic = ASSIGNMENT.source.topic
        assignment = replace(
            ASSIGNMENT,
            name=MirrorPartition("flow", topic, index),
            source=TopicPartition(topic, index),
            destination=TopicPartition(f"a.{topic}", index),
        )
        partition = _Partition(
            assignment,
            cast("FlowWriters", writers),
            owned_before=True,
            locate_at=0.0,
            unguarded_until=0.0,
        )
        producer = ProducerId(7), ProducerEpoch(0)
        partition.sequence = PartitionSequence(producer, Ends(Offset(0), Offset(0)), Offset(0))
        partition.stage = FlowStage.COPYING
        partition.source_node = partition.destination_node = NODE
        self.engine.flow.all[assignment.name] = partition
        return partition

    def copied(self, index: int) -> bool:
        """Whether the destination has all of this partition."""
        return len(self.destination.logs[index]) == RECORDS

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Run for as long as it takes, up to two minutes; return whether it holds."""
        deadline = asyncio.get_running_loop().time() + 120
        while not (found := holds()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.002)
        return found


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_READ_AGAIN_S", 0.05)


@pytest.mark.parametrize("blocked_by", ["replicas", "leader"])
def test_partitions_whose_destination_takes_nothing_do_not_stop_the_others(
    blocked_by: str,
) -> None:
    """Goal: the one healthy partition of twelve is copied; the others later, each record once.

    Their queues hold more than the whole buffer allows.
    """

    async def body() -> None:
        flow = Flow()
        blocked = range(COUNT - 1)
        healthy = COUNT - 1
        target = flow.destination
        if blocked_by == "replicas":
            target.lacking |= {*blocked}
        else:
            target.leaderless |= {*blocked}
            for index in blocked:
                flow.partitions[index].destination_node = -1
        running = asyncio.create_task(flow.engine.run())
        try:
            assert await flow.until(lambda: flow.copied(healthy))
            assert await flow.until(
                lambda: all(flow.partitions[index].blocked for index in blocked)
            )
            asked = target.asked
            flow.engine.flow.ask_leaders()
            assert await flow.until(lambda: target.asked > asked)
            await asyncio.sleep(0.01)  # its answer keeps the reasons
            reasons = {flow.partitions[index].row(0.0).held_back for index in blocked}
            assert reasons == {
                LACKS_REPLICAS
                if blocked_by == "replicas"
                else "the destination has no leader for this partition"
            }
            target.lacking.clear()
            target.leaderless.clear()
            flow.engine.flow.ask_leaders()
            assert await flow.until(lambda: all(map(flow.copied, range(COUNT))))
            assert all(partition.failures == 0 for partition in flow.partitions)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert target.logs == {index: [*range(RECORDS)] for index in range(COUNT)}

    asyncio.run(body())


def test_each_blocked_partition_is_tried_in_its_turn() -> None:
    """Goal: one that has its replicas again goes on, while the others still lack theirs."""

    async def body() -> None:
        flow = Flow()
        flow.destination.lacking |= {*range(COUNT)}
        running = asyncio.create_task(flow.engine.run())
        try:
            assert await flow.until(lambda: all(one.refusals for one in flow.partitions))
            for index in (COUNT - 1, 0, COUNT // 2):
                flow.destination.lacking.discard(index)
                assert await flow.until(partial(flow.copied, index)), index
                flow.destination.lacking.add(index)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_a_blocked_partition_is_tried_while_others_hold_all_that_blocked_ones_may() -> None:
    """Goal: it goes on once it has its replicas, whatever keeps the others from dropping data.

    Their plans are being stored for long, as by a state partition that lacks replicas too.
    """

    async def body() -> None:
        flow = Flow()
        holding, last = range(3), COUNT - 1
        slow = Writers()
        for index in holding:
            flow.partitions[index].writers = cast("FlowWriters", slow)
        flow.destination.lacking |= {*range(COUNT)}
        running = asyncio.create_task(flow.engine.run())

        def held(index: int) -> int:
            sequence = flow.partitions[index].sequence
            assert sequence is not None
            return sequence.queued_bytes

        def is_starved() -> bool:
            share = SETTINGS.buffer_bytes // 8
            return sum(map(held, holding)) >= share and not held(last)

        try:
            assert await flow.until(lambda: all(one.refusals for one in flow.partitions))
            slow.may_store.clear()
            assert await flow.until(is_starved)
            flow.destination.lacking.discard(last)
            assert await flow.until(lambda: flow.copied(last))
            assert not any(flow.copied(index) for index in range(COUNT - 1))
            flow.destination.lacking.clear()
            slow.may_store.set()
            assert await flow.until(lambda: all(map(flow.copied, range(COUNT))))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert flow.destination.logs == {index: [*range(RECORDS)] for index in range(COUNT)}

    asyncio.run(body())


def test_a_partition_whose_refused_records_are_compacted_away_is_not_blocked() -> None:
    """Goal: no reason is reported where nothing is left to be appended."""

    async def body() -> None:
        partition = Flow().partitions[0]
        sequence = partition.sequence
        assert sequence is not None
        partition.refusals, partition.held_back = 3, LACKS_REPLICAS
        partition.note_ends(2, 2, 0.0, at_least=True)
        assert partition.blocked
        sequence.offer([Gap(Offset(0), Offset(2), seen=False)])
        partition.note_ends(2, 2, 0.0, at_least=True)
        assert (partition.blocked, partition.row(0.0).held_back) == (False, None)

    asyncio.run(body())


def test_offsets_without_a_copy_that_are_read_again_are_counted_once() -> None:
    """Goal: what is dropped, and read again, is no second loss."""

    async def body() -> None:
        partition = Flow().partitions[0]
        for end in (4, 6, 5):
            span = AbsentSpan(Absence.COMPACTED, Offset(end))
            partition.pass_over(Gap(Offset(2), Offset(end), seen=False, spans=(span,)))
        assert partition.row(0.0).filled[Absence.COMPACTED] == 4

    asyncio.run(body())


MEGABYTE: Final = 1 << 20
SMALL_LANE: Final = {
    "lane.buffer.bytes": str(16 * MEGABYTE),
    "replica.fetch.response.max.bytes": str(4 * MEGABYTE),
}
REMOTES: Final = 10
WELL: Final = frozenset({0, 5})
"""Partitions with all their replicas, in one of five state partitions: a lane that has to locate
them does not wait for the others."""
POOR: Final = frozenset(range(REMOTES)) - WELL


async def coordinator_of(cluster: LocalCluster, group: str) -> int:
    async with client(cluster) as kafka:
        return await kafka.coordinators.find(Coordinator.GROUP, group)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(900)
def test_a_target_that_lacks_a_broker_does_not_stop_what_has_its_replicas(
    tmp_path: Path,
) -> None:
    """Goal: partitions below min.insync.replicas wait, others go on; all arrives in the end.

    Each of ten partitions has 3 MB to copy, and the lane holds 16 MB. The broker that is killed
    leads none of them, and comes back.
    """
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    remote, count = f"a.{topic}", REMOTES
    wanted: dict[int, list[bytes]] = {index: [] for index in range(count)}
    with Stage(tmp_path / "stage") as stage:
        source, target = stage.start_source(), stage.start_destination(3)
        pair = Pair(source, target)
        servers = target.bootstrap_servers
        ends = Consumer({"bootstrap.servers": servers, "group.id": secrets.token_hex(4)})
        producer = Producer({"bootstrap.servers": source.bootstrap_servers})

        def write(records: int, size: int) -> None:
            for number in range(records * count):
                value = b"%d " % number + b"v" * size
                producer.produce(topic, value, partition=number % count)
                producer.poll(0)
                wanted[number % count].append(value)
            assert producer.flush(180) == 0

        def end(index: int) -> int:
            return ends.get_watermark_offsets(KafkaPartition(remote, index), timeout=120)[1]

        def copied(partitions: Collection[int]) -> bool:
            return all(
                values[: len(wanted[index])] == wanted[index]
                for index, values in copies().items()
                if index in partitions
            )

        def copies() -> dict[int, list[bytes | None]]:
            found = consumed(servers, remote, count)
            return {index: [value for value, _ in found[index]] for index in range(count)}

        def are_out_of_sync() -> bool:
            try:
                found = ends.list_topics(remote, timeout=30).topics[remote]
            except KafkaException:
                return False  # the broker that was asked has just been killed
            return all(len(found.partitions[index].isrs) == 1 for index in POOR)

        with lanes(servers, tmp_path, SMALL_LANE) as running:
            coordinator = asyncio.run(coordinator_of(target, "twinlog"))
            gone, other = (node for node in (1, 2, 3) if node != coordinator)
            replicas = [
                [(coordinator, other)[index % 2], gone] if index in POOR else [coordinator, other]
                for index in range(count)
            ]
            asyncio.run(
                store_flow(
                    *(pair, mirror, flow_properties(pair, {}), (topic, remote), count),
                    remote_replicas=replicas,
                    remote_configs={"min.insync.replicas": "2"},
                )
            )
            write(10, 100)
            running.start("node")
            until(lambda: copied(range(count)), SECONDS, "the first records")
            target.kill(gone)
            until(are_out_of_sync, SECONDS, "the replicas to be out of sync")
            before = {index: end(index) for index in POOR}
            write(300, 10_000)
            until(lambda: copied(WELL), SECONDS, "the records whose replicas are there")
            assert {index: end(index) for index in POOR} == before
            target.start_broker(gone)
            until(lambda: copied(POOR), SECONDS, "the records whose replicas are back")
        assert copies() == wanted
        ends.close()
