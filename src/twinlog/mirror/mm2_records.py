"""The records of MirrorMaker 2's internal topics, in its own formats (KIP-382, Kafka 4.3).

    heartbeats                         key    source alias, target alias
                                       value  version, timestamp
    SOURCE.checkpoints.internal        key    group, topic, partition
                                       value  version, upstream offset, downstream offset, metadata
    mm2-offset-syncs.TARGET.internal   key    topic, partition
                                       value  upstream offset, downstream offset

Strings have an int16 length and are UTF-8; a version is an int16, always 0; a partition is an
int32; offsets and the timestamp are int64. *Upstream* is the source, *downstream* the destination.
All three topics are compacted, so each record replaces the one before it with the same key, and a
record without a value (a tombstone) removes it.

Kafka's own decoders ignore the version and trailing bytes, and replace invalid UTF-8. Here they are
refused, and so are negative offsets, since nobody could use such a record. All that MirrorMaker 2
writes is decoded: tests/interfaces/test_mirror_maker_java.py.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from twinlog.kafka.errors import ProtocolError, UserError
from twinlog.kafka.protocol.fields import INT16, INT32, INT64, FieldReader, string
from twinlog.kafka.types import TopicPartition

_VERSION: Final = 0
_MAX_TEXT: Final = (1 << 15) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign that a flow's connector works.

    It is written to the flow's target. Other flows copy the topic from there, which shows that they
    work, too: `us-west.heartbeats` has arrived from us-west, whatever flow it was written for.

    Attributes:
        source_cluster_alias: the source of the flow that it was written for.
        target_cluster_alias: the target of that flow, and the cluster that it was written to.
        timestamp: when it was written, in ms since the epoch.
    """

    source_cluster_alias: str
    target_cluster_alias: str
    timestamp: int

    def __str__(self) -> str:
        """As Kafka's HeartbeatFormatter prints it."""
        return (
            f"Heartbeat{{sourceClusterAlias={self.source_cluster_alias}, "
            f"targetClusterAlias={self.target_cluster_alias}, timestamp={self.timestamp}}}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The offset of a group in a topic partition, translated to the destination.

    Attributes:
        group: the group's id.
        partition: the remote topic's name on the destination, and the partition.
        upstream_offset: what the group has committed on the source.
        downstream_offset: where it goes on reading on the destination; records in front of it may
            be read twice.
        metadata: what the group has stored with the offset.
    """

    group: str
    partition: TopicPartition
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""

    def __str__(self) -> str:
        """As Kafka's CheckpointFormatter prints it."""
        return (
            f"Checkpoint{{consumerGroupId={self.group}, topicPartition={self.partition}, "
            f"upstreamOffset={self.upstream_offset}, downstreamOffset={self.downstream_offset}, "
            f"metadata={self.metadata}}}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSync:
    """One record's offset on both sides.

    Attributes:
        partition: the topic's name on the source, and the partition.
        upstream_offset: its offset on the source.
        downstream_offset: its offset on the destination.
    """

    partition: TopicPartition
    upstream_offset: int
    downstream_offset: int

    def __str__(self) -> str:
        """As Kafka's OffsetSyncFormatter prints it."""
        return (
            f"OffsetSync{{topicPartition={self.partition}, upstreamOffset={self.upstream_offset}, "
            f"downstreamOffset={self.downstream_offset}}}"
        )


Mm2Record: TypeAlias = Heartbeat | Checkpoint | OffsetSync


def encode(record: Mm2Record) -> tuple[bytes, bytes]:
    """Key and value.

    Raises:
        UserError: a text is longer than 32767 bytes.
    """
    match record:
        case Heartbeat():
            aliases = (record.source_cluster_alias, record.target_cluster_alias)
            key = b"".join(_text(alias, "a cluster alias") for alias in aliases)
            return key, INT16.pack(_VERSION) + INT64.pack(record.timestamp)
        case Checkpoint():
            metadata = _text(record.metadata, "the metadata of an offset")
            key = _text(record.group, "a group id") + _partition(record.partition)
            return key, INT16.pack(_VERSION) + _offsets(record) + metadata
        case OffsetSync():
            return _partition(record.partition), _offsets(record)


def decode_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat | None:
    """Decode a record of a heartbeats topic; None if it is a tombstone.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    source, target = decode_heartbeat_key(key)
    if value is None:
        return None
    reader = _versioned(value, "the value of a heartbeat")
    timestamp = reader.int64()
    reader.finish()
    return Heartbeat(source_cluster_alias=source, target_cluster_alias=target, timestamp=timestamp)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint | None:
    """Decode a record of a checkpoints topic; None if it is a tombstone.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    group, partition = decode_checkpoint_key(key)
    if value is None:
        return None
    subject = "the value of a checkpoint"
    reader = _versioned(value, subject)
    upstream, downstream = (_offset(reader, subject) for _ in range(2))
    metadata = reader.string()
    reader.finish()
    return Checkpoint(
        group=group,
        partition=partition,
        upstream_offset=upstream,
        downstream_offset=downstream,
        metadata=metadata,
    )


def decode_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync | None:
    """Decode a record of an offset syncs topic; None if it is a tombstone.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    partition = decode_offset_sync_key(key)
    if value is None:
        return None
    subject = "the value of an offset sync"
    reader = FieldReader(value, subject)
    upstream, downstream = (_offset(reader, subject) for _ in range(2))
    reader.finish()
    return OffsetSync(partition=partition, upstream_offset=upstream, downstream_offset=downstream)


def decode_heartbeat_key(key: bytes | None) -> tuple[str, str]:
    """The aliases of source and target.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    reader = _key(key, "the key of a heartbeat")
    source, target = reader.string(), reader.string()
    reader.finish()
    return source, target


def decode_checkpoint_key(key: bytes | None) -> tuple[str, TopicPartition]:
    """The group, and the partition on the destination.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    subject = "the key of a checkpoint"
    reader = _key(key, subject)
    group = reader.string()
    return group, _last_partition(reader, subject)


def decode_offset_sync_key(key: bytes | None) -> TopicPartition:
    """The partition on the source.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    subject = "the key of an offset sync"
    return _last_partition(_key(key, subject), subject)


def _text(text: str, what: str) -> bytes:
    size = len(text.encode())
    if size > _MAX_TEXT:
        raise UserError(f"{what} has {size} bytes, expected at most {_MAX_TEXT}")
    return string(text)


def _partition(partition: TopicPartition) -> bytes:
    return _text(partition.topic, "a topic name") + INT32.pack(partition.partition)


def _offsets(record: Checkpoint | OffsetSync) -> bytes:
    return INT64.pack(record.upstream_offset) + INT64.pack(record.downstream_offset)


def _key(key: bytes | None, subject: str) -> FieldReader:
    if key is None:
        raise ProtocolError(f"{subject} is missing")
    return FieldReader(key, subject)


def _versioned(value: bytes, subject: str) -> FieldReader:
    reader = FieldReader(value, subject)
    version = reader.int16()
    if version != _VERSION:
        raise ProtocolError(f"{subject} has version {version}, expected {_VERSION}")
    return reader


def _offset(reader: FieldReader, subject: str) -> int:
    offset = reader.int64()
    if offset < 0:
        raise ProtocolError(f"{subject} has offset {offset}, expected 0 or more")
    return offset


def _last_partition(reader: FieldReader, subject: str) -> TopicPartition:
    partition = TopicPartition(reader.string(), reader.int32())
    reader.finish()
    if partition.partition < 0:
        raise ProtocolError(f"{subject} has partition {partition.partition}, expected 0 or more")
    return partition
