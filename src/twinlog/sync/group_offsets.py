"""Copies group offsets from a mirror's source to its destination; group_rules.py has the rules.

One `GroupSync` belongs to one node. After a check, what it has read and committed is written to
`__mirror_groups`, for the next node, and for `twinlog readiness` when the source is dead. It is
written after the commits, not before: after a crash between a commit and its record, the offset
counts as the group's own, which is the safe side.

A commit is repeated before the destination's brokers expire it, for as long as the source has the
group's offset: offsets.retention.minutes counts from the commit, and nothing else commits for a
group that is idle there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from re import Pattern
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import (
    Committed,
    Group,
    commit_offsets,
    in_parts,
    list_groups,
    set_start_offsets,
)
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.group_log import create_groups_topic, read_groups, write_groups
from twinlog.store.group_records import (
    NO_OFFSET,
    GroupMemory,
    LastCheck,
    PartitionMemory,
    metadata_checksum,
)
from twinlog.sync.group_rules import (
    SHARE,
    Bounds,
    destination_offsets,
    due_offsets,
    group_offsets,
    log_bounds,
    moved_by_others,
    own_offsets,
    remembered,
    served,
)

log = logging.getLogger(__name__)

AT_ONCE: Final = 20
"""Groups that are served concurrently."""
QUIET_CHECKS: Final = 10
"""Refresh intervals for which a group must have been quiet on the destination."""
FORGET_S: Final = 3600.0
"""Seconds after which a group that the source does not list any more is forgotten, if none of its
copied offsets is left; otherwise it is checked again after the same time."""
MAX_NAMED: Final = 1000
"""Failed groups that the record of a check names at most."""
MAX_REPEAT_S: Final = 24 * 3600.0
DEFAULT_REPEAT_S: Final = 6 * 3600.0
"""Seconds between two commits of the same offset: a quarter of offsets.retention.minutes, a day at
most; if the brokers do not report it, a quarter of the default before Kafka 2.0."""
_ACTIVE: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP}
)
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, NON_EMPTY_GROUP: the group has members."""
_RETENTION: Final = "offsets.retention.minutes"

Wanted = Callable[[], Container[str]]


