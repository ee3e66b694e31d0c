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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.log.records import encode_varint
from twinlog.kafka.types import Offset

_MAX_OFFSET: Final = (1 << 63) - 1
_LAST_BYTE: Final = 0x7F
"""Of a varint: higher ones have another byte behind them."""
_SOURCE: Final = itemgetter(0)
"""Of a `Run`, and of `Ends`."""
_DESTINATION: Final = itemgetter(1)
_KEPT_PARTS: Final = 16
"""Of a map, decoded: up to 2.5 MB."""


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

    def destination_of(self, offset: int) -> Offset:
        """Where the record of this offset of the source is; of one before the run, the first."""
        return Offset(self.destination + max(0, offset - self.source))

    def source_of(self, offset: int) -> Offset:
        """The source's offset of the record here; of a place before the run, that of the first."""
        return Offset(self.source + max(0, offset - self.destination))


class Ends(NamedTuple):
    """Offsets of both sides up to which all is mapped."""

    source: Offset
    destination: Offset


@dataclass(frozen=True, slots=True)
class EncodedRuns:
    """Runs that follow each other, as they are stored: a part of a map.

    Raises:
        ProtocolError: no runs between these ends can be in the bytes.
    """

    start: Ends
    """Where the part before it ends."""
    end: Ends
    """Behind the last run; without runs the start."""
    data: bytes

    def __post_init__(self) -> None:
        (source, destination), (source_end, destination_end) = self.start, self.end
        grows = source < source_end <= _MAX_OFFSET and destination < destination_end <= _MAX_OFFSET
        if not (grows if self.data else self.start == self.end):
            raise ProtocolError(
                f"{len(self.data)} bytes of runs of offsets are recorded to begin at "
                f"{(*self.start,)} and to end at {(*self.end,)}"
            )

    def decoded(self) -> list[Run]:
        """The runs.

        Raises:
            ProtocolError: the bytes are no runs, or end elsewhere.
        """
        runs = decode_runs(self.start, self.data)
        end = end_of(self.start, runs)
        if end != self.end:
            raise ProtocolError(
                f"runs of offsets from {(*self.start,)} on end at {(*end,)}, and are recorded to "
                f"end at {(*self.end,)}"
            )
        return runs


