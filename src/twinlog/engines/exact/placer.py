"""Reads positions from the destination, and proves that its log is the source's.

A position counts only if three offsets agree (docs/architecture/append.md, 1.): the log end offset
is the same before and after the producers are read, in one leader epoch, and the high watermark has
reached it, so that a clean election loses nothing below it. Nor does it count while the
destination's leaders are being refreshed: the answer shows whether the topic is still the mirror's,
or was recreated and is empty.

Then the destination's last batch is compared with the source's records at the same offsets
(`proof.py`). Otherwise records that another producer has written while the partition was not
mirrored would count as mirrored, and every offset after them would be wrong. If the leader epoch of
the source's last mirrored record is known, the source must have the same epoch at that offset.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from twinlog.engines.exact.append import Phase, Position, position_of
from twinlog.engines.exact.events import (
    Ahead,
    Event,
    Failure,
    LeadersDoubted,
    Located,
    NotAhead,
    Trouble,
    Unsettled,
)
from twinlog.engines.exact.leaders import Leaders
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.exact.proof import Claim, Differs, Proven, prove
from twinlog.engines.source.policies import SourcePolicies
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, LogBounds, Offset

log = logging.getLogger(__name__)

_FILLERS: Final = "transactions of a former owner cannot be ended"
_AT_ONCE: Final = 2
"""Groups of partitions of one pair of brokers whose positions are read at the same time."""


class _Found(NamedTuple):
    """A position that was read, and the source's bounds."""

    position: Position
    source: LogBounds
    fillers: bool  # whether markers of filler ids may have landed after it was read
    fresh: bool = False  # it has no reader yet: it is empty, or contains bulk records only
    compared: bool = False  # whether its last data was found on the source (`Proven`)
    epoch: LeaderEpoch = UNKNOWN_EPOCH  # of the source's last record before the position

    def takes_bulk(self, partition: ExactPartition) -> bool:
        """Whether the offsets below the source's log start are used up in bulk."""
        is_below = self.position.log_end < self.source.start
        return is_below and self.fresh and not partition.spec.compacted

    def located(self, partition: ExactPartition, read_at: float) -> Located:
        """The event for the partition's machine; `read_at`: when the request was sent."""
        bulk = self.takes_bulk(partition)
        return Located(self.position, read_at, self.source, bulk, self.compared, self.epoch)


