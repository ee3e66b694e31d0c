"""Where the partitions and offsets of a mirror's source are on its destination.

All that compares both clusters (lag, readiness, switchover, verify, group offsets) counts in the
source's names and offsets, and translates what it reads from the destination and writes there. For
a mirror of kind `exact` both are the same (`SAME`). An engine that renames topics, or whose records
get other offsets, has a translation of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from twinlog.kafka.types import TopicPartition

T = TypeVar("T")


class OffsetMap(Protocol):
    """The offsets of one partition.

    Both functions grow with their argument, and the second one inverts the first one.
    """

    def to_destination(self, offset: int) -> int:
        """Where the record of this offset of the source, or the next one, is or will be."""
        ...

    def to_source(self, offset: int) -> int:
        """The source's offset up to which a destination holds everything that ends here.

        The result is 0 or more: a destination may begin with offsets that no record is in.
        """
        ...

    def lowest(self, offset: int) -> int:
        """The lowest offset of the source from which the same records are left to read there."""
        ...


class SameOffsets:
    """The offsets of an exact mirror."""

    def to_destination(self, offset: int) -> int:
        """The same offset."""
        return offset

    def to_source(self, offset: int) -> int:
        """The same offset."""
        return offset

    def lowest(self, offset: int) -> int:
        """The same offset."""
        return offset


_SAME_OFFSETS = SameOffsets()


@dataclass(frozen=True, slots=True)
class Translation:
    """Names and offsets of a mirror's partitions; what is not listed is the same on both sides."""

    names: Mapping[TopicPartition, TopicPartition] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """The destination's partition of a source's."""
    maps: Mapping[TopicPartition, OffsetMap] = field(default_factory=lambda: MappingProxyType({}))
    """By the source's partition."""
    unknown: frozenset[TopicPartition] = frozenset()
    """Partitions of the source of which nothing is mapped yet: their offsets cannot be translated.
    """
    begins: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))
    """By the source's partition: another program has copied what is below, and where to is not
    known, so lower offsets cannot be translated."""
    lost: frozenset[TopicPartition] = frozenset()
    """Partitions of the source whose copy is known to have lost records: the map names offsets at
    which others may be now."""
    passed: frozenset[TopicPartition] = frozenset()
    """Partitions of the source whose copy has lost records that the mirror has gone on without. The
    map is right, and offsets that it gave before the loss may be too high."""
    positions: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))
    """By the source's partition, the offset below which everything was copied or has no copy. It
    may be above the end of the map: behind a transaction marker, say."""

    def translates(self, partition: TopicPartition, offset: int) -> bool:
        """Whether it is known where this offset of a mapped partition is on the destination."""
        return offset >= self.begins.get(partition, 0)

    def untranslated(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """The partitions of which it is not known where these offsets are on the destination."""
        nowhere = self.unknown | self.lost
        return frozenset(
            partition
            for partition, offset in offsets.items()
            if partition in nowhere or not self.translates(partition, offset)
        )

    def keeps_place(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the lowest offset (`OffsetMap.lowest`) is the same place of a group.

        It is another one behind what is copied, and in front of where the map begins.
        """
        lowest = self.offsets(partition).lowest(offset)
        return lowest <= offset <= self.positions.get(partition, offset)

    def name(self, partition: TopicPartition) -> TopicPartition:
        """The destination's partition of a source's."""
        return self.names.get(partition, partition)

    def topic(self, topic: str) -> str:
        """The destination's topic of a source's."""
        return self.name(TopicPartition(topic, 0)).topic

    def offsets(self, partition: TopicPartition) -> OffsetMap:
        """The offsets of a source's partition."""
        return self.maps.get(partition, _SAME_OFFSETS)

    def by_source(
        self, partitions: Iterable[TopicPartition], values: Mapping[TopicPartition, T]
    ) -> dict[TopicPartition, T]:
        """The values of these of the source's partitions, by these."""
        names = {partition: self.name(partition) for partition in partitions}
        return {partition: values[name] for partition, name in names.items() if name in values}

    def from_destination(self, values: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        """The values of the destination's partitions, by the source's.

        A partition of the destination that has the name of a source's, and is not its copy, is
        left out.
        """
        sources = {name: partition for partition, name in self.names.items()}
        return {
            sources.get(name, name): value
            for name, value in values.items()
            if name in sources or name not in self.names
        }


SAME = Translation()
