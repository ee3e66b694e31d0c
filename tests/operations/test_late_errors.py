"""An error of one comparison leaves what the others of `verify` have shown."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.operations import verification
from twinlog.verify import flow_job, query_job, query_worker
from twinlog.verify.flow_job import flow_task
from twinlog.verify.flow_targets import EMPTY, DatedTarget, FoundTopics, NeighbourRecords
from twinlog.verify.flow_task import FlowClaim, FlowCompared, FlowPair, FlowTask
from twinlog.verify.job import Sides
from twinlog.verify.query_job import QuerySource, QueryTask
from twinlog.verify.transformed_log import TransformSettings
from twinlog.verify.verdict import DifferenceKind

PAIR = FlowPair("a-to-b", TopicPartition("t", 0), TopicPartition("a.t", 0))
FULL = LogBounds(0, 0, 5, 5)
TASK = FlowTask(
    source={},
    destination={},
    cluster_ids=Sides("s", "d"),
    topic_ids=Sides(UUID(int=1), UUID(int=2)),
    pair=PAIR,
    bounds=Sides(FULL, FULL),
    claim=FlowClaim(),
    transforms=TransformSettings(values={}, topic="a.t"),
    finds_topics=True,
)
QUERY = QueryTask(
    flow="a-to-b",
    source={},
    destination={},
    cluster_ids=Sides("s", "d"),
    transform=DataFrameTransform(sql="SELECT record FROM records"),
    sources=(QuerySource(pair=PAIR, topic_ids=TASK.topic_ids, claim=FlowClaim()),),
    patience=1.0,
)


async def differing(_clusters: object, task: FlowTask) -> FlowCompared:
    """Of the first day nothing is read; elsewhere a record is lost."""
    if task.pair.remote.topic == "day-1":
        raise Retriable("the broker is gone")
    result = FlowCompared(pair=task.pair)
    result.source.differ(3, 4, DifferenceKind.LOST)
    return result


async def nothing(*_: object) -> None:
    """Nothing is wrong."""


@asynccontextmanager
async def clusters(*_: object) -> AsyncIterator[Sides[None]]:
    yield Sides(None, None)


@pytest.fixture(autouse=True)
def without_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("client_configs", lambda *_: Sides(None, None)),
        ("checked_clusters", clusters),
        ("compare_flow", differing),
        ("check_topic", nothing),
    ):
        monkeypatch.setattr(flow_job, name, value)


def shown(results: Sequence[FlowCompared]) -> dict[str, tuple[int, list[str]]]:
    """How many offsets differ, and what was not seen, by topic of the target."""
    return {
        each.pair.remote.topic: (each.source.differs, [str(one[2]) for one in each.source.unseen])
        for each in results
    }


def test_a_dated_topic_that_cannot_be_read_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topics(*_: object) -> FoundTopics:
        return FoundTopics({"day-1", "day-2"}, "source offset 7: no answer")

    async def targets(*_: object, **__: object) -> list[DatedTarget]:
        places = [TopicPartition(name, 0) for name in ("day-1", "day-2")]
        return [
            DatedTarget(place, UUID(int=3), Sides(FULL, EMPTY), is_absent=False, trouble="")
            for place in places
        ]

    monkeypatch.setattr(flow_job, "dated_topics", topics)
    monkeypatch.setattr(flow_job, "dated_targets", targets)
    assert shown(flow_task(TASK)) == {
        "a.t": (1, ["topics that are named by time: source offset 7: no answer"]),
        "day-1": (0, ["the broker is gone"]),
        "day-2": (1, []),
    }


def test_dated_topics_that_cannot_be_found_leave_the_remote_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def topics(*_: object) -> set[str]:
        raise Retriable("the broker is gone")

    monkeypatch.setattr(flow_job, "dated_topics", topics)
    reason = "topics that are named by time: the broker is gone"
    assert shown(flow_task(TASK)) == {"a.t": (1, [reason])}


def test_a_query_pair_that_cannot_be_read_is_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frames: Any = None
    comparison = query_job._QueryComparison(Sides(None, None), QUERY, frames, tmp_path)  # type: ignore[arg-type]

    async def walked(*_: object) -> FlowCompared:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(comparison, "_walked", walked)
    monkeypatch.setattr(comparison, "_others", lambda *_: NeighbourRecords())
    result = asyncio.run(
        comparison._compared(QUERY.sources[0], PAIR, TASK.topic_ids, TASK.bounds, why="")
    )
    assert (result.source.not_seen, result.bounds) == (5, TASK.bounds)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), MemoryError(), ValueError("x")])
def test_any_error_of_a_flow_is_a_refusal(tmp_path: Path, error: Exception) -> None:
    class Session:
        def newSession(self) -> None:  # noqa: N802 - Spark's name
            raise error

    spark: Any = Session()
    answer = query_worker.answered(QUERY, spark, tmp_path)
    assert answer.refusal.startswith(f"the comparison has failed: {type(error).__name__}")
    assert not answer.results


def test_the_other_results_outlive_the_process_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_tasks: object) -> None:
        raise Retriable("the process has ended", hint="again")

    monkeypatch.setattr(verification, "_compare_queries", ended)
    answers = verification._answers([QUERY, QUERY])
    assert [each.refusal for each in answers] == ["the process has ended"] * 2
