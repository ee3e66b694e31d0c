"""The process that ends what another one started, when that other one is gone.

A test run that is killed cannot clean up, and PR_SET_PDEATHSIG is no help: it is Linux only, and it
strikes when the *thread* that forked ends. So whoever starts processes first starts this one, holds
the only write end of its standard input, and writes a line there for each process:

    watch PID STARTED     end it when the pipe closes
    release               forget all: they may live on, or are gone already

The system closes the pipe however the writer ends, and a line that was written is still read.
"""

import contextlib
import signal
import sys

from twinlog.local.identity import Identity


def main() -> None:
    """Read lines until the pipe closes, then kill what is still watched."""
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
