"""Failback (KIP-1279, "Failback Process"): mirrors back what was failed over, only the delta.

A topic of the destination was mirrored to the cluster that is now the source, and removed from its
mirror there. The source's `__mirror_state` stores up to which offset each partition was mirrored,
and the destination's leader epoch of its last record. The topic is mirrored back into the very log
that it came from:

    destination | what both clusters have       | tail: written there, mirrored nowhere    |
    source      | what both clusters have       | what was written since the failover      |
                log start             last mirrored end

The stored end is not proof: the records of both logs are compared (common_log.py).

Without a tail, the log continues from its end. With a tail it cannot, because stock brokers let no
client truncate a log. The topic has to be rebuilt (rebuild.py).

Leader epochs show a log that was cut by an unclean election and has grown again (KIP-320): if the
epoch of the last mirrored record ends before the last mirrored end, the tail begins there.

All this concerns one log. A topic that was recreated on the destination has another log, and its
name does not show that. So topics that were failed over are recognised by the topic id that the
mirror has stored.

A topic that was failed over more than once may be in several mirrors of the source. The log of one
topic id never shrinks below what was mirrored of it, so the largest last mirrored end is the
latest.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import DENIED, Refusal, UserError
from twinlog.kafka.requests.partitions import DEBUGGING, list_offsets, offset_for_leader_epoch
from twinlog.kafka.types import UNKNOWN_EPOCH, TopicPartition
from twinlog.lifecycle.common_log import compared
from twinlog.lifecycle.rebuild import DivergentTail
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.mirror.states import State
from twinlog.store.config_records import MadeFor, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import LastMirrored
from twinlog.text import few

Ends = dict[TopicPartition, LastMirrored]

MAX_ORIGINS: Final = 100
"""Clusters that a topic may come through, one after the other."""
MAX_CLUSTER_ID: Final = 255
"""Characters of a cluster id. Kafka's have 22."""
_UNBELIEVABLE: Final = (
    f"the source reports an origin of more than {MAX_ORIGINS} clusters, or a cluster id longer "
    f"than {MAX_CLUSTER_ID} characters"
)


class TheirMirrors(NamedTuple):
    """What the source's own mirrors mirror, or have mirrored, from the destination."""

    origins: Mapping[str, tuple[str, ...]]
    """The clusters that the topics come from that the source mirrors now, the nearest first."""
    loops: frozenset[str]
    """Those of them that come from the destination, directly or through other clusters."""
    failed_over: Mapping[str, tuple[MirrorTopic, ...]]
    """Topics that the source has mirrored from the destination and removed, once for each of its
    mirrors."""
    denied: frozenset[Acl] = frozenset()
    """ACLs on the destination by which switchovers of the source's mirrors deny WRITE on topics
    that the source took over."""
    read_only: frozenset[Acl] = frozenset()
    """ACLs on the source that keep topics read-only which it mirrors from the destination."""
    unread: Mapping[str, str] = MappingProxyType({})
    """Topics of which it is unknown whether a mirror of the source has them, with the reason."""
    unknown: str = ""
    """Why none of this can be read; empty if it can."""
    forbidden: bool = False
    """Whether that is for lack of a right, which a source need not grant."""

    def unsure(self, topic: str) -> str:
        """Why it is unknown whether the source mirrors a topic; empty if known or forbidden."""
        return self.unread.get(topic, "" if self.forbidden else self.unknown)

    def unsure_among(self, topics: Iterable[str]) -> dict[str, str]:
        """Those of these topics for which that is unknown, with the reason."""
        return {topic: why for topic in sorted(topics) if (why := self.unsure(topic))}

    def refuse_unsure(self, topics: Iterable[str], place: str, outcome: str) -> None:
        """Require that it is known of all of these topics whether the source mirrors them.

        Args:
            topics: their names.
            place: the destination, in the error's words.
            outcome: what was not done, for the error's hint.

        Raises:
            UserError: it is unknown.
        """
        if unsure := self.unsure_among(topics):
            # The error about the whole source contains a hint of its own.
            hint = (
                outcome if self.unknown else f"{outcome}; use a version of twinlog that can read it"
            )
            raise UserError(
                f"cannot determine whether the source mirrors {few(unsure)} from {place}: "
                f"{next(iter(unsure.values()))}",
                hint=hint,
            )


def their_mirrors(snapshot: Snapshot, cluster_id: str) -> TheirMirrors:
    """What a snapshot of the source's mirrors shows of those whose source is `cluster_id`."""
    mirrors = snapshot.mirrors
    origins = {
        topic.destination_name: (mirrors[topic.mirror].source_cluster_id, *topic.origins)
        for topic in snapshot.topics
        if topic.wanted is not Wanted.STOPPED
    }
    unbelievable = {name for name, clusters in origins.items() if not _believable(clusters)}
    unread = snapshot.unknown_topics | dict.fromkeys(unbelievable, _UNBELIEVABLE)
    origins = {name: clusters for name, clusters in origins.items() if name not in unbelievable}
    return TheirMirrors(
        origins,
        frozenset(name for name, clusters in origins.items() if cluster_id in clusters),
        removed_topics(snapshot, cluster_id),
        denied=snapshot.made_of(cluster_id, MadeFor.SWITCHOVER),
        read_only=snapshot.made_of(cluster_id, MadeFor.READ_ONLY),
        unread=unread,
    )


