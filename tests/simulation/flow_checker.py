"""Checks a flow: each committed record of the source is once in the remote topic, and mapped there.

An independent oracle: it knows records by a number that each of them carries in a header, and sees
what is appended to the remote topics and to `__mirror_offsets`. It never reads the engine's plans.

    data        each record with a number is a committed record of the source, unaltered, not in a
                transaction; of each source partition they come in order, none of them twice
    foreign     records without a number, and markers: other producers write to the remote topics
    map         each run that is stored names offsets at which exactly these records are

At the end nothing is missing for a reader of either isolation level, and the map translates each
offset of the source: that of a copied record to the record's own offset, any other one to an offset
between those of the copied records around it.

A destination may lose appends that were not replicated; a log that is appended to at an offset that
it had before has lost what was there. With `unclean` elections it loses records that were: then the
partition is complete, or it is FAILED. A flow that passes losses may go on without what was lost,
and nothing else: the map names none of it, and a lost record is translated as any other without a
copy.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from model.cluster import Cluster
from model.log import StoredBatch
from simulation.checker import Truth, Violation, Written
from twinlog.kafka.log.batch import HEADER_SIZE, batches
from twinlog.kafka.log.records import RawRecord, decode, raw_records
from twinlog.kafka.types import FetchPosition, Offset, TopicPartition
from twinlog.mirror.offset_runs import OffsetRuns, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_log import fold_offsets
from twinlog.store.offset_records import StoredPlan
from twinlog.store.offset_records import decode as decode_offsets
from twinlog.store.topic_reader import ControlRecord

NUMBER: Final = "number"
"""The header with a record's number."""
LATEST_RUNS: Final = 20
"""Runs of a stored part of a map that are checked: the others were checked before."""
MAP_KEY: Final = b'["map"'
FETCH_BYTES: Final = 1 << 30


class Origin(NamedTuple):
    """The place of a record on the source."""

    source: TopicPartition
    offset: int


class Copy(NamedTuple):
    """A copied record in a remote log."""

    offset: int
    origin: Origin


