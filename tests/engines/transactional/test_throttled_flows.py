"""A flow in transactions to a broker whose quota makes transactions outlast their timeout."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer
from flow_assignment import ASSIGNMENT, IN_TRANSACTIONS
from remote_topics import raw_records
from sole_owner import owned_for_good
from stored_beginnings import MemoryBeginnings
from unusual_sources import set_quota
from waiting import SECONDS, until_async

from twinlog.engines.base import LaneContext, PartitionProgress
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional.engine import TransactionalEngine
from twinlog.engines.transactional.transactions import TargetTransactions
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store.offset_log import create_offsets_topic

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

TIMEOUT_MS = 4000
RECORDS = 500
RATE = 15_000.0
"""Bytes per second: one transaction with all records would take half a minute."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalCluster]:
    """Start a broker that ends late transactions soon, and has a short window for quotas."""
    config = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "quota.window.num": "3",
    }
    with LocalCluster.start(
        directory=tmp_path / "slow", config=config, jvm_flags=SHORT_LIVED
    ) as cluster:
        yield cluster


def write(cluster: LocalCluster, topic: str) -> list[bytes]:
    """Write batches of one record with two codecs in turn, which are not merged; their values."""
    chance = random.Random(1)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0}
    producers = [
        Producer({**settings, "client.id": "writer", "compression.type": codec})
        for codec in ("none", "gzip")
    ]
    values = [b"%d " % number + chance.randbytes(500) + bytes(500) for number in range(RECORDS)]
    for number, value in enumerate(values):
        producers[number % 2].produce(topic, value, partition=0)
        assert producers[number % 2].flush(120) == 0
    return values


@pytest.mark.long
@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_flow_that_a_quota_slows_down_makes_progress(
    broker: LocalCluster, topic: str, *, is_mapped: bool
) -> None:
    """Goal: each record once, though no transaction of the usual size ends before its timeout."""
    remote = f"a.{topic}"
    for name in (topic, remote):
        librdkafka_tools.make_topic(broker.bootstrap_servers, name)
    values = write(broker, topic)
    set_quota(broker, {"producer_byte_rate": RATE}, "slow")
    rows: list[PartitionProgress] = []
    reasons = set[str | None]()

    async def run() -> None:
        async with client(broker, client_id="slow") as target, client(broker) as source:
            await create_offsets_topic(target, 1)
            topics = (await source.refresh([topic])).topics
            lane = LaneContext(
                destination=target,
                settings=LaneSettings(),
                id_prefix="lanes",
                may_write=lambda: True,
                confirm_ownership=owned_for_good,
                random=random.Random(1),
            )
            port = KafkaDestination(target, lane.may_write)
            writers = TransactionalWriters(0, lane, port)
            writers._transactions = TargetTransactions(
                target, "lanes.0.transactions", writers._permit, timeout_ms=TIMEOUT_MS
            )
            await writers.open(MemoryBeginnings())
            engine = TransactionalEngine(
                "flow", lane, KafkaSource(source), port, observe=lambda _, row: rows.append(row)
            )
            wants_map = {"mirror.flow.twinlog.offset.map": "true"} if is_mapped else {}
            engine.configure({**IN_TRANSACTIONS, **wants_map})
            name = MirrorPartition("flow", topic, 0)
            assignment = replace(
                ASSIGNMENT,
                name=name,
                source=TopicPartition(topic, 0),
                destination=TopicPartition(remote, 0),
                source_topic_id=topics[topic].topic_id,
            )
            engine.start(writers, [assignment], lease_s=0.0)
            running = asyncio.create_task(engine.run())
            ends = set[int]()

            async def progress() -> bool:
                assert not running.done()
                (row,) = engine.progress()
                reasons.add(row.held_back)
                assert row.state is not State.FAILED
                ends.add(row.mirrored_end)
                return len(ends - {-1, 0}) >= 3

            try:
                await until_async(progress, SECONDS, what="three transactions")
                assert max(ends) < RECORDS
                await asyncio.to_thread(set_quota, broker, {"producer_byte_rate": 0.0}, "slow")

                async def copied() -> bool:
                    (row,) = engine.progress()
                    return row.mirrored_end == RECORDS and row.held_back is None

                await until_async(copied, SECONDS, what="all records")
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    asyncio.run(run())
    assert [value for _, value in raw_records(broker, remote)] == values
    assert any(one is not None and f"timeout.ms is {TIMEOUT_MS}" in one for one in reasons)
    assert all(row.state is not State.FAILED for row in rows)
