"""Waiting for a condition with a deadline: the only way in which a test waits."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar, overload

T = TypeVar("T")
Judged_contra = TypeVar("Judged_contra", contravariant=True)
Shown_co = TypeVar("Shown_co", covariant=True)
SECONDS = 120.0
"""The usual deadline: a busy machine may stand still for tens of seconds."""
_POLL_SECONDS = 0.05


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
    while not good(result := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s (last: {result!r})"
        time.sleep(pause)
    return result


async def until_async(
    condition: Look[Awaitable[T | None]], seconds: float = SECONDS, what: str = "the condition"
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
