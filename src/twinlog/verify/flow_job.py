"""Compares a flow's partition with its remote partition by the records themselves (a Spark job).

The remote log has other offsets, so a record is known by what it holds: key, value, headers and
timestamp. The records that read_committed consumers see have to be the same on both sides, in the
same order, each of them once:

    source   a0 a1 (marker) a2 a3 a4 a5          pairs     a0-a0', a1-a1', a3-a3', a4-a4'
    remote   a0' (fence) a1' X  a3' a4' a3''     source    a2 missing; a5 behind, or missing
                                                 remote    X foreign; a3'' a repeat

As long as the next records of both logs are equal, they are a pair; equal batches are not decoded.
Where they differ, the nearest later pair of equal records is searched, first close by, then in the
rest of both logs. What is passed over on the way has no pair: *missing* on the source's side, a
record *too many* on the remote side. If a log may lack records just there (retention, compaction,
offsets that cannot be read), nothing is concluded: *not seen*.

Neither the engine's plans nor its map are used for this. What the flow claims is used for three
questions, and decides only what a record without a pair is called:

- Up to which offset of the source everything is copied: behind it, a record without a copy is
  *behind*.
- Where the flow began, on both sides. What is in front of that was written by another program, or
  is of a former topic: the two parts are compared by themselves, and records without a pair are
  *not seen*.
- Where the recorded map begins and ends; it is compared with the pairs (map_check.py).

With transforms, the source's log is read as its copy should be (transformed_log.py). A topic whose
records may go to several topics is compared with each of them, one at a time; flow_targets.py has
topics that are named by time, and those that several topics are routed to.

The job shares with the engine only the clients' connections, the batch format, and the settings.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.log.records import RawRecord
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.verify.connect_transforms import ConnectTransforms
from twinlog.verify.flow_targets import (
    EMPTY,
    NO_NEIGHBOURS,
    NOT_TOLD,
    OF_OTHERS,
    TOO_MANY_RECORDS,
    Neighbour,
    NeighbourRecords,
    TooManyRecords,
    dated_targets,
    dated_topics,
    neighbour_records,
    without_neighbours,
)
from twinlog.verify.flow_task import NO_LACKS, FlowCompared, FlowPair, FlowTask
from twinlog.verify.flow_walk import FlowWalk, Key, key_of
from twinlog.verify.job import (
    OPEN_TRANSACTION,
    Compared,
    Sides,
    VerifyTask,
    check_topic,
    checked_clusters,
    client_configs,
    verify_task,
)
from twinlog.verify.log_cursor import Blank, LogCursor, SpanSource
from twinlog.verify.log_facts import AskedFacts, LogFacts
from twinlog.verify.log_reader import LogReader
from twinlog.verify.log_view import Kind
from twinlog.verify.map_check import NO_MAP, MapCheck, not_judged
from twinlog.verify.transformed_log import MappedReader, TransformedLogs, TransformSettings
from twinlog.verify.verdict import (
    ABORTED,
    COMPACTED,
    FILTERED,
    LOG_START,
    MARKER,
    OTHER_TOPICS,
    ROUTED,
    DifferenceKind,
    Tally,
)

MAX_NAMED: Final = 10_000
"""Records too many that are searched in the source, to tell a repeat from a foreign record."""
FOREIGN: Final = "a record that the source does not have"
REPEATED: Final = "a record of the source once more, or out of order"
UNWANTED: Final = "a record that the transforms drop, or route to another topic"
NOT_SAID: Final = "a record too many"
BEFORE: Final = "written before the flow began, by another program or for a former topic"
DELETED: Final = "the log starts later"
NAMED_BY_TIME: Final = "topics that are named by time"
ABSENT: Final = "the topic, or this partition of it, does not exist"
POLICY_UNREAD: Final = "a hole, and whether compaction explains it cannot be read: cleanup.policy"
BEGIN_UNKNOWN: Final = "another program has copied before the flow, and where to is not recorded"
_ABSENT: Final = {
    Kind.CONTROL: MARKER,
    Kind.ABORTED: ABORTED,
    Kind.HOLE: COMPACTED,
    Kind.BELOW: LOG_START,
    Kind.FILTERED: FILTERED,
    Kind.ROUTED: ROUTED,
    Kind.OTHERS: OTHER_TOPICS,
}
_NO_RECORD: Final = frozenset({Kind.CONTROL, Kind.ABORTED})
_NO_COPY: Final = frozenset({*_NO_RECORD, Kind.FILTERED, Kind.ROUTED})
_SETTLED: Final = frozenset({*_NO_RECORD, Kind.OTHERS})


def run_task(task: VerifyTask | FlowTask) -> Sequence[Compared | FlowCompared]:
    """Carry out a task of either kind: the body of a Spark task.

    Raises:
        UserError: see `verify_task`.
    """
    return flow_task(task) if isinstance(task, FlowTask) else verify_task(task)


def flow_task(task: FlowTask) -> list[FlowCompared]:
    """Compare a partition of a flow. If it cannot be read, its offsets count as not seen.

    Raises:
        UserError: properties are wrong, or refer to something that is not granted.
    """
    return asyncio.run(_compared(task))


async def _compared(task: FlowTask) -> list[FlowCompared]:
    configs = client_configs(task.source, task.destination)
    results: list[FlowCompared] = []
    try:
        async with checked_clusters(configs, task.cluster_ids) as clusters:
            if task.only_topics:
                return await _dated(clusters, task, task.only_topics)
            results.append(await _checked(clusters, task))
            if task.finds_topics:
                found, lack = await _found_topics(clusters, task)
                results += found
                if lack:
                    results[0].source.see_not(0, 0, f"{NAMED_BY_TIME}: {lack}")
    except TwinlogError as error:
        if results:
            results[0].source.see_not(0, 0, f"{NAMED_BY_TIME}: {error}")
            return results
        return [
            unseen(pair, task.bounds, str(error), found=bool(task.only_topics))
            for pair in _pairs_of(task)
        ]
    return results


def _pairs_of(task: FlowTask) -> list[FlowPair]:
    """The pairs that a task is to compare, as far as they are known."""
    if not task.only_topics:
        return [task.pair]
    index = task.pair.source.partition
    return [
        task.pair._replace(remote=TopicPartition(topic, index))
        for topic in sorted(task.only_topics)
    ]


async def _checked(clusters: Sides[KafkaCluster], task: FlowTask) -> FlowCompared:
    """Compare both logs, whose topics have to be the same all the time.

    An error is of this pair alone: what others have shown stays.
    """
    try:
        result = await compare_flow(clusters, task)
        for cluster, topic_id, partition in zip(
            clusters, task.topic_ids, task.pair.sides, strict=True
        ):
            if not (task.is_absent and partition is task.pair.remote):
                await check_topic(cluster, partition.topic, topic_id)
    except TwinlogError as error:
        return unseen(task.pair, task.bounds, str(error))
    return result


async def _found_topics(
    clusters: Sides[KafkaCluster], task: FlowTask
) -> tuple[list[FlowCompared], str]:
    """Compare the topics that are named by the time of the source's records.

    Returns:
        The results, and why there may be more topics; empty: there are not.
    """
    assert task.transforms is not None
    source = task.pair.source
    reader = LogReader(
        clusters.source, source, topic_id=task.topic_ids.source, patience=task.patience
    )
    found = await dated_topics(reader, task.bounds.source, task.transforms, source.partition)
    return await _dated(clusters, task, found.topics), found.lack


async def _dated(
    clusters: Sides[KafkaCluster], task: FlowTask, topics: Collection[str]
) -> list[FlowCompared]:
    """Compare these topics, which are named by time."""
    results = []
    for target in await dated_targets(
        clusters, task.pair.source, topics, has_source=task.has_source
    ):
        pair = task.pair._replace(remote=target.partition)
        if target.trouble:
            result = unseen(pair, target.bounds, target.trouble)
        else:
            found = replace(
                task,
                pair=pair,
                topic_ids=task.topic_ids._replace(destination=target.topic_id),
                bounds=target.bounds,
                is_absent=target.is_absent,
                finds_topics=False,
                only_topics=frozenset(),
            )
            result = await _checked(clusters, found)
        result.bounds = target.bounds
        results.append(result)
    return results


def unseen(
    pair: FlowPair, bounds: Sides[LogBounds], reason: str, *, found: bool = False
) -> FlowCompared:
    """The result for a partition of which nothing was compared.

    Args:
        pair: the partition.
        bounds: of both logs.
        reason: why.
        found: whether the task has found the topic, whose bounds in the target are not known.
    """
    if found:
        bounds = bounds._replace(destination=EMPTY)
    result = FlowCompared(pair=pair, bounds=bounds if found else None)
    for tally, side in zip((result.source, result.remote), bounds, strict=True):
        start, end = (0, 0) if side.error else (side.start, side.last_stable)
        tally.see_not(start, end, reason)
    return result


async def compare_flow(clusters: Sides[KafkaCluster], task: FlowTask) -> FlowCompared:
    """Compare both logs of a partition, and the recorded map with what they show.

    Raises:
        TwinlogError: a cluster is unreachable, or refuses.
    """

    def reader_of(partition: TopicPartition, topic_id: UUID) -> SpanSource:
        return LogReader(clusters.source, partition, topic_id=topic_id, patience=task.patience)

    def readers() -> Sides[SpanSource]:
        return Sides(
            *(
                LogReader(cluster, partition, topic_id=topic_id, patience=task.patience)
                for cluster, partition, topic_id in zip(
                    clusters, task.pair.sides, task.topic_ids, strict=True
                )
            )
        )

    others = NO_NEIGHBOURS
    if task.transforms is not None and (near := _neighbours_there(task, task.transforms)):
        try:
            others = await neighbour_records(
                *(clusters.source, reader_of, near, task.transforms, task.pair.remote)
            )
        except TooManyRecords:
            return unseen(task.pair, task.bounds, TOO_MANY_RECORDS)
    facts = AskedFacts(clusters, task.pair.sides, task.patience)
    return await flow_comparison(task, readers, facts, others).run()


def _neighbours_there(task: FlowTask, settings: TransformSettings) -> list[Neighbour]:
    """The neighbours whose records may go to the remote partition of a task."""
    transforms, topic = ConnectTransforms(settings.values), task.pair.remote.topic
    return [
        neighbour
        for neighbour in task.neighbours
        if transforms.is_dated or topic in transforms.topics_of(neighbour.remote)
    ]


class Sighted:
    """The classes of the offsets of both logs, as they are found in order."""

    def __init__(self, task: FlowTask) -> None:
        claim = task.claim
        self.is_compacted: bool | None = None
        self.result = FlowCompared(pair=task.pair)
        self._are_known = task.transforms is None
        self.extra: dict[int, Key] = {}
        """Remote records too many that are to be searched in the source, by offset."""
        own_begin = claim.begin.source if claim.taken_over else 0
        self.map = MapCheck(claim.map or NO_MAP, own_begin, claim.end)

    def pair(self, source: int, remote: int, count: int) -> None:
        """Equal records follow each other on both sides."""
        self.result.source.compared += count
        self.result.remote.compared += count
        self.map.settled(remote, remote + count)
        self.map.copied(source, remote, count)

    def altered(self, source: RawRecord, remote: RawRecord, reason: str) -> None:
        """A record's copy is not equal to it."""
        self.result.source.differ(source.offset, source.offset + 1, reason)
        self.result.remote.differ(remote.offset, remote.offset + 1, reason)
        self._are_known = False
        if reason == DifferenceKind.TIMESTAMP:
            self.map.settled(remote.offset, remote.offset + 1)
        self.map.copied(source.offset, remote.offset, 1)

    def missing(self, record: RawRecord, lack: str) -> None:
        """A record of the source has no copy; `lack`: why the remote log may lack it."""
        offset = record.offset
        if lack:
            self.result.source.see_not(offset, offset + 1, f"no copy: remote log: {lack}")
            self.map.unknown(offset, offset + 1)
        else:
            self.result.source.differ(offset, offset + 1, DifferenceKind.LOST)
            self.map.no_copy(offset, offset + 1, is_record=True)

    def surplus(self, record: RawRecord, lack: str) -> None:
        """A remote record has no original; `lack`: why the source may lack it."""
        offset = record.offset
        if lack:
            self.result.remote.see_not(offset, offset + 1, f"no original: source: {lack}")
        elif len(self.extra) < MAX_NAMED:
            self.extra[offset] = key_of(record, timed=True)
        else:
            self.result.remote.differ(offset, offset + 1, NOT_SAID)

    def source_blank(self, blank: Blank) -> None:
        """Offsets of the source hold no record."""
        self._blank(self.result.source, blank)
        if blank.kind in _NO_COPY:
            is_record = blank.kind not in _NO_RECORD
            self.map.no_copy(blank.start, blank.end, is_record=is_record)
        else:
            self.map.unknown(blank.start, blank.end)

    def remote_blank(self, blank: Blank) -> None:
        """Offsets of the remote log hold no record."""
        self._blank(self.result.remote, blank)
        if blank.kind in _SETTLED:
            self.map.settled(blank.start, blank.end)

    def _blank(self, tally: Tally, blank: Blank) -> None:
        start, end = blank.start, blank.end
        if blank.kind is Kind.UNSEEN:
            tally.see_not(start, end, blank.reason)
        elif blank.kind is not Kind.HOLE or self.is_compacted:
            tally.absent[_ABSENT[blank.kind]] += end - start
        elif self.is_compacted is None:
            tally.see_not(start, end, POLICY_UNREAD)
        else:
            tally.differ(start, end, DifferenceKind.UNEXPLAINED)

    def behind(self, start: int, end: int, lack: str) -> None:
        """Offsets of the source that are not claimed to be copied were not read."""
        self.result.behind += end - start
        if lack:
            self.map.unknown(start, end)
        else:
            self.map.behind(start, end)

    def finish(
        self, ends: Sides[int], originals: set[Key], unwanted: set[Key], *, is_open: bool
    ) -> FlowCompared:
        """The result.

        Args:
            ends: of both logs.
            originals: those keys of `extra` that the source has somewhere.
            unwanted: those that it would have if the transforms dropped and routed nothing.
            is_open: whether a transaction is open at the remote log's end.
        """
        tally = self.result.remote
        for offset, key in self.extra.items():
            reason = UNWANTED if key in unwanted else FOREIGN
            tally.differ(offset, offset + 1, REPEATED if key in originals else reason)
        tally.differences.sort()
        # Else a former transform, or the target, may have made a copy that no record is equal to.
        foreign = self.extra.keys() if self._are_known else ()
        self.result.recorded = self.map.finish(
            ends.source,
            remote_end=None if is_open else ends.destination,
            foreign=[offset for offset in foreign if self.extra[offset] not in originals],
        )
        return self.result


