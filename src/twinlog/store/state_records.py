"""Records of `__mirror_state`: each mirror partition's state, and its last mirrored epoch.

The schemas are KIP-1279's "Metadata Records", in the format of Kafka's coordinators: a key is an
int16 record type and the key's fields, a value is an int16 version and the value's fields.

    type  key, as the KIP has it   twinlog's extension           value, version 0
    ----  -----------------------  ----------------------------  -------------------------------
    1     mirror name string       topic string, partition int32 LastMirrorEpochsValue
    2     mirror name string       topic string, partition int32 MirrorPartitionStateValue

    MirrorPartitionStateValue  topic compact string | partition int32 | state int8 | tags
                               tag 10000: why it is FAILED, or still STOPPING, UTF-8
                               tag 10001: it was STOPPED, and it is not known whether it is wanted
                               again; without a value
    LastMirrorEpochsValue      topics: name compact string | partitions: index int32, epoch int32,
                               tags; tag 10000: the last mirrored end, int64; tag 10001: the
                               ids of the mirror's data producers in this log, int64 each;
                               tag 10002: whether it has begun, int8; tag 10003: the logs differ
                               behind the end, without a value

docs/decisions/0005-state-record-keys.md explains why the keys are longer, and what that means for a
reader of the KIP's own keys. This module also reads records with the KIP's own keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol.compact import compact_string
from twinlog.kafka.protocol.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    FieldReader,
    compact_count,
    string,
    tags,
)
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State, state_of

LAST_MIRROR_EPOCHS: Final = 1
MIRROR_PARTITION_STATE: Final = 2

REASON_TAG: Final = 10_000
END_TAG: Final = 10_000
PRODUCERS_TAG: Final = 10_001
UNCONFIRMED_TAG: Final = 10_001
BEGUN_TAG: Final = 10_002
DIFFERS_TAG: Final = 10_003
"""Kafka numbers a schema's tags from 0 up; these numbers avoid tags that the KIP may add."""
MAX_REASON: Final = 4096
"""Characters of a reason that are kept."""

_VERSION: Final = 0
_NO_TAGS: Final = tags({})
UNCONFIRMED_TEXT: Final = "it was STOPPED, and it is not known whether it is wanted again"
"""The reason of a partition that is `unconfirmed`. Versions without the tag read this text."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A mirror partition's state, and why it is FAILED, or still STOPPING.

    `unconfirmed`: it was STOPPED and has begun again, and the desired state was not read since.
    """

    partition: MirrorPartition
    state: State
    reason: str | None = None
    unconfirmed: bool = False


class LastMirrored(NamedTuple):
    """The end up to which a mirror partition holds the source's log.

    `epoch` is the source's leader epoch of the last record, or -1 if it is not known. The
    destination holds the source's log below `end`: exactly up to `end` once the partition is
    STOPPED, at least up to `end` before; -1 if it is not known. `producers` are the ids under which
    the mirror may have written data: a batch at or above `end` from another producer is foreign.

    `begun`, of a flow: whether it was recorded where the partition goes on, which it is before
    anything is written. None: not known, as of an earlier version.

    `differs`: whether the destination's log is known to differ from the source's behind `end`.
    """

    epoch: LeaderEpoch
    end: Offset
    producers: tuple[int, ...] = ()
    begun: bool | None = None
    differs: bool = False


@dataclass(frozen=True, slots=True)
class LastMirroredEpochs:
    """The highest leader epoch of the source in each mirror partition."""

    epochs: tuple[tuple[MirrorPartition, LastMirrored], ...]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A tombstone: the mirror partition's record of this type no longer holds.

    `partition` is None if the key is the KIP's own, which names the mirror only.
    """

    record_type: int
    mirror: str
    partition: MirrorPartition | None


StateRecord: TypeAlias = PartitionState | LastMirroredEpochs | Forgotten


def state_key(partition: MirrorPartition) -> bytes:
    """The key of a mirror partition's state."""
    return _key(MIRROR_PARTITION_STATE, partition)


def epochs_key(partition: MirrorPartition) -> bytes:
    """The key of a mirror partition's last mirrored epoch."""
    return _key(LAST_MIRROR_EPOCHS, partition)


def _key(record_type: int, partition: MirrorPartition) -> bytes:
    mirror, topic, index = partition
    return INT16.pack(record_type) + string(mirror) + string(topic) + INT32.pack(index)


