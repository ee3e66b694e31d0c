"""Twin of twinlog.sync.flow_begins; on brokers: tests/end_to_end/test_mirror_maker_cases.py."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import snapshot_of, sync_context

from twinlog.kafka.client.metadata import NO_TOPIC_ID, Partition, Topic
from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable
from twinlog.kafka.requests.partitions import Isolation, ListedOffset
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import flow_ends
from twinlog.lifecycle.flow_ends import Offsets
from twinlog.mirror.flow import flow_of, flow_properties
from twinlog.mirror.placement import config_partition
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.snapshot import Snapshot
from twinlog.sync import flow_begins
from twinlog.sync.flow_begins import FlowBegins, grown
from twinlog.sync.flow_topics import FlowTopics
from twinlog.sync.refresh import Refresher

LATEST = {"enabled": "true", "topics": "t.*", "consumer.auto.offset.reset": "latest"}


def named(name: str, number: int, partitions: int = 1) -> Topic:
    """A topic of the source."""
    states = {index: Partition(1, 0, (1,), (1,)) for index in range(partitions)}
    return Topic(name, UUID(int=number), internal=False, partitions=states)


class Source:
    """A flow that begins at the end, and what the source's brokers know and hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: Topic) -> None:
        self.settings = dict(LATEST)
        self.topics = {topic.name: topic for topic in topics}
        """What the broker shows that answers first."""
        self.others: list[Topic] = []
        """What another one knows beside that."""
        self.ends: dict[TopicPartition, int] = {}
        self.silent = False
        """Whether one of the brokers does not answer."""
        self.records: list[MirrorTopic] = []
        self.begins = FlowBegins()
        self.looks: list[Collection[str] | None] = []
        monkeypatch.setattr(flow_begins, "known_topics", self._known_topics)
        monkeypatch.setattr(flow_ends, "list_offsets", self._list_offsets)

    async def _known_topics(
        self, _: object, names: Collection[str] | None = None
    ) -> dict[str, KnownTopic]:
        if self.silent:
            raise Retriable("a broker does not answer")
        self.looks.append(None if names is None else set(names))
        known: dict[str, KnownTopic] = {}
        for topic in (*self.topics.values(), *self.others):
            if names is None or topic.name in names:
                former = known.get(topic.name, KnownTopic(frozenset(), 0, internal=False))
                count = max(former.partitions, len(topic.partitions))
                known[topic.name] = KnownTopic(former.ids | {topic.topic_id}, count, internal=False)
        return known

    async def _list_offsets(
        self, _: object, partitions: Collection[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        assert isolation is Isolation.READ_COMMITTED
        return {
            p: ListedOffset(self.ends[p], -1, -1) if p in self.ends else LEFT_OUT
            for p in partitions
        }

    def find(self, *new: str) -> dict[str, Offsets]:
        """What is found at the next refresh, with these topics to add."""
        properties = flow_properties(self.settings, "a", "b")
        mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        snapshot = snapshot_of(mirror, *self.records)
        mirrored = [topic for topic in self.records if topic.wanted is Wanted.MIRRORING]
        context = sync_context(None, None, None, snapshot=snapshot, topics=mirrored)
        topics = {name: self.topics[name] for name in new}
        return asyncio.run(self.begins.find(context, flow_of(properties).settings, topics))

    def add(self, name: str, *followed_from: int, wanted: Wanted = Wanted.MIRRORING) -> None:
        """Have the flow copy a topic."""
        topic = self.topics[name]
        self.records.append(
            MirrorTopic(
                mirror="m",
                topic=name,
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                followed_from=followed_from,
                wanted=wanted,
            )
        )


def end(name: str, partition: int, offset: int) -> dict[TopicPartition, int]:
    """The end of a partition."""
    return {TopicPartition(name, partition): offset}


def test_a_paused_topic_is_followed_from_its_end_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what is written while it is paused is copied once it is resumed."""
    source = Source(monkeypatch, named("t1", 1, 2), named("t2", 2), named("t3", 3))
    source.ends = end("t1", 0, 7) | end("t2", 0, 5) | end("t3", 0, 5)
    source.add("t1", wanted=Wanted.PAUSED)
    source.add("t2", wanted=Wanted.STOPPED)
    source.add("t3", wanted=Wanted.PAUSED)
    source.topics["t3"] = named("t3", 33)
    assert source.find() == {"t1": (7, -1)}, "t3 was recreated"
    source.records[0] = replace(source.records[0], followed_from=(7, -1))
    source.ends |= end("t1", 0, 1000) | end("t1", 1, 2)
    assert source.find() == {"t1": (7, 2)}
    source.topics["t1"] = named("t1", 1, 3)
    assert source.find() == {"t1": (7, 2)}, "it has grown, and gets the partition later"
    source.records[0] = replace(source.records[0], wanted=Wanted.MIRRORING)
    assert source.find() == {}, "it gets the partition first"


def test_what_was_there_begins_at_its_end_and_what_is_created_later_at_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch, named("t1", 1, 2), named("t2", 2))
    source.ends = end("t1", 0, 7) | end("t1", 1, 0) | end("t2", 0, 5)
    assert source.find("t1", "t2") == {"t1": (7, 0), "t2": (5,)}
    source.add("t1", 7, 0)
    source.topics["t3"] = named("t3", 3, 2)
    source.ends |= end("t2", 0, 9) | end("t3", 0, 100) | end("t3", 1, 100)
    expected: dict[str, Offsets] = {"t2": (9,), "t3": (0, 0)}
    assert source.find("t2", "t3") == expected, "t2 could not be added before"
    source.add("t2", 9)
    assert source.find("t3") == {"t3": (0, 0)}, "t3 could not be added before"
    source.add("t3", 0, 0)
    source.looks.clear()
    assert source.find() == {}
    assert source.looks == [], "everything is known"


def test_a_topic_that_one_broker_leaves_out_is_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a broker that is behind shows neither a topic nor a partition at the first look."""
    source = Source(monkeypatch, named("t1", 1))
    source.others = [named("t2", 2), named("t1", 1, 3)]
    source.ends = end("t1", 0, 7) | end("t2", 0, 5)
    assert source.find("t1") == {}, "it has more partitions than the flow is to have"
    assert source.begins.incomplete == {"m"}
    source.add("t1")
    source.topics = {"t1": named("t1", 1, 3), "t2": named("t2", 2)}
    source.others = []
    assert source.find("t2") == {"t2": (5,)}, "t1 has no more than one partition in the flow"
    assert source.begins.incomplete == {"m"}, "where t1 begins is not known yet"
    (topic,) = source.records
    assert grown(topic, 3) == (), "these partitions were there"


def test_nothing_is_new_before_all_brokers_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the one that does not answer may be the one that knows a topic or a partition."""
    source = Source(monkeypatch, named("t1", 1))
    source.ends = end("t1", 0, 7) | end("t2", 0, 5) | end("t3", 0, 4)
    source.silent = True
    assert source.find("t1") == {}
    assert source.begins.incomplete == {"m"}
    source.add("t1")
    assert grown(source.records[0], 2) == ()
    source.topics["t2"] = named("t2", 2)
    source.silent = False
    assert source.find("t2") == {"t1": (7,), "t2": (5,)}
    assert source.begins.incomplete == set()
    source.topics["t3"] = named("t3", 3)
    source.silent = True
    assert source.find("t3") == {"t3": (0,)}, "that it is new is known already"


def test_a_topic_is_told_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one that is deleted and created again is a new one, unless brokers report no ids."""
    source = Source(monkeypatch, named("t1", 1), named("t2", 0))
    source.others = [named("t1", 9)]
    source.ends = end("t1", 0, 7) | end("t2", 0, 5)
    assert source.find("t1", "t2") == {"t2": (5,)}, "which t1 the end is of is not known"
    source.others = []
    source.topics["t1"] = named("t1", 9)
    assert source.find("t1", "t2") == {"t1": (7,), "t2": (5,)}, "some broker has known it"
    source.topics = {"t1": named("t1", 8), "t2": named("t2", 3)}
    assert named("t", 0).topic_id == NO_TOPIC_ID
    assert source.find("t1", "t2") == {"t1": (0,), "t2": (5,)}


@pytest.mark.parametrize("why", ["restart", "settings", "created again"])
def test_after_a_change_of_the_flow_there_is_another_first_look(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Goal: what existed before is not new for a flow that selects it now, or begins now."""
    source = Source(monkeypatch, named("t1", 1))
    source.ends = end("t1", 0, 7) | end("t2", 0, 5)
    source.find("t1")
    source.add("t1", 7)
    assert source.find() == {}
    source.topics["t2"] = named("t2", 2)
    if why == "restart":
        source.begins.forget(lambda flow: flow == "m")
    elif why == "settings":
        source.settings["topics"] = "t2"
    else:
        source.records = []
    assert source.find("t2") == {"t2": (5,)}
    source.topics["t3"] = named("t3", 3)
    assert source.find("t2", "t3") == {"t2": (5,), "t3": (0,)}


@pytest.mark.parametrize("own", [False, True])
def test_the_first_look_is_forgotten_if_another_node_may_have_served_the_flow(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Goal: a partition of `__mirror_config` that a neighbour gives up concerns only its flows."""
    cluster: Any = None
    node = Refresher(cluster, cluster, Snapshot)
    node._partitions = 8
    mine = config_partition("m", 8)
    asyncio.run(node.on_assigned({mine}))
    source = Source(monkeypatch, named("t1", 1))
    (topics,) = [sync for sync in node._syncs if isinstance(sync, FlowTopics)]
    topics._begins = source.begins
    source.ends = end("t1", 0, 7) | end("t2", 0, 5)
    source.find("t1")
    source.add("t1", 7)
    source.topics["t2"] = named("t2", 2)
    asyncio.run(node.on_assigned({mine} if own else {*range(8)} - {mine}))
    assert source.find("t2") == {"t2": (5,) if own else (0,)}


def test_topics_without_offsets_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a version without the field has added them, or a partition had no leader."""
    source = Source(monkeypatch, named("t1", 1, 2), named("t2", 2, 3))
    source.ends = end("t1", 0, 7) | end("t2", 0, 3)
    source.add("t1")
    source.add("t2", 1, -1)
    assert source.find() == {"t1": (7, -1), "t2": (1, -1, -1)}
    source.records.clear()
    source.add("t1", 7, -1)
    source.add("t2", 1, -1, -1)
    assert source.find() == {"t1": (7, -1), "t2": (1, -1, -1)}
    assert source.begins.incomplete == {"m"}
    source.ends |= end("t1", 1, 8) | end("t2", 1, 9) | end("t2", 2, 0)
    assert source.find() == {"t1": (7, 8), "t2": (1, 9, 0)}
    assert source.begins.incomplete == set()


def test_other_flows_begin_at_log_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, named("t1", 1))
    source.settings["consumer.auto.offset.reset"] = "earliest"
    source.add("t1")
    assert source.find() == {}
    assert source.looks == []
    assert source.begins.incomplete == set()


def test_added_partitions_are_new_if_fewer_were_there() -> None:
    """Goal: each partition that was there has an entry."""

    def topic(*followed_from: int) -> Any:
        return MirrorTopic(
            mirror="m", topic="t", topic_id=UUID(int=1), partitions=2, followed_from=followed_from
        )

    assert grown(topic(7, -1), 4) == (7, -1, 0, 0)
    assert grown(topic(7), 4) == (7,)
    assert grown(topic(), 4) == ()


def test_a_topic_that_a_command_has_added_is_known_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with an imported position, too, no end is read again, and later partitions are new."""
    source = Source(monkeypatch, named("t1", 1, 2))
    source.ends = end("t1", 0, 20) | end("t1", 1, 4)
    source.add("t1", 20, 4)
    source.records[0] = replace(source.records[0], begins=(13,))
    source.ends |= end("t1", 0, 90) | end("t1", 1, 90) | end("t1", 2, 90)
    source.topics["t1"] = named("t1", 1, 3)
    assert source.find() == {}
    assert source.begins.incomplete == set()
    later = replace(source.records[0], partitions=3, followed_from=grown(source.records[0], 3))
    assert [(later.begin(at), later.follows_from(at)) for at in range(3)] == [
        (13, 20),
        (None, 4),
        (None, 0),
    ]
