"""One partition's log as its leader keeps it: real batches, offsets, transactions, compaction.

    start ──► stable end ──► high watermark ──► end
              (LSO)          (replicated)       (the leader's own log)

The history of appends is stored beside the log, so that the producer state can be rebuilt for any
prefix, as a broker does when it loads or truncates a log.

Source: `UnifiedLog`, `LogValidator`, `TransactionIndex`, `LogCleaner`, `LeaderEpochFileCache`.
"""

import bisect
import functools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from model.producers import Producers, Refused
from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, Header, batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, decode, encode_tail, raw_records, whole
from twinlog.kafka.types import AbortedTransaction, EpochEnd

OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
MESSAGE_TOO_LARGE: Final = 10
INVALID_RECORD: Final = 87

_PLACE: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_AT: Final = 12
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class StoredBatch(NamedTuple):
    """A batch as it is stored in the log, with base offset and leader epoch set."""

    header: Header
    data: bytes


class Marker(NamedTuple):
    """A transaction marker; the producer need not have an open transaction."""

    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int = 0


class _Event(NamedTuple):
    """An append, from which the producer state is rebuilt."""

    base_offset: int
    header: Header
    marker: Marker | None
    timestamp: int


class _Ended(NamedTuple):
    producer_id: int
    first: int
    last: int
    committed: bool


