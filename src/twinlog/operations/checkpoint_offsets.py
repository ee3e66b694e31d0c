"""The offsets of a group by the checkpoints on the target, for the time when the source is dead.

A checkpoint has the offset that the group had committed on the source, and the recorded map has the
exact place of it. That place is given if two things show that the checkpoint is about the records
that the map is about:

    time     The flow had the present topics when it was written, and has had no other ones.
    offsets  The place that the checkpoint itself has is one that the map has given
             (mirror/checkpoint_places.py).

The time is shown by `__mirror_config`. A checkpoint that was written after the topic's present
record is about that topic. One that was written after the flow's own record was written by the
present flow, and not by a former one of the same name; a former topic of the present flow is known
(`MirrorTopic.known_before`). One that is older than both may be about a former topic: a flow that
was deleted leaves its checkpoints behind. It may also be that the flow was only altered, together
with its topics, as when it is switched off: to give no place then is the price.

What a checkpoint does not show, and is not concluded from it:

    the group has none at all        whether it has committed offsets: not known
    it has none in a partition       the same; nothing may have been copied there yet
    it is old                        what the group has committed since: the place is given as STALE
    the flow has not written it      the group may have lost the offset (deleted, expired, a topic
    again, as it does with all       that was recreated): no place is given
    it is in a remote partition      which of the source's partitions its offset is of: no place is
    that several are copied to       given

Whether a flow writes checkpoints now does not matter: what is stored counts. Checkpoints are read
before the maps: so what was copied when they were written is in these.

`__mirror_groups` does not help. Only flows that commit groups' offsets on the target themselves
write to it, and what it has of an offset is the lowest one with the same records behind it, as it
is committed there.
"""

from collections.abc import Sequence
from dataclasses import replace

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.checkpoint_places import CheckpointProof, proof_of
from twinlog.mirror.flow import FlowRules, flow_of
from twinlog.mirror.mm2_records import Checkpoint
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.mirror.settings import parse_settings
from twinlog.operations.flow_results import (
    CheckpointPlace,
    Direction,
    GroupCheckpoints,
    TranslatedOffset,
    TranslatedOffsets,
)
from twinlog.operations.offset_translation import FlowOffsets, joined, read_flow_offsets
from twinlog.operations.readiness.flow_survey import age_ms
from twinlog.store.config_records import MirrorTopic
from twinlog.store.snapshot import Snapshot
from twinlog.sync.flow_records import ALL_S, checkpoints_overdue_s
from twinlog.sync.stored_checkpoints import StoredCheckpoints, read_checkpoints
from twinlog.text import few


async def offsets_by_checkpoints(
    destination: KafkaCluster, snapshot: Snapshot, flow: str, group: str
) -> TranslatedOffsets:
    """Where a group goes on, by its last checkpoints in all partitions that have one.

    Args:
        destination: the flow's cluster.
        snapshot: the desired state, as it was read from `__mirror_config`.
        flow: the name of a flow in it, which records a map.
        group: the group's id.

    Raises:
        UserError: the group has no checkpoint, or a right is missing.
        TwinlogError: they, or the maps, cannot be read now.
    """
    mirror = snapshot.mirrors[flow]
    rules = flow_of(mirror.source)
    topic = rules.policy.checkpoints_topic(rules.settings.source_cluster_alias)
    stored = await read_checkpoints(destination, topic)
    own = sorted(
        (one for one in stored.checkpoints if one.group == group), key=lambda one: one.partition
    )
    if not own:
        raise _none(group, topic, rules, stored)
    names = {checkpoint.partition.topic for checkpoint in own}
    side = [one for one in snapshot.topics_of(flow) if one.destination_name in names]
    known = await read_flow_offsets(destination, side, mirror.source, Direction.TO_TARGET)
    refresh_s = parse_settings(mirror.source).refresh_interval
    overdue_s = checkpoints_overdue_s(rules.settings, refresh_s)
    judge = _Judge(known, snapshot, side, stored, overdue_s)
    with_checkpoint = {checkpoint.partition for checkpoint in own}
    return TranslatedOffsets(
        flow=mirror.name,
        direction=Direction.TO_TARGET,
        offsets=tuple(map(judge.place, own)),
        group=group,
        checkpoints=GroupCheckpoints(
            topic=topic,
            without_checkpoint=tuple(
                sorted(
                    partition
                    for partition, remote in known.names.items()
                    if remote not in with_checkpoint
                )
            ),
            unreadable=tuple(stored.unreadable_of(group)),
        ),
    )


