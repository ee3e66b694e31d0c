"""A state partition that is ours: what state its mirror partitions are in, and the way out of each.

    wanted      state                             what is to be done (`next_step`)
    ----------  --------------------------------  ------------------------------------------------
    MIRRORING   any but STOPPING                  RUN
    PAUSED      MIRRORING, PAUSING                PAUSE: nothing more is sent, then PAUSED
                PREPARING                         RUN until it is MIRRORING
                UNKNOWN, PAUSED, FAILED           REST
    STOPPED     STOPPED                           REST
                UNKNOWN                           FORGO: STOPPED at once, without a fence
                any other                         STOP: nothing more is sent, then fenced by a
                                                  marker in a new epoch, then STOPPED
    any         STOPPING                          STOP: what has begun is ended

What is done next follows from the state that was last *said*, also where it could not be written
yet. What is written goes the ways that mirror/states.py allows, from what stands there (`way`):
what is removed while it is PREPARING is FAILED on its way to STOPPING. After a write of unknown
outcome all is read again before the next: a STOPPED that stands there is not written twice, since
its topic may be written to by others from then on. If what stands there is neither what stood there
nor what we wrote, another owner has been at work, and all that was said rests on what is no longer
so.

A stop ends what former owners may still send in two ways. Their data, and ours that got lost, is
refused from the marker on (docs/architecture/stopping.md). Their written markers and filler
transactions are not, so a state partition that was taken over is not fenced before the lease has
passed; and what was lost of our own is waited for in the same way (shard.py).

A partition whose state is UNKNOWN was never begun with, as PREPARING is written before that; or its
state was lost. In both cases nothing is fenced: a lost state's topic may long be written to by its
users, and a marker would stand among their records. Its last mirrored end stays what it was, which
is unknown unless it was written.

A partition whose state cannot be read, or its end, had an owner: a newer version wrote it, perhaps.
Nothing is begun with it, and nothing written over it.

What may not be written to cannot be fenced: it stays STOPPING and says why, the others are stopped
without it, and it is tried again after a pause that grows.

What is STOPPED and wanted again is begun with only after another look at what is wanted, since a
command that saw it STOPPED may have given its topic to others meanwhile (reconciler.py). What has
changed its mind by then is stopped without a marker: nothing was begun, and the log is the others'.
Until that look the reason says so (`_BEGUN_AGAIN`), for the next owner, who may have to stop it.

A pause fences nothing: what a former owner within his lease, or a lost request of ours, still
appends after PAUSED was written is the source's next data at its own offset, or the marker that
ends a filler transaction which was left open, in the gap that it was for.
"""

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.engine import Engine
from twinlog.engines.exact.foreign import Foreign, Searched
from twinlog.engines.exact.partition import UNKNOWN, MirrorPartition, PartitionSpec
from twinlog.engines.exact.ports import StatePort
from twinlog.engines.exact.shard import Shard
from twinlog.kafka.errors import Fenced, Refusal, Retriable
from twinlog.kafka.types import UNKNOWN_EPOCH, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition as Name
from twinlog.mirror.states import State, may_follow
from twinlog.runtime.status_writer import STATES
from twinlog.store.config_records import Wanted
from twinlog.store.control_topics import States
from twinlog.store.state_records import LastMirrored, PartitionState

log = logging.getLogger(__name__)

STOP_AGAIN_S: Final = 1.0
"""After this it is tried again to stop what could not be fenced, with jitter."""
MOST_PRODUCERS: Final = 64
"""Ids of data producers that are kept of a partition, the latest ones."""
_EARLY_S: Final = 0.01
"""A timer may go off a little before its time."""
_BEGUN_AGAIN: Final = "it was STOPPED, and it is not known whether it is wanted again"
_REMOVED: Final = "removed from its mirror before it was MIRRORING"
_FORGONE: Final = (
    "no state of it is known, so nothing was fenced; it was removed before any lane began with it, "
    "or __mirror_state was lost"
)
_ON_THE_WAY: Final[Mapping[tuple[State, State], State]] = {
    (State.PREPARING, State.PAUSING): State.MIRRORING,
    (State.PAUSED, State.PAUSING): State.MIRRORING,
    (State.FAILED, State.PAUSING): State.MIRRORING,
    (State.MIRRORING, State.PAUSED): State.PAUSING,
    (State.PAUSING, State.MIRRORING): State.PAUSED,
    (State.PAUSING, State.STOPPING): State.PAUSED,
    (State.PAUSING, State.PREPARING): State.FAILED,
    (State.PAUSED, State.PREPARING): State.MIRRORING,
    (State.UNKNOWN, State.MIRRORING): State.PREPARING,
    (State.UNKNOWN, State.STOPPING): State.FAILED,
    (State.PREPARING, State.STOPPING): State.FAILED,
}
"""The state between two others, where there is no direct way and the way is known."""


