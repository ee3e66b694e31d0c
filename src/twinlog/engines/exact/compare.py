"""Whether two stretches of log hold the same records at the same offsets.

Both stretches are plans (what a read_committed consumer sees). They are equal if each record of the
source is on the destination at the same offset with the same timestamp, key, value and headers, and
the destination has no other data. Batch boundaries, codecs and producers may differ: a mirror may
have merged small batches, and it has its own producer.

Data on the destination at offsets that the source skips has a reason of its own (`SKIPPED`): the
source may have had it, and compaction may have removed it since. Whether that is so depends on the
policy of the source's topic.

A batch may hold millions of records, and the source determines how many. So a comparison runs in
steps (`comparing`); records are decoded one by one, and none is held.
"""

import enum
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from twinlog.kafka.log.compression import MAX_DECOMPRESSED
from twinlog.kafka.log.records import RawRecord, each_record
from twinlog.kafka.types import Offset
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Data, Gap, Piece

_STEP: Final = 1024
"""Offsets that are compared in one step."""


class Mismatch(enum.Enum):
    """How an offset differs; the value says it to an operator."""

    EXTRA = "a record on the destination that the source does not have"
    SKIPPED = "a record on the destination at an offset that the source skips"
    MISSING = "missing on the destination"
    CONTENT = "key, value or headers differ"
    TIMESTAMP = "the timestamp differs"


class Difference(NamedTuple):
    """Offsets `[start, end)` that differ, and how."""

    start: Offset
    end: Offset
    reason: Mismatch


def comparing(
    source: Iterable[Piece],
    destination: Iterable[Piece],
    start: Offset,
    end: Offset,
    *,
    compacted: bool = False,
    max_decoded: int = MAX_DECOMPRESSED,
) -> Iterator[Difference | None]:
    """Yield the differences of two plans in `[start, end)`, by offset, and None after a step.

    Args:
        source: the plan of the source's stretch; covers all of `[start, end)`.
        destination: the plan of the destination's stretch.
        start: first offset to compare.
        end: the offset after the last.
        compacted: the destination's log cleaner may have removed records, too.
        max_decoded: bytes that a batch may decompress to.

    Raises:
        TooLong: a batch decompresses to more.
        CorruptBatch: a batch is corrupt at or before the last of its records that is compared.
    """
    theirs = _Cursor(source, max_decoded)
    ours = _Cursor(destination, max_decoded)
    at = start
    while at < end:
        left, right = theirs.at(at), ours.at(at)
        if left is not None and right is not None and _same_batch(left, right):
            at = Offset(min(left.end, right.end, end))
            continue
        stop = Offset(min(_end(left, end), _end(right, end), end))
        yield from _compare_records(theirs, ours, at, stop, compacted=compacted)
        at = stop


def _end(piece: Piece | None, end: Offset) -> Offset:
    return end if piece is None else piece.end


def _same_batch(left: Piece, right: Piece) -> bool:
    """Whether no records need to be compared: two gaps, or a batch that was forwarded unchanged."""
    if isinstance(left, Gap) or isinstance(right, Gap):
        return isinstance(left, Gap) and isinstance(right, Gap)
    return (
        left.start == right.start
        and left.end == right.end
        and left.header.codec is right.header.codec
        and left.header.base_timestamp == right.header.base_timestamp
        and left.header.max_timestamp == right.header.max_timestamp
        and bytes(left.records) == bytes(right.records)  # comparing views takes 3 times as long
    )


def _compare_records(
    theirs: "_Cursor", ours: "_Cursor", start: Offset, end: Offset, *, compacted: bool
) -> Iterator[Difference | None]:
    """Compare record by record; adjacent offsets with the same reason are one difference."""
    found: Difference | None = None
    for offset in range(start, end):
        if (offset - start) % _STEP == _STEP - 1:
            yield None
        reason = _differs(theirs, ours, Offset(offset), compacted=compacted)
        if found is not None and reason == found.reason:
            found = Difference(found.start, Offset(offset + 1), found.reason)
            continue
        if found is not None:
            yield found
        found = Difference(Offset(offset), Offset(offset + 1), reason) if reason else None
    if found is not None:
        yield found


def _differs(
    theirs: "_Cursor", ours: "_Cursor", offset: Offset, *, compacted: bool
) -> Mismatch | None:
    left, right = theirs.at(offset), ours.at(offset)
    expected, actual = theirs.record(offset), ours.record(offset)
    if expected is None:
        if actual is None:
            return None
        return (
            Mismatch.SKIPPED
            if isinstance(left, Gap) and _is_skipped(left, offset)
            else Mismatch.EXTRA
        )
    if actual is None:
        cleaned = compacted and isinstance(right, Gap) and not right.seen
        return None if cleaned else Mismatch.MISSING
    if expected.tail != actual.tail:
        return Mismatch.CONTENT
    return None if expected.timestamp == actual.timestamp else Mismatch.TIMESTAMP


def _is_skipped(gap: Gap, offset: Offset) -> bool:
    """Whether the source shows nothing at this offset of a gap: no marker, no aborted data."""
    reason = next((span.reason for span in gap.spans if offset < span.end), None)
    return not gap.seen if reason is None else reason not in (Absence.MARKER, Absence.ABORTED)


class _Cursor:
    """Walks a plan by offset; decodes the records of a batch only when one is requested."""

    def __init__(self, pieces: Iterable[Piece], max_decoded: int) -> None:
        self._pieces = iter(pieces)
        self._piece: Piece | None = None
        self._max_decoded = max_decoded
        self._decoded: Piece | None = None
        self._records: Iterator[RawRecord] = iter(())  # of `_decoded`, behind `_record`
        self._record: RawRecord | None = None

    def at(self, offset: Offset) -> Piece | None:
        """The piece that holds this offset; None above the plan's end. Offsets only increase."""
        while self._piece is None or self._piece.end <= offset:
            self._piece = next(self._pieces, None)
            if self._piece is None:
                return None
        return self._piece

    def record(self, offset: Offset) -> RawRecord | None:
        """The record at this offset, if there is one. Offsets only increase."""
        piece = self.at(offset)
        if not isinstance(piece, Data):
            return None
        if self._decoded is not piece:
            self._records = each_record(piece.header, piece.records, self._max_decoded)
            self._record = next(self._records, None)
            self._decoded = piece
        while self._record is not None and self._record.offset < offset:
            self._record = next(self._records, None)
        found = self._record
        return found if found is not None and found.offset == offset else None
