"""Whether two logs are the same: every offset gets one class, and the classes add up.

    compared   both logs hold a record there, and it is the same
    differs    they do not agree: a record lost, added or altered, or an offset unexplained
    absent     nothing is left to compare there, and bytes or a log start offset prove it
    not seen   a log could not be read there; nothing is concluded
    (behind    the destination's log has not reached the offset yet; counted by the caller)

The class depends on what the two logs hold (`log_view.Kind`), source down, destination across:

                DATA      CONTROL  ABORTED  HOLE      BELOW     UNSEEN
    DATA        compare   lost     lost     lost [1]  begins    unseen
    CONTROL     added     absent   absent   hole [2]  absent    unseen
    ABORTED     added     absent   absent   hole [2]  absent    unseen
    HOLE        added [1] hole [2] hole [2] hole [2]  hole [2]  unseen
    BELOW       absent    absent   absent   absent    absent    absent
    UNSEEN      unseen    unseen   unseen   unseen    unseen    unseen

    [1] On a compacted topic it depends on the record's key, see `Keys`.
    [2] Absent on a compacted topic. On any other topic nothing leaves a hole: it differs.
    lost: the source has a record and the destination has none, so the mirror lost it.
    begins: the destination's log start offset is above a record of the source.
    BELOW on the source: the source has nothing left to compare.

Compaction: the two cleaners run at different times, so one log may hold a record where the other
has a hole. In any case, both logs have to agree on each key's *latest* value; a tombstone equals no
record. They agree exactly if

- a value that only the source has is followed by a record of its key on the destination, or by a
  tombstone of its key that is accepted;
- a value that only the destination has is followed by a record of its key on the destination, or
  on the source at an offset that was not compared;
- a tombstone that only one log has leaves the other log without an earlier value of its key
  (`Keys.tombstones`; that log is read a second time for it).

A cleaner may run while the logs are read, because of records written after their ends were read. So
records that explain the waiting ones are also searched behind these ends (`newer`). Records there
are not compared: a value on the destination does not explain a record that only the destination
has.
"""

import enum
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.log.records import RawRecord, decode
from twinlog.verify.log_view import Kind, Span


class DifferenceKind(enum.StrEnum):
    """Why offsets differ; the value is the text for people, which nothing depends on."""

    LOST = "missing on the destination"
    ADDED = "a record on the destination that the source does not have"
    BEGINS = "the destination's log begins later"
    UNEXPLAINED = "a hole that nothing explains: cleanup.policy does not contain compact"
    CONTENT = "key, value or headers differ"
    TIMESTAMP = "the timestamp differs"
    LATEST = "the latest value of a key differs"

    @property
    def loses_nothing(self) -> bool:
        """Whether the destination holds no record there, so that a rebuild loses none."""
        return self in {DifferenceKind.LOST, DifferenceKind.BEGINS, DifferenceKind.UNEXPLAINED}


TOO_MANY_KEYS: Final = "too many records that only one log has (compaction)"
NO_KEY: Final = "a record without a key that only one log has (compaction)"
NOT_FOLLOWED: Final = "later records of the key were not seen"

MARKER: Final = "marker"
ABORTED: Final = "aborted"
COMPACTED: Final = "compacted"
LOG_START: Final = "log_start"
FILTERED: Final = "filtered"
ROUTED: Final = "routed"
OTHER_TOPICS: Final = "other_topics"
REASONS: Final = (MARKER, ABORTED, COMPACTED, LOG_START, FILTERED, ROUTED, OTHER_TOPICS)
"""Why an offset has nothing to compare."""

MAX_RANGES: Final = 100
"""Ranges of a stretch that are named; all further ones become one more range."""
MAX_PENDING: Final = 1_000_000
"""Most records that only one log has, and whose keys are in memory at a time."""
_DIGEST: Final = 16


class Outcome(NamedTuple):
    """The class of an offset. Exactly one of the three fields is set."""

    absent: str = ""
    differs: DifferenceKind | None = None
    unseen: bool = False