_NOT_BEGUN: Final = frozenset({State.PREPARING, State.STOPPING})
"""States of what is `unsure`."""


class Refused(NamedTuple):
    """A stop that was refused so often in a row, and when it is to be tried again."""

    times: int
    again_at: float


class Step(enum.Enum):
    """What is to be done with a mirror partition."""

    RUN = enum.auto()
    PAUSE = enum.auto()
    STOP = enum.auto()
    FORGO = enum.auto()
    REST = enum.auto()


def next_step(wanted: Wanted, state: State) -> Step:
    """See the module."""
    if state is State.STOPPING:
        return Step.STOP
    if wanted is Wanted.MIRRORING:
        return Step.RUN
    if wanted is Wanted.STOPPED:
        return {State.STOPPED: Step.REST, State.UNKNOWN: Step.FORGO}.get(state, Step.STOP)
    if state in {State.MIRRORING, State.PAUSING}:
        return Step.PAUSE
    return Step.RUN if state is State.PREPARING else Step.REST


def way(old: PartitionState | None, change: PartitionState) -> list[PartitionState]:
    """What is written so that a partition gets from what stands there to a new state.

    Nothing where it stands there already, or where there is no way.
    """
    if old == change:
        return []
    state = State.UNKNOWN if old is None else old.state
    if (state, change.state) == (State.UNKNOWN, State.STOPPED):
        # One write: a partition that was left STOPPING here would be fenced by the next owner.
        ways = (State.FAILED, State.STOPPING, State.STOPPED)
        return [PartitionState(change.partition, one, _FORGONE) for one in ways]
    between = _ON_THE_WAY.get((state, change.state))
    if between is not None:
        reason = _REMOVED if change.state is State.STOPPING and between is State.FAILED else None
        return [PartitionState(change.partition, between, reason), change]
    if may_follow(state, change.state):
        return [change]
    if state is not change.state:
        log.error("%s stays %s: not %s", change.partition, state.name, change.state.name)
    return []


