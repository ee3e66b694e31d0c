"""A state partition that is ours: what state its mirror partitions are in, and the way out of each.

    wanted      state                             what is to be done (`next_step`)
    ----------  --------------------------------  ------------------------------------------------
    MIRRORING   any                               RUN
    PAUSED      MIRRORING, PAUSING                PAUSE: nothing more is sent, then PAUSED
                PREPARING                         RUN until it is MIRRORING
                UNKNOWN, PAUSED, FAILED           REST
    STOPPED     STOPPED                           REST
                any other                         STOP: nothing more is sent, then fenced by a
                                                  marker in a new epoch, then STOPPED

States go the ways that core/states.py allows: what is removed while it is PREPARING is FAILED on
its way to STOPPING.

A stop ends what former owners may still send in two ways. Their data, and ours that got lost, is
refused from the marker on (docs/ARCHITECTURE.md). Their written markers and filler transactions are
not, so a state partition that was taken over is not fenced before the lease has passed.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.controlwriter import TransactionalWriter
from twinlog.cluster.mirrorlog import epoch_entry, read_states, state_entry
from twinlog.core.errors import Fenced, Retriable, TwinlogError
from twinlog.core.placement import MirrorPartition as Name
from twinlog.core.states import State, may_follow
from twinlog.core.types import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition
from twinlog.pipeline.partition import UNKNOWN
from twinlog.pipeline.shard import Shard
from twinlog.wire.config_records import Wanted
from twinlog.wire.state_records import LastMirrored, PartitionState

log = logging.getLogger(__name__)

_REMOVED: Final = "removed from its mirror before it was MIRRORING"
_ON_THE_WAY: Final[Mapping[tuple[State, State], State]] = {
    (State.PAUSING, State.MIRRORING): State.PAUSED,
    (State.PAUSING, State.STOPPING): State.PAUSED,
    (State.UNKNOWN, State.STOPPING): State.FAILED,
    (State.PREPARING, State.STOPPING): State.FAILED,
}
"""The state between two others, where there is no direct way and the way is known."""


class Step(enum.Enum):
    """What is to be done with a mirror partition."""

    RUN = enum.auto()
    PAUSE = enum.auto()
    STOP = enum.auto()
    REST = enum.auto()


def next_step(wanted: Wanted, state: State) -> Step:
    """See the module."""
    if wanted is Wanted.MIRRORING:
        return Step.RUN
    if wanted is Wanted.STOPPED:
        return Step.REST if state is State.STOPPED else Step.STOP
    if state in {State.MIRRORING, State.PAUSING}:
        return Step.PAUSE
    return Step.RUN if state is State.PREPARING else Step.REST


def way(old: State, change: PartitionState) -> list[PartitionState]:
    """What is written so that a partition gets from state `old` to a new one."""
    between = _ON_THE_WAY.get((old, change.state))
    if between is not None:
        reason = _REMOVED if between is State.FAILED else None
        return [PartitionState(change.partition, between, reason), change]
    if old is not change.state and not may_follow(old, change.state):
        log.error("%s goes from %s to %s", change.partition, old.name, change.state.name)
    return [change]


class OwnedShard:
    """A state partition that is ours: its shard, and the states that are written there."""

    def __init__(
        self,
        shard: Shard,
        cluster: KafkaCluster,
        group_id: str,
        may_write: Callable[[], bool],
        lease_s: float,
    ) -> None:
        self.shard = shard
        self.stopping: asyncio.Task[None] | None = None
        self._cluster = cluster
        self._writer = TransactionalWriter(cluster, f"{group_id}.{shard.number}.state")
        self._known: dict[Name, State] = {}
        self._mirrored: dict[Name, LastMirrored] = {}
        self._to_write: dict[Name, PartitionState] = {}
        self._mirrored_to_write: dict[Name, LastMirrored] = {}
        self._may_write = may_write
        self._open = False
        self._writing = asyncio.Lock()  # guards the writer, which serves one at a time
        self._alone_from = asyncio.get_running_loop().time() + lease_s

    async def open(self) -> None:
        """Fence the former owner, and read what he wrote."""
        if self._open:
            return
        await self._writer.fence()
        await self.shard.open()
        found = await read_states(self._cluster, [self.shard.number])
        for reason in found.unreadable:
            log.warning("%s", reason)
        self._known = {name: state.state for name, state in found.states.items()}
        self._mirrored = dict(found.epochs)
        self._open = True

    async def close(self) -> None:
        """End what runs in the background; nothing is written any more."""
        self._open = False
        if self.stopping is not None:
            self.stopping.cancel()
            await asyncio.gather(self.stopping, return_exceptions=True)
        await self.shard.close()

    def state(self, name: Name) -> State:
        """The state that was last written; UNKNOWN where none was, or it is not open yet."""
        return self._known.get(name, State.UNKNOWN)

    async def prepare(
        self, mirror: str, partitions: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Say that these are ours now, before anything is done with them.

        Returns:
            Those that nobody has ever owned before.
        """
        names = {key: Name(mirror, *key) for key in partitions}
        fresh = {key for key, name in names.items() if name not in self._known}
        for name in names.values():
            # What is resumed goes to MIRRORING at once.
            if self.state(name) not in {State.PAUSED, State.PAUSING}:
                self._to_write[name] = PartitionState(name, State.PREPARING)
        await self.write_states()
        return fresh

    def changed(self, name: Name, state: State, reason: str | None) -> None:
        """What an engine says of a partition, to be written with the next."""
        if state is State.PREPARING and self.state(name) in {State.PAUSED, State.PAUSING}:
            return
        self._to_write[name] = PartitionState(name, state, reason)

    def mirrored(self, name: Name, epoch: LeaderEpoch) -> None:
        """The source's leader epoch of the last record; a new one is written with the next state.

        A failover with the source gone could not ask for it any more.
        """
        if epoch not in {UNKNOWN_EPOCH, self._last(name).epoch}:
            self._mirrored_to_write[name] = LastMirrored(epoch, UNKNOWN)

    def _last(self, name: Name) -> LastMirrored:
        nothing = LastMirrored(UNKNOWN_EPOCH, UNKNOWN)
        return self._mirrored_to_write.get(name) or self._mirrored.get(name, nothing)

    async def enter(self, states: Mapping[Name, State]) -> None:
        """Write the states of those of these that are not in them, now.

        Raises:
            Fenced: the state partition has another owner.
        """
        for name, state in states.items():
            if self.state(name) is not state:
                self._to_write[name] = PartitionState(name, state)
        await self.write_states()

    async def write_states(self) -> None:
        """Write what has changed, all at once.

        Raises:
            Fenced: the state partition has another owner.
        """
        async with self._writing:
            if not self._open or not (self._to_write or self._mirrored_to_write):
                return
            changes, self._to_write = self._to_write, {}
            mirrored, self._mirrored_to_write = self._mirrored_to_write, {}
            records = [
                record
                for change in changes.values()
                for record in way(self.state(change.partition), change)
            ]
            try:
                if not self._may_write():
                    raise Fenced("the lease has ended")
                if not self._writer.ready:
                    await self._writer.fence()
                number = self.shard.number
                await self._writer.write(
                    [
                        *(epoch_entry(name, last, number) for name, last in mirrored.items()),
                        *(state_entry(record, number) for record in records),
                    ]
                )
            except TwinlogError:
                self._to_write = {**changes, **self._to_write}
                self._mirrored_to_write = {**mirrored, **self._mirrored_to_write}
                raise
            self._known.update((change.partition, change.state) for change in changes.values())
            self._mirrored |= mirrored

    async def stop(self, names: Collection[Name]) -> None:
        """Fence these, of which nothing of ours is under way any more, and say that it is done.

        Where what was mirrored ends is written with it, for a failback to compare with.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not all could be fenced yet; those that could are STOPPED.
        """
        await asyncio.sleep(self._alone_from - asyncio.get_running_loop().time())
        keys = {TopicPartition(name.topic, name.partition): name for name in names}
        fenced = await self.shard.fence(keys)
        for key, end in fenced.items():
            name = keys[key]
            self._mirrored_to_write[name] = LastMirrored(self._last(name).epoch, end)
        await self.enter({keys[key]: State.STOPPED for key in fenced})
        if left := keys.keys() - fenced.keys():
            raise Retriable(f"{len(left)} partitions cannot be fenced yet, {min(left)} for one")
