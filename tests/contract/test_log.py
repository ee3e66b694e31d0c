"""Reads of a source's log, and the log ends of a destination."""

import asyncio

import pytest

from contract.bench import (
    FETCH_BYTES,
    Bench,
    batch,
    behaviour,
    committed,
    content,
    ends_at,
    fetched,
    leader_of,
    log_end,
    send,
    until,
    values,
)
from contract.kafka_bench import run_on_kafka
from contract.model_bench import run_on_model
from twinlog.engines.ports import Batch
from twinlog.kafka.log.batch import HEADER_SIZE, batches, patched_header
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import encoded
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    EpochEnd,
    FetchPosition,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)
from twinlog.local.cluster import LocalCluster


@behaviour
async def test_a_read_committed_fetch_ends_at_the_last_stable_offset(bench: Bench) -> None:
    """Goal: a read ends at the last stable offset, with aborted data, markers, the aborted list."""
    [key] = await bench.topic()
    await bench.transact(bench.name("a"), key, values(2), "commit")
    await bench.transact(bench.name("b"), key, values(3), "abort")
    await bench.transact(bench.name("c"), key, values(2), "open")
    await bench.transact(bench.name("d"), key, values(2), "commit")

    async def stable() -> bool:
        return (await bench.source.bounds([key]))[key].high_watermark == 12

    await until(stable, "the markers")
    bounds = (await bench.source.bounds([key]))[key]
    assert (bounds.start, bounds.last_stable) == (0, 7)
    assert bounds.leader_epoch == (await bench.source.leaders([key.topic]))[key].epoch
    found = await committed(bench, key)
    headers = list(batches(found.records))
    assert found.error == 0
    assert [h.next_offset for h in headers][-1] == 7
    assert [h.is_control for h in headers if h.num_records][-1]
    assert [txn.first_offset for txn in found.aborted] == [3]
    assert found.aborted[0].producer_id in {h.producer_id for h in headers}
    within = await committed(bench, key, 5)
    assert [txn.first_offset for txn in within.aborted] == [3]
    assert [h.base_offset for h in batches(within.records)] == [3, 6]
    behind = await committed(bench, key, 7)
    assert (behind.aborted, len(behind.records)) == ((), 0)


@behaviour
async def test_a_fetch_within_a_batch_returns_the_whole_batch(bench: Bench) -> None:
    """Goal: the answer may begin before the requested offset."""
    [key] = await bench.topic()
    await send(
        bench,
        batch(key, values(10), producer_id=10**9, timestamp=bench.now_ms()),
        batch(key, values(10), producer_id=10**9, sequence=10, timestamp=bench.now_ms()),
    )
    found = await committed(bench, key, 14)
    assert [h.base_offset for h in batches(found.records)] == [10]
    at_end = await committed(bench, key, 20)
    assert (at_end.error, len(at_end.records)) == (0, 0)
    assert (await committed(bench, key, 21)).error == 1


@behaviour
async def test_delete_records_changes_only_the_log_start_offset(bench: Bench) -> None:
    """Goal: log end offset and producer state stay, even when no record is left."""
    [key] = await bench.topic()
    made = [
        batch(key, values(5), producer_id=10**9, sequence=5 * at, timestamp=bench.now_ms())
        for at in range(3)
    ]
    await send(bench, *made)
    assert await bench.destination.delete_records({key: 7}) == {key: 0}
    bounds = (await bench.destination.bounds([key]))[key]
    assert (bounds.start, bounds.high_watermark) == (7, 15)
    assert await bench.destination.delete_records({key: 15}) == {key: 0}
    bounds = (await bench.destination.bounds([key]))[key]
    assert (bounds.start, bounds.high_watermark) == (15, 15)
    assert await log_end(bench, key) == 15
    assert await bench.destination.delete_records({key: 16}) == {key: 1}
    [again, refused] = await send(
        bench,
        made[-1],
        batch(key, values(1), producer_id=10**9, sequence=3, timestamp=bench.now_ms()),
    )
    assert (again.error, again.base_offset, refused.error) == (0, 10, 45)


@behaviour
async def test_delete_records_is_refused_on_compacted_only_topics(bench: Bench) -> None:
    """Goal: 44 POLICY_VIOLATION, unless cleanup.policy contains delete too."""
    [compacted] = await bench.topic(policy="compact")
    [both] = await bench.topic(policy="compact,delete")
    for key in (compacted, both):
        await send(bench, batch(key, values(5), producer_id=10**9, timestamp=bench.now_ms()))
    answers = await bench.destination.delete_records({compacted: 3, both: 3})
    assert answers == {compacted: 44, both: 0}


