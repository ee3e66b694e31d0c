"""Reads the source of a flow: one fetch session for each of its brokers.

An answer belongs to the sequence that it was asked for: if the partition is located again in the
meantime, the answer is dropped. An answer without records proves nothing.
"""

import asyncio
import logging
from collections import defaultdict

from twinlog.engines.base import BrokerTraffic
from twinlog.engines.exact.jumps import believe
from twinlog.engines.exact.ports import SourcePort
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import CorruptBatch, ProtocolError, Reaction, Refusal, Retriable, code_of
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, Offset, TopicPartition
from twinlog.mirror.plan import finished, planning_sound

log = logging.getLogger(__name__)

_Asked = dict[TopicPartition, tuple[FlowPartition, PartitionSequence, int]]
"""The partitions of a fetch, their sequences then, and the offsets that were asked for."""


class FlowReader:
    """The fetches of a flow."""

    def __init__(self, flow: FlowPartitions, source: SourcePort) -> None:
        self._flow = flow
        self._source = source
        self._counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])

    @property
    def traffic(self) -> list[BrokerTraffic]:
        """Requests, bytes and errors of each source broker."""
        return [BrokerTraffic(node, *counts) for node, counts in sorted(self._counts.items())]

    async def read(self, node: int) -> None:
        """Read from one broker, as long as it leads partitions with room."""
        flow, settings, counts, failures = self._flow, self._flow.settings, self._counts[node], 0
        while asked := self._asked(node):
            asked_at = flow.now()
            counts[0] += 1
            try:
                result = await self._source.fetch(
                    node,
                    {key: FetchPosition(offset) for key, (_, _, offset) in asked.items()},
                    max_wait_ms=settings.fetch_max_wait_ms,
                    max_bytes=settings.fetch_max_bytes,
                    partition_max_bytes=settings.partition_fetch_bytes,
                )
            except (Retriable, ProtocolError) as error:
                counts[2] += 1
                failures += 1
                log.info("source broker %d: %s", node, error)
                flow.ask_leaders()
                await asyncio.sleep(flow.pause(failures + 1))
                continue
            failures = 0
            for key, fetched in result.partitions.items():
                if key in asked:
                    counts[1] += len(fetched.records)
                    await self._take(*asked[key], fetched)
            if not result.throttle_ms:  # otherwise partitions with news may be left out
                for partition, sequence, _ in asked.values():
                    if partition.sequence is sequence:
                        partition.heard_at = asked_at
            flow.changed.set()
            if result.size < settings.fetch_small_bytes:
                await asyncio.sleep(settings.fetch_pace_s - (flow.now() - asked_at))

    def _asked(self, node: int) -> _Asked:
        room = self._flow.settings.partition_queue_bytes
        return {
            partition.source: (partition, sequence, sequence.position)
            for partition, sequence in self._flow.copying
            if partition.source_node == node and sequence.queued_bytes < room
        }

    async def _take(
        self, partition: FlowPartition, sequence: PartitionSequence, offset: int, fetched: Fetched
    ) -> None:
        if partition.sequence is not sequence or sequence.position != offset:
            return
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._passed(partition, offset)
        elif fetched.error and code_of(fetched.error).reaction is Reaction.METADATA:
            partition.source_node = -1
            self._flow.ask_leaders()
        elif fetched.error:
            self._flow.trouble(partition, f"the source refuses: {Refusal(fetched.error)}")
        else:
            partition.source_end = max(partition.source_end, fetched.high_watermark)
            partition.source_stable = max(partition.source_stable, fetched.last_stable)
            if len(fetched.records):
                self._queue(partition, sequence, offset, fetched)
            partition.note_lag(self._flow.now())

    def _queue(
        self, partition: FlowPartition, sequence: PartitionSequence, offset: int, fetched: Fetched
    ) -> None:
        """Queue the records of an answer; unexplained skipped offsets are read twice (jumps.py)."""
        limit = self._flow.settings.buffer_bytes
        try:
            planned = finished(
                planning_sound(fetched.records, Offset(offset), fetched.aborted, limit)
            )
        except CorruptBatch as error:
            self._flow.trouble(partition, f"corrupt batch in a fetch from the source: {error}")
            return
        pieces = planned.pieces
        if not partition.assignment.compacted:
            pieces, partition.doubted, unexplained = believe(pieces, partition.doubted)
            for jump in unexplained:
                log.warning(
                    "%s: the source skips offsets [%d, %d) in both of two readings, and "
                    "cleanup.policy=compact does not explain it",
                    partition.name,
                    jump.start,
                    jump.end,
                )
        sequence.offer(pieces)

    async def _passed(self, partition: FlowPartition, offset: int) -> None:
        """Find out which end of the source's log was passed."""
        bounds = (await self._source.bounds([partition.source]))[partition.source]
        if bounds.error or partition.gone:
            self._flow.ask_leaders()
            return
        if bounds.start > offset:
            self._flow.fail(
                partition,
                f"the source deleted records [{offset}, {bounds.start}) before they were copied",
                transient=False,
            )
        else:
            self._flow.trouble(
                partition,
                f"the source's log ends at {bounds.high_watermark}, and was copied up to {offset}: "
                "the source has lost records",
            )
