"""`FlowAdmin`: all that `twinlog flows` does, as a typed Python API; `MirrorAdmin.flows` has one.

A flow is a mirror of kind `translated` with the name `SOURCE-to-TARGET`, stored on the target. What
is the same for all mirrors is done by the same functions; `MirrorAdmin` accepts flows, too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.redaction import shown
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.groups.offsets import committed_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import delete_mirror, pause_topics, remove_topics, resume_topics
from twinlog.lifecycle.creation import connected_source
from twinlog.lifecycle.flow_creation import create_flow, properties_of
from twinlog.lifecycle.flow_forgetting import forget_flow
from twinlog.lifecycle.flow_positions import GroupSide, import_positions
from twinlog.lifecycle.flow_selection import (
    follow_selection,
    pause_flow,
    paused_line,
    resume_flow,
)
from twinlog.mirror.connect_worker import STORED_NAMES
from twinlog.mirror.dataframe_transform import ROUTES, keeps_references
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import (
    belongs_to_transforms,
    flow_of,
    kept_settings,
    lasting_settings,
    records_map,
)
from twinlog.mirror.flow_settings import MAP, SETTINGS
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.mirror.mirror_names import flow_name
from twinlog.mirror.routed_names import ROUTED_TOPICS
from twinlog.mirror.settings import FLOW_KINDS, FLOW_PREFIX, split_settings
from twinlog.operations.checkpoint_offsets import offsets_by_checkpoints
from twinlog.operations.describe import MirrorDescription
from twinlog.operations.flow_results import (
    CreateFlowResult,
    Creation,
    DeleteFlowResult,
    DescribeFlowsResult,
    Direction,
    FlowDescription,
    ImportPositionsResult,
    ListFlowsResult,
    TranslatedOffset,
    TranslatedOffsets,
)
from twinlog.operations.offset_translation import (
    Question,
    at_timestamp,
    joined,
    of_copied_topics,
    read_flow_offsets,
    without_failed,
)
from twinlog.operations.removal import await_stopped
from twinlog.operations.results import ChangedTopics, DescribeMirrorsResult
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import ControlTopics
from twinlog.store.mirrors import MirrorStore, stored_flow
from twinlog.store.snapshot import Snapshot

ALL_TOPICS: Final = ".*"
DELETE_S: Final = 60.0
"""Seconds for which a deletion waits until its partitions are STOPPED: a takeover adds a lease."""
_RETRY_S: Final = 0.5
_IF_DEAD: Final = "if the source is dead, --from-checkpoints needs the target alone"
_ALIASES: Final = ("source.cluster.alias", "target.cluster.alias")

Describe = Callable[[Collection[str] | None], Awaitable[DescribeMirrorsResult]]
Questions = Mapping[TopicPartition, Sequence[Question]]


class FlowAdmin:
    """An administrator of the flows to one cluster.

    Every method may raise, in addition to its own errors, what `MirrorAdmin` names. Those that take
    a flow's name raise MirrorRefused (UNKNOWN_MIRROR), or UserError if that mirror is no flow.

    Args:
        cluster: the target, connected.
        topics: how control topics are created.
        describe: describes mirrors of these names.
    """

    def __init__(self, cluster: KafkaCluster, topics: ControlTopics, describe: Describe) -> None:
        self._cluster = cluster
        self._topics = topics
        self._describe = describe

    async def create(self, flow: Flow, *, replaces: bool = False) -> CreateFlowResult:
        """Create a flow; a node then adds its topics and copies them.

        Args:
            flow: as `mirror_maker.check_flow` or `check_file` returns it.
            replaces: give a flow that exists these settings; those that are not set get their
                defaults again, except those that only `MirrorAdmin.alter_mirror` sets.

        Raises:
            MirrorRefused: INVALID_MIRROR_NAME, MIRROR_ALREADY_EXISTS.
            UserError: the flow copies no topics, a setting is not supported, the source refuses the
                client, or is the target itself, or another cluster than before; topics that the
                flow has would have other remote names, or another flow copies them there.
        """
        if flow.heartbeats_only:
            raise UserError(
                f"flow {flow.name} copies no topics: {flow.name}.enabled is not true",
                hint="twinlog mirror-maker writes the heartbeats of such a flow",
            )
        name = flow_name(flow.source_alias, flow.target_alias)
        store = MirrorStore(self._cluster)
        existed = name in (await store.snapshot()).mirrors
        properties = properties_of(flow)
        await create_flow(
            self._cluster,
            flow.source_alias,
            flow.target_alias,
            properties,
            self._topics,
            replaces=replaces,
        )
        lines = await follow_selection(self._cluster, name)
        stored = stored_flow(await store.snapshot(), name)
        if kept := kept_settings(stored.source, properties):
            lines = [*lines, kept]
        if paused := paused_line(stored):
            lines = [*lines, paused]
        return CreateFlowResult(
            flow=name,
            creation=Creation.REPLACED if existed else Creation.CREATED,
            source_cluster_id=stored.source_cluster_id,
            lines=tuple(lines),
        )

    async def list_flows(self) -> ListFlowsResult:
        """List all flows; none if none was ever created."""
        described = await self.describe()
        return ListFlowsResult(flows=described.flows, unreadable=described.unreadable)

    async def describe(self, flows: Collection[str] | None = None) -> DescribeFlowsResult:
        """Describe flows with their settings, topics and partitions: these, or all.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR.
            UserError: a mirror of this name is no flow.
        """
        snapshot = await MirrorStore(self._cluster).snapshot()
        if flows is None:
            stored = [m for m in snapshot.mirrors.values() if m.kind in FLOW_KINDS]
        else:
            stored = [stored_flow(snapshot, name) for name in sorted(set(flows))]
        if not stored:
            return DescribeFlowsResult(flows=(), unreadable=tuple(snapshot.unreadable.values()))
        described = await self._describe([mirror.name for mirror in stored])
        mirrors = {mirror.mirror: mirror for mirror in described.mirrors}
        descriptions: list[FlowDescription] = []
        unreadable = list(described.unreadable)
        for mirror in stored:
            description, trouble = _described(mirror, mirrors[mirror.name])
            descriptions.append(description)
            unreadable += trouble
        return DescribeFlowsResult(flows=tuple(descriptions), unreadable=tuple(unreadable))

    async def pause(self, flow: str, topics: str | Collection[str] = ALL_TOPICS) -> ChangedTopics:
        """Stop copying topics of the source; return the names of those that are paused by this.

        With `ALL_TOPICS`, the flow is paused as a whole: topics that it selects later are, too.

        Raises:
            MirrorRefused, UserError: as `MirrorAdmin.pause_mirror_topics`; of the whole flow, only
                UNKNOWN_MIRROR, and it is no error that all is paused.
        """
        await self._flow(flow)
        if topics == ALL_TOPICS:
            return ChangedTopics(flow, "paused", await pause_flow(self._cluster, flow))
        return ChangedTopics(flow, "paused", await pause_topics(self._cluster, flow, topics))

    async def resume(self, flow: str, topics: str | Collection[str] = ALL_TOPICS) -> ChangedTopics:
        """Resume topics of the source from where they are; return the names of those.

        With `ALL_TOPICS`, the flow is not paused any more, nor is any topic. With others, a flow
        that is paused as a whole remains so for topics that it gets.

        Raises:
            MirrorRefused, UserError: as `MirrorAdmin.resume_mirror_topics`; of the whole flow, only
                UNKNOWN_MIRROR, and if its settings cannot be read; it is no error that nothing is
                paused.
        """
        await self._flow(flow)
        if topics == ALL_TOPICS:
            return ChangedTopics(flow, "resumed", await resume_flow(self._cluster, flow))
        return ChangedTopics(flow, "resumed", await resume_topics(self._cluster, flow, topics))

    async def delete(
        self,
        flow: str,
        *,
        forgets_offsets: bool = False,
        timeout_s: float = DELETE_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> DeleteFlowResult:
        """End a flow, wait until its partitions are STOPPED, and delete it.

        The target's topics stay with their records, and so does the recorded map: if the flow is
        created again, it goes on where it was. With other remote names it begins anew there; one
        that routes records is refused then (`former_routes`).

        Args:
            flow: its name.
            forgets_offsets: delete the recorded maps and positions, too: if the flow is created
                again, it begins anew, and copies all records once more.
            timeout_s: how long to wait, in seconds; as long again for topics that a node adds
                meanwhile. A node has to run.
            tell: receives now and then what is waited for, as text; and what may be left of what
                was to be forgotten.

        Raises:
            MirrorRefused: MIRROR_NOT_EMPTY: a node has added topics meanwhile, again and again.
            Retriable: not STOPPED in time. The end of the flow is stored and continues; the same
                call deletes it later.
        """
        deadline = time.monotonic() + timeout_s
        left: list[str] = []
        forget = None
        if forgets_offsets:
            forget = partial(forget_flow, self._cluster, tell=left.append)
        removed: list[str] = []
        while True:
            topics = (await self._flow(flow)).topics_of(flow)
            if active := [t.topic for t in topics if t.wanted is not Wanted.STOPPED]:
                removed += await remove_topics(self._cluster, flow, active)
            await await_stopped(
                lambda: self._describe([flow]),
                {topic.topic for topic in topics},
                timeout_s,
                tell,
            )
            try:
                await delete_mirror(self._cluster, flow, forget=forget)
            except MirrorRefused as refused:
                # A node may add a topic between the two: it is removed, too.
                if refused.kind is not MirrorError.MIRROR_NOT_EMPTY or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                for line in left[-1:]:
                    tell(line)
                return DeleteFlowResult(
                    flow=flow,
                    removed=tuple(sorted(set(removed))),
                    forgot_offsets=forgets_offsets and not left,
                )

    async def import_positions(
        self,
        flow: str,
        group: str,
        on: GroupSide = GroupSide.SOURCE,
        *,
        replaces: bool = False,
        dry_run: bool = False,
    ) -> ImportPositionsResult:
        """Have a flow begin where a group of another program has committed (KIP-656).

        Args:
            flow: its name; it has not been started yet.
            group: a group without members.
            on: the cluster on which it has committed.
            replaces: replace positions that a former flow of this name has left.
            dry_run: check all, and write nothing.

        Raises:
            MirrorRefused, UserError: see `flow_positions.import_positions`.
        """
        positions = await import_positions(
            self._cluster, flow, group, on, replaces=replaces, dry_run=dry_run
        )
        return ImportPositionsResult(
            flow=flow, group=group, on=on, dry_run=dry_run, positions=tuple(positions)
        )

    async def translate_offsets(
        self,
        flow: str,
        topic: str,
        partition: int,
        offsets: Collection[int],
        direction: Direction = Direction.TO_TARGET,
    ) -> TranslatedOffsets:
        """Translate offsets of one partition by the recorded map; the source is not asked.

        Back to the source, an offset is that of the record which is there now: what a group has
        committed may be of before a loss (`translate_group`).

        Args:
            flow: its name.
            topic: the source's topic, or the target's if the direction is TO_SOURCE; likewise the
                partition and the offsets.
            partition: its number.
            offsets: 0 or more each.
            direction: of the translation.

        Raises:
            MirrorRefused: TOPIC_NOT_IN_MIRROR.
            UserError: the topic has no such partition, or an offset is negative.
        """
        if negative := [offset for offset in offsets if offset < 0]:
            raise UserError(f"the offset {negative[0]} is not valid: expected 0 or more")
        snapshot = await self._mapped(flow)
        topics = _named(snapshot.topics_of(flow), flow, topic, partition, direction)
        questions = {TopicPartition(topic, partition): list(offsets)}
        return await self._translated(snapshot.mirrors[flow], topics, questions, direction)

    async def translate_group(
        self,
        flow: str,
        group: str,
        direction: Direction = Direction.TO_TARGET,
        *,
        from_checkpoints: bool = False,
    ) -> TranslatedOffsets:
        """Translate all offsets that a consumer group has committed on the side of the question.

        Back to the source, those that may be of before the target has lost copies are `LOST`. In
        partitions that are FAILED, all are `UNPROVEN`: the source may have other records by now.

        Args:
            flow: its name.
            group: the group, on the source; on the target if the direction is TO_SOURCE.
            direction: of the translation.
            from_checkpoints: do not ask the source, but the flow's last checkpoints, which are on
                the target; the direction has to be TO_TARGET.

        Raises:
            UserError: the group has committed nothing, or the source is another cluster by now; or
                the group has no checkpoint, if these are asked.
            Retriable: a cluster that is asked is unreachable.
        """
        if from_checkpoints and direction is not Direction.TO_TARGET:
            raise UserError("checkpoints have offsets of the source: expected direction TO_TARGET")
        snapshot = await self._mapped(flow)
        topics, mirror = snapshot.topics_of(flow), snapshot.mirrors[flow]
        questions: Mapping[TopicPartition, Question]
        if direction is Direction.TO_SOURCE:
            questions = await _committed(self._cluster, group, "target")
        elif from_checkpoints:
            return await offsets_by_checkpoints(self._cluster, snapshot, flow, group)
        else:
            try:
                async with connected_source(mirror, self._cluster.config.grants) as source:
                    questions = await _committed(source, group, "source")
                    questions = await of_copied_topics(source, topics, questions)
            except Retriable as error:
                error.hint = joined(error.hint, _IF_DEAD)
                raise
        translated = await self._translated(
            mirror, topics, _each(questions), direction, of_group=True
        )
        found = await without_failed(self._cluster, topics, translated.offsets, direction)
        return replace(translated, group=group, offsets=tuple(found))

    async def translate_timestamp(
        self,
        flow: str,
        timestamp_ms: int,
        topic: str | None = None,
        partition: int | None = None,
        direction: Direction = Direction.TO_TARGET,
    ) -> TranslatedOffsets:
        """Translate the offset of the first record with a timestamp, or a later one.

        The side of the question looks it up: the source, or the target if the direction is
        TO_SOURCE. In partitions that are FAILED, all are `UNPROVEN`.

        Args:
            flow: its name.
            timestamp_ms: milliseconds since 1970.
            topic: only this topic of that side; None: all of the flow.
            partition: only this partition of each; None: all.
            direction: of the translation.

        Raises:
            MirrorRefused: TOPIC_NOT_IN_MIRROR.
            UserError: the topic has no such partition; or the source is another cluster by now.
            Retriable: a cluster is unreachable.
        """
        if timestamp_ms < 0:
            raise UserError(f"the timestamp {timestamp_ms} is not valid: expected 0 or more")
        snapshot = await self._mapped(flow)
        topics = snapshot.topics_of(flow)
        if topic is not None:
            topics = _named(topics, flow, topic, partition or 0, direction)
        forward = direction is Direction.TO_TARGET
        partitions = {
            name.source if forward else one.on_destination(name)
            for one in topics
            for name in one.mirror_partitions
            if partition in {None, name.partition}
        }
        questions: Mapping[TopicPartition, Question]
        if forward:
            mirror = snapshot.mirrors[flow]
            async with connected_source(mirror, self._cluster.config.grants) as source:
                questions = await at_timestamp(source, partitions, timestamp_ms, "source")
                questions = await of_copied_topics(source, topics, questions)
        else:
            questions = await at_timestamp(self._cluster, partitions, timestamp_ms, "target")
        translated = await self._translated(
            snapshot.mirrors[flow], topics, _each(questions), direction
        )
        found = await without_failed(self._cluster, topics, translated.offsets, direction)
        return replace(translated, timestamp_ms=timestamp_ms, offsets=tuple(found))

    async def _flow(self, name: str) -> Snapshot:
        """All mirrors, among which is this flow."""
        snapshot = await MirrorStore(self._cluster).snapshot()
        stored_flow(snapshot, name)
        return snapshot

    async def _mapped(self, name: str) -> Snapshot:
        """All mirrors, among which is this flow, whose offsets are recorded."""
        snapshot = await self._flow(name)
        if not records_map(snapshot.mirrors[name].source):
            raise UserError(
                f"flow {name} has transforms or transaction.producer: its offsets are not recorded",
                hint=f"set {MAP}=true, and for a query or function {ROUTES}=false "
                "(docs/operations/transforms.md#offsets)",
            )
        return snapshot

    async def _translated(
        self,
        flow: Mirror,
        topics: Sequence[MirrorTopic],
        questions: Questions,
        direction: Direction,
        *,
        of_group: bool = False,
    ) -> TranslatedOffsets:
        asked = {partition.topic for partition in questions}
        side = [topic for topic in topics if _name_on(topic, direction) in asked]
        known = await read_flow_offsets(self._cluster, side, flow.source, direction)
        results: list[TranslatedOffset] = []
        for partition, offsets in sorted(questions.items(), key=lambda item: item[0]):
            for offset in offsets:
                if direction is Direction.TO_TARGET:
                    results.append(known.to_target(partition, offset))
                else:
                    results += known.to_source(partition, offset, of_group=of_group)
        return TranslatedOffsets(flow=flow.name, direction=direction, offsets=tuple(results))


def _described(
    mirror: Mirror, description: MirrorDescription
) -> tuple[FlowDescription, Sequence[str]]:
    """A flow, and why its settings cannot be read."""
    connection = split_settings(mirror.source)[1]
    values = {
        name.removeprefix(FLOW_PREFIX): text
        for name, text in mirror.source.items()
        if name.startswith(FLOW_PREFIX)
    }
    trouble: list[str] = []
    settings: dict[str, str] = {}
    try:
        flow_of(mirror.source)
    except UserError as error:
        trouble = [f"settings of flow {mirror.name}: {error}"]
    else:
        settings = {
            name: values.get(name, setting.default or "") for name, setting in SETTINGS.items()
        }
        settings |= {
            name: text
            for name, text in values.items()
            if belongs_to_transforms(name) or name in {*STORED_NAMES, ROUTED_TOPICS}
        }
        settings |= lasting_settings(mirror.source)
        settings |= shown({n: text for n, text in settings.items() if keeps_references(n)})
    source, target = (settings.get(name, "") for name in _ALIASES)
    same = (mirror.name.startswith(f"{source}-to-"), mirror.name.endswith(f"-to-{target}"))
    unchanged = {alias for alias, is_same in zip(_ALIASES, same, strict=True) if is_same}
    changed = [
        name
        for name, text in settings.items()
        if name not in unchanged and (name not in SETTINGS or text != SETTINGS[name].default)
    ]
    flow = FlowDescription(
        flow=mirror.name,
        source=source,
        target=target,
        config=shown(connection),
        settings=settings,
        changed=tuple(changed),
        paused=mirror.paused,
        mirror=description,
    )
    return flow, trouble


def _name_on(topic: MirrorTopic, direction: Direction) -> str:
    """A topic's name on the side of the question."""
    return topic.topic if direction is Direction.TO_TARGET else topic.destination_name


