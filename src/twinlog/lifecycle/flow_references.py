"""What the flows of a file refer to on this machine: files and environment variables.

A node reads only what its own configuration allows (kafka/client/references.py). The file is its
operator's own, so `twinlog mirror-maker` allows its nodes what the file names, and nothing else:

| in the file | allowed |
| --- | --- |
| a reference of a connection, such as `${file:/secrets/a.properties:jaas}` | file or variable |
| `ssl.*store.location`, `keyTab`, `ticketCache`, URL of a token | the file, references resolved |
| `GSSAPI` with neither keyTab nor ticketCache | `KRB5CCNAME` |
| a reference or location of a schema registry | its file, directory or variable |

What a connection reads is found by the parser that checks it. So it cannot ask for more later,
unless a reference leads to another path by then.

MirrorMaker 2 opens relative paths from its working directory. Nodes and executors may have another
one, and what they may read are absolute paths: a path that is written in the file becomes absolute
when the flow is stored. One that comes from a reference cannot, and has to be absolute itself.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from twinlog.kafka.client.configuration import parse_source, resolve
from twinlog.kafka.client.jaas import with_values
from twinlog.kafka.client.references import (
    ALLOWED_PATHS,
    ALLOWLIST_PATTERN,
    REFERRING,
    Grants,
    Reads,
    is_plain,
)
from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import keeps_references
from twinlog.mirror.settings import FLOW_PREFIX, split_settings

_FILE: Final = re.compile(r"\$\{(file|directory):([^:}]+):")
_VARIABLE: Final = re.compile(r"\$\{env:([^}]+)\}")
_REFERENCE: Final = "${"
_LOCATIONS: Final = ("ssl.truststore.location", "ssl.keystore.location")
_JAAS: Final = "sasl.jaas.config"
_KERBEROS_FILES: Final = ("keyTab", "ticketCache")
_TYPE: Final = "FILE:"
"""What a path of Kerberos may begin with."""


def grants_of(flows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What a node has to be allowed to run these flows.

    Args:
        flows: the properties of each flow, as `with_absolute_paths` returns them.

    Returns:
        Properties of the node's own configuration.

    Raises:
        UserError: a connection is malformed, or refers to what does not exist or to a path that
            cannot be allowed.
    """
    reads = Reads()
    for properties in flows:
        settings, connection = split_settings(properties)
        parse_source(connection, Grants(all_references=True, reads=reads))
        _read_by_registries(settings, reads)
    for path, key in reads.paths.items():
        if not is_plain(path) or "," in path:
            # A path that comes from a reference is not shown.
            raise UserError(
                f"{key} leads to a file that a node cannot be allowed to read: expected an "
                "absolute path without '..' and without commas"
            )
    grants = {}
    if reads.paths:
        grants[ALLOWED_PATHS] = ",".join(sorted(reads.paths))
    if reads.variables:
        names = map(re.escape, sorted(reads.variables))
        grants[ALLOWLIST_PATTERN] = "|".join(names)
    return grants


def _read_by_registries(settings: Mapping[str, str], reads: Reads) -> None:
    """Add what the access to schema registries refers to.

    It may be missing now: lanes ask for it with each request, on their own hosts.
    """
    for name, text in settings.items():
        if not _may_refer(name):
            continue
        for match in _FILE.finditer(text):
            reads.paths.setdefault(match[2], name)
        for match in _VARIABLE.finditer(text):
            reads.variables.setdefault(match[1], name)
        if name.endswith(_LOCATIONS):
            with suppress(UserError):
                reads.paths.setdefault(resolve(name, text.strip(), os.environ), name)


def with_absolute_paths(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties whose relative paths are those of files in the working directory.

    Args:
        properties: of a client, or of a flow's mirror.
    """
    return {
        name: _with_absolute_paths(name, text) if _may_refer(name) else text
        for name, text in properties.items()
    }


def _may_refer(name: str) -> bool:
    return name.startswith(REFERRING) or (
        name.startswith(FLOW_PREFIX) and keeps_references(name.removeprefix(FLOW_PREFIX))
    )


def _with_absolute_paths(name: str, text: str) -> str:
    text = _FILE.sub(lambda match: f"${{{match[1]}:{_absolute(match[2])}:", text)
    if name.endswith(_LOCATIONS):
        return _absolute(text.strip())
    if name == _JAAS and not all(map(_is_absolute, _kerberos_files(text))):
        return with_values(
            text, lambda option, path: _absolute(path) if option in _KERBEROS_FILES else path
        )
    return text


def _kerberos_files(jaas: str) -> list[str]:
    """The paths that Kerberos reads; none if the text is malformed, or a reference."""
    values: list[tuple[str, str]] = []

    def collect(option: str, value: str) -> str:
        values.append((option, value))
        return value

    with suppress(UserError):
        with_values(jaas, collect)
    return [value for option, value in values if option in _KERBEROS_FILES]


def _is_absolute(path: str) -> bool:
    return _absolute(path) == path


def _absolute(path: str) -> str:
    """A path without `..`, of the file that is opened by this one now.

    Symbolic links behind the last `..` stay: they may be how a secret is exchanged.
    """
    kind = _TYPE if path.startswith(_TYPE) else ""
    plain = path.removeprefix(_TYPE)
    if not plain or _REFERENCE in plain or is_plain(plain):
        return path
    parts = (Path.cwd() / plain).parts
    behind = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    file = Path(*parts[:behind]).resolve() / Path(*parts[behind:]) if behind else Path(*parts)
    return f"{kind}{file}"
