"""The watcher: a process that kills the processes of another process when that one has ended.

A test run that is killed cannot clean up. PR_SET_PDEATHSIG does not help: it exists on Linux only,
and it fires when the *thread* that forked ends. So a process group first starts this watcher, holds
the only write end of its standard input, and writes a line there for each process:

    watch PID STARTED     kill it when the pipe closes
    release               forget all: they may live on, or are gone already

The system closes the pipe however the writer ends, and a line that was written is still read.
"""

import contextlib
import signal
import sys

from twinlog.local.identity import Identity


def main() -> None:
    """Read lines until the pipe closes, then kill the processes that are still watched."""
    watched: list[Identity] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        if verb == "watch":
            pid, _, started = rest.partition(" ")
            watched.append(Identity(int(pid), started))
        elif verb == "release":
            watched.clear()
    for identity in watched:
        with contextlib.suppress(OSError):
            identity.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
