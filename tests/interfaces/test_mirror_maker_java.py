"""Kafka's own classes, as the oracle of what claims to be compatible with MirrorMaker 2."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from mirror_maker_java import MirrorMakerJava, mirror_maker_java
from mm2_samples import SAMPLES, Sample

from twinlog.mirror.mm2_records import Checkpoint, Heartbeat, Mm2Record, OffsetSync, encode
from twinlog.mirror.replication_policy import policy_named

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


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorMakerJava]:
    """Kafka's classes, in a JVM of their own."""
    with mirror_maker_java(tmp_path_factory.mktemp("mirror-maker-java")) as classes:
        yield classes


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


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_golden_bytes_are_kafkas(java: MirrorMakerJava, sample: Sample) -> None:
    """Goal: the bytes that the unit tests rest on come from Kafka's classes."""
    key, value = java.encoded(_java_record(java, sample.record))
    assert (key.hex(), value.hex()) == (sample.key, sample.value)
    assert (key, value) == encode(sample.record)
    formatter = f"{type(sample.record).__name__}Formatter"
    assert java.formatted(formatter, key, value) == sample.text


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
