"""Logs that are written down in tests, as `LogReader` would give them, without a broker."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, Record, build, encode_tail
from twinlog.kafka.types import LogBounds
from twinlog.verify.log_view import Kind, Span, SpanRecords


def record_of(offset: int, value: str, timestamp: int = 0) -> RawRecord:
    """A record with a value and no key."""
    return RawRecord(offset, timestamp, 0, memoryview(encode_tail(None, value.encode())))


@dataclass(slots=True)
class WrittenLog:
    """A log as it is written: `records` a batch, `skip` offsets without a record."""

    start: int = 0
    spans: list[Span] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset behind the last one."""
        return self.spans[-1].end if self.spans else self.start

    @property
    def bounds(self) -> LogBounds:
        """Of a log without an open transaction."""
        return LogBounds(0, self.start, self.end, self.end)

    def records(self, values: Iterable[str], timestamp: int = 0) -> "WrittenLog":
        """Append a batch, whose records have consecutive offsets."""
        records = [record_of(self.end + at, value, timestamp) for at, value in enumerate(values)]
        if records:
            encoded = build(records, Codec.NONE)
            batch = SpanRecords(encoded.header, encoded.records)
            end = records[-1].offset + 1
            self.spans.append(Span(records[0].offset, end, Kind.DATA, batch))
        return self

    def batch(self, records: Iterable[Record]) -> "WrittenLog":
        """Append a batch of records, at consecutive offsets behind the end."""
        raws = [
            RawRecord(
                *(self.end + at, record.timestamp, 0),
                memoryview(encode_tail(record.key, record.value, record.headers)),
            )
            for at, record in enumerate(records)
        ]
        if raws:
            encoded = build(raws, Codec.NONE)
            batch = SpanRecords(encoded.header, encoded.records)
            self.spans.append(Span(raws[0].offset, raws[-1].offset + 1, Kind.DATA, batch))
        return self

    def sparse(self, values: Sequence[str | None], timestamp: int = 0) -> "WrittenLog":
        """Append a batch that was compacted: None are offsets without a record."""
        records = [
            record_of(self.end + at, value, timestamp)
            for at, value in enumerate(values)
            if value is not None
        ]
        batch = SpanRecords(None, memoryview(b""), records)
        self.spans.append(Span(self.end, self.end + len(values), Kind.DATA, batch))
        return self

    def skip(self, count: int, kind: Kind = Kind.CONTROL, reason: str = "") -> "WrittenLog":
        """Append offsets without a record."""
        self.spans.append(Span(self.end, self.end + count, kind, reason=reason))
        return self

    async def span(self, at: int, end: int) -> Span:
        """As `LogReader.span`."""
        for span in self.spans:
            if span.start <= at < span.end:
                return span
        return Span(at, end, Kind.UNSEEN, reason="behind the end")
