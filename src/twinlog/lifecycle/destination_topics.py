"""Decides what a mirror's topics have to be on the destination, and creates or changes them.

Everything is read first, then tried without effect (`try_out`), then done. If a step is refused,
the earlier ones are undone (`prepare`).
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID, uuid4

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import REFUSED_VALUE, Refusal, TwinlogError, UserError
from twinlog.kafka.requests.partitions import DEBUGGING, OffsetSpec, list_offsets
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
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.failback import Ends
from twinlog.mirror.errors import MirrorError
from twinlog.mirror.settings import EXCLUDE, parse_settings
from twinlog.mirror.topic_configs import (
    BATCH_LIMITS,
    MAX_MESSAGE_BYTES,
    SourceConfig,
    batch_limit_of,
    destination_configs,
    set_back,
)
from twinlog.store.config_records import Mirror
from twinlog.store.control_topics import CONFIG_TOPIC
from twinlog.store.mirrors import MirrorStore

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_CREATE: Final = "create the topic on the destination"
_LONGEST_STEM: Final = 240
"""Characters of a topic name that leave room for a suffix of nine."""
_EXCLUDE: Final = f"nothing was added; exclude configurations by {EXCLUDE}"
_HINTS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_REPLICATION_FACTOR: "nothing was added; set --replication-factor to a number "
    "that the destination's brokers support",
    ErrorCode.INVALID_CONFIG: _EXCLUDE,
    ErrorCode.POLICY_VIOLATION: _EXCLUDE,
}
"""Hints for INVALID_REPLICATION_FACTOR, INVALID_CONFIG, POLICY_VIOLATION."""
_CHUNK: Final = 200
"""Topics in one request about topics or configurations."""


@dataclass(frozen=True, slots=True)
class DestinationTopic:
    """A topic as it has to be on the destination, and how many partitions it has there.

    `topic_id` is that of the destination's topic; None if it does not exist or has no id.
    """

    name: str
    topic_id: UUID | None
    partitions: int
    configs: Mapping[str, str]
    there: int
    set_back: tuple[tuple[str, str], ...]
    """The configurations that its failover sets."""
    source_batch_limit: int = 0
    """The source's own `max.message.bytes`: the minimum on the destination."""
    anew: bool = False
    """Whether it has to be recreated: it was removed from a mirror and is not empty."""


class History(NamedTuple):
    """What is known of topics that the destination has."""

    ends: Ends
    """Last mirrored ends of the topics that were failed over from the destination to the source."""
    made_again: Collection[str]
    """Topics that were failed over, and recreated since."""
    removed: Collection[str]
    """Topics that mirrors of the same source have had on the destination."""
    unknown: str
    """Why it is unknown which topics were failed over; empty if it is known."""


async def existing_topics(destination: KafkaCluster, names: Collection[str]) -> dict[str, Topic]:
    """Those of these topics that exist on the destination, by fresh metadata.

    Raises:
        UserError: a topic may not be described.
        Retriable: the destination is unreachable.
    """
    topics = (await destination.refresh(names)).topics
    existing = {name: topics[name] for name in names if name in topics}
    for topic in existing.values():
        if topic.error:
            Refusal(topic.error).fail("describe the destination topic", topic=topic.name)
    return existing


async def wanted_topics(
    destination: KafkaCluster,
    mirror: Mirror,
    topics: Sequence[Topic],
    configs: Mapping[str, Mapping[str, SourceConfig]],
    existing: Mapping[str, Topic],
    *,
    history: History,
) -> list[DestinationTopic]:
    """What each topic has to be on the destination.

    Args:
        destination: the mirror's cluster.
        mirror: the mirror.
        topics: the source's topics.
        configs: their configurations (`source_configs`).
        existing: those of them that the destination has (`existing_topics`).
        history: what is known of the existing ones.

    Raises:
        MirrorRefused: TOPIC_ALREADY_EXISTS: a topic exists, and is neither empty with as many
            partitions, nor failed over, nor removed from a mirror.
    """
    config_names = await known_configs(destination)
    exclude = parse_settings(mirror.source).topic_properties_exclude
    planned = [
        DestinationTopic(
            topic.name,
            known_id(existing[topic.name].topic_id) if topic.name in existing else None,
            len(topic.partitions),
            destination_configs(configs[topic.name], exclude, config_names),
            len(existing[topic.name].partitions) if topic.name in existing else 0,
            set_back(configs[topic.name]),
            batch_limit_of(configs[topic.name]),
        )
        for topic in topics
    ]
    existing_topics = [topic for topic in planned if topic.there]
    anew = await _check_empty(destination, existing_topics, history)
    return [replace(topic, anew=topic.name in anew) for topic in planned]


