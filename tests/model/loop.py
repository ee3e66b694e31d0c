"""An asyncio event loop under virtual time: it never waits; the clock jumps to the next timer.

The same program on this loop takes the same steps in the same order, and a virtual hour takes only
as long as its steps. Time passes only between steps, so a step itself takes no virtual time.

A *process* groups what one operating system process would run. A context variable identifies its
tasks; asyncio passes it on to every task that a task starts. A process can be

    frozen   none of its steps runs; steps that become ready are held, in order, until it is thawed
    killed   none of its steps ever runs again, not even `finally`: kill -9

`kill_after` kills a process after that many of its steps, so a kill can hit between any two steps.

`asyncio.BaseEventLoop` provides everything except the wait. Only `_run_once` is replaced; it takes
handles from `_ready` and timers from `_scheduled` (the same in CPython 3.11 to 3.13).
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_STEPS_AT_ONE_TIME: Final = 200_000
"""More steps than this without a timer between them: the program is in a busy loop."""

BURIAL_SECONDS: Final = 60.0


class Stuck(Exception):
    """Nothing is ready and no timer runs, or the virtual time does not advance."""


class Process:
    """A group of tasks that run, freeze and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.killed = False
        self.steps = 0
        self.kill_after: int | None = None
        self.on_kill: Callable[[], None] | None = None
        self._held: deque[asyncio.Handle] = deque()

    def admit(self, handle: asyncio.Handle) -> bool:
        """Return whether this step may run now; otherwise hold it."""
        if self.kill_after is not None and self.steps >= self.kill_after:
            self.kill()
        if self.killed or self.frozen:
            self._held.append(handle)
            return False
        self.steps += 1
        return True

    def kill(self) -> None:
        """Kill the process between two of its steps."""
        if not self.killed:
            self.killed = True
            if self.on_kill is not None:
                self.on_kill()

    def bury(self, loop: "VirtualLoop") -> None:
        """Let the remaining steps run, so that the tasks can be cancelled."""
        self.killed, self.kill_after = False, None
        self.thaw(loop)

    def freeze(self) -> None:
        """Stop the process as SIGSTOP does."""
        self.frozen = True

    def thaw(self, loop: "VirtualLoop") -> None:
        """Continue the process; steps that became ready meanwhile come first."""
        self.frozen = False
        while self._held:
            loop.resume(self._held.popleft())


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `steps` counts the steps that ran; the same seed gives the same count."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.steps = 0
        self.made = 0
        self.outside = Context()
        """The context of everything outside all processes: clusters and network."""
        self._steps_at_now = 0
        self.after_step: Callable[[], None] | None = None
        self.processes: list[Process] = []
        self.broken: BaseException | None = None
        """The exception that a callback raised: a bug, which must not be ignored."""
        self.set_task_factory(_task)
        self.set_exception_handler(_note)

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        future = _Future(loop=self)
        self.made += 1
        future.number = self.made
        return future

    def resume(self, handle: asyncio.Handle) -> None:
        """Put a held step back in the queue."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def later(self, seconds: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `action` after that many seconds, outside all processes."""
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
        """Advance the clock if nothing is ready, and queue the timers that are due."""
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
        """Do nothing: no other thread wakes this loop."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number: sets of futures have the same order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """A task with a number as its hash. Killed processes leave tasks, so no warning is logged."""

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
    """Remember what a callback raised; a task's exception goes to the code that awaits it."""
    if "handle" in context and isinstance(loop, VirtualLoop):
        loop.broken = context.get("exception")


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a program on a new virtual loop, and end everything that it left running."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.after_step = loop.broken = None
        _bury(loop)
        loop.close()


def _bury(loop: VirtualLoop) -> None:
    """Cancel all remaining tasks, also those of killed and frozen processes."""
    for process in loop.processes:
        process.bury(loop)
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=BURIAL_SECONDS))
