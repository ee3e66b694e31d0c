"""Mirrors between clusters with authentication and authorization: the rights of docs/security.md.

One node reaches the destination by SASL_SSL with SCRAM-SHA-512, and a source by each supported
kind of authentication. Operators' commands reach the destination by SASL_PLAINTEXT with PLAIN.
"""

import asyncio
import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import javaproperties
import librdkafka_tools
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from process_tree import await_lanes, below
from readiness_check import find_readiness
from rights import granted
from secured_clusters import (
    LISTENERS,
    PASSWORDS,
    SESSION_MS,
    Secured,
    make_authority,
    oauth,
    sasl,
    token,
)
from switchover_process import Switching, switched_over
from waiting import until, until_async

from twinlog.engines.kafka_ports import KafkaSource
from twinlog.engines.ports import WHOLE_TOPIC
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.references import ALLOWED_PATHS
from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.lifecycle.changes import pause_topics, remove_topics, resume_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.local.ports import HOST, PortClaim
from twinlog.local.stage import Stage
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.store.config_records import MadeAcl, MadeFor
from twinlog.store.control_topics import CONFIG_TOPIC, LANES_GROUP, STATE_TOPIC, ControlTopics
from twinlog.store.mirrors import MirrorStore
from twinlog.store.topic_reader import read_whole

pytestmark = [pytest.mark.broker, pytest.mark.spark]

WAYS = {
    "mutual-tls": "MUTUAL",
    "plain": "WORD",
    "scram-256": "WORD",
    "scram-512": "BOTH",
    "oauth": "WORD",
}
PREFIX = "orders"
"""The prefix of the topics that docs/security.md grants."""
AUTHORIZATION_FAILED = {29, 30, 31, 53}
LONG_SILENCE = ("--silence-seconds", "60")
"""A writer that waits for a busy machine is not silent for that long."""


class Place:
    """Both clusters, each principal's files, and the node."""

    def __init__(self, folder: Path, source: Secured, destination: Secured) -> None:
        self.folder, self.source, self.destination = folder, source, destination
        self.claims: list[PortClaim] = []
        self.stage = Stage(folder / "stage")
        self.stage.source, self.stage.destination = source.local, destination.local
        self.said: list[str] = []
        self.token = token("mirror")
        (folder / "token").write_text(self.token)
        self.secrets = folder / "secrets.properties"
        self.write_secrets({**PASSWORDS, "mirror-256": PASSWORDS["mirror"]})
        self.operator = folder / "operator.properties"
        self.operator.write_text(
            _text(sasl("PLAIN", "operator", self.reference("operator")) | self.grants(), "WORD")
        )
        self.node = folder / "node.properties"
        scram = sasl("SCRAM-SHA-512", "twinlog", self.reference("twinlog"))
        self.node.write_text(_text(destination.trust | scram | self.grants(), "BOTH"))

    def write_secrets(self, passwords: Mapping[str, str]) -> None:
        self.secrets.write_text(javaproperties.dumps(dict(passwords)))

    def change_secret(self, name: str, password: str) -> None:
        self.write_secrets(javaproperties.loads(self.secrets.read_text()) | {name: password})

    def reference(self, name: str) -> str:
        return f"${{file:{self.secrets}:{name}}}"

    def properties(self, way: str, refresh_s: int = 60) -> dict[str, str]:
        """Return a mirror's properties, for one kind of authentication at its source."""
        source, password = self.source, self.reference("mirror")
        found = {
            "mutual-tls": lambda: source.certificate("mirror"),
            "plain": lambda: sasl("PLAIN", "mirror", password),
            "scram-256": lambda: sasl("SCRAM-SHA-256", "mirror", self.reference("mirror-256")),
            "scram-512": lambda: source.trust | sasl("SCRAM-SHA-512", "mirror", password),
            "oauth": lambda: oauth(self.folder / "token"),
        }[way]()
        refresh = {"mirror.metadata.refresh.interval.ms": f"{refresh_s}000"}
        return source.properties(WAYS[way], found) | refresh

    def mirrors(self, *arguments: str) -> Done:
        """Run `kafka-mirrors` as the operator; all output is kept."""
        servers = self.destination.servers("WORD")
        at = ("--bootstrap-server", servers, "--command-config", str(self.operator))
        done = commands.run(commands.KAFKA_MIRRORS, *at, *arguments, seconds=300)
        self.said += [done.output, done.errors]
        return done

    def switching(self, mirror: str, *more: str) -> Switching:
        """Run `twinlog switchover` as a principal with the rights for that alone."""
        return Switching(*self.switchover(mirror), *more)

    def switchover(self, mirror: str) -> tuple[str, ...]:
        """Return its arguments."""
        config, source = self.folder / "switchover.properties", self.folder / "source.properties"
        properties = sasl("PLAIN", "switchover", self.reference("switchover"))
        config.write_text(_text(properties | self.grants(), "WORD"))
        source.write_text(javaproperties.dumps(self.source.properties("WORD", properties)))
        return (
            *("--bootstrap-server", self.destination.servers("WORD"), "--mirror", mirror),
            *("--command-config", str(config), "--source-config", str(source)),
        )

    def await_acls(self, side: Secured, topic: str, wanted: set[str]) -> None:
        """Wait until a topic has these ACLs: a broker applies what the controller has answered."""
        until(lambda: side.acls(topic), what=f"{wanted}", good=lambda found: found == wanted)

    def as_operator(self) -> KafkaCluster:
        plain = sasl("PLAIN", "operator", PASSWORDS["operator"])
        return self.destination.cluster("WORD", plain | self.grants())

    def grants(self) -> dict[str, str]:
        """Return the process configuration that lets mirrors' properties read secrets."""
        return {ALLOWED_PATHS: f"{self.folder},{self.source.home}"}

    @property
    def ui_port(self) -> int:
        """Return the port of Spark's UI."""
        return self.claims[-1].ports[0]

    def start_node(self) -> None:
        # A new port for each node: the JVM of a killed one may keep its own for a moment.
        self.claims.append(PortClaim.fresh(1))
        at = ("--bootstrap-server", self.destination.servers("BOTH"))
        config = ("--command-config", str(self.node), "--log-level", "INFO", "--lanes", "2")
        ui = ("--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={self.ui_port}")
        self.stage.start_node("node", *at, *config, *ui)