def known_id(topic_id: UUID) -> UUID | None:
    """A topic's id; None from brokers before 2.8, whose topics have none."""
    return None if topic_id == NO_TOPIC_ID else topic_id


def still_here(ends: Ends, topics: Iterable[DestinationTopic]) -> Ends:
    """The ends of those partitions that the destination still has, and keeps."""
    partition_counts = {topic.name: topic.there for topic in topics if not topic.anew}
    return {p: end for p, end in ends.items() if p.partition < partition_counts.get(p.topic, 0)}


async def known_configs(destination: KafkaCluster) -> Collection[str]:
    """Names of the topic configurations that the destination's brokers know.

    Raises:
        UserError: a right is missing.
        Retriable: the destination is unreachable.
    """
    resource = topic_resource(CONFIG_TOPIC)
    entries = (await describe_configs(destination, [resource]))[resource]
    if isinstance(entries, Refusal):
        raise entries.error("read the configurations of the control topic", topic=CONFIG_TOPIC)
    return entries.keys()


async def _check_empty(
    destination: KafkaCluster, existing: Sequence[DestinationTopic], history: History
) -> frozenset[str]:
    """Check what `wanted_topics` requires; return the topics that have to be recreated."""
    troubles: list[str] = []
    unguarded: list[DestinationTopic] = []
    for topic in existing:
        if not all(partition in history.ends for partition in _partitions(topic)):
            unguarded.append(topic)
        elif topic.there > topic.partitions:
            troubles.append(_sizes(topic))
    records_by_topic = await _held(destination, unguarded)
    anew = records_by_topic.keys() & history.removed
    for topic in unguarded:
        if topic.name not in anew:
            troubles += [_sizes(topic)] if topic.there != topic.partitions else []
            troubles += records_by_topic.get(topic.name, ())
            if topic.name in records_by_topic and topic.name in history.made_again:
                troubles.append(f"{topic.name} was recreated since it was failed over")
    if troubles:
        history_note = history.unknown and f" ({history.unknown})"
        raise MirrorError.TOPIC_ALREADY_EXISTS.error(
            f"unsuitable topics on the destination: {'; '.join(troubles)}",
            hint="the topic must not exist on the destination, or be empty with the same number "
            "of partitions, or have been failed over to the source by a mirror that still "
            f"exists{history_note}",
        )
    return frozenset(anew)


def _partitions(topic: DestinationTopic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.there)]


def _sizes(topic: DestinationTopic) -> str:
    return f"{topic.name} has {topic.there} partitions, the source topic has {topic.partitions}"


async def _held(
    destination: KafkaCluster, topics: Iterable[DestinationTopic]
) -> dict[str, list[str]]:
    """Descriptions of these topics' partitions that are not empty, by topic."""
    partitions = [partition for topic in topics for partition in _partitions(topic)]
    log_ends = await list_offsets(destination, partitions, OffsetSpec.LATEST, replica_id=DEBUGGING)
    descriptions: dict[str, list[str]] = {}
    for partition, end in log_ends.items():
        if isinstance(end, Refusal):
            end.fail("check whether the destination topic is empty", topic=partition.topic)
        elif end.offset:
            description = f"{partition} is not empty, its log end offset is {end.offset}"
            descriptions.setdefault(partition.topic, []).append(description)
    return descriptions


async def fitted(
    destination: KafkaCluster,
    planned: Sequence[DestinationTopic],
    factor: int,
    to_be_deleted: Collection[str] = (),
) -> list[DestinationTopic]:
    """The topics as the destination accepts them: tried out, with an accepted batch limit.

    Managed services cap `max.message.bytes`. The desired value is more than most topics need, so
    the largest of `BATCH_LIMITS` that is accepted is used, and at least the source's own.

    Raises:
        As `try_out`; if a configuration is refused whatever the limit, the first refusal.
    """
    refusal: UserError | None = None
    for limit in BATCH_LIMITS:
        topics = [_with_batch_limit(topic, limit) for topic in planned]
        try:
            await try_out(destination, topics, factor, to_be_deleted)
        except UserError as error:
            if error.code not in REFUSED_VALUE:
                raise
            refusal = refusal or error
        else:
            if refusal is not None:
                log.warning(
                    "the destination rejects %s=%d; largest accepted value: %s",
                    *(MAX_MESSAGE_BYTES, BATCH_LIMITS[0], limit or "that of the source"),
                )
            return topics
    assert refusal is not None
    raise refusal


def _with_batch_limit(topic: DestinationTopic, limit: int) -> DestinationTopic:
    if MAX_MESSAGE_BYTES not in topic.configs:
        return topic
    value = str(max(limit, topic.source_batch_limit))
    return replace(topic, configs={**topic.configs, MAX_MESSAGE_BYTES: value})


