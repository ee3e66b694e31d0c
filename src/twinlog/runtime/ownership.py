"""An owned state partition: the states of its mirror partitions.

steps.py has the next step of each mirror partition.

**Reported and stored states.** The next step follows from the state that was last reported
(*said*), even if it is not stored yet. Only the transitions of mirror/states.py are written,
starting from the stored state (`way`): a partition that is removed while PREPARING becomes FAILED
on its way to STOPPING.

After a write of unknown outcome, all states are read again before the next write. A stored STOPPED
is not written twice, since users may write to the topic from then on. If a stored state is neither
the former one nor the one that was written, another owner has written it, and the reported states
are void.

**Stop.** A stop ends outstanding requests in two ways:

- Data of former owners, and lost data of this owner, is refused from the marker on
  (docs/architecture/stopping.md).
- Written markers and filler transactions of former owners are not refused. So after a takeover
  nothing is fenced before the lease has ended. Those of this owner that were lost are waited for in
  the same way (shard.py).

A partition that refuses writes cannot be fenced. It stays STOPPING with the reason, the other
partitions are stopped without it, and its stop is retried with a growing backoff.

**UNKNOWN.** Either no lane has begun with the partition, as PREPARING is written before that, or
its state was lost. In both cases nothing is fenced: after a lost state, users may have been writing
to the topic for long, and a marker would lie among their records. The last mirrored end stays as it
is: unknown, unless it was written.

**Unreadable.** A partition whose state or last mirrored end cannot be read had an owner, perhaps of
a newer version. No lane begins with it, and nothing is written over its record.

**STOPPED and wanted again.** A lane begins with it only after it has read the desired state again:
a command that saw STOPPED may have given the topic away meanwhile (reconciler.py). If it is not
wanted any more, it is stopped without a marker: nothing was begun, and users own the log. Until
that read it is stored as `unconfirmed`, for the next owner, which may have to stop it.

**Pause.** A pause fences nothing. A former owner within its lease, or a lost request of this owner,
may still append after PAUSED is stored: the source's next data at its own offset, or the marker
that ends an open filler transaction, in the gap that it was for.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from twinlog.engines.base import (
    Assignment,
    Engine,
    PartitionProgress,
    Sealed,
    Sealing,
    SharedWriters,
)
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError
from twinlog.kafka.types import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.refused_stops import RefusedStops
from twinlog.runtime.state_log import StatePort
from twinlog.runtime.steps import way
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import States
from twinlog.store.state_records import UNCONFIRMED_TEXT, LastMirrored, PartitionState

log = logging.getLogger(__name__)

MOST_PRODUCERS: Final = 64
"""How many ids of data producers are kept for a partition: the latest ones."""
_NOT_BEGUN: Final = frozenset({State.PREPARING, State.STOPPING})
"""States of partitions that are `unsure`."""


class OwnedStatePartition:
    """An owned state partition: the states that are stored in it, and who writes its data.

    Args:
        number: its partition of `__mirror_state`.
        writers: of each kind of engine.
        kind_of: the kind of a mirror; None if the mirror is not known.
        states: where the states are stored.
        may_write: whether this lane's lease lasts.
        settings: `lease_s` is how long a former owner might still write.
    """

    def __init__(
        self,
        number: int,
        *,
        writers: Mapping[str, SharedWriters],
        kind_of: Callable[[str], str | None],
        states: StatePort,
        may_write: Callable[[], bool],
        settings: LaneSettings,
    ) -> None:
        self.number = number
        self.writers = writers
        self._kind_of = kind_of
        self.stopping: asyncio.Task[None] | None = None
        self.informed = False
        """Whether the desired state is known as of the takeover (reconciler.py)."""
        self.unsure: set[MirrorPartition] = set()
        """Partitions that were STOPPED and are PREPARING, but may not be wanted any more."""
        self.refused = RefusedStops(settings.backoff_max_s)
        self._states = states
        self._there = States({}, {})  # the states as read at the last takeover
        self._written: dict[MirrorPartition, PartitionState] = {}
        self._mirrored: dict[MirrorPartition, LastMirrored] = {}
        self._said: dict[MirrorPartition, PartitionState] = {}  # reported, and not written yet
        self._mirrored_said: dict[MirrorPartition, LastMirrored] = {}
        # The end up to which this owner has proven the log; FAILED for good: it differs behind it.
        self._proved: dict[MirrorPartition, Offset] = {}
        self._differing: set[MirrorPartition] = set()
        self._tried: dict[MirrorPartition, set[State]] = {}  # states in writes of unknown outcome
        self._may_write = may_write
        self._open = False
        self._lost = False  # closed or fenced: only the group decides about another takeover
        self._certain = False  # whether `_written` are the stored states
        self._writing = asyncio.Lock()  # guards the port, which serves one call at a time
        self._settings = settings
        self._alone_from = self._now() + settings.lease_s
        self._confirmed = 0.0  # the start of the last write or takeover that proved the ownership

    async def open(self) -> None:
        """Fence the former owner, and read the states that it wrote.

        Raises:
            Fenced: the lease has ended.
            Retriable: not now; call it again.
        """
        if self._open:
            return
        found = await self._take_over()
        self._adopt(found)
        for writers in self.writers.values():
            await writers.open()
        for reason in found.unreadable.values():
            log.warning("%s", reason)
        self._open = True

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _take_over(self) -> States:
        began = self._now()
        found = await self._states.take_over()
        self._confirmed = began
        return found

    def _adopt(self, found: States) -> None:
        self._written, self._mirrored = dict(found.states), dict(found.epochs)
        self.unsure |= {n for n, one in found.states.items() if one.unconfirmed}
        self._there = found
        self._certain = True

    async def _take_over_again(self) -> None:
        """Read the states that are stored now.

        Raises:
            Fenced: another owner has written meanwhile.
        """
        found = await self._take_over()
        for name, now in found.states.items():
            before = self._written.get(name)
            if now != before and now.state not in self._tried.get(name, ()):
                raise Fenced(f"another owner has written {now.state.name} of {name}")
        if found.unreadable != self._there.unreadable:
            raise Fenced("another owner has written what cannot be read")
        self._adopt(found)

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget these (mirror, topic): the mirror was deleted since, and the states with it."""
        if self.informed:
            self.unsure = {name for name in self.unsure if name[:2] not in topics}
            self.refused.forget([name for name in self.refused if name[:2] in topics])
            self._drop((self._written, self._said), topics)
            self.forget_ends(topics)

    def forget_ends(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget the mirrored ends of these: the destination's topic was recreated since."""
        self._differing = {name for name in self._differing if name[:2] not in topics}
        self._drop((self._mirrored, self._mirrored_said, self._proved), topics)

    @staticmethod
    def _drop(
        tables: Iterable[dict[MirrorPartition, Any]], topics: Collection[tuple[str, str]]
    ) -> None:
        for table in tables:
            for name in [name for name in table if name[:2] in topics]:
                del table[name]

    async def close(self) -> None:
        """End what runs in the background; nothing is written any more.

        A write in progress fails at its next request. Later requests would fence the next owner, or
        write over its states.
        """
        self._open, self._lost = False, True
        self._states.close()
        if self.stopping is not None:
            self.stopping.cancel()
            await asyncio.gather(self.stopping, return_exceptions=True)
        for writers in self.writers.values():
            await writers.close()

    @property
    def being_stopped(self) -> list[PartitionState]:
        """The partitions that are STOPPING, and in no engine any more."""
        if not self.refused and (self.stopping is None or self.stopping.done()):
            return []
        said = {**self._written, **self._said}.values()
        return [one for one in said if one.state is State.STOPPING]

    def state(self, name: MirrorPartition) -> State:
        """The state that was last reported; UNKNOWN if there is none, or before `open`."""
        last = self._said.get(name) or self._written.get(name)
        return State.UNKNOWN if last is None else last.state

    def unread(self, name: MirrorPartition) -> bool:
        """Whether a record of this partition cannot be read."""
        return bool(self._there.unread(name))

    async def prepare(self, names: Collection[MirrorPartition]) -> set[MirrorPartition]:
        """Write that these are PREPARING, before anything else is done with them.

        Returns:
            The partitions that have never had an owner.
        """
        for kind, some in self._by_kind(names).items():
            self._note_writers(self.writers[kind].id, some)
        fresh = {name for name in names if name not in self._written}
        # A resumed partition goes to MIRRORING directly.
        resumed = {State.PAUSED, State.PAUSING}
        await self.enter(
            {name: State.PREPARING for name in names if self.state(name) not in resumed}
        )
        return fresh

    def to_begin_again(self, names: Collection[MirrorPartition]) -> set[MirrorPartition]:
        """The partitions of these that are STOPPED, or `unsure`."""
        return {n for n in names if n in self.unsure or self.state(n) is State.STOPPED}

    async def begin_again(self, names: Collection[MirrorPartition]) -> None:
        """Write that these are PREPARING, which later commands will see.

        Raises:
            Fenced: the state partition has another owner.
        """
        self.unsure |= set(names)
        await self.enter(dict.fromkeys(names, State.PREPARING))

    async def begin(self, names: Collection[MirrorPartition]) -> None:
        """Write that these have begun: they were still wanted after PREPARING was stored.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name in names:
            self._say(PartitionState(name, State.PREPARING))
        await self.write_states()
        # Not before: after a failed write, the record in `__mirror_state` is still `unconfirmed`.
        self.unsure -= set(names)

    async def run(self, engine: Engine, assignments: Collection[Assignment]) -> None:
        """Mirror these in the engine of their mirror.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all have begun; call it again.
        """
        new = {one.name: one for one in assignments}
        for row in engine.progress([self.number]):
            if new.pop(row.name, None) is not None:
                # It may be resumed before its pause was done.
                self.observe(row)
        # Once: what is started has to have its writers noted, whatever becomes of its mirror.
        by_kind = self._by_kind(new)
        if not by_kind:
            return
        fresh = await self.prepare([name for names in by_kind.values() for name in names])
        for kind, names in by_kind.items():
            writers = self.writers[kind]
            # Without a former owner there is no lease to wait for.
            engine.start(writers, [new[n] for n in names if n in fresh], lease_s=0.0)
            engine.start(
                writers,
                [self._with_former(new[n]) for n in names if n not in fresh],
                lease_s=self._settings.lease_s,
            )

    def _with_former(self, one: Assignment) -> Assignment:
        return replace(one, former_writers=frozenset(self._last(one.name).producers))

    def _by_kind(self, names: Iterable[MirrorPartition]) -> Mapping[str, list[MirrorPartition]]:
        """These partitions by the kind of their mirrors; those of unknown kinds are left out."""
        found: defaultdict[str, list[MirrorPartition]] = defaultdict(list)
        for name in names:
            kind = self._kind_of(name.mirror)
            if kind is not None and kind in self.writers:
                found[kind].append(name)
        return found

    def observe(self, row: PartitionProgress) -> None:
        """Note what an engine reports of one of its partitions."""
        self.mirrored(row)
        if row.state is not self.state(row.name):
            self._mirrored_said[row.name] = self._last(row.name)
        self.changed(row.name, row.state, row.reason)

    def changed(self, name: MirrorPartition, state: State, reason: str | None) -> None:
        """Note another state of a partition; the next write includes it."""
        if state is State.PREPARING and self.state(name) in {State.PAUSED, State.PAUSING}:
            return
        self._say(PartitionState(name, state, reason))

    def _say(self, change: PartitionState) -> None:
        if self._written.get(change.partition) == change and self._certain:
            self._said.pop(change.partition, None)
        else:
            self._said[change.partition] = change

    def mirrored(self, row: PartitionProgress) -> None:
        """Note up to where a partition is mirrored, and the source's leader epoch of its end.

        A new epoch is written at the next write: a failover without the source could not ask for it
        any more. The end is written when the state changes.
        """
        name = row.name
        if row.destination_end >= 0:
            # What an earlier owner has proven counts as far as the log reaches.
            known = min(self._last(name).end, row.destination_end)
            self._proved[name] = Offset(max(row.proved_end, known))
        if row.differs:
            self._differing.add(name)
        else:
            self._differing.discard(name)
        if row.epoch not in {UNKNOWN_EPOCH, self._last(name).epoch}:
            self._mirrored_said[name] = self._last(name)._replace(epoch=row.epoch)

    def _note_writers(self, writers: int, names: Iterable[MirrorPartition]) -> None:
        """Write the id of the partitions' writers before anything is appended under it.

        A transactional id has another producer id when its epochs are used up, and when it has
        expired at its coordinator (transactional.id.expiration.ms, a week by default).
        """
        for name in names:
            last = self._last(name)
            if writers not in last.producers:
                producers = (*last.producers, writers)[-MOST_PRODUCERS:]
                self._mirrored_said[name] = last._replace(producers=producers)

    def _last(self, name: MirrorPartition) -> LastMirrored:
        nothing = LastMirrored(UNKNOWN_EPOCH, UNKNOWN_OFFSET)
        last = self._mirrored_said.get(name) or self._mirrored.get(name, nothing)
        return last._replace(end=self._proved.get(name, last.end))

    async def enter(self, states: Mapping[MirrorPartition, State]) -> None:
        """Report these states, and write them now with all other reported states.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name, state in states.items():
            if self.state(name) is not state:
                unconfirmed = name in self.unsure and state in _NOT_BEGUN
                reason = UNCONFIRMED_TEXT if unconfirmed else None
                self._say(PartitionState(name, state, reason, unconfirmed))
        await self.write_states()

    async def write_states(self) -> None:
        """Write all reported states in one transaction.

        Raises:
            Fenced: the state partition has another owner.
        """
        if self._open and self._confirmed < self._alone_from <= self._now():
            await self._confirm()
        async with self._writes():
            to_say = self._said or self._mirrored_said
            if not self._open or not (to_say or self._lost or self._must_be_taken_over):
                return
            self._permit()
            if not self._certain:
                await self._take_over_again()
                self._permit()
            await self._write(dict(self._said), dict(self._mirrored_said))

    @asynccontextmanager
    async def _writes(self) -> AsyncIterator[None]:
        """Serialize writes; after a fenced write there is no other."""
        async with self._writing:
            try:
                yield
            except Fenced:
                self._lost = True
                raise

    @property
    def _must_be_taken_over(self) -> bool:
        return any(one.must_be_taken_over for one in self.writers.values())

    def _permit(self) -> None:
        if self._must_be_taken_over:
            raise Fenced("its data has another producer id by now: it is taken over anew")
        if self._lost or not self._may_write():
            raise Fenced("the lease has ended, or another owner has written")

    async def _write(
        self,
        said: Mapping[MirrorPartition, PartitionState],
        epochs: Mapping[MirrorPartition, LastMirrored],
    ) -> None:
        """Write these, and remove them from the reported states unless they changed meanwhile."""
        records = [
            record
            for name, change in said.items()
            for record in way(self._written.get(name), change)
        ]
        new = {name: last for name, last in epochs.items() if self._mirrored.get(name) != last}
        if records or new:
            began, self._certain = self._now(), False
            for record in records:
                self._tried.setdefault(record.partition, set()).add(record.state)
            await self._states.write(records, new)
            self._certain, self._confirmed = True, began
            self._tried.clear()
        self._written.update((record.partition, record) for record in records)
        self._mirrored |= new
        for name, change in said.items():
            if self._said.get(name) is change:
                del self._said[name]
        for name, last in epochs.items():
            if self._mirrored_said.get(name) is last:
                del self._mirrored_said[name]

    async def _confirm(self) -> None:
        """Read the states again, if a former owner may have written within its lease.

        The former owner may have taken the state partition over again, and stopped partitions. Or
        it has written an older state, which would stay: an owner that has nothing to write does not
        notice that it is fenced.
        """
        async with self._writes():
            if self._confirmed < self._alone_from:
                self._permit()
                await self._take_over_again()

    async def stop(
        self,
        names: Collection[MirrorPartition],
        topics: Collection[MirrorTopic] = (),
        *,
        jitter: float = 0.5,
    ) -> None:
        """Seal these, and write that they are STOPPED.

        The last mirrored end is written with STOPPED, for a failback to compare with. A partition
        that refuses to be sealed stays STOPPING, with the reason, and is retried later.

        Args:
            names: the partitions; this owner has no request for them in flight.
            topics: their topics. Of a partition whose topic is not given, the destination's topic
                has the same name, and an unknown id.
            jitter: from 0 to 1, of the pause after a refusal.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all could be sealed yet; those that could are STOPPED.
            UserError: the principal may not use the state partition's transactional ids.
        """
        # A fence does not refuse a former owner's markers and fillers: its lease must have ended.
        await asyncio.sleep(self._alone_from - self._now())
        await self._confirm()
        # Users may write to a partition that is STOPPED by now; it is not sealed again.
        left = [name for name in names if self.state(name) is State.STOPPING]
        not_begun = self.unsure.intersection(left)
        to_seal = [name for name in left if name not in not_begun]
        by_kind = self._by_kind(to_seal)
        known = {(one.mirror, one.topic): one for one in topics}
        settled: dict[MirrorPartition, Sealed | Refusal] = {}
        troubles: list[TwinlogError] = []
        for kind, some in by_kind.items():
            try:
                sealing = {
                    name: _sealing(
                        name, known.get(name[:2]), self._last(name), name in self._differing
                    )
                    for name in some
                }
                settled |= await self.writers[kind].seal(sealing)
            except TwinlogError as error:
                troubles.append(error)
        for name, end in settled.items():
            if isinstance(end, Refusal):
                reason = f"the destination refuses its fence: {end}"
                self.keep_stopping([name], reason, jitter=jitter)
            else:
                self._ended(name, end)
        unknown = set(to_seal).difference(*by_kind.values())
        # A mirror whose record cannot be read just now has no known kind, either.
        self.keep_stopping(unknown, "there is no engine here for the kind of its mirror")
        stopped = not_begun | {n for n, end in settled.items() if isinstance(end, Sealed)}
        await self.enter(dict.fromkeys(stopped, State.STOPPED))
        self.unsure -= not_begun
        if troubles:
            raise troubles[0]
        if late := set(to_seal) - settled.keys() - unknown:
            raise Retriable(f"{len(late)} partitions cannot be fenced yet, {min(late)} for one")

    def _ended(self, name: MirrorPartition, sealed: Sealed) -> None:
        """Note the last mirrored end of a sealed partition."""
        self.refused.forget([name])
        self._proved.pop(name, None)
        self._differing.discard(name)
        self._mirrored_said[name] = self._last(name)._replace(end=sealed.end)
        # Written even if unchanged: the stored end may be deleted with an earlier mirror's states.
        self._mirrored.pop(name, None)
        if sealed.reason is not None:
            log.warning("%s is STOPPED: %s", name, sealed.reason)
            self._say(PartitionState(name, State.STOPPED, sealed.reason))

    def keep_stopping(
        self, names: Iterable[MirrorPartition], reason: str, *, jitter: float = 0.5
    ) -> None:
        """Report why these stay STOPPING, for an operator; retry with a growing backoff."""
        for name in names:
            if self.state(name) is not State.STOPPING:
                continue
            if self.refused.add(name, jitter) == 1:
                log.warning("%s stays STOPPING: %s", name, reason)
            self._say(PartitionState(name, State.STOPPING, reason))


def _sealing(
    name: MirrorPartition, topic: MirrorTopic | None, last: LastMirrored, differs: bool
) -> Sealing:
    if topic is None:
        return Sealing(name.source, None, last, differs)
    return Sealing(topic.on_destination(name), topic.destination_topic_id, last, differs)
