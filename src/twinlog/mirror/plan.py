"""Turns Fetch answers of the source into the pieces to append on the destination.

A Fetch answer is a run of batches. A plan is the same offset range, cut into *pieces* that follow
each other without a hole:

    source   | data 0-4 | data 5-9 | marker 10 | aborted 11-13 | (compacted 14-19) | data 20-24 |
    plan     | Data 0-5 | Data 5-10|            Gap 10-20                           | Data 20-25 |

Data is appended, a gap's offsets are used up. Invariants:

- the first piece starts at the requested position, each next piece at the end of the one before;
- every record that a read_committed consumer of the source would see is in exactly one Data piece,
  at its offset.

The answer itself identifies aborted data: the broker lists each aborted transaction that overlaps
the answer by producer id and first offset, in order of offset; it ends at its abort marker.

Small batches are merged if an answer has several of them, that is, if the mirror is behind. One
Produce takes one batch of a partition, so a thousand batches of one record would need a thousand
requests.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Header,
    LegacyBatch,
    batches,
)
from twinlog.kafka.log.compression import MAX_DECOMPRESSED, Codec
from twinlog.kafka.log.legacy import legacy_steps
from twinlog.kafka.log.lone import merge_lone
from twinlog.kafka.log.merge import MERGED_BYTES, alone, merge
from twinlog.kafka.log.records import Encoded, RawRecord, build, each_record
from twinlog.kafka.log.small_transactions import read_transaction
from twinlog.kafka.types import UNKNOWN_EPOCH, AbortedTransaction, LeaderEpoch, Offset
from twinlog.mirror.aborted import Aborted
from twinlog.mirror.absence import Absence, AbsentSpan

MERGE_MAX_COUNT: Final = 8
"""A batch of more records is not merged: each record costs more than the merge saves."""
MERGE_MAX_TRANSACTIONAL: Final = 32
"""The same for transactional batches. A marker waits for all batches before it, so that each one
that is merged saves a request of its own."""
MERGE_MAX_BYTES: Final = 16 * 1024
"""A batch of more bytes is not merged."""
MERGE_MIN_RUN: Final = 4
"""Fewer small batches in a row are forwarded as they are."""
MERGE_MIN_TRANSACTIONAL: Final = 2
"""The same for a run that begins with a transactional batch."""
MAX_RUN: Final = 2048
"""Records of a batch that a plan builds; encoding this many takes about 5 ms."""
STEP_RECORDS: Final = 1024
"""Work of one step of a plan, in records to decode."""
MAX_PIECES: Final = 4096
"""Pieces of a plan: a compacted batch may hold a million records that are not neighbours. Each
becomes a gap and a batch, of about 0.9 KB in memory. What is left out is fetched again."""
MAX_SPANS: Final = 16 * 1024
"""Spans of all gaps of a plan, of about 0.1 KB in memory; 1 MiB of the shortest batches has fewer.
What is left out is fetched again."""

_PIECE_BYTES: Final = 1024
"""Bytes of two pieces' objects, roughly, as measured; more than a batch of one record."""
_RUN_RECORDS: Final = 8
"""Building a batch costs as much as decoding this many records."""
_BATCH_RECORDS: Final = 4
"""The same of reading and checking a batch, of whatever kind."""
_LONE: Final = LOG_APPEND_TIME
"""The attributes that a lone record's batch may have (`merge_lone`)."""
_SEEN: Final = (Absence.MARKER, Absence.ABORTED)


