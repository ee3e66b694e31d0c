"""The holders of open transactions, on the newest and on the oldest broker."""

import asyncio

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer
from waiting import until_async

from twinlog.kafka.requests.partitions import open_transactions
from twinlog.kafka.requests.transactions import transactional_ids
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.operations.readiness.survey import holders

pytestmark = pytest.mark.broker


def test_open_transactions_are_listed_with_their_ids(any_kafka: LocalCluster, topic: str) -> None:
    """By partition: the first offset and the transactional id, until the transaction ends."""
    servers = any_kafka.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(5, 1))
    settings = {"transactional.id": topic, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": servers, **settings})
    producer.init_transactions(librdkafka_tools.SECONDS)
    producer.begin_transaction()
    producer.produce(topic, partition=1, value="x")
    producer.flush(librdkafka_tools.SECONDS)
    zero, one = (TopicPartition(topic, at) for at in (0, 1))

    async def run() -> None:
        async with client(any_kafka) as cluster:
            found = await open_transactions(cluster, [zero, one])
            assert found[zero] == ()
            (open_one,) = found[one]  # type: ignore[misc]
            assert open_one.first_offset == 5
            names = await transactional_ids(cluster, [open_one.producer_id])
            assert names == {open_one.producer_id: topic}
            assert await transactional_ids(cluster, []) == {}
            assert await holders(cluster, [zero, one]) == {
                zero: (),
                one: (f"transactional id {topic}",),
            }
            await asyncio.to_thread(producer.abort_transaction, librdkafka_tools.SECONDS)

            async def ended() -> bool:  # the marker comes after the answer
                return await open_transactions(cluster, [one]) == {one: ()}

            await until_async(ended)

    asyncio.run(run())
