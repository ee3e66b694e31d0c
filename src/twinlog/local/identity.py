"""The identity of a process, as pids are reused.

A process is identified by its pid *and* its start time, which exec does not change. Both are
checked before a signal is sent, so that a reused pid never gets it.
"""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_POLL_SECONDS: Final = 0.002


@dataclass(frozen=True, slots=True)
class Identity:
    """One process: `started` is the system's own text for its start time."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether the process runs or is stopped (a zombie does neither)."""
        return identity_of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal, and return whether the process existed."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def pause(self) -> bool:
        """Pause the process (SIGSTOP), wait until it runs no more; return whether it existed.

        The system stops a program's threads only when one of them has taken the signal. On a busy
        machine the others run on for up to 30 ms, in which a broker answers requests.
        """
        existed = self.signal(signal.SIGSTOP)
        while existed and self.alive() and _state(self.pid)[:1] != ("T",):
            time.sleep(_POLL_SECONDS)
        return existed


def identity_of(pid: int) -> Identity | None:
    """Return the identity of the process that has this pid now, None if there is none."""
    fields = _state(pid)
    if not fields or fields[0] == "Z":
        return None
    return Identity(pid, fields[1])


def _state(pid: int) -> tuple[str, str] | tuple[()]:
    """Return a process's state and start time, nothing if there is no such process."""
    return (_from_proc(pid) if Path("/proc/self/stat").exists() else _from_ps(pid)) or ()


def _from_proc(pid: int) -> tuple[str, str] | None:
    """Read state and start time (proc(5): fields 3 and 22; the name before may hold anything)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _from_ps(pid: int) -> tuple[str, str] | None:
    process = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start_time = process.stdout.strip().partition(" ")
    return (state[:1], start_time.strip()) if start_time else None
