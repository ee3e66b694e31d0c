"""Waiting for a condition with a deadline: the only way in which a test waits.

What a busy broker does not answer is not known yet: it is asked again, as users are told to do.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar, overload

from confluent_kafka import KafkaError, KafkaException

from twinlog.kafka.errors import Retriable

T = TypeVar("T")
Judged_contra = TypeVar("Judged_contra", contravariant=True)
Shown_co = TypeVar("Shown_co", covariant=True)
SECONDS = 400.0
"""The usual deadline: a busy machine may stand still for tens of seconds."""
_POLL_SECONDS = 0.05
_LATER: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._NOENT,  # "No leaders found"
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Errors of librdkafka after which the same request may succeed."""


def comes_later(error: Exception) -> bool:
    """Whether a cluster, or a node's HTTP port, may answer the same question a moment later."""
    if isinstance(error, KafkaException):
        return error.args[0].code() in _LATER
    return isinstance(error, Retriable | TimeoutError)


class Judge(Protocol[Judged_contra]):
    """Tells whether a value is good; it may have default arguments, as `Look` may."""

    def __call__(self, found: Judged_contra, /) -> bool: ...


class Look(Protocol[Shown_co]):
    """Returns a value to wait for; default arguments may bind the variables of a loop."""

    def __call__(self) -> Shown_co: ...


@overload
def until(
    look: Look[T | None], seconds: float = SECONDS, what: str = ..., *, pause: float = ...
) -> T: ...


@overload
def until(
    look: Look[T],
    seconds: float = SECONDS,
    what: str = ...,
    *,
    good: Judge[T],
    pause: float = ...,
) -> T: ...


def until(
    look: Look[T],
    seconds: float = SECONDS,
    what: str = "the condition",
    *,
    good: Judge[T] = bool,
    pause: float = _POLL_SECONDS,
) -> T:
    """Poll until the value is good (by default: true), and return it; seconds between polls."""
    deadline = time.monotonic() + seconds
    while True:
        last: object
        try:
            last = result = look()
            if good(result):
                return result
        except (Retriable, KafkaException, TimeoutError) as error:
            if not comes_later(error):
                raise
            last = error
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s (last: {last!r})"
        time.sleep(pause)


async def until_async(
    condition: Look[Awaitable[T | None]], seconds: float = SECONDS, what: str = "the condition"
) -> T:
    """Poll in an event loop; a condition that hangs is cancelled at the deadline."""
    last: object = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    last = result = await condition()
                    if result:
                        return result
                except (Retriable, KafkaException, TimeoutError) as error:
                    if not comes_later(error):
                        raise
                    last = error
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds:g} s (last: {last!r})") from None
