"""ACLs of a remote topic that several flows copy to, without brokers.

With brokers: test_flow_acls.py. The rules of one flow: tests/mirror/test_remote_acls.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import snapshot_of, sync_context

from twinlog.kafka.acls import Acl, AclChanges, Operation, PatternType, Permission, ResourceType
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import (
    ConfigRecord,
    MadeAcl,
    MadeFor,
    Mirror,
    MirrorTopic,
    Wanted,
    encode_key,
)
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.sync import absent_acls, flow_acls
from twinlog.sync.absent_acls import ABSENT_S
from twinlog.sync.base import run_sync
from twinlog.sync.flow_acls import FlowAcls

IDENTITY = {"enabled": "true", "replication.policy.class": "IdentityReplicationPolicy"}
ALLOW, DENY = Permission.ALLOW, Permission.DENY
SHARED = (
    "other flows copy topics to the same remote topics, or may have done so: orders; there an ALLOW"
)


def acl(
    topic: str, permission: Permission, who: str = "alice", operation: Operation = Operation.READ
) -> Acl:
    kind, literal = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, topic, literal, f"User:{who}", "*", operation, permission)


def flow(source: str) -> Mirror:
    properties = flow_properties(IDENTITY, source, "c")
    return Mirror(name=f"{source}-to-c", source=properties, source_cluster_id=source)


def topic(mirror: str, name: str = "orders", wanted: Wanted = Wanted.MIRRORING) -> MirrorTopic:
    ids = UUID(int=1)
    return MirrorTopic(mirror=mirror, topic=name, topic_id=ids, partitions=1, wanted=wanted)


class Target:
    """A target with the flows `a->c` and `b->c`, and the sync of the first one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.source = frozenset({acl("other", ALLOW)})  # each broker lists some ACL
        self.destination = frozenset[Acl]()
        self.records: list[ConfigRecord] = [flow("a"), flow("b")]
        self.made = frozenset[Acl]()
        self.unreadable: dict[tuple[int, bytes | None], str] = {}
        self.now = 0.0
        self._sync = FlowAcls(lambda: self.now)
        patch.setattr(flow_acls, "describe_acls", self._answer(lambda: self.source))
        patch.setattr(flow_acls, "acls_of_any_broker", self._answer(lambda: self.destination))
        everywhere = self._answer(lambda: {1: self.source})
        patch.setattr(absent_acls, "describe_acls_everywhere", everywhere)
        patch.setattr(flow_acls, "carry_out", self.carry_out)

    def _answer(self, value: Callable[[], Any]) -> Any:
        async def answer(_: object) -> Any:
            return value()

        return answer

    async def snapshot(self) -> Any:
        made = [MadeAcl(mirror="a-to-c", acl=one, made_for=MadeFor.SOURCE) for one in self.made]
        return replace(snapshot_of(*self.records, *made), unreadable=self.unreadable)

    async def carry_out(
        self, _: object, __: object, mirror: str, changes: AclChanges, ___: object
    ) -> int:
        assert mirror == "a-to-c"
        self.made = (self.made | changes.remember) - changes.forget
        self.destination = (self.destination | changes.make) - changes.remove
        return 0

    def look(self, times: int = 3) -> None:
        """Sync the flow `a->c`; three checks are enough to remove what is absent."""
        for _ in range(times):
            cluster: Any = SimpleNamespace(cluster_id="a")
            snapshot = snapshot_of(flow("a"))
            context = sync_context(cluster, None, self, "a-to-c", snapshot=snapshot)
            assert asyncio.run(run_sync(self._sync, context)) == 0
            self.now += ABSENT_S


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


@pytest.mark.parametrize("wanted", list(Wanted))
def test_a_denial_stays_where_another_flow_has_records(
    target: Target, caplog: pytest.LogCaptureFixture, wanted: Wanted
) -> None:
    """Goal: B still denies it, and the flow B->C has made no copy, since there was one."""
    denial, allowed, own = acl("orders", DENY), acl("orders", ALLOW, "bob"), acl("own", DENY)
    target.records += [topic("a-to-c"), topic("a-to-c", "own"), topic("b-to-c", wanted=wanted)]
    nothing = target.source
    target.source |= {denial, allowed, own}
    target.look(1)
    assert target.destination == {denial, allowed, own}
    target.source = nothing
    target.look()
    assert target.destination == {denial}
    assert target.made == {denial}
    assert caplog.text.count(SHARED) == 1
    target.records = [one for one in target.records if one != topic("b-to-c", wanted=wanted)]
    target.look()
    assert target.destination == target.made == frozenset(), "the other flow was deleted"


def test_a_denial_that_an_operator_has_removed_is_forgotten(target: Target) -> None:
    """Goal: one that an administrator makes later is never removed."""
    target.records += [topic("a-to-c"), topic("b-to-c")]
    denial = acl("orders", DENY)
    target.made = frozenset({denial})
    target.look()
    assert target.made == frozenset()
    target.destination = frozenset({denial})
    target.records = [one for one in target.records if one != topic("b-to-c")]
    target.look()
    assert target.destination == {denial}


@pytest.mark.parametrize(("of", "stays"), [("b-to-c", True), ("a-to-c", False)])
def test_a_denial_stays_where_an_unreadable_topic_may_have_records(
    target: Target, of: str, *, stays: bool
) -> None:
    """Goal: what a later version has stored is not taken for absent; a flow's own is another."""
    target.records += [topic("a-to-c")]
    target.unreadable = {(0, encode_key(("topic", of, "of a later version"))): "version 99"}
    denial = acl("orders", DENY)
    target.made = target.destination = frozenset({denial})
    target.look()
    assert (denial in target.destination) == stays
    target.unreadable = {}
    target.look()
    assert target.destination == frozenset()


def test_heartbeats_are_no_shared_topic(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: all flows copy them; nobody has to be told of that."""
    target.records += [topic("a-to-c", "heartbeats"), topic("b-to-c", "heartbeats")]
    target.made = target.destination = frozenset({acl("heartbeats", DENY)})
    target.look()
    assert target.destination == frozenset()
    assert "other flows" not in caplog.text


def test_a_denial_that_stops_nodes_does_not_stay(target: Target) -> None:
    """Goal: its principal became a node later, which the denial keeps from writing to the topic."""
    node = acl(STATE_TOPIC, ALLOW, "node", Operation.WRITE)
    denial = acl("orders", DENY, "node", Operation.WRITE)
    target.records += [topic("a-to-c"), replace(topic("b-to-c"), wanted=Wanted.STOPPED)]
    target.made, target.destination = frozenset({denial}), frozenset({denial, node})
    target.look()
    assert target.destination == {node}
