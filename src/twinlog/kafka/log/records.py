"""The records within a batch, for the few cases that cannot forward the batch as it is.

    length varint | attributes int8 | timestamp delta varint | offset delta varint | tail
    tail = key length varint | key | value length varint | value | header count varint | headers

All varints are zigzag, least significant group first. A record that is re-encoded keeps its tail
byte for byte: only the two deltas before it, and therefore the length, are rewritten. So key, value
and headers are never decoded to be copied.

A timestamp is the sum of the batch's base timestamp and the delta, in 64 bits that wrap as Java's
`long` does. The same holds if compaction has replaced the base timestamp with its delete horizon
(attribute bit 6): the deltas are then relative to the horizon, so mostly negative.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_CRC,
    NO_EPOCH,
    NO_PRODUCER,
    NO_SEQUENCE,
    Header,
    new_header,
)
from twinlog.kafka.log.compression import MAX_DECOMPRESSED, Codec, compress, decompress
from twinlog.kafka.types import UNKNOWN_EPOCH

_MAX_VARINT_BYTES: Final = 10
_MIN_LONG: Final = -(1 << 63)
_MAX_LONG: Final = (1 << 63) - 1


class RawRecord(NamedTuple):
    """A record of which only offset and timestamp are decoded.

    `tail` holds key, value and headers as they were encoded.
    """

    offset: int
    timestamp: int
    attributes: int
    tail: memoryview


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A record in full, as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def wrapped(value: int) -> int:
    """Wrap a number to signed 64 bits, as Java does."""
    return value if _MIN_LONG <= value <= _MAX_LONG else (value - _MIN_LONG) % (1 << 64) + _MIN_LONG


def encode_varint(value: int) -> bytes:
    """Encode a signed 64 bit number as Kafka's zigzag varint; a larger number is wrapped."""
    value = wrapped(value)
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


SMALL_VARINTS: Final = (
    *(bytes((z,)) for z in range(0, 1 << 7, 2)),
    *(bytes((z & 0x7F | 0x80, z >> 7)) for z in range(1 << 7, 1 << 14, 2)),
    *(bytes((z & 0x7F | 0x80, z >> 7 & 0x7F | 0x80, z >> 14)) for z in range(1 << 14, 1 << 15, 2)),
)
"""The encodings of 0 to 16,383, which nearly every delta and length needs. Built at each start."""


def varint(value: int) -> bytes:
    """Encode like `encode_varint`, from the table if possible."""
    return SMALL_VARINTS[value] if 0 <= value < len(SMALL_VARINTS) else encode_varint(value)


