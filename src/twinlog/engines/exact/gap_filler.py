"""Fills the gaps of partitions, in rounds that share requests.

A gap that is ready for written markers shares a request with all others that the same broker
leads, whatever their state partitions: a broker handles the requests of a connection one by one.
Any other gap has to wait for a read, a new producer epoch, or an empty transaction. It shares a
round with the gaps of its state partition, and of its broker where there are written markers: one
that hangs delays its own partitions only.

A gap that a round has not shortened waits for a backoff of its own before it is in such a round
again. The others go on without it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import (
    DataFenced,
    Failure,
    MarkersLost,
    RoundBegan,
    RoundEnded,
)
from twinlog.engines.exact.marker_writer import write_all
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.exact.shard import Shard
from twinlog.engines.ports import LogEnd
from twinlog.kafka.errors import Disconnected, Retriable, UserError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_Round = tuple[int, int]
"""The gaps that one request fills: (shard or `_ALL_SHARDS`, destination broker or `_ALL_NODES`)."""
_ALL_NODES: Final = -1
_ALL_SHARDS: Final = -1

_BEGAN: Final = RoundBegan()

_Gaps = Mapping[ExactPartition, Gap]


@dataclass(slots=True, eq=False)
class _Stall:
    """Rounds that have not shortened a partition's gap, since one has."""

    failures: int = 0
    rounds: set[_Round] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    """Until it expires, the partition is in none of these rounds."""


