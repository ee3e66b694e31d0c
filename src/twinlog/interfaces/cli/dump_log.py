"""`twinlog dump-log --mirror-state-decoder`: the records of `__mirror_state` in a broker's files.

KIP-1279 adds this decoder to Kafka's own `kafka-dump-log.sh`; the lines have that tool's format.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from crc32c import crc32c

from twinlog.kafka.errors import CorruptBatch, ProtocolError
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
from twinlog.text import printable

_CHECKED_FROM: Final = 21
_MARKERS: Final = {0: "ABORT", 1: "COMMIT"}
_MARKER_KEY: Final = 4


@click.command("dump-log")
@click.option(
    "--files",
    required=True,
    help="The log segments to dump, with commas between them.",
)
@click.option(
    "--mirror-state-decoder",
    is_flag=True,
    required=True,
    help="Decode records as those of __mirror_state. The only decoder that there is here.",
)
def dump_log(files: str, mirror_state_decoder: bool) -> None:  # noqa: ARG001 - must be given
    """Print log segments of __mirror_state, for debugging.

    For all other topics, use Kafka's own kafka-dump-log.sh.
    """
    for file in map(Path, files.split(",")):
        try:
            data = memoryview(file.read_bytes())
        except OSError as error:
            raise click.ClickException(
                f"{file} cannot be read: {error.strerror}; name segments (*.log)"
            ) from error
        click.echo(f"Dumping {file}")
        click.echo(f"Log starting offset: {_starting_offset(file)}")
        for line in _dumped(data):
            click.echo(printable(line))  # names of headers, and JSON, may be any text


def _starting_offset(file: Path) -> int:
    """The first offset of a segment, from its name."""
    if not file.stem.isdecimal():
        raise click.ClickException(f"{file} is no log segment: those are called 0...0.log")
    return int(file.stem)


def _dumped(data: memoryview) -> Iterator[str]:
    """A line for each batch and each record; bytes that are not a batch end it with a last line."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = Header(position, *HEADER.unpack_from(data, position))
        if header.magic != MAGIC or not header.position + HEADER_SIZE <= header.end <= len(data):
            break
        checksum = crc32c(data[position + _CHECKED_FROM : header.end])
        yield _batch(header, valid=checksum == header.crc)
        try:
            for raw in raw_records(header, header.records(data)):
                yield _record(header, decode(raw), raw.offset - header.base_offset)
        except CorruptBatch as error:
            yield f"| {error}"
        position = header.end
    if position < len(data) and any(data[position:]):
        yield f"Found {len(data) - position} bytes from position {position} on that are no batch"


def _batch(header: Header, *, valid: bool) -> str:
    last = -1 if header.base_sequence < 0 else header.base_sequence + header.last_offset_delta
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.attributes & 0x40 else ""
    time = _time(header)
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.next_offset - 1} "
        f"count: {header.num_records} baseSequence: {header.base_sequence} lastSequence: {last} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.leader_epoch} "
        f"isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} "
        f"deleteHorizonMs: {horizon or 'OptionalLong.empty'} position: {header.position} "
        f"{time}: {header.max_timestamp} size: {header.end - header.position} "
        f"magic: {header.magic} compresscodec: {header.codec.name.lower()} crc: {header.crc} "
        f"isvalid: {_java(valid)}"
    )


def _time(header: Header) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _record(header: Header, record: Record, number: int) -> str:
    sequence = -1 if header.base_sequence < 0 else header.base_sequence + number
    start = (
        f"| offset: {record.offset} {_time(header)}: {record.timestamp} "
        f"keySize: {_size(record.key)} valueSize: {_size(record.value)} sequence: {sequence} "
        f"headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    if header.is_control:
        return f"{start} {_marker(record)}"
    try:
        key, payload = _said(state_records.decode(record.key, record.value))
    except ProtocolError as error:
        return f"{start} {error.message}"
    return f"{start} key: {_compact(key)} payload: {_compact(payload)}"


def _said(record: StateRecord | None) -> tuple[object, object]:
    """Key and payload as Kafka's tools print coordinator records."""
    match record:
        case PartitionState(partition, state, reason):
            data = _partition(partition) | {"state": int(state)}
            if reason is not None:
                data["reason"] = reason
            return _key(MIRROR_PARTITION_STATE, partition), {"version": "0", "data": data}
        case LastMirroredEpochs(epochs):
            topics = [
                _partition(one) | {"lastMirroredEpoch": last.epoch, "lastMirroredEnd": last.end}
                for one, last in epochs
            ]
            key = _key(LAST_MIRROR_EPOCHS, epochs[0][0] if epochs else None)
            return key, {"version": "0", "data": {"topics": topics}}
        case Forgotten(kind, mirror, partition):
            return _key(kind, partition, mirror), None
        case None:
            return "of a type that is newer than this version", None


def _key(kind: int, partition: MirrorPartition | None, mirror: str = "") -> object:
    data: dict[str, object] = {"mirrorName": mirror if partition is None else partition.mirror}
    if partition is not None:
        data |= _partition(partition)
    return {"type": str(kind), "data": data}


def _partition(partition: MirrorPartition) -> dict[str, object]:
    return {"topicName": partition.topic, "partition": partition.partition}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _marker(record: Record) -> str:
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY or len(value) < 2 + 4:
        return "control record"
    kind = _MARKERS.get(int.from_bytes(key[2:4], "big"), "UNKNOWN")
    return f"endTxnMarker: {kind} coordinatorEpoch: {int.from_bytes(value[2:6], 'big')}"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _java(value: bool) -> str:
    return "true" if value else "false"
