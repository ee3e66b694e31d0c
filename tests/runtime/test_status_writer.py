"""Twin of twinlog.runtime.status_writer: which statuses are written, and when."""

import asyncio
import random
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest

from twinlog.engines.exact.engine import Engine
from twinlog.engines.exact.partition import PartitionSpec
from twinlog.engines.exact.ports import DestinationPort, SourcePort
from twinlog.engines.exact.settings import LaneSettings
from twinlog.engines.exact.shard import Shard
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition as Name
from twinlog.mirror.states import State
from twinlog.runtime import status_writer as reporting
from twinlog.runtime.status_writer import AGAIN_S, Reporter
from twinlog.store.state_records import PartitionState
from twinlog.store.topic_writer import Entry

KEYS = [TopicPartition("t", index) for index in range(3)]


def test_a_status_is_written_when_there_is_news_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two shards, the second with two partitions; a partition that is gone is news, too."""
    written: list[int] = []
    now = 100.0

    async def append(_: KafkaCluster, entries: Sequence[Entry]) -> dict[TopicPartition, int]:
        written.extend(entry.partition for entry in entries)
        return {}

    monkeypatch.setattr(reporting, "append", append)
    monkeypatch.setattr("time.monotonic", lambda: now)

    async def body() -> None:
        nonlocal now
        nothing = cast("SourcePort", None), cast("DestinationPort", None)
        engine = Engine(
            *nothing, LaneSettings(), random.Random(1), lambda _: None, brokers_time_ms=lambda: 0
        )
        for key, number in zip(KEYS, (0, 1, 1), strict=True):
            spec = PartitionSpec(
                partition=key, source_topic_id=UUID(int=1), shard=number, compacted=False
            )
            shard = Shard(number, "p", engine.destination, LaneSettings())
            engine.own(shard, [spec], lease_s=0.0)
        reporter = Reporter(cast("KafkaCluster", None), "node", "lane", 1)
        stops: list[PartitionState] = []

        async def wrote() -> list[int]:
            written.clear()
            await reporter.write({"m": engine}, {0: [], 1: stops})
            return sorted(written)

        assert await wrote() == [0, 1]
        assert await wrote() == []
        engine.advance(engine.partitions[KEYS[1]])
        assert await wrote() == [], "it looks as it did"
        engine.fail(engine.partitions[KEYS[1]], "a reason")
        assert await wrote() == [1]
        now += AGAIN_S
        assert await wrote() == [0, 1]
        await engine.disown([KEYS[2]])
        assert await wrote() == [1]
        await engine.disown([KEYS[0]])
        assert await wrote() == []
        now += AGAIN_S
        assert await wrote() == [1]
        await engine.disown([KEYS[1]])
        assert await wrote() == []
        stops.append(PartitionState(Name("m", *KEYS[1]), State.STOPPING, "it is refused"))
        assert await wrote() == [1], "its owner is at work on it"
        assert await wrote() == []
        now += AGAIN_S
        assert await wrote() == [1]
        stops.clear()
        assert await wrote() == []

    asyncio.run(body())
