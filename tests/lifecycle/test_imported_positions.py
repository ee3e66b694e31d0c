"""What an import of positions asks, refuses and restores, with clusters in memory.

The import itself, on real brokers, is in test_flow_positions.py.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from twinlog.engines.transactional.positions import (
    SettledPosition,
    found_position,
    position_group,
    position_metadata,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.requests import topics as topic_requests
from twinlog.kafka.requests.partitions import Isolation, ListedOffset
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import EpochEnd, Offset, TopicPartition
from twinlog.lifecycle import flow_ends, flow_positions
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.lifecycle.flow_positions import GroupSide, import_positions
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.reported_positions import report_mark
from twinlog.store.config_records import Mirror, key_of
from twinlog.store.offset_records import Route
from twinlog.store.snapshot import SettingsReplaced, Snapshot

SETTINGS = {"enabled": "true", "topics": "orders|hidden", "transaction.producer": "true"}
MIRROR = Mirror(
    name="a-to-b", source=flow_properties(SETTINGS, "a", "b"), source_cluster_id="source"
)
ORDERS, REMOTE = TopicPartition("orders", 0), TopicPartition("a.orders", 0)
GROUP, FLOWS = "connect-orders", position_group("twinlog", "a-to-b")
SOURCE, TARGET = GroupSide.SOURCE, GroupSide.TARGET


def _topic(name: str, number: int, partitions: int = 2) -> Topic:
    states = cast("Mapping[int, Partition]", dict.fromkeys(range(partitions)))
    return Topic(name, UUID(int=number), internal=False, partitions=states)


class Memory:
    """A cluster: its topics, and the offsets of its groups; the first one of some is pending."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.others: list[Topic] = []
        """What another broker shows."""
        self.ends: dict[TopicPartition, int] = {}
        """The last stable offsets that are known."""
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {GROUP: {}, FLOWS: {}}
        self.pending: set[TopicPartition] = set()
        self.epoch_ends: dict[TopicPartition, EpochEnd | Refusal] = {}
        self.name = "a"
        self.config = SimpleNamespace(grants=None)

    async def refresh(self, _: object) -> object:
        return SimpleNamespace(topics=self.topics)


