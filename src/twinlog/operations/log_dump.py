"""Dumps segments of `__mirror_state` as a broker stores them: batches and their decoded records.

KIP-1279 adds this decoder to Kafka's own `kafka-dump-log.sh`. A segment may be damaged, and is read
for that very reason: what cannot be decoded is an entry of its own, and nothing is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from twinlog.kafka.errors import CorruptBatch, ProtocolError, UserError
from twinlog.kafka.log.batch import HEADER, HEADER_SIZE, MAGIC, Header
from twinlog.kafka.log.records import Record, decode, raw_records
from twinlog.mirror.placement import MirrorPartition
from twinlog.store import state_records
from twinlog.store.state_records import (
    LAST_MIRROR_EPOCHS,
    MIRROR_PARTITION_STATE,
    Forgotten,
    LastMirroredEpochs,
    PartitionState,
    StateRecord,
)

_CHECKED_FROM: Final = 21
_HAS_HORIZON: Final = 0x40
_MARKERS: Final = {0: "ABORT", 1: "COMMIT"}
_MARKER_KEY: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """A batch: the fields of its header."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    """When its tombstones and markers may be removed; None: not set."""
    position: int
    """Of its first byte in the segment."""
    timestamp_type: str
    """`CreateTime` or `LogAppendTime`, of the batch and of its records."""
    max_timestamp: int
    size: int
    """In bytes."""
    magic: int
    codec: str
    crc: int
    is_valid: bool
    """Whether its bytes have this checksum."""


class DumpedMarker(NamedTuple):
    """The end of a transaction."""

    kind: str
    """`ABORT`, `COMMIT` or `UNKNOWN`."""
    coordinator_epoch: int


class DumpedState(NamedTuple):
    """Key and payload of a record of `__mirror_state`, as Kafka's tools print coordinator records.

    A record of a type that is newer than this version has a text as its key.
    """

    key: object
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedRecord:
    """A record of the batch before it."""

    offset: int
    timestamp_type: str
    timestamp: int
    key_size: int
    """In bytes; -1: it has no key."""
    value_size: int
    """In bytes; -1: it has no value."""
    sequence: int
    header_keys: tuple[str, ...]
    content: DumpedMarker | DumpedState | str
    """A text: why it is neither."""


class Undecodable(NamedTuple):
    """Records of a batch that cannot be decoded."""

    error: str


class NoBatch(NamedTuple):
    """Bytes at the end of a segment that are no batch."""

    position: int
    size: int


DumpEntry: TypeAlias = DumpedBatch | DumpedRecord | Undecodable | NoBatch


@dataclass(frozen=True, slots=True)
class SegmentDump:
    """A segment. It is decoded entry by entry, since it may be large."""

    file: Path
    _data: memoryview = field(repr=False)

    @property
    def starting_offset(self) -> int:
        """Its first offset, from its name.

        Raises:
            UserError: the file is no segment by its name.
        """
        if not self.file.stem.isdecimal():
            raise UserError(
                f"{self.file} is not a log segment: expected a name such as "
                "00000000000000000000.log"
            )
        return int(self.file.stem)

    def entries(self) -> Iterator[DumpEntry]:
        """Each batch, followed by its records; bytes that are not a batch end it."""
        return _entries(self._data)

    def as_json(self) -> Mapping[str, object]:
        """File and starting offset; the entries are serialised one by one."""
        return {"file": str(self.file), "starting_offset": self.starting_offset}


def dump_log(file: Path) -> SegmentDump:
    """Read a segment.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return SegmentDump(file, memoryview(file.read_bytes()))
    except OSError as error:
        raise UserError(
            f"cannot read {file}: {error.strerror}", hint="specify log segments (*.log)"
        ) from error


def _entries(data: memoryview) -> Iterator[DumpEntry]:
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = Header(position, *HEADER.unpack_from(data, position))
        if header.magic != MAGIC or not header.position + HEADER_SIZE <= header.end <= len(data):
            break
        checksum = crc32c(data[position + _CHECKED_FROM : header.end])
        yield _batch(header, is_valid=checksum == header.crc)
        try:
            for raw in raw_records(header, header.records(data)):
                yield _record(header, decode(raw), raw.offset - header.base_offset)
        except CorruptBatch as error:
            yield Undecodable(str(error))
        position = header.end
    if position < len(data) and any(data[position:]):
        yield NoBatch(position, len(data) - position)


def _batch(header: Header, *, is_valid: bool) -> DumpedBatch:
    return DumpedBatch(
        base_offset=header.base_offset,
        last_offset=header.next_offset - 1,
        count=header.num_records,
        base_sequence=header.base_sequence,
        last_sequence=_sequence(header, header.last_offset_delta),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        leader_epoch=header.leader_epoch,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=header.base_timestamp if header.attributes & _HAS_HORIZON else None,
        position=header.position,
        timestamp_type=_timestamp_type(header),
        max_timestamp=header.max_timestamp,
        size=header.end - header.position,
        magic=header.magic,
        codec=header.codec.name.lower(),
        crc=header.crc,
        is_valid=is_valid,
    )


def _record(header: Header, record: Record, number: int) -> DumpedRecord:
    return DumpedRecord(
        offset=record.offset,
        timestamp_type=_timestamp_type(header),
        timestamp=record.timestamp,
        key_size=_size(record.key),
        value_size=_size(record.value),
        sequence=_sequence(header, number),
        header_keys=tuple(name for name, _ in record.headers),
        content=_marker(record) if header.is_control else _state(record),
    )


def _sequence(header: Header, number: int) -> int:
    return -1 if header.base_sequence < 0 else header.base_sequence + number


def _timestamp_type(header: Header) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _marker(record: Record) -> DumpedMarker | str:
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY or len(value) < 2 + 4:
        return "control record"
    kind = _MARKERS.get(int.from_bytes(key[2:4], "big"), "UNKNOWN")
    return DumpedMarker(kind, int.from_bytes(value[2:6], "big"))


def _state(record: Record) -> DumpedState | str:
    try:
        return _decoded(state_records.decode(record.key, record.value))
    except ProtocolError as error:
        return error.message


def _decoded(record: StateRecord | None) -> DumpedState:
    match record:
        case PartitionState(partition, state, reason):
            data = _partition(partition) | {"state": int(state)}
            if reason is not None:
                data["reason"] = reason
            key = _key(MIRROR_PARTITION_STATE, partition)
            return DumpedState(key, {"version": "0", "data": data})
        case LastMirroredEpochs(epochs):
            topics = [
                _partition(p)
                | {"lastMirroredEpoch": last_mirrored.epoch, "lastMirroredEnd": last_mirrored.end}
                for p, last_mirrored in epochs
            ]
            key = _key(LAST_MIRROR_EPOCHS, epochs[0][0] if epochs else None)
            return DumpedState(key, {"version": "0", "data": {"topics": topics}})
        case Forgotten(kind, mirror, partition):
            return DumpedState(_key(kind, partition, mirror), None)
        case None:
            return DumpedState("of a type that this version does not know", None)


def _key(kind: int, partition: MirrorPartition | None, mirror: str = "") -> object:
    data: dict[str, object] = {"mirrorName": mirror if partition is None else partition.mirror}
    if partition is not None:
        data |= _partition(partition)
    return {"type": str(kind), "data": data}


def _partition(partition: MirrorPartition) -> dict[str, object]:
    return {"topicName": partition.topic, "partition": partition.partition}
