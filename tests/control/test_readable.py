"""What is left to read between two offsets, on a real broker."""

import asyncio

import pytest
from confluent_kafka import Producer

import outside
from clients import client
from twinlog.control.readable import Readable
from twinlog.control.readiness import Standing
from twinlog.core.types import TopicPartition
from twinlog.local.cluster import LocalCluster

pytestmark = pytest.mark.broker


def test_markers_and_aborted_records_are_nothing(kafka: LocalCluster, topic: str) -> None:
    """Offsets: 0 a record, 1 its marker, 2 to 4 aborted, 5 their marker, 6 a record."""
    servers = kafka.bootstrap_servers
    outside.make_topic(servers, topic)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(outside.SECONDS)
    for count, end in ((1, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, partition=0, value="x")
        producer.flush(outside.SECONDS)
        end(outside.SECONDS)
    outside.write(servers, topic, outside.simple(1))
    ranges = {
        (0, 1): True,
        (1, 1): False,
        (1, 2): False,
        (1, 6): False,
        (3, 6): False,
        (0, 6): True,
        (1, 7): True,
        (6, 7): True,
        (7, 7): False,
        (9, 10): True,  # beyond the log: not known
    }

    async def run() -> dict[tuple[int, int], bool]:
        async with client(kafka) as cluster:
            readable = Readable(cluster)
            partition = TopicPartition(topic, 0)
            return {
                (start, end): await readable.between(Standing(partition, start), end)
                for start, end in ranges
            }

    assert asyncio.run(run()) == ranges
