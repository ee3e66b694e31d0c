"""Whether a reader of a cluster would find a record between two offsets.

Not only records use up offsets: a reader sees no markers, no aborted records, and nothing that
compaction has removed. Some clients (librdkafka's) never commit past the last marker of a
transaction. So offsets alone do not show whether a group has read everything.

An answer without records proves nothing (mirror/absence.py). Each partition is read by a request of
its own, and bytes show what its offsets hold. If compaction has removed the last records of a log,
there are no bytes. Then two readings decide, of one leader epoch and some seconds apart, with
nothing in them that explains an empty answer otherwise. Until then a record is assumed, and the
caller's next check repeats the question.
"""

import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.log_reader import ClusterLogs, ReadAlone
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.absence import Absent, Reading, judge
from twinlog.mirror.plan import Data, plan
from twinlog.operations.readiness.facts import Standing

READ_BYTES: Final = 1024 * 1024
"""Size of one answer at most."""
READS: Final = 16
"""Answers to one question at most; after them a record is assumed."""


class Reader(Protocol):
    """The requests that are sent to the cluster."""

    async def refresh(self, topics: Collection[str]) -> object:
        """Refresh the leaders and ids of these topics."""
        ...

    async def read_alone(
        self, partition: TopicPartition, offset: int, *, max_wait_ms: int, partition_max_bytes: int
    ) -> ReadAlone:
        """The leader's answer to a request for this partition alone (read_committed)."""
        ...


class Readable:
    """What read_committed readers would find, up to ends that do not move.

    Args:
        reader: reads from the cluster.
        clock: seconds, monotonic.
    """

    def __init__(self, reader: Reader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._results: dict[tuple[Standing, int], bool] = {}
        self._empty: dict[TopicPartition, Reading] = {}

    @classmethod
    def of(cls, cluster: KafkaCluster) -> "Readable":
        """Read from a cluster that has been started."""
        return cls(ClusterLogs(cluster))

    async def between(self, begin: Standing, end: int) -> bool:
        """Whether a record is in `[begin.offset, end)`, or that is unknown (yet).

        Raises:
            Retriable, UserError: the cluster is unreachable, or refuses.
        """
        key = begin, end
        if key not in self._results:
            is_readable = await self._look(begin, end)
            if is_readable is None:
                return True
            self._results[key] = is_readable
        return self._results[key]

    async def _look(self, begin: Standing, end: int) -> bool | None:
        """As `between`; None: it is unknown."""
        partition, at = begin
        await self._reader.refresh({partition.topic})
        for _ in range(READS):
            if at >= end:
                return False
            asked_at = self._clock()
            answer = await self._reader.read_alone(
                partition, at, max_wait_ms=0, partition_max_bytes=READ_BYTES
            )
            if answer.fetched.error:
                return None
            pieces = plan(answer.fetched.records, Offset(at), answer.fetched.aborted)
            if any(isinstance(piece, Data) and piece.start < end for piece in pieces):
                return True
            if not pieces:
                return self._judge(partition, _reading(answer, at, asked_at), end)
            at = pieces[-1].end
        return None

    def _judge(self, partition: TopicPartition, second: Reading, end: int) -> bool | None:
        """What two readings without records prove about the offsets up to `end`."""
        first = self._empty.get(partition)
        if first is None or (first.offset, first.leader_epoch) != (
            second.offset,
            second.leader_epoch,
        ):
            self._empty[partition] = second
            return None
        verdict = judge(first, second)
        return False if isinstance(verdict, Absent) and verdict.end >= end else None


def _reading(answer: ReadAlone, offset: int, asked_at: float) -> Reading:
    return Reading(
        at=asked_at,
        offset=Offset(offset),
        last_stable=Offset(answer.fetched.last_stable),
        throttle_ms=answer.throttle_ms,
        preferred_replica=answer.fetched.preferred_replica,
        leader_epoch=LeaderEpoch(answer.leader_epoch),
        local_start=answer.local_start,
        compacts=answer.compacts,
    )
