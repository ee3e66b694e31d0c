"""twinlog's own commands, run as a user runs them: each in a process of its own.

Long-running commands report their progress, as a JSON object on each line (`twinlog run --json`,
the load): `Reporting` reads the last one. The others end by themselves: `run`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinlog.local.errors import LocalError
from twinlog.local.processes import ProcessGroup, Program, last_error

TWINLOG: Final = (
    sys.executable,
    "-c",
    "from twinlog.interfaces.cli.start import twinlog; twinlog()",
)
KAFKA_MIRRORS: Final = (
    sys.executable,
    "-c",
    "from twinlog.interfaces.cli.start import kafka_mirrors; kafka_mirrors()",
)
LOAD: Final = (sys.executable, "-m", "twinlog.local.load")

_POLL_SECONDS: Final = 0.1
_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command."""

    status: int
    output: str
    errors: str


def run(command: Sequence[str], *arguments: str, seconds: float = 300.0) -> Done:
    """Run a command to its end.

    Raises:
        LocalError: it did not end in time, and was killed.
    """
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException as error:
            _end_session(process)
            if isinstance(error, subprocess.TimeoutExpired):
                command_text = " ".join(arguments)
                raise LocalError(
                    f"timed out after {seconds:g} s: twinlog {command_text}"
                ) from error
            raise
    return Done(process.returncode, output, errors)


def _end_session(process: subprocess.Popen[str]) -> None:
    """End a command; if it does not end, kill its whole session: Spark's JVM, its tasks."""
    process.terminate()
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_SECONDS)


class Reporting:
    """A long-running command that reports its progress."""

    def __init__(
        self,
        group: ProcessGroup,
        name: str,
        directory: Path,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.output = directory / f"{name}.json"
        self.output.unlink(missing_ok=True)
        self._process = group.start(
            Program(argv=argv, log=self.log, output=self.output, environment=environment)
        )

    @property
    def pid(self) -> int:
        """The command's pid."""
        return self._process.identity.pid

    @property
    def alive(self) -> bool:
        """Whether the command runs."""
        return self._process.alive

    def said(self) -> list[dict[str, Any]]:
        """All reports, the oldest first."""
        lines = self.output.read_text(errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def last(self) -> dict[str, Any]:
        """The last report; empty if there is none yet."""
        reports = self.said()
        return reports[-1] if reports else {}

    def wait_for(
        self, condition: Callable[[dict[str, Any]], bool], description: str, seconds: float
    ) -> dict[str, Any]:
        """Wait until the last report fulfils a condition, and return that report.

        Raises:
            LocalError: the command has ended before, or it takes too long.
        """
        deadline = time.monotonic() + seconds
        while True:
            has_ended = not self.alive
            report = self.last()
            if report and condition(report):
                return report
            if has_ended:
                raise LocalError(f"{self.name} has ended: {last_error(self.log)}")
            if time.monotonic() > deadline:
                raise LocalError(
                    f"{self.name}: timed out after {seconds:g} s: {description} (log: {self.log})"
                )
            time.sleep(_POLL_SECONDS)

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        self._process.signal(number)

    def kill(self) -> None:
        """Kill the command (SIGKILL)."""
        self._process.kill()

    def end(self, seconds: float = 180.0) -> int | None:
        """End the command as a user does (SIGTERM); return its exit status.

        Raises:
            LocalError: it does not end.
        """
        self._process.signal(signal.SIGTERM)
        self._process.wait(seconds)
        return self._process.returncode
