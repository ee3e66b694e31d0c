"""Properties for printing: secrets are hidden; the place where a secret is stored is shown.

A command's output ends up in logs and tickets, where people read it who may not read
`__mirror_config`. A value that consists of a reference (configuration.py) shows the secret's place,
and no secret. The options of `sasl.jaas.config` are checked one by one; an entry that cannot be
parsed is hidden.
"""

import re
from collections.abc import Mapping
from typing import Final

from twinlog.kafka.client.jaas import with_values
from twinlog.kafka.errors import UserError

HIDDEN: Final = "[hidden]"
"""As Kafka prints passwords."""
_JAAS: Final = "jaas.config"
_SECRET: Final = re.compile(
    r"password|secret|jaas\.config$|keystore\.key$|user\.info$", re.IGNORECASE
)
_REFERENCE: Final = re.compile(r"\$\{(?:env|file|directory):[^}]*\}")
_OPEN: Final = frozenset(
    {"username", "principal", "serviceName", "useKeyTab", "keyTab", "useTicketCache", "ticketCache"}
)
"""Options of login modules that are not secret."""


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties sorted by name, with secrets hidden."""
    return {key: _shown(key, value) for key, value in sorted(properties.items())}


def _shown(key: str, value: str) -> str:
    if _SECRET.search(key) is None:
        return value
    if key.endswith(_JAAS):
        try:
            return with_values(value, _option)
        except UserError:
            return HIDDEN
    return _referred(value)


def _option(name: str, value: str) -> str:
    return value if name in _OPEN else _referred(value)


def _referred(value: str) -> str:
    return value if _REFERENCE.fullmatch(value.strip()) else HIDDEN
