"""TLS and SASL against real brokers, with certificates made by the test."""

import asyncio
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest
from secured_clusters import (
    PASSWORDS,
    Secured,
    oauth,
    outlive,
    outlive_sessions,
    reach,
    refused,
    sasl,
    token,
)
from start_errors import start_error

from twinlog.kafka.errors import Retriable

pytestmark = pytest.mark.broker
PASSWORD = PASSWORDS["alice"]
NAME = "a=l,ice"


@pytest.fixture(scope="module")
def secured(secured_pair: tuple[Secured, Secured]) -> Secured:
    asyncio.run(secured_pair[0].set_password(NAME, PASSWORD))
    return secured_pair[0]


def _sasl(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return sasl(mechanism, "alice" if mechanism == "PLAIN" else NAME, password)


def test_tls_connects_with_a_truststore(secured: Secured) -> None:
    reach(secured.cluster("TLS", secured.trust))


def test_tls_connects_with_certificates_in_the_properties(secured: Secured) -> None:
    text = (secured.home / "ca.pem").read_text()
    reach(secured.cluster("TLS", {"ssl.truststore.certificates": text}))


def test_a_certificate_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    assert "certificate verify failed" in refused(secured.cluster("TLS", {}))


def test_a_certificate_for_another_hostname_is_refused(secured: Secured) -> None:
    """The certificate is for 127.0.0.1; `localhost` fails, unless names are not verified."""
    server = {"bootstrap.servers": secured.servers("TLS").replace("127.0.0.1", "localhost")}
    assert "certificate verify failed" in refused(secured.cluster("TLS", server | secured.trust))
    lax = {"ssl.endpoint.identification.algorithm": ""}
    reach(secured.cluster("TLS", server | secured.trust | lax))


def test_mutual_tls_connects_with_a_client_certificate(secured: Secured) -> None:
    store = {"ssl.keystore.location": str(secured.home / "client.store")}
    reach(secured.cluster("MUTUAL", secured.trust | store))
    texts = {
        "ssl.keystore.key": (secured.home / "client.key").read_text(),
        "ssl.keystore.certificate.chain": (secured.home / "client.crt").read_text(),
    }
    reach(secured.cluster("MUTUAL", secured.trust | texts))


def test_error_for_plaintext_to_a_tls_listener_names_the_address(secured: Secured) -> None:
    properties = {"security.protocol": "PLAINTEXT"}
    expected = r"no bootstrap server responds: 127.*TLS.*SASL_SSL"
    asyncio.run(start_error(lambda: secured.cluster("TLS", properties), expected))


def test_error_for_tls_to_a_plaintext_listener_names_the_address(secured: Secured) -> None:
    properties = {"security.protocol": "SSL"}
    expected = r"127\.0\.0\.1:\d+: .* TLS handshake; compare security"
    asyncio.run(start_error(lambda: secured.cluster("WORD", properties), expected))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["WORD", "BOTH"])
def test_sasl_connects_with_each_mechanism(secured: Secured, mechanism: str, listener: str) -> None:
    reach(secured.cluster(listener, secured.trust | _sasl(mechanism)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_sasl_password_is_refused(secured: Secured, mechanism: str) -> None:
    message = refused(secured.cluster("WORD", _sasl(mechanism, "wrong")))
    assert "SASL_AUTHENTICATION_FAILED" in message
    assert "wrong" not in message


def test_an_expired_oauth_token_is_refused(secured: Secured, tmp_path: Path) -> None:
    """The token is in a file; an expired one is refused, and not retried."""
    file = tmp_path / "token"
    file.write_text(token("alice"))
    reach(secured.cluster("WORD", oauth(file)))
    old = token("alice", -60)
    file.write_text(old)
    message = refused(secured.cluster("WORD", oauth(file)))
    assert "sasl.oauthbearer.token.endpoint.url" in message
    assert old not in message


def test_a_password_changed_behind_a_reference_is_used(secured: Secured, tmp_path: Path) -> None:
    """A running client renews its sessions with the new one, and opens connections with it."""
    name, file = "rotated", tmp_path / "secrets.properties"
    asyncio.run(secured.set_password(name, "the-old-one"))
    file.write_text("pw=the-old-one")
    properties = sasl("SCRAM-SHA-512", name, f"${{file:{file}:pw}}")

    async def run() -> None:
        async with secured.cluster("WORD", properties) as cluster:
            await cluster.refresh()
            await secured.set_password(name, "the-new-one")
            file.write_text("pw=the-new-one")
            await outlive(cluster)
            (node,) = cluster.metadata.brokers
            assert not (await cluster.connection(node, "another")).closed

    asyncio.run(run())
    assert "SASL_AUTHENTICATION_FAILED" in refused(
        secured.cluster("WORD", sasl("SCRAM-SHA-512", name, "the-old-one"))
    )


@pytest.mark.long
def test_operations_wait_while_a_file_of_secrets_is_missing(
    secured: Secured, tmp_path: Path
) -> None:
    """Operations that need it wait, and go on when it is readable again."""
    file = tmp_path / "secrets.properties"
    file.write_text(f"pw={PASSWORD}")

    async def run() -> None:
        async with secured.cluster("WORD", _sasl("PLAIN", f"${{file:{file}:pw}}")) as cluster:
            (node,) = cluster.metadata.brokers
            file.unlink()
            with pytest.raises(
                Retriable, match=r"sasl\.jaas\.config: .*secrets.* does not exist or is not a file"
            ):
                await cluster.connection(node, "one")
            request = MetadataRequest(topics=[])
            asking = asyncio.create_task(cluster.call(request, node=node, lane="one"))
            await asyncio.wait({asking}, timeout=1)
            assert not asking.done()
            file.write_text(f"pw={PASSWORD}")
            assert (await asking).brokers

    asyncio.run(run())


def test_sessions_outlive_their_lifetime(secured: Secured) -> None:
    outlive_sessions(secured.cluster("WORD", _sasl("SCRAM-SHA-256")))
