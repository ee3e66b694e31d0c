"""Denials of a switchover, on real brokers: they are created, and all of them removed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, make_topic, none_refused, write_state
from confluent_kafka import KafkaException, Producer
from secured_clusters import PASSWORDS, Secured, sasl
from sync_contexts import sync_context
from waiting import until, until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Guard, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests import acls as acl_requests
from twinlog.kafka.requests.acls import create_acls, delete_acls, describe_acls
from twinlog.lifecycle.changes import delete_mirror
from twinlog.lifecycle.creation import add_named, create_mirror
from twinlog.lifecycle.failback import read_their_mirrors
from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.settings import ACLS, parse_settings
from twinlog.mirror.states import State
from twinlog.operations.switchover import denials as denials_module
from twinlog.operations.switchover.denials import (
    NO_AUTHORIZER,
    Outlook,
    ProducerDenials,
    allow_producers,
    forget_denials,
    outlook_of,
)
from twinlog.operations.switchover.records import Allowed
from twinlog.store.config_records import MadeAcl, MadeFor, Mirror, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.acls import AclSync
from twinlog.sync.base import run_sync
from twinlog.sync.read_only import ReadOnly

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
NONE: frozenset[str] = frozenset()


def acl(
    name: str,
    principal: str,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = LITERAL,
    operation: Operation = Operation.WRITE,
) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, "*", operation, permission)


def denial(name: str, principal: str) -> Acl:
    return acl(name, principal, Permission.DENY)


@pytest.mark.parametrize(
    ("found", "beyond"),
    [
        (Guard(frozenset({denial("a", "User:p"), denial("b", "User:p")}), NONE, NONE), []),
        (Guard(frozenset({denial("a", "User:p")}), NONE, NONE), ["known to have WRITE: b"]),
        (Guard(frozenset(), NONE, NONE), ["known to have WRITE: a, b"]),
        (
            Guard(
                frozenset({denial("a", "User:p"), denial("b", "User:p")}),
                frozenset({"User:*"}),
                frozenset({"User:any"}),
            ),
            ["cannot exclude them: User:*, User:any"],
        ),
    ],
)
def test_principals_that_cannot_be_denied_are_named(found: Guard, beyond: list[str]) -> None:
    """They are principals that are allowed and not denied, and writers without any ACL."""
    outlook = outlook_of(found, ["a", "b"])
    assert outlook.denials == found.denials
    assert bool(outlook.beyond) is bool(beyond)
    assert all(text in outlook.beyond for text in beyond)


def each_lists(monkeypatch: pytest.MonkeyPatch, *brokers: frozenset[Acl] | None) -> KafkaCluster:
    """Return a source whose brokers list these ACLs; None: the broker has no authorizer."""

    async def describe(_: object, node: int = 0) -> frozenset[Acl] | None:
        return brokers[node]

    async def refresh(_: object) -> SimpleNamespace:
        return SimpleNamespace(brokers=range(len(brokers)))

    async def may_alter(_: object) -> bool:
        return True

    monkeypatch.setattr(acl_requests, "describe_acls", describe)
    monkeypatch.setattr(denials_module, "may_alter_acls", may_alter)
    return cast(KafkaCluster, SimpleNamespace(refresh=refresh))


def test_a_producer_that_one_broker_does_not_list_is_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker that is asked first is behind: the others let the producer write."""
    old = acl("a", "User:p")
    source = each_lists(monkeypatch, frozenset({old}), frozenset({old, acl("a", "User:new")}))
    denials = ProducerDenials(source, source, "m", ["a"])
    found = asyncio.run(denials.outlook())
    assert found.denials == {denial("a", "User:p"), denial("a", "User:new")}
    asked = Outlook(denials=STANDING)
    assert asyncio.run(denials.missing(asked)).denials == found.denials


def test_a_denial_that_one_broker_does_not_list_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker that is behind lets the producer write."""
    source = each_lists(monkeypatch, STANDING | {acl("a", "User:p")}, frozenset())
    denials = ProducerDenials(source, source, "m", ["a"])
    assert asyncio.run(denials.missing(Outlook(denials=STANDING))).denials == STANDING


def test_no_broker_at_all_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise denials would count as made, or removed, on every broker."""
    source = each_lists(monkeypatch)
    with pytest.raises(Retriable, match="no broker"):
        asyncio.run(ProducerDenials(source, source, "m", ["a"])._each_lists())


