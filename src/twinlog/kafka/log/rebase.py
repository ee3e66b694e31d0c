"""Records of several batches, rebased: with the deltas that they have in one batch.

`merge` puts records behind another base offset and another base timestamp. So the two deltas of
each record change, and with them its length; its key, value and headers are copied as they are.

This loop meets every record of small batches. mypyc compiles this module if there is a C compiler
(docs/decisions/0007-compiled-modules.md); otherwise the same code is interpreted. It takes records
of the usual form only: `merge` has a loop for all others, which also judges what is corrupt.
`merge.merge_by_records` is the tests' oracle.
"""

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from twinlog.kafka.log.records import SMALL_VARINTS, varint

Part = tuple[bytes, int, int, bool]
"""A dense batch: its records, not compressed; their number; its base timestamp, or the timestamp of
all its records; and whether it is the latter."""

_MORE: Final = 0x80
"""Set in each byte of a varint except the last."""
_LONGEST: Final = 63
"""Bits of a varint in nine bytes. No client writes a longer one."""
_ONE_BYTE: Final = 64
"""The first offset delta that takes two bytes."""
_USUAL: Final = 1 << 60
"""Timestamps and deltas below can be added and subtracted without overflow of 64 bits."""


def rebased(parts: Sequence[Part]) -> tuple[bytes, int, int] | None:
    """Join the records of batches that follow each other.

    Args:
        parts: the batches in order of offset.

    Returns:
        The records, encoded with offset deltas from 0 on and with timestamp deltas from the first
        record's timestamp; that timestamp; and the newest one. None if any is not of the usual
        form.
    """
    out = BytesWriter()
    base: i64 = 0
    newest: i64 = 0
    nth: i64 = 0
    try:
        for part in parts:
            data, count, timestamp, stamped = part
            if not -_USUAL < timestamp < _USUAL:
                return None
            if not nth:
                base = newest = timestamp + (0 if stamped else _first_delta(data))
            newest = _append(out, part, nth, base, newest)
            nth += count
    except (IndexError, ValueError):
        return None
    return out.getvalue(), base, newest


def _append(out: BytesWriter, part: Part, nth: i64, base: i64, newest: i64) -> i64:
    """Append a batch's records; return the newest timestamp, which is `newest` or one of them.

    Raises:
        IndexError, ValueError: they are not of the usual form.
    """
    data, count, batch_timestamp, stamped = part
    start: i64 = batch_timestamp
    small_varints = SMALL_VARINTS
    limit: i64 = len(small_varints)
    size: i64 = len(data)
    at: i64 = 0
    for index in range(count):
        length, at = _number(data, at)
        end: i64 = at + length
        attributes = data[at]
        delta, at = _number(data, at + 1)
        at = _after_offset(data, at, index)
        if at > end or end > size or not -_USUAL < delta < _USUAL:
            raise ValueError
        timestamp: i64 = start if stamped else start + delta
        if timestamp > newest:  # noqa: PLR1730 (a call for each record)
            newest = timestamp
        delta = timestamp - base
        timestamp_delta = small_varints[delta] if 0 <= delta < limit else varint(delta)
        offset_delta = small_varints[nth] if nth < limit else varint(nth)
        length = 1 + len(timestamp_delta) + len(offset_delta) + end - at
        out.write(small_varints[length] if length < limit else varint(length))
        out.append(attributes)
        out.write(timestamp_delta)
        out.write(offset_delta)
        out.write(data[at:end])
        nth += 1
        at = end
    if at != size:
        raise ValueError
    return newest


def _first_delta(data: bytes) -> i64:
    """The timestamp delta of the first record."""
    _, at = _number(data, 0)
    delta, _ = _number(data, at + 1)
    return delta


def _after_offset(data: bytes, at: i64, index: i64) -> i64:
    """The position after an offset delta, which has to be `index`."""
    if index < _ONE_BYTE:
        if data[at] != index << 1:
            raise ValueError
        return at + 1
    delta, at = _number(data, at)
    if delta != index:
        raise ValueError
    return at


def _number(data: bytes, at: i64) -> tuple[i64, i64]:
    """A varint, and the position after it.

    Raises:
        IndexError: it is cut off.
        ValueError: it is longer than nine bytes.
    """
    byte: i64 = data[at]
    at += 1
    if byte < _MORE:  # as nearly all
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
