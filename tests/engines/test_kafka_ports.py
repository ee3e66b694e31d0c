"""The two ports on real brokers of the newest and the oldest version."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from clients import client, make_topic
from kafka.protocol.admin import AlterClientQuotasRequest, DeleteTopicsRequest
from waiting import until_async

from twinlog.engines.exact.proof import TAIL_BYTES, Claim, Differs, Proven, prove
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import (
    Appended,
    Batch,
    FetchResult,
    LeaderReport,
    MarkerRequest,
    Markers,
)
from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Disconnected, Fenced, Retriable
from twinlog.kafka.log.batch import Header, batches, new_header, patched_header
from twinlog.kafka.log.records import encode_tail, varint
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests import transactions
from twinlog.kafka.requests.partitions import PATIENCE
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerState,
    Sequence,
    TopicPartition,
)
from twinlog.local.cluster import LocalCluster

pytestmark = pytest.mark.broker

COUNT = 3
"""Records in each batch."""
STAMP = int(time.time() * 1000)
"""The records' timestamps, in ms; brokers forget producers of old records at any moment."""
TOO_LARGE = 10
OUT_OF_ORDER = 45
OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
UNSUPPORTED_VERSION = 35


class Ports(NamedTuple):
    """Both ports, on one cluster."""

    cluster: KafkaCluster
    source: KafkaSource
    destination: KafkaDestination


class Guard:
    """A lease that a test can end."""

    def __init__(self) -> None:
        self.held = True
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.held


@asynccontextmanager
async def ports_of(
    kafka: LocalCluster, guard: Callable[[], bool] = lambda: True
) -> AsyncIterator[Ports]:
    async with client(kafka) as cluster:
        yield Ports(cluster, KafkaSource(cluster), KafkaDestination(cluster, guard))


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine with a time limit."""

    async def bounded() -> None:
        async with asyncio.timeout(400):
            await test

    asyncio.run(bounded())


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def batch(
    partition: TopicPartition,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    value: bytes = b"value",
) -> Batch:
    """Build a batch of `COUNT` records."""
    tail = encode_tail(b"key", value)
    body = b""
    for delta in range(COUNT):
        record = b"\0" + varint(0) + varint(delta) + tail
        body += varint(len(record)) + record
    header = new_header(
        length=49 + len(body),
        attributes=0,
        last_offset_delta=COUNT - 1,
        base_timestamp=STAMP,
        max_timestamp=STAMP,
        producer_id=producer[0],
        epoch=producer[1],
        sequence=sequence,
        count=COUNT,
        records=body,
    )
    return Batch(partition, header, memoryview(body))


async def fetch(
    source: KafkaSource, node: int, wanted: Mapping[TopicPartition, int], wait: int = 2000
) -> FetchResult:
    positions = {p: FetchPosition(offset) for p, offset in wanted.items()}
    return await source.fetch(
        node, positions, max_wait_ms=wait, max_bytes=1 << 26, partition_max_bytes=1 << 20
    )


@asynccontextmanager
async def prepared(
    kafka: LocalCluster, topic: str, count: int
) -> AsyncIterator[tuple[Ports, list[TopicPartition], int]]:
    """Return the ports, a new topic's partitions, and the one broker that leads them."""
    async with ports_of(kafka) as ports:
        await make(ports.cluster, topic, count)
        yield ports, partitions_of(topic, count), await node_of(ports, topic)


async def node_of(ports: Ports, topic: str) -> int:
    """Return the one broker; ask for leaders, as the engine does before it produces."""
    (node,) = {leader.node for leader in (await leaders_of(ports, topic)).values()}
    return node


async def leaders_of(ports: Ports, topic: str) -> Mapping[TopicPartition, LeaderReport]:
    """Return the leaders once all take requests: metadata names them earlier, or not yet."""
    leaders: Mapping[TopicPartition, LeaderReport] = {}

    async def serving() -> bool:
        nonlocal leaders
        leaders = await ports.destination.leaders([topic])
        ends = await ports.destination.log_ends(leaders)
        return bool(leaders) and not any(end.error for end in ends.values())

    await until_async(serving)
    return leaders


def headers(fetched: Fetched) -> list[Header]:
    return list(batches(fetched.records))


