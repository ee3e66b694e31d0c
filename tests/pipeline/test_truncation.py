"""A source that loses its log's end while it is mirrored, and grows again: the engine on the model.

What brokers tell of it is the contract suite's to prove (tests/contract/test_replication.py).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from model.cluster import Cluster
from model.log import Marker
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination, ModelSource
from twinlog.core.compression import Codec
from twinlog.core.records import RawRecord, build, encode_tail, whole
from twinlog.core.types import TopicPartition
from twinlog.pipeline.engine import Engine
from twinlog.pipeline.partition import MirrorPartition, PartitionSpec, Stage
from twinlog.pipeline.settings import LaneSettings
from twinlog.pipeline.shard import Shard

KEY = TopicPartition("topic", 0)
SECONDS = 120.0


class World:
    """Two clusters of two brokers, one partition, an engine that owns it."""

    def __init__(self, loop: VirtualLoop) -> None:
        rng = random.Random(7)
        self.loop = loop
        self.rng = rng
        self.source = Cluster(loop, rng, nodes=(1, 2))
        self.destination = Cluster(loop, rng, nodes=(1, 2))
        self._topic_id = self.source.create_topic(KEY.topic).topic_id
        self.destination.create_topic(KEY.topic)
        self.networks = tuple(Network(loop, rng, Faults()) for _ in range(2))
        self._running: list[asyncio.Future[None]] = []
        self._shards: list[Shard] = []
        self.partition: MirrorPartition

    async def mirror(self) -> None:
        """A new owner takes over; the former one is gone."""
        await self.end()
        ports = (
            ModelSource(self.source, self.networks[0], "lane"),
            ModelDestination(self.destination, self.networks[1], "lane"),
        )
        settings = LaneSettings()
        engine = Engine(
            *ports,
            settings,
            self.rng,
            lambda _: None,
            brokers_time_ms=lambda: self.destination.now_ms,
        )
        shard = Shard(0, "twinlog", ports[1], settings)
        await shard.open()
        spec = PartitionSpec(
            partition=KEY, source_topic_id=self._topic_id, shard=0, compacted=False
        )
        engine.own(shard, [spec], lease_s=0.0)
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
        """One batch at the source."""
        log = self.source.log(KEY)
        records = [
            RawRecord(at, self.source.now_ms, 0, memoryview(encode_tail(b"k", value.encode())))
            for at, value in enumerate(values)
        ]
        log.append(whole(build(records, Codec.NONE)))
        self._replicated()

    def write_marker(self) -> None:
        """A control record at the source."""
        self.source.log(KEY).append_marker(Marker(77, 0, True), self.source.now_ms)
        self._replicated()

    def _replicated(self) -> None:
        log = self.source.log(KEY)
        log.high_watermark = log.end
        self.source._wake()

    async def elect(self, lose: int | None = None) -> None:
        """Another leader of the source, which has lost so many records, or none."""
        self.source.move_leader(KEY, lose=lose)
        await self.until(lambda: self.source.partition(KEY).leader >= 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, in virtual time."""
        deadline = self.loop.time() + SECONDS
        while not condition():
            assert self.loop.time() < deadline, (self.partition.stage, self.partition.reason)
            await asyncio.sleep(0.01)

    async def arrived(self) -> None:
        """Wait until the destination has all that the source has."""
        log = self.source.log(KEY)
        await self.until(lambda: self.destination.log(KEY).high_watermark == log.end)

    async def failed(self) -> str:
        """Wait until the partition is FAILED; why."""
        await self.until(lambda: self.partition.stage is Stage.FAILED)
        return self.partition.reason

    @property
    def ours(self) -> list[bytes]:
        """The bytes of what the destination's records hold."""
        return [stored.data[61:] for stored in self.destination.log(KEY).batches]


