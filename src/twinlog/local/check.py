"""An independent check of a mirror, as consumers see it; it shares no code with the mirror.

librdkafka consumers read every partition of both clusters with read_committed. The check is that

- each offset has the same record: key, value, headers, timestamp;
- each writer's numbers (load.py) go up by one: nothing is lost, doubled or out of order;
- the last number of each writer is the last acknowledged one: nothing is missing at the end.

On a compacted topic the cleaners of the two clusters run at different times, and remove records
that have a later record of their key. There, a record that only one cluster has must have a later
record of its key on the other cluster, numbers only increase, and both clusters must end with the
same record of every key.

Both logs are read up to the source's last stable offset at the start of the check.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from twinlog.local.errors import LocalError
from twinlog.local.writers import Numbers

ADMIN_SECONDS: Final = 120.0
MAX_PROBLEMS: Final = 5
"""How many problems of a partition are reported."""
_BATCH: Final = 2000
_POLL_SECONDS: Final = 0.1

Partition = tuple[str, int]
Written = Mapping[tuple[str, int, str], Numbers]


class ConsumedRecord(NamedTuple):
    """One record as a consumer saw it; value and headers are kept as this process's hashes.

    The timestamp's type is left out: the mirror of a LogAppendTime topic has the same timestamps,
    as CreateTime.
    """

    offset: int
    timestamp: int
    key: bytes | None
    tombstone: bool
    value: int
    headers: int
    writer: str
    number: int


@dataclass(frozen=True, slots=True)
class LogExtent:
    """A partition's log start offset, last stable offset, and end for read_uncommitted."""

    start: int
    stable: int
    end: int


@dataclass(slots=True)
class Report:
    """The result.

    `gaps`: offsets of the destination without a record in the compared range. `in_source`: those of
    the problems that the source's own records have as well: numbers that its clients or brokers got
    wrong, and that a mirror copies as they are.
    """

    partitions: int = 0
    records: int = 0
    gaps: int = 0
    writers: int = 0
    problems: list[str] = field(default_factory=list)
    in_source: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the destination is the source's mirror."""
        return not self.problems

    def add(self, other: "Report") -> None:
        """Add another report to this one."""
        self.partitions += other.partitions
        self.records += other.records
        self.gaps += other.gaps
        self.writers += other.writers
        self.problems += other.problems
        self.in_source += other.in_source


class ConsumerView:
    """One cluster, as consumers see it."""

    def __init__(self, bootstrap_servers: str, seconds: float = ADMIN_SECONDS) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._seconds = seconds
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        """All partitions of the topics."""
        metadata = self._admin.list_topics(timeout=self._seconds).topics
        absent = [topic for topic in topics if topic not in metadata]
        if absent:
            raise LocalError(f"no such topic at {self._bootstrap_servers}: {', '.join(absent)}")
        return [(topic, index) for topic in topics for index in sorted(metadata[topic].partitions)]

    def extents(self, partitions: Collection[Partition]) -> dict[Partition, LogExtent]:
        """The current extents of these partitions' logs."""
        start = self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        stable = self.stable(partitions)
        end = self.ends(partitions)
        return {p: LogExtent(start[p], stable[p], end[p]) for p in partitions}

    def stable(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The current last stable offsets of these partitions."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The current ends of these partitions' logs for read_uncommitted consumers."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def _offsets(
        self, partitions: Collection[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Partition, int]:
        requests = {TopicPartition(*partition): spec for partition in partitions}
        futures = self._admin.list_offsets(
            requests, isolation_level=isolation, request_timeout=self._seconds
        )
        return {
            (partition.topic, partition.partition): future.result(self._seconds).offset
            for partition, future in futures.items()
        }

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic is compacted."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([resource])[resource]
        return "compact" in future.result(self._seconds)["cleanup.policy"].value

    def read(
        self, ranges: Mapping[Partition, tuple[int, int]], deadline: float
    ) -> dict[Partition, list[ConsumedRecord]]:
        """The records in `[start, end)` of partitions, as a read_committed consumer sees them.

        Raises:
            LocalError: they are not read before the deadline (monotonic).
        """
        records: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in ranges}
        ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
        if not ends:
            return records
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "twinlog-check",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 2,
            }
        )
        try:
            consumer.assign([TopicPartition(*p, ranges[p][0]) for p in ends])
            while ends:
                if time.monotonic() > deadline:
                    names = ", ".join(f"{topic}-{index}" for topic, index in ends)
                    raise LocalError(f"{self._bootstrap_servers}: {names} not read in time")
                for message in consumer.consume(_BATCH, _POLL_SECONDS):
                    _take(message, records, ends)
        finally:
            consumer.close()
        return records


