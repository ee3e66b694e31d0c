"""Checkpoints and offset syncs of flows, in MirrorMaker 2's formats (KIP-382).

    topic                               on               written
    ----------------------------------  ---------------  -------------------------------------------
    SOURCE.checkpoints.internal         the destination  at a refresh, for offsets that have changed
    mm2-offset-syncs.TARGET.internal    either           at a refresh, for partitions that have
                                                         grown (`offset-syncs.topic.location`)

The topics are created at the first refresh, as MirrorMaker 2's connectors do at
their start, with or without records: its clients return no offsets for a topic that is empty, and
wait for one that is missing until their time is over (`MirrorClient.endOfStream`, 4.3).

They are for MirrorMaker 2's own clients and tools. twinlog goes by none of them: it has the map of
offsets (docs/decisions/0014-recorded-offset-map.md), and a checkpoint is exact.

The map names offsets at which records were written. A remote log that ends before them has lost
these records, or has a leader that does not show them yet. A checkpoint is then at the log's end: a
consumer cannot begin behind it, and would skip what is copied there next. Nor can it begin in front
of the log: a checkpoint there is at the log's start. Where the flow has recorded that records were
lost, nothing is written, since others may be at their offsets. The same holds of partitions that
are FAILED, or whose state cannot be read, where the source may have lost records, and of topics
that some broker of the source does not show as the copied ones: there, groups may have read other
records than those that were copied.

A checkpoint has no metadata of the group: Confluent's Parallel Consumer keeps there which records
behind the offset it has finished, by their distance. On the target others have that distance, and
it would skip them.

A group that goes back below the map (MirrorMaker 2 has copied what is there, and where to is not
known) has a checkpoint that it is behind of: by that it would skip records. It gets one at the
beginning of the remote log, unless the stored one is not above it, such as MirrorMaker 2's own. A
tombstone would not do: Kafka's `MirrorClient.remoteConsumerOffsets` fails at one for each group
(NullPointerException in `Checkpoint.deserializeRecord`, 4.3), and goes by the record before it
until both are compacted.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.groups.offsets import Committed, committed_offsets, list_groups
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.flow import (
    FlowRules,
    emits_offset_syncs,
    flow_of,
    flow_settings_of,
    positions_interval_s,
)
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.mm2_records import (
    Checkpoint,
    Mm2Record,
    OffsetSync,
    encode,
)
from twinlog.mirror.offset_runs import OffsetRuns
from twinlog.mirror.reported_positions import is_reported
from twinlog.mirror.states import State
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import Mirror
from twinlog.sync.base import Moved, Sync, SyncContext, drop, require_ours
from twinlog.sync.bookkeeping_topics import BookkeepingTopics
from twinlog.sync.flow_topics import FLOWS
from twinlog.sync.group_selection import flow_groups
from twinlog.sync.shared_checkpoints import lowered, shared_checkpoints
from twinlog.sync.shared_translation import read_translation
from twinlog.sync.stored_checkpoints import read_checkpoints
from twinlog.sync.topic_identity import doubtful_topics

log = logging.getLogger(__name__)

ALL_S: Final = 600.0
"""Seconds between two writes of all records, changed or not."""
_LATE: Final = 5
"""Intervals by which one of these may be late."""
_AT_ONCE: Final = 8
"""Groups that are read at the same time."""


def checkpoints_overdue_s(settings: FlowSettings, refresh_s: float) -> float:
    """Seconds after which each checkpoint was written again, if the flow still has it.

    Args:
        settings: the flow's.
        refresh_s: seconds between two refreshes of it.
    """
    return ALL_S + _LATE * max(settings.emit_checkpoints_interval_seconds, refresh_s)


class Positions(NamedTuple):
    """What is to be written, and how many groups and remote logs could not be read."""

    flow: FlowRules
    checkpoints: Sequence[Checkpoint]
    offset_syncs: Sequence[OffsetSync]
    failed: int


GroupsOffsets = Mapping[str, Mapping[TopicPartition, Committed]]
"""What groups have committed, by group."""
CheckpointByKey = dict[tuple[str, TopicPartition], Checkpoint]
"""By group, and partition of the destination."""


class Checkpoints(Sync[Positions | None]):
    """Writes checkpoints of groups, and offset syncs."""

    kinds = FLOWS
    name = "checkpoints"
    metric = "ConsumerGroupOffsetSyncError"

    def __init__(self) -> None:
        self._topics = BookkeepingTopics()
        self._written: dict[str, dict[tuple[str, bytes], bytes]] = {}  # by flow, topic and key
        self._stored: dict[str, CheckpointByKey] = {}  # by flow, if they were needed
        self._all_due: dict[str, float] = {}
        self._troubles: dict[tuple[str, str], str] = {}  # by flow and topic

    def interval_s(self, mirror: Mirror) -> float:
        """`emit.checkpoints.interval.seconds`, also of offset syncs without checkpoints."""
        return positions_interval_s(flow_settings_of(mirror.source))

    def forget(self, moved: Moved) -> None:
        """Write all again: another node may have written other ones meanwhile."""
        drop(moved, self._written, self._stored)
        self._troubles = {key: one for key, one in self._troubles.items() if not moved(key[0])}

    async def compare(self, context: SyncContext) -> Positions | None:
        """What the flow has copied, and offsets of groups, translated; None: not wanted.

        Raises:
            Retriable: a cluster is unreachable.
            UserError: a right is missing, or the flow's settings are malformed.
        """
        flow = flow_of(context.mirror.source)
        if not emits_offset_syncs(context.mirror.source):
            return None
        if not context.same:
            return Positions(flow, (), (), 0)
        same = {topic.topic for topic in context.same}
        translation = await read_translation(
            context.destination, context.store, context.snapshot, context.name, same
        )
        runs = {
            key: found
            for key, found in translation.maps.items()
            if isinstance(found, OffsetRuns) and key not in translation.lost and key.topic in same
            # A map that has lost all its runs has given checkpoints before.
            if not found.is_empty or key in translation.passed
        }
        ends = await _remote_offsets(context, runs, translation, OffsetSpec.LATEST)
        offset_syncs = [
            OffsetSync(
                partition=key,
                upstream_offset=found.end.source - 1,
                downstream_offset=found.end.destination - 1,
            )
            for key, found in runs.items()
            if not found.is_empty and found.end.destination <= ends.get(key, -1)
        ]
        unreadable = len(runs) - len(ends)
        if not flow.settings.emits_checkpoints:
            return Positions(flow, (), offset_syncs, unreadable)
        committed, failures = await _committed(context.source, flow)
        failed = await _failed_partitions(context)
        ends = {key: end for key, end in ends.items() if key not in failed}
        starts = await _remote_offsets(context, ends, translation, OffsetSpec.EARLIEST)
        failures += len(ends) - len(starts)
        logs = {key: (starts[key], ends[key]) for key in starts}
        doubtful: Collection[str] = ()
        try:
            doubtful = await _doubtful_topics(context, translation, committed.values())
        except TwinlogError as error:
            logs = {}
            failures += 1
            log.warning("flow %s: no checkpoints: cannot read its topics: %s", context.name, error)
        checkpoints = [
            _checkpoint(group, translation, key, at, logs[key])
            for group, offsets in committed.items()
            for key, at in offsets.items()
            # Nothing is translated before something was copied.
            if key in logs
            and key.topic not in doubtful
            and key not in translation.keys
            and translation.translates(key, at.offset)
        ]
        shared = shared_checkpoints(
            committed,
            translation.shared.values(),
            {translation.name(key): bounds for key, bounds in logs.items()},
            doubtful,
        )
        checkpoints += shared.exact
        below = {
            (group, key): at.offset
            for group, offsets in committed.items()
            for key, at in offsets.items()
            if key.topic in same
            and key not in translation.keys
            and key not in translation.lost
            and not translation.translates(key, at.offset)
        }
        failures += unreadable
        try:
            checkpoints += await self._set_back(context, flow, translation, below)
            checkpoints += await self._lowered(context, flow, shared.floors)
        except TwinlogError as error:
            failures += 1
            log.warning("flow %s: cannot compare its checkpoints: %s", context.name, error)
        return Positions(flow, checkpoints, offset_syncs, failures)

    async def _set_back(
        self,
        context: SyncContext,
        flow: FlowRules,
        translation: Translation,
        below: Mapping[tuple[str, TopicPartition], int],
    ) -> list[Checkpoint]:
        """Checkpoints at the beginning of remote logs, for groups that would skip records.

        Args:
            context: the flow.
            flow: its rules.
            translation: where the partitions and offsets are on the destination.
            below: offsets of the source below the map, by group and the source's partition.

        Raises:
            TwinlogError: the stored checkpoints, or the logs' beginnings, cannot be read.
        """
        if not below:
            return []
        stored = await self._read_stored(context, flow)
        partitions = {key for _, key in below}
        starts = await _remote_offsets(context, partitions, translation, OffsetSpec.EARLIEST)
        return [
            Checkpoint(
                group=group,
                partition=checkpoint.partition,
                upstream_offset=offset,
                downstream_offset=starts[key],
            )
            for (group, key), offset in below.items()
            if key in starts
            and (checkpoint := stored.get((group, translation.name(key)))) is not None
            # A consumer cannot begin below the log's beginning either.
            and (checkpoint.upstream_offset > offset or checkpoint.downstream_offset < starts[key])
        ] + [
            Checkpoint(
                group=group,
                partition=checkpoint.partition,
                upstream_offset=offset,
                downstream_offset=place,
            )
            for (group, key), offset in below.items()
            # The map begins anew behind lost copies: the stored one may be behind its start.
            if key in translation.passed and key in starts
            for place in [translation.offsets(key).to_destination(translation.begins[key])]
            if (checkpoint := stored.get((group, translation.name(key)))) is not None
            and checkpoint.upstream_offset <= offset
            and checkpoint.downstream_offset > place >= starts[key]
        ]

    async def _lowered(
        self, context: SyncContext, flow: FlowRules, floors: Collection[Checkpoint]
    ) -> list[Checkpoint]:
        """Checkpoints in shared partitions that are above what groups have read (`lowered`)."""
        if not floors:
            return []
        stored = await self._read_stored(context, flow)
        remotes = {floor.partition for floor in floors}
        starts = await list_offsets(context.destination, remotes, OffsetSpec.EARLIEST)
        known = {p: at.offset for p, at in starts.items() if not isinstance(at, Refusal)}
        return lowered(floors, stored, known)

    async def _read_stored(self, context: SyncContext, flow: FlowRules) -> CheckpointByKey:
        """The checkpoints that the target has; read once, until all are written again."""
        if context.name not in self._stored:
            topic = flow.policy.checkpoints_topic(flow.settings.source_cluster_alias)
            read = (await read_checkpoints(context.destination, topic)).checkpoints
            self._stored[context.name] = {(one.group, one.partition): one for one in read}
        return self._stored[context.name]

    async def apply(self, context: SyncContext, difference: Positions | None) -> int:
        """Write what has changed since the last time; return how much was not read or written."""
        if difference is None:
            return 0
        settings, policy = difference.flow
        now = time.monotonic()
        if self._all_due.get(context.name, now) <= now:
            # A write without an answer may have landed behind a later one.
            self._written.pop(context.name, None)
            self._stored.pop(context.name, None)
            self._all_due[context.name] = now + ALL_S
        failures = 0
        if settings.emits_checkpoints:
            failures += await self._write(
                context.name,
                context.destination,
                policy.checkpoints_topic(settings.source_cluster_alias),
                settings.checkpoints_topic_replication_factor,
                difference.checkpoints,
            )
        if failures:
            self._stored.pop(context.name, None)
        elif context.name in self._stored:
            self._stored[context.name] |= {
                (one.group, one.partition): one for one in difference.checkpoints
            }
        require_ours(context.name, context.is_ours)
        at_source = settings.offset_syncs_topic_location == "source"
        failures += await self._write(
            context.name,
            context.source if at_source else context.destination,
            policy.offset_syncs_topic(
                settings.target_cluster_alias if at_source else settings.source_cluster_alias
            ),
            settings.offset_syncs_topic_replication_factor,
            difference.offset_syncs,
        )
        return difference.failed + failures

    async def _write(
        self,
        name: str,
        cluster: KafkaCluster,
        topic: str,
        factor: int,
        records: Sequence[Mm2Record],
    ) -> int:
        """Write those of a flow's records that have changed; return 1 if that has failed.

        A flow's two topics may be on two clusters: a failure at one does not stop the other.
        """
        written = self._written.setdefault(name, {})
        encoded = {
            (topic, key): (value, record) for record in records for key, value in [encode(record)]
        }
        changed = {key: one for key, one in encoded.items() if written.get(key) != one[0]}
        for key in changed:
            written.pop(key, None)  # without an answer, it is unknown which one is the last
        try:
            await self._topics.write(
                cluster, topic, factor, [record for _, record in changed.values()]
            )
        except TwinlogError as error:
            if self._troubles.get((name, topic)) != str(error):  # not at each refresh
                log.warning("flow %s: cannot write to %s: %s", name, topic, error)
            self._troubles[name, topic] = str(error)
            return 1
        self._troubles.pop((name, topic), None)
        written |= {key: value for key, (value, _) in changed.items()}
        return 0


async def _committed(source: KafkaCluster, flow: FlowRules) -> tuple[GroupsOffsets, int]:
    """What the groups of a flow have committed on its source, and how many cannot be read."""
    listed = (await list_groups(source)).values()
    groups = [group.name for group in filter(flow_groups(flow.settings), listed)]
    limit, found = asyncio.Semaphore(_AT_ONCE), dict[str, dict[TopicPartition, Committed]]()

    async def read(group: str) -> None:
        async with limit:
            try:
                committed = await committed_offsets(source, group)
            except TwinlogError as error:
                log.warning("group %s: cannot read its offsets: %s", group, error)
            else:
                found[group] = {
                    p: at for p, at in committed.items() if not is_reported(at.metadata)
                }

    await asyncio.gather(*map(read, groups))
    return found, len(groups) - len(found)


def _checkpoint(
    group: str,
    translation: Translation,
    key: TopicPartition,
    at: Committed,
    bounds: tuple[int, int],
) -> Checkpoint:
    """The checkpoint of a group in a remote log with these bounds."""
    (start, end), place = bounds, translation.offsets(key).to_destination(at.offset)
    return Checkpoint(
        group=group,
        partition=translation.name(key),
        upstream_offset=at.offset,
        downstream_offset=max(start, min(place, end)),
        metadata="",
    )


async def _failed_partitions(context: SyncContext) -> set[TopicPartition]:
    """The source's partitions that are FAILED, or may be; read after the offsets of groups."""
    states = await context.store.states()
    return {
        name.source
        for topic in context.same
        for name in topic.mirror_partitions
        if states.state(name) is State.FAILED or states.unread(name)
    }