def test_produced_batches_are_fetched_unchanged(any_kafka: LocalCluster, topic: str) -> None:
    """Many partitions in one request in each direction: same bytes, offsets from 0 on."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 50) as (ports, partitions, node):
            sent = [batch(p, value=str(p).encode()) for p in partitions]
            for base in (0, COUNT):
                answers = await ports.destination.produce(node, sent)
                assert answers == {p: Appended(0, base, 0) for p in partitions}
            result = await fetch(ports.source, node, dict.fromkeys(partitions, 0))
            assert result.partitions.keys() == set(partitions)
            for each in sent:
                fetched = result.partitions[each.partition]
                end = 2 * COUNT
                assert fetched[:5] == (0, end, end, 0, ())
                for header in headers(fetched):
                    records = fetched.records[header.position + 61 : header.end]
                    assert records == each.records
            assert result.size > sum(len(f.records) for f in result.partitions.values())

    run(scenario())


def test_an_incremental_fetch_returns_only_changed_partitions(
    any_kafka: LocalCluster, topic: str
) -> None:
    """Incremental fetches: only news comes back; added and dropped partitions take effect."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 20) as (ports, partitions, node):
            wanted = dict.fromkeys(partitions, 0)
            first = await fetch(ports.source, node, wanted, 0)
            assert first.partitions.keys() == set(partitions)
            assert (await fetch(ports.source, node, wanted, 0)).partitions == {}
            await ports.destination.produce(node, [batch(partitions[7])])
            news = await fetch(ports.source, node, wanted)
            assert news.partitions.keys() == {partitions[7]}
            wanted[partitions[7]] = COUNT
            await ports.destination.produce(node, [batch(partitions[7]), batch(partitions[8])])
            del wanted[partitions[8]]
            news = await fetch(ports.source, node, wanted)
            assert [h.base_offset for h in headers(news.partitions[partitions[7]])] == [COUNT]
            assert partitions[8] not in news.partitions
            wanted = {partitions[8]: 0}
            news = await fetch(ports.source, node, wanted)
            assert news.partitions.keys() == {partitions[8]}

    run(scenario())


def test_each_fetcher_has_a_separate_fetch_session(any_kafka: LocalCluster, topic: str) -> None:
    """Two fetchers of one broker wait at the same time."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 2) as (ports, partitions, node):
            waits = [
                asyncio.create_task(
                    ports.source.fetch(
                        node,
                        {p: FetchPosition(COUNT)},
                        max_wait_ms=100_000,
                        max_bytes=1 << 20,
                        partition_max_bytes=1 << 20,
                        fetcher=p.partition,
                    )
                )
                for p in partitions
            ]
            await asyncio.sleep(0.2)
            await ports.destination.produce(node, [batch(p) for p in partitions])
            out_of_range = 1  # while the logs were empty, offset 3 was outside of them
            for wait, p in zip(waits, partitions, strict=True):
                assert (await wait).partitions[p].error in (0, out_of_range)

    run(scenario())


def test_a_bad_partition_does_not_break_the_session(any_kafka: LocalCluster, topic: str) -> None:
    """An offset out of range and a missing topic are errors of those partitions only."""

    async def scenario() -> None:
        async with ports_of(any_kafka) as ports:
            await make(ports.cluster, topic, 2)
            good, bad = partitions_of(topic, 2)
            gone = TopicPartition(f"{topic}.gone", 0)
            node = await node_of(ports, topic)
            await ports.destination.produce(node, [batch(good)])
            result = await fetch(ports.source, node, {good: 0, bad: 99, gone: 0}, 0)
            assert result.partitions[gone].error == UNKNOWN_TOPIC
            assert headers(result.partitions[good])
            with pytest.raises(Retriable, match="no topic"):
                await ports.destination.produce(node, [batch(good), batch(gone)])
            for _ in range(2):
                result = await fetch(ports.source, node, {good: 0, bad: 99}, 0)
                assert result.partitions[bad].error == 1
                assert headers(result.partitions[good])
            read = await ports.source.read({good: 0, bad: 99, gone: 0}, partition_max_bytes=1 << 20)
            assert {p: part.error for p, part in read.items()} == {
                good: 0,
                bad: 1,
                gone: UNKNOWN_TOPIC,
            }

    run(scenario())


def test_a_lost_fetch_session_is_replaced(any_kafka: LocalCluster, topic: str) -> None:
    """The connection is lost, or the broker has another session: the next fetch is a full one."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 4) as (ports, partitions, node):
            wanted = dict.fromkeys(partitions, 0)
            await fetch(ports.source, node, wanted, 0)
            waiting = asyncio.create_task(fetch(ports.source, node, wanted, 100_000))
            await asyncio.sleep(0.2)
            await (await ports.cluster.connection(node, "fetch.0")).close()
            with pytest.raises(Disconnected):
                await waiting
            again = await fetch(ports.source, node, wanted, 0)
            assert again.partitions.keys() == set(partitions)
            session = ports.source._sessions[node, 0]
            session._epoch += 5
            again = await fetch(ports.source, node, wanted, 0)
            assert again.partitions.keys() == set(partitions)
            session._id += 1
            again = await fetch(ports.source, node, wanted, 0)
            assert again.partitions.keys() == set(partitions)
            assert (await fetch(ports.source, node, wanted, 0)).partitions == {}

    run(scenario())


