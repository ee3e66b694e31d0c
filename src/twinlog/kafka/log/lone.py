"""Batches of one record each, checked and merged in one pass.

A producer that does not wait for more records writes such batches: a record behind 61 bytes of
header. This is the mirror's only loop that touches every record. mypyc compiles this module if
there is a C compiler (docs/decisions/0007-compiled-modules.md); otherwise the same code is
interpreted. `merge.merge_by_records`, a simple implementation of the same, is the test's oracle.
"""

from functools import cache
from typing import Final

from crc32c import crc32c
from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from twinlog.kafka.log.batch import HEADER_SIZE, LOG_APPEND_TIME, LOG_OVERHEAD, MAGIC
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.merge import MERGED_BYTES
from twinlog.kafka.log.records import SMALL_VARINTS, Encoded, encode_varint, encoded, varint

MIN_RUN: Final = 16
"""Fewer lone records in a row are not worth a separate batch."""

_MAX_BYTES: Final = 8193
"""Maximum size of a record including its length, which takes one or two bytes."""
_MIN_BYTES: Final = 4
_READ: Final = 66
"""Bytes that the loop reads at once: a header, and the first bytes of its record."""
_AT_ONCE: Final = MERGED_BYTES + HEADER_SIZE + _MAX_BYTES
_GAP: Final = 65
"""No record has this size: 63 bytes take one for their length, 64 take two."""
_USUAL: Final = 1 << 60
"""Offsets and timestamps below can be added and subtracted without overflow of 64 bits."""
_LOW: Final = 0xFFFFFFFF

# Positions of the 64-bit numbers that are read in a batch, and what they contain.
_BASE_OFFSET: Final = 0
_LENGTH: Final = 4  # in the lower half
_MAGIC: Final = 16  # one byte
_CRC: Final = 13  # in the lower half
_ATTRIBUTES: Final = 21  # and the last offset delta, without the lower 16 bits
_BASE_TIMESTAMP: Final = 27
_MAX_TIMESTAMP: Final = 35
_COUNT: Final = 57  # in the upper half; in the lower one the record's first four bytes
_ONE_RECORD: Final = 1 << 32


def _start(size: int) -> bytes:
    """The first bytes of a record of this size, its length included.

    Its length in one or two bytes, its attributes and its two deltas, all 0.
    """
    return encode_varint(size - (1 if size < _GAP else 2)) + bytes(3)


@cache  # 30 ms, which a command that merges nothing saves
def _by_size() -> tuple[list[int], list[int]]:
    """By size: the number at `_COUNT` of such a record, and its tail's position in its batch."""
    starts = [_start(size) for size in range(_MAX_BYTES + 1)]
    return (
        [_ONE_RECORD + int.from_bytes(start[:4], "big") for start in starts],
        [HEADER_SIZE + len(start) for start in starts],
    )


_NEW_STARTS: Final = [length + b"\0" for length in SMALL_VARINTS]
"""A record's length and attributes, by its length."""


def merge_lone(buffer: memoryview, position: int) -> tuple[Encoded | None, int]:
    """Merge consecutive lone records from `position` on.

    A lone record is the only record of a batch that is complete, valid, not transactional and not
    compressed, and has the usual form. Any other batch ends the run; `batches` judges it. The
    merged records have the timestamps that the source's consumers see, so that batches of
    LogAppendTime become one of CreateTime. The merged header has the last batch's leader epoch.

    Args:
        buffer: consecutive record batches.
        position: where a batch begins.

    Returns:
        The batch, None if the run is not worth one, and where the run ends in the buffer.
    """
    data = bytes(buffer[position : position + _AT_ONCE])
    total: i64 = len(data)
    last: i64 = total - _READ
    if last < 0:
        return None, position
    kind: i64 = data[_ATTRIBUTES + 1] & LOG_APPEND_TIME
    stamp: i64 = _MAX_TIMESTAMP if kind else _BASE_TIMESTAMP
    base_offset: i64 = read_i64_be(data, _BASE_OFFSET)
    base_timestamp: i64 = read_i64_be(data, stamp)
    if not 0 <= base_offset < _USUAL:
        return None, position
    first_bytes, tails = _by_size()
    new_starts, small_varints = _NEW_STARTS, SMALL_VARINTS
    limit: i64 = len(small_varints)
    newest: i64 = base_timestamp
    out = BytesWriter()
    at: i64 = 0
    begin: i64 = 0
    count: i64 = 0
    while at <= last and count < limit:
        length: i64 = read_i64_be(data, at + _LENGTH) & _LOW
        end: i64 = at + LOG_OVERHEAD + length
        size: i64 = end - at - HEADER_SIZE
        timestamp: i64 = read_i64_be(data, at + stamp)
        if (
            read_i64_be(data, at + _BASE_OFFSET) != base_offset + count
            or data[at + _MAGIC] != MAGIC
            or read_i64_be(data, at + _ATTRIBUTES) >> 16 != kind << 32
            or not _MIN_BYTES <= size <= _MAX_BYTES
            or size == _GAP
            or read_i64_be(data, at + _COUNT) != first_bytes[size]
            or (size > _GAP and data[at + _COUNT + 8])
            or not -_USUAL < timestamp < _USUAL
            or end > total
            or crc32c(data[at + _ATTRIBUTES : end]) != read_i64_be(data, at + _CRC) & _LOW
        ):
            break
        tail: i64 = at + tails[size]
        delta: i64 = timestamp - base_timestamp
        timestamp_delta = small_varints[delta] if 0 <= delta < limit else varint(delta)
        offset_delta = small_varints[count]
        deltas: i64 = len(timestamp_delta) + len(offset_delta)
        out.write(new_starts[1 + deltas + end - tail])
        out.write(timestamp_delta)
        out.write(offset_delta)
        out.write(data[tail:end])
        if timestamp > newest:  # noqa: PLR1730 (a call for each record)
            newest = timestamp
        count += 1
        begin = at
        at = end
    if count < MIN_RUN:
        return None, position + at
    batch = encoded(
        out.getvalue(),
        Codec.NONE,
        base_offset=base_offset,
        count=count,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        leader_epoch=int.from_bytes(data[begin + 12 : begin + 16], "big", signed=True),
    )
    return batch, position + at
