"""Twin of twinlog.interfaces.cli.signals: commands that are ended while they start."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from twinlog.interfaces.cli.signals import end_signals
from twinlog.local import commands

SECONDS: Final = 60.0
COMMANDS: Final = ("run", "mirror-maker")
STOPPED: Final = (
    "running A->B\nstopped before any node was started; complete flows: none; the same command "
    "creates or completes all others\n"
)
ENDS: Final = {"run": "", "mirror-maker": STOPPED}
"""What each command prints when it is stopped before it has reached a cluster."""


@contextmanager
def started(command: str, file: Path, servers: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command with a file of `text_of`."""
    arguments = {
        "run": ("--bootstrap-server", servers, "--command-config", str(file)),
        "mirror-maker": (str(file),),
    }
    with subprocess.Popen(
        [*commands.TWINLOG, command, *arguments[command]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def text_of(command: str, servers: str) -> str:
    """The content of the command's file."""
    if command == "run":
        return "client.id = x\n"
    return (
        f"clusters = A, B\nA.bootstrap.servers = {servers}\nB.bootstrap.servers = {servers}\n"
        "A->B.enabled = true\nB->A.emit.heartbeats.enabled = false\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_file_is_read(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Goal: the command ends as if it ran already, before it connects: nothing listens there."""
    file = tmp_path / "properties"
    os.mkfifo(file)
    with started(command, file, "127.0.0.1:1") as process:
        with file.open("w") as writing:  # opens once the command reads it
            process.send_signal(number)
            writing.write(text_of(command, "127.0.0.1:1"))
        output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, ENDS[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_a_cluster_does_not_respond(command: str, tmp_path: Path) -> None:
    """Goal: the command ends at once and as requested, not with the error that follows later."""
    file = tmp_path / "properties"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(SECONDS)
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        file.write_text(text_of(command, servers))
        with started(command, file, servers) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, ENDS[command])


def test_handlers_are_restored() -> None:
    """Goal: what runs afterwards in the same process, as a test, ends at signals as before."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    calls: list[str] = []
    with end_signals() as call_at_signals:
        os.kill(os.getpid(), signal.SIGTERM)

        async def main() -> None:
            call_at_signals(lambda: calls.append("stop"))
            assert calls == ["stop"]
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(SECONDS):
                while len(calls) < 2:
                    await asyncio.sleep(0)

        asyncio.run(main())
    assert {one: signal.getsignal(one) for one in before} == before
    assert calls == ["stop", "stop"]
