"""What else a task of a flow with transforms has to know: more topics, and who else writes there.

**Topics that are named by time.** Where `TimestampRouter` names topics, a plan cannot know them. So
the task of the remote topic reads the source once to find them, and compares each of them then. A
topic that no record of the source goes to is not found, and not read. Of a topic that is found, the
partitions where no record should be are compared afterwards (operations/dated_partitions.py).

**Topics that several topics are routed to.** Their records are in such a log in an order that only
the target knows:

    t         a0    a1        a2
    u            b0     b1
    merged    a0 b0 a1 b1 X  a2       for t: a0 . a1 . X a2; for u: . b0 . b1 X .

For each of the topics the log has to hold its records, each once and in order; what the others have
is passed over there. So the other logs (*neighbours*) are read first, and their records are known
by a digest. A record that two topics have alike is *not seen* on the source's side, as nothing
tells whose copy is there. One that no topic has is foreign, unless a neighbour may have had it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import CorruptBatch, Refusal
from twinlog.kafka.log.records import RawRecord, decode
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.verify.connect_transforms import ConnectTransforms, NotTransformable
from twinlog.verify.flow_walk import Key, key_of
from twinlog.verify.job import Sides
from twinlog.verify.log_cursor import Blank, LogCursor, SpanSource
from twinlog.verify.log_reader import read_bounds
from twinlog.verify.log_view import Kind
from twinlog.verify.transformed_log import (
    Mapped,
    MappedReader,
    Omission,
    TransformedLogs,
    TransformSettings,
)

MAX_TOPICS: Final = 1000
"""Topics named by time that are compared for one partition of the source."""
MAX_NEIGHBOUR_KEYS: Final = 2_000_000
"""Records of neighbours that are known at a time: 200 MB."""
AMBIGUOUS: Final = "another topic that is routed there has the same record"
NEIGHBOUR_LACKS: Final = "a topic that is routed there, too, lacks records"
TOO_MANY_RECORDS: Final = "too many records of other topics are routed there"
TOO_MANY_TOPICS: Final = f"more than {MAX_TOPICS} topics are named by time"
EMPTY: Final = LogBounds(0, 0, 0, 0)

Readers = Callable[[TopicPartition, UUID], SpanSource]
"""Gives a reader of a partition of the source, of the topic with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A partition of another topic of the same flow, whose records may go to the same topics.

    Attributes:
        source: the partition, of the source.
        topic_id: the topic's.
        remote: its remote topic, by the name that the transforms see.
    """

    source: TopicPartition
    topic_id: UUID
    remote: str


class NeighbourRecords(NamedTuple):
    """What neighbours have in a log, and why they may have more there; empty: they do not."""

    keys: frozenset[Key] | set[Key] = frozenset()
    lack: str = ""


NO_NEIGHBOURS: Final = NeighbourRecords()


class TooManyRecords(Exception):
    """Neighbours have more records than are kept in memory."""


async def neighbour_records(
    source: KafkaCluster,
    readers: Readers,
    neighbours: Iterable[Neighbour],
    settings: TransformSettings,
    target: TopicPartition,
) -> NeighbourRecords:
    """The records of neighbours that should be in the target's log.

    The bounds of the target's log have to be known before: so all that it holds is read here.

    Raises:
        TooManyRecords: there are too many.
        TwinlogError: the source is unreachable, or refuses.
    """
    near = list(neighbours)
    if not near:
        return NO_NEIGHBOURS
    bounds = await read_bounds(source, [neighbour.source for neighbour in near])
    keys: set[Key] = set()
    lack = ""
    for neighbour in near:
        of_log = bounds[neighbour.source]
        if of_log.error or of_log.start > 0:
            lack = NEIGHBOUR_LACKS
        if of_log.error:
            continue
        logs = TransformedLogs(replace(settings, topic=neighbour.remote), target)
        reader = MappedReader(readers(neighbour.source, neighbour.topic_id), logs.expected)
        if await _gather(LogCursor(reader, of_log.start, of_log.last_stable), keys):
            lack = NEIGHBOUR_LACKS
    return NeighbourRecords(keys, lack)


async def _gather(cursor: LogCursor, keys: set[Key]) -> str:
    """Add the keys of a log; return why it may lack records."""
    while records := await cursor.scan():
        keys.update(key_of(record, timed=True) for record in records)
        if len(keys) > MAX_NEIGHBOUR_KEYS:
            raise TooManyRecords
    return cursor.lack


def without_neighbours(
    mapped: Callable[[RawRecord], Mapped], records: NeighbourRecords, omission: Omission
) -> Callable[[RawRecord], Mapped]:
    """A mapping that has the omission in place of records that neighbours have."""
    if not records.keys:
        return mapped

    def of(raw: RawRecord) -> Mapped:
        result = mapped(raw)
        if isinstance(result, RawRecord) and key_of(result, timed=True) in records.keys:
            return omission
        return result

    return of


OF_OTHERS: Final = Omission(Kind.OTHERS)
NOT_TOLD: Final = Omission(Kind.UNSEEN, AMBIGUOUS)


class FoundTopics(NamedTuple):
    """Topics that are named by time, and why there may be more; empty: there are not."""

    topics: Collection[str]
    lack: str = ""


async def dated_topics(
    reader: SpanSource, bounds: LogBounds, settings: TransformSettings, partition: int
) -> FoundTopics:
    """The topics, named by time, that records go to.

    Those that follow from the settings alone are left out. One more than `MAX_TOPICS` at most.
    """
    lacks: list[str] = []

    def see(blank: Blank) -> None:
        if blank.kind is Kind.UNSEEN and not lacks:
            lacks.append(f"source offset {blank.start}: {blank.reason}")

    transforms = ConnectTransforms(settings.values)
    known = transforms.topics_of(settings.topic) | {settings.topic}
    cursor = LogCursor(reader, bounds.start, bounds.last_stable, see)
    topics: set[str] = set()
    while len(topics) <= MAX_TOPICS and (records := await cursor.scan()):
        for raw in records:
            try:
                result = transforms.expected(decode(raw), settings.topic, partition)
            except (NotTransformable, CorruptBatch):
                continue  # the comparison reports it
            if not result.dropped and result.topic not in known:
                topics.add(result.topic)
    return FoundTopics(topics, "".join(lacks))


class DatedTarget(NamedTuple):
    """A topic that is named by time, as the target has it."""

    partition: TopicPartition
    topic_id: UUID
    bounds: Sides[LogBounds]
    is_absent: bool
    trouble: str
    """Why it cannot be compared; empty: it can."""


async def dated_targets(
    clusters: Sides[KafkaCluster],
    source: TopicPartition,
    topics: Collection[str],
    *,
    has_source: bool = True,
) -> list[DatedTarget]:
    """The topics that `dated_topics` has found.

    Bounds are read here, those of the target first: a plan's bounds of the source are older.
    Without `has_source` the source's partition does not exist.

    Raises:
        TwinlogError: a cluster is unreachable, or refuses.
    """
    if not topics:
        return []
    places = {name: TopicPartition(name, source.partition) for name in sorted(topics)}
    known = (await clusters.destination.refresh(topics)).topics
    remote_bounds = await read_bounds(clusters.destination, places.values())
    source_bounds = EMPTY
    if has_source:
        source_bounds = (await read_bounds(clusters.source, [source]))[source]
    targets = []
    for at, (name, place) in enumerate(places.items()):
        of_log, trouble = remote_bounds[place], ""
        is_absent = of_log.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_absent:
            of_log = EMPTY
        for side, error in (("source", source_bounds.error), ("destination", of_log.error)):
            if error:
                trouble = f"cannot read the bounds: {side}: {Refusal(error)}"
        if at >= MAX_TOPICS:
            trouble = TOO_MANY_TOPICS
        topic_id = known[name].topic_id if name in known else NO_TOPIC_ID
        bounds = Sides(source_bounds, of_log)
        targets.append(DatedTarget(place, topic_id, bounds, is_absent, trouble))
    return targets


def unexpected(
    expected: Collection[TopicPartition], topics: Mapping[str, Collection[int]]
) -> list[TopicPartition]:
    """The partitions where no record is expected, of topics where some are.

    Args:
        expected: the partitions that records should be in.
        topics: the partitions that these topics have.
    """
    names = {place.topic for place in expected}
    places = {TopicPartition(name, index) for name in names for index in topics.get(name, ())}
    return sorted(places.difference(expected))


def is_empty(bounds: LogBounds) -> bool:
    """Whether a log certainly holds no record."""
    return not bounds.error and bounds.start == bounds.high_watermark
