"""Reads a mirror's translation, with the remote partitions that several source partitions share.

What is read of a shared partition is no single state of the target: its feeders' maps are records
of several partitions of `__mirror_offsets`, and topics may be added meanwhile. The order makes what
follows from them true all the same (mirror/shared_partitions.py):

    1  the ends of the remote logs
    2  the maps: a feeder without a record there has none below the ends, and none that a map of
       another feeder could lead past
    3  the mirror's topics again: one that was not added yet has had no record at 2 either
"""

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
    topics, kind_name = snapshot.topics_of(mirror), snapshot.mirrors[mirror].kind
    if selection is not None:
        remotes = {topic.destination_name for topic in topics if topic.topic in selection}
        topics = [topic for topic in topics if topic.destination_name in remotes]
    kind, shared = kind_named(kind_name), shared_topics(topics)
    if kind_name != TRANSLATED:
        return await kind.translation(destination, topics)
    names = {
        topic.on_destination(name)
        for topic in topics
        if topic.destination_name in shared
        for name in topic.mirror_partitions
    }
    listed = await list_offsets(destination, names, OffsetSpec.LATEST) if names else {}
    ends = {name: end.offset for name, end in listed.items() if not isinstance(end, Refusal)}
    translation = await kind.translation(destination, topics)
    copies = {topic.destination_name for topic in topics}
    later = [
        topic
        for topic in (await store.snapshot()).topics_of(mirror)
        if topic.destination_name in copies
    ]
    later_names = {
        name.source: topic.on_destination(name)
        for topic in later
        for name in topic.mirror_partitions
    }
    return translation.with_shared(ends, later_names, _not_begun(later, await store.states()))


def _not_begun(topics: Collection[MirrorTopic], states: States) -> frozenset[TopicPartition]:
    """Partitions of which nothing was sent, by their states, unless they have a map.

    One that has begun and has no map is one whose map is lost. An earlier version has not stored
    whether one has begun.
    """
    return frozenset(
        name.source
        for topic in topics
        for name in topic.mirror_partitions
        if not states.unread(name)
        and ((last := states.epochs.get(name)) is None or last.begun is False)
    )
