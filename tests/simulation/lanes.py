"""Lanes: processes that run engines on the shards that a group coordinator assigns.

The group gives the weakest guarantees that the theory relies on: a new owner may start at any
moment, even while the former owner is alive. Only the lease binds a former owner. Each heartbeat
that succeeds while the lane is a member lets it write for `LEASE_SECONDS` on its own clock, counted
from when the heartbeat was sent. The desired state reaches a lane with its heartbeats, so a lane
that is cut off continues with the desired state that it knew.

The lane's own code decides what to do with a mirror partition (`runtime/reconciler.py`,
`runtime/ownership.py`); this module replaces the rest of `runtime/lane.py`.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from model.cluster import Cluster
from model.loop import Process, VirtualLoop
from model.network import Network
from model.ports import ModelDestination, ModelSource
from model.states import ModelStates, StateTopic
from simulation.lags import Reported
from twinlog.engines.base import Assignment, Engine, PartitionProgress
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.ports import LogEnd
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Fenced, TwinlogError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Gap
from twinlog.mirror.settings import EXACT
from twinlog.mirror.throttle import Throttle
from twinlog.runtime.ownership import OwnedStatePartition
from twinlog.runtime.reconciler import Mirrored, Ways
from twinlog.store.config_records import MirrorTopic

MIRROR: Final = "mirror"
LEASE_SECONDS: Final = 4.0
LATE_SECONDS: Final = 1.5
"""A request may still arrive this long after it was sent; with the lease, below `lease_s`."""
HEARTBEAT_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.5


def _hash(partition: ExactPartition) -> int:
    return hash(partition.spec.partition)


# Sets of partitions need the same order in each run; hashes of addresses do not give that.
ExactPartition.__hash__ = _hash  # type: ignore[assignment]

SourceMaker = Callable[[Cluster, Network, str], ModelSource]
DestinationMaker = Callable[[Cluster, Network, str, Callable[[], bool]], ModelDestination]
OwnedMaker = Callable[
    [ExactWriters, ModelStates, Callable[[], bool], LaneSettings], OwnedStatePartition
]


def owned_by(
    writers: ExactWriters,
    states: ModelStates,
    may_write: Callable[[], bool],
    settings: LaneSettings,
    made: type[OwnedStatePartition] = OwnedStatePartition,
) -> OwnedStatePartition:
    """An owned state partition whose mirror is exact."""
    return made(
        writers.shard.number,
        writers={EXACT: writers},
        kind_of=lambda _: EXACT,
        states=states,
        may_write=may_write,
        settings=settings,
    )


class FencingShard(Shard):
    """A shard that tells the model where it fences data (model/fences.py)."""

    async def fence_data(
        self, gaps: Mapping[TopicPartition, Gap]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Report the gaps to the model while they are being fenced."""
        assert isinstance(self._destination, ModelDestination)
        now = asyncio.get_running_loop().time()
        with self._destination.cluster.data_fences.fencing(gaps, now):
            return await super().fence_data(gaps)


class Commands(NamedTuple):
    """The desired state of each topic after `number` commands."""

    number: int
    topics: Mapping[str, MirrorTopic]


