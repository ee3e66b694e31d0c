"""KIP-656's one-time job: a flow begins where the group of another program has committed.

    committed offsets of a group, on the source or the target
        -> checked against the source's logs
        -> the flow's topics, each with where its partitions begin (`MirrorTopic.begins`)

The group may be that of a sink connector (`connect-NAME`), or of any consumer. On the source its
offsets are of the source's topics. On the target they are the source's offsets, too, for the
partitions of the remote topics, or of topics with the source's names (KIP-656's "fake" group).

Topics are added as by a node, so a node that adds them meanwhile is noticed: nothing is written
then. A former flow of the same name may have left positions, the recorded map or the committed
offsets. They would count, so they are an error. Only those that are committed offsets can be
replaced.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from twinlog.engines.transactional.positions import (
    PositionLost,
    position_group,
    settled_positions,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.groups.offsets import (
    Committed,
    commit_offsets,
    committed_offsets,
    in_parts,
    list_groups,
)
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.lifecycle.destination_topics import existing_topics
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import flow_of
from twinlog.mirror.reported_positions import is_reported
from twinlog.mirror.settings import FLOW_KINDS, TRANSACTIONAL
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.store.recorded_maps import read_ends


class GroupSide(Enum):
    """The cluster on which a group has committed."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPosition:
    """Where a partition of a flow begins."""

    source: TopicPartition
    target: TopicPartition
    position: int
    """The source's offset of the first record that the flow copies."""
    former: int | None = None
    """The position that the flow had, and that is replaced; -1 if it had one that is lost."""
    lost: int = 0
    """How many offsets from the position on the source has deleted already."""


