"""Merges many small batches into one; only the two deltas in front of each record change.

The batches are dense and of one codec. `rebase` has a compiled loop for records of the usual form,
and `lone` a separate implementation for batches of one record. For all of them, `merge_by_records`,
a simple implementation of the same, is the test's oracle.
Both give their records the timestamps that the source's consumers see, so that batches of
LogAppendTime become batches of CreateTime, and the header the last batch's leader epoch.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.compression import MAX_DECOMPRESSED, TooLong, decompress
from twinlog.kafka.log.rebase import rebased
from twinlog.kafka.log.records import (
    SMALL_VARINTS,
    Encoded,
    RawRecord,
    build,
    decode_varint,
    encoded,
    raw_records,
    varint,
    wrapped,
)

MERGED_BYTES: Final = 256 * 1024
"""A merged batch's size before compression; below every usual `max.message.bytes`."""
MERGED_DECOMPRESSED: Final = 3 * MERGED_BYTES
"""The same for compressed batches, whose decompressed size was unknown when they were chosen."""

_MORE: Final = 0x80
"""Set in each byte of a varint except the last."""
_ONE_BYTE: Final = 64
"""The first offset delta that takes two bytes."""
_OLDEST: Final = -(1 << 63)


def merge(
    run: Sequence[Header], buffer: memoryview, max_bytes: int = MAX_DECOMPRESSED
) -> Iterator[Encoded]:
    """Batches with the records of all these: one, unless it would be too long.

    Args:
        run: dense batches of one codec at consecutive offsets.
        buffer: the buffer of their positions.
        max_bytes: the most bytes that one of them may decompress to.

    Raises:
        TooLong: a batch that has to be decoded decompresses to more.
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
            yield alone(header, buffer, max_bytes)
            continue
        if group and len(data) > room:
            yield _join(group)
            group, room = [], MERGED_DECOMPRESSED
        group.append((header, data))
        room -= len(data)
    if group:
        yield _join(group)


def alone(header: Header, buffer: memoryview, max_bytes: int = MAX_DECOMPRESSED) -> Encoded:
    """A dense batch by itself: unchanged, or with the timestamps that its readers see.

    Args:
        header: the batch.
        buffer: the buffer of its position.
        max_bytes: the most bytes that its records may decompress to.

    Raises:
        CorruptBatch: see `records.raw_records`.
    """
    records = header.records(buffer)
    if header.forwardable:
        return Encoded(header, records)
    return _join([(header, decompress(header.codec, records, max_bytes))])


def _join(group: Sequence[tuple[Header, memoryview]]) -> Encoded:
    """One batch with the records of these batches; each header comes with its decompressed data."""
    first, last = group[0][0], group[-1][0]
    parts = []
    for header, data in group:
        stamped = header.is_log_append_time
        timestamp = header.max_timestamp if stamped else header.base_timestamp
        parts.append((bytes(data), header.num_records, timestamp, stamped))
    body, base_timestamp, newest = rebased(parts) or _rebased_unusual(group)
    return encoded(
        body,
        first.codec,
        base_offset=first.base_offset,
        count=last.next_offset - first.base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        leader_epoch=last.leader_epoch,
    )


def _rebased_unusual(group: Sequence[tuple[Header, memoryview]]) -> tuple[bytearray, int, int]:
    """As `rebased`, for records of any form."""
    first, data = group[0]
    base_timestamp = newest = _first_timestamp(first, data)
    out = bytearray()
    for header, data in group:
        newest = max(newest, _append(out, header, data, first.base_offset, base_timestamp))
    return out, base_timestamp, newest


def _first_timestamp(header: Header, data: memoryview) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    _, body = decode_varint(data, 0)
    delta, _ = decode_varint(data, body + 1)
    return wrapped(header.base_timestamp + delta)


def _append(
    out: bytearray, header: Header, data: memoryview, base_offset: int, base_timestamp: int
) -> int:
    """Append a dense batch's records; return their newest timestamp."""
    small_varints = SMALL_VARINTS
    limit = len(small_varints)
    stamped = header.is_log_append_time
    batch_timestamp = header.max_timestamp if stamped else header.base_timestamp
    newest = _OLDEST
    nth = header.base_offset - base_offset
    position = 0
    size = len(data)
    try:
        for index in range(header.num_records):
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
            if index < _ONE_BYTE:
                in_order = data[at] == index << 1
                at += 1
            else:
                offset_delta, at = decode_varint(data, at)
                in_order = offset_delta == index
            if not in_order or not at <= position <= size:
                raise _corrupt(header)
            timestamp = batch_timestamp if stamped else wrapped(batch_timestamp + delta)
            if timestamp > newest:  # noqa: PLR1730 (as above)
                newest = timestamp
            delta = timestamp - base_timestamp
            deltas = (small_varints[delta] if 0 <= delta < limit else varint(delta)) + varint(nth)
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
        f"the records of the batch at offset {header.base_offset} do not match its header"
    )


def merge_by_records(run: Sequence[Header], buffer: memoryview) -> Encoded:
    """Do what `merge` into one batch does, on decoded records."""
    records: list[RawRecord] = []
    for header in run:
        records += raw_records(header, header.records(buffer))
    return build(records, run[0].codec, run[-1].leader_epoch)
