"""What a log holds at each offset, and the bytes that prove it: the view of a check.

`verify` and `rebuild` use this module; the mirror does not. Only the batch format is shared with
the mirror: `batch.py` (headers, checksums), `records.py`, `compression.py` and `legacy.py`. This
module derives a second time, independently of `plan.py`, which offsets hold data and why others do
not.

    batches   | data 0-4 | marker 5 | aborted 6-8 | marker 9 |        | data 20-24 (21 removed) |
    spans     | DATA     | CONTROL  | ABORTED     | CONTROL  | HOLE   | DATA                    |

Each span has bytes behind it: a control batch, a batch of an aborted transaction, or, for a hole,
the base offset of the batch that follows. Offsets behind the last complete batch stay undecided: an
answer without bytes gives no spans at all.

A transactional batch is aborted if the answer lists a transaction of its producer that begins at
or before it, and no control batch of that producer lies between the two.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import Header, LegacyBatch, batches
from twinlog.kafka.log.legacy import legacy_records
from twinlog.kafka.log.records import RawRecord, raw_records


class Kind(Enum):
    """What the offsets of a span hold."""

    DATA = "data"
    """Records; the offsets between them, which compaction has emptied, are holes."""
    CONTROL = "control"
    ABORTED = "aborted"
    HOLE = "hole"
    """No record, and a later batch proves it: compaction removed them."""
    BELOW = "below log start"
    UNSEEN = "not seen"
    FILTERED = "filtered"
    """A record that a flow's transforms drop (transformed_log.py)."""
    ROUTED = "routed"
    """A record that a flow's transforms route to another topic."""
    OTHERS = "of other topics"
    """A record in a log that several topics are routed to, and of another one (flow_targets.py)."""


class SpanRecords:
    """The records of a data span, decoded at first use."""

    __slots__ = ("_decoded", "_stamped", "header", "records")

    def __init__(
        self,
        header: Header | None,
        records: memoryview,
        decoded: Iterable[RawRecord] | None = None,
        *,
        stamped: bool = False,
    ) -> None:
        self.header = header
        """None for messages of the formats v0 and v1, which are decoded from the beginning."""
        self.records = records
        self._stamped = stamped
        self._decoded = None if decoded is None else {record.offset: record for record in decoded}

    @property
    def stamped(self) -> bool:
        """Whether the broker has set the timestamps (LogAppendTime)."""
        return self._stamped or (self.header is not None and self.header.is_log_append_time)

    def by_offset(self) -> dict[int, RawRecord]:
        """The records by offset.

        Raises:
            CorruptBatch: see `raw_records`.
        """
        if self._decoded is None:
            assert self.header is not None
            decoded = raw_records(self.header, self.records)
            self._decoded = {record.offset: record for record in decoded}
        return self._decoded


class Span(NamedTuple):
    """Offsets `[start, end)` of one kind. `batch`: of DATA; `reason`: why they were not seen."""

    start: int
    end: int
    kind: Kind
    batch: SpanRecords | None = None
    reason: str = ""

    def record(self, offset: int) -> RawRecord | None:
        """The record at this offset."""
        return None if self.batch is None else self.batch.by_offset().get(offset)


def spans(buffer: memoryview, position: int, aborted: Iterable[tuple[int, int]] = ()) -> list[Span]:
    """What an answer's bytes prove, from `position` to the end of the last complete batch.

    Args:
        buffer: record batches as fetched with isolation level read_committed.
        position: the offset that was requested; earlier records are left out.
        aborted: producer id and first offset of each aborted transaction that the answer lists.

    Returns:
        Adjacent spans; none if no complete batch reaches beyond `position`.

    Raises:
        CorruptBatch: the first batch is corrupt. A later one ends the spans before it.
    """
    view = _View(buffer, position, aborted)
    try:
        view.read()
    except CorruptBatch:
        if not view.spans:
            raise
    return view.spans


class _View:
    def __init__(
        self, buffer: memoryview, position: int, aborted: Iterable[tuple[int, int]]
    ) -> None:
        self._buffer = buffer
        self._end = position
        self._aborted: defaultdict[int, list[int]] = defaultdict(list)
        for producer_id, first_offset in aborted:
            self._aborted[producer_id].append(first_offset)
        self.spans: list[Span] = []

    def read(self) -> None:
        """Walk all batches of all formats."""
        place: tuple[int, int] | None = (0, 0)
        while place is not None:
            try:
                for header in batches(self._buffer, *place):
                    self._batch(header)
                place = None
            except LegacyBatch as legacy:
                place = self._legacy(legacy)

    def _legacy(self, legacy: LegacyBatch) -> tuple[int, int] | None:
        position, lowest = legacy.position, legacy.lowest
        for run in legacy_records(self._buffer, position, lowest):
            first, last = run.records[0].offset, run.records[-1].offset
            batch = SpanRecords(None, memoryview(b""), run.records)
            self._add(first, last + 1, Kind.DATA, batch)
            position, lowest = run.next_position, last + 1
        return (position, lowest) if position > legacy.position else None

    def _batch(self, header: Header) -> None:
        kind, batch = self._kind(header), None
        if kind is Kind.DATA:
            batch = SpanRecords(header, header.records(self._buffer))
        self._add(header.base_offset, header.next_offset, kind, batch)

    def _kind(self, header: Header) -> Kind:
        if header.is_control:
            self._end_transaction(header)
            return Kind.CONTROL
        if header.num_records == 0:
            return Kind.HOLE  # the cleaner keeps a producer's last batch, without its records
        if header.is_transactional and any(
            first <= header.base_offset for first in self._aborted.get(header.producer_id, ())
        ):
            return Kind.ABORTED
        return Kind.DATA

    def _end_transaction(self, header: Header) -> None:
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = [
                first for first in self._aborted[header.producer_id] if first > header.base_offset
            ]

    def _add(self, start: int, end: int, kind: Kind, batch: SpanRecords | None = None) -> None:
        if start > self._end:
            self.spans.append(Span(self._end, start, Kind.HOLE))
            self._end = start
        if end > self._end:
            self.spans.append(Span(self._end, end, kind, batch))
            self._end = end
