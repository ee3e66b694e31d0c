"""How fast partitions may be copied (KIP-1279, "Bandwidth Control").

`TokenBucket` is the limit: tokens, one for each byte, come at the rate and are spent by what was
read. Whoever wants to read waits until a *share* is there, which is half a second's worth, and asks
for no more than that. The bucket holds no more than one share, so that a silence saves up next to
nothing, and it starts empty. What is spent over it is owed, since a broker sends a batch whole or
not at all:

    spent between two moments  <=  rate * seconds + one share + what the last ones read over theirs

and as long as there is something to be read, the same without one share is a lower bound.

A node's lanes share the rate (`fair_part`): what those leave over that could not use more is dealt
out evenly among those that could. Each lane works that out by itself, from what all of them say of
the last second, so that for a second or two after others begin or end they take more or less.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from twinlog.kafka.types import TopicPartition

UNLIMITED: Final = (1 << 63) - 1
"""Bytes per second: the default of mirror.replication.throttled.rate."""
SHARE_S: Final = 0.5
_FRAME: Final = Struct(">qi")
"""Base offset, and the length of what follows: of batches and of the messages of before."""
ALL: Final = -1
"""All partitions of a topic."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Which partitions of a mirror are throttled, and what they may take together.

    `topics` has the throttled partitions of each topic, `{ALL}` for all of one's; None is all there
    are.
    """

    rate: int = UNLIMITED
    topics: Mapping[str, frozenset[int]] | None = field(default=None)

    @property
    def limits(self) -> bool:
        """Whether anything is throttled."""
        return self.rate != UNLIMITED and self.topics != {}

    def covers(self, partition: TopicPartition) -> bool:
        """Whether a partition is throttled."""
        if not self.limits:
            return False
        if self.topics is None:
            return True
        chosen = self.topics.get(partition.topic, frozenset())
        return ALL in chosen or partition.partition in chosen


def whole_bytes(records: memoryview) -> int:
    """Bytes of the batches that are whole: a broker cuts the last one where an answer is full."""
    at = 0
    while len(records) - at >= _FRAME.size:
        _, length = _FRAME.unpack_from(records, at)
        if not 0 < length <= len(records) - at - _FRAME.size:
            break
        at += _FRAME.size + length
    return at


class Use(NamedTuple):
    """What a lane has read of throttled partitions: bytes per second, and whether it wants more."""

    rate: float
    held_back: bool


def fair_part(rate: float, others: Iterable[Use]) -> float:
    """What a lane may read that wants more, in bytes per second.

    Args:
        rate: what all may read together.
        others: what the others do.

    Returns:
        An even part of what those leave that do not want more; never less than half of an even
        part of all, so that who begins is seen to want.
    """
    uses = list(others)
    hungry = 1 + sum(use.held_back for use in uses)
    left = rate - sum(use.rate for use in uses if not use.held_back)
    return max(left / hungry, rate / (2 * (1 + len(uses))))


class TokenBucket:
    """Bytes that may be read; see the module. Times in seconds, on one clock."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = 0.0
        self._at = now

    @property
    def share(self) -> int:
        """Bytes to ask for at once, at least one."""
        return max(1, int(self._rate * SHARE_S))

    def wait(self, now: float) -> float:
        """Seconds until a share is there; 0 if it is."""
        self._fill(now)
        missing = self.share - self._tokens
        # Half a byte is none: a wait that rounding has cut short is no reason for another one.
        return missing / self._rate if missing > 0.5 else 0.0

    def spend(self, size: int, now: float) -> None:
        """So many bytes were read."""
        self._fill(now)
        self._tokens -= size

    def set_rate(self, rate: float, now: float) -> None:
        """Another rate from now on. What is owed stays owed, for one share of time at most."""
        self._fill(now)
        self._rate = rate
        self._tokens = max(-float(self.share), min(self._tokens, float(self.share)))

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self._rate, float(self.share))
            self._at = now
