"""Topics and configurations of a cluster: thin functions, a result for each item.

All requests go to the controller; KRaft brokers forward them. Each may be carried out twice (see
`cluster.py`), so a careful caller expects what exists already: 36 TOPIC_ALREADY_EXISTS and 37
INVALID_PARTITIONS are returned as a `Refusal` like any other. What an answer leaves out is refused
with NETWORK_EXCEPTION: nothing is known about it.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, Topic, is_another
from twinlog.kafka.client.pool import SLOW
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable

_BROKER_DEFAULT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1: the broker's default."""

    name: str
    partitions: int = _BROKER_DEFAULT
    replication_factor: int = _BROKER_DEFAULT
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Broker ids of each partition; the two numbers above then stay -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


async def absent_everywhere(cluster: KafkaCluster, names: Collection[str]) -> set[str]:
    """The topics of which *every* broker reports that they do not exist.

    A broker that has just started, or is cut off from the controllers, may not know a topic yet, or
    any more. So a deletion is concluded only from the answers of all brokers, and not at all if one
    does not answer.

    Raises:
        Retriable: a broker does not answer.
    """
    brokers = cluster.metadata.brokers
    if not brokers:
        return set()
    item = MetadataRequest.MetadataRequestTopic

    async def absent(node: int) -> set[str]:
        topics = [item(name=name) for name in sorted(names)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=4)
        response = await cluster.call(request, node=node)
        return {
            topic.name
            for topic in response.topics
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    return set(names).intersection(*await asyncio.gather(*map(absent, brokers)))


class KnownTopic(NamedTuple):
    """What the brokers of a cluster know of a topic, taken together."""

    ids: frozenset[UUID]
    """More than one if a broker has not learned yet that it was recreated."""
    partitions: int
    """The largest number that a broker shows."""
    internal: bool
    everywhere: bool = True
    """Whether each broker knows a topic of this name."""

    @property
    def agreed_id(self) -> UUID | None:
        """The one id under which each broker knows it; None: they do not agree."""
        return next(iter(self.ids)) if self.everywhere and len(self.ids) == 1 else None

    def has_another(self, topic_id: UUID | None) -> bool:
        """Whether a broker knows another topic of this name."""
        return any(is_another(topic_id, one) for one in self.ids)


async def known_topics(
    cluster: KafkaCluster, names: Collection[str] | None = None
) -> dict[str, KnownTopic]:
    """The topics that *some* broker knows.

    Topics that the client may not describe are left out. As in `absent_everywhere`, each broker is
    asked, so a topic or partition that is missing here does not exist, or was created just now. It
    has no records that are older than this call: its leader would know it. If a broker does not
    answer, the metadata is refreshed: a broker that has died is not asked again.

    Args:
        cluster: where.
        names: the topics to ask for; None: all.

    Raises:
        Retriable: a broker does not answer within default.api.timeout.ms.
    """
    item = MetadataRequest.MetadataRequestTopic

    async def known(node: int) -> list[tuple[str, KnownTopic]]:
        topics = None if names is None else [item(name=name) for name in sorted(names)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=4)
        response = await cluster.call(request, node=node, once=True)
        return [
            (
                topic.name,
                KnownTopic(
                    frozenset({topic.topic_id or NO_TOPIC_ID}),
                    len(topic.partitions),
                    topic.is_internal,
                ),
            )
            for topic in response.topics
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]

    async def ask_all() -> dict[str, KnownTopic]:
        brokers = (await cluster.refresh(())).brokers
        if not brokers:
            raise Retriable("the metadata contains no broker", cluster=cluster.name)
        found: dict[str, KnownTopic] = {}
        counts: Counter[str] = Counter()
        for answer in await asyncio.gather(*map(known, brokers)):
            for name, topic in answer:
                counts[name] += 1
                former = found.get(name, topic)
                found[name] = KnownTopic(
                    former.ids | topic.ids,
                    max(former.partitions, topic.partitions),
                    former.internal or topic.internal,
                    everywhere=counts[name] == len(brokers),
                )
        return found

    return await cluster.persist(ask_all)


async def require_all_shown(cluster: KafkaCluster, topics: Mapping[str, Topic]) -> None:
    """Check that no broker knows more partitions of these topics, or other topics of these names.

    A broker that is cut off from the controllers shows the former partitions of a topic that has
    grown, and the former id of one that was recreated.

    Args:
        cluster: where.
        topics: the topics as metadata has shown them, by name.

    Raises:
        Retriable: one of them has more partitions, or another id; or a broker does not answer.
    """
    if not topics:
        return
    for name, known in (await known_topics(cluster, topics)).items():
        if known.partitions > (shown := len(topics[name].partitions)):
            raise Retriable(
                f"a broker shows {shown} partitions, and another one {known.partitions}",
                topic=name,
                cluster=cluster.name,
            )
        if known.has_another(topics[name].topic_id):
            raise Retriable("the brokers report several ids", topic=name, cluster=cluster.name)


async def topic_names(cluster: KafkaCluster) -> set[str]:
    """The topics that *some* broker knows (`known_topics`), without Kafka's internal ones.

    Raises:
        Retriable: a broker does not answer within default.api.timeout.ms.
    """
    known = await known_topics(cluster)
    return {name for name, topic in known.items() if not topic.internal}


async def confirm_absent(cluster: KafkaCluster, name: str) -> None:
    """Return if every broker reports that a topic does not exist.

    Raises:
        Retriable: a broker knows the topic, or does not answer.
    """
    if not await absent_everywhere(cluster, [name]):
        raise Retriable("the topic is not yet known to every broker", topic=name)


class ConfigResourceType(IntEnum):
    """The type of a resource that has configurations."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """A resource that has configurations (a broker's name is its id; empty: all brokers)."""

    kind: ConfigResourceType
    name: str


class ConfigSource(IntEnum):
    """The origin of a value."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntry(NamedTuple):
    """A configuration's value. `value` is None if it is sensitive."""

    value: str | None
    source: int
    read_only: bool
    sensitive: bool


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """A change of one configuration."""

    name: str
    operation: AlterOperation
    value: str | None = None


def topic_resource(name: str) -> Resource:
    """A topic as a resource that has configurations."""
    return Resource(ConfigResourceType.TOPIC, name)


async def create_topics(
    cluster: KafkaCluster,
    topics: Collection[NewTopic],
    *,
    validate_only: bool = False,
    once: bool = False,
    timeout: float | None = None,
) -> dict[str, UUID | Refusal]:
    """Create topics; return the id of each.

    Args:
        cluster: where.
        topics: what is created.
        validate_only: whether it is only tried, without effect.
        once: whether there is only one try (`KafkaCluster.call`).
        timeout: seconds.
    """
    item = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            item(
                name=t.name,
                num_partitions=t.partitions,
                replication_factor=t.replication_factor,
                assignments=[
                    item.CreatableReplicaAssignment(partition_index=i, broker_ids=list(ids))
                    for i, ids in t.assignment.items()
                ],
                configs=[
                    item.CreatableTopicConfig(name=name, value=value)
                    for name, value in t.configs.items()
                ],
            )
            for t in topics
        ],
        timeout_ms=_milliseconds(cluster),
        validate_only=validate_only,
    )
    response = await cluster.call(request, node=CONTROLLER, timeout=timeout, lane=SLOW, once=once)
    answers: dict[str, UUID | Refusal] = {t.name: LEFT_OUT for t in topics}
    return answers | {t.name: refusal_of(t) or t.topic_id for t in response.topics}


