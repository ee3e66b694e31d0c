"""Control topics that are polled, on real brokers."""

import asyncio
from collections.abc import Sequence

import pytest
from clients import client, make_topic, put
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import delete_topics
from twinlog.local.cluster import LocalCluster
from twinlog.store import topic_reader
from twinlog.store.polling_reader import ControlReader, at_the_last
from twinlog.store.topic_reader import ControlRecord, Tail, read_last, read_whole
from twinlog.store.topic_writer import Entry

pytestmark = pytest.mark.broker

LOOKS = 20

Folded = tuple[tuple[bytes | None, ...], ...]


def reader(cluster: KafkaCluster, topic: str) -> ControlReader[Folded]:
    """Return a reader that keeps the values of each read apart."""

    def fold(records: Sequence[ControlRecord], before: Folded) -> Folded:
        return (*before, tuple(record.value for record in records))

    return ControlReader(cluster, topic, fold, ())


async def write(cluster: KafkaCluster, topic: str, *values: bytes) -> None:
    """Write these values to partition 0."""
    await put(cluster, [Entry(topic, 0, b"k", value) for value in values])


def test_new_readers_open_no_further_connections(trio: LocalCluster, topic: str) -> None:
    """A node reads control topics each second, without more and more connections and memory."""

    async def run() -> None:
        async with client(trio) as cluster:
            await make_topic(cluster, topic, 6)
            wanted = [Entry(topic, index, b"k", b"v") for index in range(6)]
            await put(cluster, wanted)
            kept = reader(cluster, topic)

            async def look() -> None:
                assert len(await read_whole(cluster, topic)) == 6
                assert len(await read_last(cluster, topic)) == 6
                await kept.read()

            await look()
            opened, slots = cluster.counters.opened, len(cluster._pool._slots)
            for _ in range(LOOKS):
                await look()
            assert cluster.counters.opened == opened
            assert len(cluster._pool._slots) == slots

    asyncio.run(run())


def test_concurrent_readers_have_separate_connections(
    kafka: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long poll holds up no other reader; a cancelled reader leaves nothing behind."""
    monkeypatch.setattr(topic_reader, "LONG_POLL", 100.0)

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic)
            await write(cluster, topic, b"1")
            following = Tail(cluster, topic).follow()
            first = await anext(following)
            assert [record.value for record in first] == [b"1"]
            waiting = asyncio.create_task(anext(following))

            async def polls() -> bool:
                return len(cluster._borrowed_lanes) == 1

            await until_async(polls, what="the long poll")
            async with asyncio.timeout(60):
                assert len(await read_whole(cluster, topic)) == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await following.aclose()
            assert cluster._borrowed_lanes == set()
            async with asyncio.timeout(60):
                assert len(await read_whole(cluster, topic)) == 1

    asyncio.run(run())


def test_only_new_records_are_read(any_kafka: LocalCluster, topic: str) -> None:
    """The second read returns the records written after the first."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic)
            kept = reader(cluster, topic)
            await write(cluster, topic, b"1", b"2")
            assert await kept.read() == ((b"1", b"2"),)
            assert await kept.read() == ((b"1", b"2"),)
            await write(cluster, topic, b"3")
            assert await kept.read() == ((b"1", b"2"), (b"3",))
            assert kept.partitions == 1
            nothing: Sequence[ControlRecord] = ()
            last = ControlReader(cluster, topic, lambda records, _: records, nothing, at_the_last)
            assert [record.value for record in await last.read()] == [b"3"]

    asyncio.run(run())


def test_a_recreated_topic_is_read_from_the_beginning(kafka: LocalCluster, topic: str) -> None:
    """It was recreated, with a longer log: nothing of the first one is kept."""

    async def run() -> None:
        async with client(kafka) as cluster:
            kept = reader(cluster, topic)
            assert await kept.read() == ()
            assert kept.partitions is None
            await make_topic(cluster, topic)
            await write(cluster, topic, b"old")
            assert await kept.read() == ((b"old",),)
            await delete_topics(cluster, [topic])

            async def gone() -> bool:
                return topic not in (await cluster.refresh([topic])).topics

            await until_async(gone, what="the deletion")
            await make_topic(cluster, topic)
            await write(cluster, topic, b"1", b"2")
            assert await kept.read() == ((b"1", b"2"),)

    asyncio.run(run())


def test_a_truncated_log_is_read_from_the_beginning(kafka: LocalCluster, topic: str) -> None:
    """As after an unclean election: records that were read may be gone, so they are forgotten."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic)
            await write(cluster, topic, b"1")
            kept = reader(cluster, topic)
            await kept.read()
            assert kept._tail is not None
            kept._tail.positions[0] = 7  # the former log end offset
            kept._content = ((b"1", b"lost"),)
            assert await kept.read() == ((b"1",),)

    asyncio.run(run())
