"""The two logs of a flow with transforms, so that flow_job.py can compare them by their records.

The source's log is read as its copy should be: each record as the transforms should leave it
(connect_transforms.py), at its own offset. A record that they drop, or route to another topic than
the one that is compared, becomes a blank:

    source      a       b         c        d        e
    to A.t      a'   filtered     c'    routed      e'        the log of A.t is compared with this
    to B.t   routed  filtered  routed      d'    routed       the log of B.t with this

Both logs get a normal form: a key or value that a transform may have written as JSON, and a header
that has a field's text, are compared by their meaning (json_meaning.py), all others byte by byte.

A record that cannot be transformed is not seen: nothing is concluded about its copy.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.records import RawRecord, Record, decode, encode_tail
from twinlog.kafka.types import TopicPartition
from twinlog.verify.connect_transforms import KEY, VALUE, ConnectTransforms, NotTransformable
from twinlog.verify.json_meaning import normal_form
from twinlog.verify.log_cursor import SpanSource
from twinlog.verify.log_view import Kind, Span, SpanRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """The transforms of a flow, for a task.

    Attributes:
        values: the flow's settings, by MirrorMaker 2's names; they have been checked.
        topic: the name of the remote topic that the transforms see.
    """

    values: Mapping[str, str] = field(repr=False)
    topic: str


class Omission(NamedTuple):
    """Why a record is not expected in a log."""

    kind: Kind
    reason: str = ""


Mapped = RawRecord | Omission


class LogPlace(NamedTuple):
    """Offsets that have one record, or none."""

    start: int
    end: int
    kind: Kind
    reason: str = ""
    record: RawRecord | None = None


class TransformedLogs:
    """What is compared of a source partition and one of the partitions that its records go to.

    Args:
        settings: the transforms.
        target: the partition whose log is compared.
    """

    def __init__(self, settings: TransformSettings, target: TopicPartition) -> None:
        self._transforms = ConnectTransforms(settings.values)
        self._topic = settings.topic
        self._target = target

    def expected(self, raw: RawRecord) -> Mapped:
        """What should be in the target's log of a record of the source.

        Raises:
            CorruptBatch: the record cannot be decoded.
        """
        return self._expected(raw, everything=False)

    def unfiltered(self, raw: RawRecord) -> Mapped:
        """What would be there if no record was dropped or routed elsewhere.

        Raises:
            CorruptBatch: the record cannot be decoded.
        """
        return self._expected(raw, everything=True)

    def written(self, raw: RawRecord) -> Mapped:
        """A record of the target's log.

        Raises:
            CorruptBatch: the record cannot be decoded.
        """
        return self._normal(raw, decode(raw))

    def _expected(self, raw: RawRecord, *, everything: bool) -> Mapped:
        record = decode(raw)
        try:
            result = self._transforms.expected(record, self._topic, self._target.partition)
        except NotTransformable as error:
            reason = f"the record cannot be transformed: {error}"
            return Omission(Kind.UNSEEN, reason)
        if not everything and result.dropped:
            return Omission(Kind.FILTERED)
        if not everything and result.topic != self._target.topic:
            return Omission(Kind.ROUTED)
        copy = Record(raw.offset, raw.timestamp, result.key, result.value, result.headers)
        return self._normal(raw, copy)

    def _normal(self, raw: RawRecord, record: Record) -> RawRecord:
        transforms = self._transforms
        return normal_record(raw, record, transforms.meant_parts, transforms.meant_headers)


def normal_record(
    raw: RawRecord, record: Record, parts: Collection[str], headers: Collection[str] = ()
) -> RawRecord:
    """A record as it is compared.

    Args:
        raw: has the offset and timestamp.
        record: what it holds.
        parts: which of `KEY` and `VALUE` are compared by the meaning of their JSON.
        headers: the names of those that are.
    """
    tail = encode_tail(
        normal_form(record.key) if KEY in parts else record.key,
        normal_form(record.value) if VALUE in parts else record.value,
        [(name, normal_form(data) if name in headers else data) for name, data in record.headers],
    )
    return raw._replace(tail=memoryview(tail))


class MappedReader:
    """A log with other records, or fewer, at the same offsets.

    Args:
        reader: of the partition; nobody else uses it.
        mapped: what becomes of a record. It may raise CorruptBatch: then its batch is not seen.
    """

    def __init__(self, reader: SpanSource, mapped: Callable[[RawRecord], Mapped]) -> None:
        self._reader = reader
        self._mapped = mapped
        self._spans: list[Span] = []

    async def span(self, at: int, end: int) -> Span:
        """What the log holds from offset `at` on, up to `end` at most."""
        while self._spans and self._spans[0].end <= at:
            self._spans.pop(0)
        if not self._spans or self._spans[0].start > at:
            span = await self._reader.span(at, end)
            try:
                self._spans = list(self._pieces(span))
            except CorruptBatch as error:
                self._spans = [Span(span.start, span.end, Kind.UNSEEN, reason=error.message)]
        return self._spans[0]

    def _pieces(self, span: Span) -> Iterator[Span]:
        """The spans that a span becomes: runs of records, of omissions, and of holes."""
        if span.batch is None:
            yield span
            return
        yield from spans_of(self._places(span), stamped=span.batch.stamped)

    def _places(self, span: Span) -> Iterator[LogPlace]:
        assert span.batch is not None
        at = span.start
        for record in span.batch.by_offset().values():
            if not span.start <= record.offset < span.end:
                continue
            if record.offset > at:
                yield LogPlace(at, record.offset, Kind.HOLE)
            at = record.offset + 1
            mapped = self._mapped(record)
            if isinstance(mapped, RawRecord):
                yield LogPlace(record.offset, at, Kind.DATA, "", mapped)
            else:
                yield LogPlace(record.offset, at, mapped.kind, mapped.reason)
        if at < span.end:
            yield LogPlace(at, span.end, Kind.HOLE)


def spans_of(places: Iterable[LogPlace], *, stamped: bool) -> Iterator[Span]:
    """The spans of adjacent places: runs of records, of omissions, and of holes.

    Args:
        places: in order.
        stamped: whether a broker has set the timestamps (LogAppendTime).
    """
    for (kind, reason), group in groupby(places, lambda place: place[2:4]):
        run = list(group)
        records = [place.record for place in run if place.record is not None]
        # Without a header no batch is taken for equal by its bytes (`same_batch`).
        batch = SpanRecords(None, memoryview(b""), records, stamped=stamped)
        data = batch if kind is Kind.DATA else None
        yield Span(run[0].start, run[-1].end, kind, data, reason)
