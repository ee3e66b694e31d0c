"""Whether records lie between two offsets: scripted answers, and a real broker."""

import asyncio
from collections.abc import Collection
from typing import Any

import librdkafka_tools
import pytest
from batch_builders import batch, record
from clients import client
from confluent_kafka import Producer

from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.absence import LOOK_INTERVAL_S
from twinlog.operations.readiness.facts import Standing
from twinlog.operations.switchover.readable import Readable

PLACE = TopicPartition("t", 0)


class Scripted:
    """A log whose answers are set by its fields."""

    def __init__(self) -> None:
        self.answer = ReadAlone(Fetched(0, 10, 10, 0, (), memoryview(b"")), 0, 3, 0, True)
        self.now = 100.0

    async def refresh(self, _topics: Collection[str]) -> None:
        pass

    async def read_alone(self, partition: TopicPartition, offset: int, **_: int) -> ReadAlone:
        assert (partition, offset) == (PLACE, 4)
        return self.answer

    def alters(self, *, throttle_ms: int = 0, **fetched: Any) -> None:
        answer = self.answer
        self.answer = answer._replace(
            throttle_ms=throttle_ms, fetched=answer.fetched._replace(**fetched)
        )

    def found(self, readable: Readable, after_s: float = 0.0) -> bool:
        self.now += after_s
        return asyncio.run(readable.between(Standing(PLACE, 4), 10))


def test_two_equal_empty_answers_prove_absence_in_a_compacted_topic() -> None:
    """Two equal answers, some seconds apart, prove it on a compacted topic; no third is fetched."""
    log = Scripted()
    readable = Readable(log, lambda: log.now)
    assert log.found(readable)
    assert log.found(readable, 0.5)
    assert not log.found(readable, LOOK_INTERVAL_S)
    log.alters(error=6)
    assert not log.found(readable)


@pytest.mark.parametrize(
    "change",
    [
        {"throttle_ms": 5},
        {"preferred_replica": 2},
        {"last_stable": 9},
        {"last_stable": -1, "high_watermark": -1},
        {"error": 6},
    ],
)
def test_an_explained_empty_answer_is_no_evidence(change: dict[str, int]) -> None:
    """An explained empty answer is no evidence, however often it comes, and is then forgotten."""
    log = Scripted()
    readable = Readable(log, lambda: log.now)
    log.alters(**change)
    for _ in range(5):
        assert log.found(readable, LOOK_INTERVAL_S)
    log.alters(error=0, preferred_replica=-1, last_stable=10)
    log.found(readable, LOOK_INTERVAL_S)
    log.alters(records=memoryview(batch([record(4)])))
    assert log.found(readable, LOOK_INTERVAL_S)


@pytest.mark.parametrize("field", [{"compacts": False}, {"compacts": None}, {"local_start": 5}])
def test_an_empty_answer_without_compaction_is_no_evidence(field: dict[str, Any]) -> None:
    """Without compaction every offset has bytes; remote storage may be slow."""
    log = Scripted()
    log.answer = log.answer._replace(**field)
    readable = Readable(log, lambda: log.now)
    assert all(log.found(readable, LOOK_INTERVAL_S) for _ in range(5))


def test_a_new_leader_epoch_restarts_the_check() -> None:
    log = Scripted()
    readable = Readable(log, lambda: log.now)
    assert log.found(readable)
    log.answer = log.answer._replace(leader_epoch=4)
    assert log.found(readable, LOOK_INTERVAL_S)
    assert not log.found(readable, LOOK_INTERVAL_S)


@pytest.mark.broker
def test_markers_and_aborted_records_are_not_readable(kafka: LocalCluster, topic: str) -> None:
    """Offsets: 0 a record, 1 its marker, 2 to 4 aborted, 5 their marker, 6 a record."""
    servers = kafka.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(librdkafka_tools.SECONDS)
    for count, end in ((1, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, partition=0, value="x")
        producer.flush(librdkafka_tools.SECONDS)
        end(librdkafka_tools.SECONDS)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(1))
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
        (9, 10): True,  # beyond the log end: unknown
    }

    async def run() -> dict[tuple[int, int], bool]:
        async with client(kafka) as cluster:
            readable = Readable.of(cluster)
            partition = TopicPartition(topic, 0)
            return {
                (start, end): await readable.between(Standing(partition, start), end)
                for start, end in ranges
            }

    assert asyncio.run(run()) == ranges
