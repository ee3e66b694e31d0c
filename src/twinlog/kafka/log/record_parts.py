"""Records cut into key, value and headers, and packed again: for flows that transform records.

These loops meet every record of such a flow. mypyc compiles this module if there is a C compiler
(docs/decisions/0007-compiled-modules.md); otherwise the same code is interpreted. Only records of
the usual form are cut here. `records.each_record` judges all others, and is the test's oracle.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from mypy_extensions import i64

from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.compression import decompress
from twinlog.kafka.log.records import RawRecord, decode, each_record, encode_headers, varint

CutRecord = tuple[int, int, bytes | None, bytes | None, bytes]
"""Offset, timestamp, key, value, and the headers as they are encoded, with their count."""
PackedRecord = tuple[int, bytes | None, bytes | None, bytes]
"""Timestamp, key, value, and encoded headers."""

NO_HEADERS: Final = b"\0"
AT_ONCE: Final = 128
"""Records that are cut before the caller has them."""

_NO_ATTRIBUTES: Final = b"\0"
_MORE: Final = 0x80
_LONGEST: Final = 63
"""Bits of a varint in nine bytes. No client writes a longer one."""
_USUAL: Final = 1 << 60
"""Offsets and timestamps below can be added and subtracted without overflow of 64 bits."""


def cut_records(header: Header, records: memoryview) -> Iterator[list[CutRecord]]:
    """The records of a batch in order, in lists of `AT_ONCE` at most, as consumers see them.

    Args:
        header: the batch's header.
        records: its bytes after the header, compressed as the header declares.

    Raises:
        TooLong: they decompress to too much.
        CorruptBatch: as `records.each_record` and `records.decode`; the records before are given.
    """
    data = bytes(decompress(header.codec, records))
    count = header.num_records
    done, place = 0, (0, 0)
    usual = (
        header.base_offset < _USUAL
        and -_USUAL < header.base_timestamp < _USUAL
        and not header.is_log_append_time
    )
    while usual and done < count:
        some = min(AT_ONCE, count - done)
        # The last list also tells whether anything follows the last record.
        ends_at = len(data) if done + some == count else -1
        try:
            cut, place = _cut(data, place, some, header, ends_at)
        except (IndexError, ValueError):
            break
        yield cut
        done += some
    if done < count or not count:
        yield from _unusual(islice(each_record(header, records), done, None))


def _unusual(records: Iterable[RawRecord]) -> Iterator[list[CutRecord]]:
    for raw in records:
        record = decode(raw)
        headers = encode_headers(record.headers)
        yield [(record.offset, record.timestamp, record.key, record.value, headers)]


def _cut(
    data: bytes, place: tuple[int, int], count: int, header: Header, ends_at: int
) -> tuple[list[CutRecord], tuple[int, int]]:
    """Cut `count` records from a place on: a position, and the least offset delta there.

    Args:
        data: all records.
        place: where to begin.
        count: how many.
        header: of their batch.
        ends_at: where the last of them has to end; -1: anywhere.

    Returns:
        The records, and the place after them.

    Raises:
        ValueError, IndexError: they are not of the usual form.
    """
    records: list[CutRecord] = []
    total: i64 = len(data)
    last: i64 = header.last_offset_delta
    base_offset: i64 = header.base_offset
    base_timestamp: i64 = header.base_timestamp
    at: i64 = place[0]
    next_delta: i64 = place[1]
    for _ in range(count):
        length, at = _varint(data, at)
        if length < 1 or length > total - at:
            raise ValueError
        end: i64 = at + length
        timestamp_delta, at = _varint(data, at + 1)
        offset_delta, at = _varint(data, at)
        if offset_delta < next_delta or offset_delta > last:
            raise ValueError
        if timestamp_delta <= -_USUAL or timestamp_delta >= _USUAL:
            raise ValueError
        next_delta = offset_delta + 1
        key, at = _nullable(data, at, end)
        value, at = _nullable(data, at, end)
        if at >= end:
            raise ValueError
        headers = data[at:end]
        records.append(
            (base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, headers)
        )
        at = end
    if ends_at >= 0 and at != ends_at:
        raise ValueError
    return records, (at, next_delta)


def _nullable(data: bytes, at: i64, end: i64) -> tuple[bytes | None, i64]:
    """A key or value within a record that ends at `end`, and the position after it."""
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if length > end - at:
        raise ValueError
    return data[at : at + length], at + length


def _varint(data: bytes, at: i64) -> tuple[i64, i64]:
    """A number, and the position after it."""
    byte: i64 = data[at]
    at += 1
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at
    number: i64 = byte & 0x7F
    shift: i64 = 7
    while byte >= _MORE:
        if shift >= _LONGEST:
            raise ValueError
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def pack_records(records: list[PackedRecord], base_timestamp: int) -> bytes:
    """Encode records with consecutive offsets as the body of a batch, not compressed."""
    null = varint(-1)
    parts: list[bytes] = []  # joined at once: a writer that grows copies a megabyte several times
    for index, (timestamp, key, value, headers) in enumerate(records):
        deltas = varint(timestamp - base_timestamp) + varint(index)
        key_size = null if key is None else varint(len(key))
        value_size = null if value is None else varint(len(value))
        size = 1 + len(deltas) + len(key_size) + len(value_size) + len(headers)
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        parts.append(varint(size))
        parts.append(_NO_ATTRIBUTES)
        parts.append(deltas)
        parts.append(key_size)
        if key is not None:
            parts.append(key)
        parts.append(value_size)
        if value is not None:
            parts.append(value)
        parts.append(headers)
    return b"".join(parts)
