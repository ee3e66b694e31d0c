"""Twin of twinlog.runtime.status_writer: which statuses are written, and when."""

import asyncio
import random
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest
from sole_owner import owned_for_good

from twinlog.engines.base import Assignment
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.events import LOOK, Failure
from twinlog.engines.exact.shard import Shard
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime import status_writer
from twinlog.runtime.status_writer import AGAIN_S, Reporter
from twinlog.store.state_records import PartitionState
from twinlog.store.topic_writer import Entry

KEYS = [TopicPartition("t", index) for index in range(3)]


def test_a_status_is_written_on_change_and_periodically(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two shards, the second with two partitions; a partition that is gone is news, too."""
    written: list[int] = []
    now = 100.0

    async def append(_: KafkaCluster, entries: Sequence[Entry]) -> dict[TopicPartition, int]:
        written.extend(entry.partition for entry in entries)
        return {}

    monkeypatch.setattr(status_writer, "append", append)
    monkeypatch.setattr("time.monotonic", lambda: now)

    async def body() -> None:
        nonlocal now
        engine = ExactEngine(
            "m",
            lambda *_: None,
            source=cast("SourcePort", None),
            destination=cast("DestinationPort", None),
            settings=LaneSettings(),
            random=random.Random(1),
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        plane, names = engine.plane, [MirrorPartition("m", *key) for key in KEYS]
        for name, number in zip(names, (0, 1, 1), strict=True):
            key = name.source
            assignment = Assignment(
                name=name,
                source=key,
                destination=key,
                source_topic_id=UUID(int=1),
                destination_topic_id=None,
                state_partition=number,
                compacted=False,
            )
            writers = ExactWriters(Shard(number, "p", plane.destination, LaneSettings()))
            engine.start(writers, [assignment], lease_s=0.0)
        reporter = Reporter(cast("KafkaCluster", None), "node", "lane", 1)
        stops: list[PartitionState] = []

        async def wrote() -> list[int]:
            written.clear()
            reporter.changed |= engine.take_news()
            await reporter.write({"m": engine}, {0: [], 1: stops})
            return sorted(written)

        assert await wrote() == [0, 1]
        assert await wrote() == []
        plane.emit(plane.partitions[KEYS[1]], LOOK)
        assert await wrote() == [], "it looks as it did"
        plane.emit(plane.partitions[KEYS[1]], Failure("a reason"))
        assert await wrote() == [1]
        now += AGAIN_S
        assert await wrote() == [0, 1]
        await engine.stop([names[2]])
        assert await wrote() == [1]
        await engine.stop([names[0]])
        assert await wrote() == []
        now += AGAIN_S
        assert await wrote() == [1]
        await engine.stop([names[1]])
        assert await wrote() == []
        stops.append(PartitionState(names[1], State.STOPPING, "it is refused"))
        assert await wrote() == [1], "its owner is at work on it"
        assert await wrote() == []
        now += AGAIN_S
        assert await wrote() == [1]
        stops.clear()
        assert await wrote() == []

    asyncio.run(body())
