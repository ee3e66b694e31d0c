"""Flows to topics whose limit of a batch is below the size of merged batches."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from flow_assignment import ASSIGNMENT
from lane_processes import lanes
from librdkafka_tools import admin
from stored_flows import store_flow
from transformed_flows import PARTITIONS, consumed, count, new_flow
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.translated.partitions import FlowPartition
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.settings import TRANSLATED

RECORDS = 4000
LIMIT = 12_000
"""Bytes of a batch; a merged one has up to 256 KiB."""


def test_each_refusal_halves_the_size_down_to_a_least_one() -> None:
    partition: FlowPartition[Any, Any] = FlowPartition(ASSIGNMENT, None, False, 0.0, 0.0)
    sizes = [partition.built_bytes]
    partition.note_too_large(260_000, 0.0)
    sizes.append(partition.built_bytes)
    assert sizes == [None, 130_000]
    partition.note_too_large(130_500, 0.0)
    assert partition.built_bytes == 65_000, "a batch may be a little larger than it was to be"
    partition.note_too_large(20_000, 0.0)
    assert partition.built_bytes == 10_000
    for _ in range(9):
        partition.note_too_large(9_000, 0.0)
    assert partition.built_bytes == 2048


def test_larger_batches_are_tried_again_after_a_while() -> None:
    """Goal: a limit that was raised is used again; one that was not costs few refusals."""
    partition: FlowPartition[Any, Any] = FlowPartition(ASSIGNMENT, None, False, 0.0, 0.0)
    partition.note_too_large(100_000, 0.0)
    found = [partition.may_build(262_144, 60.0 * minute) for minute in range(50)]
    assert found == [50_000] * 10 + [100_000] * 10 + [200_000] * 10 + [262_144] * 20
    partition.note_too_large(262_144, 3000.0)
    assert partition.may_build(262_144, 3599.0) == 131_072
    partition.note_too_large(131_072, 3599.0)
    assert partition.may_build(262_144, 4198.0) == 65_536


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_many_small_batches_are_copied_to_a_topic_with_a_small_limit(
    pair: Pair, tmp_path: Path, transactional: bool, codec: str
) -> None:
    """Goal: a flow that is behind is not refused for good; each record arrives once."""
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    if transactional:
        _, topic = new_flow(pair, {"transaction.producer": "true"})
    else:
        mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
        properties = {
            **flow_properties({"enabled": "true"}, "a", "b"),
            "bootstrap.servers": source,
            "mirror.kind": TRANSLATED,
        }
        asyncio.run(store_flow(pair, mirror, properties, (topic, f"a.{topic}"), PARTITIONS))
    remote = f"a.{topic}"
    limit(destination, remote)
    wanted: dict[int, list[bytes]] = {}
    producer = Producer(
        {
            "bootstrap.servers": source,
            "batch.num.messages": 1,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    for number in range(RECORDS):
        value = b"%d " % number + secrets.token_bytes(150)
        producer.produce(topic, value, partition=number % PARTITIONS)
        wanted.setdefault(number % PARTITIONS, []).append(value)
        producer.poll(0)
    assert producer.flush(180) == 0
    with lanes(destination, tmp_path) as running:
        running.start("node")
        until(
            lambda: count(destination, remote) >= RECORDS,
            SECONDS,
            f"{RECORDS} records",
        )
        copied = consumed(destination, remote)
        assert {one: [value for value, _ in copied[one]] for one in copied} == wanted


def limit(servers: str, topic: str) -> None:
    """Set the topic's `max.message.bytes`."""
    entry = ConfigEntry(
        "max.message.bytes", str(LIMIT), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(servers)
    client.incremental_alter_configs([resource])[resource].result(SECONDS)
