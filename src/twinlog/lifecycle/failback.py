"""Failback (KIP-1279, "Failback Process"): what was failed over is mirrored back, the delta only.

A topic of this cluster was mirrored to another one and removed from its mirror there. That one's
`__mirror_state` says up to which offset each partition was mirrored, and from which leader epoch of
ours its last record was. Mirrored back is into the very log that it came from:

    here     | what both clusters have       | tail: written here, mirrored by nobody |
    there    | what both clusters have       | what was written since the failover    |
             log start             last mirrored end

That this is so is not only said: the records of both logs are compared (common_log.py).

Without a tail the log goes on from where it is. With one it cannot: stock brokers let no client
truncate a log. The topic has to be rebuilt (rebuild.py).

A log that has been cut by an unclean election and has grown again shows by leader epochs (KIP-320):
where the epoch of the last mirrored record ends before the last mirrored end, the tail begins.

All this is said of one log. A topic that was deleted here and made again has another one, of which
its name tells nothing: what was failed over is told by the topic id that the mirror has kept.

A topic that was failed over more than once may stand in several mirrors there. The log of one topic
id never shrinks below what was mirrored of it, so the largest last mirrored end is the latest.
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
from twinlog.lifecycle.rebuild import Tail
from twinlog.mirror.states import State
from twinlog.store.config_records import MadeFor, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import LastMirrored
from twinlog.text import few

Ends = dict[TopicPartition, LastMirrored]

MAX_ORIGINS: Final = 100
"""Clusters that a topic comes through, one after the other."""
MAX_CLUSTER_ID: Final = 255
"""Characters of a cluster's id. Kafka's have 22."""
_UNBELIEVABLE: Final = (
    f"the source says that it has come through more than {MAX_ORIGINS} clusters, or through one "
    f"whose id has more than {MAX_CLUSTER_ID} characters"
)


class TheirMirrors(NamedTuple):
    """What a source says of its own mirrors: whether it mirrors, or has mirrored, from us."""

    origins: Mapping[str, tuple[str, ...]]
    """Of the topics that it mirrors now: the clusters that they come from, the nearest first."""
    loops: frozenset[str]
    """Those of them that come from us, through others or not."""
    failed_over: Mapping[str, tuple[MirrorTopic, ...]]
    """Topics that it has mirrored from us, and that were removed there: in each of its mirrors."""
    denied: frozenset[Acl] = frozenset()
    """What switchovers of its mirrors deny here: who writes to a topic that it took over from us.
    """
    read_only: frozenset[Acl] = frozenset()
    """What keeps topics read-only there that it mirrors from us."""
    unread: Mapping[str, str] = MappingProxyType({})
    """Topics of which it is not known whether a mirror there has them, and why."""
    unknown: str = ""
    """Why all that cannot be read; empty where it can."""
    forbidden: bool = False
    """Whether that is for want of a right, which a source need not give."""

    def unsure(self, topic: str) -> str:
        """Why it is not known whether the source mirrors a topic, where it has to be."""
        return self.unread.get(topic, "" if self.forbidden else self.unknown)

    def unsure_among(self, topics: Iterable[str]) -> dict[str, str]:
        """Those of these topics of which it is not known, with the reason."""
        return {topic: why for topic in sorted(topics) if (why := self.unsure(topic))}

    def refuse_unsure(self, topics: Iterable[str], here: str, nothing: str) -> None:
        """See that it is known of all of these topics whether the source mirrors them from here.

        Args:
            topics: their names.
            here: this cluster, in the error's words.
            nothing: what was not done then, for its hint.

        Raises:
            UserError: it is not known.
        """
        if unsure := self.unsure_among(topics):
            # What is said of the whole source has a hint of its own in it.
            hint = nothing if self.unknown else f"{nothing}; use a twinlog that can read it"
            raise UserError(
                f"whether the source mirrors {few(unsure)} from {here} is not known: "
                f"{next(iter(unsure.values()))}",
                hint=hint,
            )


def their_mirrors(snapshot: Snapshot, cluster_id: str) -> TheirMirrors:
    """What a snapshot of the source's mirrors says of those whose source is `cluster_id`."""
    mirrors = snapshot.mirrors
    origins = {
        topic.topic: (mirrors[topic.mirror].source_cluster_id, *topic.origins)
        for topic in snapshot.topics
        if topic.wanted is not Wanted.STOPPED
    }
    unbelievable = {name for name, clusters in origins.items() if not _believable(clusters)}
    unread = snapshot.unknown_topics | dict.fromkeys(unbelievable, _UNBELIEVABLE)
    origins = {name: found for name, found in origins.items() if name not in unbelievable}
    return TheirMirrors(
        origins,
        frozenset(name for name, clusters in origins.items() if cluster_id in clusters),
        removed_topics(snapshot, cluster_id),
        denied=snapshot.made_of(cluster_id, MadeFor.SWITCHOVER),
        read_only=snapshot.made_of(cluster_id, MadeFor.READ_ONLY),
        unread=unread,
    )


def _believable(clusters: Collection[str]) -> bool:
    """Whether these may be the clusters that a topic has come through: they are stored here."""
    return len(clusters) <= MAX_ORIGINS and all(len(one) <= MAX_CLUSTER_ID for one in clusters)