def _text(properties: Mapping[str, str], listener: str) -> str:
    protocol = {"security.protocol": LISTENERS[listener], "mirror.topic.num.partitions": "4"}
    return str(javaproperties.dumps({**protocol, **properties}))


@contextmanager
def without(secured: Secured, *acls: Acl) -> Iterator[None]:
    """Remove these rights while the block runs."""
    asyncio.run(secured.take(acls))
    try:
        yield
    finally:
        asyncio.run(secured.give(acls))


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, secured_pair: tuple[Secured, Secured]
) -> Iterator[Place]:
    """Grant the documented rights; start a mirror of one topic for each way, and a node."""
    place = Place(tmp_path_factory.mktemp("secured-mirrors"), *secured_pair)

    async def prepare() -> None:
        await place.source.set_password("mirror", PASSWORDS["mirror"])
        await place.destination.set_password("twinlog", PASSWORDS["twinlog"])
        await place.source.give(granted("User:mirror") + granted("User:switchover", "source"))
        principals = ("User:operator", "User:twinlog")
        await place.destination.give([right for name in principals for right in granted(name)])
        await place.destination.give(granted("User:switchover", "destination"))
        async with place.as_operator() as cluster:
            for way in WAYS:
                topics = ControlTopics(state_partitions=4, replication_factor=1)
                await create_mirror(cluster, way, place.properties(way), topics=topics)
                await add_topics(cluster, way, f"{PREFIX}-{way}")

    for way in WAYS:
        servers = place.source.local.bootstrap_servers
        librdkafka_tools.make_topic(servers, f"{PREFIX}-{way}", 2)
        librdkafka_tools.write(servers, f"{PREFIX}-{way}", librdkafka_tools.simple(100, 0))
    asyncio.run(prepare())
    with place.stage:
        place.start_node()
        place.stage.await_no_lag([f"{PREFIX}-{way}" for way in WAYS])
        yield place
    for claim in place.claims:
        claim.close()


def test_every_security_protocol_to_a_source_mirrors_records(place: Place) -> None:
    """Records arrive; the destination is always reached by SASL_SSL."""
    topics = [f"{PREFIX}-{way}" for way in WAYS]
    place.stage.await_no_lag(topics)
    for topic in topics:
        librdkafka_tools.write(
            place.source.local.bootstrap_servers, topic, librdkafka_tools.simple(50, 1, "later")
        )
    place.stage.await_no_lag(topics)
    report = place.stage.check(topics, numbered=False)
    assert report.good, report.problems
    assert report.records >= 150 * len(WAYS)


