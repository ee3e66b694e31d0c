"""The exact engine's partitions that are read from followers, whose leaders are asked.

What a follower answers is no contact with the source (source/leader_bounds.py). The leader's ends
count at once. Its log start offset does not: ListOffsets names a topic, not its id, and the
destination's records are deleted up to there. It is taken from the leader's own Fetch, which names
the id, when the leader is read again (`leaders_max_age_s`).
"""

import asyncio
from collections.abc import Collection, Mapping

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import SourceBounds
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.source.leader_bounds import LOOK_S, FollowedPartition, LeaderBounds
from twinlog.kafka.types import LogBounds, Offset, TopicPartition


class ExactFollowers:
    """What a data plane knows of them (`Followers`)."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._plane.now()

    def followed(self) -> Mapping[ExactPartition, FollowedPartition]:
        """Those whose position is known, and that are read from followers now."""
        return {
            partition: FollowedPartition(
                source=partition.key,
                leader=partition.source_node,
                leader_epoch=partition.source_leader_epoch,
                high_watermark=partition.source_high_watermark,
                last_stable=partition.source_stable,
                reading=partition.touched,
            )
            for partition in self._plane.partitions.values()
            if partition.follows and partition.append.phase is Phase.APPENDING
        }

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Ask the source."""
        return await self._plane.source.bounds(partitions)

    def heard(self, partition: ExactPartition, bounds: LogBounds, asked_at: float) -> None:
        """Note the ends, and the contact. The follower may have shown more in the meantime."""
        ends = Offset(bounds.high_watermark), Offset(bounds.last_stable)
        self._plane.emit(partition, SourceBounds(*ends, bounds.start, at_least=True))
        partition.source_heard_at = asked_at


class LeaderQuestions:
    """Asks the leaders of a data plane's followed partitions."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._bounds = LeaderBounds[ExactPartition](ExactFollowers(plane))

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for leader in self._bounds.due():
                self._plane.start(self._bounds.ask(leader))
