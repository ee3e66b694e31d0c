"""What a takeover makes of answers that are incomplete, or missing, without brokers.

Where flows begin is in tests/lifecycle/test_flow_takeover.py, on real brokers.
"""

import asyncio
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.lifecycle.flow_takeover import FlowTakeover, TakenOver
from twinlog.lifecycle.remote_ends import RemoteEnds, RemoteLogs
from twinlog.lifecycle.worker_records import WorkerRecords
from twinlog.mirror.flow import connect_worker_of, flow_of, flow_properties

LATEST: dict[str, Any] = {"consumer.auto.offset.reset": "latest"}


def topic(name: str, partitions: int) -> Topic:
    """A topic as metadata shows it."""
    shown = cast("Partition", None)
    return Topic(name, UUID(int=1), False, dict.fromkeys(range(partitions), shown))


def test_a_remote_partition_that_is_not_shown_any_more_is_no_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a broker that is cut off does not make a copied partition begin as usual."""

    class Logs:
        async def refresh(self, names: list[str]) -> Any:
            return SimpleNamespace(topics={name: topic(name, 1) for name in names})

        async def bounds(self, names: list[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
            return dict.fromkeys(names, LogBounds(0, 0, 0, 0))

    async def log_ends(_: object, names: Mapping[TopicPartition, object]) -> Any:
        return dict.fromkeys(names, 0)

    monkeypatch.setattr(RemoteLogs, "log_ends", log_ends)
    remote = RemoteLogs(cast("KafkaCluster", None), cast("ClusterLogs", Logs()))
    with pytest.raises(Retriable, match="does not show a partition") as unseen:
        asyncio.run(remote.ends(topic("t", 2), topic("a.t", 2)))
    assert unseen.value.partition == 1
    ends = asyncio.run(remote.ends(topic("t", 2), topic("a.t", 1)))
    assert ends.empty == {TopicPartition("t", 0)}, "the flow has created the other one"


class Answers:
    """What the clusters answer: offsets that are recorded, and ends of remote partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: dict[TopicPartition, int] = {}
        self.refusal: UserError | None = None
        self.ends: dict[int, int] = {}

        async def copied(_: object) -> Mapping[TopicPartition, int]:
            if self.refusal is not None:
                raise self.refusal
            return self.recorded

        async def stopped(_: object) -> None:
            pass

        async def ends(_: object, source: Topic, remote: Topic | None) -> RemoteEnds:
            partitions = {TopicPartition(source.name, index) for index in source.partitions}
            if remote is None:
                return RemoteEnds(None, {}, partitions, {}, {})
            shown = {one for one in partitions if one.partition in self.ends}
            names = {one: TopicPartition(remote.name, one.partition) for one in shown}
            log_ends = {name: self.ends[name.partition] for name in names.values()}
            filled = {one: name for one, name in names.items() if log_ends[name]}
            bounds = {name: LogBounds(0, 0, end, end) for name, end in log_ends.items()}
            return RemoteEnds(remote.name, filled, shown - filled.keys(), bounds, log_ends)

        monkeypatch.setattr(WorkerRecords, "copied", copied)
        monkeypatch.setattr(WorkerRecords, "require_stopped", stopped)
        monkeypatch.setattr(RemoteLogs, "ends", ends)

    def takeover(self, mode: str, settings: Mapping[str, str]) -> FlowTakeover:
        values = {"enabled": "true", "twinlog.takeover": mode, **settings}
        properties = flow_properties(values, "a", "b")
        cluster = cast("KafkaCluster", None)
        flow, worker = flow_of(properties), connect_worker_of(properties)
        return FlowTakeover(cluster, cluster, flow, worker, routes=False)

    def begins(
        self, mode: str, partitions: int = 1, *, remote: bool = True, **settings: str
    ) -> list[TakenOver]:
        """Where a topic begins of which the source shows this many partitions."""
        target = topic("a.t", len(self.ends)) if remote else None
        takeover = self.takeover(mode, settings)
        return asyncio.run(takeover.begins(topic("t", partitions), target))

    def check(self, mode: str, **settings: str) -> None:
        """Whether a flow may begin with the topic."""
        both = topic("t", 1), topic("a.t", len(self.ends))
        takeover = self.takeover(mode, settings)
        asyncio.run(takeover.check({"t": both[0]}, {"t": both[1]}))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


@pytest.mark.parametrize(("end", "settings"), [(60, {}), (0, LATEST)])
def test_what_was_recorded_may_not_be_read(
    answers: Answers, end: int, settings: Mapping[str, Any]
) -> None:
    """Goal: a missing right does not switch `refuse` off."""
    answers.ends[0] = end
    answers.refusal = UserError("no right", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    text = "whether MirrorMaker 2 has copied t is not known: no right"
    with pytest.raises(UserError, match=text) as caught:
        answers.begins("refuse", **settings)
    assert "set twinlog.takeover=ignore" in caught.value.hint
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=text):
        answers.check("refuse", **settings)
    assert answers.begins("ignore", **settings) == []
    answers.check("ignore", **settings)


def test_an_empty_remote_topic_of_a_flow_that_begins_at_the_beginning(answers: Answers) -> None:
    """Goal: what it does not need, it does not read."""
    answers.ends[0] = 0
    answers.refusal = UserError("no right")
    assert answers.begins("refuse") == []
    answers.check("refuse")


def test_without_a_remote_topic_no_right_is_needed(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: who never had MirrorMaker 2, which creates it, needs no right to its topics."""
    answers.refusal = UserError("no right")
    with caplog.at_level(logging.WARNING):
        assert answers.begins("refuse", remote=False, **LATEST) == []
    assert "whether MirrorMaker 2 has copied t is not known: no right" in caplog.text


@pytest.mark.parametrize("settings", [LATEST, {}])
@pytest.mark.parametrize("mode", ["compare", "recorded", "refuse"])
def test_a_copied_partition_that_an_answer_leaves_out(
    answers: Answers, mode: str, settings: Mapping[str, Any]
) -> None:
    """Goal: it is not added later as one that nobody has copied."""
    answers.recorded = {
        TopicPartition("t", 1): 40,
        TopicPartition("other", 7): 40,
    }
    answers.ends = {0: 60, 1: 60}
    with pytest.raises(Retriable, match="copied t-1 up to offset 40, and the source does not"):
        answers.begins(mode, 1, **settings)
    answers.ends = {0: 60}
    with pytest.raises(Retriable, match="copied t-1 up to offset 40, and the target does not"):
        answers.begins(mode, 2, **settings)
    assert answers.begins("ignore", 1, **settings) == []
    del answers.recorded[TopicPartition("t", 1)]
    assert answers.begins("refuse", 1, **settings) == []
