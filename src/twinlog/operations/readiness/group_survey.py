"""What a failover does to consumer groups: the facts of facts.py that concern them.

All groups count that have committed for the mirror's topics, including those whose offsets are not
copied (streams groups, and those that `mirror.groups.include` leaves out).

The destination's offsets are read before the source's. So what a node copies in between makes a
group seem further behind than it is, and none seem ahead.

If the source is dead, `__mirror_groups` has what the groups had committed at the node's last check.
What they have committed since is unknown, which is a finding, with the age of the check.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.groups.offsets import (
    Committed,
    Group,
    assigned,
    committed_offsets,
    list_groups,
    lists_all_groups,
)
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.reported_positions import is_position_group
from twinlog.mirror.shared_partitions import SharedPlace
from twinlog.mirror.translation import SAME, Translation
from twinlog.operations.readiness.facts import GroupFacts, Skip, SourceLog, Standing
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.store.group_log import GROUPS_TOPIC, Remembered, read_groups
from twinlog.store.group_records import NO_OFFSET, GroupMemory
from twinlog.sync.group_readings import (
    SHARE,
    Log,
    destination_offsets,
    log_bounds,
    read_offsets,
)
from twinlog.sync.group_rules import (
    due_offsets,
    in_source_offsets,
    own_offsets,
    partition_memories,
)
from twinlog.sync.group_selection import GroupFilter
from twinlog.text import few

AT_ONCE: Final = 20
"""Groups whose offsets are read concurrently."""

_BEGAN_LATER: Final = "not compared, as the flow began at a later offset"
_NOTHING_COPIED: Final = "not compared, as no offset is translated there yet"
_LOST: Final = "not compared, as the target has lost records that were copied"
_NOT_STORED: Final = "not compared, as the last check has stored no source offset"
_NO_PLACE: Final = SharedPlace(None, None, "at the last check not all of its offsets were known")

ByTopic = dict[str, tuple[GroupFacts, ...]]


async def group_facts(
    source: KafkaCluster,
    destination: KafkaCluster,
    mirror: str,
    include: GroupFilter,
    logs: Mapping[TopicPartition, SourceLog],
    *,
    stable: bool = False,
    translation: Translation = SAME,
) -> tuple[ByTopic, tuple[Finding, ...]]:
    """The groups that have committed for the topics, by topic, and those that cannot be read.

    A group that the node has seen and that the source does not list now is read by name: a missing
    entry in a list is no evidence that it is gone.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        mirror: the mirror's name.
        include: the groups whose offsets are copied.
        logs: the source's logs, of the partitions to check.
        stable: only the groups whose offsets are copied; no offset on the source may be part of an
            open transaction, and all have to be readable.
        translation: where the partitions and offsets are on the destination.

    Raises:
        Retriable: a cluster is unreachable, or an offset is not stable.
        UserError: the right to list groups or to read offsets is missing.
    """
    if not logs and not translation.unknown:
        return {}, ()
    memories, unreadable = await _known(destination, mirror)
    source_groups = await list_groups(source)
    groups = [
        *source_groups.values(),
        *(
            Group(memory.group, "", memory.kind)
            for memory in memories.values()
            if memory.group not in source_groups
        ),
    ]
    groups = [group for group in groups if not is_position_group(group.name)]
    if stable:
        groups = [group for group in groups if include(group)]
    destination_groups = await list_groups(destination)
    bounds = await log_bounds(destination, list(logs), translation)
    limit = asyncio.Semaphore(AT_ONCE)

    if not stable:
        unreadable += await not_listed(source)

    async def facts(group: Group) -> list[tuple[str, GroupFacts]]:
        async with limit:
            try:
                copy = _as_there(group, destination_groups)
                copies, committed, untranslated, unplaced, _ = await read_offsets(
                    source, destination, group, translation, copy=copy, stable=stable
                )
            except TwinlogError as error:
                if stable:
                    raise
                unreadable.append(_unreadable(f"offsets of {group.name}: {error}"))
                return []
        if problem := bounds.unknown(committed.keys()):
            if stable:
                raise Retriable(f"group {group.name}: {problem}")
            unreadable.append(_unreadable(f"offsets of {group.name}: {problem}"))
        followed = include(group)
        untranslated &= logs.keys() | translation.unknown
        others = untranslated - unplaced.keys()
        if followed and (texts := not_translated(group.name, others, translation)):
            if stable:
                raise Retriable(f"group {group.name}: {texts[0]}")
            unreadable.extend(map(_unreadable, texts))
        if followed:
            shown = {p: place for p, place in unplaced.items() if p in logs}
            unreadable.extend(not_placed(group.name, shown, translation))
        own = own_offsets(copies, memories.get(group.name), translation) - untranslated
        copies = in_source_offsets(copies, translation, committed, own, bounds.logs)
        idle = group.name not in destination_groups or destination_groups[group.name].idle
        return [
            (
                topic,
                replace(
                    topic_facts,
                    kind=group.kind,
                    followed=followed,
                    # A group without a state has offsets there, so it may have members, too.
                    idle_on_source=group.idle,
                    idle_on_destination=idle,
                ),
            )
            for topic, topic_facts in offset_facts(
                group.name, logs, bounds.logs, committed, copies, own=own
            ).items()
        ]

    by_topic = _by_topic(await asyncio.gather(*(facts(group) for group in sorted(groups))))
    return by_topic, tuple(unreadable)


def not_translated(
    group: str, partitions: Collection[TopicPartition], translation: Translation
) -> list[str]:
    """What is said of a group's offsets that cannot be translated, and why they cannot.

    Args:
        group: the group's name.
        partitions: those of its offsets (`Translation.untranslated`).
        translation: where the partitions and offsets are on the destination.
    """
    unmapped = translation.unknown.intersection(partitions)
    lost = translation.lost.intersection(partitions) - unmapped
    return [
        f"offsets of {group}: {why}: {few(sorted(of_these))}"
        for why, of_these in (
            (_NOTHING_COPIED, unmapped),
            (_LOST, lost),
            (_BEGAN_LATER, {*partitions} - unmapped - lost),
        )
        if of_these
    ]


def not_placed(
    group: str, unplaced: Mapping[TopicPartition, SharedPlace], translation: Translation
) -> list[Finding]:
    """Findings about a group without one offset for several source partitions.

    Args:
        group: the group's name.
        unplaced: why, by the partition as which they count (`Translation.joined`).
        translation: where the partitions and offsets are on the destination.
    """
    return [
        Finding(
            Reason.GROUP_NOT_COPIED,
            f"group {group}: no offset is copied to {translation.name(partition)}, which several "
            f"source partitions {verb}: {place.lacks}",
        )
        for partition, place in sorted(unplaced.items())
        for verb in ["share" if len(translation.shared[partition].feeders) > 1 else "may share"]
    ]


async def not_listed(source: KafkaCluster) -> list[Finding]:
    """A finding if the source may leave groups out of its list."""
    if await lists_all_groups(source):
        return []
    text = (
        "the source's list of groups may be incomplete: grant the principal "
        f"{source.config.security.principal} DESCRIBE on the cluster"
    )
    return [_unreadable(text)]


async def uncommitted(
    source: KafkaCluster, include: GroupFilter, partitions: Collection[TopicPartition]
) -> dict[str, frozenset[TopicPartition]]:
    """Partitions that a group's members read, and have committed nothing for, by group.

    Only groups count whose offsets are copied. Share groups do not commit: their start offsets
    exist from the beginning. Readers that are no members (`assign`) are unknown until they commit.

    Args:
        source: the mirror's source.
        include: the groups whose offsets are copied.
        partitions: those to check.

    Raises:
        Retriable: the source is unreachable, or a group's first offset of a partition is part of an
            open transaction.
        ProtocolError, UserError: what a group's members read cannot be determined.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def uncommitted_of(group: Group) -> frozenset[TopicPartition]:
        async with limit:
            committed = await committed_offsets(
                source, group.name, stable=True, partitions=sorted(partitions)
            )
            assignment = (
                frozenset[TopicPartition]() if group.idle else await assigned(source, group)
            )
            return assignment.intersection(partitions) - committed.keys()

    source_groups = await list_groups(source)
    groups = [
        group for group in sorted(source_groups.values()) if include(group) and group.kind != SHARE
    ]
    answers = await asyncio.gather(*map(uncommitted_of, groups))
    return {group.name: missing for group, missing in zip(groups, answers, strict=True) if missing}


