"""Which topics a flow takes over from MirrorMaker 2, with the clusters in memory.

Where they begin is in tests/lifecycle/test_flow_takeover.py.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from sync_contexts import snapshot_of

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import ClusterConfig
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.partitions import ListedOffset
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle import flow_creation, flow_ends, worker_records
from twinlog.lifecycle.flow_creation import take_over_topics
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.lifecycle.worker_records import WorkerRecords
from twinlog.mirror.connect_offsets import CONNECTOR
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.settings import KIND, TRANSACTIONAL, TRANSLATED
from twinlog.store import partition_counts
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.snapshot import Snapshot

MIRROR = Mirror(
    name="a-to-b",
    source=flow_properties({"enabled": "true", "twinlog.takeover": "compare"}, "a", "b"),
    source_cluster_id="source",
)
FIRST = TopicPartition("t1", 0)
SHOWN: dict[str, Any] = {
    name: SimpleNamespace(topic_id=NO_TOPIC_ID, partitions=range(2)) for name in ("t1", "t2", "t3")
}


def topic(name: str, *begins: int) -> MirrorTopic:
    """A topic of the flow."""
    return MirrorTopic(
        mirror="a-to-b",
        topic=name,
        topic_id=UUID(int=1),
        partitions=1,
        destination_topic=f"a.{name}",
        begins=begins,
    )


class World:
    """A flow with some of the topics t1, t2 and t3, all of which MirrorMaker 2 has copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirror = MIRROR
        self.topics: list[MirrorTopic] = []
        self.copied: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.members: list[str] = []
        self.added: list[list[str]] = []
        self.followed_from: Mapping[str, tuple[int, ...]] = {}
        self.refusals: list[MirrorRefused] = []
        self.later: list[MirrorTopic] = []
        world = self

        class Stored:
            def __init__(self, _: object) -> None:
                pass

            async def snapshot(self) -> Snapshot:
                return snapshot_of(world.mirror, *world.topics)

        @asynccontextmanager
        async def source(*_: object) -> AsyncIterator[object]:
            async def refresh(_: object) -> object:
                return SimpleNamespace(topics=SHOWN)

            yield SimpleNamespace(refresh=refresh)

        async def add(
            _: object,
            __: object,
            names: Mapping[str, str],
            *,
            followed_from: Mapping[str, tuple[int, ...]],
        ) -> Sequence[TakenOver]:
            world.added.append(list(names))
            world.followed_from = followed_from
            if world.refusals:
                world.topics += world.later
                raise world.refusals.pop()
            return [TakenOver(TopicPartition(name, 0), Offset(5), Offset(4)) for name in names]

        def copied_topics(*_: object) -> dict[str, str]:
            return {name: f"a.{name}" for name in ("t1", "t2", "t3")}

        def answer(value: Any) -> Any:
            async def read(*_: object) -> Any:
                return value() if callable(value) else value

            return read

        for name, fake in {
            "MirrorStore": Stored,
            "connected_source": source,
            "copied_topics": copied_topics,
            "existing_topics": answer(dict.fromkeys(("a.t1", "a.t2", "a.t3"))),
            "read_ends": answer(lambda: self.ends if world.mirror is MIRROR else {}),
            "committed_positions": answer(lambda: {} if world.mirror is MIRROR else self.ends),
        }.items():
            monkeypatch.setattr(flow_creation, name, fake)
        monkeypatch.setattr(FlowClusters, "add", add)

        def recorded() -> list[dict[TopicPartition, dict[str, int]]]:
            found = {partition: {CONNECTOR: offset} for partition, offset in self.copied.items()}
            return [found] if found else []

        monkeypatch.setattr(WorkerRecords, "_read_recorded", answer(recorded))
        monkeypatch.setattr(worker_records, "member_clients", answer(self.members))
        monkeypatch.setattr(worker_records, "_GROUP_S", 0.0)

    def take_over(self) -> list[str]:
        """The topics that were taken over."""
        found = asyncio.run(take_over_topics(cast("KafkaCluster", None), "a-to-b"))
        return [one.source.topic for one in found]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_first_flow_waits_for_brokers_that_do_not_know_the_topics_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: where the target has several brokers, no error is shown."""
    answers = iter([None, None, 50])

    async def count(*_: object) -> int | None:
        return next(answers)

    async def known(*_: object) -> set[str]:
        return set()

    async def run() -> int:
        cluster = KafkaCluster(ClusterConfig(bootstrap_servers=()))
        known_count = partition_counts.known_partition_count
        return await cluster.persist(partial(known_count, cluster, "__mirror_state"))

    monkeypatch.setattr(partition_counts, "partition_count", count)
    monkeypatch.setattr(partition_counts, "absent_everywhere", known)
    assert asyncio.run(run()) == 50


def test_all_topics_are_taken_over_in_one_step(world: World) -> None:
    """Goal: if one is refused, MirrorMaker 2 may run on with all of them."""
    assert world.take_over() == ["t1", "t2", "t3"]
    assert world.added == [["t1", "t2", "t3"]]


def test_a_flow_that_begins_at_the_end_begins_at_the_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what is written before a node first looks is copied, also to later partitions."""
    asked: list[Mapping[str, Any]] = []

    async def shown(_: object, topics: Mapping[str, Any]) -> None:
        asked.append(topics)

    async def ends(_: object, partitions: list[TopicPartition], **__: object) -> Any:
        return {one: ListedOffset(7 + one.partition, -1, -1) for one in partitions}

    monkeypatch.setattr(flow_ends, "require_all_shown", shown)
    monkeypatch.setattr(flow_ends, "list_offsets", ends)
    world.take_over()
    assert world.followed_from == {}, "it begins at log starts"
    settings = {"enabled": "true", "twinlog.takeover": "compare"}
    latest = {**settings, "consumer.auto.offset.reset": "latest"}
    world.mirror = replace(MIRROR, source=flow_properties(latest, "a", "b"))
    world.topics = [topic("t3")]
    assert world.take_over() == ["t1", "t2"]
    assert world.followed_from == {"t1": (7, 8), "t2": (7, 8)}
    assert asked == [{name: SHOWN[name] for name in ("t1", "t2")}]


