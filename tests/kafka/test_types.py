"""Sequence numbers that wrap, and names as Kafka writes them."""

import pytest

from twinlog.kafka.types import SEQUENCE_MODULUS, Sequence, TopicPartition, advance


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (-1, 1, 0),
        (SEQUENCE_MODULUS - 1, 1, 0),
        (SEQUENCE_MODULUS - 1, 5, 4),
        (0, SEQUENCE_MODULUS, 0),
        (0, (1 << 53) + 7, 7),
    ],
)
def test_a_sequence_wraps_at_2_to_the_31(sequence: int, count: int, expected: int) -> None:
    """Goal: 0 follows 2^31 - 1, from a marker's -1 and from any offset."""
    assert advance(Sequence(sequence), count) == expected


def test_a_partition_is_formatted_as_by_kafka() -> None:
    """Goal: messages name partitions as every Kafka tool does."""
    assert str(TopicPartition("orders.eu-1", 3)) == "orders.eu-1-3"
