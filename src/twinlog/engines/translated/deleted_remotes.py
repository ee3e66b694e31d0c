"""Stops partitions whose remote topic was deleted: there is nothing to fence any more.

A fence is a marker in the partition's log. If the topic is gone it can never be written, so the
partition would be STOPPING for good. But a broker that has just started, or is cut off from the
controllers, does not know a topic either, and what is not fenced may land in a topic that exists.
So a topic counts as deleted only when all brokers have agreed, at each check of a lease: for as
long as a request of a former owner may be under way.
"""

import logging
from collections.abc import Mapping

from twinlog.engines.base import Sealed
from twinlog.engines.destination.sightings import Sightings
from twinlog.engines.ports import DestinationPort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import UNKNOWN_OFFSET, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition

log = logging.getLogger(__name__)


class DeletedRemotes:
    """Which remote topics of one state partition were deleted.

    Args:
        port: the destination.
        settings: the lane's limits.
    """

    def __init__(self, port: DestinationPort, settings: LaneSettings) -> None:
        self._port = port
        recent_s = settings.lease_s + 2 * settings.backoff_max_s
        self._absent = Sightings[TopicPartition](settings.lease_s, recent_s)

    async def sealed(
        self, unfenced: Mapping[MirrorPartition, TopicPartition]
    ) -> Mapping[MirrorPartition, Sealed]:
        """Those of these partitions that need no fence.

        Args:
            unfenced: remote partitions that could not be fenced, by name; call it again for them.
        """
        remotes = set(unfenced.values())
        topics = {remote.topic for remote in remotes}
        try:
            absent = await self._port.absent(topics) if topics else ()
        except Retriable as error:  # a broker that does not answer may have the topic
            log.info("whether topics were deleted is not known now: %s", error)
            absent = ()
        gone = self._absent.last(remotes, {one for one in remotes if one.topic in absent})
        return {
            name: Sealed(
                Offset(UNKNOWN_OFFSET),
                f"the remote topic {remote.topic} was deleted on the destination",
            )
            for name, remote in unfenced.items()
            if remote in gone
        }
