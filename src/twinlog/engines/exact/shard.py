"""What the mirror partitions of one state partition share: producer ids, and how gaps are filled.

A *shard* is a state partition as its owner sees it. A takeover does not fence its data, and need
not: the broker compares the sequence (docs/architecture/append.md). A stop fences its data, by the
data id (data_id.py) and by the marker id. Gaps are filled in two ways.

**Written markers** (marker_writer.py), where the cluster grants CLUSTER_ACTION (a cluster without
an authorizer does): WriteTxnMarkers writes any number of control records to a partition, and
answers when they are replicated. Of two requests for one offset only one lands, however late the
other arrives.

**Empty transactions** (filler_ids.py), elsewhere: one control record each.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from uuid import UUID

from twinlog.engines.destination.data_id import DataId
from twinlog.engines.destination.kept_ids import keep_ids
from twinlog.engines.destination.sightings import Sightings
from twinlog.engines.exact.fence_search import FenceSearch, refusals
from twinlog.engines.exact.filler_ids import FillerIds
from twinlog.engines.exact.foreign import Foreign, Searched, find_foreign
from twinlog.engines.exact.marker_writer import MarkerWriter
from twinlog.engines.ports import DestinationPort, LogEnd
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.types import LogBounds, Offset, ProducerId, TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_SEARCHES = 16
"""Partitions that are searched for foreign records at the same time: an answer may have 1 MiB."""


class Shard:
    """One owned state partition."""

    def __init__(
        self, number: int, prefix: str, destination: DestinationPort, settings: LaneSettings
    ) -> None:
        self.number = number
        self._id = f"{prefix}.{number}"
        self._destination = destination
        self.settings = settings
        self.fillers = FillerIds(number, f"{self._id}.filler", destination, settings)
        self.markers = MarkerWriter(f"{self._id}.marker", destination, settings.markers_at_once)
        self._data = DataId(self._id, destination, settings)
        recent_s = settings.lease_s + 2 * settings.backoff_max_s
        self._recreations = Sightings[TopicPartition](settings.lease_s, recent_s)
        self._absent = Sightings[TopicPartition](settings.lease_s, recent_s)
        self._keeping: asyncio.Task[None] | None = None
        self._marker_ids: set[int] = set()  # known producer ids of the marker id
        self._stops_from: dict[TopicPartition, int] = {}  # log ends before the fences of a stop

    @property
    def data_producer(self) -> ProducerId:
        """The producer id that the data id had when it was opened."""
        return self._data.producer_id

    @property
    def renamed(self) -> bool:
        """Whether the data id has another producer id by now (`DataId.renamed`)."""
        return self._data.renamed

    @property
    def data_producers(self) -> frozenset[int]:
        """The producer ids that the data id is known to have had."""
        return frozenset(self._data.known)

    async def open(self) -> None:
        """Learn the data id's producer id; the filler ids are cleaned in the background.

        Raises:
            Retriable: the coordinator is not available; open it again.
            Fenced: the lane may not write any more.
        """
        await self._data.open()
        self.fillers.open()
        self._keeping = asyncio.create_task(
            keep_ids(f"shard {self.number}", lambda: self.settings.ids_expiration_ms, self._use_ids)
        )

    async def close(self) -> None:
        """End the background tasks."""
        await self.fillers.close()
        await self.markers.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _use_ids(self) -> None:
        async with self._data.turns:
            await self._data.renew()
        await self.markers.keep_id()

    def ready(self, partition: TopicPartition, gap: Gap) -> bool:
        """Whether its gap can share a request with other state partitions (`write_all`)."""
        markers = self.markers
        return (
            markers.allowed
            and markers.ready(partition, gap)
            and not self.fillers.held_up(partition)
        )

    async def fill_gaps(
        self, gaps: Mapping[TopicPartition, Gap]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Run one round as the cluster allows it: `MarkerWriter.write`, or `FillerIds.fill`."""
        if not self.markers.allowed:
            return await self.fillers.fill(gaps)
        await self.fillers.settle(gaps)  # a former owner may have used filler ids
        return await self.markers.write(gaps)

    async def fence(
        self,
        partitions: Collection[TopicPartition],
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
        begun: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, Offset | Refusal]:
        """Fence all earlier requests by a marker of the data id's next epoch on each partition.

        From the marker on, data of earlier epochs is refused. The other partitions of the shard
        keep their epoch. Where there may be written markers, a second marker refuses those of lower
        epochs: a record that lands between the two is a control record, which the mirror does not
        count. The caller has nothing in flight on these partitions.

        A log that ends in an earlier fence, of this owner or of a former owner that has not
        reported it, keeps the end that it has. A recreated topic is not fenced: it is not the
        mirror's.

        A gap may begin with a marker of the data id, too (`fence_data`), and no record may follow
        it. Nothing in the log tells it from a fence: both are committed, and both are aborted if
        the owner dies within their transaction. Where this owner has begun the stop, markers below
        the log end at its first fence are no fences of the stop.

        Args:
            partitions: what is fenced.
            topic_ids: of the mirror's topics on the destination, as far as they are known.
            begun: those of which no former owner can have left a fence of this stop.

        Returns:
            For each fenced partition the marker's offset, where the mirrored data ends; -1 for
            each that the destination no longer has; a refusal, without a marker, where the user
            has to act. A partition that is left out has no leader now, or its marker is late:
            call again.

        Raises:
            Fenced: the shard has another owner.
            Retriable: not possible now; call again.
            UserError: the lane may not use the shard's transactional ids.
        """
        await self.fillers.settle(partitions)
        async with self._data.turns:
            return await self._fence_all(partitions, topic_ids, begun)

    def resumed(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these are mirrored from now on: their next stop is another one."""
        for partition in partitions:
            self._stops_from.pop(partition, None)

    async def _fence_all(
        self,
        partitions: Collection[TopicPartition],
        topic_ids: Mapping[str, UUID],
        begun: Collection[TopicPartition],
    ) -> dict[TopicPartition, Offset | Refusal]:
        identity = await self._data.next_epoch(partitions)
        bounds = await self._destination.bounds(partitions)
        recreated = await self._made_again(partitions, topic_ids)
        # A broker with stale metadata does not know a new topic yet, or has the one before it.
        absent = {
            p for p, bound in bounds.items() if bound.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        lost_partitions = self._recreations.last(partitions, recreated) | self._absent.last(
            partitions, absent
        )
        results: dict[TopicPartition, Offset | Refusal] = dict.fromkeys(lost_partitions, Offset(-1))
        candidates = {p: bound for p, bound in bounds.items() if p not in recreated | absent}
        results |= refusals({p: bound.error for p, bound in candidates.items()})
        readable = {p: bound for p, bound in candidates.items() if not bound.error}
        for partition in readable.keys() & set(begun):
            self._stops_from.setdefault(partition, readable[partition].high_watermark)
        previous = await self._fenced_before(
            {p: self._since_stop(p, bound, begun) for p, bound in readable.items()}
        )
        results |= {p: result for p, result in previous.items() if isinstance(result, Refusal)}
        ends = {p: readable[p].high_watermark for p in previous.keys() - results.keys()}
        if ends:
            fences, fence_codes, identity = await self._data.put_fences(identity, ends)
            results |= refusals(fence_codes)
            results |= fences
        # Data sent in the epoch of an earlier fence may still arrive: such a partition is fenced
        # again, and keeps the end of the first fence.
        results |= {
            p: result
            for p, result in previous.items()
            if result is not None and isinstance(results.get(p), int)
        }
        refusing = [p for p, result in results.items() if isinstance(result, Refusal)]
        self._data.note_fences(identity, partitions, refusing)
        codes = await self.markers.fence([p for p in readable if isinstance(results.get(p), int)])
        unfenced = {p for p, code in codes.items() if code}
        return {p: result for p, result in results.items() if p not in unfenced} | refusals(codes)

    async def fence_data(
        self, gaps: Mapping[TopicPartition, Gap]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Begin gaps with a marker of the data id's next epoch: earlier data is refused behind it.

        Args:
            gaps: the caller has nothing in flight on these partitions, and the leases of former
                owners have ended.

        Returns:
            Log ends of partitions that have their marker, errors of others; partitions whose
            marker is late are left out.

        Raises:
            As `FillerIds.fill`; Disconnected: whether markers will be written is unknown.
        """
        await self.fillers.settle(gaps)
        async with self._data.turns:
            identity = await self._data.renew()
            if self.renamed:
                raise Retriable(
                    f"the transactional id {self._id} has another producer id, which fences "
                    "nothing of the former one; its state partition is taken over anew"
                )
            ends = await self._destination.log_ends(gaps)
            free = {
                p: end.log_end
                for p, end in ends.items()
                if not end.error and end.log_end == gaps[p].start
            }
            stand, codes, _ = await self._data.put_markers(identity, free)
        # Where the log does not end at the gap's start, a retriable code lets the engine read the
        # position again.
        grown_ends = {
            p: LogEnd(e.error or ErrorCode.REQUEST_TIMED_OUT, -1, -1) for p, e in ends.items()
        }
        refused_ends = {p: LogEnd(code, -1, -1) for p, code in codes.items() if code}
        fence_ends = {p: LogEnd(0, offset + 1, -1) for p, offset in stand.items()}
        return (
            {p: end for p, end in grown_ends.items() if p not in free} | refused_ends | fence_ends
        )

    async def foreign(
        self, searched: Mapping[TopicPartition, Searched]
    ) -> dict[TopicPartition, Foreign | Refusal | None]:
        """Find records of foreign producers in fenced partitions (foreign.py).

        Returns:
            None if there are none, or no offsets to search; partitions that cannot be read now are
            left out.
        """
        targets = {
            p: target for p, target in searched.items() if target.fence not in {-1, target.known}
        }
        bounds = await self._destination.bounds(targets)
        searching = asyncio.Semaphore(_SEARCHES)

        async def search(partition: TopicPartition) -> Foreign | Refusal | None:
            async with searching:
                target, bound = targets[partition], bounds[partition]
                return await find_foreign(self._destination, partition, target, bound)

        results = await asyncio.gather(*map(search, targets), return_exceptions=True)
        findings: dict[TopicPartition, Foreign | Refusal | None] = dict.fromkeys(
            searched.keys() - targets.keys()
        )
        for partition, result in zip(targets, results, strict=True):
            if isinstance(result, Retriable):
                log.warning("shard %d: %s", self.number, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                findings[partition] = result
        return findings

    async def _made_again(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[TopicPartition]:
        """The partitions whose topics were recreated, according to one broker."""
        names = {p.topic for p in partitions} & topic_ids.keys()
        leaders = await self._destination.leaders(names) if names else {}
        return {
            p
            for p in partitions
            if p in leaders and is_another(topic_ids.get(p.topic), leaders[p].topic_id)
        }

    def _since_stop(
        self, partition: TopicPartition, bound: LogBounds, begun: Collection[TopicPartition]
    ) -> LogBounds:
        """Where the fences of this stop may lie."""
        if partition not in begun:
            return bound
        return bound._replace(start=max(bound.start, self._stops_from[partition]))

    async def _fenced_before(
        self, bounds: Mapping[TopicPartition, LogBounds]
    ) -> dict[TopicPartition, Offset | Refusal | None]:
        """Where logs end in fences of this or of former owners (`FenceSearch.find`)."""
        # A former owner may have had the right to write markers, even if this one does not.
        self._marker_ids.add(await self.markers.producer_id())
        size = self.settings.partition_fetch_bytes
        marker_ids = frozenset(self._marker_ids)
        return await FenceSearch(self._destination, size, self.data_producers, marker_ids).find(
            bounds
        )
