"""Twin of twinlog.local.identity: a recorded process is never confused with another one."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from waiting import until

from twinlog.local import identity
from twinlog.local.identity import Identity, identity_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that only waits for its input to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_keeps_its_identity(sleeper: subprocess.Popen[bytes]) -> None:
    """The same process gives the same identity twice."""
    first = identity_of(sleeper.pid)
    assert first is not None
    assert first == identity_of(sleeper.pid)
    assert first.alive()


def test_a_process_with_a_recycled_pid_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    """Another start time under the same pid is another process, and gets no signal."""
    stale = Identity(sleeper.pid, "0")
    assert not stale.alive()
    assert not stale.signal(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    """A killed child that is not waited for counts as dead."""
    noted = identity_of(sleeper.pid)
    assert noted is not None
    assert noted.signal(signal.SIGKILL)
    until(lambda: not noted.alive(), what="the end of the process")


def test_an_unused_pid_has_no_identity() -> None:
    """An unused pid gives None (the kernel's largest pid is below 2**22)."""
    assert identity_of(1 << 22) is None


def test_proc_and_ps_agree_on_living_processes() -> None:
    """The method for systems without /proc agrees with /proc on this process and on dead ones."""
    own = identity._from_ps(os.getpid())
    assert own is not None
    assert own[1]
    assert identity._from_ps(1 << 22) is None


def test_a_paused_process_runs_no_more(sleeper: subprocess.Popen[bytes]) -> None:
    """It is stopped once `pause` returns, and a process that is gone says so."""
    noted = identity_of(sleeper.pid)
    assert noted is not None
    assert noted.pause()
    assert identity._state(sleeper.pid)[:1] == ("T",)
    assert noted.alive()
    sleeper.kill()
    sleeper.wait()
    assert not noted.pause()
