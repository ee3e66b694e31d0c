"""The way back: records where MirrorMaker 2 goes on, in the offsets topic of its Connect worker.

Only for partitions that are STOPPED (`kafka-mirrors --remove`): they were fenced, so it is known
what was copied, and nothing more lands. What was copied is in the recorded map; of a flow that
writes in transactions, it is the committed position: the fence has ended its last transaction.
The seal has compared the end of the map with the target's logs. Of a position this is done here.
So is the comparison with the source, for both: an engine asks whether the source's log still has
the leader epoch before its position (KIP-320), but an offset of Connect has no epoch.
MirrorMaker 2 has to be stopped, too: Connect reads its offsets when it starts.

An offset is of one topic. If the source topic was deleted or recreated since the flow has copied
it, MirrorMaker 2 would skip as many records of the new one, so nothing is recorded of it:
MirrorMaker 2 begins as it does with a topic that it has never copied. What is recorded of a topic
or partition that the source does not have any more is removed in any case, and so is an offset
behind the end of a recreated one.

A flow that was handed back remains until it is deleted, and so does a topic that was removed from
it. MirrorMaker 2 may have copied on since: what is replaced then is in worker_offsets.py.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

from twinlog.engines.base import NOTHING_COPIED
from twinlog.engines.transactional.positions import (
    PositionLost,
    SettledPosition,
    loss,
    position_group,
    settled_positions,
)
from twinlog.engines.transactional.settled import compare_settled
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.client.references import EVERYTHING
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import member_clients
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets, offset_for_leader_epoch
from twinlog.kafka.requests.topics import known_topics
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.lifecycle.destination_topics import existing_topics
from twinlog.lifecycle.worker_offsets import (
    OffsetsAhead,
    OwnOffsets,
    read_recorded,
    write_offsets,
)
from twinlog.mirror.flow import FlowRules, begins_at_end, connect_worker_of, flow_of
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.mirror.states import State
from twinlog.runtime.steps import FORGONE
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import LANES_GROUP, States
from twinlog.store.mirrors import MirrorStore, stored_flow
from twinlog.store.offset_log import OFFSETS_TOPIC, offsets_topic_id
from twinlog.store.recorded_maps import read_last_copied
from twinlog.store.state_records import LastMirrored

_THEN: Final = "then hand it back (docs/operations/transforms.md)"
"""What follows on the offset that an operator has committed for a flow in transactions."""
_UNBEGUN: Final = frozenset({NOTHING_COPIED, FORGONE})
"""The reasons of partitions of which nothing was copied, if no record says otherwise: a lane stores
a record, and then a state, before it writes."""


class HandedBack(NamedTuple):
    """A partition that MirrorMaker 2 goes on with."""

    source: TopicPartition
    last: int | None
    """The source's offset up to which all was copied, which is recorded for MirrorMaker 2; None:
    nothing is recorded."""
    own: int | None = None
    """An offset that the flow has not reached, and that MirrorMaker 2 has recorded itself: `last`,
    or replaced by it."""
    former: bool = False
    """Whether the source topic was deleted or recreated after the flow had copied it."""
    at_end: bool = False
    """Whether MirrorMaker 2 begins at the end of a log of which it has recorded nothing."""
    others: tuple[str, ...] = ()
    """Other connectors that have recorded offsets of the partition; these stay."""
    deleted_from: int | None = None
    """Where the flow has ended, if the source's log begins later: at `last` + 1."""

    def __str__(self) -> str:
        """A line for the operator."""
        line = f"{self.source}: MirrorMaker 2 "
        if self.last is not None:
            line += f"goes on at offset {self.last + 1}"
            line += ", as it has recorded itself" if self.own == self.last else ""
        elif self.at_end:
            line += "begins at the end of the log (auto.offset.reset=latest)"
        else:
            line += "begins as usual"
        if self.deleted_from is not None:
            line += f"; the source has deleted offsets {self.deleted_from} to {self.last} before "
            line += "they were copied"
        if self.former:
            line += "; the source topic was deleted or recreated after the flow had copied it"
        if self.own not in {None, self.last}:
            line += f"; it had recorded offset {self.own} itself"
        return f"{line}; not changed: connector {', '.join(self.others)}" if self.others else line


class _SourceTopics(NamedTuple):
    """What the source has of the topics of a flow."""

    former: Set[str]
    """Those that it has deleted or recreated since they were added to the flow."""
    counts: Mapping[str, int]
    """Of partitions of each topic, as the source has it now; 0: it has none of this name."""


