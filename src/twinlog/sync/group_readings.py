"""What a mirror's groups have committed in both clusters, and where the logs are that they read.

Offsets of the destination are as they are committed there, those of the source as they are
translated for it. What cannot be read or translated is named, and is never taken for a group that
has committed nothing. group_rules.py says what follows from them.
"""

import asyncio
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.groups.offsets import Committed, Group, committed_offsets, start_offsets
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.reported_positions import is_reported
from twinlog.mirror.shared_partitions import SharedPlace
from twinlog.mirror.translation import SAME, Translation

SHARE: Final = "share"
"""The kind of a share group, which has no committed offsets, but starts (KIP-932)."""


class Log(NamedTuple):
    """Log start and log end of a partition on the destination, as offsets of the source."""

    start: int
    end: int
    end_there: int | None = None
    """The log end in the destination's own offsets; None: not read."""
    start_there: int = 0
    """The log start in the destination's own offsets."""


class Bounds(NamedTuple):
    """The destination's logs, and the refusals for those that cannot be read."""

    logs: Mapping[TopicPartition, Log]
    refused: Mapping[TopicPartition, Refusal]

    def unknown(self, committed: Collection[TopicPartition]) -> str:
        """Why some of these commits allow no conclusion; empty: all logs are known.

        An offset whose log is unknown is neither copied nor compared. That is not the same as a
        group that has committed nothing there.
        """
        for partition, refusal in sorted(self.refused.items()):
            if partition in committed:
                return f"cannot read the log bounds of {partition} on the destination: {refusal}"
        return ""


class GroupOffsets(NamedTuple):
    """A group's committed offsets in both clusters, by the source's partition."""

    destination: Mapping[TopicPartition, Committed]
    """As they are committed there (`in_source_offsets`)."""
    source: Mapping[TopicPartition, Committed]
    untranslated: frozenset[TopicPartition] = frozenset()
    """Partitions of which the source has an offset that cannot be translated. That is not the same
    as a group that has none there."""
    unplaced: Mapping[TopicPartition, SharedPlace] = MappingProxyType({})
    """Of these, those that several of the source's share, with what is known of their places."""
    committed: Mapping[TopicPartition, Committed] = MappingProxyType({})
    """As they are committed on the source."""


async def log_bounds(
    destination: KafkaCluster,
    partitions: Collection[TopicPartition],
    translation: Translation = SAME,
) -> Bounds:
    """Where these partitions' logs begin and end, in the source's names and offsets."""
    names = [translation.name(partition) for partition in partitions]
    first, last = await asyncio.gather(
        list_offsets(destination, names, OffsetSpec.EARLIEST),
        list_offsets(destination, names, OffsetSpec.LATEST),
    )
    starts = translation.by_source(partitions, first)
    ends = translation.by_source(partitions, last)
    logs: dict[TopicPartition, Log] = {}
    refusals: dict[TopicPartition, Refusal] = {}
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if isinstance(start, Refusal):
            refusals[partition] = start
        elif isinstance(end, Refusal):
            refusals[partition] = end
        else:
            offsets = translation.offsets(partition)
            logs[partition] = Log(
                offsets.to_source(start.offset),
                offsets.to_source(end.offset),
                end_there=end.offset,
                start_there=start.offset,
            )
    return Bounds(logs, refusals)


async def group_offsets(
    cluster: KafkaCluster, group: Group, *, stable: bool = False
) -> dict[TopicPartition, Committed]:
    """The committed offsets of a group; `stable` as for `committed_offsets`.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    if group.kind == SHARE:
        return await start_offsets(cluster, group.name)
    return await committed_offsets(cluster, group.name, stable=stable)


async def destination_offsets(
    destination: KafkaCluster, group: Group, translation: Translation = SAME
) -> dict[TopicPartition, Committed]:
    """What a group has committed on the destination, by the source's partition, as it is there.

    Raises:
        Retriable, UserError: see `group_offsets`.
    """
    return translation.from_destination(await group_offsets(destination, group))


async def read_offsets(
    source: KafkaCluster,
    destination: KafkaCluster,
    group: Group,
    translation: Translation = SAME,
    *,
    copy: Group | None = None,
    stable: bool = False,
) -> GroupOffsets:
    """Read the offsets of a group in both clusters.

    The destination is read first, so that its copies are never ahead of the source's offsets.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        group: the group on the source.
        translation: where the partitions and offsets are on the destination.
        copy: the destination's group of this name, where its kind may be another one.
        stable: on the source; as for `committed_offsets`.

    Raises:
        Retriable, UserError: see `group_offsets`.
    """
    copies = await destination_offsets(destination, copy or group, translation)
    committed = {
        partition: at
        for partition, at in (await group_offsets(source, group, stable=stable)).items()
        if not is_reported(at.metadata)
    }
    return compared_offsets(copies, committed, translation)


def compared_offsets(
    copies: Mapping[TopicPartition, Committed],
    committed: Mapping[TopicPartition, Committed],
    translation: Translation,
    recreated: Collection[str] = (),
) -> GroupOffsets:
    """A group's offsets in both clusters.

    Args:
        copies: what it has committed on the destination (`destination_offsets`).
        committed: what it has committed on the source.
        translation: where the partitions and offsets are on the destination.
        recreated: topics whose offsets in shared partitions are about other records.
    """
    joined, unplaced = in_shared(committed, translation, recreated)
    untranslated = translation.untranslated(
        {partition: at.offset for partition, at in joined.items()}
    )
    translated = {
        partition: Committed(
            translation.offsets(partition).lowest(at.offset),
            at.metadata if translation.keeps_offsets(partition) else "",
            at.leader_epoch,
        )
        for partition, at in joined.items()
        if partition not in untranslated
    }
    return GroupOffsets(
        copies, translated, untranslated.union(unplaced), unplaced, committed=committed
    )


def in_shared(
    committed: Mapping[TopicPartition, Committed],
    translation: Translation,
    recreated: Collection[str] = (),
) -> tuple[dict[TopicPartition, Committed], dict[TopicPartition, SharedPlace]]:
    """A group's offsets with one for those that share a partition, and those that have none.

    It has no metadata: what an application has committed is about one of the source's partitions.

    Args:
        committed: what it has committed on the source.
        translation: where the partitions and offsets are on the destination.
        recreated: topics whose offsets are about other records than what was copied.
    """
    offsets = {partition: at.offset for partition, at in committed.items()}
    places = {
        key: translation.shared[key].place(offsets, recreated)
        for key in {translation.key(partition) for partition in committed}
        if key in translation.shared
    }
    joined = {p: at for p, at in committed.items() if translation.key(p) not in places}
    joined |= {
        key: Committed(place.lowest)
        for key, place in places.items()
        if place.lowest is not None and not place.lacks
    }
    return joined, {key: place for key, place in places.items() if place.lacks}