def removed_topics(snapshot: Snapshot, source_id: str) -> dict[str, tuple[MirrorTopic, ...]]:
    """The topics that mirrors of this source have had, and that were removed from them."""
    found: defaultdict[str, list[MirrorTopic]] = defaultdict(list)
    for topic in snapshot.topics:
        its_source = snapshot.mirrors[topic.mirror].source_cluster_id
        if topic.wanted is Wanted.STOPPED and its_source == source_id:
            found[topic.topic].append(topic)
    return {name: tuple(topics) for name, topics in found.items()}


async def read_their_mirrors(source: KafkaCluster, destination: KafkaCluster) -> TheirMirrors:
    """What the source says of its mirrors of the destination.

    Raises:
        Retriable: the source does not answer.
    """
    try:
        snapshot = await MirrorStore(source).snapshot()
    except UserError as error:
        forbidden = error.code in DENIED
        return TheirMirrors({}, frozenset(), {}, unknown=str(error), forbidden=forbidden)
    return their_mirrors(snapshot, destination.cluster_id)


class Removed(NamedTuple):
    """Removed topics, told by their ids from others that have their names by now."""

    same: tuple[MirrorTopic, ...]
    """What was removed, of topics that are still the same; of each in several mirrors perhaps."""
    made_again: frozenset[str]
    """Names of topics that are others now than all that were removed."""


def told_by_id(
    removed: Mapping[str, Collection[MirrorTopic]], existing: Mapping[str, Topic]
) -> Removed:
    """Which of the existing topics are those that were removed; all where there are no ids."""
    known = {name: removed[name] for name in existing if name in removed}
    same = {
        name: [one for one in topics if not is_another(one.topic_id, existing[name].topic_id)]
        for name, topics in known.items()
    }
    return Removed(
        tuple(one for topics in same.values() for one in topics),
        frozenset(name for name, topics in same.items() if not topics),
    )


def still_mirrored_to(
    removed: Mapping[str, Collection[MirrorTopic]], source: Iterable[Topic]
) -> dict[str, list[MirrorTopic]]:
    """Without what was mirrored to topics that the source has not any more, but others of the name.

    Args:
        removed: what the source has mirrored, by name; a name stays, also with none left.
        source: the source's topics.
    """
    ids = {topic.name: topic.topic_id for topic in source}
    return {
        name: [
            one
            for one in topics
            if name not in ids or not is_another(one.destination_topic_id, ids[name])
        ]
        for name, topics in removed.items()
    }


async def last_mirrored(cluster: KafkaCluster, topics: Collection[MirrorTopic]) -> Ends:
    """Up to where a cluster's STOPPED partitions of these topics were mirrored.

    Where several of its mirrors have had a partition, all of them have to be STOPPED, and what is
    said of it in all of them readable.

    Args:
        cluster: whose mirrors' states are read.
        topics: of its mirrors (`told_by_id`).

    Raises:
        Retriable, UserError: its states cannot be read.
    """
    if not topics:
        return {}
    found = await MirrorStore(cluster).states()
    ends: Ends = {}
    under_way: set[TopicPartition] = set()
    for name in [name for topic in topics for name in topic.mirror_partitions]:
        key, last = TopicPartition(name.topic, name.partition), found.epochs.get(name)
        if found.state(name) is not State.STOPPED or found.unread(name):
            under_way.add(key)
        elif last is not None and last.end >= 0:
            ends[key] = max(last, ends.get(key, last), key=lambda one: (one.end, one.epoch))
    return {key: last for key, last in ends.items() if key not in under_way}


async def find_tails(source: KafkaCluster, destination: KafkaCluster, ends: Ends) -> list[Tail]:
    """What topics that have diverged hold beyond, in order; nothing of those that go on.

    All of a topic's partitions are in it where one of them has a tail; the others' are empty. Both
    logs are compared below what is said to be common, whether there is a tail or not.

    Raises:
        Retriable, UserError: a partition cannot be asked.
    """
    asked = list(ends)
    log_ends = await list_offsets(destination, asked, replica_id=DEBUGGING)
    epochs = {p: last.epoch for p, last in ends.items() if last.epoch != UNKNOWN_EPOCH}
    epoch_ends = await offset_for_leader_epoch(destination, epochs)
    tails = []
    for partition, last in sorted(ends.items()):
        log_end, epoch_end = log_ends[partition], epoch_ends.get(partition)
        if isinstance(log_end, Refusal):
            raise log_end.error("read the log's end", topic=partition.topic)
        if isinstance(epoch_end, Refusal):
            raise epoch_end.error("read where an epoch ends", topic=partition.topic)
        start: int = last.end
        if epoch_end is not None and epoch_end.end_offset >= 0:
            start = min(start, epoch_end.end_offset)
        tails.append(Tail(partition, min(start, log_end.offset), log_end.offset))
    tails = await compared(source, destination, tails)
    diverged = {tail.partition.topic for tail in tails if not tail.empty}
    return [tail for tail in tails if tail.partition.topic in diverged]
