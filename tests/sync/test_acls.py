"""ACLs follow, on real brokers; the decisions: tests/kafka/test_acls.py."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from clients import client, none_refused
from secured_clusters import Secured, sasl
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.acls import create_acls, delete_acls, describe_acls
from twinlog.lifecycle.changes import delete_mirror
from twinlog.mirror.settings import ACLS, MirrorSettings, parse_settings
from twinlog.store.config_records import MadeAcl, MadeFor, Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.absent_acls import ABSENT_S
from twinlog.sync.acls import AclSync
from twinlog.sync.base import run_sync
from twinlog.sync.read_only import ReadOnly

pytestmark = pytest.mark.broker


def acl(name: str, principal: str = "User:alice", operation: Operation = Operation.READ) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.PREFIXED
    return Acl(kind, name, pattern, principal, "*", operation, Permission.ALLOW)


def read_only(destination: KafkaCluster) -> ReadOnly:
    """Return a guard that owns no mirror; tests/sync/test_read_only.py has owned ones."""

    async def nobody(_mirror: str) -> bool:
        return False

    store = MirrorStore(destination)
    return ReadOnly(destination, store, nobody, lambda _mirror, _count: None, none_refused)


class Both:
    """A mirror of its own between both clusters, and the ACLs of one test."""

    def __init__(self, name: str, source: KafkaCluster, destination: KafkaCluster) -> None:
        self.name, self.source, self.destination = name, source, destination
        self.store = MirrorStore(destination)
        self.settings = parse_settings({ACLS: f"TOPIC;{name}.*"})
        self.now = 0.0
        guarding = read_only(destination)
        self._sync = AclSync(destination, self.store, guarding, lambda: self.now)

    async def sync(self, settings: MirrorSettings | None = None) -> int:
        """Sync as often as it takes to conclude that an ACL is absent."""
        for _ in range(2):
            failed = await self.look(settings)
        made = (await self.store.snapshot()).made_acls(self.name, MadeFor.SOURCE)
        await self._seen(self.destination, made)
        return failed

    async def look(self, settings: MirrorSettings | None = None) -> int:
        """Sync once, after the time for which an ACL has to be absent."""
        settings = self.settings if settings is None else settings
        context = sync_context(
            *(self.source, self.destination, self.store, self.name, settings),
            topics=(await self.store.snapshot()).topics_of(self.name),
        )
        if not settings.acl_include:
            assert not self._sync.concerns(settings, context.topics)
            return 0
        failed = await run_sync(self._sync, context)
        self.now += ABSENT_S
        return failed

    def move(self) -> None:
        """Move the mirror to another node, and back."""
        self._sync.forget(lambda _: True)

    async def mirror_topic(self) -> None:
        """Give the mirror a topic, of the mirror's name."""
        topic = MirrorTopic(mirror=self.name, topic=self.name, topic_id=uuid4(), partitions=1)
        await self.store.change(lambda _: [topic])

    async def made(self) -> frozenset[Acl]:
        return (await self.store.snapshot()).made_acls(self.name, MadeFor.SOURCE)

    async def here(self) -> set[Acl]:
        return await self._ours(self.destination)

    async def give(self, cluster: KafkaCluster, *acls: Acl) -> None:
        await create_acls(cluster, acls)
        await self._seen(cluster, acls)

    async def take(self, cluster: KafkaCluster, *acls: Acl) -> None:
        await delete_acls(cluster, acls)

        async def gone() -> bool:
            return not set(acls) & await self._ours(cluster)

        await until_async(gone)

    async def _seen(self, cluster: KafkaCluster, acls: Collection[Acl]) -> None:
        async def seen() -> bool:
            return set(acls) <= (await describe_acls(cluster) or frozenset())

        await until_async(seen)

    async def _ours(self, cluster: KafkaCluster) -> set[Acl]:
        found = await describe_acls(cluster) or frozenset()
        return {one for one in found if one.resource_name.startswith(self.name)}


@asynccontextmanager
async def linked_clusters(pair: tuple[Secured, Secured], name: str) -> AsyncIterator[Both]:
    async with pair[0].root() as source, pair[1].root() as destination:
        one = Both(name, source, destination)
        await one.store.create_mirror(Mirror(name=name, source={}, source_cluster_id="s"))
        yield one


