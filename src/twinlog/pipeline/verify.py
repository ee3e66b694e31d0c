"""Compares a mirror's two logs, batch by batch, as a Spark job.

Each task reads a stretch of a partition from both clusters and compares what read_committed
consumers see there (core/compare.py). Where both hold the same batch, its bytes are compared and
no record is decoded; where the mirror has merged or re-encoded, the records are.

What is compared is `[start, end)`: from the later of both log starts to the earlier of the
source's last stable offset and the destination's end. A destination that begins later than the
source lacks records, which is a difference; one that ends earlier is behind, which is said.

On a compacted topic the two cleaners run at different times. A record that one side lacks is no
difference where that side has a later record of the same key, or where it is a tombstone: the
cleaner was allowed to take it. Such a partition is one task, which remembers its keys.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.config import parse_config, parse_source
from twinlog.core.compare import MISSING, Difference, compare
from twinlog.core.errors import CorruptBatch, PartitionFailed
from twinlog.core.plan import Data, Gap, Piece, plan_sound
from twinlog.core.records import decode, raw_records
from twinlog.core.types import Offset, TopicPartition
from twinlog.pipeline.kafka import KafkaSource
from twinlog.pipeline.ports import Bounds
from twinlog.pipeline.reading import answers

STRETCH: Final = 1_000_000
"""Offsets of one task, where the topic is not compacted."""
MAX_DIFFERENCES: Final = 100
"""Differing ranges of one stretch that are named; more are counted as one."""


class Stretch(NamedTuple):
    """Offsets `[start, end)` of a partition, for one task."""

    partition: TopicPartition
    start: int
    end: int
    compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """One Spark task: how to reach both clusters, and what to compare."""

    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)
    stretches: Sequence[Stretch]


class Differs(NamedTuple):
    """A range that differs."""

    partition: TopicPartition
    start: int
    end: int
    reason: str


class Compared(NamedTuple):
    """What a task found in one stretch."""

    stretch: Stretch
    records: int
    differences: tuple[Differs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What of a partition can be compared, and what cannot."""

    partition: TopicPartition
    start: int
    end: int
    behind: int
    """Offsets that the destination does not have yet."""
    differences: tuple[Differs, ...]
    """What the bounds alone show."""


def extent(partition: TopicPartition, source: Bounds, destination: Bounds) -> Extent:
    """What of a partition is to be compared.

    Args:
        partition: which.
        source: the source's bounds.
        destination: the destination's.
    """
    for side, bounds in (("source", source), ("destination", destination)):
        if bounds.error:
            raise PartitionFailed(
                f"the {side}'s bounds cannot be read",
                topic=partition.topic,
                partition=partition.partition,
                code=bounds.error,
            )
    differences = []
    if destination.start > source.start and destination.start > 0:
        upto = min(destination.start, source.last_stable)
        differences.append(
            Differs(partition, source.start, upto, "the destination's log begins later")
        )
    if destination.high_watermark > source.last_stable:
        differences.append(
            Differs(
                partition,
                source.last_stable,
                destination.high_watermark,
                "beyond what the source has decided",
            )
        )
    end = min(source.last_stable, destination.last_stable)
    start = min(max(source.start, destination.start), end)
    behind = max(source.last_stable - max(destination.high_watermark, source.start), 0)
    return Extent(
        partition=partition, start=start, end=end, behind=behind, differences=tuple(differences)
    )


def stretches(extents: Iterable[Extent], compacted: Mapping[str, bool]) -> list[Stretch]:
    """Cut extents into what one task compares at a time."""
    found = []
    for one in extents:
        whole = compacted[one.partition.topic]
        step = max(one.end - one.start, 1) if whole else STRETCH
        found += [
            Stretch(one.partition, start, min(start + step, one.end), whole)
            for start in range(one.start, one.end, step)
        ]
    return found


def verify_task(task: VerifyTask) -> list[Compared]:
    """Compare some stretches: the body of a Spark task."""
    return asyncio.run(_verify(task))


async def _verify(task: VerifyTask) -> list[Compared]:
    ours = parse_config(task.destination).config
    theirs = parse_source(task.source, ours.grants).config
    async with (
        KafkaCluster(theirs, name="source") as source,
        KafkaCluster(ours, name="destination") as destination,
    ):
        comparison = Comparison(KafkaSource(source), KafkaSource(destination))
        return [await comparison.compare(stretch) for stretch in task.stretches]