class Placer:
    """Places the partitions that need a position, grouped by their pair of brokers."""

    def __init__(self, plane: Plane, leaders: Leaders, policies: SourcePolicies) -> None:
        self._plane = plane
        self._leaders = leaders
        self._policies = policies
        self._queue: dict[ExactPartition, None] = {}
        self._turns: defaultdict[tuple[int, int], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        self._placing: dict[ExactPartition, list[ExactPartition]] = {}  # each with its batch
        self._scheduled = False

    def want(self, partition: ExactPartition) -> None:
        """Queue a partition; the engine is called when its position is read."""
        if partition not in self._placing:
            self._queue[partition] = None
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._flush)

    def forget(self, partition: ExactPartition) -> None:
        """Remove a partition from the queue."""
        self._queue.pop(partition, None)

    def _flush(self) -> None:
        self._scheduled = False
        partitions, self._queue = self._queue, {}
        # A broker that does not answer delays its own partitions only.
        groups: defaultdict[tuple[int, int], list[ExactPartition]] = defaultdict(list)
        for partition in partitions:
            groups[partition.source_node, partition.destination_node].append(partition)
        size = self._plane.settings.read_partitions_at_once
        for brokers, group in groups.items():
            for start in range(0, len(group), size):
                batch = group[start : start + size]
                self._placing.update(dict.fromkeys(batch, batch))
                self._plane.start(self._place(batch, self._turns[brokers]), about=batch)

    async def _place(self, batch: list[ExactPartition], turns: asyncio.Semaphore) -> None:
        readings: dict[ExactPartition, _Found] = {}
        trouble = ""
        read_at = self._plane.now()
        try:
            async with turns:
                read_at = self._plane.now()
                readings = await self._read(batch)
                await self._prove(readings)
                self._await_fillers(readings)
        except Retriable as error:
            trouble = str(error)
        finally:
            # A partition that was given up may be in another batch now, which reads its position.
            batch[:] = [p for p in batch if self._placing.get(p) is batch]
            for partition in batch:
                del self._placing[partition]
        for partition in batch:
            if partition.gone or partition.append.phase is not Phase.PLACING:
                continue
            if trouble:
                self._plane.emit(partition, Trouble(f"the position cannot be read: {trouble}"))
                self._plane.emit(partition, LeadersDoubted())
            elif partition in readings and not self._leaders.knows_topic(partition):
                self._give_up(partition, Unsettled())
            elif partition in readings:
                self._plane.emit(partition, readings[partition].located(partition, read_at))

    # ---- reading -------------------------------------------------------------------------------

    async def _read(self, batch: Sequence[ExactPartition]) -> dict[ExactPartition, _Found]:
        """Read the positions that count; errors of the others are reported to the engine."""
        keys = [partition.key for partition in batch]
        fillers = {p for p in batch if self._plane.shard(p).fillers.held_up(p.key)}
        destination = self._plane.destination
        before = await destination.log_ends(keys)
        producers, bounds, source = await asyncio.gather(
            destination.producers(keys),
            destination.bounds(keys),
            self._plane.source.bounds(keys),
        )
        after = await destination.log_ends(keys)
        readings = {}
        for partition in batch:
            key = partition.key
            if partition.gone:
                continue
            answers = (before[key], producers[key], bounds[key], after[key])
            code = next((answer.error for answer in answers if answer.error), 0)
            if code:
                reason = "the destination's position cannot be read"
                self._give_up(partition, Trouble(reason, code))
            elif source[key].error:
                reason = "the source's bounds cannot be read"
                self._give_up(partition, Trouble(reason, source[key].error))
            elif before[key] != after[key] or bounds[key].high_watermark != after[key].log_end:
                self._give_up(partition, Unsettled())
            else:
                partition.destination_start = Offset(bounds[key].start)
                position = position_of(
                    Offset(after[key].log_end),
                    producers[key].active,
                    self._plane.shard(partition).data_producer,
                    self._plane.fresh_after_ms(),
                    of_several_ids=partition.spec.of_several_ids,
                )
                readings[partition] = _Found(position, source[key], partition in fillers)
        return {p: f for p, f in readings.items() if not self._ahead(p, f)}

    def _give_up(self, partition: ExactPartition, event: Event) -> None:
        """Leave a partition out of its batch, so that the position can be read again."""
        self._placing.pop(partition, None)
        self._plane.emit(partition, event)

    def _ahead(self, partition: ExactPartition, reading: _Found) -> bool:
        """Whether the destination's log ends above the source's last stable offset."""
        log_end, last_stable = reading.position.log_end, Offset(reading.source.last_stable)
        if last_stable >= log_end:
            self._plane.emit(partition, NotAhead())
            return False
        self._give_up(partition, Ahead(log_end, last_stable))
        return True

    # ---- proving -------------------------------------------------------------------------------

    async def _prove(self, readings: dict[ExactPartition, _Found]) -> None:
        """Drop from `readings` logs that do not end as the source's; they fail, or are retried."""
        claims = {
            p.key: Claim(
                log_end=f.position.log_end,
                destination_start=p.destination_start,
                source_start=Offset(f.source.start),
                compacted=p.spec.compacted,
                epoch=p.source_epochs.before(f.position.log_end),
            )
            for p, f in readings.items()
        }
        limit = self._plane.settings.buffer_bytes
        ports = self._plane.source, self._plane.destination
        results = await prove(*ports, claims, limit, self._policies.compacts)
        for partition, reading in list(readings.items()):
            result = results[partition.key]
            if isinstance(result, Proven):
                readings[partition] = reading._replace(
                    fresh=result.fresh, compared=result.compared, epoch=result.epoch
                )
                continue
            del readings[partition]
            if isinstance(result, Differs):
                failure = Failure(result.reason, not result.lasting, differs=result.lasting)
                self._give_up(partition, failure)
            else:
                reason = f"the last batch cannot be compared: {result.reason}"
                self._give_up(partition, Trouble(reason))

    # ---- bulk ----------------------------------------------------------------------------------

    def _await_fillers(self, readings: dict[ExactPartition, _Found]) -> None:
        """Drop from `readings` partitions that need bulk records while an earlier filler may land.

        Bulk records may begin where a former owner was filling a gap. Its filler would land among
        them, or shift the data behind them. For written markers, the wait for the lease is enough.
        """
        for partition, reading in list(readings.items()):
            if reading.fillers and reading.takes_bulk(partition):
                del readings[partition]
                self._placing.pop(partition, None)
                self._end_fillers(partition)

    def _end_fillers(self, partition: ExactPartition) -> None:
        """End the fillers, then read the position again: markers may have landed since."""
        try:
            self._plane.shard(partition).fillers.start_cleaning()
        except Retriable as error:
            self._plane.emit(partition, Trouble(f"{_FILLERS}: {error}"))
        except UserError as error:
            self._plane.emit(partition, Failure(f"{_FILLERS}: {error}", transient=True))
        else:
            self._give_up(partition, Unsettled())
