"""A request to stop that also ends what would delay the stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def ended_by(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the body once the event is set, and go on behind it.

    For steps that may wait for a cluster for long, and that are safe to be cut off anywhere.
    """

    async def end() -> None:
        await stop.wait()
        scope.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as scope:
            watch = asyncio.create_task(end())
            try:
                yield
            finally:
                watch.cancel()
    except TimeoutError:
        if not scope.expired():
            raise