class Comparison:
    """Reads both sides in step, as consumers.

    A destination that was a source before a failback has aborted transactions of its own.
    """

    def __init__(self, source: KafkaSource, destination: KafkaSource) -> None:
        self._source = source
        self._destination = destination

    async def compare(self, stretch: Stretch) -> Compared:
        """Compare one stretch."""
        topics = {stretch.partition.topic}
        await asyncio.gather(self._source.leaders(topics), self._destination.leaders(topics))
        keys = _Keys() if stretch.compacted else None
        found: list[Difference] = []
        records = 0
        at = Offset(stretch.start)
        while at < stretch.end:
            try:
                theirs, ours = await asyncio.gather(
                    self._read(self._source, stretch.partition, at, stretch.end),
                    self._read(self._destination, stretch.partition, at, stretch.end),
                )
            except CorruptBatch as error:
                corrupt = f"cannot be compared: {error.message}"
                found.append(Difference(at, Offset(stretch.end), corrupt))
                break
            upto = Offset(min(theirs[-1].end, ours[-1].end, stretch.end))
            found += compare(theirs, ours, at, upto)
            records += sum(
                min(p.end, upto) - p.start for p in theirs if isinstance(p, Data) and p.start < upto
            )
            if keys is not None:
                keys.add(theirs, ours, upto)
            at = upto
        if keys is not None:
            found = [difference for difference in found if not keys.explain(difference)]
        named = [Differs(stretch.partition, *d) for d in found[:MAX_DIFFERENCES]]
        if len(found) > MAX_DIFFERENCES:
            rest = found[MAX_DIFFERENCES:]
            named.append(
                Differs(
                    stretch.partition,
                    rest[0].start,
                    rest[-1].end,
                    f"{len(rest)} more ranges differ",
                )
            )
        return Compared(stretch, records, tuple(named))

    async def _read(
        self,
        side: KafkaSource,
        partition: TopicPartition,
        start: Offset,
        end: int,
    ) -> list[Piece]:
        """What stands from `start` on, at least one piece, none of it beyond `end`'s batch."""
        async for answer in answers(side, partition, start):
            pieces = plan_sound(answer.records, start, answer.aborted).pieces
            if pieces:
                return pieces
            if answer.last_stable > start or answer.high_watermark > start:
                # Nothing is left here: the cleaner has taken the end of the log.
                return [Gap(start, Offset(end), seen=False)]
        raise AssertionError("`answers` ends with an exception")


class _Keys:
    """The last offset of each key on both sides, and the records that only one side has."""

    def __init__(self) -> None:
        self._theirs: dict[bytes | None, int] = {}
        self._ours: dict[bytes | None, int] = {}
        self._tombstones: set[int] = set()
        self._key_at: dict[int, bytes | None] = {}

    def add(self, theirs: Iterable[Piece], ours: Iterable[Piece], end: int) -> None:
        """Remember the keys of both sides up to `end`."""
        for pieces, last in ((theirs, self._theirs), (ours, self._ours)):
            for piece in pieces:
                if isinstance(piece, Data):
                    self._add(piece, last, end)

    def _add(self, data: Data, last: dict[bytes | None, int], end: int) -> None:
        for raw in raw_records(data.header, data.records):
            if raw.offset < end:
                record = decode(raw)
                last[record.key] = max(raw.offset, last.get(record.key, -1))
                self._key_at[raw.offset] = record.key
                if record.value is None:
                    self._tombstones.add(raw.offset)

    def explain(self, difference: Difference) -> bool:
        """Whether the destination's cleaner may have made this difference.

        What the source's has taken shows as a gap that was not seen, which is none. A record that
        differs was altered by somebody, whatever came after it.
        """
        return difference.reason == MISSING and all(
            self._cleaned(offset) for offset in range(difference.start, difference.end)
        )

    def _cleaned(self, offset: int) -> bool:
        if offset not in self._key_at:
            return False
        key = self._key_at[offset]
        superseded = min(self._theirs.get(key, -1), self._ours.get(key, -1)) > offset
        return superseded or offset in self._tombstones
