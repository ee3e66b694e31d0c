"""Long computations in an event loop, in steps between which its other tasks run.

A plan may have to decode a million records. The loop that plans also sends the heartbeats of its
lane, and whatever other partitions have to send. So no computation blocks it for long.

Anything may have changed after a step: the caller checks whether its result is still wanted.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

_STEP_S: Final = 0.003
"""How long a computation may block the event loop."""


class Steps:
    """Yields to the event loop between steps: heartbeats must not wait for a plan."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._began = self._now()

    async def pause(self) -> None:
        """Yield to other tasks, if the last time was more than `_STEP_S` ago."""
        if self._now() - self._began > _STEP_S:
            await asyncio.sleep(0)
            self._began = self._now()

    async def finish(self, computation: Generator[None, None, T]) -> T:
        """Run a computation to its end, which is a generator that yields after each short step."""
        while True:
            try:
                next(computation)
            except StopIteration as stop:
                result: T = stop.value
                return result
            await self.pause()
