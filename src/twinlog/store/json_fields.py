"""JSON objects as record values: encoded compactly in a fixed order, decoded with checks."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from twinlog.kafka.errors import ProtocolError, UserError

T = TypeVar("T")

_INT64: Final = range(-(1 << 63), 1 << 63)


def encode_json(value: object) -> bytes:
    """Encode a value; equal values give equal bytes, so equal records are equal on disk too.

    Raises:
        UserError: the value has invalid text, which `decode_json` would refuse.
    """
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=True, sort_keys=True).encode()
    try:
        _check_text(data, value)
    except UnicodeEncodeError:
        # Neither shown nor chained: the text may be next to a secret.
        raise UserError("cannot store a name or value that is not valid UTF-8") from None
    return data


def decode_json(data: bytes, subject: str) -> Any:
    r"""Decode any JSON value.

    Raises:
        ProtocolError: the bytes are not JSON, or have invalid text: JSON can escape half of a
            character (`\ud800`), which no request or record can hold.
    """
    try:
        value = json.loads(data)
        _check_text(data, value)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{subject} is not valid JSON: {error}") from error
    return value


def _check_text(data: bytes, value: object) -> None:
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()


class JsonObject:
    """A JSON object whose fields are read by name and type; other fields are ignored."""

    __slots__ = ("_fields", "_subject")

    def __init__(self, value: Any, subject: str) -> None:
        if not isinstance(value, dict):
            raise ProtocolError(f"{subject} is not a JSON object")
        self._fields: Mapping[str, Any] = value
        self._subject = subject

    def has(self, name: str) -> bool:
        """Whether the object has this field."""
        return name in self._fields

    def text(self, name: str) -> str:
        """A string."""
        return self._typed(name, str)

    def number(self, name: str) -> int:
        """A whole number of 64 bits."""
        value = self._fields.get(name)
        if type(value) is not int or value not in _INT64:
            raise self.error(name, "a whole number")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        return self._typed(name, bool)

    def optional_number(self, name: str) -> int | None:
        """A whole number; None if it is null or missing."""
        return None if self._fields.get(name) is None else self.number(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._typed(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "a list of strings")
        return tuple(values)

    def list(self, name: str) -> list[Any]:
        """A list of anything."""
        return self._typed(name, list)

    def object(self, name: str) -> dict[str, Any]:
        """An object of anything."""
        return self._typed(name, dict)

    def properties(self, name: str) -> dict[str, str]:
        """An object whose values are strings."""
        values = self._typed(name, dict)
        if not all(isinstance(value, str) for value in values.values()):
            raise self.error(name, "an object of strings")
        return values

    def error(self, name: str, expectation: str) -> ProtocolError:
        """The error that a field does not have the expected value."""
        value_text = repr(self._fields.get(name, "(missing)"))[:80]
        return ProtocolError(f"{self._subject}: {name} is {value_text}, expected {expectation}")

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self._fields.get(name)
        if not isinstance(value, kind):
            raise self.error(name, f"a {kind.__name__}")
        return value