@behaviour
async def test_one_batch_of_empty_records_fills_a_million_offsets(bench: Bench) -> None:
    """Goal: a guarded batch of empty records is small, lands once, and its start can be deleted."""
    [key] = await bench.topic()
    count = 1_000_000
    now = bench.now_ms()
    built = encoded(
        _empty_records(count),
        Codec.ZSTD,
        base_offset=0,
        count=count,
        base_timestamp=now,
        max_timestamp=now,
    )
    assert len(built.records) < 1_000_000

    def bulk(sequence: int) -> Batch:
        header = patched_header(
            built.header, built.records, ProducerId(10**9), ProducerEpoch(0), Sequence(sequence)
        )
        return Batch(key, header, built.records)

    answers = await send(bench, bulk(0), bulk(0), bulk(count), bulk(5))
    assert [(a.error, a.base_offset) for a in answers] == [(0, 0), (0, 0), (0, count), (45, -1)]
    assert await log_end(bench, key) == 2 * count
    assert await bench.destination.delete_records({key: 2 * count}) == {key: 0}
    bounds = (await bench.destination.bounds([key]))[key]
    assert (bounds.start, bounds.high_watermark) == (2 * count, 2 * count)


def _empty_records(count: int) -> bytes:
    """Encode records without key, value and headers, at consecutive offsets."""
    from twinlog.kafka.log.records import encode_tail, varint  # noqa: PLC0415

    tail = encode_tail(None, None)
    out = bytearray()
    for at in range(count):
        deltas = b"\0\0" + varint(at)
        out += varint(len(deltas) + len(tail)) + deltas + tail
    return bytes(out)


@behaviour
async def test_a_fetch_returns_record_bytes_unchanged(bench: Bench) -> None:
    """Goal: a fetch returns exactly the appended bytes behind the header, in every codec."""
    keys = await bench.topic(len(Codec))
    for key, codec in zip(keys, Codec, strict=True):
        made = batch(key, values(50, 40), producer_id=10**9, timestamp=bench.now_ms(), codec=codec)
        assert (await send(bench, made))[0].error == 0, codec
        found = (await bench.destination.read({key: 0}, partition_max_bytes=FETCH_BYTES))[key]
        assert bytes(found.records[HEADER_SIZE:]) == bytes(made.records)
        assert bytes(found.records[17:61]) == made.header[17:61]


@behaviour
async def test_a_fetch_waits_until_a_record_arrives(bench: Bench) -> None:
    """Goal: a record ends the long poll early; otherwise it ends after its time."""
    [key] = await bench.topic()
    node = await leader_of(bench, key)
    await bench.source.leaders([key.topic])
    fetch = asyncio.ensure_future(_fetch(bench, node, key, 100_000))
    await asyncio.sleep(0.2)
    assert not fetch.done()
    await send(bench, batch(key, values(3), producer_id=10**9, timestamp=bench.now_ms()))
    async with asyncio.timeout(60):
        assert await fetch == 3


async def _fetch(bench: Bench, node: int, key: TopicPartition, wait_ms: int) -> int:
    found = await fetched(bench, node, key, FetchPosition(0), wait_ms)
    return sum(h.num_records for h in batches(found.records))


@behaviour
async def test_a_fetch_reports_a_divergence_from_the_last_fetched_epoch(bench: Bench) -> None:
    """Goal: a consumer's Fetch reports where the last record's epoch ends before the log does.

    An epoch that the log never had is out of range; a request with another current leader epoch is
    refused. What happens when a log has lost its end: test_replication.py.
    """
    [key] = await bench.topic()
    await send(bench, batch(key, values(4), producer_id=10**9, timestamp=bench.now_ms()))
    leader = (await bench.source.leaders([key.topic]))[key]
    epoch = leader.epoch
    assert [h.leader_epoch for h in await content(bench, key)] == [epoch]

    async def told(*position: int) -> Fetched:
        return await fetched(bench, leader.node, key, FetchPosition(*position), 100_000)

    async with asyncio.timeout(60):  # an answer with news does not wait for data
        for _ in range(2):
            found = await told(6, epoch, epoch)
            assert (found.error, found.diverging) == (0, EpochEnd(epoch, 4))
            assert len(found.records) == 0
        alone = await bench.source.read_alone(
            key, 6, max_wait_ms=0, partition_max_bytes=1 << 20, last_epoch=LeaderEpoch(epoch)
        )
        assert (alone.fetched.error, alone.fetched.diverging) == (0, EpochEnd(epoch, 4))
        assert (await told(4, epoch + 1, epoch)).error == 1
        assert (await told(4, epoch, epoch + 1)).error == 75
        found = await told(2, epoch, epoch)
    assert (found.error, found.diverging) == (0, None)
    assert [h.next_offset for h in batches(found.records)] == [4]


