"""The engine on real brokers with damaged data.

A broker on one disk serves what it reads, even if the disk lost acknowledged data or flipped a bit.
The tests change the files as only such an accident could, during or between the broker's runs.
Data that was read correctly may also be damaged in the mirror's own memory before it is sent.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from clients import client
from sole_owner import owned_for_good
from waiting import SECONDS, until_async

from twinlog.engines.exact import sender
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.log.batch import Header, batches, patched_header
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

pytestmark = pytest.mark.broker

VALUE = "a value that is long enough to be hit"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start one broker whose files the tests change.

    It is 4.3.1, which begins an epoch when a broker comes back. A 3.9.1 broker that restarts within
    its session continues in the same epoch; then a lost end is visible only until the log has
    regrown.
    """
    with LocalCluster.start(
        1, directory=tmp_path_factory.mktemp("fragile"), jvm_flags=SHORT_LIVED
    ) as cluster:
        yield cluster


def log_file(cluster: LocalCluster, key: TopicPartition) -> Path:
    """Return the path of the partition's only segment."""
    [path] = (cluster.directory / "node-1" / "data" / str(key)).glob("*.log")
    return path


def log_headers(cluster: LocalCluster, key: TopicPartition) -> list[Header]:
    """Return the batch headers of the segment."""
    return list(batches(memoryview(log_file(cluster, key).read_bytes())))


def log_records(cluster: LocalCluster, key: TopicPartition) -> list[memoryview]:
    """Return the bytes behind the headers."""
    data = memoryview(log_file(cluster, key).read_bytes())
    return [header.records(data) for header in batches(data)]


class Mirror:
    """An engine with one shard, between two real clusters."""

    def __init__(self, running: DataPlane, destination: KafkaDestination) -> None:
        self._engine = running
        self._destination = destination

    def partition(self, key: TopicPartition) -> ExactPartition:
        """Return the engine's view of a partition."""
        return self._engine.partitions[key]

    async def end(self, key: TopicPartition) -> int:
        """Return the destination's log end offset."""
        return (await self._destination.log_ends([key]))[key].log_end

    async def arrived(self, key: TopicPartition, end: int) -> None:
        """Wait until the destination's log end offset is `end`."""

        async def there() -> bool:
            return await self.end(key) == end

        await until_async(there, SECONDS, f"{key} to end at {end}")

    async def failed(self, key: TopicPartition) -> str:
        """Wait until the partition is FAILED; return the reason."""

        async def there() -> bool:
            return self.partition(key).stage is PartitionStage.FAILED

        await until_async(there, SECONDS, f"{key} to fail")
        return self.partition(key).reason


@asynccontextmanager
async def mirror(
    source: LocalCluster, destination: LocalCluster, topic: str, partitions: int
) -> AsyncIterator[Mirror]:
    """Mirror a topic that exists in both clusters."""
    keys = [TopicPartition(topic, index) for index in range(partitions)]
    settings = LaneSettings()
    async with client(source) as source_cluster, client(destination) as destination_cluster:
        ports = KafkaSource(source_cluster), KafkaDestination(destination_cluster, lambda: True)
        own = DataPlane(
            *ports,
            settings,
            random.Random(1),
            lambda _: None,
            brokers_time_ms=_now_ms,
            confirm_ownership=owned_for_good,
        )
        leaders = await ports[0].leaders([topic])
        shard = Shard(0, f"twinlog.{topic}", ports[1], settings)
        await shard.open()
        specs = [
            PartitionSpec(
                partition=key, source_topic_id=leaders[key].topic_id, shard=0, compacted=False
            )
            for key in keys
        ]
        own.own(shard, specs, lease_s=0.0)
        running = asyncio.create_task(own.run())
        try:
            yield Mirror(own, ports[1])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()


def make_topics(source: LocalCluster, destination: LocalCluster, topic: str, count: int) -> None:
    for cluster in (source, destination):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic, count)


