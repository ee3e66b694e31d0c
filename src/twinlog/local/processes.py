"""Processes that never outlive their purpose.

A `ProcessGroup` starts programs, most of them Java, and ends them with its block. If this process
is killed, the group's watcher (watcher.py) ends them. There is no unwatched moment: a program
starts as a shell that waits for a line; its pid is reported to the watcher; only then the shell
becomes the program, in the same pid. If the line never comes, the shell ends by itself.

    start: sh (waits) ──► reported to the watcher ──► line ──► exec the program
    release(): the watcher forgets the programs; they live on (`twinlog cluster up`)

Each program runs in a session of its own, so that Ctrl-C in a terminal reaches this process only,
which then decides in which order the programs end.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from twinlog.java import find_java
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity, identity_of

_GATE = 'read -r _ && exec "$0" "$@" </dev/null'
_POLL_SECONDS = 0.02
_GONE_SECONDS = 120.0
"""How long a killed process may take to vanish: the system frees its memory first."""

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)


SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1",)
"""For processes that live for minutes: C2's work would not pay. An idle broker took 3.5 instead of
5.5 s of CPU in its first 40 s, and 3.5 instead of 9 percent of a core from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A program to start: a main class from a folder of jars.

    `classpath` are folders and jars after these, `descriptors` are inherited by the program,
    `output` is the file for its standard output (default: the log).
    """

    jars: Path
    classpath: Sequence[str] = ()
    main: str
    arguments: Sequence[str] = ()
    heap: str = "512m"
    flags: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    log: Path
    output: Path | None = None
    descriptors: Sequence[int] = ()

    def command(self) -> list[str]:
        """Return the command line."""
        java = [str(find_java().executable), f"-Xmx{self.heap}", *JVM_FLAGS, *self.flags]
        classpath = ":".join((f"{self.jars}/*", *self.classpath))
        return [*java, "-cp", classpath, self.main, *self.arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to start: any command. The other fields are those of JavaProgram."""

    argv: Sequence[str]
    environment: Mapping[str, str] | None = None
    log: Path
    output: Path | None = None
    descriptors: Sequence[int] = ()

    def command(self) -> list[str]:
        """Return the command line."""
        return list(self.argv)


class JavaProcess:
    """A started program: a child process with its Popen, or a process that is not a child."""

    def __init__(self, identity: Identity, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._popen = popen

    @property
    def alive(self) -> bool:
        """Whether the process runs or is paused."""
        if self._popen is not None:
            return self._popen.poll() is None
        return self.identity.alive()

    @property
    def returncode(self) -> int | None:
        """The exit status of an ended child process, else None."""
        return None if self._popen is None else self._popen.poll()

    def signal(self, number: int) -> bool:
        """Send a signal, and return whether the process existed."""
        return self.alive and self.identity.signal(number)

    def pause(self) -> bool:
        """Pause the process, wait until it runs no more; return whether it existed."""
        return self.alive and self.identity.pause()

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(_GONE_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended.

        Raises:
            LocalError: it still runs after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                raise LocalError(
                    f"process {self.identity.pid} is still running after {seconds:g} s"
                )
            time.sleep(_POLL_SECONDS)


class ProcessGroup:
    """Programs that end with this block, or with this process, whichever is first."""

    def __init__(self) -> None:
        self._processes: list[JavaProcess] = []
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, program: JavaProgram | Program) -> JavaProcess:
        """Start a program; its log is appended to."""
        program.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2", **(program.environment or {})}
        with program.log.open("ab") as log, (program.output or program.log).open("ab") as output:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, *program.command()],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
                cwd=program.log.parent,
                env=environment,
                pass_fds=tuple(program.descriptors),
                start_new_session=True,
            )
        return self._adopt(popen)

    def run(self, program: JavaProgram, seconds: float = 240.0) -> str:
        """Run a program to its end and return its standard output (Kafka's console tools).

        Raises:
            LocalError: its exit status is not 0, or it takes too long.
        """
        output = program.output or program.log.with_suffix(".out")
        output.unlink(missing_ok=True)
        program = dataclasses.replace(program, output=output)
        process = self.start(program)
        try:
            process.wait(seconds)
        finally:
            process.kill()
            self._processes.remove(process)
        if process.returncode != 0:
            raise LocalError(f"{program.main} failed: {last_error(program.log, output)}")
        return output.read_text(errors="replace")

    def stop(self) -> None:
        """Kill all programs and wait until they are gone."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        for process in self._processes:
            process.wait(_GONE_SECONDS)
        self.release()

    def release(self) -> None:
        """Let the programs live on after this process."""
        self._processes.clear()
        if self._watcher is not None:
            self._watcher.communicate(b"release\n", timeout=_GONE_SECONDS)
            self._watcher = None

    def _adopt(self, popen: subprocess.Popen[bytes]) -> JavaProcess:
        identity = identity_of(popen.pid)
        assert identity is not None, "a child that waits for us is alive"
        assert popen.stdin is not None, "the gate's pipe was asked for"
        self._watch(identity)
        process = JavaProcess(identity, popen)
        self._processes.append(process)
        with popen.stdin as gate:
            gate.write(b"\n")
        return process

    def _watch(self, identity: Identity) -> None:
        if self._watcher is None:
            self._watcher = _start_watcher()
        assert self._watcher.stdin is not None, "the watcher's pipe was asked for"
        self._watcher.stdin.write(f"watch {identity.pid} {identity.started}\n".encode())
        self._watcher.stdin.flush()


def _start_watcher() -> subprocess.Popen[bytes]:
    watcher = subprocess.Popen(
        [sys.executable, "-P", "-m", "twinlog.local.watcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert watcher.stdout is not None, "the watcher's answer was asked for"
    if watcher.stdout.readline() != b"ready\n":
        watcher.kill()
        watcher.communicate()
        raise LocalError(f"cannot start {sys.executable} -m twinlog.local.watcher")
    return watcher


def last_error(*logs: Path) -> str:
    """Return the line of a program's logs that best explains its end, and the log's path."""
    lines = [line for log in logs if log.exists() for line in _tail(log)]
    # A broker that shuts down names exceptions in lines of level INFO, which explain nothing.
    errors = [
        line
        for line in lines
        if ("Exception" in line or " ERROR " in line or "Error:" in line) and " INFO " not in line
    ]
    return f"{(errors or lines or ['no output'])[-1].strip()} (log: {logs[0]})"


def _tail(log: Path, size: int = 1 << 16) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
