"""What is different about a flow in a survey of readiness (survey.py).

A flow is not failed over: nothing is fenced, and consumers go on in the remote topics, where their
offsets are translated to. So it counts whether these have everything, and whether the translated
offsets are there, and are not behind:

    question                        an exact mirror             a flow
    ------------------------------  --------------------------  ------------------------------------
    where has it copied to          the destination's log end   what the flow has recorded, or a
                                                                fresh status: offsets are not equal
    has somebody else written       compared with the end       not asked: `twinlog verify` does
    which topics are left out       the mirror's expressions    what the flow selects
    groups                          offsets on the destination  these, if the flow commits them,
                                                                otherwise its checkpoints
    is somebody at work             statuses of the lanes       also heartbeats and checkpoints
    what does the lag count         all topics                  not copied heartbeats: one is always
                                                                about to be copied

Heartbeats and checkpoints are dated by the clock of the node that writes them, and their age is by
the clock of this machine.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from twinlog.engines.transactional.kind import read_flow_maps
from twinlog.engines.transactional.positions import committed_positions, position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import ProtocolError, Refusal, TwinlogError
from twinlog.kafka.groups.offsets import Committed, Group, committed_offsets, list_groups
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_selection import unselected as unselected_topics
from twinlog.lifecycle.flow_selection import why_not_again
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import flow_of, records_map
from twinlog.mirror.flow_settings import MAP
from twinlog.mirror.mm2_records import decode_heartbeat
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.reported_positions import is_reported
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.mirror.states import State
from twinlog.operations.readiness.begins_later import Front
from twinlog.operations.readiness.facts import (
    FlowFacts,
    GroupFacts,
    MirrorFacts,
    PartitionFacts,
    Skip,
    SourceLog,
    SourceTopic,
    TopicFacts,
)
from twinlog.operations.readiness.group_survey import (
    ByTopic,
    group_facts,
    not_listed,
    not_placed,
    not_translated,
    offset_facts,
)
from twinlog.operations.readiness.lost_copies import lost_copies
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.operations.readiness.subject import Subject
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.shared_remotes import other_copies
from twinlog.store.topic_reader import Tail
from twinlog.sync.flow_records import ALL_S, checkpoints_overdue_s
from twinlog.sync.group_readings import Log, group_offsets, in_shared, log_bounds
from twinlog.sync.group_rules import in_source_offsets
from twinlog.sync.group_selection import flow_groups
from twinlog.sync.stored_checkpoints import StoredCheckpoints, read_checkpoints
from twinlog.text import few

LATE: Final = 5
"""Intervals without a record after which it counts as missing."""
LATE_S: Final = 10.0
"""Seconds for which no record is missed, however short its interval is; and by which the clock of a
node may be ahead of this machine's."""
_HEARTBEATS_READ: Final = 500
"""Records at the end of the heartbeats topic among which the flow's last one is searched."""
_NOT_KEPT: Final = (
    "unknown whether the remote logs still hold what was copied: a flow with transforms or "
    "transaction.producer does not record where it has copied to, unless it has a map of each "
    "partition (twinlog.offset.map)"
)
_AHEAD: Final = (
    "the last one is dated ahead of this machine's clock, so its age is unknown; check the clocks "
    "of the nodes and of this machine"
)
_NOT_SELECTED: Final = (
    "the flow's settings do not select it, and it goes on: a start of twinlog mirror-maker, or "
    "twinlog flows create --replace, removes it"
)
_UNDISCOVERED: Final = "not added yet; the next refresh adds it"
_NOT_REFRESHED: Final = "not added: refresh.topics.* is off; a node that starts anew adds it"
_OF_ANOTHER: Final = "not added: {} copies it to the same remote topic, or has done so"
_TWICE: Final = (
    "{} copies it to the same remote topic, too, which has each record twice: remove it from one "
    "of them (kafka-mirrors --remove --mirror)"
)


