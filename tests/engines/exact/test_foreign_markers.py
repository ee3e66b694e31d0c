"""Transactions of foreign producers that end where a transaction of the source does."""

import asyncio

from model.log import Marker
from model.world import KEY, World, scenario
from twinlog.engines.exact.spec import PartitionStage
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole


def foreign_transaction(world: World, *values: str) -> None:
    """Write records and a commit marker to the destination, as a user's producer does."""
    partition = world.destination.partition(KEY)
    records = [
        RawRecord(at, world.destination.now_ms, 0, memoryview(encode_tail(b"u", value.encode())))
        for at, value in enumerate(values)
    ]
    partition.log.append(whole(build(records, Codec.NONE), producer_id=4242, epoch=0, sequence=0))
    partition.log.append_marker(Marker(4242, 0, True), world.destination.now_ms)
    world.destination._replicate(partition)


async def diverged(world: World) -> None:
    """Start a lane again, which has to detect the divergence."""
    await world.mirror()
    await world.until(
        lambda: world.partition.stage in {PartitionStage.MIRRORING, PartitionStage.FAILED}
    )
    world.write("next")
    await asyncio.sleep(60)
    assert world.partition.stage is PartitionStage.FAILED
    assert "the destination differs from the source at offset 2" in world.partition.reason


@scenario
async def test_a_foreign_transaction_that_ends_at_the_same_marker_is_detected(world: World) -> None:
    """Goal: both logs end in a marker at one offset; the records before it distinguish them."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    await world.end()
    world.write("from the source")
    world.write_marker()
    foreign_transaction(world, "from a user")
    await diverged(world)


@scenario
async def test_writes_to_the_old_source_after_the_add_are_detected(world: World) -> None:
    """Goal: an accepted failback does not continue behind records from before its node ran."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    await world.end()
    world.write_marker()  # the failover's fence
    world.write("there 1", "there 2")
    world.write_marker()
    foreign_transaction(world, "old 1", "old 2", "old 3")
    await diverged(world)
