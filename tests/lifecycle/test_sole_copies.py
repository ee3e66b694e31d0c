"""No two flows copy a topic of one cluster to the same remote topic: every way to add one.

The store is the real one, with its records in memory. A change is decided again if another one was
written meanwhile, as a fenced writer does. With brokers: tests/end_to_end/test_changed_files.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import NO_TOPIC_ID, Partition, Topic
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle import changes, flow_creation, flow_positions, flow_topics
from twinlog.lifecycle.changes import alter_mirror
from twinlog.lifecycle.flow_creation import create_flow, stored_properties, take_over_topics
from twinlog.lifecycle.flow_positions import GroupSide, import_positions
from twinlog.lifecycle.flow_selection import select_again
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import flow_of
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.mirrors import Decide, MirrorStore
from twinlog.store.offset_log import StoredOffsets
from twinlog.store.offset_records import BegunPartition, Route
from twinlog.store.snapshot import SettingsReplaced, Snapshot

CLUSTER = cast("Any", SimpleNamespace(config=SimpleNamespace(grants=None), cluster_id="target"))
NAMES = ("a-to-b", "c-to-b")
"""Two aliases of one cluster."""
IDENTITY = {"enabled": "true", "replication.policy.class": "IdentityReplicationPolicy"}
DROPS = {"transforms": "d", "transforms.d.type": "DropHeaders", "transforms.d.headers": "h"}
ID, OTHER_ID = UUID(int=1), UUID(int=2)
TWICE = "of the same cluster s to t: with flow .*, the topic would have its records twice"


def flow(name: str, cluster_id: str = "s", **values: str) -> Mirror:
    source, _, target = name.partition("-to-")
    values = {**IDENTITY, **values}
    properties = stored_properties({"bootstrap.servers": "a:1"}, values, source, target)
    return Mirror(name=name, source=properties, source_cluster_id=cluster_id)


def topic(mirror: str, name: str = "t", remote: str | None = None, **more: Any) -> MirrorTopic:
    values: dict[str, Any] = {"topic_id": ID, "partitions": 1, "destination_topic": remote}
    return MirrorTopic(mirror=mirror, topic=name, **{**values, **more})


STOPPED: Mapping[str, Any] = {"wanted": Wanted.STOPPED}
LEFT_OUT: Mapping[str, Any] = {"wanted": Wanted.STOPPED, "not_selected": True}


class Store(MirrorStore):
    """All of the store but its topics."""

    def __init__(self, *records: ConfigRecord) -> None:
        self.records = {key_of(record): record for record in records}
        self.version = 0
        self.fenced = 0
        self.begun: list[BegunPartition] = []
        """What is recorded of flows in `__mirror_offsets`."""

    def __call__(self, _: object) -> "Store":
        return self

    async def snapshot(self) -> Snapshot:
        return Snapshot(dict(self.records))

    async def states(self) -> Any:
        return SimpleNamespace(state=lambda _: State.STOPPED)

    async def _of_recreated(self, *_: object) -> list[Any]:
        return []

    async def change(self, decide: Decide) -> None:
        while True:
            version = self.version
            decided = decide(await self.snapshot())
            records = await decided if isinstance(decided, Awaitable) else decided
            await asyncio.sleep(0)
            if version == self.version:
                break
            self.fenced += 1
        self.version += 1
        self.records |= {key_of(record): record for record in cast("Any", records)}

    def copies(self, name: str = "t") -> list[str]:
        """The flows that copy a topic."""
        return [
            record.mirror
            for record in self.records.values()
            if isinstance(record, MirrorTopic)
            and (record.topic, record.wanted) == (name, Wanted.MIRRORING)
        ]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
def test_of_two_flows_that_add_a_topic_at_once_one_does(order: tuple[str, str]) -> None:
    """Goal: both have seen that no flow has it; the later change sees that the other one has."""
    store = Store(*map(flow, NAMES))

    async def run() -> list[BaseException | None]:
        adds = (store.add_topics(name, [topic(name)]) for name in order)
        return await asyncio.gather(*adds, return_exceptions=True)

    first, second = asyncio.run(run())
    assert first is None
    assert isinstance(second, UserError)
    text = f"flow {order[0]} copies t of the same cluster s to t: with flow {order[1]}"
    assert text in str(second)
    assert f"leave it out of flow {order[1]} (topics.exclude)" in second.hint
    assert (store.fenced, store.copies()) == (1, [order[0]])


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_topic_that_is_selected_again_is_not_copied_twice(
    order: tuple[str, str], at_once: bool
) -> None:
    """Goal: an earlier version has added it to both; whoever is second does not go on with it."""
    store = Store(*map(flow, NAMES), *(topic(name, **LEFT_OUT) for name in NAMES))
    if not at_once:
        store.records |= {key_of(one): one for one in [topic(order[0])]}

    async def again(name: str) -> object:
        snapshot = await store.snapshot()
        (own,) = snapshot.topics_of(name)
        return await select_again(store, snapshot.mirrors[name], own)

    with pytest.raises(UserError, match=f"flow {order[0]} .* {TWICE}"):
        asyncio.run(again(order[1]))
    assert store.copies() == ([] if at_once else [order[0]])


@pytest.mark.parametrize(
    ("other", "copied", "refused"),
    [
        (flow("a-to-b"), topic("a-to-b"), "copies"),
        (flow("a-to-b"), topic("a-to-b", wanted=Wanted.PAUSED), "copies"),
        # It copies the new topic once it has noticed it.
        (flow("a-to-b"), topic("a-to-b", topic_id=OTHER_ID), "copies"),
        # What it has copied is there, whoever has removed the topic.
        (flow("a-to-b"), topic("a-to-b", **STOPPED), "has copied"),
        (flow("a-to-b"), topic("a-to-b", **LEFT_OUT), "has copied"),
        (flow("a-to-b"), topic("a-to-b", **STOPPED, topic_id=NO_TOPIC_ID), "has copied"),
        # Records of another topic of the source.
        (flow("a-to-b"), topic("a-to-b", **STOPPED, topic_id=OTHER_ID), ""),
        # Another cluster, remote topic, or source topic: an aggregation.
        (flow("a-to-b", "other"), topic("a-to-b"), ""),
        (flow("a-to-b"), topic("a-to-b", remote="a.t"), ""),
        (flow("a-to-b"), topic("a-to-b", "u", "t"), ""),
        # Each may copy other records.
        (flow("a-to-b", **DROPS), topic("a-to-b"), ""),
        (flow("a-to-b"), topic("c-to-b", "u", "t"), ""),
    ],
)
@pytest.mark.parametrize("former", [None, topic("c-to-b", **STOPPED, source_deleted=True)])
def test_which_topics_of_another_flow_count(
    other: Mirror, copied: MirrorTopic, refused: str, former: MirrorTopic | None
) -> None:
    """Goal: only copies of the same records; also if the flow adds a recreated topic again."""
    own = [] if former is None else [replace(former, topic_id=UUID(int=9))]
    store = Store(other, copied, flow("c-to-b"), *own)
    message = ""
    try:
        asyncio.run(store.add_topics("c-to-b", [topic("c-to-b")]))
    except UserError as error:
        message = str(error)
    assert (f"flow a-to-b {refused} t of the same cluster s to t" in message) == bool(refused)
    assert ("c-to-b" in store.copies()) == (not refused)


def test_a_recreated_topic_stays_with_the_flow_that_had_it() -> None:
    """Goal: two flows that have both had it do not wait for each other."""
    again = topic("a-to-b", **STOPPED, source_deleted=True, topic_id=OTHER_ID)
    never_had = Store(flow("a-to-b"), again, flow("c-to-b"))
    with pytest.raises(UserError, match="flow a-to-b has copied t"):
        asyncio.run(never_had.add_topics("c-to-b", [topic("c-to-b")]))
    both = Store(flow("a-to-b"), again, flow("c-to-b"), replace(again, mirror="c-to-b"))
    asyncio.run(both.add_topics("c-to-b", [topic("c-to-b")]))
    with pytest.raises(UserError, match="flow c-to-b copies t"):
        asyncio.run(both.add_topics("a-to-b", [topic("a-to-b")]))


@pytest.mark.parametrize("own", [{}, DROPS])
@pytest.mark.parametrize(("name", "refused"), [("heartbeats", False), ("t", True)])
def test_flows_may_share_heartbeats_and_topics_that_they_transform(
    own: dict[str, str], name: str, refused: bool
) -> None:
    alias = {"source.cluster.alias": "A", "replication.policy.class": "DefaultReplicationPolicy"}
    store = Store(flow("a-to-b", **alias), flow("c-to-b", **alias, **own))
    added = [topic(mirror, name, f"A.{name}") for mirror in NAMES]
    asyncio.run(store.add_topics("a-to-b", added[:1]))
    if refused and not own:
        with pytest.raises(UserError, match="records twice"):
            asyncio.run(store.add_topics("c-to-b", added[1:]))
        assert store.copies(name) == ["a-to-b"]
    else:
        asyncio.run(store.add_topics("c-to-b", added[1:]))
        assert store.copies(name) == [*NAMES]


@pytest.mark.parametrize("wanted", list(Wanted))
@pytest.mark.parametrize("cluster_id", ["s", "other"])
def test_what_an_exact_mirror_copies_is_not_copied_by_a_flow(
    wanted: Wanted, cluster_id: str
) -> None:
    """Goal: also after its failover, unless the records are those of another cluster."""
    exact = Mirror(name="exact", source={}, source_cluster_id=cluster_id)
    store = Store(exact, topic("exact", wanted=wanted), flow("c-to-b"))
    added = store.add_topics("c-to-b", [topic("c-to-b")])
    if wanted is not Wanted.STOPPED:
        with pytest.raises(MirrorRefused) as refused:
            asyncio.run(added)
        assert refused.value.kind is MirrorError.TOPIC_ALREADY_IN_MIRROR
    elif cluster_id == "s":
        with pytest.raises(UserError, match=f"mirror exact has copied t {TWICE}") as twice:
            asyncio.run(added)
        assert "kafka-mirrors --delete --mirror exact" in twice.value.hint
    else:
        asyncio.run(added)
    assert ("c-to-b" in store.copies()) == (wanted is Wanted.STOPPED and cluster_id != "s")


def test_an_exact_mirror_may_have_what_a_flow_has_copied() -> None:
    """Goal: it compares the logs, and refuses records that the source does not have there."""
    exact = Mirror(name="exact", source={}, source_cluster_id="s")
    store = Store(exact, flow("a-to-b"), topic("a-to-b", **STOPPED))
    asyncio.run(store.add_topics("exact", [topic("exact")]))
    assert store.copies() == ["exact"]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A flow that copies `t`, and another one; a source that has `t` and `u`, as the target does.

    Nothing is created on the target: whoever tries fails.
    """
    store = Store(
        flow("a-to-b"), topic("a-to-b"), flow("c-to-b", **{"twinlog.takeover": "compare"})
    )
    topics = {
        name: Topic(name, ID, internal=False, partitions={0: Partition(1, 0, (1,), (1,))})
        for name in ("t", "u")
    }

    class Source:
        cluster_id = "s"

        async def refresh(self, _: object) -> Any:
            return SimpleNamespace(topics=topics)

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[Source]:
        yield Source()

    async def existing(_: object, names: set[str]) -> dict[str, Topic]:
        return {name: topics[name] for name in names & topics.keys()}

    async def nothing(*_: object) -> Any:
        return []

    for module in (changes, flow_creation, flow_positions, flow_topics):
        monkeypatch.setattr(module, "MirrorStore", store)
    for module in (changes, flow_creation, flow_positions):
        monkeypatch.setattr(module, "connected_source", connected)
    monkeypatch.setattr(flow_creation, "connected", connected)
    monkeypatch.setattr(flow_creation, "existing_topics", existing)
    monkeypatch.setattr(flow_topics, "existing_topics", existing)
    monkeypatch.setattr(flow_topics, "offsets_topic_id", nothing)
    monkeypatch.setattr(flow_topics, "require_all_shown", nothing)
    monkeypatch.setattr(flow_creation, "copied_to", nothing)

    async def recorded(_: object) -> Mapping[int, StoredOffsets]:
        return {0: StoredOffsets(begun={one.name: one for one in store.begun})}

    monkeypatch.setattr(flow_creation, "read_offsets", recorded)
    monkeypatch.setattr(flow_positions, "_asked", nothing)
    monkeypatch.setattr(flow_positions, "_offsets_of", nothing)
    monkeypatch.setattr(flow_positions, "_of_source", lambda *_: {TopicPartition("t", 0): None})
    for name in ("begins", "check_copied"):
        monkeypatch.setattr(FlowTakeover, name, nothing)
    return store


