"""The records of one log in order, and what lies between them, for a comparison by content.

`LogReader` gives spans of offsets. A comparison of logs with different offsets needs the next
record of each, some records ahead of that, and whether the log may lack records in front of it:

    spans      | DATA 0-4 | CONTROL 5 | HOLE 6-9 | DATA 10-12 |
    a cursor     0 1 2 3 4  blank 5     blank 6-9  10 11 12
                                        └ `lack`: records may be missing in front of 10

A marker and an aborted batch prove that no record is missing. A hole, offsets below
the log start, and offsets that were not seen do not.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.records import RawRecord
from twinlog.verify.log_view import Kind, Span

MAX_HELD: Final = 64 << 20
"""Bytes of records that a cursor looks ahead."""
_LACKS: Final = {
    Kind.HOLE: "records were there that are gone",
    Kind.BELOW: "records below the log start offset are deleted",
    Kind.UNSEEN: "offsets were not seen",
}


class SpanSource(Protocol):
    """A reader of one partition's log (`LogReader`)."""

    async def span(self, at: int, end: int) -> Span:
        """What the log holds from offset `at` on, up to `end` at most."""
        ...


class Blank(NamedTuple):
    """Offsets `[start, end)` without a record that a reader sees; `reason`: why they are unseen."""

    start: int
    end: int
    kind: Kind
    reason: str = ""

    @property
    def lack(self) -> str:
        """Why the log may have had records there; empty if it is proven that it had none."""
        return _LACKS.get(self.kind, "")


class LogCursor:
    """A place in a log.

    Args:
        reader: of the partition; nobody else uses it.
        start: the first offset.
        end: the offset behind the last one.
        seen: receives the blanks in order, as the cursor passes them.
        lack: why records may be missing in front of the first one; empty: none are.
    """

    def __init__(
        self,
        reader: SpanSource,
        start: int,
        end: int,
        seen: Callable[[Blank], None] = lambda _: None,
        lack: str = "",
    ) -> None:
        self._reader = reader
        self._seen = seen
        self._items: deque[RawRecord | Blank] = deque()
        self._batch: Span | None = None  # the next batch behind the items, not decoded
        self._read_to = start
        self._queued = self._held = 0
        self.position = start
        """All before it was passed."""
        self.end = max(start, end)
        self.lack = lack
        """Why records may be missing between the last pair and the next record."""
        self.stamped = False
        """Whether the broker has set the timestamps of the last decoded batch (LogAppendTime)."""

    @property
    def read_to(self) -> int:
        """The offset up to which the log was read; what follows it was not looked at."""
        return self._read_to if self._batch is None else max(self._batch.start, self.position)

    @property
    def ended(self) -> bool:
        """Whether no record is left; to be asked after `ready`."""
        return not self._items and self._batch is None and self._read_to >= self.end

    async def ready(self) -> None:
        """Pass blanks until a record or the end is next."""
        while True:
            while self._items and isinstance(item := self._items[0], Blank):
                self._items.popleft()
                self._pass(item)
            if self._items or self._batch is not None or self._read_to >= self.end:
                return
            await self._load()

    def batch(self) -> Span | None:
        """The next batch as it is, if all of it comes next, and it lacks no offset."""
        span = self._batch
        if self._items or span is None or span.batch is None or span.batch.header is None:
            return None
        header = span.batch.header
        whole = header.base_offset == self.position and header.next_offset == self._read_to
        return span if whole and header.is_dense else None

    def take_batch(self) -> None:
        """Pass the batch that `batch` has returned."""
        assert self._batch is not None
        self._batch = None
        self.position = self._read_to

    def next(self) -> RawRecord | None:
        """The next record, of those that are in memory; `ready` brings one."""
        if not self._items:
            self._decode()
        item = self._items[0] if self._items else None
        return item if isinstance(item, RawRecord) else None

    def pop(self) -> None:
        """Pass the record that `next` has returned."""
        item = self._items.popleft()
        assert isinstance(item, RawRecord)
        self._queued -= 1
        self._held -= len(item.tail)
        self.position = item.offset + 1

    async def look(self, count: int) -> list[RawRecord]:
        """The next records, at most so many, and not more than `MAX_HELD` bytes; none is passed."""
        while self._queued < count and self._held < MAX_HELD:
            if self._batch is not None:
                self._decode()
            elif self._read_to < self.end:
                await self._load()
            else:
                break
        return list(itertools.islice(self._records(), count))

    def held(self) -> list[RawRecord]:
        """All records that are in memory; the next ones are at `read_to` or behind."""
        return list(self._records())

    def lack_until(self, target: int) -> str:
        """Why records may be missing in front of an offset that was looked at; empty: none are."""
        if self.lack:
            return self.lack
        ahead = (item for item in self._items if isinstance(item, Blank) and item.start < target)
        return next((blank.lack for blank in ahead if blank.lack), "")

    async def drain(self, target: int, take: Callable[[RawRecord], None]) -> None:
        """Pass all before an offset, with each record."""
        while self.position < min(target, self.end):
            if self._items:
                item = self._items[0]
                if isinstance(item, Blank):
                    self._pass(item)
                    self._items.popleft()
                elif item.offset < target:
                    self.pop()
                    take(item)
                else:
                    return
            elif self._batch is not None:
                self._decode()
            else:
                await self._load()

    async def scan(self) -> list[RawRecord]:
        """Pass the next records that are read together; none: the end."""
        records: list[RawRecord] = []
        await self.ready()
        while not records and not self.ended:
            while (record := self.next()) is not None:
                records.append(record)
                self.pop()
            await self.ready()
        return records

    def _records(self) -> Iterator[RawRecord]:
        return (item for item in self._items if isinstance(item, RawRecord))

    def _pass(self, blank: Blank) -> None:
        self.position = blank.end
        self.lack = self.lack or blank.lack
        self._seen(blank)

    async def _load(self) -> None:
        self._decode()
        span = await self._reader.span(self._read_to, self.end)
        start, upto = self._read_to, min(span.end, self.end)
        self._read_to = upto
        if span.kind is Kind.DATA:
            self._batch = span._replace(start=start)
        else:
            self._items.append(Blank(start, upto, span.kind, span.reason))

    def _decode(self) -> None:
        """Decode the batch that is next."""
        span, self._batch = self._batch, None
        if span is None or span.batch is None:
            return
        end = self._read_to
        try:
            records = list(span.batch.by_offset().values())
        except CorruptBatch as error:
            self._items.append(Blank(span.start, end, Kind.UNSEEN, error.message))
            return
        self.stamped = span.batch.stamped
        self._items.extend(self._with_holes(records, span.start, end))

    def _with_holes(
        self, records: list[RawRecord], start: int, end: int
    ) -> Iterator[RawRecord | Blank]:
        at = start
        for record in records:
            if not start <= record.offset < end:
                continue
            if record.offset > at:
                yield Blank(at, record.offset, Kind.HOLE)
            yield record
            self._queued += 1
            self._held += len(record.tail)
            at = record.offset + 1
        if at < end:
            yield Blank(at, end, Kind.HOLE)