STANDING = frozenset({denial("a", "User:p")})


@pytest.mark.parametrize(
    ("existing", "missing", "beyond"),
    [
        (STANDING | {acl("a", "User:p"), acl("*", "User:any")}, set(), ""),
        (STANDING | {acl("*", "User:any")}, set(), ""),
        ({acl("a", "User:p"), acl("*", "User:any")}, STANDING, ""),
        (STANDING | {acl("a", "User:q")}, {denial("a", "User:q")}, ""),
        (STANDING | {acl("", "User:*", pattern=PREFIXED)}, set(), "cannot exclude them: User:*"),
        (STANDING | {acl("*", "User:new")}, set(), "cannot exclude them: User:new"),
        (set(), set(), "known to have WRITE: a"),
        (None, STANDING, "no authorizer"),
    ],
)
def test_missing_denials_include_principals_allowed_since(
    monkeypatch: pytest.MonkeyPatch, existing: set[Acl] | None, missing: set[Acl], beyond: str
) -> None:
    """It includes principals allowed since, except those the operator has confirmed."""
    source = each_lists(monkeypatch, None if existing is None else frozenset(existing))
    asked = Outlook(denials=STANDING, open_to=frozenset({"User:any"}))
    found = asyncio.run(ProducerDenials(source, source, "m", ["a"]).missing(asked))
    assert (set(found.denials), bool(found.beyond)) == (set(missing), bool(beyond))
    assert beyond in found.beyond


class Both:
    """Two mirrors of one source; one of them is switched over."""

    def __init__(
        self, name: str, source: KafkaCluster, destination: KafkaCluster, servers: str
    ) -> None:
        self.name, self.source, self.destination = name, source, destination
        self.store = MirrorStore(destination)
        self.mirrors = (name, f"{name}-other")
        self._properties = {"bootstrap.servers": servers}

    async def create(self) -> None:
        for mirror in self.mirrors:
            await self.store.create_mirror(
                Mirror(
                    name=mirror,
                    source=self._properties,
                    source_cluster_id=self.source.cluster_id,
                )
            )

    def denials(self, *topics: str) -> ProducerDenials:
        return ProducerDenials(self.source, self.destination, self.name, topics or (self.name,))

    async def give(self, *acls: Acl) -> None:
        await create_acls(self.source, acls)

        async def seen() -> bool:
            return set(acls) <= await self.acls(self.source)

        await until_async(seen)

    async def acls(self, cluster: KafkaCluster) -> set[Acl]:
        found = await describe_acls(cluster) or frozenset()
        return {one for one in found if one.resource_name.startswith(self.name)}

    async def sync(self) -> None:
        """Copy the ACLs of both mirrors, and wait until they exist."""

        async def nobody(_mirror: str) -> bool:
            return False

        guard = ReadOnly(
            self.destination, self.store, nobody, lambda _mirror, _count: None, none_refused
        )
        settings = parse_settings({ACLS: f"TOPIC;{self.name}.*"})
        for mirror in self.mirrors:
            sync = AclSync(self.destination, self.store, guard)
            context = sync_context(*(self.source, self.destination, self.store, mirror, settings))
            assert await run_sync(sync, context) == 0
        snapshot = await self.store.snapshot()
        made = frozenset[Acl]().union(
            *(snapshot.made_acls(mirror, MadeFor.SOURCE) for mirror in self.mirrors)
        )

        async def existing() -> bool:
            return made <= await self.acls(self.destination)

        await until_async(existing)

    async def add(self, topic: MirrorTopic) -> None:
        await self.store.change(lambda _: [topic])


@asynccontextmanager
async def linked_clusters(pair: tuple[Secured, Secured], name: str) -> AsyncIterator[Both]:
    async with pair[0].root() as source, pair[1].root() as destination:
        clusters = Both(name, source, destination, pair[0].local.bootstrap_servers)
        await clusters.create()
        yield clusters


