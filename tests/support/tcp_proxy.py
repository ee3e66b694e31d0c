"""A TCP proxy in front of brokers: it delays, throttles, holds, cuts and loses traffic.

    client ──► client end ──► faults ──► broker end ──► broker
    client ◄── client end ◄── faults ◄── broker end ◄── broker

The brokers have a separate listener for the proxy, whose advertised ports are the proxy's
(`LocalCluster.start(listeners=PROXIED_LISTENER, proxied=[PROXIED])`), so clients that start with
`Proxies.bootstrap_servers` never bypass it. Replication and the tests' own clients use the
listener PLAINTEXT and are not affected.

The proxy does to a mirror what middleboxes do, and what a kill of a process does not:

- The proxy delivers the bytes that it has accepted, in order, even if the client has closed or
  reset its connection meanwhile. With `hold` that may be a minute later.
- `black_hole`: connections stay open and nothing arrives, in either direction. Bytes are lost, so
  the affected connections are reset when the black hole ends.
- `cut_after`: a connection ends within a request or an answer, at any byte.
- `cut_at`: a connection ends instead of a request that the proxy rejects.

Requests are recognised by their API key (frames begin with a length and the key), so that a test
can hold the connection that carries, for example, WriteTxnMarkers. That needs an unencrypted
listener.

The proxy runs in its own thread. Every method may be called from any thread and has taken effect
when it returns. The caller makes the random choices, except delays within a range (`seed`).
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeVar, cast

from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import HOST

PROXIED: Final = "PROXIED"
PROXIED_LISTENER: Final[Mapping[str, str]] = {PROXIED: "PLAINTEXT"}

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID, WRITE_TXN_MARKERS = 0, 1, 2, 22, 27

BUFFER: Final = 256 << 10
"""The most bytes that one end reads ahead of what it can forward."""
HELD_BYTES: Final = 64 << 20
"""The same limit while it is held."""
CALL_SECONDS: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of all connections of a proxy, from now on.

    delay: seconds that each piece spends in the proxy, between the two. rate: bytes a second, of
    each connection and direction; 0 is unlimited. cut_after: each connection is reset after this
    many bytes, counted from now; 0 is never. cut_at: a connection is reset in place of a request
    that starts with these bytes, its frame's length included. refuse: new connections are reset at
    once.
    """

    delay: tuple[float, float] = (0.0, 0.0)
    rate: float = 0.0
    cut_after: int = 0
    cut_at: Callable[[bytes], bool] | None = None
    black_hole: bool = False
    refuse: bool = False


class Hold:
    """Connections whose bytes wait in the proxy until `release`; see `Proxies.hold`."""

    def __init__(self, call: Callable[[Callable[[], object]], object], api: int | None) -> None:
        self.api = api
        self._call = call
        self._caught = threading.Event()
        self.links: list[_Link] = []
        self.released = asyncio.Event()

    def await_caught(self, seconds: float) -> None:
        """Wait until a connection is held."""
        assert self._caught.wait(seconds), f"no request {self.api} within {seconds:g} s"

    @property
    def abandoned(self) -> bool:
        """Return whether the clients of all held connections have closed them."""
        return bool(self.links) and all(link.client.ended for link in self.links)

    def release(self) -> None:
        """Deliver what was held, even if the client has closed its connection."""
        self._call(self.released.set)

    def catch(self, link: "_Link") -> None:
        """Hold a connection (in the loop)."""
        self.links.append(link)
        self._caught.set()


class _Piece(NamedTuple):
    """Bytes that arrived together; `api`: the API key of the request that begins with them."""

    due: float
    data: bytes
    api: int | None


class _Frames:
    """Splits a stream of requests at the start of each request."""

    def __init__(self) -> None:
        self._left = 0
        self._head = b""

    def cut(self, data: bytes) -> list[tuple[int | None, bytes]]:
        """Return the parts of what arrived; a head of less than 6 bytes waits for the rest."""
        parts: list[tuple[int | None, bytes]] = []
        data, self._head = self._head + data, b""
        while data:
            api = None
            if not self._left:
                if len(data) < 6:
                    self._head = data
                    break
                size, api = struct.unpack_from(">ih", data)
                self._left = 4 + max(size, 2)
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            parts.append((api, part))
        return parts

    def rest(self) -> bytes:
        """Return the incomplete head at the end of the stream."""
        rest, self._head = self._head, b""
        return rest


