"""The connections between clients and brokers, which delay, break and deliver late.

A connection is a stream, as in TCP. Requests arrive in the order in which they were sent; the
broker processes one at a time and answers in order. A connection breaks at a moment that the seed
chooses:

    client                            broker
      │ r1 r2 r3 r4 ───────────────►    │   r1 done, its answer in flight:  lost
      │      break                      │   r2 being processed:             goes on, answer lost
      │                                 │   r3 .. rk on the wire:           delivered, maybe late
      ▼ Disconnected for r1 to r4       │   rest:                           never delivered

Every waiting call gets Disconnected at once. The next call opens a new connection, which may
overtake what the old one still delivers. Late means at most `late_seconds` late.

A connection can also be *held*: a middlebox keeps everything that is sent from then on, for up to
`held_seconds`, and then delivers all of it, even if the client has timed out, is dead, or has
continued on a new connection.

Calls that need no order have a connection each.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from model.loop import VirtualLoop
from twinlog.kafka.errors import Disconnected

Handler = Callable[[], object]
"""A broker's handler of a request: returns the answer, or a future of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The rates and durations of network faults.

    `break_share` of the requests break their connection, `held_share` have it held. Requests that
    carry data are held only with `holds_data`.
    """

    break_share: float = 0.0
    late_seconds: float = 2.0
    delay_seconds: float = 0.002
    slow_share: float = 0.0
    slow_seconds: float = 0.5
    request_timeout_s: float = 10.0
    held_share: float = 0.0
    held_seconds: float = 40.0
    holds_data: bool = False


class Network:
    """All connections, and which of them are cut."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, faults: Faults) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = faults
        self.quiet = False
        self.broken = 0
        self.held_until = 0.0
        """The time at which the last held request arrives."""
        self.on_write: Callable[[str], None] = lambda _: None
        """Called with the client's name just before a request that writes is sent."""
        self._alone = 0
        self._cut: set[tuple[str, int]] = set()
        self._dead: set[str] = set()
        self._connections: dict[tuple[str, int, str], Connection] = {}

    def send(
        self,
        client: str,
        node: int,
        purpose: str,
        handler: Handler,
        *,
        risk: float = 1.0,
        writes: bool = False,
    ) -> "asyncio.Future[Any]":
        """Send a request now, on the client's connection for this purpose."""
        if writes:
            self.on_write(client)
        future: asyncio.Future[Any] = self.loop.create_future()
        if client in self._dead or (client, node) in self._cut:
            refused = Disconnected(f"{client} cannot reach node {node}")
            self.loop.later(self.delay(), lambda: _fail(future, refused))
            return future
        key = (client, node, purpose)
        connection = self._connections.get(key)
        if connection is None or connection.closed:
            connection = self._connections[key] = Connection(self, client, node, purpose)
        connection.send(handler, future, risk)
        return future

    def send_alone(
        self,
        client: str,
        node: int,
        handler: Handler,
        *,
        risk: float = 1.0,
        writes: bool = False,
    ) -> "asyncio.Future[Any]":
        """Send a request on a separate connection, in no order with others.

        `risk` multiplies the probability of faults, so that rare requests break as often as
        frequent ones.
        """
        self._alone += 1
        purpose = f"alone {self._alone}"
        future = self.send(client, node, purpose, handler, risk=risk, writes=writes)
        future.add_done_callback(
            lambda _: self._connections.pop((client, node, purpose), None),
            context=self.loop.outside,
        )
        return future

    def send_in_turn(
        self, client: str, node: int, handlers: Sequence[Handler], *, risk: float
    ) -> "list[asyncio.Future[Any]]":
        """Send requests that write on a connection of their own, one behind the other."""
        self._alone += 1
        purpose = f"alone {self._alone}"
        futures = [
            self.send(client, node, purpose, handler, risk=risk, writes=True)
            for handler in handlers
        ]
        futures[-1].add_done_callback(
            lambda _: self._connections.pop((client, node, purpose), None),
            context=self.loop.outside,
        )
        return futures

    def cut(self, client: str, node: int) -> None:
        """Cut the client off from the node, from now on."""
        self._cut.add((client, node))
        self._break(lambda key: key[:2] == (client, node))

    def heal(self) -> None:
        """Remove all cuts."""
        self._cut.clear()

    def stop_client(self, client: str) -> None:
        """Break the connections of a process that has died."""
        self._dead.add(client)
        self._break(lambda key: key[0] == client)

    def stop_node(self, node: int) -> None:
        """Break the connections of a broker that has died."""
        self._break(lambda key: key[1] == node)

    def _break(self, chosen: Callable[[tuple[str, int, str]], bool]) -> None:
        for key in [key for key in self._connections if chosen(key)]:
            self._connections.pop(key).break_now()

    def delay(self) -> float:
        """Return how long a request or an answer is in flight."""
        faults = self.faults
        if not self.quiet and self.rng.random() < faults.slow_share:
            return self.rng.uniform(0.0, faults.slow_seconds)
        return self.rng.uniform(0.1, 1.0) * faults.delay_seconds

    def holds(self, risk: float) -> float:
        """Return the time until which this request's connection is held; 0 if it is not."""
        share = self.faults.held_share
        if self.quiet or not share or self.rng.random() >= risk * share:
            return 0.0
        until = self.loop.time() + self.rng.uniform(0.0, self.faults.held_seconds)
        self.held_until = max(self.held_until, until)
        return until

    def breaks(self, risk: float) -> float | None:
        """Return after how long this request's connection breaks; None if it does not."""
        if self.quiet or self.rng.random() >= risk * self.faults.break_share:
            return None
        return self.rng.uniform(0.0, 4.0) * self.faults.delay_seconds


