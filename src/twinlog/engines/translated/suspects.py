"""The partitions of a flow that wait for records although the source has offsets.

They are read alone (source/absences.py). Records of such a read are not taken: the session's next
answer has them. For the rest of a compacted log nothing is copied, and the lag ends.
"""

import logging
from typing import Any, Final

from twinlog.engines.ports import SourcePort
from twinlog.engines.source.absences import WaitingPlace
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, SourceQueue
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import UNKNOWN_OFFSET, EpochEnd, Offset
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_ONE_BATCH: Final = 1
"""Bytes: a broker returns the first batch whole, however long it is."""
_NOT_READ: Final = WaitingPlace(UNKNOWN_OFFSET)
"""Where a partition is that is not copied: it gets another queue before it is read again."""

_Partition = FlowPartition[Any, Any]


class FlowSuspects:
    """What a flow does about its suspects (`Suspects`).

    Args:
        flow: its partitions.
        source: what is read.
    """

    def __init__(self, flow: FlowPartitions[Any, Any], source: SourcePort) -> None:
        self._flow = flow
        self._source = source

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._flow.now()

    def place(self, partition: _Partition) -> WaitingPlace:
        """The position of its queue."""
        queue = partition.sequence
        return _NOT_READ if queue is None else WaitingPlace(queue.position, queue)

    def compacted(self, partition: _Partition) -> bool:
        """Whether the destination's topic compacts."""
        return partition.assignment.compacted

    def unreadable(self, partition: _Partition) -> str | None:
        """Why the replica cannot be read that the leader names."""
        return partition.unreadable

    async def read_alone(self, partition: _Partition, offset: Offset) -> ReadAlone:
        """Read the least that shows whether there are records."""
        return await self._source.read_alone(
            partition.source,
            offset,
            max_wait_ms=self._flow.settings.fetch_max_wait_ms,
            partition_max_bytes=_ONE_BATCH,
            # A leader that names a replica to a session does not compare epochs there.
            last_epoch=_queue(partition).epochs.before(offset),
        )

    async def take(self, partition: _Partition, fetched: Fetched) -> str | None:
        """Leave the records to the session, unless it is sent to a replica that cannot be read."""
        del fetched
        return partition.unreadable

    def doubt_leaders(self, partition: _Partition) -> None:
        """Ask for the leaders again."""
        del partition
        self._flow.ask_leaders()

    def diverged(self, partition: _Partition, source: EpochEnd) -> None:
        """Locate it again, or report what was copied and lost."""
        self.explain(partition, None)
        self._flow.diverged(partition, _queue(partition), source)

    def pass_over(self, partition: _Partition, gap: Gap) -> None:
        """Go on behind the gap, without a copy."""
        _queue(partition).offer([gap])
        partition.pass_over(gap)
        partition.note_lag(self._flow.now())
        self._flow.changed.set()

    def fail(self, partition: _Partition, reason: str) -> None:
        """Stop it; it is located again later."""
        self._flow.fail(partition, reason)

    def explain(self, partition: _Partition, reason: str | None) -> None:
        """Report why it waits."""
        if reason is None:
            partition.unreadable = None
        if partition.silence == reason:
            return
        partition.silence = reason
        if reason is not None:
            log.warning("%s waits for records of the source: %s", partition, reason)
        self._flow.news.add(partition.assignment.state_partition)


def _queue(partition: _Partition) -> SourceQueue:
    """What was read alone is of a partition that is being copied."""
    queue: SourceQueue | None = partition.sequence
    assert queue is not None
    return queue
