"""A topic that a user deletes and recreates on the destination: the engine on the model.

The contract suite tests what brokers report about it (tests/contract/test_log.py).
"""

import asyncio
from uuid import UUID

import pytest

from model.world import KEY, World, scenario
from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import Trouble
from twinlog.engines.exact.spec import PartitionStage
from twinlog.kafka.client.metadata import NO_TOPIC_ID

LONG_S = 300.0
NOT_ENOUGH_REPLICAS = 19


def recreate_topic(world: World) -> None:
    world.destination.delete_topic(KEY.topic)
    world.destination.create_topic(KEY.topic)


async def stays_failed(world: World) -> None:
    """Wait: it stays FAILED, however often it is retried; nothing was written to the topic."""
    reason = await world.failed()
    tries = world.partition.attempts
    for _ in range(int(LONG_S)):
        assert world.partition.stage is PartitionStage.FAILED
        assert world.partition.append.phase is Phase.FAILED
        world.write("more")
        await asyncio.sleep(1.0)
    assert "the destination's topic was deleted and recreated" in reason
    assert world.partition.reason == reason
    assert 5 <= world.partition.attempts - tries <= 40, "with backoff"
    assert world.destination.log(KEY).end == 0


@scenario
async def test_a_topic_recreated_while_batches_are_in_flight_is_failed(world: World) -> None:
    """Goal: batches in flight land nowhere."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    world.write("c", "d")
    recreate_topic(world)
    world.write("e")
    await world.until(lambda: world.partition.stage is PartitionStage.FAILED)
    await stays_failed(world)


@scenario
async def test_a_topic_recreated_while_idle_is_failed_within_a_time_limit(world: World) -> None:
    """Goal: the recreation is noticed within a limited time without any write."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    recreate_topic(world)
    began = world.loop.time()
    await world.failed()
    assert world.loop.time() < began + 40
    await stays_failed(world)


@scenario
async def test_a_topic_recreated_while_no_engine_runs_is_failed(world: World) -> None:
    """Goal: a new owner checks the topic id before it reads its position."""
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    await world.end()
    recreate_topic(world)
    await world.mirror()
    await stays_failed(world)


@scenario
async def test_a_recreated_topic_gets_no_control_records(world: World) -> None:
    """Goal: control records, which are written by topic name, are not written either."""
    world.write_marker()
    world.write("a")
    await world.mirror()
    await world.arrived()
    world.write("b")
    recreate_topic(world)
    await stays_failed(world)


@scenario
async def test_a_topic_recreated_some_time_after_its_deletion_is_failed(world: World) -> None:
    """Goal: it is safe to recreate the topic at any moment while the partition is retried."""
    world.write_marker()
    world.write("a", "b")
    await world.mirror()
    await world.arrived()
    world.destination.delete_topic(KEY.topic)
    await world.until(lambda: "does not have this partition" in world.partition.reason)
    await asyncio.sleep(0.9)
    world.destination.create_topic(KEY.topic)
    await world.until(lambda: "recreated" in world.partition.reason)
    await stays_failed(world)


@scenario
async def test_a_broker_with_a_stale_topic_id_only_delays_mirroring(world: World) -> None:
    """Goal: the rebuilt topic is mirrored, though brokers first report an older topic."""
    world.destination_topic_id = UUID(int=5)
    world.write("a", "b")
    await world.mirror()
    await world.failed()
    world.destination.topics[KEY.topic].topic_id = UUID(int=5)
    await world.arrived()
    assert world.partition.stage is PartitionStage.MIRRORING


@scenario
async def test_a_missing_topic_id_is_not_another_id(world: World) -> None:
    """Goal: a missing topic id is not a different one: brokers before 2.8 have none."""
    topic = world.destination.topics[KEY.topic]
    for one in (world.destination_topic_id, None):
        world.destination_topic_id = one
        topic.topic_id = NO_TOPIC_ID
        await world.mirror()
        world.write("a")
        await world.arrived()
        assert world.partition.stage is PartitionStage.MIRRORING


@scenario
async def test_a_mirror_without_a_stored_topic_id_continues(world: World) -> None:
    """Goal: mirrors of earlier releases stored no id and go on; recreation is not detected."""
    world.destination_topic_id = None
    await world.mirror()
    world.write("a")
    await world.arrived()
    recreate_topic(world)
    world.write("b")
    await world.arrived()
    assert world.partition.stage is PartitionStage.MIRRORING


@scenario
async def test_a_recreated_source_topic_stays_failed(world: World) -> None:
    """Goal: a partition that is FAILED for good stays so when the destination's topic is back."""
    topic = world.destination.topics[KEY.topic]
    mirror_topic_id = topic.topic_id
    await world.mirror()
    world.write("a")
    await world.arrived()
    world.source.delete_topic(KEY.topic)
    world.source.create_topic(KEY.topic)
    await world.until(lambda: "the source's topic was deleted" in world.partition.reason)
    topic.topic_id = UUID(int=6)
    await world.until(lambda: world.partition.topic_lost)
    topic.topic_id = mirror_topic_id
    await world.until(lambda: not world.partition.topic_lost)
    await asyncio.sleep(LONG_S)
    assert world.partition.stage is PartitionStage.FAILED
    assert "the source's topic was deleted" in world.partition.reason


@pytest.mark.parametrize("busy", [False, True])
def test_a_recreated_source_topic_does_not_raise_the_log_start(*, busy: bool) -> None:
    """Goal: its log start neither fills offsets nor deletes what was mirrored of the former topic.

    The position is read again for a reason of the destination. A busy lane fetches nothing, so no
    fetch reports the other topic id.
    """

    @scenario
    async def story(world: World) -> None:
        for at in range(5):
            world.write(f"record {at}")
        await world.mirror()
        await world.arrived()
        await asyncio.sleep(1)
        if busy:
            world.engine.held_bytes += world.engine.settings.buffer_bytes
            await asyncio.sleep(1)
        world.source.delete_topic(KEY.topic)
        world.source.create_topic(KEY.topic)
        for at in range(20):
            world.write(f"other {at}")
        world.source.log(KEY).delete_before(15)
        trouble = Trouble("an append was refused", NOT_ENOUGH_REPLICAS)
        world.engine.emit(world.partition, trouble)
        await world.until(lambda: "recreated" in world.partition.reason)
        await asyncio.sleep(5)
        log = world.destination.log(KEY)
        assert (log.start, log.end) == (0, 5)

    story()
