"""A cluster's configuration: Kafka's own property names, parsed once into a frozen dataclass.

A file that works for Kafka's own clients works here. Properties that twinlog does not use are named
in a warning. Those that it uses are checked; an error has the name, the value as it is written, and
the allowed values. Values may refer to secrets with the syntax of Kafka's config providers
(KIP-297). No message contains a resolved value:

    ${env:NAME}                an environment variable
    ${file:/a/path:key}        a key of a .properties file
    ${directory:/a/path:name}  a file's whole content (KIP-421)

Credentials are resolved again for each connection and each session, so that a changed secret needs
no restart.

A process's own configuration may refer to anything (`parse_config`). The properties of a mirror are
stored in a topic, and may read only what that configuration grants (`parse_source`, references.py).

Two deliberate differences from Kafka's defaults: socket buffers are left to the kernel (-1), which
sizes them by the round trip; certificates are PEM, whatever ssl.truststore.type defaults to.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from twinlog.kafka.client.dial import Options
from twinlog.kafka.client.jaas import parse_jaas
from twinlog.kafka.client.references import (
    GRANTS,
    NOTHING,
    SYSTEM_TICKETS,
    Grants,
    parse_grants,
)
from twinlog.kafka.client.security import PLAINTEXT, TOKEN_URL, Kerberos, Sasl, Security, Tls, why
from twinlog.kafka.errors import Retriable, UserError


class Address(NamedTuple):
    """The host and port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """A client's properties as written, references unresolved; `repr` shows none."""

    properties: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] | None = field(repr=False)
    """For `${env:NAME}`; None: this process's, which is not to be sent to another one."""
    grants: Grants | None = None
    """What the properties may read of this machine. None: anything; they are this process's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How to reach one cluster. Times are in seconds, sizes in bytes."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str = "twinlog"
    security: Security = PLAINTEXT
    """The credentials as resolved at parsing; a connection uses `security_now`."""
    client_properties: ClientProperties | None = field(default=None, hash=False)
    """The properties that `security` was made of. None: `security` is fixed."""
    grants: Grants = NOTHING
    """What the properties of mirrors may read, if this is the process's own configuration."""
    request_timeout: float = 30.0
    """Limit of one request on one connection."""
    api_timeout: float = 60.0
    """Limit of one call with all its tries."""
    setup_timeout: float = 10.0
    metadata_max_age: float = 300.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    max_idle: float = 540.0
    send_buffer: int = -1
    receive_buffer: int = -1
    user_timeout: float | None = None
    """TCP_USER_TIMEOUT (`tcp.user.timeout.ms`, twinlog's own); see `dial.Options`."""

    @property
    def foreign(self) -> bool:
        """Whether it is the configuration of a mirror's source, which is not trusted."""
        return self.client_properties is not None and self.client_properties.grants is not None

    def security_now(self) -> Security:
        """Resolve the credentials again.

        Raises:
            Retriable: a reference cannot be resolved. It could be before, so it is being changed.
        """
        if self.client_properties is None:
            return self.security
        try:
            return _security(_Reader(self.client_properties))
        except UserError as error:
            raise Retriable(error.message, hint=error.hint) from error

    def options(self) -> Options:
        """The options of a connection."""
        return Options(
            client_id=self.client_id,
            request_timeout=self.request_timeout,
            setup_timeout=self.setup_timeout,
            send_buffer=self.send_buffer,
            receive_buffer=self.receive_buffer,
            user_timeout=self.user_timeout,
        )


class Parsed(NamedTuple):
    """A configuration, and what there is to say about its properties."""

    config: ClusterConfig
    unused: tuple[str, ...]
    """Names of properties that are not used, in order."""
    unsafe: tuple[str, ...]
    """A line for each property that is unsafe."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line for each property that is not used or is unsafe."""
        return (*(f"{name} is not used by twinlog" for name in self.unused), *self.unsafe)


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_MILLISECONDS: Final = {
    "request.timeout.ms": "request_timeout",
    "default.api.timeout.ms": "api_timeout",
    "socket.connection.setup.timeout.ms": "setup_timeout",
    "metadata.max.age.ms": "metadata_max_age",
    "reconnect.backoff.ms": "reconnect_backoff",
    "reconnect.backoff.max.ms": "reconnect_backoff_max",
    "retry.backoff.ms": "retry_backoff",
    "retry.backoff.max.ms": "retry_backoff_max",
    "connections.max.idle.ms": "max_idle",
    "tcp.user.timeout.ms": "user_timeout",
}
_BYTES: Final = {
    "receive.buffer.bytes": "receive_buffer",
    "socket.receive.buffer.bytes": "receive_buffer",
    "send.buffer.bytes": "send_buffer",
    "socket.send.buffer.bytes": "send_buffer",
}
_MAX_MILLISECONDS: Final = 1 << 31
_MAX_BYTES: Final = 1 << 30
_PEM: Final = "-----BEGIN"
_CONVERT: Final = (
    "openssl pkcs12 -in STORE.p12 -out STORE.pem (a JKS first: keytool -importkeystore)"
)


