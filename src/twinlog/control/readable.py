"""Whether a reader of a cluster would find anything between two offsets.

Offsets are used up by more than records: a transaction's marker, aborted records, and what
compaction took are nothing to a reader. Some clients (librdkafka's) never commit behind the last
marker of a transaction, so that offsets alone do not say whether a group has read everything.
"""

from typing import Final

from twinlog.cluster.client import KafkaCluster
from twinlog.control.readiness import Standing
from twinlog.core.plan import Data, plan
from twinlog.core.types import Offset
from twinlog.pipeline.kafka import KafkaSource

READ_BYTES: Final = 1024 * 1024
"""What one answer may hold."""
READS: Final = 16
"""Answers after which something is taken to be there."""


class Readable:
    """What read_committed readers would find, up to ends that do not move."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._reader = KafkaSource(cluster)
        self._known: dict[tuple[Standing, int], bool] = {}

    async def between(self, begin: Standing, end: int) -> bool:
        """Whether a record stands in `[begin.offset, end)`, or it cannot be told.

        Raises:
            Retriable, UserError: the cluster does not answer, or refuses.
        """
        key = begin, end
        if key not in self._known:
            self._known[key] = await self._look(begin, end)
        return self._known[key]

    async def _look(self, begin: Standing, end: int) -> bool:
        partition, at = begin
        await self._reader.leaders({partition.topic})
        for _ in range(READS):
            if at >= end:
                return False
            answers = await self._reader.read({partition: at}, partition_max_bytes=READ_BYTES)
            answer = answers[partition]
            if answer.error:
                return True
            pieces = plan(answer.records, Offset(at), answer.aborted)
            if any(isinstance(piece, Data) and piece.start < end for piece in pieces):
                return True
            if not pieces:
                # Where nothing is left at the end of the log, the cleaner has taken it.
                return answer.last_stable < end
            at = pieces[-1].end
        return True