def test_a_refused_topic_changes_nothing_on_the_target(clusters: Store) -> None:
    """Goal: a node refuses it at each refresh, before it reads or creates remote topics."""
    mirror = flow("c-to-b", **{"twinlog.takeover": "compare"})
    add = FlowClusters(
        destination=CLUSTER, source=CLUSTER, mirror=mirror, flow=flow_of(mirror.source)
    )
    source = asyncio.run(_topics())
    with pytest.raises(UserError, match=TWICE):
        asyncio.run(add.add(source, {"t": "t"}))
    assert clusters.version == 0
    assert asyncio.run(add.add(source, {"u": "u"})) == []
    assert clusters.copies("u") == ["c-to-b"]


@pytest.mark.parametrize(("is_usual", "stored"), [(True, ()), (False, (5,))])
def test_only_a_begin_that_is_not_usual_is_stored(
    clusters: Store, monkeypatch: pytest.MonkeyPatch, is_usual: bool, stored: tuple[int, ...]
) -> None:
    """Goal: a partition of which only a line tells begins as others do."""
    begun = TakenOver(TopicPartition("u", 0), Offset(5), Offset(9), is_usual=is_usual)

    async def begins(*_: object) -> list[TakenOver]:
        return [begun]

    monkeypatch.setattr(FlowTakeover, "begins", begins)
    mirror = flow("c-to-b", **{"twinlog.takeover": "compare"})
    add = FlowClusters(
        destination=CLUSTER, source=CLUSTER, mirror=mirror, flow=flow_of(mirror.source)
    )
    assert asyncio.run(add.add(asyncio.run(_topics()), {"u": "u"})) == [begun]
    [added] = [one for one in clusters.records.values() if getattr(one, "topic", "") == "u"]
    assert cast("MirrorTopic", added).begins == stored


