"""SASL over Kafka: SaslHandshake names the mechanism, SaslAuthenticate carries its messages.

The mechanisms themselves are kafka-python's, and our own for GSSAPI, state machines without
connections: `auth_bytes` gives the next message, `receive` takes the answer, `is_done` says when it
is over. What may take long is done in a thread (a KDC that is slow, SCRAM's rounds, as many as the
broker wants), so that other connections go on.
Brokers from 1.0 on wrap the messages in SaslAuthenticate (KIP-152); older ones are not supported.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from twinlog.cluster.kerberos import Gssapi
from twinlog.cluster.security import Sasl
from twinlog.core.errors import ProtocolError, Refusal, UserError

MAX_ROUNDS: Final = 16
"""Messages that a mechanism may send; SCRAM needs two, GSSAPI three or four."""

_HINTS: Final = {
    "OAUTHBEARER": "check the token behind sasl.oauthbearer.token.endpoint.url",
    "GSSAPI": "check sasl.kerberos.service.name, and the keytab of the broker",
}
_UNSUPPORTED_MECHANISM: Final = 33
_AUTHENTICATION_FAILED: Final = 58

Exchange = Callable[[Any], Awaitable[Any]]


async def authenticate(exchange: Exchange, sasl: Sasl, host: str) -> float:
    """Authenticate a connection. Gives the session's lifetime in seconds, 0 if it has no end.

    `exchange` sends a request and gives its decoded response.

    Raises:
        UserError: the broker does not have the mechanism, or refuses the credentials.
        ProtocolError: the broker's part of the mechanism's exchange is wrong.
    """
    handshake = await exchange(SaslHandshakeRequest(mechanism=sasl.mechanism, min_version=1))
    if handshake.error_code == _UNSUPPORTED_MECHANISM:
        offered = ", ".join(handshake.mechanisms)
        raise UserError(
            f"sasl.mechanism is {sasl.mechanism}, the listener has: {offered}",
            code=_UNSUPPORTED_MECHANISM,
        )
    if handshake.error_code:
        Refusal(handshake.error_code).fail("begin SASL authentication")
    mechanism = await asyncio.to_thread(_mechanism, sasl, host)
    for _ in range(MAX_ROUNDS):
        response = await exchange(SaslAuthenticateRequest(auth_bytes=_step(mechanism.auth_bytes)))
        if response.error_code:
            refusal = Refusal(response.error_code, response.error_message or "")
            error = refusal.error("authenticate")
            error.hint = _HINTS.get(sasl.mechanism, error.hint)
            raise error
        await asyncio.to_thread(_step, mechanism.receive, bytes(response.auth_bytes))
        if mechanism.is_done():
            break
    if not mechanism.is_done() or not mechanism.is_authenticated():
        raise ProtocolError(f"the exchange of {sasl.mechanism} does not end")
    return max(response.session_lifetime_ms or 0, 0) / 1000


def _mechanism(sasl: Sasl, host: str) -> Any:
    if sasl.mechanism == "GSSAPI":
        return Gssapi(sasl.kerberos, host)
    try:
        return get_sasl_mechanism(sasl.mechanism)(host=host, **sasl.mechanism_options())
    except (RuntimeError, ValueError) as error:
        raise UserError(f"sasl.mechanism {sasl.mechanism} cannot be used: {error}") from error


def _step(function: Callable[..., Any], *arguments: Any) -> Any:
    """One step of the mechanism. What it raises is unspecified, and caused by the broker's part."""
    try:
        return function(*arguments)
    except Exception as error:
        raise ProtocolError(
            f"the broker's part of the SASL exchange is wrong: {error!r}",
            code=_AUTHENTICATION_FAILED,
        ) from error
