"""The course of a switchover: which step it is at, its progress reports, and its waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.operations.switchover.records import Progress, Step, SwitchoverFailed, Tell

LOOK_S: Final = 0.5
"""Seconds between two checks while a step waits."""
TELL_S: Final = 2.0
"""Seconds between two progress reports while a step waits."""


@contextmanager
def at(step: Step, *, gone_back: bool = True) -> Iterator[None]:
    """Let an error end the switchover at this step.

    Raises:
        SwitchoverFailed: in place of any other error of twinlog.
    """
    try:
        yield
    except SwitchoverFailed:
        raise
    except TwinlogError as error:
        raise SwitchoverFailed(step, str(error), gone_back=gone_back) from error


class Course:
    """The step that a switchover is at, and its reports.

    Args:
        timeout_s: seconds that each step may wait.
        tell: receives the reports.
    """

    def __init__(self, *, timeout_s: float, tell: Tell) -> None:
        self.step = Step.READINESS
        self.denied = False
        """Whether producers may be denied WRITE on the source by now."""
        self._timeout_s = timeout_s
        self._tell = tell
        self._unheard = False

    def begin(self, step: Step, text: str = "") -> None:
        """Report that a step begins; if that cannot be reported, it does not begin."""
        self.say(step, text or step.value)
        self.step = step

    def done(self, step: Step, text: str) -> None:
        """Report that a step is done."""
        self.say(step, text, done=True)

    def say(self, step: Step, text: str, *, done: bool = False) -> None:
        """Report the progress of a step.

        Raises:
            SwitchoverFailed: the first report that cannot be written (a closed terminal or pipe, a
                full disk). Later ones are dropped: denials still have to be removed.
        """
        if self._unheard:
            return
        try:
            self._tell(Progress(step, done, text, self.denied))
        except OSError as error:
            self._unheard = True
            gone_back = self.step is not Step.FAILOVER
            text = f"progress cannot be reported: {error}"
            raise SwitchoverFailed(self.step, text, gone_back=gone_back) from error

    async def until(
        self, step: Step, look: Callable[[], Awaitable[str]], *, gone_back: bool = True
    ) -> None:
        """Check until nothing is waited for.

        Raises:
            SwitchoverFailed: it takes too long, or fails.
        """
        clock = asyncio.get_running_loop().time
        deadline, reported_at = clock() + self._timeout_s, clock()
        while True:
            with at(step, gone_back=gone_back):
                problem = await _look(look)
            if not problem:
                return
            if clock() > deadline:
                raise SwitchoverFailed(
                    step, f"timed out after {self._timeout_s:g} s: {problem}", gone_back=gone_back
                )
            if clock() - reported_at >= TELL_S:
                reported_at = clock()
                self.say(step, problem)
            await asyncio.sleep(LOOK_S)


async def _look(look: Callable[[], Awaitable[str]]) -> str:
    """What is waited for; an unreachable cluster is waited for, too."""
    try:
        return await look()
    except Retriable as error:
        return str(error)