@dataclass(frozen=True, slots=True)
class Data:
    """A batch to append at `[start, end)`: dense, CreateTime, with the records as they are sent."""

    start: Offset
    end: Offset
    header: Header
    records: memoryview

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER_SIZE + len(self.records)

    @property
    def held(self) -> int:
        """Bytes in memory while the batch is queued, including a gap that may precede it."""
        return len(self.records) + _PIECE_BYTES


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that hold no record for a reader.

    `seen`: each offset was seen as a marker or aborted data, which never changes. Otherwise some
    offsets were missing: compacted or deleted, so an earlier reader may have found data at them.

    `spans`: the evidence, in order of offset up to `end`. The first ones may end before `start`: a
    large gap is filled in many rounds, and the rest of it shares the spans, which may be thousands.
    """

    start: Offset
    end: Offset
    seen: bool
    spans: tuple[AbsentSpan, ...] = field(default=(), compare=False)

    def after(self, start: Offset) -> "Gap":
        """The rest of the gap, from an offset within it on."""
        return Gap(start, self.end, self.seen, self.spans)

    def reason_at(self, offset: Offset) -> Absence | None:
        """Why this offset is absent; None if no span tells."""
        at = bisect_right(self.spans, offset, key=_span_end)
        return self.spans[at].reason if at < len(self.spans) else None

    def reasons(self, until: Offset) -> Iterator[tuple[Absence, int]]:
        """The reasons why its offsets up to `until` are absent, and the offsets of each reason."""
        start = self.start
        for at in range(bisect_right(self.spans, start, key=_span_end), len(self.spans)):
            if start >= until:
                return
            reason, end = self.spans[at]
            yield reason, min(end, until) - start
            start = end


_span_end = attrgetter("end")

Piece: TypeAlias = Data | Gap


class Planned(NamedTuple):
    """A plan, and the leader epoch of the last batch in it (-1: none, or a message that has none).

    The last batch ends where the last piece does.
    """

    pieces: list[Piece]
    leader_epoch: LeaderEpoch


def plan(
    buffer: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction] = (),
    max_decoded: int = MAX_DECOMPRESSED,
) -> list[Piece]:
    """The pieces of one partition's Fetch answer, from `position` to its last complete batch.

    Args:
        buffer: record batches as they were fetched with isolation level read_committed.
        position: the offset that was requested; earlier records are left out.
        aborted: the answer's aborted transactions.
        max_decoded: bytes that a batch that has to be decoded may decompress to.

    Returns:
        Pieces without a hole between them; none if the answer holds no complete batch from
        `position` on. If there are more than `MAX_PIECES`, the first ones.

    Raises:
        CorruptBatch: see `batch.batches`.
    """
    return plan_with_epoch(buffer, position, aborted, max_decoded).pieces


def plan_with_epoch(
    buffer: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction] = (),
    max_decoded: int = MAX_DECOMPRESSED,
) -> Planned:
    """As `plan`, with the leader epoch of the last batch."""
    return finished(planning(buffer, position, aborted, max_decoded))


Planning: TypeAlias = Generator[None, None, Planned]
"""A plan in steps of a few milliseconds: the generator returns the result."""


def finished(steps: Planning) -> Planned:
    """Run all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Planned = stop.value
            return result


def planning_sound(
    buffer: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction] = (),
    max_decoded: int = MAX_DECOMPRESSED,
    built_bytes: int = MERGED_BYTES,
) -> Planning:
    """Plan the batches before the first corrupt one, as `plan_with_epoch` in steps.

    Args:
        buffer: see `plan`, also for the other arguments.
        position: the offset that was requested.
        aborted: the answer's aborted transactions.
        max_decoded: bytes that a batch that has to be decoded may decompress to.
        built_bytes: bytes of several batches that are merged, or of a part of one; about.

    Raises:
        CorruptBatch: no batch from `position` on is before the corrupt one.
    """
    aborted = tuple(aborted)
    try:
        return (yield from planning(buffer, position, aborted, max_decoded, built_bytes))
    except CorruptBatch:
        end = 0
        with suppress(CorruptBatch, LegacyBatch):
            for nth, header in enumerate(batches(buffer)):
                end = header.end
                if nth % STEP_RECORDS == STEP_RECORDS - 1:
                    yield
        result = yield from planning(buffer[:end], position, aborted, max_decoded, built_bytes)
        if not result.pieces:
            raise
        return result


def planning(
    buffer: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction] = (),
    max_decoded: int = MAX_DECOMPRESSED,
    built_bytes: int = MERGED_BYTES,
) -> Planning:
    """`plan_with_epoch` in steps: a batch may hold millions of records to decode."""
    pieces = _Pieces(buffer, position, max_decoded, built_bytes)
    transactions = Aborted(aborted)
    at: _Place | None = _Place(0, 0)
    while at is not None and not pieces.full:
        try:
            at = yield from _plan_modern(pieces, transactions, buffer, at)
        except LegacyBatch as legacy:
            at = yield from _plan_legacy(pieces, buffer, _Place(legacy.position, legacy.lowest))
    return Planned(pieces.finish(), pieces.leader_epoch)


