"""Fields: round trips, and for any bytes fields or the documented error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import compact, fields
from twinlog.kafka.protocol.fields import FieldReader


@given(st.integers(0, 2**35 - 1))
def test_unsigned_varints_survive_encoding_and_decoding(value: int) -> None:
    reader = FieldReader(compact.unsigned_varint(value), "it")
    assert reader.unsigned_varint() == value
    reader.finish()


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="longer than five bytes"):
        FieldReader(b"\xff" * 6, "it").unsigned_varint()


@given(st.text(max_size=50))
def test_strings_survive_encoding_and_decoding(text: str) -> None:
    reader = FieldReader(fields.string(text) + compact.compact_string(text), "it")
    assert (reader.string(), reader.compact_string()) == (text, text)
    assert reader.done


@given(st.dictionaries(st.integers(0, 20_000), st.binary(max_size=20), max_size=5))
def test_tags_survive_encoding_and_decoding(wanted: dict[int, bytes]) -> None:
    assert FieldReader(fields.tags(wanted), "it").tags() == wanted


def test_trailing_bytes_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="it has 1 trailing bytes"):
        FieldReader(b"\0", "it").finish()


def test_null_and_invalid_strings_are_refused() -> None:
    """No field of twinlog may be null: -1 as a length, 0 as a compact length."""
    with pytest.raises(ProtocolError, match="invalid length -1"):
        FieldReader(b"\xff\xff", "it").string()
    with pytest.raises(ProtocolError, match="invalid length -1"):
        FieldReader(b"\0", "it").compact_string()
    with pytest.raises(ProtocolError, match="UTF-8"):
        FieldReader(b"\x02\xff", "it").compact_string()


def test_a_count_above_the_remaining_bytes_is_refused() -> None:
    """Before anything is allocated for it."""
    with pytest.raises(ProtocolError, match="element count"):
        FieldReader(compact.unsigned_varint(1 << 30), "it").compact_count()


@given(
    st.binary(max_size=40),
    st.lists(
        st.sampled_from(["int8", "int16", "int32", "string", "compact_string", "tags"]), max_size=6
    ),
)
def test_any_bytes_give_fields_or_a_protocol_error(data: bytes, calls: list[str]) -> None:
    """Any bytes give fields, or ProtocolError."""
    reader = FieldReader(data, "it")
    try:
        for call in calls:
            getattr(reader, call)()
    except ProtocolError:
        pass
