"""Moves the destination's log start offsets to the source's, by DeleteRecords."""

import asyncio
import logging
from collections.abc import Iterable

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, code_of
from twinlog.kafka.types import Offset, TopicPartition

log = logging.getLogger(__name__)


class LogStartFollower:
    """The partitions whose log start offset has to move."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._partitions: set[ExactPartition] = set()
        self.delay_s = 0.0
        """For how long a log start offset of the source has to be known (log_starts.py)."""

    def want(self, partition: ExactPartition) -> None:
        """Move its log start offset when that is due."""
        self._partitions.add(partition)

    def forget(self, partition: ExactPartition) -> None:
        """Leave its log start offset where it is."""
        self._partitions.discard(partition)

    def due(self, partitions: Iterable[ExactPartition]) -> dict[TopicPartition, Offset]:
        """Those of these whose log start offset can be moved now, and the offset."""
        now, delay = self._plane.now(), self.delay_s
        return {
            p.key: start
            for p in partitions
            if p in self._partitions
            and p.append.phase is Phase.APPENDING
            and (start := p.log_starts.due(now, delay, p.bulk_until)) is not None
            and p.append.log_end >= start
        }

    async def move_last(self, starts: dict[TopicPartition, Offset]) -> None:
        """Move these once, for partitions that are not owned any more; failures are not retried.

        Otherwise a node that ends when it has caught up would leave the log starts behind.
        """
        try:
            await self._plane.destination.delete_records(starts)
        except TwinlogError as error:
            log.info("log start offsets stay where they are: %s", error)

    async def run(self) -> None:
        """Move what is due, until cancelled."""
        while True:
            await asyncio.sleep(self._plane.settings.trim_interval_s)
            starts = self.due(self._partitions)
            if not starts:
                continue
            try:
                answers = await self._plane.destination.delete_records(starts)
            except Retriable as error:
                log.info("log start offsets cannot be moved now; retrying: %s", error)
                continue
            for key, code in answers.items():
                partition = self._plane.partitions.get(key)
                if partition is not None:
                    self._moved(partition, starts[key], code)

    def _moved(self, partition: ExactPartition, start: Offset, code: int) -> None:
        if not code:
            partition.destination_start = start
            partition.log_starts.followed(start)
            if not partition.log_starts:
                self.forget(partition)
        elif not code_of(code).reaction.retriable:
            self.forget(partition)
            log.warning(
                "%s: the destination refuses DeleteRecords up to offset %d: %s",
                partition,
                start,
                Refusal(code),
            )