def test_the_fetch_session_survives_a_cancelled_fetch(any_kafka: LocalCluster, topic: str) -> None:
    """A client that stops waiting does not know whether the broker has counted the request."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 1) as (ports, (partition,), node):
            await fetch(ports.source, node, {partition: 0}, 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await fetch(ports.source, node, {partition: 0}, 20_000)
            await ports.destination.produce(node, [batch(partition)])
            result = await fetch(ports.source, node, {partition: 0})
            assert headers(result.partitions[partition])

    run(scenario())


def test_the_broker_appends_only_the_next_sequence(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """A duplicate is answered with its first offset; a hole in the sequence is refused."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 3) as (ports, partitions, node):
            identity = await ports.destination.init_producer(fresh_name("data"))
            who = identity[1:]
            for sequence in (0, COUNT, 0, COUNT):
                sent = [batch(p, who, sequence) for p in partitions]
                answers = await ports.destination.produce(node, sent)
                assert {a[:2] for a in answers.values()} == {(0, sequence)}
            mixed = [
                batch(partitions[0], who, 2 * COUNT),
                batch(partitions[1], who, 2 * COUNT + 1),
                batch(partitions[2], who, 2 * COUNT),
            ]
            answers = await ports.destination.produce(node, mixed)
            assert [answers[p].error for p in partitions] == [0, OUT_OF_ORDER, 0]
            producers = await ports.destination.producers(partitions)
            last = dict.fromkeys(partitions, 3 * COUNT - 1) | {partitions[1]: 2 * COUNT - 1}
            for p in partitions:
                assert producers[p] == (0, (ProducerState(*who, last[p], STAMP),))
            ends = await ports.destination.log_ends(partitions)
            assert {p: end.log_end for p, end in ends.items()} == {
                p: s + 1 for p, s in last.items()
            }
            assert {end.error for end in ends.values()} == {0}
            leaders = await leaders_of(ports, topic)
            assert {p: end.leader_epoch for p, end in ends.items()} == {
                p: leader.epoch for p, leader in leaders.items()
            }

    run(scenario())


