"""A stop on three brokers whose transaction cannot end, and whose coordinator moves.

A coordinator that takes over writes all markers of an incomplete transaction again, on all of its
partitions (tests/kafka/requests/test_markers.py). One partition with too few in-sync replicas is
enough to keep the transaction open, while the others' markers are in the log.
"""

import asyncio
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until_async

from contract.bench import Bench, log_end
from contract.kafka_bench import KafkaBench, run_on_kafka
from twinlog.engines.exact.shard import Shard
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests.transactions import transaction_state
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

SETTINGS = LaneSettings(marker_deadline_s=3.0)


def _brokers(local: LocalCluster) -> list[int]:
    return [broker.node_id for broker in local.brokers]


class Stop:
    """Two partitions of a state partition: a healthy one, one with too few in-sync replicas."""

    def __init__(self, bench: KafkaBench) -> None:
        self.bench = bench
        self.local = bench.local
        self.name = bench.name("stop")
        self.well = TopicPartition(f"{self.name}.well", 0)
        self.poor = TopicPartition(f"{self.name}.poor", 0)
        self.admin = AdminClient({"bootstrap.servers": self.local.bootstrap_servers})

    async def coordinator(self) -> int:
        self.bench.client.coordinators.forget(Coordinator.TRANSACTION, f"{self.name}.0")
        return await self.bench.client.coordinators.find(Coordinator.TRANSACTION, f"{self.name}.0")

    async def create(self, leader: int, follower: int) -> None:
        config = {"min.insync.replicas": "2"}
        topics = [
            NewTopic(self.well.topic, 1, replica_assignment=[[leader]]),
            NewTopic(self.poor.topic, 1, replica_assignment=[[leader, follower]], config=config),
        ]
        for future in self.admin.create_topics(topics).values():
            await asyncio.to_thread(future.result, 120)
        for each in (self.well, self.poor):
            await until_async(lambda each=each: self.led(each), what=f"a leader of {each}")

    async def led(self, partition: TopicPartition) -> bool:
        leaders = await self.bench.destination.leaders([partition.topic])
        ends = await self.bench.destination.log_ends([partition])
        return partition in leaders and not ends[partition].error

    async def in_sync(self, count: int) -> bool:
        try:
            metadata = await asyncio.to_thread(self.admin.list_topics, self.poor.topic, 20)
        except KafkaException:
            return False  # the broker that was asked has just been killed
        partition = metadata.topics[self.poor.topic].partitions.get(0)
        return partition is not None and len(partition.isrs) == count

    async def complete(self) -> bool:
        """Return whether the coordinator reports no open transaction of the id."""
        with suppress(Retriable):
            return (await transaction_state(self.bench.client, f"{self.name}.0")) in {
                "Empty",
                "CompleteCommit",
                "CompleteAbort",
            }
        return False

    async def write(self, partition: TopicPartition) -> int:
        """Append a user's record; return the log end offset after it."""
        producer = Producer({"bootstrap.servers": self.local.bootstrap_servers})
        producer.produce(partition.topic, b"a user's", partition=partition.partition)
        assert await asyncio.to_thread(producer.flush, 120) == 0
        return await log_end(self.bench, partition)


@pytest.mark.long
def test_nothing_is_written_after_a_stop_whose_coordinator_moves(trio: LocalCluster) -> None:
    """Goal: a partition that is reported as fenced has all of its control records."""

    async def body(bench: Bench) -> None:
        assert isinstance(bench, KafkaBench)
        stop = Stop(bench)
        shard = Shard(0, stop.name, bench.destination, SETTINGS)
        await shard.open()
        coordinator = await stop.coordinator()
        leader, follower = (node for node in _brokers(trio) if node != coordinator)
        await stop.create(leader, follower)
        try:
            trio.kill(follower)
            await until_async(lambda: stop.in_sync(1), what="the follower to be out of sync")
            found = await shard.fence([stop.well, stop.poor])
            assert stop.poor not in found
            told = {partition: await stop.write(partition) for partition in found}
            await asyncio.to_thread(trio.shut_down, coordinator)
            await asyncio.to_thread(trio.start_broker, follower)
            await until_async(lambda: stop.in_sync(2), what="the follower to be in sync")
            await asyncio.to_thread(trio.start_broker, coordinator)
            await until_async(stop.complete, what="the end of the fence's transaction")
            assert {partition: await log_end(bench, partition) for partition in told} == told
            fences: dict[TopicPartition, object] = {}

            async def fenced() -> bool:
                with suppress(Retriable):
                    fences.update(await shard.fence([stop.well, stop.poor]))
                return len(fences) == 2

            await until_async(fenced, what="both to be fenced")
            assert fences == {stop.well: 0, stop.poor: 0}
            told = {partition: await stop.write(partition) for partition in fences}
            coordinator = await stop.coordinator()
            await asyncio.to_thread(trio.shut_down, coordinator)
            await until_async(stop.complete, what="another coordinator")
            await asyncio.to_thread(trio.start_broker, coordinator)
            assert {partition: await log_end(bench, partition) for partition in told} == told
        finally:
            await shard.close()
            for node in _brokers(trio):
                if not trio.alive(node):
                    await asyncio.to_thread(trio.start_broker, node)

    run_on_kafka(trio, body)
