"""Connections to a cluster's brokers, one for each purpose, opened on first use.

A connection belongs to a *key*: the broker and the lane that uses it. A broker answers the requests
of one connection in order, so what must not wait for a long Fetch or Produce has its own lane.
Callers that want a connection that is being opened wait for the same attempt. After a failure the
next attempt waits: exponentially longer, up to a bound, with jitter, so that not all lanes connect
to a restarted broker in the same millisecond (`reconnect.backoff.ms`, KIP-144).

Addresses are reused: that of a broker may lead to a broker of another cluster by now (KIP-1242),
which may have topics of the same names, as the two sides of a mirror do. It would take what is
written: a request for markers has neither a topic id nor a leader epoch. So each new connection
asks for the cluster's id first.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.client.connection import Connection, Counters
from twinlog.kafka.errors import Disconnected, Retriable, TwinlogError

Lane = str | int
CONTROL: Final = "control"
"""The lane of requests that move no data and are answered at once."""
SLOW: Final = "slow"
"""The lane of requests that a broker answers only after it has done something."""


class Key(NamedTuple):
    """The broker of a connection, and the lane that uses it."""

    node_id: int
    lane: Lane


class _Slot:
    """One key's connection. `dialing` is the attempt in progress, shared by all waiters."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.dialing: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.not_before = 0.0

    @property
    def spent(self) -> bool:
        """Whether the slot holds nothing worth keeping."""
        idle = self.connection is None or self.connection.closed
        return idle and self.dialing is None and not self.failures


class Pool:
    """All connections to one cluster's brokers."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        rng: random.Random,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self._config = config
        self._rng = rng
        self._clock = clock
        self._counters = counters
        self._backoff = Backoff(config.reconnect_backoff, config.reconnect_backoff_max)
        self._slots: dict[Key, _Slot] = {}
        self._closed = False
        self.cluster_id: str | None = None
        """What brokers have to report, once it is known."""

    def peek(self, key: Key) -> Connection | None:
        """The connection, if it is open."""
        slot = self._slots.get(key)
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        return slot.connection

    def failures(self, key: Key) -> int:
        """Consecutive failed attempts."""
        slot = self._slots.get(key)
        return 0 if slot is None else slot.failures

    def hangs(self, key: Key, patience: float) -> bool:
        """Whether a broker has not answered for `patience` seconds while requests are in flight."""
        connection = self.peek(key)
        return connection is not None and connection.silent_s >= patience

    def round_trip_s(self, node_id: int) -> float:
        """The shortest round trip to a broker that opened a connection; 0 without a connection."""
        open_connections = [
            slot.connection
            for key, slot in self._slots.items()
            if key.node_id == node_id and slot.connection is not None
        ]
        return min((connection.round_trip_s for connection in open_connections), default=0.0)

    async def get(self, key: Key, address: Address) -> Connection:
        """Return an open connection, after the backoff that earlier failures demand.

        Raises:
            Retriable, UserError, ProtocolError: the attempt has failed (see `Connection.open`), or
                the address leads to another cluster.
        """
        if self._closed:
            raise Disconnected("the cluster is closed")
        slot = self._slots.setdefault(key, _Slot())
        connection = slot.connection
        if connection is not None and not connection.closed:
            return connection
        if slot.dialing is None:
            slot.dialing = asyncio.get_running_loop().create_task(self._dial(slot, address))
            slot.dialing.add_done_callback(_seen)
        return await asyncio.shield(slot.dialing)

    async def open(self, address: Address) -> Connection:
        """Open a connection outside the pool, which the caller closes."""
        return await Connection.open(
            address.host,
            address.port,
            security=self._config.security_now,
            options=self._config.options(),
            counters=self._counters,
            rng=self._rng,
        )

    async def close_where(self, condition: Callable[[Key, Connection], bool]) -> None:
        """Close the connections that `condition` selects; forget keys without a connection."""
        for key, slot in list(self._slots.items()):
            connection = slot.connection
            if connection is not None and condition(key, connection):
                slot.connection = None
                await connection.close()
            if slot.spent and self._slots.get(key) is slot:
                del self._slots[key]

    async def close_idle(self) -> None:
        """Close the connections that were not used for connections.max.idle.ms."""
        await self.close_where(self._idle)

    async def close(self) -> None:
        """Close all connections; nothing is left when it returns."""
        self._closed = True
        slots = list(self._slots.values())
        dialing = [slot.dialing for slot in slots if slot.dialing is not None]
        for task in dialing:
            task.cancel()
        await asyncio.gather(*dialing, return_exceptions=True)
        await self.close_where(lambda _key, _connection: True)

    def _idle(self, _key: Key, connection: Connection) -> bool:
        idle_s = asyncio.get_running_loop().time() - connection.last_used
        busy = connection.in_flight or connection.throttled
        return not busy and idle_s > self._config.max_idle

    async def _dial(self, slot: _Slot, address: Address) -> Connection:
        try:
            await asyncio.sleep(max(slot.not_before - self._clock(), 0))
            slot.connection = await self._open_to_broker(address)
        except TwinlogError:
            slot.failures += 1
            slot.not_before = self._clock() + self._backoff.delay(slot.failures, self._rng.random())
            raise
        else:
            slot.failures = 0
            return slot.connection
        finally:
            slot.dialing = None

    async def _open_to_broker(self, address: Address) -> Connection:
        connection = await self.open(address)
        if self.cluster_id is not None:
            try:
                await self._check_cluster(connection, self.cluster_id)
            except BaseException:
                await connection.close()
                raise
        return connection

    async def _check_cluster(self, connection: Connection, expected_id: str) -> None:
        """Check that a broker is one of this cluster; one that reports no id counts as such."""
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False, min_version=4)
        response = await connection.call(request, timeout=self._config.options().setup_timeout)
        if response.cluster_id not in {None, expected_id}:
            raise Retriable(
                f"{connection.address} leads to a broker of cluster {response.cluster_id}, "
                f"expected {expected_id}",
                hint="check the brokers' advertised.listeners, if this stays",
            )


def _seen(task: asyncio.Task[Connection]) -> None:
    """Retrieve the outcome, so that it is not reported as lost: a waiter may be cancelled."""
    if not task.cancelled():
        task.exception()
