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

A source that loses its end has more than one history: what it held before, and what it has written
since. A destination has to stay a prefix of *one* of them. Where it holds what was lost, it cannot
become the source's log any more, and its partition has to be FAILED in the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from model.cluster import Cluster
from model.log import StoredBatch
from twinlog.kafka.log.batch import HEADER_SIZE
from twinlog.kafka.log.records import raw_records
from twinlog.kafka.types import TopicPartition


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

    def until(self, end: int) -> "Truth":
        """What is left of it below an offset, where it has no transactions and no holes."""
        assert not self.undecided | self.aborted | self.removed
        return Truth({offset: written for offset, written in self.data.items() if offset < end})


@dataclass(slots=True, kw_only=True)
class History:
    """What a source partition holds, or held until it lost its end.

    `ended` are the log's start and stable end then; None while it goes on.
    """

    truth: Truth
    ended: tuple[int, int] | None = None


class Checker:
    """The invariants. `appended` counts what was looked at."""

    def __init__(self, source: Cluster, destination: Cluster) -> None:
        self._source = source
        self._destination = destination
        self.truth: dict[TopicPartition, Truth] = {}
        self._histories: dict[TopicPartition, list[History]] = {}
        self._possible: dict[TopicPartition, list[History]] = {}  # ... that the destination is of
        self._ends: dict[TopicPartition, int] = {}  # up to where it was compared
        self.ended: dict[TopicPartition, int] = {}
        """Where mirroring was ended (life.py): from there on the log is not the source's."""
        self.appended = 0
        self.fillers = 0

    def watch(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Give what is to be called at each append to this destination partition."""
        self.truth[key] = Truth()
        self._histories[key] = [History(truth=self.truth[key])]
        self._possible[key] = self._histories[key]
        self._ends[key] = 0
        return lambda stored: self._check(key, stored)

    def lost_end(self, key: TopicPartition, stable_end: int) -> Truth:
        """The source's log was cut, and is not written again yet; what is told of it from now on.

        Args:
            key: the partition.
            stable_end: the log's stable end before.
        """
        log = self._source.log(key)
        self._histories[key][-1].ended = (log.start, stable_end)
        self.truth[key] = self.truth[key].until(log.end)
        self._histories[key].append(History(truth=self.truth[key]))
        self._compare_whole(key)
        return self.truth[key]

    def diverged(self, key: TopicPartition) -> bool:
        """Whether the destination holds what the source has lost."""
        if key in self.ended:
            return False
        if self._destination.log(key).end != self._ends[key]:
            self._compare_whole(key)
        return all(history.ended for history in self._possible[key])

    def _compare_whole(self, key: TopicPartition) -> None:
        """Find the histories that the destination may be of."""
        log = self._destination.log(key)
        self._ends[key] = log.end
        found = self._histories[key]
        for stored in log.batches:
            found = self._of(found, key, stored)
        self._possible[key] = found

    def _check(self, key: TopicPartition, stored: StoredBatch) -> None:
        self.appended += 1
        self.fillers += stored.header.is_control
        if self._ends[key] == stored.header.base_offset:
            self._possible[key] = self._of(self._possible[key], key, stored)
            self._ends[key] = stored.header.next_offset
        else:
            self._compare_whole(key)  # the destination has lost its end

    def _of(
        self, histories: list[History], key: TopicPartition, stored: StoredBatch
    ) -> list[History]:
        """Those histories that the batch is of; one at least."""
        found = []
        for history in histories:
            try:
                self._check_in(history, key, stored)
            except Violation:
                if history is histories[-1] and not found:
                    raise
            else:
                found.append(history)
        return found

    def _check_in(self, history: History, key: TopicPartition, stored: StoredBatch) -> None:
        header = stored.header
        truth = history.truth
        log = self._source.log(key)
        start, stable_end = history.ended or (log.start, log.stable_end)
        if header.next_offset > stable_end:
            raise Violation(
                f"{key}: [{header.base_offset}, {header.next_offset}) is appended, the source has "
                f"decided up to {stable_end}"
            )
        if header.is_control:
            if truth.visible(header.base_offset, start):
                raise Violation(f"{key}: a filler stands at {header.base_offset}, where data is")
            return
        if header.next_offset <= start and header.num_records > 1000:
            return  # a bulk filler
        records = raw_records(header, memoryview(stored.data)[HEADER_SIZE:])
        for record in records:
            self._check_record(key, truth, start, record.offset, record)

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
            if key not in self.ended
            and not self.diverged(key)
            and (ours := self._destination.log(key).end)
            != (theirs := self._source.log(key).stable_end)
        }

    def final(self) -> None:
        """Compare the two logs whole, as readers see them."""
        for key, truth in self.truth.items():
            if self.diverged(key):
                continue
            log = self._destination.log(key)
            start = self._source.log(key).start
            end = self.ended.get(key, log.end)
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
                and offset < end
                and truth.visible(offset, start)
                and offset not in found
            ]
            if missing:
                raise Violation(f"{key}: records are missing at {missing[:10]}")
