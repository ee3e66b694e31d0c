"""`FlowAdmin` where a node changes the flow at the same time; no cluster."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file
from twinlog.mirror.settings import RATE, REFRESH
from twinlog.operations import flows
from twinlog.operations.describe import MirrorDescription
from twinlog.operations.flows import FlowAdmin
from twinlog.operations.results import DescribeMirrorsResult
from twinlog.store.config_records import (
    ConfigRecord,
    Mirror,
    MirrorTopic,
    NotMirrored,
    Wanted,
    key_of,
)
from twinlog.store.control_topics import ControlTopics
from twinlog.store.snapshot import Snapshot

FLOW = Mirror(
    name="A-to-B",
    source={"bootstrap.servers": "a:1"} | flow_properties({"enabled": "true"}, "A", "B"),
    source_cluster_id="s",
    replication_factor=None,
)


def topic(name: str, wanted: Wanted = Wanted.MIRRORING) -> MirrorTopic:
    return MirrorTopic(
        mirror=FLOW.name, topic=name, topic_id=UUID(int=1), partitions=1, wanted=wanted
    )


class Stored:
    """What is stored, and what is done to it; a node adds a topic before the first deletion."""

    def __init__(self, *records: ConfigRecord, added: str | None = None) -> None:
        self.records = {key_of(record): record for record in records}
        self.added = added
        self.kept: str | None = None
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, _cluster: object) -> "Stored":
        return self

    async def snapshot(self) -> Snapshot:
        return Snapshot(dict(self.records))

    async def remove(self, _cluster: object, _flow: str, topics: Collection[str]) -> list[str]:
        self.calls.append(("remove", tuple(topics)))
        for name in topics:
            self.records[key_of(topic(name))] = topic(name, Wanted.STOPPED)
        return list(topics)

    async def await_stopped(
        self, _describe: object, topics: Collection[str], _timeout_s: float, _tell: object
    ) -> tuple[()]:
        self.calls.append(("await", tuple(sorted(topics))))
        return ()

    async def delete(self, _cluster: object, flow: str, *, forget: Any = None) -> frozenset[Any]:
        if self.kept is not None:
            forget.keywords["tell"](self.kept)
        self.calls.append(("delete", (flow,) if forget is None else (flow, "and its offsets")))
        if self.added is not None:
            self.records[key_of(topic(self.added))] = topic(self.added)
            self.added = None
            raise MirrorError.MIRROR_NOT_EMPTY.error("a topic was added")
        return frozenset()


def admin(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> FlowAdmin:
    for name, fake in (
        ("MirrorStore", stored),
        ("remove_topics", stored.remove),
        ("await_stopped", stored.await_stopped),
        ("delete_mirror", stored.delete),
        ("_RETRY_S", 0.0),
    ):
        monkeypatch.setattr(flows, name, fake)
    cluster: Any = None
    describe: Any = None
    return FlowAdmin(cluster, ControlTopics(), describe)


def test_a_topic_that_a_node_adds_meanwhile_is_removed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a deletion does not fail because a node has just refreshed the flow's topics."""
    stored = Stored(FLOW, topic("t"), topic("gone", Wanted.STOPPED), added="new")
    deleted = asyncio.run(admin(stored, monkeypatch).delete(FLOW.name))
    assert deleted.removed == ("new", "t")
    assert stored.calls == [
        ("remove", ("t",)),
        ("await", ("gone", "t")),
        ("delete", (FLOW.name,)),
        ("remove", ("new",)),
        ("await", ("gone", "new", "t")),
        ("delete", (FLOW.name,)),
    ]


def test_what_is_recorded_is_deleted_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(FLOW, topic("gone", Wanted.STOPPED))
    deleted = asyncio.run(admin(stored, monkeypatch).delete(FLOW.name, forgets_offsets=True))
    assert deleted.forgot_offsets
    assert stored.calls[-1] == ("delete", (FLOW.name, "and its offsets"))


def test_positions_that_may_be_left_are_not_said_to_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the line is told, and a program that reads the result sees it, too."""
    stored = Stored(FLOW)
    stored.kept = "group g was not deleted"
    lines: list[str] = []
    flow_admin = admin(stored, monkeypatch)
    deleted = asyncio.run(flow_admin.delete(FLOW.name, forgets_offsets=True, tell=lines.append))
    assert not deleted.forgot_offsets
    assert lines == ["group g was not deleted"]


def test_a_flow_that_gets_topics_again_and_again_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Stored(FLOW, added="new")
    with pytest.raises(MirrorRefused, match="MIRROR_NOT_EMPTY"):
        asyncio.run(admin(stored, monkeypatch).delete(FLOW.name, timeout_s=0.0))
    assert [call for call, _ in stored.calls] == ["await", "delete"]


def test_only_flows_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the name of an exact mirror ends nothing of it."""
    exact = Mirror(name="m", source={}, source_cluster_id="s", replication_factor=None)
    flow_admin = admin(Stored(FLOW, exact), monkeypatch)
    for change in (flow_admin.delete, flow_admin.pause, flow_admin.resume):
        with pytest.raises(UserError, match="mirror m is no flow"):
            asyncio.run(change("m"))
        with pytest.raises(MirrorRefused, match="UNKNOWN_MIRROR"):
            asyncio.run(change("x-to-y"))


