"""Compares a mirror's two logs, offset by offset, as a Spark job.

Every offset of both logs gets one class (`verify/verdict.py`): *compared*, *differs*, *absent* with
evidence, *not seen*, or *behind* (the destination has not reached it yet). The classes of a
partition add up to the log's length, from the lower log start offset to the higher end:

    source            |<- start                              last stable offset ->|
    destination  |<- start                     end ->|
                 | absent |    read and classified    |          behind           |

A task reads a stretch of one partition from both clusters, through `log_reader.py`, and compares
what read_committed consumers see there. If both logs hold the same batch, its bytes are compared
and no record is decoded; if the mirror has merged or re-encoded batches, records are compared. Only
two answers are in memory at a time.

A compacted partition is one task, since later records decide whether a hole is legitimate. Only
keys that wait for such a record are kept in memory.

The job shares with the mirror only the clients' connections and the batch format.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import ClusterConfig, parse_config, parse_source
from twinlog.kafka.client.metadata import NO_TOPIC_ID, check_cluster_id, is_another
from twinlog.kafka.errors import CorruptBatch, Refusal, Retriable, TwinlogError
from twinlog.kafka.log.records import RawRecord
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.mirror.translation import SAME, Translation
from twinlog.verify.log_reader import PATIENCE_S, LogReader, read_bounds
from twinlog.verify.log_view import Kind, Span
from twinlog.verify.translated_reader import SpanReader, TranslatedReader, destination_bounds
from twinlog.verify.verdict import LOG_START, Alive, Range, StretchClassifier, Tally

T = TypeVar("T")

STRETCH: Final = 1_000_000
"""Offsets of one stretch if the topic is not compacted."""
BEYOND: Final = "beyond what the source has decided"
OPEN_TRANSACTION: Final = "destination: behind its last stable offset, a transaction is open"
_START_KNOWN_S: Final = 1.0
_NEWER_ROUNDS: Final = 3


class Stretch(NamedTuple):
    """Offsets `[start, end)` of a partition, for one task."""

    partition: TopicPartition
    start: int
    end: int
    compacted: bool


class Sides(NamedTuple, Generic[T]):
    """A pair of values, one for each side."""

    source: T
    destination: T


ANY_TOPICS: Final = Sides(NO_TOPIC_ID, NO_TOPIC_ID)
"""The topic ids that each reader meets first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """One Spark task: how to connect to both clusters, and what to compare.

    `cluster_ids` and `topic_ids` are the ids that the creator of the task has found. On the task's
    host an address may lead to another cluster, and a topic may have been recreated.
    """

    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)
    cluster_ids: Sides[str]
    topic_ids: Sides[UUID]
    stretches: Sequence[Stretch]
    translation: Translation = SAME
    patience: float = PATIENCE_S


class RangeDifference(NamedTuple):
    """A range that differs, or was not seen."""

    partition: TopicPartition
    start: int
    end: int
    reason: str

    def as_json(self) -> Mapping[str, object]:
        """The fields, with those of the partition."""
        return {
            **self.partition._asdict(),
            "start": self.start,
            "end": self.end,
            "reason": str(self.reason),
        }


