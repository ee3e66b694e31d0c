"""Group offsets follow their topics (KIP-545, KIP-1279 "Consumer Group Offset Synchronization").

A mirrored record has the same offset in both clusters. So a committed offset is copied as it is,
and so is the offset at which a partition starts for a share group (KIP-932). This module has the
rules; group_offsets.py applies them to what group_readings.py reads.

What may happen to an offset on the destination depends on its committer. It is the *mirror's own*
while it is exactly what the mirror committed last, or was going to commit (offset, metadata, no
leader epoch; group_records.py remembers both). Otherwise the group or an operator has committed it.
Offsets of the *destination* are compared for that, also where it has others than the source (a
flow). Translated ones would not tell: all offsets between two copied records, and all behind the
last one, are one offset of the source. A group that reads records of other producers there moves
between those.

    on the destination      the source's is higher        the source's is lower
    ----------------------  ----------------------------  ------------------------------------------
    no offset               copied                        (copied)
    the mirror's own        copied                        copied: the group was rewound, and would
                                                          skip records after a failover otherwise
    the group's own         copied, once the group has    kept (KIP-545: the group must not read
                            been quiet for a while        again what it has read there), and
                                                          `GROUP_SKIPS` in readiness

An offset is copied only

    while                                       because
    ------------------------------------------  ---------------------------------------------------
    the group has no member on the destination  a group with members commits by itself
    it has been quiet there for `quiet` seconds a consumer that restarts has no member for a moment
    the partition is MIRRORING, and still       after a failover its readers commit by themselves
      wanted when the commit is sent
    the source's topic is the mirrored one      a recreated topic has other records at its offsets

An offset beyond the log end is committed as the log end, and copied again by the next check. One
below the log start is committed as the log start. Neither has the metadata of the original, which
may describe that very offset. Where the destination has other offsets (a flow), no offset has it:
Confluent's Parallel Consumer keeps there which records behind the offset it has finished, by their
distance, and would skip those that have it here. An offset is limited there by the end and the
beginning of what is copied, too, and by its log start in its own offsets: behind the last copy, a
log may begin with records of other producers or markers, and a consumer in front of it would begin
by `auto.offset.reset`. The leader epoch is -1.

An offset below a flow's map has no known place, so it is not copied. The mirror's own offset, which
was committed before, stays and is kept from expiring, unless it may be too high (`at_starts`).

**Races.** Kafka has no conditional commit. A commit of a client that is no member is refused while
the group has members (25 UNKNOWN_MEMBER_ID), so a group that becomes active after the check is not
disturbed. One that becomes active, commits and leaves between the last read of its offsets and the
commit (a few ms; `COMMIT_S` at most) is overwritten, and so is what a switchover copies in that
time. A commit is sent only if a second reading equals the first one, and a lowered offset loses no
record: the group reads some again.

What a share group has acquired or acknowledged beyond its start is no offset, and brokers report
the start late (tests/end_to_end/test_groups.py): on the destination the group gets some records
again. Brokers before 4.1 have no share groups to copy.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from twinlog.kafka.groups.offsets import NO_EPOCH, Committed
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.shared_partitions import SharedPlace
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.group_records import (
    JOINED,
    NO_OFFSET,
    GroupMemory,
    PartitionMemory,
    metadata_checksum,
)
from twinlog.sync.group_readings import Log


def partition_memories(
    memory: GroupMemory | None,
    translation: Translation,
    destination: Mapping[TopicPartition, Committed] = MappingProxyType({}),
) -> Mapping[TopicPartition, PartitionMemory]:
    """What is remembered, without what is not in offsets of the destination.

    Of partitions that share one of the destination's, it counts as the first one's (`joined`), also
    what was remembered when another one was the first, or the only one. What the source had then is
    no offset of the destination (`JOINED`). If several are remembered of one, as by an earlier
    version, the one that is there counts.

    Args:
        memory: what is remembered of the group.
        translation: where the partitions and offsets are on the destination.
        destination: what the group has committed there (`destination_offsets`).
    """
    if memory is None or not translation.maps:
        return {} if memory is None else memory.partitions
    memories: dict[TopicPartition, PartitionMemory] = {}
    for partition, entry in sorted(memory.partitions.items()):
        key = translation.key(partition)
        known = entry.translated or key not in translation.maps
        if (entry.translated == JOINED) != (key in translation.shared):
            entry = entry._replace(source=NO_OFFSET)  # noqa: PLW2901
        entry = entry if known else PartitionMemory(entry.source, deleted=entry.deleted)  # noqa: PLW2901
        at = destination.get(key)
        if (
            key not in memories
            or not memories[key].may_be_copied
            or (at is not None and _is_own(at, entry) and not _is_own(at, memories[key]))
        ):
            memories[key] = entry
    return memories


def _is_own(committed: Committed, entry: PartitionMemory) -> bool:
    """Whether the mirror has committed this, or may have."""
    return entry.is_own(committed.offset, metadata_checksum(committed.metadata))


def own_offsets(
    destination: Mapping[TopicPartition, Committed],
    memory: GroupMemory | None,
    translation: Translation = SAME,
) -> frozenset[TopicPartition]:
    """The partitions whose offset on the destination is the mirror's own.

    Args:
        destination: what the group has committed there (`destination_offsets`).
        memory: what is remembered of the group.
        translation: where the partitions and offsets are on the destination.
    """
    memories = partition_memories(memory, translation, destination)
    return frozenset(
        partition
        for partition, committed in destination.items()
        if committed.leader_epoch == NO_EPOCH
        and (entry := memories.get(partition)) is not None
        and _is_own(committed, entry)
    )


def moved_by_others(
    destination: Mapping[TopicPartition, Committed],
    own: Collection[TopicPartition],
    memory: GroupMemory | None,
    translation: Translation = SAME,
) -> bool:
    """Whether another client has changed an offset on the destination since the last check.

    An offset of another client that is seen for the first time may be new. Arguments as for
    `own_offsets`.
    """
    memories = partition_memories(memory, translation, destination)
    return any(
        committed.offset != memories.get(partition, PartitionMemory()).other
        for partition, committed in destination.items()
        if partition not in own
    )


def due_offsets(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
    own: Collection[TopicPartition] = frozenset(),
) -> dict[TopicPartition, Committed]:
    """The offsets to be committed on the destination for one group, as offsets of the source.

    Args:
        source: what it has committed on the source.
        destination: what it has committed on the destination (`in_source_offsets`).
        logs: the partitions whose offsets follow, with their logs on the destination.
        own: those whose offset on the destination is the mirror's own.
    """
    offsets = {}
    for partition, committed in source.items():
        if partition not in logs:
            continue
        offset = max(logs[partition].start, min(committed.offset, logs[partition].end))
        target = Committed(offset, committed.metadata if offset == committed.offset else "")
        copy = destination.get(partition)
        if (
            copy is None
            or copy.offset < offset
            or (partition in own and _follows_back(committed, target, copy))
        ):
            offsets[partition] = target
    return offsets


def _follows_back(source: Committed, target: Committed, copy: Committed) -> bool:
    """Whether the mirror's own offset is to be lowered, or to get other metadata.

    The source's own offset has to be lower: a log end that is lower for a moment, after an
    election, does not count.
    """
    if target.offset == source.offset == copy.offset:
        return target.metadata != copy.metadata
    return max(source.offset, target.offset) < copy.offset


def in_destination_offsets(
    due: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
    own: Collection[TopicPartition],
    translation: Translation,
) -> dict[TopicPartition, Committed]:
    """What is committed of `due_offsets`, as offsets of the destination.

    Offsets of the source that differ may be one on the destination, and the other way round. So
    what would change nothing is left out, and an offset of another client is only raised. The
    place of the source's next record may be behind a log that an election has cut: a consumer
    there would begin by `auto.offset.reset`. The log's end is that place, too, and so is the log's
    start for one that is in front of it.

    Args:
        due: the offsets to be committed.
        destination: what the group has committed there (`destination_offsets`).
        logs: the partitions' logs on the destination.
        own: those whose offset there is the mirror's own.
        translation: where the partitions and offsets are on the destination.
    """
    offsets = {}
    for partition, at in due.items():
        offset = translation.offsets(partition).to_destination(at.offset)
        if (end := logs[partition].end_there) is not None:
            offset = min(offset, end)
        offsets[partition] = at._replace(offset=max(offset, logs[partition].start_there))
    return {
        partition: at
        for partition, at in offsets.items()
        if (copy := destination.get(partition)) is None
        or copy.offset < at.offset
        or (partition in own and copy != at)
    }


def remembered(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    own: Collection[TopicPartition],
    memory: GroupMemory | None,
    checked: Collection[TopicPartition] = (),
    *,
    unplaced: Collection[TopicPartition] = (),
    translation: Translation = SAME,
) -> dict[TopicPartition, PartitionMemory]:
    """What to remember of a group's partitions after a check.

    Args:
        source: what it has committed on the source, of the partitions that were checked.
        destination: what it has committed on the destination (`destination_offsets`), including
            the mirror's commits.
        own: those whose offset on the destination is the mirror's own.
        memory: what was remembered before; what it holds of other partitions stays as it is, also
            what was read on the source: they may be paused, or FAILED, at this check.
        checked: the partitions that were checked.
        unplaced: shared ones in which the group had no place.
        translation: where the partitions and offsets are on the destination.
    """
    previous = partition_memories(memory, translation, destination)
    result = {
        partition: entry._replace(source=NO_OFFSET, deleted=1) if partition in checked else entry
        for partition, entry in previous.items()
        if partition not in source and (partition not in checked or entry.may_be_copied)
    }
    for partition in unplaced:
        entry = previous.get(partition, PartitionMemory())
        result[partition] = entry._replace(source=NO_OFFSET, deleted=0, translated=JOINED)
    for partition, committed in source.items():
        copy = destination.get(partition)
        is_own = copy is not None and partition in own
        entry = PartitionMemory(
            source=committed.offset,
            copied=copy.offset if copy is not None and is_own else NO_OFFSET,
            metadata=metadata_checksum(copy.metadata) if copy is not None and is_own else 0,
            other=NO_OFFSET if copy is None or is_own else copy.offset,
            translated=(
                JOINED if partition in translation.shared else int(partition in translation.maps)
            ),
        )
        # What was sent may land until it is known to have landed.
        before = previous.get(partition, entry)
        if (before.sent, before.sent_metadata) != (entry.copied, entry.metadata):
            entry = entry._replace(sent=before.sent, sent_metadata=before.sent_metadata)
        result[partition] = entry
    return result


def in_source_offsets(
    committed: Mapping[TopicPartition, Committed],
    translation: Translation,
    source: Mapping[TopicPartition, Committed],
    own: Collection[TopicPartition],
    logs: Mapping[TopicPartition, Log],
) -> dict[TopicPartition, Committed]:
    """Offsets of the destination in those of the source, to be compared with the source's.

    An own one that was committed before the destination has lost copies may be higher than where
    the map has the source's offset since. All that is behind the map is one offset of the source,
    so it would seem equal, and the group would skip what is copied next. It is above the source's.
    One in front of its log may seem equal, too. It is below the log's start. So may one in front of
    where the map begins, as one that MirrorMaker 2 has committed. It is below that.

    Args:
        committed: on the destination, by the source's partition.
        translation: where the partitions and offsets are on the destination.
        source: what the group has committed on the source.
        own: those whose offset on the destination is the mirror's own.
        logs: the partitions' logs on the destination; those that are missing are not known.
    """
    translated = {
        partition: committed[partition]._replace(offset=offsets.lowest(offsets.to_source(at)))
        for partition, offsets in translation.maps.items()
        if partition in committed
        for at in [committed[partition].offset]
    }
    for partition in translation.passed & translated.keys() & source.keys() & set(own):
        copy, offset = translated[partition], source[partition].offset
        if committed[partition].offset > translation.offsets(partition).to_destination(offset):
            translated[partition] = copy._replace(offset=max(copy.offset, offset + 1))
    # From 0 on a recreated topic is copied: what is in front is of the former one, unread.
    starts = [
        (partition, translation.offsets(partition).to_destination(begin), begin)
        for partition, begin in translation.begins.items()
        if begin > 0
    ]
    starts += [(partition, log.start_there, log.start) for partition, log in logs.items()]
    for partition, place, start in starts:
        if partition in translated and committed[partition].offset < place:
            below = min(translated[partition].offset, start - 1)
            translated[partition] = translated[partition]._replace(offset=below)
    return {**committed, **translated}


def at_starts(
    destination: Mapping[TopicPartition, Committed],
    committed: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
    memory: GroupMemory | None,
    translation: Translation,
) -> dict[TopicPartition, Committed]:
    """What own offsets become of which the source's is below the map, if they cannot stay.

    Where the source's is, the map does not say. What was committed before may be too high:

        the group was rewound                it is set back to the start of the log
        lost copies were gone on without     it is set back to the start of the map, if it is behind
                                             that: what follows there was not read

    Otherwise it stays where it was when it was translated last: the group has gone on since then,
    or stands there. No offset stays in front of the log: a consumer would begin by
    `auto.offset.reset`, and `latest` skips all that is left.

    Args:
        destination: what the group has committed there (`destination_offsets`).
        committed: what it has committed on the source, as it is there, of partitions that are not
            translated.
        logs: the partitions whose offsets follow, with their logs on the destination.
        memory: what is remembered of the group.
        translation: where the partitions and offsets are on the destination.
    """
    below = committed.keys() & translation.begins.keys() - translation.lost - translation.unknown
    known = {p: destination[p] for p in below & destination.keys() & logs.keys()}
    memories = partition_memories(memory, translation, known)
    starts: dict[TopicPartition, Committed] = {}
    for partition in own_offsets(known, memory, translation):
        at, log_start = known[partition].offset, logs[partition].start_there
        limit = at
        if _may_be_rewound(committed[partition], memories[partition]):
            limit = log_start
        elif partition in translation.passed:
            begin = translation.begins[partition]
            limit = translation.offsets(partition).to_destination(begin)
        if (place := max(min(at, limit), log_start)) != at:
            starts[partition] = Committed(place)
    return starts


def _may_be_rewound(committed: Committed, entry: PartitionMemory) -> bool:
    """Whether the source's offset is lower than when it was translated last, as far as is known.

    What is remembered stays the same while the offset is not translated. Nothing is remembered if
    the source had none in between: the group may begin anew.
    """
    return entry.source == NO_OFFSET or committed.offset < entry.source


def at_floors(
    destination: Mapping[TopicPartition, Committed],
    unplaced: Mapping[TopicPartition, SharedPlace],
    logs: Mapping[TopicPartition, Log],
    memory: GroupMemory | None,
    translation: Translation,
) -> dict[TopicPartition, Committed]:
    """Where own offsets in shared partitions are set back to, though not all places are known.

    A group that was rewound in one of the source's partitions would skip what it is to read again.

    Args:
        destination: what the group has committed there (`destination_offsets`).
        unplaced: what is known of its places.
        logs: the partitions whose offsets follow, with their logs on the destination.
        memory: what is remembered of the group.
        translation: where the partitions and offsets are on the destination.
    """
    floors = {
        partition: max(place.lowest, logs[partition].start)
        for partition, place in unplaced.items()
        if place.lowest is not None and partition in logs and partition in destination
    }
    own = own_offsets({p: destination[p] for p in floors}, memory, translation)
    return {p: Committed(floors[p]) for p in own if destination[p].offset > floors[p]}
