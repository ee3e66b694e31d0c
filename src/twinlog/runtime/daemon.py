"""The process from which Spark forks its Python workers, with a lane's imports already done.

Spark's own daemon imports next to nothing before it forks, so each worker spends a third of a
second of CPU on imports and shares none of their memory. This daemon imports what a lane needs,
freezes it against the garbage collector (which would touch, and so copy, each page), and then runs
Spark's daemon. It starts no thread: a fork does not copy threads.

`spark.python.daemon.module` names this module (session.py).
"""

import gc
import os
import socket

import pyspark.worker  # noqa: F401 - what each worker imports first
from pyspark import daemon

import twinlog.runtime.lane  # noqa: F401
from twinlog.runtime.session import PRIVATE

_work = daemon.worker


def _work_if_asked(sock: socket.socket, authenticated: bool) -> int:
    """Run Spark's worker as soon as there is a task.

    When the application ends while a worker waits for its next task, Spark's worker reports the
    missing task to the closed socket, and prints a stack trace of that failure to the terminal. So
    does a worker whose rows are not wanted any more, as the query has failed that they were for.
    """
    try:
        request = sock.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        request = b""
    try:
        return _work(sock, authenticated) if request else 1
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    # The socket that takes tasks is a file: write access to it is enough to run code here.
    os.umask(PRIVATE)
    gc.freeze()
    daemon.worker = _work_if_asked
    daemon.manager()
