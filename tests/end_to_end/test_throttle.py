"""A throttled topic keeps to its rate, others are not delayed, and the rate can be altered."""

import os

import librdkafka_tools
import pytest
from scraped import scrape
from throttled_rates import SECONDS, measured

from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark]

RATE = 1_000_000
VALUE = 10_000
RECORD = VALUE + 12
"""Bytes of a record in a batch, with its own fields (the batch's 61 are for several)."""


def mirrored(stage: Stage, topic: str) -> int:
    """Return the bytes of a topic of two partitions that the destination has."""
    log = ConsumerView(stage.destination.bootstrap_servers)
    return sum(log.ends([(topic, 0), (topic, 1)]).values()) * RECORD


def test_a_throttled_topic_keeps_to_its_rate(
    world: Stage, metrics_address: str, topic: str
) -> None:
    """Within a tenth over 20 s, measured on the destination; 120 MB wait, in two partitions."""
    servers = world.source.bootstrap_servers
    free = f"{topic}-free"
    for name in (topic, free):
        librdkafka_tools.make_topic(servers, name, 2)
    for partition in (0, 1):
        values = [(partition, None, os.urandom(VALUE), None) for _ in range(6000)]
        librdkafka_tools.write(servers, topic, values, batch_size=100_000, linger_ms=50)
    librdkafka_tools.alter(
        world,
        f"mirror.replication.throttled.rate={RATE // 20}",  # most waits, however long this takes
        f"mirror.replication.throttled.replicas={topic}:0,{topic}:1",
    )
    world.add(f"{topic}.*", "everything")
    for partition in (0, 1):
        librdkafka_tools.await_state(world, topic, partition, "MIRRORING")
    librdkafka_tools.write(servers, free, librdkafka_tools.simple(10_000))
    world.await_no_lag([free])
    assert mirrored(world, topic) < 12_000 * RECORD, "who is not throttled does not wait"
    librdkafka_tools.alter(world, f"mirror.replication.throttled.rate={RATE}")
    metrics = measured(lambda: mirrored(world, topic), RATE, 0.1, lambda: scrape(metrics_address))
    assert metrics.value("twinlog_throttled_rate_limit", mirror="everything") == RATE
    name = "kafka_server_mirrorreplication_byterate"
    rates = [metrics.value(name, **labels) or 0 for labels in metrics.labels(name)]
    assert 0.85 * RATE < sum(rates) < 1.15 * RATE
    lag = "twinlog_partition_lag_seconds"
    ages = {
        label["topic"]: metrics.value(lag, **label)
        for label in metrics.labels(lag)
        if topic in label["topic"]
    }
    assert ages[free] == 0
    assert (ages[topic] or 0) > SECONDS - 5, "what waits was seen when the test began"
    librdkafka_tools.alter(world, f"mirror.replication.throttled.rate={(1 << 63) - 1}")
    world.await_no_lag([topic])
    assert world.check([topic, free], numbered=False).good
    librdkafka_tools.alter(world, "mirror.replication.throttled.replicas=*")
