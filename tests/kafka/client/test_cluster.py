"""A cluster as a whole, on real brokers: bootstrap, leaders that move, and no leftovers."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import pytest
from fake_broker import FakeBroker, Request, framed, refusing_port
from kafka.protocol.metadata import MetadataResponse
from start_errors import start_error
from waiting import until_async

from twinlog.kafka.client import broker_order, refresher
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.client.refresher import BURST
from twinlog.kafka.errors import Fenced, Refusal, Retriable, UserError
from twinlog.kafka.protocol.markers import Marker
from twinlog.kafka.requests.partitions import (
    DEBUGGING,
    OffsetSpec,
    delete_records,
    describe_producers,
    list_offsets,
    offset_for_leader_epoch,
)
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.kafka.requests.transactions import (
    ProducerId,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    write_txn_markers,
)
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster


def _client(servers: str, **properties: str) -> KafkaCluster:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return KafkaCluster(parse_config({"bootstrap.servers": servers} | named, {}).config, name="it")


def _on(local: LocalCluster, test: Callable[[KafkaCluster], Awaitable[None]]) -> None:
    """Run a test with a client; afterwards no task and no socket may be left."""

    async def run() -> None:
        async with _client(local.bootstrap_servers) as cluster:
            await test(cluster)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    gc.collect()


async def _topic(cluster: KafkaCluster, name: str, partitions: int = 3) -> list[TopicPartition]:
    created = await create_topics(cluster, [NewTopic(name=name, partitions=partitions)])
    assert not isinstance(created[name], Refusal), created
    every = [TopicPartition(name, index) for index in range(partitions)]

    async def answered() -> bool:
        ends = await list_offsets(cluster, every, replica_id=DEBUGGING)
        return not any(isinstance(end, Refusal) for end in ends.values())

    await until_async(answered, what="leaders that know that they lead")
    return every


async def _mark(cluster: KafkaCluster, name: str, partitions: list[TopicPartition]) -> ProducerId:
    """Run one empty transaction; return when its markers are in the logs."""
    before = await list_offsets(cluster, partitions, replica_id=DEBUGGING)
    producer = await init_producer_id(cluster, name)
    added = await add_partitions_to_txn(cluster, name, producer, partitions)
    assert set(added.values()) == {None}
    await end_txn(cluster, name, producer, commit=False)

    async def marked() -> bool:
        now = await list_offsets(cluster, partitions, replica_id=DEBUGGING)
        return all(now[p].offset == before[p].offset + 1 for p in partitions)  # type: ignore[union-attr]

    await until_async(marked, what="markers")
    return producer


def test_unreachable_bootstrap_servers_are_named_with_the_cause() -> None:
    async def run() -> None:
        with refusing_port() as port:
            await start_error(
                lambda: _client(f"127.0.0.1:{port},no-such-host.invalid:9092"),
                f"127.0.0.1:{port}: Connection refused",
                "no-such-host.invalid:9092: ",
            )
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("protocol", "answer", "said"),
    [
        ("SSL", b"", "closed the connection in the TLS handshake; compare security.protocol"),
        ("PLAINTEXT", b"\x15\x03\x03\0\2\2\x46", "the response is TLS, .*: set security.protocol"),
        ("PLAINTEXT", b"HTTP/1.1 400", "invalid frame length 1213486160 .*; compare bootstrap"),
    ],
)
def test_a_server_of_another_protocol_is_named_with_the_problem(
    protocol: str, answer: bytes, said: str
) -> None:
    """The error has the address, the problem, and what to do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            await start_error(
                lambda: _client(address, security_protocol=protocol),
                f"responds: {address}: .*{said}",
            )

    asyncio.run(run())