async def remembered_facts(
    destination: KafkaCluster,
    mirror: str,
    partitions: Collection[TopicPartition],
    now_ms: int,
    translation: Translation = SAME,
) -> tuple[ByTopic, tuple[Finding, ...]]:
    """The groups as the node last saw them on a source that is dead now, and what is unknown.

    Args:
        destination: the mirror's cluster.
        mirror: the mirror's name.
        partitions: the topics' partitions.
        now_ms: the present time.
        translation: where the partitions and offsets are on the destination.
    """
    try:
        remembered = await read_groups(destination, mirror)
        if remembered.check is None:
            why = f"{GROUPS_TOPIC} has no complete check of the groups"
            return {}, (_unreadable(f"their source offsets are unknown: {why}"),)
        by_topic, findings = await _remembered(destination, remembered, partitions, translation)
    except TwinlogError as error:
        return {}, (_unreadable(f"their source offsets are unknown: {error}"),)
    return by_topic, (*_not_known(remembered, now_ms), *findings)


def _not_known(remembered: Remembered, now_ms: int) -> list[Finding]:
    """Findings about what the last check does not show."""
    check = remembered.check
    assert check is not None, "the caller has looked"
    # A difference of the node's clock and this one, of which one may be wrong.
    age = (now_ms - check.time_ms) / 1000
    age_text = f"{age:.0f} s ago" if age >= 0 else f"{-age:.0f} s ahead of this machine's clock"
    findings = [
        _unreadable(
            f"{len(remembered.groups)} were last checked on the source {age_text}, and partitions "
            "that were not MIRRORING then, earlier; later commits, and groups that are not copied, "
            "are unknown"
        )
    ]
    if check.failed:
        text = f"their offsets could not be read in the last check: {few(check.failed)}"
        findings.append(_unreadable(text))
    if remembered.unreadable:
        findings.append(_unreadable(f"unreadable records: {few(remembered.unreadable)}"))
    return findings