async def create_partitions(
    cluster: KafkaCluster, counts: Mapping[str, int], *, timeout: float | None = None
) -> dict[str, Refusal | None]:
    """Raise the partition counts of topics; None for each that is done."""
    item = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[item(name=name, count=n, assignments=None) for name, n in counts.items()],
        timeout_ms=_milliseconds(cluster),
        validate_only=False,
    )
    response = await cluster.call(request, node=CONTROLLER, timeout=timeout, lane=SLOW)
    answers: dict[str, Refusal | None] = dict.fromkeys(counts, LEFT_OUT)
    return answers | {r.name: refusal_of(r) for r in response.results}


async def delete_topics(
    cluster: KafkaCluster,
    names: Collection[str],
    *,
    ids: Mapping[str, UUID] | None = None,
    once: bool = False,
    timeout: float | None = None,
) -> dict[str, Refusal | None]:
    """Delete topics; None for each that is deleted.

    Args:
        cluster: where they are.
        names: their names.
        ids: their ids; a topic that was recreated meanwhile is then not deleted, if the broker
            supports ids (KIP-516). None: they are deleted by name.
        once: whether there is only one try (`KafkaCluster.call`).
        timeout: seconds.
    """
    item = DeleteTopicsRequest.DeleteTopicState
    topic_ids = {name: (ids or {}).get(name, NO_TOPIC_ID) for name in names}
    request = DeleteTopicsRequest(
        topics=[
            item(name=name if topic_id == NO_TOPIC_ID else None, topic_id=topic_id)
            for name, topic_id in topic_ids.items()
        ],
        topic_names=list(names),
        timeout_ms=_milliseconds(cluster),
    )
    response = await cluster.call(request, node=CONTROLLER, timeout=timeout, lane=SLOW, once=once)
    by_id = {topic_id: name for name, topic_id in topic_ids.items()}
    answers: dict[str, Refusal | None] = dict.fromkeys(names, LEFT_OUT)
    return answers | {r.name or by_id[r.topic_id]: refusal_of(r) for r in response.responses}


