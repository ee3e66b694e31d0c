"""Where the records of a source's partition are, if they have other offsets on the destination.

An engine that does not keep offsets learns from each answer where its batch landed, and records it.
Records that follow each other on both sides are one *run*:

    source         10 11 12 (marker) 14 15 16 17          runs: source 10, destination 52, 3 records
    destination    52 53 54 55 56 (another's) 58 59             source 14, destination 55, 2 records
                                                                source 16, destination 58, 2 records

So a log without gaps, copied to a topic that nobody else writes to, is one run. Each transaction of
the source begins another run, since its marker is not copied. A run takes 3 to 6 bytes when it is
encoded: three varints, the offsets that are skipped before it on both sides, and its length.

    zigzag varint  source offsets that are skipped
    zigzag varint  destination offsets that are skipped
    zigzag varint  records

Both sides grow from run to run: a partition of the source has one sender at a time, and the broker
appends its batches in order (the sequence).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from twinlog.kafka.errors import CorruptBatch, ProtocolError
from twinlog.kafka.log.records import decode_varint, encode_varint
from twinlog.kafka.types import Offset

_MAX_OFFSET: Final = (1 << 63) - 1


class Run(NamedTuple):
    """Records that follow each other on both sides."""

    source: Offset
    """The offset of the first one on the source."""
    destination: Offset
    """The offset of the first one on the destination."""
    length: int
    """How many they are; at least 1."""

    @property
    def source_end(self) -> Offset:
        """The source's offset behind the last one."""
        return Offset(self.source + self.length)

    @property
    def destination_end(self) -> Offset:
        """The destination's offset behind the last one."""
        return Offset(self.destination + self.length)


class Ends(NamedTuple):
    """Offsets of both sides up to which all is mapped."""

    source: Offset
    destination: Offset


class OffsetRuns:
    """The runs of a partition, in order (`OffsetMap`).

    Args:
        start: where the map begins: below it nothing is known.
    """

    def __init__(self, start: Ends) -> None:
        self._start = start
        self._runs: list[Run] = []

    @property
    def start(self) -> Ends:
        """Where the map begins."""
        return self._start

    @property
    def runs(self) -> list[Run]:
        """The runs, in order; neighbours are merged."""
        return self._runs

    @property
    def end(self) -> Ends:
        """Behind the last record that is mapped."""
        last = self._runs[-1] if self._runs else None
        return self._start if last is None else Ends(last.source_end, last.destination_end)

    def append(self, run: Run) -> None:
        """Add a run behind all others.

        Raises:
            ValueError: it has no record, or begins before the end of the last one on either side.
        """
        end = self.end
        if run.length < 1 or run.source < end.source or run.destination < end.destination:
            raise ValueError(f"{run} does not follow {end}")
        last = self._runs[-1] if self._runs else None
        if last is not None and (run.source, run.destination) == end:
            self._runs[-1] = last._replace(length=last.length + run.length)
        else:
            self._runs.append(run)

    def to_destination(self, offset: int) -> int:
        """Where the record of this offset is, or the next one that is mapped.

        Behind the last one it is the end of the map: whatever is copied later lands there or above.
        """
        index = bisect_right(self._runs, offset, key=lambda run: run.source) - 1
        if index >= 0 and offset < self._runs[index].source_end:
            run = self._runs[index]
            return run.destination + offset - run.source
        if index + 1 < len(self._runs):
            return self._runs[index + 1].destination
        return self.end.destination

    def to_source(self, offset: int) -> int:
        """The source's offset up to which a destination that ends here holds all that is copied."""
        index = bisect_right(self._runs, offset, key=lambda run: run.destination) - 1
        if index >= 0 and offset < self._runs[index].destination_end:
            run = self._runs[index]
            return run.source + offset - run.destination
        if index + 1 < len(self._runs):
            return self._runs[index + 1].source
        return self.end.source

    def lowest(self, offset: int) -> int:
        """The lowest offset of the source from which the same records are left to read there.

        It stays the same while the map grows: a group at the map's end is still there when the
        next record is copied, which may have left out offsets before it.
        """
        index = bisect_left(self._runs, offset, key=lambda run: run.source) - 1
        return self._start.source if index < 0 else min(offset, self._runs[index].source_end)


def landed_runs(
    sources: Iterable[tuple[Offset, Offset]], batches: Iterable[tuple[Offset, int]]
) -> list[Run]:
    """Where records are that were written in these batches, in order.

    Args:
        sources: the offsets `[start, end)` that they have on the source.
        batches: where each batch begins on the destination, and how many records it has; as many
            in all as there are source offsets.

    Raises:
        ValueError: there are more records than offsets, or fewer.
    """
    runs: list[Run] = []
    rest = iter(sources)
    start, end = Offset(0), Offset(0)
    for base, count in batches:
        place, left = base, count
        while left:
            while start == end:
                following = next(rest, None)
                if following is None:
                    raise ValueError(f"{left} records at {place} have no offset on the source")
                start, end = following
            length = min(left, end - start)
            runs.append(Run(start, place, length))
            start, place, left = Offset(start + length), Offset(place + length), left - length
    if start != end or any(first != last for first, last in rest):
        raise ValueError(f"records from source offset {start} on have landed nowhere")
    return runs


def encode_runs(start: Ends, runs: Iterable[Run]) -> bytes:
    """Runs that follow each other, the first of them at or behind `start`."""
    parts: list[bytes] = []
    source, destination = start
    for run in runs:
        parts += (
            encode_varint(run.source - source),
            encode_varint(run.destination - destination),
            encode_varint(run.length),
        )
        source, destination = run.source_end, run.destination_end
    return b"".join(parts)


def decode_runs(start: Ends, data: bytes) -> Iterator[Run]:
    """The runs that `encode_runs` has encoded.

    Raises:
        ProtocolError: the bytes are no such runs.
    """
    source, destination = start
    view, position = memoryview(data), 0
    while position < len(data):
        try:
            skipped, position = decode_varint(view, position)
            skipped_there, position = decode_varint(view, position)
            length, position = decode_varint(view, position)
        except CorruptBatch as error:
            raise ProtocolError(f"runs of offsets are cut off at byte {position}") from error
        run = Run(Offset(source + skipped), Offset(destination + skipped_there), length)
        ends = run.source_end, run.destination_end
        if skipped < 0 or skipped_there < 0 or length < 1 or max(ends) > _MAX_OFFSET:
            raise ProtocolError(
                f"a run of offsets skips {skipped} and {skipped_there}, and has {length} records"
            )
        yield run
        source, destination = run.source_end, run.destination_end