def encode_state(record: PartitionState) -> tuple[bytes, bytes]:
    """Key and value."""
    partition = record.partition
    tag_values = {}
    if record.reason is not None:
        tag_values[REASON_TAG] = record.reason[:MAX_REASON].encode(errors="replace")
    if record.unconfirmed:
        tag_values[UNCONFIRMED_TAG] = b""
    value = (
        INT16.pack(_VERSION)
        + compact_string(partition.topic)
        + INT32.pack(partition.partition)
        + INT8.pack(record.state)
        + tags(tag_values)
    )
    return state_key(partition), value


def encode_epoch(partition: MirrorPartition, last: LastMirrored) -> tuple[bytes, bytes]:
    """Key and value of one partition's last mirrored epoch."""
    tag_values = {} if last.end < 0 else {END_TAG: INT64.pack(last.end)}
    if last.producers:
        tag_values[PRODUCERS_TAG] = b"".join(
            INT64.pack(producer_id) for producer_id in last.producers
        )
    if last.begun is not None:
        tag_values[BEGUN_TAG] = INT8.pack(last.begun)
    if last.differs:
        tag_values[DIFFERS_TAG] = b""
    row = INT32.pack(partition.partition) + INT32.pack(last.epoch) + tags(tag_values)
    topic = compact_string(partition.topic) + compact_count(1) + row + _NO_TAGS
    return epochs_key(partition), INT16.pack(_VERSION) + compact_count(1) + topic + _NO_TAGS


def decode(key: bytes | None, value: bytes | None) -> StateRecord | None:
    """Decode a record of `__mirror_state`; None for a record type of a newer version.

    Raises:
        ProtocolError: the bytes do not match the schemas.
    """
    if key is None:
        raise ProtocolError("a record of __mirror_state has no key")
    reader = FieldReader(key, "a key of __mirror_state")
    record_type = reader.int16()
    if record_type not in {LAST_MIRROR_EPOCHS, MIRROR_PARTITION_STATE}:
        return None
    mirror = reader.string()
    partition = None
    if not reader.done:
        partition = MirrorPartition(mirror, reader.string(), reader.int32())
    reader.finish()
    if value is None:
        return Forgotten(record_type, mirror, partition)
    body = FieldReader(value, "a value of __mirror_state")
    version = body.int16()
    if version != _VERSION:
        raise ProtocolError(f"a value of __mirror_state has version {version}, expected {_VERSION}")
    if record_type == MIRROR_PARTITION_STATE:
        return _state(mirror, partition, body)
    return LastMirroredEpochs(tuple(_epochs(mirror, body)))


def _state(mirror: str, key_partition: MirrorPartition | None, body: FieldReader) -> PartitionState:
    partition = MirrorPartition(mirror, body.compact_string(), body.int32())
    state = state_of(body.int8())
    tag_values = body.tags()
    body.finish()
    if key_partition not in {None, partition}:
        raise ProtocolError(
            f"a record of __mirror_state has the key {key_partition} and a value for {partition}"
        )
    reason_tag = tag_values.get(REASON_TAG)
    reason = None if reason_tag is None else reason_tag.decode(errors="replace")
    unconfirmed = UNCONFIRMED_TAG in tag_values or reason == UNCONFIRMED_TEXT
    return PartitionState(partition, state, reason, unconfirmed)


def _epochs(mirror: str, body: FieldReader) -> Iterable[tuple[MirrorPartition, LastMirrored]]:
    for _ in range(body.compact_count()):
        topic = body.compact_string()
        for _ in range(body.compact_count()):
            partition = MirrorPartition(mirror, topic, body.int32())
            epoch = LeaderEpoch(body.int32())
            tag_values = body.tags()
            producers = _producers(tag_values.get(PRODUCERS_TAG, b""))
            begun, end = _begun(tag_values.get(BEGUN_TAG)), _end(tag_values.get(END_TAG))
            differs = DIFFERS_TAG in tag_values
            yield partition, LastMirrored(epoch, end, producers, begun, differs)
        body.tags()
    body.tags()
    body.finish()


def _end(tag: bytes | None) -> Offset:
    if tag is None:
        return Offset(-1)
    reader = FieldReader(tag, "an end offset of __mirror_state")
    end = Offset(reader.int64())
    reader.finish()
    return end


def _begun(tag: bytes | None) -> bool | None:
    if tag is None:
        return None
    reader = FieldReader(tag, "the beginning of a flow's partition in __mirror_state")
    begun = reader.int8()
    reader.finish()
    return begun != 0


def _producers(tag: bytes) -> tuple[int, ...]:
    reader = FieldReader(tag, "producer ids of __mirror_state")
    producer_ids = []
    while not reader.done:
        producer_ids.append(reader.int64())
    return tuple(producer_ids)
