"""From what the source answered to what the destination is to hold.

A Fetch answer is a run of batches; a plan is the same stretch of the log cut into *pieces* that
follow each other without a hole:

    source   | data 0-4 | data 5-9 | marker 10 | aborted 11-13 | (compacted 14-19) | data 20-24 |
    plan     | Data 0-5 | Data 5-10|            Gap 10-20                           | Data 20-25 |

Data is appended, a gap's offsets are used up. Invariant: the first piece starts at the position
that was asked for, each next one where the one before ended, and every record that a
read_committed consumer of the source would see is in exactly one Data piece, under its offset.

Aborted data is known from the answer itself: the broker lists each aborted transaction that
overlaps it by producer id and first offset, in order of offset; it ends at its abort marker.

Small batches are merged when several come at once, that is when the mirror is behind: one Produce
takes one batch of a partition, so a thousand batches of one record would be a thousand requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from twinlog.core.batch import HEADER_SIZE, Header, LegacyBatch, batches
from twinlog.core.compression import Codec
from twinlog.core.errors import CorruptBatch
from twinlog.core.legacy import legacy_records
from twinlog.core.merge import merge
from twinlog.core.records import Encoded, RawRecord, build, decode, raw_records
from twinlog.core.types import Offset

MERGE_MAX_COUNT: Final = 8
"""A batch of more records than this is not merged: each record costs more than it saves."""
MERGE_MAX_BYTES: Final = 16 * 1024
"""Nor is one of more bytes."""
MERGE_MIN_RUN: Final = 4
"""Fewer small batches in a row than this go as they are."""
MERGED_BYTES: Final = 256 * 1024
"""A merged batch's size before compression; below every usual `max.message.bytes`."""

_ABORT: Final = 0
_CONTROL_TYPE_AT: Final = 2


