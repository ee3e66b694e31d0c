"""Records of `__mirror_state`: the KIP's bytes, twinlog's extension, and any bytes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store.state_records import (
    LAST_MIRROR_EPOCHS,
    MAX_REASON,
    MIRROR_PARTITION_STATE,
    Forgotten,
    LastMirrored,
    LastMirroredEpochs,
    PartitionState,
    decode,
    encode_epoch,
    encode_state,
    epochs_key,
    state_key,
)

PARTITION = MirrorPartition("my-mirror", "my-topic", 0)

names = st.text(st.characters(codec="utf-8"), max_size=30)
partitions = st.builds(MirrorPartition, names, names, st.integers(0, 2**31 - 1))


def test_state_records_have_the_bytes_of_the_kip() -> None:
    """KIP-1279 shows a dump with a key of 13 bytes and a value of 17: these very fields."""
    key, value = encode_state(PartitionState(PARTITION, State.PREPARING))
    assert key[:13] == b"\0\x02\0\x09my-mirror"
    assert value == b"\0\0\x09my-topic\0\0\0\0\x01\0"
    assert len(value) == 17
    assert key[13:] == b"\0\x08my-topic\0\0\0\0"


def test_keys_without_the_extension_are_read() -> None:
    """A writer that does not know the extension names topic and partition in the value."""
    key, value = encode_state(PartitionState(PARTITION, State.MIRRORING))
    assert decode(key[:13], value) == PartitionState(PARTITION, State.MIRRORING)
    assert decode(key[:13], None) == Forgotten(MIRROR_PARTITION_STATE, "my-mirror", None)


@given(
    partitions,
    st.sampled_from(State),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=100),
)
def test_states_survive_encoding_and_decoding(
    partition: MirrorPartition, state: State, reason: str | None
) -> None:
    record = PartitionState(partition, state, reason)
    assert decode(*encode_state(record)) == record
    assert decode(state_key(partition), None) == Forgotten(2, partition.mirror, partition)


def test_a_long_reason_is_truncated() -> None:
    """A reason must not make a record too large for its topic."""
    record = decode(*encode_state(PartitionState(PARTITION, State.FAILED, "x" * 10_000)))
    assert isinstance(record, PartitionState)
    assert record.reason == "x" * MAX_REASON


@given(
    partitions,
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.lists(st.integers(0, 2**63 - 1), max_size=64),
    st.tuples(st.none() | st.booleans(), st.booleans()),
)
def test_epochs_survive_encoding_and_decoding(
    partition: MirrorPartition,
    epoch: int,
    end: int,
    producers: list[int],
    begun_and_differs: tuple[bool | None, bool],
) -> None:
    last = LastMirrored(LeaderEpoch(epoch), Offset(end), tuple(producers), *begun_and_differs)
    record = decode(*encode_epoch(partition, last))
    assert record == LastMirroredEpochs(((partition, last),))
    assert decode(epochs_key(partition), None) == Forgotten(
        LAST_MIRROR_EPOCHS, partition.mirror, partition
    )


def test_an_epochs_value_may_list_many_partitions() -> None:
    value = (
        b"\0\0" + b"\x02" + b"\x02t" + b"\x03" + b"\0\0\0\0\0\0\0\5\0\0\0\0\1\0\0\0\6\0" + b"\0\0"
    )
    assert decode(b"\0\x01\0\1m", value) == LastMirroredEpochs(
        (
            (MirrorPartition("m", "t", 0), LastMirrored(LeaderEpoch(5), Offset(-1))),
            (MirrorPartition("m", "t", 1), LastMirrored(LeaderEpoch(6), Offset(-1))),
        )
    )


def test_record_types_of_later_versions_are_ignored() -> None:
    assert decode(b"\0\x03whatever", b"") is None


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        (None, b"", "no key"),
        (b"\0", b"", "truncated"),
        (state_key(PARTITION) + b"\0", None, "trailing bytes"),
        (state_key(PARTITION), b"\0\1", "version 1"),
        (state_key(PARTITION), b"\0\0\x09my-topic\0\0\0\0\x08\0", "unknown state 8"),
        (
            state_key(PARTITION),
            b"\0\0\x09my-topic\0\0\0\1\x01\0",
            "has the key my-mirror/my-topic-0 and",
        ),
        (state_key(PARTITION), b"\0\0\x09my-topic\0\0\0\0\x01\0\0", "trailing bytes"),
        (epochs_key(PARTITION), b"\0\0\xff\xff\xff\xff\x07", "element count"),
    ],
)
def test_invalid_field_values_are_rejected(key: bytes | None, value: bytes, trouble: str) -> None:
    with pytest.raises(ProtocolError, match=trouble):
        decode(key, value)


@given(
    st.none() | st.binary(max_size=60) | st.builds(state_key, partitions),
    st.none() | st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"\0\0" + tail),
)
def test_any_bytes_give_a_record_or_a_protocol_error(
    key: bytes | None, value: bytes | None
) -> None:
    """Any bytes give a record, None, or ProtocolError."""
    with suppress(ProtocolError):
        decode(key, value)


@given(st.integers(0, 60), st.integers(0, 255), st.booleans())
def test_a_changed_byte_gives_a_record_or_a_protocol_error(
    at: int, byte: int, in_key: bool
) -> None:
    """A valid record with one byte wrong."""
    key, value = encode_state(PartitionState(PARTITION, State.FAILED, "why"))
    broken = bytearray(key if in_key else value)
    broken[at % len(broken)] = byte
    with suppress(ProtocolError):
        decode(bytes(broken) if in_key else key, value if in_key else bytes(broken))
