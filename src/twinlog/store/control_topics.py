"""The control topics of a destination cluster: their names, creation and content.

    __mirror_config   desired state: mirrors and their topics    store/config_records.py
    __mirror_state    each mirror partition's state and epoch    store/state_records.py
    __mirror_status   progress of each mirror partition          store/status_records.py

They are created with the first mirror. The first two must not be lost, so they are replicated like
Kafka's own internal topics. The third is overwritten each second.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    ControlTopicLost,
    ProtocolError,
    Refusal,
    Retriable,
    UnsupportedVersion,
    UserError,
)
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition, config_partition
from twinlog.mirror.settings import OF_CONTROL_TOPICS
from twinlog.mirror.states import State
from twinlog.store import config_records, state_records, status_records
from twinlog.store.config_records import STATE_COUNT, ConfigChange, Feature, Tombstone
from twinlog.store.polling_reader import ControlReader, at_the_last
from twinlog.store.snapshot import Place, Snapshot, StoredRecord
from twinlog.store.state_records import (
    LAST_MIRROR_EPOCHS,
    MIRROR_PARTITION_STATE,
    Forgotten,
    LastMirrored,
    LastMirroredEpochs,
    PartitionState,
    StateRecord,
)
from twinlog.store.status_records import Status
from twinlog.store.topic_creation import StoredTopic, create_stored
from twinlog.store.topic_reader import (
    ControlRecord,
    Tail,
    latest,
    read_last,
    read_whole,
)
from twinlog.store.topic_writer import Entry

CONFIG_TOPIC: Final = "__mirror_config"
STATE_TOPIC: Final = "__mirror_state"
STATUS_TOPIC: Final = "__mirror_status"
CONTROL_TOPICS: Final = (CONFIG_TOPIC, STATE_TOPIC, STATUS_TOPIC)

CONFIG_WRITER: Final = "twinlog.config"
"""The transactional id of all writers of `__mirror_config`."""

LANES_GROUP: Final = "twinlog"
"""The group of all nodes' lanes, which share the partitions of `__mirror_state`."""

CONFIG_PARTITIONS: Final = 8
STATE_PARTITIONS: Final = 50
MAX_PARTITIONS: Final = 10_000

NUM_PARTITIONS, REPLICATION_FACTOR = OF_CONTROL_TOPICS

T = TypeVar("T")
Places: TypeAlias = Mapping[bytes | None, Place]
NO_PLACES: Final[Places] = MappingProxyType({})

