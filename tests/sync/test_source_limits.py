"""A source with ever more topics and partitions: how far its mirror follows."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client
from sync_contexts import snapshot_of, sync_context

from conftest import Pair
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests import topics as admin
from twinlog.mirror.settings import PARTITIONS
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.sync import topics as topic_sync
from twinlog.sync.base import SyncContext, run_sync
from twinlog.sync.topics import NewTopics, Room, TopicGrowth


def mirror(limit: int, name: str = "m", **named: Any) -> Mirror:
    return Mirror(name=name, source={PARTITIONS: str(limit)}, source_cluster_id="s", **named)


def topic(name: str, partitions: int, **named: Any) -> MirrorTopic:
    return MirrorTopic(
        mirror=named.pop("of", "m"),
        topic=name,
        topic_id=UUID(int=1),
        partitions=partitions,
        **named,
    )


def growing(
    store: Any,
    topics: list[MirrorTopic],
    *,
    source_counts: dict[str, int],
    destination_counts: dict[str, int],
) -> SyncContext:
    """Return a context of topics with these partition counts, and room for 100 partitions."""

    def metadata(counts: dict[str, int]) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=range(count)) for name, count in counts.items()}

    return sync_context(
        *(store, store, store),
        snapshot=snapshot_of(mirror(100), *topics),
        topics=topics,
        there=metadata(source_counts),
        here=metadata(destination_counts),
    )


def test_only_active_topics_of_the_mirror_count_against_the_limit() -> None:
    """Removed topics and those of other mirrors take no room."""
    topics = [topic("a", 3), topic("b", 2, wanted=Wanted.PAUSED)]
    topics += [topic("c", 9, wanted=Wanted.STOPPED), topic("d", 9, of="other")]
    room = Room(mirror(7), topics)
    assert room.refuses(2) == ""
    assert room.refuses(3) == (f"{PARTITIONS} is 7, but the mirror would have 5 + 3 partitions")
    room.take(1)
    assert room.refuses(1) == ""
    assert room.refuses(2)


def test_a_topic_does_not_grow_beyond_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    """Neither cluster gets a request; it is counted, and logged with the setting."""
    context = growing(None, [topic("a", 2)], source_counts={"a": 1000}, destination_counts={"a": 2})
    assert asyncio.run(run_sync(TopicGrowth(), context)) == 1
    assert f"a cannot grow to 1000 partitions: {PARTITIONS} is 100" in caplog.text


@pytest.mark.parametrize("again", ["topic_id", "destination_topic_id"])
def test_a_topic_recreated_meanwhile_does_not_grow(
    monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Only the topic whose partitions were counted can grow."""
    known = [topic(name, 2, destination_topic_id=UUID(int=1)) for name in "ab"]
    other: Any = {again: UUID(int=2)}
    now = [replace(known[0], **other), known[1]]
    written: list[MirrorTopic] = []

    async def create(*_: Any) -> dict[str, None]:
        return {}

    async def change(decide: Any) -> None:
        written.extend(decide(SimpleNamespace(topics=now)))

    monkeypatch.setattr(admin, "create_partitions", create)
    store: Any = SimpleNamespace(change=change)
    context = growing(store, known, source_counts=dict.fromkeys("ab", 3), destination_counts={})
    assert asyncio.run(run_sync(TopicGrowth(), context)) == 0
    assert written == [replace(known[1], partitions=3)]


@pytest.mark.parametrize("seen", [2, 3], ids=["stale", "current"])
def test_partitions_that_exist_are_used_only_if_they_were_checked(
    monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """Goal: a partition that another client has added, and that lost its records, is not used.

    The check of its records needs the destination's metadata to show it, which a broker that is
    behind does not.
    """
    written: list[MirrorTopic] = []

    async def create(*_: Any) -> dict[str, Refusal]:
        return {"a": Refusal(ErrorCode.INVALID_PARTITIONS)}

    async def checked(*_: Any) -> dict[str, str]:
        return {}

    async def change(decide: Any) -> None:
        written.extend(decide(SimpleNamespace(topics=[topic("a", 2)])))

    monkeypatch.setattr(admin, "create_partitions", create)
    monkeypatch.setattr(topic_sync, "_emptied", checked)
    store: Any = SimpleNamespace(change=change)
    context = growing(
        store, [topic("a", 2)], source_counts={"a": 3}, destination_counts={"a": seen}
    )
    assert asyncio.run(run_sync(TopicGrowth(), context)) == (seen == 2)
    assert [one.partitions for one in written] == ([3] if seen == 3 else [])


@pytest.mark.broker
def test_new_topics_are_not_added_beyond_the_limit(pair: Pair, topic: str) -> None:
    """Matching topics without room are not mirrored, which readiness reports with the setting."""
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        librdkafka_tools.make_topic(pair.source.bootstrap_servers, name, 2)

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            store = MirrorStore(destination)
            one = mirror(5, topic, topic_patterns=(f"{topic}-.*",))
            await store.create_mirror(one)
            context = sync_context(
                *(source, destination, store, topic), snapshot=await store.snapshot()
            )
            missed = await run_sync(NewTopics(), context)
            snapshot = await store.snapshot()
            assert [t.topic for t in snapshot.topics if t.mirror == topic] == names[:2]
            assert missed == 2
            reasons = dict(snapshot.not_mirrored(topic).topics)
            assert reasons.keys() == set(names[2:])
            assert all(PARTITIONS in why for why in reasons.values())

    asyncio.run(run())
