"""The brokers' time: it comes from their answers, and no local clock can change it."""

import asyncio
import time

import pytest
from clients import client, make_topic

from twinlog.kafka.client.brokers_time import NOT_STAMPED, BrokersTime
from twinlog.local.cluster import LocalCluster
from twinlog.store.topic_writer import Entry, append

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Clocks:
    """The local clocks: a monotonic one, and one that can be set."""

    def __init__(self) -> None:
        self.running = 50.0
        self.wall = 1_000_000.0
        self.time = BrokersTime(monotonic=lambda: self.running, wall=lambda: self.wall)


def test_before_they_have_told_it_nothing_is_young() -> None:
    assert Clocks().time.now_ms() > 1 << 60


def test_their_time_continues_whatever_is_set_here() -> None:
    clocks = Clocks()
    clocks.time.heard(7 * HOUR_MS)
    clocks.wall -= 13 * 3600
    clocks.running += 1.5
    assert clocks.time.now_ms() == 7 * HOUR_MS + 1500
    clocks.time.heard(9 * HOUR_MS)
    assert clocks.time.now_ms() == 9 * HOUR_MS


@pytest.mark.parametrize("told", [NOT_STAMPED, -(1 << 63)])
def test_where_topics_do_not_tell_it_is_the_wall_clocks(told: int) -> None:
    clocks = Clocks()
    clocks.time.heard(told)
    assert clocks.time.now_ms() == 1_000_000_000
    clocks.wall += 1
    assert clocks.time.now_ms() == 1_000_001_000


@pytest.mark.broker
@pytest.mark.parametrize(("kind", "told"), [("LogAppendTime", True), ("CreateTime", False)])
def test_brokers_tell_it(any_kafka: LocalCluster, topic: str, kind: str, *, told: bool) -> None:
    """The answer to an append to a topic of LogAppendTime contains it."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            ours = Clocks()
            cluster.brokers_time = ours.time
            await make_topic(cluster, topic, 1, configs={"message.timestamp.type": kind})
            await append(cluster, [Entry(topic, 0, b"k", b"v")])
            now_ms = ours.time.now_ms()
            assert (abs(now_ms - time.time() * 1000) < MINUTE_MS) == told
            assert (now_ms == ours.wall * 1000) != told

    asyncio.run(run())