def test_secrets_appear_in_no_output(place: Place) -> None:
    """Not in a log, an answer, a control topic, the list of processes, Spark's UI."""
    place.stage.await_no_lag([f"{PREFIX}-{way}" for way in WAYS])
    librdkafka_tools.await_state(place.stage, f"{PREFIX}-plain", 0, "MIRRORING")
    place.mirrors("--describe", "--json")
    node = place.stage.nodes["node"]
    ui = f"http://{HOST}:{place.ui_port}/api/v1/applications"
    application = _get(ui)[0]["id"]
    seen = {
        "log": node.log.read_text(),
        "progress": node.output.read_text(),
        "answers": "\n".join(place.said),
        "processes": "\n".join(one.command for one in below(node.pid)),
        "ui": json.dumps(
            [
                _get(f"{ui}/{application}/{page}")
                for page in ("environment", "jobs", "stages", "executors")
            ]
        ),
        "control topic": asyncio.run(_written(place.destination)),
    }
    assert "twinlog" in seen["processes"]
    assert "spark.ui.port" in seen["ui"]
    assert place.reference("mirror") in seen["control topic"].replace("\\\\", "\\")
    for where, text in seen.items():
        for secret in (
            PASSWORDS["mirror"],
            PASSWORDS["twinlog"],
            PASSWORDS["operator"],
            place.token,
        ):
            assert secret not in text, where


def _get(url: str) -> list[dict[str, str]]:
    with urllib.request.urlopen(url, timeout=120) as answer:
        found: list[dict[str, str]] = json.load(answer)
        return found


async def _written(secured: Secured) -> str:
    async with secured.root() as cluster:
        records = await read_whole(cluster, CONFIG_TOPIC)
    return "\n".join(f"{r.key!r} {r.value!r}" for r in records)


def _wrong_name(place: Place, way: str) -> dict[str, str]:
    found = place.properties(way)
    servers = found["bootstrap.servers"].replace("127.0.0.1", "localhost")
    return found | {"bootstrap.servers": servers}


def _no_certificate(place: Place, way: str) -> dict[str, str]:
    return {key: value for key, value in place.properties(way).items() if "keystore" not in key}


def _no_module(place: Place, way: str) -> dict[str, str]:
    return place.properties(way) | {"sasl.mechanism": "PLAIN"}


def _wrong_password(place: Place, way: str) -> dict[str, str]:
    found = place.properties(way)
    found["sasl.jaas.config"] = found["sasl.jaas.config"].replace(
        place.reference("mirror"), "not-the-password"
    )
    return found


def _wrong_authority(place: Place, way: str) -> dict[str, str]:
    make_authority(place.folder, "other")
    trusted = {"ssl.truststore.location": str(place.folder / "other.pem")}
    return place.properties(way) | trusted


@pytest.mark.parametrize(
    ("way", "change", "named"),
    [
        ("plain", _wrong_password, "sasl.jaas.config"),
        ("scram-512", _wrong_password, "sasl.jaas.config"),
        ("mutual-tls", _wrong_authority, "ssl.truststore"),
        ("scram-512", _wrong_authority, "ssl.truststore"),
        ("mutual-tls", _wrong_name, "this host name"),
        ("mutual-tls", _no_certificate, "ssl.keystore"),
        ("scram-256", _no_module, "sasl.jaas.config"),
    ],
)
def test_errors_are_one_line(
    place: Place, way: str, change: Callable[[Place, str], dict[str, str]], named: str
) -> None:
    """The line names the setting, and no secret."""

    async def run() -> None:
        async with place.as_operator() as cluster:
            await create_mirror(cluster, "never", change(place, way))

    with pytest.raises(UserError) as caught:
        asyncio.run(run())
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    for secret in (*PASSWORDS.values(), "not-the-password"):
        assert secret not in message