def _unreadable(text: str) -> Finding:
    return Finding(Reason.GROUP_UNREADABLE, f"groups: {text}")


async def _remembered(
    destination: KafkaCluster,
    remembered: Remembered,
    partitions: Collection[TopicPartition],
    translation: Translation,
) -> tuple[ByTopic, list[Finding]]:
    bounds = await log_bounds(destination, partitions, translation)
    destination_groups = await list_groups(destination)
    limit = asyncio.Semaphore(AT_ONCE)
    findings: list[Finding] = []

    async def facts(memory: GroupMemory) -> list[tuple[str, GroupFacts]]:
        entries = partition_memories(memory, translation)
        committed = {
            partition: Committed(offsets.source)
            for partition, offsets in entries.items()
            if offsets.source != NO_OFFSET
        }
        deleted = {partition for partition, offsets in entries.items() if offsets.deleted}
        unplaced = {
            partition: _NO_PLACE
            for partition in translation.shared.keys() & entries.keys() & {*partitions}
            if partition not in committed and partition not in deleted
        }
        findings.extend(not_placed(memory.group, unplaced, translation))
        # While a topic could not be read, or the partition was shared, no such offset was stored.
        known = committed.keys() | deleted | unplaced.keys()
        if unknown := sorted(entries.keys() & {*partitions} - known):
            text = f"offsets of {memory.group}: {_NOT_STORED}: {few(unknown)}"
            findings.append(_unreadable(text))
        if text := bounds.unknown(committed.keys() | deleted):
            findings.append(_unreadable(f"offsets of {memory.group}: {text}"))
        committed = {p: at for p, at in committed.items() if p in bounds.logs}
        if not committed and not deleted:
            return []
        async with limit:
            group = Group(memory.group, "", memory.kind)
            copies = await destination_offsets(
                destination, _as_there(group, destination_groups), translation
            )
        # A partition without an offset that is not noted as deleted was not checked.
        own = own_offsets(copies, memory, translation) & (committed.keys() | deleted)
        copies = in_source_offsets(copies, translation, committed, own, bounds.logs)
        # What the source holds above the group's offset is unknown here; the logs' facts have it.
        logs = {p: SourceLog(None, at.offset, at.offset) for p, at in committed.items()}
        idle = memory.group not in destination_groups or destination_groups[memory.group].idle
        return [
            (topic, replace(topic_facts, kind=memory.kind, idle_on_destination=idle))
            for topic, topic_facts in offset_facts(
                memory.group, logs, bounds.logs, committed, copies, own=own
            ).items()
        ]

    groups = [remembered.groups[name] for name in sorted(remembered.groups)]
    by_topic = _by_topic(await asyncio.gather(*map(facts, groups)))
    return by_topic, findings


