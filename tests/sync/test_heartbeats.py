"""Twin of twinlog.sync.heartbeats: heartbeats on the source of a flow."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.flow import FlowRules, flow_of
from twinlog.mirror.mm2_records import Heartbeat
from twinlog.store.config_records import Mirror
from twinlog.sync import heartbeats
from twinlog.sync.base import Host
from twinlog.sync.heartbeats import SourceHeartbeats, beats_of

ON = "twinlog.source.heartbeats.enabled"


def flow(name: str = "a-to-b", **more: str) -> Mirror:
    settings = {"enabled": "true", ON: "true", **more}
    source = stored_properties({"bootstrap.servers": "a:9092"}, settings, "a", "b")
    return Mirror(name=name, source=source, source_cluster_id="A")


def test_heartbeats_of_both_directions() -> None:
    """Goal: those on the source are of the way back, in the policy's topic, with its factor."""
    rules = flow_of(flow(**{"heartbeats.topic.replication.factor": "2"}).source)
    there, back = beats_of(rules), beats_of(rules, reverse=True)
    assert tuple(there) == ("a", "b", "heartbeats", 2, 1)
    assert tuple(back) == ("b", "a", "heartbeats", 2, 1)


class Node:
    """A node with flows, whose sources note what is written to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirrors: dict[str, Mirror] = {}
        self.mine: set[str] = set()
        self.written: list[tuple[str, str, Heartbeat]] = []
        self.open: list[str] = []
        self.failures: list[str] = []
        self.broken: Exception | None = None
        node = self

        @asynccontextmanager
        async def connected(mirror: Mirror, _grants: object) -> AsyncIterator[str]:
            node.open.append(mirror.name)
            try:
                yield mirror.name
            finally:
                node.open.remove(mirror.name)

        class Topics:
            async def write(
                self, cluster: str, topic: str, _factor: int, records: Sequence[Heartbeat]
            ) -> None:
                if node.broken is not None:
                    raise node.broken
                node.written += [(cluster, topic, one) for one in records]

        monkeypatch.setattr(heartbeats, "connected_source", connected)
        monkeypatch.setattr(heartbeats, "BookkeepingTopics", Topics)
        monkeypatch.setattr(heartbeats, "_LOOK_S", 0.01)
        monkeypatch.setattr(heartbeats, "_AFTER_DEFECT_S", 0.01)

    async def _is_mine(self, name: str) -> bool:
        return name in self.mine

    async def run(self, *steps: Any) -> None:
        """Run the sync; each step changes the node, or names what to wait for."""
        cluster: Any = type("Cluster", (), {"config": type("Config", (), {"grants": None})})
        nobody: Any = None
        latest: Any = lambda: self  # noqa: E731
        host = Host(
            cluster,
            nobody,
            is_ours=self._is_mine,
            failed=lambda name, _metric, _count: self.failures.append(name),
            latest=latest,
        )
        running = asyncio.create_task(SourceHeartbeats.create(host).run())
        try:
            async with asyncio.timeout(60):
                for step in steps:
                    while step() is False:
                        assert not running.done()
                        await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert not self.open


def test_a_flow_s_source_gets_them_while_it_is_this_node_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: none for others, none by another node, and none once it is altered or deleted."""
    node = Node(monkeypatch)
    node.mirrors = {"a-to-b": flow(), "off": flow("off", **{ON: "false"}), "c": flow("c")}
    node.mine = {"a-to-b", "off"}

    def alter() -> None:
        node.mirrors["a-to-b"] = flow(**{ON: "false"})

    def assign() -> None:
        node.mine.add("c")

    asyncio.run(
        node.run(
            lambda: bool(node.written),
            lambda: node.open == ["a-to-b"],
            alter,
            lambda: not node.open,
            assign,
            lambda: node.open == ["c"] and len(node.written) > 1,
            node.mirrors.clear,
            lambda: not node.open,
        )
    )
    assert {name for name, _, _ in node.written} == {"a-to-b", "c"}
    name, topic, beat = node.written[0]
    assert (name, topic) == ("a-to-b", "heartbeats")
    assert (beat.source_cluster_alias, beat.target_cluster_alias) == ("b", "a")


@pytest.mark.parametrize("broken", [Retriable("away"), ValueError("a defect")])
def test_trouble_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: Exception
) -> None:
    """Goal: neither a source that is away nor a defect ends them, or the node."""
    node = Node(monkeypatch)
    node.mirrors, node.mine, node.broken = {"a-to-b": flow()}, {"a-to-b"}, broken

    def mend() -> None:
        node.broken = None

    asyncio.run(node.run(lambda: len(node.failures) > 1, mend, lambda: bool(node.written)))
    told = [one for one in caplog.records if "cannot write heartbeats to the source" in one.message]
    assert (len(told) == 1) == isinstance(broken, Retriable)


@pytest.mark.parametrize(
    "settings",
    [{ON: "false"}, {"enabled": "false"}, {"emit.heartbeats.interval.seconds": "-1"}],
)
def test_none_of_a_flow_that_is_off(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Goal: a flow that is switched off holds no connection to its source; never is never."""
    node = Node(monkeypatch)
    node.mirrors, node.mine = {"a": flow("a", **settings), "z": flow("z")}, {"a", "z"}
    asyncio.run(node.run(lambda: len(node.written) > 1))
    assert {name for name, _, _ in node.written} == {"z"}


def test_a_policy_that_fails_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a defect of a policy of one's own ends neither the node nor other flows' heartbeats."""
    node = Node(monkeypatch)
    node.mirrors, node.mine = {"bad": flow("bad"), "good": flow("good")}, {"bad", "good"}
    known = flow_of

    def failing(properties: Mapping[str, str]) -> FlowRules:
        if properties is node.mirrors["bad"].source:
            raise AttributeError("a defect")
        return known(properties)

    monkeypatch.setattr(heartbeats, "flow_of", failing)
    asyncio.run(node.run(lambda: len(node.failures) > 1 and bool(node.written)))
    assert {*node.failures} == {"bad"}
    assert "flow bad: cannot write heartbeats to its source" in caplog.text


def test_settings_that_cannot_be_read_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one flow of a newer version, or without its policy, does not end those of others."""
    node = Node(monkeypatch)
    bad = flow("bad", **{"replication.policy.class": "DefaultReplicationPolicy"})
    source = {**bad.source, "mirror.flow.emit.heartbeats.interval.seconds": "x"}
    node.mirrors = {"bad": replace(bad, source=source), "a-to-b": flow()}
    node.mine = {"bad", "a-to-b"}
    asyncio.run(node.run(lambda: bool(node.written)))
    assert {name for name, _, _ in node.written} == {"a-to-b"}
