"""twinlog's own commands, run as a user runs them: as processes of their own.

Some go on for long and say where they are, as a JSON object on each line (`twinlog run --json`, the
load): `Reporting` reads the last one. The others end by themselves: `run`.
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
    """How a command ended."""

    status: int
    output: str
    errors: str


def run(command: Sequence[str], *arguments: str, seconds: float = 120.0) -> Done:
    """Run a command to its end.

    Raises:
        LocalError: it does not end in time, and was killed.
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
                what = " ".join(arguments)
                raise LocalError(f"not done after {seconds:g} s: twinlog {what}") from error
            raise
    return Done(process.returncode, output, errors)


def _end_session(process: subprocess.Popen[str]) -> None:
    """End a command with all that it has started: Spark's JVM, its tasks."""
    process.terminate()
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_SECONDS)


class Reporting:
    """A command that goes on, and says where it is."""

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
        """Its process."""
        return self._process.identity.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.alive

    def said(self) -> list[dict[str, Any]]:
        """All that it has said, the oldest first."""
        lines = self.output.read_text(errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def last(self) -> dict[str, Any]:
        """What it has said last; nothing yet: empty."""
        said = self.said()
        return said[-1] if said else {}

    def wait_for(
        self, condition: Callable[[dict[str, Any]], bool], what: str, seconds: float
    ) -> dict[str, Any]:
        """Wait until what it says last fulfils a condition, and give that.

        Raises:
            LocalError: it has ended before, or it takes too long.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.alive
            last = self.last()
            if last and condition(last):
                return last
            if ended:
                raise LocalError(f"{self.name} has ended: {last_error(self.log)}")
            if time.monotonic() > deadline:
                raise LocalError(f"{self.name}: {what}: not within {seconds:g} s (log: {self.log})")
            time.sleep(_POLL_SECONDS)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self, seconds: float = 60.0) -> int | None:
        """Let it end as a user does (SIGTERM); its exit status.

        Raises:
            LocalError: it does not end.
        """
        self._process.signal(signal.SIGTERM)
        self._process.wait(seconds)
        return self._process.returncode