async def _known(
    destination: KafkaCluster, mirror: str
) -> tuple[Mapping[str, GroupMemory], list[Finding]]:
    """What the node remembers, and findings about what of it cannot be read.

    Without it no offset counts as the mirror's own, and none is known to be deleted on the source.
    """
    text = "unknown which copied offsets no longer exist on the source"
    try:
        stored_groups = await read_groups(destination, mirror)
    except TwinlogError as error:
        return {}, [_unreadable(f"{text}: {error}")]
    if not stored_groups.unreadable:
        return stored_groups.groups, []
    why = f"unreadable records: {few(stored_groups.unreadable)}"
    return stored_groups.groups, [_unreadable(f"{text}; {why}")]


def _as_there(group: Group, destination_groups: Mapping[str, Group]) -> Group:
    """A group as the destination's coordinator knows it: one of another kind may have its name."""
    return group if (other_kind := destination_groups.get(group.name)) is None else other_kind


def _by_topic(answers: Collection[list[tuple[str, GroupFacts]]]) -> ByTopic:
    by_topic: defaultdict[str, list[GroupFacts]] = defaultdict(list)
    for facts in answers:
        for topic, group_facts in facts:
            by_topic[topic].append(group_facts)
    return {topic: tuple(facts_of_groups) for topic, facts_of_groups in by_topic.items()}


def offset_facts(
    group: str,
    logs: Mapping[TopicPartition, SourceLog],
    bounds: Mapping[TopicPartition, Log],
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    *,
    own: AbstractSet[TopicPartition] = frozenset(),
) -> dict[str, GroupFacts]:
    """What a group has committed, by topic.

    Args:
        group: the group's name.
        logs: the source's logs, of the partitions to check.
        bounds: the destination's logs.
        source: what it has committed on the source.
        destination: what it has committed on the destination.
        own: those whose offset on the destination is the mirror's own.
    """
    due_copies = due_offsets(source, destination, bounds, own)
    rewound = {
        partition
        for partition, its_log in bounds.items()
        if partition in source
        and partition in destination
        and destination[partition].offset > max(source[partition].offset, its_log.start)
    }
    partitions: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(source.keys() & logs.keys() & bounds.keys()):
        partitions[partition.topic].append(partition)
    deleted: defaultdict[str, list[Standing]] = defaultdict(list)
    for partition in sorted(own & bounds.keys() - source.keys()):
        if destination[partition].offset > bounds[partition].start:
            deleted[partition.topic].append(Standing(partition, destination[partition].offset))
    return {
        topic: GroupFacts(
            group=group,
            due=sum(partition in due_copies for partition in committed if partition not in rewound),
            behind=sum(
                due_copies[p].offset
                - (destination[p].offset if p in destination else bounds[p].start)
                for p in committed
                if p in due_copies and p not in rewound
            ),
            missing=sum(partition not in destination for partition in committed),
            ahead=sum(max(source[p].offset - bounds[p].end, 0) for p in committed),
            skips=tuple(
                Skip(p, source[p].offset, destination[p].offset, follows=p in due_copies)
                for p in committed
                if p in rewound
            ),
            unread=sum(max(logs[p].high_watermark - source[p].offset, 0) for p in committed),
            unread_from=tuple(
                Standing(partition, source[partition].offset)
                for partition in committed
                if source[partition].offset < logs[partition].high_watermark
            ),
            deleted=tuple(deleted[topic]),
        )
        for topic in partitions.keys() | deleted.keys()
        for committed in [partitions[topic]]
    }
