"""How the destination's log start follows the source's (`mirror.log.start.delay.ms`)."""

import asyncio

from model.world import KEY, World, scenario

DELAY_S = 60.0


def start(world: World) -> int:
    return world.destination.log(KEY).start


@scenario
async def test_the_log_start_offset_follows_after_the_delay(world: World) -> None:
    """Goal: records stay for the configured delay; without a delay for seconds only."""
    await world.mirror()
    world.engine.log_starts.delay_s = DELAY_S
    for at in range(10):
        world.write(str(at))
    await world.arrived()
    world.source.log(KEY).delete_before(5)
    world.write("so that the source answers")
    await world.arrived()
    await asyncio.sleep(DELAY_S - 1)
    assert start(world) == 0
    await asyncio.sleep(5)
    assert start(world) == 5
    world.source.log(KEY).delete_before(8)
    world.write("again")
    await world.arrived()
    await asyncio.sleep(5)
    assert start(world) == 5
    world.engine.log_starts.delay_s = 0.0
    await asyncio.sleep(5)
    assert start(world) == 8


@scenario
async def test_empty_records_below_the_first_offset_are_deleted_without_delay(world: World) -> None:
    """Goal: the empty records below the mirror's first offset are deleted without a delay."""
    for at in range(10):
        world.write(str(at))
    world.source.log(KEY).delete_before(9)
    await world.mirror()
    world.engine.log_starts.delay_s = float("inf")
    await world.arrived()
    await asyncio.sleep(5)
    assert start(world) == 9
