"""What a query should make of a partition's log, on disk: computed once, read for each topic.

A query may send records to any topic and partition, and which ones is known only once it is
computed. So its results are written to a file of their own, in order of the source's offsets, and
read again for each partition of the target that is compared (`SpooledLog.expected_in`):

    source      0: a        1: b       2 (marker)   3: c
    file        0: to X     1: none    2: blank     3: to Y, to Y
    for X       record      filtered   blank        routed
    for Y       routed      filtered   blank        not seen: two records of one

Two records that are made of one for the same partition have no offset of their own on the source's
side: what should be there is not seen. Files have keys and values of records, and are readable by
their user alone. Memory holds one part of a file at a time.
"""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from twinlog.kafka.log.records import RawRecord, encode_tail
from twinlog.kafka.types import TopicPartition
from twinlog.verify.flow_walk import Key, key_of
from twinlog.verify.json_meaning import normal_form
from twinlog.verify.log_cursor import Blank
from twinlog.verify.log_view import Kind, Span
from twinlog.verify.query_results import Failed, Output, OutputRow
from twinlog.verify.transformed_log import LogPlace, spans_of

SEVERAL: Final = "the query makes several records of it there, whose places verify does not compare"
FAILED: Final = "the record cannot be transformed"


class SpooledRow(NamedTuple):
    """A record that is expected: where, and what of it is compared (`RawRecord.tail`)."""

    target: TopicPartition
    timestamp: int
    tail: bytes


class SpooledRecord(NamedTuple):
    """What is expected of a record of the source; `failure`: why nothing is."""

    offset: int
    rows: tuple[SpooledRow, ...]
    failure: str = ""


Item = SpooledRecord | Blank


def spooled(offset: int, output: Output, meant_parts: frozenset[str]) -> SpooledRecord:
    """What is written of a result."""
    if isinstance(output, Failed):
        return SpooledRecord(offset, (), f"{FAILED}: {output.reason}")
    return SpooledRecord(offset, tuple(_row(row, meant_parts) for row in output))


def _row(row: OutputRow, meant_parts: frozenset[str]) -> SpooledRow:
    tail = encode_tail(
        normal_form(row.key) if "key" in meant_parts else row.key,
        normal_form(row.value) if "value" in meant_parts else row.value,
        row.headers,
    )
    return SpooledRow(TopicPartition(row.topic, row.partition), row.timestamp, tail)


class SpooledLog:
    """The file of one partition of the source.

    Args:
        path: of the file; it is created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch(mode=0o600)
        self.end = 0
        """The offset up to which it was written."""
        self.targets: set[TopicPartition] = set()
        """Where records are expected."""
        self.lack = ""
        """Why records may be expected that the file does not have; empty: it has all."""

    def add(self, items: Sequence[Item]) -> None:
        """Append offsets behind the last ones, without a gap."""
        for item in items:
            if isinstance(item, Blank):
                self.lack = self.lack or item.lack
                self.end = item.end
            else:
                self.lack = self.lack or item.failure
                self.end = item.offset + 1
                self.targets.update(row.target for row in item.rows)
        with self._path.open("ab") as file:
            pickle.dump(list(items), file, protocol=pickle.HIGHEST_PROTOCOL)

    def expected_in(self, target: TopicPartition) -> "SpoolReader":
        """A reader of what is expected in a partition of the target."""
        return SpoolReader(self._parts(), target)

    def keys_in(self, target: TopicPartition) -> Iterator[Key]:
        """The keys of all records that are expected in a partition of the target."""
        for items in self._parts():
            for item in items:
                if isinstance(item, Blank):
                    continue
                for row in item.rows:
                    if row.target == target:
                        yield key_of(_raw(item.offset, row), timed=True)

    def _parts(self) -> Iterator[Sequence[Item]]:
        with self._path.open("rb") as file:
            while (items := _loaded(file)) is not None:
                yield items


def _loaded(file: BinaryIO) -> Sequence[Item] | None:
    try:
        items: Sequence[Item] = pickle.load(file)  # noqa: S301 - this process has written it
    except EOFError:
        return None
    return items


def _raw(offset: int, row: SpooledRow) -> RawRecord:
    return RawRecord(offset, row.timestamp, 0, memoryview(row.tail))


class SpoolReader:
    """What is expected in one partition of the target, at the source's offsets (`SpanSource`)."""

    def __init__(self, parts: Iterator[Sequence[Item]], target: TopicPartition) -> None:
        self._parts = parts
        self._target = target
        self._spans: list[Span] = []

    async def span(self, at: int, end: int) -> Span:
        """What is expected from offset `at` on, up to `end` at most."""
        while True:
            while self._spans and self._spans[0].end <= at:
                self._spans.pop(0)
            if self._spans:
                return self._spans[0]._replace(start=max(self._spans[0].start, at))
            items = next(self._parts, None)
            if items is None:
                return Span(at, end, Kind.UNSEEN, reason="behind what was read")
            self._spans = list(spans_of(map(self._place, items), stamped=False))

    def _place(self, item: Item) -> LogPlace:
        if isinstance(item, Blank):
            return LogPlace(item.start, item.end, item.kind, item.reason)
        at, end = item.offset, item.offset + 1
        rows = [row for row in item.rows if row.target == self._target]
        if item.failure:
            return LogPlace(at, end, Kind.UNSEEN, item.failure)
        if len(rows) > 1:
            return LogPlace(at, end, Kind.UNSEEN, SEVERAL)
        if rows:
            return LogPlace(at, end, Kind.DATA, "", _raw(at, rows[0]))
        return LogPlace(at, end, Kind.ROUTED if item.rows else Kind.FILTERED)
