"""Compares a mirror's two logs, offset by offset, as a Spark job.

Every offset of both logs ends in one class (`verify/verdict.py`): *compared*, *differs*, *absent*
with evidence, *not seen*, or *behind*, which the destination has not reached yet. Per partition the
classes add up to the log's length, from the lower log start to the higher end:

    source            |<- start                              last stable offset ->|
    destination  |<- start                     end ->|
                 | absent |    read and classified    |          behind           |

A task reads a stretch of one partition from both clusters, through `log_reader.py`, and compares
what read_committed consumers see there. Where both logs hold the same batch, its bytes are compared
and no record is decoded; where the mirror has merged or re-encoded, the records are. Only two
answers are in memory at a time.

A compacted partition is one task, since it depends on later records whether a hole is legitimate;
of its keys only those are remembered that wait for such a record.

Nothing of this is shared with the mirror but the clients' connections and the batch format.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from twinlog.engines.exact.ports import Bounds
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config, parse_source
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.errors import CorruptBatch, Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.log.records import RawRecord
from twinlog.kafka.types import TopicPartition
from twinlog.verify.log_reader import PATIENCE_S, LogReader, read_bounds
from twinlog.verify.log_view import Kind, Span
from twinlog.verify.verdict import LOG_START, Alive, Range, Tally, Verdict

T = TypeVar("T")

STRETCH: Final = 1_000_000
"""Offsets of one task, where the topic is not compacted."""
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
    """Something of both sides."""

    source: T
    destination: T


ANY_TOPICS: Final = Sides(NO_TOPIC_ID, NO_TOPIC_ID)
"""Those that are met first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """One Spark task: how to reach both clusters, and what to compare.

    `cluster_ids` and `topic_ids` are what was found where the task was made. An address may lead
    elsewhere from where it runs, and a topic may have been made again.
    """

    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)
    cluster_ids: Sides[str]
    topic_ids: Sides[UUID]
    stretches: Sequence[Stretch]
    patience: float = PATIENCE_S


class Differs(NamedTuple):
    """A range that differs, or was not seen."""

    partition: TopicPartition
    start: int
    end: int
    reason: str


