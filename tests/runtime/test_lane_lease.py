"""A running lane and its lease, on a cluster of one fake broker."""

import asyncio

import pytest
from small_cluster import INIT_PRODUCER_ID, SmallCluster, small_cluster
from waiting import until_async

from twinlog.engines.exact.engine import ExactEngines
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Fenced
from twinlog.mirror.settings import EXACT
from twinlog.runtime.lane import Lane, LaneConfig
from twinlog.store.control_topics import CONFIG_TOPIC, STATE_TOPIC


def lane_on(small: SmallCluster) -> Lane:
    """Build a lane with a short session."""
    return Lane(
        LaneConfig(
            node="node",
            index=0,
            lanes=1,
            destination={"bootstrap.servers": small.servers},
            settings=LaneSettings(),
            group_id="twinlog",
            session_timeout_s=1.0,
        )
    )


def port_of(lane: Lane) -> KafkaDestination:
    """Return its destination, as its engines see it."""
    engines = lane._engines._kinds[EXACT]
    assert isinstance(engines, ExactEngines)
    return engines._port


def test_a_lane_sends_no_writes_without_a_lease() -> None:
    """Goal: every writer of the lane checks the lane's own lease before each request (A9)."""

    async def story() -> None:
        async with small_cluster({CONFIG_TOPIC: b"", STATE_TOPIC: b""}, topic=STATE_TOPIC) as small:
            lane = lane_on(small)
            running = asyncio.create_task(lane.run())

            async def writes() -> bool:
                if not hasattr(lane, "_group") or not lane._group.holds_lease:
                    return False
                try:
                    return (await port_of(lane).init_producer("twinlog.0")).producer_id == 7
                except Fenced:  # heartbeats are late on a busy machine
                    return False

            async def lease_is_over() -> bool:
                return not lane._group.holds_lease

            await until_async(writes, what="the lease")
            small.beats = False
            await until_async(lease_is_over, what="the end of the lease")
            sent = small.count(INIT_PRODUCER_ID)
            with pytest.raises(Fenced, match="not sent: the lease has ended"):
                await port_of(lane).init_producer("twinlog.0")
            assert small.count(INIT_PRODUCER_ID) == sent
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())