async def write(source: LocalCluster, topic: str, *partitions: int) -> None:
    """Write a batch of five records to each of these partitions."""
    for partition in partitions:
        records = librdkafka_tools.simple(5, partition, VALUE)
        await asyncio.to_thread(librdkafka_tools.write, source.bootstrap_servers, topic, records)


def cut(source: LocalCluster, key: TopicPartition, end: int) -> None:
    """Kill the broker, cut the log at an offset, and restart the broker."""
    [at] = [header.position for header in log_headers(source, key) if header.base_offset == end]
    source.kill(1)
    with log_file(source, key).open("r+b") as file:
        file.truncate(at)
    source.start_broker(1)


def test_a_source_log_that_lost_its_end_and_grew_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, topic: str
) -> None:
    """Goal: FAILED, with both offsets and epochs; the destination does not change.

    The other partition, which lost nothing, is still mirrored.
    """
    lost, whole = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def body() -> None:
        make_topics(fragile, kafka, topic, 2)
        async with mirror(fragile, kafka, topic, 2) as active_mirror:
            await write(fragile, topic, 0, 1)
            await write(fragile, topic, 0, 1)
            await active_mirror.arrived(lost, 10)
            epoch = log_headers(fragile, lost)[-1].leader_epoch
            await asyncio.to_thread(cut, fragile, lost, 5)
            for _ in range(3):
                await write(fragile, topic, 0, 1)
            assert log_headers(fragile, lost)[-1].next_offset == 20
            reason = await active_mirror.failed(lost)
            assert f"up to offset 10 of leader epoch {epoch}" in reason
            assert f"epoch {epoch} ends at offset 5" in reason
            await active_mirror.arrived(whole, 25)
            assert active_mirror.partition(whole).stage is PartitionStage.MIRRORING
            assert await active_mirror.end(lost) == 10

    asyncio.run(body())


def test_a_corrupt_source_batch_fails_its_partition(
    fragile: LocalCluster, kafka: LocalCluster, topic: str
) -> None:
    """Goal: brokers do not verify checksums when they answer a Fetch; the mirror does, and stops.

    FAILED with the offset; the batches before it arrive, and so does the other partition.
    """
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def body() -> None:
        make_topics(fragile, kafka, topic, 2)
        for _ in range(3):
            await write(fragile, topic, 0, 1)
        path = log_file(fragile, bad)
        data = path.read_bytes()
        # The writer of five records may have sent them in several batches.
        [second] = [one for one in log_headers(fragile, bad) if one.base_offset == 5]
        at = data.rindex(VALUE.encode(), 0, second.end)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"A")
        async with mirror(fragile, kafka, topic, 2) as active_mirror:
            await active_mirror.arrived(good, 15)
            reason = await active_mirror.failed(bad)
            assert "corrupt" in reason
            assert "the batch at offset 5 has a wrong checksum" in reason
            await active_mirror.arrived(bad, 5)
            await write(fragile, topic, 0, 1)
            await active_mirror.arrived(good, 20)
            assert await active_mirror.end(bad) == 5
        async with mirror(fragile, kafka, topic, 2) as another:
            assert "the batch at offset 5 has a wrong checksum" in await another.failed(bad)
            assert await another.end(bad) == 5

    asyncio.run(body())


def test_a_batch_corrupted_in_memory_is_read_again(
    kafka: LocalCluster, fragile: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the destination's broker refuses the batch; it is read again and arrives intact."""
    key = TopicPartition(topic, 0)
    turned_over: list[int] = []

    def bad_memory(header: Header, records: memoryview, *identity: Any) -> bytes:
        if not turned_over:
            turned_over.append(header.base_offset)
            records[-3] ^= 1
        return patched_header(header, records, *identity)

    async def body() -> None:
        make_topics(kafka, fragile, topic, 1)
        for _ in range(3):
            await write(kafka, topic, 0)
        monkeypatch.setattr(sender, "patched_header", bad_memory)
        async with mirror(kafka, fragile, topic, 1) as active_mirror:
            await active_mirror.arrived(key, 15)
        assert turned_over == [0]
        written = log_records(kafka, key)
        assert written
        assert log_records(fragile, key) == written

    asyncio.run(body())
