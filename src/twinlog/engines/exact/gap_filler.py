"""Fills the gaps of partitions, in rounds that share requests.

The gaps of a shard share a request. Written markers have a round for each broker: one that hangs
delays its own partitions only.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import (
    DataFenced,
    Failure,
    GapAnswered,
    MarkersLost,
    RoundBegan,
    RoundEnded,
)
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.exact.ports import LogEnd
from twinlog.engines.exact.shard import Shard
from twinlog.kafka.errors import Disconnected, Retriable, UserError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_Round = tuple[int, int]
"""The gaps that one request fills: (shard, destination broker, or `_ALL_NODES`)."""
_ALL_NODES: Final = -1


class GapFiller:
    """The gaps that wait, by the round that will fill them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._waiting: defaultdict[_Round, set[ExactPartition]] = defaultdict(set)
        self._running: set[_Round] = set()

    def want(self, partition: ExactPartition) -> None:
        """Fill its gap in the next round."""
        shard = self._plane.shard(partition)
        node = partition.destination_node if shard.markers.allowed else _ALL_NODES
        key = partition.spec.shard, node
        self._waiting[key].add(partition)
        if key not in self._running:
            self._running.add(key)
            self._plane.start(self._fill(key))

    def forget(self, partition: ExactPartition) -> None:
        """Drop a partition from the next rounds."""
        for waiting in self._waiting.values():
            waiting.discard(partition)

    async def _fill(self, key: _Round) -> None:
        """Fill gaps of one state partition, round by round, until none is left.

        Each round takes the shard anew: the state partition may have been taken over again.
        """
        failures = 0
        waiting = self._waiting[key]
        try:
            while waiting:
                # A gap that is being filled had another leader; its round queues it again.
                gaps = {p: g for p in waiting if not p.filling and (g := p.append.gap_to_fill)}
                waiting.clear()
                if not gaps:
                    break
                progressed = False
                with self._plane.guard(gaps):
                    shard = self._plane.shard(next(iter(gaps)))
                    progressed = await self._round(shard, gaps)
                for partition in gaps:
                    if not partition.gone and partition.append.gap_to_fill is not None:
                        self.want(partition)
                if progressed:
                    failures = 0
                elif waiting:
                    failures += 1
                    await asyncio.sleep(self._plane.backoff(failures))
        finally:
            self._running.discard(key)

    async def _round(self, shard: Shard, gaps: Mapping[ExactPartition, Gap]) -> bool:
        """Run one round; if data has to be fenced first, only that. Whether a log end moved."""
        emit = self._plane.emit
        fencing = {p: gap for p, gap in gaps.items() if p.append.fences_data_first}
        gaps = fencing or gaps
        needs = {partition.key: gap for partition, gap in gaps.items()}
        for partition in gaps:
            emit(partition, RoundBegan())
        found: Mapping[TopicPartition, LogEnd] = {}
        try:
            found = await (shard.fence_data(needs) if fencing else shard.fill_gaps(needs))
        except Disconnected as error:
            for partition in gaps:
                emit(partition, MarkersLost(str(error)))
        except Retriable as error:
            log.info("shard %d: gaps cannot be filled now; retrying: %s", shard.number, error)
        except UserError as error:
            for partition in gaps:
                if not partition.gone:
                    emit(partition, Failure(f"a gap cannot be filled: {error}", transient=True))
        finally:
            for partition in gaps:
                emit(partition, RoundEnded())
        ends = {partition: found.get(partition.key) for partition in gaps}
        moved = [self._answer(partition, end) for partition, end in ends.items()]
        for partition in fencing:
            end = ends[partition]
            if end is not None and not end.error:
                emit(partition, DataFenced())
        return any(moved)

    def _answer(self, partition: ExactPartition, end: LogEnd | None) -> bool:
        """Report the log end offset after a round; whether it is above the one before."""
        before, fails = partition.append.log_end, partition.append.phase is Phase.FAILED
        self._plane.emit(partition, GapAnswered(end))
        if end is None or end.error or partition.gone:
            return False
        misplaced = partition.append.phase is Phase.FAILED and not fails
        return end.log_end > before and not misplaced
