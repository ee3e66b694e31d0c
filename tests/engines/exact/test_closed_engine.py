"""Timers of partitions that outlive a closed engine."""

import asyncio

from model.world import KEY, World, scenario
from twinlog.engines.exact.events import LOOK


@scenario
async def test_a_partition_of_a_closed_engine_is_not_retried(world: World) -> None:
    """Goal: a partition that waits for a retry does not resume beside its new owner."""
    await world.mirror()
    world.write("a")
    await world.arrived()
    engine, partition = world.engine, world.partition
    partition.retry_at = engine.now() + 5.0
    engine.emit(partition, LOOK)
    world.source.move_leader(KEY)
    await asyncio.sleep(0.5)
    partition.source_node = world.source.partition(KEY).leader  # nothing fetches from there yet
    await world.end()
    world.write("b")
    await asyncio.sleep(30)
    assert world.destination.log(KEY).end == 1
