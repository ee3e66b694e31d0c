"""Who writes a state partition's transactional flows: one transactional id for all of them.

The id is predictable: a new owner has the same one. Its InitProducerId ends the former owner's
transaction, and excludes that it begins another one. Only then are the positions read
(`require_stable`: no transaction with an offset is open). So records and positions always agree:

    fence ─► read the positions ─► transactions, each with records and their positions ─► ...
      ▲                                                          │ any error
      └──────────────────────────────────────────────────────────┘

Only `open`, `locate` and `seal` fence. A transaction with positions that were read before the last
fence is refused (`Outdated`): in between, another owner may have copied further.

With the positions, the maps of offsets are recorded, if a flow wants one (position_maps.py).

Brokers forget an offset of a group without members some time after its own commit
(`offsets.retention.minutes`). A partition that is copied commits its position from time to time,
changed or not. One that is FAILED commits none, but it is located again and again: `locate` commits
the position that it finds, as it is.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from twinlog.engines.base import Beginnings, LaneContext, Sealed, Sealing
from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional.former_routes import former_routes
from twinlog.engines.transactional.kept_positions import KeptPositions, as_found, to_keep
from twinlog.engines.transactional.losses import (
    SettledLosses,
    as_record_loss,
    report_stored,
    unlocated,
)
from twinlog.engines.transactional.own_writes import by_remote, newly_shared, own_ids
from twinlog.engines.transactional.position_maps import (
    NO_MAP,
    KnownMap,
    MapChange,
    changed_maps,
    dropped_map,
    grown_map,
    holds,
    known_maps,
    record_batches,
)
from twinlog.engines.transactional.positions import (
    PositionLost,
    found_position,
    is_dated,
    lost_of,
    position_group,
    routed_of,
    tail_of,
)
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.recreated_logs import RecreatedLogs, lost_copies
from twinlog.engines.transactional.remote_tails import (
    TailProblem,
    compare_tails,
)
from twinlog.engines.transactional.routed_tails import (
    RoutedTails,
    bounded,
    compare_routed,
    routed_behind,
)
from twinlog.engines.transactional.source_position import (
    SourcePosition,
    ToBegin,
    behind,
    by_group,
)
from twinlog.engines.transactional.transaction_size import TransactionSize
from twinlog.engines.transactional.transactions import (
    Batches,
    Landed,
    TargetTransactions,
    TransactionContent,
)
from twinlog.engines.translated.deleted_remotes import DeletedRemotes
from twinlog.engines.translated.found_losses import FoundLosses
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.log.records import Encoded
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss
from twinlog.store.offset_log import (
    OFFSETS_TOPIC,
    StoredOffsets,
    fold_offsets,
    offsets_topic_id,
    read_begun,
)
from twinlog.store.offset_records import BegunPartition, OffsetRecord, SharedPartition
from twinlog.store.topic_reader import read_whole

log = logging.getLogger(__name__)

_NO_PRODUCER: Final = -1
_Located = TransactionalQueue | NotLocated


class Outdated(Retriable):
    """Positions were read before the last fence: their partitions are to be located again."""


class TransactionalWriters:
    """The writers of one state partition (`SharedWriters`)."""

    def __init__(self, number: int, lane: LaneContext, port: DestinationPort) -> None:
        self._number = number
        self._log = TopicPartition(OFFSETS_TOPIC, number)
        self._lane = lane
        self._port = port
        self._beginnings: Beginnings  # from `open` on
        self._transactions = TargetTransactions(
            lane.destination,
            f"{lane.id_prefix}.{number}.transactions",
            self._permit,
            max_bytes=lane.settings.produce_max_bytes,
        )
        self._begun: Mapping[MirrorPartition, BegunPartition] | None = None  # None: to be read
        self._outdated = False  # others may have deleted some of it: it is read again
        self._begun_id: UUID | None = None  # of the topic that it was read from
        # Of the target, read with it: several source partitions have written there under the id.
        self._shared: frozenset[TopicPartition] = frozenset()
        self._maps: dict[MirrorPartition, KnownMap] = {}  # read with it, too
        self._producer_id = _NO_PRODUCER
        self._producer_ids: set[int] = set()  # that the id had at its fences
        self._fences = 0
        self._deleted = DeletedRemotes(port, lane.settings)
        self._recreated = RecreatedLogs(port)
        self._kept = KeptPositions()
        self._settled = SettledLosses(lane.settings)
        self.losses = FoundLosses()
        """What the target has lost; the engines count it."""
        self._turns = asyncio.Lock()
        """Guards the id: one transaction at a time."""

    @property
    def id(self) -> int:
        """The producer id, as of `open`."""
        return self._producer_id

    @property
    def size(self) -> TransactionSize:
        """How much of the source a transaction may have."""
        return self._transactions.size

    @property
    def must_be_taken_over(self) -> bool:
        """Never: whatever producer id the transactional id has, a new epoch ends the former one."""
        return False

    async def open(self, beginnings: Beginnings) -> None:
        """Fence the former owner.

        Raises:
            Fenced, Retriable: see `SharedWriters.open`.
        """
        self._beginnings = beginnings
        async with self._turns:
            await self._fence()

    async def close(self) -> None:
        """Nothing runs in the background."""

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """See `SharedWriters.forget`: a command may have deleted what is recorded of them."""
        if topics and (self._begun is None or any(name[:2] in topics for name in self._begun)):
            self._outdated = True

    async def locate(
        self,
        mirror: str,
        partitions: Mapping[MirrorPartition, ToBegin],
        *,
        passes_lost: bool = False,
        is_mapped: bool = False,
        has_routed: bool = False,
    ) -> Mapping[MirrorPartition, _Located]:
        """Where these partitions of a flow go on; those that have not begun begin.

        No transaction with them is in flight. `passes_lost`: where the target has lost records, it
        is reported, and the position gets another tail. Then the partition is located again.
        `is_mapped`: whether the flow records a map. `has_routed`: it may have routed records.

        Raises:
            Fenced: another owner has taken over.
            Retriable: not now; call it again.
            UserError: a right is missing.
        """
        group = position_group(self._lane.id_prefix, mirror)
        remotes = {n: TopicPartition(one.route.topic, n.partition) for n, one in partitions.items()}
        async with self._turns:
            begun = await self._take_over()
            committed = await committed_offsets(
                self._lane.destination, group, stable=True, partitions=list(remotes.values())
            )
            former = await self._former(
                committed[key] for n, key in remotes.items() if n not in begun and key in committed
            )
            # Where nothing is routed, another name is a way to copy all anew.
            routed = former_routes(begun, partitions) if has_routed else {}
            found, lost = self._found(
                group,
                {n: one for n, one in partitions.items() if n not in routed},
                committed,
                {**former, **begun},
                passes_lost=passes_lost,
            )
            anew = {n: one.again() for n, one in partitions.items() if one.is_lost(begun.get(n))}
            partitions = {**partitions, **anew}
            found, unknown = await self._recreated.positions(
                found, anew, committed, own_ids=self._producer_ids
            )
            results: dict[MirrorPartition, _Located] = {**routed, **lost, **unknown}
            at = {n: self._start(remotes[n], partitions[n], here) for n, here in found.items()}
            compared = await self._compared(at, passes_lost=passes_lost)
            settled = self._settled.settled(at, compared)
            for name, one_loss in ((n, one) for n, losses in settled.items() for one in losses):
                self.losses.note(name, as_record_loss(one_loss, remotes[name]))
            new: dict[MirrorPartition, SourcePosition] = {}
            for name, position in at.items():
                result, here = compared[name], found[name]
                if isinstance(result, Exception):
                    results[name], changed = unlocated(
                        *(name, position, here, result, self.losses),
                        settled=settled.get(name),
                        passes_lost=passes_lost,
                        group=group,
                    )
                    new |= {} if changed is None else {name: changed}
                    continue
                results[name] = TransactionalQueue(
                    position.offset,
                    position.epoch,
                    fence=self._fences,
                    has_begun=here is not None,
                    tail=position.tail,
                    routed=result,
                )
                # Also where an operator has committed an offset: from now on it is dated.
                names_loss = report_stored(name, position, here, self.losses)
                is_stored = here is not None and is_dated(here) and not names_loss
                goes_on = holds(self._maps.get(name, NO_MAP), position, is_mapped=is_mapped)
                if not is_stored or begun.get(name) != position.begun(name) or not goes_on:
                    new[name] = position
            # What another program has copied in front of it is lost with the former topic.
            fronts = {n for n, one in anew.items() if one.copied_to}
            beginning = {n for n, here in found.items() if here is None} - fronts
            maps, unmapped = await changed_maps(
                self._port, mirror, self._maps, new, compared, begin=beginning, is_mapped=is_mapped
            )
            for name, reason in unmapped.items():
                del new[name]
                results[name] = NotLocated(reason)
            for name in await self._changed(group, {n: remotes[n] for n in new}, committed):
                del new[name]
                maps.pop(name, None)
                results[name] = NotLocated("its position has changed meanwhile")
            for name in anew.keys() & new.keys():
                self.losses.note(name, lost_copies(remotes[name], self._maps.get(name, NO_MAP)))
            if new or maps:
                await self._begin(new, maps, group, committed)
            await self._keep(group, to_keep(remotes, results, new, committed, settled), committed)
        located = [n for n, one in results.items() if isinstance(one, TransactionalQueue)]
        await self._beginnings.store(located)  # before anything is sent
        return results

    def _found(
        self,
        group: str,
        partitions: Mapping[MirrorPartition, ToBegin],
        committed: Mapping[TopicPartition, Committed],
        begun: Mapping[MirrorPartition, BegunPartition],
        *,
        passes_lost: bool,
    ) -> tuple[dict[MirrorPartition, Committed | None], dict[MirrorPartition, NotLocated]]:
        """The positions of partitions, None if they begin; and those that have lost it."""
        found: dict[MirrorPartition, Committed | None] = {}
        lost: dict[MirrorPartition, NotLocated] = {}
        for name, one in partitions.items():
            remote = TopicPartition(one.route.topic, name.partition)
            at = committed.get(remote)
            try:
                found[name] = found_position(
                    at,
                    begun.get(name),
                    one.route,
                    group,
                    name.partition,
                    copied_to=one.copied_to,
                    begun_before=self._begun_before(name, one),
                    passes_lost=passes_lost,
                )
            except PositionLost as error:
                lost[name] = NotLocated(str(error), transient=False)
                if at is not None and (log_lost := lost_of(at, remote)):
                    # A former owner has found it, perhaps.
                    self.losses.note_former(name, RecordLoss(log_lost, None, None))
        return found, lost

    async def _keep(
        self,
        group: str,
        remotes: Mapping[MirrorPartition, TopicPartition],
        found: Mapping[TopicPartition, Committed],
    ) -> None:
        """Commit these positions again, as they were found, if that is due.

        An error only delays what is located with them: a next attempt follows after `KEEP_S`.

        Raises:
            Fenced: another owner has taken over.
        """
        due = self._kept.due(group, remotes)
        if not due:
            return
        try:
            changed = await self._changed(group, due, found)
            if kept := {name: key for name, key in due.items() if name not in changed}:
                offsets = {group: as_found(found, kept.values())}
                check = partial(self._require_unchanged, group, kept, found)
                await self._transactions.write(
                    TransactionContent(offsets=offsets, before_commit=check)
                )
        except Fenced:
            raise
        except TwinlogError as error:
            log.warning("positions of group %s cannot be committed again now: %s", group, error)

    async def _compared(
        self, positions: Mapping[MirrorPartition, SourcePosition], *, passes_lost: bool
    ) -> Mapping[MirrorPartition, RoutedTails | TailProblem]:
        """The routed tails of these positions as they are now, or what is wrong with a log."""
        tails = {one.remote: one.tail for one in positions.values() if one.tail is not None}
        own = own_ids(
            tails,
            self._producer_ids,
            begun=self._begun or {},
            shared=self._shared,
            recorded_in=self._begun_id,
        )
        problems = await compare_tails(self._port, tails, own)
        routed = await compare_routed(
            self._port,
            {name: one.routed for name, one in positions.items()},
            # Else an old topic that was deleted waits for a record that would go there.
            deletion_is_loss=passes_lost,
        )
        return {name: problems.get(one.remote, routed[name]) for name, one in positions.items()}

    def _begun_before(self, name: MirrorPartition, wanted: ToBegin) -> bool:
        """Whether a partition may have begun of which `__mirror_offsets` has no record."""
        begun = self._beginnings.has_begun(name)
        if begun is None:
            return len({wanted.begun_in, self._begun_id} - {None}) > 1
        return begun

    async def _changed(
        self,
        group: str,
        remotes: Mapping[MirrorPartition, TopicPartition],
        found: Mapping[TopicPartition, Committed],
        *,
        stable: bool = True,
    ) -> list[MirrorPartition]:
        """Those of which an operator has committed another offset since: it stays."""
        if not remotes:
            return []
        now = await committed_offsets(
            self._lane.destination, group, stable=stable, partitions=list(remotes.values())
        )
        return [name for name, remote in remotes.items() if now.get(remote) != found.get(remote)]

    async def _require_unchanged(
        self,
        group: str,
        remotes: Mapping[MirrorPartition, TopicPartition],
        found: Mapping[TopicPartition, Committed],
    ) -> None:
        """Raise Retriable if there are any, while positions of a transaction are pending there."""
        if changed := await self._changed(group, remotes, found, stable=False):
            raise Retriable(f"the position of {changed[0]} has changed meanwhile")

    def _start(
        self, remote: TopicPartition, partition: ToBegin, found: Committed | None
    ) -> SourcePosition:
        """Where a partition goes on, or begins."""
        begin = SourcePosition(
            remote,
            partition.route,
            partition.begin,
            LeaderEpoch(UNKNOWN_EPOCH),
            partition.copied_to,
            self._fences,
        )
        if found is None:
            return begin
        return replace(
            begin,
            offset=Offset(found.offset),
            epoch=LeaderEpoch(found.leader_epoch),
            tail=tail_of(found),
            routed=routed_of(found),
        )

    async def _fence(self) -> None:
        self._begun = None
        self._fences += 1
        producer_id = await self._transactions.fence()
        self._producer_ids.add(producer_id)
        if self._producer_id == _NO_PRODUCER:
            self._producer_id = producer_id

    async def _former(
        self, unrecorded: Iterable[Committed]
    ) -> Mapping[MirrorPartition, BegunPartition]:
        """What has begun between former topics, if it matters to one of these offsets.

        Their partitions have no record in this partition of `__mirror_offsets`.
        """
        if all(map(is_dated, unrecorded)):
            return {}
        return await read_begun(self._lane.destination)

    async def _take_over(self) -> Mapping[MirrorPartition, BegunPartition]:
        """Have the id fenced; return what has begun."""
        if not self._transactions.ready:
            await self._fence()
        while self._begun is None or self._outdated:
            self._outdated = False  # `forget` may set it while this reads
            try:
                stored, begun_id = await self._read_begun()
                maps = known_maps(stored)
            except BaseException:
                self._outdated = True  # until then, what was known holds: others may be written
                raise
            self._begun, self._shared = stored.begun, frozenset(stored.shared)
            self._begun_id, self._maps = begun_id, maps
        return self._begun

    async def _read_begun(self) -> tuple[StoredOffsets, UUID | None]:
        """What is recorded of the state partition, and the id of the topic that it was read from.

        Raises:
            Retriable: it cannot be read, or the topic was recreated meanwhile.
        """
        before = await offsets_topic_id(self._lane.destination)
        records = await read_whole(self._lane.destination, OFFSETS_TOPIC, [self._number])
        if before != (after := await offsets_topic_id(self._lane.destination)):
            raise Retriable("the topic was recreated while it was read", topic=OFFSETS_TOPIC)
        # Many long maps have many keys, and the loop has heartbeats to send.
        return await asyncio.to_thread(fold_offsets, records), after

    async def _begin(
        self,
        positions: Mapping[MirrorPartition, SourcePosition],
        maps: Mapping[MirrorPartition, MapChange],
        group: str,
        found: Mapping[TopicPartition, Committed],
    ) -> None:
        begun = {name: position.begun(name) for name, position in positions.items()}
        all_begun = {**(self._begun or {}), **begun}
        names = by_remote(all_begun)
        remotes = {name: position.remote for name, position in positions.items()}
        shared = {key for key in remotes.values() if len(names[key]) > 1} - self._shared
        records: list[OffsetRecord] = [
            *begun.values(),
            *map(SharedPartition, sorted(shared)),
            *(record for one in maps.values() for record in one.records),
        ]
        await self._transactions.write(
            TransactionContent(
                batches=self._records(records),
                offsets=by_group(self._lane.id_prefix, positions),
                before_commit=partial(self._require_unchanged, group, remotes, found),
            )
        )
        self._begun, self._shared = all_begun, self._shared | shared
        self._maps |= {name: one.known for name, one in maps.items()}

    def _records(self, records: Sequence[OffsetRecord]) -> dict[TopicPartition, list[Encoded]]:
        """The batches with these records for `__mirror_offsets`, if there are any."""
        now_ms = self._lane.destination.brokers_time.now_ms()
        return {self._log: record_batches(records, now_ms)} if records else {}

    async def write(
        self,
        batches: Mapping[TopicPartition, list[Encoded]],
        positions: Mapping[MirrorPartition, SourcePosition],
        source_bytes: int = 0,
    ) -> Mapping[MirrorPartition, SourcePosition]:
        """Write batches, of so many bytes of the source, and the positions behind them at once.

        Returns:
            The positions as they are committed, with the tails behind what has landed.

        Raises:
            Outdated: a partition was located before the last fence, or there has to be another one.
            TransactionRefused: partitions refuse it; nothing is committed.
            TransactionOutlasted: it has taken too long; nothing is committed.
            Fenced: another owner has taken over.
            Retriable, UserError: each partition is to be located again.
        """
        async with self._turns:
            located = {position.fence for position in positions.values()}
            if not self._transactions.ready or located - {self._fences}:
                raise Outdated("the transactional id was fenced, or has to be, since the location")
            written, maps = dict(positions), self._maps_to_write(positions)
            own = [one.remote for one in positions.values()]
            shared = newly_shared(batches, own, self._shared, self._begun or {})
            records = self._records([*map(SharedPartition, sorted(shared))])
            metadata = self._lane.destination.metadata

            def after(landed: Landed) -> None:
                for name, position in positions.items():
                    moved = behind(position, landed.get(position.remote), self._begun_id)
                    elsewhere = {key: landed[key] for key in position.routed_to if key in landed}
                    routed = routed_behind(position.routed, elsewhere, metadata)
                    written[name] = replace(moved, routed=bounded(routed, len(positions)))
                    if position.copies is not None:
                        here = landed.get(position.remote)
                        maps[name] = grown_map(
                            name, self._maps.get(name, NO_MAP), written[name], here
                        )

            def batches_behind(landed: Landed) -> Batches:
                after(landed)
                return self._records([record for one in maps.values() for record in one.records])

            await self._transactions.write(
                TransactionContent(
                    batches={**batches, **records},
                    batches_behind=batches_behind,
                    partitions_behind=[self._log] if maps else [],
                    offsets_behind=lambda _: by_group(self._lane.id_prefix, written),
                    source_bytes=source_bytes,
                )
            )
            self._maps |= {name: one.known for name, one in maps.items()}
            self._shared |= shared
            for name, position in written.items():
                self._kept.note(position_group(self._lane.id_prefix, name.mirror), position.remote)
            return written

    def _maps_to_write(
        self, positions: Mapping[MirrorPartition, SourcePosition]
    ) -> dict[MirrorPartition, MapChange]:
        """The maps that a transaction changes; those that grow have changed nothing yet.

        Raises:
            Outdated: a map is wanted, and there is none that goes on at the position.
        """
        maps: dict[MirrorPartition, MapChange] = {}
        for name, position in positions.items():
            known, copies = self._maps.get(name, NO_MAP), position.copies
            if copies is None:
                if change := dropped_map(known):
                    maps[name] = change
            elif known.head is None or known.head.position != copies.start:
                raise Outdated(f"the map of offsets of {name} is to begin")
            else:
                maps[name] = MapChange((), known)
        return maps

    async def seal(
        self, partitions: Mapping[MirrorPartition, Sealing]
    ) -> Mapping[MirrorPartition, Sealed | Refusal]:
        """Fence all that was written before; the data ends where the remote logs end then.

        Raises:
            Fenced, Retriable: see `SharedWriters.seal`.
        """
        async with self._turns:
            await self._fence()
        answers = await self._port.log_ends([one.destination for one in partitions.values()])
        sealed: dict[MirrorPartition, Sealed | Refusal] = {}
        for name, one in partitions.items():
            answer = answers.get(one.destination)
            if answer is not None and not answer.error:
                sealed[name] = Sealed(Offset(answer.log_end))
            elif answer is not None and not Refusal(answer.error).reaction.retriable:
                sealed[name] = Refusal(answer.error)
        unfenced = {n: one.destination for n, one in partitions.items() if n not in sealed}
        return {**sealed, **await self._deleted.sealed(unfenced)}

    def _permit(self) -> None:
        """Raise Fenced if the lane may not write any more."""
        if not self._lane.may_write():
            raise Fenced("not sent: the lease has ended", cluster=self._lane.destination.name)
