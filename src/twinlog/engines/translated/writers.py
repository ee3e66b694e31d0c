"""Who writes a state partition's flows: the data's producer id, the plans, and the maps.

A partition is *located* before it is copied, by a new owner and after each answer that is missing
or unexpected (docs/decisions/0014-recorded-offset-map.md):

1. The last number that the broker has taken is stored, once it is replicated (last_numbers.py):
   the next step makes the broker forget it.
2. The data id's next epoch writes a marker to the destination's log. Behind it, data of earlier
   epochs is refused.
3. The log is read from the recorded end to the marker. What has landed there is added to the map.
4. Map and an empty plan of the new epoch are stored. From then on the partition may be copied.

Plans of other partitions are stored meanwhile: a fence may wait for replicas of one partition.

A log that has lost copies ends that, or is passed (`twinlog.data.loss`, surviving_copies.py).

Where the log lacks offsets, because it was compacted or has lost its start, the last number tells
what is missing in it. Whether it lacks any is seen in the log: `cleanup.policy` may have changed.

A partition that had an owner, and has no plan, has sent nothing; or the plan is lost.
`__mirror_state` tells which (`Beginnings`): it has the partition as begun since its first plan was
stored, and before anything of that was sent. For a partition of an earlier version the id of
`__mirror_offsets` tells, and what its owners have left there.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from twinlog.engines.base import NOTHING_COPIED, Beginnings, LaneContext, Sealed, Sealing
from twinlog.engines.destination.data_id import DataId
from twinlog.engines.destination.kept_ids import keep_ids
from twinlog.engines.ports import DestinationPort
from twinlog.engines.translated.deleted_remotes import DeletedRemotes
from twinlog.engines.translated.found_losses import FoundLosses, ShorterLogs
from twinlog.engines.translated.last_numbers import LastNumbers, ask_last_numbers
from twinlog.engines.translated.located_partition import located_partition
from twinlog.engines.translated.location import (
    FencedPartitions,
    Landing,
    NotLocated,
    ToLocate,
    begun_anew,
    slot_of,
    to_seal,
)
from twinlog.engines.translated.remote_log import RECREATED, LostEnd, read_end, require_whole
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.surviving_copies import (
    DamagedLog,
    former_positions_end,
    without_loss,
)
from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError
from twinlog.kafka.types import (
    SEQUENCE_MODULUS,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    advance,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss
from twinlog.mirror.sequence_plan import Contradiction, LostBatches, Taken, resolve
from twinlog.store.map_chunks import MapChunk, extended
from twinlog.store.offset_log import OffsetLog
from twinlog.store.offset_records import LostCopies, MapTail, OffsetRecord, StoredPlan

log = logging.getLogger(__name__)

_TRACE_S: Final = 5.0
"""How long `open` waits for the first takeover of the log: other mirrors wait for it."""


class FlowWriters:
    """The writers of one state partition (`SharedWriters`)."""

    def __init__(self, number: int, lane: LaneContext, port: DestinationPort) -> None:
        self._port = port
        self._beginnings: Beginnings  # from `open` on
        prefix = lane.id_prefix
        self.settings = lane.settings
        self._id = f"{prefix}.{number}.flow"
        self._data = {0: DataId(self._id, port, lane.settings)}  # by `Route.slot`
        self._alone_from = 0.0  # when the leases of former owners have ended
        self._log = OffsetLog(
            lane.destination,
            number,
            prefix,
            lease_s=lane.settings.lease_s,
            may_write=lane.may_write,
        )
        self._log_known = False  # whether what follows is what the log holds
        self._outdated = False  # others may have deleted some of it: it is read again
        self._log_has_past: bool | None = None  # whether a former owner has left a trace
        self._log_topic_id: UUID | None = None
        self._plans: dict[MirrorPartition, StoredPlan] = {}
        self._last: dict[MirrorPartition, MapChunk] = {}  # the last part of each map
        # The sequence that may be planned; a former one's plan would hide what has landed since.
        self._current: dict[MirrorPartition, PartitionSequence] = {}
        self._deleted = DeletedRemotes(port, lane.settings)
        self.losses = FoundLosses()
        """What the target has lost; the engines count it."""
        self._shorter = ShorterLogs(lane.settings, self.losses)
        self._keeping: asyncio.Task[None] | None = None
        self._fencing = asyncio.Lock()  # guards the data's ids; taken before `_storing`
        self._storing = asyncio.Lock()  # guards the log, and what is known of it

    @property
    def id(self) -> int:
        """The first producer id of the data."""
        return self._data[0].producer_id

    @property
    def must_be_taken_over(self) -> bool:
        """Whether some data has another producer id by now."""
        return any(data.renamed for data in self._data.values())

    async def open(self, beginnings: Beginnings) -> None:
        """Learn the producer id of the data, and what former owners have stored.

        Raises:
            Fenced, Retriable: see `SharedWriters.open`.
        """
        self._beginnings = beginnings
        self._alone_from = asyncio.get_running_loop().time() + self.settings.lease_s
        await self._data[0].open()
        # Before a partition is stored as PREPARING: an earlier version takes a log without a trace
        # of its owner for lost. If it fails, partitions report it, and others go on.
        try:
            async with asyncio.timeout(_TRACE_S), self._storing:
                await self._take_over()
        except Fenced:
            raise
        except (TwinlogError, TimeoutError) as error:
            log.warning("%s: what is recorded cannot be read yet: %s", self._id, error)
        self._keeping = asyncio.create_task(
            keep_ids(self._id, lambda: self.settings.ids_expiration_ms, self._use_ids)
        )

    async def close(self) -> None:
        """End the background task."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """See `SharedWriters.forget`: a command may have deleted what is recorded of them."""
        if topics and (not self._log_known or any(name[:2] in topics for name in self._plans)):
            self._outdated = True

    async def _use_ids(self) -> None:
        async with self._fencing:
            for data in self._data.values():
                await data.renew()
        async with self._storing:
            await self._log.keep_id()

    async def locate(
        self, partitions: Mapping[MirrorPartition, ToLocate], *, passes_lost: bool = False
    ) -> Mapping[MirrorPartition, PartitionSequence | NotLocated]:
        """Find out what of these has landed, and exclude that more of it lands.

        The caller sends nothing for these partitions any more. `passes_lost`: a partition goes on
        without copies that its log is proved to have lost.

        Raises:
            Fenced: another owner has taken over.
            Retriable: not now; call it again.
        """
        located = await self._find(partitions, passes_lost=passes_lost)
        if not self.must_be_taken_over:
            # Before anything is sent, and not before the plans are stored: so a plan that is
            # missing later was lost. Those that are FAILED for good have had one, or may have:
            # later owners must not take the log, which has a trace of this one, for complete.
            await self._beginnings.store(
                [
                    name
                    for name, one in located.items()
                    if isinstance(one, PartitionSequence) or not one.transient
                ]
            )
            return located
        # No fence of the new producer id is in a log: its broker would not know whether it has
        # taken anything. The next owner begins with one.
        reason = "the data's transactional id has got another producer id: it is taken over again"
        return {
            name: NotLocated(reason) if isinstance(one, PartitionSequence) else one
            for name, one in located.items()
        }

    async def _find(
        self, partitions: Mapping[MirrorPartition, ToLocate], *, passes_lost: bool = False
    ) -> Mapping[MirrorPartition, PartitionSequence | NotLocated]:
        async with self._fencing:
            async with self._storing:
                for name in partitions:
                    self._current.pop(name, None)
                await self._take_over()
            return await self._locate(partitions, passes_lost=passes_lost)

    async def _locate(
        self, partitions: Mapping[MirrorPartition, ToLocate], *, passes_lost: bool
    ) -> Mapping[MirrorPartition, PartitionSequence | NotLocated]:
        results: dict[MirrorPartition, PartitionSequence | NotLocated] = {}
        records: list[OffsetRecord] = []
        slots: dict[MirrorPartition, int] = {}
        for name, wanted in partitions.items():
            key = wanted.destination
            used = {slot for n, slot in slots.items() if partitions[n].destination == key}
            slots[name] = slot_of(name, key, self._plans, used)
        for slot in set(slots.values()):
            keys = {one.destination: n for n, one in partitions.items() if slots[n] == slot}
            fenced = await self._fence(slot, keys, partitions, passes_lost=passes_lost)
            for key, reason in fenced.troubles.items():
                results[keys[key]] = NotLocated(reason)
            for key, reason in fenced.shorter.items():
                results[keys[key]] = NotLocated(reason)  # asked again: a former leader may answer
            for key, end in fenced.ends.items():
                name, wanted, fence = keys[key], partitions[keys[key]], fenced.fences.get(key)
                try:
                    landing = await self._landed(
                        name, wanted, end, fence, fenced.numbers, passes_lost=passes_lost
                    )
                except Contradiction as error:
                    results[name] = NotLocated(str(error), transient=False, fence=fence)
                    if isinstance(error, LostBatches):
                        self.losses.note(name, RecordLoss(wanted.destination, None, None))
                    if isinstance(error, LostEnd):
                        at_least = error.start is not None  # where the log ends
                        loss = RecordLoss(key, error.start, error.end, at_least=at_least)
                        self.losses.note(name, loss)
                        known = self._plans.get(name)
                        if known is not None and known.lost is None:
                            records.append(replace(known, lost=str(error)))
                    continue
                except Retriable as error:  # the others go on
                    results[name] = NotLocated(str(error), fence=fence)
                    continue
                located = located_partition(
                    name,
                    wanted,
                    landing,
                    (self._plans.get(name), self._last.get(name)),
                    fenced.epoch,
                    slot=slot,
                    log_end=Offset(end if fence is None else fence + 1),
                )
                records += located.records
                results[name] = located.sequence
        async with self._storing:
            await self._store(records)
            self._current |= {
                name: one for name, one in results.items() if isinstance(one, PartitionSequence)
            }
        return results

    async def _fence(
        self,
        slot: int,
        keys: Mapping[TopicPartition, MirrorPartition],
        partitions: Mapping[MirrorPartition, ToLocate],
        *,
        passes_lost: bool,
    ) -> FencedPartitions:
        """Exclude that more data of a slot's earlier epochs lands in these partitions."""
        if slot not in self._data:
            data = DataId(f"{self._id}.{slot}", self._port, self.settings)
            await data.open()
            self._data[slot] = data
        data = self._data[slot]
        stored = {key: self._plans[name] for key, name in keys.items() if name in self._plans}
        if any(one.plan.producer_id != data.producer_id for one in stored.values()):
            # A fence of one producer id does not exclude data of another one.
            await asyncio.sleep(self._alone_from - asyncio.get_running_loop().time())
        numbers = await self._last_numbers(stored)
        identity = await data.next_epoch(keys)
        answers = await self._port.log_ends(keys)
        troubles = {
            key: f"the destination refuses: {Refusal(answer.error)}"
            for key, answer in answers.items()
            if answer.error
        }
        # Not fenced: with the fence, what the broker has taken would not be known any more. A
        # partition that is only sealed does not need it.
        troubles |= numbers.unknown
        troubles |= {
            key: f"the destination refuses to describe its producers: {refusal}"
            for key, refusal in numbers.refusals.items()
            if partitions[keys[key]].begin is not None
        }
        ends = {key: answer.log_end for key, answer in answers.items() if key not in troubles}
        # Not fenced: with the fence, the log would be as long as before. Then the tail shows it.
        shorter = {
            key: RecordLoss(key, Offset(ends[key]), one.plan.recorded.destination, at_least=True)
            for key, one in stored.items()
            if key in ends
            and (wanted := partitions[keys[key]]).begin is not None
            and wanted.follows(one.route)
            and ends[key] < one.plan.recorded.destination
            and not self._is_blank(one)
        }
        passing = [
            key
            for key in shorter
            if passes_lost and (stored[key].tail is not None or self._is_unmapped(keys[key]))
        ]
        waiting = self._shorter.waiting(keys, shorter, passing)
        ends = {key: end for key, end in ends.items() if key not in waiting}
        to_fence = {
            key: end
            for key, end in ends.items()
            # A partition of which nothing was copied is fenced, too, unless its log is empty: then
            # the broker knows the producer, and its log is as long as it is replicated.
            if partitions[keys[key]].owned_before or key in stored or end > 0
        }
        # The fence of such a partition would hold up those of all others, for as long as it lacks
        # replicas. It may lose one after this, too.
        for key in await self._port.lacking_replicas(to_fence) if to_fence else ():
            del to_fence[key]
            troubles[key] = "the destination has fewer in-sync replicas than min.insync.replicas"
        fences: Mapping[TopicPartition, Offset] = {}
        if to_fence:
            fences, codes, identity = await data.put_fences(identity, to_fence)
            for key in to_fence:
                if codes.get(key):
                    refusal = Refusal(codes[key])
                    troubles[key] = f"the destination refuses a fence: {refusal}"
                elif key not in fences:
                    troubles[key] = "its fence is not in the log yet"
            data.note_fences(identity, to_fence, [key for key in to_fence if codes.get(key)])
        epoch = ProducerId(identity.producer_id), ProducerEpoch(identity.epoch)
        ends = {key: end for key, end in ends.items() if key not in troubles}
        return FencedPartitions(epoch, ends, fences, numbers, troubles, waiting)

    async def _last_numbers(self, stored: Mapping[TopicPartition, StoredPlan]) -> LastNumbers:
        """What the brokers have taken before a fence, which makes them forget it.

        It is stored with the plans that may have been sent: whoever locates a partition next may
        need it.
        """
        plans = {key: one.plan for key, one in stored.items() if one.route.topic == key.topic}
        numbers = await ask_last_numbers(self._port, plans)
        records: list[OffsetRecord] = [
            replace(stored[key], taken=taken)
            for key, taken in numbers.taken.items()
            if stored[key].plan.runs and stored[key].taken != taken
        ]
        if records:
            async with self._storing:
                await self._store(records)
        return numbers

    async def _take_over(self, wanted: MirrorPartition | None = None) -> Sequence[MapChunk]:
        """Read what is stored, under an epoch that fences former owners' writes.

        Returns:
            The map of the partition that is wanted, if it was read now.
        """
        chunks: Sequence[MapChunk] = ()
        while self._outdated or not self._log_known:
            self._outdated = self._log_known = False
            stored = await self._log.take_over()
            last = {name: parts[-1].decoded() for name, parts in stored.chunks.items()}
            parts = () if wanted is None else stored.chunks.get(wanted, ())
            chunks = [part.decoded() for part in parts]
            self._log_known = True
            self._log_topic_id = stored.topic_id
            if self._log_has_past is None:  # later, its own records are there, too
                self._log_has_past = stored.has_past
            self._plans = dict(stored.plans)
            self._last = last
        return chunks

    async def _landed(
        self,
        name: MirrorPartition,
        wanted: ToLocate,
        end: int,
        fence: Offset | None,
        numbers: LastNumbers,
        *,
        passes_lost: bool,
    ) -> Landing:
        """The parts of the map that are to be stored, and where to go on.

        Raises:
            Contradiction: it is not known what has landed.
        """
        stored, chunk = self._plans.get(name), self._last.get(name)
        follows = stored is not None and wanted.goes_on(stored.route)
        if stored is None or chunk is None or not follows:
            if stored is None and end > 0 and self._is_lost(name, wanted):
                raise Contradiction(
                    "nothing of a former owner is stored, and the destination's log is not empty: "
                    "what was copied is not known"
                )
            if follows:
                # As of an owner that has outlived the log with the parts before its last plan.
                raise Contradiction("its plan is stored, and no part of its map: records are lost")
            if wanted.begin is None:
                raise Contradiction(NOTHING_COPIED)
            # Data of former routes is not looked for: it ends before the fence.
            return begun_anew(name, wanted.begin, Offset(end - 1 if fence is None else fence))
        outlives = wanted.outlives(stored.route)
        plan, lost = stored.plan, stored.lost or (RECREATED if outlives else None)
        if lost is not None and not passes_lost:
            raise LostEnd(lost, end=plan.recorded.destination)
        if fence is None:
            raise Contradiction("its plan is stored, and it has not been fenced")
        planned = plan.runs[-1][1] if plan.runs else plan.recorded.source
        if wanted.copied_to > max(planned, plan.recorded.source, chunk.end.source):
            # Another program has copied on from where a former flow of this name had ended. Where
            # to is not known, so the map begins anew, whatever of the plan has landed.
            return begun_anew(name, wanted.copied_to, fence)
        if refusal := numbers.refusals.get(wanted.destination):
            raise Retriable(f"cannot read the producers of {wanted.destination}: {refusal}")
        if fence < plan.recorded.destination and self._is_blank(stored) and not outlives:
            # No copy is lost, and groups may have an offset behind the new beginning.
            start, begin = plan.recorded.source, Offset(fence + 1)
            lost_copies = LostCopies(start, start, begin, former_positions_end(stored, chunk.end))
            return begun_anew(name, start, fence, lost_copies)
        if lost is not None:
            loss = LostEnd(lost, end=plan.recorded.destination)
            return await self._without_loss(wanted, stored, fence, loss)
        taken = numbers.taken.get(wanted.destination, stored.taken)
        return await self._resolved(wanted, stored, chunk, fence, taken, passes_lost=passes_lost)

    async def _resolved(
        self,
        wanted: ToLocate,
        stored: StoredPlan,
        chunk: MapChunk,
        fence: Offset,
        taken: Taken | None,
        *,
        passes_lost: bool,
    ) -> Landing:
        """What of a plan has landed, by the log up to the fence, and what was taken of it.

        Raises:
            Contradiction: it is not known.
        """
        plan, key, deadline_s = stored.plan, wanted.destination, self.settings.marker_deadline_s
        try:
            landed, whole_from = await read_end(self._port, key, stored, fence, deadline_s)
            found = resolve(plan, landed, whole_from=whole_from, taken=taken)
            position = max(found.position, chunk.end.source)
            if position < wanted.copied_to:
                return begun_anew(stored.name, wanted.copied_to, fence)
            require_whole(chunk.end, plan.recorded)
        except (LostEnd, LostBatches) as loss:
            if not passes_lost:
                raise
            # Batches that are not behind the recorded end may be in front of it, if that was lost.
            return await self._without_loss(wanted, stored, fence, loss)
        runs = [run for run in found.runs if run.source >= chunk.end.source]
        tail = stored.tail
        if landed:
            number = advance(landed[-1].sequence, landed[-1].records - 1)
            tail = MapTail(plan.producer_id, plan.epoch, number)
        return Landing(extended(chunk, runs), position, tail)

    async def _without_loss(
        self, wanted: ToLocate, stored: StoredPlan, fence: Offset, loss: LostEnd | LostBatches
    ) -> Landing:
        """How a partition goes on without copies that its log has lost.

        Raises:
            Retriable: not now.
            LostEnd: it is not known what of the plan has landed.
        """
        name = stored.name
        async with self._storing:
            self._outdated = True  # only the last part of each map is kept
            chunks = await self._take_over(name)
        if not chunks or (now := self._plans.get(name)) is None or now.plan != stored.plan:
            raise Retriable(f"what was stored of {name} is not there any more")
        deadline_s = self.settings.marker_deadline_s
        outlives = wanted.outlives(stored.route)
        damaged = DamagedLog(self._port, wanted.destination, fence, deadline_s, outlives)
        passed = await without_loss(damaged, stored, chunks, loss)
        if passed.loss.offsets or not outlives:
            self.losses.note(name, passed.loss)
        if passed.position < wanted.copied_to:
            return begun_anew(name, wanted.copied_to, fence, passed.lost)
        return Landing([*passed.chunks], passed.position, passed.tail, passed.lost, passed)

    def _is_lost(self, name: MirrorPartition, wanted: ToLocate) -> bool:
        """Whether a partition without a plan has had one; if not, nothing of it was sent.

        Where it is not known whether it has begun: a topic that was recreated has the records of
        the first owner since, so its id tells later owners.
        """
        begun = self._beginnings.has_begun(name)
        if begun is not None or not wanted.owned_before:
            return bool(begun)
        ids = {wanted.offsets_topic_id, self._log_topic_id} - {None}
        return len(ids) > 1 or not self._log_has_past

    def _is_blank(self, stored: StoredPlan) -> bool:
        """Whether nothing of a partition was sent: a log that is shorter has lost no copy."""
        unsent = stored.tail is None and not stored.plan.runs and stored.lost is None
        return unsent and self._is_unmapped(stored.name)

    def _is_unmapped(self, name: MirrorPartition) -> bool:
        last = self._last.get(name)
        return last is not None and last.number == 0 and not last.runs

    async def record(self, sequences: Mapping[MirrorPartition, PartitionSequence]) -> None:
        """Store what has landed of these partitions, and what is to be sent next.

        A partition that was located again since is left out.

        Raises:
            Fenced: another owner has taken over.
            Retriable: it is unknown whether it was stored: each partition is to be located again.
        """
        async with self._storing:
            current = {n: s for n, s in sequences.items() if self._current.get(n) is s}
            if not current:
                return
            if not self._log_known:
                raise Retriable("what is stored is not known")
            for name, sequence in current.items():
                known, chunk = self._plans.get(name), self._last.get(name)
                if known is None or chunk is None or not sequence.follows(known.plan, chunk.end):
                    # Read again after a write of other partitions: the topic was lost meanwhile.
                    raise Retriable(f"what was stored of {name} is not there any more")
            records: list[OffsetRecord] = []
            for name, sequence in current.items():
                chunks = extended(self._last[name], sequence.landed)
                if sequence.landed:
                    records += chunks
                    sequence.record(chunks[-1].end)
                stored = self._plans[name]
                epochs, plan = sequence.epochs.runs, sequence.plan()
                tail = stored.tail
                if chunks[-1].end != self._last[name].end:
                    last = SequenceNumber((plan.sequence - 1) % SEQUENCE_MODULUS)
                    tail = MapTail(plan.producer_id, plan.epoch, last)
                # As long as nothing of this epoch is recorded, what was known of it stays true.
                taken = None if plan.sequence else stored.taken
                records.append(replace(stored, plan=plan, epochs=epochs, taken=taken, tail=tail))
            await self._write(records)

    async def _store(self, records: Sequence[OffsetRecord]) -> None:
        """Write records of partitions that nothing else is stored of meanwhile."""
        await self._take_over()  # a write of other partitions may have had no answer
        if records:
            await self._write(records)

    async def _write(self, records: Sequence[OffsetRecord]) -> None:
        self._log_known = False  # also if this is cancelled: it is read again then
        await self._log.write(records)
        self._log_known = True
        for record in records:
            if isinstance(record, StoredPlan):
                self._plans[record.name] = record
            elif isinstance(record, MapChunk):
                self._last[record.name] = record

    async def seal(
        self, partitions: Mapping[MirrorPartition, Sealing]
    ) -> Mapping[MirrorPartition, Sealed | Refusal]:
        """Fence these partitions; the mirrored data ends where it has landed.

        Raises:
            Fenced, Retriable: see `SharedWriters.seal`.
        """
        async with self._fencing, self._storing:
            await self._take_over()
        wanted = {n: to_seal(n, one, self._plans.get(n)) for n, one in partitions.items()}
        located = await self._find(wanted)
        sealed: dict[MirrorPartition, Sealed | Refusal] = {}
        for name, one in located.items():
            if isinstance(one, PartitionSequence):
                sealed[name] = Sealed(one.recorded.destination)
            elif one.fence is not None:
                # No data of this flow can land any more, although it is not known what has.
                sealed[name] = Sealed(one.fence, one.reason)
        plans = self._plans
        unfenced = {
            n: to_seal(n, partitions[n], plans.get(n)).destination
            for n in located
            if n not in sealed
        }
        return {**sealed, **await self._deleted.sealed(unfenced)}
