"""Fills gaps by empty transactions, where the cluster does not grant the right to write markers.

Each empty transaction leaves one control record on each of its partitions, so `n` offsets need `n`
transactions of different ids, in parallel:

    id 0   P1 P2 P3        P1 needs 3 offsets, P2 needs 1, P3 needs 2: two ids this round,
    id 1   P1    P3        P1 gets its third in the next one

InitProducerId on each filler id fences a former owner: it ends the former owner's open transaction
and is answered when the markers are written. EndTxn is answered before the markers are written, so
a round ends when log end offsets and high watermarks show them.

An id is *dirty* while its markers may still arrive: it gets a new epoch before it is used again,
and until then nothing is filled on its partitions. A partition whose leader is unreachable gets no
marker: it delays its own gap and the ids that it is in, not the other partitions.

One case remains. If a marker is replicated, but not yet confirmed when the leader or the
coordinator dies, the coordinator writes it *again* (tests/contract). The log end offset shows it,
and the partition is FAILED.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain

from twinlog.engines.destination.marker_polls import MarkerPolls
from twinlog.engines.ports import DestinationPort, LogEnd, ProducerIdentity
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)


class FillerIds:
    """The filler ids of one shard.

    Args:
        number: of the state partition.
        prefix: of the transactional ids; the index of each follows.
        destination: where gaps are filled.
        settings: the number of ids, pauses and deadlines.
    """

    def __init__(
        self, number: int, prefix: str, destination: DestinationPort, settings: LaneSettings
    ) -> None:
        self._number = number
        self._prefix = prefix
        self._destination = destination
        self._settings = settings
        self._clean: dict[int, ProducerIdentity] = {}
        # The other ids, with the partitions where their markers may still arrive; None if these
        # are unknown, as after a takeover.
        self._dirty: dict[int, frozenset[TopicPartition] | None] = dict.fromkeys(
            range(settings.fillers)
        )
        self._busy: frozenset[int] = frozenset()  # ids that a round uses; they are not cleaned
        self._turns = asyncio.Lock()  # guards the ids: several engines share the shard
        self._cleaning: asyncio.Task[None] | None = None
        self._next_cleaning: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Clean the ids in the background."""
        self._next_cleaning = asyncio.create_task(self._clean_ahead())

    async def close(self) -> None:
        """End the background tasks."""
        for task in (self._next_cleaning, self._cleaning):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _clean_ahead(self) -> None:
        """Clean the ids of a former owner before a failover has to wait for it.

        This begins after the former owner's lease: if partitions change their owner twice in quick
        succession, the first owner's request could otherwise fence the second owner. The ids of a
        running round are left out.
        """
        await asyncio.sleep(self._settings.lease_s)
        while None in self._dirty.values():
            try:
                await self._cleaned(self._clean_dirty())
            except TwinlogError as error:  # a caller that needs the ids retries and gets the error
                log.debug("shard %d: filler ids are not clean yet: %s", self._number, error)
                await asyncio.sleep(self._settings.backoff_max_s)

    def _clean_dirty(self) -> "asyncio.Task[None]":
        """The running task that cleans the dirty ids; starts one if there is none."""
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.create_task(self._clean_up())
        return self._cleaning

    async def fill(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
        """Run one round of empty transactions, which use up offsets of each gap.

        Args:
            gaps: what to fill; the caller has nothing else in flight on these partitions.

        Returns:
            Log ends, or errors, of the partitions that have no filler in flight any more. The
            other partitions are left out: call again.

        Raises:
            Fenced: the shard has another owner.
            Retriable: the log end offsets are not available now; call again.
            UserError: the lane may not use the shard's transactional ids.
        """
        async with self._turns:
            await self._fence()
            return await self._fill(gaps)

    async def _fill(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
        """Fill the gaps that are not held up, from the log end offsets."""
        free = [partition for partition in gaps if not self.held_up(partition)]
        ends = dict(await self._destination.log_ends(free)) if free else {}
        current_gaps = {
            p: gaps[p].after(Offset(end.log_end))
            for p, end in ends.items()
            if not end.error and gaps[p].start <= end.log_end < gaps[p].end
        }
        if current_gaps and self._clean:
            for partition in current_gaps:
                del ends[partition]
            ends |= await self._round(current_gaps)
        return ends

    async def _round(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
        """Fill gaps that start at the log end offsets, with the clean ids."""
        used: dict[int, frozenset[TopicPartition]] = {}
        for nth, index in enumerate(sorted(self._clean)):
            needing = frozenset(p for p, gap in gaps.items() if gap.end - gap.start > nth)
            if needing:
                used[index] = needing
        identities = {index: self._clean.pop(index) for index in used}
        self._dirty.update(used)
        self._busy = frozenset(used)
        try:
            codes = await self._transact(identities, used)
            counts = Counter(chain.from_iterable(used.values()))
            target_ends = {p: gaps[p].start + count for p, count in counts.items()}
            arrived = await self._arrived(target_ends) if target_ends else {}
        finally:
            self._busy = frozenset()
        for index, needing in used.items():
            if needing <= arrived.keys():
                self._clean[index] = identities[index]
                del self._dirty[index]
        return {p: end for p, end in arrived.items() if not self.held_up(p)} | {
            p: LogEnd(code, -1, -1) for p, code in codes.items() if p not in counts
        }

    async def _transact(
        self,
        identities: Mapping[int, ProducerIdentity],
        used: dict[int, frozenset[TopicPartition]],
    ) -> dict[TopicPartition, int]:
        """Run a transaction of each id; remove refused partitions from `used`; return their codes.

        A partition that is refused gets no marker, so it does not keep the id dirty.
        """
        results = await asyncio.gather(
            *(self._destination.empty_transaction(identities[i], used[i]) for i in used),
            return_exceptions=True,
        )
        codes: dict[TopicPartition, int] = {}
        for index, result in zip(list(used), results, strict=True):
            if isinstance(result, BaseException):
                raise result
            errors = {p: code for p, code in result.items() if code}
            used[index] = used[index].difference(errors)
            self._dirty[index] = used[index]
            codes |= errors
        return codes

    def held_up(self, partition: TopicPartition) -> bool:
        """Whether a marker of a filler id may still land on this partition."""
        if not self._dirty:
            return False
        return any(
            partitions is None or partition in partitions for partitions in self._dirty.values()
        )

    def start_cleaning(self) -> None:
        """Start to clean the dirty ids, if no task does yet; the caller polls `held_up`.

        Raises:
            TwinlogError: as `fill`, if the last attempt has failed; another one has started.
        """
        previous = self._cleaning
        self._clean_dirty()
        if previous is not None and previous is not self._cleaning and not previous.cancelled():
            error = previous.exception()
            if error is not None:
                raise error

    async def settle(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until no filler transaction of this or a former owner can land on these.

        Raises:
            TwinlogError: as `fill`.
        """
        while any(self.held_up(partition) for partition in partitions):
            await self._cleaned(self._clean_dirty())
            await asyncio.sleep(self._settings.position_pause_s)  # a round may use the other ids

    async def _fence(self) -> None:
        """Start to clean the dirty ids; wait if none is clean, or the partitions are unknown."""
        if self._dirty:
            self._clean_dirty()
        if self._cleaning is not None and (not self._clean or None in self._dirty.values()):
            await self._cleaned(self._cleaning)

    @staticmethod
    async def _cleaned(cleaning: "asyncio.Task[None]") -> None:
        await asyncio.wait([cleaning])
        if not cleaning.cancelled() and (error := cleaning.exception()):
            raise error

    async def _clean_up(self) -> None:
        """Give the dirty ids a new epoch: then each of their markers has landed or never will."""
        dirty = sorted(self._dirty.keys() - self._busy)
        results = await asyncio.gather(
            *(self._destination.init_producer(f"{self._prefix}.{index}") for index in dirty),
            return_exceptions=True,
        )
        for index, result in zip(dirty, results, strict=True):
            if isinstance(result, ProducerIdentity):
                self._clean[index] = result
                del self._dirty[index]
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _arrived(
        self, target_ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, LogEnd]:
        """The log ends that have reached the expected offsets; waits for all, up to the deadline.

        A marker counts when it is replicated: otherwise it is lost with its leader, and the
        coordinator writes it again, at any time, perhaps behind a marker that took its offset.
        """
        polls = MarkerPolls(self._settings.marker_deadline_s)
        arrived: dict[TopicPartition, LogEnd] = {}
        pending = set(target_ends)
        while True:
            ends = await self._destination.log_ends(pending)
            grown = [
                p for p, end in ends.items() if not end.error and end.log_end >= target_ends[p]
            ]
            bounds = await self._destination.bounds(grown) if grown else {}
            arrived |= {
                p: ends[p] for p, bound in bounds.items() if bound.high_watermark >= target_ends[p]
            }
            pending = {p for p in pending - arrived.keys() if not ends[p].error}
            if not pending:
                return arrived
            if polls.expired:
                log.warning(
                    "filler markers are late",
                    extra={"shard": self._number, "partitions": sorted(map(str, pending))},
                )
                return arrived
            await polls.pause()