def test_topics_that_a_node_has_added_meanwhile_are_left_out(world: World) -> None:
    refusal = MirrorError.TOPIC_ALREADY_IN_MIRROR.error("t1 is in a-to-b")
    world.refusals, world.later = [refusal], [topic("t1", 60)]
    assert world.take_over() == ["t2", "t3"]
    world.refusals, world.later = [refusal], []
    with pytest.raises(MirrorRefused):
        world.take_over()


def test_mirror_maker_has_to_be_stopped_even_if_all_topics_are_there(world: World) -> None:
    """Goal: a second start with --takeover does not run beside it."""
    world.topics = [topic(name) for name in ("t1", "t2", "t3")]
    assert world.take_over() == []
    world.members.append("mm2")
    with pytest.raises(UserError, match="MirrorMaker 2 is running"):
        world.take_over()


@pytest.mark.parametrize("kind", [TRANSLATED, TRANSACTIONAL])
@pytest.mark.parametrize(
    ("begins", "end", "recorded"),
    [((60,), None, 60), ((60,), 80, 80), ((), 80, 99), ((0,), 500, 900)],
)
def test_a_mirror_maker_that_has_run_since_is_an_error(
    world: World, begins: tuple[int, ...], end: int | None, recorded: int, kind: str
) -> None:
    """Goal: what it has copied beside the flow is not copied again without a word."""
    if kind == TRANSACTIONAL:
        world.mirror = replace(MIRROR, source={**MIRROR.source, KIND: TRANSACTIONAL})
    world.topics = [topic("t1", *begins)]
    world.ends |= {} if end is None else {FIRST: end}
    if recorded in {60, 80}:
        world.copied[FIRST] = recorded - 1
        assert world.take_over() == ["t2", "t3"]
    world.copied[FIRST] = recorded
    with pytest.raises(UserError, match=f"copied t1-0 on since: .* offset {recorded}") as caught:
        world.take_over()
    assert "delete the flow, then take over again" in caught.value.hint


def test_what_is_recorded_of_a_former_topic_says_nothing(world: World) -> None:
    """Goal: a topic that was recreated, and is copied whole, is no error."""
    world.topics = [replace(topic("t1", 0), whole=True)]
    world.ends[FIRST] = 10
    world.copied[FIRST] = 500
    assert world.take_over() == ["t2", "t3"]
