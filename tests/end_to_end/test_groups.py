"""Group offsets follow: a group that moves to the destination continues at the same record."""

import asyncio

import librdkafka_tools
import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from waiting import until

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.groups.offsets import start_offsets
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MIRROR = "everything"


def read(client: Consumer, count: int) -> list[tuple[int, int, bytes]]:
    """Return partition, offset and value of the next records."""
    found: list[tuple[int, int, bytes]] = []

    def more() -> bool:
        message = client.poll(1.0)
        if message is not None and message.error() is None:
            place = (message.partition(), message.offset())
            assert None not in place
            found.append((*place, message.value()))  # type: ignore[arg-type]
        return len(found) >= count

    until(more, what=f"{count} records")
    return found


def mirrored(stage: Stage, topic: str) -> tuple[str, str]:
    """Mirror a topic of two partitions with a hundred records each; return both servers."""
    source, destination = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    librdkafka_tools.make_topic(source, topic, 2)
    librdkafka_tools.write(
        source, topic, [*librdkafka_tools.simple(100, 0), *librdkafka_tools.simple(100, 1)]
    )
    stage.add(topic, MIRROR)
    for partition in (0, 1):
        librdkafka_tools.await_state(stage, topic, partition, "MIRRORING")
    stage.await_no_lag([topic])
    return source, destination


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_at_the_same_record_on_the_destination(
    world: Stage, topic: str, protocol: str
) -> None:
    """Half is read at the source, the other half at the destination: no duplicate, no hole."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-{protocol}"
    with librdkafka_tools.consumer(source, group, protocol) as client:
        client.subscribe([topic])
        first = read(client, 70)
        client.commit(asynchronous=False)
    committed = librdkafka_tools.committed(source, group, topic)
    assert sum(committed.values()) >= 70
    until(
        lambda: librdkafka_tools.committed(destination, group, topic) == committed,
        what="the offsets",
    )
    with librdkafka_tools.consumer(destination, group, protocol) as client:
        client.subscribe([topic])
        second = read(client, 200 - sum(committed.values()))
    places = [(partition, offset) for partition, offset, _ in (*first, *second)]
    assert sorted(places) == [(partition, offset) for partition in (0, 1) for offset in range(100)]


def test_a_group_that_is_ahead_is_neither_rewound_nor_disturbed(world: Stage, topic: str) -> None:
    """It has read on at the destination; then the source's offsets count only when higher."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-ahead"
    librdkafka_tools.commit(destination, group, topic, {0: 60, 1: 10})
    librdkafka_tools.commit(source, group, topic, {0: 50, 1: 50})
    until(
        lambda: librdkafka_tools.committed(destination, group, topic).get(1) == 50,
        what="the offset behind",
    )
    assert librdkafka_tools.committed(destination, group, topic) == {0: 60, 1: 50}
    with librdkafka_tools.consumer(destination, group) as client:
        client.subscribe([topic])
        read(client, 1)
        librdkafka_tools.commit(source, group, topic, {0: 90, 1: 90})
        marker = f"{group}-marker"
        librdkafka_tools.commit(source, marker, topic, {0: 1})
        until(
            lambda: librdkafka_tools.committed(destination, marker, topic) == {0: 1},
            what="another group",
        )
        assert {p.partition: p.offset for p in client.committed(client.assignment())} == {
            0: 60,
            1: 50,
        }
    until(
        lambda: librdkafka_tools.committed(destination, group, topic) == {0: 90, 1: 90},
        what="after it has left",
    )


@pytest.mark.long
def test_an_offset_beyond_the_mirrored_records_is_copied_later(world: Stage, topic: str) -> None:
    """A group that read an open transaction's end at the source: the offset follows the data."""
    source, destination = mirrored(world, topic)
    group = f"{topic}-early"
    world.mirrors("--pause", "--topic", topic, "--mirror", MIRROR)
    for partition in (0, 1):
        librdkafka_tools.await_state(world, topic, partition, "PAUSED")
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(20, 0, "later"))
    librdkafka_tools.commit(source, group, topic, {0: 110, 1: 20})
    marked = f"{topic}-running"
    librdkafka_tools.make_topic(source, marked, 2)
    librdkafka_tools.write(source, marked, librdkafka_tools.simple(5, 0))
    world.add(marked, MIRROR)
    librdkafka_tools.await_state(world, marked, 0, "MIRRORING")
    librdkafka_tools.commit(source, group, marked, {0: 3})
    until(
        lambda: librdkafka_tools.committed(destination, group, marked) == {0: 3},
        what="the other topic's",
    )
    assert librdkafka_tools.committed(destination, group, topic) == {}, (
        "nothing of a paused topic follows"
    )
    world.mirrors("--resume", "--topic", topic, "--mirror", MIRROR)
    until(
        lambda: librdkafka_tools.committed(destination, group, topic) == {0: 110, 1: 20},
        what="both",
    )


# ---- the record at an offset ------------------------------------------------------------------


def transactions(servers: str, topic: str) -> None:
    """Write 20 transactions of five records in each of two partitions, every third one aborted.

    The offsets of records and markers alternate, and the next record lies up to seven offsets on.
    """
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(120)
    for number in range(20):
        producer.begin_transaction()
        for at in range(5):
            for partition in (0, 1):
                producer.produce(topic, value=f"{number}.{at}", key="k", partition=partition)
        producer.flush(120)
        if number % 3 == 2:
            producer.abort_transaction(120)
        else:
            producer.commit_transaction(120)