_BY_KIND: Final = {
    Kind.CONTROL: MARKER,
    Kind.ABORTED: ABORTED,
    Kind.HOLE: COMPACTED,
    Kind.BELOW: LOG_START,
}


def outcome(source: Kind, destination: Kind, *, compacted: bool) -> Outcome:
    """The table above, except DATA on both sides, and [1] on a compacted topic."""
    if source is Kind.BELOW:
        return Outcome(absent=LOG_START)
    if Kind.UNSEEN in (source, destination):
        return Outcome(unseen=True)
    if source is Kind.DATA:
        return Outcome(
            differs=DifferenceKind.BEGINS if destination is Kind.BELOW else DifferenceKind.LOST
        )
    if destination is Kind.DATA:
        return Outcome(differs=DifferenceKind.ADDED)
    if Kind.HOLE in (source, destination) and not compacted:
        return Outcome(differs=DifferenceKind.UNEXPLAINED)
    return Outcome(absent=_BY_KIND[source])


class Range(NamedTuple):
    """Offsets `[start, end)` that differ or were not seen, and why.

    `reason` is a `DifferenceKind` if the offsets were compared and differ, else any text.
    """

    start: int
    end: int
    reason: str


@dataclass(slots=True)
class Tally:
    """The counts and the ranges. Counts are exact; up to `MAX_RANGES` ranges are named."""

    compared: int = 0
    differs: int = 0
    not_seen: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    differences: list[Range] = field(default_factory=list)
    unseen: list[Range] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The number of classified offsets."""
        return self.compared + self.differs + self.not_seen + self.absent.total()

    def differ(self, start: int, end: int, reason: str) -> None:
        """Count offsets that differ."""
        self.differs += end - start
        _extend(self.differences, Range(start, end, reason))

    def see_not(self, start: int, end: int, reason: str) -> None:
        """Count offsets that were not seen."""
        self.not_seen += end - start
        _extend(self.unseen, Range(start, end, reason))


def _extend(ranges: list[Range], addition: Range) -> None:
    previous = ranges[-1] if ranges else None
    if previous is not None and (previous.end, previous.reason) == (
        addition.start,
        addition.reason,
    ):
        ranges[-1] = Range(previous.start, addition.end, previous.reason)
    elif len(ranges) <= MAX_RANGES:
        ranges.append(addition)
    else:
        summary = ranges[-1]
        ranges[-1] = Range(
            min(summary.start, addition.start),
            max(summary.end, addition.end),
            "more ranges, not named singly",
        )


class StretchClassifier:
    """Classifies a stretch, span by span in order of offset; call `finish` after the last one."""

    def __init__(self, *, compacted: bool) -> None:
        self.tally = Tally()
        self.keys = Keys() if compacted else None
        self._compacted = compacted

    def add(self, source: Span, destination: Span, start: int, end: int) -> None:
        """Classify `[start, end)`, which lies within both spans.

        Raises:
            CorruptBatch: records cannot be decoded; nothing of `[start, end)` was counted.
        """
        if source.kind is not Kind.DATA and destination.kind is not Kind.DATA:
            self._range(source, destination, start, end)
        elif _same_batch(source, destination, start, end):
            if self.keys is not None and self.keys.waiting:
                for record in _records(destination, start, end):
                    self._settle(record)
            self.tally.compared += end - start
        else:
            _decode_all(source, destination)
            for offset in range(start, end):
                self._offset(source, destination, offset)

    def finish(
        self,
        *,
        complete: bool,
        alive_on_source: Collection[bytes] = (),
        alive_on_destination: Collection[bytes] = (),
    ) -> Tally:
        """The tally, including the records that waited for a later record of their key.

        Args:
            complete: whether all later records were seen.
            alive_on_source: keys of `Keys.tombstones(on_source=False)` with an earlier value on the
                source.
            alive_on_destination: keys of `Keys.tombstones(on_source=True)` with an earlier value on
                the destination.
        """
        for entry, accepted in (
            self.keys.unsettled(alive_on_source, alive_on_destination) if self.keys else ()
        ):
            if not complete:
                self.tally.see_not(entry.offset, entry.offset + 1, NOT_FOLLOWED)
            elif accepted:
                self.tally.absent[COMPACTED] += 1
            else:
                reason = DifferenceKind.LOST if entry.on_source else DifferenceKind.LATEST
                self.tally.differ(entry.offset, entry.offset + 1, reason)
        self.tally.differences.sort()
        return self.tally

    def _range(self, source: Span, destination: Span, start: int, end: int) -> None:
        result = outcome(source.kind, destination.kind, compacted=self._compacted)
        if result.unseen:
            self.tally.see_not(start, end, source.reason or destination.reason)
        elif result.differs:
            self.tally.differ(start, end, result.differs)
        else:
            self.tally.absent[result.absent] += end - start

    def _offset(self, source: Span, destination: Span, offset: int) -> None:
        expected, actual = source.record(offset), destination.record(offset)
        if actual is not None:
            self._settle(actual)
        if expected is not None and actual is not None:
            self._both(expected, actual)
            return
        kinds = _kind(source, expected), _kind(destination, actual)
        record = expected or actual
        if self.keys is not None and record is not None and kinds in _BY_KEY:
            self._alone(record, on_source=record is expected)
        else:
            spans = source._replace(kind=kinds[0]), destination._replace(kind=kinds[1])
            self._range(*spans, offset, offset + 1)

    def _both(self, expected: RawRecord, actual: RawRecord) -> None:
        if expected.tail != actual.tail:
            self.tally.differ(expected.offset, expected.offset + 1, DifferenceKind.CONTENT)
        elif expected.timestamp != actual.timestamp:
            self.tally.differ(expected.offset, expected.offset + 1, DifferenceKind.TIMESTAMP)
        else:
            self.tally.compared += 1

    def _alone(self, record: RawRecord, *, on_source: bool) -> None:
        """Take a record that the other log's cleaner may have removed."""
        assert self.keys is not None
        key = decode(record).key
        if key is None:  # a cleaner may have removed it, and no later record can show that
            self.tally.see_not(record.offset, record.offset + 1, NO_KEY)
        elif not self.keys.wait(record, on_source=on_source):
            self.tally.see_not(record.offset, record.offset + 1, TOO_MANY_KEYS)

    def _settle(self, record: RawRecord) -> None:
        if self.keys is not None and self.keys.waiting:
            self.tally.absent[COMPACTED] += self.keys.settle(record)

    def newer(self, record: RawRecord, *, on_source: bool) -> None:
        """Take a record of one log from behind the end of the compared range."""
        if self.keys is not None and self.keys.waiting:
            # A tombstone means that the key has no value any more, whichever side has it.
            side = None if decode(record).value is None else not on_source
            self.tally.absent[COMPACTED] += self.keys.settle(record, waits_on_source=side)


