"""Group offsets follow their topics (KIP-545, KIP-1279 "Consumer Group Offset Synchronization").

A mirrored record has its offset in both clusters, so a committed offset is copied as it is, and so
is the offset at which a partition starts for a share group (KIP-932). What is copied for a group,
partition by partition:

    only while                                 because
    -----------------------------------------  ---------------------------------------------------
    the group has no member on the destination whoever reads there decides himself
    the partition is MIRRORING                 after a failover its readers go on by themselves
    it is further than the destination's own   a group must not read twice what it has read there
    up to the destination's log end            an offset that is not there yet would be reset
    the source's topic is the mirrored one     one that was made again has other records there

An offset beyond the log end is committed as the log end, and follows with the next look. One below
the log start is committed as the log start. The leader epoch is -1.

What a share group has acquired or acknowledged beyond its start is no offset, and brokers tell the
start late (tests/end_to_end/test_groups.py): on the destination it gets some of it again. Brokers
before 4.1 have no share groups to copy.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from re import Pattern
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.offsets import (
    Committed,
    Group,
    commit_offsets,
    committed_offsets,
    list_groups,
    set_start_offsets,
    start_offsets,
)
from twinlog.cluster.partitions import OffsetSpec, list_offsets
from twinlog.core.errors import Refusal, TwinlogError
from twinlog.core.types import TopicPartition

log = logging.getLogger(__name__)

_KINDS: Final = frozenset({"classic", "consumer", "share"})
"""Kinds of groups whose offsets a client can read and write by name."""


class Log(NamedTuple):
    """Where a partition's log on the destination begins and ends."""

    start: int
    end: int


def due_offsets(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
) -> dict[TopicPartition, Committed]:
    """What is to be committed on the destination for one group.

    Args:
        source: what it has committed there.
        destination: what it has committed here.
        logs: the partitions whose offsets follow, as they are on the destination.
    """
    due = {}
    for partition, committed in source.items():
        if partition not in logs:
            continue
        start, end = logs[partition]
        offset = max(start, min(committed.offset, end))
        ours = destination.get(partition)
        if ours is None or ours.offset < offset:
            due[partition] = Committed(offset, committed.metadata)
    return due


async def sync_groups(
    source: KafkaCluster,
    destination: KafkaCluster,
    include: Collection[Pattern[str]],
    partitions: Mapping[TopicPartition, UUID],
) -> int:
    """Copy the offsets of the source's groups for these partitions; how many groups could not be.

    One group's trouble is its own: it is said, and the others are served.

    Args:
        source: the mirror's source.
        destination: where offsets are committed.
        include: a group is served whose whole name matches one of these.
        partitions: those that are MIRRORING, and the ids of the source's topics that they mirror.

    Raises:
        Retriable: a cluster does not answer.
        UserError: a right is missing, to list groups or to read offsets.
    """
    groups = served((await list_groups(source)).values(), include)
    if not groups or not partitions:
        return 0
    busy = {group.name for group in (await list_groups(destination)).values() if not group.idle}
    logs = await log_bounds(destination, partitions)
    topic_ids = {partition.topic: topic_id for partition, topic_id in partitions.items()}
    committed = failed = 0
    for group in groups:
        if group.name in busy:
            continue
        try:
            committed += await _sync(source, destination, group, logs, topic_ids)
        except TwinlogError as error:
            failed += 1
            log.warning("the offsets of group %s cannot be copied: %s", group.name, error)
    log.info("%d group offsets copied", committed)
    return failed


def served(groups: Iterable[Group], include: Collection[Pattern[str]]) -> list[Group]:
    """The groups whose offsets follow."""
    return [
        group
        for group in groups
        if group.kind in _KINDS and any(pattern.fullmatch(group.name) for pattern in include)
    ]


async def log_bounds(
    destination: KafkaCluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Log]:
    """Where these partitions' logs begin and end, of those that can be asked."""
    asked = list(partitions)
    starts, ends = await asyncio.gather(
        list_offsets(destination, asked, OffsetSpec.EARLIEST),
        list_offsets(destination, asked, OffsetSpec.LATEST),
    )
    found = {}
    for partition in asked:
        start, end = starts[partition], ends[partition]
        if not isinstance(start, Refusal) and not isinstance(end, Refusal):
            found[partition] = Log(start.offset, end.offset)
    return found


async def group_offsets(
    cluster: KafkaCluster, group: Group, *, stable: bool = False
) -> dict[TopicPartition, Committed]:
    """The offsets that a group of a cluster has; `stable` as for `committed_offsets`.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    if group.kind == "share":
        return await start_offsets(cluster, group.name)
    return await committed_offsets(cluster, group.name, stable=stable)


async def _sync(
    source: KafkaCluster,
    destination: KafkaCluster,
    group: Group,
    logs: Mapping[TopicPartition, Log],
    topic_ids: Mapping[str, UUID],
) -> int:
    """Copy one group's offsets; how many partitions were committed."""
    write = set_start_offsets if group.kind == "share" else commit_offsets
    theirs = await group_offsets(source, group)
    if not theirs.keys() & logs.keys():
        return 0
    due = due_offsets(theirs, await group_offsets(destination, group), logs)
    # Asked after the offsets were read: one made again before that is seen to be another.
    made_again = await _made_again(source, {partition.topic for partition in due}, topic_ids)
    due = {partition: one for partition, one in due.items() if partition.topic not in made_again}
    if not due:
        return 0
    answers = await write(destination, group.name, due)
    for partition, refusal in answers.items():
        if refusal is not None:
            refusal.fail(f"commit for group {group.name}", topic=partition.topic)
    return len(answers)


async def _made_again(
    source: KafkaCluster, names: Collection[str], topic_ids: Mapping[str, UUID]
) -> set[str]:
    """Those of these topics that are not the mirrored ones any more, or not known to be."""
    if not names:
        return set()
    there = (await source.refresh(names)).topics
    found = {
        name
        for name in names
        if (topic := there.get(name)) is None or topic.error or topic.topic_id != topic_ids[name]
    }
    for name in found:
        log.warning("%s may be another topic on the source by now: no group offsets of it", name)
    return found
