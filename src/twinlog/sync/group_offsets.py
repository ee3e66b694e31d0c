"""Copies group offsets from a mirror's source to its destination.

group_rules.py has the rules, and group_readings.py reads what they are applied to.

One `GroupSync` belongs to one node. After a check, what it has read and committed is written to
`__mirror_groups`, for the next node, and for `twinlog readiness` when the source is dead. What is
going to be committed is written before: after a crash in between, the next node knows the offset as
the mirror's, and lowers it if the group goes back.

A commit is repeated before the destination's brokers expire it, for as long as the source has the
group's offset: offsets.retention.minutes counts from the commit, and nothing else commits for a
group that is idle there. (For a classic group that once had members there, Kafka counts from when
the last one left, whatever is committed since: docs/operations/groups.md, Limits.)
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import (
    Committed,
    Group,
    commit_offsets,
    in_parts,
    list_groups,
    set_start_offsets,
)
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.states import State
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.config_records import Mirror, Wanted
from twinlog.store.group_log import create_groups_topic, read_groups, write_groups
from twinlog.store.group_records import GroupMemory, LastCheck
from twinlog.store.snapshot import Snapshot
from twinlog.sync.absent_acls import MirrorTexts
from twinlog.sync.base import Host, Moved, Sync, SyncContext, always, drop, require_ours
from twinlog.sync.group_check import (
    AT_ONCE,
    NOTHING_DUE,
    Doubtful,
    DueOffsets,
    GroupCheck,
    GroupDifference,
    WantedTopics,
    doubtful_of_due,
    quiet_time,
    topics_of_due,
    without_recreated,
)
from twinlog.sync.group_memory import KnownGroups
from twinlog.sync.group_readings import (
    SHARE,
    GroupOffsets,
    destination_offsets,
    log_bounds,
    read_offsets,
)
from twinlog.sync.group_rules import (
    at_floors,
    at_starts,
    due_offsets,
    in_destination_offsets,
    in_source_offsets,
    moved_by_others,
    remembered,
)
from twinlog.sync.group_selection import GroupFilter, check_interval_s, copied_groups
from twinlog.sync.repeated_commits import DEFAULT_REPEAT_S, read_repeat_interval
from twinlog.sync.shared_translation import read_translation
from twinlog.sync.unlisted_groups import forget_unserved, note_deleted
from twinlog.text import few

log = logging.getLogger(__name__)

MAX_NAMED: Final = 1000
"""Failed groups that the record of a check names at most."""
_ACTIVE: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP}
)
"""The group has members."""
_UNPLACED: Final = "offsets of groups are not copied where several source partitions share one"


class GroupSync(Sync[GroupDifference]):
    """Copies the group offsets of mirrors; see the module.

    Args:
        destination: the cluster in which offsets are committed.
        clock: seconds since the epoch.
        remembers: whether results are written to `__mirror_groups`; a command's are not.
    """

    kinds = None
    name = "group offsets"
    metric = "ConsumerGroupOffsetSyncError"

    def __init__(
        self,
        destination: KafkaCluster,
        *,
        clock: Callable[[], float] = time.time,
        remembers: bool = True,
    ) -> None:
        self._destination = destination
        self._clock = clock
        self._remembers = remembers
        self._memories: dict[str, KnownGroups] = {}
        self._texts = MirrorTexts()
        self._repeat_s: float | None = None

    @classmethod
    def create(cls, host: Host) -> "GroupSync":
        """The sync of one node."""
        return cls(host.destination)

    def interval_s(self, mirror: Mirror) -> float:
        """Of a flow, `sync.group.offsets.interval.seconds`, unless commits are repeated before."""
        return min(check_interval_s(mirror), self._repeat_s or DEFAULT_REPEAT_S)

    def forget(self, moved: Moved) -> None:
        """Drop the memory, to be read again: another node may have served the mirrors meanwhile."""
        drop(moved, self._memories)

    async def sync(
        self,
        source: KafkaCluster,
        mirror: str,
        include: GroupFilter,
        partitions: Mapping[TopicPartition, UUID],
        *,
        quiet_s: float = 0.0,
        wanted: WantedTopics | None = None,
        is_ours: Callable[[], bool] = always,
        translation: Translation = SAME,
    ) -> int:
        """Copy the groups' offsets of these partitions; return how many groups failed.

        An error concerns one group: it is logged, and the other groups are served.

        Args:
            source: the mirror's source.
            mirror: the mirror's name.
            include: which groups are served.
            partitions: those that are MIRRORING, with the ids of the source's topics.
            quiet_s: how long a group must have been quiet on the destination.
            wanted: returns the topics that are still to be mirrored, called immediately before each
                commit; None: all of them are.
            is_ours: whether no other node can serve the mirror, called before each write.
            translation: where the partitions and offsets are on the destination.

        Raises:
            Retriable: a cluster is unreachable.
            UserError: the right to list groups or to read offsets is missing.
        """
        topic_ids = _topic_ids(partitions)
        check = GroupCheck(
            source=source,
            mirror=mirror,
            include=include,
            partitions=partitions,
            translation=translation,
            wanted=wanted or (lambda: topic_ids),
            quiet_s=quiet_s,
            topic_ids=topic_ids,
            is_ours=is_ours,
        )
        return await self._apply(await self._compare(check))

    async def compare(self, context: SyncContext) -> GroupDifference:
        """Read the offsets of the groups that are copied, of partitions that are MIRRORING.

        Raises:
            Retriable: a cluster is unreachable.
            UserError: the right to list groups or to read offsets is missing.
        """
        # A recreated topic stays MIRRORING until its lane has detected that.
        states = await context.store.states()
        read = await read_translation(
            context.destination, context.store, context.snapshot, context.name
        )
        translation = read.joined()
        topic_ids = {
            topic.topic: topic.topic_id for topic in context.snapshot.topics_of(context.name)
        }
        # Of those that share a partition of the destination, one is enough.
        following = {
            translation.key(name.source)
            for topic in context.same
            for name in topic.mirror_partitions
            if states.state(name) is State.MIRRORING
        }
        # A topic that was added meanwhile waits for the next check.
        partitions = {
            key: topic_ids[key.topic]
            for key in following - translation.unknown
            if key.topic in topic_ids
        }
        interval_s = max(self.interval_s(context.mirror), context.settings.refresh_interval)
        check = GroupCheck(
            source=context.source,
            mirror=context.name,
            include=copied_groups(context.mirror, context.settings),
            partitions=partitions,
            translation=translation,
            wanted=lambda: _mirrored(context.latest(), context.name),
            quiet_s=quiet_time(interval_s),
            topic_ids=topic_ids,
            is_ours=context.is_ours,
        )
        return await self._compare(check)

    async def apply(self, context: SyncContext, difference: GroupDifference) -> int:
        """Commit what is due; return how many groups failed."""
        del context
        return await self._apply(difference)

    async def _compare(self, check: GroupCheck) -> GroupDifference:
        now_ms = int(self._clock() * 1000)
        source_groups = await list_groups(check.source)
        difference = GroupDifference(
            check=check,
            memory=await self._memory(check.mirror),
            now_ms=now_ms,
            listed=source_groups,
            served=[group for group in source_groups.values() if check.include(group)],
        )
        if not difference.served or not check.partitions:
            return difference
        destination_groups = await list_groups(self._destination)
        offsets: dict[Group, GroupOffsets] = {}
        unread: dict[str, TwinlogError] = {}
        limit = asyncio.Semaphore(AT_ONCE)

        async def read(group: Group) -> None:
            async with limit:
                try:
                    offsets[group] = await read_offsets(
                        check.source, self._destination, group, check.translation
                    )
                except TwinlogError as error:
                    unread[group.name] = error

        bounds = await log_bounds(self._destination, check.partitions, check.translation)
        repeat_s = await self._repeat_interval()
        await asyncio.gather(*map(read, difference.served))
        return replace(
            difference,
            bounds=bounds,
            repeat_s=repeat_s,
            offsets=await without_recreated(check, offsets),
            busy=frozenset(name for name, group in destination_groups.items() if not group.idle),
            unread=unread,
        )

    async def _apply(self, difference: GroupDifference) -> int:
        check, memory = difference.check, difference.memory
        failures = [*difference.unread]
        for name, error in difference.unread.items():
            log.warning("group %s: cannot copy its offsets: %s", name, error)
        limit = asyncio.Semaphore(AT_ONCE)

        async def serve(group: Group, due: DueOffsets, doubtful: Doubtful) -> int:
            async with limit:
                try:
                    return await self._serve(difference, group, due, doubtful)
                except TwinlogError as error:
                    failures.append(group.name)
                    log.warning("group %s: cannot copy its offsets: %s", group.name, error)
                    return 0

        if difference.served and check.partitions:
            self._tell_unplaced(difference)
            due = {group: self._due(difference, group) for group in difference.offsets}
            doubtful = await doubtful_of_due(check, due.values())
            await self._announce(check, memory, due)
            count = sum(await asyncio.gather(*(serve(*item, doubtful) for item in due.items())))
            log.info("%d group offsets copied", count)
        if not self._remembers:
            return len(failures)
        if not memory.was_read:
            return len(failures) + 1
        await note_deleted(difference)
        failures += [name for name in memory.undecoded - {*failures} if name is not None]
        names = tuple(sorted(failures)[:MAX_NAMED])
        last_check = LastCheck(mirror=check.mirror, time_ms=difference.now_ms, failed=names)
        await forget_unserved(self._destination, difference)
        require_ours(check.mirror, check.is_ours)
        return len(failures) + await self._write(memory, last_check)

    def _tell_unplaced(self, difference: GroupDifference) -> None:
        """Log once why groups have no offset where several source partitions share a partition."""
        mirror, unplaced = difference.check.mirror, difference.unplaced_texts
        if not unplaced:
            self._texts.last.pop((mirror, _UNPLACED), None)
            return
        self._texts.tell(mirror, _UNPLACED, f"{_UNPLACED}: {few(unplaced, '; ')}", logging.INFO)

    # ---- one group -----------------------------------------------------------------------------

    async def _serve(
        self, difference: GroupDifference, group: Group, due: DueOffsets, doubtful: Doubtful
    ) -> int:
        """Copy one group's offsets; return how many partitions were committed.

        Raises:
            Retriable: some logs could not be read; the offsets of the others are copied.
        """
        count = await self._follow(difference, group, due, doubtful)
        committed = difference.offsets[group].source
        if problem := difference.bounds.unknown(committed.keys()):
            raise Retriable(problem)
        return count

    def _due(self, difference: GroupDifference, group: Group) -> DueOffsets:
        """What is due of one group with these offsets on the destination and the source."""
        check, memory, now_ms = difference.check, difference.memory, difference.now_ms
        logs, busy = difference.bounds.logs, group.name in difference.busy
        on_destination, committed, untranslated, unplaced, raw = difference.offsets[group]
        entry, translation = memory.groups.get(group.name), check.translation
        source, kept = _of(logs, committed), logs.keys() & unplaced.keys()
        if not source and not kept and entry is None:
            return NOTHING_DUE
        destination = _of(source, on_destination)
        own = memory.own(group.name, destination, translation)
        active = busy or moved_by_others(destination, own, entry, translation)
        previous = entry or GroupMemory(mirror=check.mirror, group=group.name, kind=group.kind)
        current = replace(
            previous,
            kind=group.kind,
            active_ms=now_ms if active else previous.active_ms,
            copied_ms=previous.copied_ms or now_ms,
            partitions=remembered(
                *(source, on_destination, own, entry, logs.keys() - untranslated),
                unplaced=kept,
                translation=translation,
            ),
        )
        memory.groups[group.name] = current
        if busy or now_ms - current.active_ms < check.quiet_s * 1000:
            return NOTHING_DUE
        copies = in_source_offsets(destination, translation, source, own, logs)
        due = due_offsets(source, copies, logs, own)
        repeats: dict[TopicPartition, Committed] = {}
        if group.kind != SHARE and now_ms - current.copied_ms >= difference.repeat_s * 1000:
            # An offset that does not follow, as a place is not known, is not to expire either.
            copied = destination | _of(logs.keys() & untranslated, on_destination)
            repeats = _of(memory.own(group.name, copied, translation), copied)
        offsets = dict(repeats)
        offsets |= in_destination_offsets(due, destination, logs, own, translation)
        moved = at_starts(on_destination, _of(untranslated, raw), logs, entry, translation)
        moved |= at_floors(on_destination, unplaced, logs, entry, translation)
        destination |= _of(moved.keys() | repeats.keys(), on_destination)
        return DueOffsets(offsets | moved, destination, repeats)

    async def _announce(
        self, check: GroupCheck, memory: KnownGroups, due: Mapping[Group, DueOffsets]
    ) -> None:
        """Store what is going to be committed; if that fails, it is committed all the same.

        Raises:
            Retriable: another node may serve the mirror by now.
        """
        require_ours(check.mirror, check.is_ours)
        for group, what in due.items():
            memory.sends(group.name, what.offsets)
        entries = [
            memory.groups[group.name]
            for group, what in due.items()
            if what.offsets and group.name not in memory.undecoded
        ]
        if not entries or not self._remembers or not memory.was_read:
            return
        try:
            await create_groups_topic(self._destination)
            await write_groups(self._destination, check.mirror, entries)
        except TwinlogError as error:
            log.info("mirror %s: cannot write its group records before: %s", check.mirror, error)
        else:
            memory.written |= {entry.group: entry for entry in entries}

    async def _follow(
        self, difference: GroupDifference, group: Group, due: DueOffsets, doubtful: Doubtful
    ) -> int:
        """Commit what is due of one group, as far as it still is.

        What was announced and is not sent, also after an error, does not stay announced.
        """
        sent: set[TopicPartition] = set()
        try:
            offsets = await self._still_due(difference.check, group, due, doubtful)
            count = await self._commit(difference, group, offsets, sent)
        finally:
            difference.memory.not_sent(group.name, due.offsets.keys() - sent)
        if due.repeats and due.repeats.keys() <= sent:
            difference.memory.repeated(group.name, difference.now_ms)
        return count

    async def _still_due(
        self, check: GroupCheck, group: Group, due: DueOffsets, doubtful: Doubtful
    ) -> dict[TopicPartition, Committed]:
        """What of it still holds after a second reading.

        Nothing is committed that is about a topic which is not known for certain to be the copied
        one. And nothing is committed over what another client has committed meanwhile: the group
        itself, or a switchover, which may have read a later offset on the source.
        """
        copies, shared = due.copies, check.translation.shared
        topics = topics_of_due(check, due)
        if isinstance(doubtful, TwinlogError):
            if any(topics.values()):
                raise doubtful
            doubtful = ()
        dropped = {p for p, names in topics.items() if not names.isdisjoint(doubtful)}
        offsets = {p: at for p, at in due.offsets.items() if p not in dropped}
        offsets |= _of(dropped & shared.keys(), due.repeats)
        current: Mapping[TopicPartition, Committed] = {}
        if offsets:
            current = await destination_offsets(self._destination, group, check.translation)
        offsets = {p: offset for p, offset in offsets.items() if current.get(p) == copies.get(p)}
        for partition in offsets.keys() & copies.keys():
            if offsets[partition].offset < copies[partition].offset:
                log.info(
                    "group %s was rewound on the source, or the destination has lost copies: %s is "
                    "set back from %d to %d there",
                    group.name,
                    partition,
                    copies[partition].offset,
                    offsets[partition].offset,
                )
        return dict(offsets)

    async def _commit(
        self,
        difference: GroupDifference,
        group: Group,
        offsets: Mapping[TopicPartition, Committed],
        sent: set[TopicPartition],
    ) -> int:
        """Commit part by part, and remember what was committed; return how many partitions.

        `sent` receives those of which a commit was sent, with whatever outcome.
        """
        check, memory = difference.check, difference.memory
        write = set_start_offsets if group.kind == SHARE else commit_offsets
        count = 0
        for whole in in_parts(group.name, offsets):
            wanted = check.wanted() if check.is_ours() else ()
            part = {
                p: offset
                for p, offset in whole.items()
                if any(topic in wanted for topic in check.translation.topics(p))
            }
            if not part:
                continue
            named = {check.translation.name(p): at for p, at in part.items()}
            sent.update(part)
            committed = await write(self._destination, group.name, named)
            answers = check.translation.by_source(part, committed)
            refusals = {p: refusal for p, refusal in answers.items() if refusal is not None}
            memory.copied(group.name, {p: part[p] for p in answers if p not in refusals})
            for partition, refusal in refusals.items():
                # Not committed for certain: an equal offset that stands there later is the group's.
                if refusal.code in _ACTIVE or not refusal.reaction.retriable:
                    memory.refused(group.name, partition)
            if any(refusal.code in _ACTIVE for refusal in refusals.values()):
                log.info("group %s has become active on the destination", group.name)
                memory.active(group.name, difference.now_ms)
                break
            for partition, refusal in refusals.items():
                refusal.fail(f"commit for group {group.name}", topic=partition.topic)
            count += len(answers)
        return count

    # ---- what is remembered --------------------------------------------------------------------

    async def _memory(self, mirror: str) -> KnownGroups:
        """What is known of a mirror's groups, read from `__mirror_groups` if that was not read yet.

        Raises:
            Retriable: the destination is unreachable.
        """
        memory = self._memories.get(mirror)
        if memory is None or not memory.was_read:
            try:
                memory = KnownGroups.of(mirror, await read_groups(self._destination, mirror))
            except UserError as error:
                log.warning("mirror %s: cannot read its group records: %s", mirror, error)
                memory = memory or KnownGroups(was_read=False)
            self._memories[mirror] = memory
        return memory

    async def _write(self, memory: KnownGroups, last_check: LastCheck) -> int:
        """Write what has changed, and the check itself; return 1 if it cannot be written."""
        entries: list[GroupMemory | LastCheck] = [
            entry
            for name, entry in memory.groups.items()
            if memory.written.get(name) != entry and name not in memory.undecoded
        ]
        # The check is last: it vouches for the records that are written before it.
        entries += [last_check] if None not in memory.undecoded else []
        forgotten = memory.written.keys() - memory.groups.keys() - memory.undecoded
        try:
            await create_groups_topic(self._destination)
            await write_groups(self._destination, last_check.mirror, entries, forgotten)
        except TwinlogError as error:
            log.warning("mirror %s: cannot write its group records: %s", last_check.mirror, error)
            return 1
        memory.written = dict(memory.groups)
        return int(None in memory.undecoded)

    async def _repeat_interval(self) -> float:
        """Seconds between two commits of the same offset."""
        if self._repeat_s is None:
            self._repeat_s = await read_repeat_interval(self._destination)
        return DEFAULT_REPEAT_S if self._repeat_s is None else self._repeat_s


def _topic_ids(partitions: Mapping[TopicPartition, UUID]) -> dict[str, UUID]:
    return {partition.topic: topic_id for partition, topic_id in partitions.items()}


def _mirrored(snapshot: Snapshot, mirror: str) -> set[str]:
    """The topics that are to be mirrored, by the latest `__mirror_config`."""
    return {topic.topic for topic in snapshot.topics_of(mirror) if topic.wanted is Wanted.MIRRORING}


def _of(
    partitions: Container[TopicPartition], offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed]:
    return {partition: at for partition, at in offsets.items() if partition in partitions}
