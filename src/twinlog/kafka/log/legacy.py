"""Messages of the formats v0 and v1, which old segments of a log may still hold.

    offset int64 | size int32 | crc32 uint32 | magic int8 | attributes int8 | v1: timestamp int64
    key length int32 | key | value length int32 | value

A compressed message wraps a set of messages in its value. In v0 these have their own offsets. In v1
their offsets are relative to the first, and the wrapper has the offset of the last. A v1 wrapper of
LogAppendTime (attribute bit 3) gives its timestamp to all. v0 has no timestamps: consumers see -1.

Brokers cannot write these formats any more (since 4.0 not at all), so they are re-encoded as v2.

LZ4 frames within v0 have a wrong header checksum (KAFKA-3160: clients computed it over the magic
number too, and had to keep doing so for v0). Kafka's clients do not check it there, so it is
corrected before the frame is read. The frame's other checks stay.

Source: Kafka protocol guide, "Message sets"; KIP-31, KIP-32; KafkaLZ4BlockInputStream.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.compression import MAX_DECOMPRESSED, Codec, decompress
from twinlog.kafka.log.records import RawRecord, encode_tail

STEP_MESSAGES: Final = 1024
"""Messages of a wrapper to unwrap in one step; this takes about 5 ms."""

_OVERHEAD: Final = struct.Struct(">qi")
_V0: Final = struct.Struct(">Ibb")
_TIMESTAMP: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_LOG_APPEND_TIME: Final = 0x08
_MAGIC_AT: Final = 16
_MAX_MAGIC: Final = 1
_NO_TIMESTAMP: Final = -1

_LZ4_FLAGS_AT: Final = 4
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY: Final = 0x01
_LZ4_LEAST: Final = 7
_XXH_1: Final = 0x9E3779B1
_XXH_2: Final = 0x85EBCA77
_XXH_3: Final = 0xC2B2AE3D
_XXH_4: Final = 0x27D4EB2F
_XXH_5: Final = 0x165667B1
_MASK: Final = 0xFFFFFFFF


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: memoryview | None

    @property
    def codec(self) -> Codec:
        number = self.attributes & 0x07
        if number > Codec.LZ4:  # zstd came with v2
            raise CorruptBatch(
                f"the message at offset {self.offset} has an unknown compression codec"
            )
        return Codec(number)


class LegacyRun(NamedTuple):
    """Records of one message or wrapper, at most `STEP_MESSAGES`.

    `size` is that of the message or wrapper in bytes, and `next_position` is where the next one
    begins.
    """

    codec: Codec
    records: list[RawRecord]
    size: int
    next_position: int


def legacy_records(
    buffer: memoryview, position: int, lowest: int = 0, max_bytes: int = MAX_DECOMPRESSED
) -> Iterator[LegacyRun]:
    """The records of a message set, up to the first batch of format v2.

    Args:
        buffer: a Fetch answer's records; an incomplete message at its end is left out.
        position: where the first message begins.
        lowest: the lowest offset that it may have.
        max_bytes: the most bytes that one wrapper may decompress to.

    Raises:
        TooLong: one decompresses to more.
        CorruptBatch: a wrong checksum, length, or wrapped set; offsets that do not grow.
    """
    return (run for run in legacy_steps(buffer, position, lowest, max_bytes) if run is not None)


def legacy_steps(
    buffer: memoryview, position: int, lowest: int = 0, max_bytes: int = MAX_DECOMPRESSED
) -> Iterator[LegacyRun | None]:
    """As `legacy_records`, with None after each step of a few milliseconds without records."""
    for message, end in _messages(buffer, position):
        for records in _records_of(message, max_bytes):
            for record in records:
                if record.offset < lowest:
                    raise CorruptBatch(
                        f"message at offset {record.offset}, expected offset {lowest} or above"
                    )
                lowest = record.offset + 1
            yield LegacyRun(message.codec, records, end - position, end) if records else None
        position = end


def _records_of(message: _Message, max_bytes: int) -> Iterator[list[RawRecord]]:
    if message.codec is Codec.NONE:
        yield [_record(message, message.offset, message.timestamp)]
    else:
        yield from _unwrap(message, max_bytes)


def _unwrap(wrapper: _Message, max_bytes: int) -> Iterator[list[RawRecord]]:
    """The wrapped records in parts; an empty part ends a step without records."""
    if wrapper.value is None:
        raise CorruptBatch(f"the compressed message at offset {wrapper.offset} has no value")
    value = wrapper.value
    if wrapper.magic == 0 and wrapper.codec is Codec.LZ4:
        value = _with_right_checksum(value)
    data = decompress(wrapper.codec, value, max_bytes)
    # The last message's relative offset gives the first one's offset, so the set is walked twice.
    last = None
    for count, offset in enumerate(_offsets(data), start=1):
        last = offset
        if count % STEP_MESSAGES == 0:
            yield []
    if last is None:
        raise _not_of_its_format(wrapper)
    base = wrapper.offset - last if wrapper.magic == _MAX_MAGIC else 0
    stamped = wrapper.magic == _MAX_MAGIC and wrapper.attributes & _LOG_APPEND_TIME
    part: list[RawRecord] = []
    for message, _ in _messages(data, 0):
        if message.codec is not Codec.NONE or message.magic != wrapper.magic:
            raise _not_of_its_format(wrapper)
        timestamp = wrapper.timestamp if stamped else message.timestamp
        part.append(_record(message, base + message.offset, timestamp))
        if len(part) == STEP_MESSAGES:
            yield part
            part = []
    if part:
        yield part


def _not_of_its_format(wrapper: _Message) -> CorruptBatch:
    return CorruptBatch(
        f"the compressed message at offset {wrapper.offset} does not contain messages of its format"
    )


def _with_right_checksum(frame: memoryview) -> memoryview:
    """An LZ4 frame with a corrected header checksum (see the module)."""
    if len(frame) < _LZ4_LEAST:
        return frame
    flags = frame[_LZ4_FLAGS_AT]
    checksum_at = (
        6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    )
    if len(frame) <= checksum_at:
        return frame
    corrected_frame = bytearray(frame)
    corrected_frame[checksum_at] = (_xxh32(frame[_LZ4_FLAGS_AT:checksum_at]) >> 8) & 0xFF
    return memoryview(corrected_frame)


def _xxh32(data: memoryview) -> int:
    """XXH32 with seed 0 of less than 16 bytes."""
    value = _XXH_5 + len(data)
    word_bytes = len(data) - len(data) % 4
    for at in range(0, word_bytes, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        value = _rotated(value + word * _XXH_3, 17) * _XXH_4
    for byte in data[word_bytes:]:
        value = _rotated(value + byte * _XXH_5, 11) * _XXH_1
    value &= _MASK
    value = (value ^ value >> 15) * _XXH_2 & _MASK
    value = (value ^ value >> 13) * _XXH_3 & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK


def _record(message: _Message, offset: int, timestamp: int) -> RawRecord:
    value = None if message.value is None else bytes(message.value)
    return RawRecord(offset, timestamp, 0, memoryview(encode_tail(message.key, value)))


def _messages(buffer: memoryview, position: int) -> Iterator[tuple[_Message, int]]:
    for offset, start, end in _bounds(buffer, position):
        yield _message(offset, buffer[start:end]), end


def _offsets(buffer: memoryview) -> Iterator[int]:
    return (offset for offset, _, _ in _bounds(buffer, 0))


def _bounds(buffer: memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Each whole message's offset, and the start and end of its body."""
    while position + _OVERHEAD.size + _V0.size <= len(buffer):
        offset, size = _OVERHEAD.unpack_from(buffer, position)
        if buffer[position + _MAGIC_AT] > _MAX_MAGIC:
            return
        start = position + _OVERHEAD.size
        position = start + size
        if size < _V0.size + 2 * _SIZE.size:
            raise CorruptBatch(f"the message at offset {offset} has the invalid size {size}")
        if position > len(buffer):
            return
        yield offset, start, position


def _message(offset: int, body: memoryview) -> _Message:
    crc, magic, attributes = _V0.unpack_from(body)
    if crc != zlib.crc32(body[4:]):
        raise CorruptBatch(f"the message at offset {offset} has a wrong checksum")
    at = _V0.size
    timestamp = _NO_TIMESTAMP
    if magic == _MAX_MAGIC:
        if len(body) < at + _TIMESTAMP.size:
            raise CorruptBatch(f"the message at offset {offset} is truncated")
        (timestamp,) = _TIMESTAMP.unpack_from(body, at)
        at += _TIMESTAMP.size
    key, at = _field(offset, body, at)
    value, at = _field(offset, body, at)
    return _Message(
        offset, magic, attributes, timestamp, None if key is None else bytes(key), value
    )


def _field(offset: int, body: memoryview, at: int) -> tuple[memoryview | None, int]:
    if at + _SIZE.size > len(body):
        raise CorruptBatch(f"the message at offset {offset} is truncated")
    (size,) = _SIZE.unpack_from(body, at)
    at += _SIZE.size
    if size < 0:
        return None, at
    if at + size > len(body):
        raise CorruptBatch(f"the message at offset {offset} is truncated")
    return body[at : at + size], at + size