def _take(
    message: Message, records: dict[Partition, list[ConsumedRecord]], ends: dict[Partition, int]
) -> None:
    """Add one message; `ends` has the ends of the partitions that are not read yet."""
    topic, index, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
        raise KafkaException(error)
    assert topic is not None
    assert index is not None
    partition = (topic, index)
    if error is not None or offset is None or offset >= ends.get(partition, -1):
        ends.pop(partition, None)
    else:
        records[partition].append(_seen(offset, message))


def _seen(offset: int, message: Message) -> ConsumedRecord:
    headers = message.headers() or []
    values = dict(headers)
    key, value = message.key(), message.value()
    return ConsumedRecord(
        offset=offset,
        timestamp=message.timestamp()[1],
        key=key,
        tombstone=value is None,
        value=hash(value),
        headers=hash(tuple(headers)),
        writer=_text(values.get("writer")),
        number=int(_text(values.get("number")) or -1),
    )


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def check(
    source: str,
    destination: str,
    topics: Iterable[str],
    *,
    written: Written | None = None,
    numbered: bool = True,
    seconds: float = 120.0,
) -> Report:
    """Compare topics of two clusters.

    Args:
        source: bootstrap servers.
        destination: bootstrap servers.
        topics: the topics.
        written: the numbers that their writers know as written; None if unknown.
        numbered: whether the records have the load's numbers.
        seconds: how long it may take.

    Raises:
        LocalError, KafkaException: a cluster cannot be read.
    """
    deadline = time.monotonic() + seconds
    source_view, destination_view = ConsumerView(source), ConsumerView(destination)
    report = Report()
    for topic in topics:
        partitions = source_view.partitions([topic])
        if partitions != destination_view.partitions([topic]):
            report.problems.append(
                f"{topic} has other partitions on the destination than on the source"
            )
            continue
        compacted = source_view.is_compacted(topic)
        source_extents, extents = (
            source_view.extents(partitions),
            destination_view.extents(partitions),
        )
        pairs = {p: Pair(source_extents[p], extents[p]) for p in partitions}
        originals = source_view.read({p: pair.common for p, pair in pairs.items()}, deadline)
        copies = destination_view.read({p: pair.mirrored for p, pair in pairs.items()}, deadline)
        for partition, pair in pairs.items():
            comparison = _Comparison(
                partition, compacted=compacted, numbered=numbered, written=written
            )
            report.add(comparison.run(pair, originals[partition], copies[partition]))
    return report


class Pair(NamedTuple):
    """A partition's extent on the source and on the destination."""

    source: LogExtent
    destination: LogExtent

    @property
    def common(self) -> tuple[int, int]:
        """Offsets `[start, end)` that are compared."""
        return max(self.source.start, self.destination.start), self.source.stable

    @property
    def mirrored(self) -> tuple[int, int]:
        """The part of them that the destination has."""
        start, end = self.common
        return start, min(end, self.destination.end)


