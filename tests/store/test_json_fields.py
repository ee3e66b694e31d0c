"""JSON values: the same bytes each time, and an error that names the field."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError, UserError
from twinlog.store.json_fields import JsonObject, decode_json, encode_json


def test_equal_values_are_encoded_to_equal_bytes() -> None:
    """The order in which a mapping was filled does not matter."""
    assert encode_json({"b": 1, "a": ["x"]}) == encode_json({"a": ["x"], "b": 1})
    assert encode_json({"b": 1, "a": ("x",)}) == b'{"a":["x"],"b":1}'


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="it is not valid JSON"):
        decode_json(data, "it")


def test_text_that_is_not_utf_8_is_not_written() -> None:
    """Goal: an argument that is not UTF-8 makes no unreadable record; it is not shown."""
    for value in ({"source": {"a": "geheim\udcff"}}, ["topic", "\ud800"]):
        with pytest.raises(UserError, match="is not valid UTF-8") as caught:
            encode_json(value)
        assert "geheim" not in str(caught.value)
        assert caught.value.__suppress_context__
    assert decode_json(encode_json("\U0001f600\x1f"), "it") == "\U0001f600\x1f"


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("text", 1),
        ("number", True),
        ("number", 1.5),
        ("number", 1 << 63),
        ("optional_number", "1"),
        ("texts", ["a", 1]),
        ("list", "abc"),
        ("properties", {"a": 1}),
        ("properties", []),
    ],
)
def test_error_for_a_wrong_type_names_the_field(method: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=r"it: field is .*expected an? "):
        getattr(JsonObject({"field": value}, "it"), method)("field")


def test_fields_of_the_expected_type_are_read() -> None:
    body = JsonObject({"t": "x", "n": 1, "l": ["a"], "p": {"k": "v"}, "z": None}, "it")
    assert (body.text("t"), body.number("n"), body.texts("l")) == ("x", 1, ("a",))
    assert (body.list("l"), body.properties("p")) == (["a"], {"k": "v"})
    assert (body.optional_number("n"), body.optional_number("z")) == (1, None)
    with pytest.raises(ProtocolError, match="missing"):
        body.text("none")


@given(st.binary(max_size=50))
def test_any_bytes_give_an_object_or_a_protocol_error(data: bytes) -> None:
    """Any bytes give an object, or ProtocolError."""
    with suppress(ProtocolError):
        JsonObject(decode_json(data, "it"), "it")
