"""ACLs of remote topics follow, on real brokers; the rules: tests/mirror/test_remote_acls.py."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from clients import client
from secured_clusters import Secured
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.acls import create_acls, delete_acls, describe_acls
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import MadeFor, Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.absent_acls import ABSENT_S
from twinlog.sync.base import SyncContext, run_sync
from twinlog.sync.flow_acls import FlowAcls

pytestmark = pytest.mark.broker

ALL, READ, WRITE = Operation.ALL, Operation.READ, Operation.WRITE
DENY = Permission.DENY


def acl(
    name: str,
    operation: Operation = READ,
    permission: Permission = Permission.ALLOW,
    *,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, "*", operation, permission)


class FlowBetween:
    """A stored flow `a->b` of one topic, and its sync of ACLs."""

    def __init__(self, topic: str, source: KafkaCluster, destination: KafkaCluster) -> None:
        self.topic, self.source, self.destination = topic, source, destination
        self.store, self.now = MirrorStore(destination), 0.0
        self._sync = FlowAcls(lambda: self.now)
        self.wanted = {"enabled": "true"}

    @property
    def remote(self) -> str:
        return f"a.{self.topic}"

    @property
    def mirror(self) -> Mirror:
        properties = flow_properties(self.wanted, "a", "b")
        return Mirror(name=self.topic, source=properties, source_cluster_id="s")

    async def have(self, wanted: Wanted = Wanted.MIRRORING) -> None:
        """Have the topic in the flow."""
        topic = MirrorTopic(
            mirror=self.topic,
            topic=self.topic,
            topic_id=uuid4(),
            partitions=1,
            destination_topic=self.remote,
            wanted=wanted,
        )
        await self.store.change(lambda _: [topic])

    def context(self) -> SyncContext:
        snapshot = Snapshot({key_of(self.mirror): self.mirror})
        return sync_context(
            self.source, self.destination, self.store, self.topic, snapshot=snapshot
        )

    async def look(self, times: int = 1) -> None:
        """Sync; twice are enough to conclude that an ACL is absent."""
        for _ in range(times):
            assert await run_sync(self._sync, self.context()) == 0
            self.now += ABSENT_S
        made = (await self.store.snapshot()).made_acls(self.topic, MadeFor.SOURCE)
        await self._settled(self.destination, lambda acls: made <= acls)

    async def there(self) -> set[Acl]:
        """The ACLs of the remote topic."""
        found = await describe_acls(self.destination) or frozenset()
        return {one for one in found if one.resource_name == self.remote}

    async def give(self, cluster: KafkaCluster, *acls: Acl) -> None:
        assert set((await create_acls(cluster, acls)).values()) == {None}
        await self._settled(cluster, lambda found: set(acls) <= found)

    async def take(self, cluster: KafkaCluster, *acls: Acl) -> None:
        assert set((await delete_acls(cluster, acls)).values()) == {None}
        await self._settled(cluster, lambda found: not set(acls) & found)

    async def _settled(self, cluster: KafkaCluster, good: Callable[[frozenset[Acl]], bool]) -> None:
        async def settled() -> bool:
            return good(await describe_acls(cluster) or frozenset())

        await until_async(settled)


@asynccontextmanager
async def flow_between(pair: tuple[Secured, Secured], topic: str) -> AsyncIterator[FlowBetween]:
    async with pair[0].root() as source, pair[1].root() as destination:
        flow = FlowBetween(topic, source, destination)
        await flow.store.create_mirror(flow.mirror)
        # Otherwise an empty list of the source could not be told from a lost one.
        await flow.give(source, acl(f"{topic}-other"))
        yield flow


def test_copies_follow_the_source_and_no_other_acl_is_removed(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Goal: also one that the target's administrator has made, and the source has as well."""

    async def run() -> None:
        async with flow_between(secured_pair, topic) as flow:
            bob = "User:bob"
            every = acl(topic, ALL)
            denial = acl(topic, WRITE, DENY, principal=bob)
            both, foreign = (
                acl(topic, Operation.DESCRIBE),
                acl(flow.remote, READ, principal="User:c"),
            )
            await flow.give(flow.source, every, denial, both, acl(topic, WRITE, principal=bob))
            await flow.give(flow.source, acl(topic[:5], READ, pattern=PatternType.PREFIXED))
            existing = {both._replace(resource_name=flow.remote), foreign}
            await flow.give(flow.destination, *existing)
            await flow.look()
            assert await flow.there() == existing, "the topic is not in the flow yet"
            await flow.have()
            await flow.look()
            copies = {acl(flow.remote), acl(flow.remote, WRITE, DENY, principal=bob)}
            assert await flow.there() == existing | copies
            await flow.take(flow.destination, acl(flow.remote))
            await flow.look()
            assert await flow.there() == existing | copies, "a deleted copy is created again"
            await flow.take(flow.source, every, denial, both)
            await flow.look()
            assert await flow.there() == existing | copies, "one look proves nothing"
            await flow.look(2)
            assert await flow.there() == existing

    asyncio.run(run())


