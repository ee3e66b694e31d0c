"""References of a MirrorMaker 2 file (KIP-297), rewritten to the names that twinlog resolves.

Kafka lets a file choose the names of its providers:

    config.providers = secrets
    config.providers.secrets.class = org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.secrets.param.allowed.paths = /etc/kafka
    A.sasl.jaas.config = ${secrets:/etc/kafka/a.properties:jaas}

twinlog has fixed names (`kafka/client/configuration.py`), so this becomes `${file:...}`. It is not
resolved here: credentials are resolved again for each connection.

| class of Kafka | in twinlog | limits (KIP-993, KIP-887) |
| --- | --- | --- |
| `FileConfigProvider` | `${file:PATH:KEY}` | `allowed.paths` |
| `DirectoryConfigProvider` | `${directory:PATH:FILE}` | `allowed.paths` |
| `EnvVarConfigProvider` | `${env:NAME}` | `allowlist.pattern` |

Kafka leaves a reference that it cannot resolve as it is, and sends the text `${...}` as a password.
Here it is an error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from twinlog.kafka.client.references import Grants
from twinlog.kafka.errors import UserError
from twinlog.mirror.setting_values import split_list

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_KINDS: Final = {
    f"{_PACKAGE}FileConfigProvider": "file",
    f"{_PACKAGE}DirectoryConfigProvider": "directory",
    f"{_PACKAGE}EnvVarConfigProvider": "env",
}
OWN_PROVIDERS: Final[Mapping[str, str]] = {
    PROVIDERS: ",".join(_KINDS.values()),
    **{f"{PROVIDERS}.{kind}.class": name for name, kind in _KINDS.items()},
}
"""Properties that declare providers under twinlog's own names, for what is in no file of Kafka."""
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""Kafka's own (`ConfigTransformer`): provider, path, key."""


@dataclass(frozen=True, slots=True)
class Provider:
    """What a provider's name stands for."""

    kind: str
    """`file`, `directory` or `env`."""
    grants: Grants | None
    """What it may read; None: anything."""


def parse_providers(properties: Mapping[str, str]) -> dict[str, Provider]:
    """The providers that a file declares, by name.

    Raises:
        UserError: a provider has no class, an unknown class, or malformed parameters.
    """
    try:
        names = split_list(properties.get(PROVIDERS, ""))
    except ValueError as error:
        raise UserError(f"{PROVIDERS}: expected {error}") from error
    return {name: _provider(name, properties) for name in names}


def _provider(name: str, properties: Mapping[str, str]) -> Provider:
    prefix = f"{PROVIDERS}.{name}"
    class_name = properties.get(f"{prefix}.class", "").strip()
    kind = _KINDS.get(class_name)
    if kind is None:
        raise UserError(
            f"{prefix}.class is {class_name!r}: expected one of {', '.join(_KINDS)} "
            "(twinlog runs no Java and cannot load other classes)"
        )
    parameter = f"{prefix}.param."
    if kind == "env":
        return Provider(kind, _variables(parameter, properties))
    return Provider(kind, _paths(parameter, properties))


def _variables(parameter: str, properties: Mapping[str, str]) -> Grants | None:
    key = f"{parameter}allowlist.pattern"
    pattern = properties.get(key)
    if pattern is None:
        return None
    try:
        return Grants(variables=re.compile(pattern.strip()))
    except re.error as error:
        raise UserError(f"{key}: expected a regular expression ({error})") from error


def _paths(parameter: str, properties: Mapping[str, str]) -> Grants | None:
    value = properties.get(f"{parameter}allowed.paths")
    if value is None:
        return None
    paths = (path.strip() for path in value.split(","))
    return Grants(paths=tuple(PurePosixPath(path) for path in paths if path))


def rewrite(value: str, providers: Mapping[str, Provider]) -> str:
    """A value whose references have twinlog's names; it is not resolved.

    Raises:
        UserError: a reference is malformed, its provider is not declared, or it may not be read.
            The message has the reference, and nothing of the text around it.
    """
    return _REFERENCE.sub(lambda match: _rewritten(match, providers), value)


def _rewritten(match: re.Match[str], providers: Mapping[str, Provider]) -> str:
    name, path, key = match[1], match[2] or "", match[3]
    provider = providers.get(name)
    if provider is None:
        raise UserError(f"{match[0]}: expected a provider that {PROVIDERS} declares, not {name!r}")
    if provider.kind == "env":
        if path or not key:
            raise UserError(f"{match[0]}: expected ${{{name}:VARIABLE}}")
        _check(match[0], provider, key)
        return f"${{env:{key}}}"
    if not path or not key or ":" in key:
        raise UserError(f"{match[0]}: expected ${{{name}:PATH:KEY}}, without further colons")
    _check(match[0], provider, path if provider.kind == "file" else f"{path}/{key}")
    return f"${{{provider.kind}:{path}:{key}}}"


def _check(reference: str, provider: Provider, target: str) -> None:
    if provider.grants is None:
        return
    try:
        if provider.kind == "env":
            provider.grants.check_variable("", target, reference)
        else:
            provider.grants.check_path("", target, reference)
    except UserError as error:
        limit = "allowlist.pattern" if provider.kind == "env" else "allowed.paths"
        raise UserError(f"{reference}: not allowed by {limit} of its provider") from error
