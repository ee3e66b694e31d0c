"""KIP-656's one-time job: a flow begins where the group of another program has committed.

    committed offsets of a group, on the source or the target
        -> checked against the source's logs
        -> the flow's topics, each with where its partitions begin (`MirrorTopic.begins`)

The group may be that of a sink connector (`connect-NAME`), or of any consumer. On the source its
offsets are of the source's topics. On the target they are the source's offsets, too, for the
partitions of the remote topics, or of topics with the source's names (KIP-656's "fake" group).

Topics are added as by a node, so a node that adds them meanwhile is noticed: what was written is
restored then. A former flow of the same name may have left positions, the recorded map or the
committed offsets. They would count, so they are an error. Only those that are committed offsets can
be replaced.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from twinlog.engines.transactional.positions import (
    PositionLost,
    lost_of,
    position_group,
    position_metadata,
    settled_positions,
    source_of,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.groups.offsets import (
    NO_EPOCH,
    Committed,
    commit_offsets,
    committed_offsets,
    in_parts,
    list_groups,
)
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.requests.partitions import offset_for_leader_epoch
from twinlog.kafka.requests.topics import require_all_shown
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.lifecycle.destination_topics import existing_topics, known_id
from twinlog.lifecycle.flow_ends import agreed_ends
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import FlowRules, flow_of
from twinlog.mirror.reported_positions import is_reported
from twinlog.mirror.routed_names import RoutedPolicy
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import Mirror, MirrorTopic, topic_id_text
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.mirrors import MirrorStore, stored_flow
from twinlog.store.offset_records import Route
from twinlog.store.recorded_maps import read_ends
from twinlog.store.snapshot import SettingsReplaced


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
        The partitions of which the group has an offset. The other ones of their topics begin as
        usual: a flow that begins at the end follows them from now on. Topics of which the group has
        none begin as without an import.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR; TOPIC_ALREADY_IN_MIRROR: a node has added a topic meanwhile.
        UserError: the flow has a topic or positions already; the group has members, or no offset of
            the flow's topics, or one that is not in the source's log, or of a partition that the
            source does not show; the source has lost records that the group has read; a right is
            missing.
        SettingsReplaced: the flow's settings have changed meanwhile.
        Retriable: a cluster is unreachable, the source's brokers show different ids or partitions
            of a topic, the end of a partition is unknown (`agreed_ends`), or a transaction with
            offsets of the group is open.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    mirror = stored_flow(snapshot, name)
    flow = flow_of(mirror.source)
    async with connected_source(mirror, destination.config.grants) as source:
        topics = (await source.refresh(None)).topics
        names = copied_topics(topics, *flow)
        cluster = source if side is GroupSide.SOURCE else destination
        asked = await _asked(cluster, names, topics, side)
        offsets = await _offsets_of(cluster, group, side, asked)
        found = _of_source(offsets, flow, topics, side)
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
        ids = {topic: topics[topic].topic_id for topic in new}
        await store.check_addable(snapshot, name, new, ids)
        # A broker that is cut off from the controllers shows the former id of a recreated topic. A
        # position that is stored for that id is dropped later, and the topic is copied whole.
        shown = {topic: topics[topic] for topic in new}
        await require_all_shown(source, shown)
        followed_from = await agreed_ends(source, flow.settings, shown)
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
            clusters = FlowClusters(
                destination=destination, source=source, mirror=mirror, flow=flow
            )
            begins = {one.source: one.position for one in positions}
            committed = position_group(LANES_GROUP, name)
            # Before the topics: a node that runs goes on at a committed position from then on.
            undone = await _replace(destination, committed, positions, topics)
            try:
                await clusters.add(topics, new, begins, followed_from)
            except (UserError, SettingsReplaced):
                await _restore(destination, committed, undone)
                raise
    return positions


async def _asked(
    cluster: KafkaCluster, names: Mapping[str, str], topics: Mapping[str, Topic], side: GroupSide
) -> frozenset[TopicPartition]:
    """The partitions of which a group may have offsets of a flow's topics."""
    keys = {name: name for name in names}
    if side is GroupSide.TARGET:
        # The source's names are rarely topics there, and need no right if they are none.
        shown = (await cluster.refresh(list(names))).topics
        keys = {name: name for name in names if name in shown and not shown[name].error}
        keys |= {remote: name for name, remote in names.items()}
    return frozenset(
        TopicPartition(key, index)
        for key, name in keys.items()
        for index in topics[name].partitions
    )