class _Comparison:
    """One partition."""

    def __init__(
        self, partition: Partition, *, compacted: bool, numbered: bool, written: Written | None
    ) -> None:
        self._name = f"{partition[0]}-{partition[1]}"
        self._partition = partition
        self._compacted = compacted
        self._numbered = numbered
        self._written = written
        self._report = Report(partitions=1)

    def run(
        self, extents: Pair, originals: Sequence[ConsumedRecord], copies: Sequence[ConsumedRecord]
    ) -> Report:
        """Compare the extents and records of both clusters."""
        source, destination_extent = extents
        if destination_extent.end < source.stable:
            self._problem(
                f"ends at {destination_extent.end} on the destination, at {source.stable} on the "
                "source"
            )
        if destination_extent.end > source.end:
            self._problem(
                f"ends at {destination_extent.end} on the destination, beyond {source.end} on the "
                "source"
            )
        if destination_extent.start != source.start and not self._compacted:
            self._problem(
                f"begins at {destination_extent.start} on the destination, at {source.start} on "
                "the source"
            )
        start, end = extents.common
        self._report.records = len(copies)
        self._report.gaps = max(end - start, 0) - len(copies)
        if self._compacted:
            self._compare_compacted(originals, copies)
        else:
            self._compare(originals, copies)
        if self._numbered:
            self._count(originals, copies, from_zero=start == 0)
        return self._report

    def _problem(self, text: str) -> None:
        if len(self._report.problems) < MAX_PROBLEMS:
            self._report.problems.append(f"{self._name}: {text}")

    def _compare(
        self, originals: Sequence[ConsumedRecord], copies: Sequence[ConsumedRecord]
    ) -> None:
        if originals == copies:
            return
        source, destination = _by_offset(originals), _by_offset(copies)
        for offset in sorted(source.keys() | destination.keys()):
            self._compare_one(offset, source.get(offset), destination.get(offset))

    def _compare_compacted(
        self, originals: Sequence[ConsumedRecord], copies: Sequence[ConsumedRecord]
    ) -> None:
        source, destination = _by_offset(originals), _by_offset(copies)
        for offset in sorted(source.keys() & destination.keys()):
            self._compare_one(offset, source[offset], destination[offset])
        source_last, destination_last = _last(originals), _last(copies)
        for offsets, last_by_key, side in (
            (source.keys() - destination.keys(), destination_last, "destination"),
            (destination.keys() - source.keys(), source_last, "source"),
        ):
            for offset in sorted(offsets):
                key = (source.get(offset) or destination[offset]).key
                last_record = last_by_key.get(key)
                if last_record is None or last_record.offset < offset:
                    self._problem(
                        f"offset {offset} and later records of its key are missing on the {side}"
                    )
        for key in sorted(source_last.keys() | destination_last.keys(), key=str):
            if source_last.get(key) != destination_last.get(key):
                self._problem(f"the last record of key {key!r} differs")

    def _compare_one(
        self, offset: int, source: ConsumedRecord | None, destination: ConsumedRecord | None
    ) -> None:
        if source == destination:
            return
        if source is None or destination is None:
            self._problem(
                f"offset {offset} is only on the {'destination' if destination else 'source'}"
            )
            return
        fields = [
            name
            for name in ConsumedRecord._fields
            if getattr(source, name) != getattr(destination, name)
        ]
        self._problem(f"offset {offset} differs in {', '.join(fields)}")

    def _count(
        self,
        originals: Iterable[ConsumedRecord],
        copies: Iterable[ConsumedRecord],
        *,
        from_zero: bool,
    ) -> None:
        """Check the numbers of the copies; note which problems the originals have, too."""
        before = len(self._report.problems)
        numbers = _numbers(copies)
        for problem in self._wrong_numbers(numbers, from_zero=from_zero):
            self._problem(problem)
        if found := self._report.problems[before:]:
            wrong = self._wrong_numbers(_numbers(originals), from_zero=from_zero)
            known = {f"{self._name}: {problem}" for problem in wrong}
            self._report.in_source = [problem for problem in found if problem in known]
        self._report.writers = len(numbers)

    def _wrong_numbers(
        self, numbers: Mapping[str, Sequence[int]], *, from_zero: bool
    ) -> Iterator[str]:
        """Return what is wrong with each writer's numbers, which are in the order of offsets."""
        for writer, sequence in numbers.items():
            whole = [0, *sequence] if from_zero and not self._compacted else sequence
            for before, after in pairwise(whole):
                if after <= before or (after != before + 1 and not self._compacted):
                    yield f"{writer}: number {after} follows {before}"
        for (topic, partition, writer), span in (self._written or {}).items():
            if (topic, partition) == self._partition:
                number = numbers[writer][-1] if writer in numbers else 0
                if not span.least <= number <= span.most:
                    yield (
                        f"{writer}: the last number is {number}, expected {span.least} to "
                        f"{span.most}"
                    )


def _numbers(records: Iterable[ConsumedRecord]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for record in records:
        numbers.setdefault(record.writer, []).append(record.number)
    return numbers


def _by_offset(records: Iterable[ConsumedRecord]) -> dict[int, ConsumedRecord]:
    return {record.offset: record for record in records}


def _last(records: Iterable[ConsumedRecord]) -> dict[bytes | None, ConsumedRecord]:
    return {record.key: record for record in records}