@dataclass(slots=True)
class Log:
    """The log. `compact` refuses records without a key; `max_bytes` limits a batch."""

    compact: bool = False
    max_bytes: int = 1_048_588
    start: int = 0
    high_watermark: int = 0
    end: int = 0
    leader_epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # epoch, first offset
    producers: Producers = field(default_factory=Producers)
    batches: list[StoredBatch] = field(default_factory=list)
    _events: list[_Event] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)  # producer id: first offset
    _ended: list[_Ended] = field(default_factory=list)
    on_append: Callable[[StoredBatch], None] | None = None

    @property
    def stable_end(self) -> int:
        """The last stable offset: every transaction below it is decided and replicated."""
        return self.stable_below(self.high_watermark)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset as a replica knows it that has this high watermark."""
        unreplicated = (e.first for e in self._ended if e.last >= high_watermark)
        return min(high_watermark, *self._open.values(), *unreplicated, high_watermark)

    def append(self, data: bytes) -> int:
        """Append a client's batch; return its base offset (of the first copy, for a duplicate).

        Raises:
            Refused: with the broker's code; nothing was appended.
        """
        header = self._validate(data)
        base_offset = self.end
        if header.producer_id >= 0:
            if (known := self.producers.duplicate(header)) is not None:
                return known.base_offset
            self.producers.check(header)
            self.producers.data(header, base_offset)
            if header.is_transactional:
                self._open.setdefault(header.producer_id, base_offset)
        self._put(data, None, header.max_timestamp)
        return base_offset

    def append_marker(self, marker: Marker, now_ms: int) -> int:
        """Append a transaction marker; return its offset.

        Raises:
            Refused: the partition knows a newer producer epoch, or a newer coordinator epoch.
        """
        who = marker.producer_id, marker.epoch, marker.coordinator_epoch
        self.producers.check_marker(*who)
        offset = self.end
        started = self.producers.marker(*who, now_ms)
        if started is not None:
            self._open.pop(marker.producer_id)
            self._ended.append(_Ended(marker.producer_id, started, offset, marker.committed))
        self._put(marker_batch(marker, now_ms), marker, now_ms)
        return offset

    def _validate(self, data: bytes) -> Header:
        """Refuse what LogValidator and UnifiedLog.analyzeAndValidateRecords refuse."""
        try:
            found = list(batches(memoryview(data)))
        except CorruptBatch as error:
            raise Refused(
                CORRUPT_MESSAGE if "checksum" in error.message else INVALID_RECORD, error.message
            ) from error
        if len(found) != 1 or found[0].end != len(data):
            raise Refused(INVALID_RECORD, "not exactly one batch")
        header = found[0]
        if len(data) > self.max_bytes:
            raise Refused(MESSAGE_TOO_LARGE)
        if header.is_control or not header.is_dense or header.num_records == 0:
            raise Refused(INVALID_RECORD, "control batch, or holes")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise Refused(INVALID_RECORD, "a producer without a sequence")
        if header.base_offset != 0:
            raise Refused(INVALID_RECORD, "a client's batch begins at offset 0")
        if self.compact and any(
            decode(record).key is None
            for record in raw_records(header, memoryview(data)[HEADER_SIZE:])
        ):
            raise Refused(INVALID_RECORD, "a compacted topic takes no record without key")
        return header

    def _put(self, data: bytes, marker: Marker | None, timestamp: int) -> None:
        stored = placed(data, self.end, self.leader_epoch)
        self.batches.append(stored)
        self._events.append(_Event(self.end, stored.header, marker, timestamp))
        self.end = stored.header.next_offset
        if self.on_append is not None:
            self.on_append(stored)

    def read(self, offset: int, limit: int, max_bytes: int) -> Iterator[bytes]:
        """Return whole batches from the batch that holds `offset`, all starting below `limit`.

        Raises:
            Refused: `offset` lies outside the log.
        """
        if not self.start <= offset <= self.end:
            raise Refused(OFFSET_OUT_OF_RANGE)
        at = bisect.bisect_right(self.batches, offset, key=lambda b: b.header.next_offset)
        left = max_bytes
        first = True
        for index in range(at, len(self.batches)):
            header, data = self.batches[index]
            if header.base_offset >= limit or (not first and len(data) > left):
                return
            yield data
            left -= len(data)
            first = False

    def lead(self) -> None:
        """Begin a leader epoch; its leader notes its start offset before it appends anything."""
        self.leader_epoch += 1
        self.epochs.append((self.leader_epoch, self.end))

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return the end of the largest epoch up to `epoch`; None if `epoch` is above all."""
        if epoch == self.leader_epoch:
            return EpochEnd(epoch, self.end)
        at = bisect.bisect_right(self.epochs, epoch, key=lambda entry: entry[0])
        if at == len(self.epochs):
            return None
        return EpochEnd(self.epochs[at - 1][0] if at else epoch, self.epochs[at][1])

    def aborted(self, offset: int, limit: int) -> tuple[AbortedTransaction, ...]:
        """Return aborted transactions that overlap `[offset, limit)`, in order of their markers."""
        return tuple(
            AbortedTransaction(ended.producer_id, ended.first)
            for ended in self._ended
            if not ended.committed and ended.last >= offset and ended.first < limit
        )

    def is_open(self, producer_id: int) -> bool:
        """Return whether the producer has an open transaction with data in this log."""
        return producer_id in self._open

    def delete_before(self, offset: int) -> None:
        """Raise the log start offset, as retention and DeleteRecords do; remove whole batches."""
        self.start = max(self.start, min(offset, self.high_watermark))
        keep = bisect.bisect_right(self.batches, self.start, key=lambda b: b.header.next_offset)
        del self.batches[:keep]
        first = bisect.bisect_right(self.epochs, self.start, key=lambda entry: entry[1]) - 1
        self.epochs[: first + 1] = [(self.epochs[first][0], self.start)]

    def rewrite(self, replace: Callable[[StoredBatch], bytes | None], limit: int) -> None:
        """Replace or remove the batches that end by `limit`, as compaction does.

        Offsets stay; `Log` does not check what remains of a batch.
        """
        kept = []
        for stored in self.batches:
            data = replace(stored) if stored.header.next_offset <= limit else stored.data
            if data is not None:
                kept.append(stored if data is stored.data else stored_batch(data))
        self.batches = kept

    def truncate(self, end: int, *, snapshot: bool = False) -> None:
        """Cut the log to a prefix and rebuild the producer state.

        Args:
            end: the log end offset afterwards; rounded down to the start of a batch.
            snapshot: only the last batch of each producer is remembered.
        """
        cut = len(self._events)
        while cut and self._events[cut - 1].header.next_offset > end:
            cut -= 1
        self.end = self._events[cut - 1].header.next_offset if cut else 0
        del self._events[cut:]
        self.batches = [b for b in self.batches if b.header.base_offset < self.end]
        self._ended = [e for e in self._ended if e.last < self.end]
        self.high_watermark = min(self.high_watermark, self.end)
        self.start = min(self.start, self.end)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
        self._rebuild()
        if snapshot:
            self.producers.forget_all_but_last()

    def _rebuild(self) -> None:
        self.producers = Producers()
        self._open = {}
        for event in self._events:
            if event.marker is not None:
                marker = event.marker
                self.producers.marker(
                    marker.producer_id, marker.epoch, marker.coordinator_epoch, event.timestamp
                )
                self._open.pop(marker.producer_id, None)
            elif event.header.producer_id >= 0:
                self.producers.data(event.header, event.base_offset)
                if event.header.is_transactional:
                    self._open.setdefault(event.header.producer_id, event.base_offset)


def placed(data: bytes, base_offset: int, leader_epoch: int) -> StoredBatch:
    """Set the fields that the broker sets, which the checksum does not cover."""
    out = bytearray(data)
    _PLACE.pack_into(out, 0, base_offset)
    _LEADER_EPOCH.pack_into(out, _LEADER_EPOCH_AT, leader_epoch)
    return stored_batch(bytes(out))


def stored_batch(data: bytes) -> StoredBatch:
    """Parse a stored batch from its bytes."""
    return StoredBatch(next(batches(memoryview(data))), data)


@functools.lru_cache(maxsize=64)
def marker_batch(marker: Marker, now_ms: int) -> bytes:
    """Build the control batch that a broker writes for a transaction's end."""
    key = _MARKER_KEY.pack(0, int(marker.committed))
    tail = encode_tail(key, _MARKER_VALUE.pack(0, marker.coordinator_epoch))
    batch = build([RawRecord(0, now_ms, 0, memoryview(tail))], Codec.NONE)
    return whole(
        batch,
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=marker.producer_id,
        epoch=marker.epoch,
    )
