"""Follows the leaders of partitions on both clusters.

They are refreshed at once when an answer shows that they may have moved, otherwise by age.
"""

import asyncio
import logging
from collections.abc import Callable

from twinlog.engines.exact.events import DestinationLed, Event, SourceLed
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.ports import WHOLE_TOPIC, DestinationPort, LeaderReport, SourcePort
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import TopicPartition

log = logging.getLogger(__name__)


class Leaders:
    """The topics whose leaders are to be refreshed."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._stale_source: set[str] = set()
        self._stale_destination: set[str] = set()
        self._asked_destination: set[str] = set()
        self._request = asyncio.Event()

    def refresh(self, topic: str) -> None:
        """Refresh the leaders of this topic on both clusters."""
        self._stale_source.add(topic)
        self._stale_destination.add(topic)
        self._request.set()

    def knows_topic(self, partition: ExactPartition) -> bool:
        """Whether the destination's leaders were refreshed since they were last found stale.

        The answer has the topic's id: until it arrives, the topic may have been recreated. True
        where no topic id is known to compare it with.
        """
        topic = partition.key.topic
        pending = topic in self._stale_destination or topic in self._asked_destination
        return partition.spec.destination_topic_id is None or not pending

    async def run(self) -> None:
        """Refresh leaders until cancelled."""
        self._request.set()
        while True:
            try:
                async with asyncio.timeout(self._plane.settings.leaders_max_age_s):
                    await self._request.wait()
            except TimeoutError:
                topics = {key.topic for key in self._plane.partitions}
                self._stale_source |= topics
                self._stale_destination |= topics
            self._request.clear()
            source, self._stale_source = self._stale_source, set()
            destination, self._stale_destination = self._stale_destination, set()
            self._asked_destination = destination
            await asyncio.gather(
                self._ask(self._plane.source, source, SourceLed),
                self._ask(self._plane.destination, destination, DestinationLed),
            )
            await asyncio.sleep(self._plane.settings.leaders_pause_s)

    async def _ask(
        self,
        port: SourcePort | DestinationPort,
        topics: set[str],
        event: Callable[[LeaderReport | None], Event],
    ) -> None:
        if not topics:
            return
        of_source = event is SourceLed
        try:
            leaders = await port.leaders(topics)
        except Retriable as error:
            log.info("leaders cannot be refreshed now; retrying: %s", error)
            (self._stale_source if of_source else self._stale_destination).update(topics)
            asyncio.get_running_loop().call_later(self._plane.backoff(3), self._request.set)
            return
        for partition in [p for p in self._plane.partitions.values() if p.key.topic in topics]:
            whole = leaders.get(TopicPartition(partition.key.topic, WHOLE_TOPIC))
            self._plane.emit(partition, event(leaders.get(partition.key, whole)))
        if not of_source:
            self._asked_destination = set()
