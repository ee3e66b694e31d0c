"""What a takeover makes of answers that are incomplete, or missing, without brokers.

Where flows begin is in tests/lifecycle/test_flow_takeover.py, on real brokers.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.remote_ends import RemoteEnds, RemoteLogs
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.lifecycle.worker_records import Recorded, WorkerRecords
from twinlog.mirror.connect_offsets import CONNECTOR
from twinlog.mirror.flow import connect_worker_of, flow_of, flow_properties

ONE = TopicPartition("t", 0)
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
        self.connector = CONNECTOR
        self.refusal: TwinlogError | None = None
        self.running: UserError | None = None
        self.ends: dict[int, int] = {}
        self.source = LogBounds(0, 5, 100, 100)
        self.synced: Offset | None = None
        self.routes = False

        self.until_stopped: dict[TopicPartition, int] = {}
        read: dict[object, Sequence[Recorded]] = {}

        async def recorded(records: object) -> Sequence[Recorded]:
            if self.refusal is not None:
                raise self.refusal
            found = {one: {self.connector: at} for one, at in self.recorded.items()}
            return read.setdefault(records, [found])

        async def stopped(_: object) -> None:
            if self.running is not None:
                raise self.running
            self.recorded |= self.until_stopped

        async def source_bounds(
            _: object, __: Topic, partitions: Collection[TopicPartition]
        ) -> tuple[Mapping[TopicPartition, LogBounds], bool]:
            return dict.fromkeys(partitions, self.source), False

        async def synced(*_: object) -> Offset | None:
            return self.synced

        async def log_ends(_: object, before: Mapping[TopicPartition, int]) -> object:
            return before  # nothing is written meanwhile

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

        monkeypatch.setattr(FlowTakeover, "_source_bounds", source_bounds)
        monkeypatch.setattr(FlowTakeover, "_synced", synced)
        monkeypatch.setattr(WorkerRecords, "_read_recorded", recorded)
        monkeypatch.setattr(WorkerRecords, "require_stopped", stopped)
        monkeypatch.setattr(RemoteLogs, "ends", ends)
        monkeypatch.setattr(RemoteLogs, "log_ends", log_ends)

    def takeover(self, mode: str, settings: Mapping[str, str]) -> FlowTakeover:
        values = {"enabled": "true", "twinlog.takeover": mode, **settings}
        properties = flow_properties(values, "a", "b")
        cluster = cast("KafkaCluster", None)
        flow, worker = flow_of(properties), connect_worker_of(properties)
        return FlowTakeover(cluster, cluster, flow, worker, routes=self.routes, splits=False)

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


@pytest.mark.parametrize("remote", [True, False])
@pytest.mark.parametrize("settings", [LATEST, {}])
def test_recorded_begins_an_empty_partition_behind_the_recorded_offset(
    answers: Answers, settings: Mapping[str, Any], remote: bool
) -> None:
    """Goal: what was routed elsewhere, filtered, imported or begun at its end is not copied."""
    answers.ends = {0: 0, 1: 0}
    answers.recorded = {ONE: 40}
    [begun] = answers.begins("recorded", 2, remote=remote, **settings)
    assert (begun.source, begun.begin, begun.recorded, begun.is_usual) == (ONE, 41, 40, False)
    place = "a.t-0 is empty" if remote else "it has no remote topic"
    assert str(begun) == (
        f"t-0: begins at offset 41, MirrorMaker 2 has recorded offset 40; {place}, and [5, 41) of "
        "the source is not copied to it, as twinlog.takeover=recorded says"
    )
    assert begun.warns
    answers.recorded = {ONE: 2}  # the source has deleted all that was recorded
    [begun] = answers.begins("recorded", 2, remote=remote, **settings)
    assert (begun.begin, begun.warns) == (3, False)
    answers.recorded = {ONE: 100}
    with pytest.raises(UserError, match="the source ends at 100: the topic was recreated"):
        answers.begins("recorded", 2, remote=remote, **settings)
    answers.recorded = {}
    assert answers.begins("recorded", 2, remote=remote, **settings) == []


@pytest.mark.parametrize("settings", [LATEST, {}])
@pytest.mark.parametrize("mode", ["compare", "refuse"])
def test_an_empty_partition_that_is_copied_whole_is_named(
    answers: Answers, mode: str, settings: Mapping[str, Any]
) -> None:
    """Goal: nothing that is recorded as copied is copied again without a line."""
    answers.ends = {0: 0, 1: 0}
    answers.recorded = {ONE: 40}
    [begun] = answers.begins(mode, 2, **settings)
    assert begun.begin == 5
    assert begun.is_usual != bool(settings), "only a begin that is not usual is stored"
    assert str(begun) == (
        "t-0: begins at offset 5, MirrorMaker 2 has recorded offset 40; up to 36 records, [5, 41), "
        "may be copied twice: a.t-0 is empty, and they may have been deleted there, copied to "
        "another topic, or left out; twinlog.takeover=recorded begins at offset 41"
    )


@pytest.mark.parametrize("mode", ["compare", "refuse"])
def test_a_topic_that_was_recreated_with_fewer_partitions_is_added(
    answers: Answers, mode: str
) -> None:
    """Goal: nothing of it was copied, and a partition that is gone does not keep it out."""
    answers.ends = {0: 0}
    answers.recorded = {ONE: 40, TopicPartition("t", 1): 40}
    assert [one.begin for one in answers.begins(mode)] == [5]
    with pytest.raises(Retriable, match="does not show the partition"):
        answers.begins("recorded")


def test_a_remote_topic_that_does_not_exist(answers: Answers) -> None:
    """Goal: a takeover names it; without one, nothing is read for a topic that is new there."""
    answers.recorded = {ONE: 40}
    [begun] = answers.begins("compare", remote=False)
    assert "it has no remote topic" in str(begun)
    answers.refusal = UserError("no right")
    assert answers.begins("refuse", remote=False) == []


@pytest.mark.parametrize("error", [UserError("no right"), Retriable("no answer")])
def test_what_only_a_line_needs_keeps_no_topic_out(
    answers: Answers, caplog: pytest.LogCaptureFixture, error: TwinlogError
) -> None:
    """Goal: only `recorded`, which begins behind the offset, fails where that is not known."""
    answers.ends = {0: 0}
    answers.refusal = error
    with caplog.at_level(logging.INFO):
        assert [answers.begins(mode) for mode in ("refuse", "compare")] == [[], []]
    assert caplog.text.count(f"has copied t is not known: {error}") == 2
    with pytest.raises(type(error)):
        answers.begins("recorded")


@pytest.mark.parametrize("mode", ["compare", "recorded"])
def test_mirror_maker_runs_beside_a_flow(answers: Answers, mode: str) -> None:
    """Goal: it may copy other topics meanwhile, and not one that the flow begins behind it."""
    answers.ends = {0: 0}
    answers.running = UserError("MirrorMaker 2 is running")
    answers.recorded = {TopicPartition("other", 0): 40}
    assert answers.begins(mode) == []
    answers.recorded = {ONE: 40}
    with pytest.raises(UserError, match="is running"):
        answers.begins(mode)


def test_what_mirror_maker_records_until_it_has_stopped_counts(answers: Answers) -> None:
    """Goal: what it has copied while the takeover waits for its end is not copied again."""
    answers.ends = {0: 0}
    answers.recorded = {ONE: 40}
    answers.until_stopped = {ONE: 60}
    assert answers.begins("recorded")[0].begin == 61


def test_a_copied_partition_beside_empty_ones_that_an_answer_leaves_out(answers: Answers) -> None:
    """Goal: with `recorded`, it is not added later as one that nobody has copied."""
    answers.recorded = {TopicPartition("t", 1): 40}
    answers.ends = {0: 0, 1: 0}
    with pytest.raises(Retriable, match="copied t-1 up to offset 40, and the source does not"):
        answers.begins("recorded", 1)


@pytest.mark.parametrize("settings", [LATEST, {}])
def test_an_offset_of_another_connector_is_not_believed(
    answers: Answers, settings: Mapping[str, Any]
) -> None:
    """Goal: what it has copied to another topic is not missing in this one."""
    answers.ends = {0: 0}
    answers.recorded = {ONE: 40}
    answers.connector = "A->C"
    [begun] = answers.begins("recorded", **settings)
    assert begun.begin == 5
    assert str(begun).endswith("a.t-0 is empty, and only other connectors have recorded it")


@pytest.mark.parametrize("settings", [LATEST, {}])
@pytest.mark.parametrize(("end", "routes"), [(20, False), (20, True), (0, True)])
def test_an_offset_of_another_connector_is_not_believed_where_copies_are(
    answers: Answers, settings: Mapping[str, Any], end: int, routes: bool
) -> None:
    """Goal: nothing is left out that MirrorMaker 2, killed before it recorded, has not copied.

    And nothing is copied twice, if one of the connectors is MirrorMaker 2's. Nor where its
    transforms have routed the copies to another topic.
    """
    answers.ends, answers.routes = {0: end}, routes
    answers.recorded = {ONE: 40}
    answers.connector = "A->C"
    refused = r"of t-0, only other connectors have recorded an offset \(40\), which may be"
    with pytest.raises(UserError, match=refused) as caught:
        answers.begins("recorded", **settings)
    assert "set twinlog.takeover.connector to its name" in (caught.value.hint or "")
    answers.recorded = {ONE: 100}  # not in the source: of whatever the other one copies
    with pytest.raises(UserError, match=r"only other connectors have recorded an offset \(100\)"):
        answers.begins("recorded", **settings)
    answers.synced = Offset(9)
    [begun] = answers.begins("recorded", **settings)
    assert (begun.begin, begun.recorded, begun.reason) == (10, 9, "nothing was compared")


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
