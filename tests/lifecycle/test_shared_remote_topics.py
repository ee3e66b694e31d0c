"""Several topics of a flow with one remote topic: how many partitions it needs.

With brokers: tests/end_to_end/test_aggregation.py.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.errors import Retriable
from twinlog.lifecycle import flow_topics
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.flow_topics import FlowClusters, lacking_partitions
from twinlog.mirror.flow import flow_of
from twinlog.store.config_records import Mirror, MirrorTopic

ID: Final = UUID(int=2)
FORMER: Final = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1)


def topic(partitions: int) -> Any:
    return SimpleNamespace(partitions=range(partitions))


def test_a_shared_remote_topic_gets_the_partitions_of_its_largest_source() -> None:
    """Goal: whatever the order is; what would have no partition there could never be copied."""
    topics = {"orders": topic(5), "paid": topic(4), "small": topic(2), "own": topic(3)}
    names = dict.fromkeys(topics, "common") | {"own": "a.own", "new": "a.new"}
    existing = {"common": topic(3), "a.own": topic(1)}
    for order in (topics, dict(reversed(topics.items()))):
        assert lacking_partitions(order, names, existing) == {"common": 5, "a.own": 3}
    assert lacking_partitions({"small": topic(2)}, names, existing) == {}
    assert lacking_partitions({"new": topic(2)}, names, existing) == {}


def added_again(
    monkeypatch: pytest.MonkeyPatch,
    former: MirrorTopic | None,
    unseen: str = "",
    **settings: str,
) -> MirrorTopic:
    """What is stored of a topic that a flow gets, and has had before; all ids are `ID`.

    A broker knows more partitions of the topic `unseen` than are shown.
    """
    added: list[MirrorTopic] = []

    class Store:
        def __init__(self, _: object) -> None: ...

        async def snapshot(self) -> Any:
            topics = [] if former is None else [former]
            return SimpleNamespace(mirrors={"m": mirror}, topics_of=lambda _: topics)

        async def check_addable(self, *_: object) -> None: ...

        async def add_topics(self, _: str, topics: list[MirrorTopic], **__: object) -> None:
            added.extend(topics)

    async def existing(*_: object) -> dict[str, Topic]:
        return {"all": one}

    async def nothing(*_: object) -> None: ...

    async def all_shown(_: object, topics: Mapping[str, Topic]) -> None:
        if unseen in topics:
            raise Retriable("a broker shows 1 partitions, and another one 2")

    async def begins(*_: object) -> list[Any]:
        return []

    one = Topic("t", ID, internal=False, partitions={0: Partition(1, 0, (1,), (1,))})
    monkeypatch.setattr(flow_topics, "MirrorStore", Store)
    monkeypatch.setattr(flow_topics, "existing_topics", existing)
    monkeypatch.setattr(flow_topics, "offsets_topic_id", nothing)
    monkeypatch.setattr(flow_topics, "require_all_shown", all_shown)
    monkeypatch.setattr(FlowTakeover, "begins", begins)
    source = stored_properties(
        {"bootstrap.servers": "a:1"}, {"enabled": "true", **settings}, "a", "b"
    )
    mirror, cluster = Mirror(name="m", source=source, source_cluster_id="a"), cast("Any", None)
    clusters = FlowClusters(
        destination=cluster, source=cluster, mirror=mirror, flow=flow_of(mirror.source)
    )
    assert asyncio.run(clusters.add({"t": one}, {"t": "all"})) == []
    (topic,) = added
    return topic


@pytest.mark.parametrize(
    ("former", "known"),
    [
        (None, False),
        (FORMER, True),
        (replace(FORMER, topic_id=ID), False),
        (replace(FORMER, topic_id=ID, known_before=True), True),
        (replace(FORMER, topic_id=ID, whole=True), True),
    ],
)
def test_a_topic_that_had_another_id_was_known_before(
    monkeypatch: pytest.MonkeyPatch, former: MirrorTopic | None, known: bool
) -> None:
    """Goal: records of the former one count as copied, however often the topic is recreated."""
    assert added_again(monkeypatch, former).known_before == known


@pytest.mark.parametrize("unseen", ["t", "all"])
def test_a_topic_is_not_added_while_a_partition_of_it_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, unseen: str
) -> None:
    """Goal: what MirrorMaker 2 has copied to it is not copied again once it is shown."""
    for takeover in ("compare", "refuse"):
        with pytest.raises(Retriable, match="another one 2"):
            added_again(monkeypatch, None, unseen, **{"twinlog.takeover": takeover})
    assert added_again(monkeypatch, FORMER, unseen).partitions == 1, "MirrorMaker 2 was not first"
    added_again(monkeypatch, None, unseen, **{"twinlog.takeover": "ignore"})


def test_a_topic_that_is_added_again_keeps_the_ids_of_its_lost_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: its partitions go on in the recreated remote topic, also those that had not yet."""
    lost = (UUID(int=77),)
    both = replace(FORMER, topic_id=ID, destination_topic_id=ID, lost_topic_ids=lost)
    assert added_again(monkeypatch, both).lost_topic_ids == lost
    for other in (replace(both, topic_id=lost[0]), replace(both, destination_topic_id=lost[0])):
        assert added_again(monkeypatch, other).lost_topic_ids == ()