@dataclass(slots=True)
class _Memory:
    """What is known of a mirror's groups."""

    groups: dict[str, GroupMemory] = field(default_factory=dict)
    written: dict[str, GroupMemory] = field(default_factory=dict)
    """The part of it that `__mirror_groups` holds."""
    undecoded: frozenset[str | None] = frozenset()
    """Groups with a record there that cannot be decoded, perhaps of a later version (None: the last
    check). They are not written."""
    was_read: bool = True
    """Whether it could be read. If not, nothing is written: the topic may hold more."""
    sent: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    """Commits of unknown outcome: such an offset is the mirror's own, too."""
    unlisted: dict[str, float] = field(default_factory=dict)
    """Since when (ms) the source has not listed a group."""

    def own(
        self, group: str, found: Mapping[TopicPartition, Committed]
    ) -> frozenset[TopicPartition]:
        """The partitions whose offset on the destination is the mirror's own."""
        sent = self.sent.get(group, {})
        lost = (one for one in found if one in sent and sent[one] == found[one])
        return own_offsets(found, self.groups.get(group)) | frozenset(lost)

    def copied(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Remember that these offsets were committed."""
        before = self.groups[group]
        news = {
            partition: before.partitions.get(partition, PartitionMemory())._replace(
                copied=one.offset, metadata=metadata_checksum(one.metadata), other=NO_OFFSET
            )
            for partition, one in offsets.items()
        }
        self.groups[group] = replace(before, partitions={**before.partitions, **news})
        for partition in offsets:
            self.sent.get(group, {}).pop(partition, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """The inputs of one check of a mirror's groups."""

    source: KafkaCluster
    mirror: str
    bounds: Bounds
    translation: Translation
    topic_ids: Mapping[str, UUID]
    wanted: Wanted
    quiet_s: float
    repeat_s: float
    now_ms: int


class GroupSync:
    """Copies the group offsets of mirrors; see the module.

    Args:
        destination: the cluster in which offsets are committed.
        clock: seconds since the epoch.
        remembers: whether results are written to `__mirror_groups`; a command's are not.
    """

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
        self._memories: dict[str, _Memory] = {}
        self._repeat_s: float | None = None

    def forget(self) -> None:
        """Drop the memory, to be read again: another node may have served the mirrors meanwhile."""
        self._memories.clear()

    async def sync(
        self,
        source: KafkaCluster,
        mirror: str,
        include: Collection[Pattern[str]],
        partitions: Mapping[TopicPartition, UUID],
        *,
        quiet_s: float = 0.0,
        wanted: Wanted | None = None,
        translation: Translation = SAME,
    ) -> int:
        """Copy the groups' offsets of these partitions; return how many groups failed.

        An error concerns one group: it is logged, and the other groups are served.

        Args:
            source: the mirror's source.
            mirror: the mirror's name.
            include: a group is served whose whole name matches one of these.
            partitions: those that are MIRRORING, with the ids of the source's topics.
            quiet_s: how long a group must have been quiet on the destination.
            wanted: returns the topics that are still to be mirrored, called immediately before each
                commit; None: all of them are.
            translation: where the partitions and offsets are on the destination.

        Raises:
            Retriable: a cluster is unreachable.
            UserError: the right to list groups or to read offsets is missing.
        """
        now_ms = int(self._clock() * 1000)
        listed = await list_groups(source)
        groups = served(listed.values(), include)
        memory = await self._memory(mirror)
        failed: list[str] = []
        topic_ids = {partition.topic: one for partition, one in partitions.items()}
        if groups and partitions:
            here = await list_groups(self._destination)
            check = _Check(
                source=source,
                mirror=mirror,
                bounds=await log_bounds(self._destination, partitions, translation),
                translation=translation,
                topic_ids=topic_ids,
                wanted=wanted or (lambda: topic_ids),
                quiet_s=quiet_s,
                repeat_s=await self._repeat_interval(),
                now_ms=now_ms,
            )
            limit = asyncio.Semaphore(AT_ONCE)

            async def serve(group: Group) -> int:
                async with limit:
                    busy = group.name in here and not here[group.name].idle
                    try:
                        return await self._serve(check, memory, group, busy=busy)
                    except TwinlogError as error:
                        failed.append(group.name)
                        log.warning("group %s: cannot copy its offsets: %s", group.name, error)
                        return 0

            copied = sum(await asyncio.gather(*map(serve, groups)))
            log.info("%d group offsets copied", copied)
        if not self._remembers:
            return len(failed)
        if not memory.was_read:
            return len(failed) + 1
        await self._note_deleted(source, memory, listed, partitions.keys())
        failed += [name for name in memory.undecoded - {*failed} if name is not None]
        named = tuple(sorted(failed)[:MAX_NAMED])
        last = LastCheck(mirror=mirror, time_ms=now_ms, failed=named)
        await self._forget_unserved(memory, listed, groups, now_ms, translation)
        return len(failed) + await self._write(memory, last)

    # ---- one group -----------------------------------------------------------------------------

    async def _serve(self, check: _Check, memory: _Memory, group: Group, *, busy: bool) -> int:
        """Copy one group's offsets; return how many partitions were committed.

        Raises:
            Retriable: some logs could not be read; the offsets of the others are copied.
        """
        # The destination is read first, so that its copies are never ahead of the source's offsets.
        everything = await destination_offsets(self._destination, group, check.translation)
        committed = await group_offsets(check.source, group)
        count = await self._follow(check, memory, group, everything, committed, busy=busy)
        if unknown := check.bounds.unknown(committed.keys()):
            raise Retriable(unknown)
        return count

    async def _follow(
        self,
        check: _Check,
        memory: _Memory,
        group: Group,
        everything: Mapping[TopicPartition, Committed],
        committed: Mapping[TopicPartition, Committed],
        *,
        busy: bool,
    ) -> int:
        """Commit what is due of one group with these offsets on the destination and the source."""
        logs = check.bounds.logs
        known = memory.groups.get(group.name)
        source = _of(logs, committed)
        if not source and known is None:
            return 0
        found = _of(source, everything)
        own = memory.own(group.name, found)
        active = busy or moved_by_others(found, own, known)
        before = known or GroupMemory(mirror=check.mirror, group=group.name, kind=group.kind)
        now = replace(
            before,
            kind=group.kind,
            active_ms=check.now_ms if active else before.active_ms,
            copied_ms=before.copied_ms or check.now_ms,
            partitions=remembered(source, found, own, known, logs.keys()),
        )
        memory.groups[group.name] = now
        if busy or check.now_ms - now.active_ms < check.quiet_s * 1000:
            return 0
        due = due_offsets(source, found, logs, own)
        repeats = group.kind != SHARE and check.now_ms - now.copied_ms >= check.repeat_s * 1000
        if repeats:
            due = {one: found[one] for one in own & source.keys()} | due
        due = await self._still_due(check, group, due, found)
        count = await self._commit(check, memory, group, due)
        if repeats:
            memory.groups[group.name] = replace(memory.groups[group.name], copied_ms=check.now_ms)
        return count

    async def _still_due(
        self,
        check: _Check,
        group: Group,
        due: Mapping[TopicPartition, Committed],
        found: Mapping[TopicPartition, Committed],
    ) -> dict[TopicPartition, Committed]:
        """What of `due` still holds after a second reading.

        The source's topics are read after the offsets, so that a topic recreated before is
        detected. And nothing is committed over what another client has committed meanwhile: the
        group itself, or a switchover, which may have read a later offset on the source.
        """
        recreated = await _recreated(
            check.source, {partition.topic for partition in due}, check.topic_ids
        )
        due = {partition: one for partition, one in due.items() if partition.topic not in recreated}
        again = (
            await destination_offsets(self._destination, group, check.translation) if due else {}
        )
        due = {one: offset for one, offset in due.items() if again.get(one) == found.get(one)}
        for partition in due.keys() & found.keys():
            if due[partition].offset < found[partition].offset:
                log.info(
                    "group %s was rewound on the source: %s from %d to %d on the destination, too",
                    group.name,
                    partition,
                    found[partition].offset,
                    due[partition].offset,
                )
        return dict(due)

    async def _commit(
        self,
        check: _Check,
        memory: _Memory,
        group: Group,
        due: Mapping[TopicPartition, Committed],
    ) -> int:
        """Commit part by part, and remember what was committed; return how many partitions."""
        write = set_start_offsets if group.kind == SHARE else commit_offsets
        count = 0
        for whole in in_parts(group.name, due):
            wanted = check.wanted()
            part = {one: offset for one, offset in whole.items() if one.topic in wanted}
            if not part:
                continue
            memory.sent.setdefault(group.name, {}).update(part)
            there = check.translation
            translated = {
                there.name(one): at._replace(offset=there.offsets(one).to_destination(at.offset))
                for one, at in part.items()
            }
            answers = there.by_source(part, await write(self._destination, group.name, translated))
            refused = {one: refusal for one, refusal in answers.items() if refusal is not None}
            memory.copied(group.name, {one: part[one] for one in answers if one not in refused})
            if any(refusal.code in _ACTIVE for refusal in refused.values()):
                log.info("group %s has become active on the destination", group.name)
                before = memory.groups[group.name]
                memory.groups[group.name] = replace(before, active_ms=check.now_ms)
                break
            for partition, refusal in refused.items():
                refusal.fail(f"commit for group {group.name}", topic=partition.topic)
            count += len(answers)
        return count

    # ---- what is remembered --------------------------------------------------------------------

    async def _memory(self, mirror: str) -> _Memory:
        """What is known of a mirror's groups, read from `__mirror_groups` if that was not read yet.

        Raises:
            Retriable: the destination is unreachable.
        """
        memory = self._memories.get(mirror)
        if memory is None or not memory.was_read:
            try:
                found = await read_groups(self._destination, mirror)
            except UserError as error:
                log.warning("mirror %s: what is known of its groups is not read: %s", mirror, error)
                memory = memory or _Memory(was_read=False)
            else:
                for text in found.unreadable:
                    log.warning("mirror %s: what is known of a group stays: %s", mirror, text)
                groups = dict(found.groups)
                memory = _Memory(groups=groups, written=dict(groups), undecoded=found.undecoded)
            self._memories[mirror] = memory
        return memory

    async def _note_deleted(
        self,
        source: KafkaCluster,
        memory: _Memory,
        listed: Collection[str],
        checked: Set[TopicPartition],
    ) -> None:
        """Note which offsets are gone on the source, of groups that it does not list.

        The offsets are read by group name until that is noted: a missing entry in a list is no
        evidence.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def note(known: GroupMemory) -> None:
            group = Group(known.group, "", known.kind)
            async with limit:
                try:
                    committed = await group_offsets(source, group)
                except TwinlogError:
                    return  # keep the offsets that were read last
            gone = checked - committed.keys()
            memory.groups[known.group] = replace(
                known,
                partitions={
                    partition: one._replace(source=NO_OFFSET, deleted=1)
                    if partition in gone
                    else one
                    for partition, one in known.partitions.items()
                    if partition not in gone or one.copied != NO_OFFSET
                },
            )

        due = [
            one
            for name, one in memory.groups.items()
            if name not in listed
            and any(not one.partitions[p].deleted for p in checked & one.partitions.keys())
        ]
        await asyncio.gather(*map(note, due))

    async def _forget_unserved(
        self,
        memory: _Memory,
        listed: Collection[str],
        groups: Collection[Group],
        now_ms: int,
        translation: Translation,
    ) -> None:
        """Drop groups that are not served any more, or that the source has not listed for long.

        One list without the group proves nothing: its coordinator may not answer. While a copied
        offset is left on the destination, the group would continue from it (`GROUP_DELETED`).
        """
        away = memory.groups.keys() - {group.name for group in groups}
        since = {name: memory.unlisted.get(name, now_ms) for name in away}
        excluded = {name for name in away if name in listed}
        long = {name for name in away - excluded if now_ms - since[name] > FORGET_S * 1000}
        left = await self._with_copies(memory, sorted(long), translation)
        for name in excluded | long - left:
            del memory.groups[name]
        again = dict.fromkeys(left, now_ms)
        memory.unlisted = {
            name: at for name, at in (since | again).items() if name in memory.groups
        }

    async def _with_copies(
        self, memory: _Memory, names: Collection[str], translation: Translation
    ) -> set[str]:
        """Those of these groups with an own offset on the destination, or with unknown offsets."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def has(name: str) -> bool:
            async with limit:
                group = Group(name, "", memory.groups[name].kind)
                try:
                    found = await destination_offsets(self._destination, group, translation)
                except TwinlogError:
                    return True
                return bool(memory.own(name, found))

        answers = await asyncio.gather(*map(has, names))
        return {name for name, one in zip(names, answers, strict=True) if one}

    async def _write(self, memory: _Memory, last: LastCheck) -> int:
        """Write what has changed, and the check itself; return 1 if it cannot be written."""
        changed: list[GroupMemory | LastCheck] = [
            one
            for name, one in memory.groups.items()
            if memory.written.get(name) != one and name not in memory.undecoded
        ]
        # The check is last: it vouches for the records that are written before it.
        changed += [last] if None not in memory.undecoded else []
        forgotten = memory.written.keys() - memory.groups.keys() - memory.undecoded
        try:
            await create_groups_topic(self._destination)
            await write_groups(self._destination, last.mirror, changed, forgotten)
        except TwinlogError as error:
            log.warning("mirror %s: what is known of groups is not kept: %s", last.mirror, error)
            return 1
        memory.written = dict(memory.groups)
        return int(None in memory.undecoded)

    async def _repeat_interval(self) -> float:
        """Seconds between two commits of the same offset."""
        if self._repeat_s is None:
            brokers = self._destination.metadata.brokers
            asked = [admin.Resource(admin.ResourceType.BROKER, str(node)) for node in brokers]
            try:
                answers = await admin.describe_configs(self._destination, asked, [_RETENTION])
            except TwinlogError as error:
                log.info("%s is not known: %s", _RETENTION, error)
                return DEFAULT_REPEAT_S
            self._repeat_s = repeat_interval(
                entries[_RETENTION].value
                for entries in answers.values()
                if not isinstance(entries, Refusal) and _RETENTION in entries
            )
        return self._repeat_s


def repeat_interval(minutes: Iterable[str | None]) -> float:
    """Seconds between two commits of the same offset, by the brokers' offsets.retention.minutes."""
    told = [int(one) * 60 / 4 for one in minutes if one and one.isascii() and one.isdecimal()]
    return min([*told, MAX_REPEAT_S]) if told else DEFAULT_REPEAT_S


def _of(
    partitions: Container[TopicPartition], offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed]:
    return {partition: one for partition, one in offsets.items() if partition in partitions}


async def _recreated(
    source: KafkaCluster, names: Collection[str], topic_ids: Mapping[str, UUID]
) -> set[str]:
    """Those of these topics that were recreated on the source, or may have been."""
    if not names:
        return set()
    known = (await source.refresh(names)).topics
    found = {
        name
        for name in names
        if (topic := known.get(name)) is None or topic.error or topic.topic_id != topic_ids[name]
    }
    for name in found:
        log.warning(
            "%s was recreated on the source, perhaps: its group offsets are not copied", name
        )
    return found