def _believable(clusters: Collection[str]) -> bool:
    """Whether a topic may have come through these clusters: the destination stores them."""
    return len(clusters) <= MAX_ORIGINS and all(
        len(cluster) <= MAX_CLUSTER_ID for cluster in clusters
    )


def removed_topics(snapshot: Snapshot, source_id: str) -> dict[str, tuple[MirrorTopic, ...]]:
    """The topics that were removed from mirrors of this source; a flow's have other offsets."""
    topics_by_name: defaultdict[str, list[MirrorTopic]] = defaultdict(list)
    for topic in snapshot.topics:
        mirror = snapshot.mirrors[topic.mirror]
        of_source = mirror.source_cluster_id == source_id and mirror.kind not in FLOW_KINDS
        if topic.wanted is Wanted.STOPPED and of_source:
            topics_by_name[topic.topic].append(topic)
    return {name: tuple(topics) for name, topics in topics_by_name.items()}


async def read_their_mirrors(source: KafkaCluster, destination: KafkaCluster) -> TheirMirrors:
    """Read what the source's own mirrors mirror, or have mirrored, from the destination.

    Raises:
        Retriable: the source is unreachable.
    """
    try:
        snapshot = await MirrorStore(source).snapshot()
    except UserError as error:
        forbidden = error.code in DENIED
        return TheirMirrors({}, frozenset(), {}, unknown=str(error), forbidden=forbidden)
    return their_mirrors(snapshot, destination.cluster_id)


class RemovedTopics(NamedTuple):
    """Removed topics, distinguished by id from recreated ones of the same names."""

    same: tuple[MirrorTopic, ...]
    """Removed topics whose topic is still the same one; a topic may be in several mirrors."""
    made_again: frozenset[str]
    """Names of topics that were recreated since each removal."""


def told_by_id(
    removals: Mapping[str, Collection[MirrorTopic]], existing: Mapping[str, Topic]
) -> RemovedTopics:
    """Determine by id which existing topics are the removed ones; without ids, all are."""
    existing_removals = {name: removals[name] for name in existing if name in removals}
    same_topics = {
        name: [topic for topic in topics if not is_another(topic.topic_id, existing[name].topic_id)]
        for name, topics in existing_removals.items()
    }
    return RemovedTopics(
        tuple(topic for topics in same_topics.values() for topic in topics),
        frozenset(name for name, topics in same_topics.items() if not topics),
    )


def still_mirrored_to(
    removals: Mapping[str, Collection[MirrorTopic]], source: Iterable[Topic]
) -> dict[str, list[MirrorTopic]]:
    """Leave out what was mirrored to source topics that were recreated since.

    Args:
        removals: what the source has mirrored, by name; a name stays even if nothing of it is left.
        source: the source's topics.
    """
    ids = {topic.name: topic.topic_id for topic in source}
    return {
        name: [
            topic
            for topic in topics
            if name not in ids or not is_another(topic.destination_topic_id, ids[name])
        ]
        for name, topics in removals.items()
    }


async def last_mirrored(cluster: KafkaCluster, topics: Collection[MirrorTopic]) -> Ends:
    """Last mirrored ends of a cluster's STOPPED partitions of these topics.

    If several of its mirrors have had a partition, it has to be STOPPED in all of them, with
    readable records.

    Args:
        cluster: the cluster whose mirrors' states are read.
        topics: topics of its mirrors (`told_by_id`).

    Raises:
        Retriable, UserError: its states cannot be read.
    """
    if not topics:
        return {}
    states = await MirrorStore(cluster).states()
    ends: Ends = {}
    under_way: set[TopicPartition] = set()
    for name in [name for topic in topics for name in topic.mirror_partitions]:
        key, last_end = name.source, states.epochs.get(name)
        if states.state(name) is not State.STOPPED or states.unread(name):
            under_way.add(key)
        elif last_end is not None and last_end.end >= 0:
            ends[key] = max(last_end, ends.get(key, last_end), key=lambda end: (end.end, end.epoch))
    return {key: last_end for key, last_end in ends.items() if key not in under_way}


async def find_tails(
    source: KafkaCluster, destination: KafkaCluster, ends: Ends
) -> list[DivergentTail]:
    """The tails of topics that have diverged, in order; none of topics that can continue.

    If one partition of a topic has a tail, all of its partitions are in the result, the others with
    an empty tail. Both logs are compared below the stored common end, whether there is a tail or
    not.

    Raises:
        Retriable, UserError: a partition cannot be read.
    """
    partitions = list(ends)
    log_ends = await list_offsets(destination, partitions, replica_id=DEBUGGING)
    epochs = {p: last_end.epoch for p, last_end in ends.items() if last_end.epoch != UNKNOWN_EPOCH}
    epoch_ends = await offset_for_leader_epoch(destination, epochs)
    tails = []
    for partition, last_end in sorted(ends.items()):
        log_end, epoch_end = log_ends[partition], epoch_ends.get(partition)
        if isinstance(log_end, Refusal):
            raise log_end.error("read the log end offset", topic=partition.topic)
        if isinstance(epoch_end, Refusal):
            raise epoch_end.error("read the end offset of a leader epoch", topic=partition.topic)
        start: int = last_end.end
        if epoch_end is not None and epoch_end.end_offset >= 0:
            start = min(start, epoch_end.end_offset)
        tails.append(DivergentTail(partition, min(start, log_end.offset), log_end.offset))
    tails = await compared(source, destination, tails)
    diverged = {tail.partition.topic for tail in tails if not tail.empty}
    return [tail for tail in tails if tail.partition.topic in diverged]