class _Copied(NamedTuple):
    """What a flow has copied."""

    ends: Mapping[TopicPartition, LastMirrored]
    """By the source's partitions, up to where they were copied."""
    positions: Mapping[MirrorPartition, SettledPosition]
    """Those of a flow in transactions, which no seal has compared with the target's logs."""


async def hand_back(
    destination: KafkaCluster,
    name: str,
    properties: Mapping[str, str],
    own: OwnOffsets = OwnOffsets.REFUSE,
) -> list[HandedBack]:
    """Record for MirrorMaker 2 what a flow has copied.

    Args:
        destination: the flow's target.
        name: the flow's.
        properties: those of the flow in the file that MirrorMaker 2 will be started with: the flow
            may have been stored with others.
        own: what becomes of offsets that MirrorMaker 2 has recorded itself.

    Returns:
        The partitions of which something was copied, or that MirrorMaker 2 begins at their end,
        also those that the flow never got, and all of topics that the source has deleted or
        recreated since; the others begin as usual.

    Raises:
        UserError: there is no such flow, a partition is not STOPPED, it is not known what of it was
            copied, its remote topic or `__mirror_offsets` was recreated, the target has lost
            records of a flow in transactions, or its position is older, the source has lost records
            that were copied, MirrorMaker 2 is running, or will go on in another remote topic, or
            has recorded an offset that the flow has not reached, or one of a topic that was
            recreated (unless `own` decides that), or one that is to be kept is not in the source's
            log, the source is another cluster, or a right is missing.
        ProtocolError: the records of Connect or of the flow cannot be read.
        Retriable: not now, as the source is unreachable, for example; some offsets may be written.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    mirror = stored_flow(snapshot, name)
    if unread := snapshot.unread_topics(name):
        unknown, why = min(unread.items())
        raise UserError(
            f"it is not known how far {unknown} was copied: its record cannot be read: {why}"
        )
    topics = snapshot.topics_of(name)
    states = await store.states()
    for topic in topics:
        for partition in topic.mirror_partitions:
            state = states.state(partition)
            removed = topic.wanted is Wanted.STOPPED and not topic.not_selected
            if not removed or state is not State.STOPPED:
                text = f"{state.name}, not selected" if topic.not_selected else state.name
                raise UserError(
                    f"{partition.source} of flow {name} is {text}, expected STOPPED after --remove",
                    hint=f"kafka-mirrors --remove --mirror {name} --topic '.*'",
                )
    flow, worker = flow_of(properties), connect_worker_of(properties)
    async with connected_source(replace(mirror, source=dict(properties)), EVERYTHING) as source:
        former, counts = await _source_topics(source, topics)
        present = [topic for topic in topics if topic.topic not in former]
        ends, positions = await _copied_to(destination, mirror, present)
        # A position is known whatever has become of its partition.
        reasons = states if mirror.kind == TRANSLATED else States({}, {})
        await _require_known(destination, name, present, reasons, ends)
        upto = {
            partition.source: _upto(mirror, topic, partition, ends.get(partition.source))
            for topic in present
            for partition in topic.mirror_partitions
        }
        begins = {
            partition.source: topic.begin(partition.partition) or 0
            for topic in present
            for partition in topic.mirror_partitions
        }
        await _require_on_source(source, mirror, upto, ends)
        starts = await _later_starts(source, upto)
        await _require_copies(destination, name, positions)
        _require_same_names(name, present, flow)
        if members := await member_clients(destination, worker.group):
            raise UserError(
                f"MirrorMaker 2 is running: its group {worker.group} has the members "
                f"{', '.join(members)}",
                hint="stop it: it reads offsets when it starts",
            )
        alias = flow.settings.source_cluster_alias
        recorded = [await read_recorded(destination, one, alias) for one in worker.offsets_topics]
        connector = flow.settings.twinlog_takeover_connector
        offsets = OffsetsAhead(flow=name, connector=connector, own=own, recorded=recorded)
        anew = {
            partition.source: 0
            for topic in topics
            if topic.topic in former
            for partition in topic.mirror_partitions
        }
        log_ends = await _log_offsets(source, [p for p in anew if p.partition < counts[p.topic]])
        # Below where the flow has taken over is what MirrorMaker 2 had recorded by then.
        reached = {one: max(end, begins[one]) for one, end in upto.items()}
        ahead, unclear = offsets.of_present(reached), offsets.of_recreated(log_ends)
        if own is OwnOffsets.KEEP:
            await _require_in_log(source, ahead | unclear)
    kept = ahead | unclear if own is OwnOffsets.KEEP else {}
    new = {one: end for one, end in (upto | starts | anew).items() if one not in kept}
    for found in recorded:
        await write_offsets(destination, connector, alias, found, new)
    at_end = begins_at_end(flow.settings)
    further = [
        HandedBack(one, None, None, one.topic in former, at_end, offsets.other_connectors(one))
        for one in _not_in_flow(topics, counts)
        if at_end and offsets.last(one) is None
    ]
    return sorted(
        further
        + [
            HandedBack(
                one,
                last := kept.get(one, end - 1 if end > 0 else None),
                offsets.last(one) if one in anew else ahead.get(one),
                one in anew,
                at_end and last is None,
                offsets.other_connectors(one),
                upto[one] if one in starts and one not in kept else None,
            )
            for one, end in (upto | starts | anew).items()
            if end > 0 or at_end or one in ahead or one in anew
        ]
    )


async def _require_in_log(source: KafkaCluster, kept: Mapping[TopicPartition, int]) -> None:
    """Check that the source has what follows on offsets that MirrorMaker 2 has recorded.

    Raises:
        UserError: it has not: MirrorMaker 2 would skip what is written up to there, or, with
            `latest`, all that the log has.
        TwinlogError: not now.
    """
    log_ends = await _log_offsets(source, kept)
    starts = await _later_starts(source, {one: offset + 1 for one, offset in kept.items()})
    for partition, offset in sorted(kept.items()):
        if partition in starts:
            raise UserError(
                f"offset {offset} of {partition}, which MirrorMaker 2 has recorded, is in front of "
                f"the source's log, which begins at {starts[partition]}",
                hint="--own-offsets replace hands back what the flow has copied, or where the "
                "source's log begins; of a recreated topic nothing is recorded then",
            )
        if offset >= (log_end := log_ends[partition]):
            raise UserError(
                f"offset {offset} of {partition}, which MirrorMaker 2 has recorded, is not in the "
                f"source's log, which ends at {log_end}: the source has lost records",
                hint="--own-offsets replace hands back what the flow has copied, also where "
                "MirrorMaker 2 has copied more since: it copies that again",
            )


async def _later_starts(
    source: KafkaCluster, upto: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The log starts of the source's partitions that begin behind where they are to be copied from.

    MirrorMaker 2 would find no record at an offset in front of the log, and go on by
    `auto.offset.reset`: with `latest` it would skip the whole log.

    Raises:
        TwinlogError: a leader does not tell it.
    """
    wanted = [partition for partition, end in upto.items() if end > 0]
    starts = await _log_offsets(source, wanted, OffsetSpec.EARLIEST)
    return {one: start for one, start in starts.items() if start > upto[one]}


