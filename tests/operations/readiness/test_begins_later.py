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
from twinlog.operations.readiness.begins_later import (
    SLACK_MS,
    Below,
    Front,
    begins_later,
    kept_since,
    may_lack,
)
from twinlog.operations.readiness.facts import SourceLog

A = TopicPartition("t", 0)
COPY = TopicPartition("a.t", 0)
NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000
YOUNG = NOW - 1000
"""The timestamp of the source's first record that is not expired."""


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
        self.first_copy: ListedOffset | Refusal = ListedOffset(-1, -1, -1)
        self.asked: list[Mapping[TopicPartition, int]] = []
        monkeypatch.setattr(module, "source_configs", self.source_configs)
        monkeypatch.setattr(module, "list_offsets", self.list_offsets)

    async def source_configs(self, _: Any, names: list[str]) -> Any:
        return dict.fromkeys(names, self.configs)

    async def list_offsets(self, _: Any, timestamps: Mapping[TopicPartition, int]) -> Any:
        self.asked.append(timestamps)
        first = self.first
        original = first if isinstance(first, Refusal) else ListedOffset(first, YOUNG, -1)
        return {key: self.first_copy if key == COPY else original for key in timestamps}

    def find_in_front(self, start: int, end: int, log_start: int = 300) -> tuple[int, int] | None:
        cluster, log = cast(KafkaCluster, None), SourceLog(5, 100, 100)
        front = Front(COPY, log_start, start, end)
        return asyncio.run(may_lack(cluster, cluster, {A: log}, {A: front})).get(A)

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


@pytest.mark.parametrize(
    ("start", "end", "below"),
    [
        (0, 5, None),
        (0, 30, Below(5, 30)),
        (10, 30, Below(10, 30)),
        (30, 30, None),
        (0, 200, Below(5, 100)),
    ],
)
def test_copies_without_a_place_may_be_deleted_if_the_source_keeps_all(
    world: World, start: int, end: int, below: Below | None
) -> None:
    """Goal: without a retention time, whatever the destination has deleted is missing."""
    assert world.find_in_front(start, end) == below
    assert not world.asked


@pytest.mark.parametrize(
    ("first", "copy", "below"),
    [
        (20, ListedOffset(310, YOUNG, -1), None),
        (20, ListedOffset(300, YOUNG, -1), Below(20, 30)),  # others of this time may be gone
        (20, ListedOffset(310, YOUNG + 1, -1), Below(20, 30)),
        (20, ListedOffset(-1, -1, -1), Below(20, 30)),
        (20, Refusal(6), Below(20, 30)),
        (30, ListedOffset(310, YOUNG + 1, -1), None),
        (-1, ListedOffset(310, YOUNG + 1, -1), None),
        (Refusal(6), ListedOffset(310, YOUNG, -1), Below(5, 30)),
    ],
)
def test_only_expired_copies_are_deleted_if_a_log_begins_with_one(
    world: World, first: int | Refusal, copy: ListedOffset | Refusal, below: Below | None
) -> None:
    """Goal: ordinary retention on both sides is no finding; what is not proved is one."""
    world.configs, world.first, world.first_copy = configs(ms=DAY), first, copy
    assert world.find_in_front(0, 30) == below


def test_retention_by_size_gives_no_doubt(world: World) -> None:
    world.configs = configs(size=1 << 30)
    assert world.find_in_front(0, 30) is None