def test_copied_acls_follow_the_source(secured_pair: tuple[Secured, Secured], topic: str) -> None:
    """Copies are created and removed as on the source; existing and foreign ACLs stay."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            first, second, foreign = (acl(f"{topic}-{n}") for n in ("first", "second", "foreign"))
            await clusters.give(clusters.source, first, second, acl("other", f"User:{topic}"))
            await clusters.give(clusters.destination, second, foreign)
            assert await clusters.sync() == 0
            assert await clusters.here() == {first, second, foreign}
            assert await clusters.made() == {first}
            await clusters.give(clusters.source, acl(f"{topic}-third"))
            assert await clusters.sync(parse_settings({ACLS: ""})) == 0
            assert await clusters.here() == {first, second, foreign}, "without a rule"
            await clusters.take(clusters.source, acl(f"{topic}-third"))
            await clusters.take(clusters.source, first, second)
            assert await clusters.look() == 0
            assert await clusters.here() == {first, second, foreign}, "one look proves nothing"
            assert await clusters.made() == {first}
            clusters.move()
            assert await clusters.look() == 0
            assert await clusters.here() == {first, second, foreign}, "another node looked before"
            assert await clusters.sync() == 0
            assert await clusters.here() == {second, foreign}
            assert await clusters.made() == frozenset()
            await clusters.give(clusters.source, first)
            await clusters.sync(parse_settings({ACLS: "GROUP"}))
            assert await clusters.here() == {second, foreign}, "the rules do not have it"

    asyncio.run(run())


def test_acls_created_by_mirrors_of_the_source_are_not_copied(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Two clusters mirror each other: a guard of a topic in one would lock it in the other.

    An ACL that the source has from the destination is not copied back, so it can be removed.
    """

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            source_store, back = MirrorStore(clusters.source), f"{topic}-back"
            await source_store.create_mirror(
                Mirror(name=back, source={}, source_cluster_id=clusters.destination.cluster_id)
            )
            guard = acl(f"{topic}-theirs")._replace(permission=Permission.DENY)
            copied, own = acl(f"{topic}-copied"), acl(f"{topic}-own")
            made = [
                MadeAcl(mirror=back, acl=guard, made_for=MadeFor.READ_ONLY),
                MadeAcl(mirror=back, acl=copied, made_for=MadeFor.SOURCE),
            ]
            await source_store.change(lambda _: made)
            await clusters.give(clusters.source, guard, copied, own)
            assert await clusters.sync() == 0
            assert await clusters.here() == {own}
            await source_store.delete_mirror(back, lambda *_: None)
            assert await clusters.sync() == 0
            assert await clusters.here() == {own, guard, copied}, "they are the source's own now"

    asyncio.run(run())


