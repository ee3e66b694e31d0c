"""An owned state partition: the states of its mirror partitions, and the next step of each.

    wanted      state                             the next step (`next_step`)
    ----------  --------------------------------  ------------------------------------------------
    MIRRORING   any but STOPPING                  RUN
    PAUSED      MIRRORING, PAUSING                PAUSE: nothing more is sent, then PAUSED
                PREPARING                         RUN until it is MIRRORING
                UNKNOWN, PAUSED, FAILED           REST
    STOPPED     STOPPED                           REST
                UNKNOWN                           FORGO: STOPPED at once, without a fence
                any other                         STOP: nothing more is sent, then fenced by a
                                                  marker in a new epoch, then STOPPED
    any         STOPPING                          STOP: a stop that has begun is completed

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
that read the reason is `_BEGUN_AGAIN`, for the next owner, which may have to stop it.

**Pause.** A pause fences nothing. A former owner within its lease, or a lost request of this owner,
may still append after PAUSED is stored: the source's next data at its own offset, or the marker
that ends an open filler transaction, in the gap that it was for.
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
from twinlog.kafka.backoff import Backoff
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
"""The first backoff before a refused stop is retried, with jitter."""
MOST_PRODUCERS: Final = 64
"""How many ids of data producers are kept for a partition: the latest ones."""
_EARLY_S: Final = 0.01
"""A timer may fire a little before its time."""
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
"""The state between two states without a direct transition, where that path is known."""


_NOT_BEGUN: Final = frozenset({State.PREPARING, State.STOPPING})
"""States of partitions that are `unsure`."""


class Refused(NamedTuple):
    """How often in a row a stop was refused, and when it is retried."""

    times: int
    again_at: float


class Step(enum.Enum):
    """The next action for a mirror partition."""

    RUN = enum.auto()
    PAUSE = enum.auto()
    STOP = enum.auto()
    FORGO = enum.auto()
    REST = enum.auto()


def next_step(wanted: Wanted, state: State) -> Step:
    """The next action, by the table at the top of this module."""
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
    """The records to write, so that a partition gets from its stored state to a new state.

    Empty if the new state is stored already, or if no path leads to it.
    """
    if old == change:
        return []
    state = State.UNKNOWN if old is None else old.state
    if (state, change.state) == (State.UNKNOWN, State.STOPPED):
        # One write: if the partition were left STOPPING, the next owner would fence it.
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
    """An owned state partition: its shard, and the states that are stored in it.

    Args:
        shard: its producers.
        states: where the states are stored.
        may_write: whether this lane's lease lasts.
        lease_s: for how long a former owner might still write.
    """

    def __init__(
        self, shard: Shard, states: StatePort, may_write: Callable[[], bool], lease_s: float
    ) -> None:
        self.shard = shard
        self.stopping: asyncio.Task[None] | None = None
        self.informed = False
        """Whether the desired state is known as of the takeover (reconciler.py)."""
        self.unsure: set[Name] = set()
        """Partitions that were STOPPED and are PREPARING, but may not be wanted any more."""
        self._refused: dict[Name, Refused] = {}
        self._states = states
        self._there = States({}, {})  # the states as read at the last takeover
        self._written: dict[Name, PartitionState] = {}
        self._mirrored: dict[Name, LastMirrored] = {}
        self._said: dict[Name, PartitionState] = {}  # reported, and not written yet
        self._mirrored_said: dict[Name, LastMirrored] = {}
        self._proved: dict[Name, Offset] = {}  # the end up to which this owner has proven the log
        self._differing: set[Name] = set()  # FAILED for good: the log differs behind that end
        self._tried: dict[Name, set[State]] = {}  # states in writes of unknown outcome
        self._may_write = may_write
        self._open = False
        self._lost = False  # closed or fenced: only the group decides about another takeover
        self._certain = False  # whether `_written` are the stored states
        self._writing = asyncio.Lock()  # guards the port, which serves one call at a time
        self._lease_s = lease_s
        self._alone_from = self._now() + lease_s
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
            self._drop((self._written, self._said, self._refused), topics)
            self.forget_ends(topics)

    def forget_ends(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget the mirrored ends of these: the destination's topic was recreated since."""
        self._differing = {name for name in self._differing if name[:2] not in topics}
        self._drop((self._mirrored, self._mirrored_said, self._proved), topics)

    @staticmethod
    def _drop(tables: Iterable[dict[Name, Any]], topics: Collection[tuple[str, str]]) -> None:
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
        await self.shard.close()

    @property
    def being_stopped(self) -> list[PartitionState]:
        """The partitions that are STOPPING, and in no engine any more."""
        if not self._refused and (self.stopping is None or self.stopping.done()):
            return []
        said = {**self._written, **self._said}.values()
        return [one for one in said if one.state is State.STOPPING]

    def state(self, name: Name) -> State:
        """The state that was last reported; UNKNOWN if there is none, or before `open`."""
        last = self._said.get(name) or self._written.get(name)
        return State.UNKNOWN if last is None else last.state

    def unread(self, name: Name) -> bool:
        """Whether a record of this partition cannot be read."""
        return bool(self._there.unread(name))

    async def prepare(
        self, mirror: str, partitions: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Write that these are PREPARING, before anything else is done with them.

        Returns:
            The partitions that have never had an owner.
        """
        names = {key: Name(mirror, *key) for key in partitions}
        for name in names.values():
            self._note_producer(name)
        fresh = {key for key, name in names.items() if name not in self._written}
        # A resumed partition goes to MIRRORING directly.
        resumed = {State.PAUSED, State.PAUSING}
        await self.enter(
            {name: State.PREPARING for name in names.values() if self.state(name) not in resumed}
        )
        return fresh

    def to_begin_again(self, names: Collection[Name]) -> set[Name]:
        """The partitions of these that are STOPPED, or `unsure`."""
        return {n for n in names if n in self.unsure or self.state(n) is State.STOPPED}

    async def begin_again(self, names: Collection[Name]) -> None:
        """Write that these are PREPARING, which later commands will see.

        Raises:
            Fenced: the state partition has another owner.
        """
        self.unsure |= set(names)
        await self.enter(dict.fromkeys(names, State.PREPARING))

    async def begin(self, names: Collection[Name]) -> None:
        """Write that these have begun: they were still wanted after PREPARING was stored.

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
            Retriable: not all have begun; call it again.
        """
        for spec in specs:
            if (known := engine.partitions.get(spec.partition)) is not None:
                # It is resumed before its pause was done.
                self.observe(mirror, known)
        new = [spec for spec in specs if spec.partition not in engine.partitions]
        if new:
            fresh = await self.prepare(mirror, [spec.partition for spec in new])
            self.shard.markers.first_owned(fresh)
            # Without a former owner there is no lease to wait for. The second call skips these.
            engine.own(self.shard, [s for s in new if s.partition in fresh], lease_s=0.0)
            engine.own(self.shard, [self._of_ids(mirror, s) for s in new], lease_s=self._lease_s)

    def _of_ids(self, mirror: str, spec: PartitionSpec) -> PartitionSpec:
        """The spec, with whether former owners used other producer ids for its data."""
        known = set(self._last(Name(mirror, *spec.partition)).producers)
        return replace(spec, of_several_ids=bool(known - {self.shard.data_producer}))

    def observe(self, mirror: str, partition: MirrorPartition) -> None:
        """Note what an engine reports of one of its partitions."""
        name = Name(mirror, *partition.key)
        self.mirrored(name, partition)
        if STATES[partition.stage] is not self.state(name):
            self._mirrored_said[name] = self._last(name)
        self.changed(name, STATES[partition.stage], partition.reason or None)

    def changed(self, name: Name, state: State, reason: str | None) -> None:
        """Note another state of a partition; the next write includes it."""
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

        A new epoch is written at the next write: a failover without the source could not ask for it
        any more. The end is written when the state changes.
        """
        if partition.append.position is not None:
            # Not the log end offset: a foreign record in a gap looks like the filler that belongs
            # there. What an earlier owner has proven counts as far as the log reaches.
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
        """Report these states, and write them now with all other reported states.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name, state in states.items():
            if self.state(name) is not state:
                begun_again = name in self.unsure and state in _NOT_BEGUN
                self._say(PartitionState(name, state, _BEGUN_AGAIN if begun_again else None))
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
            if not self._open or not (to_say or self._lost or self.shard.renamed):
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

    def _permit(self) -> None:
        if self.shard.renamed:
            raise Fenced("its data has another producer id by now: it is taken over anew")
        if self._lost or not self._may_write():
            raise Fenced("the lease has ended, or another owner has written")

    async def _write(
        self, said: Mapping[Name, PartitionState], epochs: Mapping[Name, LastMirrored]
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

    def due(self, names: Iterable[Name]) -> list[Name]:
        """The partitions of these whose stop was not refused, or whose backoff has ended."""
        now = self._now() + _EARLY_S
        return [n for n in names if n not in self._refused or self._refused[n].again_at <= now]

    @property
    def due_in(self) -> float | None:
        """Seconds until the next retry of a refused stop; None if none was refused."""
        times = [one.again_at for one in self._refused.values()]
        return max(0.0, min(times) - self._now()) if times else None

    async def stop(
        self,
        names: Collection[Name],
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
        *,
        jitter: float = 0.5,
    ) -> None:
        """Fence these, and write that they are STOPPED.

        The last mirrored end is written with STOPPED, for a failback to compare with. It is the
        offset of the fence, or of the first foreign record before it (foreign.py), which the reason
        names. A partition whose fence is refused stays STOPPING, with the reason, and is `due`
        again later.

        Args:
            names: the partitions; this owner has no request for them in flight.
            topic_ids: of their topics on the destination, as far as they are known.
            jitter: from 0 to 1, of the pause after a refusal.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all could be fenced yet; those that could are STOPPED.
            UserError: the principal may not use the state partition's transactional ids.
        """
        # A fence does not refuse a former owner's markers and fillers: its lease must have ended.
        await asyncio.sleep(self._alone_from - self._now())
        await self._confirm()
        # Users may write to a partition that is STOPPED by now; it is not fenced again.
        left = [name for name in names if self.state(name) is State.STOPPING]
        not_begun = self.unsure.intersection(left)
        keys = {TopicPartition(n.topic, n.partition): n for n in left if n not in not_begun}
        found = await self.shard.fence(keys, topic_ids) if keys else {}
        fences = {keys[key]: end for key, end in found.items() if not isinstance(end, Refusal)}
        foreign = await self.shard.foreign(
            {TopicPartition(n.topic, n.partition): self._searched(n, fences[n]) for n in fences}
        )
        stopped = set(not_begun)
        # A fenced partition whose log cannot be read now is in neither: its stop is retried.
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
        """Note the last mirrored end of a fenced partition, and any foreign records as a reason.

        Foreign control records cannot be told from the mirror's (foreign.py). They shift what the
        mirror appends behind them, and the partition is FAILED for good. So if no foreign record
        shows where the difference begins, the proven end counts.
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
        # Written even if unchanged: the stored end may be deleted with an earlier mirror's states.
        self._mirrored.pop(name, None)
        if foreign is not None:
            log.warning("%s is STOPPED with foreign records: %s", name, foreign)
            self._say(PartitionState(name, State.STOPPED, str(foreign)))

    def keep_stopping(self, names: Iterable[Name], reason: str, *, jitter: float = 0.5) -> None:
        """Report why these stay STOPPING, for an operator; retry with a growing backoff."""
        for name in names:
            if self.state(name) is not State.STOPPING:
                continue
            times = self._refused[name].times + 1 if name in self._refused else 1
            most = max(self.shard.settings.backoff_max_s, STOP_AGAIN_S)
            pause = Backoff(STOP_AGAIN_S, most, jitter=0.5).delay(times, jitter)
            self._refused[name] = Refused(times, self._now() + pause)
            if times == 1:
                log.warning("%s stays STOPPING: %s", name, reason)
            self._say(PartitionState(name, State.STOPPING, reason))
