"""`json_meaning`: which JSON texts are the same, and that writing one keeps its meaning."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.verify.json_meaning import (
    NotJson,
    is_json_null,
    normal_form,
    read_json,
    write_json,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"b": 1.10, "a": "\\u00e9"}', '{"a":"é","b":1.10}'.encode()),
        (b"1e2", b"1E+2"),
        (b"-0", b"0"),
        (b"1.1674494331224432e+16", b"11674494331224432"),
        (b" [ 1 , null ]\n", b"[1,null]"),
        (b'"\\ud83d\\ude00"', '"😀"'.encode()),
        (b'{"a": {"y": 1, "x": 2}}', b'{"a":{"x":2,"y":1}}'),
    ],
)
def test_these_mean_the_same(one: bytes, other: bytes) -> None:
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1.10", b"1.1"),
        (b"1", b"1.0"),
        (b"-0.0", b"0.0"),
        (b"100", b"1e2"),
        (b'"1"', b"1"),
        (b"null", None),
        (b"null", b'"null"'),
        (b"[1,2]", b"[2,1]"),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1}', b'{"a":1,"b":null}'),
        (b"{", b"{ "),
        (b"", None),
        (b"\xff", b"\xfe"),
        (b"NaN", b"null"),
        (b"1", b"=1"),
        (b"x", b"=x"),
    ],
)
def test_these_differ(one: bytes, other: bytes | None) -> None:
    assert normal_form(one) != normal_form(other)


@given(value=VALUES, other=VALUES)
def test_a_text_is_known_by_its_meaning(value: object, other: object) -> None:
    """Goal: however it is written; and no two values have the same form."""
    plain = json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    compact = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    form = normal_form(compact)
    if b"\xed" not in plain:  # half of a surrogate pair has no UTF-8
        assert normal_form(plain) == form
    assert normal_form(write_json(read_json(compact)).encode()) == form
    theirs = json.dumps(other, sort_keys=True, separators=(",", ":")).encode()
    assert (normal_form(theirs) == form) == (theirs == compact)


@given(st.binary(max_size=20))
def test_any_bytes_have_a_form_of_their_own(data: bytes) -> None:
    form = normal_form(data)
    assert form is not None
    assert form[:1] in b"=~"
    if form[:1] == b"=":
        assert form[1:] == data


def test_what_is_too_deep_is_no_json() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert normal_form(deep) == b"=" + deep
    with pytest.raises(NotJson):
        read_json(deep)


def test_null_is_a_word_with_white_space_around_or_nothing() -> None:
    assert all(map(is_json_null, (b" null\r\n", b"", b" ")))
    assert not any(map(is_json_null, (b"nul", b'"null"', b"null x", b"\x0bnull")))
