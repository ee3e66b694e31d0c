"""Which topics of the source a flow adds; with brokers: tests/end_to_end/test_flows.py."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.errors import Retriable
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync import flow_topics
from twinlog.sync.flow_topics import SEARCH_S, FlowTopics

ONCE = {"enabled": "true", "topics": "t.*", "refresh.topics.enabled": "false"}


class Flow:
    """A flow of topics `t...` that looks for topics once, and a source in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        properties = flow_properties({**ONCE, **settings}, "a", "b")
        self.mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        self.ids: dict[str, UUID] = {}
        self.topics: list[MirrorTopic] = []
        self.hidden: set[str] = set()
        """Topics that the broker which answers does not show."""
        self.unreachable = False
        self.now = 0.0
        self.sync = self.start()
        monkeypatch.setattr(flow_topics, "topic_names", self.topic_names)

    def start(self) -> FlowTopics:
        """Start another node."""
        self.sync = FlowTopics(lambda: self.now)
        return self.sync

    async def topic_names(self, _: object) -> set[str]:
        """The topics that some broker knows."""
        if self.unreachable:
            raise Retriable("a broker does not answer")
        return {*self.ids}

    async def refresh(self, _: None) -> Any:
        topics = {
            name: SimpleNamespace(topic_id=topic_id, partitions=range(1))
            for name, topic_id in self.ids.items()
            if name not in self.hidden
        }
        return SimpleNamespace(topics=topics)

    def add(self, name: str) -> None:
        self.topics.append(
            MirrorTopic(mirror="m", topic=name, topic_id=self.ids[name], partitions=1)
        )

    def new(self, after_s: float = 1.0) -> set[str]:
        """The topics that a check finds to be added, so long after the last one."""
        self.now += after_s
        records = {key_of(record): record for record in (self.mirror, *self.topics)}
        wanted = [topic for topic in self.topics if topic.wanted is not Wanted.STOPPED]
        context = sync_context(
            self, None, None, snapshot=Snapshot(records), topics=wanted, same=wanted
        )
        return set(asyncio.run(self.sync.compare(context)).new)


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Flow:
    return Flow(monkeypatch)


def test_a_flow_looks_once_until_it_has_all_topics(flow: Flow) -> None:
    """Goal: one topic that was added first, or alone, does not stand for the others."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2), "other": UUID(int=3)}
    flow.add("t1")
    assert flow.new() == {"t2"}
    assert flow.new(SEARCH_S) == {"t2"}, "it was not added: the destination did not answer"
    flow.add("t2")
    assert flow.new() == set()
    assert flow.new(SEARCH_S) == set()
    flow.ids["t3"] = UUID(int=4)
    assert flow.new() == set(), "refresh.topics.enabled is false"
    flow.start()
    assert flow.new() == {"t3"}, "as MirrorMaker 2, when it starts"


def test_one_answer_without_a_topic_does_not_end_the_search(flow: Flow) -> None:
    """Goal: a broker that was just restarted shows a part of the topics, in one answer."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.hidden = {"t2"}
    assert flow.new() == set()
    flow.hidden = set()
    assert flow.new() == {"t2"}


def test_a_broker_that_knows_more_keeps_the_search_going(flow: Flow) -> None:
    """Goal: one that is behind for long, and gives all answers, does not end the search."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.hidden = {"t2"}
    for _ in range(10):
        assert flow.new(SEARCH_S) == set()
    flow.hidden = set()
    assert flow.new() == {"t2"}


def test_a_broker_that_does_not_answer_keeps_the_search_going(flow: Flow) -> None:
    """Goal: it may be the one that knows a topic. What else the check has found is not lost."""
    flow.ids = {"t1": UUID(int=1)}
    flow.add("t1")
    flow.unreachable = True
    for _ in range(3):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t2"] = UUID(int=2)
    assert flow.new() == {"t2"}


def test_a_flow_without_topics_looks_again(flow: Flow) -> None:
    for _ in range(3):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t1"] = UUID(int=1)
    assert flow.new() == {"t1"}


def test_a_recreated_topic_is_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with `twinlog.data.loss=continue`, also where the flow looks once."""
    flow = Flow(monkeypatch, **{"twinlog.data.loss": "continue"})
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.add("t2")
    for _ in range(2):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t1"] = UUID(int=9)
    assert flow.new() == set(), "it is removed first"
    (first, second) = flow.topics
    flow.topics = [
        MirrorTopic(
            mirror="m",
            topic="t1",
            topic_id=first.topic_id,
            partitions=1,
            wanted=Wanted.STOPPED,
            source_deleted=True,
        ),
        second,
    ]
    assert flow.new() == {"t1"}