def test_a_change_of_kind_names_how_the_flow_begins_anew(clusters: Store) -> None:
    """Goal: what flows of its name have recorded does not count again, which the hint prevents."""
    properties = flow("c-to-b", **{"transaction.producer": "true"}).source
    with pytest.raises(UserError, match="keep their positions in different places") as refused:
        asyncio.run(create_flow(CLUSTER, "c", "b", properties))
    assert "twinlog flows delete --forget-offsets" in refused.value.hint
    assert clusters.version == 0


async def _topics() -> dict[str, Topic]:
    async with cast("Any", flow_creation).connected() as source:
        return dict((await source.refresh(None)).topics)


def test_a_takeover_leaves_out_what_another_flow_copies(clusters: Store) -> None:
    """Goal: one topic that was created later does not keep a whole file from starting."""
    assert asyncio.run(take_over_topics(CLUSTER, "c-to-b")) == []
    assert (clusters.copies("t"), clusters.copies("u")) == (["a-to-b"], ["c-to-b"])


def test_an_import_of_positions_refuses_the_topic(clusters: Store) -> None:
    with pytest.raises(UserError, match=TWICE):
        asyncio.run(import_positions(CLUSTER, "c-to-b", "group", GroupSide.SOURCE))
    assert clusters.version == 0


