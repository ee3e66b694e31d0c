"""How long the destination has reported a topic as missing or recreated.

A broker with stale metadata does not know a new topic yet, or reports the topic that was there
before it. So one such answer proves nothing: it counts when every check of a lease has had it.
"""

import asyncio
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sightings(Generic[K]):
    """Since when each check has found the same state of a partition, or of its log.

    Args:
        lease_s: how long the checks have to agree.
        recent_s: longer than the pause between two checks.
    """

    def __init__(self, lease_s: float, recent_s: float) -> None:
        self._lease_s = lease_s
        self._recent_s = recent_s
        self._first_times: dict[K, float] = {}
        self._last_times: dict[K, float] = {}

    def last(self, partitions: Collection[K], positives: Collection[K]) -> set[K]:
        """The partitions whose checks have agreed for long enough; these are then forgotten.

        The time starts again if a check disagrees, or if there was no check recently: the partition
        may have had another state in between.

        Args:
            partitions: the partitions of this check.
            positives: those of them that are in this state.
        """
        now = asyncio.get_running_loop().time()
        for partition in partitions:
            recent = now < self._last_times.get(partition, 0.0) + self._recent_s
            if partition not in positives or not recent:
                self._first_times.pop(partition, None)
        lasting = set()
        for partition in positives:
            self._last_times[partition] = now
            if self._first_times.setdefault(partition, now) + self._lease_s <= now:
                lasting.add(partition)
                del self._first_times[partition], self._last_times[partition]
        return lasting
