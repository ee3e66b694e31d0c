"""What lanes report of their lags, compared with the source.

A lane that reports no lag has copied what the source's leader had when the lane last heard of it:
not what a follower shows that is cut off (KIP-392).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from model.loop import VirtualLoop
from simulation.checker import Violation
from twinlog.engines.base import PartitionProgress
from twinlog.kafka.types import TopicPartition

LAG_SECONDS: Final = 0.5
"""The interval of the checks."""


class Reported(NamedTuple):
    """What a lane reports of a source partition, and when it last heard of the source."""

    lane: str
    key: TopicPartition
    heard_at: float | None
    row: PartitionProgress


class LagChecks:
    """The checks of a simulation.

    Args:
        loop: fails if a lag is not reported.
        ends: the source partitions, and where each one ends now.
        reported: what lanes report now.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        ends: Callable[[], Collection[tuple[TopicPartition, int]]],
        reported: Callable[[], Iterable[Reported]],
    ) -> None:
        self._loop = loop
        self._ends = ends
        self._reported = reported
        self._known: defaultdict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)

    def start(self) -> None:
        """Check now, and again and again."""
        now = self._loop.time()
        for key, end in self._ends():
            self._known[key].append((now, end))
        for each in self._reported():
            self._check(each)
        self._loop.later(LAG_SECONDS, self.start)

    def _check(self, reported: Reported) -> None:
        lane, key, heard_at, row = reported
        if row.lag_ms != 0 or heard_at is None:
            return
        end = max((end for at, end in self._known[key] if at <= heard_at), default=0)
        if row.mirrored_end < end:
            self._loop.broken = Violation(
                f"{lane} reports no lag of {key}, and has copied up to {row.mirrored_end}: at "
                f"{heard_at:.3f} the source reached to {end}"
            )
