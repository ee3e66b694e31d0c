"""How fast partitions may be copied (KIP-1279, "Bandwidth Control").

`TokenBucket` is the limit. Tokens, one for each byte, arrive at the rate, and each byte that is
read spends one. A reader waits for a *share*, which is half a second's tokens, and requests no more
than that. The bucket starts empty and holds at most one share, so an idle time saves up almost
nothing. A broker sends whole batches only, so a read may exceed its share; the excess is owed:

    spent between two moments  <=  rate * seconds + one share + the last reads' excess
    spent since the start      >=  rate * seconds - one share        while there is data to read

A node's lanes share the rate (`fair_part`): the rate that some lanes leave over is divided evenly
among the lanes that can use more. Each lane computes this by itself, from all lanes' reports of the
last second. So for a second or two after a lane starts or ends, the others read too much or too
little.
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
"""Base offset, and length of the rest: the same for batches and for messages of v0 and v1."""
ALL: Final = -1
"""All partitions of a topic."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Which partitions of a mirror are throttled, and their total rate.

    `topics` has the throttled partitions of each topic, `{ALL}` for all partitions of a topic; None
    is all topics.
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
        indexes = self.topics.get(partition.topic, frozenset())
        return ALL in indexes or partition.partition in indexes


def whole_bytes(records: memoryview) -> int:
    """Bytes of the complete batches: a broker cuts off the last one if the answer is full."""
    at = 0
    while len(records) - at >= _FRAME.size:
        _, length = _FRAME.unpack_from(records, at)
        if not 0 < length <= len(records) - at - _FRAME.size:
            break
        at += _FRAME.size + length
    return at


class Use(NamedTuple):
    """A lane's reads of throttled partitions: bytes per second, and whether it wants more."""

    rate: float
    held_back: bool


def fair_part(rate: float, other_uses: Iterable[Use]) -> float:
    """The rate of a lane that wants more, in bytes per second.

    Args:
        rate: the total rate of all lanes.
        other_uses: the use of the other lanes.

    Returns:
        An even part of what the lanes that do not want more leave; never less than half of an even
        part of the total, so that the demand of a lane that starts becomes visible.
    """
    uses = list(other_uses)
    demand_count = 1 + sum(use.held_back for use in uses)
    free_rate = rate - sum(use.rate for use in uses if not use.held_back)
    return max(free_rate / demand_count, rate / (2 * (1 + len(uses))))


class TokenBucket:
    """Bytes that may be read; see the module. Times are in seconds, on one clock."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = 0.0
        self._at = now

    @property
    def share(self) -> int:
        """Bytes to request at once, at least one."""
        return max(1, int(self._rate * SHARE_S))

    def wait(self, now: float) -> float:
        """Seconds until the bucket holds a share; 0 if it does."""
        self._fill(now)
        deficit = self.share - self._tokens
        # Half a byte counts as none: a wait that rounding has cut short needs no second wait.
        return deficit / self._rate if deficit > 0.5 else 0.0

    def spend(self, size: int, now: float) -> None:
        """Spend the tokens of `size` bytes that were read."""
        self._fill(now)
        self._tokens -= size

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate. Owed bytes stay owed, up to one share of the new rate."""
        self._fill(now)
        self._rate = rate
        self._tokens = max(-float(self.share), min(self._tokens, float(self.share)))

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self._rate, float(self.share))
            self._at = now