def test_each_right_of_an_operator_is_necessary(place: Place) -> None:
    """Without any one of them some command is refused, with the reason; none is superfluous."""
    rights = granted("User:operator")
    # Create on control topics is for the first mirror, Write on states is tested below.
    tried = [
        right
        for right in rights
        if not right.resource_name.startswith("__mirror")
        or (
            right.operation is not Operation.CREATE
            and (right.resource_name, right.operation) != (STATE_TOPIC, Operation.WRITE)
        )
    ]
    names = [(f"{PREFIX}-fresh-{at}", f"{PREFIX}-taken-{at}") for at in range(len(tried) + 1)]

    async def life(cluster: KafkaCluster, number: int) -> None:
        name, topics = f"right-{number}", names[number]
        await create_mirror(cluster, name, place.properties("plain"))
        await add_topics(cluster, name, "|".join(topics))
        await pause_topics(cluster, name, ".*")
        await resume_topics(cluster, name, ".*")
        await remove_topics(cluster, name, ".*")
        await MirrorStore(cluster).states()
        await MirrorStore(cluster).statuses()

    # A principal without Read on states is refused once there are some.
    librdkafka_tools.await_state(place.stage, f"{PREFIX}-plain", 0, "MIRRORING")

    async def created(cluster: KafkaCluster, topics: list[str]) -> None:
        await create_topics(cluster, [NewTopic(name=name) for name in topics])

        async def known() -> bool:
            return set(topics) <= (await cluster.refresh(topics)).topics.keys()

        await until_async(known, what="the topics")

    async def run() -> None:
        async with place.source.root() as source:
            await created(source, [n for pair in names for n in pair])
        async with place.destination.root() as destination:
            await created(destination, [taken for _, taken in names])
        async with place.as_operator() as cluster:
            await life(cluster, 0)
            for number, right in enumerate(tried, 1):
                await place.destination.take([right])
                try:
                    with pytest.raises(TwinlogError) as caught:
                        await life(cluster, number)
                finally:
                    await place.destination.give([right])
                assert caught.value.code in AUTHORIZATION_FAILED, f"{right}: {caught.value}"
                assert "AUTHORIZATION_FAILED" in str(caught.value)
                if right.operation is Operation.WRITE:
                    assert str(caught.value).startswith("MIRROR_AUTHORIZATION_FAILED: ")

    asyncio.run(run())


def test_the_documented_rights_suffice_for_every_command(place: Place) -> None:
    """With the rights of the page: everything that follows the data, and each command."""
    source, destination = (one.local.bootstrap_servers for one in (place.source, place.destination))
    topic, mirror, group = f"{PREFIX}-life", "life", f"{PREFIX}-life-readers"
    librdkafka_tools.make_topic(source, topic, 1)
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(100))
    config = place.folder / "life.properties"
    config.write_text(javaproperties.dumps(place.properties("scram-512", 1)))
    in_it = ("--mirror", mirror)
    done(place.mirrors("--create", *in_it, "--mirror-config", str(config)))
    done(place.mirrors("--add", "--topic", topic, *in_it))
    place.stage.await_no_lag([topic])
    librdkafka_tools.commit(source, group, topic, {0: 40})
    delete_records(source, topic, 30)
    librdkafka_tools.grow_topic(source, topic, 2)
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(10, 1))
    until(
        lambda: librdkafka_tools.committed(destination, group, topic) == {0: 40},
        what="the group's offset",
    )
    until(
        lambda: ConsumerView(destination).extents([(topic, 0)])[topic, 0].start == 30,
        what="the log start",
    )
    librdkafka_tools.await_state(place.stage, topic, 1, "MIRRORING")
    place.stage.await_no_lag([topic])
    done(place.mirrors("--remove", "--topic", topic, *in_it))
    for partition in (0, 1):
        librdkafka_tools.await_state(place.stage, topic, partition, "STOPPED")
    states = [one for one in granted("User:operator") if one.resource_name == STATE_TOPIC]
    with without(
        place.destination, *(state for state in states if state.operation is Operation.WRITE)
    ):
        refused = place.mirrors("--delete", *in_it)
    assert refused.status != 0
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.errors
    # The first line warns of the password in clear text.
    assert refused.errors.count("\n") == 2, refused.errors
    done(place.mirrors("--delete", *in_it))