async def _offsets_of(
    cluster: KafkaCluster, group: str, side: GroupSide, asked: Collection[TopicPartition]
) -> Mapping[TopicPartition, Committed]:
    """What a group without members has committed.

    Args:
        cluster: where.
        group: its name.
        side: the cluster's.
        asked: partitions of which no offset may be pending; without a name it is left out.

    Raises:
        UserError: it has members, or a right is missing.
        Retriable: its coordinator does not answer, or a transaction with its offsets is open.
    """
    offsets = await committed_offsets(cluster, group, stable=True)
    listed = (await list_groups(cluster)).get(group)
    if offsets and listed is None:
        raise Retriable(f"group {group} is in no list of groups, so its members are unknown")
    again = await committed_offsets(
        cluster, group, stable=True, partitions=sorted({*asked, *offsets})
    )
    if (listed is not None and not listed.idle) or again != offsets:
        raise UserError(
            f"group {group} has members on the {side.value}, or its offsets move",
            hint="stop the program that has them, then import",
        )
    return offsets


def _of_source(
    offsets: Mapping[TopicPartition, Committed],
    flow: FlowRules,
    topics: Mapping[str, Topic],
    side: GroupSide,
) -> dict[TopicPartition, Committed]:
    """The offsets by the source's partition, of topics that the flow copies.

    Args:
        offsets: as committed.
        flow: which topics it copies.
        topics: the source's, as far as it shows them.
        side: where they are committed.

    Raises:
        UserError: the source does not show a partition, or an offset may be of the target's topic;
            or where records are routed, of a topic that the source does not show; or a position is
            of a former source topic, or behind records that the target has lost.
    """
    names = copied_topics({*topics, *_named(offsets, flow, side)}, *flow)
    sources = {remote: name for name, remote in names.items()}
    found: dict[TopicPartition, Committed] = {}
    for key, at in sorted(offsets.items()):
        if side is GroupSide.TARGET and is_reported(at.metadata):
            continue  # of a flow from there
        topic = key.topic
        if side is GroupSide.TARGET and topic not in sources:
            if topic in names and TopicPartition(names[topic], key.partition) not in offsets:
                raise UserError(
                    f"the group has offset {at.offset} of {key} on the target, where the flow's "
                    f"topic is {names[topic]}: it may be an offset of the target's own topic",
                    hint=f"commit it for {names[topic]} if it is one of the source, or import from "
                    "the source",
                )
            if topic not in names and isinstance(flow.policy, RoutedPolicy):
                # Its name does not tell of which topic it is: perhaps of one that is not shown.
                raise UserError(
                    f"the group has offset {at.offset} of {key} on the target, and no topic that "
                    f"the source shows, and the flow selects, is copied to {topic}",
                    hint="grant DESCRIBE on the source's topic; if the offset is not of the flow, "
                    "import from a group without it",
                )
            continue
        topic = sources[topic] if side is GroupSide.TARGET else topic
        if topic in names:
            partition = TopicPartition(topic, key.partition)
            if topic not in topics or key.partition not in topics[topic].partitions:
                raise UserError(
                    f"the group has offset {at.offset} of {key}, and the source does not show "
                    f"{partition}",
                    hint="try again; grant DESCRIBE on the source's topic; or, if it was deleted, "
                    "delete the offset (kafka-consumer-groups --delete-offsets)",
                )
            if side is GroupSide.TARGET:
                _require_present(key, at, topics[topic])
            found[partition] = at
    return found


def _require_present(key: TopicPartition, at: Committed, topic: Topic) -> None:
    """Refuse a position that a flow has committed for a former source topic, or behind a loss.

    Its metadata says so; the source's log may have grown past it since.

    Args:
        key: the target's partition of which it is committed.
        at: the position.
        topic: the source's topic.

    Raises:
        UserError: it is such a position.
    """
    has = f"the group has offset {at.offset} of {key} on the target"
    commit = "commit the source's offset to begin at for the group, without metadata, then import"
    source = source_of(at)
    if source is not None and is_another(source, topic.topic_id):
        raise UserError(
            f"{has}, which is of a former topic {topic.name}: its metadata has source-topic-id="
            f"{topic_id_text(source)}, and the topic has {topic_id_text(topic.topic_id)} now",
            hint="delete the offset (kafka-consumer-groups --delete-offsets), and the partition "
            f"begins as usual; or {commit}",
        )
    if (lost := lost_of(at, key)) is not None:
        raise UserError(
            f"{has}, and the target has lost records of topic {topic.name} in front of it: its "
            f"metadata has lost={lost}",
            hint=f"{commit}: behind the last record that is still there, or {at.offset} again to "
            "go on without the lost ones",
        )


def _named(offsets: Collection[TopicPartition], flow: FlowRules, side: GroupSide) -> frozenset[str]:
    """The source's topics that offsets are about, whether or not the source shows them.

    On the target, a topic with a name that the flow does not give may be one of the target's own.
    """
    keys = {key.topic for key in offsets}
    if side is GroupSide.SOURCE:
        return frozenset(keys)
    settings, policy = flow
    alias = settings.source_cluster_alias
    candidates = keys | {name for key in keys if (name := policy.upstream_topic(key)) is not None}
    return frozenset(n for n in candidates if policy.format_remote_topic(alias, n) in keys)


