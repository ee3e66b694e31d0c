"""Control topics on real brokers: read whole, tailed within milliseconds, written atomically."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from clients import client, make_topic, put
from waiting import until_async

from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.requests.partitions import open_transactions
from twinlog.kafka.requests.transactions import add_partitions_to_txn, end_txn
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.store import topic_reader, topic_writer
from twinlog.store.topic_reader import ControlRecord, Tail, latest, read_last, read_whole
from twinlog.store.topic_writer import ALL, Entry, TransactionalWriter, append

pytestmark = pytest.mark.broker

COMPACTED = {"cleanup.policy": "compact"}


def values(records: list[ControlRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def entries(topic: str, *wanted: tuple[int, bytes, bytes | None]) -> list[Entry]:
    return [Entry(topic, partition, key, value) for partition, key, value in wanted]


def test_the_last_value_per_partition_and_key_counts() -> None:
    """The last value per partition and key holds; a tombstone removes the key."""
    records = [
        ControlRecord(0, 0, 0, b"a", b"1"),
        ControlRecord(0, 1, 0, b"b", b"1"),
        ControlRecord(1, 0, 0, b"a", b"other"),
        ControlRecord(0, 2, 0, b"a", b"2"),
        ControlRecord(0, 3, 0, b"b", None),
    ]
    assert latest(records) == {(0, b"a"): records[3], (1, b"a"): records[2]}


def test_transactions_are_written_atomically_and_read_in_order(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Several transactions over several partitions; committed records are read, in order."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic, 3, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            await writer.fence()
            for number in (b"1", b"2", b"3"):
                wanted = entries(topic, (0, b"k", number), (2, b"k", number), (2, b"l", None))
                offsets = await writer.write(wanted)
                assert set(offsets) == {TopicPartition(topic, 0), TopicPartition(topic, 2)}
            records = await read_whole(cluster, topic)
            by_partition = {i: [r for r in records if r.partition == i] for i in range(3)}
            assert values(by_partition[0]) == [b"1", b"2", b"3"]
            assert values(by_partition[1]) == []
            assert values(by_partition[2]) == [b"1", None, b"2", None, b"3", None]
            assert by_partition[2][-1].offset == offsets[TopicPartition(topic, 2)]

    asyncio.run(run())


def test_records_of_a_fenced_writer_are_never_read(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """A fenced writer cannot write; what it had begun is aborted and never read."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            name = fresh_name("id")
            old, new = (TransactionalWriter(cluster, name, timeout_ms=800_000) for _ in range(2))
            await old.fence()
            # The state that a writer leaves that dies before EndTxn.
            assert old._id._producer is not None
            await old._prepare(old._id._producer, entries(topic, (0, b"k", b"half")))
            await new.fence()
            with pytest.raises(Fenced):
                await old.write(entries(topic, (0, b"k", b"late")))
            assert not old.ready
            await new.write(entries(topic, (0, b"k", b"new")))
            assert values(await read_whole(cluster, topic)) == [b"new"]
            await old.fence()
            with pytest.raises(Fenced):
                await new.write(entries(topic, (0, b"k", b"newer")))

    asyncio.run(run())


