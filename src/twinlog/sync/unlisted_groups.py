"""Groups that are remembered, and that the source does not list, or that are not served any more.

One list without a group proves nothing: its coordinator may not answer.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.groups.offsets import Group
from twinlog.store.group_records import NO_OFFSET, GroupMemory
from twinlog.sync.group_check import AT_ONCE, GroupDifference
from twinlog.sync.group_readings import destination_offsets, group_offsets

FORGET_S: Final = 3600.0
"""Seconds after which a group that the source does not list any more is forgotten, if none of its
copied offsets is left; otherwise it is checked again after the same time."""


async def note_deleted(difference: GroupDifference) -> None:
    """Note which offsets are gone on the source, of groups that it does not list.

    The offsets are read by group name until that is noted.
    """
    check, memory = difference.check, difference.memory
    limit, partitions = asyncio.Semaphore(AT_ONCE), check.partitions.keys()

    async def note(entry: GroupMemory) -> None:
        group = Group(entry.group, "", entry.kind)
        async with limit:
            try:
                committed = await group_offsets(check.source, group)
            except TwinlogError:
                return  # keep the offsets that were read last
        deleted_partitions = partitions - {check.translation.key(p) for p in committed}
        memory.groups[entry.group] = replace(
            entry,
            partitions={
                partition: offsets._replace(source=NO_OFFSET, deleted=1)
                if partition in deleted_partitions
                else offsets
                for partition, offsets in entry.partitions.items()
                if partition not in deleted_partitions or offsets.may_be_copied
            },
        )

    candidates = [
        entry
        for name, entry in memory.groups.items()
        if name not in difference.listed
        and any(not entry.partitions[p].deleted for p in partitions & entry.partitions.keys())
    ]
    await asyncio.gather(*map(note, candidates))


async def forget_unserved(destination: KafkaCluster, difference: GroupDifference) -> None:
    """Drop groups that are not served any more, or that the source has not listed for long.

    While a copied offset is left on the destination, the group would continue from it
    (`GROUP_DELETED`).
    """
    memory, now_ms = difference.memory, difference.now_ms
    unserved = memory.groups.keys() - {group.name for group in difference.served}
    since_ms = {name: memory.unlisted.get(name, now_ms) for name in unserved}
    excluded = {name for name in unserved if name in difference.listed}
    expired = {name for name in unserved - excluded if now_ms - since_ms[name] > FORGET_S * 1000}
    copied = await _with_copies(destination, difference, sorted(expired))
    for name in excluded | expired - copied:
        del memory.groups[name]
    restarts = dict.fromkeys(copied, now_ms)
    memory.unlisted = {
        name: at for name, at in (since_ms | restarts).items() if name in memory.groups
    }


async def _with_copies(
    destination: KafkaCluster, difference: GroupDifference, names: Collection[str]
) -> set[str]:
    """Those of these groups with an own offset on the destination, or with unknown offsets."""
    memory, translation = difference.memory, difference.check.translation
    limit = asyncio.Semaphore(AT_ONCE)

    async def has(name: str) -> bool:
        async with limit:
            group = Group(name, "", memory.groups[name].kind)
            try:
                offsets = await destination_offsets(destination, group, translation)
            except TwinlogError:
                return True
            return bool(memory.own(name, offsets, translation))

    answers = await asyncio.gather(*map(has, names))
    return {name for name, has_copy in zip(names, answers, strict=True) if has_copy}
