"""Whether a reader of a cluster would find anything between two offsets.

Offsets are used up by more than records: a transaction's marker, aborted records, and what
compaction took are nothing to a reader. Some clients (librdkafka's) never commit behind the last
marker of a transaction, so that offsets alone do not say whether a group has read everything.

Nothing is concluded from an answer without records (mirror/absence.py): each partition is asked for
by a request of its own, and bytes show what its offsets hold. Where compaction has taken the last
records of a log there are no bytes: two readings decide, of one leader epoch and some seconds
apart, with nothing in them that explains an empty answer otherwise. Until then something is taken
to be there, and the same question is asked again with the caller's next look.
"""

import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from twinlog.engines.exact.kafka_ports import KafkaSource
from twinlog.engines.exact.ports import ReadAlone
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.absence import Absent, Reading, judge
from twinlog.mirror.plan import Data, plan
from twinlog.operations.readiness.verdict import Standing

READ_BYTES: Final = 1024 * 1024
"""What one answer may hold."""
READS: Final = 16
"""Answers to one question; after them something is taken to be there."""


class Reader(Protocol):
    """What is asked of the cluster."""

    async def leaders(self, topics: Collection[str]) -> object:
        """All partitions of these topics, asked anew."""
        ...

    async def read_alone(
        self, partition: TopicPartition, offset: int, *, max_wait_ms: int, partition_max_bytes: int
    ) -> ReadAlone:
        """What the leader answers to a request for nothing but this (read_committed)."""
        ...


class Readable:
    """What read_committed readers would find, up to ends that do not move.

    Args:
        reader: of the cluster.
        clock: seconds, monotonic.
    """

    def __init__(self, reader: Reader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._known: dict[tuple[Standing, int], bool] = {}
        self._empty: dict[TopicPartition, Reading] = {}

    @classmethod
    def of(cls, cluster: KafkaCluster) -> "Readable":
        """Of a cluster that has been started."""
        return cls(KafkaSource(cluster))

    async def between(self, begin: Standing, end: int) -> bool:
        """Whether a record stands in `[begin.offset, end)`, or it cannot be told (yet).

        Raises:
            Retriable, UserError: the cluster does not answer, or refuses.
        """
        key = begin, end
        if key not in self._known:
            found = await self._look(begin, end)
            if found is None:
                return True
            self._known[key] = found
        return self._known[key]

    async def _look(self, begin: Standing, end: int) -> bool | None:
        """None: it cannot be told."""
        partition, at = begin
        await self._reader.leaders({partition.topic})
        for _ in range(READS):
            if at >= end:
                return False
            asked_at = self._clock()
            found = await self._reader.read_alone(
                partition, at, max_wait_ms=0, partition_max_bytes=READ_BYTES
            )
            if found.fetched.error:
                return None
            pieces = plan(found.fetched.records, Offset(at), found.fetched.aborted)
            if any(isinstance(piece, Data) and piece.start < end for piece in pieces):
                return True
            if not pieces:
                return self._judge(partition, _reading(found, at, asked_at), end)
            at = pieces[-1].end
        return None

    def _judge(self, partition: TopicPartition, second: Reading, end: int) -> bool | None:
        """What two readings without records say of the offsets up to `end`."""
        first = self._empty.get(partition)
        if first is None or (first.offset, first.leader_epoch) != (
            second.offset,
            second.leader_epoch,
        ):
            self._empty[partition] = second
            return None
        verdict = judge(first, second)
        return False if isinstance(verdict, Absent) and verdict.end >= end else None


def _reading(found: ReadAlone, offset: int, asked_at: float) -> Reading:
    return Reading(
        at=asked_at,
        offset=Offset(offset),
        last_stable=Offset(found.fetched.last_stable),
        throttle_ms=found.throttle_ms,
        preferred_replica=found.fetched.preferred_replica,
        leader_epoch=LeaderEpoch(found.leader_epoch),
        local_start=found.local_start,
        compacts=found.compacts,
    )