class _End(asyncio.Protocol):
    """One end of a link: queues what arrives, and sends what the other end received."""

    def __init__(self, link: "_Link", frames: _Frames | None = None) -> None:
        self._link = link
        self._frames = frames
        self._queue: deque[_Piece] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self.ended = False
        """Nothing more arrives: the connection was closed or reset."""
        self.reset = False
        self.hold: Hold | None = None
        """What has arrived at this end waits for this hold."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self is self._link.client:
            self._link.start()

    def data_received(self, data: bytes) -> None:
        self._put(self._frames.cut(data) if self._frames else [(None, data)])

    def _put(self, parts: list[tuple[int | None, bytes]]) -> None:
        due = asyncio.get_running_loop().time() + self._link.proxy.pick_delay()
        for api, part in parts:
            self._queue.append(_Piece(due, part, api))
            self._size += len(part)
        self.pace()
        self._wake.set()

    def pace(self) -> None:
        """Read only while there is room."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._size >= (HELD_BYTES if self.hold else BUFFER):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._end()
        return True  # half-closed: accepted bytes are still delivered and answered

    def connection_lost(self, exc: Exception | None) -> None:
        self.reset = exc is not None
        self._writable.set()
        self._transport = None
        self._end()

    def _end(self) -> None:
        if self._frames and (rest := self._frames.rest()):
            self._put([(None, rest)])
        self.ended = True
        self._wake.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def take(self) -> _Piece | None:
        """Return the next piece; None at the end."""
        while not self._queue:
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        piece = self._queue.popleft()
        self._size -= len(piece.data)
        self.pace()
        return piece

    async def send(self, data: bytes) -> None:
        """Send, or drop the bytes if the peer is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            await self._writable.wait()

    def finish(self) -> None:
        """Send no more (FIN); still read what the peer sends."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def close(self, *, reset: bool) -> None:
        """Close the connection, with a FIN or a reset."""
        if self._transport is None:
            return
        if reset:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                raw = self._transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()


class _Link:
    """A client's connection and its connection to the broker."""

    def __init__(self, proxy: "Proxy") -> None:
        self.proxy = proxy
        self.client = _End(self, _Frames())
        self.broker = _End(self)
        self.passed = 0
        self.lossy = False
        """Bytes were lost, so the connection cannot be used any more."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start forwarding for a client that has connected."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        proxy = self.proxy
        proxy.links.add(self)
        cut = True
        try:
            if not proxy.faults.refuse:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: self.broker, HOST, proxy.target)
                await asyncio.gather(
                    self._pass(self.client, self.broker), self._pass(self.broker, self.client)
                )
                cut = False
        except OSError:
            pass  # the broker is down, or the connection was cut
        finally:
            proxy.links.discard(self)
            self.client.close(reset=cut)
            self.broker.close(reset=cut)

    async def _pass(self, origin: _End, target: _End) -> None:
        """Forward what arrives at one end, subject to the faults, until it ends."""
        loop = asyncio.get_running_loop()
        while (piece := await origin.take()) is not None:
            self.proxy.catch(self, piece.api)
            await self._await_release(origin)
            await asyncio.sleep(max(0.0, piece.due - loop.time()))
            faults = self.proxy.faults
            if faults.black_hole:
                self.lossy = True
                continue
            data = piece.data
            if piece.api is not None and faults.cut_at is not None and faults.cut_at(data):
                raise ConnectionResetError("cut by the proxy")
            if faults.cut_after:
                data = data[: max(0, faults.cut_after - self.passed)]
            self.passed += len(data)
            self.proxy.bytes_passed += len(data)
            await target.send(data)
            if len(data) < len(piece.data):
                raise ConnectionResetError("cut by the proxy")
            if faults.rate:
                await asyncio.sleep(len(data) / faults.rate)
        await self._await_release(origin)
        while self.proxy.faults.black_hole:
            self.lossy = True
            await asyncio.sleep(0.1)
        if origin is self.broker and origin.reset:
            raise ConnectionResetError("reset by the broker")
        target.finish()

    @staticmethod
    async def _await_release(origin: _End) -> None:
        while origin.hold is not None and not origin.hold.released.is_set():
            origin.pace()
            await origin.hold.released.wait()
        origin.hold = None

    def cut(self) -> None:
        """Reset both connections."""
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Reset both connections, and wait until that is done."""
        self.cut()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


