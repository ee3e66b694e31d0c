"""Waiting for a condition with a deadline: the only way in which a test waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 120.0
"""The usual deadline: a busy machine may stand still for tens of seconds."""
_POLL_SECONDS = 0.05


def until(
    look: Callable[[], T],
    seconds: float = SECONDS,
    what: str = "the condition",
    *,
    good: Callable[[T], bool] = bool,
    pause: float = _POLL_SECONDS,
) -> T:
    """Poll until the value is good (by default: true), and return it; seconds between polls."""
    deadline = time.monotonic() + seconds
    while not good(result := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s (last: {result!r})"
        time.sleep(pause)
    return result


async def until_async(
    condition: Callable[[], Awaitable[T]], seconds: float = SECONDS, what: str = "the condition"
) -> T:
    """Poll in an event loop; a condition that hangs is cancelled at the deadline."""
    last: T | None = None
    try:
        async with asyncio.timeout(seconds):
            while not (last := await condition()):
                await asyncio.sleep(_POLL_SECONDS)
            return last
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds:g} s (last: {last!r})") from None
