"""A small transaction, or several that overlap, checked and merged in one pass up to the markers.

A producer of small transactions writes one or two batches and a marker, again and again. This does
what `batches`, `merge` and the plan (mirror/plan.py) do for each batch, without an object for each.
mypyc compiles this module if there is a C compiler (docs/decisions/0007-compiled-modules.md);
otherwise the same code is interpreted. The plan without it is the tests' oracle.
"""

from typing import Final, NamedTuple

from crc32c import crc32c
from librt.strings import read_i64_be
from mypy_extensions import i64

from twinlog.kafka.log.batch import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    Header,
)
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.rebase import Part, rebased
from twinlog.kafka.log.records import Encoded, encoded

MAX_MARKERS: Final = 64
"""Markers that are taken at once."""

_LOW: Final = 0xFFFFFFFF
_MARKER: Final = TRANSACTIONAL | CONTROL
_USUAL: Final = 1 << 60
"""Offsets below can be added without overflow of 64 bits."""

# Positions of the 64-bit numbers that are read in a header, and what they contain.
_BASE_OFFSET: Final = 0
_LENGTH: Final = 4  # in the lower half
_CRC: Final = 13  # in the lower half
_MAGIC: Final = 16  # one byte
_ATTRIBUTES: Final = 21  # and the last offset delta, without the lower 16 bits; checked from here
_BASE_TIMESTAMP: Final = 27
_COUNT: Final = 53  # in the lower half
_LEADER_EPOCH: Final = 12


class Transaction(NamedTuple):
    """The data of a transaction as one batch, and what follows it."""

    batch: Encoded
    markers: int
    """Offsets after the data that hold markers; 0 if more data follows, which is not merged."""
    leader_epoch: int
    """That of the last batch."""
    batches: int
    """The batches that were read."""


def read_transaction(
    buffer: memoryview, position: int, offset: int, limits: tuple[int, int, int, int]
) -> tuple[Transaction | None, int]:
    """Read batches of transactions from `position` on, and the markers that end them.

    A batch of data has to be complete, valid, dense and not compressed, with the records' own
    timestamps, and at the offset after the one before. `batches` judges any other.

    Args:
        buffer: consecutive record batches.
        position: where a batch begins.
        offset: the offset that it has to have.
        limits: the most records of a batch, its most bytes, and the records and bytes from which
            no further batch is merged.

    Returns:
        The transaction, None if it is not of this form, and where it ends in the buffer.
    """
    run_records: i64 = limits[2]
    run_bytes: i64 = limits[3]
    at: i64 = position
    expected: i64 = offset
    count: i64 = 0
    markers: i64 = 0
    total: i64 = 0
    parts: list[Part] = []
    full = False
    head = data_head = b""
    while markers < MAX_MARKERS and 0 <= expected < _USUAL:
        end, next_head = _checked(buffer, at, expected, limits)
        if end == at:
            break
        kind: i64 = read_i64_be(next_head, _ATTRIBUTES) >> 48
        records: i64 = read_i64_be(next_head, _COUNT) & _LOW
        if kind == TRANSACTIONAL and not markers:
            size: i64 = end - at - LOG_OVERHEAD
            full = count > 0 and (count > run_records or total + size > run_bytes)
            if full:
                break
            data_head = next_head
            body = bytes(buffer[at + HEADER_SIZE : end])
            parts.append((body, records, read_i64_be(next_head, _BASE_TIMESTAMP), False))
            count += records
            total += size
        elif kind == _MARKER and records == 1 and count:
            markers += 1
        else:
            break
        head = next_head
        expected += records
        at = end
    if not count or not (markers or full):
        return None, at
    if len(parts) == 1:
        first = Header(position, *HEADER.unpack_from(buffer, position))
        batch: Encoded | None = Encoded(first, first.records(buffer))
    else:
        batch = _merged(parts, offset, count, _leader_epoch(data_head))
    if batch is None:
        return None, at
    return Transaction(batch, markers, _leader_epoch(head), len(parts) + markers), at


def _checked(
    buffer: memoryview, at: i64, offset: i64, limits: tuple[int, int, int, int]
) -> tuple[i64, bytes]:
    """The end of the batch at a position, and its header; the position itself if it is unusual."""
    end: i64 = at + HEADER_SIZE
    if end > len(buffer):
        return at, b""
    head = bytes(buffer[at:end])
    length: i64 = read_i64_be(head, _LENGTH) & _LOW
    records: i64 = read_i64_be(head, _COUNT) & _LOW
    end = at + LOG_OVERHEAD + length
    if (
        read_i64_be(head, _BASE_OFFSET) != offset
        or head[_MAGIC] != MAGIC
        or not HEADER_SIZE - LOG_OVERHEAD <= length <= limits[1]
        or not 0 < records <= limits[0]
        or read_i64_be(head, _ATTRIBUTES) >> 16 & _LOW != records - 1
        or end > len(buffer)
        or crc32c(buffer[at + _ATTRIBUTES : end]) != read_i64_be(head, _CRC) & _LOW
    ):
        return at, b""
    return end, head


def _merged(parts: list[Part], offset: int, count: int, leader_epoch: int) -> Encoded | None:
    """One batch of these. None if records are of an unusual form."""
    joined = rebased(parts)
    if joined is None:
        return None
    body, base_timestamp, newest = joined
    return encoded(
        body,
        Codec.NONE,
        base_offset=offset,
        count=count,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        leader_epoch=leader_epoch,
    )


def _leader_epoch(head: bytes) -> int:
    return int.from_bytes(head[_LEADER_EPOCH : _LEADER_EPOCH + 4], "big", signed=True)