class GapFiller:
    """The gaps that wait, by the round that will fill them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._queues: defaultdict[_Round, set[ExactPartition]] = defaultdict(set)
        self._running: set[_Round] = set()
        self._stalls: dict[ExactPartition, _Stall] = {}

    def want(self, partition: ExactPartition) -> None:
        """Fill its gap in the next round, unless it waits for that after one without progress."""
        key = self._key(partition, partition.append.gap_to_fill)
        stall = self._stalls.get(partition)
        if stall is not None and stall.timer is not None and key in stall.rounds:
            return
        self._queues[key].add(partition)
        if key not in self._running:
            self._running.add(key)
            self._plane.start(self._fill(key))

    def _key(self, partition: ExactPartition, gap: Gap | None) -> _Round:
        shard, node = self._plane.shard(partition), partition.destination_node
        if not shard.markers.allowed:
            return shard.number, _ALL_NODES
        # A gap before which data has to be fenced is never ready.
        if gap is None or node < 0 or not shard.ready(partition.key, gap):
            return shard.number, node
        return _ALL_SHARDS, node

    def forget(self, partition: ExactPartition) -> None:
        """Drop a partition from the next rounds."""
        self._recovered(partition)
        self._unqueue(partition)

    def _unqueue(self, partition: ExactPartition) -> None:
        for partitions in self._queues.values():
            partitions.discard(partition)

    def _recovered(self, partition: ExactPartition) -> None:
        """Let its next round without progress be the first one."""
        stall = self._stalls.pop(partition, None)
        if stall is not None and stall.timer is not None:
            stall.timer.cancel()

    def _stalled(self, partition: ExactPartition, key: _Round) -> None:
        """Let a gap wait that this round has not shortened: longer, the more there were."""
        stall = self._stalls.setdefault(partition, _Stall())
        stall.failures += 1
        stall.rounds.add(key)
        if stall.timer is not None:
            stall.timer.cancel()
        pause = self._plane.backoff(stall.failures)
        stall.timer = asyncio.get_running_loop().call_later(pause, self._wake, partition, stall)
        self._unqueue(partition)  # the end of the round has queued it
        self.want(partition)  # unless another kind of round, which has not been tried, fills it now

    def _wake(self, partition: ExactPartition, stall: _Stall) -> None:
        stall.timer = None
        if partition.append.gap_to_fill is None:
            del self._stalls[partition]
        else:
            self.want(partition)

    async def _fill(self, key: _Round) -> None:
        """Fill gaps of one kind of round, round by round, until none is left.

        Each round takes the shards anew: a state partition may have been taken over again.
        """
        partitions = self._queues[key]
        try:
            while partitions:
                if key[0] == _ALL_SHARDS:
                    await self._plane.gather_gaps(key[1])
                gaps = self._due(key)
                if not gaps:
                    break
                stalled: Collection[ExactPartition] = gaps
                with self._plane.guard(gaps):
                    stalled = await self._round(gaps, key)
                for partition in gaps:
                    if partition.gone or partition.append.gap_to_fill is None:
                        self._recovered(partition)
                    elif partition in stalled:
                        self._stalled(partition, key)
                    else:
                        self.want(partition)
        finally:
            self._running.discard(key)

    def _due(self, key: _Round) -> dict[ExactPartition, Gap]:
        """Take the gaps that wait for this round; those that need another one by now wait there."""
        partitions = list(self._queues[key])
        self._queues[key].clear()
        gaps: dict[ExactPartition, Gap] = {}
        for partition in partitions:
            # A gap that is being filled had another leader; its round queues it again.
            if partition.filling or (gap := partition.append.gap_to_fill) is None:
                continue
            if self._key(partition, gap) == key:
                gaps[partition] = gap
            else:
                self.want(partition)
        return gaps

    async def _round(self, gaps: _Gaps, key: _Round) -> Collection[ExactPartition]:
        """Run one round; if data has to be fenced first, only that. The gaps without progress."""
        emit = self._plane.emit
        fencing = {p: gap for p, gap in gaps.items() if p.append.fences_data_first}
        gaps = fencing or gaps
        self._plane.emit_all((partition, _BEGAN) for partition in gaps)
        answers: Mapping[TopicPartition, LogEnd] = {}
        try:
            answers = await self._filled(gaps, key, fences=bool(fencing))
        except Disconnected as error:
            for partition in gaps:
                emit(partition, MarkersLost(str(error)))
        except Retriable as error:
            log.info("gaps cannot be filled now; retrying: %s", error)
        except UserError as error:
            for partition in gaps:
                if not partition.gone:
                    emit(partition, Failure(f"a gap cannot be filled: {error}", transient=True))
        finally:
            ends = {partition: answers.get(partition.key) for partition in gaps}
            self._plane.emit_all((partition, RoundEnded(end)) for partition, end in ends.items())
        stalled = {p for p, gap in gaps.items() if not _has_grown(p, gap, ends[p])}
        if self._stalls:
            for partition in gaps.keys() - stalled:
                self._recovered(partition)
        for partition in fencing:
            end = ends[partition]
            if end is not None and not end.error:
                emit(partition, DataFenced())
        for node in {partition.destination_node for partition in gaps}:
            self._plane.pump(node)  # once: a Produce holds batches of many
        return stalled

    async def _filled(
        self, gaps: _Gaps, key: _Round, *, fences: bool
    ) -> Mapping[TopicPartition, LogEnd]:
        """Send what fills these gaps; return log ends and errors."""
        by_shard: defaultdict[Shard, dict[TopicPartition, Gap]] = defaultdict(dict)
        for partition, gap in gaps.items():
            by_shard[self._plane.shard(partition)][partition.key] = gap
        number, node = key
        if number == _ALL_SHARDS:
            parts = {s.markers: s.markers.prepare_ready(its) for s, its in by_shard.items()}
            return await write_all(parts, self._plane.destination, node)
        ((shard, shard_gaps),) = by_shard.items()
        return await (shard.fence_data(shard_gaps) if fences else shard.fill_gaps(shard_gaps))


def _has_grown(partition: ExactPartition, gap: Gap, end: LogEnd | None) -> bool:
    """Whether a round has used up offsets of this gap."""
    if end is None or end.error or partition.gone:
        return False
    return end.log_end > gap.start and partition.append.phase is not Phase.FAILED