class FlowComparison:
    """A walk over both logs.

    Args:
        task: the partition.
        readers: gives readers of both logs, new ones at each call.
        facts: what else is known of them.
        unfiltered: gives a reader of the source's log without omissions of transforms.
        foreign: why a remote record without a pair may be right; empty: it is not.
        doubt: why any record without a pair may be right; empty: it is not.
    """

    def __init__(
        self,
        task: FlowTask,
        readers: Callable[[], Sides[SpanSource]],
        facts: LogFacts,
        *,
        unfiltered: Callable[[], SpanSource] | None = None,
        foreign: str = "",
        doubt: str = "",
    ) -> None:
        self._task = task
        self._readers = readers
        self._facts = facts
        self._unfiltered = unfiltered
        self._foreign = foreign
        self._doubt = doubt
        self._sighted = Sighted(task)

    async def run(self) -> FlowCompared:
        """Compare what is in front of the flow's begin, then the rest.

        Raises:
            TwinlogError: the facts cannot be asked for.
        """
        task, claim = self._task, self._task.claim
        self._sighted.is_compacted = await self._facts.is_compacted()
        source, remote = task.bounds
        ends = task.ends
        begin = Sides(*(min(at, end) for at, end in zip(claim.begin, ends, strict=True)))
        starts = Sides(source.start, remote.start)
        if source.start < begin.source or remote.start < begin.destination:
            await self._walk(starts, begin, NO_LACKS, before=True)
        lacks = Sides(
            claim.lacks.source or (DELETED if source.start > begin.source else ""),
            (ABSENT if task.is_absent else claim.lacks.destination)
            or (DELETED if remote.start > begin.destination else ""),
        )
        starts = Sides(*map(max, starts, begin))
        await self._walk(starts, ends, lacks, before=False)
        sighted = self._sighted
        is_open = remote.last_stable < remote.high_watermark
        found = await self._found(set(sighted.extra.values()))
        result = sighted.finish(ends, *found, is_open=is_open)
        # A flow that has reached the source's end has nothing to write in a transaction; else the
        # open one may be its own, which ends, or another producer's.
        may_be_ours = task.in_transactions and claim.end < ends.source
        if is_open and not (may_be_ours and await self._facts.moves_on(remote.last_stable)):
            result.remote.see_not(remote.last_stable, remote.high_watermark, OPEN_TRANSACTION)
        if claim.map is None or claim.map.is_lost:
            result.recorded = None if claim.map is None else not_judged(claim.map)
        return result

    async def _walk(
        self, starts: Sides[int], ends: Sides[int], lacks: Sides[str], *, before: bool
    ) -> None:
        readers = self._readers()
        bounds = self._task.bounds.destination
        open_at_end = ends.destination == bounds.last_stable < bounds.high_watermark
        walk = FlowWalk(
            LogCursor(
                *(readers.source, starts.source, ends.source),
                self._sighted.source_blank,
                lacks.source,
            ),
            LogCursor(
                *(readers.destination, starts.destination, ends.destination),
                self._sighted.remote_blank,
                lacks.destination,
            ),
            self._sighted,
            self._readers,
            claimed=ends.source if before else self._task.claim.end,
            otherwise=BEFORE if before else self._doubt,
            at_end=OPEN_TRANSACTION if open_at_end and not before else "",
            foreign=self._foreign,
        )
        await walk.run()

    async def _found(self, keys: set[Key]) -> tuple[set[Key], set[Key]]:
        """Those of these records that the source has, and those that it has without omissions."""
        if not keys:
            return set(), set()
        originals = await self._keys_in(self._readers().source, keys)
        left = keys - originals
        if self._unfiltered is None or not left:
            return originals, set()
        return originals, await self._keys_in(self._unfiltered(), left)

    async def _keys_in(self, source: SpanSource, keys: set[Key]) -> set[Key]:
        cursor = LogCursor(source, self._task.bounds.source.start, self._task.ends.source)
        found: set[Key] = set()
        while records := await cursor.scan():
            found |= keys.intersection(key_of(record, timed=True) for record in records)
        return found


def flow_comparison(
    task: FlowTask,
    readers: Callable[[], Sides[SpanSource]],
    facts: LogFacts,
    others: NeighbourRecords = NO_NEIGHBOURS,
) -> FlowComparison:
    """The walk over both logs of a task.

    Args:
        task: the partition.
        readers: gives readers of both logs as they are, new ones at each call.
        facts: what else is known of them.
        others: what other topics of the flow have in the remote log.
    """
    if task.transforms is None:
        return FlowComparison(task, readers, facts)
    logs = TransformedLogs(task.transforms, task.pair.remote)
    expected = without_neighbours(logs.expected, others, NOT_TOLD)
    written = without_neighbours(logs.written, others, OF_OTHERS)

    def mapped() -> Sides[SpanSource]:
        source, remote = readers()
        return Sides(MappedReader(source, expected), MappedReader(remote, written))

    def unfiltered() -> SpanSource:
        return MappedReader(readers().source, logs.unfiltered)

    return FlowComparison(task, mapped, facts, unfiltered=unfiltered, foreign=others.lack)
