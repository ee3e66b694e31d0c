"""Reads a mirror's translation, with the remote partitions that several source partitions share.

What is read of a shared partition is no single state of the target: its feeders' maps are records
of several partitions of `__mirror_offsets`, and topics may be added meanwhile. The order makes what
follows from them true all the same (mirror/shared_partitions.py):

    1  the ends of the remote logs
    2  the maps: a feeder without a record there has none below the ends, and none that a map of
       another feeder could lead past
    3  the mirror's topics again: one that was not added yet has had no record at 2 either
    4  the states of partitions, if one of those that share has no map

While a topic of the mirror cannot be read (a record of a later version), it may be copied to any of
the remote topics, also by another name than this version would give it. So each remote partition
counts as a shared one then, in which no group is raised.

A mirror of which no topics share one, by a policy that can let none share one (Kafka's own), reads
the maps only.
"""

from collections import Counter
from collections.abc import Collection

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.settings import TRANSLATED
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import States
from twinlog.store.mirrors import MirrorStore
from twinlog.store.recorded_maps import remote_names
from twinlog.store.shared_remotes import may_share
from twinlog.store.snapshot import Snapshot, shared_topics


async def read_translation(
    destination: KafkaCluster,
    store: MirrorStore,
    snapshot: Snapshot,
    mirror: str,
    selection: Collection[str] | None = None,
) -> Translation:
    """The translation of topics of a mirror, those that are paused or removed included.

    Args:
        destination: the mirror's cluster.
        store: its mirror configuration.
        snapshot: all mirrors, read before.
        mirror: the mirror's name.
        selection: only these topics, and those that share a remote topic with them; None: all.

    Raises:
        TwinlogError: it cannot be read now.
    """
    topics, properties = snapshot.topics_of(mirror), snapshot.mirrors[mirror].source
    kind_name = snapshot.mirrors[mirror].kind
    if selection is not None:
        remotes = {topic.destination_name for topic in topics if topic.topic in selection}
        topics = [topic for topic in topics if topic.destination_name in remotes]
    kind, shared = kind_named(kind_name), shared_topics(topics)
    if kind_name != TRANSLATED or not may_share(topics, properties):
        return await kind.translation(destination, topics, properties)
    names = {
        topic.on_destination(name)
        for topic in topics
        if topic.destination_name in shared or snapshot.unread_topics(mirror)
        for name in topic.mirror_partitions
    }
    listed = await list_offsets(destination, names, OffsetSpec.LATEST) if names else {}
    ends = {name: end.offset for name, end in listed.items() if not isinstance(end, Refusal)}
    translation = await kind.translation(destination, topics, properties)
    copies = {topic.destination_name for topic in topics}
    later_snapshot = await store.snapshot()
    former = _recreated_remotes([*topics, *later_snapshot.topics_of(mirror)])
    ends = {name: end for name, end in ends.items() if name.topic not in former}
    later = [
        topic for topic in later_snapshot.topics_of(mirror) if topic.destination_name in copies
    ]
    later_names = remote_names(later)
    counts = Counter(later_names.values())
    unmapped = later_names.keys() - translation.maps.keys()
    not_begun = frozenset[TopicPartition]()
    if any(counts[later_names[partition]] > 1 for partition in unmapped):
        not_begun = _not_begun(later, await store.states())
    known_before = {topic.topic for topic in (*topics, *later) if topic.known_before or topic.whole}
    unread = later_snapshot.unread_topics(mirror)
    return translation.with_shared(ends, later_names, not_begun, known_before, unread=unread)


def _not_begun(topics: Collection[MirrorTopic], states: States) -> frozenset[TopicPartition]:
    """Partitions of which nothing was sent, by their states, unless they have a map.

    One that has begun and has no map is one whose map is lost. An earlier version has not stored
    whether one has begun, but a state.
    """
    return frozenset(
        name.source
        for topic in topics
        for name in topic.mirror_partitions
        if not states.unread(name)
        and (
            name not in states.states
            if (last := states.epochs.get(name)) is None
            else last.begun is False
        )
    )


def _recreated_remotes(topics: Collection[MirrorTopic]) -> set[str]:
    """Remote topics of which some of these topics name another one, with the same name."""
    ids = {
        (topic.destination_name, topic.destination_topic_id)
        for topic in topics
        if topic.destination_topic_id is not None
    }
    counts = Counter(name for name, _ in ids)
    return {name for name, count in counts.items() if count > 1}