async def _checked(
    source: KafkaCluster, found: Mapping[TopicPartition, Committed], names: Mapping[str, str]
) -> list[ImportedPosition]:
    """The positions, if the source's logs have them.

    Raises:
        UserError: one is behind the end of its log, or the source has lost what was read there.
        Retriable: a leader of the source does not answer.
    """
    logs = ClusterLogs(source)
    await logs.refresh(list({partition.topic for partition in found}))
    bounds = await logs.bounds(list(found))
    positions: list[ImportedPosition] = []
    for partition, committed in sorted(found.items()):
        bound, offset = bounds[partition], committed.offset
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
    await _require_epochs(source, found)
    return positions


async def _require_epochs(source: KafkaCluster, found: Mapping[TopicPartition, Committed]) -> None:
    """Refuse positions at which the source has other records than those that were read.

    A consumer commits the leader epoch of the record before its offset. If that epoch ends earlier
    in the leader's log, an unclean election has taken records, and those that came in their place
    would be passed over (KIP-320). The consumer itself would find that when it starts.

    Raises:
        UserError: such an epoch ends before the offset, or is not known.
        Retriable: a leader does not answer.
    """
    epochs = {p: at.leader_epoch for p, at in found.items() if at.leader_epoch != NO_EPOCH}
    ends = await offset_for_leader_epoch(source, epochs)
    for partition, epoch in sorted(epochs.items()):
        end, offset = ends[partition], found[partition].offset
        if isinstance(end, Refusal):
            end.fail("read the end offset of a leader epoch", topic=partition.topic)
        known = f"the group has offset {offset} of {partition}, read in leader epoch {epoch}"
        if end.end_offset < 0:
            raise UserError(
                f"{known}, which the source's log does not have",
                hint="the source topic was recreated, or these are offsets of another cluster: "
                "check --on; kafka-consumer-groups --reset-offsets commits an offset without epoch",
            )
        # At the offset itself, the epoch may have no record yet: a consumer that begins at the end
        # commits the leader's epoch.
        is_another = end.leader_epoch != epoch and end.end_offset > offset
        if end.end_offset < offset or is_another:
            raise UserError(
                f"{known}; on the source, epoch {end.leader_epoch} ends at offset "
                f"{end.end_offset}: it has lost records that the group has read, and has others "
                "there now",
                hint="reset the group to an offset in front of them, "
                f"{min(end.end_offset, offset)} or a lower one (kafka-consumer-groups "
                "--reset-offsets), then import",
            )


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
            settled = await settled_positions(destination, group, [topic])
            former |= {name.source: at.committed.offset for name, at in settled.items()}
        except PositionLost:
            former |= {name.source: -1 for name in topic.mirror_partitions}
    return former


async def _replace(
    destination: KafkaCluster,
    group: str,
    positions: Collection[ImportedPosition],
    topics: Mapping[str, Topic],
) -> list[tuple[TopicPartition, Committed, Committed]]:
    """Commit positions in place of former ones; no lane has the partitions.

    Returns:
        What was replaced: the remote partition, its former offset, and the new one. A position
        that was lost is left out.

    Raises:
        UserError: it is refused.
        Retriable: the target is unreachable; some may be committed.
    """
    replaced = {one.target: one for one in positions if one.former is not None}
    if not replaced:
        return []
    remotes = await existing_topics(destination, {target.topic for target in replaced})
    former = await committed_offsets(destination, group, stable=True, partitions=list(replaced))
    offsets: dict[TopicPartition, Committed] = {}
    for target, one in replaced.items():
        if target.topic not in remotes:
            raise Retriable("the destination does not show the topic", topic=target.topic)
        # With the topics' ids: a topic that is recreated later does not inherit it.
        route = Route(
            topics[one.source.topic].topic_id,
            target.topic,
            known_id(remotes[target.topic].topic_id),
        )
        metadata = position_metadata(route, Offset(one.position))
        offsets[target] = Committed(one.position, metadata)
    await _commit(destination, group, offsets)
    return [(key, former[key], offsets[key]) for key in offsets.keys() & former.keys()]


async def _restore(
    destination: KafkaCluster,
    group: str,
    replaced: Collection[tuple[TopicPartition, Committed, Committed]],
) -> None:
    """Commit the former positions again, of partitions that no lane has gone on with since."""
    if not replaced:
        return
    keys = [key for key, _, _ in replaced]
    now = await committed_offsets(destination, group, stable=True, partitions=keys)
    offsets = {key: former for key, former, new in replaced if now.get(key) == new}
    await _commit(destination, group, offsets)


async def _commit(
    destination: KafkaCluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> None:
    for part in in_parts(group, offsets):
        for partition, refusal in (await commit_offsets(destination, group, part)).items():
            if isinstance(refusal, Refusal):
                refusal.fail(f"commit the position for group {group}", topic=partition.topic)
