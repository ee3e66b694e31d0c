"""Flows with transforms: how they are stored, written to, and read back."""

import json
import random
import secrets
import threading
from collections import defaultdict
from collections.abc import Mapping

from clients import client
from confluent_kafka import Consumer, Producer, TopicPartition
from stored_flows import store_flow

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.lifecycle.changes import alter_mirror
from twinlog.lifecycle.flow_creation import stored_properties

PARTITIONS = 3


def flow_properties(pair: Pair, transforms: Mapping[str, str]) -> dict[str, str]:
    connection = {"bootstrap.servers": pair.source.bootstrap_servers}
    settings = {"enabled": "true", "topics": "x", "replication.factor": "-1", **transforms}
    return stored_properties(connection, settings, "a", "b")


async def made(pair: Pair, mirror: str, topic: str, transforms: Mapping[str, str]) -> None:
    """Create a flow that copies a topic to `a.TOPIC`."""
    properties = flow_properties(pair, transforms)
    await store_flow(pair, mirror, properties, (topic, f"a.{topic}"), PARTITIONS)


def headers_of(number: int) -> list[tuple[str, bytes]]:
    headers = [("n", str(number).encode())]
    if number % 5 == 0:
        headers.append(("skip", b""))
    if number % 7 == 0:
        headers.append(("vip", b""))
    return headers


class Writing:
    """A producer that writes numbers to all partitions until it is ended, in transactions."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._stop = threading.Event()
        self.committed: list[int] = []
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"{self._topic}-writer",
                "compression.type": "lz4",
            }
        )
        producer.init_transactions(30)
        number, rng = 0, random.Random(7)
        while not self._stop.is_set():
            producer.begin_transaction()
            numbers = range(number, number + rng.randint(1, 30))
            for each in numbers:
                value = json.dumps({"number": each, "secret": f"s{each}"})
                producer.produce(
                    self._topic, value, partition=each % PARTITIONS, headers=headers_of(each)
                )
            if rng.random() < 0.2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                self.committed += numbers
            number = numbers.stop
            self._stop.wait(0.01)

    def end(self) -> list[int]:
        self._stop.set()
        self._thread.join(60)
        return self.committed


def consumed(servers: str, topic: str) -> dict[int, list[tuple[bytes, object]]]:
    """Value and headers of all committed records of a topic, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": secrets.token_hex(4),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: defaultdict[int, list[tuple[bytes, object]]] = defaultdict(list)
    try:
        if topic not in consumer.list_topics(timeout=30).topics:
            return found
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found[message.partition()].append((message.value(), message.headers()))
    finally:
        consumer.close()
    return found


def count(servers: str, topic: str) -> int:
    return sum(map(len, consumed(servers, topic).values()))


async def positions(pair: Pair, mirror: str, topic: str) -> dict[int, Committed]:
    async with client(pair.destination) as destination:
        found = await committed_offsets(destination, position_group("twinlog", mirror))
    return {key.partition: one for key, one in found.items() if key.topic == f"a.{topic}"}


async def alter(pair: Pair, mirror: str, transforms: Mapping[str, str]) -> None:
    """Give a flow other transforms."""
    async with client(pair.destination) as cluster:
        await alter_mirror(cluster, mirror, flow_properties(pair, transforms), replaces=True)