def scenario(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a coroutine function of a world, under virtual time."""

    def test() -> None:
        async def main(loop: VirtualLoop) -> None:
            world = World(loop)
            await body(world)
            await world.end()

        run(main)

    test.__doc__ = body.__doc__
    test.__name__ = body.__name__  # type: ignore[attr-defined]
    return test


@scenario
async def test_a_source_that_has_grown_past_the_mirror_again(world: World) -> None:
    """Goal: FAILED with both offsets and epochs, for good; nothing of the new records is taken."""
    await world.mirror()
    await world.elect()
    world.write("a", "b")
    world.write("c", "d")
    await world.arrived()
    before = world.ours
    world.source.move_leader(KEY, lose=2)
    world.write("C", "D")
    world.write("E", "F")
    reason = await world.failed()
    assert "up to offset 4 of leader epoch 1" in reason
    assert "epoch 1 ends at offset 2" in reason
    world.write("G")
    await asyncio.sleep(60)
    assert world.partition.stage is Stage.FAILED
    assert world.ours == before


@scenario
async def test_a_source_that_is_shorter_now(world: World) -> None:
    """Goal: it is seen at once, also before it has grown again."""
    await world.mirror()
    world.write("a", "b")
    world.write("c", "d")
    await world.arrived()
    await world.elect(lose=2)
    assert "up to offset 4 of leader epoch 0" in await world.failed()


@scenario
async def test_clean_elections_lose_nothing(world: World) -> None:
    """Goal: every epoch is told for its own offsets: no election is taken for a lost end.

    Epochs without a record, markers at either side of an election, and positions read anew.
    """
    await world.mirror()
    for turn in range(12):
        world.write(f"{turn}")
        if turn % 3 == 0:
            world.write_marker()
        if turn % 4 == 0:
            await world.arrived()
        await world.elect()
        if turn % 5 == 0:
            await world.elect()
        if turn % 4 == 1:
            world.write_marker()
        if turn % 6 == 5:
            world.destination.move_leader(KEY)
        if turn == 8:
            await world.mirror()
    await world.arrived()
    assert world.partition.stage is Stage.MIRRORING
    assert world.partition.fetch_position.last_epoch >= 12


@scenario
async def test_what_is_only_queued_may_be_lost(world: World) -> None:
    """Goal: what was fetched and has not been sent is dropped, and the mirror goes on."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    world.destination.lag(KEY, 5.0)
    world.write("c", "d")
    world.write_marker()
    world.write("e")
    await world.until(lambda: world.partition.append.planned_end == 6)
    world.source.move_leader(KEY, lose=1)
    world.write("E")
    world.write("F")
    await world.until(lambda: world.partition.attempts > 0)
    await world.arrived()
    assert len(world.ours) == 5
    assert world.partition.stage is Stage.MIRRORING


@scenario
async def test_what_was_under_way_has_landed(world: World) -> None:
    """Goal: a batch that was not answered when the source lost it is one that was mirrored."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    world.destination.lag(KEY, 5.0)
    world.write("c", "d")
    await world.until(lambda: world.destination.log(KEY).end == 4)
    world.source.move_leader(KEY, lose=2)
    world.write("C", "D")
    world.write("E", "F")
    reason = await world.failed()
    assert "offset 3 was of leader epoch 0, on the source it is of epoch 1 now" in reason
    assert world.destination.log(KEY).end == 4


@scenario
async def test_a_position_that_is_read_anew(world: World) -> None:
    """Goal: where both logs end in a control record, the epoch tells that it is another one."""
    await world.mirror()
    world.write("a")
    world.write("b")
    world.write_marker()
    await world.arrived()
    for node in (1, 2):
        world.networks[0].cut("lane", node)
    world.source.move_leader(KEY, lose=2)
    world.write("B")
    world.write_marker()
    world.write("C")
    world.partition.append.replace()
    world.networks[0].heal()
    reason = await world.failed()
    assert "offset 2 was of leader epoch 0, on the source it is of epoch 1 now" in reason


@scenario
async def test_a_new_owner(world: World) -> None:
    """Goal: what was rewritten while nobody mirrored differs; from there on the epoch is known."""
    await world.mirror()
    world.write("a")
    world.write("b")
    await world.arrived()
    await world.elect()
    await world.mirror()
    await world.until(lambda: world.partition.stage is Stage.MIRRORING)
    assert world.partition.fetch_position.last_epoch == 0
    await world.end()
    world.source.move_leader(KEY, lose=1)
    world.write("B")
    world.write("C")
    await world.mirror()
    assert "differs from the source at offset 1" in await world.failed()
