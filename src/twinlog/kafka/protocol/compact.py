"""Kafka's flexible encodings (KIP-482), as far as the hot-path codecs need them.

    unsigned varint   groups of 7 bits, least significant first; at most five bytes
    compact string    varint(length + 1), UTF-8           null is a single 0
    compact bytes     varint(length + 1), bytes           the same
    compact array     varint(count + 1), items            the same
    tags              varint(count), each: varint(tag), varint(size), bytes

Readers take a view and a position, and return the value and the position after it. They raise
IndexError if the view ends too early, which `reading` turns into a ProtocolError: one check for a
whole message, since most numbers are single bytes. A length is compared with the remaining bytes
before it is used.

A topic is identified by its name or, in newer versions, by its id. Both codecs see a *topic key*,
the topic's bytes on the wire: 16 bytes of id, or the name as a compact string.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from twinlog.kafka.errors import ProtocolError

EMPTY: Final = b"\1"
"""An empty compact string or array."""
NULL: Final = b"\0"
NO_TAGS: Final = b"\0"

_UUID_SIZE: Final = 16
_MAX_VARINT: Final = 5
_SMALL: Final = tuple(bytes((value,)) for value in range(0x80))


def unsigned_varint(value: int) -> bytes:
    """Encode a number of 0 or more."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80,)) + unsigned_varint(value >> 7)


def compact_string(value: str | None) -> bytes:
    """Encode a string, or null."""
    if value is None:
        return NULL
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


def topic_key(name: str, topic_id: UUID | None) -> bytes:
    """The topic key on the wire: the topic's id, or its name if `topic_id` is None."""
    return compact_string(name) if topic_id is None else topic_id.bytes


@contextmanager
def reading(subject: str, size: int) -> Iterator[None]:
    """Turn the errors that a truncated message causes into a ProtocolError."""
    try:
        yield
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"cannot decode a {subject} of {size} bytes: {error}") from error


def read_unsigned_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Decode a number of 0 or more.

    Raises:
        IndexError: the view ends within it, or it has more than five bytes.
    """
    value = 0
    for index in range(_MAX_VARINT):
        byte = view[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise IndexError("varint longer than five bytes")


def read_count(view: memoryview, at: int) -> tuple[int, int]:
    """The count of a compact array; 0 for null. It may be any number up to 2^35."""
    count, at = read_unsigned_varint(view, at)
    return max(count - 1, 0), at


def read_bytes(view: memoryview, at: int) -> tuple[memoryview, int]:
    """Compact bytes, as a slice of the view; empty for null."""
    size, at = read_unsigned_varint(view, at)
    end = at + max(size - 1, 0)
    if end > len(view):
        raise IndexError(f"length {end - at}, but {len(view) - at} bytes follow")
    return view[at:end], end


def read_string(view: memoryview, at: int) -> tuple[str, int]:
    """A compact string; an empty one for null."""
    data, at = read_bytes(view, at)
    return str(data, "utf-8"), at


def read_topic_key(view: memoryview, at: int, *, by_id: bool) -> tuple[bytes, int]:
    """A topic key (see `topic_key`)."""
    end = at + _UUID_SIZE if by_id else read_bytes(view, at)[1]
    if end > len(view):
        raise IndexError("truncated topic id")
    return bytes(view[at:end]), end


def skip_tags(view: memoryview, at: int) -> int:
    """The position after the tags, whatever they are."""
    if view[at] == 0:
        return at + 1
    count, at = read_unsigned_varint(view, at)
    for _ in range(count):
        _tag, at = read_unsigned_varint(view, at)
        size, at = read_unsigned_varint(view, at)
        at += size
        if at > len(view):
            raise IndexError(f"tagged field of {size} bytes exceeds the data")
    return at
