"""`__mirror_offsets`: where it is created, written by a state partition's owner, and read."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.errors import ControlTopicLost, Fenced, ProtocolError, Retriable
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.control_topics import partition_count
from twinlog.store.map_chunks import EncodedChunk
from twinlog.store.offset_records import (
    BegunPartition,
    DroppedChunk,
    MapHead,
    OffsetRecord,
    OffsetsOwner,
    OffsetsProducer,
    SharedPartition,
    StoredPlan,
    decode,
    decode_chunk,
    encode,
    is_begun,
    is_of_chunk,
    is_of_map_with_head,
    is_of_transactions,
    map_of,
    mirror_of,
)
from twinlog.store.topic_creation import StoredTopic, create_stored
from twinlog.store.topic_reader import ControlRecord, latest, read_whole
from twinlog.store.topic_writer import Entry, EpochWriter

OFFSETS_TOPIC: Final = "__mirror_offsets"

_BATCH_BYTES: Final = 600_000
"""Below the default of `max.message.bytes`, with room for the records' headers."""
_CONFIGS: Final = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # The cleaner skips the active segment, and most plans are stale after milliseconds.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadedMap:
    """The map of a partition whose flow writes in transactions."""

    head: MapHead | None
    """None: nothing of it holds; `reason` has why, if it was recorded at all."""
    parts: Sequence[EncodedChunk] = ()
    """Parts that the head names and that follow each other, in order, up to the last one."""
    numbers: tuple[int, int] = (0, -1)
    """The lowest and the highest number of a part that is stored, of former maps as well."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeadedRecords:
    """The records of such a map as they are stored: most readers want nothing, or the end, of it.

    What is wrong with it concerns its partition alone.
    """

    head: ControlRecord | None
    parts: Mapping[int, ControlRecord]

    def end(self) -> HeadedMap:
        """The map with its last two parts only: the others are not looked at."""
        return self._map(2)

    def whole(self) -> HeadedMap:
        """The map with all parts that follow each other, up to its end.

        With thousands of them it is not for an event loop.
        """
        found = self._map()
        if found.head is None or found.parts[0].number == found.head.first:
            return found
        return replace(found, head=replace(found.head, lacks_start=True))

    def _map(self, most: int | None = None) -> HeadedMap:
        numbers = (min(self.parts, default=0), max(self.parts, default=-1))
        head, reason = None, ""
        if self.head is not None:
            try:
                head = decode(self.head.key, self.head.value)
            except ProtocolError as error:
                reason = str(error)
        if not isinstance(head, MapHead):
            return HeadedMap(head=None, numbers=numbers, reason=reason)
        parts: list[EncodedChunk] = []
        for number in range(head.last, head.first - 1, -1):
            if len(parts) == most:
                break
            part = self._part(head.name, number)
            if part is None or part.runs.end != (parts[-1].runs.start if parts else head.end):
                break
            parts.append(part)
        if not parts:
            reason = f"part {head.last} is missing in {OFFSETS_TOPIC}, or older than its head"
            return HeadedMap(head=None, numbers=numbers, reason=reason)
        return HeadedMap(head=head, parts=parts[::-1], numbers=numbers)

    def _part(self, name: MirrorPartition, number: int) -> EncodedChunk | None:
        """A part; None if it is missing, or cannot be read."""
        record = self.parts.get(number)
        if record is None:
            return None
        try:
            return decode_chunk(name, number, record.value)
        except ProtocolError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffsets:
    """What `__mirror_offsets` holds of some partitions."""

    plans: Mapping[MirrorPartition, StoredPlan] = field(default_factory=dict)
    chunks: Mapping[MirrorPartition, Sequence[EncodedChunk]] = field(default_factory=dict)
    """The parts of each map, in order: each begins where the one before it ends."""
    begun: Mapping[MirrorPartition, BegunPartition] = field(default_factory=dict)
    """Partitions whose positions are committed offsets."""
    shared: Collection[TopicPartition] = ()
    """Of the destination: several source partitions have written there in transactions."""
    headed: Mapping[MirrorPartition, HeadedRecords] = field(default_factory=dict)
    """The maps of partitions whose flows write in transactions, not decoded."""
    owner: str | None = None
    """The last takeover."""
    producer_id: int | None = None
    """Of the writes since which no write under another one can arrive."""
    has_past: bool = False
    """Whether there are records of former owners of plans and maps."""
    topic_id: UUID | None = None
    """Of the topic that was read; None if it is not known."""

    def map(self, name: MirrorPartition) -> OffsetRuns:
        """The whole map of a partition, whose parts are decoded where they are asked for."""
        return whole_map(self.chunks.get(name, ()))


def whole_map(parts: Sequence[EncodedChunk]) -> OffsetRuns:
    """The map of these parts, each of which begins where the one before it ends."""
    start = parts[0].runs.start if parts else Ends(Offset(0), Offset(0))
    subject = f"{OFFSETS_TOPIC}: the map of {parts[0].name}" if parts else ""
    return OffsetRuns(start, [part.runs for part in parts], subject)


async def create_offsets_topic(
    cluster: KafkaCluster, partitions: int, replication_factor: int | None = None
) -> None:
    """Create the topic if it does not exist.

    Args:
        cluster: the destination.
        partitions: as many as `__mirror_state` has.
        replication_factor: None: 3, or the number of brokers if that is less.

    Raises:
        UserError: no right to create it, or fewer brokers than the replication factor.
        Retriable: the cluster is unreachable.
    """
    if await partition_count(cluster, OFFSETS_TOPIC) is not None:
        return
    topic = StoredTopic(OFFSETS_TOPIC, partitions, _CONFIGS)
    await create_stored(cluster, [topic], replication_factor)


async def offsets_topic_id(cluster: KafkaCluster) -> UUID | None:
    """The topic's id; None from brokers before 2.8, whose topics have none.

    Raises:
        Retriable: the cluster is unreachable, or a broker does not have the topic.
    """
    topic = (await cluster.refresh([OFFSETS_TOPIC])).topics.get(OFFSETS_TOPIC)
    if topic is None or topic.error:
        raise Retriable("a broker does not know the topic", topic=OFFSETS_TOPIC)
    return None if topic.topic_id == NO_TOPIC_ID else topic.topic_id


def fold_offsets(
    records: Iterable[ControlRecord], own: Collection[tuple[bytes | None, bytes | None]] = ()
) -> StoredOffsets:
    """The plans and maps after these records of one partition, in order.

    Args:
        records: all records of the partition.
        own: those, by key and value, that are no trace of a former owner.

    Raises:
        ProtocolError: a record cannot be read.
        ControlTopicLost: a part of a map is missing.
    """
    plans: dict[MirrorPartition, StoredPlan] = {}
    owner: str | None = None
    producer_id: int | None = None
    begun: dict[MirrorPartition, BegunPartition] = {}
    shared: set[TopicPartition] = set()
    all_records = list(records)
    headed_records: list[ControlRecord] = []
    chunk_records: list[ControlRecord] = []
    for record in latest(all_records).values():
        if is_of_map_with_head(record.key):
            headed_records.append(record)
            continue
        if is_of_chunk(record.key):
            chunk_records.append(record)
            continue
        match decode(record.key, record.value):
            case OffsetsOwner(lane):
                owner = lane
            case OffsetsProducer(number):
                producer_id = number
            case StoredPlan() as plan:
                plans[plan.name] = plan
            case BegunPartition() as one:
                begun[one.name] = one
            case SharedPartition(remote):
                shared.add(remote)
    return StoredOffsets(
        plans=plans,
        chunks=_maps(chunk_records),
        begun=begun,
        shared=frozenset(shared),
        headed=_headed_maps(headed_records),
        owner=owner,
        producer_id=producer_id,
        has_past=any(
            not is_of_transactions(record.key) and (record.key, record.value) not in own
            for record in all_records
        ),
    )


def _maps(records: Iterable[ControlRecord]) -> Mapping[MirrorPartition, Sequence[EncodedChunk]]:
    """The parts of the maps without heads, in order.

    Raises:
        ProtocolError, ControlTopicLost: see `fold_offsets`.
    """
    chunks = defaultdict[MirrorPartition, dict[int, EncodedChunk]](dict)
    for record in records:
        name, number = map_of(record.key) or (None, None)
        if name is not None and number is not None:  # not of a newer version
            chunks[name][number] = decode_chunk(name, number, record.value)
    ordered = {name: [by[n] for n in sorted(by)] for name, by in chunks.items()}
    for name, its in ordered.items():
        for before, after in itertools.pairwise(its):
            if after.runs.start != before.runs.end:
                raise ControlTopicLost(
                    f"{OFFSETS_TOPIC} lacks a part of the map of {name.source}: part "
                    f"{before.number} ends at {before.runs.end}, part {after.number} begins at "
                    f"{after.runs.start}"
                )
    return ordered


def _headed_maps(records: Iterable[ControlRecord]) -> Mapping[MirrorPartition, HeadedRecords]:
    """The maps that have heads; nothing but their keys is decoded."""
    heads: dict[MirrorPartition, ControlRecord] = {}
    parts = defaultdict[MirrorPartition, dict[int, ControlRecord]](dict)
    for record in records:
        key = map_of(record.key)
        if key is None:  # of a newer version
            continue
        name, number = key
        if number is None:
            heads[name] = record
        else:
            parts[name][number] = record
    return {name: HeadedRecords(heads.get(name), parts[name]) for name in {*heads, *parts}}


async def read_offsets(
    cluster: KafkaCluster, partitions: Sequence[int] | None = None
) -> Mapping[int, StoredOffsets]:
    """The plans and maps by state partition; nothing if no broker has the topic.

    A source topic that was recreated has other state partitions. What the former ones hold of the
    same name stays there, and is about the former topic.

    `partitions`: only these; None: all.

    Raises:
        Retriable, UserError: see `topic_reader.read_whole`; or only some brokers have the topic.
        ProtocolError, ControlTopicLost: see `fold_offsets`.
    """
    records = defaultdict[int, list[ControlRecord]](list)
    for record in await _all_records(cluster, partitions):
        records[record.partition].append(record)
    return {partition: fold_offsets(found) for partition, found in records.items()}


async def _all_records(
    cluster: KafkaCluster, partitions: Sequence[int] | None = None
) -> Sequence[ControlRecord]:
    """All records of the topic; none if every broker reports that it is missing."""
    if await partition_count(cluster, OFFSETS_TOPIC) is None:
        await confirm_absent(cluster, OFFSETS_TOPIC)
        return []
    return await read_whole(cluster, OFFSETS_TOPIC, partitions)


async def forgetting_entries(cluster: KafkaCluster, mirror: str) -> list[Entry]:
    """Tombstones for all that is recorded of a mirror, also of its former topics.

    The mirror's partitions have to be STOPPED: their owners write nothing more of them. They are to
    be written in the transaction that deletes the mirror, since a mirror that is created again may
    record at once: a tombstone that arrives later would hide that.

    Raises:
        Retriable, UserError: see `topic_reader.read_whole`; or only some brokers have the topic.
        ProtocolError: a key cannot be read.
    """
    records = latest(await _all_records(cluster)).values()
    return [
        Entry(OFFSETS_TOPIC, record.partition, record.key or b"", None)
        for record in records
        if mirror_of(record.key) == mirror
    ]


async def read_begun(cluster: KafkaCluster) -> Mapping[MirrorPartition, BegunPartition]:
    """What has begun, by all partitions of the topic: one record of each mirror partition.

    It is for names of which one's own partition has none: the others are of former source topics.

    Raises:
        Retriable, UserError: see `topic_reader.read_whole`.
        ProtocolError: a record cannot be read.
    """
    records = latest(await read_whole(cluster, OFFSETS_TOPIC)).values()
    decoded = [decode(record.key, record.value) for record in records if is_begun(record.key)]
    return {one.name: one for one in decoded if isinstance(one, BegunPartition)}


def _batches(records: Sequence[OffsetRecord]) -> Iterator[list[OffsetRecord]]:
    """Batches that a broker accepts, in order; the records of a partition stay together.

    Tombstones need not be with them: they come first, and the last part of the former map first. So
    what remains at any time is a map, which ends in front of its plan's recorded end until it is
    replaced.
    """
    dropped = [record for record in records if isinstance(record, DroppedChunk)]
    dropped.sort(key=lambda record: (record.name, -record.number))
    kept = [record for record in records if not isinstance(record, DroppedChunk)]
    groups: list[list[OffsetRecord]] = [[record] for record in dropped]
    groups += [
        list(group) for _, group in itertools.groupby(kept, lambda r: getattr(r, "name", None))
    ]
    batch: list[OffsetRecord] = []
    size = 0
    for group in groups:
        group_size = sum(len(key) + len(value or b"") for key, value in map(encode, group))
        if batch and size + group_size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch += group
        size += group_size
    if batch:
        yield batch


class OffsetLog:
    """A partition of `__mirror_offsets`, as its owner writes it.

    Args:
        cluster: the destination.
        number: the partition.
        prefix: of the transactional id.
        lease_s: how long a former owner may write after it was replaced, in seconds.
        may_write: asked before each request that could fence or write.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        number: int,
        prefix: str,
        *,
        lease_s: float,
        may_write: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._number = number
        self._lease_s = lease_s
        self._may_write = may_write
        self._writer = EpochWriter(cluster, f"{prefix}.{number}.offsets", before_send=self._permit)
        # Its takeovers, also those that failed behind their first write.
        self._own: set[tuple[bytes | None, bytes | None]] = set()

    async def take_over(self) -> StoredOffsets:
        """Fence former owners, then read all that they have stored.

        A write under a former producer id is not fenced by one of another id. It is waited for.

        Raises:
            Fenced: the lane may not write any more.
            Retriable: not now; call it again.
            UserError, ProtocolError, ControlTopicLost: it cannot be read.
        """
        owner = ""

        def entries(producer: ProducerId) -> list[Entry]:
            nonlocal owner
            owner = f"{producer.producer_id}.{producer.epoch}"
            return [self._taking_over(OffsetsOwner(owner))]

        producer_id = await self._writer.fence(entries)
        stored = await self._stored(owner)
        if stored.producer_id != producer_id:
            if stored.has_past:
                await asyncio.sleep(self._lease_s)
                stored = await self._stored(owner)
            await self._writer.write([self._taking_over(OffsetsProducer(producer_id))])
        # Asked last: what was read is of this topic, or of one that was deleted since.
        return replace(stored, topic_id=await self._topic_id())

    async def _stored(self, owner: str) -> StoredOffsets:
        stored = fold_offsets(await self._read(), self._own)
        if stored.owner != owner:  # an empty topic, or none, or an end that is stale
            raise Retriable("its own record cannot be read yet", topic=OFFSETS_TOPIC)
        return stored

    async def _read(self) -> Sequence[ControlRecord]:
        return await read_whole(self._cluster, OFFSETS_TOPIC, [self._number])

    async def _topic_id(self) -> UUID | None:
        return await offsets_topic_id(self._cluster)

    async def write(self, records: Sequence[OffsetRecord]) -> None:
        """Store these records, those of one partition together.

        After any error `take_over` has to be called first: some may be stored.

        Raises:
            Fenced: another owner has taken over.
            Retriable: it is unknown whether they were stored.
        """
        for batch in _batches(records):
            await self._writer.write([self._entry(record) for record in batch])

    async def keep_id(self) -> None:
        """Use the transactional id, so that its coordinator does not forget it.

        Raises:
            Fenced: the lane may not write any more.
            Retriable: not now.
        """
        await self._writer.keep_id()

    def _taking_over(self, record: OffsetRecord) -> Entry:
        entry = self._entry(record)
        self._own.add((entry.key, entry.value))
        return entry

    def _entry(self, record: OffsetRecord) -> Entry:
        return Entry(OFFSETS_TOPIC, self._number, *encode(record))

    def _permit(self) -> None:
        if not self._may_write():
            raise Fenced("not sent: the lease has ended", cluster=self._cluster.name)