def test_the_destination_is_read_only_until_the_failover(place: Place) -> None:
    """Principals with WRITE at the source have it at the destination once the topic is removed."""
    source = place.source.local.bootstrap_servers
    topic, mirror = f"{PREFIX}-guarded", "guarded"
    alice = Acl(
        *(ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*"),
        *(Operation.ALL, Permission.ALLOW),
    )
    client = place.destination.as_alice()
    asyncio.run(place.source.give([alice]))
    librdkafka_tools.make_topic(source, topic, 1)
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(10))

    begin(place, mirror, topic)
    changing = ("ALTER", "ALTER_CONFIGS", "DELETE", "WRITE")
    guarded = {f"DENY User:alice {one} on TOPIC {topic}" for one in changing}
    until(lambda: place.destination.acls(topic) == {str(alice), *guarded}, what="the guard")
    place.stage.await_no_lag([topic])
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        librdkafka_tools.write("", topic, librdkafka_tools.simple(1), **client)
    admin = AdminClient(client)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_topics([topic])[topic].result(120)
    short = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[short])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.incremental_alter_configs([resource])[resource].result(120)
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(10, 0, "later"))
    place.stage.await_no_lag([topic])
    done(place.mirrors("--remove", "--topic", topic, "--mirror", mirror))

    librdkafka_tools.until_written(topic, client)
    place.await_acls(place.destination, topic, {str(alice)})
    assert librdkafka_tools.await_state(place.stage, topic, 0, "STOPPED")["last_mirrored_end"] == 20
    done(place.mirrors("--delete", "--mirror", mirror))


def test_a_failover_while_the_source_denies_all_principals(place: Place) -> None:
    """Goal: C3: the usual way to freeze a source would also bind the nodes, if it were copied.

    The denial is reported, by the node and by readiness, and is not copied, even if a rule names
    it. A denial that an earlier version has copied is removed. Then the failover is carried out.
    """
    topic, mirror = f"{PREFIX}-frozen", "frozen"
    alice = Acl(
        *(ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*"),
        *(Operation.WRITE, Permission.ALLOW),
    )
    reader = alice._replace(principal="User:bob", operation=Operation.READ)
    frozen = alice._replace(principal="User:*", permission=Permission.DENY)
    all_frozen = frozen._replace(resource_name="*")
    librdkafka_tools.make_topic(place.source.local.bootstrap_servers, topic, 1)
    librdkafka_tools.write(place.source.local.bootstrap_servers, topic, librdkafka_tools.simple(10))
    begin(place, mirror, topic, **{"mirror.acl.include": r"*,TOPIC;\*;WRITE;DENY"})
    place.stage.await_no_lag([topic])
    try:
        asyncio.run(place.source.give([alice, frozen, all_frozen]))
        asyncio.run(copied_before(place, mirror, all_frozen))
        everywhere = place.destination.acls
        until(lambda: str(all_frozen) not in everywhere("*"), what="the removal of the copy")
        asyncio.run(place.source.give([reader]))
        until(lambda: str(reader) in place.destination.acls(topic), what="a look that is complete")
        assert str(frozen) not in place.destination.acls(topic)
        assert str(all_frozen) not in everywhere("*")
        said = "2 denial(s) of the source are not copied, because they would stop nodes"
        log = place.stage.nodes["node"].log
        until(lambda: f"mirror {mirror}: {said}" in log.read_text(), what=said)
        found = readiness(place, mirror)
        (text,) = (one.text for one in found if one.reason is Reason.ACL and said in one.text)
        assert str(frozen) in text
        assert str(all_frozen) in text
        done(place.mirrors("--remove", "--topic", topic, "--mirror", mirror))
        asyncio.run(place.destination.give([alice]))
        librdkafka_tools.until_written(topic, place.destination.as_alice())
        assert (
            librdkafka_tools.await_state(place.stage, topic, 0, "STOPPED")["last_mirrored_end"]
            == 10
        )
        assert {str(frozen), str(alice)} <= place.source.acls(topic), "it is kept all the while"
    finally:
        asyncio.run(place.source.take([frozen, all_frozen]))
    done(place.mirrors("--delete", "--mirror", mirror))


async def copied_before(place: Place, mirror: str, acl: Acl) -> None:
    """Create an ACL on the destination that an earlier version has copied, and its record."""
    await place.destination.give([acl])
    async with place.destination.root() as cluster:
        made = MadeAcl(mirror=mirror, acl=acl, made_for=MadeFor.SOURCE)
        await MirrorStore(cluster).change(lambda _: [made])


def readiness(place: Place, mirror: str) -> list[Finding]:
    """Return readiness' findings, for a principal that may see everything."""
    servers = {"bootstrap.servers": place.destination.local.bootstrap_servers}
    found = asyncio.run(find_readiness(servers | place.grants(), mirror, ".*"))
    return list(found.all_findings())


def begin(place: Place, mirror: str, topic: str, **more: str) -> None:
    """Create a mirror of one topic, whose ACLs follow each second."""

    async def run() -> None:
        async with place.as_operator() as cluster:
            await create_mirror(cluster, mirror, place.properties("scram-512", 1) | more)
            await add_topics(cluster, mirror, topic)

    asyncio.run(run())


class Steady:
    """A producer that is not stopped: it writes record by record until one is refused."""

    def __init__(self, topic: str, client: Mapping[str, Any]) -> None:
        self.written: list[str] = []
        self.refused = ""
        self._topic, self._client = topic, client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.written or self.refused, what="the first record")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer(dict(self._client))

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.written.append((message.value() or b"").decode())
            else:
                self.refused = error.name()

        for number in itertools.count():
            if self.refused or self._ended.is_set():
                return
            producer.produce(self._topic, value=f"v{number}", on_delivery=delivered)
            producer.flush(librdkafka_tools.SECONDS)