class OffsetRuns:
    """The runs of a partition, in order (`OffsetMap`).

    A map may have millions of runs, and readers ask for a few offsets of it. So of the parts that
    are given encoded, a look-up decodes the one that has the offset, and the following one if there
    is no run behind the offset in it. Where each part begins, and that the one before it ends
    there, is known before; what a part holds is checked when it is decoded.

    Args:
        start: where the map begins: below it nothing is known.
        parts: its first runs, encoded; the first part begins at `start`.
        subject: whose map it is, for errors.

    Raises:
        ValueError: a part does not begin where the one before it ends.
    """

    def __init__(
        self, start: Ends, parts: Sequence[EncodedRuns] = (), subject: str = "a map of offsets"
    ) -> None:
        self._subject = subject
        self._start = start
        self._parts = parts
        self._decoded: dict[int, list[Run]] = {}  # of the parts that were asked for last
        self._appended: list[Run] = []  # behind the parts
        self._appended_start = start
        for part in parts:
            if part.start != self._appended_start:
                raise ValueError(f"a part begins at {part.start}, not at {self._appended_start}")
            self._appended_start = part.end

    @property
    def start(self) -> Ends:
        """Where the map begins."""
        return self._start

    @property
    def end(self) -> Ends:
        """Behind the last record that is mapped."""
        return end_of(self._appended_start, self._appended)

    @property
    def is_empty(self) -> bool:
        """Whether no record is mapped."""
        return self.end == self._start

    def runs(self) -> list[Run]:
        """All runs, in order; neighbours that were appended are merged.

        It takes 1 to 2 s, and 160 MB, for a million.

        Raises:
            ProtocolError: a part is damaged.
        """
        return [*chain.from_iterable(map(self._decode, range(len(self._parts)))), *self._appended]

    def append(self, run: Run) -> None:
        """Add a run behind all others.

        Raises:
            ValueError: it has no record, or begins before the end of the last one on either side.
        """
        end = self.end
        if run.length < 1 or run.source < end.source or run.destination < end.destination:
            raise ValueError(f"{run} does not follow {end}")
        last = self._appended[-1] if self._appended else None
        if last is not None and (run.source, run.destination) == end:
            self._appended[-1] = last._replace(length=last.length + run.length)
        else:
            self._appended.append(run)

    def at_source(self, offset: int) -> Run | None:
        """The run that has this offset of the source, or else the next one; None: all are before.

        Raises:
            ProtocolError: a part is damaged; also of the functions below.
        """
        return self._run_at(_SOURCE, offset)

    def at_destination(self, offset: int) -> Run | None:
        """The run that has this offset of the destination, or else the next one; None: none."""
        return self._run_at(_DESTINATION, offset)

    def to_destination(self, offset: int) -> int:
        """Where the record of this offset is, or the next one that is mapped.

        Behind the last one it is the end of the map: whatever is copied later lands there or above.
        """
        run = self.at_source(offset)
        return self.end.destination if run is None else run.destination_of(offset)

    def to_source(self, offset: int) -> int:
        """The source's offset up to which a destination that ends here holds all that is copied."""
        run = self.at_destination(offset)
        return self.end.source if run is None else run.source_of(offset)

    def lowest(self, offset: int) -> int:
        """The lowest offset of the source from which the same records are left to read there.

        It stays the same while the map grows: a group at the map's end is still there when the
        next record is copied, which may have left out offsets before it.
        """
        if offset <= self._start.source:
            return self._start.source
        number = self._part_at(_SOURCE, offset)
        runs = self._runs_of(number)
        index = bisect_left(runs, offset, key=_SOURCE) - 1
        before = runs[index].source_end if index >= 0 else self._start_of(number).source
        return min(offset, before)

    def _run_at(self, side: Callable[[Any], int], offset: int) -> Run | None:
        for number in range(self._part_at(side, offset), len(self._parts) + 1):
            runs = self._runs_of(number)
            index = bisect_right(runs, offset, key=side)
            if index and offset < side(runs[index - 1]) + runs[index - 1].length:
                return runs[index - 1]
            if index < len(runs):
                return runs[index]
        return None

    def _part_at(self, side: Callable[[Any], int], offset: int) -> int:
        """The number of the last part that begins at an offset or before it, or of the first part.

        What was appended is the last one. A run of a part before it ends where this one begins.
        """
        if offset >= side(self._appended_start):
            return len(self._parts)
        return max(bisect_right(self._parts, offset, key=lambda part: side(part.start)) - 1, 0)

    def _start_of(self, number: int) -> Ends:
        is_part = number < len(self._parts)
        return self._parts[number].start if is_part else self._appended_start

    def _runs_of(self, number: int) -> list[Run]:
        if number == len(self._parts):
            return self._appended
        runs = self._decoded.get(number)
        if runs is None:
            runs = self._decode(number)
            if len(self._decoded) >= _KEPT_PARTS:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[number] = runs
        return runs

    def _decode(self, number: int) -> list[Run]:
        try:
            return self._parts[number].decoded()
        except ProtocolError as error:
            raise ProtocolError(f"{self._subject} is damaged: {error.message}") from error


def end_of(start: Ends, runs: Sequence[Run]) -> Ends:
    """Behind the last of these runs."""
    return Ends(runs[-1].source_end, runs[-1].destination_end) if runs else start


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


def encoded_runs(start: Ends, runs: Sequence[Run]) -> EncodedRuns:
    """A part of a map: runs that follow each other, the first of them at or behind `start`."""
    return EncodedRuns(start, end_of(start, runs), encode_runs(start, runs))


def decode_runs(start: Ends, data: bytes) -> list[Run]:
    """The runs that `encode_runs` has encoded.

    It reads most numbers in place: with `decode_varint` it takes four times as long, and a look-up
    in a map decodes a thousand runs.

    Raises:
        ProtocolError: the bytes are no such runs.
    """
    runs: list[Run] = []
    source, destination = int(start.source), int(start.destination)
    at, end = 0, len(data)
    try:
        while at < end:
            skipped, skipped_there, length = data[at], data[at + 1], data[at + 2]
            at += 3
            if skipped | skipped_there > _LAST_BYTE:
                skipped, at = _number(data, at - 3)
                skipped_there, at = _number(data, at)
                length, at = _number(data, at)
            elif length > _LAST_BYTE:
                length, at = _number(data, at - 1)
            # Zigzag: a negative number is odd.
            if (skipped | skipped_there | length) & 1 or not length:
                raise ProtocolError(f"runs of offsets go back, or have no record, at byte {at}")
            source, destination = source + (skipped >> 1), destination + (skipped_there >> 1)
            length >>= 1
            runs.append(Run(Offset(source), Offset(destination), length))
            source, destination = source + length, destination + length
    except IndexError as error:
        raise ProtocolError(f"runs of offsets are cut off at byte {end}") from error
    if max(source, destination) > _MAX_OFFSET:
        raise ProtocolError(f"runs of offsets end at {source} and {destination}")
    return runs


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and the position behind it.

    Raises:
        IndexError: it is cut off.
    """
    value = shift = 0
    while (byte := data[at]) > _LAST_BYTE:
        value |= (byte & _LAST_BYTE) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1