def test_a_hung_broker_does_not_delay_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All callers wait for it: another broker is asked soon, and first while this one is silent."""
    monkeypatch.setattr(refresher, "METADATA_PATIENCE", (0.2, 0.4))
    monkeypatch.setattr(broker_order, "SILENT", 0.1)

    async def run() -> None:
        async def answer(request: Request) -> bytes:
            return framed(request.correlation_id, metadata(request.version), flexible=True)

        async def answer_once(request: Request) -> bytes | None:
            return await answer(request) if asked(hung) == 1 else None  # as it connects

        async with FakeBroker(answer) as alive, FakeBroker(answer_once) as hung:

            def metadata(version: int) -> bytes:
                item = MetadataResponse.MetadataResponseBroker
                ports = {1: alive.port, 2: hung.port}
                brokers = [item(node_id=n, host="127.0.0.1", port=p) for n, p in ports.items()]
                response = MetadataResponse(
                    brokers=brokers, cluster_id="c", controller_id=1, topics=[], error_code=0
                )
                return bytes(response.encode(version=version))

            def asked(broker: FakeBroker) -> int:
                return sum(1 for request in broker.requests if request.api_key == 3)

            patient = {"request_timeout_ms": "600000", "default_api_timeout_ms": "600000"}
            async with _client(f"127.0.0.1:{alive.port}", **patient) as cluster:
                await cluster.connection(1)
                await cluster.connection(2)

                async def avoided() -> bool:
                    before = asked(alive), asked(hung)
                    await cluster.refresh()
                    await cluster.refresh()
                    return (asked(alive), asked(hung)) == (before[0] + 2, before[1])

                async with asyncio.timeout(60):
                    while asked(hung) < 2:
                        await cluster.refresh()
                # A process that stalls for a moment finds the other one silent, too.
                await until_async(avoided, 60, "metadata of the other broker alone")

    asyncio.run(run())


def test_metadata_is_requested_from_different_brokers() -> None:
    """Goal: a leader that is cut off from the other brokers, but not from the client, is detected.

    It still names itself as the leader, and answers that its log has no more records.
    """

    async def run() -> None:
        ports: dict[int, int] = {}

        def says(leader: int, epoch: int) -> Callable[[Request], Awaitable[bytes]]:
            async def answer(request: Request) -> bytes:
                broker = MetadataResponse.MetadataResponseBroker
                topic = MetadataResponse.MetadataResponseTopic
                partition = topic.MetadataResponsePartition(
                    partition_index=0,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=[1, 2],
                    isr_nodes=[leader],
                )
                response = MetadataResponse(
                    brokers=[broker(node_id=n, host="127.0.0.1", port=p) for n, p in ports.items()],
                    cluster_id="c",
                    controller_id=1,
                    topics=[topic(error_code=0, name="t", partitions=[partition])],
                    error_code=0,
                )
                body = bytes(response.encode(version=request.version))
                return framed(request.correlation_id, body, flexible=True)

            return answer

        async with FakeBroker(says(1, 5)) as former, FakeBroker(says(2, 6)) as other:
            ports.update({1: former.port, 2: other.port})
            async with _client(f"127.0.0.1:{former.port}", retry_backoff_ms="1") as cluster:
                await cluster.connection(1)  # it leads partitions

                async def found() -> bool:
                    await cluster.refresh(["t"])
                    return cluster.leader(TopicPartition("t", 0)) == Leader(2, 6)

                await until_async(found, what="the leader")
                await cluster.refresh(["t"])
                assert cluster.leader(TopicPartition("t", 0)) == Leader(2, 6)

    asyncio.run(run())


@pytest.mark.broker
def test_one_reachable_bootstrap_server_is_enough(kafka: LocalCluster) -> None:
    async def run() -> None:
        with refusing_port() as port:
            async with _client(f"127.0.0.1:{port},{kafka.bootstrap_servers}") as cluster:
                assert cluster.cluster_id
                assert cluster.metadata.controller_id in cluster.metadata.brokers

    asyncio.run(run())


@pytest.mark.broker
def test_concurrent_metadata_refreshes_share_a_request(kafka: LocalCluster, topic: str) -> None:
    async def test(cluster: KafkaCluster) -> None:
        await _topic(cluster, topic)
        before = cluster.counters.requests
        snapshots = await asyncio.gather(*(cluster.refresh([topic]) for _ in range(100)))
        assert cluster.counters.requests - before <= 2
        assert all(topic in s.topics for s in snapshots)
        everything = await cluster.refresh(None)
        assert topic in everything.topics

    _on(kafka, test)


@pytest.mark.broker
def test_the_first_metadata_refreshes_are_not_delayed(kafka: LocalCluster) -> None:
    """Goal: a command's few refreshes are immediate; more of them are slowed down."""

    async def run() -> None:
        slow = {"retry_backoff_ms": "600000", "retry_backoff_max_ms": "600000"}
        async with _client(kafka.bootstrap_servers, **slow) as cluster:
            async with asyncio.timeout(120):
                for _ in range(BURST):
                    assert (await cluster.refresh(None)).brokers
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await cluster.refresh(None)

    asyncio.run(run())