class Compared(NamedTuple):
    """A task's result for one stretch."""

    stretch: Stretch
    tally: Tally

    @property
    def differences(self) -> tuple[RangeDifference, ...]:
        """The ranges that differ, in order."""
        return tuple(
            RangeDifference(self.stretch.partition, *span) for span in self.tally.differences
        )

    @property
    def unseen(self) -> tuple[RangeDifference, ...]:
        """The ranges that were not seen."""
        return tuple(RangeDifference(self.stretch.partition, *span) for span in self.tally.unseen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The bounds of a partition's two logs: the range to read, and what the bounds show alone."""

    partition: TopicPartition
    start: int
    """Where reading begins: the source's log start offset."""
    end: int
    """Where reading ends."""
    length: int
    """Offsets from the lower log start offset to the higher end."""
    behind: int
    """Offsets that the destination has not reached yet."""
    tally: Tally
    """The classes that follow from the bounds alone."""


def extent(partition: TopicPartition, source: LogBounds, destination: LogBounds) -> Extent:
    """The range of a partition to read, and the classes that follow from its bounds.

    If the bounds of one log cannot be read, both logs count as not seen.

    Args:
        partition: the partition.
        source: the source's bounds, read after the destination's, so that these are not higher.
        destination: the destination's bounds.
    """
    tally = Tally()
    unread = [
        f"{side}: {Refusal(bounds.error)}"
        for side, bounds in (("source", source), ("destination", destination))
        if bounds.error
    ]
    if unread:
        reference = destination if source.error else source
        start, end = (0, 0) if reference.error else (reference.start, reference.high_watermark)
        tally.see_not(start, end, f"cannot read the bounds: {'; '.join(unread)}")
        return Extent(
            partition=partition,
            start=end,
            end=end,
            length=end - start,
            behind=0,
            tally=tally,
        )
    decided = source.last_stable
    start = source.start
    end = max(min(decided, destination.last_stable), start)
    tally.absent[LOG_START] += max(start - destination.start, 0)
    if (undecided := min(destination.high_watermark, decided)) > end:
        tally.see_not(end, undecided, OPEN_TRANSACTION)
    if destination.high_watermark > decided:
        tally.differ(decided, destination.high_watermark, BEYOND)
    first = min(start, destination.start)
    return Extent(
        partition=partition,
        start=start,
        end=end,
        length=max(decided, destination.high_watermark) - first,
        behind=max(decided - max(destination.high_watermark, start), 0),
        tally=tally,
    )


def other(partition: TopicPartition, source: LogBounds, destination: LogBounds, why: str) -> Extent:
    """The extent of a partition with a log that is not the mirrored one: all offsets differ.

    Args:
        partition: the partition.
        source: the source's bounds.
        destination: the destination's bounds.
        why: which log, in words.
    """
    readable = [bounds for bounds in (source, destination) if not bounds.error]
    start = min((bounds.start for bounds in readable), default=0)
    end = max((bounds.high_watermark for bounds in readable), default=0)
    tally = Tally()
    tally.differ(start, end, why)
    return Extent(
        partition=partition, start=end, end=end, length=end - start, behind=0, tally=tally
    )


def stretches(extents: Iterable[Extent], compacted: Mapping[str, bool]) -> list[Stretch]:
    """Cut extents into the stretches that a task compares one at a time."""
    pieces = []
    for log_extent in extents:
        whole = compacted[log_extent.partition.topic]
        step = max(log_extent.end - log_extent.start, 1) if whole else STRETCH
        pieces += [
            Stretch(log_extent.partition, start, min(start + step, log_extent.end), whole)
            for start in range(log_extent.start, log_extent.end, step)
        ]
    return pieces


def verify_task(task: VerifyTask) -> list[Compared]:
    """Compare some stretches: the body of a Spark task. Unreachable offsets count as not seen.

    Raises:
        UserError: properties are wrong, or refer to something that is not granted.
    """
    return asyncio.run(_verify(task))


def client_configs(
    source: Mapping[str, str], destination: Mapping[str, str]
) -> Sides[ClusterConfig]:
    """How to connect to both clusters, by their properties.

    Raises:
        UserError: properties are wrong, or refer to something that is not granted.
    """
    destination_config = parse_config(destination).config
    return Sides(parse_source(source, destination_config.grants).config, destination_config)


@asynccontextmanager
async def checked_clusters(
    configs: Sides[ClusterConfig], cluster_ids: Sides[str]
) -> AsyncIterator[Sides[KafkaCluster]]:
    """Connect to both clusters, which have to be those with these ids.

    Raises:
        TwinlogError: one of them cannot be reached, or is another one.
    """
    async with (
        KafkaCluster(configs.source, name="source") as source,
        KafkaCluster(configs.destination, name="destination") as destination,
    ):
        clusters = Sides(source, destination)
        for cluster, cluster_id in zip(clusters, cluster_ids, strict=True):
            check_cluster_id(f"the {cluster.name}", cluster.cluster_id, cluster_id)
        yield clusters


async def check_topic(cluster: KafkaCluster, name: str, topic_id: UUID) -> None:
    """Check that a topic has still the id that it had when its bounds were read.

    ListOffsets names the topic without its id, so a recreation is checked at the end.

    Raises:
        Retriable: it was recreated, is not there any more, or the cluster cannot be reached.
    """
    topic = (await cluster.refresh([name])).topics.get(name)
    if topic is None:  # one that was recreated may not be known to this broker yet
        raise Retriable(f"{cluster.name}: {name} was deleted in the meantime")
    if is_another(topic_id, topic.topic_id):
        raise Retriable(f"{cluster.name}: {name} was recreated in the meantime")


async def _verify(task: VerifyTask) -> list[Compared]:
    configs = client_configs(task.source, task.destination)
    try:
        async with checked_clusters(configs, task.cluster_ids) as clusters:
            comparison = Comparison(
                *clusters,
                topic_ids=task.topic_ids,
                translation=task.translation,
                patience=task.patience,
            )
            comparisons = [await comparison.compare(stretch) for stretch in task.stretches]
            await _check_topics(task, clusters)
            return comparisons
    except TwinlogError as error:
        return [_not_seen(stretch, str(error)) for stretch in task.stretches]


async def _check_topics(task: VerifyTask, clusters: Sides[KafkaCluster]) -> None:
    names = {stretch.partition.topic for stretch in task.stretches}
    names_by_side = (names, {task.translation.topic(name) for name in names})
    for cluster, topic_id, side_names in zip(clusters, task.topic_ids, names_by_side, strict=True):
        for name in side_names:
            await check_topic(cluster, name, topic_id)


def _not_seen(stretch: Stretch, reason: str) -> Compared:
    tally = Tally()
    tally.see_not(stretch.start, stretch.end, reason)
    return Compared(stretch, tally)


class Comparison:
    """Reads both logs in step and classifies what they hold.

    Args:
        source: the source cluster.
        destination: the destination cluster.
        topic_ids: the ids of the topic on both clusters.
        translation: where the partitions and offsets are on the destination.
        patience: seconds of retries for an offset without any progress.
    """

    def __init__(
        self,
        source: KafkaCluster,
        destination: KafkaCluster,
        *,
        topic_ids: Sides[UUID] = ANY_TOPICS,
        translation: Translation = SAME,
        patience: float = PATIENCE_S,
    ) -> None:
        self._source = source
        self._destination = destination
        self._topic_ids = topic_ids
        self._translation = translation
        self._patience = patience

    async def compare(self, stretch: Stretch) -> Compared:
        """Compare one stretch."""
        verdict = StretchClassifier(compacted=stretch.compacted)
        await _Walk(
            verdict,
            self._source_reader(stretch),
            self._reader(self._destination, stretch),
            stretch.end,
        ).walk(stretch.start)
        keys = verdict.keys
        if keys is None or not keys.waiting or verdict.tally.not_seen:
            return Compared(stretch, verdict.finish(complete=not verdict.tally.not_seen))
        complete = await self._newer(verdict, stretch)
        on_destination = await self._alive(
            self._destination, stretch, keys.tombstones(on_source=True)
        )
        on_source = await self._alive(self._source, stretch, keys.tombstones(on_source=False))
        complete = complete and None not in (on_destination, on_source)
        tally = verdict.finish(
            complete=complete,
            alive_on_source=on_source or (),
            alive_on_destination=on_destination or (),
        )
        return Compared(stretch, tally)

    def _source_reader(self, stretch: Stretch) -> LogReader:
        return LogReader(
            self._source,
            stretch.partition,
            topic_id=self._topic_ids.source,
            patience=self._patience,
        )

    def _reader(self, cluster: KafkaCluster, stretch: Stretch) -> SpanReader:
        if cluster is self._source:
            return self._source_reader(stretch)
        reader = LogReader(
            cluster,
            self._translation.name(stretch.partition),
            topic_id=self._topic_ids.destination,
            patience=self._patience,
        )
        if stretch.partition not in self._translation.maps:
            return reader
        return TranslatedReader(reader, self._translation.offsets(stretch.partition))

    async def _bounds(self, cluster: KafkaCluster, partition: TopicPartition) -> LogBounds:
        if cluster is self._source:
            return (await read_bounds(cluster, [partition]))[partition]
        return (await destination_bounds(cluster, [partition], self._translation))[partition]

    async def _newer(self, verdict: StretchClassifier, stretch: Stretch) -> bool:
        """Read on behind the end, for the keys that wait; return whether everything was seen.

        This takes several rounds, since a cleaner may run between reading the end and the log.
        """
        sides = [
            (on_source, cluster, self._reader(cluster, stretch))
            for on_source, cluster in ((False, self._destination), (True, self._source))
        ]
        at = {True: stretch.end, False: stretch.end}
        for _ in range(_NEWER_ROUNDS):
            for on_source, cluster, reader in sides:
                if verdict.keys is None or not verdict.keys.wants_newer():
                    continue
                bounds = await self._bounds(cluster, stretch.partition)
                if bounds.error:
                    return False
                while at[on_source] < bounds.last_stable:
                    span = await reader.span(at[on_source], bounds.last_stable)
                    if span.kind is Kind.UNSEEN:
                        return False
                    for record in _records(span):
                        if record.offset >= stretch.end:
                            verdict.newer(record, on_source=on_source)
                    at[on_source] = span.end
        return True

    async def _alive(
        self, cluster: KafkaCluster, stretch: Stretch, before: Mapping[bytes, int]
    ) -> set[bytes] | None:
        """Keys with a value before these offsets; None if not everything was seen."""
        alive = Alive(before)
        end = max(before.values(), default=stretch.start)
        reader, at = self._reader(cluster, stretch), stretch.start
        while at < end:
            span = await reader.span(at, end)
            if span.kind is Kind.UNSEEN:
                return None
            alive.add(record for record in _records(span) if record.offset >= stretch.start)
            at = span.end
        return alive.keys


def _records(span: Span) -> Iterable[RawRecord]:
    return () if span.batch is None else span.batch.by_offset().values()


class _Walk:
    """A walk over both logs in step, from the start of a stretch to its end."""

    def __init__(
        self, verdict: StretchClassifier, source: LogReader, destination: SpanReader, end: int
    ) -> None:
        self._verdict = verdict
        self._source = source
        self._destination = destination
        self._end = end
        self._source_start = -1
        self._asked_at = float("-inf")

    async def walk(self, at: int) -> None:
        """Classify all offsets from `at` on."""
        while at < self._end:
            source, destination = await asyncio.gather(
                self._source.span(at, self._end), self._destination.span(at, self._end)
            )
            if destination.kind is Kind.BELOW:
                source = await self._below_by_now(source, at)
            if source.kind is Kind.BELOW:  # absent whatever the destination holds, even if unseen
                destination = source
            upto = min(source.end, destination.end, self._end)
            unseen_ranges = [
                Range(at, min(span.end, self._end), f"{side}: {span.reason}")
                for side, span in (("source", source), ("destination", destination))
                if span.kind is Kind.UNSEEN
            ]
            if unseen_ranges:
                self._verdict.tally.see_not(*unseen_ranges[0])
                upto = unseen_ranges[0].end
            else:
                self._classify(source, destination, at, upto)
            at = upto

    def _classify(self, source: Span, destination: Span, at: int, upto: int) -> None:
        try:
            self._verdict.add(source, destination, at, upto)
        except CorruptBatch as error:
            self._verdict.tally.see_not(at, upto, error.message)

    async def _below_by_now(self, span: Span, at: int) -> Span:
        """Return BELOW if the source's log start offset has moved past `at` as well.

        It is read at most once a second, as retention moves both log start offsets during the walk.
        """
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > _START_KNOWN_S:
            self._asked_at = now
            self._source_start = await self._source.log_start() or self._source_start
        if self._source_start > at:
            return Span(at, self._source_start, Kind.BELOW)
        return span
