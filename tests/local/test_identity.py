"""Twin of twinlog.local.identity: a noted process is never mixed up with another one."""

import os
import signal
import subprocess

import pytest
from waiting import until

from twinlog.local import identity
from twinlog.local.identity import Identity, identity_of


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    """Give a process that only waits for its input to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_keeps_its_identity(sleeper: subprocess.Popen[bytes]) -> None:
    """Asked twice, the same process gives the same answer."""
    first = identity_of(sleeper.pid)
    assert first is not None
    assert first == identity_of(sleeper.pid)
    assert first.alive()


def test_a_recycled_pid_is_not_hit(sleeper: subprocess.Popen[bytes]) -> None:
    """Another start time under the same pid is another process, and gets no signal."""
    stale = Identity(sleeper.pid, "0")
    assert not stale.alive()
    assert not stale.signal(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    """A killed child that nobody has waited for counts as gone."""
    noted = identity_of(sleeper.pid)
    assert noted is not None
    assert noted.signal(signal.SIGKILL)
    until(lambda: not noted.alive(), what="the end of the process")


def test_no_process() -> None:
    """A pid that nobody has gives None (the kernel's largest pid is below 2**22)."""
    assert identity_of(1 << 22) is None


def test_proc_and_ps_agree_on_what_lives() -> None:
    """The way of systems without /proc finds this process too, and misses the same ones."""
    own = identity._from_ps(os.getpid())
    assert own is not None
    assert own[1]
    assert identity._from_ps(1 << 22) is None
