"""Whether two logs hold the same records in an offset range, with evidence for every offset.

At each offset of `[start, end)`, each side has one of

    record    a record that a read_committed consumer sees
    nothing   bytes prove that no record exists: a marker, or a record of an aborted transaction
    unseen    anything else: compacted or deleted records, answers without bytes

    source    destination   verdict
    --------  ------------  ----------------------------------------------
    record    record        agree if timestamp and content are equal
    record    nothing       differ
    nothing   record        differ
    nothing   nothing       agree, which proves nothing about the records
    unseen    any           not compared
    any       unseen        not compared

Only equal records are evidence that both logs are the same: two logs that end in markers of their
own look the same there. This module shares the plan of an answer with the mirror.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from twinlog.kafka.log.records import each_record
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Data, Piece

MAX_DECODED: Final = 128 << 20
"""Bytes that a batch may decompress to: the source decides what its batches hold."""
_EVIDENT = frozenset({Absence.MARKER, Absence.ABORTED})


@dataclass(slots=True)
class Side:
    """What one log holds in an offset range; offsets in neither field are unseen."""

    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Timestamp and content of a record, by offset."""
    nothing: set[int] = field(default_factory=set)
    given_up: bool = False
    """Whether the log may have records that its brokers do not return."""

    def add(self, pieces: Iterable[Piece], start: int, end: int) -> None:
        """Add the pieces that were read, as far as they are within `[start, end)`.

        Raises:
            CorruptBatch: a batch is damaged, or decompresses to more than `MAX_DECODED`.
        """
        for piece in pieces:
            if isinstance(piece, Data):
                for record in each_record(piece.header, piece.records, MAX_DECODED):
                    if record.offset >= end:
                        break
                    if start <= record.offset:
                        self.records[record.offset] = record.timestamp, bytes(record.tail)
                continue
            at = piece.start
            for reason, span_end in piece.spans:
                if reason in _EVIDENT:
                    self.nothing.update(range(max(at, start), min(span_end, end)))
                at = span_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The result of the comparison of an offset range."""

    equal: int
    """Records that are equal on both sides."""
    size: int
    """Bytes of those records."""
    first_difference: int | None
    """The lowest offset that differs."""
    unseen: int
    """Offsets that were not compared."""


def agreement(source: Side, destination: Side, start: int, end: int) -> Agreement:
    """Compare two sides of `[start, end)`."""
    equal = size = compared = 0
    differing = None
    for offset in range(start, end):
        original, copy = source.records.get(offset), destination.records.get(offset)
        if original is not None and original == copy:
            equal, size, compared = equal + 1, size + len(original[1]), compared + 1
        elif _unseen(source, offset) or _unseen(destination, offset):
            continue
        else:
            compared += 1
            if original != copy and differing is None:
                differing = offset
    return Agreement(
        equal=equal, size=size, first_difference=differing, unseen=end - start - compared
    )


def _unseen(side: Side, offset: int) -> bool:
    return offset not in side.records and offset not in side.nothing
