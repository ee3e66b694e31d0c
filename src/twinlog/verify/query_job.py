"""Compares the topics of a flow with a query or function: with what Spark computes once more.

    source logs --LogReader--> query_frames.py --> files (query_spool.py) --+
                                                                            +--> FlowComparison
    target's logs --LogReader--> the same normal form of JSON --------------+

All partitions of the flow's topics are computed first, since a query may send any record anywhere:
in a partition of the target, what other partitions of the source have there is passed over, as in
flow_targets.py. Then each partition of the source is compared with each partition that its records
go to, and with its remote partition, by their records (flow_job.py): each one once and in order.
Further partitions of these topics, where no record is expected, have to be empty: one that is not
is compared with one of the sources.

Bounds are read in the order of all comparisons, those of the target before those of the source; so
the source is read up to a first end, to find the targets, and from there to its end.

It runs in a process of its own (query_worker.py): a Spark that is neither a lane's nor the one that
the other comparisons run on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import CorruptBatch, Refusal, TwinlogError
from twinlog.kafka.log.records import RawRecord, decode
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.verify.flow_job import FlowComparison, unseen
from twinlog.verify.flow_targets import (
    EMPTY,
    MAX_NEIGHBOUR_KEYS,
    MAX_TOPICS,
    NEIGHBOUR_LACKS,
    NOT_TOLD,
    OF_OTHERS,
    TOO_MANY_RECORDS,
    NeighbourRecords,
    is_empty,
    unexpected,
    without_neighbours,
)
from twinlog.verify.flow_task import FlowClaim, FlowCompared, FlowPair, FlowTask
from twinlog.verify.flow_walk import Key
from twinlog.verify.job import Sides, check_topic
from twinlog.verify.log_cursor import Blank, LogCursor, SpanSource
from twinlog.verify.log_facts import AskedFacts
from twinlog.verify.log_reader import LogReader, read_bounds
from twinlog.verify.query_results import Failed, InputRecord, Output
from twinlog.verify.query_spool import Item, SpooledLog, spooled
from twinlog.verify.transformed_log import MappedReader, normal_record

MAX_BATCH: Final = 5000
"""Records for which the query is computed at a time."""
MAX_BYTES: Final = 4 << 20
"""Bytes of them, or a single record: a lane's Spark has to hold as much, in the same memory."""
TABLES: Final = "static tables may have been others when it was copied"
FUNCTION: Final = "a function may have read what verify does not see"
TOO_MANY_TARGETS: Final = f"records go to more than {MAX_TOPICS} partitions of the target"


def batches(records: Sequence[RawRecord]) -> Iterator[Sequence[RawRecord]]:
    """Cut records, in order, into parts that Spark can hold (`MAX_BATCH`, `MAX_BYTES`)."""
    first = size = 0
    for at, raw in enumerate(records):
        if at > first and (at - first == MAX_BATCH or size + len(raw.tail) > MAX_BYTES):
            yield records[first:at]
            first, size = at, 0
        size += len(raw.tail)
    if first < len(records):
        yield records[first:]


class Frames(Protocol):
    """Computes results (`QueryFrames`)."""

    @property
    def has_tables(self) -> bool:
        """Whether there are static tables."""
        ...

    @property
    def is_function(self) -> bool:
        """Whether it is a function."""
        ...

    @property
    def meant_parts(self) -> frozenset[str]:
        """Which of key and value are compared by the meaning of their JSON."""
        ...

    @property
    def routes(self) -> bool:
        """Whether a result may name topics or partitions."""
        ...

    def outputs(self, records: Sequence[InputRecord]) -> list[Output]:
        """What should become of records, one by one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySource:
    """A partition of the source, with its remote partition.

    `topic_ids` are as in `FlowTask`; `is_compared`: else only its records are known, as those of
    another partition in the target's logs.
    """

    pair: FlowPair
    topic_ids: Sides[UUID]
    claim: FlowClaim
    is_compared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTask:
    """A flow with a query or function: all partitions of its topics."""

    flow: str
    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)
    cluster_ids: Sides[str]
    transform: DataFrameTransform = field(repr=False)
    sources: tuple[QuerySource, ...]
    patience: float


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The results for a flow; or why there are none."""

    results: Sequence[FlowCompared] = ()
    refusal: str = ""
    hint: str = ""
    """What to do about a refusal."""


