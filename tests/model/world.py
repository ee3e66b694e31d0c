"""Two clusters with one partition each, and an engine that mirrors it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

from sole_owner import owned_for_good

from model.cluster import Cluster
from model.log import Marker
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination, ModelSource
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import TopicPartition

KEY = TopicPartition("topic", 0)
SECONDS = 120.0


class World:
    """Two clusters of two brokers, one partition, and an engine that owns it."""

    def __init__(self, loop: VirtualLoop) -> None:
        rng = random.Random(7)
        self.loop = loop
        self.rng = rng
        self.source = Cluster(loop, rng, nodes=(1, 2))
        self.destination = Cluster(loop, rng, nodes=(1, 2))
        self._topic_id = self.source.create_topic(KEY.topic).topic_id
        self.destination_topic_id: UUID | None = self.destination.create_topic(KEY.topic).topic_id
        """The topic id that is stored for the destination topic; None if none is stored."""
        self.networks = tuple(Network(loop, rng, Faults()) for _ in range(2))
        self._settings = LaneSettings()
        self._running: list[asyncio.Future[None]] = []
        self._shards: list[Shard] = []
        self.engine: DataPlane
        self.partition: ExactPartition

    def expire_ids(self, seconds: float) -> None:
        """Let transactional ids expire this soon; owners know the value."""
        timings = self.destination.timings
        self.destination.timings = replace(timings, transactional_id_expiration=seconds)
        self._settings = replace(self._settings, ids_expiration_ms=int(seconds * 1000))
        for shard in self._shards:
            shard.settings = self._settings

    async def mirror(
        self,
        lease_s: float = 0.0,
        *,
        of_several_ids: bool = False,
        compacted: bool = False,
        beside: bool = False,
        confirm_ownership: Callable[[], Awaitable[None]] = owned_for_good,
    ) -> None:
        """Take over with a new owner; the former owner is gone, and may write for `lease_s`.

        With `beside` the owner before it goes on.
        """
        if not beside:
            await self.end()
        ports = (
            ModelSource(self.source, self.networks[0], "lane"),
            ModelDestination(self.destination, self.networks[1], "lane"),
        )
        settings = self._settings
        engine = DataPlane(
            *ports,
            settings,
            self.rng,
            lambda _: None,
            brokers_time_ms=lambda: self.destination.now_ms,
            confirm_ownership=confirm_ownership,
        )
        shard = Shard(0, "twinlog", ports[1], settings)
        await shard.open()
        spec = PartitionSpec(
            partition=KEY,
            source_topic_id=self._topic_id,
            shard=0,
            compacted=compacted,
            destination_topic_id=self.destination_topic_id,
            of_several_ids=of_several_ids,
        )
        self.engine = engine
        engine.own(shard, [spec], lease_s)
        self._shards.append(shard)
        self._running.append(asyncio.ensure_future(engine.run()))
        self.partition = engine.partitions[KEY]

    async def end(self) -> None:
        """Stop mirroring."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for shard in self._shards:
            await shard.close()
        self._running, self._shards = [], []

    def write(self, *values: str) -> None:
        """Write one batch to the source."""
        log = self.source.log(KEY)
        records = [
            RawRecord(at, self.source.now_ms, 0, memoryview(encode_tail(b"k", value.encode())))
            for at, value in enumerate(values)
        ]
        log.append(whole(build(records, Codec.NONE)))
        self._replicated()

    def write_marker(self) -> None:
        """Write a control record to the source."""
        self.source.log(KEY).append_marker(Marker(77, 0, True), self.source.now_ms)
        self._replicated()

    def _replicated(self) -> None:
        log = self.source.log(KEY)
        log.high_watermark = log.end
        self.source._wake()

    async def elect(self, lose: int | None = None) -> None:
        """Elect another leader of the source, which has lost `lose` records (None: no records)."""
        self.source.move_leader(KEY, lose=lose)
        await self.until(lambda: self.source.partition(KEY).leader >= 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, in virtual time."""
        deadline = self.loop.time() + SECONDS
        while not condition():
            assert self.loop.time() < deadline, (self.partition.stage, self.partition.reason)
            await asyncio.sleep(0.01)

    async def arrived(self) -> None:
        """Wait until the destination has everything that the source has."""
        log = self.source.log(KEY)
        await self.until(lambda: self.destination.log(KEY).high_watermark == log.end)

    async def failed(self) -> str:
        """Wait until the partition is FAILED; return the reason."""
        await self.until(lambda: self.partition.stage is PartitionStage.FAILED)
        return self.partition.reason

    @property
    def ours(self) -> list[bytes]:
        """The bytes of the destination's batches, without their headers."""
        return [stored.data[61:] for stored in self.destination.log(KEY).batches]


def scenario(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Turn a coroutine function of a world into a test that runs under virtual time."""

    def test() -> None:
        async def main(loop: VirtualLoop) -> None:
            world = World(loop)
            await body(world)
            await world.end()

        run(main)

    test.__doc__ = body.__doc__
    test.__name__ = body.__name__
    return test