async def _log_offsets(
    source: KafkaCluster,
    partitions: Collection[TopicPartition],
    which: OffsetSpec = OffsetSpec.LATEST,
) -> dict[TopicPartition, int]:
    """The high watermarks of the source's partitions, or their log starts.

    Raises:
        TwinlogError: a leader does not tell it.
    """
    what = "start" if which is OffsetSpec.EARLIEST else "end"
    offsets: dict[TopicPartition, int] = {}
    for partition, answer in (await list_offsets(source, list(partitions), which)).items():
        if isinstance(answer, Refusal):
            raise answer.error(f"read the source's log {what}", topic=partition.topic)
        offsets[partition] = answer.offset
    return offsets


def _upto(
    mirror: Mirror, topic: MirrorTopic, partition: MirrorPartition, copied: LastMirrored | None
) -> int:
    """The source's offset from which on a partition is to be copied; 0: from its log start on.

    What another program has copied goes before where the flow follows the topic from, as when a
    partition is located; and before a former map, which may end below it. The position of a flow in
    transactions counts as it is: below that, an operator has set it back. MirrorMaker 2 itself
    would begin at the end that it finds.

    Args:
        mirror: the flow.
        topic: the partition's topic.
        partition: the partition.
        copied: where its copy ends; None: it was never located. If it was, that is where the
            flow has begun or gone on: before where it follows the topic from, if the source has
            lost its end in between.
    """
    begin = topic.begin(partition.partition)
    if copied is not None:
        return copied.end if mirror.kind == TRANSACTIONAL else max(copied.end, begin or 0)
    if begin is None and begins_at_end(flow_of(mirror.source).settings):
        begin = topic.follows_from(partition.partition)
    return begin or 0


def _require_same_names(name: str, topics: Sequence[MirrorTopic], flow: FlowRules) -> None:
    """Check that MirrorMaker 2 goes on in the remote topics to which the flow has copied.

    Raises:
        UserError: by its file, it does not.
    """
    settings, policy = flow
    for topic in topics:
        remote = policy.format_remote_topic(settings.source_cluster_alias, topic.topic)
        if remote != topic.destination_name:
            raise UserError(
                f"by its file MirrorMaker 2 copies {topic.topic} to {remote}, and flow {name} has "
                f"copied it to {topic.destination_name}",
                hint="set source.cluster.alias or replication.policy.* so that the names are equal",
            )