def test_a_flow_that_would_copy_a_topic_again_is_not_created(clusters: Store) -> None:
    with pytest.raises(UserError, match=TWICE):
        asyncio.run(create_flow(CLUSTER, "d", "b", flow("d-to-b").source))
    assert clusters.version == 0


@pytest.mark.parametrize("cluster_id", ["s", "t"])
def test_a_flow_from_a_cluster_to_itself_is_refused_before_anything_is_created(
    clusters: Store, monkeypatch: pytest.MonkeyPatch, cluster_id: str
) -> None:
    """Goal: the user's aliases are named, and no control topic is left behind."""
    created: list[str] = []
    named: list[str] = []
    connected = cast("Any", flow_creation).connected

    def connect(config: object, name: str) -> Any:
        named.append(name)  # in errors, if it does not answer
        return connected(config, name)

    monkeypatch.setattr(flow_creation, "connected", connect)

    async def create_control_topics(*_: object) -> None:
        created.append("control topics")
        raise UserError("this far")

    monkeypatch.setattr(flow_creation, "create_control_topics", create_control_topics)
    clusters.records.clear()
    target = cast("Any", SimpleNamespace(cluster_id=cluster_id))
    expected = "^d and b are the same cluster: s;" if cluster_id == "s" else "this far"
    properties = flow("d-to-b", topics="of-no-topic").source
    with pytest.raises(UserError, match=expected):
        asyncio.run(create_flow(target, "d", "b", properties))
    assert len(created) == (cluster_id != "s")
    assert named == ["d"]