async def compare_query(
    clusters: Sides[KafkaCluster], task: QueryTask, frames: Frames, folder: Path
) -> list[FlowCompared]:
    """Compare a flow.

    Args:
        clusters: both, connected.
        task: the flow.
        frames: its query or function.
        folder: for files with the records that are expected; it is empty.

    Raises:
        NotDecidable: what should be there cannot be told.
        TwinlogError: a cluster is unreachable, or refuses.
    """
    return await _QueryComparison(clusters, task, frames, folder).run()


def goes_to(topic: str, targets: Iterable[TopicPartition]) -> bool:
    """Whether one of these partitions is of a topic."""
    return any(target.topic == topic for target in targets)


class _QueryComparison:
    def __init__(
        self, clusters: Sides[KafkaCluster], task: QueryTask, frames: Frames, folder: Path
    ) -> None:
        self._clusters = clusters
        self._task = task
        self._frames = frames
        self._logs = {
            source.pair.source: SpooledLog(folder / f"{at}.records")
            for at, source in enumerate(task.sources)
        }
        self._bounds: dict[TopicPartition, LogBounds] = {}

    async def run(self) -> list[FlowCompared]:
        await self._compute()
        compared = [one for one in self._task.sources if one.is_compared]
        targets = {
            one.pair.source: sorted(self._logs[one.pair.source].targets | {one.pair.remote})
            for one in compared
        }
        # The ids are read first, and checked at the end of each comparison (`check_topic`).
        names = {place.topic for places in targets.values() for place in places}
        known = (await self._clusters.destination.refresh(names)).topics
        expected = set().union(*targets.values())
        others = unexpected(expected, {name: topic.partitions for name, topic in known.items()})
        remote_bounds = await read_bounds(self._clusters.destination, sorted({*expected, *others}))
        for place in others:
            if not is_empty(remote_bounds[place]):
                next(each for each in targets.values() if goes_to(place.topic, each)).append(place)
        await self._compute()
        results = []
        for one in compared:
            for at, target in enumerate(targets[one.pair.source]):
                topic = known.get(target.topic)
                pair = one.pair._replace(remote=target)
                ids = one.topic_ids._replace(
                    destination=NO_TOPIC_ID if topic is None else topic.topic_id
                )
                bounds = Sides(self._bounds[one.pair.source], remote_bounds[target])
                why = TOO_MANY_TARGETS if at >= MAX_TOPICS else ""
                results.append(await self._compared(one, pair, ids, bounds, why=why))
        return results

    async def _compute(self) -> None:
        """Read all sources up to their present ends, and compute what is expected of them."""
        sources = [one.pair.source for one in self._task.sources]
        bounds = await read_bounds(self._clusters.source, sources)
        for one in self._task.sources:
            source = one.pair.source
            log, now = self._logs[source], bounds[source]
            first = self._bounds.get(source)
            if now.error or (first is not None and first.error):
                self._bounds[source] = first if first is not None and first.error else now
                log.lack = log.lack or NEIGHBOUR_LACKS
                continue
            # What was read before is in the file, also if the source has deleted it since.
            start = now.start if first is None else first.start
            self._bounds[source] = now._replace(start=start)
            if first is None:
                log.end = start
                log.lack = NEIGHBOUR_LACKS if start > 0 else ""
            await self._spool(one, log, now.last_stable)

    async def _spool(self, one: QuerySource, log: SpooledLog, end: int) -> None:
        reader = LogReader(
            self._clusters.source,
            one.pair.source,
            topic_id=one.topic_ids.source,
            patience=self._task.patience,
        )
        blanks: list[Blank] = []
        held: list[RawRecord] = []
        cursor = LogCursor(reader, log.end, end, blanks.append)
        size = 0
        while records := await cursor.scan():
            held += records
            size += sum(len(raw.tail) for raw in records)
            if len(held) >= MAX_BATCH or size >= MAX_BYTES:
                self._write(one, log, held, blanks)
                size = 0
        self._write(one, log, held, blanks)

    def _write(
        self, one: QuerySource, log: SpooledLog, held: list[RawRecord], blanks: list[Blank]
    ) -> None:
        """Compute what becomes of records, and write it with the blanks around them."""
        items: list[Item] = list(blanks)
        for part in batches(held):
            for raw, output in zip(part, self._outputs(one, part), strict=True):
                items.append(spooled(raw.offset, output, self._frames.meant_parts))
        if items:
            log.add(sorted(items, key=lambda item: item[0]))
        held.clear()
        blanks.clear()

    def _outputs(self, one: QuerySource, raws: Sequence[RawRecord]) -> list[Output]:
        outputs: dict[int, Output] = {}
        inputs: list[InputRecord] = []
        for raw in raws:
            try:
                inputs.append(InputRecord(*one.pair.remote, decode(raw)))
            except CorruptBatch as error:
                outputs[raw.offset] = Failed(error.message)
        found = self._frames.outputs(inputs)
        for each, output in zip(inputs, found, strict=True):
            outputs[each.record.offset] = output
        return [outputs[raw.offset] for raw in raws]

    async def _compared(
        self,
        one: QuerySource,
        pair: FlowPair,
        ids: Sides[UUID],
        bounds: Sides[LogBounds],
        *,
        why: str,
    ) -> FlowCompared:
        is_absent = bounds.destination.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_absent:
            bounds = bounds._replace(destination=EMPTY)
        for side, of_log in zip(("source", "destination"), bounds, strict=True):
            if of_log.error:
                why = f"cannot read the bounds: {side}: {Refusal(of_log.error)}"
        others = self._others(one.pair.source, pair.remote)
        if others is None:
            why = why or TOO_MANY_RECORDS
        if why or others is None:
            result = unseen(pair, bounds, why)
        else:
            walked = FlowTask(
                source={},
                destination={},
                cluster_ids=self._task.cluster_ids,
                topic_ids=ids,
                pair=pair,
                bounds=bounds,
                # The map is of the remote partition alone.
                claim=one.claim if pair == one.pair else replace(one.claim, map=None),
                in_transactions=True,
                is_absent=is_absent,
            )
            try:
                result = await self._walked(walked, others)
            except (TwinlogError, OSError) as error:  # of this pair alone
                result = unseen(pair, bounds, str(error))
        result.bounds = bounds
        return result

    async def _walked(self, task: FlowTask, others: NeighbourRecords) -> FlowCompared:
        comparison = FlowComparison(
            task,
            self._readers(task, others),
            AskedFacts(self._clusters, task.pair.sides, self._task.patience),
            foreign=others.lack,
            doubt=TABLES if self._frames.has_tables else FUNCTION * self._frames.is_function,
        )
        result = await comparison.run()
        for cluster, topic_id, partition in zip(
            self._clusters, task.topic_ids, task.pair.sides, strict=True
        ):
            if not (task.is_absent and partition is task.pair.remote):
                await check_topic(cluster, partition.topic, topic_id)
        return result

    def _readers(self, task: FlowTask, others: NeighbourRecords) -> Callable[[], Sides[SpanSource]]:
        log, target, parts = (
            self._logs[task.pair.source],
            task.pair.remote,
            self._frames.meant_parts,
        )
        written = without_neighbours(
            lambda raw: normal_record(raw, decode(raw), parts), others, OF_OTHERS
        )
        expected = without_neighbours(lambda raw: raw, others, NOT_TOLD)

        def readers() -> Sides[SpanSource]:
            remote = LogReader(
                self._clusters.destination,
                target,
                topic_id=task.topic_ids.destination,
                patience=self._task.patience,
            )
            return Sides(
                MappedReader(log.expected_in(target), expected), MappedReader(remote, written)
            )

        return readers

    def _others(self, source: TopicPartition, target: TopicPartition) -> NeighbourRecords | None:
        """What other partitions of the source have in the target's log; None: too much."""
        if not self._frames.routes:
            return NeighbourRecords()
        keys: set[Key] = set()
        lack = ""
        for other, log in self._logs.items():
            if other == source:
                continue
            lack = lack or (NEIGHBOUR_LACKS if log.lack else "")
            for key in log.keys_in(target) if target in log.targets else ():
                keys.add(key)
                if len(keys) > MAX_NEIGHBOUR_KEYS:
                    return None
        return NeighbourRecords(keys, lack)