def _not_in_flow(
    topics: Sequence[MirrorTopic], counts: Mapping[str, int]
) -> Iterator[TopicPartition]:
    """The source's partitions that a flow does not have: it adds none to a removed topic."""
    for topic in topics:
        for index in range(topic.partitions, counts[topic.topic]):
            yield TopicPartition(topic.topic, index)


async def _source_topics(source: KafkaCluster, topics: Sequence[MirrorTopic]) -> _SourceTopics:
    """What the source has of a flow's topics, and which of them are other ones by now.

    A broker that is behind shows a topic that was deleted, or a former one of its name. So each one
    is asked, and they have to agree.

    Raises:
        UserError: a topic may not be described.
        Retriable: the brokers do not agree, or one does not answer or does not report an id.
    """
    if not topics:
        return _SourceTopics(frozenset(), {})
    names = [topic.topic for topic in topics]
    for name, described in (await source.refresh(names)).topics.items():
        if described.error and name in names:
            Refusal(described.error).fail("describe the source topic", topic=name)
    known = await known_topics(source, names)
    former: set[str] = set()
    for topic in topics:
        present = known.get(topic.topic)
        if present is None:
            former.add(topic.topic)
        elif not present.everywhere:
            raise Retriable("a broker of the source does not know the topic", topic=topic.topic)
        elif len(present.ids) > 1:
            raise Retriable("the brokers of the source report several ids", topic=topic.topic)
        elif is_another(topic.topic_id, next(iter(present.ids))):
            former.add(topic.topic)
        elif topic.topic_id != NO_TOPIC_ID and topic.topic_id not in present.ids:
            raise Retriable("a broker of the source does not know its id", topic=topic.topic)
    counts = {name: known[name].partitions if name in known else 0 for name in names}
    return _SourceTopics(frozenset(former), counts)


async def _copied_to(
    destination: KafkaCluster, mirror: Mirror, topics: Sequence[MirrorTopic]
) -> _Copied:
    """What a flow has copied of its partitions, which are STOPPED.

    Raises:
        UserError: a position is lost, or a right is missing.
        TwinlogError: not now.
    """
    if mirror.kind == TRANSLATED:
        return _Copied(await read_last_copied(destination, topics), {})
    group = position_group(LANES_GROUP, mirror.name)
    try:
        positions = await settled_positions(destination, group, topics)
    except PositionLost as error:
        raise UserError(
            f"it is not known what flow {mirror.name} has copied: {error}", hint=_THEN
        ) from error
    ends = {
        name.source: LastMirrored(
            LeaderEpoch(one.committed.leader_epoch), Offset(one.committed.offset)
        )
        for name, one in positions.items()
    }
    return _Copied(ends, positions)


async def _require_on_source(
    source: KafkaCluster,
    mirror: Mirror,
    upto: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, LastMirrored],
) -> None:
    """Check that the source's logs still have what was copied.

    After an unclean election a log may end earlier, and may have grown since with other records:
    MirrorMaker 2 would skip those below its offset.

    Args:
        source: the source.
        mirror: the flow.
        upto: from where on each partition is to be copied.
        ends: where the copies end; without a leader epoch, only the end of the log is compared.

    Raises:
        UserError: a log ends before such an offset, or has other records there; or its leader does
            not know the epoch. A leader that is cut off does not, either.
        Retriable: not now.
    """
    wanted = {partition: end for partition, end in upto.items() if end > 0}
    epochs = {
        partition: last.epoch
        for partition, last in ends.items()
        if last.end > 0 and last.epoch != UNKNOWN_EPOCH
    }
    log_ends = await _log_offsets(source, wanted)
    for partition, end in sorted(wanted.items()):
        if end > (log_end := log_ends[partition]):
            reason = f"up to offset {end}; on the source, the log ends at {log_end}"
            raise _lost_on_source(mirror, partition, reason)
    epoch_ends = await offset_for_leader_epoch(source, epochs)
    for partition, epoch in sorted(epochs.items()):
        found = epoch_ends[partition]
        if isinstance(found, Refusal):
            raise found.error("read the end of a leader epoch", topic=partition.topic)
        if found.end_offset < 0:
            raise UserError(
                f"{partition} was copied in leader epoch {epoch}, which its leader on the source "
                "does not know: the leader is cut off, or the source has lost records",
                hint=f"try again in a minute; if this stays, {_after_loss(mirror)}",
            )
        end = ends[partition].end
        # An earlier epoch: the source has none of the records of this one.
        if found.leader_epoch != epoch or found.end_offset < end:
            reason = (
                f"up to offset {end} of leader epoch {epoch}; on the source, epoch "
                f"{found.leader_epoch} ends at offset {found.end_offset}, before later epochs"
            )
            raise _lost_on_source(mirror, partition, reason)


