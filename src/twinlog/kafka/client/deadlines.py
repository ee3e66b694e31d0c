"""One timer of the event loop for many deadlines, most of which are met.

A timer for each request would be created and cancelled with each: work for nothing.
"""

import asyncio
import math
from collections.abc import Callable


class Deadlines:
    """Calls `expire` at the earliest deadline, or soon after one that was met.

    `expire` looks for what is late, and calls `watch` for what is not yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._earliest = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: float) -> None:
        """Call `expire` at this time of the loop's clock, or before."""
        if deadline < self._earliest:
            self.cancel()
            self._earliest = deadline
            self._timer = self._loop.call_at(deadline, self._due)

    def cancel(self) -> None:
        """Watch no deadline any more."""
        self._earliest = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self.cancel()
        self._expire()
