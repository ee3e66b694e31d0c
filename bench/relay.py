"""Relays before brokers, in a process of their own: they make a round trip longer.

Each byte takes half a round trip through a relay, in each direction, and each connection has at
most a window of bytes in flight, as TCP has with small buffers.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

CHUNK = 64 * 1024
RELAYED = "RELAYED"
"""The name of a listener whose advertised ports are those of relays."""
LISTENER = {RELAYED: "PLAINTEXT"}


class Relay(NamedTuple):
    """Its own port, the broker's, the one-way delay in seconds, which can change, the window."""

    port: int
    broker: int
    delay: "Synchronized[float]"
    window: int


@contextmanager
def relaying(
    ports: Sequence[tuple[int, int]], window: int = 1 << 20
) -> Iterator["Synchronized[float]"]:
    """Run a relay for each pair of its own port and a broker's; return the delay of all."""
    delay = multiprocessing.Value("d", 0.0)
    relays = [Relay(port, broker, delay, window) for port, broker in ports]
    process = multiprocessing.Process(target=_run, args=(relays,), daemon=True)
    process.start()
    try:
        yield delay
    finally:
        process.terminate()
        process.join()


def _run(relays: Sequence[Relay]) -> None:
    """Serve until terminated."""

    async def all_of_them() -> None:
        await asyncio.gather(*map(serve, relays))

    asyncio.run(all_of_them())


async def serve(relay: Relay) -> None:
    """Accept connections."""

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection("127.0.0.1", relay.broker)
        await asyncio.gather(
            carry(reader, onward[1], relay), carry(onward[0], writer, relay), return_exceptions=True
        )

    server = await asyncio.start_server(taken, "127.0.0.1", relay.port)
    await server.serve_forever()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relay: Relay) -> None:
    """Relay one direction of a connection."""
    loop = asyncio.get_running_loop()
    under_way = 0
    room = asyncio.Event()

    def deliver(data: bytes) -> None:
        writer.write(data)
        loop.call_later(relay.delay.value, confirm, len(data))

    def confirm(size: int) -> None:
        nonlocal under_way
        under_way -= size
        room.set()

    while data := await reader.read(CHUNK):
        under_way += len(data)
        loop.call_later(relay.delay.value, deliver, data)
        while under_way >= relay.window:
            room.clear()
            await room.wait()
    loop.call_later(relay.delay.value, writer.close)