async def describe_configs(
    cluster: KafkaCluster,
    resources: Collection[Resource],
    names: Collection[str] | None = None,
    *,
    node: int | None = None,
    timeout: float | None = None,
) -> dict[Resource, dict[str, ConfigEntry] | Refusal]:
    """Configurations of resources: all, or those with these names.

    A broker's own are requested from that broker, the rest from `node`, or from any. A topic's
    that are not set on the topic are the answering broker's own.
    """
    answers: dict[Resource, dict[str, ConfigEntry] | Refusal] = dict.fromkeys(resources, LEFT_OUT)
    for owner, group in _by_node(resources).items():
        item = DescribeConfigsRequest.DescribeConfigsResource
        keys = None if names is None else list(names)
        request = DescribeConfigsRequest(
            resources=[
                item(resource_type=int(r.kind), resource_name=r.name, configuration_keys=keys)
                for r in group
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        asked = node if owner is None else owner
        response = await cluster.call(request, node=asked, timeout=timeout)
        for r in response.results:
            entries = {
                c.name: ConfigEntry(c.value, c.config_source, c.read_only, c.is_sensitive)
                for c in r.configs
            }
            resource = Resource(ConfigResourceType(r.resource_type), r.resource_name)
            answers[resource] = refusal_of(r) or entries
    return answers


async def incremental_alter_configs(
    cluster: KafkaCluster,
    changes: Mapping[Resource, Collection[Alteration]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> dict[Resource, Refusal | None]:
    """Change configurations (KIP-339), all of a resource or none; None for each that is done.

    SET and DELETE may be carried out twice without harm. So may APPEND and SUBTRACT, as Kafka's
    lists contain each entry once.
    """
    answers: dict[Resource, Refusal | None] = dict.fromkeys(changes, LEFT_OUT)
    for node, group in _by_node(changes).items():
        item = IncrementalAlterConfigsRequest.AlterConfigsResource
        request = IncrementalAlterConfigsRequest(
            resources=[
                item(
                    resource_type=int(r.kind),
                    resource_name=r.name,
                    configs=[
                        item.AlterableConfig(
                            name=c.name, config_operation=int(c.operation), value=c.value
                        )
                        for c in changes[r]
                    ],
                )
                for r in group
            ],
            validate_only=validate_only,
        )
        response = await cluster.call(request, node=node, timeout=timeout)
        for r in response.responses:
            resource = Resource(ConfigResourceType(r.resource_type), r.resource_name)
            answers[resource] = refusal_of(r)
    return answers


def _by_node(resources: Collection[Resource]) -> dict[int | None, list[Resource]]:
    """Resources by the broker that has to be asked (None: any)."""
    groups: dict[int | None, list[Resource]] = {}
    for resource in resources:
        needs_broker = (
            resource.kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
            and resource.name
        )
        groups.setdefault(int(resource.name) if needs_broker else None, []).append(resource)
    return groups


def refusal_of(item: Any) -> Refusal | None:
    """The refusal of an item of an answer; None if it was done."""
    return Refusal(item.error_code, item.error_message or "") if item.error_code else None


def _milliseconds(cluster: KafkaCluster) -> int:
    return int(cluster.config.request_timeout * 1000)
