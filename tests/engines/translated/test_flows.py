"""A flow on real brokers: lanes that are killed while producers write, and what then is where."""

import asyncio
import random
import secrets
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from clients import client
from confluent_kafka import Producer
from lane_processes import lanes
from librdkafka_tools import delete_topic
from number_producer import NumberProducer
from stored_flows import states, store_flow
from waiting import SECONDS, until
from whole_logs import read_whole_log

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.store.control_topics import partition_count
from twinlog.store.offset_log import OFFSETS_TOPIC, create_offsets_topic, read_offsets

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

PARTITIONS = 4


async def made(pair: Pair, mirror: str, topic: str, remote: str) -> None:
    """Create a flow that copies a topic to another name."""
    connection = {"bootstrap.servers": pair.source.bootstrap_servers}
    properties = stored_properties(connection, {"enabled": "true", "topics": "x"}, "a", "b")
    await store_flow(pair, mirror, properties, (topic, remote), PARTITIONS)


def consumed(servers: str, topic: str, isolation: str) -> dict[tuple[int, int], int]:
    """All numbers of a topic, by partition and offset."""
    found = read_whole_log(servers, topic, range(PARTITIONS), isolation) or {}
    return {
        (index, one.offset()): int(one.value())
        for index, messages in found.items()
        for one in messages
    }


async def maps(destination: KafkaCluster, mirror: str, topic: str) -> dict[tuple[int, int], int]:
    """Where the recorded maps say that each record of the source is."""
    stored = await read_offsets(destination)
    return {
        (name.partition, run.source + at): run.destination + at
        for found in stored.values()
        for name in found.chunks
        if (name.mirror, name.topic) == (mirror, topic)
        for run in found.map(name).runs()
        for at in range(run.length)
    }


def test_each_record_arrives_once_and_is_mapped_though_lanes_are_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: kill -9 of the lane that owns, at random moments, while transactions are written.

    Another producer writes to the remote topic as well, so offsets differ by more and more.
    """
    mirror, topic, remote = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t", "a.t"))
    asyncio.run(made(pair, mirror, topic, remote))
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    rng = random.Random(5)
    writing = NumberProducer(
        *(source, topic, PARTITIONS), lambda number: {"value": str(number)}, {"linger.ms": 1}
    )
    other = Producer({"bootstrap.servers": destination})
    try:
        with lanes(destination, tmp_path) as running:
            for turn in range(6):
                node = f"node-{turn}"
                running.start(node)
                before = len(consumed(destination, remote, "read_uncommitted"))

                def goes_on(before: int = before) -> bool:
                    other.produce(remote, "-1", partition=rng.randrange(PARTITIONS))
                    other.flush(10)
                    now = consumed(destination, remote, "read_uncommitted")
                    return len([n for n in now.values() if n >= 0]) > before + 200

                until(goes_on, SECONDS, "the flow goes on")
                threading.Event().wait(rng.random())
                running.kill(node)
            committed = writing.end()
            running.start("last")

            def complete() -> bool:
                now = consumed(destination, remote, "read_uncommitted")
                return len([n for n in now.values() if n >= 0]) >= len(committed)

            until(complete, SECONDS, f"{len(committed)} records in the remote topic")
            written = consumed(source, topic, "read_committed")
            for isolation in ("read_uncommitted", "read_committed"):
                copied = {
                    place: number
                    for place, number in consumed(destination, remote, isolation).items()
                    if number >= 0
                }
                assert sorted(copied.values()) == sorted(committed)
                for index in range(PARTITIONS):
                    order = [n for (p, _), n in sorted(copied.items()) if p == index]
                    assert order == [n for (p, _), n in sorted(written.items()) if p == index]

            async def mapped() -> dict[tuple[int, int], int]:
                async with client(pair.destination) as cluster:
                    return await maps(cluster, mirror, topic)

            until(lambda: len(asyncio.run(mapped())) >= len(committed), SECONDS, "a complete map")
            places = {number: place for place, number in copied.items()}
            wanted = {place: places[number][1] for place, number in written.items()}
            assert asyncio.run(mapped()) == wanted
    finally:
        writing.end()


def test_a_lost_record_of_what_was_copied_is_reported_by_each_owner(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: `__mirror_offsets` that an operator has created again is not taken for a beginning.

    The first owner leaves a trace in it, so a later one sees a log that has had an owner.
    """
    mirror, topic, remote = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t", "a.t"))
    asyncio.run(made(pair, mirror, topic, remote))
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    producer = Producer({"bootstrap.servers": source})
    for number in range(100 * PARTITIONS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(120) == 0

    def copied() -> int:
        return len(consumed(destination, remote, "read_uncommitted"))

    async def create_again() -> None:
        async with client(pair.destination) as cluster:
            count = await partition_count(cluster)
            assert count is not None
            await create_offsets_topic(cluster, count)

    def all_failed() -> bool:
        return all(
            state == "FAILED" and "what was copied is not known" in str(reason)
            for state, reason in states(pair, mirror).values()
        )

    with lanes(destination, tmp_path) as running:
        running.start("first")
        until(lambda: copied() == 100 * PARTITIONS, SECONDS, "all records")
        running.kill("first")
        delete_topic(destination, OFFSETS_TOPIC)
        until(lambda: _created(create_again), SECONDS, "the topic is there again")
        for node in ("second", "third"):
            running.start(node)
            log = tmp_path / f"{node}.log"
            until(
                lambda log=log: log.read_text().count("what was copied is not known") >= PARTITIONS,
                SECONDS,
                "each partition is FAILED",
            )
            until(all_failed, SECONDS, "the reason")
            running.kill(node)
    assert copied() == 100 * PARTITIONS


def _created(create_again: Callable[[], Coroutine[object, object, None]]) -> bool:
    """Whether it could be created: brokers delete topics after their answer."""
    try:
        asyncio.run(create_again())
    except TwinlogError:
        return False
    return True
