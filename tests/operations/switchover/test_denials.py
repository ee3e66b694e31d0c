"""Denials of a switchover, on real brokers: they are created, and all of them removed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, make_topic, none_refused, write_state
from confluent_kafka import KafkaException, Producer
from secured_clusters import PASSWORDS, Secured, sasl
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Guard, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
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
def test_whom_the_operator_has_to_see_to(found: Guard, beyond: list[str]) -> None:
    """They are principals that are allowed and not denied, and writers without any ACL."""
    outlook = outlook_of(found, ["a", "b"])
    assert outlook.denials == found.denials
    assert bool(outlook.beyond) is bool(beyond)
    assert all(text in outlook.beyond for text in beyond)


STANDING = frozenset({denial("a", "User:p")})


@pytest.mark.parametrize(
    ("there", "missing", "beyond"),
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
def test_what_is_missing_by_now(
    monkeypatch: pytest.MonkeyPatch, there: set[Acl] | None, missing: set[Acl], beyond: str
) -> None:
    """It includes principals allowed since, except those the operator has confirmed."""

    async def describe(_: object) -> frozenset[Acl] | None:
        return None if there is None else frozenset(there)

    monkeypatch.setattr(denials_module, "describe_acls", describe)
    asked = Outlook(denials=STANDING, open_to=frozenset({"User:any"}))
    nobody = cast(KafkaCluster, None)
    found = asyncio.run(ProducerDenials(nobody, nobody, "m", ["a"]).missing(asked))
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

        async def there() -> bool:
            return made <= await self.acls(self.destination)

        await until_async(there)

    async def add(self, topic: MirrorTopic) -> None:
        await self.store.change(lambda _: [topic])


@asynccontextmanager
async def both(pair: tuple[Secured, Secured], name: str) -> AsyncIterator[Both]:
    async with pair[0].root() as source, pair[1].root() as destination:
        it = Both(name, source, destination, pair[0].local.bootstrap_servers)
        await it.create()
        yield it


@pytest.mark.broker
def test_denied_and_allowed_again(secured_pair: tuple[Secured, Secured], topic: str) -> None:
    """Only its own denials are created or removed; they are remembered apart, and never copied."""

    async def run() -> None:
        async with both(secured_pair, topic) as it:
            alice, bob = acl(topic, "User:alice"), acl(topic, "User:bob", pattern=PREFIXED)
            foreign, reader = denial(topic, "User:carol"), acl(topic, "User:carol")
            await it.give(alice, bob, foreign, reader)
            before = await it.acls(it.source)
            denials = it.denials()
            outlook = await denials.outlook()
            assert outlook.beyond == ""
            ours = {denial(topic, "User:alice"), denial(topic, "User:bob")}
            assert outlook.denials == ours | {foreign}
            here = MadeAcl(
                mirror=topic, acl=denial(topic, "User:alice"), made_for=MadeFor.READ_ONLY
            )
            await it.store.change(lambda _: [here])
            for _ in range(2):  # as after a crash
                await denials.deny(outlook.denials)
                assert await it.acls(it.source) == before | ours
                assert await it.denials().made() == ours
                assert await denials.missing(outlook) == Outlook()
            await it.sync()
            assert await it.acls(it.destination) == before, "without ours"
            await it.give(acl(topic, "User:dave"))
            assert (await denials.missing(outlook)).denials == {denial(topic, "User:dave")}
            assert await denials.strayed() == frozenset()
            assert await it.denials().allow() == ours
            assert await it.acls(it.source) == before | {acl(topic, "User:dave")}
            snapshot = await it.store.snapshot()
            assert snapshot.made_acls(topic, MadeFor.SWITCHOVER) == frozenset()
            assert snapshot.made_acls(topic, MadeFor.READ_ONLY) == {here.acl}

    asyncio.run(run())


@pytest.mark.broker
def test_an_interrupted_switchover_leaves_the_denials_of_a_running_one(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """It removes only denials that it has created, and reports only those that existed."""

    async def run() -> None:
        async with both(secured_pair, topic) as it:
            await it.give(acl(topic, "User:alice"))
            first, second = it.denials(), it.denials()
            await first.deny((await first.outlook()).denials)
            await it.give(acl(topic, "User:dave"))
            await second.deny((await second.outlook()).denials)
            assert await second.take_back() == {denial(topic, "User:dave")}
            assert await second.made() == {denial(topic, "User:alice")}
            assert denial(topic, "User:alice") in await it.acls(it.source)
            assert await it.denials().take_back() == frozenset()
            await delete_acls(it.source, [denial(topic, "User:alice")])

            async def gone() -> bool:
                return denial(topic, "User:alice") not in await it.acls(it.source)

            await until_async(gone)
            taken = await allow_producers(it.destination, topic, topic)
            assert taken == Allowed(), "none was left"
            assert await first.made() == frozenset()

    asyncio.run(run())


@pytest.mark.broker
def test_a_denial_that_was_copied_is_seen(
    secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """A copied denial is seen, whatever has copied it; the next sync removes it."""

    async def run() -> None:
        async with both(secured_pair, topic) as it:
            await it.give(acl(topic, "User:alice"))
            denials = it.denials()
            await denials.deny((await denials.outlook()).denials)
            one = denial(topic, "User:alice")
            copied = MadeAcl(mirror=it.mirrors[1], acl=one, made_for=MadeFor.SOURCE)
            await it.store.change(lambda _: [copied])
            await create_acls(it.destination, [one])
            assert await denials.strayed() == {one}
            await it.sync()
            assert await denials.strayed() == frozenset()

            async def gone() -> bool:
                return await it.acls(it.destination) == {acl(topic, "User:alice")}

            await until_async(gone)
            await denials.allow()

    asyncio.run(run())


@pytest.mark.broker
def test_taking_back_by_hand(secured_pair: tuple[Secured, Secured], topic: str) -> None:
    """Only the chosen topics are allowed again; not while the source mirrors them; or forgotten."""

    async def run() -> None:
        async with both(secured_pair, topic) as it:
            first, second = f"{topic}-1", f"{topic}-2"
            await it.give(acl(first, "User:alice"), acl(second, "User:alice"))
            both_topics = it.denials(first, second)
            await both_topics.deny((await both_topics.outlook()).denials)
            refused = "ACLs created by a switchover of mirror .* still deny"
            with pytest.raises(MirrorRefused, match=refused):
                await delete_mirror(it.destination, topic)
            assert await allow_producers(it.destination, topic, f"{topic}-none") == Allowed()
            taken = await allow_producers(it.destination, topic, first)
            assert taken == Allowed({denial(first, "User:alice")})
            assert denial(first, "User:alice") not in await it.acls(it.source)
            back = Both(f"{topic}-back", it.destination, it.source, "")
            await back.create()
            mirrored = MirrorTopic(
                mirror=back.name, topic=second, topic_id=UUID(int=1), partitions=1
            )
            await back.add(mirrored)
            with pytest.raises(
                UserError, match=f"mirrors these topics from this cluster.*{second}"
            ):
                await allow_producers(it.destination, topic, ".*")
            assert denial(second, "User:alice") in await it.acls(it.source)
            stopped = MirrorTopic(
                mirror=back.name,
                topic=second,
                topic_id=UUID(int=1),
                partitions=1,
                wanted=Wanted.STOPPED,
            )
            await back.add(stopped)
            await write_state(it.source, stopped, State.STOPPED)
            for mirror in back.mirrors:
                await delete_mirror(it.source, mirror)
            forgotten = await forget_denials(it.destination, topic, ".*")
            assert forgotten.denials == {denial(second, "User:alice")}
            assert denial(second, "User:alice") in await it.acls(it.source)
            assert await both_topics.made() == frozenset()
            await delete_mirror(it.destination, topic)

    asyncio.run(run())


@pytest.mark.broker
def test_taken_over_on_the_way_back(secured_pair: tuple[Secured, Secured], topic: str) -> None:
    """The mirror back takes over the denials, and removes them without this switchover."""

    async def run() -> None:
        async with both(secured_pair, topic) as it:
            for cluster in (it.source, it.destination):
                await make_topic(cluster, topic)
            await it.give(acl(topic, "User:alice"))
            denials, ours = it.denials(), {denial(topic, "User:alice")}
            await denials.deny((await denials.outlook()).denials)
            forth = Both(f"{topic}-forth", it.destination, it.source, "")
            await forth.create()
            await it.destination.refresh([topic])
            theirs = await read_their_mirrors(it.destination, it.source)
            await add_named(it.source, it.destination, forth.name, [topic], theirs)
            taken = (await forth.store.snapshot()).made_acls(forth.name, MadeFor.READ_ONLY)
            assert taken == ours
            found = await allow_producers(it.destination, topic, ".*")
            assert found == Allowed(left=ours)
            assert ours <= await it.acls(it.source), "they keep the topic read-only"
            assert await denials.made() == frozenset()
            for mirror in it.mirrors:
                await delete_mirror(it.destination, mirror)
            for mirror in forth.mirrors:
                await forth.store.delete_mirror(mirror, lambda *_: None)

    asyncio.run(run())


@pytest.mark.broker
def test_without_the_right(secured_pair: tuple[Secured, Secured], pair: Pair, topic: str) -> None:
    """Without the right, or an authorizer, nothing is tried; the operator has to deny writes."""
    weak = sasl("SCRAM-SHA-256", topic, "weak-secret")
    see = Acl(
        *(ResourceType.CLUSTER, "kafka-cluster", LITERAL, f"User:{topic}", "*"),
        *(Operation.DESCRIBE, Permission.ALLOW),
    )

    async def run() -> None:
        await secured_pair[0].set_password(topic, "weak-secret")
        async with (
            both(secured_pair, topic) as it,
            secured_pair[0].cluster("WORD", weak) as source,
        ):
            denials = ProducerDenials(source, it.destination, topic, [topic])
            await it.give(acl(topic, "User:alice"))
            outlook = await denials.outlook()
            assert outlook.denials == frozenset()
            refused = "CLUSTER_AUTHORIZATION_FAILED (31): needs DESCRIBE on the cluster"
            assert refused in outlook.beyond
            assert outlook.forbidden
            await create_acls(it.source, [see])

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
def test_an_open_transaction_can_be_ended(
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
        async with both(secured_pair, topic) as it:
            await it.give(acl(topic, "User:alice"), of_id)
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
            denials = it.denials()
            await denials.deny((await denials.outlook()).denials)
            await asyncio.to_thread(producer.commit_transaction, librdkafka_tools.SECONDS)
            assert not failures
            await asyncio.to_thread(write, producer, "after")
            assert len(failures) == 1
            with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
                await asyncio.to_thread(producer.commit_transaction, librdkafka_tools.SECONDS)
            await denials.allow()

    asyncio.run(run())
    assert ConsumerView(servers).stable([(topic, 0)]) == {(topic, 0): 2}, "a record and its marker"


@pytest.mark.broker
def test_a_source_whose_mirrors_may_not_be_read(
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
            commands.KAFKA_MIRRORS, *at, "--add", "--topic", name, "--mirror", topic, seconds=60
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
