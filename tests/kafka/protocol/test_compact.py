"""The flexible encodings, against kafka-python's and against any bytes."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import compact


@given(st.integers(0, (1 << 32) - 1))
def test_varints_are_encoded_as_by_kafka_python(value: int) -> None:
    """Same bytes as the oracle, and back."""
    encoded = compact.unsigned_varint(value)
    assert encoded == UnsignedVarInt32.encode(value)
    assert compact.read_unsigned_varint(memoryview(encoded + b"x"), 0) == (value, len(encoded))


@given(st.text() | st.none())
def test_strings_survive_encoding_and_decoding(value: str | None) -> None:
    """A string comes back; null as an empty one."""
    encoded = compact.compact_string(value)
    assert compact.read_string(memoryview(encoded), 0) == (value or "", len(encoded))


@given(st.binary())
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes) -> None:
    """No reader gives a position behind the end."""
    view = memoryview(data)
    for read in (compact.read_bytes, compact.read_string, compact.read_unsigned_varint):
        try:
            with compact.reading("message", len(view)):
                assert 0 < read(view, 0)[1] <= len(view)
        except ProtocolError:
            pass
    try:
        with compact.reading("message", len(view)):
            assert 0 < compact.skip_tags(view, 0) <= len(view)
    except ProtocolError:
        pass


def test_tags_are_skipped() -> None:
    """Two tags of 0 and 3 bytes."""
    assert compact.skip_tags(memoryview(b"\2\0\0\7\3abc!"), 0) == 8


def test_a_topic_key_is_a_name_or_an_id() -> None:
    """The key that is written is the key that is read."""
    by_name = compact.topic_key("orders", None)
    by_id = compact.topic_key("orders", UUID(int=7))
    assert compact.read_topic_key(memoryview(by_name + b"!"), 0, by_id=False) == (by_name, 7)
    assert compact.read_topic_key(memoryview(by_id + b"!"), 0, by_id=True) == (by_id, 16)
    for key, is_id in ((by_name, False), (by_id, True)):
        with pytest.raises(ProtocolError), compact.reading("key", 1):
            compact.read_topic_key(memoryview(key[:-1]), 0, by_id=is_id)