@pytest.mark.parametrize("wanted", [Wanted.PAUSED, Wanted.STOPPED])
def test_a_paused_or_removed_topic_keeps_its_acls(
    secured_pair: tuple[Secured, Secured], topic: str, wanted: Wanted
) -> None:
    """Goal: after a failover the source decides nothing about the remote topic."""

    async def run() -> None:
        async with flow_between(secured_pair, topic) as flow:
            first, later = acl(topic), acl(topic, READ, principal="User:bob")
            await flow.give(flow.source, first)
            await flow.have()
            await flow.look()
            await flow.have(wanted)
            await flow.take(flow.source, first)
            await flow.give(flow.source, later)
            await flow.look(3)
            assert await flow.there() == {acl(flow.remote)}

    asyncio.run(run())


def test_nothing_is_copied_where_it_is_switched_off(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Goal: by `enabled`, and by an interval below zero; copies stay."""

    async def run() -> None:
        async with flow_between(secured_pair, topic) as flow:
            await flow.have()
            await flow.give(flow.source, acl(topic))
            for name, text in (("enabled", "false"), ("interval.seconds", "-1")):
                flow.wanted = {"enabled": "true", f"sync.topic.acls.{name}": text}
                await flow.look()
                assert await flow.there() == set()
            flow.wanted = {"enabled": "true"}
            await flow.look()
            flow.wanted = {"enabled": "true", "sync.topic.acls.enabled": "false"}
            await flow.take(flow.source, acl(topic))
            await flow.look(3)
            assert await flow.there() == {acl(flow.remote)}

    asyncio.run(run())


def test_a_denial_that_would_stop_the_flow_is_not_copied(
    secured_pair: tuple[Secured, Secured], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: MirrorMaker 2 copies it, and then fails. What it limits is not copied either."""

    async def run() -> None:
        async with flow_between(secured_pair, topic) as flow:
            node = acl(STATE_TOPIC, WRITE, principal=f"User:{topic}")
            await flow.give(flow.destination, node)
            await flow.have()
            wide = acl(topic[:9], READ, DENY, pattern=PatternType.PREFIXED, principal="User:*")
            await flow.give(
                flow.source,
                acl(topic, WRITE, DENY, principal=f"User:{topic}"),
                acl(topic),
                wide,
                acl(topic, Operation.ALTER, principal="User:bob"),
            )
            await flow.look()
            assert await flow.there() == {acl(flow.remote, Operation.ALTER, principal="User:bob")}
            await flow.take(flow.source, wide)
            await flow.look()
            assert acl(flow.remote) in await flow.there()
            await flow.take(flow.destination, node)

    asyncio.run(run())
    assert "2 denial(s) of the source are not copied" in caplog.text
    assert "1 ACL(s) of the source are not copied" in caplog.text


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_cluster_without_an_authorizer_is_said_once(
    secured_pair: tuple[Secured, Secured],
    pair: Pair,
    topic: str,
    side: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: an open source is usual, and no warning: the setting is on by default."""

    async def run() -> None:
        secured, open_cluster = secured_pair[0].root(), client(getattr(pair, side))
        async with secured as one, open_cluster as other:
            ends = (other, one) if side == "source" else (one, other)
            flow = FlowBetween(topic, *ends)
            await flow.store.create_mirror(flow.mirror)
            await flow.have()
            for _ in range(3):
                assert await run_sync(flow._sync, flow.context()) == 0

    with caplog.at_level(logging.INFO, "twinlog.sync.absent_acls"):
        asyncio.run(run())
    (line,) = [one for one in caplog.records if "has no authorizer" in one.message]
    assert f"the {side} has no authorizer" in line.message
    assert line.levelno == (logging.INFO if side == "source" else logging.WARNING)
