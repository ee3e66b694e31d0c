"""Credentials and rights that are revoked and restored, under load.

    mirror    its topics           principal at the source
    first     orders, customers    User:first
    second    clicks, archive      User:second

The node's principal at the destination is User:twinlog. All three have SCRAM users, sessions of
3 s, and the rights of docs/security.md. After each revocation the affected topics have to stop
(nothing arrives any more, the partitions are FAILED with the reason), and the other topics have to
go on. The node may be killed after the revocation, while the topics stand still, or after the
rights are restored.
"""

import asyncio
import enum
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import javaproperties
import librdkafka_tools
from chaos_harness import LOAD_SECONDS, Ordeal
from rights import granted
from secured_clusters import LISTENERS, Secured, sasl, secured_cluster
from transition_faults import strike_node
from waiting import until

from twinlog.kafka.acls import Acl, Operation, ResourceType
from twinlog.local.load import TOPICS
from twinlog.local.stage import Stage

MIRRORS: Final = {"first": ("orders", "customers"), "second": ("clicks", "archive")}
NODE: Final = "twinlog"
PASSWORDS: Final = {"first": "first-secret", "second": "second-secret", NODE: "node-secret"}
LISTENER: Final = "WORD"
MECHANISM: Final = "SCRAM-SHA-512"
LONGEST_SECONDS: Final = 20.0
"""The longest time from a topic's stop until rights are restored: twice the session timeout."""
STOOD_FOR: Final = "orders"
"""The topic name that docs/security.md uses in its grants."""


class Loss(NamedTuple):
    """A credential or a right that can be revoked and restored."""

    what: str
    topics: Collection[str]
    """The topics that stand still without it."""
    reason: str
    """The reason that their partitions report; empty if the node cannot write that either."""
    take: Callable[[], Coroutine[Any, Any, None]]
    give: Callable[[], Coroutine[Any, Any, None]]


class Death(enum.Enum):
    """When the node is killed, relative to a revocation."""

    TAKEN = "just after it was taken"
    MISSED = "while its partitions are FAILED"
    GIVEN = "just after it was given back"


