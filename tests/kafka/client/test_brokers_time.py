"""The brokers' time: it comes from their answers, and no local clock can change it."""

import asyncio
import time

import pytest
from clients import client, make_topic, put

from twinlog.kafka.client.brokers_time import NOT_STAMPED, BrokersTime
from twinlog.local.cluster import LocalCluster
from twinlog.store.topic_writer import Entry

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Clocks:
    """The local clocks: a monotonic one, and one that can be set."""

    def __init__(self) -> None:
        self.running = 50.0
        self.wall = 1_000_000.0
        self.time = BrokersTime(monotonic=lambda: self.running, wall=lambda: self.wall)


def test_without_a_known_broker_time_no_record_is_young() -> None:
    assert Clocks().time.now_ms() > 1 << 60


def test_the_brokers_time_does_not_depend_on_the_local_clock() -> None:
    clocks = Clocks()
    clocks.time.heard(7 * HOUR_MS)
    clocks.wall -= 13 * 3600
    clocks.running += 1.5
    assert clocks.time.now_ms() == 7 * HOUR_MS + 1500
    clocks.time.heard(9 * HOUR_MS)
    assert clocks.time.now_ms() == 9 * HOUR_MS


@pytest.mark.parametrize("told", [NOT_STAMPED, -(1 << 63)])
def test_without_log_append_time_the_wall_clock_is_used(told: int) -> None:
    clocks = Clocks()
    clocks.time.heard(told)
    assert clocks.time.now_ms() == 1_000_000_000
    clocks.wall += 1
    assert clocks.time.now_ms() == 1_000_001_000


@pytest.mark.broker
@pytest.mark.parametrize(("kind", "told"), [("LogAppendTime", True), ("CreateTime", False)])
def test_an_append_returns_the_brokers_time(
    any_kafka: LocalCluster, topic: str, kind: str, *, told: bool
) -> None:
    """The answer to an append to a topic of LogAppendTime contains it."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            clocks = Clocks()
            cluster.brokers_time = clocks.time
            await make_topic(cluster, topic, 1, configs={"message.timestamp.type": kind})
            await put(cluster, [Entry(topic, 0, b"k", b"v")])
            now_ms = clocks.time.now_ms()
            assert (abs(now_ms - time.time() * 1000) < MINUTE_MS) == told
            assert (now_ms == clocks.wall * 1000) != told

    asyncio.run(run())
