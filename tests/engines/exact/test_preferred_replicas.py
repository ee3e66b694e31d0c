"""Exact mirrors that read from another replica than the leader (KIP-392), on real brokers.

The source has two brokers, and all partitions have both as replicas. Two listeners have proxies:
the mirror's, and that of replication. So the leader can be cut off from the mirror, or from its
follower.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import librdkafka_tools
import pytest
from clients import client, make_topic
from sole_owner import owned_for_good
from tcp_proxy import PROXIED, Faults, Proxies
from unusual_sources import compile_selector
from waiting import SECONDS, until_async

from twinlog.engines.base import Assignment, PartitionProgress
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import LeaderReport
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source.leader_bounds import BOUNDS_S
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.errors import Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, Offset, TopicPartition
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.placement import MirrorPartition

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

REPLICATION = "REPLICATION"
LEADER, FOLLOWER = 1, 2
SILENT_S = 11.0
"""After so long without an answer of the leader, the lag is unknown."""
LAG_TIME_S = 5.0
"""A follower that is cut off for longer leaves the ISR: or one on a machine that stalls."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source whose leaders name followers."""

    cluster: LocalCluster
    proxies: Proxies
    """Between the mirror and the brokers."""
    replication: Proxies
    """Between a follower and the brokers."""

    async def write(self, topic: str, count: int = 5) -> None:
        """Write past the proxies; all in-sync replicas have the records then."""
        records = librdkafka_tools.simple(count)
        servers = self.cluster.bootstrap_servers
        await asyncio.to_thread(librdkafka_tools.write, servers, topic, records)

    async def in_sync(self, topic: str) -> set[int]:
        """The in-sync replicas."""
        metadata = await asyncio.to_thread(
            librdkafka_tools.admin(self.cluster.bootstrap_servers).list_topics, topic, SECONDS
        )
        return set(metadata.topics[topic].partitions[0].isrs)

    async def await_in_sync(self, topic: str, *replicas: int) -> None:
        async def shown() -> bool:
            return await self.in_sync(topic) == set(replicas)

        await until_async(shown, SECONDS, f"in-sync replicas {replicas}")

    def cut_follower(self) -> None:
        """Let the follower fetch nothing."""
        self.replication.set(Faults(refuse=True), LEADER)
        self.replication.cut(LEADER)

    def heal(self) -> None:
        self.replication.clear()
        self.proxies.clear()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("preferred")
    config = {
        "replica.selector.class": "FollowerSelector",
        "inter.broker.listener.name": REPLICATION,
        "replica.lag.time.max.ms": str(int(LAG_TIME_S * 1000)),
        "replica.fetch.backoff.ms": "100",
        "broker.session.timeout.ms": "20000",  # a stalled leader stays the leader
        "min.insync.replicas": "1",
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster.start(
                2,
                config=config,
                directory=folder / "source",
                jvm_flags=SHORT_LIVED,
                listeners=dict.fromkeys((PROXIED, REPLICATION), "PLAINTEXT"),
                proxied=(PROXIED, REPLICATION),
                classpath=[str(compile_selector(folder, DEFAULT_VERSION))],
            )
        )
        proxies = stack.enter_context(Proxies.of(cluster))
        replication = stack.enter_context(Proxies(cluster.proxy_ports(REPLICATION)))
        yield Source(cluster, proxies, replication)


class Mirror:
    """The exact engine of one partition between two real clusters."""

    def __init__(self, source: Source, engine: ExactEngine) -> None:
        self.source = source
        self.engine = engine

    @property
    def partition(self) -> ExactPartition:
        [partition] = self.engine.plane.partitions.values()
        return partition

    @property
    def row(self) -> PartitionProgress:
        """What is reported."""
        [row] = self.engine.progress()
        return row

    @property
    def age_s(self) -> float:
        """Seconds since the last contact that is reported."""
        assert self.row.source_time_ms is not None
        return time.time() - self.row.source_time_ms / 1000

    @property
    def followed_fetches(self) -> int:
        """Fetches from the follower."""
        return self.engine.plane.fetcher.counts[FOLLOWER].requests

    def assert_follows(self) -> None:
        assert self.partition.source_replica == FOLLOWER, "it is read from the leader again"

    async def mirrored(self, end: int) -> None:
        async def there() -> bool:
            return self.row.mirrored_end == end

        await until_async(there, SECONDS, f"the mirror to reach {end}")


@asynccontextmanager
async def mirror(source: Source, destination: LocalCluster, topic: str) -> AsyncIterator[Mirror]:
    """Mirror a topic of one partition, which is led by `LEADER` and read from `FOLLOWER`."""
    key, settings = TopicPartition(topic, 0), replace(LaneSettings(), leaders_max_age_s=600.0)
    servers = [server.rpartition(":") for server in source.proxies.bootstrap_servers.split(",")]
    addresses = tuple(Address(host, int(port)) for host, _, port in servers)
    async with (
        client(source.cluster) as direct,
        KafkaCluster(ClusterConfig(bootstrap_servers=addresses)) as source_cluster,
        client(destination) as destination_cluster,
    ):
        await make_topic(direct, topic, replicas=[[LEADER, FOLLOWER]])
        await make_topic(destination_cluster, topic)
        ports = KafkaSource(source_cluster), KafkaDestination(destination_cluster, lambda: True)
        engine = ExactEngine(
            "m",
            lambda *_: None,
            source=ports[0],
            destination=ports[1],
            settings=settings,
            random=random.Random(1),
            brokers_time_ms=lambda: time.time_ns() // 1_000_000,
            confirm_ownership=owned_for_good,
        )
        shard = Shard(0, f"twinlog.{topic}", ports[1], settings)
        await shard.open()

        async def led() -> LeaderReport | None:
            return (await ports[0].leaders([topic])).get(key)  # a broker may not know it yet

        leader = await until_async(led, SECONDS, f"the leader of {topic}")
        assignment = Assignment(
            name=MirrorPartition("m", *key),
            source=key,
            destination=key,
            state_partition=0,
            source_topic_id=leader.topic_id,
            destination_topic_id=None,
            compacted=False,
        )
        engine.start(ExactWriters(shard), [assignment], lease_s=0.0)
        running = asyncio.create_task(engine.run())
        own = Mirror(source, engine)
        try:
            await source.await_in_sync(topic, LEADER, FOLLOWER)
            await source.write(topic)
            await own.mirrored(5)
            own.assert_follows()
            yield own
        finally:
            source.heal()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()