class _Judge:
    """Translates checkpoints by the map.

    Args:
        known: the maps, and the names of all partitions that the checkpoints are about.
        snapshot: has the flow.
        topics: the same topics, of the snapshot.
        stored: all checkpoints of the flow.
        overdue_s: seconds after which the flow has written a checkpoint again.
    """

    def __init__(
        self,
        known: FlowOffsets,
        snapshot: Snapshot,
        topics: Sequence[MirrorTopic],
        stored: StoredCheckpoints,
        overdue_s: float,
    ) -> None:
        self._known = known
        self._snapshot = snapshot
        self._topics = {topic.topic: topic for topic in topics}
        self._stored = stored
        self._last_ms = max(stored.times_ms, default=0)
        self._overdue_s = overdue_s

    def place(self, checkpoint: Checkpoint) -> TranslatedOffset:
        """Where the group goes on in the partition of one checkpoint."""
        written_ms = self._stored.written_ms[checkpoint.group, checkpoint.partition]
        dated = CheckpointPlace(
            source_offset=checkpoint.upstream_offset,
            target_offset=checkpoint.downstream_offset,
            time_ms=written_ms,
            age_ms=age_ms([written_ms]),
        )
        sources = sorted(s for s, name in self._known.names.items() if name == checkpoint.partition)
        if len(sources) == 1:
            found = self._translated(sources[0], checkpoint, dated)
        elif sources:
            found = _unplaced(
                checkpoint,
                MapAnswer.UNPROVEN,
                f"{few(sources)} are copied to this partition, and the checkpoint does not name "
                f"the one that its source offset is of; its target offset is "
                f"{checkpoint.downstream_offset}",
            )
        else:
            text = "the flow copies nothing to this partition"
            found = _unplaced(checkpoint, MapAnswer.NOT_IN_FLOW, text)
        return replace(found, checkpoint=dated)

    def _translated(
        self, source: TopicPartition, checkpoint: Checkpoint, dated: CheckpointPlace
    ) -> TranslatedOffset:
        """What the map has, if the checkpoint is about the same records."""
        downstream = checkpoint.downstream_offset
        found = self._known.to_target(source, checkpoint.upstream_offset)
        if found.target_offset is None and found.answer is not MapAnswer.NOT_COPIED:
            text = joined(found.text, f"its checkpoint has target offset {downstream}")
            return replace(found, text=text)
        offset_map = self._known.maps[source]
        proof = proof_of(checkpoint, offset_map)
        doubt = self._of_former_topic(self._topics[source.topic], dated.time_ms)
        if not doubt and proof is CheckpointProof.NONE:
            doubt = "may be about other records than the map, such as those of a former topic"
        if doubt := doubt or self._given_up(dated.time_ms):
            place = "no place" if found.target_offset is None else f"offset {found.target_offset}"
            text = f"its checkpoint (target offset {downstream}; the map: {place}) {doubt}"
            return replace(found, target_offset=None, answer=MapAnswer.UNPROVEN, text=text)
        if found.target_offset is None:
            end = offset_map.runs.end.destination
            text = f"what the map has, up to target offset {end}, was read by the group"
            return replace(found, text=joined(found.text, text, self._stale(dated)))
        if proof is CheckpointProof.GROWN:
            text = f"its checkpoint has target offset {downstream}: less was copied then"
            found = replace(found, text=joined(found.text, text))
        if stale := self._stale(dated):
            return replace(found, answer=MapAnswer.STALE, text=joined(found.text, stale))
        return found

    def _of_former_topic(self, topic: MirrorTopic, written_ms: int) -> str:
        """Why a checkpoint may be about a former topic (see the module); empty: it is not."""
        if topic.known_before or topic.whole:
            return "may be about a former topic: the flow had another one of this name before"
        if topic.lost_topic_ids:
            return "may be about former copies: the remote topic was recreated"
        flow = self._snapshot.mirrors[topic.mirror]
        both_ms = (self._snapshot.stored_ms(flow), self._snapshot.stored_ms(topic))
        times_ms = [at for at in both_ms if at is not None]
        if times_ms and written_ms >= min(times_ms):
            return ""
        return (
            "was not written after the last change of the flow or the topic in __mirror_config: "
            "it may be about a former topic, of a flow that was deleted"
        )

    def _stale(self, dated: CheckpointPlace) -> str:
        """Why a checkpoint is too old to be certain of, or of unknown age; empty: it is not."""
        if dated.age_ms is None:
            age = "dated ahead of this machine's clock"
        elif dated.age_ms > self._overdue_s * 1000:
            age = f"{dated.age_ms / 1000:.0f} s old, and a flow at work writes all again every "
            age += f"{ALL_S:.0f} s"
        else:
            return ""
        return (
            f"its checkpoint is {age}: what the group has committed since, and whether it still "
            "has this offset, is not known"
        )

    def _given_up(self, written_ms: int) -> str:
        """Why a checkpoint may not be what the group has committed last; empty: no reason."""
        before_s = (self._last_ms - written_ms) / 1000
        if before_s <= self._overdue_s:
            return ""
        return (
            f"was written {before_s:.0f} s before the flow's last one, and "
            f"not again, as all are every {ALL_S:.0f} s: the group may have lost the offset, or "
            "the topic was paused, FAILED or removed"
        )


