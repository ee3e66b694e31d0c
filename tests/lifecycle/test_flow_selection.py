"""What becomes of a stored flow when its settings change, with the store in memory.

With brokers: tests/end_to_end/test_changed_files.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.lifecycle import changes, flow_creation, flow_selection
from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.lifecycle.flow_selection import (
    follow_selection,
    other_flows,
    pause_flow,
    paused_line,
    require_same_names,
    resume_flow,
    select_again,
    switch_off,
)
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import flow_of, flow_properties
from twinlog.mirror.settings import FLOW_PREFIX, RATE, REPLICAS
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot

CLUSTER = cast("KafkaCluster", None)
ON = {"enabled": "true"}
IDENTITY = {**ON, "replication.policy.class": "IdentityReplicationPolicy"}


def flow(
    name: str = "a-to-b", values: Mapping[str, str] = ON, cluster_id: str = "source"
) -> Mirror:
    source, _, target = name.partition("-to-")
    properties = flow_properties(values, source, target)
    return Mirror(name=name, source=properties, source_cluster_id=cluster_id)


def topic(name: str, mirror: str = "a-to-b", remote: str = "", **more: Any) -> MirrorTopic:
    return MirrorTopic(
        mirror=mirror,
        topic=name,
        topic_id=UUID(int=1),
        partitions=2,
        destination_topic=remote or f"a.{name}",
        begins=(60, 7),
        followed_from=(3, 4),
        **more,
    )


def removed(topic: MirrorTopic) -> MirrorTopic:
    return replace(topic, wanted=Wanted.STOPPED, not_selected=True)


class Store:
    """The store of a target."""

    def __init__(self, *records: ConfigRecord) -> None:
        self.records = {key_of(record): record for record in records}
        self.changes = 0
        self.before_change: list[ConfigRecord] = []
        """What others write before the next change."""
        self.stopped = True

    def __call__(self, _: object) -> "Store":
        return self

    async def snapshot(self) -> Snapshot:
        return Snapshot(dict(self.records))

    async def check_addable(self, *_: object) -> None:
        if not self.stopped:
            raise MirrorError.MIRROR_TOPIC_BEING_REMOVED.error("it is STOPPING")

    async def change(self, decide: Callable[[Snapshot], Any]) -> None:
        self.changes += 1
        self.write(self.before_change)
        changes = decide(await self.snapshot())
        self.write(await changes if isinstance(changes, Awaitable) else changes)

    def write(self, records: list[ConfigRecord]) -> None:
        self.records |= {key_of(record): record for record in records}

    def topic(self, name: str) -> MirrorTopic:
        found = self.records["topic", "a-to-b", name]
        assert isinstance(found, MirrorTopic)
        return found


def change_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have flows created and altered in this store; their sources answer."""

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        yield

    for module in (flow_creation, changes):
        monkeypatch.setattr(module, "MirrorStore", store)
    monkeypatch.setattr(changes, "connected_source", connected)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A flow that has topics of all kinds, whose settings select those that begin with `t`."""
    store = Store(
        flow(values={**ON, "topics": "t.*"}),
        topic("t-on"),
        topic("t-removed", wanted=Wanted.STOPPED),
        removed(topic("t-again")),
        topic("on"),
        topic("paused", wanted=Wanted.PAUSED),
        topic("removed", wanted=Wanted.STOPPED),
        removed(topic("off")),
    )
    monkeypatch.setattr(flow_selection, "MirrorStore", store)
    return store


def test_topics_that_are_no_longer_selected_are_removed(stored: Store) -> None:
    """Goal: as from MirrorMaker 2's tasks; what an operator has done stays."""
    before = dict(stored.records)
    lines = asyncio.run(follow_selection(CLUSTER, "a-to-b"))
    assert lines == [
        "on is not selected any more: it is removed from the flow, and a.on stays as it is",
        "t-again is selected again: it goes on where it was",
    ]
    on = topic("on")
    assert stored.records == {**before, key_of(on): removed(on)}
    assert asyncio.run(follow_selection(CLUSTER, "a-to-b")) == lines[1:]
    assert stored.changes == 1, "a start that changes nothing fences no other writer"


