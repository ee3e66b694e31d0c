"""Watches every append to the destination: it has to be a prefix of the source's stable log.

An oracle of its own, told by whoever writes the source what each offset holds; it never looks at
what the engine plans. At each append to the destination, before anything else can happen:

    data at offset o        the source has (or had) exactly this record at o, committed, below its
                            last stable offset; or o lies below its log start and the record is an
                            empty filler, which nobody will read
    control record at o     no reader of the source sees a record at o now: it is a marker, aborted,
                            compacted, or below the log start

Offsets of a log have no holes at an append, so together these mean: each record once, at its
offset, nothing else visible.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from model.cluster import Cluster
from model.log import StoredBatch
from twinlog.core.batch import HEADER_SIZE
from twinlog.core.records import raw_records
from twinlog.core.types import TopicPartition


class Violation(AssertionError):
    """The destination is not what it has to be."""


class Written(NamedTuple):
    """A record as the source's readers see it; `tail` is key, value and headers."""

    timestamp: int
    tail: bytes


EMPTY_TAIL = b"\x01\x01\x00"


@dataclass(slots=True)
class Truth:
    """What one source partition holds, and held."""

    data: dict[int, Written] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def visible(self, offset: int, start: int) -> bool:
        """Whether a reader of the source sees a record there now, or will."""
        return (
            offset >= start
            and offset in self.data
            and offset not in self.aborted
            and offset not in self.removed
        )


class Checker:
    """The invariants. `appended` counts what was looked at."""

    def __init__(self, source: Cluster, destination: Cluster) -> None:
        self._source = source
        self._destination = destination
        self.truth: dict[TopicPartition, Truth] = {}
        self.appended = 0
        self.fillers = 0

    def watch(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Give what is to be called at each append to this destination partition."""
        self.truth[key] = Truth()
        return lambda stored: self._check(key, stored)

    def _check(self, key: TopicPartition, stored: StoredBatch) -> None:
        header = stored.header
        truth = self.truth[key]
        log = self._source.log(key)
        self.appended += 1
        if header.next_offset > log.stable_end:
            raise Violation(
                f"{key}: [{header.base_offset}, {header.next_offset}) is appended, the source has "
                f"decided up to {log.stable_end}"
            )
        if header.is_control:
            self.fillers += 1
            if truth.visible(header.base_offset, log.start):
                raise Violation(f"{key}: a filler stands at {header.base_offset}, where data is")
            return
        if header.next_offset <= log.start and header.num_records > 1000:
            return  # a bulk filler
        records = raw_records(header, memoryview(stored.data)[HEADER_SIZE:])
        for record in records:
            self._check_record(key, truth, log.start, record.offset, record)

    def _check_record(
        self, key: TopicPartition, truth: Truth, start: int, offset: int, record: object
    ) -> None:
        found = Written(record.timestamp, bytes(record.tail))  # type: ignore[attr-defined]
        expected = truth.data.get(offset)
        if expected is None and offset < start and found.tail == EMPTY_TAIL:
            return
        if offset < start and found.tail == EMPTY_TAIL:
            return
        if expected is None or offset in truth.aborted or offset in truth.undecided:
            raise Violation(f"{key}: a record stands at {offset}, where the source has none")
        if expected != found:
            raise Violation(f"{key}: the record at {offset} is {found}, not {expected}")

    def behind(self) -> dict[TopicPartition, tuple[int, int]]:
        """What has not arrived: the destination's end, the source's stable end."""
        return {
            key: (ours, theirs)
            for key in self.truth
            if (ours := self._destination.log(key).end)
            != (theirs := self._source.log(key).stable_end)
        }

    def final(self) -> None:
        """Compare the two logs whole, as readers see them."""
        for key, truth in self.truth.items():
            log = self._destination.log(key)
            start = self._source.log(key).start
            found = {
                record.offset
                for stored in log.batches
                if not stored.header.is_control
                for record in raw_records(stored.header, memoryview(stored.data)[HEADER_SIZE:])
            }
            missing = [
                offset
                for offset in truth.data
                if offset >= log.start
                and offset < log.end
                and truth.visible(offset, start)
                and offset not in found
            ]
            if missing:
                raise Violation(f"{key}: records are missing at {missing[:10]}")
