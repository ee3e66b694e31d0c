"""What the mirror partitions of one state partition share: producer ids, and how gaps are filled.

A *shard* is a state partition as its owner sees it. A takeover does not fence its data, and need
not: the broker compares the sequence (docs/architecture/append.md). Gaps are filled in two ways.

**Written markers** (marker_writer.py), where the cluster grants CLUSTER_ACTION (a cluster without
an authorizer does): WriteTxnMarkers writes any number of control records to a partition, and
answers when they are replicated. Of two requests for one offset only one lands, however late the
other arrives.

**Empty transactions**, elsewhere. Each leaves one control record on each of its partitions, so `n`
offsets need `n` transactions of different ids, in parallel:

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

If a partition may not be written to, only this partition is refused, and it never gets a record of
the transaction. So the epoch that was to fence it is unused there and is kept for the next attempt:
endless attempts would use up the id's epochs.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain, takewhile
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from twinlog.engines.exact.foreign import Foreign, Searched, find_foreign
from twinlog.engines.exact.marker_writer import MarkerWriter
from twinlog.engines.exact.ports import DestinationPort, LogEnd, ProducerIdentity
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.records import decode, raw_records
from twinlog.kafka.types import LogBounds, Offset, ProducerId, TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_LAST_EPOCHS = 32_000
"""From this epoch on the data id uses up its epochs until it gets another producer id: once, 767
requests."""
_COMMIT = (1).to_bytes(2)
"""The type in a commit marker's key, behind its version; an abort marker's is 0."""
_KEPT = 4
"""How often the ids are used within the time after which their coordinator forgets them."""
_LOOK_S = 60.0
"""The longest wait before that time is checked again."""
_SEARCHES = 16
"""Partitions that are searched for foreign records at the same time: an answer may have 1 MiB."""
_FENCES = 64
"""Offsets before the log end in which fences of former owners are searched first."""


class Shard:
    """One owned state partition."""

    def __init__(
        self, number: int, prefix: str, destination: DestinationPort, settings: LaneSettings
    ) -> None:
        self.number = number
        self._id = f"{prefix}.{number}"
        self._destination = destination
        self.settings = settings
        self._clean: dict[int, ProducerIdentity] = {}
        # The other ids, with the partitions where their markers may still arrive; None if these
        # are unknown, as after a takeover.
        self._dirty: dict[int, frozenset[TopicPartition] | None] = dict.fromkeys(
            range(settings.fillers)
        )
        self._busy: frozenset[int] = frozenset()  # ids that a round uses; they are not cleaned
        self._data_turns = asyncio.Lock()  # guards the data id: one transaction at a time
        self._turns = asyncio.Lock()  # guards the filler ids: several engines share the shard
        self._cleaning: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self.markers = MarkerWriter(f"{self._id}.marker", destination, settings.markers_at_once)
        recent_s = settings.lease_s + 2 * settings.backoff_max_s
        self._others = _Sightings(settings.lease_s, recent_s)
        self._absent = _Sightings(settings.lease_s, recent_s)
        self.data_producer = ProducerId(-1)
        self.renamed = False
        """Whether the data id has got another producer id since it was opened. No epoch of the new
        one fences data of `data_producer`: the state partition has to be taken over again."""
        self._keeping: asyncio.Task[None] | None = None
        self._data_ids: set[int] = set()  # known producer ids of the data id
        self._marker_ids: set[int] = set()  # known producer ids of the marker id
        # The epoch of the last fence, if its outcome is known; the partitions without its marker.
        self._epoch: ProducerIdentity | None = None
        self._refused: set[TopicPartition] = set()

    @property
    def data_producers(self) -> frozenset[int]:
        """The producer ids that the data id is known to have had."""
        return frozenset(self._data_ids)

    async def open(self) -> None:
        """Learn the data id's producer id; the filler ids are cleaned in the background.

        Raises:
            Retriable: the coordinator is not available; open it again.
            Fenced: the lane may not write any more.
        """
        identity = await self._destination.init_producer(self._id)
        self._data_ids.add(identity.producer_id)
        while identity.epoch >= _LAST_EPOCHS:
            # The next owner would not know the fences of a producer id whose epochs are used up.
            identity = await self._destination.init_producer(self._id)
            self._data_ids.add(identity.producer_id)
        self.data_producer = ProducerId(identity.producer_id)
        self._ahead = asyncio.create_task(self._clean_ahead())
        self._keeping = asyncio.create_task(self._keep_ids())

    async def close(self) -> None:
        """End the background tasks."""
        for task in (self._ahead, self._cleaning, self._keeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _clean_ahead(self) -> None:
        """Clean the ids of a former owner before a failover has to wait for it.

        This begins after the former owner's lease: if partitions change their owner twice in quick
        succession, the first owner's request could otherwise fence the second owner. The ids of a
        running round are left out.
        """
        await asyncio.sleep(self.settings.lease_s)
        while None in self._dirty.values():
            try:
                await self._cleaned(self._clean_dirty())
            except TwinlogError as error:  # a caller that needs the ids retries and gets the error
                log.debug("shard %d: filler ids are not clean yet: %s", self.number, error)
                await asyncio.sleep(self.settings.backoff_max_s)

    async def _keep_ids(self) -> None:
        """Use the data id and the marker id before their coordinator forgets them.

        Neither data nor a written marker counts as a use of its transactional id.
        """
        now = asyncio.get_running_loop().time
        used_at = now()
        while True:
            while (wait := used_at + self.settings.ids_expiration_ms / 1000 / _KEPT - now()) > 0:
                await asyncio.sleep(min(wait, _LOOK_S))  # brokers may report a shorter time later
            used_at = now()
            try:
                async with self._data_turns:
                    self._epoch = None
                    self._learn(await self._destination.init_producer(self._id))
                await self.markers.keep_id()
            except TwinlogError as error:
                log.warning("shard %d: its ids cannot be kept just now: %s", self.number, error)

    def _learn(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Note the data id's producer id."""
        self._data_ids.add(identity.producer_id)
        self.renamed |= identity.producer_id != self.data_producer
        return identity

    def _clean_dirty(self) -> "asyncio.Task[None]":
        """The running task that cleans the dirty ids; starts one if there is none."""
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.create_task(self._clean_up())
        return self._cleaning

    async def fill_gaps(
        self, gaps: Mapping[TopicPartition, Gap]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Run one round as the cluster allows it: `MarkerWriter.write`, or `fill`."""
        if not self.markers.allowed:
            return await self.fill(gaps)
        await self._settle(gaps)  # a former owner may have used filler ids
        return await self.markers.write(gaps)

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
        found = dict(await self._destination.log_ends(free)) if free else {}
        now = {
            p: gaps[p].after(Offset(end.log_end))
            for p, end in found.items()
            if not end.error and gaps[p].start <= end.log_end < gaps[p].end
        }
        if now and self._clean:
            for partition in now:
                del found[partition]
            found |= await self._round(now)
        return found

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
            refused = await self._transact(identities, used)
            coming = Counter(chain.from_iterable(used.values()))
            expected = {p: gaps[p].start + count for p, count in coming.items()}
            arrived = await self._arrived(expected) if expected else {}
        finally:
            self._busy = frozenset()
        for index, needing in used.items():
            if needing <= arrived.keys():
                self._clean[index] = identities[index]
                del self._dirty[index]
        return {p: end for p, end in arrived.items() if not self.held_up(p)} | {
            p: LogEnd(code, -1, -1) for p, code in refused.items() if p not in coming
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
        refused: dict[TopicPartition, int] = {}
        for index, result in zip(list(used), results, strict=True):
            if isinstance(result, BaseException):
                raise result
            errors = {p: code for p, code in result.items() if code}
            used[index] = used[index].difference(errors)
            self._dirty[index] = used[index]
            refused |= errors
        return refused

    def held_up(self, partition: TopicPartition) -> bool:
        """Whether a marker of a filler id may still land on this partition."""
        return any(where is None or partition in where for where in self._dirty.values())

    def end_fillers(self) -> None:
        """Start to clean the dirty ids, if no task does yet; the caller polls `held_up`.

        Raises:
            TwinlogError: as `fill`, if the last attempt has failed; another one has started.
        """
        last = self._cleaning
        self._clean_dirty()
        if last is not None and last is not self._cleaning and not last.cancelled():
            error = last.exception()
            if error is not None:
                raise error

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

    async def _settle(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until no filler transaction of this or a former owner can land on these."""
        while any(self.held_up(partition) for partition in partitions):
            await self._cleaned(self._clean_dirty())
            await asyncio.sleep(self.settings.position_pause_s)  # a round may use the other ids

    async def _clean_up(self) -> None:
        """Give the dirty ids a new epoch: then each of their markers has landed or never will."""
        dirty = sorted(self._dirty.keys() - self._busy)
        results = await asyncio.gather(
            *(self._destination.init_producer(f"{self._id}.filler.{index}") for index in dirty),
            return_exceptions=True,
        )
        for index, result in zip(dirty, results, strict=True):
            if isinstance(result, ProducerIdentity):
                self._clean[index] = result
                del self._dirty[index]
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def fence(
        self,
        partitions: Collection[TopicPartition],
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
    ) -> dict[TopicPartition, Offset | Refusal]:
        """Fence all earlier requests by a marker of the data id's next epoch on each partition.

        From the marker on, data of earlier epochs is refused. The other partitions of the shard
        keep their epoch. Where there may be written markers, a second marker refuses those of lower
        epochs: a record that lands between the two is a control record, which the mirror does not
        count. The caller has nothing in flight on these partitions.

        A log that ends in an earlier fence, of this owner or of a former owner that has not
        reported it, keeps the end that it has. A recreated topic is not fenced: it is not the
        mirror's.

        Args:
            partitions: what is fenced.
            topic_ids: of the mirror's topics on the destination, as far as they are known.

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
        await self._settle(partitions)
        async with self._data_turns:
            return await self._fence_all(partitions, topic_ids)

    async def _fence_all(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> dict[TopicPartition, Offset | Refusal]:
        identity = await self._next_epoch(partitions)
        bounds = await self._destination.bounds(partitions)
        others = await self._made_again(partitions, topic_ids)
        # A broker with stale metadata does not know a new topic yet, or has the one before it.
        absent = {
            p for p, one in bounds.items() if one.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        lost = self._others.last(partitions, others) | self._absent.last(partitions, absent)
        found: dict[TopicPartition, Offset | Refusal] = dict.fromkeys(lost, Offset(-1))
        asked = {p: one for p, one in bounds.items() if p not in others | absent}
        found |= _refusals({p: one.error for p, one in asked.items()})
        there = {p: one for p, one in asked.items() if not one.error}
        before = await self._fenced_before(there)
        found |= {p: one for p, one in before.items() if isinstance(one, Refusal)}
        ends = {p: there[p].high_watermark for p in before.keys() - found.keys()}
        if ends:
            put, identity = await self._put_fences(identity, ends)
            found |= put
        # Data sent in the epoch of an earlier fence may still arrive: such a partition is fenced
        # again, and keeps the end of the first fence.
        found |= {
            p: one for p, one in before.items() if one is not None and isinstance(found.get(p), int)
        }
        self._epoch = identity
        self._refused -= set(partitions)
        self._refused |= {p for p, one in found.items() if isinstance(one, Refusal)}
        codes = await self.markers.fence([p for p in there if isinstance(found.get(p), int)])
        late = {p for p, code in codes.items() if code}
        return {p: one for p, one in found.items() if p not in late} | _refusals(codes)

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
            As `fill`; Disconnected: whether markers will be written is unknown.
        """
        await self._settle(gaps)
        async with self._data_turns:
            self._epoch = None
            identity = self._learn(await self._destination.init_producer(self._id))
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
            codes = await self._destination.empty_transaction(identity, free) if free else {}
            put = {p: end for p, end in free.items() if not codes[p]}
            stand, _ = await self._completed(put, identity)
        # Where the log does not end at the gap's start, a retriable code lets the engine read the
        # position again.
        moved = {p: LogEnd(e.error or ErrorCode.REQUEST_TIMED_OUT, -1, -1) for p, e in ends.items()}
        refused = {p: LogEnd(code, -1, -1) for p, code in codes.items() if code}
        found = {p: LogEnd(0, offset + 1, -1) for p, offset in stand.items()}
        return {p: end for p, end in moved.items() if p not in free} | refused | found

    async def foreign(
        self, searched: Mapping[TopicPartition, Searched]
    ) -> dict[TopicPartition, Foreign | Refusal | None]:
        """Find records of foreign producers in fenced partitions (foreign.py).

        Returns:
            None if there are none, or no offsets to search; partitions that cannot be read now are
            left out.
        """
        there = {p: one for p, one in searched.items() if one.fence not in {-1, one.known}}
        bounds = await self._destination.bounds(there)
        searching = asyncio.Semaphore(_SEARCHES)

        async def search(partition: TopicPartition) -> Foreign | Refusal | None:
            async with searching:
                where, its = there[partition], bounds[partition]
                return await find_foreign(self._destination, partition, where, its)

        results = await asyncio.gather(*map(search, there), return_exceptions=True)
        found: dict[TopicPartition, Foreign | Refusal | None] = dict.fromkeys(
            searched.keys() - there.keys()
        )
        for partition, result in zip(there, results, strict=True):
            if isinstance(result, Retriable):
                log.warning("shard %d: %s", self.number, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                found[partition] = result
        return found

    async def _next_epoch(self, partitions: Collection[TopicPartition]) -> ProducerIdentity:
        """An epoch of the data id with no marker on these partitions, in the log or in flight.

        All markers of earlier epochs are written. The last epoch is used again only if each of
        these partitions has refused its marker (see the module).
        """
        last, self._epoch = self._epoch, None
        if last is not None and self._refused.issuperset(partitions):
            return last
        return await self._destination.init_producer(self._id)

    async def _put_fences(
        self, identity: ProducerIdentity, after: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Offset | Refusal], ProducerIdentity]:
        """Fence logs that end at these offsets.

        Returns:
            The offset of each marker, or the refusal; and the id's epoch afterwards.
        """
        if identity.producer_id != self.data_producer:
            # The epochs were used up. The new producer id does not fence data of the former one,
            # so the lease has to pass.
            self._learn(identity)
            await asyncio.sleep(self.settings.lease_s)
        codes = await self._destination.empty_transaction(identity, after)
        put = {p: end for p, end in after.items() if not codes[p]}
        stand, identity = await self._completed(put, identity)
        return _refusals(codes) | stand, identity

    async def _made_again(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[TopicPartition]:
        """The partitions whose topics were recreated, according to one broker."""
        asked = {p.topic for p in partitions} & topic_ids.keys()
        leaders = await self._destination.leaders(asked) if asked else {}
        return {
            p
            for p in partitions
            if p in leaders and is_another(topic_ids.get(p.topic), leaders[p].topic_id)
        }

    async def _fenced_before(
        self, bounds: Mapping[TopicPartition, LogBounds]
    ) -> dict[TopicPartition, Offset | Refusal | None]:
        """The offset of the first marker, if a log ends in fences; None if it does not.

        Logs that cannot be read now are left out.
        """
        # A former owner may have had the right to write markers, even if this one does not.
        self._marker_ids.add(await self.markers.producer_id())
        ends = {p: one.high_watermark for p, one in bounds.items()}
        last = await self._read({p: max(one.start, ends[p] - 1) for p, one in bounds.items()}, ends)
        found: dict[TopicPartition, Offset | Refusal | None] = {}
        ended = []
        for partition, stored in last.items():
            if isinstance(stored, list) and stored and self._is_fence(stored[-1]):
                ended.append(partition)
            else:
                found[partition] = stored if isinstance(stored, Refusal) else None
        step = _FENCES
        while ended:
            starts = {p: max(bounds[p].start, ends[p] - step) for p in ended}
            tails = await self._read(starts, ends)
            # Each attempt leaves a fence: if a tail has only fences, there may be more below it.
            ended = [
                p
                for p, stored in tails.items()
                if isinstance(stored, list)
                and starts[p] > bounds[p].start
                and all(map(self._is_fence, stored))
            ]
            found |= {p: self._first_fence(one) for p, one in tails.items() if p not in ended}
            step *= 8
        return found

    def _first_fence(self, stored: "list[_Stored] | Refusal") -> Offset | Refusal | None:
        """The offset of the data id's first fence among the fences at the log's end."""
        if isinstance(stored, Refusal):
            return stored
        fences = list(takewhile(self._is_fence, reversed(stored)))
        data = [
            one.header.base_offset for one in fences if one.header.producer_id in self._data_ids
        ]
        return Offset(data[-1]) if data else None

    def _is_fence(self, stored: "_Stored") -> bool:
        header, commits = stored
        return header.is_control and (
            header.producer_id in self._data_ids
            or (commits and header.producer_id in self._marker_ids)
        )

    async def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> "dict[TopicPartition, list[_Stored] | Refusal]":
        """The batches from `starts` up to `ends`.

        Partitions that cannot be read now are left out.
        """
        found: dict[TopicPartition, list[_Stored]] = {p: [] for p in starts}
        errors: dict[TopicPartition, int] = {}
        waiting = {p: start for p, start in starts.items() if start < ends[p]}
        size = self.settings.partition_fetch_bytes
        while waiting:
            answers = await self._destination.read(waiting, partition_max_bytes=size)
            for partition, fetched in answers.items():
                stored = [_stored(one, fetched.records) for one in batches(fetched.records)]
                if stored:
                    found[partition] += stored
                    waiting[partition] = stored[-1].header.next_offset
                else:
                    errors[partition] = fetched.error
                    del found[partition], waiting[partition]
            waiting = {p: at for p, at in waiting.items() if at < ends[p]}
        return found | _refusals(errors)

    async def _completed(
        self, after: Mapping[TopicPartition, int], identity: ProducerIdentity
    ) -> tuple[dict[TopicPartition, Offset], ProducerIdentity]:
        """As `_markers` of the data id's transaction, once it is complete; none before.

        Until the transaction is complete, a new coordinator writes the markers of all its
        partitions again (tests/kafka/requests/test_markers.py). In a partition that is STOPPED by
        then, such a marker would land among users' records; in one whose gap it begins, behind the
        data that follows.
        """
        stand = await self._markers(after, identity)
        if not stand or stand.keys() != after.keys():
            return {}, identity
        # InitProducerId is answered when the transaction is complete.
        return stand, self._learn(await self._destination.init_producer(self._id))

    async def _markers(
        self, after: Mapping[TopicPartition, int], identity: ProducerIdentity
    ) -> dict[TopicPartition, Offset]:
        """The offset of the first marker of this producer and epoch, once it is in the log.

        Args:
            after: the partitions, and where their logs ended before it was written. A former
                owner's batches may lie between that end and the marker.
            identity: the producer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.marker_deadline_s
        pause = 0.001
        waiting = dict(after)
        found: dict[TopicPartition, Offset] = {}
        while waiting and loop.time() < deadline:
            size = self.settings.partition_fetch_bytes
            answers = await self._destination.read(waiting, partition_max_bytes=size)
            for partition, fetched in answers.items():
                for header in batches(fetched.records):
                    waiting[partition] = header.next_offset
                    if header.is_control and _is_by(header, identity):
                        found[partition] = Offset(header.base_offset)
                        del waiting[partition]
                        break
            if waiting:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.1)
        return found

    async def _arrived(
        self, expected: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, LogEnd]:
        """The log ends that have reached the expected offsets; waits for all, up to the deadline.

        A marker counts when it is replicated: otherwise it is lost with its leader, and the
        coordinator writes it again, at any time, perhaps behind a marker that took its offset.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.marker_deadline_s
        pause = 0.001
        arrived: dict[TopicPartition, LogEnd] = {}
        waiting = set(expected)
        while True:
            ends = await self._destination.log_ends(waiting)
            there = [p for p, one in ends.items() if not one.error and one.log_end >= expected[p]]
            bounds = await self._destination.bounds(there) if there else {}
            arrived |= {
                p: ends[p] for p, one in bounds.items() if one.high_watermark >= expected[p]
            }
            waiting = {p for p in waiting - arrived.keys() if not ends[p].error}
            if not waiting:
                return arrived
            if loop.time() > deadline:
                log.warning(
                    "filler markers are late",
                    extra={"shard": self.number, "partitions": sorted(map(str, waiting))},
                )
                return arrived
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)


class _Sightings:
    """Since when each check has found the same state of a partition.

    Args:
        lease_s: how long the checks have to agree.
        recent_s: longer than the pause between two checks.
    """

    def __init__(self, lease_s: float, recent_s: float) -> None:
        self._lease_s = lease_s
        self._recent_s = recent_s
        self._since: dict[TopicPartition, float] = {}
        self._until: dict[TopicPartition, float] = {}

    def last(
        self, asked: Collection[TopicPartition], told: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """The partitions whose checks have agreed for long enough; these are then forgotten.

        The time starts again if a check disagrees, or if there was no check recently: the partition
        may have had another state in between.

        Args:
            asked: the partitions of this check.
            told: those of them that are in this state.
        """
        now = _now()
        for partition in asked:
            recent = now < self._until.get(partition, 0.0) + self._recent_s
            if partition not in told or not recent:
                self._since.pop(partition, None)
        lasting = set()
        for partition in told:
            self._until[partition] = now
            if self._since.setdefault(partition, now) + self._lease_s <= now:
                lasting.add(partition)
                del self._since[partition], self._until[partition]
        return lasting


class _Stored(NamedTuple):
    """A batch of a log."""

    header: Header
    commits: bool
    """Whether it is a commit marker."""


def _stored(header: Header, buffer: memoryview) -> _Stored:
    if not header.is_control or not header.num_records:  # the log cleaner may have emptied it
        return _Stored(header, commits=False)
    key = decode(raw_records(header, header.records(buffer))[0]).key
    return _Stored(header, commits=key is not None and key[2:4] == _COMMIT)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _refusals(codes: Mapping[TopicPartition, int]) -> dict[TopicPartition, Refusal]:
    """The refusals that a retry does not resolve."""
    refused = {p: Refusal(code) for p, code in codes.items() if code}
    return {p: one for p, one in refused.items() if not one.reaction.retriable}


def _is_by(header: Header, producer: ProducerIdentity) -> bool:
    return (header.producer_id, header.producer_epoch) == (producer.producer_id, producer.epoch)