class Guarded:
    """Both clusters, and the ordeal of the mirrors between them."""

    def __init__(self, mirror: Ordeal, source: Secured, destination: Secured) -> None:
        self.mirror, self.source, self.destination = mirror, source, destination
        self.longest_beside = 0.0
        """The longest time without progress of unaffected topics, in seconds."""

    async def prepare(self) -> None:
        """Create users, and the rights of docs/security.md."""
        for name, topics in MIRRORS.items():
            await self.source.set_password(name, PASSWORDS[name])
            await self.source.give(rights("mirror", name, topics))
        await self.destination.set_password(NODE, PASSWORDS[NODE])
        await self.destination.give(rights(NODE, NODE, TOPICS))

    def begin(self, rate: float) -> None:
        """Start the load, the mirrors and the node."""
        stage = self.mirror.stage
        stage.start_load(rate, LOAD_SECONDS)
        for name, topics in MIRRORS.items():
            credentials = sasl(MECHANISM, name, PASSWORDS[name])
            properties = self.source.properties(LISTENER, credentials)
            stage.create_mirror(name, [f"{key}={value}" for key, value in properties.items()])
            stage.add("|".join(topics), name)
        node = stage.directory / "node.properties"
        protocol = {"security.protocol": LISTENERS[LISTENER]}
        node.write_text(javaproperties.dumps(protocol | sasl(MECHANISM, NODE, PASSWORDS[NODE])))
        at = ("--bootstrap-server", self.destination.servers(LISTENER))
        self._node = (*at, "--command-config", str(node), "--lanes", "2")
        stage.start_node("node", *self._node)

    def losses(self) -> list[Loss]:
        """Return one loss of each kind, in random order, for a random mirror and topic."""
        choice = self.mirror.random.choice
        name = choice(sorted(MIRRORS))
        topics, topic = MIRRORS[name], choice(sorted(TOPICS))
        owner = next(one for one, of_mirror in MIRRORS.items() if topic in of_mirror)
        refused = "SASL_AUTHENTICATION_FAILED"
        denied = "TOPIC_AUTHORIZATION_FAILED"
        all_of_mirror = rights("mirror", name, topics)
        all_of_node = rights(NODE, NODE, TOPICS)
        read = _about(rights("mirror", owner, [topic]), topic, Operation.READ)
        write = _about(all_of_node, topic, Operation.WRITE)
        found = [
            self._user(self.source, name, topics, refused),
            self._password(self.source, name, topics, refused),
            self._rights(self.source, f"READ on {topic}", read, [topic], denied),
            self._rights(self.source, f"all that {name} may", all_of_mirror, topics, denied),
            self._user(self.destination, NODE, TOPICS, ""),
            self._password(self.destination, NODE, TOPICS, ""),
            self._rights(self.destination, f"WRITE on {topic}", write, [topic], denied),
            self._rights(self.destination, "all that the node may", all_of_node, TOPICS, ""),
        ]
        self.mirror.random.shuffle(found)
        return found

    def suffer(self, loss: Loss, death: Death | None = None) -> None:
        """Revoke, check that only the affected topics stop, restore, wait until all resume."""
        mirror = self.mirror
        mirror.await_moment()
        mirror.say(f"taken: {loss.what}")
        asyncio.run(loss.take())
        if death is Death.TAKEN:
            self._die(death)
        self._see_missed(loss)
        if death is Death.MISSED:
            self._die(death)
            self._see_missed(loss)
        time.sleep(mirror.random.uniform(0, LONGEST_SECONDS))  # the length is tested
        asyncio.run(loss.give())
        mirror.say("given back")
        since = time.monotonic()
        mirror.resting = set()
        if death is Death.GIVEN:
            since = self._die(death)
        mirror.await_resumed(since)
        assert mirror.stage.nodes["node"].alive, "the node has ended"

    def _see_missed(self, loss: Loss) -> None:
        mirror = self.mirror
        mirror.await_still(loss.topics)
        mirror.resting = set(loss.topics)
        if mirror.resting != set(TOPICS):
            self.longest_beside = max(self.longest_beside, mirror.await_all())
        if loss.reason:
            self._await_said(loss)

    def _die(self, death: Death) -> float:
        """Kill the node and restart it; return when it was killed."""
        self.mirror.await_moment()
        self.mirror.say(f"killed {death.value}")
        since = time.monotonic()
        strike_node(self.mirror, "node", *self._node)()
        return since

    def _await_said(self, loss: Loss) -> None:
        def unsaid() -> list[str]:
            return [
                f"{row['topic']}-{row['partition']} {row['state']}: {row['reason']}"
                for row in librdkafka_tools.all_described(self.mirror.stage)
                if row["topic"] in loss.topics
                and (row["state"] != "FAILED" or loss.reason not in (row["reason"] or ""))
            ]

        until(lambda: not unsaid(), what=f"what is missing is said: {loss.reason}; {unsaid()}")

    @staticmethod
    def _user(cluster: Secured, name: str, topics: Collection[str], reason: str) -> Loss:
        async def give() -> None:
            await cluster.set_password(name, PASSWORDS[name])

        return Loss(f"user {name}", topics, reason, lambda: cluster.delete_user(name), give)

    @staticmethod
    def _password(cluster: Secured, name: str, topics: Collection[str], reason: str) -> Loss:
        async def take() -> None:
            await cluster.set_password(name, "another-secret")

        async def give() -> None:
            await cluster.set_password(name, PASSWORDS[name])

        return Loss(f"the password of {name}", topics, reason, take, give)

    @staticmethod
    def _rights(
        cluster: Secured, what: str, acls: Sequence[Acl], topics: Collection[str], reason: str
    ) -> Loss:
        return Loss(what, topics, reason, lambda: cluster.take(acls), lambda: cluster.give(acls))


def rights(role: str, user: str, topics: Collection[str]) -> list[Acl]:
    """Return what docs/security.md grants a role, for a user and these topics."""
    found = []
    for acl in granted(f"User:{role}"):
        named = acl._replace(principal=f"User:{user}")
        if (acl.resource_type, acl.resource_name) == (ResourceType.TOPIC, STOOD_FOR):
            found += [named._replace(resource_name=topic) for topic in topics]
        else:
            found.append(named)
    return found


def _about(acls: Collection[Acl], topic: str, operation: Operation) -> list[Acl]:
    return [acl for acl in acls if (acl.resource_name, acl.operation) == (topic, operation)]


@contextmanager
def guarded(directory: Path, seed: str, rate: float) -> Iterator[Guarded]:
    """Start two clusters with authentication, and two mirrors of a load of `rate` records/s."""
    home = directory / "certificates"
    home.mkdir()
    with (
        secured_cluster(home, directory / "source", {}) as source,
        secured_cluster(home, directory / "destination", {}) as destination,
        Stage(directory / "stage") as stage,
    ):
        stage.source, stage.destination = source.local, destination.local
        found = Guarded(Ordeal(stage, seed), source, destination)
        asyncio.run(found.prepare())
        found.begin(rate)
        yield found
