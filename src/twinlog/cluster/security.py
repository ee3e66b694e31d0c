"""Who we are to a cluster, and how we know that it is the one."""

import ssl
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """A SASL mechanism and what it needs. `repr` shows no secret."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)

    def mechanism_options(self) -> dict[str, Any]:
        """What kafka-python's mechanisms take."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a connection is protected and authenticated."""

    sasl: Sasl | None = None

    def ssl_context(self) -> ssl.SSLContext | None:
        """A new context, from the files as they are now; None without TLS."""
        return None


PLAINTEXT = Security()
