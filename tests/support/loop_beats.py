"""Counts the turns that an event loop gives to other tasks while something is computed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass
class Beats:
    """How often another task has had its turn."""

    count: int = 0


def _nothing(_: int) -> None:
    """For beats that only count."""


@asynccontextmanager
async def beating(act: Callable[[int], None] = _nothing) -> AsyncIterator[Beats]:
    """Run a task beside the block that has each turn that it can get.

    Args:
        act: called in each turn, with its number from 1 on.
    """
    beats = Beats()

    async def beat() -> None:
        while True:
            beats.count += 1
            act(beats.count)
            await asyncio.sleep(0)

    task = asyncio.create_task(beat())
    try:
        yield beats
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