class Imports:
    """Imports; what is added is in `added`, or `fails` is raised: a lane has committed then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.source = Memory(_topic("orders", 1))
        self.target = Memory(_topic("a.orders", 2))
        self.mirror = MIRROR
        self.added: dict[TopicPartition, int] = {}
        self.followed_from: Mapping[str, tuple[int, ...]] = {}
        self.fails: Exception | None = None
        self.meanwhile: dict[TopicPartition, Committed] = {}
        for name in ("connected_source", "existing_topics", "committed_offsets", "list_groups"):
            patch.setattr(flow_positions, name, getattr(self, name))
        for name in ("commit_offsets", "settled_positions", "ClusterLogs"):
            patch.setattr(flow_positions, name, getattr(self, name))
        patch.setattr(flow_positions, "offset_for_leader_epoch", self.offset_for_leader_epoch)
        patch.setattr(topic_requests, "known_topics", self.known_topics)
        patch.setattr(flow_ends, "list_offsets", self.list_offsets)
        patch.setattr(flow_positions, "MirrorStore", lambda _: self)
        patch.setattr(flow_positions, "FlowClusters", lambda **_: self)

    def __call__(self, side: GroupSide = SOURCE, *, dry_run: bool = False) -> None:
        target = cast("KafkaCluster", self.target)
        asyncio.run(import_positions(target, "a-to-b", GROUP, side, replaces=True, dry_run=dry_run))

    async def snapshot(self) -> Snapshot:
        return Snapshot({key_of(self.mirror): self.mirror})

    async def check_addable(self, *_: object) -> None:
        pass

    async def add(
        self,
        _: object,
        __: object,
        positions: Mapping[TopicPartition, int],
        followed_from: Mapping[str, tuple[int, ...]],
    ) -> None:
        if self.fails is not None:
            self.target.offsets[FLOWS].update(self.meanwhile)
            raise self.fails
        self.added.update(positions)
        self.followed_from = followed_from

    @asynccontextmanager
    async def connected_source(self, *_: object) -> AsyncIterator[Memory]:
        yield self.source

    async def existing_topics(self, cluster: Memory, names: Collection[str]) -> Mapping[str, Topic]:
        return {name: cluster.topics[name] for name in names if name in cluster.topics}

    async def known_topics(self, cluster: Memory, names: Collection[str]) -> dict[str, KnownTopic]:
        known: dict[str, KnownTopic] = {}
        for topic in (*cluster.topics.values(), *cluster.others):
            if topic.name in names:
                former = known.get(topic.name, KnownTopic(frozenset(), 0, internal=False))
                count = max(former.partitions, len(topic.partitions))
                known[topic.name] = KnownTopic(former.ids | {topic.topic_id}, count, internal=False)
        return known

    async def list_offsets(
        self, cluster: Memory, partitions: Collection[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        assert isolation is Isolation.READ_COMMITTED
        ends = cluster.ends
        return {p: ListedOffset(ends[p], -1, -1) if p in ends else LEFT_OUT for p in partitions}

    async def list_groups(self, cluster: Memory) -> Mapping[str, Group]:
        return {name: Group(name, "Empty", "consumer") for name in cluster.offsets}

    async def committed_offsets(
        self,
        cluster: Memory,
        group: str,
        *,
        stable: bool,
        partitions: Collection[TopicPartition] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """As a broker: a partition whose first offset is pending is missed if it is not named."""
        assert stable
        if cluster.pending & {*(partitions or ())}:
            raise Retriable("offsets are pending")
        found = cluster.offsets[group]
        return {key: at for key, at in found.items() if partitions is None or key in partitions}

    async def commit_offsets(
        self, cluster: Memory, group: str, offsets: Mapping[TopicPartition, Committed]
    ) -> dict[TopicPartition, None]:
        cluster.offsets[group].update(offsets)
        return dict.fromkeys(offsets)

    async def offset_for_leader_epoch(
        self, cluster: Memory, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, EpochEnd | Refusal]:
        assert cluster is self.source
        return {partition: cluster.epoch_ends[partition] for partition in epochs}

    async def settled_positions(self, cluster: Memory, group: str, _: object) -> object:
        found = cluster.offsets[group]
        name = MirrorPartition("a-to-b", *ORDERS)
        return {name: SettledPosition(found[REMOTE], REMOTE)} if REMOTE in found else {}

    def ClusterLogs(self, _: object) -> "Logs":  # noqa: N802 (the name of the class)
        return Logs()


class Logs:
    """Logs of 20 records."""

    async def refresh(self, _: object) -> None:
        pass

    async def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[object, object]:
        return dict.fromkeys(partitions, SimpleNamespace(error=0, start=0, high_watermark=20))


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Imports:
    return Imports(monkeypatch)


@pytest.mark.parametrize("error", [UserError, SettingsReplaced])
def test_a_position_is_as_before_if_the_topics_are_not_added(
    imports: Imports, error: type[TwinlogError]
) -> None:
    """Goal: a refused import leaves nothing, also if a node has added the topics."""
    former = Committed(17, "by another program")
    imports.target.offsets[FLOWS][REMOTE] = former
    imports.source.offsets[GROUP][ORDERS] = Committed(9)
    imports.fails = error("the topic is in the mirror already")
    with pytest.raises(error, match="already"):
        imports()
    assert imports.target.offsets[FLOWS] == {REMOTE: former}


def test_what_a_lane_has_committed_meanwhile_is_not_restored(imports: Imports) -> None:
    """Goal: a node that has added the topics goes on; it would copy records again."""
    imports.target.offsets[FLOWS][REMOTE] = Committed(17)
    imports.source.offsets[GROUP][ORDERS] = Committed(9)
    imports.meanwhile = {REMOTE: Committed(25)}
    imports.fails = UserError("the topic is in the mirror already")
    with pytest.raises(UserError, match="already"):
        imports()
    assert imports.target.offsets[FLOWS] == {REMOTE: Committed(25)}


def test_a_position_is_replaced_for_the_present_topics_only(imports: Imports) -> None:
    """Goal: a source topic that is recreated later does not inherit the position."""
    imports.target.offsets[FLOWS][REMOTE] = Committed(17)
    imports.source.offsets[GROUP][ORDERS] = Committed(9)
    imports()
    assert imports.added == {ORDERS: 9}
    now = imports.target.offsets[FLOWS][REMOTE]
    assert now.offset == 9
    for source, expected in ((1, now), (5, None)):
        route = Route(UUID(int=source), "a.orders", UUID(int=2))
        assert found_position(now, None, route, FLOWS, 0, copied_to=Offset(9)) == expected


@pytest.mark.parametrize(
    ("side", "key", "named"),
    [
        (SOURCE, TopicPartition("hidden", 0), "hidden-0"),
        (SOURCE, TopicPartition("orders", 2), "orders-2"),
        (TARGET, TopicPartition("a.hidden", 0), "hidden-0"),
        (TARGET, TopicPartition("a.orders", 2), "orders-2"),
    ],
)
def test_an_offset_of_a_partition_that_the_source_does_not_show_is_refused(
    imports: Imports, side: GroupSide, key: TopicPartition, named: str
) -> None:
    """Goal: it is not left out without a word: the partition would begin elsewhere."""
    cluster, seen = (imports.source, ORDERS) if side is SOURCE else (imports.target, REMOTE)
    cluster.offsets[GROUP] = {seen: Committed(9), key: Committed(4)}
    with pytest.raises(UserError, match=f"the source does not show {named}"):
        imports(side)
    assert imports.added == {}


def test_offsets_of_topics_that_the_flow_does_not_copy_are_left_out(imports: Imports) -> None:
    """Goal: a group may have read others, and topics of the target's own."""
    others = dict.fromkeys(
        [TopicPartition("c.hidden", 0), TopicPartition("hidden", 0)], Committed(4)
    )
    imports.target.offsets[GROUP] = {REMOTE: Committed(9), **others}
    imports(TARGET)
    assert imports.added == {ORDERS: 9}


