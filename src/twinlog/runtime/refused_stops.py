"""Stops that the destination has refused, and when each is retried."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from twinlog.kafka.backoff import Backoff
from twinlog.mirror.placement import MirrorPartition

STOP_AGAIN_S: Final = 1.0
"""The first backoff before a refused stop is retried, with jitter."""
_EARLY_S: Final = 0.01
"""A timer may fire a little before its time."""


class _Refused(NamedTuple):
    """How often in a row a stop was refused, and when it is retried."""

    times: int
    again_at: float


class RefusedStops:
    """The refused stops of one owned state partition.

    Args:
        backoff_max_s: the longest time before a stop is retried.
    """

    def __init__(self, backoff_max_s: float) -> None:
        self._max_s = max(backoff_max_s, STOP_AGAIN_S)
        self._refusals: dict[MirrorPartition, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def add(self, name: MirrorPartition, jitter: float) -> int:
        """Note a refusal; return how many there were in a row."""
        times = self._refusals[name].times + 1 if name in self._refusals else 1
        pause = Backoff(STOP_AGAIN_S, self._max_s, jitter=0.5).delay(times, jitter)
        self._refusals[name] = _Refused(times, _now() + pause)
        return times

    def __iter__(self) -> Iterator[MirrorPartition]:
        return iter(self._refusals)

    def forget(self, names: Iterable[MirrorPartition]) -> None:
        """Forget the refusals of these."""
        for name in names:
            self._refusals.pop(name, None)

    def due(self, names: Iterable[MirrorPartition]) -> list[MirrorPartition]:
        """The partitions of these whose stop was not refused, or whose backoff has ended."""
        now = _now() + _EARLY_S
        return [n for n in names if n not in self._refusals or self._refusals[n].again_at <= now]

    @property
    def due_in(self) -> float | None:
        """Seconds until the next retry of a refused stop; None if none was refused."""
        times = [refusal.again_at for refusal in self._refusals.values()]
        return max(0.0, min(times) - _now()) if times else None


def _now() -> float:
    return asyncio.get_running_loop().time()
