"""The five codecs of Kafka's record batches, in both directions, with bounds.

The codecs have Kafka's names, and the numbers of a batch's attributes (bits 0 to 2). snappy is
written in the block framing of snappy-java, which Java clients write and all clients read; both
that and bare snappy are read. lz4 is the LZ4 frame format, written with independent blocks: a
broker answers a frame of linked blocks with UNKNOWN_SERVER_ERROR (3.9.1 and 4.3.1,
tests/contract/test_log.py).

A compressed batch does not declare its decompressed size, so every decompression is bounded: data
that grows past `MAX_DECOMPRESSED` is refused before it has been allocated.
"""

import enum
import struct
from collections.abc import Callable
from typing import Final

import cramjam

from twinlog.kafka.errors import CorruptBatch

MAX_DECOMPRESSED: Final = 512 * 1024 * 1024
"""Bytes. Above what any broker accepts: a Produce request is at most 100 MiB by default, and a bulk
filler of empty records, the most compressible batch that twinlog builds, decompresses to 10 MB."""

SNAPPY_JAVA_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_JAVA_HEADER: Final = SNAPPY_JAVA_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK: Final = 32 * 1024
_SMALLEST_BUFFER: Final = 1024
_LENGTH: Final = struct.Struct(">i")
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic, version 1 with independent blocks, blocks of at most 64 KiB, the header's checksum."""
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_LENGTH: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)


class Codec(enum.IntEnum):
    """A batch's compression, numbered as in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLong(CorruptBatch):
    """Data that exceeds the bound when it is decompressed."""


def decompress(codec: Codec, data: memoryview, limit: int = MAX_DECOMPRESSED) -> memoryview:
    """Decompress the records of a batch.

    Args:
        codec: their compression.
        data: the batch's bytes after its header.
        limit: the most bytes that they may decompress to.

    Raises:
        TooLong: they exceed `limit`.
        CorruptBatch: the bytes are not what the codec writes.
    """
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return _unsnappy(data, limit)
        return _bounded(_INTO[codec], data, limit)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"cannot decompress {codec.name.lower()} data: {error}") from error


def compress(codec: Codec, data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Compress bytes."""
    if codec is Codec.NONE:
        return memoryview(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec is Codec.SNAPPY:
        return _snappy(memoryview(data))
    if codec is Codec.LZ4:
        return _lz4(memoryview(data))
    return bytes(cramjam.zstd.compress(data))


_INTO: Final[dict[Codec, Callable[[memoryview, bytearray], int]]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _bounded(
    decoder: Callable[[memoryview, bytearray], int], data: memoryview, limit: int
) -> memoryview:
    """Decompress into a buffer that grows fourfold until the data fits, up to the bound."""
    size = min(max(4 * len(data), _SMALLEST_BUFFER), limit)
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: decoder(data, out)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size == limit:
                raise TooLong(
                    f"a batch of {len(data)} bytes decompresses to more than {limit} bytes"
                ) from error
        size = min(4 * size, limit)


def _unsnappy(data: memoryview, limit: int) -> memoryview:
    if bytes(data[: len(SNAPPY_JAVA_MAGIC)]) != SNAPPY_JAVA_MAGIC:
        return memoryview(_unsnappy_block(data, limit))
    out = bytearray()
    position = len(_SNAPPY_JAVA_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptBatch("truncated length of a snappy block")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise CorruptBatch(
                f"invalid length {length} of a snappy block: {len(data) - position} bytes follow"
            )
        out += _unsnappy_block(data[position : position + length], limit - len(out))
        position += length
    return memoryview(out)


def _unsnappy_block(block: memoryview, limit: int) -> bytearray:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise TooLong(f"snappy data decompresses to {size} bytes, at most {limit} are allowed")
    out = bytearray(size)
    cramjam.snappy.decompress_raw_into(block, out)
    return out


def _snappy(data: memoryview) -> bytes:
    parts = [_SNAPPY_JAVA_HEADER]
    for start in range(0, len(data), _SNAPPY_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        chunk = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        if len(block) < len(chunk):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            parts += (_LZ4_LENGTH.pack(len(chunk) | _LZ4_STORED), bytes(chunk))
    return b"".join((*parts, _LZ4_END))
