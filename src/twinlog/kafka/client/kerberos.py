"""GSSAPI (RFC 4752): authentication by a Kerberos ticket.

    client  AP-REQ ──►               tokens of the GSS library, until its context is complete
    broker          ◄── AP-REP
    client  (empty) ──►
    broker          ◄── offer        wrapped: the layers that it offers, its largest message
    client  choice  ──►              wrapped: no layer; TLS protects the rest
    broker          ◄── (empty)

The library is the system's, through Python's `gssapi` (the extra `twinlog[kerberos]`).
kafka-python's own GSSAPI uses whatever ticket the process has. Here each cluster has its keytab, as
with Java's `Krb5LoginModule`, and tickets are fetched and renewed from it without `kinit`.
"""

from pathlib import Path
from typing import Any, Final

from twinlog.kafka.client.security import Kerberos
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Refusal, TwinlogError, UserError

_NO_LAYER: Final = 1
_OFFER_SIZE: Final = 4


class Gssapi:
    """The client's side of one exchange, with the interface of kafka-python's mechanisms.

    Creating one may ask the KDC, and blocks for as long.

    Raises:
        UserError: `gssapi` or the keytab is missing, or no ticket can be obtained.
    """

    def __init__(self, kerberos: Kerberos, host: str) -> None:
        gssapi = _library()
        service = f"{kerberos.service}@{host}"
        try:
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(service, gssapi.NameType.hostbased_service),
                creds=_credentials(gssapi, kerberos),
                mech=gssapi.MechType.kerberos,
                usage="initiate",
            )
            self._message: bytes = self._context.step() or b""
        except gssapi.exceptions.GSSError as error:
            raise _no_ticket(service, error) from error
        self._chosen = self._done = False

    def auth_bytes(self) -> bytes:
        """The next message."""
        return self._message

    def receive(self, answer: bytes) -> None:
        """Process the broker's answer to the last message.

        Raises:
            ProtocolError: it violates RFC 4752. The library raises errors of its own.
        """
        if not self._context.complete:
            self._message = self._context.step(answer) or b""
        elif not self._chosen:
            self._message = self._choose(self._context.unwrap(answer).message)
            self._chosen = True
        elif answer:
            raise ProtocolError(
                f"{len(answer)} unexpected bytes after the end of the SASL exchange"
            )
        else:
            self._done = True

    def _choose(self, offer: bytes) -> bytes:
        if len(offer) != _OFFER_SIZE or not offer[0] & _NO_LAYER:
            raise ProtocolError(f"the broker offers no supported GSSAPI security layer: {offer!r}")
        choice: bytes = self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message
        return choice

    def is_done(self) -> bool:
        """Whether the broker has accepted the last message."""
        return self._done

    def is_authenticated(self) -> bool:
        """Whether the exchange is done."""
        return self._done


def _library() -> Any:
    try:
        import gssapi  # noqa: PLC0415 (an extra, and libraries of the system)
    except (ImportError, OSError) as error:
        raise UserError(
            f"sasl.mechanism GSSAPI needs the Python package gssapi: {error}",
            hint="install twinlog[kerberos], which needs MIT Kerberos (Debian: libkrb5-dev)",
        ) from error
    return gssapi


def _credentials(gssapi: Any, kerberos: Kerberos) -> Any:
    """The credentials from a keytab or a ticket cache; None for the system's default."""
    store = {}
    if kerberos.keytab:
        if not Path(kerberos.keytab).is_file():
            raise UserError(
                f"sasl.jaas.config: keyTab is {kerberos.keytab!r}, which does not exist or is not "
                "a file"
            )
        # A cache in memory, shared by all connections with this keytab: one ticket for all. If it
        # were named by the principal alone, a mirror's properties would get the node's own tickets.
        store = {
            "client_keytab": f"FILE:{kerberos.keytab}",
            "ccache": f"MEMORY:twinlog-{kerberos.principal}-{kerberos.keytab}",
        }
    elif kerberos.ticket_cache:
        store = {"ccache": f"FILE:{kerberos.ticket_cache}"}
    if not store and not kerberos.principal:
        return None
    name = None
    if kerberos.principal:
        name = gssapi.Name(kerberos.principal, gssapi.NameType.kerberos_principal)
    return gssapi.Credentials(name=name, usage="initiate", store=store or None)


def _no_ticket(service: str, error: Any) -> TwinlogError:
    """The error with the text of Kerberos (the minor status): that of GSS has no information."""
    status_texts = error.get_all_statuses(error.min_code or error.maj_code, not error.min_code)
    refusal = Refusal(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        f"cannot get a ticket for {service}: {'; '.join(status_texts)}",
    )
    ticket_error = refusal.error("authenticate")
    ticket_error.hint = (
        "check keyTab and principal in sasl.jaas.config, krb5.conf, and that the KDC is reachable"
    )
    return ticket_error
