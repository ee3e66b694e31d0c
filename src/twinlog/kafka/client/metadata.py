"""A cluster's metadata: brokers, topics, leaders. Immutable; a refresh gives a new snapshot.

Brokers learn of changes one after the other, so an answer may be older than what is known already.
A partition's leader epoch only grows: an answer with a smaller one is ignored for that partition
(KIP-320), unless the topic was recreated, which its id shows (KIP-516).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Refusal, UserError
from twinlog.kafka.types import TopicPartition

NO_TOPIC_ID = UUID(int=0)
MAX_BROKERS: Final = 1000
"""Brokers that a cluster may have. Some requests go to each broker at the same time, each over its
own connection: a source whose answer names millions would exhaust what all mirrors need."""


class Broker(NamedTuple):
    """A broker, and the address of its listener for this client."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """A partition's leader and its epoch (-1 where brokers do not report it)."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's state. `leader` is -1 if it has none; `error` is Kafka's code for it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int = 0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's state. `error` is not 0 if, for example, the client may not describe it."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, Partition]
    error: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """A snapshot. `topics` holds only topics that were requested and exist."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, Topic] = field(default_factory=lambda: MappingProxyType({}))
    by_id: Mapping[UUID, Topic] = field(default_factory=lambda: MappingProxyType({}))

    def leader(self, partition: TopicPartition) -> Leader | Refusal:
        """The leader of a partition, or why there is none."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is not in the metadata")
        if topic.error:
            return Refusal(topic.error)
        state = topic.partitions.get(partition.partition)
        if state is None:
            return Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"the partition is not in the metadata: the topic has {len(topic.partitions)} "
                "partitions",
            )
        if state.leader < 0:
            return Refusal(state.error or ErrorCode.LEADER_NOT_AVAILABLE)
        return Leader(state.leader, state.leader_epoch)

    def leads(self, node: int, partition: TopicPartition) -> bool:
        """Whether this broker leads a partition."""
        topic = self.topics.get(partition.topic)
        state = None if topic is None or topic.error else topic.partitions.get(partition.partition)
        return state is not None and 0 <= state.leader == node


EMPTY = Metadata()


def is_another(known_id: UUID | None, topic_id: UUID) -> bool:
    """Whether a topic was recreated under its name, as far as its ids are known.

    A broker may temporarily not report an id; brokers before 2.8 never do.
    """
    return known_id not in {None, NO_TOPIC_ID, topic_id} and topic_id != NO_TOPIC_ID


def merge(metadata: Metadata, response: Any, *, all_topics: bool) -> Metadata:
    """`metadata` updated by a MetadataResponse; with `all_topics` it lists all topics there are.

    Raises:
        UserError: the answer comes from another cluster than the earlier ones.
        ProtocolError: it names more brokers than `MAX_BROKERS`.
    """
    if len(response.brokers) > MAX_BROKERS:
        raise ProtocolError(
            f"a Metadata response contains {len(response.brokers)} brokers, expected at most "
            f"{MAX_BROKERS}"
        )
    if metadata.cluster_id is not None and response.cluster_id not in (None, metadata.cluster_id):
        raise UserError(
            f"the brokers report cluster id {response.cluster_id}, expected {metadata.cluster_id}",
            hint="check bootstrap.servers and the brokers' advertised.listeners",
            code=ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
    topics: dict[str, Topic] = {} if all_topics else dict(metadata.topics)
    for item in response.topics:
        if item.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            topics.pop(item.name, None)
        else:
            topics[item.name] = _topic(item, metadata.topics.get(item.name))
    brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
    return Metadata(
        cluster_id=response.cluster_id or metadata.cluster_id,
        controller_id=response.controller_id,
        brokers=MappingProxyType(brokers),
        topics=MappingProxyType(topics),
        by_id=MappingProxyType({t.topic_id: t for t in topics.values()}),
    )


def _topic(item: Any, known_topic: Topic | None) -> Topic:
    topic_id = item.topic_id or NO_TOPIC_ID
    if item.error_code and topic_id == NO_TOPIC_ID and known_topic is not None:
        topic_id = (
            known_topic.topic_id
        )  # the right to describe it was withdrawn: no id, no partitions
    known_partitions = (
        known_topic.partitions
        if known_topic is not None and known_topic.topic_id == topic_id
        else {}
    )
    partitions: dict[int, Partition] = {}
    for p in item.partitions:
        partition = Partition(
            p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes), p.error_code
        )
        known_partition = known_partitions.get(p.partition_index)
        stale = (
            known_partition is not None
            and 0 <= partition.leader_epoch < known_partition.leader_epoch
        )
        partitions[p.partition_index] = (
            known_partition if known_partition is not None and stale else partition
        )
    if item.error_code and known_topic is not None and not partitions:
        partitions = dict(known_partitions)
    return Topic(
        item.name, topic_id, item.is_internal, MappingProxyType(partitions), item.error_code
    )


def check_cluster_id(name: str, reported_id: str, expected_id: str) -> None:
    """Check that a cluster is the expected one: an address may lead to another one at any time.

    Args:
        name: the cluster's name in the message.
        reported_id: the id that its brokers report.
        expected_id: the id that it had.

    Raises:
        UserError: it is another cluster.
    """
    if reported_id != expected_id:
        raise UserError(
            f"bootstrap.servers of {name} lead to cluster {reported_id}, expected {expected_id}",
            hint="correct bootstrap.servers; for another source cluster, create another mirror",
            code=ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
