"""Many small batches as one, their records untouched but for the two deltas in front of each.

These are the hot paths that touch records: a load of single-record batches comes here record by
record. There are two ways, and for both `merge_by_records`, the same thing said simply, is the
test's oracle:

    merge_lone   batches of one record, not compressed, checked and merged in one loop without an
                 object for each: what a producer writes that does not wait for more
    merge        any dense batches of one codec, record by record

Both give their records the timestamps that the source's consumers see, so that batches of
LogAppendTime become ones of CreateTime here, and the header the last batch's leader epoch.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from struct import Struct
from typing import Final

from crc32c import crc32c

from twinlog.core.batch import HEADER_SIZE, LOG_APPEND_TIME, LOG_OVERHEAD, MAGIC, Header
from twinlog.core.compression import Codec, TooLong, decompress
from twinlog.core.errors import CorruptBatch
from twinlog.core.records import (
    SMALL_VARINTS,
    Encoded,
    RawRecord,
    build,
    decode_varint,
    encode_varint,
    encoded,
    raw_records,
    varint,
    wrapped,
)

MERGED_BYTES: Final = 256 * 1024
"""A merged batch's size before compression; below every usual `max.message.bytes`."""
MERGED_DECOMPRESSED: Final = 3 * MERGED_BYTES
"""That of compressed batches: theirs was not known when they were chosen."""
LONE_MIN_RUN: Final = 16
"""Fewer lone records in a row are not worth a batch of their own."""

# ---- lone records ------------------------------------------------------------------------------

_LONE_MAX_BYTES: Final = 8193
"""Of a record with its length: those whose length takes one or two bytes."""
_LONE_MIN_BYTES: Final = 4
_AT_ONCE: Final = MERGED_BYTES + HEADER_SIZE + _LONE_MAX_BYTES
_CREATE_TIME_HEADER: Final = Struct(">qi4xbIhiq22xiIB")
_APPEND_TIME_HEADER: Final = Struct(">qi4xbIhi8xq14xiIB")
"""Base offset, length, magic, checksum, attributes, last offset delta, base or max timestamp,
count; then the record's first five bytes, which are its length in one or two bytes, its attributes
and its deltas, all 0."""
_READ: Final = _CREATE_TIME_HEADER.size
_LEADER_EPOCH: Final = Struct(">12xi")
_CHECKED_FROM: Final = 21
_ATTRIBUTES_AT: Final = 22
"""The lower byte of the attributes, which holds all bits that there are."""


def _start_of_lone(size: int) -> bytes:
    """How a record of so many bytes, its length included, begins; empty if there is none."""
    for width in (1, 2):
        length = encode_varint(size - width)
        if len(length) == width:
            return length + bytes(3)
    return b""


@cache  # 30 ms, which a command that merges nothing need not wait for
def _lone_by_size() -> tuple[list[int], list[int]]:
    """By size: the first four bytes of such a record as a number, and where its tail begins."""
    starts = [_start_of_lone(size) for size in range(_LONE_MAX_BYTES + 1)]
    return (
        [int.from_bytes(start[:4] or b"\xff" * 4, "big") for start in starts],
        [HEADER_SIZE + len(start) for start in starts],
    )


_FIVE_BYTES_FROM: Final = 65
_NEW_STARTS: Final = [length + b"\0" for length in SMALL_VARINTS]
"""A record's length and attributes, by its length."""


def merge_lone(buffer: memoryview, position: int) -> tuple[Encoded | None, int]:
    """Merge the lone records that follow each other from `position` on.

    Lone is the record of a batch that is complete and right, of one record of usual form, of no
    transaction and not compressed. What is not ends the run, whatever it is: `batches` judges it.

    Args:
        buffer: record batches one behind the other.
        position: where a batch begins.

    Returns:
        The batch, None if the run is not worth one, and where the run ends in the buffer.
    """
    data = bytes(buffer[position : position + _AT_ONCE])
    total = len(data)
    last = total - _READ
    if last < 0:
        return None, position
    kind = data[_ATTRIBUTES_AT] & LOG_APPEND_TIME
    unpack = (_APPEND_TIME_HEADER if kind else _CREATE_TIME_HEADER).unpack_from
    base_offset, _, _, _, _, _, base_timestamp, *_ = unpack(data)
    first_four, tail_at = _lone_by_size()
    new_starts, small = _NEW_STARTS, SMALL_VARINTS
    limit = len(small)
    expected, newest = base_offset, base_timestamp
    out = bytearray()
    at = begin = 0
    for offset_delta in small:
        if at > last:
            break
        offset, length, magic, crc, bits, extent, timestamp, count, four, fifth = unpack(data, at)
        end = at + LOG_OVERHEAD + length
        size = end - at - HEADER_SIZE
        if (
            offset != expected
            or bits != kind
            or count != 1
            or extent
            or magic != MAGIC
            or not _LONE_MIN_BYTES <= size <= _LONE_MAX_BYTES
            or four != first_four[size]
            or (fifth and size >= _FIVE_BYTES_FROM)
            or end > total
            or crc32c(data[at + _CHECKED_FROM : end]) != crc
        ):
            break
        tail = at + tail_at[size]
        delta = timestamp - base_timestamp
        deltas = (small[delta] if 0 <= delta < limit else varint(delta)) + offset_delta
        out += new_starts[1 + len(deltas) + end - tail] + deltas + data[tail:end]
        if timestamp > newest:  # noqa: PLR1730 (a call for each record costs 5 percent)
            newest = timestamp
        expected += 1
        begin, at = at, end
    if expected - base_offset < LONE_MIN_RUN:
        return None, position + at
    batch = encoded(
        out,
        Codec.NONE,
        base_offset=base_offset,
        count=expected - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        leader_epoch=_LEADER_EPOCH.unpack_from(data, begin)[0],
    )
    return batch, position + at


