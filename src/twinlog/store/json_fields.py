"""JSON objects as record values: compact and in a fixed order out, checked field by field in."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from twinlog.kafka.errors import ProtocolError, UserError

T = TypeVar("T")

_INT64: Final = range(-(1 << 63), 1 << 63)


def encode_json(value: object) -> bytes:
    """The same bytes for the same value, so that equal records are equal on disk too.

    Raises:
        UserError: it has text that is none, and that `decode_json` would refuse.
    """
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=True, sort_keys=True).encode()
    try:
        _check_text(data, value)
    except UnicodeEncodeError:
        # Not shown, nor chained: it may stand beside a secret.
        raise UserError("a name or a value that is to be stored is not UTF-8") from None
    return data


def decode_json(data: bytes, what: str) -> Any:
    r"""Any JSON value.

    Raises:
        ProtocolError: the bytes are no JSON, or have text that is none: JSON can escape half of a
            character (`\ud800`), which no request or record can be made of.
    """
    try:
        value = json.loads(data)
        _check_text(data, value)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is no JSON: {error}") from error
    return value


def _check_text(data: bytes, value: object) -> None:
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()


class JsonObject:
    """A JSON object whose fields are asked for by name and type; others are left alone."""

    __slots__ = ("_fields", "_what")

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise ProtocolError(f"{what} is no JSON object")
        self._fields: Mapping[str, Any] = value
        self._what = what

    def has(self, name: str) -> bool:
        """Whether there is such a field."""
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
        """A whole number, or null, or not there."""
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

    def error(self, name: str, wanted: str) -> ProtocolError:
        """That a field is not what it has to be."""
        found = repr(self._fields.get(name, "(missing)"))[:80]
        return ProtocolError(f"{self._what}: {name} is {found}, wanted is {wanted}")

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self._fields.get(name)
        if not isinstance(value, kind):
            raise self.error(name, f"a {kind.__name__}")
        return value