class _Place(NamedTuple):
    """The next batch's position in the buffer, and the lowest offset that it may have."""

    position: int
    lowest: int


def _plan_modern(
    pieces: "_Pieces", transactions: "Aborted", buffer: memoryview, place: _Place
) -> Generator[None, None, _Place | None]:
    """Plan batches of format v2 up to the end of a run of lone records, or of the buffer."""
    next_try = 0
    header = None
    for header in batches(buffer, *place):
        attributes = header.attributes
        pieces.work += _BATCH_RECORDS
        if attributes & CONTROL:
            transactions.marker(header, buffer)
            yield from pieces.flush()
            pieces.skip(header)
        elif attributes & TRANSACTIONAL and transactions.holds(header):
            yield from pieces.flush()
            pieces.skip(header)
        elif _is_rebuilt(header, pieces.end):
            yield from pieces.flush()
            yield from pieces.rebuild(header)
        elif header.num_records > _most_records(attributes) or header.length > MERGE_MAX_BYTES:
            yield from pieces.flush()
            pieces.forward(header)
        else:
            if header.position >= next_try and _has_loop(header):
                run_end, next_try = yield from _plan_run(pieces, transactions, buffer, header)
                if run_end is not None:
                    return run_end
            if not pieces.fits(header):
                yield from pieces.flush()
            pieces.collect(header)
        if pieces.work >= STEP_RECORDS:
            pieces.work = 0
            yield
        if pieces.full:
            break
    if header is not None:
        pieces.leader_epoch = LeaderEpoch(header.leader_epoch)
    yield from pieces.flush()
    return None


def _has_loop(header: Header) -> bool:
    """Whether a run that begins with this small batch may have a loop of its own (`_plan_run`)."""
    attributes = header.attributes
    return attributes == TRANSACTIONAL or (header.num_records == 1 and not attributes & ~_LONE)


def _plan_run(
    pieces: "_Pieces", transactions: "Aborted", buffer: memoryview, first: Header
) -> Generator[None, None, tuple[_Place | None, int]]:
    """Plan a run that has a compiled loop; return its end, None if there is none.

    The second number is the position before which there is no need to try again.
    """
    if first.attributes & TRANSACTIONAL:
        if pieces.collects or transactions.any:
            return None, first.position
        return (yield from _plan_transactions(pieces, buffer, first))
    lone, end = merge_lone(buffer[: first.position + pieces.lone_bytes], first.position)
    if lone is None:
        return None, end
    yield from pieces.flush()
    pieces.append(lone)
    yield
    return _Place(end, lone.header.next_offset), end


def _plan_transactions(
    pieces: "_Pieces", buffer: memoryview, first: Header
) -> Generator[None, None, tuple[_Place | None, int]]:
    """Plan small transactions that follow each other."""
    limits = MERGE_MAX_TRANSACTIONAL, MERGE_MAX_BYTES, MAX_RUN, pieces.built_bytes
    place, offset, end = None, first.base_offset, first.position
    while not pieces.full:
        transaction, end = read_transaction(buffer, end, offset, limits)
        if transaction is None:
            break
        batch, markers, leader_epoch, read = transaction
        pieces.append(batch)
        pieces.gap(Offset(pieces.end + markers), Absence.MARKER)
        pieces.leader_epoch = LeaderEpoch(leader_epoch)
        place, offset = _Place(end, pieces.end), pieces.end
        pieces.work += batch.header.num_records + _BATCH_RECORDS * read
        if pieces.work >= STEP_RECORDS:
            pieces.work = 0
            yield
    return place, end


def _most_records(attributes: int) -> int:
    """The most records of a batch with these attributes that is merged."""
    return MERGE_MAX_TRANSACTIONAL if attributes & TRANSACTIONAL else MERGE_MAX_COUNT


def _least_run(run: Sequence[Header]) -> int:
    """The fewest small batches that are merged."""
    transactional = bool(run) and run[0].attributes & TRANSACTIONAL
    return MERGE_MIN_TRANSACTIONAL if transactional else MERGE_MIN_RUN


def _is_rebuilt(header: Header, position: Offset) -> bool:
    """Whether a batch of data has to be decoded, record by record."""
    # Without the header's properties, which are calls: this is done for each batch.
    count = header.num_records
    return (
        header.base_offset < position
        or count <= header.last_offset_delta
        or (count > MAX_RUN and header.is_log_append_time)
    )