@pytest.mark.parametrize(
    "settings",
    [
        {"topics": "t.*"},
        {"topics.exclude": "heartbeats, p.*"},
        {"topics": "t.*", "heartbeats.replication.enabled": "false"},
    ],
)
def test_all_settings_that_select_topics_count(stored: Store, settings: dict[str, str]) -> None:
    stored.records = Store(
        flow(values={**ON, **settings}), topic("t"), topic("payroll"), topic("heartbeats")
    ).records
    asyncio.run(follow_selection(CLUSTER, "a-to-b"))
    assert stored.topic("t").wanted is Wanted.MIRRORING
    assert stored.topic("payroll").not_selected
    kept = settings.get("heartbeats.replication.enabled") != "false"
    assert (stored.topic("heartbeats").wanted is Wanted.MIRRORING) == kept


def test_what_is_stored_decides_and_not_what_a_start_has_read(stored: Store) -> None:
    """Goal: of two starts at once with other files, the topics are those of the last settings."""
    stored.before_change = [flow(values=ON)]
    assert asyncio.run(follow_selection(CLUSTER, "a-to-b"))[:-1] == []
    assert stored.topic("on").wanted is Wanted.MIRRORING


@pytest.mark.parametrize(
    "values",
    [
        {**ON, "replication.policy.separator": "_"},
        {**ON, "source.cluster.alias": "other"},
        IDENTITY,
    ],
)
@pytest.mark.parametrize(
    "state", [{}, {"wanted": Wanted.PAUSED}, {"wanted": Wanted.STOPPED, "not_selected": True}]
)
def test_other_remote_names_are_refused(values: dict[str, str], state: dict[str, Any]) -> None:
    """Goal: new topics do not get other names than those that the flow has."""
    snapshot = Snapshot({key_of(one): one for one in (flow(), topic("t", **state))})
    with pytest.raises(UserError, match=r"t would be copied to \S+ by .* copies it to a\.t") as e:
        require_same_names(snapshot, "a-to-b", flow(values=values).source)
    assert "twinlog flows delete --flow a-to-b" in e.value.hint
    assert "kafka-mirrors --remove --mirror a-to-b --topic 't'" in e.value.hint
    for same in (ON, {**values, "topics": "x"}):  # what is not selected has no name
        require_same_names(snapshot, "a-to-b", flow(values=same).source)
    gone = topic("t", wanted=Wanted.STOPPED)
    snapshot = Snapshot({key_of(one): one for one in (flow(), gone)})
    require_same_names(snapshot, "a-to-b", flow(values=values).source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("source.cluster.alias", "other"), ("replication.policy.class", "IdentityReplicationPolicy")],
)
def test_an_altered_flow_keeps_the_remote_names_of_its_topics(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Goal: `kafka-mirrors --alter` is refused as a start is; by what the flow is to have in all.

    The change itself sees a topic that a node has added since. Other properties name no topics.
    """
    store = Store(flow(values={**ON, "replication.policy.separator": "."}))
    change_in(store, monkeypatch)
    admin = MirrorAdmin({"bootstrap.servers": "b:1"})
    admin._cluster = cast("Any", SimpleNamespace(config=SimpleNamespace(grants=None)))

    def alter(**properties: str) -> None:
        asyncio.run(admin.alter_mirror("a-to-b", properties))

    alter(**{f"{FLOW_PREFIX}topics": "t"})
    stored = dict(store.records)
    store.before_change = [topic("t")]
    with pytest.raises(UserError, match=r"t would be copied to \S+ by .* copies it to a\.t"):
        alter(**{f"{FLOW_PREFIX}{name}": value})
    assert store.records == {**stored, key_of(topic("t")): topic("t")}
    alter(**{f"{FLOW_PREFIX}topics": "t|u", f"{FLOW_PREFIX}source.cluster.alias": "a"})
    # A topic that has another name for a reason of its own does not hold up a throttle.
    store.before_change = [topic("t", remote="formerly")]
    alter(**{RATE: "7"})
    alter(**{f"{FLOW_PREFIX}twinlog.data.loss": "continue"})
    with pytest.raises(UserError, match="copies it to formerly"):
        alter(**{f"{FLOW_PREFIX}topics": "t|u|v"})  # as it may select such a topic again
    found = store.records["mirror", "a-to-b"]
    assert isinstance(found, Mirror)
    assert found.source.items() >= {RATE: "7", f"{FLOW_PREFIX}topics": "t|u"}.items()


ROUTED = {
    **ON,
    "transforms": "route",
    "transforms.route.type": "RegexRouter",
    "transforms.route.regex": "a[.](.*)",
    "transforms.route.replacement": "eu.$1",
}
MAPPED = {**ROUTED, "twinlog.offset.map": "true"}


def routed_flow(values: Mapping[str, str]) -> Mirror:
    properties = stored_properties({"bootstrap.servers": "a:1"}, values, "a", "b")
    return Mirror(name="a-to-b", source=properties, source_cluster_id="source")


@pytest.mark.parametrize(
    "state", [{}, {"wanted": Wanted.PAUSED}, {"wanted": Wanted.STOPPED}, {"topics": "none"}]
)
def test_a_map_of_routed_records_is_not_switched_for_topics_that_a_flow_has(
    state: dict[str, Any],
) -> None:
    """Goal: no position is left behind at another topic, and nothing is copied twice to one."""
    more = {"topics": state.pop("topics")} if "topics" in state else {}
    for before, after, remote, way in (
        (ROUTED, MAPPED, "a.t", "on"),
        (MAPPED, ROUTED, "eu.t", "off"),
    ):
        stored = routed_flow(before)
        snapshot = Snapshot(
            {key_of(one): one for one in (stored, topic("t", remote=remote, **state))}
        )
        with pytest.raises(UserError, match=f"can be switched {way} only before") as error:
            require_same_names(snapshot, "a-to-b", routed_flow({**after, **more}).source)
        assert "twinlog.offset.map and transforms as before" in error.value.hint
        require_same_names(snapshot, "a-to-b", routed_flow({**before, **more}).source)
        require_same_names(Snapshot({key_of(stored): stored}), "a-to-b", routed_flow(after).source)


@pytest.mark.parametrize(
    ("before", "after", "remote"), [(ROUTED, MAPPED, "a.t"), (MAPPED, ROUTED, "eu.t")]
)
def test_a_topic_that_a_node_adds_while_a_map_is_switched_counts(
    stored: Store,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str],
    after: dict[str, str],
    remote: str,
) -> None:
    """Goal: the change itself sees it; what the start has read before shows no topic."""
    change_in(stored, monkeypatch)
    flow_before = routed_flow(before)
    stored.records = Store(flow_before).records
    stored.before_change = [topic("t", remote=remote)]
    cluster: Any = SimpleNamespace(config=SimpleNamespace(grants=None))
    with pytest.raises(UserError, match="only before the flow has topics"):
        asyncio.run(create_flow(cluster, "a", "b", routed_flow(after).source))
    assert stored.records["mirror", "a-to-b"] == flow_before


def test_the_hint_of_other_names_says_what_they_follow_from() -> None:
    """Goal: routed topics follow from transforms, and positions at the former ones are kept."""
    snapshot = Snapshot(
        {key_of(one): one for one in (routed_flow(MAPPED), topic("t", remote="eu.t"))}
    )
    other = routed_flow({**MAPPED, "transforms.route.replacement": "us.$1"})
    with pytest.raises(UserError, match=r"would be copied to us\.t") as error:
        require_same_names(snapshot, "a-to-b", other.source)
    assert "set source.cluster.alias, replication.policy.*, transforms and" in error.value.hint
    assert error.value.hint.endswith("delete --flow a-to-b --forget-offsets")


def test_a_map_of_records_that_no_name_routes_is_switched_as_in_any_flow() -> None:
    """Goal: no refusal where all topics keep their names."""
    elsewhere = {"transforms.route.regex": "c[.](.*)"}
    stored = routed_flow({**ROUTED, **elsewhere})
    snapshot = Snapshot({key_of(one): one for one in (stored, topic("t"))})
    require_same_names(snapshot, "a-to-b", routed_flow({**MAPPED, **elsewhere}).source)


def test_a_flow_that_is_disabled_is_switched_off_once(stored: Store) -> None:
    (line,) = asyncio.run(switch_off(CLUSTER, "a-to-b"))
    assert "flow a-to-b is switched off, and no longer copies 2 topic(s) (on, t-on)" in line
    assert stored.topic("on") == removed(topic("on"))
    assert stored.topic("t-on") == removed(topic("t-on"))
    assert stored.topic("paused").wanted is Wanted.PAUSED
    assert not stored.topic("t-removed").not_selected
    snapshot = asyncio.run(stored.snapshot())
    settings = flow_of(snapshot.mirrors["a-to-b"].source).settings
    assert not settings.enabled
    assert not settings.emits_heartbeats
    assert settings.selects_topic("t-on")
    assert not settings.selects_topic("on")
    assert other_flows(snapshot, []) == []
    assert asyncio.run(switch_off(CLUSTER, "a-to-b")) == []
    assert stored.changes == 1


def test_no_flow_is_nothing_to_switch_off(stored: Store) -> None:
    exact = Mirror(name="x-to-b", source={}, source_cluster_id="source")
    stored.write([exact])
    assert asyncio.run(switch_off(CLUSTER, "x-to-b")) == []
    assert asyncio.run(switch_off(CLUSTER, "none-to-b")) == []
    assert stored.changes == 0
    assert other_flows(asyncio.run(stored.snapshot()), []) == ["a-to-b"]
    assert other_flows(asyncio.run(stored.snapshot()), ["a-to-b"]) == []


def test_a_topic_that_is_selected_again_keeps_all_that_is_stored_of_it(stored: Store) -> None:
    """Goal: where it begins is not found out anew; nothing is copied again, or left out."""
    mirror = asyncio.run(stored.snapshot()).mirrors["a-to-b"]
    again = select_again(cast("Any", stored), mirror, stored.topic("t-again"))
    assert asyncio.run(again)
    assert stored.topic("t-again") == topic("t-again")


def test_a_flow_is_paused_and_resumed_as_a_whole(stored: Store) -> None:
    """Goal: a script may repeat both; what was removed stays removed, what comes back is paused."""
    before = dict(stored.records)
    assert asyncio.run(pause_flow(CLUSTER, "a-to-b")) == ["on", "t-on"]
    assert stored.topic("on") == topic("on", wanted=Wanted.PAUSED)
    mirror = asyncio.run(stored.snapshot()).mirrors["a-to-b"]
    assert paused_line(mirror).endswith("twinlog flows resume --flow a-to-b")
    assert asyncio.run(pause_flow(CLUSTER, "a-to-b")) == []
    assert stored.changes == 1, "a command that changes nothing fences no other writer"
    again = select_again(cast("Any", stored), mirror, stored.topic("t-again"))
    assert asyncio.run(again)
    assert stored.topic("t-again") == topic("t-again", wanted=Wanted.PAUSED)
    resumed = asyncio.run(resume_flow(CLUSTER, "a-to-b"))
    assert resumed == ["t-again", "t-on"], "the settings select no other one"
    now = [topic("t-again"), topic("t-on"), removed(topic("on")), removed(topic("paused"))]
    assert stored.records == before | {key_of(one): one for one in now}
    assert asyncio.run(resume_flow(CLUSTER, "a-to-b")) == []
    assert stored.changes == 3
    assert paused_line(asyncio.run(stored.snapshot()).mirrors["a-to-b"]) == ""


def test_a_paused_flow_that_is_switched_off_copies_nothing_once_it_is_resumed(
    stored: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the file decides what is copied, also if it has changed during the pause."""
    stored.records = Store(flow(), topic("t")).records
    asyncio.run(pause_flow(CLUSTER, "a-to-b"))
    asyncio.run(switch_off(CLUSTER, "a-to-b"))
    assert asyncio.run(resume_flow(CLUSTER, "a-to-b")) == []
    assert stored.topic("t") == removed(topic("t"))
    assert "t is not selected any more: it is removed from the flow" in caplog.text


def test_a_flow_is_paused_before_it_has_topics(stored: Store) -> None:
    """Goal: and what a node adds until the change itself is paused as well."""
    stored.records = Store(flow()).records
    stored.before_change = [topic("new")]
    assert asyncio.run(pause_flow(CLUSTER, "a-to-b")) == ["new"]
    assert stored.topic("new").wanted is Wanted.PAUSED
    exact = Mirror(name="x-to-b", source={}, source_cluster_id="source")
    stored.write([exact])
    with pytest.raises(UserError, match="x-to-b is no"):
        asyncio.run(pause_flow(CLUSTER, "x-to-b"))


def test_a_topic_is_not_selected_again_by_former_settings(stored: Store) -> None:
    former = flow()
    assert not asyncio.run(select_again(cast("Any", stored), former, stored.topic("t-again")))
    mirror = asyncio.run(stored.snapshot()).mirrors["a-to-b"]
    by_operator = topic("t-again", wanted=Wanted.STOPPED)
    stored.before_change = [by_operator]
    assert not asyncio.run(
        select_again(cast("Any", stored), mirror, removed(topic("t-again"))),
    )
    assert stored.topic("t-again") == by_operator


def test_a_topic_goes_on_once_its_partitions_are_stopped(stored: Store) -> None:
    stored.stopped = False
    mirror = asyncio.run(stored.snapshot()).mirrors["a-to-b"]
    with pytest.raises(MirrorRefused, match="STOPPING"):
        asyncio.run(select_again(cast("Any", stored), mirror, stored.topic("t-again")))
    assert stored.topic("t-again").not_selected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**ON, "replication.policy.separator": "_"}, "off would be copied to a_off"),
        (ON, "flow a1-to-b copies t-on of the same cluster"),
    ],
)
def test_settings_that_are_refused_are_not_stored(
    stored: Store, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(flow_creation, "MirrorStore", stored)
    stored.write([flow("a1-to-b"), topic("t-on", "a1-to-b", "a.t-on")])
    with pytest.raises(UserError, match=message):
        asyncio.run(create_flow(CLUSTER, "a", "b", flow(values=values).source))
    assert stored.changes == 0


def test_a_start_keeps_a_throttle_that_is_altered_meanwhile(
    stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a start drops no throttle, not even one that it has not read; its own file's counts."""
    values = {**ON, "topics": "t.*"}
    mirror = flow(values=values)

    def altered(*throttle: tuple[str, str]) -> Mirror:
        return replace(mirror, source={**mirror.source, **dict(throttle)})

    change_in(stored, monkeypatch)
    cluster: Any = SimpleNamespace(config=SimpleNamespace(grants=None))

    def start(properties: Mapping[str, str]) -> Mapping[str, str]:
        asyncio.run(create_flow(cluster, "a", "b", properties))
        found = stored.records["mirror", "a-to-b"]
        assert isinstance(found, Mirror)
        return found.source

    stored.write([altered((RATE, "7"), (REPLICAS, "t:0"))])
    assert start(mirror.source) == {**mirror.source, RATE: "7", REPLICAS: "t:0"}
    assert stored.changes == 0, "a start with the same settings writes nothing"

    other = flow(values={**values, "replication.factor": "1"}).source
    stored.before_change = [altered((RATE, "8"))]
    assert start(other) == {**other, RATE: "8"}
    stored.before_change = []
    assert start({**other, RATE: "9"}) == {**other, RATE: "9"}
    assert start(other) == {**other, RATE: "9"}, "a file without the line ends no throttle"
