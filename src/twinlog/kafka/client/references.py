"""What the properties of a mirror may read on the machine that connects to its source.

A mirror's properties are stored in `__mirror_config`. A principal that may write to that topic
chooses both what they refer to and the server that it is sent to: `client.id=${env:NODE_SECRET}`
with the writer's own `bootstrap.servers` sends a secret of the node in clear text. So a stored
property reads nothing of a machine, unless the process's *own* configuration (`--command-config`)
allows it, with the names of Kafka's config providers:

    mirror.allowed.paths       files, and directories with all below them (KIP-993), for
                               ${file:...}, ${directory:...}, ssl.truststore.location,
                               ssl.keystore.location, sasl.oauthbearer.token.endpoint.url, and the
                               keyTab and ticketCache of sasl.jaas.config
    mirror.allowlist.pattern   regular expression of whole names of environment variables (KIP-887):
                               ${env:...}; KRB5CCNAME, also for the system's tickets
    mirror.dataframes.enable   true: flows may run queries and Python functions of Spark, which can
                               do whatever the node's user can

Paths are compared as written, as in Kafka: they are absolute and have no `..`. Symbolic links below
an allowed path are followed, since only this machine's administrator can have created them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from re import Pattern
from typing import Final

from twinlog.kafka.errors import UserError

ALLOWED_PATHS: Final = "mirror.allowed.paths"
ALLOWLIST_PATTERN: Final = "mirror.allowlist.pattern"
DATAFRAMES: Final = "mirror.dataframes.enable"
GRANTS: Final = (ALLOWED_PATHS, ALLOWLIST_PATTERN, DATAFRAMES)
"""The properties that grant something."""
REFERRING: Final = ("sasl.", "ssl.", "basic.auth.")
"""Prefixes of the settings whose values may have references."""
SYSTEM_TICKETS: Final = "KRB5CCNAME"
"""The environment variable that stands for the system's Kerberos tickets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What properties have asked for; by each path or variable, the setting that names it."""

    paths: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a mirror's properties may read of this machine; nothing by default."""

    paths: tuple[PurePosixPath, ...] = ()
    variables: Pattern[str] | None = None
    dataframes: bool = False
    """Whether flows may run code: SQL and Python functions."""
    all_references: bool = False
    """Whether the operator has just given these properties; they were not stored."""
    reads: Reads | None = field(default=None, compare=False)
    """Receives what `all_references` lets the properties read."""

    def check_reference(self, key: str, reference: str) -> None:
        """Refuse a reference in a setting that may have none.

        Raises:
            UserError: the setting is none of `sasl.*`, `ssl.*` and `basic.auth.*`.
        """
        if not key.startswith(REFERRING):
            raise UserError(
                f"{key} of a mirror contains the reference {reference}: only sasl.*, ssl.* "
                "and basic.auth.* may contain references",
                hint="write the value itself",
            )

    def check_path(self, key: str, path: str, display_name: str) -> None:
        """Refuse a file that no allowed path covers; it is neither opened nor searched for.

        Args:
            key: the setting that names it.
            path: the file.
            display_name: how messages name it.

        Raises:
            UserError: it is not allowed.
        """
        if self.all_references:
            if self.reads is not None:
                self.reads.paths.setdefault(path, key)
            return
        file = PurePosixPath(path)
        covered = any(file.is_relative_to(allowed_path) for allowed_path in self.paths)
        if not is_plain(path) or not covered:
            raise UserError(
                f"{key} of a mirror: {display_name} is not within {ALLOWED_PATHS}",
                hint=f"{_where(ALLOWED_PATHS)}: absolute paths, separated by commas",
            )

    def check_variable(self, key: str, name: str, display_name: str) -> None:
        """Refuse an environment variable that the pattern does not match.

        Raises:
            UserError: it is not allowed.
        """
        if self.all_references:
            if self.reads is not None:
                self.reads.variables.setdefault(name, key)
            return
        if self.variables is None or not self.variables.fullmatch(name):
            raise UserError(
                f"{key} of a mirror: {display_name} does not match {ALLOWLIST_PATTERN}",
                hint=f"{_where(ALLOWLIST_PATTERN)}: a regular expression for names of environment "
                "variables",
            )

    def check_dataframes(self) -> None:
        """Refuse code of a flow.

        Raises:
            UserError: this process may not run any.
        """
        if not self.dataframes:
            raise UserError(
                f"twinlog.transform.* needs {DATAFRAMES}=true",
                hint=f"{_where(DATAFRAMES)}: whoever may write to __mirror_config can then run "
                "code as the node's user",
            )


NOTHING: Final = Grants()
EVERYTHING: Final = Grants(all_references=True)


def is_plain(path: str) -> bool:
    """Whether a path is absolute and has no `..`: only such paths can be allowed."""
    file = PurePosixPath(path)
    return file.is_absolute() and ".." not in file.parts


def _where(name: str) -> str:
    return f"set {name} in the --command-config of the node or command that connects"


def parse_grants(properties: Mapping[str, str]) -> Grants:
    """Parse what a process's own configuration allows mirrors' properties to read.

    Raises:
        UserError: a path is not absolute, the pattern is no regular expression, or
            `mirror.dataframes.enable` is no boolean.
    """
    dataframes = properties.get(DATAFRAMES, "false").strip().lower()
    if dataframes not in {"true", "false"}:
        raise UserError(f"{DATAFRAMES} is {dataframes!r}: expected true or false")
    paths = [path.strip() for path in properties.get(ALLOWED_PATHS, "").split(",") if path.strip()]
    for path in paths:
        if not is_plain(path):
            raise UserError(f"{ALLOWED_PATHS} has {path!r}: expected absolute paths without '..'")
    pattern = properties.get(ALLOWLIST_PATTERN, "").strip()
    try:
        variables = re.compile(pattern) if pattern else None
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(
            f"{ALLOWLIST_PATTERN} is {pattern!r}: expected a regular expression ({error})"
        ) from error
    return Grants(
        paths=tuple(map(PurePosixPath, paths)),
        variables=variables,
        dataframes=dataframes == "true",
    )
