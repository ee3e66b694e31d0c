"""Properties as they may be printed: secrets are hidden, and where a secret is kept is shown.

What a command prints goes on into logs and tickets, to people who may not read `__mirror_config`.
A value that is nothing but a reference (configuration.py) tells where the secret is, and no secret.
Of `sasl.jaas.config` the options are looked at one by one; an entry that cannot be parsed is
hidden.
"""

import re
from collections.abc import Mapping
from typing import Final

from twinlog.kafka.client.jaas import with_values
from twinlog.kafka.errors import UserError

HIDDEN: Final = "[hidden]"
"""As Kafka prints passwords."""
_JAAS: Final = "jaas.config"
_SECRET: Final = re.compile(r"password|secret|jaas\.config$|keystore\.key$", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"\$\{(?:env|file|directory):[^}]*\}")
_OPEN: Final = frozenset(
    {"username", "principal", "serviceName", "useKeyTab", "keyTab", "useTicketCache", "ticketCache"}
)
"""Options of login modules that are no secrets."""


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties in the order of their names, with secrets hidden."""
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
