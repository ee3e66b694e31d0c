"""Requests of a lane that are held in the network and delivered later, on real brokers.

A TCP proxy in front of the destination holds the connection with WriteTxnMarkers. It delivers the
bytes when the client has given up, or when the lane is dead, the partitions are stopped, and users
write to them (G1).
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer
from sole_owner import owned_for_good
from tcp_proxy import PROXIED, PROXIED_LISTENER, WRITE_TXN_MARKERS, Proxies
from waiting import SECONDS, until_async

from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.types import TopicPartition
from twinlog.local.check import ConsumerView
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

pytestmark = pytest.mark.broker

PARTITIONS = 4
REQUEST_TIMEOUT_S = 10.0
"""After this time the client gives up a request that is held."""
SETTINGS = LaneSettings(lease_s=1.0, backoff_max_s=1.0)


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.1", marks=pytest.mark.long)])
def destination(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start one broker behind a proxy."""
    with LocalCluster.start(
        1,
        version=request.param,
        directory=tmp_path_factory.mktemp("proxied"),
        listeners=PROXIED_LISTENER,
        proxied=[PROXIED],
        jvm_flags=SHORT_LIVED,
    ) as cluster:
        yield cluster


@pytest.fixture
def proxies(destination: LocalCluster) -> Iterator[Proxies]:
    with Proxies.of(destination) as them:
        yield them


def through(proxies: Proxies, request_timeout_s: float) -> KafkaCluster:
    """Return a client of the destination."""
    hosts = (server.rpartition(":") for server in proxies.bootstrap_servers.split(","))
    servers = tuple(Address(host, int(port)) for host, _, port in hosts)
    return KafkaCluster(ClusterConfig(bootstrap_servers=servers, request_timeout=request_timeout_s))


@asynccontextmanager
async def mirror(
    source: LocalCluster,
    proxies: Proxies,
    keys: list[TopicPartition],
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> AsyncIterator[tuple[DataPlane, KafkaDestination]]:
    """Run an engine of a first owner that reaches the destination through the proxy."""
    topic = keys[0].topic
    through_proxies = through(proxies, request_timeout_s)
    async with client(source) as source_cluster, through_proxies as destination_cluster:
        ports = KafkaSource(source_cluster), KafkaDestination(destination_cluster, lambda: True)
        engine = DataPlane(
            *ports,
            SETTINGS,
            random.Random(1),
            lambda _: None,
            brokers_time_ms=lambda: time.time_ns() // 1_000_000,
            confirm_ownership=owned_for_good,
        )
        leaders = await ports[0].leaders([topic])
        shard = Shard(0, f"twinlog.{topic}", ports[1], SETTINGS)
        await shard.open()
        specs = [
            PartitionSpec(
                partition=key, source_topic_id=leaders[key].topic_id, shard=0, compacted=False
            )
            for key in keys
        ]
        engine.own(shard, specs, lease_s=0.0)
        running = asyncio.create_task(engine.run())
        try:
            yield engine, ports[1]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()


def transactions(servers: str, topic: str, name: str, count: int) -> None:
    """Write transactions, each with three records and a marker on each partition."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(SECONDS)
    for at in range(count):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            for record in range(3):
                producer.produce(topic, partition=index, value=f"{name}-{at}-{record}")
        producer.flush(SECONDS)
        producer.commit_transaction(SECONDS)


def make_topics(
    source: LocalCluster, destination: LocalCluster, topic: str
) -> list[TopicPartition]:
    for cluster in (source, destination):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    return [TopicPartition(topic, index) for index in range(PARTITIONS)]


def records(cluster: LocalCluster, keys: list[TopicPartition]) -> object:
    """Read all records, with their offsets, with librdkafka."""
    log = ConsumerView(cluster.bootstrap_servers)
    partitions = [(key.topic, key.partition) for key in keys]
    extents = {one: (0, end) for one, end in log.ends(partitions).items()}
    return log.read(extents, time.monotonic() + SECONDS)


def ends(cluster: LocalCluster, keys: list[TopicPartition]) -> list[int]:
    log = ConsumerView(cluster.bootstrap_servers)
    return list(log.ends([(key.topic, key.partition) for key in keys]).values())


async def arrived(engine: DataPlane, source: LocalCluster, destination: LocalCluster) -> None:
    """Wait until both logs are equally long."""
    keys = list(engine.partitions)

    async def equal() -> bool:
        assert not [
            p.reason for p in engine.partitions.values() if p.stage is PartitionStage.FAILED
        ]
        found = await asyncio.gather(
            *(asyncio.to_thread(ends, cluster, keys) for cluster in (source, destination))
        )
        return found[0] == found[1]

    await until_async(equal, SECONDS, "the logs to be equally long")


def test_markers_delivered_after_a_timeout_are_refused(
    kafka: LocalCluster, destination: LocalCluster, proxies: Proxies, topic: str
) -> None:
    """Goal: the gaps were filled again; the first request, delivered then, moves no record."""
    keys = make_topics(kafka, destination, topic)
    transactions(kafka.bootstrap_servers, topic, "before", 4)

    async def story() -> None:
        hold = proxies.hold(api=WRITE_TXN_MARKERS)
        async with mirror(kafka, proxies, keys) as (engine, _):
            await asyncio.to_thread(hold.await_caught, SECONDS)
            await arrived(engine, kafka, destination)
            assert hold.abandoned, "its client has given it up"
            hold.release()
            await asyncio.to_thread(transactions, kafka.bootstrap_servers, topic, "after", 4)
            await arrived(engine, kafka, destination)

    asyncio.run(story())
    assert records(destination, keys) == records(kafka, keys)


def test_markers_delivered_after_a_stop_are_refused(
    kafka: LocalCluster, destination: LocalCluster, proxies: Proxies, topic: str
) -> None:
    """Goal: no marker lands when their lane is dead, another one has stopped, and users write."""
    keys = make_topics(kafka, destination, topic)
    transactions(kafka.bootstrap_servers, topic, "before", 1)

    async def story() -> None:
        hold = proxies.hold(api=WRITE_TXN_MARKERS)
        async with mirror(kafka, proxies, keys, SECONDS):  # it does not send the markers again
            await asyncio.to_thread(hold.await_caught, SECONDS)

            async def copied() -> bool:  # not only what the held markers follow
                return await asyncio.to_thread(ends, destination, keys) == [3] * PARTITIONS

            await until_async(copied, SECONDS, "the records of all partitions")
        async with client(destination) as direct:
            port = KafkaDestination(direct, lambda: True)
            owner = Shard(0, f"twinlog.{topic}", port, SETTINGS)
            await owner.open()
            fenced: dict[TopicPartition, object] = {}

            async def all_fenced() -> bool:
                fenced.update(await owner.fence(keys))
                return len(fenced) == PARTITIONS

            await until_async(all_fenced, SECONDS, "fences")
            await owner.close()
        assert fenced == dict.fromkeys(keys, 3), "where mirroring ended"
        for index in range(PARTITIONS):
            written = librdkafka_tools.simple(5, index, "user")
            await asyncio.to_thread(
                librdkafka_tools.write, destination.bootstrap_servers, topic, written
            )
        before = ends(destination, keys)
        passed = proxies.bytes_passed
        hold.release()

        async def delivered() -> bool:
            return proxies.bytes_passed > passed

        await until_async(delivered, SECONDS, "the held request to be delivered")
        await asyncio.sleep(1.0)
        assert ends(destination, keys) == before

    asyncio.run(story())
