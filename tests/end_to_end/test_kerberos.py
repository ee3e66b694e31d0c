"""GSSAPI on a real KDC: commands, a node and its lanes, each with its own keytab.

Both clusters refuse clients without a ticket, except on the tests' own listener. Sessions end after
3 s (KIP-368), so that clients authenticate again and again.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import javaproperties
import librdkafka_tools
import pytest
from kdc import REALM, Kdc, by_keytab, kdc, krb5_login
from mirror_maker_process import MirrorMakerProcess
from remote_topics import places
from secured_clusters import SESSION_MS, outlive_sessions, reach, refused
from waiting import until

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.references import ALLOWED_PATHS
from twinlog.local import commands
from twinlog.local.cluster import LocalCluster
from twinlog.local.commands import Done
from twinlog.local.ports import HOST
from twinlog.local.processes import SHORT_LIVED
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.kerberos]

SERVICE = f"kafka/{HOST}"
LISTENER = "TICKETS"


class Place:
    """The realm, both clusters, and the principals with a keytab: mirror, twinlog, operator."""

    def __init__(self, realm: Kdc, stage: Stage) -> None:
        self.realm, self.stage = realm, stage
        names = ("mirror", "twinlog", "operator")
        self.keytabs = {name: realm.keytab(name) for name in names}

    def properties(self, side: str, name: str) -> dict[str, str]:
        cluster: LocalCluster = getattr(self.stage, side)
        servers = {"bootstrap.servers": cluster.listener(LISTENER)}
        return servers | by_keytab(name, self.keytabs[name])

    def file(self, name: str, properties: Mapping[str, str]) -> str:
        path = self.realm.home / f"{name}.properties"
        allowed = {} if name == "mirror" else {ALLOWED_PATHS: str(self.keytabs["mirror"])}
        path.write_text(javaproperties.dumps({**properties, **allowed}))
        return str(path)

    def mirrors(self, *arguments: str) -> Done:
        config = self.properties("destination", "operator")
        at = ("--bootstrap-server", config.pop("bootstrap.servers"))
        file = self.file("operator", {**config, "mirror.topic.num.partitions": "4"})
        return commands.run(
            commands.KAFKA_MIRRORS, *at, "--command-config", file, *arguments, seconds=300
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("kerberos")
    with kdc(home) as realm, pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        # Do not use a ticket of the user that runs the tests.
        patch.setenv("KRB5CCNAME", f"FILE:{home}/nobody")
        config = _broker(realm.keytab(SERVICE))
        flags = (*SHORT_LIVED, f"-Djava.security.krb5.conf={realm.clients_file}")
        start = partial(
            LocalCluster.start,
            config=config,
            listeners={LISTENER: "SASL_PLAINTEXT"},
            jvm_flags=flags,
        )
        with (
            start(directory=home / "source") as source,
            start(directory=home / "destination") as destination,
            Stage(home / "stage") as stage,
        ):
            stage.source, stage.destination = source, destination
            yield Place(realm, stage)


def _broker(keytab: Path) -> dict[str, str]:
    options = {
        "useKeyTab": "true",
        "storeKey": "true",
        "keyTab": str(keytab),
        "principal": f"{SERVICE}@{REALM}",
    }
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        f"listener.name.{LISTENER.lower()}.gssapi.sasl.jaas.config": krb5_login(options),
        "connections.max.reauth.ms": str(SESSION_MS),
    }


def _cluster(properties: Mapping[str, str]) -> KafkaCluster:
    return KafkaCluster(parse_config(properties, {}).config)


def test_a_mirror_runs_with_keytabs(place: Place) -> None:
    """The source by `mirror`'s keytab, the destination by `operator`'s and `twinlog`'s."""
    stage, topic = place.stage, "orders"
    servers = stage.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(500))
    config = place.file("mirror", place.properties("source", "mirror"))
    for arguments in (
        ("--create", "--mirror", "tickets", "--mirror-config", config),
        ("--add", "--mirror", "tickets", "--topic", topic),
    ):
        done = place.mirrors(*arguments)
        assert done.status == 0, done.errors
    node = place.properties("destination", "twinlog")
    at = ("--bootstrap-server", node.pop("bootstrap.servers"))
    # The last one wins: the stage gives the listener without authentication.
    stage.start_node("node", *at, "--command-config", place.file("twinlog", node), "--lanes", "2")
    stage.await_no_lag([topic])
    for number in range(3):
        librdkafka_tools.write(servers, topic, librdkafka_tools.simple(100, 1, f"later{number}"))
        stage.await_no_lag([topic])
    report = stage.check([topic], numbered=False)
    assert report.good, report.problems
    assert report.records == 800
    asked = place.realm.asked()
    for name in place.keytabs:
        assert f"{name}@{REALM} for {SERVICE}@{REALM}" in asked, "came without a ticket"