@pytest.mark.broker
def test_positions_producers_and_fences_agree_with_the_log(
    any_kafka: LocalCluster, topic: str
) -> None:
    """The append depends on them: log end offsets, producers, markers, epochs that fence."""

    async def test(cluster: KafkaCluster) -> None:
        partitions = await _topic(cluster, topic)
        producer = await _mark(cluster, f"{topic}.id", partitions)
        ends = await list_offsets(cluster, partitions, replica_id=DEBUGGING)
        assert {e.offset for e in ends.values()} == {1}  # type: ignore[union-attr]
        starts = await list_offsets(cluster, partitions, OffsetSpec.EARLIEST)
        assert {s.offset for s in starts.values()} == {0}  # type: ignore[union-attr]
        remembered = await describe_producers(cluster, partitions)
        for states in remembered.values():
            assert not isinstance(states, Refusal)
            (state,) = states
            assert state[:3] == (producer.producer_id, producer.epoch, -1)
            assert abs(state.last_timestamp - time.time() * 1000) < 600_000, "a marker's own time"
        newer = await init_producer_id(cluster, f"{topic}.id")
        assert newer == (producer.producer_id, producer.epoch + 1)
        with pytest.raises(Fenced):
            await add_partitions_to_txn(cluster, f"{topic}.id", producer, partitions)
        with pytest.raises(Fenced):
            await end_txn(cluster, f"{topic}.id", producer, commit=True)
        epochs = await offset_for_leader_epoch(cluster, dict.fromkeys(partitions, 0))
        assert {(e.leader_epoch, e.end_offset) for e in epochs.values()} == {(0, 1)}  # type: ignore[union-attr]

    _on(any_kafka, test)


@pytest.mark.broker
def test_markers_are_written_and_records_deleted(any_kafka: LocalCluster, topic: str) -> None:
    async def test(cluster: KafkaCluster) -> None:
        partitions = await _topic(cluster, topic)
        node = next(iter(cluster.metadata.brokers))
        markers = [Marker(900 + i, 0, partitions) for i in range(5)]
        (written,) = await write_txn_markers(cluster, node, [markers])
        assert written == {900 + i: dict.fromkeys(partitions, 0) for i in range(5)}
        deleted = await delete_records(cluster, {partitions[0]: 3, partitions[1]: 99}, tries=1)
        assert deleted[partitions[0]] == 3
        refusal = deleted[partitions[1]]
        assert isinstance(refusal, Refusal)
        assert refusal.name == "OFFSET_OUT_OF_RANGE"
        starts = await list_offsets(cluster, {partitions[0]: OffsetSpec.EARLIEST})
        assert starts[partitions[0]].offset == 3  # type: ignore[union-attr]

    _on(any_kafka, test)


@pytest.mark.broker
def test_an_error_of_one_partition_affects_no_other(any_kafka: LocalCluster, topic: str) -> None:
    async def test(cluster: KafkaCluster) -> None:
        partitions = await _topic(cluster, topic)
        strangers = [TopicPartition(topic, 99), TopicPartition("no-such-topic", 0)]
        answers = await list_offsets(cluster, [*partitions, *strangers], tries=2)
        assert all(not isinstance(answers[p], Refusal) for p in partitions)
        for stranger in strangers:
            refusal = answers[stranger]
            assert isinstance(refusal, Refusal)
            assert refusal.name == "UNKNOWN_TOPIC_OR_PARTITION"
        producer = await init_producer_id(cluster, f"{topic}.id")
        added = await add_partitions_to_txn(
            cluster, f"{topic}.id", producer, [partitions[0], strangers[1]]
        )
        assert [added[p].code for p in (partitions[0], strangers[1])] == [55, 3]  # type: ignore[union-attr]

    _on(any_kafka, test)