_LOOKS: Final = 3
_LOOK_S: Final = 0.3
_STAMPED: Final = {
    # Brokers refuse a CreateTime record whose writer's clock is more than
    # message.timestamp.after.max.ms ahead (an hour by default since Kafka 4.0).
    "message.timestamp.type": "LogAppendTime",
}
_DURABLE: Final = {
    **_STAMPED,
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # As Kafka's own __consumer_offsets: small segments keep loading fast.
    "segment.bytes": str(100 << 20),
}
_STATUS: Final = {
    **_STAMPED,
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # The cleaner skips the active segment, and a status is stale after a second. So segments
    # have the smallest size that brokers take, and records and tombstones are removed early.
    "segment.bytes": str(1 << 20),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(60 * 1000),
    "min.insync.replicas": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTopics:
    """How to create the control topics. `replication_factor` None: 3, or the number of brokers."""

    state_partitions: int = STATE_PARTITIONS
    replication_factor: int | None = None


def take_control_topics(properties: dict[str, str]) -> ControlTopics:
    """How to create missing control topics; these settings are removed from the properties.

    Raises:
        UserError: a value is malformed.
    """
    partitions = _number(properties.pop(NUM_PARTITIONS, str(STATE_PARTITIONS)), NUM_PARTITIONS)
    factor = properties.pop(REPLICATION_FACTOR, None)
    return ControlTopics(
        state_partitions=partitions,
        replication_factor=None if factor is None else _number(factor, REPLICATION_FACTOR),
    )


def _number(text: str, key: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= number <= MAX_PARTITIONS:
        raise UserError(f"{key} is {text!r}: expected a whole number from 1 to {MAX_PARTITIONS}")
    return number


async def create_control_topics(cluster: KafkaCluster, topic_settings: ControlTopics) -> None:
    """Create the missing control topics. Concurrent calls are safe.

    Raises:
        UserError: no right to create topics, or fewer brokers than the replication factor.
        Retriable: they have no leader within default.api.timeout.ms.
    """
    await cluster.refresh(CONTROL_TOPICS)
    missing = [name for name in CONTROL_TOPICS if name not in cluster.metadata.topics]
    if not missing:
        return
    await refuse_lost(cluster)
    topics = [
        StoredTopic(CONFIG_TOPIC, CONFIG_PARTITIONS, _DURABLE),
        StoredTopic(STATE_TOPIC, topic_settings.state_partitions, _DURABLE),
        StoredTopic(STATUS_TOPIC, topic_settings.state_partitions, _STATUS, durable=False),
    ]
    new_topics = [topic for topic in topics if topic.name in missing]
    await create_stored(cluster, new_topics, topic_settings.replication_factor)
    await _led(cluster, {topic.name: topic.partitions for topic in new_topics})


async def refuse_lost(cluster: KafkaCluster) -> None:
    """Refuse to go on without `__mirror_config` or `__mirror_state` if mirrors exist.

    Recreating a lost topic would hide the loss: mirrors would be gone, or all states would be
    UNKNOWN and the last mirrored ends unknown, although applications may already write to the
    topics.

    Raises:
        ControlTopicLost: one is missing, and another control topic shows that mirrors exist.
        Retriable: the brokers are unreachable.
    """
    for _ in range(_LOOKS):  # a broker with stale metadata may not know a new topic yet
        names = (CONFIG_TOPIC, STATE_TOPIC, STATUS_TOPIC)
        counts = {name: await partition_count(cluster, name) for name in names}
        missing = [name for name in (CONFIG_TOPIC, STATE_TOPIC) if counts[name] is None]
        if not missing:
            return
        evidence = await _evidence(cluster, {name for name in counts if counts[name] is not None})
        if not evidence:
            return
        await asyncio.sleep(_LOOK_S)
    raise ControlTopicLost(
        f"the control topic {' and '.join(missing)} does not exist, but {evidence}",
        cluster=cluster.name,
        hint='it was deleted and is not recreated automatically: see "A lost control topic" in '
        "docs/operations/control-topics.md",
    )


async def _evidence(cluster: KafkaCluster, existing_topics: Collection[str]) -> str:
    """What in the remaining control topics shows that mirrors exist; empty if nothing does."""
    if CONFIG_TOPIC in existing_topics:
        config = fold_config(await read_whole(cluster, CONFIG_TOPIC))
        topics = f"{len(config.topics)} topic(s) of mirrors" if config.topics else ""
        return _holding(CONFIG_TOPIC, topics, config.unreadable)
    if STATE_TOPIC in existing_topics:
        content = fold_states(await read_whole(cluster, STATE_TOPIC))
        states = f"the states of {len(content.states)} partition(s)" if content.states else ""
        return _holding(STATE_TOPIC, states, content.unreadable)
    if STATUS_TOPIC not in existing_topics:
        return ""
    statuses, unreadable = await read_statuses(cluster)
    rows = [row for status in statuses.values() for row in status.partitions]
    return _holding(STATUS_TOPIC, f"{len(rows)} partition(s)" if rows else "", unreadable)


def _holding(topic: str, content: str, unreadable: Collection[object]) -> str:
    """The statement that a topic holds records; empty if it does not."""
    unread = f"{len(unreadable)} unreadable record(s)" if unreadable else ""
    contents = " and ".join(part for part in (content, unread) if part)
    return contents and f"{topic} holds {contents}"


async def _led(cluster: KafkaCluster, counts: Mapping[str, int]) -> None:
    """Wait until the brokers report a leader of each partition."""

    async def attempt() -> None:
        partitions = [TopicPartition(name, 0) for name in counts]
        await cluster.refresh(counts)
        for name in counts:
            topic = cluster.metadata.topics.get(name)
            indexes = () if topic is None else topic.partitions
            partitions += [TopicPartition(name, index) for index in indexes]
        for partition in partitions:
            leader = cluster.leader(partition)
            if isinstance(leader, Refusal):
                raise Retriable(f"{partition} has no leader yet: {leader}")

    await cluster.persist(attempt)


async def partition_count(cluster: KafkaCluster, topic: str = STATE_TOPIC) -> int | None:
    """How many partitions a control topic has; None if it does not exist.

    Raises:
        UserError: no right to see it.
    """
    metadata = await cluster.refresh([topic])
    topic_metadata = metadata.topics.get(topic)
    if topic_metadata is None:
        return None
    if topic_metadata.error:
        with cluster.needing("DESCRIBE", f"the topic {topic}"):
            Refusal(topic_metadata.error).fail("describe the control topic", topic=topic)
    return len(topic_metadata.partitions)


async def check_state_partitions(cluster: KafkaCluster, snapshot: Snapshot) -> list[Feature]:
    """Refuse a `__mirror_state` whose partition count has changed since the first mirror.

    A hash modulo this count determines the owner of a mirror partition: after a change of the count
    a partition would have two owners. (In `__mirror_config` a key keeps its partition:
    `Snapshot.places`.)

    Returns:
        The record to store if no count is stored.

    Raises:
        UserError: the topic has another count.
        UnsupportedVersion: the stored count cannot be read.
    """
    if reason := snapshot.unread.get(("feature", STATE_COUNT)):
        raise UnsupportedVersion(
            f"the stored partition count of {STATE_TOPIC} cannot be read: {reason}",
            hint="use a version of twinlog that can read it",
        )
    stored_count, actual_count = snapshot.count(STATE_COUNT), await partition_count(cluster)
    if actual_count is None or stored_count == actual_count:
        return []
    if stored_count is None:
        return [Feature(name=STATE_COUNT, level=actual_count)]
    raise UserError(
        f"INVALID_PARTITIONS: {STATE_TOPIC} has {actual_count} partitions, expected "
        f"{stored_count}: partitions were added to it after the first mirror was created",
        hint=f"stop all nodes, and restore {STATE_TOPIC} with {stored_count} partitions from a "
        "backup",
        code=ErrorCode.INVALID_PARTITIONS,
    )


def config_entry(change: ConfigChange, count: int, places: Places = NO_PLACES) -> Entry:
    """A record, or its tombstone, as written to `__mirror_config`, which has `count` partitions.

    A key that already has a record keeps its partition (`Snapshot.places`).
    """
    if isinstance(change, Tombstone):
        key, value = config_records.encode_key(change.key), None
        _, placement_key, *_ = change.key
    else:
        key, value = config_records.encode(change)
        _, placement_key, *_ = config_records.key_of(change)
    known_place = places.get(key)
    place = config_partition(placement_key, count) if known_place is None else known_place.partition
    return Entry(CONFIG_TOPIC, place, key, value)


async def read_config(cluster: KafkaCluster, *, patience: float | None = None) -> Snapshot:
    """The snapshot as it is now; empty if no mirror was ever created.

    Args:
        cluster: the destination.
        patience: see `topic_reader.Tail.catch_up`.

    Raises:
        UnsupportedVersion: the topic is written in an unknown format.
        Retriable, UserError: see `topic_reader.read_whole`; or only some brokers know the topic.
    """
    if await partition_count(cluster, CONFIG_TOPIC) is None:
        await refuse_lost(cluster)
        await confirm_absent(cluster, CONFIG_TOPIC)
        return Snapshot()
    return fold_config(await read_whole(cluster, CONFIG_TOPIC, patience=patience))


def fold_config(records: Iterable[ControlRecord], base: Snapshot | None = None) -> Snapshot:
    """The snapshot after records of `__mirror_config`, which are in each partition's order.

    Raises:
        UnsupportedVersion: the topic is written in an unknown format.
    """
    changes = (StoredRecord(r.partition, r.offset, r.key, r.value, r.timestamp) for r in records)
    return (base or Snapshot()).after(changes).known()


class ConfigLog(NamedTuple):
    """`__mirror_config` as it is now: the snapshot, and the last record of each key."""

    snapshot: Snapshot = Snapshot()
    table: Mapping[tuple[int, bytes | None], ControlRecord] = MappingProxyType({})

    def after(self, records: Sequence[ControlRecord]) -> "ConfigLog":
        """The same after these records, which are in each partition's order.

        Raises:
            UnsupportedVersion: the topic is written in an unknown format.
        """
        table = latest(itertools.chain(self.table.values(), records))
        return ConfigLog(fold_config(records, self.snapshot), table)


def config_reader(cluster: KafkaCluster) -> ControlReader[ConfigLog]:
    """A reader of `__mirror_config`; it also raises UnsupportedVersion (see `fold_config`)."""
    return ControlReader(
        cluster,
        CONFIG_TOPIC,
        lambda records, base: base.after(records),
        ConfigLog(),
        on_missing=refuse_lost,
    )


def follow_config(
    cluster: KafkaCluster, partitions: Collection[int] | None = None
) -> AsyncGenerator[Snapshot, None]:
    """The snapshot now, and again within milliseconds of each change; never ends by itself.

    Close the generator (`contextlib.aclosing`) to stop.

    Raises:
        UnsupportedVersion: the topic is written in an unknown format, now or later.
        Retriable, UserError: see `topic_reader.Tail`.
    """
    return _follow(Tail(cluster, CONFIG_TOPIC, partitions), fold_config)


async def _follow(
    tail: Tail, fold: Callable[[Iterable[ControlRecord], T | None], T]
) -> AsyncGenerator[T, None]:
    """What the records of a topic amount to, now and again after each change."""
    content = fold(await tail.catch_up(), None)
    yield content
    restarts = tail.restarts
    async with aclosing(tail.follow()) as changes:
        async for records in changes:
            _refuse_restart(tail, restarts)
            content = fold(records, content)
            yield content


def _refuse_restart(tail: Tail, restarts: int) -> None:
    """Refuse to go on if records that were read may be gone (`Tail.restarts`)."""
    if tail.restarts != restarts:
        raise ControlTopicLost(
            "a control topic was recreated or has lost records that were read",
            hint='see "A lost control topic" in docs/operations/control-topics.md',
        )


class States(NamedTuple):
    """The records of `__mirror_state` by mirror partition. `unreadable` as in `Snapshot`.

    A partition with an unreadable record had an owner. Unlike a partition without a record, no lane
    starts it, or overwrites the record.
    """

    states: dict[MirrorPartition, PartitionState]
    epochs: dict[MirrorPartition, LastMirrored]
    unreadable: Mapping[tuple[int, bytes | None], str] = MappingProxyType({})
    places: Mapping[tuple[int, MirrorPartition], int] = MappingProxyType({})
    """The state partition that holds each record, by record type."""

    def state(self, partition: MirrorPartition) -> State:
        """A partition's state; UNKNOWN if none is stored."""
        partition_state = self.states.get(partition)
        return State.UNKNOWN if partition_state is None else partition_state.state

    def unread(self, partition: MirrorPartition) -> str:
        """Why a record of a partition cannot be read; empty if all can."""
        all_of_mirror = partition.mirror, None
        for (_, key), reason in self.unreadable.items():
            tombstone = _tombstone(key)
            subject = None if tombstone is None else (tombstone.mirror, tombstone.partition)
            if subject in {all_of_mirror, (partition.mirror, partition)}:
                return reason
        return ""

    def stopped(self, partitions: Iterable[MirrorPartition]) -> bool:
        """Whether all of these are STOPPED."""
        return all(self.state(partition) is State.STOPPED for partition in partitions)


async def read_states(
    cluster: KafkaCluster,
    partitions: Collection[int] | None = None,
    *,
    patience: float | None = None,
) -> States:
    """States and last mirrored epochs, of all or of some state partitions.

    Args:
        cluster: the destination.
        partitions: which state partitions; by default all.
        patience: see `topic_reader.Tail.catch_up`.

    Raises:
        Retriable, UserError: see `topic_reader.Tail`; or only some brokers know the topic.
    """
    if await partition_count(cluster, STATE_TOPIC) is None:
        await refuse_lost(cluster)
        await confirm_absent(cluster, STATE_TOPIC)
        return States({}, {})
    return fold_states(await read_whole(cluster, STATE_TOPIC, partitions, patience=patience))


def follow_states(cluster: KafkaCluster) -> AsyncGenerator[States, None]:
    """States and last mirrored epochs, again after each change; never ends by itself.

    Close the generator (`contextlib.aclosing`) to stop.

    Raises:
        Retriable, UserError: see `topic_reader.Tail`.
    """
    return _follow(Tail(cluster, STATE_TOPIC), fold_states)


def fold_states(records: Iterable[ControlRecord], base: States | None = None) -> States:
    """States after records of `__mirror_state`, which must be in each partition's order.

    If its topic id changes, a mirror partition moves to another state partition, and its records in
    the former one get tombstones there. Records of different state partitions come in any order.
    So only the last record of each key counts, and a tombstone applies only to its own state
    partition.
    """
    states = dict(base.states) if base else {}
    epochs = dict(base.epochs) if base else {}
    places = dict(base.places) if base else {}
    unreadable = dict(base.unreadable) if base else {}
    for record in {(record.partition, record.key): record for record in records}.values():
        slot = (record.partition, record.key)
        unreadable.pop(slot, None)
        state_record: StateRecord | None
        try:
            state_record = state_records.decode(record.key, record.value)
        except ProtocolError as error:
            place = f"{STATE_TOPIC}-{record.partition}, offset {record.offset}"
            unreadable[slot] = f"{place}: {error.message}"
            state_record = _tombstone(record.key)
        match state_record:
            case PartitionState():
                states[state_record.partition] = state_record
                places[MIRROR_PARTITION_STATE, state_record.partition] = record.partition
            case LastMirroredEpochs():
                epochs.update(state_record.epochs)
                places.update(
                    ((LAST_MIRROR_EPOCHS, n), record.partition) for n, _ in state_record.epochs
                )
            case Forgotten():
                table = states if state_record.record_type == MIRROR_PARTITION_STATE else epochs
                _forget(state_record, table, places, record.partition)
            case None:
                pass
    return States(states, epochs, MappingProxyType(unreadable), MappingProxyType(places))


def state_reader(cluster: KafkaCluster) -> ControlReader[States]:
    """A reader of `__mirror_state`."""
    empty = States({}, {})
    return ControlReader(cluster, STATE_TOPIC, fold_states, empty, on_missing=refuse_lost)


def _tombstone(key: bytes | None) -> Forgotten | None:
    """The tombstone of a key, if the key can be read."""
    try:
        change = state_records.decode(key, None)
    except ProtocolError:
        return None
    return change if isinstance(change, Forgotten) else None


def _forget(
    tombstone: Forgotten,
    table: dict[MirrorPartition, PartitionState] | dict[MirrorPartition, LastMirrored],
    places: dict[tuple[int, MirrorPartition], int],
    place: int,
) -> None:
    # The KIP's own key names the mirror only: its tombstone is for all of the mirror's partitions.
    names = [tombstone.partition] if tombstone.partition else list(table)
    for name in names:
        slot = (tombstone.record_type, name)
        if name.mirror == tombstone.mirror and places.get(slot) == place:
            del table[name], places[slot]


async def read_statuses(cluster: KafkaCluster) -> tuple[dict[int, Status], tuple[str, ...]]:
    """The last status of each state partition, and the unreadable records.

    Raises:
        Retriable, UserError: see `topic_reader.read_last`.
    """
    if await partition_count(cluster, STATUS_TOPIC) is None:
        return {}, ()
    return statuses_of(await read_last(cluster, STATUS_TOPIC))


def statuses_of(records: Iterable[ControlRecord]) -> tuple[dict[int, Status], tuple[str, ...]]:
    """The last status of each state partition, and the unreadable records."""
    statuses: dict[int, Status] = {}
    unreadable: list[str] = []
    for record in latest(records).values():
        try:
            status = status_records.decode(record.key, record.value)
        except ProtocolError as error:
            place = f"{STATUS_TOPIC}-{record.partition}, offset {record.offset}"
            unreadable.append(f"{place}: {error.message}")
            continue
        if status is not None:
            statuses[status.state_partition] = status
    return statuses, tuple(unreadable)


def status_reader(cluster: KafkaCluster) -> ControlReader[Mapping[int, ControlRecord]]:
    """A reader of `__mirror_status`: the last record of each partition, for `statuses_of`."""
    return ControlReader(
        cluster,
        STATUS_TOPIC,
        lambda records, base: {**base, **{record.partition: record for record in records}},
        {},
        at_the_last,
    )


def status_entry(status: Status) -> Entry:
    """A status as it is written, with `append`, to the partition of its own number."""
    key, value = status_records.encode(status)
    return Entry(STATUS_TOPIC, status.state_partition, key, value)


def state_entry(record: PartitionState, state_partition: int) -> Entry:
    """A state as it is written to `__mirror_state`."""
    key, value = state_records.encode_state(record)
    return Entry(STATE_TOPIC, state_partition, key, value)


def forget_entry(key: bytes, state_partition: int) -> Entry:
    """A tombstone for the record of a key of `__mirror_state`."""
    return Entry(STATE_TOPIC, state_partition, key, None)


def epoch_entry(partition: MirrorPartition, last: LastMirrored, state_partition: int) -> Entry:
    """A last mirrored epoch as it is written to `__mirror_state`."""
    key, value = state_records.encode_epoch(partition, last)
    return Entry(STATE_TOPIC, state_partition, key, value)