def test_a_file_of_mirror_maker_runs_with_keytabs(place: Place, tmp_path: Path) -> None:
    """Goal: its nodes may read the keytab that the file names, without further settings."""
    topic, copy = "payments", "a.payments"
    source, target = place.stage.source, place.stage.destination
    librdkafka_tools.make_topic(source.bootstrap_servers, topic)
    librdkafka_tools.write(source.bootstrap_servers, topic, librdkafka_tools.simple(100))
    lines = {"clusters": "a, b", "a->b.enabled": "true", "a->b.topics": topic}
    for kind in ("", "heartbeats.topic.", "checkpoints.topic.", "offset-syncs.topic."):
        lines[f"{kind}replication.factor"] = "1"
    for alias, side, name in (("a", "source", "mirror"), ("b", "destination", "twinlog")):
        properties = place.properties(side, name)
        lines |= {f"{alias}.{key}": value for key, value in properties.items()}
    running = MirrorMakerProcess(tmp_path, javaproperties.dumps(lines), "--lanes", "1")
    running.check()
    running.start()

    def copied() -> bool:
        there = librdkafka_tools.admin(target.bootstrap_servers).list_topics(timeout=120).topics
        return copy in there and len(places(target, copy)) == 100

    try:
        until(copied, 300, f"100 records in {copy}")
        running.end()
    finally:
        running.clean_up()


def test_sessions_outlive_their_lifetime(place: Place) -> None:
    outlive_sessions(_cluster(place.properties("source", "mirror")))


def test_a_ticket_cache_is_used_instead_of_a_keytab(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ticket of `kinit`: in the file that is named, or in the system's default cache."""
    cache, keytab = tmp_path / "tickets", str(place.keytabs["mirror"])
    place.realm.run("kinit", "-k", "-t", keytab, "-c", str(cache), "mirror")
    properties = place.properties("source", "mirror")
    options = {"useTicketCache": "true", "ticketCache": str(cache)}
    reach(_cluster(properties | {"sasl.jaas.config": krb5_login(options)}))
    del properties["sasl.jaas.config"]
    assert "SASL_AUTHENTICATION_FAILED" in refused(_cluster(properties))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    reach(_cluster(properties))


def test_errors_are_one_line(place: Place, tmp_path: Path) -> None:
    properties = place.properties("source", "mirror")
    missing = by_keytab("mirror", tmp_path / "missing")
    assert "keyTab is" in refused(_cluster(properties | missing))
    foreign = by_keytab("operator", place.keytabs["mirror"])
    said = refused(_cluster(properties | foreign))
    assert said.startswith("cannot authenticate: SASL_AUTHENTICATION_FAILED (58)")
    assert "keyTab and principal" in said
    said = refused(_cluster(properties | {"sasl.kerberos.service.name": "other"}))
    assert f"cannot get a ticket for other@{HOST}" in said


def test_an_unreachable_kdc_delays_only_clients_without_a_ticket(place: Place) -> None:
    """It delays clients without a ticket, and no client that has one."""
    mirror, fresh = (place.properties("source", name) for name in ("mirror", "twinlog"))
    reach(_cluster(mirror))
    place.realm.stop()
    try:
        reach(_cluster(mirror))
        assert "cannot get a ticket for" in refused(_cluster(fresh))
    finally:
        place.realm.start()
    reach(_cluster(fresh))
