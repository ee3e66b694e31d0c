"""Background tasks that end with their owner, and actions that a cancellation does not cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(action: Coroutine[Any, Any, T]) -> T:
    """Await an action; if that is cancelled, not before its requests are answered."""
    task = asyncio.ensure_future(action)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that it is not reported as lost
        raise


class Tasks:
    """Tasks of one owner. The event loop keeps only weak references to tasks; this keeps them."""

    def __init__(self) -> None:
        self.closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task until it ends or `close` cancels it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Retrieve the outcome, so that it is not reported as lost: a waiter may be cancelled."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