@pytest.mark.broker
def test_only_denials_of_the_switchover_are_created_and_removed(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Only its own denials are created or removed; they are remembered apart, and never copied."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            alice, bob = acl(topic, "User:alice"), acl(topic, "User:bob", pattern=PREFIXED)
            foreign, reader = denial(topic, "User:carol"), acl(topic, "User:carol")
            await clusters.give(alice, bob, foreign, reader)
            before = await clusters.acls(clusters.source)
            denials = clusters.denials()
            outlook = await denials.outlook()
            assert outlook.beyond == ""
            own_denials = {denial(topic, "User:alice"), denial(topic, "User:bob")}
            assert outlook.denials == own_denials | {foreign}
            here = MadeAcl(
                mirror=topic, acl=denial(topic, "User:alice"), made_for=MadeFor.READ_ONLY
            )
            await clusters.store.change(lambda _: [here])
            for _ in range(2):  # as after a crash
                await denials.deny(outlook.denials)
                assert await clusters.acls(clusters.source) == before | own_denials
                assert await clusters.denials().made() == own_denials
                assert await denials.missing(outlook) == Outlook()
            await clusters.sync()
            assert await clusters.acls(clusters.destination) == before, "without ours"
            await clusters.give(acl(topic, "User:dave"))
            assert (await denials.missing(outlook)).denials == {denial(topic, "User:dave")}
            assert await denials.strayed() == frozenset()
            assert await clusters.denials().allow() == own_denials
            assert await clusters.acls(clusters.source) == before | {acl(topic, "User:dave")}
            snapshot = await clusters.store.snapshot()
            assert snapshot.made_acls(topic, MadeFor.SWITCHOVER) == frozenset()
            assert snapshot.made_acls(topic, MadeFor.READ_ONLY) == {here.acl}

    asyncio.run(run())


@pytest.mark.broker
def test_an_interrupted_switchover_keeps_the_denials_of_a_running_one(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """It removes only denials that it has created, and reports only those that existed."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            await clusters.give(acl(topic, "User:alice"))
            first, second = clusters.denials(), clusters.denials()
            await first.deny((await first.outlook()).denials)
            await clusters.give(acl(topic, "User:dave"))
            await second.deny((await second.outlook()).denials)
            assert await second.take_back() == {denial(topic, "User:dave")}
            assert await second.made() == {denial(topic, "User:alice")}
            assert denial(topic, "User:alice") in await clusters.acls(clusters.source)
            assert await clusters.denials().take_back() == frozenset()
            await delete_acls(clusters.source, [denial(topic, "User:alice")])

            async def gone() -> bool:
                return denial(topic, "User:alice") not in await clusters.acls(clusters.source)

            await until_async(gone)
            taken = await allow_producers(clusters.destination, topic, topic)
            assert taken == Allowed(), "none was left"
            assert await first.made() == frozenset()

    asyncio.run(run())


@pytest.mark.broker
def test_a_copied_denial_is_removed_by_the_next_sync(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """A copied denial is seen, whatever has copied it; the next sync removes it."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            await clusters.give(acl(topic, "User:alice"))
            denials = clusters.denials()
            await denials.deny((await denials.outlook()).denials)
            one = denial(topic, "User:alice")
            copied = MadeAcl(mirror=clusters.mirrors[1], acl=one, made_for=MadeFor.SOURCE)
            await clusters.store.change(lambda _: [copied])
            await create_acls(clusters.destination, [one])

            async def strayed() -> bool:
                return one in await clusters.acls(clusters.destination)

            await until_async(strayed)
            assert await denials.strayed() == {one}
            await clusters.sync()

            async def gone() -> bool:
                return await clusters.acls(clusters.destination) == {acl(topic, "User:alice")}

            await until_async(gone)
            assert await denials.strayed() == frozenset()
            await denials.allow()

    asyncio.run(run())


@pytest.mark.broker
def test_the_allow_command_removes_denials_of_the_chosen_topics(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Only the chosen topics are allowed again; not while the source mirrors them; or forgotten."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            first, second = f"{topic}-1", f"{topic}-2"
            await clusters.give(acl(first, "User:alice"), acl(second, "User:alice"))
            both_topics = clusters.denials(first, second)
            await both_topics.deny((await both_topics.outlook()).denials)
            refused = "ACLs created by a switchover of mirror .* still deny"
            with pytest.raises(MirrorRefused, match=refused):
                await delete_mirror(clusters.destination, topic)
            assert await allow_producers(clusters.destination, topic, f"{topic}-none") == Allowed()
            taken = await allow_producers(clusters.destination, topic, first)
            assert taken == Allowed(frozenset({denial(first, "User:alice")}))
            assert denial(first, "User:alice") not in await clusters.acls(clusters.source)
            back = Both(f"{topic}-back", clusters.destination, clusters.source, "")
            await back.create()
            mirrored = MirrorTopic(
                mirror=back.name, topic=second, topic_id=UUID(int=1), partitions=1
            )
            await back.add(mirrored)
            with pytest.raises(
                UserError, match=f"mirrors these topics from this cluster.*{second}"
            ):
                await allow_producers(clusters.destination, topic, ".*")
            assert denial(second, "User:alice") in await clusters.acls(clusters.source)
            stopped = MirrorTopic(
                mirror=back.name,
                topic=second,
                topic_id=UUID(int=1),
                partitions=1,
                wanted=Wanted.STOPPED,
            )
            await back.add(stopped)
            await write_state(clusters.source, stopped, State.STOPPED)
            for mirror in back.mirrors:
                await delete_mirror(clusters.source, mirror)
            forgotten = await forget_denials(clusters.destination, topic, ".*")
            assert forgotten.denials == {denial(second, "User:alice")}
            assert denial(second, "User:alice") in await clusters.acls(clusters.source)
            assert await both_topics.made() == frozenset()
            await delete_mirror(clusters.destination, topic)

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.broker
def test_a_mirror_in_the_other_direction_takes_over_the_denials(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """The mirror back takes over the denials, and removes them without this switchover."""

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            for cluster in (clusters.source, clusters.destination):
                await make_topic(cluster, topic)
            await clusters.give(acl(topic, "User:alice"))
            denials, own_denials = clusters.denials(), frozenset({denial(topic, "User:alice")})
            await denials.deny((await denials.outlook()).denials)
            forth = Both(f"{topic}-forth", clusters.destination, clusters.source, "")
            await forth.create()
            await clusters.destination.refresh([topic])
            source_mirrors = await read_their_mirrors(clusters.destination, clusters.source)
            await add_named(
                clusters.source, clusters.destination, forth.name, [topic], source_mirrors
            )
            taken = (await forth.store.snapshot()).made_acls(forth.name, MadeFor.READ_ONLY)
            assert taken == own_denials
            found = await allow_producers(clusters.destination, topic, ".*")
            assert found == Allowed(left=own_denials)
            assert own_denials <= await clusters.acls(clusters.source), (
                "they keep the topic read-only"
            )
            assert await denials.made() == frozenset()
            for mirror in clusters.mirrors:
                await delete_mirror(clusters.destination, mirror)
            for mirror in forth.mirrors:
                await forth.store.delete_mirror(mirror, lambda *_: None)

    asyncio.run(run())


@pytest.mark.broker
def test_without_the_alter_right_no_denial_is_attempted(
    secured_pair: tuple[Secured, Secured], pair: Pair, topic: str
) -> None:
    """Without the right, or an authorizer, nothing is tried; the operator has to deny writes."""
    weak = sasl("SCRAM-SHA-256", topic, "weak-secret")
    see = Acl(
        *(ResourceType.CLUSTER, "kafka-cluster", LITERAL, f"User:{topic}", "*"),
        *(Operation.DESCRIBE, Permission.ALLOW),
    )

    async def run() -> None:
        await secured_pair[0].set_password(topic, "weak-secret")
        async with (
            linked_clusters(secured_pair, topic) as clusters,
            secured_pair[0].cluster("WORD", weak) as source,
        ):
            denials = ProducerDenials(source, clusters.destination, topic, [topic])
            await clusters.give(acl(topic, "User:alice"))
            outlook = await denials.outlook()
            assert outlook.denials == frozenset()
            refused = "CLUSTER_AUTHORIZATION_FAILED (31): needs DESCRIBE on the cluster"
            assert refused in outlook.beyond
            assert outlook.forbidden
            await create_acls(clusters.source, [see])

            async def described() -> bool:
                found = await denials.outlook()
                assert found.denials == frozenset()
                assert found.forbidden
                return "no right to alter the source's ACLs" in found.beyond

            await until_async(described)
        async with client(pair.source) as source, client(pair.destination) as destination:
            denials = ProducerDenials(source, destination, topic, [topic])
            assert (await denials.outlook()).beyond == NO_AUTHORIZER

    asyncio.run(run())


@pytest.mark.broker
def test_a_denied_principal_can_end_an_open_transaction(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """A denied principal may end it: EndTxn needs the transactional id alone; it opens no other."""
    servers = secured_pair[0].local.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    of_id = acl(topic, "User:alice")._replace(resource_type=ResourceType.TRANSACTIONAL_ID)
    failures: list[str] = []

    def write(producer: Producer, text: str) -> None:
        producer.begin_transaction()
        producer.produce(
            topic,
            value=text,
            partition=0,
            on_delivery=lambda error, _: failures.append(error.name()) if error else None,
        )
        assert producer.flush(librdkafka_tools.SECONDS) == 0

    async def run() -> None:
        async with linked_clusters(secured_pair, topic) as clusters:
            await clusters.give(acl(topic, "User:alice"), of_id)
            producer = Producer(
                {
                    "bootstrap.servers": secured_pair[0].servers("WORD"),
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "alice",
                    "sasl.password": PASSWORDS["alice"],
                    "transactional.id": topic,
                }
            )
            await asyncio.to_thread(producer.init_transactions, librdkafka_tools.SECONDS)
            write(producer, "before")
            denials = clusters.denials()
            await denials.deny((await denials.outlook()).denials)
            await asyncio.to_thread(producer.commit_transaction, librdkafka_tools.SECONDS)
            assert not failures
            await asyncio.to_thread(write, producer, "after")
            assert len(failures) == 1
            with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
                await asyncio.to_thread(producer.commit_transaction, librdkafka_tools.SECONDS)
            await denials.allow()

    asyncio.run(run())
    until(
        lambda: ConsumerView(servers).stable([(topic, 0)])[topic, 0],
        what="a record and its marker",
        good=lambda stable: stable == 2,
    )


@pytest.mark.broker
def test_an_add_reports_that_source_mirrors_could_not_be_checked(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Goal: D14: the command that adds a topic reports that loops and failovers were not checked.

    With the right, and without any mirror on the source, it reports nothing.
    """
    source, destination = secured_pair
    first, second = f"{topic}-first", f"{topic}-second"
    own, password = f"User:{topic}", "own-secret"
    rights = [
        acl(topic, own, pattern=PREFIXED, operation=one)
        for one in (Operation.READ, Operation.DESCRIBE_CONFIGS)
    ]
    control = acl("__mirror", own, pattern=PREFIXED, operation=Operation.READ)

    async def prepare() -> None:
        await source.set_password(topic, password, ["SCRAM-SHA-256"])
        await source.give(rights)
        async with source.root() as cluster:
            for name in (first, second):
                await make_topic(cluster, name)
        properties = source.properties("WORD", sasl("SCRAM-SHA-256", topic, password))
        async with destination.root() as cluster:
            await create_mirror(cluster, topic, properties)

    def add(name: str) -> Done:
        at = ("--bootstrap-server", destination.local.bootstrap_servers)
        done = commands.run(
            commands.KAFKA_MIRRORS, *at, "--add", "--topic", name, "--mirror", topic, seconds=300
        )
        assert done.status == 0, done.errors
        return done

    asyncio.run(prepare())
    (warning,) = add(first).errors.splitlines()
    assert warning.startswith("cannot read the source's mirrors (")
    assert "TOPIC_AUTHORIZATION_FAILED" in warning
    assert warning.endswith(
        f"not checked whether it mirrors {first} from this cluster, or has taken them over"
    )
    asyncio.run(source.give([control]))
    assert add(second).errors == ""
