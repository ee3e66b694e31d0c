"""Checks every append to the destination: it has to be a prefix of the source's stable log.

The checker is an independent oracle: the writer of the source tells it what each offset holds, and
it never reads the engine's plans. It checks each append before anything else can happen:

    data at offset o        the source has (or had) exactly this record at o, committed, below its
                            last stable offset; or o lies below its log start offset and the record
                            is an empty filler, which no reader sees
    control record at o     no reader of the source sees a record at o now: o holds a marker, or its
                            record is aborted, compacted, or below the log start offset

Appended offsets have no holes, so together these rules mean: each record exactly once, at its
offset, and nothing else is visible.

A source that loses its end has more than one history: what it held before, and what it has written
since. A destination has to stay a prefix of *one* history. A destination that holds lost records
cannot become a copy of the source's log any more; its partition has to be FAILED at the end.
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
    """The destination breaks an invariant."""


class Written(NamedTuple):
    """A record as the source's readers see it; `tail` is key, value and headers."""

    timestamp: int
    tail: bytes


EMPTY_TAIL = b"\x01\x01\x00"


@dataclass(slots=True)
class Truth:
    """What one source partition holds, and what it held before."""

    data: dict[int, Written] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def visible(self, offset: int, start: int) -> bool:
        """Return whether a reader of the source sees a record at `offset`, now or later."""
        return (
            offset >= start
            and offset in self.data
            and offset not in self.aborted
            and offset not in self.removed
        )

    def until(self, end: int) -> "Truth":
        """Return the truth below `end`, for a log without transactions and holes."""
        assert not self.undecided | self.aborted | self.removed
        return Truth({offset: written for offset, written in self.data.items() if offset < end})


@dataclass(slots=True, kw_only=True)
class History:
    """What a source partition holds, or held until it lost its end.

    `ended` holds the log start offset and last stable offset at that time; None: still current.
    """

    truth: Truth
    ended: tuple[int, int] | None = None


class Checker:
    """The invariants. `appended` counts the batches that were checked."""

    def __init__(self, source: Cluster, destination: Cluster) -> None:
        self._source = source
        self._destination = destination
        self.truth: dict[TopicPartition, Truth] = {}
        self._histories: dict[TopicPartition, list[History]] = {}
        self._possible: dict[TopicPartition, list[History]] = {}  # of which it may be a prefix
        self._ends: dict[TopicPartition, int] = {}  # the offset up to which it was compared
        self.ended: dict[TopicPartition, int] = {}
        """Where mirroring ended (life.py): from there the log is no copy of the source's."""
        self.appended = 0
        self.fillers = 0

    def watch(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Return a callback to call at each append to this destination partition."""
        self.truth[key] = Truth()
        self._histories[key] = [History(truth=self.truth[key])]
        self._possible[key] = self._histories[key]
        self._ends[key] = 0
        return lambda stored: self._check(key, stored)

    def lost_end(self, key: TopicPartition, stable_end: int) -> Truth:
        """Note that the source's log was truncated; return the truth to write to from now on.

        Call it before the log is written again.

        Args:
            key: the partition.
            stable_end: the last stable offset before the truncation.
        """
        log = self._source.log(key)
        self._histories[key][-1].ended = (log.start, stable_end)
        self.truth[key] = self.truth[key].until(log.end)
        self._histories[key].append(History(truth=self.truth[key]))
        self._compare_whole(key)
        return self.truth[key]

    def diverged(self, key: TopicPartition) -> bool:
        """Return whether the destination holds records that the source has lost."""
        if key in self.ended:
            return False
        if self._destination.log(key).end != self._ends[key]:
            self._compare_whole(key)
        return all(history.ended for history in self._possible[key])

    def _compare_whole(self, key: TopicPartition) -> None:
        """Find the histories of which the destination can be a prefix."""
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
        """Return the histories that contain the batch, at least one."""
        found: list[History] = []
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
        """Return incomplete partitions: destination's end, source's last stable offset."""
        return {
            key: (destination_end, source_end)
            for key in self.truth
            if key not in self.ended
            and not self.diverged(key)
            and (destination_end := self._destination.log(key).end)
            != (source_end := self._source.log(key).stable_end)
        }

    def final(self) -> None:
        """Compare both logs completely, as readers see them."""
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
