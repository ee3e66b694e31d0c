"""TLS and SASL against real brokers, with certificates made on the spot."""

import asyncio
from pathlib import Path

import pytest

from secured import PASSWORDS, SESSION_MS, Secured, oauth, sasl, token
from twinlog.cluster.client import KafkaCluster
from twinlog.core.errors import UserError

pytestmark = pytest.mark.broker
PASSWORD = PASSWORDS["alice"]
NAME = "a=l,ice"


@pytest.fixture(scope="module")
def secured(secured_pair: tuple[Secured, Secured]) -> Secured:
    asyncio.run(secured_pair[0].set_password(NAME, PASSWORD))
    return secured_pair[0]


def _sasl(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return sasl(mechanism, "alice" if mechanism == "PLAIN" else NAME, password)


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
    server = {"bootstrap.servers": secured.servers("TLS").replace("127.0.0.1", "localhost")}
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


def test_oauth_bearer(secured: Secured, tmp_path: Path) -> None:
    """A token that something keeps in a file; an old one is refused, and not repeated."""
    file = tmp_path / "token"
    file.write_text(token("alice"))
    _reach(secured.cluster("WORD", oauth(file)))
    old = token("alice", -60)
    file.write_text(old)
    message = _refused(secured.cluster("WORD", oauth(file)))
    assert "sasl.oauthbearer.token.endpoint.url" in message
    assert old not in message


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
