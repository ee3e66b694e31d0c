"""Records cut into key, value and headers, and packed again: for flows that transform records.

These loops meet every record of such a flow. mypyc compiles this module if there is a C compiler
(docs/decisions/0007-compiled-modules.md); otherwise the same code is interpreted. Only records of
the usual form are cut here. `records.each_record` judges all others, and is the test's oracle.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from mypy_extensions import i64

from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.compression import decompress
from twinlog.kafka.log.records import (
    SMALL_VARINTS,
    RawRecord,
    decode,
    decode_headers,
    each_record,
    encode_headers,
    encode_varint,
    varint,
)

CutRecord = tuple[int, int, bytes | None, bytes | None, bytes]
"""Offset, timestamp, key, value, and the headers as they are encoded, with their count."""

NO_HEADERS: Final = b"\0"
AT_ONCE: Final = 128
"""Records that are cut before the caller has them."""

_NO_ATTRIBUTES: Final = b"\0"
_NULL: Final = encode_varint(-1)
_SMALL: Final = len(SMALL_VARINTS)
_MORE: Final = 0x80
_LONGEST: Final = 63
"""Bits of a varint in nine bytes. No client writes a longer one."""
_USUAL: Final = 1 << 60
"""Offsets and timestamps below can be added and subtracted without overflow of 64 bits."""


def cut_records(header: Header, records: memoryview) -> Iterator[list[CutRecord]]:
    """The records of a batch in order, in lists of `AT_ONCE` at most, as consumers see them.

    Lists may be empty: they are steps in which records were only skipped.

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
        yield from _unusual(each_record(header, records), done)


def _unusual(records: Iterable[RawRecord], done: int) -> Iterator[list[CutRecord]]:
    """The records behind the first `done` ones, which are decoded again as far as their offsets."""
    for number, raw in enumerate(records):
        if number < done:
            if number % AT_ONCE == 0:
                yield []
            continue
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


def with_headers(records: list[CutRecord], count: int, added: bytes) -> list[CutRecord]:
    """The same records with more headers behind their own, which keep their bytes.

    Args:
        records: any.
        count: how many headers are added.
        added: these, encoded, without their count.

    Raises:
        CorruptBatch: as `records.decode_headers`, if any are added.
    """
    if not count:
        return records
    alone = _encoded(count) + added
    found: list[CutRecord] = []
    for offset, timestamp, key, value, headers in records:
        more = alone if headers == NO_HEADERS else _appended(headers, count, added, offset)
        found.append((offset, timestamp, key, value, more))
    return found


def _appended(headers: bytes, count: i64, added: bytes, offset: int) -> bytes:
    try:
        number, start = _counted(headers)
    except (IndexError, ValueError):
        headers = encode_headers(decode_headers(memoryview(headers), offset))
        number, start = _counted(headers)
    return _encoded(number + count) + headers[start:] + added


def _counted(headers: bytes) -> tuple[i64, i64]:
    """The number of encoded headers, and the position of the first one.

    Raises:
        ValueError, IndexError: they are not of the usual form.
    """
    total: i64 = len(headers)
    number, start = _varint(headers, 0)
    if number < 0:
        raise ValueError
    at: i64 = start
    left: i64 = number
    while left:
        length, at = _varint(headers, at)
        if length < 0 or length > total - at:
            raise ValueError
        at += length
        length, at = _varint(headers, at)
        if length > total - at:
            raise ValueError
        if length > 0:
            at += length
        left -= 1
    if at != total:
        raise ValueError
    return number, start


def _encoded(number: i64) -> bytes:
    """A number as a varint."""
    return SMALL_VARINTS[number] if 0 <= number < _SMALL else encode_varint(number)


class BatchBody:
    """The records of a batch that grows, encoded as they come: their offsets are 0, 1, 2 and so on.

    Args:
        max_bytes: the most that its keys, values and headers have together. One record may have
            more: it is alone.
        max_records: the most records.
    """

    def __init__(self, max_bytes: int, max_records: int) -> None:
        self._max_bytes: i64 = max_bytes
        self._max_records: i64 = max_records
        self._bytes: i64 = 0
        self._parts: list[bytes] = []
        self.count: int = 0
        self.base_timestamp: int = 0
        self.max_timestamp: int = 0

    def add(self, records: list[CutRecord], start: int) -> int:
        """Append records from the index `start` on, whatever their offsets are.

        Returns:
            The index of the first record that does not fit, or their number.
        """
        parts = self._parts
        index: i64 = start
        end: i64 = len(records)
        count: i64 = self.count
        total: i64 = self._bytes
        while index < end and count < self._max_records:
            _, timestamp, key, value, headers = records[index]
            key_bytes: i64 = 0 if key is None else len(key)
            value_bytes: i64 = 0 if value is None else len(value)
            size: i64 = key_bytes + value_bytes + len(headers)
            if count and total + size > self._max_bytes:
                break
            if not count:
                self.base_timestamp = self.max_timestamp = timestamp
            elif timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
            deltas = varint(timestamp - self.base_timestamp) + _encoded(count)
            key_size = _NULL if key is None else _encoded(key_bytes)
            value_size = _NULL if value is None else _encoded(value_bytes)
            length: i64 = 1 + len(deltas) + len(key_size) + len(value_size) + size
            parts.append(_encoded(length) + _NO_ATTRIBUTES + deltas + key_size)
            if key is not None:
                parts.append(key)
            parts.append(value_size)
            if value is not None:
                parts.append(value)
            parts.append(headers)
            total += size
            count += 1
            index += 1
        self.count = count
        self._bytes = total
        return index

    def encoded(self) -> bytes:
        """The body of the batch, not compressed."""
        return b"".join(self._parts)  # at once: a buffer that grows is copied several times
