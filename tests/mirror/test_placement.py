"""Placement against values computed by Java (Objects.hash, Kafka 4.3.1's Uuid and Utils)."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.placement import (
    MirrorPartition,
    _absolute,
    _combined,
    _string_hash,
    _uuid_hash,
    config_partition,
    state_partition,
)


def signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


@pytest.mark.parametrize(
    ("mirror", "topic_id", "partition", "string", "uuid", "combined", "of_50"),
    [
        ("my-mirror", UUID(int=(1 << 64) + 2), 0, 1191661312, 3, -1569717316, 16),
        ("my-mirror", UUID(int=(1 << 64) + 2), 7, 1191661312, 3, -1569717309, 9),
        ("a", UUID("12345678-9abc-def0-0fed-cba987654321"), 3, 97, 0, 123011, 11),
        ("", UUID(int=0), 0, 0, 0, 29791, 41),
        (
            "\N{GRINNING FACE}",
            UUID("ffffffff-ffff-ffff-0000-000000000001"),
            2147483647,
            1772899,
            1,
            -443697888,
            38,
        ),
        (
            "orders.eu_1",
            UUID("80000000-0000-0000-7fff-ffffffffffff"),
            41,
            -1813280309,
            0,
            1194375059,
            9,
        ),
    ],
)
def test_hashes_and_partitions_equal_those_of_java(
    *,
    mirror: str,
    topic_id: UUID,
    partition: int,
    string: int,
    uuid: int,
    combined: int,
    of_50: int,
) -> None:
    """The hash of each part, of all parts, and the partition of 50."""
    parts = (_string_hash(mirror), _uuid_hash(topic_id), partition)
    assert (signed(parts[0]), signed(parts[1])) == (string, uuid)
    assert signed(_combined(parts)) == combined
    assert state_partition(mirror, topic_id, partition, 50) == of_50


def test_placement_equals_a_hand_computed_example() -> None:
    """31 * (31 * (31 + 97) + 0) + 3 = 123011, of which 11 remain after fifties."""
    assert 31 * (31 * (31 + 97)) + 3 == 123011
    assert state_partition("a", UUID(int=0), 3, 50) == 11
    assert config_partition("a", 8) == (31 + 97) % 8


def test_the_absolute_value_of_the_smallest_int_is_0() -> None:
    """Kafka's Utils.abs gives 0 for it, where Math.abs would give a negative number."""
    assert _absolute(1 << 31) == 0
    assert _absolute((1 << 32) - 1) == 1
    assert _absolute((1 << 31) - 1) == (1 << 31) - 1


@given(st.text(), st.uuids(), st.integers(0, 2**31 - 1), st.integers(1, 1000))
def test_placement_is_stable_and_within_the_partition_count(
    mirror: str, topic_id: UUID, partition: int, count: int
) -> None:
    """For any names, the place is one of `count`, and the same each time."""
    place = state_partition(mirror, topic_id, partition, count)
    assert 0 <= place < count
    assert place == state_partition(mirror, topic_id, partition, count)
    assert 0 <= config_partition(mirror, count) < count


def test_a_mirror_partition_is_formatted_as_in_messages() -> None:
    """The form is that of messages."""
    assert str(MirrorPartition("m", "orders", 3)) == "m/orders-3"
