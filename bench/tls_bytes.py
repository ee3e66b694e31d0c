"""What TLS costs a process that receives or sends, and what other ways of it would cost.

    .venv/bin/python bench/tls_bytes.py [--gigabytes 2] [--round 0 ...]

One process sends, another receives, on loopback; the figures are the measured process's CPU seconds
for each gigabyte. `asyncio` is what twinlog uses: a BufferedProtocol, over TLS with Python's `ssl`
in memory. `socket` is a blocking socket of the same library, whose records OpenSSL reads from and
writes to the socket itself; kernel TLS is possible only there, and only where the kernel has it.
Records have 16 KiB at most, TLS allows no larger ones. Each run is stored in
bench/results/tls_bytes.json.
"""

import argparse
import asyncio
import multiprocessing
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import results
from certificates import certificate
from twinlog.local.ports import HOST

BUFFER = 1 << 20
KEY = ("way", "direction", "round")

Measured = Callable[[socket.socket, ssl.SSLContext | None, int], None]


def main() -> None:
    """Measure each way in both directions, print a line for each, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    options = parser.parse_args()
    total = int(options.gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        files = certificate(Path(folder))
        for number in options.round or range(3):
            for direction, ways in WAYS.items():
                for way, (measured, encrypted) in ways.items():
                    cpu = _run(measured, total, files if encrypted else None, direction)
                    print(f"{direction:<8} {way:<12} {cpu / total * 1e9:.2f} CPU s/GB", flush=True)
                    run: results.Run = {
                        "direction": direction,
                        "way": way,
                        "round": number,
                        "cpu_s_per_gb": cpu / total * 1e9,
                    }
                    results.put("tls_bytes", run, KEY)


def _run(measured: Measured, total: int, files: tuple[Path, Path] | None, direction: str) -> float:
    """Run the measured side in a process of its own, against a blocking peer; its CPU seconds."""
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server((HOST, 0))
    ours, theirs = context.Pipe()
    address = listener.getsockname()
    process = context.Process(target=_measure, args=(measured, total, files, address, theirs))
    process.start()
    peer, _ = listener.accept()
    if files is not None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*files)
        peer = server.wrap_socket(peer, server_side=True)
    (_send if direction == "receive" else _receive)(peer, None, total)
    cpu = float(ours.recv())
    process.join()
    peer.close()
    listener.close()
    return cpu


def _measure(
    measured: Measured,
    total: int,
    files: tuple[Path, Path] | None,
    address: tuple[str, int],
    report: Connection,
) -> None:
    sock = socket.create_connection(address)
    client = None
    if files is not None:
        client = ssl.create_default_context(cafile=str(files[0]))
    before = time.process_time()
    measured(sock, client, total)
    report.send(time.process_time() - before)


def _blocking(sock: socket.socket, client: ssl.SSLContext | None) -> socket.socket:
    return sock if client is None else client.wrap_socket(sock, server_hostname=HOST)


def _receive(sock: socket.socket, client: ssl.SSLContext | None, total: int) -> None:
    sock, buffer = _blocking(sock, client), memoryview(bytearray(BUFFER))
    while total > 0:
        received = sock.recv_into(buffer)
        assert received, "the peer has closed the connection"
        total -= received
    with suppress(OSError):  # asyncio's side has closed it already
        sock.sendall(b".")


def _send(sock: socket.socket, client: ssl.SSLContext | None, total: int) -> None:
    sock, buffer = _blocking(sock, client), memoryview(bytes(BUFFER))
    while total > 0:
        sock.sendall(buffer[: min(total, BUFFER)])
        total -= BUFFER
    sock.recv(1)  # closed before it has been read, the connection would be reset


def _receive_by_asyncio(sock: socket.socket, client: ssl.SSLContext | None, total: int) -> None:
    asyncio.run(_exchange(sock, client, Receiving(total)))


def _send_by_asyncio(sock: socket.socket, client: ssl.SSLContext | None, total: int) -> None:
    asyncio.run(_exchange(sock, client, Sending(total)))


async def _exchange(
    sock: socket.socket, client: ssl.SSLContext | None, protocol: "Receiving | Sending"
) -> None:
    sock.setblocking(False)
    name = None if client is None else HOST
    await asyncio.get_running_loop().create_connection(
        lambda: protocol, sock=sock, ssl=client, server_hostname=name
    )
    await protocol.done.wait()


class Receiving(asyncio.BufferedProtocol):
    """Receives this many bytes."""

    def __init__(self, total: int) -> None:
        self._missing = total
        self._buffer = memoryview(bytearray(BUFFER))
        self.done = asyncio.Event()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """The buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Count them."""
        self._missing -= nbytes
        if self._missing <= 0:
            self.done.set()


class Sending(asyncio.Protocol):
    """Sends this many bytes, as fast as the transport takes them."""

    def __init__(self, total: int) -> None:
        self._missing = total
        self._paused = False
        self._buffer = memoryview(bytes(BUFFER))
        self.done = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._send()

    def pause_writing(self) -> None:
        """Wait for room."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self._send()

    def _send(self) -> None:
        while self._missing > 0 and not self._paused:
            self._transport.write(self._buffer[: min(self._missing, BUFFER)])
            self._missing -= BUFFER
        if self._missing <= 0 and not self._paused:
            self.done.set()


WAYS: dict[str, dict[str, tuple[Measured, bool]]] = {
    "receive": {
        "asyncio": (_receive_by_asyncio, False),
        "asyncio TLS": (_receive_by_asyncio, True),
        "socket": (_receive, False),
        "socket TLS": (_receive, True),
    },
    "send": {
        "asyncio": (_send_by_asyncio, False),
        "asyncio TLS": (_send_by_asyncio, True),
        "socket": (_send, False),
        "socket TLS": (_send, True),
    },
}
"""For each direction the ways, and whether they are encrypted."""


if __name__ == "__main__":
    main()
