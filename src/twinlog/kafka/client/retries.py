"""Tries of one call: which failures have a next try, and how long the backoff before it is.

Between tries there is a backoff, and what the failure has shown to be stale is refreshed:

    failure                                   before the next try
    ----------------------------------------  -----------------------------------------
    no connection, connection lost            a backoff; `node=None`: another broker
    reaction RETRY                            a backoff (short ones for 51
                                              CONCURRENT_TRANSACTIONS, as Kafka's client)
    reaction METADATA (NOT_CONTROLLER, ...)   refresh the metadata (`Brokers.check`)
    reaction COORDINATOR                      find the coordinator (`Coordinators.call`)
    an answer that cannot be decoded          a backoff; at most `MAX_NONSENSE` tries
    anything else                             no next try: the caller decides

So a request of a call may arrive more than once: after a lost connection it is unknown whether the
request was carried out. Only idempotent requests may be sent this way. Data is sent with
`Connection.send_raw`, which never retries.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.configuration import ClusterConfig
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import DENIED, ProtocolError, Retriable, TwinlogError

T = TypeVar("T")
BeforeSend: TypeAlias = Callable[[], None]

MAX_TRIES: Final = 100
"""Tries of one call; its deadline nearly always comes first."""
MAX_NONSENSE: Final = 3
"""Tries of one call whose answers cannot be decoded."""

_CONCURRENT_BACKOFF: Final = Backoff(0.002, 0.1)


def nothing() -> None:
    """The default of `before_send`: do nothing, since any process may send the request."""


class Retries:
    """Tries of calls to one cluster, whose `name` their errors contain."""

    def __init__(self, config: ClusterConfig, *, name: str | None, rng: random.Random) -> None:
        self._config = config
        self._name = name
        self._rng = rng
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max)

    async def persist(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Await `attempt()` until it raises nothing retriable; bounded in time and number.

        Args:
            attempt: one try.
            timeout: in seconds, of all tries together (default: default.api.timeout.ms).

        Raises:
            Retriable: the last try's error, or the deadline has passed.
        """
        timeout = self._config.api_timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failure: TwinlogError | None = None
        for tries in range(1, MAX_TRIES + 1):
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                timeout_error = Retriable(f"timed out after {timeout:g} s", cluster=self._name)
                raise (failure or timeout_error) from error
            except TwinlogError as error:
                failure = self.named(error)
                if not _once_more(error, tries):
                    raise
            pause = self._pause(failure, tries)
            if loop.time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        assert failure is not None
        raise failure

    def named(self, error: TwinlogError) -> TwinlogError:
        """Add the cluster's name to an error, and the principal if a right is missing."""
        error.cluster = error.cluster or self._name
        if error.code in DENIED:
            error.principal = self._config.security.principal
        return error

    def _pause(self, failure: TwinlogError, tries: int) -> float:
        concurrent = failure.code == ErrorCode.CONCURRENT_TRANSACTIONS
        backoff = _CONCURRENT_BACKOFF if concurrent else self._backoff
        return backoff.delay(tries, self._rng.random())


def _once_more(error: TwinlogError, tries: int) -> bool:
    if isinstance(error, ProtocolError):
        return tries < MAX_NONSENSE
    return isinstance(error, Retriable)