def test_a_switchover_denies_its_producers(place: Place) -> None:
    """A producer that is not stopped writes until it is refused; all it has written is mirrored."""
    source, destination = (one.local.bootstrap_servers for one in (place.source, place.destination))
    topic, mirror = f"{PREFIX}-switched", "switched"
    alice = Acl(
        *(ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*"),
        *(Operation.WRITE, Permission.ALLOW),
    )
    denial = str(alice._replace(permission=Permission.DENY))
    asyncio.run(place.source.give([alice]))
    librdkafka_tools.make_topic(source, topic, 1)
    begin(place, mirror, topic)
    librdkafka_tools.await_state(place.stage, topic, 0, "MIRRORING")
    with Steady(topic, place.source.as_alice()) as steady:
        switch = switched_over(lambda: place.switching(mirror, "--silence-seconds", "1"))
        until(lambda: steady.refused, what="the refusal")
    assert steady.refused == "TOPIC_AUTHORIZATION_FAILED"
    assert switch.done == ["READINESS", "PRODUCERS", "SILENCE", "LAG", "GROUPS", "FAILOVER"]
    last = switch.said[-1]
    assert (last["result"], last["left_behind"], last["denied"]) == ("SWITCHED_OVER", [], [denial])
    for servers in (source, destination):
        assert values(servers, topic) == steady.written
    librdkafka_tools.until_written(topic, place.destination.as_alice())
    place.await_acls(place.source, topic, {str(alice), denial})
    place.await_acls(place.destination, topic, {str(alice)})
    refused = place.mirrors("--delete", "--mirror", mirror)
    assert "twinlog switchover --allow-producers" in refused.errors
    allow = (*commands.TWINLOG, "switchover", *place.switchover(mirror), "--allow-producers")
    back = commands.run(allow, seconds=300)
    assert back.output == f"Removed on the source: 1 denial(s)\n{denial}\n", back.errors
    place.await_acls(place.source, topic, {str(alice)})
    done(place.mirrors("--delete", "--mirror", mirror))


def values(servers: str, topic: str) -> list[str]:
    """Return all values that a consumer reads in partition 0."""
    end = ConsumerView(servers).stable([(topic, 0)])[topic, 0]
    found: list[str] = []
    with librdkafka_tools.consumer(servers, f"{topic}-values") as client:
        client.assign([TopicPartition(topic, 0, 0)])

        def read() -> bool:
            for message in client.consume(1000, 1.0):
                assert message.error() is None
                found.append((message.value() or b"").decode())
            (position,) = client.position([TopicPartition(topic, 0)])
            return position.offset >= end

        until(read, what=f"all of {topic}")
    return found


@pytest.mark.long
def test_an_aborted_switchover_restores_all_rights(place: Place) -> None:
    """All rights are restored after switchovers that are killed, too slow, interrupted or refused.

    The refused one loses its own right meanwhile, and reports that. A principal that cannot be
    denied anything writes on, so that the source is never idle.
    """
    source = place.source.local.bootstrap_servers
    topic, mirror = f"{PREFIX}-back", "back"
    kind, literal = ResourceType.TOPIC, PatternType.LITERAL
    alice = Acl(kind, topic, literal, "User:alice", "*", Operation.WRITE, Permission.ALLOW)
    foreign = alice._replace(principal="User:bob", permission=Permission.DENY)
    denial = str(alice._replace(permission=Permission.DENY))
    asyncio.run(place.source.give([alice, foreign]))
    librdkafka_tools.make_topic(source, topic, 1)
    begin(place, mirror, topic)
    librdkafka_tools.await_state(place.stage, topic, 0, "MIRRORING")
    before = place.source.acls(topic)
    with Steady(topic, {"bootstrap.servers": source}):
        killed = place.switching(mirror, *LONG_SILENCE)
        killed.until_step("SILENCE", "written to")
        killed.kill()
        place.await_acls(place.source, topic, before | {denial})
        late = place.switching(mirror, "--step-timeout-seconds", "2")
        assert late.end() == 3
        last = late.said[-1]
        assert (last["result"], last["step"]) == ("UNFINISHED", "SILENCE")
        assert "denials of another switchover" in last["error"]
        place.await_acls(place.source, topic, before | {denial})  # the first one may be running
        allowed = place.switching(mirror, "--allow-producers")
        assert allowed.end() == 0, allowed.errors
        assert allowed.said == [{"allowed": [denial], "left": []}]
        place.await_acls(place.source, topic, before)
        librdkafka_tools.until_written(topic, place.source.as_alice())
        interrupted = place.switching(mirror, *LONG_SILENCE)
        interrupted.until_step("SILENCE", "written to")
        place.await_acls(place.source, topic, before | {denial})
        interrupted.terminate()
        assert interrupted.end() == 130
        assert interrupted.said[-1]["result"] == "GONE_BACK"
        place.await_acls(place.source, topic, before)
        interrupted = place.switching(mirror, *LONG_SILENCE)
        interrupted.until_step("SILENCE", "written to")
        interrupted.interrupt()
        assert interrupted.end() == 130
        place.await_acls(place.source, topic, before)
        librdkafka_tools.until_written(topic, place.source.as_alice())
        stuck = place.switching(mirror, *LONG_SILENCE)
        stuck.until_step("SILENCE", "written to")
        with without(place.source, *granted("User:switchover", "source")):
            stuck.interrupt()
            assert stuck.end() == 3
            assert "cannot remove the denials: " in stuck.said[-1]["error"]
            place.await_acls(place.source, topic, before | {denial})
            again = place.switching(mirror)
            assert again.end() == 3
        assert "needs DESCRIBE on the cluster" in again.said[-1]["error"]
        assert "denials of another switchover" in again.said[-1]["error"]
        allowed = place.switching(mirror, "--allow-producers")
        assert allowed.end() == 0, allowed.errors
        assert allowed.said == [{"allowed": [denial], "left": []}]
        place.await_acls(place.source, topic, before)
    assert librdkafka_tools.described(place.stage, topic)[0]["wanted"] == "MIRRORING"
    assert place.destination.acls(topic) >= before, "and whom the mirror denies"


def delete_records(servers: str, topic: str, offset: int) -> None:
    first = TopicPartition(topic, 0, offset)
    client = librdkafka_tools.admin(servers)
    client.delete_records([first])[first].result(120)


def done(command: Done) -> None:
    assert command.status == 0, command.errors


@pytest.mark.parametrize(
    ("side", "principal", "operation"),
    [
        ("source", "User:mirror", Operation.READ),
        ("destination", "User:twinlog", Operation.WRITE),
    ],
)
def test_a_partition_resumes_when_a_revoked_right_is_restored(
    place: Place, side: str, principal: str, operation: Operation
) -> None:
    """The missing right is reported for the partition; later it resumes, and nothing is lost."""
    topic = f"{PREFIX}-plain"
    servers = place.source.local.bootstrap_servers
    place.stage.await_no_lag([topic])
    rights = [
        one
        for one in granted(principal)
        if (one.resource_name, one.operation) == (PREFIX, operation)
    ]
    with without(getattr(place, side), *rights):
        librdkafka_tools.write(servers, topic, librdkafka_tools.simple(20, 0, side))

        def said() -> bool:
            row = librdkafka_tools.described(place.stage, topic)[0]
            return "TOPIC_AUTHORIZATION_FAILED" in (row["reason"] or "")

        until(said, what="the reason")
    place.stage.await_no_lag([topic])
    librdkafka_tools.await_state(place.stage, topic, 0, "MIRRORING")
    report = place.stage.check([topic], numbered=False)
    assert report.good, report.problems


def test_a_topic_without_describe_right_is_not_reported_as_missing(place: Place) -> None:
    """It is refused, and not taken for a missing topic."""
    topic = f"{PREFIX}-plain"

    async def body() -> None:
        alice = sasl("PLAIN", "alice", PASSWORDS["alice"])
        async with place.source.cluster("WORD", alice) as cluster:
            ((partition, leader),) = (await KafkaSource(cluster).leaders([topic])).items()
        assert (partition, leader.node, leader.error) == ((topic, WHOLE_TOPIC), -1, 29)

    asyncio.run(body())


@pytest.mark.long
def test_a_changed_source_password_is_used_without_further_action(place: Place) -> None:
    """Changed at the source and behind the reference: no other action is needed."""
    topic, servers = f"{PREFIX}-scram-256", place.source.local.bootstrap_servers
    place.stage.await_no_lag([topic])
    asyncio.run(place.source.set_password("mirror", "another-secret", ["SCRAM-SHA-256"]))
    place.change_secret("mirror-256", "another-secret")
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(20, 0, "another"))
    place.stage.await_no_lag([topic])
    librdkafka_tools.await_state(place.stage, topic, 0, "MIRRORING")


