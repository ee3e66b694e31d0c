"""SASL against a script: which side is at fault, and that no error contains a secret."""

import asyncio
import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.sasl import SaslHandshakeRequest
from leaks import exposed_text

from twinlog.kafka.client import authentication
from twinlog.kafka.client.authentication import authenticate
from twinlog.kafka.client.security import TOKEN_URL, Sasl
from twinlog.kafka.errors import ProtocolError, TwinlogError, UserError

SECRET = "geheim"


def _failed(sasl: Sasl, answer: bytes = b"") -> TwinlogError:
    """Return the error if the broker gives this answer to each message."""

    async def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SimpleNamespace(error_code=0, mechanisms=[])
        return SimpleNamespace(error_code=0, auth_bytes=answer, session_lifetime_ms=0)

    with pytest.raises(TwinlogError) as caught:
        asyncio.run(authenticate(exchange, sasl, "host"))
    return caught.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_that_is_not_utf_8_is_a_user_error(mechanism: str) -> None:
    """The environment gives such a password for one that is not UTF-8."""
    error = _failed(Sasl(mechanism=mechanism, username="a", password=f"{SECRET}\udcff"))
    assert type(error) is UserError
    assert error.message.startswith("sasl.jaas.config ")
    assert SECRET not in exposed_text(error)
    assert "udcff" not in exposed_text(error)


@pytest.mark.parametrize("content", [SECRET.encode() + b"\xff", SECRET.encode("utf-16")])
def test_a_token_that_is_not_utf_8_is_a_user_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    error = _failed(Sasl(mechanism="OAUTHBEARER", token_url=(tmp_path / "token").as_uri()))
    assert type(error) is UserError
    assert TOKEN_URL in error.message
    assert "UTF-8" in error.message
    assert SECRET not in exposed_text(error)
    assert "xff" not in exposed_text(error)


def test_a_token_path_that_is_too_long_is_a_user_error(tmp_path: Path) -> None:
    """Its path is longer than the system accepts."""
    url = (tmp_path / ("t" * 300)).as_uri()
    error = _failed(Sasl(mechanism="OAUTHBEARER", token_url=url))
    assert type(error) is UserError
    assert TOKEN_URL in error.message


@pytest.mark.parametrize("answer", [b"", b"\xff", b"r=,s=,i=", SECRET.encode()])
def test_an_invalid_sasl_message_is_not_shown(answer: bytes) -> None:
    error = _failed(Sasl(mechanism="SCRAM-SHA-256", username="a", password=SECRET), answer)
    assert type(error) is ProtocolError
    assert error.message.startswith("invalid SASL message from the broker: ")
    assert SECRET not in exposed_text(error)


def test_errors_of_twinlog_are_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """GSSAPI's errors tell more than their type."""

    class Layers:
        def __init__(self, *_: object) -> None: ...

        def auth_bytes(self) -> bytes:
            return b""

        def receive(self, _answer: bytes) -> None:
            raise ProtocolError("no supported layer")

    monkeypatch.setattr(authentication, "Gssapi", Layers)
    error = _failed(Sasl(mechanism="GSSAPI"))
    assert type(error) is ProtocolError
    assert (error.message, error.code) == ("no supported layer", 58)


@pytest.mark.parametrize(
    ("iterations", "salt", "reason"),
    [
        (1, b"salt", "requests 1 SCRAM iterations, expected at least 4096"),
        (4095, b"salt", "requests 4095 SCRAM iterations, expected at least 4096"),
        (-5, b"salt", "requests -5 SCRAM iterations, expected at least 4096"),
        (4096, b"", "sent an empty SCRAM salt"),
        (1_000_001, b"salt", "invalid SASL message"),
    ],
)
def test_weak_scram_parameters_are_refused(iterations: int, salt: bytes, reason: str) -> None:
    """A false broker gets no proof made with one round, nor without a salt."""
    sent: list[bytes] = []

    async def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SimpleNamespace(error_code=0, mechanisms=[])
        sent.append(bytes(request.auth_bytes))
        nonce = sent[0].rpartition(b"r=")[2].decode()
        answer = f"r={nonce}x,s={base64.b64encode(salt).decode()},i={iterations}"
        return SimpleNamespace(error_code=0, auth_bytes=answer.encode(), session_lifetime_ms=0)

    sasl = Sasl(mechanism="SCRAM-SHA-256", username="a", password=SECRET)
    with pytest.raises(ProtocolError, match=reason):
        asyncio.run(authenticate(exchange, sasl, "host"))
    assert len(sent) == 1


def test_a_foreign_scram_nonce_is_refused() -> None:
    """A proof for a nonce of the broker's own choice could be replayed elsewhere."""
    sent: list[bytes] = []

    async def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SimpleNamespace(error_code=0, mechanisms=[])
        sent.append(bytes(request.auth_bytes))
        answer = f"r=another,s={base64.b64encode(b'salt').decode()},i=4096"
        return SimpleNamespace(error_code=0, auth_bytes=answer.encode(), session_lifetime_ms=0)

    sasl = Sasl(mechanism="SCRAM-SHA-256", username="a", password=SECRET)
    with pytest.raises(ProtocolError, match="invalid SASL message"):
        asyncio.run(authenticate(exchange, sasl, "host"))
    assert len(sent) == 1