@dataclass(slots=True, eq=False)
class _Request:
    handler: Handler
    future: "asyncio.Future[Any]"


class Connection:
    """One stream between a client and a broker."""

    def __init__(self, network: Network, client: str, node: int, purpose: str) -> None:
        self._network = network
        self._loop = network.loop
        self._name = f"{client} to {node}"
        self._purpose = purpose
        self._wire: deque[_Request] = deque()  # sent, not delivered
        self._inbox: deque[_Request] = deque()  # delivered, not begun
        self._waiting: list[_Request] = []  # requests without an answer
        self._busy = False
        self._last_arrival = self._last_answer = self._held_until = 0.0
        self.closed = False

    def send(self, handler: Handler, future: "asyncio.Future[Any]", risk: float) -> None:
        """Put a request on the wire."""
        request = _Request(handler, future)
        self._wire.append(request)
        self._waiting.append(request)
        now = self._loop.time()
        if self._network.faults.holds_data or self._purpose != "produce":
            self._held_until = max(self._held_until, self._network.holds(risk))
        arrival = now + self._network.delay()
        self._last_arrival = max(self._last_arrival, arrival, self._held_until)
        self._loop.later(self._last_arrival - now, self._deliver)
        self._loop.later(self._network.faults.request_timeout_s, lambda: self._time_out(request))
        after = self._network.breaks(risk)
        if after is not None:
            self._loop.later(after, self.break_now)

    def break_now(self) -> None:
        """Break the connection: see the module."""
        if self.closed:
            return
        self.closed = True
        network = self._network
        network.broken += 1
        rng = network.rng
        still = rng.randint(0, len(self._wire))
        late = rng.uniform(0.0, network.faults.late_seconds) if rng.random() < 0.5 else 0.0
        if self._held_until > self._loop.time():
            still, late = len(self._wire), self._held_until - self._loop.time()
        on_wire = list(self._wire)
        self._wire.clear()
        for request in on_wire[:still]:
            self._loop.later(late, partial(self._accept, request))
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            _fail(request.future, Disconnected(f"the connection of {self._name} broke"))

    def _time_out(self, request: _Request) -> None:
        if not request.future.done():
            self.break_now()

    def _deliver(self) -> None:
        if self._wire:  # empty if the connection broke
            self._accept(self._wire.popleft())

    def _accept(self, request: _Request) -> None:
        self._inbox.append(request)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        """Process the next request, once the previous one is answered."""
        if not self._inbox:
            self._busy = False
            return
        self._busy = True
        request = self._inbox.popleft()
        result = request.handler()
        if isinstance(result, asyncio.Future):
            result.add_done_callback(
                lambda done: self._finish(request, done.result()), context=self._loop.outside
            )
        else:
            self._finish(request, result)

    def _finish(self, request: _Request, result: object) -> None:
        # One stream: answers come in the order of their requests.
        now = self._loop.time()
        self._last_answer = max(self._last_answer + 1e-9, now + self._network.delay())
        self._loop.later(self._last_answer - now, lambda: self._answer(request, result))
        self._begin()

    def _answer(self, request: _Request, result: object) -> None:
        if not self.closed and not request.future.done():
            with suppress(ValueError):
                self._waiting.remove(request)
            request.future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Disconnected) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # no caller may be left to retrieve it
