"""Records of `__mirror_groups`: round trips, refused records, and the size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.types import TopicPartition
from twinlog.store.group_records import (
    GroupMemory,
    LastCheck,
    PartitionMemory,
    decode,
    decode_key,
    encode,
    encode_key,
    metadata_checksum,
)
from twinlog.store.json_fields import encode_json

numbers = st.integers(-1, (1 << 63) - 1)
checksums, flags = st.integers(0, (1 << 32) - 1), st.integers(0, 1)
memories = st.builds(
    PartitionMemory, numbers, numbers, checksums, numbers, flags, numbers, checksums, flags
)
partitions = st.dictionaries(
    st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 1000)), memories, max_size=5
)
groups = st.builds(
    GroupMemory,
    mirror=st.text(max_size=5),
    group=st.text(max_size=5),
    kind=st.sampled_from(["classic", "consumer", "share"]),
    active_ms=numbers,
    copied_ms=numbers,
    partitions=partitions,
)
checks = st.builds(
    LastCheck,
    mirror=st.text(max_size=5),
    time_ms=numbers,
    failed=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


def packed(body: object) -> bytes:
    return bytes(compress(Codec.ZSTD, encode_json(body)))


@given(groups | checks)
def test_group_records_survive_encoding_and_decoding(record: GroupMemory | LastCheck) -> None:
    """Any name is possible: a group's name is any text."""
    key, value = encode(record)
    assert decode(key, value) == record
    group = record.group if isinstance(record, GroupMemory) else None
    assert decode_key(key) == (record.mirror, group)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_any_bytes_give_a_record_or_a_protocol_error(key: bytes, value: bytes) -> None:
    """Any bytes give a record, or ProtocolError."""
    with pytest.raises(ProtocolError):
        decode(key, value)
    with pytest.raises(ProtocolError):
        decode(encode_key("m", "g"), value)


def test_fields_of_later_versions_are_ignored() -> None:
    """Unknown fields and columns are ignored; missing ones have defaults."""
    body = {
        "version": 1,
        "kind": "classic",
        "active_ms": 1,
        "copied_ms": 2,
        "topics": {"t": [[0], [1, 5], [2, 5, 4, 3, 2, 1, 7, 8, 1, 100], [3, 5, 4, 3, 2, 1]]},
        "more": {},
    }
    found = decode(encode_key("m", "g"), packed(body))
    assert isinstance(found, GroupMemory)
    assert found.partitions == {
        TopicPartition("t", 0): PartitionMemory(),
        TopicPartition("t", 1): PartitionMemory(5, 5),
        TopicPartition("t", 2): PartitionMemory(5, 4, 3, 2, 1, 7, 8, 1),
        TopicPartition("t", 3): PartitionMemory(5, 4, 3, 2, 1),
    }


@pytest.mark.parametrize(
    "body",
    [
        {"version": 2, "time_ms": 1, "failed": []},
        {"version": 1, "time_ms": "1", "failed": []},
        {"version": 1, "time_ms": 1, "failed": [1]},
        [],
    ],
)
def test_invalid_check_records_are_refused(body: object) -> None:
    with pytest.raises(ProtocolError):
        decode(encode_key("m"), packed(body))


@pytest.mark.parametrize("topics", [[], {"t": 1}, {"t": [[]]}, {"t": [["0"]]}, {"t": [[0, None]]}])
def test_invalid_partition_rows_are_refused(topics: object) -> None:
    body = {"version": 1, "kind": "classic", "active_ms": 0, "copied_ms": 0, "topics": topics}
    with pytest.raises(ProtocolError):
        decode(encode_key("m", "g"), packed(body))


def test_empty_metadata_has_checksum_0() -> None:
    assert metadata_checksum("") == 0 != metadata_checksum("x")


def test_thousands_of_groups_need_little_space() -> None:
    """The module's figure: 5,000 groups, each with 20 partitions in one of 250 topics."""
    size = 0
    for number in range(5000):
        offsets = (10_000_000 + (number * 7919 + index * 104_729) % 900_000 for index in range(20))
        rows = {
            TopicPartition(f"orders.region-{number // 20}", index): PartitionMemory(one, one)
            for index, one in enumerate(offsets)
        }
        record = GroupMemory(
            mirror="my-mirror",
            group=f"team-{number % 50}.application-{number}",
            kind="consumer",
            copied_ms=1_700_000_000_000 + number,
            partitions=rows,
        )
        size += sum(map(len, encode(record)))
    assert 1.4e6 < size < 1.6e6, size
