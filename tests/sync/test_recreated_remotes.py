"""When the new id of a remote topic that was recreated is stored; brokers in memory."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync import recreated_remotes
from twinlog.sync.base import run_sync
from twinlog.sync.recreated_remotes import AGREED_S, RecreatedRemotes

FORMER, OLDER, NEW, LATER = (UUID(int=at) for at in range(1, 5))
TOPIC = MirrorTopic(
    mirror="m",
    topic="t",
    topic_id=UUID(int=9),
    partitions=2,
    destination_topic="a.t",
    destination_topic_id=FORMER,
)
OTHER = replace(TOPIC, topic="u", destination_topic="a.u")


class Target:
    """A target of three brokers, by the ids and partition counts that they show of `a.t`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loss: str = "continue") -> None:
        properties = flow_properties({"twinlog.data.loss": loss}, "a", "b")
        self.mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        self.shown: Sequence[UUID | None] = [FORMER] * 3
        self.partitions = 2
        self.unreachable = self.refuses = False
        self.asked = 0
        self.now = 0.0
        self.topics = {"t": TOPIC, "u": OTHER}
        self.sync = RecreatedRemotes(lambda: self.now)
        monkeypatch.setattr(recreated_remotes, "known_topics", self.known_topics)
        monkeypatch.setattr(recreated_remotes, "create_partitions", self.create_partitions)

    async def known_topics(self, _: object, names: Collection[str]) -> Mapping[str, KnownTopic]:
        assert set(names) == {"a.t"}
        self.asked += 1
        if self.unreachable:
            raise Retriable("a broker does not answer")
        ids = frozenset(one for one in self.shown if one is not None)
        everywhere = None not in self.shown
        return {"a.t": KnownTopic(ids, self.partitions, internal=False, everywhere=everywhere)}

    async def create_partitions(
        self, _: object, counts: Mapping[str, int]
    ) -> Mapping[str, Refusal | None]:
        if self.refuses:
            return dict.fromkeys(counts, Refusal(ErrorCode.POLICY_VIOLATION))
        [self.partitions] = counts.values()
        return dict.fromkeys(counts)

    async def change(self, decide: Callable[[Snapshot], Collection[MirrorTopic]]) -> None:
        for topic in decide(self.snapshot):
            self.topics[topic.topic] = topic

    @property
    def snapshot(self) -> Snapshot:
        records: list[ConfigRecord] = [self.mirror, *self.topics.values()]
        return Snapshot({key_of(one): one for one in records})

    def refreshes(self, after_s: float = 0.0) -> MirrorTopic:
        """Refresh so long after the last one; the first broker's metadata comes with it."""
        self.now += after_s
        shown: Mapping[str, Any] = {"a.u": SimpleNamespace(topic_id=FORMER)}
        if self.shown[0] is not None:
            shown = {**shown, "a.t": SimpleNamespace(topic_id=self.shown[0])}
        wanted = [one for one in self.topics.values() if one.wanted is Wanted.MIRRORING]
        context = sync_context(None, None, self, snapshot=self.snapshot, topics=wanted, here=shown)
        self.failures = asyncio.run(run_sync(self.sync, context))
        assert self.topics["u"] is OTHER
        return self.topics["t"]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def test_a_flow_goes_on_once_all_brokers_agree_for_a_lease(target: Target) -> None:
    """Goal: at two checks. A second time, too: the ids of all former topics are kept."""
    assert target.refreshes(100) == TOPIC
    assert target.asked == 0, "all is as it was"
    target.shown = [NEW] * 3
    assert target.refreshes() == TOPIC
    assert target.refreshes(AGREED_S - 1) == TOPIC
    going_on = target.refreshes(1)
    assert going_on == replace(TOPIC, destination_topic_id=NEW, lost_topic_ids=(FORMER,))
    target.shown = [LATER] * 3
    assert target.refreshes() == going_on
    again = target.refreshes(AGREED_S)
    assert (again.destination_topic_id, again.lost_topic_ids) == (LATER, (FORMER, NEW))
    assert target.refreshes(AGREED_S) == again


@pytest.mark.parametrize(
    "shown",
    [
        [OLDER, FORMER, FORMER],  # it shows a topic that was deleted before the flow began
        [NEW, NEW, FORMER],  # one has not learned yet that it was recreated
        [NEW, NEW, LATER],
        [NEW, None, NEW],
        [None, NEW, NEW],
        [NO_TOPIC_ID] * 3,
    ],
)
def test_a_broker_that_is_behind_changes_nothing(
    target: Target, shown: Sequence[UUID | None]
) -> None:
    """Goal: the flow never goes on in a topic that was deleted before it began."""
    target.shown = shown
    for _ in range(5):
        assert target.refreshes(AGREED_S) == TOPIC
    target.shown = [FORMER] * 3
    assert target.refreshes(AGREED_S) == TOPIC


def test_a_broker_that_does_not_answer_changes_nothing(target: Target) -> None:
    target.shown, target.unreachable = [NEW] * 3, True
    for _ in range(3):
        with pytest.raises(Retriable):
            target.refreshes(AGREED_S)
    assert target.topics["t"] == TOPIC
    target.unreachable = False
    assert target.refreshes() == TOPIC, "the time begins with the first answer of all"
    assert target.refreshes(AGREED_S) != TOPIC


def test_the_time_begins_anew_with_another_id(target: Target) -> None:
    target.shown = [NEW] * 3
    target.refreshes()
    for shown in ([FORMER] * 3, [NEW] * 3, [LATER] * 3):
        target.shown = shown
        assert target.refreshes(AGREED_S) == TOPIC
    assert target.refreshes(AGREED_S).destination_topic_id == LATER


def test_another_node_compares_anew(target: Target) -> None:
    target.shown = [NEW] * 3
    target.refreshes()
    target.sync.forget(lambda mirror: mirror == "m")
    assert target.refreshes(AGREED_S) == TOPIC
    assert target.refreshes(AGREED_S) != TOPIC


def test_by_default_an_operator_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, "fail")
    target.shown = [NEW] * 3
    for _ in range(3):
        assert target.refreshes(AGREED_S) == TOPIC
    assert target.asked == 0


@pytest.mark.parametrize("refuses", [False, True])
def test_a_topic_that_was_recreated_with_fewer_partitions_gets_more(
    target: Target, refuses: bool
) -> None:
    """Goal: it waits until there is a partition for each; that is counted as a failure."""
    target.shown, target.partitions, target.refuses = [NEW] * 3, 1, refuses
    target.refreshes()
    found = target.refreshes(AGREED_S)
    assert (found == TOPIC, target.failures) == (refuses, int(refuses))
    target.refuses = False
    assert target.refreshes(AGREED_S).destination_topic_id == NEW
    assert target.partitions == 2


def test_a_topic_that_an_operator_removes_meanwhile_stays_as_it_is(target: Target) -> None:
    """Goal: its copies end where they do; adding it again begins anew."""
    target.shown = [NEW] * 3
    target.refreshes()
    removed = replace(TOPIC, wanted=Wanted.STOPPED)
    change = target.change

    async def late(decide: Callable[[Snapshot], Collection[MirrorTopic]]) -> None:
        target.topics["t"] = removed
        await change(decide)

    target.change = late  # type: ignore[method-assign]
    assert target.refreshes(AGREED_S) == removed