def _lost_on_source(mirror: Mirror, partition: TopicPartition, reason: str) -> UserError:
    return UserError(
        f"the source has lost records that were copied: {partition} was copied {reason}",
        hint=_after_loss(mirror),
    )


def _after_loss(mirror: Mirror) -> str:
    """What remains to be done where the source has lost records."""
    if mirror.kind != TRANSACTIONAL:
        return _without(mirror.name)
    group = position_group(LANES_GROUP, mirror.name)
    return f"commit the source's offset to go on at for group {group} on the target, {_THEN}"


def _without(name: str) -> str:
    """What remains to be done where a flow cannot be handed back."""
    return (
        f"delete flow {name} without --hand-back: MirrorMaker 2 goes on where it had stopped "
        "itself, and copies again what the flow has copied"
    )


async def _require_copies(
    destination: KafkaCluster, name: str, positions: Mapping[MirrorPartition, SettledPosition]
) -> None:
    """Check that the target has the records up to these positions, and no later ones.

    Raises:
        UserError: it has lost some, or a position is older than the copy.
        TwinlogError: a log cannot be compared now.
    """
    problems = await compare_settled(destination, positions)
    if not problems:
        return
    # A log that cannot be compared now hides no loss of another one.
    partition, problem = min(
        problems.items(), key=lambda item: (isinstance(item[1], TwinlogError), item[0])
    )
    if isinstance(problem, TwinlogError):
        raise problem
    at = positions[partition].committed.offset
    reason = loss(str(problem), at, position_group(LANES_GROUP, name))
    raise UserError(f"{partition.source}: {reason}", hint=_THEN)


async def _require_known(
    destination: KafkaCluster,
    name: str,
    topics: Sequence[MirrorTopic],
    states: States,
    ends: Collection[TopicPartition],
) -> None:
    """Check that what was copied is known, and is still there.

    Raises:
        UserError: it is not.
    """
    hint = _without(name)
    _require_begun([topic for topic in topics if topic.lost_topic_ids], ends, hint)
    existing = await existing_topics(destination, {topic.destination_name for topic in topics})
    recorded_in = await offsets_topic_id(destination) or NO_TOPIC_ID
    for topic in topics:
        if is_another(topic.offsets_topic_id, recorded_in):
            for partition in topic.mirror_partitions:
                # No record proves nothing: what was recorded before is lost.
                if partition.source not in ends:
                    raise _unknown(partition, f"{OFFSETS_TOPIC} was recreated", hint)
        remote = topic.destination_name
        copied = [one for one in topic.mirror_partitions if one.source in ends]
        for partition in topic.mirror_partitions:
            state = states.states.get(partition)
            reason = None if state is None else state.reason
            # Without a record, nothing was copied; unless the fence has found that it is lost.
            if partition.source not in ends and reason is not None and reason not in _UNBEGUN:
                raise _unknown(partition, reason, hint)
        if not copied and not any(begin > 0 for begin in topic.begins):
            continue
        if remote not in existing:
            raise UserError(f"the remote topic {remote} is gone, with what was copied", hint=hint)
        if is_another(topic.destination_topic_id, existing[remote].topic_id):
            raise UserError(f"the remote topic {remote} was recreated", hint=hint)
        for partition in copied:
            state = states.states.get(partition)
            if state is not None and state.reason is not None:
                raise _unknown(partition, state.reason, hint)


def _require_begun(
    recreated: Iterable[MirrorTopic], ends: Collection[TopicPartition], hint: str
) -> None:
    """Check that a flow which goes on in recreated remote topics has done so.

    Raises:
        UserError: it has not yet, where it had begun in the former one behind the source's start.
    """
    partitions = [(topic, one) for topic in recreated for one in topic.mirror_partitions]
    for topic, partition in partitions:
        began = topic.begin(partition.partition) or topic.follows_from(partition.partition)
        if began and partition.source not in ends:
            raise UserError(
                f"the remote topic {topic.destination_name} was recreated, and the flow has not "
                f"gone on there with {partition.source}: where it does is not known yet",
                hint=hint,
            )


def _unknown(partition: MirrorPartition, why: str | None, hint: str) -> UserError:
    text = f"it is not known what of {partition.source} was copied: {why}"
    return UserError(text, hint=hint)