def decode_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Decode a number; return it and the position after it.

    Raises:
        CorruptBatch: it is cut off, or longer than ten bytes.
    """
    result = shift = 0
    for at in range(position, min(position + _MAX_VARINT_BYTES, len(data))):
        byte = data[at]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return wrapped((result >> 1) ^ -(result & 1)), at + 1
        shift += 7
    raise CorruptBatch("invalid varint in a record: truncated or too long")


def raw_records(header: Header, records: memoryview) -> list[RawRecord]:
    """The records of one batch, as `each_record` gives them."""
    return list(each_record(header, records))


def each_record(
    header: Header, records: memoryview, max_bytes: int = MAX_DECOMPRESSED
) -> Iterator[RawRecord]:
    """The records of one batch in order, with the offsets and timestamps that consumers see.

    Args:
        header: the batch's header.
        records: its bytes after the header, compressed as the header declares.
        max_bytes: the most bytes that they may decompress to.

    Raises:
        TooLong: they decompress to more.
        CorruptBatch: the records do not fill the batch exactly, their number is not the declared
            one, or their offsets do not grow.
    """
    data = decompress(header.codec, records, max_bytes)
    position = next_delta = 0
    for _ in range(header.num_records):
        length, body = decode_varint(data, position)
        position = body + length
        if length < 1 or position > len(data):
            raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is truncated")
        timestamp_delta, at = decode_varint(data, body + 1)
        offset_delta, at = decode_varint(data, at)
        if at > position or not next_delta <= offset_delta <= header.last_offset_delta:
            raise CorruptBatch(
                f"a record of the batch at offset {header.base_offset} has an offset outside of "
                "the batch or out of order"
            )
        next_delta = offset_delta + 1
        timestamp = (
            header.max_timestamp
            if header.is_log_append_time
            else wrapped(header.base_timestamp + timestamp_delta)
        )
        yield RawRecord(header.base_offset + offset_delta, timestamp, data[body], data[at:position])
    if position != len(data):
        raise CorruptBatch(
            f"trailing bytes after the last record of the batch at offset {header.base_offset}"
        )


def decode(record: RawRecord) -> Record:
    """Decode a record's key, value and headers.

    Raises:
        CorruptBatch: a length goes past the record's end.
    """
    key, position = _nullable(record.tail, 0)
    value, position = _nullable(record.tail, position)
    headers = decode_headers(record.tail[position:], record.offset)
    return Record(record.offset, record.timestamp, key, value, headers)


def decode_headers(data: memoryview, offset: int) -> Headers:
    """Decode the headers of the record at an offset, which end a record.

    Raises:
        CorruptBatch: they do not fill `data` exactly.
    """
    count, position = decode_varint(data, 0)
    if not 0 <= count <= len(data):
        raise CorruptBatch(f"the record at offset {offset} has an invalid header count {count}")
    headers = []
    for _ in range(count):
        name, position = _nullable(data, position)
        content, position = _nullable(data, position)
        if name is None:
            raise CorruptBatch(f"the record at offset {offset} has a header without a name")
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if position != len(data):
        raise CorruptBatch(f"trailing bytes after the headers of the record at offset {offset}")
    return tuple(headers)


def _nullable(data: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise CorruptBatch("a key, value or header exceeds its record")
    return bytes(data[position : position + length]), position + length


def encode_tail(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> bytes:
    """Encode key, value and headers as the tail of a record."""
    return b"".join((_sized(key), _sized(value), encode_headers(tuple(headers))))


def encode_headers(headers: Headers) -> bytes:
    """Encode headers, with their number before them."""
    parts = [varint(len(headers))]
    for name, content in headers:
        parts += (_sized(name.encode("utf-8", "surrogateescape")), _sized(content))
    return b"".join(parts)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


class Encoded(NamedTuple):
    """A batch built by this process: its header (at its first record's offset) and records."""

    header: Header
    records: memoryview


def build(records: Sequence[RawRecord], codec: Codec, leader_epoch: int = UNKNOWN_EPOCH) -> Encoded:
    """Build a batch of these records, which must have consecutive offsets.

    It has no producer yet; `batch.patched_header` sets one. The leader epoch is the source's in
    which the records were written; a broker sets its own.
    """
    first = records[0]
    base, base_timestamp = first.offset, first.timestamp
    assert records[-1].offset - base == len(records) - 1
    parts: list[bytes | memoryview] = []
    for offset, timestamp, attributes, tail in records:
        deltas = varint(timestamp - base_timestamp) + varint(offset - base)
        parts += (varint(1 + len(deltas) + len(tail)), bytes((attributes,)), deltas, tail)
    return encoded(
        b"".join(parts),
        codec,
        base_offset=base,
        count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        leader_epoch=leader_epoch,
    )


def encoded(
    body: bytes | bytearray,
    codec: Codec,
    *,
    base_offset: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int = UNKNOWN_EPOCH,
) -> Encoded:
    """Build a dense batch of encoded records."""
    data = memoryview(compress(codec, body))
    # By position: the names of 14 fields take a microsecond, for each batch that is built.
    header = tuple.__new__(
        Header,
        (
            0,  # position
            base_offset,
            HEADER_SIZE - LOG_OVERHEAD + len(data),
            leader_epoch,
            MAGIC,
            NO_CRC,
            int(codec),  # attributes
            count - 1,  # last offset delta
            base_timestamp,
            max_timestamp,
            NO_PRODUCER,
            NO_EPOCH,
            NO_SEQUENCE,
            count,
        ),
    )
    return Encoded(header, data)


def whole(
    batch: Encoded,
    *,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER,
    epoch: int = NO_EPOCH,
    sequence: int = NO_SEQUENCE,
) -> bytes:
    """The bytes of a batch that this process has built, as it is produced.

    Args:
        batch: what to write.
        attributes: bits besides the codec's, such as `TRANSACTIONAL`.
        producer_id: its producer, or none.
        epoch: the producer's.
        sequence: of the first record.
    """
    header = batch.header
    return new_header(
        length=header.length,
        attributes=header.attributes | attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
        count=header.num_records,
        records=batch.records,
    ) + bytes(batch.records)