def created_flows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the flows that are created from now on; MirrorMaker 2 has copied nothing."""
    created: list[str] = []

    async def create(_: object, name: str, *__: object, **___: object) -> None:
        created.append(name)

    async def check(*_: object) -> None: ...

    monkeypatch.setattr(flow_creation, "create_mirror", create)
    monkeypatch.setattr(FlowTakeover, "check", check)
    return created


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_flow_with_a_map_does_not_begin_with_topics_that_are_routed_to_one(
    monkeypatch: pytest.MonkeyPatch, *, is_mapped: bool
) -> None:
    """Goal: the start says so, and not only a node's log; without a map they are merged."""
    values = {
        "enabled": "true",
        "topics": ".*",
        "transforms": "all",
        "transforms.all.type": "RegexRouter",
        "transforms.all.regex": ".*",
        "transforms.all.replacement": "all",
        "twinlog.offset.map": str(is_mapped).lower(),
    }
    properties = stored_properties({"bootstrap.servers": "a:1"}, values, "d", "b")
    created = created_flows(monkeypatch)
    if is_mapped:
        with pytest.raises(UserError, match="t and u would both be copied to all") as refused:
            asyncio.run(create_flow(CLUSTER, "d", "b", properties))
        assert "twinlog.offset.map" in refused.value.hint
        assert created == []
    else:
        asyncio.run(create_flow(CLUSTER, "d", "b", properties))
        assert created == ["d-to-b"]


ROUTES = {
    "transforms": "eu",
    "transforms.eu.type": "RegexRouter",
    "transforms.eu.regex": ".*",
    "transforms.eu.replacement": "eu-$0",
}
MAP = {"twinlog.offset.map": "true"}


