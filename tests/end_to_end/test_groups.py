"""Group offsets follow: whoever goes on at the destination goes on at the very record."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition

import outside
from twinlog.local.stage import Stage
from waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]

MIRROR = "everything"


@contextmanager
def consumer(servers: str, group: str, protocol: str = "classic") -> Iterator[Consumer]:
    one = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        yield one
    finally:
        one.close()


def commit(servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit as somebody who is no member."""
    with consumer(servers, group) as one:
        one.commit(
            offsets=[TopicPartition(topic, index, offset) for index, offset in offsets.items()],
            asynchronous=False,
        )


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    with consumer(servers, group) as one:
        found = one.committed([TopicPartition(topic, index) for index in (0, 1)], timeout=30)
    return {part.partition: part.offset for part in found if part.offset >= 0}


def read(one: Consumer, count: int) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of the next records."""
    found: list[tuple[int, int, bytes]] = []

    def more() -> bool:
        message = one.poll(1.0)
        if message is not None and message.error() is None:
            place = (message.partition(), message.offset())
            assert None not in place
            found.append((*place, message.value()))  # type: ignore[arg-type]
        return len(found) >= count

    until(more, 60, f"{count} records")
    return found


def mirrored(stage: Stage, topic: str) -> tuple[str, str]:
    """A mirrored topic of two partitions with a hundred records each; both clusters' servers."""
    source, destination = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    outside.make_topic(source, topic, 2)
    outside.write(source, topic, [*outside.simple(100, 0), *outside.simple(100, 1)])
    stage.add(topic, MIRROR)
    for partition in (0, 1):
        outside.await_state(stage, topic, partition, "MIRRORING")
    stage.await_no_lag(60, [topic])
    return source, destination


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_at_its_record(world: Stage, topic: str, protocol: str) -> None:
    """Half is read at the source, and the other half at the destination: nothing twice, no hole."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-{protocol}"
    with consumer(source, group, protocol) as one:
        one.subscribe([topic])
        first = read(one, 70)
        one.commit(asynchronous=False)
    there = committed(source, group, topic)
    assert sum(there.values()) >= 70
    until(lambda: committed(destination, group, topic) == there, 60, "the offsets")
    with consumer(destination, group, protocol) as one:
        one.subscribe([topic])
        second = read(one, 200 - sum(there.values()))
    places = [(partition, offset) for partition, offset, _ in (*first, *second)]
    assert sorted(places) == [(partition, offset) for partition in (0, 1) for offset in range(100)]


def test_a_group_is_not_rewound_nor_disturbed(world: Stage, topic: str) -> None:
    """It has read on at the destination; then the source's offsets count only when further."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-ahead"
    commit(destination, group, topic, {0: 60, 1: 10})
    commit(source, group, topic, {0: 50, 1: 50})
    until(lambda: committed(destination, group, topic).get(1) == 50, 60, "the offset behind")
    assert committed(destination, group, topic) == {0: 60, 1: 50}
    with consumer(destination, group) as one:
        one.subscribe([topic])
        read(one, 1)
        commit(source, group, topic, {0: 90, 1: 90})
        marker = f"{group}-marker"
        commit(source, marker, topic, {0: 1})
        until(lambda: committed(destination, marker, topic) == {0: 1}, 60, "another group")
        assert {p.partition: p.offset for p in one.committed(one.assignment())} == {0: 60, 1: 50}
    until(lambda: committed(destination, group, topic) == {0: 90, 1: 90}, 60, "after it has left")


def test_an_offset_beyond_what_is_mirrored_waits(world: Stage, topic: str) -> None:
    """A group that read an open transaction's end at the source: the offset follows the data."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-early"
    world.mirrors("--pause", "--topic", topic, "--mirror", MIRROR)
    for partition in (0, 1):
        outside.await_state(world, topic, partition, "PAUSED")
    outside.write(source, topic, outside.simple(20, 0, "later"))
    commit(source, group, topic, {0: 110, 1: 20})
    marked = f"{topic}-running"
    outside.make_topic(source, marked, 2)
    outside.write(source, marked, outside.simple(5, 0))
    world.add(marked, MIRROR)
    outside.await_state(world, marked, 0, "MIRRORING")
    commit(source, group, marked, {0: 3})
    until(lambda: committed(destination, group, marked) == {0: 3}, 60, "the other topic's")
    assert committed(destination, group, topic) == {}, "nothing of a paused topic follows"
    world.mirrors("--resume", "--topic", topic, "--mirror", MIRROR)
    until(lambda: committed(destination, group, topic) == {0: 110, 1: 20}, 60, "both")
