"""The recorded maps of a flow's topics, of the topics that are copied now.

`__mirror_offsets` may hold maps of former topics of the same name, or of a former remote topic.
They say nothing about the present ones, so the route of each plan is compared.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import partition_count
from twinlog.store.offset_log import (
    OFFSETS_TOPIC,
    HeadedRecords,
    StoredOffsets,
    read_offsets,
    whole_map,
)
from twinlog.store.offset_records import Route, StoredPlan
from twinlog.store.partition_counts import known_partition_count
from twinlog.store.snapshot import owners
from twinlog.store.state_records import LastMirrored


async def read_maps(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, RecordedMap]:
    """The maps as they are recorded now, by the source's partition.

    Args:
        destination: the flow's cluster.
        topics: topics of one flow.

    Returns:
        A partition of which nothing was copied is missing.

    Raises:
        TwinlogError: they cannot be read now, are being replaced, or a part of them is lost.
    """
    maps: dict[TopicPartition, RecordedMap] = {}
    for offsets, partitions in await _stored(destination, topics):
        for name, topic in partitions:
            plan = offsets.plans.get(name)
            if plan is not None and _is_of(plan.route, topic):
                runs = offsets.map(name)
                is_short = runs.end.destination < plan.plan.recorded.destination
                if is_short and plan.lost is None:
                    raise Retriable(
                        f"the map of {name} is being replaced: its last parts are dropped already"
                    )
                position = max(plan.plan.recorded.source, runs.end.source)
                # An owner that outlives a lost `__mirror_offsets` goes on with the part it is at.
                parts = offsets.chunks.get(name, ())
                lacks_start = plan.behind_another or (bool(parts) and parts[0].number > 0)
                pending = bool(plan.plan.runs)
                recorded = RecordedMap(
                    runs,
                    position,
                    pending,
                    lacks_start,
                    lost=plan.lost is not None,
                    lost_sources=tuple((one.source_start, one.source_end) for one in plan.losses),
                    lost_places=tuple(
                        (one.destination_start, one.destination_end) for one in plan.losses
                    ),
                )
                # No copy of the flow's own was left: the loss may have begun in front of them.
                if any(start <= runs.start.source for start, _ in recorded.lost_sources):
                    recorded = replace(recorded, unproven_end=recorded.front_end)
                maps[name.source] = recorded
    return maps


async def read_headed_maps(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, RecordedMap]:
    """The maps of a flow that writes in transactions, as they are committed now.

    What of them is being committed is waited for (`topic_reader`). Whoever has seen a copy before
    finds it in the map: both are in one transaction, and the copy is not committed before.

    Args:
        destination: the flow's cluster.
        topics: topics of one flow.

    Returns:
        A partition without a map, or with one that cannot be read, is missing.

    Raises:
        TwinlogError: they cannot be read now.
    """
    stored = await _stored(destination, topics)
    wanted = [
        (offsets.headed[name], name, topic)
        for offsets, partitions in stored
        for name, topic in partitions
        if name in offsets.headed
    ]
    # A map may have thousands of parts, and the event loop has heartbeats to send.
    return await asyncio.to_thread(_decoded, wanted) if wanted else {}


def _decoded(
    stored: Iterable[tuple[HeadedRecords, MirrorPartition, MirrorTopic]],
) -> dict[TopicPartition, RecordedMap]:
    """The maps of partitions; those that cannot be read are missing."""
    maps: dict[TopicPartition, RecordedMap] = {}
    for records, name, topic in stored:
        headed = records.whole()
        if (head := headed.head) is None or not _is_of(head.route, topic):
            continue
        runs = whole_map(headed.parts)
        start = runs.start.destination
        goes_on = start < head.lost_to and not head.lost
        maps[name.source] = RecordedMap(
            runs,
            head.position,
            pending=False,
            lacks_start=head.lacks_start,
            lost=head.lost,
            lost_places=((start, head.lost_to),) if goes_on else (),
            follows_another=head.lacks_start or head.first > 0,
            unproven_end=head.unproven_end,
        )
    return maps


def remote_names(topics: Iterable[MirrorTopic]) -> dict[TopicPartition, TopicPartition]:
    """The destination's partition of each of the source's, of topics of one mirror."""
    return {
        name.source: topic.on_destination(name)
        for topic in topics
        for name in topic.mirror_partitions
    }


def recorded_translation(
    topics: Collection[MirrorTopic], recorded: Mapping[TopicPartition, RecordedMap]
) -> Translation:
    """Where the partitions and offsets of topics are on the destination, by their maps."""
    maps = {partition: one.runs for partition, one in recorded.items()}
    names = remote_names(topics)
    # The map of a former flow goes on where it has ended, so it may begin above a later begin.
    begins = {
        name.source: max(begin, maps[name.source].start.source) if name.source in maps else begin
        for topic in topics
        for name in topic.mirror_partitions
        if (begin := topic.begin(name.partition)) is not None
    }
    lacking = {name: one.runs.start.source for name, one in recorded.items() if one.lacks_start}
    unknown = frozenset(names.keys() - maps.keys())
    lost = frozenset(name for name, one in recorded.items() if one.lost)
    passed = frozenset(
        name for name, one in recorded.items() if one.lost_places or one.follows_another
    )
    settled = frozenset(name for name, one in recorded.items() if not one.pending)
    begins |= lacking
    return Translation(names, maps, unknown, begins, lost, passed, settled)


async def _stored(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> list[tuple[StoredOffsets, Collection[tuple[MirrorPartition, MirrorTopic]]]]:
    """What the state partitions of these topics hold, with the topics' partitions."""
    count = await partition_count(destination, OFFSETS_TOPIC)
    if count is None:
        # A broker that is behind knows no map of any flow, and nothing would count as copied.
        await confirm_absent(destination, OFFSETS_TOPIC)
        return []
    owned = owners(topics, count)
    stored = await read_offsets(destination, sorted(owned)) if owned else {}
    return [(offsets, owned[place]) for place, offsets in stored.items()]