def test_lanes_continue_when_the_password_of_the_node_is_changed(place: Place) -> None:
    """At the destination and behind the reference, and back: the same lanes go on."""
    topic, servers = f"{PREFIX}-oauth", place.source.local.bootstrap_servers
    place.stage.await_no_lag([topic])
    node = place.stage.nodes["node"]
    lanes = await_lanes(node.pid, 2)
    for password in ("another-secret", PASSWORDS["twinlog"]):
        asyncio.run(place.destination.set_password("twinlog", password))
        place.change_secret("twinlog", password)
        # Wait longer than each session that was opened with the former password.
        time.sleep(SESSION_MS / 1000)
        librdkafka_tools.write(servers, topic, librdkafka_tools.simple(20, 0, password))
        place.stage.await_no_lag([topic])
    assert node.alive
    assert all(lane.alive() for lane in lanes), "a lane has ended"


def test_a_node_resumes_when_its_user_is_restored(place: Place) -> None:
    """For longer than the session: the node stays, writes nothing, and resumes by itself."""
    topic, servers = f"{PREFIX}-oauth", place.source.local.bootstrap_servers
    place.stage.await_no_lag([topic])
    node = place.stage.nodes["node"]
    lanes = await_lanes(node.pid, 2)
    client = librdkafka_tools.admin(place.destination.local.bootstrap_servers)

    def members() -> int:
        groups = client.describe_consumer_groups([LANES_GROUP])
        return len(groups[LANES_GROUP].result(librdkafka_tools.SECONDS).members)

    asyncio.run(place.destination.delete_user("twinlog"))
    try:
        until(lambda: not members(), what="a group without members")
        librdkafka_tools.write(servers, topic, librdkafka_tools.simple(20, 0, "meanwhile"))
    finally:
        asyncio.run(place.destination.set_password("twinlog", PASSWORDS["twinlog"]))
    place.stage.await_no_lag([topic])
    assert node.alive
    assert all(lane.alive() for lane in lanes), "a lane has ended"
    report = place.stage.check([topic], numbered=False)
    assert report.good, report.problems


