"""A source that loses its log's end while it is mirrored, and grows again: the engine on the model.

The contract suite tests what brokers report about it (tests/contract/test_replication.py).
"""

import asyncio

from model.world import KEY, World, scenario
from twinlog.engines.exact.spec import PartitionStage


@scenario
async def test_a_truncated_source_that_grew_past_the_mirror_is_failed(world: World) -> None:
    """Goal: FAILED with both offsets and epochs, for good; none of the new records is mirrored."""
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
    assert world.partition.stage is PartitionStage.FAILED
    assert world.ours == before


@scenario
async def test_a_truncated_source_is_failed_at_once(world: World) -> None:
    """Goal: the loss is detected at once, also before the source has grown again."""
    await world.mirror()
    world.write("a", "b")
    world.write("c", "d")
    await world.arrived()
    await world.elect(lose=2)
    assert "up to offset 4 of leader epoch 0" in await world.failed()


@scenario
async def test_clean_elections_are_not_reported_as_truncation(world: World) -> None:
    """Goal: each epoch is sent with its own offsets: no clean election is taken for a lost end.

    The cases are epochs without a record, markers on either side of an election, and positions that
    are read again.
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
    assert world.partition.stage is PartitionStage.MIRRORING
    assert world.partition.fetch_position.last_epoch >= 12


@scenario
async def test_queued_records_lost_by_the_source_are_dropped(world: World) -> None:
    """Goal: fetched records that were not sent are dropped, and the mirror continues."""
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
    assert world.partition.stage is PartitionStage.MIRRORING


@scenario
async def test_a_batch_in_flight_during_truncation_counts_as_mirrored(world: World) -> None:
    """Goal: a batch that was in flight when the source lost it counts as mirrored."""
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
async def test_truncation_is_detected_by_epoch_after_a_position_reread(world: World) -> None:
    """Goal: where both logs end in a control record, the epoch shows that they differ."""
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
async def test_truncation_is_detected_by_a_new_owner(world: World) -> None:
    """Goal: records that changed while no owner ran differ; from then on the epoch is known."""
    await world.mirror()
    world.write("a")
    world.write("b")
    await world.arrived()
    await world.elect()
    await world.mirror()
    await world.until(lambda: world.partition.stage is PartitionStage.MIRRORING)
    assert world.partition.fetch_position.last_epoch == 0
    await world.end()
    world.source.move_leader(KEY, lose=1)
    world.write("B")
    world.write("C")
    await world.mirror()
    assert "differs from the source at offset 1" in await world.failed()
