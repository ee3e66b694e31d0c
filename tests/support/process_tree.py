"""The processes below a node or a Spark worker, found by `ps`, as an operator finds them.

twinlog run ── JVM ── Python daemon ── lane, lane, ...                   local[N]
Spark worker ── executor JVM ── Python daemon ── lane, lane, ...         a standalone cluster
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from waiting import until

from twinlog.local.identity import Identity, identity_of

DAEMON = "-m twinlog.runtime.daemon"
DRIVER = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "CoarseGrainedExecutorBackend"
START_SECONDS = 90.0


class Found(NamedTuple):
    """A process that was running during the search."""

    pid: int
    parent: int
    command: str


def below(pid: int) -> list[Found]:
    """Return all descendants of a process."""
    told = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    fields = [line.split(None, 2) for line in told.splitlines()]
    everything = [
        Found(int(field[0]), int(field[1]), field[2]) for field in fields if len(field) == 3
    ]
    found: list[Found] = []
    parents = {pid}
    while new := [one for one in everything if one.parent in parents]:
        found += new
        parents = {one.pid for one in new}
    return found


def _named(pid: int, text: str) -> list[Found]:
    return [one for one in below(pid) if text in one.command]


def _identities(found: list[Found]) -> list[Identity]:
    return [known for one in found if (known := identity_of(one.pid)) is not None]


def daemons(pid: int) -> list[Identity]:
    """Return the processes that fork the lanes."""
    every = _named(pid, DAEMON)
    pids = {one.pid for one in every}
    return _identities([one for one in every if one.parent not in pids])


def lanes(pid: int) -> list[Identity]:
    """Return the current lanes."""
    every = _named(pid, DAEMON)
    pids = {one.pid for one in every}
    return _identities([one for one in every if one.parent in pids])


def await_lanes(pid: int, count: int) -> list[Identity]:
    """Wait until there are `count` lanes, and return them."""

    def there() -> list[Identity]:
        found = lanes(pid)
        return found if len(found) == count else []

    return until(there, START_SECONDS, f"{count} lanes below {pid}")


def jvm(pid: int) -> Identity:
    """Return Spark's driver JVM below a node."""
    return until(lambda: _identities(_named(pid, DRIVER)), START_SECONDS, "a driver's JVM")[0]


def executors(pid: int) -> list[Identity]:
    """Return the executors below a Spark worker."""
    return _identities(_named(pid, EXECUTOR))


def end(process: Identity) -> None:
    """Kill the process (SIGKILL), and wait until it is gone."""
    assert process.signal(signal.SIGKILL), f"{process} was gone already"
    until(lambda: not process.alive(), what=f"the end of {process}")


@contextmanager
def paused(process: Identity) -> Iterator[None]:
    """Pause the process (SIGSTOP) while the block runs."""
    assert process.pause(), f"{process} was gone already"
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
