"""Remote topics that would get records of two source topics, or those of one topic twice.

- **Two source topics of a flow.** A policy of one's own may give two topics one name. A flow that
  writes in transactions keeps one committed position for each remote partition, so two source
  partitions would overwrite each other's.
- **One source topic, and two mirrors.** Each record would be written twice. That is what becomes of
  two aliases of one cluster where names do not have them (`IdentityReplicationPolicy`).

A removed topic counts as well: what was copied of it is still there, and another flow would begin
anew, or go on where it was. It does not count if the source topic is known to be another one since.
Its own flow adds the new one, so another flow does not, unless it has had the former one as well:
of two such flows, the first change excludes the second.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.errors import UserError
from twinlog.mirror.flow import flow_of, has_any_transform, settings_texts
from twinlog.mirror.replication_policy import has_properties_of_its_own
from twinlog.mirror.settings import FLOW_KINDS, TRANSACTIONAL
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.snapshot import Snapshot, shared_topics

NO_IDS: Final[Mapping[str, UUID]] = MappingProxyType({})


class SharedRemote(NamedTuple):
    """Two source topics, and the remote topic of both."""

    first: str
    second: str
    remote: str


def shared_remotes(topics: Collection[MirrorTopic], names: Mapping[str, str]) -> list[SharedRemote]:
    """Which of these source topics have the remote topic of another one.

    Args:
        topics: those that the flow has.
        names: the remote names of those that are added, by the source's.
    """
    taken = {topic.destination_name: topic.topic for topic in topics}
    return [
        SharedRemote(taken[remote], name, remote)
        for name, remote in names.items()
        if taken.setdefault(remote, name) != name
    ]


def may_share(topics: Collection[MirrorTopic], properties: Mapping[str, str]) -> bool:
    """Whether several topics of a flow have one remote topic, or may have.

    Kafka's own policies give no two topics one name; those that are stored with one count.

    Args:
        topics: all topics of the flow that can be read.
        properties: of its mirror.
    """
    return bool(shared_topics(topics)) or has_properties_of_its_own(settings_texts(properties))


def check_positions(kind: str, topics: Collection[MirrorTopic], names: Mapping[str, str]) -> None:
    """Refuse topics that would share a position.

    Args:
        kind: of the flow's mirror.
        topics: those that the flow has.
        names: the remote names of those that are added, by the source's.

    Raises:
        UserError: the flow writes in transactions, and two topics have one remote topic.
    """
    if kind != TRANSACTIONAL:
        return
    for first, second, remote in shared_remotes(topics, names):
        raise UserError(
            f"{first} and {second} would both be copied to {remote}, and a flow with transforms or "
            "transaction.producer keeps one position for each remote topic",
            hint="exclude one of them, or give them different names; if RegexRouter routes both to "
            "one topic, set no map of offsets (sync.group.offsets.enabled, twinlog.offset.map)",
        )


def other_copies(
    snapshot: Snapshot,
    mirror: Mirror,
    names: Mapping[str, str],
    ids: Mapping[str, UUID] = NO_IDS,
    *,
    removed: bool = True,
) -> list[MirrorTopic]:
    """The topics of other mirrors that copy the same topics of a cluster to the same ones.

    Flows with transforms may share a topic: each may copy other records of it. All flows copy
    heartbeats, whichever topics they are for.

    Args:
        snapshot: all mirrors.
        mirror: the flow, as it is to be. Of a mirror of another kind no topic is returned.
        names: the remote names of its topics, by the source's.
        ids: the source's topic ids by name, as far as they are known.
        removed: whether topics count that were removed from the other mirror, too.

    Raises:
        UserError: the flow's settings are malformed.
    """
    if mirror.kind not in FLOW_KINDS or transforms(mirror):
        return []
    own = {topic.topic for topic in snapshot.topics_of(mirror.name)}
    copies = [
        topic
        for topic in snapshot.topics
        if names.get(topic.topic) == topic.destination_name
        and topic.mirror != mirror.name
        and _copies_same_records(snapshot.mirrors[topic.mirror], mirror)
        and (topic.wanted is not Wanted.STOPPED or (removed and not _is_former(topic, ids, own)))
    ]
    if not copies:
        return []
    policy = flow_of(mirror.source).policy
    return [topic for topic in copies if not policy.is_heartbeats_topic(topic.topic)]


def require_sole_copy(
    snapshot: Snapshot,
    mirror: Mirror,
    names: Mapping[str, str],
    ids: Mapping[str, UUID] = NO_IDS,
    *,
    removed: bool = True,
) -> None:
    """Check that no other mirror copies these topics of the same cluster to the same remote topics.

    The arguments are those of `other_copies`.

    Raises:
        UserError: another one does, or has done so.
    """
    for topic in other_copies(snapshot, mirror, names, ids, removed=removed):
        raise copied_twice(snapshot, mirror, topic, has_it=not removed)


def copied_twice(
    snapshot: Snapshot, mirror: Mirror, topic: MirrorTopic, *, has_it: bool = False
) -> UserError:
    """Why a flow does not copy a topic that another mirror has.

    Args:
        snapshot: all mirrors.
        mirror: the flow.
        topic: the other one's (`other_copies`).
        has_it: whether the flow has the topic, too.
    """
    other, is_removed = snapshot.mirrors[topic.mirror], topic.wanted is Wanted.STOPPED
    is_flow = other.kind in FLOW_KINDS
    way_out = (
        "remove it from one of them (kafka-mirrors --remove --mirror "
        f"{mirror.name} --topic {topic.topic})"
        if has_it
        else f"leave it out of flow {mirror.name} (topics.exclude)"
    )
    return UserError(
        f"{'flow' if is_flow else 'mirror'} {other.name} "
        f"{'has copied' if is_removed else 'copies'} {topic.topic} of the same cluster "
        f"{other.source_cluster_id} to {topic.destination_name}: with flow {mirror.name}, "
        "the topic would have its records twice",
        hint=f"{way_out}, use the alias that the cluster had, or delete what is not wanted: "
        f"{'twinlog flows delete --flow' if is_flow else 'kafka-mirrors --delete --mirror'} "
        f"{other.name} (flow {mirror.name} does not go on where that has stopped)",
    )


def require_sole_active_copy(snapshot: Snapshot, mirror: Mirror) -> None:
    """Check `require_sole_copy` of the topics that a flow has, with its settings as they are to be.

    Raises:
        UserError: another mirror copies one of them to the same remote topic.
    """
    active = {
        topic.topic: topic.destination_name
        for topic in snapshot.topics_of(mirror.name)
        if topic.wanted is not Wanted.STOPPED
    }
    require_sole_copy(snapshot, mirror, active, removed=False)


def _copies_same_records(other: Mirror, mirror: Mirror) -> bool:
    return other.source_cluster_id == mirror.source_cluster_id and not transforms(other)


def _is_former(topic: MirrorTopic, ids: Mapping[str, UUID], own: Collection[str]) -> bool:
    """Whether the source's topic of this name is another one since, and its flow does not wait."""
    waits = topic.source_deleted and topic.topic not in own
    return not waits and is_another(topic.topic_id, ids.get(topic.topic, NO_TOPIC_ID))


def transforms(mirror: Mirror) -> bool:
    """Whether a flow may copy other records than another flow of the same topic."""
    return has_any_transform(settings_texts(mirror.source))
