"""Converters: what the bytes of a key or value mean to a transform (Connect's `Converter`).

| converter | a transform sees |
| --- | --- |
| `ByteArrayConverter`, the default | bytes, which have no fields |
| `StringConverter` | text |
| `JsonConverter` with `schemas.enable=false` | objects, lists, texts, numbers, booleans, null |

A key or value that no transform changes keeps its bytes, whatever the converter. Kafka's JSON
converter reads numbers with a fraction as 64-bit floats, and whole ones as 64-bit integers; here
they keep all their digits.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, Final

Data = Any
"""What a transform sees: None, bytes, str, bool, int, Decimal, list, or dict with names as keys."""

_DEPTH: Final = 200
"""Levels of a JSON text. Jackson has 1000; both are far above what records have."""


class TransformError(Exception):
    """A record cannot be transformed: its bytes or fields are not what the transform needs."""


@dataclass(frozen=True, slots=True)
class Converter:
    """A converter, by the name of its Java class without the package."""

    name: str
    decode: Callable[[bytes], Data]
    encode: Callable[[Data], bytes]


def decode_json(data: bytes) -> Data:
    """What a JSON text says.

    Raises:
        TransformError: it is no JSON text in UTF-8, a whole number has more digits than Python
            reads (4300), or an exponent has 19 or more.
    """
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransformError(f"it is no JSON text: {error}") from error
    except ValueError as error:  # of `int`
        raise TransformError("it has a whole number with too many digits") from error
    except InvalidOperation as error:  # of Decimal, which is no ValueError
        raise TransformError("it has a number with too large an exponent") from error


def _refuse_constant(text: str) -> None:
    raise TransformError(f"it is no JSON text: {text} is no JSON number")


_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)


def encode_json(data: Data) -> bytes:
    """A JSON text without white space.

    Raises:
        TransformError: it has bytes in it.
    """
    text = _json_text(data, _DEPTH)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return "".join(c if ord(c) < 0x80 else json.dumps(c)[1:-1] for c in text).encode("ascii")


_CONTAINERS: Final = (dict, list)
_NUMBERS: Final = (int, Decimal)


def _json_text(data: Data, levels: int) -> str:
    """As `json.dumps`, which would not write a Decimal with its digits.

    Texts are the most frequent values of fields: they are written without another call.
    """
    if isinstance(data, str):
        return encode_basestring(data)
    if isinstance(data, _CONTAINERS):
        if levels == 0:
            raise TransformError(f"a JSON text of more than {_DEPTH} levels")
        if isinstance(data, list):
            return "[" + ",".join([_json_text(item, levels - 1) for item in data]) + "]"
        fields = [
            f"{encode_basestring(name)}:"
            f"{encode_basestring(item) if isinstance(item, str) else _json_text(item, levels - 1)}"
            for name, item in data.items()
        ]
        return "{" + ",".join(fields) + "}"
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, _NUMBERS):
        return str(data)
    raise TransformError("bytes cannot be written as JSON")


def plain_text(data: Data) -> str:
    """A text, number or boolean as text; objects and lists as JSON (as `Values.convertToString`).

    Raises:
        TransformError: it is bytes.
    """
    return data if isinstance(data, str) else _json_text(data, _DEPTH)


def _decode_text(data: bytes) -> Data:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TransformError(f"it is no text in UTF-8: {error}") from error


def _encode_text(data: Data) -> bytes:
    if not isinstance(data, str | int):
        raise TransformError(
            f"StringConverter writes text, whole numbers and booleans, not {kind_of(data)}"
        )
    return plain_text(data).encode("utf-8", "surrogatepass")


def _keep(data: bytes) -> Data:
    return data


def _encode_bytes(data: Data) -> bytes:
    if not isinstance(data, bytes):
        raise TransformError(
            f"ByteArrayConverter writes bytes, not {kind_of(data)}: set key.converter or "
            "value.converter"
        )
    return data


def kind_of(data: Data) -> str:
    """What data is, for a message."""
    names = {dict: "an object", list: "a list", str: "text", bytes: "bytes", bool: "a boolean"}
    return "null" if data is None else names.get(type(data), "a number")


BYTES: Final = Converter("ByteArrayConverter", _keep, _encode_bytes)
TEXT: Final = Converter("StringConverter", _decode_text, _encode_text)
JSON: Final = Converter("JsonConverter", decode_json, encode_json)
CONVERTERS: Final = {converter.name: converter for converter in (BYTES, TEXT, JSON)}