def _named(
    topics: Sequence[MirrorTopic], flow: str, name: str, partition: int, direction: Direction
) -> Sequence[MirrorTopic]:
    """The topics of a flow that have this name on the side of the question.

    Raises:
        MirrorRefused: TOPIC_NOT_IN_MIRROR.
        UserError: none of them has this partition.
    """
    selection = [topic for topic in topics if _name_on(topic, direction) == name]
    if not selection:
        what = "from" if direction is Direction.TO_TARGET else "to"
        raise MirrorError.TOPIC_NOT_IN_MIRROR.error(
            f"flow {flow} copies nothing {what} a topic {name}",
            hint=f"twinlog flows describe --flow {flow} lists its topics",
        )
    count = max(topic.partitions for topic in selection)
    if partition >= count:
        raise UserError(
            f"flow {flow} copies {count} partition(s) of {name}: expected a number below {count}, "
            f"not {partition}"
        )
    return selection


async def _committed(
    cluster: KafkaCluster, group: str, side: str
) -> Mapping[TopicPartition, Question]:
    """What a group has committed.

    Raises:
        UserError: nothing.
    """
    offsets = await committed_offsets(cluster, group)
    if not offsets:
        raise UserError(
            f"group {group} has committed no offset on the {side}",
            hint="check its name; kafka-consumer-groups --list has all groups",
        )
    return {partition: committed.offset for partition, committed in offsets.items()}


def _each(questions: Mapping[TopicPartition, Question]) -> Questions:
    return {partition: [question] for partition, question in questions.items()}
