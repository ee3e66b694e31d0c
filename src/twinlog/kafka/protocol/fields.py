"""The fields of Kafka's message format, for records with a schema of twinlog's own (KIP-482).

    int8, 16, 32, 64      big endian
    string                length int16, UTF-8
    compact string        length + 1 as an unsigned varint, UTF-8
    compact array         count + 1 as an unsigned varint, the elements
    tags                  count, then for each: tag, size (all unsigned varints), bytes

`compact.py` writes those of the flexible format. `FieldReader` checks every length before it uses
it: any bytes give fields or `ProtocolError`. It is for small data that may be anything; the codecs
of the hot path read a view by positions instead.
"""

import struct
from collections.abc import Mapping
from typing import Final

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol.compact import read_unsigned_varint, unsigned_varint

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

_MAX_STRING: Final = (1 << 15) - 1


def string(text: str) -> bytes:
    """A string of the classic format."""
    data = text.encode()
    assert len(data) <= _MAX_STRING
    return INT16.pack(len(data)) + data


def compact_count(count: int) -> bytes:
    """The prefix of a flexible array of `count` elements."""
    return unsigned_varint(count + 1)


def tags(fields: Mapping[int, bytes]) -> bytes:
    """Tagged fields, sorted by tag as the format requires."""
    parts = [unsigned_varint(len(fields))]
    for tag in sorted(fields):
        parts += (unsigned_varint(tag), unsigned_varint(len(fields[tag])), fields[tag])
    return b"".join(parts)


class FieldReader:
    """Reads fields from the front of some bytes. `what` names them in errors."""

    __slots__ = ("_at", "_data", "_subject")

    def __init__(self, data: bytes, subject: str) -> None:
        self._data = data
        self._at = 0
        self._subject = subject

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._data)

    def int8(self) -> int:
        """A signed byte."""
        return self._fixed(INT8)

    def int16(self) -> int:
        """A signed 16 bit number."""
        return self._fixed(INT16)

    def int32(self) -> int:
        """A signed 32 bit number."""
        return self._fixed(INT32)

    def int64(self) -> int:
        """A signed 64 bit number."""
        return self._fixed(INT64)

    def string(self) -> str:
        """A string of the classic format, not null."""
        return self._text(self._fixed(INT16))

    def compact_string(self) -> str:
        """A string of the flexible format, not null."""
        return self._text(self.unsigned_varint() - 1)

    def compact_count(self) -> int:
        """The number of elements of a flexible array, not null, each at least a byte long."""
        count = self.unsigned_varint() - 1
        if not 0 <= count <= len(self._data) - self._at:
            raise self._error(f"has the invalid element count {count}")
        return count

    def tags(self) -> dict[int, bytes]:
        """The tagged fields."""
        return {
            self.unsigned_varint(): self._take(self.unsigned_varint())
            for _ in range(self._within(self.unsigned_varint()))
        }

    def unsigned_varint(self) -> int:
        """A number of 0 or more."""
        try:
            value, self._at = read_unsigned_varint(memoryview(self._data), self._at)
        except IndexError as error:
            raise self._error(f"cannot be decoded: {error}") from error
        return value

    def finish(self) -> None:
        """Raise ProtocolError if bytes are left."""
        if not self.done:
            raise self._error(f"has {len(self._data) - self._at} trailing bytes")

    def _fixed(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack(self._take(layout.size))
        return int(value)

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self._error("has a string that is not valid UTF-8") from error

    def _take(self, size: int) -> bytes:
        start = self._at
        self._at += self._within(size)
        return self._data[start : self._at]

    def _within(self, size: int) -> int:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._error(
                f"is truncated or has an invalid length {size}: {len(self._data) - self._at} "
                "bytes follow"
            )
        return size

    def _error(self, trouble: str) -> ProtocolError:
        return ProtocolError(f"{self._subject} {trouble}")