def test_administrative_acls_of_the_source_are_not_copied_by_default(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """The default rules leave out ALL on the cluster, control topics, every group and every id.

    A denial of `User:*`, the usual way to freeze a source, stops no node and removes no earlier
    copy. The ACLs that come with such a denial are not copied without it.
    """
    mallory = f"User:{topic}"

    def everything(kind: ResourceType, name: str, pattern: PatternType) -> Acl:
        return Acl(kind, name, pattern, mallory, "*", Operation.ALL, Permission.ALLOW)

    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    orders = everything(ResourceType.TOPIC, topic, literal)
    attack = [
        everything(ResourceType.CLUSTER, "kafka-cluster", literal),
        everything(ResourceType.TOPIC, "__", prefixed),
        everything(ResourceType.TOPIC, "*", literal),
        everything(ResourceType.GROUP, "*", literal),
        everything(ResourceType.TRANSACTIONAL_ID, "*", literal),
        everything(ResourceType.TRANSACTIONAL_ID, "twinlog.", prefixed),
    ]
    freeze = orders._replace(principal="User:*", permission=Permission.DENY)
    late = orders._replace(host="10.0.0.1")

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            await clusters.mirror_topic()
            await clusters.give(clusters.source, orders, *attack)
            for _ in range(2):
                await clusters.sync(parse_settings({ACLS: "*"}))
                destination_acls = await describe_acls(clusters.destination) or frozenset()
                assert {acl for acl in destination_acls if acl.principal == mallory} == {orders}
                assert freeze not in destination_acls
                await clusters.give(clusters.source, freeze, late)
            await delete_acls(clusters.source, [orders, late, freeze, *attack])

    asyncio.run(run())


def test_a_copied_denial_of_all_principals_is_removed(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Goal: C3: nodes may write nothing because an earlier version copied it: it is removed first.

    All other changes have to be recorded first, which the denial prevents.
    """
    node, password = f"User:{topic}", "node-secret"
    literal = PatternType.LITERAL
    allowed = acl("__mirror", node, Operation.ALL)
    of_node = [
        allowed,
        allowed._replace(resource_type=ResourceType.TRANSACTIONAL_ID, resource_name="twinlog."),
        Acl(
            *(ResourceType.CLUSTER, "kafka-cluster", literal, node, "*"),
            *(Operation.ALTER, Permission.ALLOW),
        ),
    ]
    frozen = Acl(
        *(ResourceType.TOPIC, "*", literal, "User:*", "*", Operation.WRITE, Permission.DENY),
    )
    reader = acl(topic)

    async def everything(clusters: Both) -> frozenset[Acl]:
        return await describe_acls(clusters.destination) or frozenset()

    async def run() -> None:
        await secured_pair[1].set_password(topic, password, ["SCRAM-SHA-256"])
        properties = sasl("SCRAM-SHA-256", topic, password)
        async with (
            linked_clusters(secured_pair, topic) as clusters,
            secured_pair[1].cluster("WORD", properties) as cluster,
        ):
            await clusters.mirror_topic()
            await clusters.give(clusters.destination, *of_node)
            try:
                await clusters.give(clusters.source, frozen, reader)
                copied = MadeAcl(mirror=topic, acl=frozen, made_for=MadeFor.SOURCE)
                await clusters.store.change(lambda _: [copied])
                await clusters.give(clusters.destination, frozen)
                store = MirrorStore(cluster)
                sync = AclSync(cluster, store, read_only(cluster))
                settings = parse_settings({ACLS: "*"})
                context = sync_context(clusters.source, cluster, store, topic, settings)
                assert await run_sync(sync, context) == 0

                async def gone() -> bool:
                    return frozen not in await everything(clusters)

                await until_async(gone)

                async def followed() -> bool:
                    with suppress(UserError):  # a broker may still apply the denial for a moment
                        await run_sync(sync, context)
                    return reader in await everything(clusters)

                await until_async(followed)
                assert await clusters.made() == {reader}
                assert frozen not in await everything(clusters)
            finally:
                for one in (clusters.source, clusters.destination):
                    await delete_acls(one, [frozen])

    asyncio.run(run())


def test_an_allow_is_copied_with_its_limiting_denials(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """A prefix is copied with the source's denials below it, even of topics not mirrored."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            await clusters.mirror_topic()
            prefix = acl(topic)._replace(pattern_type=PatternType.PREFIXED)
            secret = acl(f"{topic}-secret")._replace(permission=Permission.DENY)
            elsewhere = acl(f"{topic[:-1]}-other")._replace(permission=Permission.DENY)
            await clusters.give(clusters.source, prefix, secret, elsewhere)
            await clusters.sync(parse_settings({ACLS: "*"}))
            destination_acls = await describe_acls(clusters.destination) or frozenset()
            assert {prefix, secret} <= destination_acls
            assert elsewhere not in destination_acls
            await delete_acls(clusters.source, [prefix, secret, elsewhere])

    asyncio.run(run())


def test_an_acl_removed_by_hand_is_restored(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """An ACL removed by hand is restored; a deleted mirror leaves its ACLs and forgets them."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            one = acl(topic)
            await clusters.give(clusters.source, one)
            await clusters.sync()
            await clusters.take(clusters.destination, one)
            await clusters.sync()
            assert await clusters.here() == {one}
            await clusters.store.change(lambda _: [])
            assert await clusters.made() == {one}, "nothing was to be changed"
            assert await delete_mirror(clusters.destination, topic) == {one}, (
                "named: it follows no more"
            )
            assert await clusters.here() == {one}
            assert await clusters.made() == frozenset()

    asyncio.run(run())


def test_missing_rights_to_acls_are_reported(
    secured_pair: tuple[Secured, Secured], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing DESCRIBE is an error that names it; without ALTER each ACL is counted, one logged."""
    mallory = sasl("SCRAM-SHA-256", topic, "mallory-secret")
    kind, pattern = ResourceType.CLUSTER, PatternType.LITERAL
    see = Acl(
        kind, "kafka-cluster", pattern, f"User:{topic}", "*", Operation.DESCRIBE, Permission.ALLOW
    )

    async def run() -> None:
        await secured_pair[1].set_password(topic, "mallory-secret")
        async with (
            linked_clusters(secured_pair, topic) as clusters,
            secured_pair[1].cluster("WORD", mallory) as weak,
        ):
            await clusters.give(clusters.source, acl(f"{topic}-1"), acl(f"{topic}-2"))
            sync = AclSync(weak, clusters.store, read_only(weak))
            context = sync_context(clusters.source, weak, clusters.store, topic, clusters.settings)
            with pytest.raises(UserError, match="read the ACLs: CLUSTER_AUTHORIZATION_FAILED"):
                await run_sync(sync, context)
            await create_acls(clusters.destination, [see])

            async def counted() -> bool:
                try:
                    return await run_sync(sync, context) == 2
                except UserError:
                    return False

            await until_async(counted)
            assert await clusters.here() == set()
            assert await clusters.sync() == 0, "with the right, all is made up for"
            assert await clusters.here() == {acl(f"{topic}-1"), acl(f"{topic}-2")}

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    lines = [message for message in caplog.messages if message.startswith("ACLs cannot be created")]
    assert len(lines) == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in lines[0]


def test_no_acl_is_copied_without_an_authorizer(pair: Pair, topic: str, caplog: Any) -> None:
    """Nothing is copied, and that is logged once."""

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            store = MirrorStore(destination)
            sync = AclSync(destination, store, read_only(destination))
            context = sync_context(source, destination, store, topic)
            for _ in range(3):
                assert await run_sync(sync, context) == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.messages == [f"mirror {topic}: ACLs are not copied: the source has no authorizer"]
