"""The processes below a node or a Spark worker, found by `ps`, as an operator finds them.

twinlog run ── JVM ── Python daemon ── lane, lane, ...                   local[N]
Spark worker ── executor JVM ── Python daemon ── lane, lane, ...         a standalone cluster

A lane with a flow's query has a Spark of its own beside it (decision 0016), whose daemon and JVM
have the same names as those of the node:

lane ── session (Python) ── JVM ── Python daemon ── worker
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from waiting import until

from twinlog.local.identity import Identity, identity_of

DAEMON = "-m twinlog.runtime.daemon"
DRIVER = "org.apache.spark.deploy.SparkSubmit"
SESSION = "-m twinlog.runtime.dataframe_worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
START_SECONDS = 300.0
SPARK_SECONDS = 300.0
"""How long the Spark beside a lane may take to start, and to have a worker."""


class Found(NamedTuple):
    """A process that was running during the search."""

    pid: int
    parent: int
    command: str


def below(pid: int) -> list[Found]:
    """Return all descendants of a process."""
    return _below(pid, _everything())


def _everything() -> list[Found]:
    told = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    fields = [line.split(None, 2) for line in told.splitlines()]
    return [Found(int(field[0]), int(field[1]), field[2]) for field in fields if len(field) == 3]


def _below(pid: int, everything: Sequence[Found]) -> list[Found]:
    found: list[Found] = []
    parents = {pid}
    while new := [one for one in everything if one.parent in parents]:
        found += new
        parents = {one.pid for one in new}
    return found


def _named(pid: int, text: str) -> list[Found]:
    """Return the descendants of this name, without those of Sparks beside lanes."""
    everything = [one for one in _everything() if SESSION not in one.command]
    return [one for one in _below(pid, everything) if text in one.command]


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


class LaneSpark(NamedTuple):
    """The processes of the Spark beside a lane; the daemon forks the worker, which has the rows."""

    session: Identity
    jvm: Identity
    daemon: Identity
    worker: Identity


def lane_sparks(pid: int) -> list[LaneSpark]:
    """Return the Sparks beside lanes of which all processes run."""
    everything = _everything()
    found = []
    for session in _below(pid, everything):
        if SESSION in session.command:
            under = _below(session.pid, everything)
            jvms = [one for one in under if DRIVER in one.command]
            forks = [one for one in under if DAEMON in one.command]
            # The daemon is found before the worker, whose parent it is; one core has one worker.
            parts = _identities([session, *jvms[:1], *forks[:2]])
            if len(parts) == len(LaneSpark._fields):
                found.append(LaneSpark(*parts))
    return found


def await_lane_sparks(pid: int) -> list[LaneSpark]:
    """Wait until there is a complete Spark beside a lane, and return all of these."""
    return until(lambda: lane_sparks(pid), SPARK_SECONDS, f"a Spark beside a lane below {pid}")


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
