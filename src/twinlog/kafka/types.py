"""Names for the numbers that must not be mixed."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's place in a partition's log, from 0."""

Sequence = NewType("Sequence", int)
"""A producer's running number for a record in one partition, 0 to 2^31 - 1, then 0 again."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts a partition's elections; each batch bears the one that its leader appended it in."""

UNKNOWN_EPOCH = LeaderEpoch(-1)

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


class FetchPosition(NamedTuple):
    """Where a partition is to be read on, and what its leader is to compare first (KIP-320).

    `last_epoch` is the leader epoch of the record before `offset`: a leader whose log has that
    epoch end before `offset` says so (`EpochEnd`), instead of sending records that follow upon
    others. `leader_epoch` is the one that the leader is known by: one of another epoch refuses.
    """

    offset: int
    last_epoch: int = UNKNOWN_EPOCH
    leader_epoch: int = UNKNOWN_EPOCH


class EpochEnd(NamedTuple):
    """The largest leader epoch that is not above the one asked for, and the offset of its end."""

    leader_epoch: int
    end_offset: int


class AbortedTransaction(NamedTuple):
    """As a Fetch answer lists it: whose, and from which offset on."""

    producer_id: int
    first_offset: int


class ProducerState(NamedTuple):
    """What DescribeProducers says of one producer in one partition.

    `last_sequence` is -1 where the producer's last batch in this epoch was a marker.
    `last_timestamp` is of its last batch, in ms: the greatest of the *records'*, a marker's own.
    `coordinator_epoch` is the one of its last marker; -1 where it has none.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int = 0
    coordinator_epoch: int = -1
