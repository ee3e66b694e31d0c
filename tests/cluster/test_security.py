"""TLS and SASL against real brokers, with certificates made on the spot."""

import asyncio
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import javaproperties
import pytest
from kafka.protocol.admin import AlterUserScramCredentialsRequest

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.config import parse_config, read_properties
from twinlog.core.errors import UserError
from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import PortClaim

pytestmark = pytest.mark.broker
MODULE = "org.apache.kafka.common.security.{}LoginModule required"
PLAIN, SCRAM = MODULE.format("plain.Plain"), MODULE.format("scram.Scram")
PASSWORD = "a,=secret"
NAME = "a=l,ice"
LISTENERS = {"TLS": "SSL", "MUTUAL": "SSL", "WORD": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
SESSION_MS = 3000


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def _certificates(home: Path) -> None:
    """An authority, and a store (key and certificate of it) for the broker and for a client."""
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    _openssl(home, *new, "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    (home / "names").write_text("subjectAltName=IP:127.0.0.1")
    sign = ("x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    for name in ("broker", "client"):
        key, request, certificate = f"{name}.key", f"{name}.csr", f"{name}.crt"
        _openssl(home, *new, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(home, *sign, "-extfile", "names", "-in", request, "-out", certificate)
        store = (home / key).read_text() + (home / certificate).read_text()
        (home / f"{name}.store").write_text(store)


class Secured:
    """A broker with a listener for each way to come in."""

    def __init__(self, home: Path, local: LocalCluster, ports: Mapping[str, int]) -> None:
        self.home, self.local, self.ports = home, local, ports

    def cluster(self, listener: str, properties: Mapping[str, str]) -> KafkaCluster:
        servers = {"bootstrap.servers": f"127.0.0.1:{self.ports[listener]}"}
        security = {"security.protocol": LISTENERS[listener]}
        return KafkaCluster(parse_config(servers | security | dict(properties), {}).config)

    @property
    def trust(self) -> dict[str, str]:
        return {"ssl.truststore.location": str(self.home / "ca.pem")}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One broker, restarted with more listeners than it was made with."""
    home = tmp_path_factory.mktemp("certificates")
    _certificates(home)
    directory = tmp_path_factory.mktemp("secured")
    claim = PortClaim.fresh(len(LISTENERS))
    ports = dict(zip(LISTENERS, claim.ports, strict=True))
    with LocalCluster.start(1, directory=directory) as local:
        host, port = local.bootstrap_servers.split(":")
        asyncio.run(_add_scram_users(f"{host}:{port}"))
        (node,) = local.node_ids
        local.shut_down(node)
        path = directory / f"node-{node}" / "server.properties"
        base = read_properties(path)
        path.write_text(javaproperties.dumps(base | _listeners(home, base, ports)))
        local.start_broker(node)
        yield Secured(home, local, ports)
    claim.close()


def _listeners(home: Path, base: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, str]:
    extra = "".join(f",{name}://127.0.0.1:{port}" for name, port in ports.items())
    protocols = "".join(f",{name}:{protocol}" for name, protocol in LISTENERS.items())
    users = f'{PLAIN} username="b" password="b" user_b="b" user_alice="{PASSWORD}";'
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": users,
        "scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "scram-sha-512.sasl.jaas.config": f"{SCRAM};",
    }
    return {
        "listeners": base["listeners"] + extra,
        "listener.security.protocol.map": base["listener.security.protocol.map"] + protocols,
        "listener.name.mutual.ssl.client.auth": "required",
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "broker.store"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        **{f"listener.name.{n}.{k}": v for n in ("word", "both") for k, v in sasl.items()},
    }


async def _add_scram_users(server: str) -> None:
    """A broker takes one mechanism of a user with each request (else 92 DUPLICATE_RESOURCE)."""
    salt, rounds = b"0123456789", 4096
    item = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    async with KafkaCluster(parse_config({"bootstrap.servers": server}, {}).config) as cluster:
        for number, digest in ((1, "sha256"), (2, "sha512")):
            user = item(
                name=NAME,
                mechanism=number,
                iterations=rounds,
                salt=salt,
                salted_password=hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), salt, rounds),
            )
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[user])
            response = await cluster.call(request)
            assert [r.error_code for r in response.results] == [0], response


def _sasl(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    module, name = (PLAIN, "alice") if mechanism == "PLAIN" else (SCRAM, NAME)
    entry = f'{module} username="{name}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": entry}


def _reach(cluster: KafkaCluster) -> None:
    async def run() -> None:
        async with cluster:
            assert cluster.cluster_id
            assert (await cluster.refresh()).brokers

    asyncio.run(run())


def _refused(cluster: KafkaCluster) -> str:
    with pytest.raises(UserError) as caught:
        _reach(cluster)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_tls(secured: Secured) -> None:
    _reach(secured.cluster("TLS", secured.trust))


def test_tls_with_certificates_in_the_properties(secured: Secured) -> None:
    text = (secured.home / "ca.pem").read_text()
    _reach(secured.cluster("TLS", {"ssl.truststore.certificates": text}))


def test_tls_unknown_authority(secured: Secured) -> None:
    assert "certificate is refused" in _refused(secured.cluster("TLS", {}))


def test_tls_wrong_name(secured: Secured) -> None:
    """The certificate is for 127.0.0.1; `localhost` is another name, unless names do not count."""
    server = {"bootstrap.servers": f"localhost:{secured.ports['TLS']}"}
    assert "certificate is refused" in _refused(secured.cluster("TLS", server | secured.trust))
    lax = {"ssl.endpoint.identification.algorithm": ""}
    _reach(secured.cluster("TLS", server | secured.trust | lax))


def test_mutual_tls(secured: Secured) -> None:
    store = {"ssl.keystore.location": str(secured.home / "client.store")}
    _reach(secured.cluster("MUTUAL", secured.trust | store))
    texts = {
        "ssl.keystore.key": (secured.home / "client.key").read_text(),
        "ssl.keystore.certificate.chain": (secured.home / "client.crt").read_text(),
    }
    _reach(secured.cluster("MUTUAL", secured.trust | texts))


def test_plain_speech_to_a_tls_listener_is_named(secured: Secured) -> None:
    properties = {"security.protocol": "PLAINTEXT", "default.api.timeout.ms": "2000"}

    async def run() -> None:
        async with secured.cluster("TLS", properties):
            pass

    with pytest.raises(Exception, match="no bootstrap server answers") as caught:
        asyncio.run(run())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["WORD", "BOTH"])
def test_sasl(secured: Secured, mechanism: str, listener: str) -> None:
    _reach(secured.cluster(listener, secured.trust | _sasl(mechanism)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_sasl_wrong_password(secured: Secured, mechanism: str) -> None:
    message = _refused(secured.cluster("WORD", _sasl(mechanism, "wrong")))
    assert "SASL_AUTHENTICATION_FAILED" in message
    assert "wrong" not in message


def test_sessions_outlive_their_lifetime(secured: Secured) -> None:
    """A real broker closes a connection whose session was not renewed (KIP-368); ours live on."""

    async def run() -> None:
        async with secured.cluster("WORD", _sasl("SCRAM-SHA-256")) as cluster:
            await cluster.refresh()
            opened = cluster.counters.opened
            deadline = asyncio.get_running_loop().time() + 2.5 * SESSION_MS / 1000
            while asyncio.get_running_loop().time() < deadline:
                await cluster.refresh()
                await asyncio.sleep(0.05)
            assert cluster.counters.opened == opened

    asyncio.run(run())