def _unplaced(checkpoint: Checkpoint, answer: MapAnswer, text: str) -> TranslatedOffset:
    """A checkpoint that is of no source partition, or of one of several."""
    return TranslatedOffset(
        source=None,
        source_offset=None,
        target=checkpoint.partition,
        target_offset=None,
        answer=answer,
        text=text,
    )


def _none(group: str, topic: str, rules: FlowRules, stored: StoredCheckpoints) -> UserError:
    """The group has no checkpoint."""
    text = f"group {group} has no checkpoint in {topic}"
    hint = "whether it has committed offsets on the source is not known; check its name"
    if unreadable := stored.unreadable_of(group):
        text += f", of which cannot be read: {few(unreadable, '; ')}"
    elif not rules.settings.emits_checkpoints:
        text += f", and the flow writes none ({_switch(rules)})"
        hint = "offsets of the source that are known otherwise are translated with --offset"
    elif not rules.settings.selects_group(group):
        hint = "groups and groups.exclude of the flow do not select it"
    elif not stored.checkpoints:
        text += ", which has none at all, or does not exist"
        hint = (
            "the node's log has the reason: a right is missing, or the target has fewer brokers "
            "than checkpoints.topic.replication.factor "
            f"({rules.settings.checkpoints_topic_replication_factor})"
        )
    return UserError(text, hint=hint)


def _switch(rules: FlowRules) -> str:
    """The setting that switches checkpoints off."""
    settings = rules.settings
    if not settings.enabled:
        return "enabled=false"
    if not settings.emit_offset_syncs_enabled:
        return "emit.offset-syncs.enabled=false"
    if not settings.emit_checkpoints_enabled:
        return "emit.checkpoints.enabled=false"
    interval_s = settings.emit_checkpoints_interval_seconds
    return f"emit.checkpoints.interval.seconds={interval_s}"
