"""How long the destination has reported a topic as missing or recreated.

A broker with stale metadata does not know a new topic yet, or reports the topic that was there
before it. So one such answer proves nothing: it counts when every check of a lease has had it.
"""

import asyncio
from collections.abc import Collection

from twinlog.kafka.types import TopicPartition


class Sightings:
    """Since when each check has found the same state of a partition.

    Args:
        lease_s: how long the checks have to agree.
        recent_s: longer than the pause between two checks.
    """

    def __init__(self, lease_s: float, recent_s: float) -> None:
        self._lease_s = lease_s
        self._recent_s = recent_s
        self._since: dict[TopicPartition, float] = {}
        self._until: dict[TopicPartition, float] = {}

    def last(
        self, asked: Collection[TopicPartition], told: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """The partitions whose checks have agreed for long enough; these are then forgotten.

        The time starts again if a check disagrees, or if there was no check recently: the partition
        may have had another state in between.

        Args:
            asked: the partitions of this check.
            told: those of them that are in this state.
        """
        now = asyncio.get_running_loop().time()
        for partition in asked:
            recent = now < self._until.get(partition, 0.0) + self._recent_s
            if partition not in told or not recent:
                self._since.pop(partition, None)
        lasting = set()
        for partition in told:
            self._until[partition] = now
            if self._since.setdefault(partition, now) + self._lease_s <= now:
                lasting.add(partition)
                del self._since[partition], self._until[partition]
        return lasting
