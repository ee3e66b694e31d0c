"""SASL over Kafka: SaslHandshake names the mechanism, SaslAuthenticate carries its messages.

The mechanisms are kafka-python's, and twinlog's own for GSSAPI: state machines without connections.
`auth_bytes` returns the next message, `receive` takes the answer, `is_done` reports the end. Steps
that may take long run in a thread (a slow KDC, SCRAM's rounds, whose number the broker chooses), so
that other connections continue.

The step decides which side an error is attributed to: building a message fails by the client's
setting, processing one by the broker. Only the type of an exception is reported. A UnicodeError,
for example, holds all of the text that could not be encoded, which is the password.

Brokers from 1.0 on wrap the messages in SaslAuthenticate (KIP-152); older ones are not supported.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from twinlog.kafka.client.kerberos import Gssapi
from twinlog.kafka.client.security import TOKEN_URL, Sasl
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Refusal, TwinlogError, UserError
from twinlog.text import few

MAX_ROUNDS: Final = 16
"""Messages that a mechanism may send; SCRAM needs two, GSSAPI three or four."""

LEAST_ITERATIONS: Final = 4096
"""SCRAM's minimum (RFC 7677, section 4; Kafka's client has it, too). kafka-python has a maximum."""

_HINTS: Final = {
    "OAUTHBEARER": f"check the token behind {TOKEN_URL}",
    "GSSAPI": "check sasl.kerberos.service.name, and the keytab of the broker",
}
_SETTINGS: Final = {"OAUTHBEARER": TOKEN_URL}
"""The setting that the client's messages are made of, if it is not sasl.jaas.config."""

Exchange = Callable[[Any], Awaitable[Any]]


async def authenticate(exchange: Exchange, sasl: Sasl, host: str) -> float:
    """Authenticate a connection; return the session's lifetime in seconds, 0 if it has no end.

    `exchange` sends a request and returns its decoded response.

    Raises:
        UserError: the broker does not support the mechanism, or refuses the credentials; or the
            setting that they come from cannot be used.
        ProtocolError: the broker's part of the mechanism's exchange is wrong.
    """
    handshake = await exchange(SaslHandshakeRequest(mechanism=sasl.mechanism, min_version=1))
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        mechanisms = few(handshake.mechanisms)
        raise UserError(
            f"the listener does not support sasl.mechanism {sasl.mechanism}: it offers "
            f"{mechanisms}",
            code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        )
    if handshake.error_code:
        Refusal(handshake.error_code).fail("start SASL authentication")
    mechanism = await asyncio.to_thread(_ours, sasl, _mechanism, sasl, host)
    for turn in range(MAX_ROUNDS):
        message = _ours(sasl, mechanism.auth_bytes)
        response = await exchange(SaslAuthenticateRequest(auth_bytes=message))
        if response.error_code:
            refusal = Refusal(response.error_code, response.error_message or "")
            error = refusal.error("authenticate")
            error.hint = _HINTS.get(sasl.mechanism, error.hint)
            raise error
        answer = bytes(response.auth_bytes)
        if not turn and sasl.mechanism.startswith("SCRAM-"):
            _theirs(_check_first, answer)
        await asyncio.to_thread(_theirs, mechanism.receive, answer)
        if mechanism.is_done():
            break
    if not mechanism.is_done() or not mechanism.is_authenticated():
        raise ProtocolError(f"{sasl.mechanism} authentication did not complete")
    return max(response.session_lifetime_ms or 0, 0) / 1000


def _mechanism(sasl: Sasl, host: str) -> Any:
    if sasl.mechanism == "GSSAPI":
        return Gssapi(sasl.kerberos, host)
    return get_sasl_mechanism(sasl.mechanism)(host=host, **sasl.mechanism_options())


def _check_first(message: bytes) -> None:
    """Refuse a first message of SCRAM's server that makes the client's proof easy to attack.

    An attacker who has the proof tries passwords at the cost of that many iterations, and for all
    users at once if the salt is empty.

    Raises:
        ProtocolError: too few iterations, or no salt.
        ValueError, KeyError: it is no such message.
    """
    fields = dict(field.split("=", 1) for field in message.decode("utf-8").split(","))
    if int(fields["i"]) < LEAST_ITERATIONS:
        raise ProtocolError(
            f"the broker requests {int(fields['i'])} SCRAM iterations, expected at least "
            f"{LEAST_ITERATIONS}"
        )
    if not base64.b64decode(fields["s"]):
        raise ProtocolError("the broker sent an empty SCRAM salt")


def _ours(sasl: Sasl, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a step on the client's settings. Errors neither contain nor chain any of them."""
    try:
        return function(*arguments)
    except TwinlogError:
        raise
    except Exception as error:
        setting = _SETTINGS.get(sasl.mechanism, "sasl.jaas.config")
        raise UserError(
            f"{setting} cannot be used for {sasl.mechanism}: {type(error).__name__}",
            code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        ) from None


def _theirs(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a step on the broker's message. The exceptions that it raises are unspecified."""
    try:
        return function(*arguments)
    except TwinlogError as error:
        error.code = ErrorCode.SASL_AUTHENTICATION_FAILED
        raise
    except Exception as error:
        raise ProtocolError(
            f"invalid SASL message from the broker: {type(error).__name__}",
            code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        ) from None
