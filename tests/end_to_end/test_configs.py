"""Topic configurations follow the source, are corrected on the destination, and are set back."""

import time
from typing import Any

import librdkafka_tools
import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from waiting import until

from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def change(servers: str, topic: str, **configs: str) -> None:
    """Set configurations of a topic, with _ for a dot."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = librdkafka_tools.admin(servers)
    client.incremental_alter_configs([resource])[resource].result(120)


@pytest.mark.long
def test_topic_configurations_follow_the_source(world: Stage, topic: str) -> None:
    source, destination = world.source.bootstrap_servers, world.destination.bootstrap_servers
    librdkafka_tools.make_topic(source, topic, 1, {"retention.ms": "100000000"})
    world.add(topic, "everything")
    librdkafka_tools.await_state(world, topic, 0, "MIRRORING")
    assert librdkafka_tools.configs(destination, topic)["retention.ms"] == "100000000"
    change(destination, topic, flush_ms="12345", min_insync_replicas="2", retention_ms="1000")
    change(source, topic, segment_ms="86400000", message_timestamp_type="LogAppendTime")
    default = librdkafka_tools.configs(source, topic)["flush.ms"]

    def followed() -> bool:
        found = librdkafka_tools.configs(destination, topic)
        return (found["segment.ms"], found["retention.ms"], found["flush.ms"]) == (
            "86400000",
            "100000000",
            default,
        )

    until(followed, what="the configurations")
    found = librdkafka_tools.configs(destination, topic)
    assert found["message.timestamp.type"] == "CreateTime", "identical timestamps need it"
    assert found["min.insync.replicas"] == "2", "excluded by default"
    change(destination, topic, min_insync_replicas="1")
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(20))
    world.await_no_lag([topic])
    assert world.verify("--topic", topic).status == 0


NEEDED = {
    "message.timestamp.type": "CreateTime",
    "compression.type": "producer",
    "max.message.bytes": str(64 << 20),
    "message.timestamp.after.max.ms": str((1 << 63) - 1),
}
"""What a mirrored topic has while it is mirrored, in place of users' values."""
ITS_OWN = {
    "message.timestamp.type": "LogAppendTime",
    "compression.type": "zstd",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
}
"""What the source's topic has: the first two are its own, the others the brokers' defaults."""


def has(servers: str, topic: str, wanted: dict[str, str]) -> bool:
    found = librdkafka_tools.configs(servers, topic)
    return {name: found[name] for name in wanted} == wanted


@pytest.mark.long
def test_required_topic_settings_are_reset_at_the_failover(world: Stage, topic: str) -> None:
    """To the source's values, without asking the source; once, then the users own them."""
    source, destination = world.source.bootstrap_servers, world.destination.bootstrap_servers
    own = {name: ITS_OWN[name] for name in ("message.timestamp.type", "compression.type")}
    librdkafka_tools.make_topic(source, topic, 1, own)
    world.add(topic, "everything")
    librdkafka_tools.await_state(world, topic, 0, "MIRRORING")
    assert has(destination, topic, NEEDED)
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(20))
    world.await_no_lag([topic])
    assert world.verify("--topic", topic).status == 0
    mirror = ("--mirror", "everything", "--topic", topic)
    assert world.mirrors("--remove", *mirror).status == 0
    until(lambda: has(destination, topic, ITS_OWN), what="the topic's own configurations")
    change(destination, topic, compression_type="lz4")
    librdkafka_tools.await_state(world, topic, 0, "STOPPED")
    time.sleep(3)
    assert has(destination, topic, {**ITS_OWN, "compression.type": "lz4"})


@pytest.mark.long
def test_log_append_time_on_the_destination_fails_the_partition(world: Stage, topic: str) -> None:
    """With LogAppendTime at the destination records are altered, until that is changed back."""
    source, destination = world.source.bootstrap_servers, world.destination.bootstrap_servers
    librdkafka_tools.make_topic(source, topic, 1)
    world.add(topic, "everything")
    librdkafka_tools.await_state(world, topic, 0, "MIRRORING")

    def altered() -> dict[str, Any]:
        change(destination, topic, message_timestamp_type="LogAppendTime")
        librdkafka_tools.write(source, topic, librdkafka_tools.simple(1))
        return librdkafka_tools.described(world, topic)[0]

    until(altered, what="the partition's failure", good=lambda row: row["state"] == "FAILED")
    # The reason as long as records differ: it does not ask for a retry.
    until(
        lambda: librdkafka_tools.described(world, topic)[0]["reason"] or "",
        what="the comparison's reason",
        good=lambda reason: "the timestamp differs" in reason,
    )
    time.sleep(5)
    assert librdkafka_tools.described(world, topic)[0]["state"] == "FAILED"
