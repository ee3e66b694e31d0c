"""Which topics of the source a flow adds; with brokers: tests/end_to_end/test_flows.py."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sync_contexts import sync_context

from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync.flow_topics import FlowTopics

ONCE = {"enabled": "true", "topics": "t.*", "refresh.topics.enabled": "false"}


class Flow:
    """A flow of topics `t...` that looks for topics once, and a source in memory."""

    def __init__(self, **settings: str) -> None:
        properties = flow_properties({**ONCE, **settings}, "a", "b")
        self.mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        self.ids: dict[str, UUID] = {}
        self.topics: list[MirrorTopic] = []
        self.sync = FlowTopics()

    async def refresh(self, _: None) -> Any:
        topics = {
            name: SimpleNamespace(topic_id=topic_id, partitions=range(1))
            for name, topic_id in self.ids.items()
        }
        return SimpleNamespace(topics=topics)

    def add(self, name: str) -> None:
        self.topics.append(
            MirrorTopic(mirror="m", topic=name, topic_id=self.ids[name], partitions=1)
        )

    def new(self) -> set[str]:
        """The topics that a check finds to be added."""
        records = {key_of(record): record for record in (self.mirror, *self.topics)}
        wanted = [topic for topic in self.topics if topic.wanted is not Wanted.STOPPED]
        context = sync_context(
            self, None, None, snapshot=Snapshot(records), topics=wanted, same=wanted
        )
        return set(asyncio.run(self.sync.compare(context)).new)


def test_a_flow_looks_once_until_it_has_all_topics() -> None:
    """Goal: one topic that was added first, or alone, does not stand for the others."""
    flow = Flow()
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2), "other": UUID(int=3)}
    flow.add("t1")
    assert flow.new() == {"t2"}
    assert flow.new() == {"t2"}, "it was not added: the destination did not answer"
    flow.add("t2")
    assert flow.new() == set()
    flow.ids["t3"] = UUID(int=4)
    assert flow.new() == set(), "refresh.topics.enabled is false"
    flow.sync = FlowTopics()
    assert flow.new() == {"t3"}, "as MirrorMaker 2, when it starts"


def test_a_flow_without_topics_looks_again() -> None:
    flow = Flow()
    assert flow.new() == set()
    flow.ids["t1"] = UUID(int=1)
    assert flow.new() == {"t1"}


def test_a_recreated_topic_is_added_again() -> None:
    """Goal: with `twinlog.data.loss=continue`, also where the flow looks once."""
    flow = Flow(**{"twinlog.data.loss": "continue"})
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.add("t2")
    assert flow.new() == set()
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
