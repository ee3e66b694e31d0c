"""`twinlog switchover`: its last line and exit status, and its reaction to a signal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

from twinlog.interfaces.cli import switchover as command
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import TopicPartition
from twinlog.operations.switchover.records import (
    AS_IT_WAS,
    LeftBehind,
    Producers,
    ProducersNotStopped,
    Progress,
    Step,
    SwitchedOver,
)

ARGUMENTS = ["--bootstrap-server", "h:1", "--mirror", "m"]


class Admin:
    """An administrator whose switchover is the test's."""

    def __init__(self, switchover: Callable[..., Awaitable[object]]) -> None:
        self.switchover = switchover

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *_: object) -> None: ...


def serve(monkeypatch: pytest.MonkeyPatch, switchover: Callable[..., Awaitable[object]]) -> None:
    """Let the command call this function as its operation."""
    monkeypatch.setattr(command, "MirrorAdmin", lambda _: Admin(switchover))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_aborts_a_switchover_and_removes_its_denials(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal meanwhile changes nothing; the last line reports the result."""
    done: list[str] = []

    async def switch_over(*_: Any, tell: Any, **__: Any) -> None:
        tell(Progress(Step.SILENCE, False, "waiting", True))
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            if number is not signal.SIGINT:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
            done.append("taken back")
            tell(Progress(Step.PRODUCERS, True, "taken back", False))

    serve(monkeypatch, switch_over)
    # A test run in the background may ignore them.
    before = {one: signal.getsignal(one) for one in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = CliRunner().invoke(command.switchover, ARGUMENTS)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert done == ["taken back"]
    assert result.exit_code == command.INTERRUPTED
    assert f"Interrupted; {AS_IT_WAS}" in result.output


def test_a_signal_ignored_by_the_shell_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nohup lets it go on when the terminal is closed."""

    async def switch_over(*_: Any, **__: Any) -> SwitchedOver:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        return SwitchedOver(mirror="m", topics=("t",), left_behind=())

    serve(monkeypatch, switch_over)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert CliRunner().invoke(command.switchover, ARGUMENTS).exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_json_output_ends_with_an_error_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: with --json, each end has an object that says whether anything was changed."""

    async def switch_over(*_: Any, **__: Any) -> SwitchedOver:
        raise Retriable("no connection")

    serve(monkeypatch, switch_over)
    result = CliRunner().invoke(command.switchover, [*ARGUMENTS, "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "result": "GONE_BACK",
        "step": "READINESS",
        "error": "READINESS: no connection",
    }


def test_a_closed_output_pipe_does_not_change_the_exit_status() -> None:
    """Goal: a failover that is not complete ends with status 3, also into a closed pipe."""
    program = (
        "from twinlog.interfaces.cli import switchover as command\n"
        "from twinlog.operations.switchover.records import Step, SwitchoverFailed\n"
        "class Admin:\n"
        "    async def __aenter__(self): return self\n"
        "    async def __aexit__(self, *_): pass\n"
        "    async def switchover(self, *_, **__):\n"
        "        raise SwitchoverFailed(Step.FAILOVER, 'x', gone_back=False)\n"
        "command.MirrorAdmin = lambda _: Admin()\n"
        f"command.switchover({[*ARGUMENTS, '--json']})\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=writing, check=False, timeout=300
    )
    os.close(writing)
    assert done.returncode == command.UNFINISHED


LATE = LeftBehind(TopicPartition("t", 1), 6, 8)
SAID = "NOT MIRRORED t-1 [6, 8): written to the source by a producer that was not stopped\n"
UNKNOWN = "Unknown whether the source was written to during the failover: it could not be read\n"


@pytest.mark.parametrize(
    ("left", "status", "said", "result"),
    [
        ((), 0, "", "SWITCHED_OVER"),
        ((LATE,), command.UNFINISHED, SAID, "UNFINISHED"),
        (None, command.UNFINISHED, UNKNOWN, "UNFINISHED"),
    ],
)
def test_unmirrored_records_are_reported_with_an_exit_status(
    monkeypatch: pytest.MonkeyPatch,
    left: tuple[LeftBehind, ...] | None,
    status: int,
    said: str,
    result: str,
) -> None:
    """Goal: D1: records that no mirror copies are named, and the exit status is not success."""

    async def switch_over(*_: Any, **__: Any) -> SwitchedOver:
        return SwitchedOver(mirror="m", topics=("t",), left_behind=left)

    serve(monkeypatch, switch_over)
    text = CliRunner().invoke(command.switchover, ARGUMENTS)
    assert (text.exit_code, text.stderr) == (status, said)
    assert text.stdout == "Switched over 1 topic(s) of mirror m: [t]\n"
    found = CliRunner().invoke(command.switchover, [*ARGUMENTS, "--json"])
    assert found.exit_code == status
    last = json.loads(found.stdout)
    late = [{"topic": "t", "partition": 1, "start": 6, "end": 8}]
    assert (last["result"], last["left_behind"]) == (
        result,
        late if left else None if left is None else [],
    )


def test_terminal_escapes_in_principals_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a principal in the source's ACLs cannot hide itself from the operator who is asked."""
    why = "a deny ACL cannot exclude them: User:a, User:mallory\x1b[2K\rUser:b\n\x9b2J"

    async def switch_over(*_: Any, producers: Producers, **__: Any) -> None:
        assert producers.ask is not None
        assert not await producers.ask(["orders\x1b[8m"], why)
        raise ProducersNotStopped(["orders\x1b[8m"], "they are not stopped")

    serve(monkeypatch, switch_over)
    arguments = ["--bootstrap-server", "h:1", "--mirror", "m"]
    result = CliRunner().invoke(command.switchover, arguments, input="n\n")
    assert result.exit_code == 1
    assert r"User:a, User:mallory\x1b[2K\rUser:b\n\x9b2J" in result.stderr
    assert all(line.isprintable() for line in result.output.split("\n"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"not_denied": "no right"}, "Producers may be able to write to the source: no right"),
        (
            {"groups_behind": "offsets differ from the source: g"},
            "GROUPS offsets differ from the source: g",
        ),
    ],
)
def test_an_unfinished_switchover_is_not_reported_as_success(
    fields: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers may write to the old source, which no mirror copies any more, or groups skip."""

    async def switch_over(*_: Any, **__: Any) -> SwitchedOver:
        return SwitchedOver(mirror="m", topics=("t",), left_behind=(), **fields)  # type: ignore[arg-type]

    serve(monkeypatch, switch_over)
    arguments = ["--bootstrap-server", "h:1", "--mirror", "m"]
    result = CliRunner().invoke(command.switchover, arguments)
    assert result.exit_code == (command.UNFINISHED if fields else 0)
    assert said in result.output
    result = CliRunner().invoke(command.switchover, [*arguments, "--json"])
    expected = "UNFINISHED" if fields else "SWITCHED_OVER"
    assert f'"result": "{expected}"' in result.output