class FlowChecker:
    """See the module. `appended` counts the copied batches, `foreign` those of others."""

    def __init__(self, source: Cluster, destination: Cluster) -> None:
        self._source = source
        self._destination = destination
        self.truth: dict[TopicPartition, Truth] = {}
        self.remote: dict[TopicPartition, TopicPartition] = {}
        """The remote partition of each source partition."""
        self.origins: dict[int, Origin] = {}
        """The place of each number."""
        self._copies: dict[TopicPartition, list[Copy]] = {}  # of each remote partition, in order
        self._ends: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}  # by source partition: its last copied offset
        self._offset_records: dict[int, list[ControlRecord]] = {}
        self._folded: dict[TopicPartition, tuple[OffsetRuns, StoredPlan]] = {}
        self._folded_ends: list[tuple[int, int]] = []  # of `_offset_records`, then
        self.lost: set[TopicPartition] = set()
        """Remote partitions that have lost what was replicated: copies, or only a fence."""
        self.passes_lost = False
        """Whether the flow goes on without what the destination has lost."""
        self._lost_copies: dict[TopicPartition, set[int]] = defaultdict(set)
        # By source partition: replicated copies that were lost. Those that were not are sent again.
        self.failed: set[TopicPartition] = set()
        """Source partitions that are FAILED, as they should be: they need not be complete."""
        self.forgotten = False
        """Whether `__mirror_offsets` was lost."""
        self._cut = False
        self.appended = 0
        self.foreign = 0

    @property
    def fillers(self) -> int:
        """Batches of others; named as in `Checker`, for the outcome."""
        return self.foreign

    def add(self, source: TopicPartition, remote: TopicPartition) -> None:
        """Expect that a source partition is copied to a remote one."""
        self.truth[source] = Truth()
        self.remote[source] = remote

    # ---- appends -------------------------------------------------------------------------------

    def watch(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Return a callback for each append to a remote partition."""
        self._copies.setdefault(key, [])
        self._ends.setdefault(key, 0)
        return lambda stored: self._check(key, stored)

    def _check(self, key: TopicPartition, stored: StoredBatch) -> None:
        header = stored.header
        if header.base_offset != self._ends[key]:
            self.lost_from(key, header.base_offset)
        self._ends[key] = header.next_offset
        numbered = [(record, number) for record in _records(stored) if (number := _number(record))]
        if header.is_control or not numbered:
            self.foreign += 1
            return
        self.appended += 1
        if header.is_transactional:
            raise Violation(f"{key}: a copied batch at {header.base_offset} is in a transaction")
        for record, number in numbered:
            self._check_record(key, record, self.origins[number])

    def _check_record(self, key: TopicPartition, record: RawRecord, origin: Origin) -> None:
        source, offset = origin
        where = f"{key}: the record at {record.offset}, of {source} at {offset},"
        truth = self.truth[source]
        if self.remote[source] != key:
            raise Violation(f"{where} belongs to {self.remote[source]}")
        if offset in truth.aborted or offset in truth.undecided:
            raise Violation(f"{where} is not committed on the source")
        if truth.data[offset] != Written(record.timestamp, bytes(record.tail)):
            raise Violation(f"{where} was altered")
        if offset <= self._last.get(source, -1):
            raise Violation(f"{where} comes after that at {self._last[source]}")
        self._last[source] = offset
        self._copies[key].append(Copy(record.offset, origin))

    def note_lost(self, key: TopicPartition, end: int, high_watermark: int) -> None:
        """Note an unclean election: the log ends at `end`, and was replicated further than that."""
        if end < high_watermark:
            self.lost.add(key)
            for copy in self._copies[key]:
                if end <= copy.offset < high_watermark:
                    self._lost_copies[copy.origin.source].add(copy.origin.offset)
        self.lost_from(key, end)

    def lost_from(self, key: TopicPartition, offset: int) -> None:
        """Note that a remote partition has lost its records from this offset on."""
        copies = self._copies[key]
        del copies[bisect_left(copies, offset, key=lambda copy: copy.offset) :]
        self._ends[key] = min(self._ends[key], offset)
        for source, remote in self.remote.items():
            if remote == key:
                self._last.pop(source, None)
        for copy in copies:
            self._last[copy.origin.source] = copy.origin.offset

    # ---- maps ----------------------------------------------------------------------------------

    def lose_offsets(self, *, cut: bool = False) -> None:
        """Note that `__mirror_offsets` was lost; `cut`: its end, so that maps have gaps."""
        self._cut |= cut
        self._offset_records.clear()
        self._folded, self._folded_ends = {}, []
        self.forgotten = True

    def watch_offsets(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Return a callback for each append to a partition of `__mirror_offsets`."""
        return lambda stored: self._check_offsets(key.partition, stored)

    def _check_offsets(self, number: int, stored: StoredBatch) -> None:
        known = self._offset_records.setdefault(number, [])
        while known and known[-1].offset >= stored.header.base_offset:
            known.pop()
        for raw in _records(stored):
            record = decode(raw)
            known.append(ControlRecord(number, raw.offset, raw.timestamp, record.key, record.value))
            is_map = record.key is not None and record.key.startswith(MAP_KEY)
            chunk = decode_offsets(record.key, record.value) if is_map else None
            if isinstance(chunk, MapChunk):
                self._check_runs(chunk.name, chunk.runs[-LATEST_RUNS:])

    def _check_runs(self, name: MirrorPartition, runs: Iterable[Run]) -> None:
        key = self.remote[name.source]
        if key in self.lost:
            return
        copies = self._copies[key]
        for run in runs:
            first = bisect_left(copies, run.destination, key=lambda copy: Offset(copy.offset))
            expected = [
                Copy(run.destination + at, Origin(name.source, run.source + at))
                for at in range(run.length)
            ]
            if copies[first : first + run.length] != expected:
                raise Violation(f"{name.source}: {run} is stored, and is not what {key} holds")

    def _maps(self) -> Mapping[TopicPartition, tuple[OffsetRuns, StoredPlan]]:
        ends = [(len(known), known[-1].offset) for known in self._offset_records.values() if known]
        if self._cut:  # each chunk was compared when it was stored
            return {}
        if ends != self._folded_ends:
            self._folded_ends, self._folded = ends, {}
            for records in self._offset_records.values():
                stored = fold_offsets(records)
                for name in stored.chunks:
                    self._folded[name.source] = stored.map(name), stored.plans[name]
        return self._folded

    # ---- the end -------------------------------------------------------------------------------

    def _visible(self, key: TopicPartition) -> Iterator[int]:
        """The offsets of the records that a reader of the source sees, the last one first."""
        truth, start = self.truth[key], self._source.log(key).start
        return (offset for offset in reversed(truth.data) if truth.visible(offset, start))

    def behind(self) -> dict[TopicPartition, object]:
        """Return the partitions that are not copied and mapped completely."""
        maps = self._maps()
        waits: dict[TopicPartition, object] = {}
        for key in self.truth:
            without = self._lost_copies[key] if self.passes_lost else ()
            last = next((offset for offset in self._visible(key) if offset not in without), None)
            if key in self.failed or last is None:
                continue
            copied = self._last.get(key, -1)
            mapped = maps[key][1].plan.recorded.source if key in maps else -1
            # Nothing is stored of a partition that has copied all before its map was lost.
            unmapped = mapped <= last and (key in maps or not self.forgotten)
            if copied < last or unmapped:
                waits[key] = f"{last} is the last record, copied {copied}, mapped {mapped}"
        return waits

    def final(self) -> None:
        """Compare all logs completely, as readers of both isolation levels, and translate."""
        maps = self._maps()
        copies: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        for remote in self._copies:
            seen = self._seen(remote, committed=False)
            if seen != self._seen(remote, committed=True):
                raise Violation(f"{remote}: readers of the isolation levels see different copies")
            for copy in seen:
                source, offset = copy.origin
                if offset in copies[source]:
                    raise Violation(f"{source}: the record at {offset} is twice in {remote}")
                copies[source][offset] = copy.offset
        for key, remote in self.remote.items():
            if key in self.failed:
                continue
            ever = {
                copy.origin.offset for copy in self._copies[remote] if copy.origin.source == key
            }
            missing = [offset for offset in self._visible(key) if offset not in ever]
            without = self._lost_copies[key] if self.passes_lost else set()
            if not without.issuperset(missing):
                unexplained = [offset for offset in missing if offset not in without]
                raise Violation(f"{key}: records are missing at {unexplained[:10]}")
            if key in maps:
                if not self._destination.topics[remote.topic].compact:
                    start_there = self._destination.log(remote).start
                    self._check_lost(key, maps[key][0], without - ever, start_there)
                start = maps[key][0].start.source if self.forgotten or without else 0
                known = {o: at for o, at in copies[key].items() if o >= start}
                self._check_map(key, maps[key][0], known)

    def _seen(self, key: TopicPartition, *, committed: bool) -> list[Copy]:
        """The copies that a consumer of the remote partition gets."""
        log = self._destination.log(key)
        fetched = self._destination.fetch(
            key, FetchPosition(log.start), FETCH_BYTES, committed=committed
        )
        assert not fetched.error
        ends = fetched.aborted if committed else ()
        found: list[Copy] = []
        for header in batches(fetched.records):
            aborted = any(end.producer_id == header.producer_id for end in ends)
            if header.is_control or (header.is_transactional and aborted):
                continue
            found += (
                Copy(record.offset, self.origins[number])
                for record in raw_records(header, header.records(fetched.records))
                if record.offset >= log.start and (number := _number(record))
            )
        return found

    @staticmethod
    def _check_lost(
        key: TopicPartition, runs: OffsetRuns, lost: Iterable[int], log_start: int
    ) -> None:
        """Check that the map names no copy that is lost.

        Below the log's start no other record is taken for it: there, retention may have removed
        what shows the loss. So may compaction, whose logs are not checked.
        """
        for offset in lost:
            run = runs.at_source(offset)
            is_mapped = run is not None and run.source <= offset
            if is_mapped and runs.to_destination(offset) >= log_start:
                raise Violation(f"{key}: the copy of {offset} is lost, and the map has it")

    @staticmethod
    def _check_map(key: TopicPartition, runs: OffsetRuns, copies: Mapping[int, int]) -> None:
        """Translate each offset of the source up to the end of what is copied."""
        offsets = sorted(copies)
        after = 0
        for index, offset in enumerate(offsets):
            at = copies[offset]
            if runs.to_destination(offset) != at or runs.to_source(at) != offset:
                raise Violation(
                    f"{key}: the record at {offset} is at {at}; its offset is translated to "
                    f"{runs.to_destination(offset)}, and back to {runs.to_source(at)}"
                )
            for absent in range(offsets[index - 1] + 1 if index else offset, offset):
                translated = runs.to_destination(absent)
                if not after <= translated <= at:
                    raise Violation(
                        f"{key}: {absent} is translated to {translated}, not to {after} to {at}"
                    )
            after = at + 1


def _records(stored: StoredBatch) -> list[RawRecord]:
    if stored.header.is_control:
        return []
    return raw_records(stored.header, memoryview(stored.data)[HEADER_SIZE:])


def _number(record: RawRecord) -> int:
    """The record's number; 0 for a foreign record."""
    headers = dict(decode(record).headers)
    value = headers.get(NUMBER)
    return 0 if value is None else int.from_bytes(value)
