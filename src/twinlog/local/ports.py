"""TCP ports for brokers that several runs on one machine can choose at once.

A port that was free a moment ago may be taken when the broker binds it, or while a killed broker is
down. Two measures prevent this: the ports lie below the range that systems use for outgoing
connections (32768 on Linux, 49152 elsewhere), and each port is claimed by a lock (flock) on a file
of its own. The brokers inherit the locks' descriptors: a claim lasts until the process that created
it and the cluster's last broker have ended, in whatever way.
"""

import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from twinlog.local.errors import LocalError

HOST = "127.0.0.1"
FIRST, END = 20000, 32000
_TRIES = 1000


class PortClaim:
    """Locks on ports; the ports of two claims never overlap."""

    def __init__(self) -> None:
        self._locks: dict[int, int] = {}

    @classmethod
    def fresh(cls, count: int) -> Self:
        """Claim free ports.

        Raises:
            LocalError: there are not enough free ports.
        """
        claim = cls()
        for _ in range(_TRIES):
            if len(claim._locks) == count:
                return claim
            claim._claim_if_free(FIRST + secrets.randbelow(END - FIRST))
        claim.close()
        raise LocalError(f"no {count} free ports in {FIRST}-{END - 1} on {HOST}")

    @classmethod
    def again(cls, ports: Iterable[int]) -> Self:
        """Claim the ports of a cluster again; brokers that still run hold the claim already."""
        claim = cls()
        for port in ports:
            claim._lock(port)
        return claim

    @property
    def ports(self) -> tuple[int, ...]:
        """The claimed ports."""
        return tuple(self._locks)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The locks' descriptors, for child processes to inherit."""
        return tuple(self._locks.values())

    def close(self) -> None:
        """Close this process's descriptors; brokers that inherited them keep the claim."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _claim_if_free(self, port: int) -> None:
        if port in self._locks or not self._lock(port):
            return
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                os.close(self._locks.pop(port))

    def _lock(self, port: int) -> bool:
        folder = Path(tempfile.gettempdir(), f"twinlog-ports-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._locks[port] = lock
        return True