def _plan_legacy(
    pieces: "_Pieces", buffer: memoryview, place: _Place
) -> Generator[None, None, _Place | None]:
    """Plan messages of the formats v0 and v1; return the place of a newer batch, if one follows."""
    position, lowest = place
    yield from pieces.flush()
    for run in legacy_steps(buffer, position, lowest, pieces.max_decoded):
        if run is None:
            yield
            continue
        yield from pieces.rebuild_records(run.records, _Form(run.codec, run.size))
        position, lowest = run.next_position, run.records[-1].offset + 1
        pieces.leader_epoch = UNKNOWN_EPOCH
        if pieces.full:
            return None  # the rest of it is fetched again; a later batch would make it a gap
    return _Place(position, lowest) if position > place.position else None


class _Form(NamedTuple):
    """How batches are built of records whose own batch cannot be forwarded."""

    codec: Codec
    max_bytes: int  # of a batch; the source's broker has accepted one that is so long
    leader_epoch: int = UNKNOWN_EPOCH  # of the records; the formats v0 and v1 have none


class _Pieces:
    """The plan as it grows. `end` is where the next piece starts.

    Small batches wait to be merged; `flush` turns them into pieces, before anything else is added.
    The gap at the end grows as a list: skipped batches of two kinds may alternate by thousands.

    `leader_epoch` is the last batch's, set at the end of a run of batches. `work` is what was done
    since the last step ended, in records to decode. `max_decoded` is the most bytes that one batch
    may decompress to, and `built_bytes` the most of one that is merged or cut here.
    """

    def __init__(self, buffer: memoryview, at: Offset, max_decoded: int, built_bytes: int) -> None:
        self._buffer = buffer
        self.max_decoded = max_decoded
        self.built_bytes = built_bytes
        self.lone_bytes = built_bytes if built_bytes < MERGED_BYTES else len(buffer)
        self._pieces: list[Piece] = []
        self._small_batches: list[Header] = []  # the small batches at the end, not yet pieces
        self._small_bytes = 0
        self._small_records = 0
        self._gap: list[AbsentSpan] = []  # the gap at the end, not yet a piece
        self._gap_start = at
        self._spans = 0  # of all gaps
        self.end = at
        self.leader_epoch = UNKNOWN_EPOCH
        self.work = 0

    @property
    def collects(self) -> bool:
        """Whether small batches wait."""
        return bool(self._small_batches)

    @property
    def full(self) -> bool:
        """Whether the plan has to end here, to keep its memory bounded."""
        return len(self._pieces) + bool(self._gap) >= MAX_PIECES or self._spans >= MAX_SPANS

    def skip(self, header: Header) -> None:
        """Add a batch that no reader sees: its offsets are a gap."""
        self.gap(Offset(header.base_offset))
        self.gap(header.next_offset, Absence.MARKER if header.is_control else Absence.ABORTED)

    def gap(self, end: Offset, reason: Absence = Absence.COMPACTED) -> None:
        """Add a gap up to `end`; by default, a batch skips these offsets."""
        if end <= self.end:
            return
        assert not self._small_batches
        spans = self._gap
        if not spans:
            self._gap_start = self.end
        if spans and spans[-1].reason is reason:
            spans[-1] = AbsentSpan(reason, end)
        else:
            spans.append(AbsentSpan(reason, end))
            self._spans += 1
        self.end = end

    def forward(self, header: Header) -> None:
        """Add a dense batch by itself."""
        self.gap(Offset(header.base_offset))
        if header.attributes & LOG_APPEND_TIME:
            self._restamp(header)
        else:
            self._append(Encoded(header, header.records(self._buffer)))
        self.end = header.next_offset

    def fits(self, header: Header) -> bool:
        """Whether a small batch can be merged with those that wait."""
        waiting = self._small_batches
        return not waiting or (
            header.base_offset == self.end
            and waiting[-1].codec is header.codec
            and self._small_bytes + header.length <= self.built_bytes
            and self._small_records <= MAX_RUN
        )

    def collect(self, header: Header) -> None:
        """Let a small dense batch wait, to be a piece by itself or merged with others."""
        self.gap(Offset(header.base_offset))
        self._small_batches.append(header)
        self._small_bytes += header.length
        self._small_records += header.num_records
        self.end = header.next_offset

    def append(self, batch: Encoded) -> None:
        """Add a batch as it is."""
        self.gap(Offset(batch.header.base_offset))
        self._append(batch)
        self.end = batch.header.next_offset
        self.leader_epoch = LeaderEpoch(batch.header.leader_epoch)

    def rebuild(self, header: Header) -> Generator[None, None, None]:
        """Add a batch that cannot be forwarded: records are missing, or were read before.

        A batch of LogAppendTime may also be too long to be stamped in one step.
        """
        if header.next_offset > self.end:
            records = each_record(header, header.records(self._buffer), self.max_decoded)
            # If the plan is full, the rest of the batch is fetched again, so it is no gap.
            form = _Form(header.codec, header.length, header.leader_epoch)
            if (yield from self.rebuild_records(records, form)):
                self.gap(header.next_offset)

    def rebuild_records(
        self, records: Iterable[RawRecord], form: "_Form"
    ) -> Generator[None, None, bool]:
        """Add records whose batch cannot be forwarded: a batch for each dense run.

        Args:
            records: the records in order of offset.
            form: their batch's.

        Returns:
            Whether all were added, and the plan was not full before.
        """
        form = form._replace(max_bytes=max(form.max_bytes, self.built_bytes))
        run: list[RawRecord] = []
        for record in records:
            self.work += 1
            if self.work >= STEP_RECORDS:
                self.work = 0
                yield
            if record.offset < self.end:
                continue
            if run and (record.offset != run[-1].offset + 1 or len(run) >= MAX_RUN):
                self._append_run(run, form)
                run = []
                if self.full:
                    return False
            run.append(record)
        if run:
            self._append_run(run, form)
        return True

    def _append_run(self, run: list[RawRecord], form: "_Form") -> None:
        self.gap(Offset(run[0].offset))
        self._build(run, form)
        self.work += _RUN_RECORDS
        self.end = Offset(run[-1].offset + 1)

    def finish(self) -> list[Piece]:
        """Complete the plan and return it."""
        self._end_gap()
        return self._pieces

    def flush(self) -> Generator[None, None, None]:
        """Turn the small batches into pieces, merged if they are many."""
        small_batches = self._small_batches
        if not small_batches:
            return
        self.work += self._small_records
        self._small_batches, self._small_bytes, self._small_records = [], 0, 0
        if len(small_batches) >= _least_run(small_batches):
            for nth, batch in enumerate(merge(small_batches, self._buffer, self.max_decoded)):
                if nth:  # they decompress to more than a batch may hold
                    yield
                self._append(batch)
            return
        for header in small_batches:
            if header.forwardable:
                self._append(Encoded(header, header.records(self._buffer)))
            else:
                self._restamp(header)

    def _restamp(self, header: Header) -> None:
        """Add a batch of LogAppendTime; each record gets the timestamp that its readers see."""
        self.work += header.num_records
        batch = alone(header, self._buffer, self.max_decoded)
        if batch.header.length <= max(header.length, self.built_bytes):
            self._append(batch)
        else:
            records = list(each_record(header, header.records(self._buffer), self.max_decoded))
            max_bytes = max(header.length, self.built_bytes)
            self._build(records, _Form(header.codec, max_bytes, header.leader_epoch))

    def _build(self, records: list[RawRecord], form: "_Form") -> None:
        """Append records as one batch, or as several if it compresses to more than `max_bytes`.

        A producer may compress better than twinlog, and the destination accepts no longer batches
        than the source did.
        """
        batch = build(records, form.codec, form.leader_epoch)
        if batch.header.length > form.max_bytes and len(records) > 1:
            middle = len(records) // 2
            self._build(records[:middle], form)
            self._build(records[middle:], form)
        else:
            self._append(batch)

    def _append(self, batch: Encoded) -> None:
        assert not self._small_batches
        self._end_gap()
        header, records = batch
        self._pieces.append(Data(Offset(header.base_offset), header.next_offset, header, records))

    def _end_gap(self) -> None:
        """Turn the gap at the end into a piece."""
        if self._gap:
            spans, self._gap = tuple(self._gap), []
            seen = all(span.reason in _SEEN for span in spans)
            self._pieces.append(Gap(self._gap_start, spans[-1].end, seen, spans))
