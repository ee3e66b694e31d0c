"""The client's credentials for a cluster, and how the cluster is authenticated.

TLS uses Python's own `ssl`, which reads PEM. A context is created for each connection, from the
files as they are then: renewed certificates are used by the next connection, without a restart. The
same holds for a secret that was changed behind its reference (configuration.py).

A `repr` never shows a secret, so no log does. For an exception that may hold one, `why` returns
what may be reported; nothing is raised `from` it, as a traceback prints the whole chain.
"""

import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from kafka.net.sasl.oauth import AbstractTokenProvider

from twinlog.kafka.errors import UserError

TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 (the setting's name)


def why(error: OSError | ValueError) -> str:
    """Why something cannot be read or used, without any of its content.

    A UnicodeError shows the bytes at fault, an error of javaproperties the escape sequence.
    """
    match error:
        case ssl.SSLError():
            return str(error)
        case OSError():
            return error.strerror or type(error).__name__
        case UnicodeError():
            return "not valid UTF-8"
        case _:
            return type(error).__name__


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """An OAuth token in a file that another program keeps fresh (KIP-768's `file:` URL)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def token(self) -> str:
        """Read the current token.

        Raises:
            UserError: the file cannot be read.
        """
        try:
            return self.path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"{TOKEN_URL}: cannot read {self.path}: {why(error)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kerberos:
    """The principal and the service. Without keytab and cache: the system's tickets."""

    service: str = "kafka"
    principal: str = ""
    keytab: str = ""
    """A file of keys, from which tickets are fetched."""
    ticket_cache: str = ""
    """A file that `kinit` maintains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """A SASL mechanism and what it needs. `repr` shows no secret."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_url: str = ""
    """OAUTHBEARER: `file:` URL of the token."""
    kerberos: Kerberos = Kerberos()

    def mechanism_options(self) -> dict[str, Any]:
        """The options of kafka-python's mechanisms; GSSAPI is twinlog's own (kerberos.py).

        Raises:
            UserError: the token's file cannot be read.
        """
        options: dict[str, Any] = {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }
        if self.mechanism.startswith("SCRAM-"):
            # RFC 5802 escapes these two characters in names; kafka-python does not.
            name = self.username.replace("=", "=3D").replace(",", "=2C")
            options["sasl_plain_username"] = name
        if self.token_url:
            path = Path(unquote(urlsplit(self.token_url).path))
            if not path.is_file():
                raise UserError(f"{TOKEN_URL}: {path} does not exist or is not a file")
            options["sasl_oauth_token_provider"] = TokenFile(path)
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS: trusted certificates, and the client's identity. PEM only; a text, or a file's path."""

    trusted_file: str | None = None
    trusted: str | None = None
    """The certificates themselves. Without these and a file: what the system trusts."""
    identity_file: str | None = None
    """A file with the client's private key and certificate chain."""
    chain: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Create a context from the current files.

        Raises:
            UserError: a file is missing or invalid.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        try:
            self._trust(context)
        except (OSError, ValueError) as error:
            raise UserError(f"ssl.truststore: cannot load PEM: {why(error)}") from None
        try:
            self._identify(context)
        except (OSError, ValueError) as error:
            raise UserError(f"ssl.keystore: cannot load PEM: {why(error)}") from None
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.trusted_file is None and self.trusted is None:
            context.load_default_certs()
        elif self.trusted is not None and not self.trusted.isascii():
            # `ssl` would report a wrong type.
            raise UserError("ssl.truststore.certificates: cannot load PEM: not ASCII")
        else:
            context.load_verify_locations(cafile=self.trusted_file, cadata=self.trusted)

    def _identify(self, context: ssl.SSLContext) -> None:
        # An empty password instead of none, so that OpenSSL never prompts on a terminal.
        password = self.key_password or ""
        if self.identity_file is not None:
            context.load_cert_chain(self.identity_file, password=password)
        elif self.chain is not None and self.key is not None:
            _load_from_text(context, f"{self.key}\n{self.chain}\n", password)


def _load_from_text(context: ssl.SSLContext, pem: str, password: str) -> None:
    """`ssl` reads files only: write the text to a temporary file that only this user may read."""
    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(pem)
        context.load_cert_chain(name, password=password)
    finally:
        Path(name).unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a connection is protected (`tls`) and authenticated (`sasl`)."""

    sasl: Sasl | None = None
    tls: Tls | None = None

    @property
    def principal(self) -> str:
        """The principal that brokers see, as far as it is known: for messages about rights.

        A broker may map names (`sasl.kerberos.principal.to.local.rules`,
        `ssl.principal.mapping.rules`).
        """
        if self.sasl is not None:
            name = self.sasl.username or self.sasl.kerberos.principal.partition("@")[0]
            return f"User:{name}" if name else f"of the {self.sasl.mechanism} credentials"
        if self.tls is not None and (self.tls.identity_file or self.tls.chain):
            return "of the client certificate"
        return "User:ANONYMOUS"

    def ssl_context(self) -> ssl.SSLContext | None:
        """Create a context from the current files; None without TLS."""
        return None if self.tls is None else self.tls.context()


PLAINTEXT = Security()
