"""An asyncio event loop under virtual time: nothing ever waits, the clock jumps to the next timer.

The same program on this loop does the same things in the same order, and an hour takes as long as
its steps do. Time passes only between steps, so a step takes no time at all.

A *process* groups what one operating system process would run. Its tasks are told by a context
variable, which asyncio hands on to all that a task starts. A process can be

    frozen   none of its steps runs; what becomes ready is held, in order, until it is thawed
    killed   none of its steps ever runs again, not even `finally`: kill -9

`kill_after` kills it after so many of its steps, that is between any two.

`asyncio.BaseEventLoop` gives everything but the wait; of it `_run_once` is replaced, which takes
handles from `_ready` and timers from `_scheduled` (CPython 3.11 to 3.13 have the same).
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_STEPS_AT_ONE_TIME: Final = 200_000
"""More steps than this without a timer between them: the program spins."""

BURIAL_SECONDS: Final = 60.0


class Stuck(Exception):
    """Nothing is ready and no timer runs, or time does not go on."""


class Process:
    """What runs, stands still and dies together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.killed = False
        self.steps = 0
        self.kill_after: int | None = None
        self.on_kill: Callable[[], None] | None = None
        self._held: deque[asyncio.Handle] = deque()

    def admit(self, handle: asyncio.Handle) -> bool:
        """Whether this step may run now; else it is held."""
        if self.kill_after is not None and self.steps >= self.kill_after:
            self.kill()
        if self.killed or self.frozen:
            self._held.append(handle)
            return False
        self.steps += 1
        return True

    def kill(self) -> None:
        """End it between two of its steps."""
        if not self.killed:
            self.killed = True
            if self.on_kill is not None:
                self.on_kill()

    def bury(self, loop: "VirtualLoop") -> None:
        """Let what is left of it run, so that its tasks can be cancelled."""
        self.killed, self.kill_after = False, None
        self.thaw(loop)

    def freeze(self) -> None:
        """Stop it as SIGSTOP would."""
        self.frozen = True

    def thaw(self, loop: "VirtualLoop") -> None:
        """Let it go on: what became ready meanwhile comes first."""
        self.frozen = False
        while self._held:
            loop.resume(self._held.popleft())


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `steps` counts what ran; the same seed gives the same count."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.steps = 0
        self.made = 0
        self.outside = Context()
        """The context of what belongs to no process: clusters and network."""
        self._steps_at_now = 0
        self.after_step: Callable[[], None] | None = None
        self.processes: list[Process] = []
        self.broken: BaseException | None = None
        """What a callback raised: a bug, never to be passed over."""
        self.set_task_factory(_task)
        self.set_exception_handler(_note)

    def time(self) -> float:
        """Give the virtual seconds since the start."""
        return self._now

    def create_future(self) -> "asyncio.Future[Any]":
        """Give a future of this loop."""
        future = _Future(loop=self)
        self.made += 1
        future.number = self.made
        return future

    def resume(self, handle: asyncio.Handle) -> None:
        """Put a step that was held back in the queue."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def later(self, seconds: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        """Do it after so many seconds, outside all processes."""
        return self.call_later(seconds, action, context=self.outside)

    def start_in(self, process: Process, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a process's main task."""
        self.processes.append(process)
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(main, context=context)

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        self._advance(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and not process.admit(handle):
                continue
            self.steps += 1
            handle._run()
            if self.after_step is not None:
                self.after_step()
            if self.broken is not None:
                raise self.broken

    def _advance(self, ready: deque[asyncio.Handle]) -> None:
        """Move the clock if nothing is ready, and make ready what is due."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._steps_at_now += 1
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not ready:
            if self._stopping:  # type: ignore[attr-defined]
                return
            if not scheduled:
                raise Stuck("nothing is ready and no timer runs, yet something is waited for")
            if scheduled[0]._when > self._now:  # type: ignore[attr-defined]
                self._now = scheduled[0]._when  # type: ignore[attr-defined]
                self._steps_at_now = 0
        if self._steps_at_now > MAX_STEPS_AT_ONE_TIME:
            raise Stuck(f"time does not go on after {self._now} s")
        while scheduled and scheduled[0]._when <= self._now:  # type: ignore[attr-defined]
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)

    def _write_to_self(self) -> None:
        """Nothing: no other thread wakes this loop."""

    def _process_events(self, event_list: object) -> None:
        """Nothing: there are no sockets."""


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number: sets of futures have the same order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """The same for tasks. One that is left behind is no error: killed processes leave tasks."""

    _log_destroy_pending = False

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


def _task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> "asyncio.Task[Any]":
    assert isinstance(loop, VirtualLoop)
    loop.made += 1
    return _Task(coro, number=loop.made, loop=loop, **kwargs)


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Remember what a callback raised; a task's own exception is its waiter's business."""
    if "handle" in context and isinstance(loop, VirtualLoop):
        loop.broken = context.get("exception")


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a program on a fresh virtual loop, and end all that it left behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.after_step = loop.broken = None
        _bury(loop)
        loop.close()


def _bury(loop: VirtualLoop) -> None:
    """Cancel what is left, the tasks of killed and frozen processes too."""
    for process in loop.processes:
        process.bury(loop)
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=BURIAL_SECONDS))
