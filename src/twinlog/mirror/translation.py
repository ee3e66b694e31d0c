"""Where the partitions and offsets of a mirror's source are on its destination.

All that compares both clusters (lag, readiness, switchover, verify, group offsets) counts in the
source's names and offsets, and translates what it reads from the destination and writes there. For
a mirror of kind `exact` both are the same (`SAME`). An engine that renames topics, or whose records
get other offsets, has a translation of its own.

A partition of the destination that several source partitions are copied to has no offset of the
source. What concerns groups counts there in the destination's own offsets (`joined`).
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, TypeVar

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.offset_runs import OffsetRuns
from twinlog.mirror.shared_partitions import Feeder, JoinedPartition

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
    settled: frozenset[TopicPartition] = frozenset()
    """Partitions of the source whose map had all that was sent when it was read."""
    shared: Mapping[TopicPartition, JoinedPartition] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """The destination's partitions that several source partitions are copied to, or may be, by the
    first of these (`with_shared`)."""
    keys: Mapping[TopicPartition, TopicPartition] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """That first one, by each of these."""

    def with_shared(
        self,
        ends: Mapping[TopicPartition, int],
        names: Mapping[TopicPartition, TopicPartition],
        not_begun: Container[TopicPartition],
        known_before: Container[str] = (),
        *,
        unread: Collection[str] = (),
    ) -> "Translation":
        """The same, with the partitions of the destination that several of the source share.

        While some topics cannot be read, that is each of them.

        Args:
            ends: the destination's log ends, read before the maps.
            names: the destination's partition of each of the source's, read after the maps.
            not_begun: partitions of the source of which nothing was sent, if they have no map.
            known_before: topics of the source of which former ones may have been copied.
            unread: topics of the source that may be copied anywhere, as they cannot be read.
        """
        sources, later = _by_name(self.names), _by_name(names)
        both = _by_name({**self.names, **names})
        shared = {
            min(partitions): JoinedPartition(
                remote=remote,
                feeders={one: self._feeder(one, not_begun, known_before) for one in partitions},
                end=ends.get(remote) if sources.get(remote) == later.get(remote) else None,
                unread=frozenset(unread),
            )
            for remote, partitions in both.items()
            if len(partitions) > 1 or unread
        }
        keys = {partition: key for key, one in shared.items() for partition in one.feeders}
        return replace(self, shared=shared, keys=keys)

    def _feeder(
        self,
        partition: TopicPartition,
        not_begun: Container[TopicPartition],
        known_before: Container[str],
    ) -> Feeder:
        offsets = self.maps.get(partition)
        return Feeder(
            offsets=offsets if isinstance(offsets, OffsetRuns) else None,
            begin=self.begins.get(partition, 0),
            settled=partition in (not_begun if offsets is None else self.settled),
            lost=partition in self.lost,
            passed=partition in self.passed,
            known_before=partition.topic in known_before,
        )

    def joined(self) -> "Translation":
        """A translation that has one partition for those that share one of the destination's.

        It is the first one of the source's (`key`), and its offsets are the destination's.
        """
        feeders = self.keys.keys()

        def without(values: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
            return {key: value for key, value in values.items() if key not in feeders}

        return replace(
            self,
            names={**without(self.names), **{k: one.remote for k, one in self.shared.items()}},
            maps={**without(self.maps), **dict.fromkeys(self.shared, _SAME_OFFSETS)},
            unknown=self.unknown - feeders,
            begins=without(self.begins),
            lost=self.lost - feeders,
            passed=self.passed - feeders,
            settled=self.settled - feeders,
        )

    def of_topics(self, topics: Container[str]) -> "Translation":
        """The part of these topics of the source; what they share stays whole."""
        values = {name: value for name, value in self.names.items() if name.topic in topics}
        maps = {name: value for name, value in self.maps.items() if name.topic in topics}
        unknown = frozenset(name for name in self.unknown if name.topic in topics)
        shared = {
            key: one
            for key, one in self.shared.items()
            if any(topic in topics for topic in one.topics)
        }
        keys = {partition: key for key, one in shared.items() for partition in one.feeders}
        return replace(self, names=values, maps=maps, unknown=unknown, shared=shared, keys=keys)

    def key(self, partition: TopicPartition) -> TopicPartition:
        """The partition that a source's counts as: another one if they share a partition."""
        return self.keys.get(partition, partition)

    def topics(self, partition: TopicPartition) -> frozenset[str]:
        """The source's topics whose records the copy of a partition has, or will have."""
        shared = self.shared.get(partition)
        return frozenset({partition.topic}) if shared is None else shared.topics

    def copied_topics(self, partition: TopicPartition) -> frozenset[str]:
        """Those of `topics` of which something was copied, or may have been."""
        shared = self.shared.get(partition)
        return frozenset({partition.topic}) if shared is None else shared.copied_topics

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

    def keeps_offsets(self, partition: TopicPartition) -> bool:
        """Whether each record of a source's partition has the same offset on the destination."""
        return self.offsets(partition) is _SAME_OFFSETS

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


def _by_name(
    names: Mapping[TopicPartition, TopicPartition],
) -> dict[TopicPartition, set[TopicPartition]]:
    """The source's partitions, by the destination's."""
    sources: defaultdict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for partition, name in names.items():
        sources[name].add(partition)
    return sources


SAME = Translation()
