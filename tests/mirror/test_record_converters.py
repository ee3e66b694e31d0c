"""Converters: bytes to what transforms see, and back."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.record_converters import (
    BYTES,
    JSON,
    TEXT,
    TransformError,
    decode_json,
    encode_json,
    plain_text,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=VALUES)
def test_json_comes_back_as_it_was(value: object) -> None:
    """Goal: no digit and no character is lost, lone surrogates included."""
    data = encode_json(value)
    assert decode_json(data) == value
    json.loads(data)


def test_numbers_keep_their_digits() -> None:
    text = b'{"a":0.12345678901234567890,"b":123456789012345678901234567890,"c":1.50,"d":[1E400]}'
    assert encode_json(decode_json(text)) == text.replace(b"1E400", b"1E+400")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[NaN]", b"{}x", b"[" * 100_000, b"1 2"])
def test_what_is_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises(TransformError, match="no JSON text"):
        decode_json(data)


@pytest.mark.parametrize(
    "number", ["1e9999999999999999999", "-0.5E-9999999999999999999", "0e9999999999999999999"]
)
def test_an_exponent_that_no_number_can_have_is_an_error(number: str) -> None:
    """Goal: one record fails, and is named; its value does not become another one."""
    with pytest.raises(TransformError, match="too large an exponent"):
        decode_json(f'{{"a":[{number}]}}'.encode())


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_whole_number_with_too_many_digits_is_an_error(sign: str) -> None:
    """Goal: the message is about the record, and not about a setting of Python."""
    assert (
        encode_json(decode_json(f"{sign}{'9' * 4300}".encode())) == f"{sign}{'9' * 4300}".encode()
    )
    with pytest.raises(TransformError, match=r"^it has a whole number with too many digits$"):
        decode_json(f"[{sign}{'9' * 4301}]".encode())


def test_each_converter_writes_its_own_data_only() -> None:
    assert (BYTES.encode(b"x"), TEXT.encode("é"), JSON.encode({"a": "é"})) == (
        b"x",
        "é".encode(),
        '{"a":"é"}'.encode(),
    )
    assert (TEXT.encode(12), TEXT.encode(True)) == (b"12", b"true")
    assert (BYTES.decode(b"x"), TEXT.decode("é".encode())) == (b"x", "é")
    for converter, wrong in ((BYTES, {"a": 1}), (TEXT, {"a": 1}), (TEXT, Decimal("1.5"))):
        with pytest.raises(TransformError):
            converter.encode(wrong)
    with pytest.raises(TransformError, match="bytes cannot be written"):
        JSON.encode([b"x"])
    with pytest.raises(TransformError, match="no text"):
        TEXT.decode(b"\xff")


def test_too_many_levels_are_an_error() -> None:
    deep: list[object] = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(TransformError, match="levels"):
        encode_json(deep)


def test_texts_of_headers() -> None:
    assert [plain_text(one) for one in ("a b", 5, True, {"a": [1]}, Decimal("1.50"))] == [
        "a b",
        "5",
        "true",
        '{"a":[1]}',
        "1.50",
    ]
