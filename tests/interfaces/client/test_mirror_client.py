"""Twin of twinlog.interfaces.client.mirror_client: complete answers, or an error.

`tests/interfaces/test_mirror_maker_java.py` compares the answers with those of Kafka's client.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from clients import client, make_topic, put

from twinlog.interfaces.client import mirror_client
from twinlog.interfaces.client.mirror_client import MirrorClient
from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ProtocolError, Retriable, UserError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.mm2_records import Checkpoint, encode
from twinlog.mirror.replication_policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from twinlog.store.topic_writer import Entry, TransactionalWriter

SERVER = {"bootstrap.servers": "h:1"}


def checkpoint(group: str, topic: str, offset: int, index: int = 0) -> Checkpoint:
    return Checkpoint(
        group=group,
        partition=TopicPartition(topic, index),
        upstream_offset=offset,
        downstream_offset=offset,
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics of a cluster that is not there."""
    topics: set[str] = set()

    async def names(_cluster: object) -> set[str]:
        return topics

    monkeypatch.setattr(mirror_client, "topic_names", names)
    return topics


def offline(**properties: str) -> MirrorClient:
    """A client whose cluster is not needed."""
    names = {key.replace("_", "."): value for key, value in properties.items()}
    connected = MirrorClient(SERVER | names)
    connected._admin = connected._consumer = KafkaCluster(connected._configs[0])
    return connected


def test_hops_are_the_least_of_all_ways(known: set[str]) -> None:
    """Goal: a cluster that is reached directly and by way of another one counts as one hop."""
    known |= {"heartbeats", "b.heartbeats", "b.a.heartbeats", "a.heartbeats", "c.b.a.heartbeats"}
    known |= {"a.orders", "d.orders"}

    async def run() -> None:
        ours = offline()
        assert await ours.replication_hops("a") == 1
        assert await ours.replication_hops("b") == 1
        assert await ours.replication_hops("c") == 1
        assert await ours.replication_hops("d") == -1
        assert await ours.upstream_clusters() == {"a", "b", "c"}
        known.remove("a.heartbeats")
        assert await ours.replication_hops("a") == 2

    asyncio.run(run())


def test_remote_topics_are_not_internal(known: set[str]) -> None:
    known |= {"orders", "a.orders", "b.a.orders", "a.checkpoints.internal", "a.heartbeats"}
    known |= {"mm2-offset-syncs.a.internal", "a.app.internal", "__x", ".y"}

    async def run() -> None:
        remote = {"a.orders", "b.a.orders", "a.heartbeats", "a.app.internal"}
        assert await offline().remote_topics() == remote
        assert await offline().remote_topics("b") == {"b.a.orders"}
        assert await offline().checkpoint_topics() == {"a.checkpoints.internal"}

    asyncio.run(run())


def test_missing_checkpoints_are_an_error(known: set[str]) -> None:
    """Goal: no result is empty only because the alias is mistyped."""
    known |= {"us.checkpoints.internal", "eu.checkpoints.internal"}
    reason = re.escape(
        "su.checkpoints.internal: there are no checkpoints of cluster 'su': the topic does not "
        "exist, or this principal may not describe it (topics with checkpoints: "
        "eu.checkpoints.internal, us.checkpoints.internal); check the alias"
    )
    with pytest.raises(UserError, match=reason):
        asyncio.run(offline().remote_consumer_offsets("g", "su"))


def test_properties_of_one_client_have_priority() -> None:
    """Goal: `admin.` and `consumer.` are for one of the two clients, the policy's for none."""
    ours = MirrorClient(
        {
            **SERVER,
            "client.id": "both",
            "consumer.client.id": "reader",
            "producer.client.id": "writer",
            "admin.no.such": "1",
            "replication.policy.class": "IdentityReplicationPolicy",
            "source.cluster.alias": "us",
        }
    )
    admin, consumer = ours._configs
    assert (admin.client_id, consumer.client_id) == ("both", "reader")
    assert ours.warnings == ("no.such is not used by twinlog",)
    assert ours.replication_policy == IdentityReplicationPolicy(source_cluster_alias="us")
    assert MirrorClient(SERVER).replication_policy == DefaultReplicationPolicy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap.servers", "h"),
        ("consumer.bootstrap.servers", "h"),
        ("replication.policy.separator", "/"),
        ("replication.policy.class", "com.acme.Policy"),
    ],
)
def test_malformed_properties_are_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"{name.removeprefix('consumer.')} is ")):
        MirrorClient({**SERVER, name: value})