def read_properties(path: Path) -> dict[str, str]:
    """Read a Java .properties file.

    Raises:
        UserError: it cannot be read.
    """
    import javaproperties  # noqa: PLC0415 (25 ms, for which a command without a file need not wait)

    try:
        with path.open(encoding="utf-8") as file:
            return dict(javaproperties.load(file))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read properties from {path}: {why(error)}") from None


def parse_config(
    properties: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Parsed:
    """Parse this process's own properties; `environment` defaults to this process's.

    Raises:
        UserError: a value is missing, malformed, or has a reference that cannot be resolved.
    """
    return _parse(ClientProperties(dict(properties), environment))


def parse_source(
    properties: Mapping[str, str], grants: Grants, environment: Mapping[str, str] | None = None
) -> Parsed:
    """Parse the properties of a mirror's connection to its source.

    Args:
        properties: as they are stored.
        grants: what they may read of this machine: `ClusterConfig.grants` of the destination.
        environment: for `${env:NAME}`; defaults to this process's.

    Raises:
        UserError: as `parse_config`, or a property reads something that is not granted.
    """
    return _parse(ClientProperties(dict(properties), environment, grants))


def _parse(client_properties: ClientProperties) -> Parsed:
    properties = client_properties.properties
    reader = _Reader(client_properties)
    times = {name: reader.milliseconds(key) for key, name in _MILLISECONDS.items()}
    sizes: dict[str, int | None] = {}
    for key, name in _BYTES.items():
        sizes[name] = reader.size(key) if key in properties else sizes.get(name)
    client_id = reader.text("client.id")
    config = ClusterConfig(
        bootstrap_servers=_bootstrap(reader),
        security=_security(reader),
        client_properties=client_properties,
        grants=reader.granted(),
        **_given({"client_id": client_id}),
        **_given(times),
        **_given(sizes),
    )
    return Parsed(config, reader.unused(), tuple(_in_clear(config.security)))


def _in_clear(security: Security) -> tuple[str, ...]:
    """Warnings about secrets that are readable on the network."""
    if security.tls is None and security.sasl is not None and security.sasl.mechanism == "PLAIN":
        return ("PLAIN over SASL_PLAINTEXT sends the password in clear text: use SASL_SSL",)
    return ()


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _Reader:
    """Properties by name, references resolved; remembers which were read."""

    def __init__(self, client_properties: ClientProperties) -> None:
        self._properties = client_properties.properties
        self._environment = (
            os.environ if client_properties.environment is None else client_properties.environment
        )
        self._grants = client_properties.grants
        self._used_keys: set[str] = set()

    def text(self, key: str) -> str | None:
        self._used_keys.add(key)
        value = self._properties.get(key)
        if value is None:
            return None
        return resolve(key, value.strip(), self._environment, self._grants)

    def granted(self) -> Grants:
        """What mirrors' properties may read; a mirror's own properties grant nothing."""
        if self._grants is not None:
            return NOTHING
        values = {key: self.text(key) for key in GRANTS}
        return parse_grants({key: value for key, value in values.items() if value is not None})

    def check_path(self, key: str, path: str) -> None:
        """Refuse a file that these properties may not read."""
        if self._grants is not None:
            raw_value = self._properties.get(key, "")
            # A path that comes from a reference is not shown, and neither is the text around it.
            self._grants.check_path(key, path, repr(path) if path in raw_value else "its file")

    def check_system_tickets(self, key: str) -> None:
        """Refuse the Kerberos tickets of the user that runs this process."""
        if self._grants is not None:
            display_name = f"without keyTab and ticketCache it uses ${SYSTEM_TICKETS}, which"
            self._grants.check_variable(key, SYSTEM_TICKETS, display_name)

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is None:
            return default
        if value not in choices:
            raise self.bad(key, value, f"one of {', '.join(choices)}")
        return value

    def milliseconds(self, key: str) -> float | None:
        number = self._number(key, 1, _MAX_MILLISECONDS)
        return None if number is None else number / 1000

    def size(self, key: str) -> int | None:
        return self._number(key, -1, _MAX_BYTES)

    def bad(self, key: str, value: str, expectation: str) -> UserError:
        """The error for a value, or a part of one, that is not allowed."""
        return UserError(f"{key} is {self.shown(key, value)}: expected {expectation}")

    def shown(self, key: str, value: str) -> str:
        """The value as written: a resolved one may be a secret, by mistake."""
        raw_value = self._properties.get(key, "").strip()
        return repr(value if value in raw_value else raw_value)

    def unused(self) -> tuple[str, ...]:
        unused = sorted(self._properties.keys() - self._used_keys)
        return tuple(unused)

    def _number(self, key: str, lowest: int, highest: int) -> int | None:
        value = self.text(key)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not lowest <= number <= highest:
            raise self.bad(key, value, f"a whole number from {lowest} to {highest}")
        return number


def resolve(
    key: str, value: str, environment: Mapping[str, str], grants: Grants | None = None
) -> str:
    """Replace a value's references (`${env:NAME}`, ...) by what they refer to.

    Raises:
        UserError: a reference cannot be resolved, refers to something that is not text, or is not
            allowed by `grants`. The message contains no resolved value, and no text that looks like
            a reference but may be a part of a secret.
    """
    parts: list[str] = []
    rest = value
    while (start := rest.find("${")) >= 0 and (end := rest.find("}", start)) >= 0:
        reference = rest[start + 2 : end]
        provider, colon, argument = reference.partition(":")
        if not colon:
            parts.append(rest[: end + 1])
        elif provider not in _PROVIDERS:
            raise UserError(
                f"{key} has a reference with an unknown provider: expected ${{env:NAME}}, "
                f"${{file:PATH:KEY}} or ${{directory:PATH:FILE}}"
            )
        else:
            if grants is not None:
                _check_grant(key, provider, argument, grants)
            parts += [rest[:start], _found(key, provider, argument, environment)]
        rest = rest[end + 1 :]
    return _encodable(key, "".join([*parts, rest]))


def _check_grant(key: str, provider: str, argument: str, grants: Grants) -> None:
    reference = f"${{{provider}:{argument}}}"
    grants.check_reference(key, reference)
    path, _, name = argument.rpartition(":")
    if provider == "env":
        grants.check_variable(key, argument, reference)
    else:
        file = path if provider == "file" else str(Path(path, name))
        grants.check_path(key, file, reference)


def _found(key: str, provider: str, argument: str, environment: Mapping[str, str]) -> str:
    reference = f"${{{provider}:{argument}}}"
    try:
        return _PROVIDERS[provider](argument, environment)
    except LookupError as error:
        raise UserError(f"{key}: cannot resolve {reference}: {error.args[0]}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{key}: cannot read {reference}: {why(error)}") from None
    except UserError as error:
        raise UserError(f"{key}: {error.message}") from None


def _encodable(key: str, value: str) -> str:
    """Return the value if it is UTF-8: the environment and escapes in files may not be."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{key}, or the value that it refers to, is not valid UTF-8") from None
    return value


def _from_environment(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise LookupError(f"environment variable {name} is not set")
    return environment[name]


def _from_file(argument: str, _environment: Mapping[str, str]) -> str:
    path, _, key = argument.rpartition(":")
    properties = read_properties(_there(path, Path(path)))
    if key not in properties:
        raise LookupError(f"the file has no key {key!r}")
    return properties[key]


def _from_directory(argument: str, _environment: Mapping[str, str]) -> str:
    path, _, name = argument.rpartition(":")
    return _there(path, Path(path, name)).read_text(encoding="utf-8").rstrip("\n")


def _there(path: str, file: Path) -> Path:
    if not path or not file.is_file():
        raise LookupError(
            f"{file} does not exist or is not a file" if path else "expected PATH:NAME"
        )
    return file


_Provider = Callable[[str, Mapping[str, str]], str]
_PROVIDERS: Final[dict[str, _Provider]] = {
    "env": _from_environment,
    "file": _from_file,
    "directory": _from_directory,
}


def _bootstrap(reader: _Reader) -> tuple[Address, ...]:
    key = "bootstrap.servers"
    value = reader.text(key) or ""
    items = [item.strip() for item in value.split(",")]
    servers = tuple(_address(reader, key, item) for item in items if item)
    if not servers:
        raise reader.bad(key, value, "a list HOST:PORT,HOST:PORT,...")
    return servers


def _address(reader: _Reader, key: str, text: str) -> Address:
    name = text.rpartition("://")[2]
    host, _, port = name.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise reader.bad(key, text, "HOST:PORT, with a port from 1 to 65535")
    return Address(host, int(port))


def _security(reader: _Reader) -> Security:
    protocol = reader.choice("security.protocol", PROTOCOLS, "PLAINTEXT")
    tls = _tls(reader) if protocol.endswith("SSL") else None
    sasl = _sasl(reader) if protocol.startswith("SASL") else None
    return Security(sasl=sasl, tls=tls)


def _sasl(reader: _Reader) -> Sasl:
    mechanism = reader.choice("sasl.mechanism", MECHANISMS, "GSSAPI")
    jaas = reader.text("sasl.jaas.config")
    token_url = reader.text(TOKEN_URL) or ""
    service = reader.text("sasl.kerberos.service.name")
    if mechanism == "OAUTHBEARER":
        if not token_url.startswith("file:///"):
            # Not shown: a URL may contain a name and a password.
            expectation = "file:///PATH of a file that contains a current token"
            raise UserError(f"{TOKEN_URL}: expected {expectation}")
        reader.check_path(TOKEN_URL, unquote(urlsplit(token_url).path))
        return Sasl(mechanism=mechanism, token_url=token_url)
    options = {} if jaas is None else parse_jaas(jaas, mechanism)
    if mechanism == "GSSAPI":
        return Sasl(mechanism=mechanism, kerberos=_kerberos(reader, options, service))
    if not options.get("username") or "password" not in options:
        raise UserError(
            f"sasl.jaas.config needs a username and a password for {mechanism}",
            hint='expected ...LoginModule required username="..." password="...";',
        )
    return Sasl(mechanism=mechanism, username=options["username"], password=options["password"])


def _kerberos(reader: _Reader, options: Mapping[str, str], service: str | None) -> Kerberos:
    """Kerberos from the options of Java's `Krb5LoginModule` that name the source of tickets."""
    key = "sasl.jaas.config"
    principal, keytab = options.get("principal", ""), ""
    if options.get("useKeyTab", "").lower() == "true":
        keytab = options.get("keyTab", "")
        if not keytab or not principal:
            raise UserError(
                "sasl.jaas.config needs keyTab and principal for useKeyTab=true",
                hint='expected ...useKeyTab=true keyTab="/PATH" principal="NAME@REALM";',
            )
    keytab = keytab.removeprefix("FILE:")
    ticket_cache = options.get("ticketCache", "").removeprefix("FILE:")
    for file in filter(None, (keytab, ticket_cache)):
        reader.check_path(key, file)
    if not keytab and not ticket_cache:
        reader.check_system_tickets(key)
    return Kerberos(
        service=service or options.get("serviceName") or "kafka",
        principal=principal,
        keytab=keytab,
        ticket_cache=ticket_cache,
    )


def _tls(reader: _Reader) -> Tls:
    trusted_file = _pem_file(reader, "ssl.truststore")
    identity_file = _pem_file(reader, "ssl.keystore")
    algorithm = "ssl.endpoint.identification.algorithm"
    tls = Tls(
        trusted_file=trusted_file,
        trusted=reader.text("ssl.truststore.certificates"),
        identity_file=identity_file,
        chain=reader.text("ssl.keystore.certificate.chain"),
        key=reader.text("ssl.keystore.key"),
        key_password=reader.text("ssl.key.password"),
        check_hostname=reader.choice(algorithm, ("https", ""), "https") == "https",
    )
    if (tls.chain is None) != (tls.key is None):
        raise UserError("ssl.keystore.certificate.chain and ssl.keystore.key must be set together")
    return tls


def _pem_file(reader: _Reader, store: str) -> str | None:
    """A store's file, which must be PEM whether or not its type says so."""
    key = f"{store}.location"
    location = reader.text(key)
    kind = reader.text(f"{store}.type")
    if kind not in (None, "PEM"):
        error = reader.bad(f"{store}.type", kind, "PEM")
        error.hint = f"convert it: {_CONVERT}"
        raise error
    if location is None:
        return None
    if _PEM in location:
        raise UserError(f"{key} is PEM text: expected the path of a PEM file")
    reader.check_path(key, location)
    location_text = f"{key} is {reader.shown(key, location)}"
    try:
        text = Path(location).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"{location_text}: {why(error)}") from None
    if _PEM.encode() not in text:
        raise UserError(f"{location_text}: the file is not PEM", hint=f"convert it: {_CONVERT}")
    return location
