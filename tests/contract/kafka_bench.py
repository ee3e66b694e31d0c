"""A bench on real brokers. An outside client creates topics and writes transactions."""

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

from clients import PATIENCE_S
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from contract.bench import until
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

_SECONDS = 120.0


class KafkaBench:
    """A real cluster, through the production ports."""

    def __init__(self, local: LocalCluster, client: KafkaCluster) -> None:
        self.local = local
        self.client = client
        self.source = KafkaSource(client)
        self.destination = KafkaDestination(client, lambda: True)
        # A separate port: the bench's own requests must not teach the tested port topic ids.
        self._looking = KafkaDestination(client, lambda: False)
        self._servers = local.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        self._numbers = itertools.count()
        self._run = uuid.uuid4().hex[:8]
        self._producers: list[Producer] = []

    def now_ms(self) -> int:
        """Return this machine's wall clock, which is also the brokers'."""
        return time.time_ns() // 1_000_000

    def name(self, stem: str) -> str:
        """Return a new name."""
        return f"{stem}.{self._run}.{next(self._numbers)}"

    async def topic(
        self, partitions: int = 1, *, policy: str = "delete", config: dict[str, str] | None = None
    ) -> list[TopicPartition]:
        """Create a topic."""
        name = self.name("topic")
        await self._create(name, partitions, {"cleanup.policy": policy, **(config or {})})
        return [TopicPartition(name, index) for index in range(partitions)]

    async def _create(self, name: str, partitions: int, config: dict[str, str]) -> None:
        replicas = len(self.local.brokers)
        new = NewTopic(name, partitions, replicas, config=config)

        async def created() -> bool:
            try:
                await asyncio.to_thread(self._admin.create_topics([new])[name].result, _SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False  # the old topic of that name is still being deleted
            return True

        await until(created, f"{name} to be created")

        async def led() -> bool:
            found = await self._looking.leaders([name])
            known = len(found) == partitions and all(
                leader.error == 0 and leader.node >= 0 for leader in found.values()
            )
            # A broker may learn that it is the leader after another broker reports it.
            ends = await self._looking.log_ends(found) if known else {}
            return known and all(end.error == 0 for end in ends.values())

        await until(led, f"leaders of {name}")

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until a broker has applied that."""
        await asyncio.to_thread(self._admin.delete_topics([topic])[topic].result, _SECONDS)

        async def deleted() -> bool:
            # Not with the tested port's client: its metadata stays as it is.
            found = await asyncio.to_thread(self._admin.list_topics, timeout=_SECONDS)
            return topic not in found.topics

        await until(deleted, f"the deletion of {topic}")

    async def create_again(self, topic: str) -> None:
        """Recreate a topic."""
        await self._create(topic, 1, {})

    async def transact(
        self, transactional_id: str, key: TopicPartition, values: Sequence[bytes], end: str
    ) -> None:
        """Write a transaction with librdkafka, in one batch."""
        await asyncio.to_thread(self._transact, transactional_id, key, values, end)

    def _transact(
        self, transactional_id: str, key: TopicPartition, values: Sequence[bytes], end: str
    ) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 600_000,  # an open one stays open while tests look
                "linger.ms": 50,
                "log_level": 0,
            }
        )
        self._producers.append(producer)  # an open transaction stays open while it lives
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(key.topic, value, b"k", key.partition)
        producer.flush(_SECONDS)
        if end == "commit":
            producer.commit_transaction(_SECONDS)
        elif end == "abort":
            producer.abort_transaction(_SECONDS)


def config_of(local: LocalCluster) -> ClusterConfig:
    """Return a client configuration for the cluster."""
    addresses = tuple(Address("127.0.0.1", broker.port) for broker in local.brokers)
    return ClusterConfig(bootstrap_servers=addresses, api_timeout=PATIENCE_S)


def run_on_kafka(local: LocalCluster, behaviour: Callable[["KafkaBench"], Awaitable[None]]) -> None:
    """Run a behaviour on a real cluster."""

    async def main() -> None:
        async with KafkaCluster(config_of(local)) as client:
            await behaviour(KafkaBench(local, client))

    asyncio.run(main())
