"""A cluster's configuration: Kafka's own property names, parsed once into a frozen dataclass."""

from dataclasses import dataclass
from typing import NamedTuple

from twinlog.cluster.dial import Options
from twinlog.cluster.security import PLAINTEXT, Security


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How to reach one cluster. Times are in seconds, sizes in bytes."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str = "twinlog"
    security: Security = PLAINTEXT
    request_timeout: float = 30.0
    """One request on one connection."""
    api_timeout: float = 60.0
    """One call with all its tries."""
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

    def options(self) -> Options:
        """What a connection needs of it."""
        return Options(
            client_id=self.client_id,
            request_timeout=self.request_timeout,
            setup_timeout=self.setup_timeout,
            send_buffer=self.send_buffer,
            receive_buffer=self.receive_buffer,
            user_timeout=self.user_timeout,
        )
