"""Twin of twinlog.mirror.mm2_records; the golden bytes are those of Kafka's Java classes."""

import re
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mm2_samples import SAMPLES, Sample

from twinlog.kafka.errors import ProtocolError, UserError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import (
    Checkpoint,
    Heartbeat,
    Mm2Record,
    OffsetSync,
    decode_checkpoint,
    decode_checkpoint_key,
    decode_heartbeat,
    decode_heartbeat_key,
    decode_offset_sync,
    decode_offset_sync_key,
    encode,
)

Decode = Callable[[bytes | None, bytes | None], Mm2Record | None]
DECODERS: Final[dict[type, Decode]] = {
    Heartbeat: decode_heartbeat,
    Checkpoint: decode_checkpoint,
    OffsetSync: decode_offset_sync,
}
HEARTBEAT, CHECKPOINT, _, SYNC = SAMPLES

texts = st.text(st.characters(codec="utf-8"), max_size=40)
offsets = st.integers(0, (1 << 63) - 1)
partitions = st.builds(TopicPartition, texts, st.integers(0, (1 << 31) - 1))
records = st.one_of(
    st.builds(
        Heartbeat,
        source_cluster_alias=texts,
        target_cluster_alias=texts,
        timestamp=st.integers(-(1 << 63), (1 << 63) - 1),
    ),
    st.builds(
        Checkpoint,
        group=texts,
        partition=partitions,
        upstream_offset=offsets,
        downstream_offset=offsets,
        metadata=texts,
    ),
    st.builds(OffsetSync, partition=partitions, upstream_offset=offsets, downstream_offset=offsets),
)


@pytest.mark.parametrize("sample", SAMPLES)
def test_bytes_and_text_are_those_of_kafkas_classes(sample: Sample) -> None:
    """Goal: what MirrorMaker 2 writes is decoded, and encoded in the same way."""
    key, value = bytes.fromhex(sample.key), bytes.fromhex(sample.value)
    assert encode(sample.record) == (key, value)
    assert DECODERS[type(sample.record)](key, value) == sample.record
    assert str(sample.record) == sample.text


@given(records)
def test_a_record_survives_its_encoding(record: Mm2Record) -> None:
    assert DECODERS[type(record)](*encode(record)) == record


@given(records, st.data())
def test_cut_off_or_extended_records_are_refused(record: Mm2Record, data: st.DataObject) -> None:
    """Goal: no record is decoded from less, or more, than what was written."""
    decode = DECODERS[type(record)]
    key, value = encode(record)
    for part, wrong in ((0, key), (1, value)):
        shorter = wrong[: data.draw(st.integers(0, len(wrong) - 1))]
        for damaged in (shorter, wrong + b"\0"):
            with pytest.raises(ProtocolError):
                decode(*(damaged, value) if part == 0 else (key, damaged))


@given(st.sampled_from(list(DECODERS.values())), st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_a_record_or_refused(decode: Decode, key: bytes, value: bytes) -> None:
    """Goal: what decodes is encoded as the same bytes; anything else is a ProtocolError."""
    try:
        record = decode(key, value)
    except ProtocolError:
        return
    assert record is not None
    assert encode(record) == (key, value)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_tombstone_is_none_and_its_key_is_checked(sample: Sample) -> None:
    decode = DECODERS[type(sample.record)]
    assert decode(bytes.fromhex(sample.key), None) is None
    with pytest.raises(ProtocolError):
        decode(b"?", None)
    with pytest.raises(ProtocolError, match="is missing"):
        decode(None, bytes.fromhex(sample.value))


def test_keys_are_decoded_alone() -> None:
    assert decode_heartbeat_key(bytes.fromhex(HEARTBEAT.key)) == ("us-west", "us-east")
    group = ("billing", TopicPartition("us-west.orders", 3))
    assert decode_checkpoint_key(bytes.fromhex(CHECKPOINT.key)) == group
    assert decode_offset_sync_key(bytes.fromhex(SYNC.key)) == TopicPartition("orders", 3)


@pytest.mark.parametrize(
    ("sample", "part", "old", "new", "reason"),
    [
        (HEARTBEAT, "value", "0000", "0001", "value of a heartbeat has version 1, expected 0"),
        (CHECKPOINT, "value", "0000", "ffff", "value of a checkpoint has version -1, expected 0"),
        (CHECKPOINT, "key", "00000003", "80000000", "has partition -2147483648, expected 0"),
        (SYNC, "key", "00000003", "ffffffff", "key of an offset sync has partition -1, expected 0"),
        (SYNC, "value", "0000000000000064", "f" * 16, "offset sync has offset -1, expected 0 or"),
        (SYNC, "value", "0000000000000007", "f" * 16, "offset sync has offset -1, expected 0 or"),
        (CHECKPOINT, "value", "00056dc3a9", "00056dc328", "a string that is not valid UTF-8"),
        (CHECKPOINT, "value", "00056dc3a9", "ffff6dc3a9", "invalid length -1: 5 bytes follow"),
        (HEARTBEAT, "key", "0007", "7fff", "invalid length 32767: 16 bytes follow"),
    ],
)
def test_damaged_records_are_named(
    sample: Sample, part: str, old: str, new: str, reason: str
) -> None:
    damaged = getattr(sample, part)
    assert old in damaged
    changed = sample._replace(**{part: damaged.replace(old, new, 1)})
    with pytest.raises(ProtocolError, match=re.escape(reason)):
        DECODERS[type(sample.record)](bytes.fromhex(changed.key), bytes.fromhex(changed.value))


def test_a_text_that_does_not_fit_is_refused() -> None:
    longest = Heartbeat(source_cluster_alias="é" * 16383, target_cluster_alias="", timestamp=0)
    assert decode_heartbeat(*encode(longest)) == longest
    sync = OffsetSync(
        partition=TopicPartition("t" * 32768, 0), upstream_offset=0, downstream_offset=0
    )
    with pytest.raises(UserError, match="a topic name has 32768 bytes, expected at most 32767"):
        encode(sync)