def record_at(servers: str, topic: str, partition: int, offset: int) -> tuple[object, ...]:
    """Return the first record for a consumer that starts at this offset."""
    with librdkafka_tools.consumer(servers, f"{topic}-looks") as client:
        client.assign([TopicPartition(topic, partition, offset)])
        message = until(
            lambda: client.poll(1.0), what=f"a record of {topic}-{partition} at {offset}"
        )
        assert message.error() is None, message.error()
        return (
            message.offset(),
            message.key(),
            message.value(),
            message.headers(),
            message.timestamp(),
        )


def same_records(stage: Stage, topic: str, offsets: dict[int, int]) -> None:
    """Check that both clusters have the same record at these offsets."""
    for partition, offset in offsets.items():
        record = record_at(stage.source.bootstrap_servers, topic, partition, offset)
        assert record_at(stage.destination.bootstrap_servers, topic, partition, offset) == record


def mirrored_transactions(stage: Stage, topic: str) -> tuple[str, str]:
    """Mirror a topic of transactions; return both clusters' servers."""
    source, destination = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    librdkafka_tools.make_topic(source, topic, 2)
    transactions(source, topic)
    stage.add(topic, MIRROR)
    stage.await_no_lag([topic])
    for partition in (0, 1):
        librdkafka_tools.await_state(stage, topic, partition, "MIRRORING")
    return source, destination


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_copied_offset_points_at_the_same_record(world: Stage, topic: str, protocol: str) -> None:
    """Also behind markers and aborted data: the next record is the same on both sides."""
    source, destination = mirrored_transactions(world, topic)
    for count in (3, 20, 30):  # in a transaction, and before markers and aborted data
        group = f"{topic}-{protocol}-{count}"
        with librdkafka_tools.consumer(source, group, protocol) as client:
            client.subscribe([topic])
            read(client, count)
            client.commit(asynchronous=False)
        committed = librdkafka_tools.committed(source, group, topic)
        assert committed
        until(
            lambda g=group, t=committed: librdkafka_tools.committed(destination, g, topic) == t,
            what="the offsets",
        )
        same_records(world, topic, committed)


def share_starts(servers: str, group: str, topic: str) -> dict[int, int]:
    """Return a share group's start offsets from its coordinator."""

    async def ask() -> dict[int, int]:
        config = parse_config({"bootstrap.servers": servers}).config
        async with KafkaCluster(config, name="asked") as cluster:
            found = await start_offsets(cluster, group)
        return {p.partition: client.offset for p, client in found.items() if p.topic == topic}

    return asyncio.run(ask())


def share_from_the_beginning(servers: str, group: str) -> None:
    """Let a share group begin at the earliest record, read_committed; neither is the default."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (
            ("share.auto.offset.reset", "earliest"),
            ("share.isolation.level", "read_committed"),
        )
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    client = librdkafka_tools.admin(servers)
    client.incremental_alter_configs([resource])[resource].result(120)


def share_records(servers: str, group: str, topic: str, count: int) -> set[tuple[int, int, bytes]]:
    """Return partition, offset and value of at least `count` records, acknowledged."""
    client = ShareConsumer({"bootstrap.servers": servers, "group.id": group})
    found: set[tuple[int, int, bytes]] = set()
    try:
        client.subscribe([topic])

        def more() -> bool:
            for message in client.poll(1.0):
                assert message.error() is None, message.error()
                found.add((message.partition(), message.offset(), message.value()))  # type: ignore[arg-type]
            client.commit_sync()
            return len(found) >= count

        until(more, what=f"{count} records")
    finally:
        client.close()
    return found


def records_from(servers: str, topic: str, offsets: dict[int, int]) -> set[tuple[int, int, bytes]]:
    """Return partition, offset and value of all records from these offsets on."""
    ends = ConsumerView(servers).ends([(topic, index) for index in offsets])
    with librdkafka_tools.consumer(servers, f"{topic}-rest") as client:
        client.assign([TopicPartition(topic, index, offset) for index, offset in offsets.items()])
        found: set[tuple[int, int, bytes]] = set()

        def at_the_end() -> bool:
            message = client.poll(1.0)
            if message is not None and message.error() is None:
                found.add((message.partition(), message.offset(), message.value()))  # type: ignore[arg-type]
            where = client.position([TopicPartition(topic, index) for index in offsets])
            return all(place.offset >= ends[topic, place.partition] for place in where)

        until(at_the_end, what=f"the end of {topic}")
    return found


@pytest.mark.long
def test_a_share_group_continues_at_its_start_offsets(world: Stage, topic: str) -> None:
    """The destination delivers exactly the records behind the source's start offsets.

    A broker writes a start offset with the next acknowledgement, so it is reported late.
    """
    source, destination = mirrored_transactions(world, topic)
    group = f"{topic}-share"
    share_from_the_beginning(source, group)
    share_records(source, group, topic, 140)

    def told_late() -> dict[int, int]:
        more = [*librdkafka_tools.simple(5, 0, "later"), *librdkafka_tools.simple(5, 1, "later")]
        librdkafka_tools.write(source, topic, more)
        share_records(source, group, topic, 10)
        starts = share_starts(source, group, topic)
        return starts if len(starts) == 2 and min(starts.values()) > 10 else {}

    until(told_late, what="start offsets above 10")
    world.await_no_lag([topic])

    def followed() -> dict[int, int]:
        starts = share_starts(source, group, topic)
        return starts if share_starts(destination, group, topic) == starts else {}

    start_offsets = until(followed, what="the start offsets")
    same_records(world, topic, start_offsets)
    expected = records_from(source, topic, start_offsets)
    assert share_records(destination, group, topic, len(expected)) == expected