@dataclass(eq=False)
class Proxy:
    """The proxy of one broker; its state belongs to the loop of its `Proxies`."""

    port: int
    target: int
    random: random.Random
    faults: Faults = field(default_factory=Faults)
    links: set[_Link] = field(default_factory=set)
    holds: list[tuple[Hold, bool, bool]] = field(default_factory=list)
    """For each hold: whether answers are held, and whether every matching connection is held."""
    bytes_passed: int = 0
    server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: _Link(self).client, HOST, self.port)
        self.port = int(self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening; reset all connections."""
        if self.server is not None:
            self.server.close()
        await asyncio.gather(*(link.end() for link in list(self.links)))

    def pick_delay(self) -> float:
        """Return the delay of a piece, in seconds."""
        low, high = self.faults.delay
        return low if low == high else self.random.uniform(low, high)

    def set_faults(self, faults: Faults) -> None:
        """Replace the faults; links that lost bytes are reset when a black hole ends."""
        for link in list(self.links):
            link.passed = 0
            if link.lossy and not faults.black_hole:
                link.cut()
        self.faults = faults

    def add_hold(self, hold: Hold, *, answers: bool, every: bool) -> None:
        """Hold from now on: the current connections, or each at its request with the hold's API."""
        if hold.api is None:
            for link in list(self.links):
                self._hold(link, hold, answers=answers)
        if hold.api is not None or every:
            self.holds.append((hold, answers, every))

    def catch(self, link: _Link, api: int | None) -> None:
        """Hold a connection if its next request is one that a hold waits for."""
        if api is None:
            return
        for entry in list(self.holds):
            hold, answers, every = entry
            if hold.released.is_set() or (hold.links and not every):
                self.holds.remove(entry)
            elif hold.api in {None, api} and link not in hold.links:
                self._hold(link, hold, answers=answers)

    @staticmethod
    def _hold(link: _Link, hold: Hold, *, answers: bool) -> None:
        end = link.broker if answers else link.client
        end.hold = hold
        end.pace()
        hold.catch(link)


class Proxies:
    """The proxies of a cluster, or of any ports, with their thread. A context manager.

    `ports`: for each name, the port to listen on (0: any) and the port to forward to.
    """

    def __init__(self, ports: Mapping[int, tuple[int, int]], seed: object = 0) -> None:
        self._proxies = {
            name: Proxy(port, target, random.Random(f"{seed}/{name}"))
            for name, (port, target) in ports.items()
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @classmethod
    def of(cls, cluster: LocalCluster, seed: object = 0) -> Self:
        """Create the proxies of a cluster started with the listener PROXIED, by broker id."""
        return cls(cluster.proxy_ports(PROXIED), seed)

    def __enter__(self) -> Self:
        self._thread.start()
        for proxy in self._proxies.values():
            self._run(proxy.start)
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            self._run(proxy.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    @property
    def names(self) -> tuple[int, ...]:
        """The brokers behind the proxies."""
        return tuple(self._proxies)

    @property
    def bootstrap_servers(self) -> str:
        """The proxies' addresses."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self._proxies.values())

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(len(proxy.links) for proxy in self._proxies.values())

    @property
    def bytes_passed(self) -> int:
        """The bytes passed in both directions."""
        return sum(proxy.bytes_passed for proxy in self._proxies.values())

    def set(self, faults: Faults, *names: int) -> None:
        """Set the faults from now on, for these brokers (default: all)."""
        self._each(names, lambda proxy: proxy.set_faults(faults))

    def clear(self, *names: int) -> None:
        """Remove all faults."""
        self.set(Faults(), *names)

    def cut(self, *names: int) -> None:
        """Reset all connections now; new ones are accepted."""

        def strike(proxy: Proxy) -> None:
            for link in list(proxy.links):
                link.cut()

        self._each(names, strike)

    def lead_to(self, target: int, *names: int) -> None:
        """Reset all connections; new ones lead to this port: the address has gone to its owner."""

        def lead(proxy: Proxy) -> None:
            proxy.target = target

        self._each(names, lead)
        self.cut(*names)

    def hold(
        self, *names: int, api: int | None = None, answers: bool = False, every: bool = False
    ) -> Hold:
        """Hold connections until the Hold's `release`; then everything is delivered, in order.

        api: the first connection that carries such a request, from that request on; None: all
        current connections. answers: the request passes, and the broker's data on that connection
        is held from then on. every: all connections that carry such a request, later ones too.
        """
        hold = Hold(self._call, api)
        self._each(names, lambda proxy: proxy.add_hold(hold, answers=answers, every=every))
        return hold

    def _each(self, names: tuple[int, ...], do: Callable[[Proxy], None]) -> None:
        def all_of_them() -> None:
            for name in names or self.names:
                do(self._proxies[name])

        self._call(all_of_them)

    def _call(self, do: Callable[[], T]) -> T:
        """Run a function in the loop."""

        async def run() -> T:
            return do()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_SECONDS)

    def _run(self, do: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(do(), self._loop).result(CALL_SECONDS)  # type: ignore[arg-type]
