"""`twinlog switchover --json` as a process, and what it says."""

import json
import signal
import subprocess
from typing import Any

from twinlog.local import commands


class Switching:
    """One that runs; nobody is there to be asked."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            # What runs in the background ignores SIGINT, and hands that down.
            ["env", "--default-signal=INT", *commands.TWINLOG, "switchover", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self.errors = ""

    def until_step(self, step: str, words: str) -> None:
        """Read on until it says these words of a step."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1].get("step") == step and words in self.said[-1]["text"]:
                return
        raise AssertionError(f"no {words!r} of {step}: {self.said}, {self._process.stderr}")

    def kill(self) -> None:
        """As the kernel does it."""
        self._process.kill()
        self._process.communicate()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """As a supervisor does it."""
        self._process.terminate()

    def end(self) -> int:
        """Read all that is left; the exit status."""
        output, self.errors = self._process.communicate(timeout=60)
        self.said += [json.loads(line) for line in output.splitlines()]
        assert "Traceback" not in self.errors, self.errors
        return self._process.returncode

    @property
    def done(self) -> list[str]:
        """The steps that are done, in order."""
        return [one["step"] for one in self.said if one.get("done")]
