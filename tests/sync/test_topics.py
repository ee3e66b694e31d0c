"""Source topics that a mirror covers and does not mirror; with brokers: test_refresh.py."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.requests import topics as admin
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, encode
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync.topics import DeletedTopics, not_mirrored

MIRROR = Mirror(name="m", source={}, source_cluster_id="s", topic_patterns=("t.*",))
OTHER = Mirror(name="o", source={}, source_cluster_id="s")
FOREIGN = Mirror(name="f", source={}, source_cluster_id="elsewhere")
OURS = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1)
REMOVED = replace(OURS, wanted=Wanted.STOPPED)


def topic(name: str, topic_id: int = 1, *, internal: bool = False) -> Topic:
    return Topic(name, UUID(int=topic_id), internal, MappingProxyType({}))


def missed(
    *records: ConfigRecord, mirror: Mirror = MIRROR, topic_id: int = 1, loops: tuple[str, ...] = ()
) -> dict[str, str]:
    snapshot = Snapshot().after(
        StoredRecord(0, 0, *encode(one)) for one in (mirror, OTHER, FOREIGN, *records)
    )
    return not_mirrored(mirror, snapshot, {"t": topic("t", topic_id), "u": topic("u")}, loops)


def test_only_topics_that_match_a_pattern_count_as_unmirrored() -> None:
    """Internal topics and those that match no pattern are left out."""
    assert missed() == {"t": ""}
    assert missed(OURS) == {}
    assert missed(loops=("t",)) == {}
    assert missed(mirror=replace(MIRROR, topic_patterns=())) == {}
    internal = {"__t": topic("__t"), "ti": topic("ti", internal=True)}
    everything = replace(MIRROR, topic_patterns=(".*",))
    assert not_mirrored(everything, Snapshot(), internal, ()) == {}


@pytest.mark.parametrize(
    ("record", "topic_id", "why"),
    [
        (REMOVED, 1, None),
        (REMOVED, 2, "was deleted and recreated"),
        (replace(REMOVED, source_deleted=True), 1, "removed while the source did not list it"),
        (replace(REMOVED, source_deleted=True), 2, "was deleted and recreated"),
        (replace(OURS, mirror="o"), 1, None),
        (replace(REMOVED, mirror="o"), 1, ""),
        (replace(OURS, mirror="f"), 1, "belongs to mirror f"),
    ],
)
def test_the_reason_of_an_unmirrored_topic_is_given(
    record: MirrorTopic, topic_id: int, why: str | None
) -> None:
    """An operator's removal is intended; another mirror of the same source mirrors its topics."""
    found = missed(record, topic_id=topic_id)
    if why is None:
        assert found == {}
    else:
        assert found.keys() == {"t"}
        assert why in found["t"]


def test_a_topic_added_by_name_counts_as_unmirrored_once_deleted() -> None:
    """A topic dropped because the source had deleted it counts without a pattern, too."""
    named = replace(MIRROR, topic_patterns=())
    assert missed(REMOVED, mirror=named, topic_id=2) == {}
    lost = replace(REMOVED, source_deleted=True)
    assert missed(lost, mirror=named, topic_id=2).keys() == {"t"}


def test_a_takeover_restarts_the_check_for_deleted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the topic may have been there while another node looked."""

    async def absent(_: object, topics: Collection[str]) -> Collection[str]:
        return topics

    monkeypatch.setattr(admin, "absent_everywhere", absent)
    sync = DeletedTopics()

    def gone(mirror: str) -> bool:
        topics = [replace(OURS, mirror=mirror)]
        context: Any = SimpleNamespace(name=mirror, topics=topics, there={}, source=None)
        return bool(asyncio.run(sync.compare(context)))

    assert not gone("m")
    assert not gone("o")
    sync.forget(lambda mirror: mirror == "m")
    assert not gone("m")
    assert gone("m")
    assert gone("o")