_BY_KEY: Final = frozenset({(Kind.DATA, Kind.HOLE), (Kind.HOLE, Kind.DATA)})


def _kind(span: Span, record: RawRecord | None) -> Kind:
    """What one offset of a span holds: offsets between a data span's records are holes."""
    return Kind.HOLE if span.kind is Kind.DATA and record is None else span.kind


def _decode_all(*spans: Span) -> None:
    for span in spans:
        if span.batch is not None:
            span.batch.by_offset()


def _records(span: Span, start: int, end: int) -> Iterable[RawRecord]:
    records = span.batch.by_offset() if span.batch is not None else {}
    return [record for offset, record in records.items() if start <= offset < end]


def _same_batch(source: Span, destination: Span, start: int, end: int) -> bool:
    """Whether both sides hold the same dense batch, so that no record has to be decoded."""
    if source.batch is None or destination.batch is None:
        return False
    original, copy = source.batch.header, destination.batch.header
    return (
        original is not None
        and copy is not None
        and original.is_dense
        and copy.is_dense
        and original.base_offset == copy.base_offset
        and original.last_offset_delta == copy.last_offset_delta
        and start >= original.base_offset
        and end <= original.next_offset
        and original.codec is copy.codec
        and original.is_log_append_time == copy.is_log_append_time
        and original.base_timestamp == copy.base_timestamp
        and original.max_timestamp == copy.max_timestamp
        # Comparing views takes three times as long.
        and bytes(source.batch.records) == bytes(destination.batch.records)
    )