async def import_positions(
    destination: KafkaCluster,
    name: str,
    group: str,
    side: GroupSide,
    *,
    replaces: bool = False,
    dry_run: bool = False,
) -> list[ImportedPosition]:
    """Have a flow begin where a group has committed, before its first start.

    Args:
        destination: the target.
        name: the flow's.
        group: the group; it may not have members.
        side: where it has committed.
        replaces: whether positions of a former flow of this name are replaced.
        dry_run: check all, and write nothing.

    Returns:
        The partitions of which the group has an offset. The other ones of their topics, and the
        topics of which it has none, begin as without an import.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR; TOPIC_ALREADY_IN_MIRROR: a node has added a topic meanwhile.
        UserError: the flow has a topic or positions already; the group has members, or no offset of
            the flow's topics, or one that is not in the source's log; a right is missing.
        Retriable: a cluster is unreachable, or a transaction with offsets of the group is open.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    mirror = snapshot.mirrors.get(name)
    if mirror is None:
        raise unknown_mirror(name, snapshot)
    if mirror.kind not in FLOW_KINDS:
        raise UserError(f"mirror {name} is no flow")
    flow = flow_of(mirror.source)
    async with connected_source(mirror, destination.config.grants) as source:
        topics = (await source.refresh(None)).topics
        names = copied_topics(topics, *flow)
        cluster = source if side is GroupSide.SOURCE else destination
        offsets = await _offsets_of(cluster, group, side)
        found = _of_source(offsets, names, topics, side)
        if not found:
            raise UserError(
                f"group {group} has committed no offset of a topic that flow {name} copies, on the "
                f"{side.value}",
                hint="check its name, and --on; kafka-consumer-groups --describe shows its offsets",
            )
        if had := sorted({t.topic for t in snapshot.topics_of(name)} & {p.topic for p in found}):
            raise UserError(
                f"flow {name} has the topic {had[0]} already, and its positions",
                hint="end it (twinlog flows delete), create it again while no node runs, then "
                "import before the first start",
            )
        new = {partition.topic: names[partition.topic] for partition in found}
        await store.check_addable(snapshot, name, new)
        positions = await _checked(source, found, names)
        before = await _former(destination, mirror, topics, new)
        former = {partition: before[partition] for partition in before.keys() & found.keys()}
        if former and not replaces:
            partition, offset = min(former.items())
            at = "a position, which is lost" if offset < 0 else f"the position {offset}"
            raise UserError(
                f"flow {name} has {at} of {partition} from a former start",
                hint="--replace drops such positions, or start it without an import",
            )
        if former and mirror.kind != TRANSACTIONAL:
            raise UserError(
                f"flow {name} has a recorded map of {min(former)}, which cannot be replaced",
                hint="start it without an import, or give the flow another name (cluster aliases)",
            )
        positions = [replace(one, former=former.get(one.source)) for one in positions]
        if not dry_run:
            await _replace(destination, position_group(LANES_GROUP, name), positions)
            clusters = FlowClusters(
                destination=destination, source=source, mirror=mirror, flow=flow
            )
            await clusters.add(topics, new, {one.source: one.position for one in positions})
    return positions


async def _offsets_of(
    cluster: KafkaCluster, group: str, side: GroupSide
) -> Mapping[TopicPartition, Committed]:
    """What a group without members has committed.

    Raises:
        UserError: it has members, or a right is missing.
        Retriable: its coordinator does not answer, or a transaction with its offsets is open.
    """
    offsets = await committed_offsets(cluster, group, stable=True)
    listed = (await list_groups(cluster)).get(group)
    if offsets and listed is None:
        raise Retriable(f"group {group} is in no list of groups, so its members are unknown")
    again = await committed_offsets(cluster, group, stable=True)
    if (listed is not None and not listed.idle) or again != offsets:
        raise UserError(
            f"group {group} has members on the {side.value}, or its offsets move",
            hint="stop the program that has them, then import",
        )
    return offsets


def _of_source(
    offsets: Mapping[TopicPartition, Committed],
    names: Mapping[str, str],
    topics: Mapping[str, Topic],
    side: GroupSide,
) -> dict[TopicPartition, int]:
    """The offsets by the source's partition, of topics that the flow copies.

    Args:
        offsets: as committed.
        names: the remote names of the flow's topics, by the source's.
        topics: the source's.
        side: where they are committed.

    Raises:
        UserError: a partition has two different offsets.
    """
    sources = {remote: name for name, remote in names.items()}
    found: dict[TopicPartition, int] = {}
    for key, at in sorted(offsets.items()):
        if side is GroupSide.TARGET and is_reported(at.metadata):
            continue  # of a flow from there
        own = {key.topic} & names.keys()
        if side is GroupSide.TARGET and key.topic in sources:
            own.add(sources[key.topic])
        for topic in own:
            partition = TopicPartition(topic, key.partition)
            if key.partition not in topics[topic].partitions:
                continue
            if found.setdefault(partition, at.offset) != at.offset:
                raise UserError(
                    f"the group has two offsets of {partition}: {found[partition]} and {at.offset},"
                    " by the source's name of the topic and by the target's",
                    hint="delete the one that is not meant (kafka-consumer-groups "
                    "--delete-offsets)",
                )
    return found


async def _checked(
    source: KafkaCluster, found: Mapping[TopicPartition, int], names: Mapping[str, str]
) -> list[ImportedPosition]:
    """The positions, if the source's logs have them.

    Raises:
        UserError: one is behind the end of its log.
    """
    logs = ClusterLogs(source)
    await logs.refresh(list({partition.topic for partition in found}))
    bounds = await logs.bounds(list(found))
    positions: list[ImportedPosition] = []
    for partition, offset in sorted(found.items()):
        bound = bounds[partition]
        if bound.error:
            Refusal(bound.error).fail("read the log's bounds", topic=partition.topic)
        if offset > bound.high_watermark:
            raise UserError(
                f"the group has offset {offset} of {partition}, and the source's log ends at "
                f"{bound.high_watermark}",
                hint="the source topic was recreated, or these are offsets of another cluster: "
                "check --on",
            )
        remote = TopicPartition(names[partition.topic], partition.partition)
        positions.append(
            ImportedPosition(
                source=partition,
                target=remote,
                position=offset,
                lost=max(0, bound.start - offset),
            )
        )
    return positions


async def _former(
    destination: KafkaCluster,
    mirror: Mirror,
    topics: Mapping[str, Topic],
    names: Mapping[str, str],
) -> dict[TopicPartition, int]:
    """The positions that a former flow of this name has of these topics.

    Args:
        destination: the target.
        mirror: the flow.
        topics: the source's.
        names: the remote names of those that are to be added.

    Returns:
        -1 where there was one that is lost.
    """
    existing = await existing_topics(destination, {*names.values()})
    candidates = [
        MirrorTopic(
            mirror=mirror.name,
            topic=name,
            topic_id=topics[name].topic_id,
            partitions=len(topics[name].partitions),
            destination_topic=remote,
            destination_topic_id=existing[remote].topic_id,
        )
        for name, remote in names.items()
        if remote in existing
    ]
    if not candidates:
        return {}
    if mirror.kind != TRANSACTIONAL:
        return await read_ends(destination, candidates)
    group = position_group(LANES_GROUP, mirror.name)
    former: dict[TopicPartition, int] = {}
    for topic in candidates:
        try:
            former |= await settled_positions(destination, group, [topic])
        except PositionLost:
            former |= {name.source: -1 for name in topic.mirror_partitions}
    return former


async def _replace(
    destination: KafkaCluster, group: str, positions: Collection[ImportedPosition]
) -> None:
    """Commit positions in place of former ones; no lane has the partitions.

    Raises:
        UserError: it is refused.
        Retriable: the target is unreachable; some may be committed.
    """
    offsets = {one.target: Committed(one.position) for one in positions if one.former is not None}
    for part in in_parts(group, offsets):
        for partition, refusal in (await commit_offsets(destination, group, part)).items():
            if isinstance(refusal, Refusal):
                refusal.fail(f"commit the position for group {group}", topic=partition.topic)
