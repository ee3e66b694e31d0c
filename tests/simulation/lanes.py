"""Lanes: processes that run engines on what a group coordinator gives them.

The group is the weakest that the theory stands on: a new owner may begin at any moment, however
lively the former one is. What binds a former owner is its lease alone: each heartbeat that it
gets through while it is a member lets it write for `LEASE_SECONDS` on its own clock, counted from
when the heartbeat was sent.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from model.cluster import Cluster
from model.loop import Process, VirtualLoop
from model.network import Network
from model.ports import ModelDestination, ModelSource
from twinlog.core.errors import Fenced, Retriable
from twinlog.core.throttle import Throttle
from twinlog.core.types import TopicPartition
from twinlog.pipeline.engine import Engine
from twinlog.pipeline.partition import MirrorPartition, PartitionSpec
from twinlog.pipeline.settings import LaneSettings
from twinlog.pipeline.shard import Shard

LEASE_SECONDS: Final = 4.0
LATE_SECONDS: Final = 1.5
"""How long after it was sent a request may still arrive; with the lease, below `lease_s`."""
HEARTBEAT_SECONDS: Final = 0.5


def _hash(partition: MirrorPartition) -> int:
    return hash(partition.spec.partition)


# Sets of partitions have to have the same order in each run, which addresses do not give.
MirrorPartition.__hash__ = _hash  # type: ignore[assignment]

SourceMaker = Callable[[Cluster, Network, str], ModelSource]
DestinationMaker = Callable[[Cluster, Network, str, Callable[[], bool]], ModelDestination]


@dataclass(slots=True)
class Group:
    """Which lane owns which shards. Those who are cut off are not told."""

    owners: dict[int, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def heartbeat(self, lane: str) -> frozenset[int] | None:
        """What the lane owns; None where no answer comes."""
        if lane in self.cut:
            return None
        return frozenset(shard for shard, owner in self.owners.items() if owner == lane)


class Lane:
    """One lane process."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        group: Group,
        *,
        clusters: tuple[Cluster, Cluster],
        networks: tuple[Network, Network],
        specs: Mapping[int, Collection[PartitionSpec]],
        settings: LaneSettings,
        make_source: SourceMaker,
        make_destination: DestinationMaker,
        seed: int,
    ) -> None:
        self.process = Process(name)
        self.process.on_kill = self._killed
        self._name = name
        self._loop = loop
        self._group = group
        self._specs = specs
        self._settings = settings
        self._random = random.Random(seed)
        self._networks = networks
        self._source = make_source(clusters[0], networks[0], name)
        self._destination = make_destination(clusters[1], networks[1], name, self.may_write)
        self._lease_until = 0.0
        self._engine: Engine | None = None
        self._throttle = Throttle()
        self.stages: dict[TopicPartition, str] = {}

    def start(self) -> None:
        """Start the process."""
        main = self._loop.start_in(self.process, self._main())
        main.add_done_callback(self._ended)

    def _ended(self, main: "asyncio.Task[None]") -> None:
        """Fail the simulation if the lane fell over its own feet."""
        if not main.cancelled() and (error := main.exception()) is not None:
            self._loop.broken = error

    def may_write(self) -> bool:
        """Whether the lease lasts."""
        return self._loop.time() < self._lease_until

    def throttle(self, throttle: Throttle) -> None:
        """Limit what it reads, from its next heartbeat on."""
        self._throttle = throttle

    def _killed(self) -> None:
        for network in self._networks:
            network.stop_client(self._name)

    def _observe(self, partition: MirrorPartition) -> None:
        self.stages[partition.key] = f"{partition.stage.name} {partition.reason}"

    async def _main(self) -> None:
        """Be a member, and run an engine on what is ours; a fenced one is thrown away."""
        while True:
            engine = self._engine = Engine(
                self._source,
                self._destination,
                self._settings,
                self._random,
                self._observe,
                wall_clock_ms=lambda: self._destination.cluster.now_ms,
            )
            running = asyncio.ensure_future(engine.run())
            owned: dict[int, Shard] = {}
            while not running.done():
                try:
                    await self._heartbeat(engine, owned)
                except (Fenced, Retriable):
                    break
                await asyncio.wait([running], timeout=HEARTBEAT_SECONDS)
            running.cancel()
            [result] = await asyncio.gather(running, return_exceptions=True)
            for shard in owned.values():
                await shard.close()
            if not isinstance(result, Fenced | asyncio.CancelledError):
                assert isinstance(result, BaseException)
                raise result
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self, engine: Engine, owned: dict[int, Shard]) -> None:
        engine.set_throttle(self._throttle, lanes=1)
        sent = self._loop.time()
        ours = self._group.heartbeat(self._name)
        if ours is None:
            return
        self._lease_until = sent + LEASE_SECONDS
        for number in sorted(set(owned) - ours):
            shard = owned.pop(number)
            await engine.disown([spec.partition for spec in self._specs[number]])
            await shard.close()
        for number in sorted(ours - set(owned)):
            shard = Shard(number, "twinlog", self._destination, self._settings)
            await shard.open()
            engine.own(shard, self._specs[number], self._settings.lease_s)
            owned[number] = shard