class OwnedShard:
    """A state partition that is ours: its shard, and the states that are written there.

    Args:
        shard: its producers.
        states: where the states stand.
        may_write: whether our lease lasts.
        lease_s: for how long a former owner might still write.
    """

    def __init__(
        self, shard: Shard, states: StatePort, may_write: Callable[[], bool], lease_s: float
    ) -> None:
        self.shard = shard
        self.stopping: asyncio.Task[None] | None = None
        self.informed = False
        """Whether it is known what was wanted when it became ours (reconciler.py)."""
        self.unsure: set[Name] = set()
        """What was STOPPED and is PREPARING, and is not known to be wanted still."""
        self._refused: dict[Name, Refused] = {}
        self._states = states
        self._there = States({}, {})  # what was read at the last takeover
        self._written: dict[Name, PartitionState] = {}
        self._mirrored: dict[Name, LastMirrored] = {}
        self._said: dict[Name, PartitionState] = {}  # and not written yet
        self._mirrored_said: dict[Name, LastMirrored] = {}
        self._proved: dict[Name, Offset] = {}  # up to where these were mirrored, as we have seen
        self._differing: set[Name] = set()  # whose logs hold something else behind that
        self._tried: dict[Name, set[State]] = {}  # what was written whose outcome is not known
        self._may_write = may_write
        self._open = False
        self._lost = False  # closed, or another's: to take it over again is the group's to decide
        self._certain = False  # whether `_written` is what stands there
        self._writing = asyncio.Lock()  # guards the port, which serves one at a time
        self._lease_s = lease_s
        self._alone_from = self._now() + lease_s
        self._confirmed = 0.0  # when we were last seen to be the owner, by what we wrote or read

    async def open(self) -> None:
        """Fence the former owner, and read what he wrote.

        Raises:
            Fenced: we may not write any more.
            Retriable: not now; open it again.
        """
        if self._open:
            return
        found = await self._take_over()
        self._adopt(found)
        await self.shard.open()
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
        self.unsure |= {n for n, one in found.states.items() if one.reason == _BEGUN_AGAIN}
        self._there = found
        self._certain = True

    async def _take_over_again(self) -> None:
        """Read what stands there by now.

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
        """Forget these, given with their mirror: it was deleted since, and their states with it."""
        if self.informed:
            self.unsure = {name for name in self.unsure if name[:2] not in topics}
            self._drop((self._written, self._said, self._refused), topics)
            self.forget_ends(topics)

    def forget_ends(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget up to where these are mirrored: the destination's topic was recreated since."""
        self._differing = {name for name in self._differing if name[:2] not in topics}
        self._drop((self._mirrored, self._mirrored_said, self._proved), topics)

    @staticmethod
    def _drop(tables: Iterable[dict[Name, Any]], topics: Collection[tuple[str, str]]) -> None:
        for table in tables:
            for name in [name for name in table if name[:2] in topics]:
                del table[name]

    async def close(self) -> None:
        """End what runs in the background; nothing is written any more.

        A write that is under way ends with its next request: what it would do after that would
        fence the next owner, or write over what he has written.
        """
        self._open, self._lost = False, True
        self._states.close()
        if self.stopping is not None:
            self.stopping.cancel()
            await asyncio.gather(self.stopping, return_exceptions=True)
        await self.shard.close()

    @property
    def being_stopped(self) -> list[PartitionState]:
        """What is on its way to STOPPED, and is in no engine any more."""
        if not self._refused and (self.stopping is None or self.stopping.done()):
            return []
        said = {**self._written, **self._said}.values()
        return [one for one in said if one.state is State.STOPPING]

    def state(self, name: Name) -> State:
        """The state that was last said; UNKNOWN where none was, or it is not open yet."""
        last = self._said.get(name) or self._written.get(name)
        return State.UNKNOWN if last is None else last.state

    def unread(self, name: Name) -> bool:
        """Whether a record of it cannot be read."""
        return bool(self._there.unread(name))

    async def prepare(
        self, mirror: str, partitions: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Say that these are ours now, before anything is done with them.

        Returns:
            Those that nobody has ever owned before.
        """
        names = {key: Name(mirror, *key) for key in partitions}
        for name in names.values():
            self._note_producer(name)
        fresh = {key for key, name in names.items() if name not in self._written}
        # What is resumed goes to MIRRORING at once.
        resumed = {State.PAUSED, State.PAUSING}
        await self.enter(
            {name: State.PREPARING for name in names.values() if self.state(name) not in resumed}
        )
        return fresh

    def to_begin_again(self, names: Collection[Name]) -> set[Name]:
        """Those that are STOPPED, or that it is not known of whether they are wanted still."""
        return {n for n in names if n in self.unsure or self.state(n) is State.STOPPED}

    async def begin_again(self, names: Collection[Name]) -> None:
        """Write that these are PREPARING, which commands that come from now on will see.

        Raises:
            Fenced: the state partition has another owner.
        """
        self.unsure |= set(names)
        await self.enter(dict.fromkeys(names, State.PREPARING))

    async def begin(self, names: Collection[Name]) -> None:
        """Write that these are begun with: they were wanted after they were PREPARING.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name in names:
            self._say(PartitionState(name, State.PREPARING))
        await self.write_states()
        # Not before: after a failed write, the record in `__mirror_state` still has `_BEGUN_AGAIN`.
        self.unsure -= set(names)

    async def run(self, mirror: str, engine: Engine, specs: Collection[PartitionSpec]) -> None:
        """Mirror these in the engine of their mirror.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all are begun; try again.
        """
        for spec in specs:
            if (known := engine.partitions.get(spec.partition)) is not None:
                # It was to be paused, and is resumed before that was done.
                self.observe(mirror, known)
        new = [spec for spec in specs if spec.partition not in engine.partitions]
        if new:
            fresh = await self.prepare(mirror, [spec.partition for spec in new])
            self.shard.markers.first_owned(fresh)
            engine.own(self.shard, [s for s in new if s.partition in fresh], lease_s=0.0)
            engine.own(self.shard, [self._of_ids(mirror, s) for s in new], lease_s=self._lease_s)

    def _of_ids(self, mirror: str, spec: PartitionSpec) -> PartitionSpec:
        """With whether its data may bear another producer id than ours."""
        known = set(self._last(Name(mirror, *spec.partition)).producers)
        return replace(spec, of_several_ids=bool(known - {self.shard.data_producer}))

    def observe(self, mirror: str, partition: MirrorPartition) -> None:
        """What an engine says of a partition that it has."""
        name = Name(mirror, *partition.key)
        self.mirrored(name, partition)
        if STATES[partition.stage] is not self.state(name):
            self._mirrored_said[name] = self._last(name)
        self.changed(name, STATES[partition.stage], partition.reason or None)

    def changed(self, name: Name, state: State, reason: str | None) -> None:
        """A partition has come to another state; to be written with the next."""
        if state is State.PREPARING and self.state(name) in {State.PAUSED, State.PAUSING}:
            return
        self._say(PartitionState(name, state, reason))

    def _say(self, change: PartitionState) -> None:
        if self._written.get(change.partition) == change and self._certain:
            self._said.pop(change.partition, None)
        else:
            self._said[change.partition] = change

    def mirrored(self, name: Name, partition: MirrorPartition) -> None:
        """Note up to where a partition is mirrored, and the source's leader epoch of its end.

        A new epoch is written with the next state: a failover with the source gone could not ask
        for it any more. The end is written when the state changes.
        """
        if partition.append.position is not None:
            # Not where the log ends: another producer's record in a gap looks like the filler that
            # was to stand there. What an earlier owner has proven counts as far as the log goes.
            known = min(self._last(name).end, partition.append.log_end)
            self._proved[name] = max(partition.append.own_end, known)
        if partition.append.phase is Phase.FAILED and not partition.transient:
            self._differing.add(name)
        else:
            self._differing.discard(name)
        epoch = partition.mirrored_epoch
        if epoch not in {UNKNOWN_EPOCH, self._last(name).epoch}:
            self._mirrored_said[name] = self._last(name)._replace(epoch=epoch)

    def _note_producer(self, name: Name) -> None:
        """Write the data producer's id before anything is appended under it.

        A transactional id has another producer id when its epochs are used up, and when it has
        expired at its coordinator (transactional.id.expiration.ms, a week by default).
        """
        last = self._last(name)
        if self.shard.data_producer not in last.producers:
            producers = (*last.producers, self.shard.data_producer)[-MOST_PRODUCERS:]
            self._mirrored_said[name] = last._replace(producers=producers)

    def _last(self, name: Name) -> LastMirrored:
        nothing = LastMirrored(UNKNOWN_EPOCH, UNKNOWN)
        last = self._mirrored_said.get(name) or self._mirrored.get(name, nothing)
        return last._replace(end=self._proved.get(name, last.end))

    async def enter(self, states: Mapping[Name, State]) -> None:
        """Say that these are in these states, and write it, and all else that was said, now.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name, state in states.items():
            if self.state(name) is not state:
                begun_again = name in self.unsure and state in _NOT_BEGUN
                self._say(PartitionState(name, state, _BEGUN_AGAIN if begun_again else None))
        await self.write_states()

    async def write_states(self) -> None:
        """Write what was said, all at once.

        Raises:
            Fenced: the state partition has another owner.
        """
        if self._open and self._confirmed < self._alone_from <= self._now():
            await self._confirm()
        async with self._writes():
            to_say = self._said or self._mirrored_said
            if not self._open or not (to_say or self._lost or self.shard.renamed):
                return
            self._permit()
            if not self._certain:
                await self._take_over_again()
                self._permit()
            await self._write(dict(self._said), dict(self._mirrored_said))

    @asynccontextmanager
    async def _writes(self) -> AsyncIterator[None]:
        """One at a time, and none after one that was fenced."""
        async with self._writing:
            try:
                yield
            except Fenced:
                self._lost = True
                raise

    def _permit(self) -> None:
        if self.shard.renamed:
            raise Fenced("its data has another producer id by now: it is taken over anew")
        if self._lost or not self._may_write():
            raise Fenced("the lease has ended, or another owner has written")

    async def _write(
        self, said: Mapping[Name, PartitionState], epochs: Mapping[Name, LastMirrored]
    ) -> None:
        """Write this, and forget that it was said, unless something else was said meanwhile."""
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
        """Read again what a former owner may have written within his lease, if he could have.

        He had taken back what we had taken over, and has stopped these perhaps. Or he has written
        an older state, which nobody would correct: an owner that has nothing to write does not
        notice that it is fenced.
        """
        async with self._writes():
            if self._confirmed < self._alone_from:
                self._permit()
                await self._take_over_again()

    def due(self, names: Iterable[Name]) -> list[Name]:
        """Those of which a stop was not refused a short while ago."""
        now = self._now() + _EARLY_S
        return [n for n in names if n not in self._refused or self._refused[n].again_at <= now]

    @property
    def due_in(self) -> float | None:
        """In how many seconds the next one of those is due that were refused; None: none was."""
        times = [one.again_at for one in self._refused.values()]
        return max(0.0, min(times) - self._now()) if times else None

    async def stop(
        self,
        names: Collection[Name],
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
        *,
        jitter: float = 0.5,
    ) -> None:
        """Fence these, of which nothing of ours is under way any more, and say that it is done.

        Where what was mirrored ends is written with it, for a failback to compare with: at the
        fence, or at the first record before it that a foreign producer has written (foreign.py),
        which the reason names. What is refused stays STOPPING, with the reason, and is `due` again
        later.

        Args:
            names: the partitions.
            topic_ids: of their topics on the destination, as far as they are known.
            jitter: from 0 to 1, of the pause after a refusal.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all could be fenced yet; those that could are STOPPED.
            UserError: we may not use the state partition's transactional ids.
        """
        await asyncio.sleep(self._alone_from - self._now())
        await self._confirm()
        # What is STOPPED by now may be written to by others, and is not fenced again.
        left = [name for name in names if self.state(name) is State.STOPPING]
        not_begun = self.unsure.intersection(left)
        keys = {TopicPartition(n.topic, n.partition): n for n in left if n not in not_begun}
        found = await self.shard.fence(keys, topic_ids) if keys else {}
        fences = {keys[key]: end for key, end in found.items() if not isinstance(end, Refusal)}
        foreign = await self.shard.foreign(
            {TopicPartition(n.topic, n.partition): self._searched(n, fences[n]) for n in fences}
        )
        stopped = set(not_begun)
        # What is fenced and cannot be read just now is in neither: it is asked for again.
        refused = {key: end for key, end in found.items() if isinstance(end, Refusal)}
        settled = refused | foreign
        for key, end in settled.items():
            name = keys[key]
            if isinstance(end, Refusal):
                reason = f"the destination refuses its fence: {end}"
                self.keep_stopping([name], reason, jitter=jitter)
            else:
                self._ended(name, fences[name], end)
                stopped.add(name)
        await self.enter(dict.fromkeys(stopped, State.STOPPED))
        self.unsure -= not_begun
        if late := keys.keys() - settled.keys():
            raise Retriable(f"{len(late)} partitions cannot be fenced yet, {min(late)} for one")

    def _searched(self, name: Name, fence: Offset) -> Searched:
        last = self._last(name)
        return Searched(last.end, fence, {*last.producers, *self.shard.data_producers})

    def _ended(self, name: Name, fence: Offset, foreign: Foreign | None) -> None:
        """Note that it is STOPPED, and where what was mirrored ends.

        Control records of others are not told from ours (foreign.py). They shift what the mirror
        appends behind them, and the partition is FAILED for good: where no foreign record says
        where the difference begins, what was proved counts.
        """
        known = self._last(name).end
        if foreign is not None:
            end = Offset(foreign.start)
        elif name in self._differing and known != UNKNOWN:
            end = min(fence, known)
        else:
            end = fence
        self._refused.pop(name, None)
        self._proved.pop(name, None)
        self._differing.discard(name)
        self._mirrored_said[name] = self._last(name)._replace(end=end)
        # Written in any case: what stood there is gone with a mirror of this name.
        self._mirrored.pop(name, None)
        if foreign is not None:
            log.warning("%s is STOPPED with foreign records: %s", name, foreign)
            self._say(PartitionState(name, State.STOPPED, str(foreign)))

    def keep_stopping(self, names: Iterable[Name], reason: str, *, jitter: float = 0.5) -> None:
        """Say what keeps these, which a person has to see to: tried again, more and more rarely."""
        for name in names:
            if self.state(name) is not State.STOPPING:
                continue
            times = self._refused[name].times + 1 if name in self._refused else 1
            most = max(self.shard.settings.backoff_max_s, STOP_AGAIN_S)
            pause = min(STOP_AGAIN_S * float(2 ** min(times - 1, 20)), most) * (0.5 + jitter)
            self._refused[name] = Refused(times, self._now() + pause)
            if times == 1:
                log.warning("%s stays STOPPING: %s", name, reason)
            self._say(PartitionState(name, State.STOPPING, reason))
