"""Which partition of a control topic a mirror partition, or a mirror, belongs to.

KIP-1279 spreads mirror partitions over `__mirror_state` by hash(mirror name, topic id, partition),
and records of a whole mirror by hash(mirror name). The hashes are Java's, so a broker that
implements the KIP would choose the same partitions:

    Objects.hash(a, b, c)  =  31 * (31 * (31 * 1 + hash(a)) + hash(b)) + hash(c)      in 32 bits
    String.hashCode        =  31 * h + c for each UTF-16 unit c
    Uuid.hashCode          =  high 32 bits ^ low 32 bits of (most ^ least significant 64 bits)
    Utils.abs              =  absolute value; 0 for the one int that has none

The topic id is the *source's*: the KIP's mirror topics have the source's id, while a stock broker
gives a new topic an id of its own.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.types import TopicPartition

_INT32: Final = 1 << 32
_MIN_INT: Final = 1 << 31
_MASK_64: Final = (1 << 64) - 1


class MirrorPartition(NamedTuple):
    """One topic partition of a mirror: the unit that has a state."""

    mirror: str
    topic: str
    partition: int

    @property
    def source(self) -> TopicPartition:
        """The partition of the source that it mirrors."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.mirror}/{self.topic}-{self.partition}"


def state_partition(mirror: str, topic_id: UUID, partition: int, count: int) -> int:
    """The partition of `__mirror_state`, of `count`, that owns a mirror partition.

    Args:
        mirror: the mirror's name.
        topic_id: of the topic on the source.
        partition: of the topic.
        count: partitions that `__mirror_state` has.
    """
    return _spread((_string_hash(mirror), _uuid_hash(topic_id), partition), count)


def config_partition(name: str, count: int) -> int:
    """The partition of `__mirror_config`, of `count`, that holds a mirror and all of its topics."""
    return _spread((_string_hash(name),), count)


def _spread(hashes: Iterable[int], count: int) -> int:
    assert count > 0
    return _absolute(_combined(hashes)) % count


def _combined(hashes: Iterable[int]) -> int:
    result = 1
    for part_hash in hashes:
        result = (31 * result + part_hash) % _INT32
    return result


def _absolute(unsigned: int) -> int:
    """`Utils.abs` of a 32 bit number in unsigned form."""
    if unsigned == _MIN_INT:
        return 0
    return unsigned if unsigned < _MIN_INT else _INT32 - unsigned


def _string_hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for at in range(0, len(units), 2):
        result = (31 * result + (units[at] << 8 | units[at + 1])) % _INT32
    return result


def _uuid_hash(topic_id: UUID) -> int:
    mixed = (topic_id.int >> 64) ^ (topic_id.int & _MASK_64)
    return (mixed >> 32) ^ (mixed % _INT32)
