"""`twinlog switchover --json` as a process, and its output."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any, Final

from twinlog.local import commands

_TRIES: Final = 3


class Switching:
    """A running switchover, without a terminal for questions."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            # Background processes ignore SIGINT, and child processes inherit that.
            ["env", "--default-signal=INT", *commands.TWINLOG, "switchover", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self.errors = ""

    def until_step(self, step: str, words: str) -> None:
        """Read until its output has these words for a step."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1].get("step") == step and words in self.said[-1]["text"]:
                return
        raise AssertionError(f"no {words!r} of {step}: {self.said}, {self._process.stderr}")

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM, as a supervisor does."""
        self._process.terminate()

    def end(self) -> int:
        """Read the remaining output; return the exit status."""
        output, self.errors = self._process.communicate(timeout=300)
        self.said += [json.loads(line) for line in output.splitlines()]
        assert "Traceback" not in self.errors, self.errors
        return self._process.returncode

    @property
    def done(self) -> list[str]:
        """Return the completed steps, in order."""
        return [one["step"] for one in self.said if one.get("done")]


def switched_over(begin: Callable[[], Switching]) -> Switching:
    """Begin a switchover and return it once it has succeeded.

    It is begun again, as an operator would, if a lane has taken a partition over meanwhile: on a
    machine that stands still for the session timeout, that may happen at any time.
    """
    for _ in range(_TRIES):
        switch = begin()
        if switch.end() == 0:
            return switch
        if "PREPARING" not in switch.errors:
            break
    raise AssertionError((switch.said, switch.errors))