@pytest.mark.parametrize("names", [{}, {"replication.policy.class": "IdentityReplicationPolicy"}])
def test_an_offset_of_a_routed_topic_that_the_source_does_not_show_is_refused(
    imports: Imports, names: dict[str, str]
) -> None:
    """Goal: its name does not tell of which topic it is, and that one would begin anew."""
    routed = {
        **SETTINGS,
        **names,
        "transforms": "route",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": r"(?:a\.)?(.*)",
        "transforms.route.replacement": "eu-$1",
        "twinlog.offset.map": "true",
    }
    properties = stored_properties({"bootstrap.servers": "a:1"}, routed, "a", "b")
    imports.mirror = replace(MIRROR, source=properties)
    seen, hidden = (TopicPartition(f"eu-{name}", 0) for name in ("orders", "hidden"))
    imports.target.topics = {seen.topic: _topic(seen.topic, 2)}
    imports.target.offsets[GROUP] = {seen: Committed(9), hidden: Committed(4)}
    with pytest.raises(UserError, match="has offset 4 of eu-hidden-0 on the target, and no topic"):
        imports(TARGET)
    assert imports.added == {}
    # What the target reports as a flow's position on its source is none.
    reported = Committed(4, report_mark("b-to-a", "target"))
    imports.target.offsets[GROUP] = {seen: Committed(9), hidden: reported}
    imports(TARGET)
    assert imports.added == {ORDERS: 9}


@pytest.mark.parametrize(
    ("source", "lost", "refusal"),
    [
        (1, None, None),
        (0, None, None),
        (5, None, "former topic orders: its metadata has source-topic-id=AAAAAAAAAAAAAAAAAAAABQ"),
        (1, REMOTE, "has lost records of topic orders .*its metadata has lost=a.orders-0"),
        (1, TopicPartition("eu", 3), "its metadata has lost=eu-3"),
    ],
)
def test_a_position_that_a_flow_has_committed_for_other_records_is_refused(
    imports: Imports, source: int, lost: TopicPartition | None, refusal: str | None
) -> None:
    """Goal: records of a recreated topic are not passed over, and a known loss is not forgotten."""
    route = Route(UUID(int=source), "a.orders", UUID(int=2))
    at = Committed(9, position_metadata(route, None, lost=lost))
    imports.target.offsets[GROUP] = {REMOTE: at}
    if refusal is None:
        imports(TARGET)
        assert imports.added == {ORDERS: 9}
        return
    with pytest.raises(UserError, match=refusal) as caught:
        imports(TARGET)
    assert imports.added == {}
    assert "has offset 9 of a.orders-0 on the target" in str(caught.value)
    assert "commit the source's offset" in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [SOURCE, TARGET])
