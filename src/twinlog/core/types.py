"""Names for the numbers that must not be mixed."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's place in a partition's log, from 0."""

Sequence = NewType("Sequence", int)
"""A producer's running number for a record in one partition, 0 to 2^31 - 1, then 0 again."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)

SEQUENCE_MODULUS = 1 << 31


def advance(sequence: Sequence, count: int) -> Sequence:
    """The sequence that stands `count` records after `sequence`; wraps at 2^31, as the broker's."""
    return Sequence((sequence + count) % SEQUENCE_MODULUS)


class TopicPartition(NamedTuple):
    """A topic's name and a partition's index, as Kafka writes them: `orders-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