def test_a_follower_that_is_cut_off_from_its_leader_hides_no_lag(
    source: Source, kafka: LocalCluster, topic: str
) -> None:
    """Goal: what only the leader has is a lag, though the follower answers without news."""

    async def body() -> None:
        async with mirror(source, kafka, topic) as own:
            fetches = own.followed_fetches
            source.cut_follower()
            await source.write(topic)  # is acknowledged when the follower has left the ISR

            async def lags() -> bool:
                own.assert_follows()
                answered = own.followed_fetches > fetches + 2
                recent = own.age_s < BOUNDS_S + 5
                return answered and recent and own.row.source_end == 10 and bool(own.row.lag_ms)

            await until_async(lags, SECONDS, "a lag")
            assert own.row.mirrored_end == 5
            source.heal()
            await own.mirrored(10)

    asyncio.run(body())


def test_a_leader_that_is_unreachable_is_no_contact_though_its_follower_answers(
    source: Source, kafka: LocalCluster, topic: str
) -> None:
    """Goal: the follower's records are copied, and whether that is all is unknown."""

    async def body() -> None:
        async with mirror(source, kafka, topic) as own:
            source.proxies.set(Faults(black_hole=True), LEADER)
            cut_at, fetches = time.monotonic(), own.followed_fetches

            async def unknown() -> bool:
                own.assert_follows()
                return own.row.lag_ms is None

            await until_async(unknown, SECONDS, "an unknown lag")
            await source.write(topic)
            await own.mirrored(10)
            own.assert_follows()
            assert own.row.lag_ms is None
            assert own.age_s >= time.monotonic() - cut_at - BOUNDS_S
            assert own.followed_fetches > fetches
            source.heal()

            async def known() -> bool:
                return own.row.lag_ms == 0 and own.age_s < SILENT_S

            await until_async(known, SECONDS, "contact with the leader")

    asyncio.run(body())


def test_a_leader_names_only_followers_that_are_in_sync(source: Source, topic: str) -> None:
    """Goal: which answers name a replica, and how its end is noticed: a fact about brokers.

    A leader that names one returns no records, and its own bounds: also at the end of its log, and
    at once. It names none that has left the ISR. One that is cut off stays in it until it has
    lacked a record for `replica.lag.time.max.ms`. It becomes the leader where the leader hangs.
    """
    key = TopicPartition(topic, 0)

    async def body() -> None:
        async with client(source.cluster) as cluster:
            await make_topic(cluster, topic, replicas=[[LEADER, FOLLOWER]])
            port = KafkaSource(cluster)
            await source.await_in_sync(topic, LEADER, FOLLOWER)
            await source.write(topic)

            async def fetch(offset: int, node: int = LEADER) -> Fetched:
                leader = (await port.leaders([topic]))[key]
                fetcher = random.randrange(1 << 30)  # a session of its own: it reports all
                position = FetchPosition(Offset(offset), leader_epoch=leader.epoch)
                result = await port.fetch(
                    node,
                    {key: position},
                    max_wait_ms=25_000,
                    max_bytes=1 << 20,
                    partition_max_bytes=1 << 20,
                    fetcher=fetcher,
                )
                return result.partitions[key]

            async def names(replica: int, offset: int = 0) -> Fetched:
                """Wait until the leader names it: it learns of the ISR after others do."""

                async def named() -> Fetched | None:
                    found = await fetch(offset)
                    return found if found.preferred_replica == replica else None

                return await until_async(named, SECONDS, f"the replica {replica}")

            for offset in (0, 5):
                await names(FOLLOWER, offset)
                began = time.monotonic()
                named = await fetch(offset)
                assert named.preferred_replica == FOLLOWER
                assert not named.records
                assert (named.high_watermark, named.last_stable, named.log_start) == (5, 5, 0)
                assert time.monotonic() - began < 20, "it does not wait for records"

            async def followed() -> Fetched | None:
                found = await fetch(0, FOLLOWER)
                return found if found.records else None

            served = await until_async(followed, SECONDS, "the follower's high watermark")
            assert served.preferred_replica == -1

            source.cut_follower()
            await asyncio.sleep(2 * LAG_TIME_S)
            assert (await fetch(0)).preferred_replica == FOLLOWER, "it lacks nothing"
            await source.write(topic)
            await source.await_in_sync(topic, LEADER)
            assert (await names(-1)).records
            lagging = await fetch(5, FOLLOWER)
            assert (lagging.error, lagging.high_watermark, len(lagging.records)) == (0, 5, 0)
            source.heal()
            await names(FOLLOWER)

            source.cluster.pause(LEADER)
            try:

                async def leads() -> bool:
                    try:
                        return (await port.leaders([topic]))[key].node == FOLLOWER
                    except Retriable:
                        return False

                await until_async(leads, SECONDS, "another leader")
                await source.await_in_sync(topic, FOLLOWER)
                promoted = await fetch(0, FOLLOWER)
                assert promoted.preferred_replica == -1
                assert promoted.records
            finally:
                source.cluster.resume(LEADER)

    asyncio.run(body())
