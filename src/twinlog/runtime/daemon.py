"""The process that Spark forks its Python workers from, with a lane's imports already done.

Spark's own daemon imports next to nothing before it forks, so each worker spends a third of a
second of CPU on imports and shares none of their memory. This one imports what a lane needs,
freezes it against the garbage collector (which would touch, and so copy, each page), and goes on as
Spark's. It starts no thread: a fork would not take it along.

Named by `spark.python.daemon.module` (session.py).
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
    """Spark's own, once there is something to do.

    When the application ends while a worker waits for its next task, Spark's worker writes to the
    closed socket why it has none, and the trace of that to the terminal.
    """
    try:
        asked = sock.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        asked = b""
    return _work(sock, authenticated) if asked else 1


if __name__ == "__main__":
    # The socket that takes tasks is a file: whoever may write to it runs code here.
    os.umask(PRIVATE)
    gc.freeze()
    daemon.worker = _work_if_asked
    daemon.manager()