def test_the_first_batch_of_a_producer_is_unguarded(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Why a first batch is sent alone: it is refused, and the one behind it takes its place."""

    async def scenario() -> None:
        async with ports_of(any_kafka) as ports:
            configs = {"retention.ms": "-1", "max.message.bytes": "2000"}
            await make_topic(ports.cluster, topic, 1, configs=configs)
            (p,) = partitions_of(topic, 1)
            node = await node_of(ports, topic)
            who = (await ports.destination.init_producer(fresh_name("data")))[1:]
            large = ports.destination.produce(node, [batch(p, who, 0, bytes(1000))])
            behind = ports.destination.produce(node, [batch(p, who, COUNT)])
            assert (await large)[p].error == TOO_LARGE
            assert (await behind)[p] == Appended(0, 0, 0)

    run(scenario())


def test_a_fetched_batch_is_appended_with_unchanged_records(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Source to destination without copying records: the second topic has the same bytes."""

    async def scenario() -> None:
        async with ports_of(any_kafka) as ports:
            copy = f"{topic}.copy"
            await make(ports.cluster, topic, 1)
            await make(ports.cluster, copy, 1)
            (p,), (q,) = partitions_of(topic, 1), partitions_of(copy, 1)
            node = await node_of(ports, topic)
            await node_of(ports, copy)
            await ports.destination.produce(node, [batch(p)])
            fetched = (await fetch(ports.source, node, {p: 0})).partitions[p]
            (header,) = headers(fetched)
            records = fetched.records[header.position + 61 : header.end]
            identity = await ports.destination.init_producer(fresh_name("data"))
            patched = patched_header(
                header,
                records,
                ProducerId(identity.producer_id),
                ProducerEpoch(identity.epoch),
                Sequence(0),
            )
            answers = await ports.destination.produce(node, [Batch(q, patched, records)])
            assert answers[q] == Appended(0, 0, 0)
            read = (await ports.destination.read({q: 0}, partition_max_bytes=1 << 20))[q]
            (landed,) = headers(read)
            assert read.records[landed.position + 61 : landed.end] == records

    run(scenario())


def test_produce_calls_are_appended_in_call_order(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """From the first call, without a connection, to more calls than a connection takes at once."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 1) as (ports, (p,), node):
            who = (await ports.destination.init_producer(fresh_name("data")))[1:]
            answers = [
                ports.destination.produce(node, [batch(p, who, COUNT * at, bytes(100_000))])
                for at in range(120)
            ]
            landed = [(await answer)[p] for answer in answers]
            assert landed == [Appended(0, COUNT * at, 0) for at in range(120)]

    run(scenario())


def test_a_throttled_producer_waits_and_loses_nothing(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """A broker throttles for longer than a request may take: all batches land without an error."""

    async def scenario() -> None:
        name = fresh_name("client")
        async with client(kafka) as cluster:
            await limit(cluster, name, 50_000)
        config = replace(client(kafka).config, client_id=name, request_timeout=5.0)
        async with KafkaCluster(config) as cluster:
            ports = Ports(cluster, KafkaSource(cluster), KafkaDestination(cluster, lambda: True))
            async with client(kafka) as patient:
                await make(patient, topic, 1)
            node, p = await node_of(ports, topic), TopicPartition(topic, 0)
            who = (await ports.destination.init_producer(fresh_name("data")))[1:]
            sent = 0
            # The broker applies the quota some time after the controller has answered.
            while cluster.counters.throttled_seconds <= config.request_timeout:
                wanted = range(sent, sent + 6)
                answers = [
                    ports.destination.produce(node, [batch(p, who, COUNT * at, bytes(50_000))])
                    for at in wanted
                ]
                landed = [(await answer)[p] for answer in answers]
                assert landed == [Appended(0, COUNT * at, 0) for at in wanted]
                sent = wanted.stop

    run(scenario())


async def limit(
    cluster: KafkaCluster, client_id: str, rate: float, key: str = "producer_byte_rate"
) -> None:
    """Set a quota for one client id."""
    entry = AlterClientQuotasRequest.EntryData
    item = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key=key, value=rate, remove=False)],
    )
    request = AlterClientQuotasRequest(entries=[item], validate_only=False)
    response = await cluster.call(request, node=CONTROLLER)
    assert response.entries[0].error_code == 0


def test_a_throttled_fetch_returns_no_records_and_a_throttle_time(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """No error and no records, although the log has them: only the throttle time explains it."""

    async def scenario() -> None:
        config = replace(client(any_kafka).config, client_id=fresh_name("reader"))
        async with client(any_kafka) as filler, KafkaCluster(config) as cluster:
            await make(filler, topic, 1)
            p = TopicPartition(topic, 0)
            destination = KafkaDestination(filler, lambda: True)
            ports = Ports(filler, KafkaSource(filler), destination)
            node = await node_of(ports, topic)
            who = (await destination.init_producer(fresh_name("data")))[1:]
            for at in range(4):
                await destination.produce(node, [batch(p, who, COUNT * at, bytes(300_000))])
            await limit(filler, config.client_id, 1_000.0, "consumer_byte_rate")
            source = KafkaSource(cluster)
            await source.leaders({topic})
            how: dict[str, Any] = {"max_wait_ms": 0, "partition_max_bytes": 100}

            async def throttled() -> ReadAlone | None:
                found = await source.read_alone(p, 0, **how)
                return found if found.throttle_ms else None

            found = await until_async(throttled, what="an answer that the quota holds back")
            assert found is not None
            assert not found.fetched.error
            assert not len(found.fetched.records)
            read = await KafkaSource(filler).read({p: 0}, partition_max_bytes=100)
            assert len(read[p].records) > 300_000

    run(scenario())


def test_an_empty_fetch_comes_with_log_start_and_cleanup_policy(
    any_kafka: LocalCluster, topic: str
) -> None:
    """At the log's end: the leader's local log start, and whether the topic compacts."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 1) as (ports, (p,), node):
            who = (await ports.destination.init_producer(f"{topic}.data"))[1:]
            await ports.destination.produce(node, [batch(p, who, 0)])
            how: dict[str, Any] = {"max_wait_ms": 0, "partition_max_bytes": 100}
            found = await ports.source.read_alone(p, COUNT, **how)
            assert (found.fetched.error, found.fetched.last_stable) == (0, COUNT)
            assert not len(found.fetched.records)
            assert (found.throttle_ms, found.fetched.preferred_replica) == (0, -1)
            assert (found.local_start, found.compacts) == (0, False)
            leader = (await leaders_of(ports, topic))[p]
            assert found.leader_epoch == leader.epoch
            await set_policy(ports.cluster, topic, "compact,delete")

            async def compacts() -> bool:
                return bool((await ports.source.read_alone(p, COUNT, **how)).compacts)

            await until_async(compacts, what="the changed policy")
            known = await ports.source.compacts([topic, f"{topic}.absent"])
            assert known == {topic: True, f"{topic}.absent": None}
            read = await ports.source.read_alone(p, 0, **how)
            assert (read.local_start, read.compacts) == (-1, None), "not asked for beside records"
            beyond = await ports.source.read_alone(p, COUNT + 1, **how)
            assert beyond.fetched.error == OUT_OF_RANGE

    run(scenario())


async def set_policy(cluster: KafkaCluster, topic: str, policy: str) -> None:
    change = Alteration("cleanup.policy", AlterOperation.SET, policy)
    answers = await incremental_alter_configs(cluster, {topic_resource(topic): [change]})
    assert not any(answers.values())


def test_queued_requests_are_not_sent_after_their_connection_is_lost(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """In flight: unknown outcome. Waiting behind it: not sent, on no other connection either."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 1) as (ports, (p,), node):
            who = (await ports.destination.init_producer(fresh_name("data")))[1:]
            await ports.destination.produce(node, [batch(p, who, 0)])
            connection = await ports.cluster.connection(node, "produce")
            sent = ports.destination.produce(node, [batch(p, who, COUNT)])
            connection.throttle(50_000)
            waiting = [
                ports.destination.produce(node, [batch(p, who, COUNT * at)]) for at in (2, 3)
            ]
            await asyncio.sleep(0)
            await connection.close()
            with pytest.raises(Disconnected):
                await sent
            for answer in waiting:
                with pytest.raises(Retriable, match="not sent") as caught:
                    await answer
                assert not isinstance(caught.value, Disconnected)
            end = (await ports.destination.log_ends([p]))[p].log_end
            assert end in (COUNT, 2 * COUNT)
            answers = await ports.destination.produce(node, [batch(p, who, end)])
            # The batch in flight may have landed meanwhile: then the answer is a duplicate's.
            assert (answers[p].error, answers[p].base_offset) == (0, end)

    run(scenario())


def test_an_empty_transaction_leaves_one_marker_per_partition(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Each partition gets one control record; a newer epoch fences the older."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 10) as (ports, partitions, _):
            filler = fresh_name("filler")
            first = await ports.destination.init_producer(filler)
            for rounds in (1, 2):
                await ports.destination.empty_transaction(first, partitions)
                await until_async(partial(_all_end_at, ports, partitions, rounds))
            read = await ports.destination.read(
                dict.fromkeys(partitions, 0), partition_max_bytes=1 << 20
            )
            for part in read.values():
                assert [(h.is_control, h.base_offset) for h in headers(part)] == [
                    (True, 0),
                    (True, 1),
                ]
            second = await ports.destination.init_producer(filler)
            assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
            with pytest.raises(Fenced):
                await ports.destination.empty_transaction(first, partitions)
            gone = TopicPartition(f"{topic}.gone", 0)
            codes = await ports.destination.empty_transaction(second, [*partitions, gone])
            assert codes == dict.fromkeys(partitions, 0) | {gone: UNKNOWN_TOPIC}
            await until_async(partial(_all_end_at, ports, partitions, 3))

    run(scenario())


async def _all_end_at(ports: Ports, partitions: list[TopicPartition], end: int) -> bool:
    ends = await ports.destination.log_ends(partitions)
    return all(found.log_end == end for found in ends.values())


def test_init_producer_ends_an_open_transaction_of_a_former_owner(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """When init_producer returns, the marker of the open transaction is in the log."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 5) as (ports, partitions, _):
            filler = fresh_name("filler")
            former = await ports.destination.init_producer(filler)
            await transactions.add_partitions_to_txn(
                ports.cluster, filler, transactions.ProducerId(*former[1:]), partitions
            )
            await ports.destination.init_producer(filler)
            assert await _all_end_at(ports, partitions, 1)

    run(scenario())


def test_the_requested_number_of_markers_is_written(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Each partition gets the wanted number of markers, and the data's sequence continues."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 3) as (ports, partitions, node):
            identity = await ports.destination.init_producer(fresh_name("data"))
            who = identity[1:]
            await ports.destination.produce(node, [batch(p, who, 0) for p in partitions])
            counts = {p: 1 + 500 * p.partition for p in partitions}
            gone = TopicPartition(f"{topic}.gone", 0)
            wanted = {p: Markers(count) for p, count in counts.items()} | {gone: Markers(1)}
            answers = await ports.destination.write_markers([MarkerRequest(identity, wanted)])
            assert answers == dict.fromkeys(partitions, 0) | {gone: UNKNOWN_TOPIC}
            ends = await ports.destination.log_ends(partitions)
            assert {p: end.log_end - COUNT for p, end in ends.items()} == counts
            sent = [batch(p, who, COUNT) for p in partitions]
            produced = await ports.destination.produce(node, sent)
            assert {p: a.base_offset - COUNT for p, a in produced.items()} == counts

    run(scenario())


def test_markers_are_refused_if_the_broker_lacks_write_txn_markers(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """ApiVersions without WriteTxnMarkers: a refusal of the partitions, not an error."""

    async def scenario() -> None:
        async with prepared(kafka, topic, 2) as (ports, partitions, node):
            identity = await ports.destination.init_producer(fresh_name("data"))
            connection = await ports.cluster.connection(node, "markers")
            versions = {key: one for key, one in connection.versions.items() if key != 27}
            connection.versions = versions
            wanted = dict.fromkeys(partitions, Markers(1))
            answers = await ports.destination.write_markers([MarkerRequest(identity, wanted)])
            assert answers == dict.fromkeys(partitions, UNSUPPORTED_VERSION)

    run(scenario())


def test_delete_records_raises_the_log_start_offset(any_kafka: LocalCluster, topic: str) -> None:
    """The log start offset rises; a missing topic has its own error."""

    async def scenario() -> None:
        async with ports_of(any_kafka) as ports:
            await make(ports.cluster, topic, 2)
            p, q = partitions_of(topic, 2)
            gone = TopicPartition(f"{topic}.gone", 0)
            node = await node_of(ports, topic)
            await ports.destination.produce(node, [batch(p), batch(q)])
            codes = await ports.destination.delete_records({p: 2, q: 99, gone: 0})
            assert codes == {p: 0, q: 1, gone: UNKNOWN_TOPIC}
            expected = {p: (0, 2, COUNT, COUNT), q: (0, 0, COUNT, COUNT)}
            missing = {gone: (UNKNOWN_TOPIC, -1, -1, -1)}
            for port in (ports.source, ports.destination):
                answers = await port.bounds([p, q, gone])
                assert {key: found[:4] for key, found in answers.items()} == expected | missing
                assert [answers[key].leader_epoch for key in (p, q, gone)] == [0, 0, -1]

    run(scenario())


def test_without_a_lease_nothing_is_sent(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Each writing request checks first, the second half of an empty transaction too."""

    async def scenario() -> None:
        guard = Guard()
        async with ports_of(any_kafka, guard) as ports:
            await make(ports.cluster, topic, 1)
            (p,) = partitions_of(topic, 1)
            node = await node_of(ports, topic)
            filler = await ports.destination.init_producer(fresh_name("filler"))
            await ports.destination.produce(node, [batch(p)])
            guard.held = False
            destination, asked = ports.destination, guard.asked
            for step in (
                lambda: destination.produce(node, [batch(p)]),
                lambda: destination.init_producer(filler.transactional_id),
                lambda: destination.empty_transaction(filler, [p]),
                lambda: destination.write_markers([MarkerRequest(filler, {p: Markers(1)})]),
                lambda: destination.delete_records({p: 1}),
            ):
                sent = ports.cluster.counters.requests
                with pytest.raises(Fenced):
                    await step()
                asked += 1
                assert (guard.asked, ports.cluster.counters.requests - sent) <= (asked, 2)
            assert (await destination.bounds([p]))[p] == (0, 0, COUNT, COUNT, 0)

            def only_once() -> bool:
                guard.asked += 1
                return guard.asked == asked + 1

            half = KafkaDestination(ports.cluster, only_once)
            with pytest.raises(Fenced):
                await half.empty_transaction(filler, [p])
            assert guard.asked == asked + 2
            assert (await destination.bounds([p]))[p] == (0, 0, COUNT, COUNT, 0)

    run(scenario())


def test_a_request_queued_when_the_lease_ends_is_never_sent(
    any_kafka: LocalCluster, topic: str
) -> None:
    """The guard is checked when bytes are sent, not when the request is queued."""

    async def scenario() -> None:
        guard = Guard()
        async with ports_of(any_kafka, guard) as ports:
            await make(ports.cluster, topic, 1)
            (p,) = partitions_of(topic, 1)
            node = await node_of(ports, topic)
            await ports.destination.produce(node, [batch(p)])
            (await ports.cluster.connection(node, "produce")).throttle(300)
            waiting = ports.destination.produce(node, [batch(p)])
            guard.held = False
            with pytest.raises(Fenced):
                await waiting
            assert (await ports.destination.log_ends([p]))[p].log_end == COUNT

    run(scenario())


def test_a_batch_sent_to_the_wrong_leader_is_refused_alone(trio: LocalCluster, topic: str) -> None:
    """Leaders on three brokers; a batch to the wrong broker is refused alone."""

    async def scenario() -> None:
        async with ports_of(trio) as ports:
            every = {broker.node_id for broker in trio.brokers}

            async def unfenced() -> bool:  # only these get partitions of a new topic
                return (await ports.cluster.refresh()).brokers.keys() == every

            await until_async(unfenced)
            await make(ports.cluster, topic, 6)
            partitions = partitions_of(topic, 6)
            leaders = await leaders_of(ports, topic)
            assert {leader.node for leader in leaders.values()} == {b.node_id for b in trio.brokers}
            node = leaders[partitions[0]].node
            mine = {p for p in partitions if leaders[p].node == node}
            answers = await ports.destination.produce(node, [batch(p) for p in partitions])
            assert {p for p, answer in answers.items() if answer.error == 0} == mine
            assert {a.error for p, a in answers.items() if p not in mine} == {6}
            ends = await ports.destination.log_ends(partitions)
            assert {p: end.log_end for p, end in ends.items()} == {
                p: COUNT if p in mine else 0 for p in partitions
            }
            read = await ports.destination.read(
                dict.fromkeys(partitions, 0), partition_max_bytes=1 << 20
            )
            assert {part.error for part in read.values()} == {0}

    run(scenario())


def test_a_hung_broker_stops_only_its_own_partitions(trio: LocalCluster, topic: str) -> None:
    """SIGSTOP of one of three brokers, before the controller has noticed: the others answer."""

    async def scenario() -> None:
        async with ports_of(trio) as ports:
            await make(ports.cluster, topic, 6)
            destination, leaders = ports.destination, await leaders_of(ports, topic)
            hung = leaders[TopicPartition(topic, 0)].node
            own = {p for p, leader in leaders.items() if leader.node == hung}
            await destination.read(dict.fromkeys(leaders, 0), partition_max_bytes=1000)
            trio.pause(hung)
            try:
                loop = asyncio.get_running_loop()

                async def soon() -> bool:  # at once, or else on a machine that is not busy
                    began = loop.time()
                    ends = await destination.log_ends(leaders)
                    assert own <= {p for p, end in ends.items() if end.error}
                    return loop.time() - began < 3 * PATIENCE

                await until_async(soon)

                async def others() -> bool:  # the leader of a new topic may have moved
                    ends = await destination.log_ends(leaders.keys() - own)
                    return not any(end.error for end in ends.values())

                await until_async(others)

                async def all_soon() -> bool:
                    began = loop.time()
                    await asyncio.gather(
                        destination.bounds(leaders),
                        destination.producers(leaders),
                        destination.leaders([topic]),
                    )
                    return loop.time() - began < 3 * PATIENCE

                await until_async(all_soon)
            finally:
                trio.resume(hung)

            async def whole() -> bool:
                ends = await destination.log_ends(leaders)
                return not any(end.error for end in ends.values())

            await until_async(whole)

    run(scenario())


def test_a_recreated_topic_has_a_new_id(any_kafka: LocalCluster, topic: str) -> None:
    """The session forgets the deleted topic, and fetches the recreated topic's records."""

    async def scenario() -> None:
        async with prepared(any_kafka, topic, 1) as (ports, (p,), node):
            await fetch(ports.source, node, {p: 0}, 0)
            former = ports.cluster.metadata.topics[topic].topic_id
            assert ports.destination.appends_to(topic, former)
            await delete_topic(ports.cluster, topic)
            await make(ports.cluster, topic, 1)

            async def produced() -> bool:
                await ports.source.leaders([topic])
                await ports.destination.leaders([topic])
                answers = await ports.destination.produce(node, [batch(p, value=b"anew")])
                return answers[p].error == 0

            async def fetched() -> bool:
                result = await fetch(ports.source, node, {p: 0}, 100)
                return p in result.partitions and bool(headers(result.partitions[p]))

            await until_async(produced)
            assert not ports.destination.appends_to(topic, former)
            assert ports.destination.appends_to(
                topic, ports.cluster.metadata.topics[topic].topic_id
            )
            await until_async(fetched)

    run(scenario())


def test_last_batches_above_1_mib_are_compared(
    kafka: LocalCluster, kafka_391: LocalCluster, topic: str
) -> None:
    """Goal: brokers omit most large batches from an answer to many; each is compared whole (A7)."""
    different = TopicPartition(topic, 1)

    async def filled(ports: Ports, last: bytes) -> None:
        limits = {"retention.ms": "-1", "max.message.bytes": str(4 << 20)}
        await make_topic(ports.cluster, topic, 3, configs=limits)
        node = await node_of(ports, topic)
        await ports.source.leaders([topic])
        for partition in partitions_of(topic, 3):
            value = last if partition == different else bytes(1 << 19)
            answers = await ports.destination.produce(node, [batch(partition, value=value)])
            assert not answers[partition].error

    async def scenario() -> None:
        async with ports_of(kafka_391) as source_ports, ports_of(kafka) as destination_ports:
            await filled(source_ports, bytes(1 << 19))
            await filled(destination_ports, bytes((1 << 19) - 1) + b"y")
            claim = Claim(Offset(COUNT), Offset(0), Offset(0), False, UNKNOWN_EPOCH)
            claims = dict.fromkeys(partitions_of(topic, 3), claim)
            many = await destination_ports.destination.read(
                dict.fromkeys(claims, COUNT - 1), partition_max_bytes=TAIL_BYTES
            )
            assert sorted(len(one.records) > 0 for one in many.values()) == [False, False, True]
            found = await prove(
                source_ports.source, destination_ports.destination, claims, 1 << 26, lambda _: False
            )
            differs = found.pop(different)
            assert isinstance(differs, Differs)
            assert "at offset 0" in differs.reason
            assert all(isinstance(one, Proven) for one in found.values())

    run(scenario())


async def make(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    """Create a topic that keeps records with old timestamps."""
    await make_topic(cluster, topic, partitions, configs={"retention.ms": "-1"})


async def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic, and wait until the cluster's metadata no longer has it."""
    await cluster.call(
        DeleteTopicsRequest(
            topic_names=[topic],
            topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)],
            timeout_ms=30_000,
        ),
        node=CONTROLLER,
    )

    async def gone() -> bool:
        return topic not in (await cluster.refresh([topic])).topics

    await until_async(gone)
