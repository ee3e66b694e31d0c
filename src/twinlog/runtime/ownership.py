"""An owned state partition: the states of its mirror partitions.

reported_states.py has the states, steps.py the next step of each mirror partition.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from twinlog.engines.base import (
    Assignment,
    Engine,
    Sealed,
    Sealing,
    SharedWriters,
)
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import EXACT
from twinlog.mirror.states import State
from twinlog.runtime.refused_stops import RefusedStops
from twinlog.runtime.reported_states import ReportedStates, Unwritten
from twinlog.runtime.state_log import StatePort
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import States
from twinlog.store.state_records import PartitionState

log = logging.getLogger(__name__)


class StoredBeginnings:
    """`Beginnings`, in an owned state partition that writes its reported states by `write`."""

    def __init__(self, reported: ReportedStates, write: Callable[[], Awaitable[None]]) -> None:
        self._reported = reported
        self._write = write

    def has_begun(self, name: MirrorPartition) -> bool | None:
        """See `Beginnings.has_begun`."""
        return self._reported.last(name).begun

    async def store(self, names: Collection[MirrorPartition]) -> None:
        """See `Beginnings.store`."""
        if self._reported.note_begun(names):
            return
        await self._write()
        if not self._reported.note_begun(names):
            raise Retriable("not stored: the state partition is closed, or its mirror was deleted")


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
        self._forgotten = 0  # calls of `forget` that the states may not show yet
        self.reported = ReportedStates()
        self._beginnings = StoredBeginnings(self.reported, self.write_states)
        self.refused = RefusedStops(settings.backoff_max_s)
        self._states = states
        self._may_write = may_write
        self._open = False
        self._lost = False  # closed or fenced: only the group decides about another takeover
        self._writing = asyncio.Lock()  # guards the port, which serves one call at a time
        self._opened: set[str] = set()  # the kinds whose writers are open
        self._opening = asyncio.Lock()
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
        states = await self._take_over()
        self.reported.adopt(states)
        if EXACT in self.writers:
            # Not at their first use: when they are open, each fence that a former owner has begun
            # is in its log. A partition without a state becomes STOPPED without a fence, and such a
            # marker would land among its users' records.
            await self._writers(EXACT)
        for reason in states.unreadable.values():
            log.warning("%s", reason)
        self._open = True

    async def _writers(self, kind: str) -> SharedWriters:
        """The writers of a kind, opened: flows need rights and requests that other lanes lack.

        Raises:
            Fenced: the lease has ended.
            Retriable: not now; call it again.
        """
        async with self._opening:
            if kind not in self._opened:
                await self.writers[kind].open(self._beginnings)
                self._opened.add(kind)
        return self.writers[kind]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _take_over(self) -> States:
        began = self._now()
        states = await self._states.take_over()
        self._confirmed = began
        return states

    async def _take_over_again(self) -> None:
        """Read the states that are stored now.

        Raises:
            Fenced: another owner has written meanwhile.
        """
        self.reported.adopt_again(await self._take_over())

    async def inform(self) -> None:
        """Note that the desired state is known as of the takeover, or later.

        If mirrors were deleted, or topics recreated, in what was followed until then, the states
        are read again: whether that was before the first reading, or after it, is not known.

        Raises:
            Fenced: another owner has written meanwhile, or the lease has ended.
            Retriable: not now; call it again.
        """
        while forgotten := self._forgotten:
            async with self._writes():
                self._permit()
                await self._take_over_again()
            self._forgotten -= forgotten
        self.informed = True

    def forget(
        self, deleted: Collection[tuple[str, str]], recreated: Collection[tuple[str, str]] = ()
    ) -> None:
        """Forget what was followed to hold no more.

        Args:
            deleted: (mirror, topic) whose mirror was deleted, and the states with it.
            recreated: (mirror, topic) whose topic was recreated on the destination: the mirrored
                ends are those of the former one.
        """
        for writers in self.writers.values():
            writers.forget(deleted)
        if self.informed:
            self.refused.forget([name for name in self.refused if name[:2] in deleted])
            self.reported.forget(deleted)
            self.reported.forget_ends(recreated)
        elif deleted or recreated:
            self._forgotten += 1

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
        return self.reported.stopping()

    async def prepare(self, names: Collection[MirrorPartition]) -> set[MirrorPartition]:
        """Write that these are PREPARING, before anything else is done with them.

        Returns:
            The partitions that have never had an owner.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not now; call it again.
        """
        for kind, kind_names in self._by_kind(names).items():
            writers = await self._writers(kind)
            self.reported.note_writers(writers.id, kind_names, may_begin=kind != EXACT)
        fresh = self.reported.never_owned(names)
        # A resumed partition goes to MIRRORING directly.
        resumed = {State.PAUSED, State.PAUSING}
        await self.enter(
            {n: State.PREPARING for n in names if self.reported.state(n) not in resumed}
        )
        return fresh

    async def begin_again(self, names: Collection[MirrorPartition]) -> None:
        """Write that these are PREPARING, which later commands will see.

        Raises:
            Fenced: the state partition has another owner.
        """
        self.reported.unsure |= set(names)
        await self.enter(dict.fromkeys(names, State.PREPARING))

    async def begin(self, names: Collection[MirrorPartition]) -> None:
        """Write that these have begun: they were still wanted after PREPARING was stored.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name in names:
            self.reported.say(PartitionState(name, State.PREPARING))
        await self.write_states()
        # Not before: after a failed write, the record in `__mirror_state` is still `unconfirmed`.
        self.reported.unsure -= set(names)

    async def run(self, engine: Engine, assignments: Collection[Assignment]) -> None:
        """Mirror these in the engine of their mirror.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all have begun; call it again.
        """
        by_name = {assignment.name: assignment for assignment in assignments}
        for row in engine.progress([self.number]):
            if by_name.pop(row.name, None) is not None:
                # It may be resumed before its pause was done.
                self.reported.observe(row)
        # Once: what is started has to have its writers noted, whatever becomes of its mirror.
        by_kind = self._by_kind(by_name)
        if not by_kind:
            return
        fresh = await self.prepare([name for names in by_kind.values() for name in names])
        for kind, names in by_kind.items():
            writers = self.writers[kind]
            # Without a former owner there is no lease to wait for.
            engine.start(writers, [by_name[n] for n in names if n in fresh], lease_s=0.0)
            engine.start(
                writers,
                [self._with_former(by_name[n]) for n in names if n not in fresh],
                lease_s=self._settings.lease_s,
            )

    def _with_former(self, assignment: Assignment) -> Assignment:
        return replace(
            assignment, former_writers=frozenset(self.reported.last(assignment.name).producers)
        )

    def _by_kind(self, names: Iterable[MirrorPartition]) -> Mapping[str, list[MirrorPartition]]:
        """These partitions by the kind of their mirrors; those of unknown kinds are left out."""
        names_by_kind: defaultdict[str, list[MirrorPartition]] = defaultdict(list)
        for name in names:
            kind = self._kind_of(name.mirror)
            if kind is not None and kind in self.writers:
                names_by_kind[kind].append(name)
        return names_by_kind

    async def enter(self, states: Mapping[MirrorPartition, State]) -> None:
        """Report these states, and write them now with all other reported states.

        Raises:
            Fenced: the state partition has another owner.
        """
        self.reported.enter(states)
        await self.write_states()

    async def write_states(self) -> None:
        """Write all reported states in one transaction.

        Raises:
            Fenced: the state partition has another owner.
        """
        if self._open and self._confirmed < self._alone_from <= self._now():
            await self._confirm()
        async with self._writes():
            to_say = self.reported.anything_to_write
            if not self._open or not (to_say or self._lost or self._must_be_taken_over):
                return
            self._permit()
            if not self.reported.certain:
                await self._take_over_again()
                self._permit()
            await self._write(self.reported.unwritten())

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
        return any(writer.must_be_taken_over for writer in self.writers.values())

    def _permit(self) -> None:
        if self._must_be_taken_over:
            raise Fenced("its data has another producer id now: taking it over again")
        if self._lost or not self._may_write():
            raise Fenced("the lease has ended, or another owner has written")

    async def _write(self, unwritten: Unwritten) -> None:
        """Write these, and remove them from the reported states unless they changed meanwhile."""
        if unwritten.records or unwritten.ends:
            began = self._now()
            self.reported.writing(unwritten)
            await self._states.write(unwritten.records, unwritten.ends)
            self.reported.wrote()
            self._confirmed = began
        self.reported.settle(unwritten)

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
        stopping = [name for name in names if self.reported.state(name) is State.STOPPING]
        not_begun = self.reported.unsure.intersection(stopping)
        to_seal = [name for name in stopping if name not in not_begun]
        by_kind = self._by_kind(to_seal)
        topics_by_key = {(topic.mirror, topic.topic): topic for topic in topics}
        settled: dict[MirrorPartition, Sealed | Refusal] = {}
        troubles: list[TwinlogError] = []
        for kind, kind_names in by_kind.items():
            try:
                sealing = {
                    name: _sealing(name, topics_by_key.get(name[:2]), self.reported)
                    for name in kind_names
                }
                settled |= await (await self._writers(kind)).seal(sealing)
            except TwinlogError as error:
                troubles.append(error)
        for name, end in settled.items():
            if isinstance(end, Refusal):
                reason = f"the destination refuses its fence: {end}"
                self.keep_stopping([name], reason, jitter=jitter)
            else:
                self.refused.forget([name])
                self.reported.sealed(name, end)
                if end.reason is not None:
                    log.warning("%s is STOPPED: %s", name, end.reason)
        unserved = set(to_seal).difference(*by_kind.values())
        # A mirror whose record cannot be read just now has no known kind, either.
        self.keep_stopping(unserved, "this node has no engine for the kind of its mirror")
        stopped_names = not_begun | {n for n, end in settled.items() if isinstance(end, Sealed)}
        await self.enter(dict.fromkeys(stopped_names, State.STOPPED))
        self.reported.unsure -= not_begun
        if troubles:
            raise troubles[0]
        if unfenced := set(to_seal) - settled.keys() - unserved:
            raise Retriable(
                f"cannot fence {len(unfenced)} partition(s) yet, for example {min(unfenced)}"
            )

    def keep_stopping(
        self, names: Iterable[MirrorPartition], reason: str, *, jitter: float = 0.5
    ) -> None:
        """Report why these stay STOPPING, for an operator; retry with a growing backoff."""
        for name in names:
            if self.reported.state(name) is not State.STOPPING:
                continue
            if self.refused.add(name, jitter) == 1:
                log.warning("%s stays STOPPING: %s", name, reason)
            self.reported.say(PartitionState(name, State.STOPPING, reason))


def _sealing(name: MirrorPartition, topic: MirrorTopic | None, reported: ReportedStates) -> Sealing:
    sealing = Sealing(
        name.source,
        None,
        reported.last(name),
        begun=name in reported.begun_stops,
    )
    if topic is None:
        return sealing
    return sealing._replace(
        destination=topic.on_destination(name),
        topic_id=topic.destination_topic_id,
        offsets_topic_id=topic.offsets_topic_id,
        lost_topic_ids=topic.lost_topic_ids,
    )
