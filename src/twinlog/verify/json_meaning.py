r"""JSON for the check of transforms: read, written, and compared by its meaning.

A transform of fields reads JSON and writes it anew. Kafka's converter, and any other writer, may
order fields, escape characters and put white space as it likes; what is written is right if it
means the same. So both the expected text and the one in the remote log get a normal form:

    {"b": 1.10, "a": "\u00e9"}    and   {"a":"é","b":1.10}   are one
    1.10   and   1.1                                         are two: a copy keeps all digits
    1e2    and   1E+2                                        are one, and so are 1.5e1 and 15

This module shares nothing with the converters of the engines (mirror/record_converters.py).
"""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

_NULL: Final = re.compile(rb"[ \t\n\r]*(null)?[ \t\n\r]*")
_AS_IT_IS: Final = b"="
_MEANING: Final = b"~"


class JsonNumber(NamedTuple):
    """A number, as it is written."""

    text: str

    @property
    def is_whole(self) -> bool:
        """Whether it has neither a fraction nor an exponent: a `long` in Connect."""
        return not set(self.text) & set(".eE")


JsonValue = Any
"""None, bool, str, JsonNumber, list, or dict with str as keys."""


class NotJson(ValueError):
    """Bytes are no JSON text."""


def _refuse(text: str) -> JsonValue:
    raise NotJson(f"{text} is no number")


def _unique(fields: Sequence[tuple[str, JsonValue]]) -> JsonValue:
    result = dict(fields)
    if len(result) < len(fields):
        raise NotJson("a field occurs twice")
    return result


_READER: Final = json.JSONDecoder(
    parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=_refuse
)
_STRICT_READER: Final = json.JSONDecoder(
    parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=_refuse, object_pairs_hook=_unique
)


def read_json(data: bytes) -> JsonValue:
    """What a JSON text in UTF-8 means; of a field that occurs twice, the last one counts.

    Raises:
        NotJson: it is none, or too deep.
    """
    return _read(_READER, data)


def read_unique_json(data: bytes) -> JsonValue:
    """What a JSON text in UTF-8 means, in which no field occurs twice.

    Raises:
        NotJson: it is none, or too deep, or has such a field.
    """
    return _read(_STRICT_READER, data)


def _read(reader: json.JSONDecoder, data: bytes) -> JsonValue:
    try:
        return reader.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def is_json_null(data: bytes) -> bool:
    """Whether it is the text `null`, or no text at all: Connect's `JsonConverter` reads both so."""
    return _NULL.fullmatch(data) is not None


def write_json(value: JsonValue) -> str:
    """A JSON text in ASCII.

    Raises:
        NotJson: it is too deep.
    """
    try:
        return _written(value)
    except RecursionError as error:
        raise NotJson("too many levels") from error


def _written(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case JsonNumber():
            return value.text
        case str():
            return json.dumps(value)
        case list():
            return f"[{','.join(map(_written, value))}]"
        case dict():
            fields = (f"{json.dumps(name)}:{_written(item)}" for name, item in value.items())
            return f"{{{','.join(fields)}}}"
    raise NotJson(f"{type(value).__name__} cannot be written as JSON")


def normal_form(data: bytes | None) -> bytes | None:
    """What is compared of bytes that may be JSON: their meaning, or the bytes if they are none.

    Two texts have the same form exactly if they have the same values, with the same digits. An
    object in which a field occurs twice has no one meaning: its bytes are compared.
    """
    if data is None:
        return None
    try:
        return _MEANING + _meaning(_read(_STRICT_READER, data)).encode("ascii")
    except (NotJson, InvalidOperation, RecursionError):
        return _AS_IT_IS + data


def _meaning(value: JsonValue) -> str:
    match value:
        case JsonNumber():
            return _digits(value)
        case list():
            return f"[{','.join(map(_meaning, value))}]"
        case dict():
            fields = (f"{json.dumps(name)}:{_meaning(value[name])}" for name in sorted(value))
            return f"{{{','.join(fields)}}}"
    return _written(value)


def _digits(number: JsonNumber) -> str:
    sign, digits, exponent = Decimal(number.text).as_tuple()
    text = "".join(map(str, digits))
    is_negative = sign and (text, exponent) != ("0", 0)  # the whole number -0 is 0
    return f"{'-' if is_negative else ''}{text}e{exponent}"
