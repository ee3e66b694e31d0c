"""Many small batches as one, their records untouched but for the two deltas in front of each.

This is the one hot path that touches records: a load of single-record batches comes here record by
record. `merge_by_records` is the same thing said simply, and the test's oracle.
"""

from collections.abc import Sequence
from typing import Final

from twinlog.core.batch import HEADER_SIZE, Header
from twinlog.core.compression import Codec
from twinlog.core.records import (
    SMALL_VARINTS,
    Encoded,
    RawRecord,
    build,
    encoded,
    raw_records,
    varint,
)

_ZEROS: Final = bytes(3)  # attributes and both deltas


def merge(run: Sequence[Header], buffer: memoryview) -> Encoded:
    """One batch of the records of all these.

    Args:
        run: forwardable batches of one codec at consecutive offsets.
        buffer: what their positions count in.

    Raises:
        CorruptBatch: see `records.raw_records`.
    """
    if run[0].codec is not Codec.NONE or any(header.num_records != 1 for header in run):
        return merge_by_records(run, buffer)
    base_offset, base_timestamp = run[0].base_offset, run[0].base_timestamp
    out = bytearray()
    small = SMALL_VARINTS
    limit = len(small)
    for header in run:
        at = header.position + HEADER_SIZE
        # A lone record's deltas are 0 nearly always, and its length has one or two bytes.
        body = at + 1 if buffer[at] < 0x80 else at + 2
        end = header.end
        if buffer[body - 1] >= 0x80 or bytes(buffer[body : body + 3]) != _ZEROS:
            return merge_by_records(run, buffer)
        delta = header.base_timestamp - base_timestamp
        offset = header.base_offset - base_offset
        deltas = (small[delta] if 0 <= delta < limit else varint(delta)) + small[offset]
        length = end - body - 2 + len(deltas)
        if _length(buffer, at) != end - body:
            return merge_by_records(run, buffer)
        out += small[length] if length < limit else varint(length)
        out.append(0)
        out += deltas
        out += buffer[body + 3 : end]
    return encoded(
        out,
        Codec.NONE,
        base_offset=base_offset,
        count=len(run),
        base_timestamp=base_timestamp,
        max_timestamp=max(header.max_timestamp for header in run),
    )


def _length(buffer: memoryview, at: int) -> int:
    """A record's length of one or two bytes."""
    first = buffer[at]
    if first < 0x80:
        return first >> 1
    return ((first & 0x7F) | buffer[at + 1] << 7) >> 1


def merge_by_records(run: Sequence[Header], buffer: memoryview) -> Encoded:
    """As `merge`, over decoded records."""
    records: list[RawRecord] = []
    for header in run:
        records += raw_records(header, header.records(buffer))
    return build(records, run[0].codec)
