"""Twin of twinlog.interfaces.cli.demo: it proves its claims, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

# Tests that run in the background have SIGINT ignored, and children inherit that.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from twinlog.interfaces.cli.main import main
main()
"""
DEMO = (sys.executable, "-c", MAIN, "demo", "--brokers", "1")


def start(folder: Path) -> "subprocess.Popen[str]":
    with (folder / "said").open("w") as said:
        return subprocess.Popen(
            DEMO,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )


def remaining_processes(folder: Path) -> list[str]:
    """Return the processes that name the demo's folder."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = line.read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command[:200])
    return found


@pytest.mark.last
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_demo_ends_with_equal_logs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """With one broker on each side, the leader unreachable for a while, both logs are the same."""
    with start(tmp_path) as demo:
        output, _ = demo.communicate(timeout=1150)
    assert demo.returncode == 0, (tmp_path / "said").read_text()
    assert "the same log in both clusters" in output
    assert "kill -9" in output
    assert list(tmp_path.glob("twinlog-demo-*")) == []
    until(lambda: not remaining_processes(tmp_path), what="the end of all processes")


@pytest.mark.broker
@pytest.mark.parametrize(
    "how",
    [
        signal.SIGTERM,
        *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGKILL)),
    ],
)
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    """However it is ended during its set-up, no process of it goes on."""
    with start(tmp_path) as demo:
        said = tmp_path / "said"
        until(lambda: "the load begins" in said.read_text(), 400, "the load")
        assert remaining_processes(tmp_path)
        demo.send_signal(how)
        demo.communicate(timeout=180)
    assert demo.returncode == (-how if how == signal.SIGKILL else 130)
    until(lambda: not remaining_processes(tmp_path), what="the end of all processes")