async def read_ends(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, int]:
    """The source's offsets up to which a flow has copied partitions, as far as it is recorded.

    Args:
        destination: the flow's cluster.
        topics: topics of one flow.

    Returns:
        Where the map ends. A partition of which nothing was copied is missing.

    Raises:
        UserError: a right is missing, or `__mirror_offsets` was deleted.
        TwinlogError: they cannot be read now.
    """
    return {
        source: last.end for source, last in (await read_last_copied(destination, topics)).items()
    }


async def read_last_copied(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, LastMirrored]:
    """See `read_ends`: with the source's leader epoch of the last record, as it was copied."""
    count = await known_partition_count(destination, OFFSETS_TOPIC)
    stored = await read_offsets(destination)
    return {
        name.source: _last(plan)
        for place, partitions in owners(topics, count).items()
        if place in stored
        for name, topic in partitions
        if (plan := stored[place].plans.get(name)) is not None
        and _is_of(_present(plan.route, topic), topic)
    }


def _present(route: Route, topic: MirrorTopic) -> Route:
    """The route of a position: a flow goes on with it where its remote topic was recreated."""
    is_lost = route.topic_id in topic.lost_topic_ids
    return route._replace(topic_id=topic.destination_topic_id) if is_lost else route


def _last(stored: StoredPlan) -> LastMirrored:
    end = stored.plan.recorded.source
    return LastMirrored(SourceEpochs(stored.epochs).before(end), end)


def _is_of(route: Route, topic: MirrorTopic) -> bool:
    """Whether a map is of the topics that are copied now."""
    return (
        route.source_topic_id == topic.topic_id
        and route.topic == topic.destination_name
        and not is_another(route.topic_id, topic.destination_topic_id or NO_TOPIC_ID)
    )
