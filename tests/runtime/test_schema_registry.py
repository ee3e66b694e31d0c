"""A client of a schema registry: credentials, TLS, and what is no answer."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from secured_clusters import make_authority, make_store
from tiny_registry import TinyRegistry, tiny_registry

from twinlog.kafka.client.references import EVERYTHING, Grants
from twinlog.mirror.dataframe_transform import RegistryAccess
from twinlog.runtime.schema_registry import RegisteredSchema, RegistryTrouble, SchemaRegistry

SUBJECT = "orders-value"
USER = "twinlog:se:cret"


@pytest.fixture
def guarded() -> Iterator[TinyRegistry]:
    """A registry that demands basic authentication."""
    with tiny_registry(7) as registry:
        registry.user_info = USER
        registry.add(SUBJECT, {"type": "string"})
        yield registry


def client(
    registry: TinyRegistry, user_info: str | None, grants: Grants = EVERYTHING
) -> SchemaRegistry:
    return SchemaRegistry(RegistryAccess(registry.url, user_info), grants)


def test_all_requests_are_authenticated(guarded: TinyRegistry) -> None:
    """Goal: each kind of request has the credentials; a password may have colons."""
    registry = client(guarded, USER)
    latest = registry.latest(SUBJECT)
    assert latest == registry.schema(latest.id) == RegisteredSchema(7, '{"type": "string"}')
    assert registry.register("other-value", latest) == 7
    assert len(guarded.requests) == 3


@pytest.mark.parametrize("user_info", [None, "twinlog:other", "twinlog:"])
def test_a_client_that_is_refused_says_so(guarded: TinyRegistry, user_info: str | None) -> None:
    """Goal: the code and the setting, and nothing of the password."""
    with pytest.raises(RegistryTrouble) as trouble:
        client(guarded, user_info).latest(SUBJECT)
    assert str(trouble.value) == (
        f"the schema registry {guarded.url} answers 401 to /subjects/{SUBJECT}/versions/latest: "
        "check basic.auth.user.info"
    )
    assert guarded.requests == []


def test_a_password_is_read_anew_for_each_request(guarded: TinyRegistry, tmp_path: Path) -> None:
    """Goal: a changed password needs no restart; only what is granted is read."""
    file = tmp_path / "registry.properties"
    file.write_text(f"user={USER}\n")
    reference = f"${{file:{file}:user}}"
    registry = client(guarded, reference, Grants(paths=(PurePosixPath(tmp_path),)))
    assert registry.latest(SUBJECT).id == 7
    guarded.user_info = "twinlog:new"
    with pytest.raises(RegistryTrouble, match="answers 401"):
        registry.latest(SUBJECT)
    file.write_text("user=twinlog:new\n")
    assert registry.latest(SUBJECT).id == 7
    file.unlink()
    with pytest.raises(RegistryTrouble, match=r"cannot be asked: basic\.auth\.user\.info: cannot"):
        registry.latest(SUBJECT)
    with pytest.raises(RegistryTrouble, match=r"is not within mirror\.allowed\.paths"):
        client(guarded, reference, Grants()).latest(SUBJECT)


def test_credentials_do_not_follow_a_redirect(guarded: TinyRegistry) -> None:
    """Goal: the password is sent to the configured host only."""
    with tiny_registry() as other:
        guarded.redirects_to = other.url
        with pytest.raises(RegistryTrouble, match="answers 302"):
            client(guarded, USER).latest(SUBJECT)
        assert other.requests == []


def test_an_answer_that_is_cut_off_is_the_registrys_fault(guarded: TinyRegistry) -> None:
    """Goal: no record is blamed for it, and the registry is asked again."""
    registry = client(guarded, USER)
    guarded.lacks = 1
    text = rf"the schema registry {guarded.url} does not answer: IncompleteRead\("
    with pytest.raises(RegistryTrouble, match=text):
        registry.schema(7)
    guarded.lacks = 0
    assert registry.schema(7).id == 7


def test_an_answer_that_is_not_http_is_the_registrys_fault() -> None:
    """Goal: as an answer that is cut off."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"no HTTP\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RegistryTrouble, match="does not answer: no HTTP"):
            SchemaRegistry(RegistryAccess(f"http://127.0.0.1:{port}")).latest(SUBJECT)
        thread.join()


def test_secrets_are_not_shown() -> None:
    """Goal: a log of the transform has no password."""
    access = RegistryAccess("https://a:1", USER, (("ssl.key.password", "geheim"),))
    assert repr(access) == "RegistryAccess(url='https://a:1')"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, another one, and stores of a server and a client."""
    folder = tmp_path_factory.mktemp("registry")
    for name in ("ca", "other"):
        make_authority(folder, name)
    for name in ("server", "client"):
        make_store(folder, name)
    return folder


def test_https_with_certificates_of_both_sides(home: Path) -> None:
    """Goal: `ssl.*` as for brokers: the server is checked, and the client has a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "server.store")
    context.load_verify_locations(home / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    trust = ("ssl.truststore.location", str(home / "ca.pem"))
    identity = ("ssl.keystore.location", str(home / "client.store"))
    with tiny_registry(7, context) as server:
        server.add(SUBJECT, {"type": "string"})

        def ask(*tls: tuple[str, str]) -> int:
            access = RegistryAccess(server.url, tls=tls)
            return SchemaRegistry(access, EVERYTHING).latest(SUBJECT).id

        assert ask(identity, trust) == 7
        refused: list[tuple[Callable[[], int], str]] = [
            (lambda: ask(identity), "CERTIFICATE_VERIFY_FAILED"),
            (lambda: ask(identity, (trust[0], str(home / "other.pem"))), "VERIFY_FAILED"),
            (lambda: ask(trust), "does not answer"),
            (lambda: ask((trust[0], "/nowhere.pem")), re.escape("/nowhere.pem")),
        ]
        for attempt, text in refused:
            with pytest.raises(RegistryTrouble, match=text):
                attempt()
        assert len(server.requests) == 1
