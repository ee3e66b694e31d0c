"""Committed offsets, on real brokers; how they follow: tests/end_to_end/test_groups.py."""

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

import outside
from clients import client
from twinlog.cluster.offsets import Committed, committed_offsets
from twinlog.core.errors import Retriable
from twinlog.core.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from waiting import until

pytestmark = pytest.mark.broker


def test_offsets_of_an_open_transaction(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """They are pending: who asks for stable ones has to wait, the others see those before."""
    servers, group = any_kafka.bootstrap_servers, fresh_name("group")
    outside.make_topic(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[Place(topic, 0, 3)], asynchronous=False)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": group})
    producer.init_transactions(outside.SECONDS)

    def found(*, stable: bool) -> dict[TopicPartition, Committed]:
        async def fetch() -> dict[TopicPartition, Committed]:
            async with client(any_kafka, api_timeout=2.0) as cluster:
                return await committed_offsets(cluster, group, stable=stable)

        return asyncio.run(fetch())

    before = {TopicPartition(topic, 0): Committed(3)}
    assert found(stable=True) == before
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [Place(topic, 0, 7)], consumer.consumer_group_metadata(), outside.SECONDS
    )
    assert found(stable=False) == before
    with pytest.raises(Retriable, match="UNSTABLE_OFFSET_COMMIT"):
        found(stable=True)
    producer.commit_transaction(outside.SECONDS)
    until(lambda: found(stable=False) != before, what="the transaction's end")
    assert found(stable=True) == {TopicPartition(topic, 0): Committed(7)}
    consumer.close()
