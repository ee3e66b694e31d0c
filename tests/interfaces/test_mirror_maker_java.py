"""Kafka's own classes, as the oracle of what claims to be compatible with MirrorMaker 2."""

import asyncio
import itertools
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from clients import client, make_topic, put, topic_configs
from mirror_maker_java import PACKAGE, MirrorMakerJava, mirror_maker_java
from mm2_samples import SAMPLES, Sample
from sync_contexts import sync_context

from twinlog.interfaces.client.mirror_client import MirrorClient
from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.copied_topics import is_cycle
from twinlog.mirror.mm2_records import (
    Checkpoint,
    Heartbeat,
    Mm2Record,
    OffsetSync,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
    encode,
)
from twinlog.mirror.replication_policy import policy_named
from twinlog.store.config_records import Mirror, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.store.topic_reader import read_whole
from twinlog.store.topic_writer import Entry
from twinlog.sync.base import run_sync
from twinlog.sync.flow_records import Checkpoints

pytestmark = pytest.mark.broker

TOPICS: Final = (
    *("", ".", "..", "a", "a.", "a..", ".a", "..a", "a.b", "a..b", "a.b.", "a.b.c", "a_b", "a__b"),
    *("heartbeats", "a.heartbeats", "b.a.heartbeats", "app-heartbeats", "a.app-heartbeats"),
    *("a_heartbeats", "b__a__heartbeats", ".heartbeats", "heartbeats.", "heartbeats.heartbeats"),
    *("a.checkpoints.internal", "a_checkpoints_internal", "a__checkpoints__internal"),
    *(".checkpoints.internal", "checkpoints.internal", "b.a.checkpoints.internal"),
    *("mm2-offset-syncs.a.internal", "mm2-offset-syncs_a_internal", "mm2-configs.a.internal"),
    *("b.mm2-offset-syncs.a.internal", "mm2.internal", "mm2internal", "mm2-a-internal"),
    *("app.internal", "app-internal", "__consumer_offsets", "_schemas", ".hidden", "a.__b"),
)
ONE_ARGUMENT: Final = {
    "topic_source": "topicSource",
    "upstream_topic": "upstreamTopic",
    "original_topic": "originalTopic",
    "offset_syncs_topic": "offsetSyncsTopic",
    "checkpoints_topic": "checkpointsTopic",
    "is_heartbeats_topic": "isHeartbeatsTopic",
    "is_checkpoints_topic": "isCheckpointsTopic",
    "is_mm2_internal_topic": "isMM2InternalTopic",
    "is_internal_topic": "isInternalTopic",
}
"""Methods of a policy, and their names in Java."""


DECODERS: Final = {
    Heartbeat: decode_heartbeat,
    Checkpoint: decode_checkpoint,
    OffsetSync: decode_offset_sync,
}
COMPACTED: Final = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class Flows:
    """A cluster that `near` is copied to, and `far` by way of `near`, with names of its own.

    Attributes:
        properties: of its clients.
        near, far: the aliases.
        checkpoints: what was written to the checkpoints of `near`, in order.
    """

    properties: dict[str, str]
    near: str
    far: str
    checkpoints: Sequence[Checkpoint]

    @property
    def last(self) -> dict[str, dict[TopicPartition, tuple[int, str]]]:
        """The last checkpoint of each partition, by group."""
        groups: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        for checkpoint in self.checkpoints:
            group = groups.setdefault(checkpoint.group, {})
            group[checkpoint.partition] = (checkpoint.downstream_offset, checkpoint.metadata)
        return groups


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorMakerJava]:
    """Kafka's classes, in a JVM of their own."""
    with mirror_maker_java(tmp_path_factory.mktemp("mirror-maker-java")) as classes:
        yield classes


@pytest.fixture(scope="module")
def flows(kafka: LocalCluster) -> Flows:
    """Topics of flows, with checkpoints that were written by twinlog's encoder."""
    near, far = (f"{name}{uuid.uuid4().hex[:8]}" for name in ("near", "far"))
    orders = f"{near}.orders"

    def checkpoint(group: str, index: int, offset: int, metadata: str = "") -> Checkpoint:
        return Checkpoint(
            group=group,
            partition=TopicPartition(orders, index),
            upstream_offset=offset + 100,
            downstream_offset=offset,
            metadata=metadata,
        )

    written = [
        *(checkpoint("billing", 0, 7), checkpoint("billing", 1, 8, "méta"), checkpoint("b", 0, 1)),
        *(checkpoint("billing", 0, 9, "later"), checkpoint("billing.eu", 2, 1 << 40)),
    ]
    heartbeats = (f"{near}.heartbeats", f"{near}.{far}.heartbeats")
    heartbeat = Heartbeat(source_cluster_alias=near, target_cluster_alias="here", timestamp=1)

    async def write() -> None:
        async with client(kafka) as cluster:
            internal = (*heartbeats, f"{near}.checkpoints.internal")
            for topic in (*internal, orders, f"{near}.{far}.clicks", f"plain-{near}"):
                await make_topic(cluster, topic, configs=COMPACTED if topic in internal else {})
            entries = [Entry(topic, 0, *encode(heartbeat)) for topic in heartbeats]
            entries += [Entry(internal[-1], 0, *encode(record)) for record in written]
            await put(cluster, entries)

    asyncio.run(write())
    return Flows({"bootstrap.servers": kafka.bootstrap_servers}, near, far, written)