def test_a_transaction_starts_after_a_throttle(
    kafka: LocalCluster,
    topic: str,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator would abort one that waits for a quota for longer than its timeout."""
    throttled: list[bool] = []

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            await writer.fence()
            await writer.write(entries(topic, (0, b"k", b"1")))
            (node,) = cluster.metadata.brokers
            connection = cluster.connected(node, topic_writer._LANE)
            assert connection is not None

            async def add(*args: Any, **options: Any) -> Any:
                throttled.append(connection.throttled)
                return await add_partitions_to_txn(*args, **options)

            monkeypatch.setattr(topic_writer, "add_partitions_to_txn", add)
            connection.throttle(500)
            await writer.write(entries(topic, (0, b"k", b"2")))
            assert throttled == [False]
            assert values(await read_whole(cluster, topic)) == [b"1", b"2"]

    asyncio.run(run())


def test_a_refused_write_leaves_no_open_transaction(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """One partition does not exist: all is refused, and no reader waits for a timeout."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            # Longer than the test may take: no coordinator ends the transaction meanwhile.
            writer = TransactionalWriter(cluster, fresh_name("id"), timeout_ms=800_000)
            await writer.fence()
            with pytest.raises(TwinlogError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await writer.write(entries(topic, (0, b"k", b"1"), (7, b"k", b"1")))
            assert not writer.ready
            partition = TopicPartition(topic, 0)

            async def ended() -> bool:
                return await open_transactions(cluster, [partition]) == {partition: ()}

            await until_async(ended, what="no open transaction")
            await writer.fence()
            await writer.write(entries(topic, (0, b"k", b"2")))
            assert values(await read_whole(cluster, topic)) == [b"2"]

    asyncio.run(run())


def test_a_read_waits_for_an_open_transaction(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """A transaction that is open when reading begins, and committed meanwhile, is read."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"), timeout_ms=800_000)
            await writer.fence()
            producer = writer._id._producer
            assert producer is not None
            await writer._prepare(producer, entries(topic, (0, b"k", b"1")))
            reading = asyncio.create_task(read_whole(cluster, topic))
            await asyncio.sleep(0.3)
            assert not reading.done()
            await end_txn(cluster, writer.transactional_id, producer, commit=True)
            assert values(await reading) == [b"1"]

    asyncio.run(run())


def test_records_behind_a_hanging_transaction_are_not_taken_for_absent(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """A dead writer's transaction hides another writer's records behind it: that is an error."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            await put(cluster, entries(topic, (0, b"k", b"1")))
            writer = TransactionalWriter(cluster, fresh_name("id"), timeout_ms=800_000)
            await writer.fence()
            assert writer._id._producer is not None
            await writer._prepare(writer._id._producer, entries(topic, (0, b"k", b"2")))
            await put(cluster, entries(topic, (0, b"other", b"3")))
            with pytest.raises(Retriable, match="beyond offset 1: a transaction that begins there"):
                await read_whole(cluster, topic, patience=0.5)
            await writer.fence()  # aborts it
            assert values(await read_whole(cluster, topic)) == [b"1", b"3"]

    asyncio.run(run())


async def first_news(news: AsyncIterator[list[ControlRecord]], value: bytes) -> float:
    """Return when `value` arrives."""
    async for records in news:
        if value in values(records):
            return time.monotonic()
    raise AssertionError("the tail has ended")


def test_a_tail_receives_records_within_milliseconds(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """From the answer to the write to the arrival at the reader: the median is under 50 ms.

    It is measured again as long as a busy machine delays more than that.
    """

    async def run() -> None:
        async with client(any_kafka) as reading, client(any_kafka) as cluster:
            await make_topic(cluster, topic, 8, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            await writer.fence()
            await writer.write(entries(topic, (0, b"k", b"before")))
            tail = Tail(reading, topic)
            assert values(await tail.catch_up()) == [b"before"]
            numbers = itertools.count()
            async with aclosing(tail.follow()) as news:

                async def delay() -> float:
                    value = b"%d" % (number := next(numbers))
                    async with asyncio.TaskGroup() as tasks:
                        arrival = tasks.create_task(first_news(news, value))
                        await asyncio.sleep(0.02)
                        await writer.write(entries(topic, (number % 8, b"k", value)))
                        written = time.monotonic()
                    return arrival.result() - written

                async def soon() -> bool:
                    return sorted([await delay() for _ in range(15)])[7] < 0.05

                await until_async(soon, 240, "a median below 50 ms")
            assert reading._borrowed_lanes == set()

    asyncio.run(run())


def test_a_tail_skips_aborted_records(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Aborted data and markers move only the position."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 1, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            await writer.fence()
            producer = writer._id._producer
            assert producer is not None
            await add_partitions_to_txn(
                cluster, writer.transactional_id, producer, [TopicPartition(topic, 0)]
            )
            await writer._prepare(producer, entries(topic, (0, b"k", b"never")))
            await end_txn(cluster, writer.transactional_id, producer, commit=False)
            await writer.fence()
            await writer.write(entries(topic, (0, b"k", b"always")))
            async with aclosing(Tail(cluster, topic).follow()) as news:
                async with asyncio.timeout(120):
                    assert values(await anext(news)) == [b"always"]

    asyncio.run(run())


def test_the_last_record_of_each_partition_is_read(kafka: LocalCluster, topic: str) -> None:
    """The number of records before it does not matter; an empty partition has none."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 3, configs=COMPACTED)
            for number in range(5):
                wanted = entries(topic, (0, b"0", b"%d" % number), (2, b"2", b"%d" % (number + 1)))
                assert set((await append(cluster, wanted, acks=ALL)).values()) == {number}
            records = await read_last(cluster, topic)
            assert sorted((r.partition, r.value) for r in records) == [(0, b"4"), (2, b"5")]

    asyncio.run(run())


def test_reading_a_missing_topic_is_an_error(kafka: LocalCluster, topic: str) -> None:
    """It is an error with the topic's name, after a time in which the topic may be created."""

    async def run() -> None:
        cluster = client(kafka, api_timeout=2.0)
        await cluster.start(60)

        async def is_named() -> bool:  # unless the time is over before an answer
            with pytest.raises(TwinlogError) as missing:
                await read_whole(cluster, topic)
            return bool(re.search(f"{topic}.*UNKNOWN_TOPIC_OR_PARTITION", str(missing.value)))

        try:
            await until_async(is_named, what="the topic's name")
        finally:
            await cluster.close()

    asyncio.run(run())


def test_a_large_log_is_read_to_its_end(kafka: LocalCluster, topic: str) -> None:
    """The log is larger than one Fetch."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, 2, configs=COMPACTED)
            block = b"x" * 200_000
            for number in range(30):
                wanted = entries(
                    topic, (0, b"%d" % number, block), (1, b"%d" % number, b"%d" % number)
                )
                await put(cluster, wanted)
            records = await read_whole(cluster, topic)
            assert [r.key for r in records if r.partition == 0] == [b"%d" % i for i in range(30)]
            assert [r.offset for r in records if r.partition == 1] == list(range(30))

    asyncio.run(run())


def test_writer_and_tail_continue_after_a_leader_change(
    trio: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """The leader is killed: the same writer goes on writing, and the same tail reads it."""

    async def run() -> None:
        topic = fresh_name("topic")
        async with client(trio) as cluster:
            await make_topic(cluster, topic, 1, replication_factor=3, configs=COMPACTED)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            await writer.fence()

            async def write() -> bool:
                """Write once more if the answer was lost: the coordinator may be on the broker."""
                if not writer.ready:
                    await writer.fence()
                await writer.write(entries(topic, (0, b"k", b"2")))
                return True

            async with aclosing(Tail(cluster, topic).follow()) as news:
                await writer.write(entries(topic, (0, b"k", b"1")))
                assert values(await anext(news)) == [b"1"]
                leader = cluster.leader(TopicPartition(topic, 0))
                node = leader.node_id  # type: ignore[union-attr]
                try:
                    async with asyncio.timeout(500), asyncio.TaskGroup() as tasks:
                        arrival = tasks.create_task(anext(news))
                        await asyncio.to_thread(trio.kill, node)
                        await until_async(write, what="a write that is answered")
                    assert {*values(arrival.result())} == {b"2"}
                finally:
                    await asyncio.to_thread(trio.start_broker, node)

    asyncio.run(run())


def test_a_missing_right_is_a_user_error() -> None:
    """A refused kind of request becomes an error that the user can act on (kafka/errors.py)."""
    with pytest.raises(UserError, match="TOPIC_AUTHORIZATION_FAILED"):
        dict(topic_reader._granted({TopicPartition("t", 0): Refusal(29)}, "read it"))
