"""Offsets that the destination has deleted and the source keeps; with brokers: test_survey.py."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import ListedOffset
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.operations.readiness import begins_later as module
from twinlog.operations.readiness.begins_later import SLACK_MS, Below, begins_later, kept_since
from twinlog.operations.readiness.facts import SourceLog

A = TopicPartition("t", 0)
NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000


def configs(policy: str = "delete", ms: int = -1, size: int = -1) -> dict[str, SourceConfig]:
    values = {"cleanup.policy": policy, "retention.ms": str(ms), "retention.bytes": str(size)}
    return {name: SourceConfig(value, explicit=False) for name, value in values.items()}


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (configs(), 0),
        (configs("compact", ms=DAY, size=1), 0),
        (configs("compact,delete", ms=DAY), NOW - DAY + SLACK_MS),
        (configs(ms=1000), NOW - 900),
        (configs(ms=0), NOW),
        (configs(ms=2 * NOW), 1),
        (configs(ms=DAY, size=1000), None),
        (Refusal(29), 0),
    ],
)
def test_the_retention_gives_the_oldest_kept_timestamp(
    found: dict[str, SourceConfig] | Refusal, since: int
) -> None:
    """A time keeps young records; no retention or an unreadable one keeps all; a size: unknown."""
    assert kept_since(found, NOW) == since


class World:
    """The source's configurations, and the first offset that is young enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs: dict[str, SourceConfig] | Refusal = configs()
        self.first: int | Refusal = 0
        self.asked: list[Mapping[TopicPartition, int]] = []
        monkeypatch.setattr(module, "source_configs", self.source_configs)
        monkeypatch.setattr(module, "list_offsets", self.list_offsets)

    async def source_configs(self, _: Any, names: list[str]) -> Any:
        return dict.fromkeys(names, self.configs)

    async def list_offsets(self, _: Any, timestamps: Mapping[TopicPartition, int]) -> Any:
        self.asked.append(timestamps)
        first = self.first
        return {
            timestamp: first if isinstance(first, Refusal) else ListedOffset(first, -1, -1)
            for timestamp in timestamps
        }

    def find(self, log: SourceLog, start: int | None) -> tuple[int, int] | None:
        source = cast(KafkaCluster, None)
        starts = {} if start is None else {A: start}
        return asyncio.run(begins_later(source, {A: log}, starts)).get(A)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize(
    ("start", "destination", "below"),
    [
        (0, 0, None),
        (40, 30, None),
        (0, 30, Below(0, 30)),
        (10, 30, Below(10, 30)),
        (0, 100, Below(0, 100)),
        (0, 200, Below(0, 100)),  # it has diverged; the source has nothing above its end
        (0, None, None),
        (None, 30, None),
    ],
)
def test_without_retention_all_missing_source_offsets_are_reported(
    world: World, start: int | None, destination: int | None, below: Below | None
) -> None:
    """The missing range is all that the source has below the destination's log start offset."""
    assert world.find(SourceLog(start, 100, 100), destination) == below
    assert not world.asked


@pytest.mark.parametrize(
    ("first", "below"),
    [
        (0, Below(10, 30)),
        (20, Below(20, 30)),
        (30, None),
        (50, None),
        (-1, None),
        (Refusal(6), Below(10, 30)),
    ],
)
def test_records_expired_on_the_source_are_not_counted(
    world: World, first: int | Refusal, below: Below | None
) -> None:
    """Expired records are not counted: each cluster deletes whole segments, cut elsewhere."""
    world.configs, world.first = configs(ms=DAY), first
    assert world.find(SourceLog(10, 100, 100), 30) == below
    assert len(world.asked) == 1


def test_retention_by_size_gives_no_missing_offsets(world: World) -> None:
    world.configs = configs(size=1 << 30)
    assert world.find(SourceLog(0, 100, 100), 30) is None