@pytest.mark.long
def test_a_node_that_starts_while_a_source_refuses_access_resumes_later(place: Place) -> None:
    """Its partitions are FAILED with the reason, other mirrors go on; later it resumes."""
    topic, beside = f"{PREFIX}-scram-256", f"{PREFIX}-oauth"
    servers = place.source.local.bootstrap_servers
    place.stage.await_no_lag([topic, beside])
    place.stage.nodes["node"].kill()
    asyncio.run(place.source.set_password("mirror", "not-told", ["SCRAM-SHA-256"]))
    try:
        for one in (topic, beside):
            librdkafka_tools.write(servers, one, librdkafka_tools.simple(20, 0, "begun"))
        place.start_node()
        place.stage.await_no_lag([beside])
        for partition in (0, 1):
            librdkafka_tools.await_state(place.stage, topic, partition, "FAILED")
            reason = librdkafka_tools.described(place.stage, topic)[partition]["reason"]
            assert "SASL_AUTHENTICATION_FAILED" in reason
    finally:
        asyncio.run(place.source.set_password("mirror", PASSWORDS["mirror"], ["SCRAM-SHA-256"]))
        place.change_secret("mirror-256", PASSWORDS["mirror"])  # other tests have changed it
    place.stage.await_no_lag([topic])
    librdkafka_tools.await_state(place.stage, topic, 0, "MIRRORING")
