"""Positions on a broker that forgets offsets after a minute."""

import asyncio
import random
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client
from sole_owner import owned_for_good
from stored_beginnings import MemoryBeginnings

from twinlog.engines.base import LaneContext
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional import kept_positions
from twinlog.engines.transactional.positions import position_group
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.errors import Retriable
from twinlog.kafka.groups.offsets import committed_offsets
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_log import create_offsets_topic
from twinlog.store.offset_records import Route

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

DEADLINE_S = 400.0


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[LocalCluster]:
    """Start a broker with the shortest possible retention of offsets."""
    with LocalCluster.start(
        directory=tmp_path / "forgetful",
        config={"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"},
        jvm_flags=SHORT_LIVED,
    ) as cluster:
        yield cluster


@pytest.mark.long
def test_a_position_that_is_located_again_and_again_is_not_forgotten(
    forgetful: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a partition that stays FAILED keeps its position; one that rests loses it."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 5.0)
    monkeypatch.setattr(kept_positions, "KEEP_S", 10.0)
    remotes = {name: TopicPartition(f"A.{name}", 0) for name in ("failed", "paused")}
    for remote in remotes.values():
        librdkafka_tools.make_topic(forgetful.bootstrap_servers, remote.topic)
    names = {topic: MirrorPartition("A-to-B", topic, 0) for topic in remotes}
    to_begin = {
        names[topic]: ToBegin(Route(UUID(int=1), remote.topic, None), Offset(7))
        for topic, remote in remotes.items()
    }

    async def run() -> None:
        async with client(forgetful) as cluster:
            await create_offsets_topic(cluster, 1)
            lane = LaneContext(
                destination=cluster,
                settings=LaneSettings(),
                id_prefix="lanes",
                may_write=lambda: True,
                confirm_ownership=owned_for_good,
                random=random.Random(1),
            )
            owner = TransactionalWriters(0, lane, KafkaDestination(cluster, lambda: True))
            await owner.open(MemoryBeginnings())
            group = position_group("lanes", "A-to-B")

            async def located(*topics: str) -> Mapping[str, TransactionalQueue | NotLocated]:
                """Locate them, when the markers of the transaction before are written."""
                while True:
                    try:
                        wanted = {names[topic]: to_begin[names[topic]] for topic in topics}
                        results = await owner.locate("A-to-B", wanted)
                    except Retriable:
                        await asyncio.sleep(0.1)
                    else:
                        return {topic: results[names[topic]] for topic in topics}

            async def committed() -> Collection[TopicPartition]:
                while True:
                    try:
                        return await committed_offsets(
                            cluster, group, stable=True, partitions=list(remotes.values())
                        )
                    except Retriable:
                        await asyncio.sleep(0.1)

            async with asyncio.timeout(DEADLINE_S):
                await located(*remotes)
                assert {*await committed()} == {*remotes.values()}
                while remotes["paused"] in await committed():
                    queue = (await located("failed"))["failed"]
                    assert isinstance(queue, TransactionalQueue)
                    assert queue.position == 7
                    await asyncio.sleep(2)
                results = await located(*remotes)
            kept, forgotten = results["failed"], results["paused"]
            assert isinstance(kept, TransactionalQueue)
            assert kept.position == 7
            assert isinstance(forgotten, NotLocated)
            assert "the position is lost" in forgotten.reason

    asyncio.run(run())