class FlowSurvey:
    """A flow, and what it has recorded.

    Args:
        destination: the flow's target.
        subject: the flow's topics.
        maps: the recorded maps, by the source's partition.
        positions: the source's offset up to which each partition is copied, as it is recorded.
        remote_ends: the high watermarks of the remote logs, read after these.
    """

    def __init__(
        self,
        destination: KafkaCluster,
        subject: Subject,
        maps: Mapping[TopicPartition, RecordedMap],
        positions: Mapping[TopicPartition, int],
        remote_ends: Mapping[TopicPartition, int],
    ) -> None:
        self._destination = destination
        self._subject = subject
        self._flow = flow_of(subject.mirror.source)
        self._maps = maps
        self._positions = positions
        self._remote_ends = remote_ends
        # What another program has copied may be below the place that a flow was to follow it from.
        self._copied_from = {
            name.source: 0 if topic.begin(name.partition) is not None else followed_from
            for topic in subject.topics
            for name in topic.mirror_partitions
            for followed_from in [topic.follows_from(name.partition) or 0]
        }
        """The source's offsets below which nothing was to be copied."""
        self.ends = self._ends()
        """The source's offsets up to which everything is copied, of the remote logs that can be
        read."""

    @classmethod
    async def of(cls, destination: KafkaCluster, subject: Subject) -> "FlowSurvey":
        """Read what a flow has recorded.

        Raises:
            TwinlogError: it cannot be read.
        """
        maps: Mapping[TopicPartition, RecordedMap] = {}
        positions: dict[TopicPartition, int] = {}
        maps = await read_flow_maps(destination, subject.topics, subject.mirror.source)
        if subject.mirror.kind == TRANSLATED:
            positions = {partition: recorded.position for partition, recorded in maps.items()}
        else:
            group = position_group(LANES_GROUP, subject.mirror.name)
            positions = await committed_positions(destination, group, subject.topics)
        names = [subject.translation.name(partition) for partition in subject.partitions]
        answers = subject.translation.by_source(
            subject.partitions, await list_offsets(destination, names, OffsetSpec.LATEST)
        )
        ends = {p: end.offset for p, end in answers.items() if not isinstance(end, Refusal)}
        return cls(destination, subject, maps, positions, ends)

    @property
    def syncs_groups(self) -> bool:
        """Whether the flow commits offsets of groups on the target."""
        return self._is_mapped and self._flow.settings.syncs_group_offsets

    @property
    def _is_mapped(self) -> bool:
        return records_map(self._subject.mirror.source)

    @property
    def _checkpoints(self) -> bool:
        return self._is_mapped and self._flow.settings.emits_checkpoints

    def _ends(self) -> dict[TopicPartition, int]:
        reported = {
            TopicPartition(topic.topic, row.partition): row.mirrored_offset
            for topic in self._subject.described.topics
            for row in topic.partitions
            if row.fresh and row.state is State.MIRRORING
        }
        begins = {
            name.source: topic.begin(name.partition) or 0
            for topic in self._subject.topics
            for name in topic.mirror_partitions
        }
        if self._subject.mirror.kind == TRANSACTIONAL:
            # It is copied again: nothing but a position tells how far (sync/recreated_remotes.py).
            anew = {topic.topic for topic in self._subject.topics if topic.lost_topic_ids}
            reported = {p: end for p, end in reported.items() if p.topic not in anew}
            begins = {p: begin for p, begin in begins.items() if p.topic not in anew}
        return {
            partition: max(
                self._positions.get(partition, begins.get(partition, 0)),
                reported.get(partition, 0),
            )
            for partition in self._subject.partitions
            if partition in self._remote_ends
        }

    async def log_starts(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Front]]:
        """The source's offsets of the first records that remote logs still have.

        Returns:
            The offsets; those that cannot be read are missing. 0: none of the flow's records was
            deleted, or it is not known which. Then, and if a map lacks copies in front of it, the
            remote log's front.
        """
        translation, partitions = self._subject.translation, self._subject.partitions
        names = [translation.name(partition) for partition in partitions]
        answers = translation.by_source(
            partitions, await list_offsets(self._destination, names, OffsetSpec.EARLIEST)
        )
        starts: dict[TopicPartition, int] = {}
        fronts: dict[TopicPartition, Front] = {}
        for partition, answer in answers.items():
            if isinstance(answer, Refusal):
                continue
            recorded = self._maps.get(partition)
            starts[partition] = 0
            if recorded is None:
                continue
            if answer.offset > recorded.runs.start.destination:
                starts[partition] = recorded.runs.to_source(answer.offset)
                continue
            start = max(self._copied_from[partition], recorded.unproven_end)
            if answer.offset > 0 and start < recorded.front_end:
                name = translation.name(partition)
                fronts[partition] = Front(name, answer.offset, start, recorded.front_end)
        return starts, fronts

    def not_copied(self, source_topics: Mapping[str, Topic]) -> dict[str, str]:
        """Those of the source's topics that the flow selects and does not have, with the reason."""
        subject = self._subject
        topics = subject.snapshot.topics_of(subject.mirror.name)
        # A topic that an operator has removed from the flow is not added again.
        known = {topic.topic for topic in topics if not topic.may_return}
        selected = copied_topics(source_topics, self._flow.settings, self._flow.policy)
        reasons = dict(subject.snapshot.not_mirrored(subject.mirror.name).topics)
        unnamed = _UNDISCOVERED if self._flow.settings.refreshes_topics else _NOT_REFRESHED
        ids = {name: source_topics[name].topic_id for name in selected}
        for topic in other_copies(subject.snapshot, subject.mirror, selected, ids):
            reasons[topic.topic] = _OF_ANOTHER.format(topic.mirror)
        for topic in topics:
            name = topic.topic
            if (
                topic.may_return
                and name in selected
                and (why := why_not_again(topic, ids[name], self._flow.settings))
            ):
                reasons[name] = f"not added: {why}"
        return {
            name: reasons.get(name, unnamed)
            for name in sorted(selected.keys() - known)
            if subject.named(name)
        }

    async def groups(
        self, source: KafkaCluster, logs: Mapping[TopicPartition, SourceLog]
    ) -> tuple[ByTopic, tuple[Finding, ...]]:
        """The groups that the flow selects, with their translated offsets.

        Raises:
            TwinlogError: groups cannot be listed, or checkpoints cannot be read.
        """
        subject = self._subject
        mapped = {p: log for p, log in logs.items() if p not in subject.translation.unknown}
        if self.syncs_groups:
            facts, findings = await group_facts(
                *(source, self._destination, subject.mirror.name),
                *(flow_groups(self._flow.settings), self._counted(mapped)),
                translation=subject.of_groups,
            )
            kinds = {
                group.group: group.kind
                for groups in facts.values()
                for group in groups
                if group.followed
            }
            committed = {
                name: self._by_topic(await group_offsets(source, Group(name, "", kind)))
                for name, kind in sorted(kinds.items())
            }
            followed = {
                topic: tuple(
                    self._beyond_map(group, committed[group.group].get(topic, {}), mapped)
                    for group in groups
                    if group.followed
                )
                for topic, groups in facts.items()
            }
            return subject.by_selected_topic(followed), findings
        if self._checkpoints:
            facts, findings = await self._by_checkpoints(source, mapped)
            return subject.by_selected_topic(facts), findings
        if not self._is_mapped:
            text = f"groups: a flow in transactions translates no offsets without {MAP}=true"
        else:
            text = "groups: the flow translates no offsets (emit.checkpoints.enabled)"
        return {}, (Finding(Reason.GROUP_NOT_COPIED, text),)

    def _counted(self, logs: Mapping[TopicPartition, SourceLog]) -> dict[TopicPartition, SourceLog]:
        """The logs in which offsets of groups count: of shared partitions, the remote ones."""
        names = self._subject.of_groups
        return {
            **{partition: log for partition, log in logs.items() if partition not in names.keys},
            **{
                key: SourceLog(None, one.reach, one.reach)
                for key, one in names.shared.items()
                if not logs.keys().isdisjoint(one.feeders)
            },
        }

    async def _by_checkpoints(
        self, source: KafkaCluster, mapped: Mapping[TopicPartition, SourceLog]
    ) -> tuple[ByTopic, tuple[Finding, ...]]:
        """The groups whose offsets clients translate by checkpoints. These are read first."""
        translation, logs = self._subject.of_groups, self._counted(mapped)
        checkpoints: defaultdict[str, dict[TopicPartition, Committed]] = defaultdict(dict)
        stored = await self._read_checkpoints()
        for one in stored.checkpoints:
            checkpoints[one.group][one.partition] = Committed(one.downstream_offset, one.metadata)
        bounds = await log_bounds(self._destination, list(logs), translation)
        by_topic: defaultdict[str, list[GroupFacts]] = defaultdict(list)
        failed: list[str] = []
        not_copied: list[Finding] = []
        incomplete = await not_listed(source)
        selects = flow_groups(self._flow.settings)
        for group in sorted((await list_groups(source)).values()):
            if not selects(group):
                continue
            try:
                committed = _own(await committed_offsets(source, group.name))
            except TwinlogError as error:
                failed.append(f"{group.name}: {error}")
                continue
            joined, unplaced = in_shared(committed, translation)
            shown = {p: place for p, place in unplaced.items() if p in logs}
            not_copied += not_placed(group.name, shown, translation)
            untranslated = translation.untranslated({p: at.offset for p, at in joined.items()}) & (
                logs.keys() | translation.unknown
            )
            offsets = {
                p: at._replace(offset=translation.offsets(p).lowest(at.offset))
                for p, at in joined.items()
                if p in logs and p not in untranslated
            }
            failed += not_translated(group.name, untranslated, translation)
            if problem := bounds.unknown(offsets.keys()):
                failed.append(f"offsets of {group.name}: {problem}")
            placed = logs.keys() - unplaced.keys()
            remote = self._in_source_offsets(checkpoints[group.name], placed, offsets, bounds.logs)
            facts = offset_facts(
                *(group.name, logs, bounds.logs, offsets, remote), own=frozenset(remote)
            )
            by_source = self._by_topic(committed)
            for topic, found in facts.items():
                by_topic[topic].append(
                    replace(
                        self._beyond_map(found, by_source.get(topic, {}), mapped),
                        kind=group.kind,
                        idle_on_source=group.idle,
                        deleted=(),
                    )
                )
        if stored.unreadable:
            reasons = sorted(one.reason for one in stored.unreadable)
            failed.append(f"checkpoints that cannot be read: {few(reasons)}")
        findings = [Finding(Reason.GROUP_UNREADABLE, f"groups: {text}") for text in failed]
        return {topic: tuple(facts) for topic, facts in by_topic.items()}, (
            *incomplete,
            *not_copied,
            *findings,
        )

    def _by_topic(
        self, committed: Mapping[TopicPartition, Committed]
    ) -> Mapping[str, Mapping[TopicPartition, int]]:
        """The offsets that a group has committed itself, by the topic as which they count."""
        names = self._subject.of_groups
        by_topic: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, at in _own(committed).items():
            by_topic[names.key(partition).topic][partition] = at.offset
        return by_topic

    def _beyond_map(
        self,
        group: GroupFacts,
        offsets: Mapping[TopicPartition, int],
        logs: Mapping[TopicPartition, SourceLog],
    ) -> GroupFacts:
        """The facts of a group with what translated offsets do not show.

        They begin and end where the map does, and leave out copies that the target has lost. What
        is below the source's log start is no loss: a flow that begins at the beginning has begun
        there, or below.

        Args:
            group: the facts by translated offsets.
            offsets: what it has committed on the source for the topic.
            logs: the source's logs, of the partitions that are mapped.
        """
        known = self._maps.keys() & logs.keys() - self._subject.translation.untranslated(offsets)
        in_front, lost = list[Skip](), list[Skip]()
        for partition, offset in sorted(offsets.items()):
            if partition not in known:
                continue
            recorded, unread_from = self._maps[partition], max(offset, logs[partition].start or 0)
            begin = recorded.runs.start.source
            if unread_from < begin:
                in_front.append(Skip(partition, unread_from, begin, follows=False))
            lost += [
                Skip(partition, at, end, follows=False)
                for start, end in recorded.lost_sources
                if (at := max(unread_from, start, begin)) < end
            ]
        return replace(
            group,
            ahead=sum(max(at - self.ends.get(p, at), 0) for p, at in offsets.items()),
            left_out=(*in_front, *lost),
            # The map has an offset for what is lost, so that is counted.
            unread=group.unread + sum(skip.destination - skip.source for skip in in_front),
        )

    def _in_source_offsets(
        self,
        checkpoints: Mapping[TopicPartition, Committed],
        partitions: Collection[TopicPartition],
        source: Mapping[TopicPartition, Committed],
        logs: Mapping[TopicPartition, Log],
    ) -> dict[TopicPartition, Committed]:
        translation = self._subject.of_groups
        copies = translation.by_source(partitions, checkpoints)
        return in_source_offsets(copies, translation, source, copies.keys(), logs)

    def unknown_groups(self) -> tuple[Finding, ...]:
        """What is not known of groups whose source does not answer, and that are not committed."""
        text = "groups: their source offsets are unknown: the source does not respond"
        return (Finding(Reason.GROUP_UNREADABLE, text),)

    async def completed(self, facts: MirrorFacts) -> MirrorFacts:
        """The facts with those that only a flow has."""
        heartbeat, checkpoint, findings = None, None, list[Finding]()
        if not self._is_mapped or self._positions.keys() - self._maps.keys():
            findings.append(Finding(Reason.NOT_COMPARED, _NOT_KEPT))
        if self._flow.settings.emits_heartbeats:
            heartbeat, trouble = await self._heartbeat()
            findings += trouble
        if self._checkpoints:
            groups = any(topic.groups for topic in facts.topics)
            checkpoint, trouble = await self._last_checkpoint(expected=groups)
            findings += trouble
        selection: defaultdict[str, list[Finding]] = defaultdict(list)
        for topic in unselected_topics(self._subject.topics, self._flow):
            selection[topic.topic].append(Finding(Reason.NOT_SELECTED, _NOT_SELECTED))
        subject = self._subject
        names = {topic.topic: topic.destination_name for topic in subject.topics}
        for copy in other_copies(subject.snapshot, subject.mirror, names, removed=False):
            text = _TWICE.format(copy.mirror)
            selection[copy.topic].append(Finding(Reason.COPIED_TWICE, text))
        topics = tuple(
            replace(
                topic,
                partitions=tuple(self._completed(topic.topic, p) for p in topic.partitions),
                synced=(*topic.synced, *self._lost(topic), *selection[topic.topic]),
                holds_heartbeats=self._flow.policy.is_heartbeats_topic(topic.topic),
            )
            for topic in facts.topics
        )
        flow = FlowFacts(heartbeat_age_ms=heartbeat, checkpoint_age_ms=checkpoint)
        return replace(facts, flow=flow, topics=topics, unknown=(*facts.unknown, *findings))

    def _completed(self, topic: str, partition: PartitionFacts) -> PartitionFacts:
        end, key = partition.destination_end, TopicPartition(topic, partition.partition)
        if end == 0 and key not in self._positions and partition.source is not None:
            # It has not begun: what the source deleted before that is no loss.
            end = partition.source.start
        return replace(partition, destination_end=end, reported_end=end)

    def _lost(self, topic: TopicFacts) -> list[Finding]:
        findings = []
        for partition in topic.partitions:
            key = TopicPartition(topic.topic, partition.partition)
            recorded, end = self._maps.get(key), self._remote_ends.get(key)
            if recorded is None:
                continue
            copied = recorded.runs.end.destination
            if end is not None and end < copied:
                text = (
                    f"partition {key.partition}: the remote log ends at {end}, and records up to "
                    f"{copied} were copied: it has lost records"
                )
                findings.append(Finding(Reason.REMOTE_LOST, text))
            # Offsets of another log of the source mean nothing, and none has these records.
            if topic.on_source not in {SourceTopic.GONE, SourceTopic.MADE_AGAIN}:
                findings += lost_copies(partition, recorded, self._copied_from[key])
        return findings

    async def _heartbeat(self) -> tuple[int | None, list[Finding]]:
        """The age of the flow's last heartbeat, and what is wrong with it."""
        settings = self._flow.settings
        topic = self._flow.policy.heartbeats_topic()
        if topic not in (await self._destination.refresh([topic])).topics:
            text = f"heartbeats: the target has no topic {topic}"
            return None, [Finding(Reason.HEARTBEAT, text)]
        tail = Tail(self._destination, topic)
        try:
            ends, starts = await tail.ends(), await tail.starts()
            tail.positions = {
                index: max(starts[index], end - _HEARTBEATS_READ) for index, end in ends.items()
            }
            records = await tail.catch_up()
        except TwinlogError as error:
            return None, [Finding(Reason.HEARTBEAT, f"heartbeats: {error}")]
        finally:
            await tail.close()
        times: list[int] = []
        for record in records:
            try:
                heartbeat = decode_heartbeat(record.key, record.value)
            except ProtocolError:
                continue
            if heartbeat is not None and (
                (heartbeat.source_cluster_alias, heartbeat.target_cluster_alias)
                == (settings.source_cluster_alias, settings.target_cluster_alias)
            ):
                times.append(heartbeat.timestamp)
        if not times:
            text = f"heartbeats: none of the last {len(records)} records of {topic} is the flow's"
            return None, [Finding(Reason.HEARTBEAT, text)]
        interval_s = settings.emit_heartbeats_interval_seconds
        age = age_ms(times)
        if age is None:
            return None, [Finding(Reason.HEARTBEAT, f"heartbeats: {_AHEAD}")]
        if age <= max(LATE_S, LATE * interval_s) * 1000:
            return age, []
        text = (
            f"heartbeats: the last one is {age / 1000:.0f} s old, one is due every {interval_s} s"
        )
        return age, [Finding(Reason.HEARTBEAT, text)]

    async def _last_checkpoint(self, *, expected: bool) -> tuple[int | None, list[Finding]]:
        """The age of the last checkpoint; a finding if it is too old, and groups need one."""
        try:
            stored = await self._read_checkpoints()
        except TwinlogError as error:
            return None, [Finding(Reason.CHECKPOINT, f"checkpoints: {error}")]
        if not stored.times_ms:
            return None, []  # each group without one is a finding
        age = age_ms(stored.times_ms)
        if age is None:
            return None, [Finding(Reason.CHECKPOINT, f"checkpoints: {_AHEAD}")]
        refresh_s = self._subject.settings.refresh_interval
        due_s = checkpoints_overdue_s(self._flow.settings, refresh_s)
        if not expected or age <= due_s * 1000:
            return age, []
        text = (
            f"checkpoints: the last one is {age / 1000:.0f} s old; all are written again every "
            f"{ALL_S:.0f} s"
        )
        return age, [Finding(Reason.CHECKPOINT, text)]

    async def _read_checkpoints(self) -> StoredCheckpoints:
        """All checkpoints of the flow; none if the topic does not exist yet.

        Raises:
            TwinlogError: they cannot be read.
        """
        topic = self._flow.policy.checkpoints_topic(self._flow.settings.source_cluster_alias)
        return await read_checkpoints(self._destination, topic)


def _own(committed: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, Committed]:
    """A group's own offsets, without the positions that a flow reports in its name."""
    return {p: at for p, at in committed.items() if not is_reported(at.metadata)}


def age_ms(times_ms: Collection[int]) -> int | None:
    """The age of the newest of these times (ms since 1970); None if all are of the future.

    What is dated ahead of this machine's clock is left out: for as long as it is ahead it would
    look recent, although its node may be dead.
    """
    now_ms = time.time_ns() // 1_000_000
    ages = [now_ms - at for at in times_ms if at - now_ms <= LATE_S * 1000]
    return max(min(ages), 0) if ages else None