@dataclass(frozen=True, slots=True)
class Data:
    """A batch to append at `[start, end)`: dense, of CreateTime, its records as they are sent."""

    start: Offset
    end: Offset
    header: Header
    records: memoryview

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER_SIZE + len(self.records)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that hold nothing for a reader.

    `seen` says that each of them was seen as a marker or aborted data, which stays so for ever.
    Otherwise some were not there at all: compacted or deleted, so that an earlier reader may have
    found data in their place.
    """

    start: Offset
    end: Offset
    seen: bool


Piece: TypeAlias = Data | Gap


class AbortedTransaction(NamedTuple):
    """As a Fetch answer lists it: whose, and from which offset on."""

    producer_id: int
    first_offset: int


def plan(
    buffer: memoryview, position: Offset, aborted: Iterable[AbortedTransaction] = ()
) -> list[Piece]:
    """The pieces of one partition's Fetch answer, from `position` to its last complete batch.

    Args:
        buffer: record batches as they were fetched with isolation level read_committed.
        position: the offset that was asked for; what lies before it is left out.
        aborted: the answer's aborted transactions.

    Returns:
        Pieces without a hole between them; none if the answer holds no complete batch from
        `position` on.

    Raises:
        CorruptBatch: see `batch.batches`.
    """
    pieces = _Pieces(buffer, position)
    transactions = _Aborted(aborted)
    at: int | None = 0
    while at is not None:
        at = _plan_modern(pieces, transactions, buffer, at)
        if at is not None:
            at = _plan_legacy(pieces, buffer, at)
    return pieces.finish()


def _plan_modern(
    pieces: "_Pieces", transactions: "_Aborted", buffer: memoryview, position: int
) -> int | None:
    """Plan batches of format v2; where an older message stands, its place."""
    try:
        for header in batches(buffer, position):
            if header.is_control:
                transactions.marker(header, buffer)
                pieces.skip(header)
            elif header.is_transactional and transactions.holds(header):
                pieces.skip(header)
            elif header.forwardable and header.base_offset >= pieces.end:
                pieces.forward(header)
            else:
                pieces.rebuild(raw_records(header, header.records(buffer)), header.codec)
                pieces.gap(header.next_offset, seen=False)
    except LegacyBatch as legacy:
        return legacy.position
    return None


def _plan_legacy(pieces: "_Pieces", buffer: memoryview, position: int) -> int | None:
    """Plan messages of the formats v0 and v1; where a newer batch stands, its place."""
    end = position
    for run in legacy_records(buffer, position):
        pieces.rebuild(run.records, run.codec)
        end = run.next_position
    return end if end > position else None


class _Pieces:
    """The plan as it grows. `end` is where the next piece starts."""

    def __init__(self, buffer: memoryview, position: Offset) -> None:
        self._buffer = buffer
        self._pieces: list[Piece] = []
        self._small: list[Header] = []  # the small batches at the end, not yet pieces
        self._small_bytes = 0
        self.end = position

    def skip(self, header: Header) -> None:
        """A batch that no reader sees: its offsets are a gap."""
        self.gap(Offset(header.base_offset), seen=False)
        self.gap(header.next_offset, seen=True)

    def gap(self, end: Offset, *, seen: bool) -> None:
        """Nothing for a reader up to `end`."""
        if end <= self.end:
            return
        self._flush()
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Gap):
            self._pieces[-1] = Gap(last.start, end, last.seen and seen)
        else:
            self._pieces.append(Gap(self.end, end, seen))
        self.end = end

    def forward(self, header: Header) -> None:
        """A batch that goes as it is, or merged with its like."""
        self.gap(Offset(header.base_offset), seen=False)
        self.end = header.next_offset
        if header.num_records > MERGE_MAX_COUNT or header.length > MERGE_MAX_BYTES:
            self._flush()
            self._append_as_it_is(header)
            return
        if self._small and (
            self._small[-1].codec is not header.codec or self._small_bytes > MERGED_BYTES
        ):
            self._flush()
        self._small.append(header)
        self._small_bytes += header.length

    def rebuild(self, records: list[RawRecord], codec: Codec) -> None:
        """Records that cannot go as the batch that they are in: a batch for each dense run."""
        kept = [record for record in records if record.offset >= self.end]
        start = 0
        for at in range(1, len(kept) + 1):
            if at == len(kept) or kept[at].offset != kept[at - 1].offset + 1:
                self._append_built(build(kept[start:at], codec))
                start = at

    def finish(self) -> list[Piece]:
        """The plan."""
        self._flush()
        return self._pieces

    def _flush(self) -> None:
        """The small batches become pieces, merged if they are many."""
        small, self._small, self._small_bytes = self._small, [], 0
        if len(small) < MERGE_MIN_RUN:
            for header in small:
                self._append_as_it_is(header)
        else:
            merged = merge(small, self._buffer)
            self._pieces.append(
                Data(
                    Offset(small[0].base_offset),
                    small[-1].next_offset,
                    merged.header,
                    merged.records,
                )
            )

    def _append_as_it_is(self, header: Header) -> None:
        records = header.records(self._buffer)
        self._pieces.append(Data(Offset(header.base_offset), header.next_offset, header, records))

    def _append_built(self, batch: Encoded) -> None:
        header = batch.header
        self.gap(Offset(header.base_offset), seen=False)
        self._flush()
        self._pieces.append(
            Data(Offset(header.base_offset), header.next_offset, header, batch.records)
        )
        self.end = header.next_offset


class _Aborted:
    """Which producers' transactional data is being aborted, as the log is walked."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._open: set[int] = set()

    def holds(self, header: Header) -> bool:
        """Whether this transactional data batch is of an aborted transaction."""
        self._begin(header)
        return header.producer_id in self._open

    def marker(self, header: Header, buffer: memoryview) -> None:
        """A marker ends the transaction of its producer.

        An answer may begin at the very marker, and lists its transaction: that has to have begun
        here, or it would take in the producer's next one.
        """
        self._begin(header)
        if header.producer_id in self._open and _control_type(header, buffer) == _ABORT:
            self._open.discard(header.producer_id)

    def _begin(self, header: Header) -> None:
        """Those begin that do so up to this batch's last offset, as a consumer has it."""
        while self._coming and self._coming[-1].first_offset < header.next_offset:
            self._open.add(self._coming.pop().producer_id)


def _control_type(header: Header, buffer: memoryview) -> int | None:
    """0 abort, 1 commit; a control record's key is version int16, type int16."""
    if header.num_records == 0:
        return None
    key = decode(raw_records(header, header.records(buffer))[0]).key
    if key is None or len(key) < _CONTROL_TYPE_AT + 2:
        raise CorruptBatch(f"the control record at offset {header.base_offset} has no type")
    return int.from_bytes(key[_CONTROL_TYPE_AT : _CONTROL_TYPE_AT + 2], "big", signed=True)