class Compared(NamedTuple):
    """What a task found in one stretch."""

    stretch: Stretch
    tally: Tally

    @property
    def differences(self) -> tuple[Differs, ...]:
        """The ranges that differ, in order."""
        return tuple(Differs(self.stretch.partition, *one) for one in self.tally.differences)

    @property
    def unseen(self) -> tuple[Differs, ...]:
        """The ranges that were not seen."""
        return tuple(Differs(self.stretch.partition, *one) for one in self.tally.unseen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A partition's two logs by their bounds: what is to be read, and what they show already."""

    partition: TopicPartition
    start: int
    """Where reading begins: the source's log start."""
    end: int
    """Where reading ends."""
    length: int
    """Offsets from the lower log start to the higher end."""
    behind: int
    """Offsets that the destination has not reached yet."""
    tally: Tally
    """What the bounds alone show."""


def extent(partition: TopicPartition, source: Bounds, destination: Bounds) -> Extent:
    """What of a partition is to be read, and what its bounds show.

    A log whose bounds cannot be read was not seen, nor was the other one then.

    Args:
        partition: which.
        source: the source's bounds, read after the destination's: these then never lie beyond.
        destination: the destination's.
    """
    tally = Tally()
    unread = [
        f"{side}: {Refusal(bounds.error)}"
        for side, bounds in (("source", source), ("destination", destination))
        if bounds.error
    ]
    if unread:
        known = destination if source.error else source
        start, end = (0, 0) if known.error else (known.start, known.high_watermark)
        tally.see_not(start, end, f"bounds cannot be read, {'; '.join(unread)}")
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


def other(partition: TopicPartition, source: Bounds, destination: Bounds, why: str) -> Extent:
    """A partition of which one log is not the one that is mirrored: all of it differs.

    Args:
        partition: which.
        source: the source's bounds.
        destination: the destination's.
        why: which log, in words.
    """
    read = [one for one in (source, destination) if not one.error]
    start = min((one.start for one in read), default=0)
    end = max((one.high_watermark for one in read), default=0)
    tally = Tally()
    tally.differ(start, end, why)
    return Extent(
        partition=partition, start=end, end=end, length=end - start, behind=0, tally=tally
    )


def stretches(extents: Iterable[Extent], compacted: Mapping[str, bool]) -> list[Stretch]:
    """Cut extents into what one task compares at a time."""
    found = []
    for one in extents:
        whole = compacted[one.partition.topic]
        step = max(one.end - one.start, 1) if whole else STRETCH
        found += [
            Stretch(one.partition, start, min(start + step, one.end), whole)
            for start in range(one.start, one.end, step)
        ]
    return found


def verify_task(task: VerifyTask) -> list[Compared]:
    """Compare some stretches: the body of a Spark task. What cannot be reached was not seen.

    Raises:
        UserError: properties are wrong, or read what is not granted.
    """
    return asyncio.run(_verify(task))


async def _verify(task: VerifyTask) -> list[Compared]:
    destination_config = parse_config(task.destination).config
    source_config = parse_source(task.source, destination_config.grants).config
    try:
        async with (
            KafkaCluster(source_config, name="source") as source,
            KafkaCluster(destination_config, name="destination") as destination,
        ):
            clusters = Sides(source, destination)
            _check_clusters(task, clusters)
            comparison = Comparison(*clusters, topic_ids=task.topic_ids, patience=task.patience)
            found = [await comparison.compare(stretch) for stretch in task.stretches]
            # Log starts are asked for by name.
            await _check_topics(task, clusters)
            return found
    except TwinlogError as error:
        return [_not_seen(stretch, str(error)) for stretch in task.stretches]


def _check_clusters(task: VerifyTask, clusters: Sides[KafkaCluster]) -> None:
    for cluster, expected in zip(clusters, task.cluster_ids, strict=True):
        if cluster.cluster_id != expected:
            raise UserError(
                f"{cluster.name}: the addresses lead to cluster {cluster.cluster_id} here, "
                f"expected {expected}"
            )


async def _check_topics(task: VerifyTask, clusters: Sides[KafkaCluster]) -> None:
    for cluster, expected in zip(clusters, task.topic_ids, strict=True):
        for name in {stretch.partition.topic for stretch in task.stretches}:
            topic = (await cluster.refresh([name])).topics.get(name)
            if topic is not None and is_another(expected, topic.topic_id):
                raise Retriable(f"{cluster.name}: {name} was recreated meanwhile")


def _not_seen(stretch: Stretch, reason: str) -> Compared:
    tally = Tally()
    tally.see_not(stretch.start, stretch.end, reason)
    return Compared(stretch, tally)


class Comparison:
    """Reads both logs in step and classifies what they hold.

    Args:
        source: the source cluster.
        destination: the destination cluster.
        topic_ids: of the topic that is compared.
        patience: seconds that an offset is asked for without any progress.
    """

    def __init__(
        self,
        source: KafkaCluster,
        destination: KafkaCluster,
        *,
        topic_ids: Sides[UUID] = ANY_TOPICS,
        patience: float = PATIENCE_S,
    ) -> None:
        self._source = source
        self._destination = destination
        self._topic_ids = topic_ids
        self._patience = patience

    async def compare(self, stretch: Stretch) -> Compared:
        """Compare one stretch."""
        verdict = Verdict(compacted=stretch.compacted)
        await _Walk(
            verdict,
            self._reader(self._source, stretch),
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

    def _reader(self, cluster: KafkaCluster, stretch: Stretch) -> LogReader:
        ids = self._topic_ids
        topic_id = ids.source if cluster is self._source else ids.destination
        return LogReader(cluster, stretch.partition, topic_id=topic_id, patience=self._patience)

    async def _newer(self, verdict: Verdict, stretch: Stretch) -> bool:
        """Read on behind the end, for the keys that wait; whether all was seen.

        More than once, since a cleaner may run between the question for the end and the reading.
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
                bounds = (await read_bounds(cluster, [stretch.partition]))[stretch.partition]
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
        """Keys with a value before these offsets; None if not all was seen."""
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
    """Both logs in step, from the start of a stretch to its end."""

    def __init__(
        self, verdict: Verdict, source: LogReader, destination: LogReader, end: int
    ) -> None:
        self._verdict = verdict
        self._source = source
        self._destination = destination
        self._end = end
        self._source_start = -1
        self._asked = float("-inf")

    async def walk(self, at: int) -> None:
        """Classify all from `at` on."""
        while at < self._end:
            left, right = await asyncio.gather(
                self._source.span(at, self._end), self._destination.span(at, self._end)
            )
            if right.kind is Kind.BELOW:
                left = await self._below_by_now(left, at)
            if left.kind is Kind.BELOW:  # whatever the destination holds: nothing is left here
                right = left
            upto = min(left.end, right.end, self._end)
            unseen = [
                Range(at, min(span.end, self._end), f"{side}: {span.reason}")
                for side, span in (("source", left), ("destination", right))
                if span.kind is Kind.UNSEEN
            ]
            if unseen:
                self._verdict.tally.see_not(*unseen[0])
                upto = unseen[0].end
            else:
                self._classify(left, right, at, upto)
            at = upto

    def _classify(self, left: Span, right: Span, at: int, upto: int) -> None:
        try:
            self._verdict.add(left, right, at, upto)
        except CorruptBatch as error:
            self._verdict.tally.see_not(at, upto, error.message)

    async def _below_by_now(self, span: Span, at: int) -> Span:
        """The source's log start may have moved past `at` as well: then the record is gone there.

        Asked again once a second at most, since retention moves both log starts while this runs.
        """
        now = asyncio.get_running_loop().time()
        if now - self._asked > _START_KNOWN_S:
            self._asked = now
            self._source_start = await self._source.log_start() or self._source_start
        if self._source_start > at:
            return Span(at, self._source_start, Kind.BELOW)
        return span