@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (EpochEnd(5, 9), None, ""),
        (EpochEnd(5, 20), None, ""),
        (EpochEnd(5, 8), UserError, "epoch 5 ends at offset 8: it has lost records"),
        (EpochEnd(3, 7), UserError, "epoch 3 ends at offset 7: it has lost records"),
        # An epoch without records yet is left out: a consumer that begins at the end commits it.
        (EpochEnd(4, 9), None, ""),
        (EpochEnd(4, 20), UserError, "epoch 4 ends at offset 20: it has lost records"),
        (EpochEnd(-1, -1), UserError, "leader epoch 5, which the source's log does not have"),
        (Refusal(ErrorCode.NETWORK_EXCEPTION), Retriable, "the end offset of a leader epoch"),
    ],
)
def test_an_offset_behind_records_that_the_source_has_lost_is_refused(
    imports: Imports,
    side: GroupSide,
    end: EpochEnd | Refusal,
    error: type[Exception] | None,
    text: str,
) -> None:
    """Goal: what came in place of the lost records is not passed over; silence proves nothing."""
    cluster, key = (imports.source, ORDERS) if side is SOURCE else (imports.target, REMOTE)
    cluster.offsets[GROUP] = {key: Committed(9, "", 5)}
    imports.source.epoch_ends = {ORDERS: end}
    if error is None:
        imports(side)
        assert imports.added == {ORDERS: 9}
        return
    with pytest.raises(error, match=text):
        imports(side)
    assert imports.added == {}


@pytest.mark.parametrize("side", [SOURCE, TARGET])
def test_a_first_offset_that_is_pending_is_not_missed(imports: Imports, side: GroupSide) -> None:
    """Goal: brokers leave it out of all offsets, and the partition would begin elsewhere."""
    cluster, name = (imports.source, "orders") if side is SOURCE else (imports.target, "a.orders")
    cluster.offsets[GROUP] = {TopicPartition(name, 0): Committed(9)}
    cluster.pending = {TopicPartition(name, 1)}
    with pytest.raises(Retriable, match="pending"):
        imports(side)
    assert imports.added == {}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("side", [SOURCE, TARGET])
@pytest.mark.parametrize(
    ("other", "text"),
    [
        (_topic("orders", 9), "the brokers report several ids"),
        (_topic("orders", 1, 3), "a broker shows 2 partitions, and another one 3"),
    ],
)
def test_positions_of_a_topic_that_brokers_show_differently_are_not_imported(
    imports: Imports, side: GroupSide, dry_run: bool, other: Topic, text: str
) -> None:
    """Goal: a position is not stored for a former topic, nor one of an unseen partition missed."""
    cluster, key = (imports.source, ORDERS) if side is SOURCE else (imports.target, REMOTE)
    cluster.offsets[GROUP] = {key: Committed(9)}
    imports.target.offsets[FLOWS][REMOTE] = Committed(17)
    imports.source.others = [other]
    with pytest.raises(Retriable, match=text):
        imports(side, dry_run=dry_run)
    assert imports.added == {}
    assert imports.target.offsets[FLOWS] == {REMOTE: Committed(17)}
    imports.source.others = [_topic("orders", 1, 1), _topic("hidden", 5)]
    imports(side, dry_run=dry_run)
    assert imports.added == ({} if dry_run else {ORDERS: 9})


@pytest.mark.parametrize("side", [SOURCE, TARGET])
def test_a_flow_that_begins_at_the_end_begins_at_the_import(
    imports: Imports, side: GroupSide
) -> None:
    """Goal: what is written before a node first looks is copied, and a dry run reads the ends."""
    cluster, key = (imports.source, ORDERS) if side is SOURCE else (imports.target, REMOTE)
    cluster.offsets[GROUP] = {key: Committed(9)}
    imports.source.ends = {ORDERS: 20}
    imports(side)
    assert imports.followed_from == {}, "it begins at the log start"
    latest = flow_properties({**SETTINGS, "consumer.auto.offset.reset": "latest"}, "a", "b")
    imports.mirror = replace(MIRROR, source=latest)
    imports.added.clear()
    for dry_run in (True, False):
        with pytest.raises(Retriable, match="the end of partition 1 is unknown"):
            imports(side, dry_run=dry_run)
    assert imports.added == {}
    imports.source.ends[TopicPartition("orders", 1)] = 4
    imports(side)
    assert imports.added == {ORDERS: 9}
    assert imports.followed_from == {"orders": (20, 4)}
