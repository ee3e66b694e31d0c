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
from typing import TYPE_CHECKING, Final, NamedTuple

from twinlog.engines.exact.append import Phase, Position, position_of
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.proof import Claim, Differs, Proven, prove
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, LogBounds, Offset
from twinlog.mirror.absence import Absence, Span
from twinlog.mirror.plan import Gap

if TYPE_CHECKING:
    from twinlog.engines.exact.data_plane import DataPlane

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
        behind = self.position.log_end < self.source.start
        return behind and self.fresh and not partition.spec.compacted


class Placer:
    """Places the partitions that need a position, grouped by their pair of brokers."""

    def __init__(self, engine: "DataPlane") -> None:
        self._engine = engine
        self._due: dict[ExactPartition, None] = {}
        self._turns: defaultdict[tuple[int, int], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        self._placing: dict[ExactPartition, list[ExactPartition]] = {}  # each with its batch
        self._scheduled = False

    def want(self, partition: ExactPartition) -> None:
        """Queue a partition; the engine is called when its position is read."""
        if partition not in self._placing:
            self._due[partition] = None
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._flush)

    def forget(self, partition: ExactPartition) -> None:
        """Remove a partition from the queue."""
        self._due.pop(partition, None)

    def _flush(self) -> None:
        self._scheduled = False
        due, self._due = self._due, {}
        # A broker that does not answer delays its own partitions only.
        groups: defaultdict[tuple[int, int], list[ExactPartition]] = defaultdict(list)
        for partition in due:
            groups[partition.source_node, partition.destination_node].append(partition)
        size = self._engine.settings.read_partitions_at_once
        for brokers, group in groups.items():
            for start in range(0, len(group), size):
                batch = group[start : start + size]
                self._placing.update(dict.fromkeys(batch, batch))
                self._engine.start(self._place(batch, self._turns[brokers]), about=batch)

    async def _place(self, batch: list[ExactPartition], turns: asyncio.Semaphore) -> None:
        found: dict[ExactPartition, _Found] = {}
        trouble = ""
        read_at = self._engine.now()
        try:
            async with turns:
                read_at = self._engine.now()
                found = await self._read(batch)
                await self._prove(found)
                self._await_fillers(found)
        except Retriable as error:
            trouble = str(error)
        finally:
            # A partition that was given up may be in another batch now, which reads its position.
            batch[:] = [p for p in batch if self._placing.get(p) is batch]
            for partition in batch:
                del self._placing[partition]
        for partition in batch:
            if not self._engine.holds(partition) or partition.append.phase is not Phase.PLACING:
                continue
            if trouble:
                self._engine.trouble(partition, f"the position cannot be read: {trouble}")
                self._engine.leaders_are_stale(partition)
            elif partition in found and not self._engine.knows_topic(partition):
                self._again_soon(partition)
            elif partition in found:
                self._settle(partition, found[partition], read_at)

    # ---- reading -------------------------------------------------------------------------------

    async def _read(self, batch: Sequence[ExactPartition]) -> dict[ExactPartition, _Found]:
        """Read the positions that count; errors of the others are reported to the engine."""
        keys = [partition.key for partition in batch]
        fillers = {p for p in batch if self._engine.shard(p).held_up(p.key)}
        destination = self._engine.destination
        before = await destination.log_ends(keys)
        producers, bounds, source = await asyncio.gather(
            destination.producers(keys),
            destination.bounds(keys),
            self._engine.source.bounds(keys),
        )
        after = await destination.log_ends(keys)
        found = {}
        for partition in batch:
            key = partition.key
            if not self._engine.holds(partition):
                continue
            answers = (before[key], producers[key], bounds[key], after[key])
            code = next((answer.error for answer in answers if answer.error), 0)
            if code:
                self._placing.pop(partition, None)
                self._engine.trouble(partition, "the destination's position cannot be read", code)
            elif source[key].error:
                self._placing.pop(partition, None)
                self._engine.trouble(
                    partition, "the source's bounds cannot be read", source[key].error
                )
            elif before[key] != after[key] or bounds[key].high_watermark != after[key].log_end:
                self._again_soon(partition)
            else:
                partition.destination_start = Offset(bounds[key].start)
                position = position_of(
                    Offset(after[key].log_end),
                    producers[key].active,
                    self._engine.shard(partition).data_producer,
                    self._engine.fresh_after_ms(),
                    of_several_ids=partition.spec.of_several_ids,
                )
                found[partition] = _Found(position, source[key], partition in fillers)
        return {p: f for p, f in found.items() if not self._ahead(p, f)}

    def _again_soon(self, partition: ExactPartition) -> None:
        """Read again soon: a request is still in flight on the destination."""
        self._placing.pop(partition, None)
        partition.unsettled += 1
        pause = self._engine.settings.position_pause_s
        partition.retry_at = self._engine.now() + pause * min(partition.unsettled, 50)
        self._engine.advance(partition)

    def _ahead(self, partition: ExactPartition, found: _Found) -> bool:
        """Whether the destination's log ends above the source's last stable offset.

        This is so briefly after a clean failover of a source leader, until its high watermark has
        caught up. If it stays so, the source has lost records that the mirror has.
        """
        if found.source.last_stable >= found.position.log_end:
            partition.ahead_since = 0.0
            return False
        now = self._engine.now()
        partition.ahead_since = partition.ahead_since or now
        self._placing.pop(partition, None)
        if now - partition.ahead_since > self._engine.settings.ahead_patience_s:
            self._engine.fail(
                partition,
                f"the destination holds offsets up to {found.position.log_end}, the source only "
                f"up to {found.source.last_stable}: the source has lost records, or is another log",
                transient=True,
            )
        else:
            self._again_soon(partition)
        return True

    # ---- proving -------------------------------------------------------------------------------

    async def _prove(self, found: dict[ExactPartition, _Found]) -> None:
        """Drop from `found` the logs that do not end as the source's; they fail, or are retried."""
        engine = self._engine
        claims = {
            p.key: Claim(
                log_end=f.position.log_end,
                destination_start=p.destination_start,
                source_start=Offset(f.source.start),
                compacted=p.spec.compacted,
                epoch=p.source_epochs.before(f.position.log_end),
            )
            for p, f in found.items()
        }
        limit = engine.settings.buffer_bytes
        ports = engine.source, engine.destination
        results = await prove(*ports, claims, limit, engine.policies.compacts)
        for partition, before in list(found.items()):
            result = results[partition.key]
            if isinstance(result, Proven):
                found[partition] = before._replace(
                    fresh=result.fresh, compared=result.compared, epoch=result.epoch
                )
                continue
            del found[partition]
            self._placing.pop(partition, None)
            if isinstance(result, Differs):
                engine.fail(partition, result.reason, transient=not result.lasting)
            else:
                engine.trouble(partition, f"the last batch cannot be compared: {result.reason}")

    # ---- bulk ----------------------------------------------------------------------------------

    def _await_fillers(self, found: dict[ExactPartition, _Found]) -> None:
        """Drop from `found` partitions that need bulk records while an earlier filler may land.

        Bulk records may begin where a former owner was filling a gap. Its filler would land among
        them, or shift the data behind them. For written markers, the wait for the lease is enough.
        """
        for partition, one in list(found.items()):
            if one.fillers and one.takes_bulk(partition):
                del found[partition]
                self._placing.pop(partition, None)
                self._end_fillers(partition)

    def _end_fillers(self, partition: ExactPartition) -> None:
        """End the fillers, then read the position again: markers may have landed since."""
        try:
            self._engine.shard(partition).end_fillers()
        except Retriable as error:
            self._engine.trouble(partition, f"{_FILLERS}: {error}")
        except UserError as error:
            self._engine.fail(partition, f"{_FILLERS}: {error}", transient=True)
        else:
            self._again_soon(partition)

    # ---- going on ------------------------------------------------------------------------------

    def _settle(self, partition: ExactPartition, found: _Found, read_at: float) -> None:
        """Place the append machine; schedule the offsets below the source's log start offset."""
        position, source, epoch = found.position, found.source, found.epoch
        append = partition.append
        append.place(position, read_at, compared=found.compared)
        partition.source_epochs.place(position.log_end, epoch)
        partition.unsettled = 0
        partition.source_high_watermark = Offset(source.high_watermark)
        partition.source_ends.seen(source.high_watermark, self._engine.now())
        partition.source_stable = Offset(source.last_stable)
        self._engine.source_starts_at(partition, source.start)
        if position.log_end < source.start:
            if found.takes_bulk(partition):
                # The partition stays PREPARING until the last bulk batch is appended.
                partition.bulk_until = Offset(source.start)
            else:
                end = Offset(source.start)
                spans = (Span(Absence.LOG_START, end),)
                append.offer([Gap(position.log_end, end, seen=False, spans=spans)])
                log.warning(
                    "%s: the source has deleted records before they were mirrored: its log starts "
                    "at offset %d, the destination's ends at %d",
                    partition,
                    source.start,
                    position.log_end,
                )
        self._engine.placed(partition)