@pytest.mark.broker
def test_the_last_checkpoint_counts_and_a_tombstone_removes_it(
    any_kafka: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """Goal: as compaction would leave them, also without aborted transactions."""
    alias = fresh_name("alias")
    topic = f"{alias}.checkpoints.internal"

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic, configs={"cleanup.policy": "compact"})
            rows = [checkpoint("g", "t", 1), checkpoint("g", "u", 2), checkpoint("g", "t", 3)]
            entries = [Entry(topic, 0, *encode(row)) for row in rows]
            await put(cluster, entries)
            ours = {"bootstrap.servers": any_kafka.bootstrap_servers}
            async with MirrorClient(ours) as mirror:
                found = await mirror.remote_consumer_offsets("g", alias)
                assert found == {
                    TopicPartition("t", 0): Committed(3),
                    TopicPartition("u", 0): Committed(2),
                }
                writer = TransactionalWriter(cluster, fresh_name("id"))
                await writer.fence()
                key, value = encode(checkpoint("g", "t", 99))
                assert writer._id._producer is not None
                await writer._prepare(writer._id._producer, [Entry(topic, 0, key, value)])
                with pytest.raises(Retriable, match="a transaction that begins there"):
                    await mirror.remote_consumer_offsets("g", alias, timeout_s=5)
                await writer.fence()  # aborts it
                assert await mirror.remote_consumer_offsets("g", alias) == found
                await put(cluster, [Entry(topic, 0, key, None)])
                left = await mirror.remote_consumer_offsets(re.compile(".*"), alias)
                assert left == {"g": {TopicPartition("u", 0): Committed(2)}}

    asyncio.run(run())


@pytest.mark.broker
def test_an_undecodable_checkpoint_is_named_until_it_is_removed(
    kafka: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """Goal: no older offset is returned instead, and the message says how to go on."""
    alias = fresh_name("alias")
    topic = f"{alias}.checkpoints.internal"
    properties = {"bootstrap.servers": kafka.bootstrap_servers}

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, configs={"cleanup.policy": "compact"})
            key, value = encode(checkpoint("g", "t", 1))
            newer = b"\0\1" + value[2:]
            records = [Entry(topic, 0, key, value), Entry(topic, 0, key, newer)]
            await put(cluster, records)
            translate = RemoteClusterUtils.translate_offsets
            with pytest.raises(ProtocolError) as caught:
                await translate(properties, alias, "g")
            text = f"{topic}-0: the value of a checkpoint has version 1, expected 0 (offset 1); "
            assert text in str(caught.value)
            assert await translate(properties, alias, "other") == {}
            await put(cluster, [Entry(topic, 0, b"?", b"?")])
            with pytest.raises(ProtocolError, match=r"the key of a checkpoint .* \(offset 2\)"):
                await translate(properties, alias, "other")
            tombstones = [Entry(topic, 0, b"?", None), Entry(topic, 0, key, None)]
            await put(cluster, tombstones)
            assert await translate(properties, alias, "g") == {}

    asyncio.run(run())


@pytest.mark.broker
def test_many_checkpoints_are_read_to_the_end(
    kafka: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """Goal: more than one answer holds; and a deadline ends with an error, not with less."""
    alias = fresh_name("alias")
    topic = f"{alias}.checkpoints.internal"
    count = 3000

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, configs={"cleanup.policy": "compact"})
            for first in range(0, count, 500):
                entries = [
                    Entry(topic, 0, *encode(checkpoint(f"g{number}{'x' * 1000}", "t", number)))
                    for number in range(first, first + 500)
                ]
                await put(cluster, entries)
            properties = {"bootstrap.servers": kafka.bootstrap_servers}
            async with MirrorClient(properties) as mirror:
                found = await mirror.remote_consumer_offsets(re.compile(r"g\d+x+"), alias)
                assert len(found) == count
                with pytest.raises(Retriable, match=r"not read up to their end within 0 s"):
                    await mirror.remote_consumer_offsets("g", alias, timeout_s=0)

    asyncio.run(run())


@pytest.mark.parametrize("value", [30000, False, ["h:1"]])
def test_a_value_that_is_no_text_is_refused_by_name(value: Any) -> None:
    """Goal: no AttributeError; the value is not shown, as it may be a secret."""
    with pytest.raises(UserError, match=r"^request.timeout.ms is a \w+: expected text"):
        MirrorClient({"bootstrap.servers": "h:1", "request.timeout.ms": value})