# ---- any small batches -------------------------------------------------------------------------

_MORE: Final = 0x80
"""Set in each byte of a number but the last."""
_ONE_BYTE: Final = 64
"""The first offset delta that takes two bytes."""
_OLDEST: Final = -(1 << 63)


def merge(run: Sequence[Header], buffer: memoryview) -> Iterator[Encoded]:
    """Batches of the records of all these: one, unless it would be too long.

    Args:
        run: dense batches of one codec at consecutive offsets.
        buffer: what their positions count in.

    Raises:
        CorruptBatch: see `records.raw_records`.
    """
    group: list[tuple[Header, memoryview]] = []
    room = MERGED_DECOMPRESSED
    for header in run:
        try:
            data = decompress(header.codec, header.records(buffer), MERGED_DECOMPRESSED)
        except TooLong:
            if group:
                yield _join(group)
            group, room = [], MERGED_DECOMPRESSED
            yield alone(header, buffer)
            continue
        if group and len(data) > room:
            yield _join(group)
            group, room = [], MERGED_DECOMPRESSED
        group.append((header, data))
        room -= len(data)
    if group:
        yield _join(group)


def alone(header: Header, buffer: memoryview) -> Encoded:
    """A dense batch by itself: as it is, or with the timestamps that its readers see.

    Raises:
        CorruptBatch: see `records.raw_records`.
    """
    records = header.records(buffer)
    if header.forwardable:
        return Encoded(header, records)
    return _join([(header, decompress(header.codec, records))])


def _join(group: Sequence[tuple[Header, memoryview]]) -> Encoded:
    """One batch of the records of these, whose decompressed records stand beside them."""
    first, data = group[0]
    base_offset, base_timestamp = first.base_offset, _first_timestamp(first, data)
    out = bytearray()
    newest = base_timestamp
    for header, data in group:
        newest = max(newest, _append(out, header, data, base_offset, base_timestamp))
    last = group[-1][0]
    return encoded(
        out,
        first.codec,
        base_offset=base_offset,
        count=last.next_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        leader_epoch=last.leader_epoch,
    )


def _first_timestamp(header: Header, data: memoryview) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    _, body = decode_varint(data, 0)
    delta, _ = decode_varint(data, body + 1)
    return wrapped(header.base_timestamp + delta)


def _append(
    out: bytearray, header: Header, data: memoryview, base_offset: int, base_timestamp: int
) -> int:
    """Append a dense batch's records; gives the newest timestamp of them."""
    small = SMALL_VARINTS
    limit = len(small)
    stamped = header.is_log_append_time
    batch_timestamp = header.max_timestamp if stamped else header.base_timestamp
    newest = _OLDEST
    nth = header.base_offset - base_offset
    position = 0
    size = len(data)
    try:
        for expected in range(header.num_records):
            # Nearly all of these numbers take one byte, or two.
            length = data[position]
            body = position + 1
            if length & _MORE:
                length, body = decode_varint(data, position)
            else:
                length = (length >> 1) ^ -(length & 1)
            position = body + length
            delta = data[body + 1]
            at = body + 2
            if delta & _MORE:
                delta, at = decode_varint(data, body + 1)
            else:
                delta = (delta >> 1) ^ -(delta & 1)
            if expected < _ONE_BYTE:
                in_order = data[at] == expected << 1
                at += 1
            else:
                offset_delta, at = decode_varint(data, at)
                in_order = offset_delta == expected
            if not in_order or not at <= position <= size:
                raise _corrupt(header)
            timestamp = batch_timestamp if stamped else wrapped(batch_timestamp + delta)
            if timestamp > newest:  # noqa: PLR1730 (as above)
                newest = timestamp
            delta = timestamp - base_timestamp
            deltas = (small[delta] if 0 <= delta < limit else varint(delta)) + varint(nth)
            nth += 1
            out += varint(1 + len(deltas) + position - at)
            out.append(data[body])
            out += deltas
            out += data[at:position]
    except IndexError as error:
        raise _corrupt(header) from error
    if position != size:
        raise _corrupt(header)
    return newest


def _corrupt(header: Header) -> CorruptBatch:
    return CorruptBatch(
        f"the batch at offset {header.base_offset} does not hold the records that it says"
    )


def merge_by_records(run: Sequence[Header], buffer: memoryview) -> Encoded:
    """As `merge` into one batch, over decoded records."""
    records: list[RawRecord] = []
    for header in run:
        records += raw_records(header, header.records(buffer))
    header, data = build(records, run[0].codec)
    return Encoded(header._replace(leader_epoch=run[-1].leader_epoch), data)
