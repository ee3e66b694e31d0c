"""The age of what the control topics report; with brokers: test_survey.py."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.translation import Translation
from twinlog.operations.describe import MirrorDescription, PartitionDescription, TopicDescription
from twinlog.operations.readiness.subject import (
    Subject,
    source_age_ms,
    status_age_ms,
)
from twinlog.store.status_records import Status
from twinlog.store.statuses import Reports

NOW_MS = 1_700_000_000_000


def subject(*partitions: PartitionDescription, ages: dict[str, float]) -> Subject:
    """Return a subject of these partitions; their lanes' statuses have these ages in seconds."""
    statuses = {
        number: Status(
            state_partition=number,
            lane=one.lane or "",
            node="",
            time_ms=one.status_time_ms or 0,
            partitions=(),
        )
        for number, one in enumerate(partitions)
    }
    nothing: Any = None
    topic = TopicDescription(
        destination_topic="t",
        topic="t",
        source_topic_id=nothing,
        wanted=nothing,
        partitions=partitions,
    )
    described = MirrorDescription(
        mirror="m",
        source_bootstrap="",
        source_cluster_id="",
        topic_patterns=(),
        replication_factor=None,
        topics=(topic,),
        not_mirrored=nothing,
    )
    return Subject(
        mirror=nothing,
        topics=(),
        described=described,
        node_runs=True,
        snapshot=nothing,
        states=nothing,
        reports=Reports(statuses=statuses, ages={n: ages[one.lane] for n, one in statuses.items()}),
        expression="",
        read_at=time.monotonic() - 2.0,
    )


def row(lane: str, heard_s: float | None, *, ahead_s: float = 0.0, fresh: bool = True) -> Any:
    """Return a partition; its lane heard from the source this many seconds before its status."""
    at = NOW_MS + int(ahead_s * 1000)
    return PartitionDescription(
        partition=0,
        state=cast(Any, None),
        lane=lane,
        status_time_ms=at,
        source_time_ms=None if heard_s is None else at - int(heard_s * 1000),
        fresh=fresh,
    )


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_the_source_age_ignores_a_wrong_lane_clock(ahead_s: float) -> None:
    """The status was seen to change, so its age is known despite the lane's wrong clock: 2 s."""
    found = subject(row("a", 40.0, ahead_s=ahead_s), ages={"a": 0.0})
    assert source_age_ms(found) == pytest.approx(42_000, abs=1000)
    assert status_age_ms(found) == pytest.approx(2_000, abs=1000)


def test_the_source_age_is_that_of_the_stalest_partition() -> None:
    """The stalest partition counts, without stale statuses and sources that never answered."""
    found = subject(
        row("a", 5.0),
        row("b", 8.0),
        row("c", 500.0, fresh=False),
        row("d", None),
        ages={"a": 10.0, "b": 1.0, "c": 1.0, "d": 12.0},
    )
    assert source_age_ms(found) == pytest.approx(17_000, abs=1000)
    assert status_age_ms(found) == pytest.approx(14_000, abs=1000)
    assert source_age_ms(subject(row("d", None), ages={"d": 1.0})) is None


def test_a_clock_that_is_ahead_does_not_reduce_the_age() -> None:
    found = subject(row("a", 5.0), ages={"a": -10.0})
    assert source_age_ms(found) == pytest.approx(7_000, abs=1000)


def test_shared_partitions_count_under_a_selected_topic() -> None:
    """Goal: a group's facts are shown, also if the topic as which they count was not selected."""
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    names = dict.fromkeys((a, b), TopicPartition("all", 0))
    read = Translation(names).with_shared({}, names, ())
    nothing: Any = None
    topic: Any = SimpleNamespace(topic="b", partitions=1)
    found = replace(
        subject(ages={}),
        topics=(topic,),
        translation=read.of_topics({"b"}),
        of_groups=read.of_topics({"b"}).joined(),
        mirror=nothing,
    )
    assert found.group_partitions == [a]
    assert found.by_selected_topic({"a": (1,), "b": (2,), "c": (3,)}) == {"b": (1, 2), "c": (3,)}