@dataclass(slots=True)
class Group:
    """The owner of each shard and the desired state; lanes in `cut` get no answers."""

    owners: dict[int, str] = field(default_factory=dict)
    commands: Commands = field(default_factory=lambda: Commands(0, {}))
    cut: set[str] = field(default_factory=set)
    leases: dict[str, float] = field(default_factory=dict)
    """The time until which each lane may write, as the coordinator knows it."""

    def want(self, topic: MirrorTopic) -> None:
        """Add a command."""
        count, topics = self.commands
        self.commands = Commands(count + 1, {**topics, topic.topic: topic})

    def heartbeat(self, lane: str, now: float) -> tuple[frozenset[int], Commands] | None:
        """Return the lane's shards and the desired state; None if the lane gets no answer."""
        if lane in self.cut:
            return None
        self.leases[lane] = now + LEASE_SECONDS
        shards = frozenset(shard for shard, owner in self.owners.items() if owner == lane)
        return shards, self.commands

    def knows(self, lane: str, shards: Collection[int]) -> bool:
        """Whether the lane gets an answer, and no other lane owns one of these shards."""
        return lane not in self.cut and all(self.owners.get(shard) == lane for shard in shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all lanes share."""

    loop: VirtualLoop
    group: Group
    clusters: tuple[Cluster, Cluster]
    networks: tuple[Network, Network]
    states: StateTopic
    specs: Mapping[int, Collection[Assignment]]
    settings: LaneSettings
    make_source: SourceMaker
    make_destination: DestinationMaker
    make_owned: OwnedMaker


class Lane:
    """One lane process."""

    def __init__(self, name: str, world: World, seed: int) -> None:
        self.process = Process(name)
        self.process.on_kill = self._killed
        self.name = name
        self._throttle = Throttle()
        self.stages: dict[TopicPartition, str] = {}
        self._world = world
        self._random = random.Random(seed)
        self._answers = random.Random(f"answers {seed}")  # other draws of the seed stay the same
        self._source = world.make_source(world.clusters[0], world.networks[0], name)
        self._destination = world.make_destination(
            world.clusters[1], world.networks[1], name, self.may_write
        )
        self._lease_until = 0.0
        self._ours: frozenset[int] = frozenset()
        self._commands = Commands(0, {})
        self._owned: dict[int, OwnedStatePartition] = {}
        self._engine: Engine | None = None
        self._changed = asyncio.Event()
        self._changing = asyncio.Lock()  # guards the owned shards and the engine
        self._ways = Ways(
            self._owned,
            targets=self._wanted,
            catch_up=self._catch_up,
            disown=self._disown,
            run=self._run,
            on_change=self._changed.set,
            random=self._random,
        )

    def start(self) -> None:
        """Start the process."""
        main = self._world.loop.start_in(self.process, self._main())
        main.add_done_callback(self._ended)

    def _ended(self, main: "asyncio.Task[None]") -> None:
        """Fail the simulation if the lane raised an exception."""
        if not main.cancelled() and (error := main.exception()) is not None:
            self._world.loop.broken = error

    def reported(self) -> Iterator[Reported]:
        """What it reports of its partitions."""
        if isinstance(self._engine, ExactEngine):
            fetcher, partitions = self._engine.plane.fetcher, self._engine.plane.partitions
            for row in self._engine.progress():
                key = row.name.source
                yield Reported(self.name, key, fetcher.answered_at(partitions[key]), row)

    def may_write(self) -> bool:
        """Return whether the lease is valid."""
        return self._world.loop.time() < self._lease_until

    def throttle(self, throttle: Throttle) -> None:
        """Limit the lane's fetch rate, from its next heartbeat on."""
        self._throttle = throttle

    def _killed(self) -> None:
        for network in self._world.networks:
            network.stop_client(self.name)

    async def _main(self) -> None:
        """Be a member, run an engine on the owned partitions, reconcile, store states."""
        await asyncio.gather(
            self._be_member(), self._run_engines(), self._reconcile(), self._report()
        )

    # ---- membership ----------------------------------------------------------------------------

    async def _be_member(self) -> None:
        while True:
            if self._engine is not None:
                self._engine.limit(self._throttle, lanes=1, log_start_delay_s=0.0)
            sent = self._world.loop.time()
            answer = self._world.group.heartbeat(self.name, sent)
            if answer is not None:
                shards, commands = answer
                self._learn(commands)
                if lost := self._ours - shards:
                    # A new owner may exist: a member drops lost shards before it joins again.
                    self._ours -= lost
                    await self._lose(lost)
                self._lease_until = sent + LEASE_SECONDS
                if shards != self._ours:
                    self._ours = shards
                    await self._assign(shards)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _confirm_ownership(self) -> None:
        """Wait for the answer to a heartbeat, in which nothing of this lane is another's yet."""
        while True:
            await asyncio.sleep(self._answers.uniform(0.0, 0.02))
            known = self._world.group.knows(self.name, self._ours)
            await asyncio.sleep(self._answers.choice((0.005, 0.005, 0.5)))
            if known:
                return
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _assign(self, numbers: Collection[int]) -> None:
        async with self._changing:
            for number in sorted(numbers):
                if number not in self._owned:
                    self._owned[number] = self._own(number)
        self._changed.set()

    def _own(self, number: int) -> OwnedStatePartition:
        world = self._world
        shard = FencingShard(number, "twinlog", self._destination, world.settings)
        return world.make_owned(
            ExactWriters(shard), self._states(number), self.may_write, world.settings
        )

    def _states(self, number: int) -> ModelStates:
        world = self._world
        return ModelStates(world.states, world.networks[1], self.name, number, self.may_write)

    async def _lose(self, numbers: Collection[int]) -> None:
        async with self._changing:
            if self._engine is not None:
                engine = self._engine
                await engine.stop([row.name for row in engine.progress(numbers)])
            for number in sorted(numbers):
                if (owned := self._owned.pop(number, None)) is not None:
                    await owned.close()

    # ---- engines -------------------------------------------------------------------------------

    async def _run_engines(self) -> None:
        """Run one engine after the other; a fenced engine is replaced."""
        while True:
            engine = self._engine = self._new_engine()
            self._changed.set()
            try:
                await engine.run()
            except Fenced:
                await asyncio.sleep(AGAIN_SECONDS)

    def _new_engine(self) -> Engine:
        return ExactEngine(
            MIRROR,
            self._observe,
            source=self._source,
            destination=self._destination,
            settings=self._world.settings,
            random=self._random,
            brokers_time_ms=lambda: self._destination.cluster.now_ms,
            confirm_ownership=self._confirm_ownership,
        )

    async def _reconcile(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                async with self._changing:
                    await self._ways.go()
            except TwinlogError:
                await asyncio.sleep(AGAIN_SECONDS * (0.5 + self._random.random()))
                self._changed.set()

    async def _catch_up(self) -> None:
        group = self._world.group
        self._learn(await self._world.networks[1].send_alone(self.name, 1, lambda: group.commands))

    def _learn(self, commands: Commands) -> None:
        """Take newer commands; a late answer with older commands changes nothing."""
        if commands.number > self._commands.number:
            self._commands = commands
            self._changed.set()

    def _wanted(self) -> dict[int, list[Mirrored]]:
        wanted: dict[int, list[Mirrored]] = defaultdict(list)
        for number, specs in self._world.specs.items():
            for spec in specs:
                topic = self._commands.topics.get(spec.name.topic)
                if topic is not None:
                    wanted[number].append((spec.name, topic))
        return wanted

    async def _disown(self, keep: Collection[MirrorPartition]) -> None:
        self._note_epochs()
        if self._engine is not None:
            await self._engine.stop([name for name in self._engine.names if name not in keep])

    async def _run(self, owned: OwnedStatePartition, wanted: Sequence[Mirrored]) -> None:
        if self._engine is not None:
            names = {name for name, _ in wanted}
            specs = [s for s in self._world.specs[owned.number] if s.name in names]
            await owned.run(self._engine, specs)

    # ---- states --------------------------------------------------------------------------------

    def _observe(self, engine: Engine, row: PartitionProgress) -> None:
        key = row.name.source
        self.stages[key] = f"{row.state.name} {row.reason or ''}"
        owned = self._owned.get(row.state_partition)
        if owned is not None and engine is self._engine:
            owned.reported.observe(row)

    def _note_epochs(self) -> None:
        if self._engine is not None:
            for row in self._engine.progress():
                owned = self._owned.get(row.state_partition)
                if owned is not None:
                    owned.reported.mirrored(row)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._note_epochs()
            for number, owned in list(self._owned.items()):
                try:
                    await owned.write_states()
                except Fenced:
                    if self._owned.get(number) is owned:
                        await self._lose({number})
                        await self._assign({number} & self._ours)
                except TwinlogError:
                    pass
            if self._ways.pause_is_due:
                self._changed.set()