def test_an_alias_that_is_not_that_of_the_name_counts_as_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: --describe shows what names remote topics, MirrorMaker 2's worker, and a throttle."""
    own = flow_properties({"enabled": "true", "source.cluster.alias": "eu"}, "A", "B")
    more = {"bootstrap.servers": "a:1", RATE: "7", REFRESH: "1000"}
    mirror = replace(FLOW, source=more | own)
    flow_admin = admin(Stored(mirror), monkeypatch)

    async def describe(_: object) -> Any:
        return SimpleNamespace(mirrors=[SimpleNamespace(mirror="A-to-B")], unreadable=())

    monkeypatch.setattr(flow_admin, "_describe", describe)
    (found,) = asyncio.run(flow_admin.describe()).flows
    assert (found.source, found.target) == ("eu", "B")
    assert found.settings[RATE] == "7"
    assert set(found.changed) == {
        "enabled",
        "source.cluster.alias",
        "connect.group.id",
        "connect.offset.storage.topic",
        RATE,
    }


@pytest.mark.parametrize(
    ("topic_name", "partition", "error"),
    [
        ("other", 0, "TOPIC_NOT_IN_MIRROR: flow A-to-B copies nothing from a topic other"),
        ("t", 1, r"copies 1 partition\(s\) of t: expected a number below 1, not 1"),
    ],
)
def test_what_a_flow_does_not_copy_is_not_translated(
    topic_name: str, partition: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_admin = admin(Stored(FLOW, topic("t")), monkeypatch)
    with pytest.raises(UserError, match=error):
        asyncio.run(flow_admin.translate_offsets(FLOW.name, topic_name, partition, [1]))


def test_a_flow_that_is_replaced_reports_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: as a start of `twinlog mirror-maker`."""
    text = "A->B.enabled = true\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n"
    file = parse_mirror_maker_file(f"clusters = A, B\n{text}", lambda _, value: value)
    stored = replace(FLOW, source={**FLOW.source, RATE: "7"}, paused=True)
    flow_admin = admin(Stored(stored), monkeypatch)

    async def created(*_: object, **__: object) -> None:
        pass

    async def selection(*_: object) -> list[str]:
        return ["t is not selected any more"]

    monkeypatch.setattr(flows, "create_flow", created)
    monkeypatch.setattr(flows, "follow_selection", selection)
    (flow,) = (flow for flow in file.flows if not flow.heartbeats_only)
    first, second, third = asyncio.run(flow_admin.create(flow, replaces=True)).lines
    assert first == "t is not selected any more"
    assert second.startswith(f"keeps {RATE}=7, which kafka-mirrors --alter")
    assert third.startswith("it is paused, with topics that it gets, until")


def test_negative_offsets_and_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flow_admin = admin(Stored(FLOW, topic("t")), monkeypatch)
    with pytest.raises(UserError, match="the offset -1 is not valid"):
        asyncio.run(flow_admin.translate_offsets(FLOW.name, "t", 0, [3, -1]))
    with pytest.raises(UserError, match="the timestamp -5 is not valid"):
        asyncio.run(flow_admin.translate_timestamp(FLOW.name, -5))


def test_passwords_of_schema_registries_are_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither a listing nor its JSON has one; all else is as it was given."""
    values = {
        "sql": "SELECT record FROM records",
        "tables.secrets": "/secrets.csv",
        "value.format": "avro",
        "value.subject": "s",
        "registry.url": "https://a",
        "registry.basic.auth.user.info": "name:geheim",
        "target.registry.url": "https://b",
        "target.registry.ssl.key.password": "geheim",
        "target.registry.basic.auth.user.info": "${file:/s:user}",
    }
    given = {f"twinlog.transform.{name}": text for name, text in values.items()}
    properties = flow_properties({"enabled": "true"} | given, "A", "B")
    stored = replace(FLOW, source={"bootstrap.servers": "a:1"} | properties)

    async def describe(_: object) -> DescribeMirrorsResult:
        mirror = MirrorDescription(
            mirror=stored.name,
            source_bootstrap="a:1",
            source_cluster_id="s",
            topic_patterns=(),
            replication_factor=None,
            topics=(),
            not_mirrored=NotMirrored(mirror=stored.name, topics=(), total=0),
        )
        return DescribeMirrorsResult(mirrors=(mirror,), unreadable=())

    monkeypatch.setattr(flows, "MirrorStore", Stored(stored))
    cluster: Any = None
    described = asyncio.run(FlowAdmin(cluster, ControlTopics(), describe).describe())
    assert "geheim" not in repr(described)
    [flow] = described.flows
    hidden = {
        "twinlog.transform.registry.basic.auth.user.info": "[hidden]",
        "twinlog.transform.target.registry.ssl.key.password": "[hidden]",
    }
    assert {name: flow.settings[name] for name in given} == given | hidden


def test_a_flow_is_paused_as_a_whole_or_some_of_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[object] = []

    async def some(_: object, flow: str, topics: object) -> list[str]:
        changed.append((flow, topics))
        return ["t"]

    async def paused(_: object, flow: str) -> list[str]:
        changed.append((flow, "paused"))
        return ["t", "u"]

    async def resumed(_: object, flow: str) -> list[str]:
        changed.append((flow, "resumed"))
        return ["t", "u"]

    for name in ("pause_topics", "resume_topics"):
        monkeypatch.setattr(flows, name, some)
    monkeypatch.setattr(flows, "pause_flow", paused)
    monkeypatch.setattr(flows, "resume_flow", resumed)
    one = admin(Stored(FLOW, topic("t")), monkeypatch)
    for call, change in ((one.pause, "paused"), (one.resume, "resumed")):
        assert asyncio.run(call(FLOW.name)).as_json() == {"mirror": FLOW.name, change: ["t", "u"]}
        assert asyncio.run(call(FLOW.name, "t")).as_json() == {"mirror": FLOW.name, change: ["t"]}
    name = FLOW.name
    assert changed == [(name, "paused"), (name, "t"), (name, "resumed"), (name, "t")]
