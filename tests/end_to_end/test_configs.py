"""Topic configurations follow: what is changed on the source, and what is changed back."""

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import outside
from twinlog.local.stage import Stage
from waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]


def change(servers: str, topic: str, **configs: str) -> None:
    """Set configurations of a topic, with _ for a dot."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = outside.admin(servers)
    client.incremental_alter_configs([resource])[resource].result(30)


def configs(servers: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = outside.admin(servers)
    found = client.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in found.items()}


def test_configurations_follow(world: Stage, topic: str) -> None:
    source, destination = world.source.bootstrap_servers, world.destination.bootstrap_servers
    outside.make_topic(source, topic, 1, {"retention.ms": "100000000"})
    world.add(topic, "everything")
    outside.await_state(world, topic, 0, "MIRRORING")
    assert configs(destination, topic)["retention.ms"] == "100000000"
    change(destination, topic, flush_ms="12345", min_insync_replicas="2", retention_ms="1000")
    change(source, topic, segment_ms="86400000", message_timestamp_type="LogAppendTime")
    default = configs(source, topic)["flush.ms"]

    def followed() -> bool:
        found = configs(destination, topic)
        return (found["segment.ms"], found["retention.ms"], found["flush.ms"]) == (
            "86400000",
            "100000000",
            default,
        )

    until(followed, 60, "the configurations")
    found = configs(destination, topic)
    assert found["message.timestamp.type"] == "CreateTime", "identical timestamps need it"
    assert found["min.insync.replicas"] == "2", "excluded by default"
    change(destination, topic, min_insync_replicas="1")
    outside.write(source, topic, outside.simple(20))
    world.await_no_lag(60, [topic])
    assert world.verify("--topic", topic).status == 0
