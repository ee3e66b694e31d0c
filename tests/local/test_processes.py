"""Twin of twinlog.local.processes and watcher: each process ends with its owner, or is released."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from twinlog.java import Java
from twinlog.local import processes
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity, identity_of
from twinlog.local.processes import JavaProgram, ProcessGroup, last_error


@pytest.fixture(autouse=True)
def shell_as_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a shell script stand for Java: its main class is a command to run."""
    executable = tmp_path / "bin" / "java"
    executable.parent.mkdir()
    executable.write_text('#!/bin/sh\nwhile [ "$1" != -cp ]; do shift; done\nexec sh -c "$3"\n')
    executable.chmod(0o755)
    monkeypatch.setattr(processes, "find_java", lambda: Java(home=tmp_path, version=17))


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    """Return a group that ends with the test."""
    with ProcessGroup() as group:
        yield group


def _program(folder: Path, command: str) -> JavaProgram:
    return JavaProgram(jars=folder, main=command, log=folder / "logs" / "program.log")


def test_a_program_ends_with_its_process_group(tmp_path: Path) -> None:
    """It lives inside the block, and not after it; its output is in its log."""
    program = _program(tmp_path, "echo here; exec sleep 1000")
    with ProcessGroup() as group:
        process = group.start(program)
        until(lambda: "here" in program.log.read_text(), what="the program's output")
        lived = process.alive
    assert lived
    assert not process.alive
    assert process.returncode == -signal.SIGKILL


def test_a_paused_program_ends_with_its_process_group(tmp_path: Path) -> None:
    """SIGKILL reaches a process that SIGSTOP has frozen."""
    with ProcessGroup() as group:
        process = group.start(_program(tmp_path, "exec sleep 1000"))
        assert process.pause()
        assert process.alive
    assert not process.alive


def test_the_standard_output_of_a_tool_is_returned(group: ProcessGroup, tmp_path: Path) -> None:
    """Standard output is the result, standard error goes to the log."""
    assert group.run(_program(tmp_path, "echo result; echo noise >&2")) == "result\n"
    assert (tmp_path / "logs" / "program.log").read_text() == "noise\n"


def test_error_of_a_failed_tool_shows_the_exception(group: ProcessGroup, tmp_path: Path) -> None:
    """The error shows the line with the exception."""
    command = "echo x; echo 'java.lang.FooException: bar' >&2; echo '  at y' >&2; exit 3"
    with pytest.raises(LocalError, match=r"FooException: bar \(log: .*program\.log\)"):
        group.run(_program(tmp_path, command))


def test_a_hanging_tool_is_ended(group: ProcessGroup, tmp_path: Path) -> None:
    """The deadline holds, and the process is ended."""
    file = tmp_path / "logs" / "pid"
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may not have begun before
        with pytest.raises(LocalError, match="is still running after"):
            group.run(_program(tmp_path, "echo $$ >pid; exec sleep 1000"), seconds=seconds)
        if file.exists() and file.read_text():
            break
    pid = int(file.read_text())
    assert identity_of(pid) is None


_OWNER = """
import os, signal, sys, time
from pathlib import Path
from twinlog.java import Java
from twinlog.local import processes
from twinlog.local.processes import *
folder = Path({folder!r})
processes.find_java = lambda: Java(home=folder, version=17)
group = ProcessGroup()
for _ in range(2):
    process = group.start(JavaProgram(jars=folder, main="exec sleep 1000", log=folder / "log"))
    print(process.identity.pid, process.identity.started, flush=True)
{end}
"""
_ENDS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "failed": "raise SystemExit(3)",
    "hard exit": "os._exit(0)",
    "released": "group.release()",
}


@pytest.mark.parametrize("end", _ENDS)
def test_programs_end_with_their_owner_unless_released(end: str, tmp_path: Path) -> None:
    """However the owner ends, its programs end with it, unless it has released them."""
    code = _OWNER.format(folder=str(tmp_path), end=_ENDS[end])
    told = _output(code)
    left = []
    for line in told.splitlines():
        pid, _, started = line.partition(" ")
        left.append(Identity(int(pid), started))
    assert len(left) == 2
    if end == "released":
        assert all(each.signal(signal.SIGKILL) for each in left)
    until(lambda: not any(each.alive() for each in left), what="the end of the programs")


def test_what_a_broker_says_while_it_shuts_down_is_no_cause_of_its_end(tmp_path: Path) -> None:
    """Kafka's cleanup names exceptions in lines of level INFO, behind those of the cause."""
    log = tmp_path / "server.log"
    log.write_text(
        "[main] ERROR kafka.Kafka$ - Exiting Kafka due to fatal exception during startup.\n"
        "java.net.BindException: Address already in use\n"
        "[event-handler] INFO QuorumController - RejectedExecutionException: shutting down\n"
        "[main] INFO Metrics - Metrics reporters closed\n"
    )
    cause = last_error(log)
    assert cause == f"java.net.BindException: Address already in use (log: {log})"


def _output(code: str) -> str:
    """Run Python code in a process of its own, however that ends, and return its output."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
