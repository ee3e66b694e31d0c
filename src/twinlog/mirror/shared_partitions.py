"""One offset of a group in a remote partition that several source partitions are copied to.

Each of these *feeders* has an exact map of its own (offset_runs.py), and the group has an offset in
each of them. On the destination it can have one only:

    a-0       0  1  2  | 3  4           the group has read what is left of |
    b-0       0  | 1  2
    remote    a0 a1 b0 a2 b1 a3 b2 a4
                          ^             the lowest of the places: nothing unread is before it

What is behind it and was read already, is read again (here none; a group that has read all of `a`
and nothing of `b` since last week reads a week of `a` again).

**Where a group is in a feeder,** with `reach`, the highest end of all feeders' maps, but no more
than the remote log end that was read before all maps:

    the group's offset   what is copied of the feeder       place
    -------------------  ---------------------------------  ----------------------------------------
    in the map           a record there or behind it        where that one is
    behind the map       all that was sent is in the map    `reach`: what is copied next is at the
                                                            log end or behind
    behind the map       perhaps more was sent              the end of the map
    none                 nothing, by evidence               `reach`, for the same reason (not of a
                                                            topic that was recreated: records of the
                                                            former one may be there)
    none                 something                          none: it may have read nothing of it
    below the map        the rest, by another program       none: where to is not known
    any                  the destination has lost records   none

The log end itself is no place: behind what this mirror has copied there may be records of another
mirror, or of applications, which the group has not read.

All places have to be known: otherwise the group may skip what the others hide. Then none is raised,
and one that was committed before is lowered to the *floor*, if the group was rewound: the lowest
place of a record that is in a map. The others of the table say nothing about a rewind. They may dip
below what was committed (while a record is being copied, say), and nothing would raise it again.
Where the mirror has gone on without lost copies, where its map begins and ends is a floor, too:
what was committed before may be behind what is copied since.

Offsets of a topic that was recreated are about other records than its map, so they are not known.
Nor is a place known in any partition while the mirror has a topic that cannot be read: it may be
one more feeder.

A feeder that is added later is no exception. Its records land behind the end of the log, so behind
all offsets that were committed before. From its first record on the group needs an offset in it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.offset_runs import OffsetRuns
from twinlog.text import few


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeder:
    """What is known of a source partition that is copied to a shared one."""

    offsets: OffsetRuns | None = None
    """Its map; None: it has none."""
    begin: int = 0
    """Another program has copied what is below, and where to is not known."""
    settled: bool = False
    """Whether all that was sent before the map was read is in it; without a map, nothing was."""
    lost: bool = False
    """Whether the destination is known to have lost records of it."""
    passed: bool = False
    """Whether the mirror has gone on without such records."""
    known_before: bool = False
    """Whether the destination may have records of a former topic of this name."""

    @property
    def is_empty(self) -> bool:
        """Whether the destination has no record of it, by evidence."""
        copied = self.offsets is not None and not self.offsets.is_empty
        had_records = self.lost or self.passed or self.known_before
        return self.settled and not (copied or self.begin or had_records)

    @property
    def reach(self) -> int:
        """Behind the last known record of it on the destination; 0: none is known."""
        known = self.offsets is not None and not self.offsets.is_empty and not self.lost
        return self.offsets.end.destination if self.offsets is not None and known else 0

    def place(self, offset: int, reach: int) -> int | None:
        """Where a group with this offset goes on; None: not known (see the module).

        Args:
            offset: what the group has committed.
            reach: of all feeders; 0: none is known.
        """
        if self.is_empty:
            return reach or None
        if self.lost or offset < self.begin:
            return None
        if self.offsets is None:
            return (reach or None) if self.settled else None
        if not self.offsets.is_empty and offset < self.offsets.end.source:
            return self.offsets.to_destination(offset)
        known = self.offsets.end.destination
        if self.offsets.is_empty and not self.passed:
            # What is in front of where it began is of others.
            place = reach if self.settled else min(known, reach)
            return place if reach else None
        return reach if self.settled and reach else known

    def floor(self, offset: int) -> int | None:
        """Where a group with this offset has to go back to, wherever others are; None: nowhere."""
        if self.offsets is None or self.lost:
            return None
        if not self.passed and not self.begin <= offset < self.offsets.end.source:
            return None
        return self.offsets.to_destination(max(offset, self.begin))


class SharedPlace(NamedTuple):
    """Where a group goes on in a shared partition."""

    lowest: int | None
    """The lowest of its places in feeders where it has an offset, if all are known; otherwise the
    lowest floor. None: there is none."""
    feeder: TopicPartition | None
    """Whose place that is."""
    lacks: str
    """Why not all places are known; empty: they are, and nothing unread is before the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedPartition:
    """A destination's partition with records of several source partitions."""

    remote: TopicPartition
    feeders: Mapping[TopicPartition, Feeder] = field(default_factory=dict)
    """All of them, by the source's partition, also those that are paused, removed or FAILED."""
    end: int | None = None
    """The remote log end, read before all maps; None: it cannot be read, or the feeders have
    changed meanwhile, or were copied to different topics of this name."""
    unread: frozenset[str] = frozenset()
    """Topics of the mirror that cannot be read: each may be copied there, too."""

    @property
    def topics(self) -> frozenset[str]:
        """The source's topics."""
        return frozenset(partition.topic for partition in self.feeders)

    @property
    def copied_topics(self) -> frozenset[str]:
        """Those of them of which something was copied, or may have been."""
        return frozenset(p.topic for p, feeder in self.feeders.items() if not feeder.is_empty)

    @property
    def reach(self) -> int:
        """Behind the last record that the mirror is known to have copied; 0: none is known."""
        copied = max((feeder.reach for feeder in self.feeders.values()), default=0)
        return min(copied, self.end or 0)

    @property
    def _unread_text(self) -> str:
        """Why no place is known while topics cannot be read; empty: all can."""
        if not self.unread:
            return ""
        names = few(sorted(self.unread))
        return f"topics of the flow that cannot be read may be copied there, too: {names}"

    def place(
        self, committed: Mapping[TopicPartition, int], recreated: Collection[str] = ()
    ) -> SharedPlace:
        """Where a group goes on.

        Args:
            committed: its offsets on the source, by partition; of others, too.
            recreated: topics that are not those which were copied, or may not be.
        """
        if self.end is None:
            text = f"the log of {self.remote} cannot be read, or its source partitions have changed"
            return SharedPlace(None, None, self._unread_text or text)
        places: list[tuple[int, TopicPartition]] = []
        floors: list[tuple[int, TopicPartition]] = []
        others: list[TopicPartition] = []
        missing: list[TopicPartition] = []
        unknown: list[TopicPartition] = []
        for partition, feeder in sorted(self.feeders.items()):
            offset = committed.get(partition)
            if partition.topic in recreated and not feeder.is_empty:
                others.append(partition)
                continue
            if offset is None:
                missing += [] if feeder.is_empty else [partition]
                continue  # what is empty is at the reach, where nothing is lower
            floor = feeder.floor(offset)
            if floor is not None and floor <= self.end:
                floors.append((floor, partition))
            place = feeder.place(offset, self.reach)
            if place is None:
                unknown.append(partition)
            else:
                places.append((min(place, self.end), partition))
        texts = [f"{few(others)} was recreated or deleted on the source"] if others else []
        texts += [f"it has no offset of {few(missing)}"] if missing else []
        texts += [f"its offset of {few(unknown)} is not translated"] if unknown else []
        texts += [self._unread_text] if self.unread else []
        known = floors if texts else places
        if not known:
            return SharedPlace(None, None, "; ".join(texts))
        return SharedPlace(*min(known), "; ".join(texts))
