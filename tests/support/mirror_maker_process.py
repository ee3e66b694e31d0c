"""`twinlog mirror-maker FILE` in a process of its own, started, ended and killed as by a user."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from process_tree import below
from waiting import until

from twinlog.local import commands
from twinlog.local.identity import identity_of

END_SECONDS = 180.0
LINES = 80
RUNNING = "running "
"""Begins the line of a flow that is printed once signals end the command in order."""


class MirrorMakerProcess:
    """The command with one file; `start` may follow `end` or `kill`."""

    def __init__(self, folder: Path, properties: str, *arguments: str) -> None:
        self._file = folder / "mm2.properties"
        self._file.write_text(properties)
        self._log = folder / "mirror-maker.log"
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._before = 0

    def check(self) -> None:
        """Check that the file has no error."""
        done = commands.run(commands.TWINLOG, "mirror-maker", "--check", str(self._file))
        assert done.status == 0, f"{done.output}\n{done.errors}"

    def start(self) -> None:
        """Start it."""
        self._before = len(self.text()) if self._log.exists() else 0
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*commands.TWINLOG, "mirror-maker", str(self._file), *self._arguments],
                stdout=log,
                stderr=log,
                text=True,
            )

    def end(self) -> None:
        """Ask it to end (SIGTERM), as a service manager does; it may have been started just now."""
        process = self._running()
        until(
            lambda: RUNNING in self.text()[self._before :] or process.poll() is not None,
            END_SECONDS,
            "a command that ends in order",
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0, self.log()

    def kill(self) -> None:
        """Kill it with all its nodes and lanes (SIGKILL), as a machine that loses its power."""
        process = self._running()
        victims = [identity_of(one.pid) for one in below(process.pid)]
        process.kill()
        process.wait(END_SECONDS)
        for victim in victims:
            if victim is not None:
                victim.signal(signal.SIGKILL)
        until(lambda: not any(one is not None and one.alive() for one in victims), what="the end")

    def clean_up(self) -> None:
        """End whatever still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def text(self) -> str:
        """All that it has logged."""
        return self._log.read_text(errors="replace")

    def log(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.text().splitlines()[-LINES:])

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return self._process


@contextmanager
def mirror_maker(folder: Path, properties: str, *arguments: str) -> Iterator[MirrorMakerProcess]:
    """Run the command with a file of these properties, and end it in order."""
    process = MirrorMakerProcess(folder, properties, *arguments)
    try:
        process.start()
        yield process
        process.end()
    finally:
        process.clean_up()