@pytest.mark.parametrize("name", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"])
@pytest.mark.parametrize("alias", [None, "a"])
@pytest.mark.parametrize("separator", [None, ".", "_", "__", "a", ".."])
@pytest.mark.parametrize("internal", [None, "true", "FALSE"])
def test_policies_answer_as_kafkas_do(
    java: MirrorMakerJava, name: str, alias: str | None, separator: str | None, internal: str | None
) -> None:
    """Goal: every method, for every topic, with every setting."""
    settings = {
        "source.cluster.alias": alias,
        "replication.policy.separator": separator,
        "replication.policy.internal.topic.separator.enabled": internal,
    }
    properties = {key: value for key, value in settings.items() if value is not None}
    theirs = java[name]()
    theirs.configure(java.properties(properties))
    policy = policy_named(name, properties)
    answers = {
        (method, topic): (getattr(policy, method)(topic), getattr(theirs, java_method)(topic))
        for method, java_method in ONE_ARGUMENT.items()
        for topic in TOPICS
    }
    remote_names = {
        ("format_remote_topic", topic): (
            policy.format_remote_topic("us-west", topic),
            theirs.formatRemoteTopic("us-west", topic),
        )
        for topic in TOPICS
    }
    differences = {k: v for k, v in (answers | remote_names).items() if v[0] != v[1]}
    assert differences == {}
    assert policy.heartbeats_topic() == theirs.heartbeatsTopic()


@pytest.mark.parametrize("name", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"])
@pytest.mark.parametrize("separator", [".", "_", "a", ".."])
def test_cycles_are_found_as_by_kafkas_connector(
    java: MirrorMakerJava, name: str, separator: str
) -> None:
    """Goal: the same topics count as copied from the target, also where an alias comes again."""
    properties = {"source.cluster.alias": "x", "replication.policy.separator": separator}
    theirs = java[name]()
    theirs.configure(java.properties(properties))
    policy = policy_named(name, properties)
    repeated = [
        separator.join(parts)
        for count in range(1, 5)
        for parts in itertools.product(["x", "b", "orders", "heartbeats"], repeat=count)
    ]
    for target in ("b", "x", "orders"):
        connector = java.source_connector("x", target, theirs)
        answers = {topic: java.is_cycle(connector, topic) for topic in (*TOPICS, *repeated)}
        assert {topic: is_cycle(topic, target, policy) for topic in answers} == answers
        assert target != "b" or name != "DefaultReplicationPolicy" or any(answers.values())


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_golden_bytes_are_kafkas(java: MirrorMakerJava, sample: Sample) -> None:
    """Goal: the bytes that the unit tests rest on come from Kafka's classes."""
    key, value = java.encoded(_java_record(java, sample.record))
    assert (key.hex(), value.hex()) == (sample.key, sample.value)
    assert (key, value) == encode(sample.record)
    formatter = f"{type(sample.record).__name__}Formatter"
    assert java.formatted(formatter, key, value) == sample.text


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_twinlog_encodes_kafka_decodes(java: MirrorMakerJava, sample: Sample) -> None:
    """Goal: Kafka's class reads back each field."""
    record = sample.record
    decoded = java[type(record).__name__].deserializeRecord(java.consumed(*encode(record)))
    match record:
        case Heartbeat():
            assert decoded.sourceClusterAlias() == record.source_cluster_alias
            assert decoded.targetClusterAlias() == record.target_cluster_alias
            assert decoded.timestamp() == record.timestamp
        case Checkpoint():
            assert decoded.consumerGroupId() == record.group
            assert decoded.topicPartition().toString() == str(record.partition)
            assert decoded.upstreamOffset() == record.upstream_offset
            assert decoded.downstreamOffset() == record.downstream_offset
            assert decoded.metadata() == record.metadata
        case OffsetSync():
            assert decoded.topicPartition().toString() == str(record.partition)
            assert decoded.upstreamOffset() == record.upstream_offset
            assert decoded.downstreamOffset() == record.downstream_offset


def test_what_kafka_writes_twinlog_decodes(
    java: MirrorMakerJava, kafka: LocalCluster, topic: str
) -> None:
    """Goal: records that Kafka's classes encode and its producer writes."""

    async def run() -> None:
        async with client(kafka) as cluster:
            await make_topic(cluster, topic, configs=COMPACTED)
            pairs = [java.encoded(_java_record(java, sample.record)) for sample in SAMPLES]
            java.produce(kafka.bootstrap_servers, topic, pairs)
            found = await read_whole(cluster, topic)
            decoded = [
                DECODERS[type(sample.record)](record.key, record.value)
                for sample, record in zip(SAMPLES, found, strict=True)
            ]
            assert decoded == [sample.record for sample in SAMPLES]

    asyncio.run(run())


def test_kafka_translates_offsets_by_checkpoints_of_twinlog(
    java: MirrorMakerJava, flows: Flows
) -> None:
    """Goal: RemoteClusterUtils and MirrorClient find the last checkpoint of each partition."""
    utils, properties = java["RemoteClusterUtils"], java.properties(flows.properties)
    wait = java.seconds(120)
    billing = _offsets(utils.translateOffsets(properties, flows.near, "billing", wait))
    assert billing == flows.last["billing"]
    assert billing[TopicPartition(f"{flows.near}.orders", 0)] == (9, "later")
    assert not utils.translateOffsets(properties, flows.near, "unknown", wait)
    pattern = java["java.util.regex.Pattern"].compile("billing.*")
    groups = utils.translateOffsets(properties, flows.near, pattern, wait)
    expected = {group: rows for group, rows in flows.last.items() if group != "b"}
    assert {group: _offsets(rows) for group, rows in groups.items()} == expected
    theirs = java["MirrorClient"](properties)
    try:
        assert _offsets(theirs.remoteConsumerOffsets("b", flows.near, wait)) == flows.last["b"]
    finally:
        theirs.close()


def test_a_flow_without_records_has_no_offsets_for_kafkas_client(
    java: MirrorMakerJava, kafka: LocalCluster
) -> None:
    """Goal: a group is looked up right after the start of a flow, before anything is copied."""
    alias = f"new{uuid.uuid4().hex[:8]}"
    settings = {
        "enabled": "true",
        "checkpoints.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
    }
    given = {"bootstrap.servers": kafka.bootstrap_servers}
    source = stored_properties(given, settings, alias, f"to-{alias}")
    mirror = Mirror(name=alias, source=source, source_cluster_id="source")
    topics = {f"{alias}.checkpoints.internal", f"mm2-offset-syncs.to-{alias}.internal"}

    async def refresh() -> None:
        async with client(kafka) as cluster:
            snapshot = Snapshot({key_of(mirror): mirror})
            context = sync_context(cluster, cluster, None, alias, snapshot=snapshot)
            assert await run_sync(Checkpoints(), context) == 0
            for topic in topics:
                assert (await topic_configs(cluster, topic))["cleanup.policy"].value == "compact"
                assert len((await cluster.refresh([topic])).topics[topic].partitions) == 1
            async with MirrorClient(given) as ours:
                assert await ours.remote_consumer_offsets("billing", alias) == {}

    asyncio.run(refresh())
    utils, properties = java["RemoteClusterUtils"], java.properties(given)
    assert dict(utils.translateOffsets(properties, alias, "billing", java.seconds(120))) == {}
    assert f"{alias}.checkpoints.internal" in set(utils.checkpointTopics(properties))


def test_kafka_finds_the_topics_of_flows(java: MirrorMakerJava, flows: Flows) -> None:
    """Goal: the names that twinlog gives to topics are understood."""
    utils, properties = java["RemoteClusterUtils"], java.properties(flows.properties)
    near, far = flows.near, flows.far
    assert utils.replicationHops(properties, near) == 1
    assert utils.replicationHops(properties, far) == 2
    assert utils.replicationHops(properties, "unknown") == -1
    assert {near, far} <= set(utils.upstreamClusters(properties))
    assert {f"{near}.heartbeats", f"{near}.{far}.heartbeats"} <= set(
        utils.heartbeatTopics(properties)
    )
    assert f"{near}.checkpoints.internal" in set(utils.checkpointTopics(properties))
    theirs = java["MirrorClient"](properties)
    try:
        of_near = {f"{near}.orders", f"{near}.{far}.clicks"}
        heartbeats = {f"{near}.heartbeats", f"{near}.{far}.heartbeats"}
        assert set(theirs.remoteTopics(near)) == of_near | heartbeats
        assert of_near <= set(theirs.remoteTopics())
    finally:
        theirs.close()


def test_the_client_answers_as_kafkas_does(java: MirrorMakerJava, flows: Flows) -> None:
    """Goal: MirrorClient and RemoteClusterUtils return the same for the same topics."""
    utils = java["RemoteClusterUtils"]
    wait, pattern = java.seconds(120), java["java.util.regex.Pattern"].compile("b.*")
    policies: tuple[dict[str, str], ...] = (
        {},
        {"replication.policy.separator": "-"},
        {"replication.policy.class": f"{PACKAGE}.IdentityReplicationPolicy"},
        {
            "replication.policy.class": f"{PACKAGE}.IdentityReplicationPolicy",
            "source.cluster.alias": flows.near,
        },
        {
            "replication.policy.separator": "_",
            "replication.policy.internal.topic.separator.enabled": "false",
        },
    )

    async def compare(settings: dict[str, str], theirs: Any, properties: Any) -> None:
        async with MirrorClient(flows.properties | settings) as ours:
            aliases = ("unknown", flows.near, flows.far, "test")
            for alias in aliases:
                hops = utils.replicationHops(properties, alias)
                assert await ours.replication_hops(alias) == hops
                assert await ours.remote_topics(alias) == set(theirs.remoteTopics(alias))
            assert await ours.remote_topics() == set(theirs.remoteTopics())
            assert await ours.heartbeat_topics() == set(utils.heartbeatTopics(properties))
            assert await ours.checkpoint_topics() == set(utils.checkpointTopics(properties))
            assert await ours.upstream_clusters() == set(utils.upstreamClusters(properties))
            if settings.get("replication.policy.separator") == "-":
                return  # its topic of checkpoints has another name
            for group in ("billing", "b", "billing.eu", "unknown"):
                expected = _offsets(utils.translateOffsets(properties, flows.near, group, wait))
                found = await ours.remote_consumer_offsets(group, flows.near)
                assert {name: row[:2] for name, row in found.items()} == expected
            groups = theirs.remoteConsumerOffsets(pattern, flows.near, wait)
            by_group = await ours.remote_consumer_offsets(re.compile("b.*"), flows.near)
            assert {
                group: {name: row[:2] for name, row in rows.items()}
                for group, rows in by_group.items()
            } == {group: _offsets(rows) for group, rows in groups.items()}

    for settings in policies:
        properties = java.properties(flows.properties | settings)
        theirs = java["MirrorClient"](properties)
        try:
            asyncio.run(compare(settings, theirs, properties))
        finally:
            theirs.close()


def test_remote_cluster_utils_answer_as_kafkas_do(java: MirrorMakerJava, flows: Flows) -> None:
    theirs, properties = java["RemoteClusterUtils"], java.properties(flows.properties)
    ours = RemoteClusterUtils

    async def run() -> None:
        given = flows.properties
        assert await ours.replication_hops(given, flows.far) == 2
        assert await ours.heartbeat_topics(given) == set(theirs.heartbeatTopics(properties))
        assert await ours.checkpoint_topics(given) == set(theirs.checkpointTopics(properties))
        assert await ours.upstream_clusters(given) == set(theirs.upstreamClusters(properties))
        billing = await ours.translate_offsets(given, flows.near, "billing")
        assert {name: row[:2] for name, row in billing.items()} == flows.last["billing"]
        groups = await ours.translate_offsets(given, flows.near, re.compile("billing"))
        assert groups == {"billing": billing}

    asyncio.run(run())


def _offsets(rows: Any) -> dict[TopicPartition, tuple[int, str]]:
    """A Java map of partitions to offsets with metadata."""
    return {
        TopicPartition(partition.topic(), partition.partition()): (at.offset(), at.metadata())
        for partition, at in rows.items()
    }


def _java_record(java: MirrorMakerJava, record: Mm2Record) -> Any:
    """The same record, made of Kafka's class."""
    match record:
        case Heartbeat():
            return java["Heartbeat"](
                record.source_cluster_alias, record.target_cluster_alias, record.timestamp
            )
        case Checkpoint():
            return java["Checkpoint"](
                record.group,
                java.partition(*record.partition),
                record.upstream_offset,
                record.downstream_offset,
                record.metadata,
            )
        case OffsetSync():
            return java["OffsetSync"](
                java.partition(*record.partition), record.upstream_offset, record.downstream_offset
            )
