"""Types for numbers that must not be confused."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's position in a partition's log, from 0."""

Sequence = NewType("Sequence", int)
"""A producer's counter of records in one partition, 0 to 2^31 - 1, then 0 again."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts a partition's elections; each batch carries the epoch in which its leader appended it."""

UNKNOWN_EPOCH = LeaderEpoch(-1)
UNKNOWN_OFFSET = Offset(-1)

SEQUENCE_MODULUS = 1 << 31


def advance(sequence: Sequence, count: int) -> Sequence:
    """The sequence `count` records after `sequence`; wraps at 2^31, as in the broker."""
    return Sequence((sequence + count) % SEQUENCE_MODULUS)


class TopicPartition(NamedTuple):
    """A topic's name and a partition's index, as Kafka writes them: `orders-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class FetchPosition(NamedTuple):
    """The offset at which a partition is read next, and what its leader compares first (KIP-320).

    `last_epoch` is the leader epoch of the record before `offset`. A leader in whose log that epoch
    ends before `offset` reports it (`EpochEnd`), instead of sending records that follow on other
    records. `leader_epoch` is the leader's known epoch; a leader with another epoch refuses.
    """

    offset: int
    last_epoch: int = UNKNOWN_EPOCH
    leader_epoch: int = UNKNOWN_EPOCH


class EpochEnd(NamedTuple):
    """The largest leader epoch that is not above the requested one, and the offset of its end."""

    leader_epoch: int
    end_offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a Fetch answer: its producer, and its first offset."""

    producer_id: int
    first_offset: int


class ProducerState(NamedTuple):
    """What DescribeProducers reports of one producer in one partition.

    `last_sequence` is -1 if the producer's last batch in this epoch was a marker.
    `last_timestamp` is of its last batch, in ms: the greatest of the *records'*, or a marker's own.
    `coordinator_epoch` is that of its last marker; -1 if it has none.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int = 0
    coordinator_epoch: int = -1


class LogBounds(NamedTuple):
    """Log start offset, high watermark and last stable offset of a partition.

    `leader_epoch` is of the leader that has answered with the two ends, the lower one if another
    leader was elected between them; -1 if it is not known.
    """

    error: int
    start: int
    high_watermark: int
    last_stable: int
    leader_epoch: int = UNKNOWN_EPOCH