class Waiting(NamedTuple):
    """A record that only one log has; `Keys` stores it under its key's digest."""

    offset: int
    on_source: bool
    tombstone: bool


class Keys:
    """Records of a compacted topic that only one log has, until a later record settles them."""

    def __init__(self) -> None:
        self._entries: dict[bytes, list[Waiting]] = {}
        self.waiting = 0
        """The number of records that wait."""

    def wait(self, record: RawRecord, *, on_source: bool) -> bool:
        """Remember a record that has a key; False if too many wait already."""
        if self.waiting >= MAX_PENDING:
            return False
        full = decode(record)
        assert full.key is not None
        entry = Waiting(record.offset, on_source, full.value is None)
        self._entries.setdefault(digest(full.key), []).append(entry)
        self.waiting += 1
        return True

    def settle(self, record: RawRecord, *, waits_on_source: bool | None = None) -> int:
        """Settle and forget earlier records of the same key; return how many.

        Args:
            record: a record later than all that wait.
            waits_on_source: True settles only records that the source alone has, False only those
                that the destination alone has, None both.
        """
        key = decode(record).key
        entries = None if key is None else self._entries.pop(digest(key), None)
        if key is None or not entries:
            return 0
        unsettled = [entry for entry in entries if waits_on_source not in {None, entry.on_source}]
        if unsettled:
            self._entries[digest(key)] = unsettled
        self.waiting -= len(entries) - len(unsettled)
        return len(entries) - len(unsettled)

    def wants_newer(self) -> bool:
        """Whether a value still waits that a later record may settle."""
        return any(not entry.tombstone for entries in self._entries.values() for entry in entries)

    def tombstones(self, *, on_source: bool) -> dict[bytes, int]:
        """The last tombstone of each key that only this side has, to search the other side for."""
        offsets: dict[bytes, int] = {}
        for key, entries in self._entries.items():
            for entry in entries:
                if entry.tombstone and entry.on_source is on_source:
                    offsets[key] = entry.offset
        return offsets

    def unsettled(
        self, alive_on_source: Collection[bytes], alive_on_destination: Collection[bytes]
    ) -> Iterable[tuple[Waiting, bool]]:
        """All records that wait, each with whether a tombstone makes it acceptable."""
        for key, entries in self._entries.items():
            deleted = -1
            if key not in alive_on_destination:
                deleted = max(
                    (entry.offset for entry in entries if entry.on_source and entry.tombstone),
                    default=-1,
                )
            for entry in entries:
                if entry.on_source:
                    yield entry, entry.offset <= deleted
                else:
                    yield entry, entry.tombstone and key not in alive_on_source


class Alive:
    """The keys that have a value before a tombstone that only the other log has."""

    def __init__(self, before: Mapping[bytes, int]) -> None:
        self._before = before
        self.keys: set[bytes] = set()

    def add(self, records: Iterable[RawRecord]) -> None:
        """Add records in order of offset."""
        for raw in records:
            record = decode(raw)
            if record.key is None:
                continue
            key = digest(record.key)
            if raw.offset >= self._before.get(key, -1):
                continue
            if record.value is None:
                self.keys.discard(key)
            else:
                self.keys.add(key)


def digest(key: bytes) -> bytes:
    """A key's digest, or the key itself if it is short."""
    if len(key) < _DIGEST:
        return key
    return hashlib.blake2b(key, digest_size=_DIGEST).digest()