async def try_out(
    destination: KafkaCluster,
    planned: Sequence[DestinationTopic],
    factor: int,
    to_be_deleted: Collection[str] = (),
) -> None:
    """Try without effect what `prepare` does.

    A topic that exists until it is deleted is also tried under an unused name: for its own name,
    brokers (4.3.1 and 3.9.1) answer TOPIC_ALREADY_EXISTS, whatever else is wrong.

    Raises:
        MirrorRefused: TOPIC_ALREADY_EXISTS: a topic was created since it was checked.
        UserError: something is refused; nothing has been created.
    """
    new_topics = _missing(planned, factor)
    for topics in chunks(new_topics):
        answers = await create_topics(destination, topics, validate_only=True)
        _refuse({n: a for n, a in answers.items() if not _is_there(n, a, to_be_deleted)}, _CREATE)
    unused = {
        f"{topic.name[:_LONGEST_STEM]}.{uuid4().hex[:8]}": topic
        for topic in new_topics
        if topic.name in to_be_deleted
    }
    for names in chunks(list(unused)):
        substitutes = [replace(unused[name], name=name) for name in names]
        answers = await create_topics(destination, substitutes, validate_only=True)
        # A principal that may create topics of certain names only may not try another name.
        answers_by_topic = {
            unused[n].name: a
            for n, a in answers.items()
            if not _is(a, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        }
        _refuse(answers_by_topic, _CREATE)
    await _configure(destination, planned, validate_only=True)


def _is(answer: object, code: int) -> bool:
    return isinstance(answer, Refusal) and answer.code == code


def _is_there(name: str, answer: object, to_be_deleted: Collection[str]) -> bool:
    return name in to_be_deleted and _is(answer, ErrorCode.TOPIC_ALREADY_EXISTS)


async def prepare(
    destination: KafkaCluster, planned: Sequence[DestinationTopic], factor: int
) -> dict[str, UUID]:
    """Create missing topics and configure existing ones; return the ids of the created ones.

    Raises:
        MirrorRefused: TOPIC_ALREADY_EXISTS: a topic was created since it was checked.
        UserError: something is refused; the created topics are deleted again.
    """
    grown = {
        topic.name: topic.partitions for topic in planned if 0 < topic.there < topic.partitions
    }
    created_ids: dict[str, UUID] = {}
    try:
        for topics in chunks(_missing(planned, factor)):
            answers = await create_topics(destination, topics)
            created_ids |= {n: answer for n, answer in answers.items() if isinstance(answer, UUID)}
            _refuse(answers, _CREATE)
        await _configure(destination, planned)
        if grown:
            more = await create_partitions(destination, grown)
            _refuse(more, "add partitions to the destination topic")
    except TwinlogError:
        await undo(destination, created_ids)
        raise
    return created_ids


def _missing(planned: Iterable[DestinationTopic], factor: int) -> list[NewTopic]:
    return [
        NewTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=factor,
            configs=dict(topic.configs),
        )
        for topic in planned
        if not topic.there
    ]


async def _configure(
    destination: KafkaCluster, planned: Iterable[DestinationTopic], *, validate_only: bool = False
) -> None:
    changes = {
        topic_resource(topic.name): [
            Alteration(name, AlterOperation.SET, value) for name, value in topic.configs.items()
        ]
        for topic in planned
        if topic.there
    }
    if changes:
        altered = await incremental_alter_configs(destination, changes, validate_only=validate_only)
        by_name = {resource.name: answer for resource, answer in altered.items()}
        _refuse(by_name, "alter the configurations of the destination topic")


def _refuse(answers: Mapping[str, Any], operation: str) -> None:
    for name, answer in answers.items():
        if isinstance(answer, Refusal):
            if answer.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                raise MirrorError.TOPIC_ALREADY_EXISTS.error(
                    f"{name} was created on the destination in the meantime",
                    hint="nothing was added; try again",
                )
            error = answer.error(operation, topic=name)
            error.hint = error.hint or _HINTS.get(answer.code, "nothing was added")
            raise error


async def undo(destination: KafkaCluster, created_ids: Mapping[str, UUID]) -> None:
    """Delete the topics that this command has created, except those that a mirror has by now.

    Args:
        destination: the cluster that holds them.
        created_ids: their ids: a topic that was recreated since is not deleted.
    """
    snapshot = await MirrorStore(destination).snapshot()
    unmirrored = [name for name in created_ids if snapshot.mirror_of(name) is None]
    for names in chunks(unmirrored):
        await delete_topics(destination, names, ids=created_ids)


def chunks(items: Sequence[_T]) -> Iterable[Sequence[_T]]:
    """Split topics into groups that fit into one request."""
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