async def fetch_from_a_recreated_topic(bench: Bench) -> None:
    """A fetch never crosses from a topic to its recreated successor until `leaders` was called."""
    [key] = await bench.topic()
    await send(bench, batch(key, values(3), producer_id=10**9, timestamp=bench.now_ms()))
    before = (await bench.source.leaders([key.topic]))[key]
    assert await _fetch(bench, before.node, key, 100) == 3
    await bench.delete_topic(key.topic)
    await bench.create_again(key.topic)
    await send(bench, batch(key, values(5), producer_id=10**9, timestamp=bench.now_ms()))
    found = await fetched(bench, before.node, key, FetchPosition(3))
    assert (found.error in {3, 6, 100, 103}, len(found.records)) == (True, 0)

    async def after() -> bool:
        leader = (await bench.source.leaders([key.topic])).get(key)
        return leader is not None and leader.error == 0 and leader.topic_id != before.topic_id

    await until(after, "another topic id")


def test_the_model_identifies_a_recreated_topic_by_its_id() -> None:
    """Goal: see `fetch_from_a_recreated_topic`."""
    run_on_model(fetch_from_a_recreated_topic)


@pytest.mark.broker
def test_a_recreated_topic_is_identified_by_its_id(any_kafka: LocalCluster) -> None:
    """Goal: see `fetch_from_a_recreated_topic`."""
    run_on_kafka(any_kafka, fetch_from_a_recreated_topic)


async def append_to_a_recreated_topic(bench: Bench) -> None:
    """Records are never appended to a topic's recreated successor until `leaders` was called."""
    [key] = await bench.topic()
    await send(bench, batch(key, values(3), producer_id=10**9, timestamp=bench.now_ms()))
    node = await leader_of(bench, key)
    await bench.delete_topic(key.topic)
    await bench.create_again(key.topic)
    later = batch(key, values(2), producer_id=10**9, sequence=3, timestamp=bench.now_ms())
    for _ in range(3):
        assert (await bench.destination.log_ends([key]))[key].log_end in {0, -1}
        answer = (await bench.destination.produce(node, [later]))[key]
        assert answer.error in {3, 6, 100}
    assert await log_end(bench, key) == 0
    (appended,) = await send(bench, later)
    assert (appended.error, appended.base_offset) == (0, 0), "the producer is not known there"


def test_the_model_refuses_appends_to_a_recreated_topic() -> None:
    """Goal: see `append_to_a_recreated_topic`."""
    run_on_model(append_to_a_recreated_topic)


@pytest.mark.broker
def test_a_broker_refuses_appends_to_a_recreated_topic(kafka: LocalCluster) -> None:
    """Goal: see `append_to_a_recreated_topic`. Before Kafka 4.1 there are no ids in Produce."""
    run_on_kafka(kafka, append_to_a_recreated_topic)


@behaviour
async def test_a_read_uncommitted_fetch_returns_control_records(bench: Bench) -> None:
    """Goal: a position can be proved by the log's content, fillers included."""
    [key] = await bench.topic()
    producer = await bench.destination.init_producer(bench.name("filler"))
    await send(bench, batch(key, values(2), producer_id=10**9, timestamp=bench.now_ms()))
    await bench.destination.empty_transaction(producer, [key])
    await ends_at(bench, key, 3)

    async def replicated() -> bool:
        return len(await content(bench, key)) == 2

    await until(replicated, "both batches")
    assert [h.is_control for h in await content(bench, key)] == [False, True]
    alone = await bench.destination.read_alone(key, 0, max_wait_ms=0, partition_max_bytes=1 << 20)
    assert [h.is_control for h in batches(alone.fetched.records)] == [False, True]