async def _doubtful_topics(
    context: SyncContext,
    translation: Translation,
    committed: Iterable[Mapping[TopicPartition, Committed]],
) -> set[str]:
    """Topics of these offsets that may have been recreated or deleted since they were copied.

    In shared partitions, those count that are paused or removed, too: the refresh has not compared
    them.
    """
    ids = {topic.topic: topic.topic_id for topic in context.snapshot.topics_of(context.name)}
    copied = {topic for one in translation.shared.values() for topic in one.copied_topics}
    copied |= {key.topic for offsets in committed for key in offsets if key in translation.maps}
    return await doubtful_topics(context.source, copied & ids.keys(), ids)


async def _remote_offsets(
    context: SyncContext,
    partitions: Collection[TopicPartition],
    translation: Translation,
    spec: OffsetSpec,
) -> dict[TopicPartition, int]:
    """An offset of each remote log that can be read, by the source's partition."""
    names = [translation.name(partition) for partition in partitions]
    answers = translation.by_source(
        partitions, await list_offsets(context.destination, names, spec)
    )
    offsets: dict[TopicPartition, int] = {}
    for partition, answer in answers.items():
        if isinstance(answer, Refusal):
            log.warning(
                "flow %s: no checkpoints of %s: cannot read its log bounds: %s",
                context.name,
                translation.name(partition),
                answer,
            )
        else:
            offsets[partition] = answer.offset
    return offsets