@pytest.mark.broker
def test_topics_are_created_configured_and_deleted(any_kafka: LocalCluster, topic: str) -> None:
    async def test(cluster: KafkaCluster) -> None:
        good = NewTopic(name=topic, partitions=2, configs={"retention.ms": "1000"})
        bad = NewTopic(name=f"{topic}.bad", configs={"no.such.config": "1"})
        checked = await create_topics(cluster, [good], validate_only=True)
        assert not isinstance(checked[topic], Refusal)
        created = await create_topics(cluster, [good, bad])
        assert not isinstance(created[topic], Refusal)
        assert created[bad.name].name == "INVALID_CONFIG"  # type: ignore[union-attr]
        again = await create_topics(cluster, [good])
        assert again[topic].name == "TOPIC_ALREADY_EXISTS"  # type: ignore[union-attr]
        assert await create_partitions(cluster, {topic: 4}) == {topic: None}
        fewer = await create_partitions(cluster, {topic: 1})
        assert fewer[topic].name == "INVALID_PARTITIONS"  # type: ignore[union-attr]
        resource = topic_resource(topic)
        changes = [Alteration("max.message.bytes", AlterOperation.SET, "2000000")]
        assert await incremental_alter_configs(cluster, {resource: changes}) == {resource: None}
        names = ["retention.ms", "max.message.bytes"]
        described = await describe_configs(cluster, [resource, topic_resource("no-such")], names)

        async def changed() -> bool:
            entries = (await describe_configs(cluster, [resource], names))[resource]
            if isinstance(entries, Refusal):
                return False  # the broker does not know the topic yet
            return [entries[name].value for name in names] == ["1000", "2000000"]

        await until_async(changed, what="the new configuration")
        assert described[topic_resource("no-such")].name == "UNKNOWN_TOPIC_OR_PARTITION"  # type: ignore[union-attr]
        deleted = await delete_topics(cluster, [topic, "no-such"])
        assert deleted[topic] is None
        assert isinstance(deleted["no-such"], Refusal)

    _on(any_kafka, test)


@pytest.mark.broker
def test_coordinators_are_found_and_cached(any_kafka: LocalCluster, topic: str) -> None:
    async def test(cluster: KafkaCluster) -> None:
        node = await cluster.coordinators.find(Coordinator.TRANSACTION, topic)
        requests = cluster.counters.requests
        assert await cluster.coordinators.find(Coordinator.TRANSACTION, topic) == node
        assert cluster.counters.requests == requests
        cluster.coordinators.forget(Coordinator.TRANSACTION, topic)
        assert await cluster.coordinators.find(Coordinator.TRANSACTION, topic) == node
        with pytest.raises(UserError, match="INVALID_TRANSACTION_TIMEOUT"):
            await init_producer_id(cluster, topic, timeout_ms=2**31 - 1)
        assert (await init_producer_id(cluster, None)).producer_id >= 0

    _on(any_kafka, test)


@pytest.mark.broker
def test_the_coordinator_is_requested_from_another_broker_on_doubt(
    trio: LocalCluster, topic: str
) -> None:
    """Goal: no broker is believed for ever that it is the coordinator."""

    async def test(cluster: KafkaCluster) -> None:
        what = Coordinator.GROUP, topic
        await cluster.coordinators.doubt(*what)  # no coordinator is cached yet
        assert not cluster.coordinators._node_ids
        node = await cluster.coordinators.find(*what)
        former = min(set(trio.node_ids) - {node})
        cluster.coordinators._node_ids[what] = former
        await cluster.coordinators.doubt(*what)
        assert await cluster.coordinators.find(*what) == node

    _on(trio, test)


@pytest.mark.broker
def test_requests_move_to_the_new_leader_after_a_kill(trio: LocalCluster, topic: str) -> None:
    """After a kill -9 of the leader the answer comes from the next one, in a newer epoch."""

    async def test(cluster: KafkaCluster) -> None:
        partitions = await _topic(cluster, topic)
        await _mark(cluster, f"{topic}.id", partitions)
        leaders = await cluster.leaders(partitions)
        first = leaders[partitions[0]]
        assert isinstance(first, Leader)
        trio.kill(first.node_id)

        async def answered() -> bool:
            ends = await list_offsets(cluster, partitions, replica_id=DEBUGGING)
            # A coordinator that dies at that moment writes markers twice (test_markers.py).
            return all(not isinstance(e, Refusal) and e.offset >= 1 for e in ends.values())

        await until_async(answered, 120, "answers from the new leaders")
        now = cluster.leader(partitions[0])
        assert isinstance(now, Leader)
        assert now.node_id != first.node_id
        assert now.epoch > first.epoch
        await asyncio.to_thread(trio.start_broker, first.node_id)
        connection = await until_async(
            lambda: _reachable(cluster, first.node_id), 120, "the connection"
        )
        assert connection

    _on(trio, test)


async def _reachable(cluster: KafkaCluster, node: int) -> bool:
    try:
        return not (await cluster.connection(node)).closed
    except Retriable:
        return False