@pytest.mark.parametrize(
    ("former", "values", "refused"),
    [
        ("t", {**ROUTES, **MAP}, True),
        ("eu-t", ROUTES, True),
        ("t", ROUTES, False),
        ("eu-t", {**ROUTES, **MAP}, False),
        # Other names are a way to copy all anew; a takeover says where it goes on.
        ("eu-t", DROPS, False),
        ("t", {**ROUTES, **MAP, "twinlog.takeover": "recorded"}, False),
    ],
)
def test_a_flow_that_would_route_its_records_again_is_not_created(
    clusters: Store,
    monkeypatch: pytest.MonkeyPatch,
    former: str,
    values: dict[str, str],
    refused: bool,
) -> None:
    """Goal: deleted and created again, with the map or without, it goes on or does not begin."""
    route = Route(ID, former, None)
    clusters.begun = [
        BegunPartition(MirrorPartition("d-to-b", "t", 0), route),
        BegunPartition(MirrorPartition("d-to-b", "gone", 0), route),
        BegunPartition(MirrorPartition("d-to-b", "u", 0), route._replace(source_topic_id=OTHER_ID)),
        BegunPartition(MirrorPartition("e-to-b", "u", 0), route),
    ]
    created = created_flows(monkeypatch)
    properties = flow("d-to-b", **values).source
    if not refused:
        clusters.records = {k: v for k, v in clusters.records.items() if k[0] == "mirror"}
        asyncio.run(create_flow(CLUSTER, "d", "b", properties))
        assert created == ["d-to-b"]
        return
    with pytest.raises(UserError, match=f"t-0 was copied to {former} before") as e:
        asyncio.run(create_flow(CLUSTER, "d", "b", properties))
    assert "twinlog flows delete --forget-offsets" in e.value.hint
    assert created == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # No position at `eu-t` in a flow that routes the records of `eu-t` to `eu-eu-t`.
        ({**ROUTES, **MAP}, ROUTES),
        (ROUTES, {**ROUTES, **MAP}),
        ({}, {"source.cluster.alias": "other"}),
        ({}, {"replication.policy.class": "DefaultReplicationPolicy"}),
        ({}, {"topics.exclude": "u"}),
        ({}, {"enabled": "false"}),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_node_adds_no_topic_by_settings_that_are_outdated(
    clusters: Store,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str],
    after: dict[str, str],
    late: bool,
) -> None:
    """Goal: no topic is copied for good under a former name, or although it is excluded by now.

    Nothing is created if the settings were replaced before; the change itself finds it later.
    """
    mirror, present = flow("c-to-b", **before), flow("c-to-b", **after)
    clusters.records = {key_of(one): one for one in [mirror if late else present]}
    created: list[str] = []

    async def create(_: FlowClusters, __: object, names: Mapping[str, str]) -> dict[str, UUID]:
        created.extend(names)
        clusters.records = {key_of(present): present}
        return dict.fromkeys(names.values(), ID)

    async def undo(*_: object) -> None:
        raise AssertionError("the present settings may have added it to a flow")

    monkeypatch.setattr(flow_topics, "undo", undo)
    monkeypatch.setattr(FlowClusters, "_create", create)
    add = FlowClusters(
        destination=CLUSTER, source=CLUSTER, mirror=mirror, flow=flow_of(mirror.source)
    )
    source = asyncio.run(_topics())
    with pytest.raises(SettingsReplaced, match="settings of flow c-to-b have changed"):
        asyncio.run(add.add(source, {"u": "u"}))
    assert clusters.copies("u") == []
    assert created == (["u"] if late else [])


def test_settings_that_are_the_same_add_a_topic(clusters: Store) -> None:
    mirror = flow("c-to-b", **ROUTES, **MAP)
    clusters.records = {key_of(mirror): mirror}
    add = FlowClusters(
        destination=CLUSTER, source=CLUSTER, mirror=mirror, flow=flow_of(mirror.source)
    )
    asyncio.run(add.add(asyncio.run(_topics()), {"u": "u"}))
    assert clusters.copies("u") == ["c-to-b"]


@pytest.mark.parametrize("same", [True, False])
def test_a_start_refuses_what_two_flows_have(clusters: Store, same: bool) -> None:
    """Goal: also with the same settings, as an earlier version has added the topic to both."""
    values = {"twinlog.takeover": "compare", **({} if same else {"topics": "t"})}
    clusters.records |= {key_of(one): one for one in [topic("c-to-b")]}
    with pytest.raises(UserError, match=f"flow a-to-b copies t {TWICE}") as refused:
        asyncio.run(create_flow(CLUSTER, "c", "b", flow("c-to-b", **values).source))
    assert "kafka-mirrors --remove --mirror c-to-b --topic t" in refused.value.hint
    assert clusters.version == 0


def test_transforms_are_not_dropped_from_a_topic_that_flows_share(
    clusters: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the change itself sees a flow that has added the topic since the command looked."""
    both = {"transaction.producer": "true"}
    without = flow("c-to-b", **both).source
    records: list[Mirror | MirrorTopic] = [
        flow("a-to-b", **both),
        flow("c-to-b", **both, **DROPS),
        topic("c-to-b"),
    ]
    clusters.records = {key_of(one): one for one in records}

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        await clusters.add_topics("a-to-b", [topic("a-to-b")])
        yield

    monkeypatch.setattr(changes, "connected_source", connected)
    with pytest.raises(UserError, match=f"flow a-to-b copies t {TWICE}"):
        asyncio.run(alter_mirror(CLUSTER, "c-to-b", without, replaces=True))
    assert clusters.records["mirror", "c-to-b"] == records[1]
