"""Requests for a cluster's metadata: from a known broker, or from a bootstrap server.

One request is in flight at a time. Callers that come meanwhile share the next one, which follows
`retry.backoff.ms` later: a thousand partitions whose leader has moved cost one request. The first
`BURST` requests do not wait: a command needs the metadata of a few topics, one after the other.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from typing import Final

from kafka.protocol.metadata import MetadataRequest

from twinlog.kafka.client.broker_order import BrokerOrder
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.client.metadata import EMPTY, Metadata, merge
from twinlog.kafka.client.pool import CONTROL, Key, Pool
from twinlog.kafka.client.retries import Retries
from twinlog.kafka.client.tasks import Tasks
from twinlog.kafka.errors import Disconnected, ProtocolError, Retriable, TwinlogError, check

log = logging.getLogger(__name__)

BURST: Final = 5
"""Requests that follow each other without a pause; each pause of retry.backoff.ms allows one more.
"""
METADATA_PATIENCE: Final = (5.0, 10.0)
"""Seconds that the first and the second known broker have to answer, before a bootstrap server is
asked: any broker has the same metadata. A bootstrap server has request.timeout.ms, for a cluster
that is slow."""


class _RefreshRound:
    """Topics of the next metadata request; None is all topics."""

    def __init__(self) -> None:
        self.topics: set[str] | None = set()
        self.task: asyncio.Task[Metadata]

    def add(self, topics: Collection[str] | None) -> None:
        if topics is None:
            self.topics = None
        elif self.topics is not None:
            self.topics.update(topics)


class MetadataRefresher:
    """Keeps the last snapshot of the metadata, and requests newer ones.

    The random source and the clock are used for the order of servers, and for ages. `tasks` runs
    the requests: when it is closed, there are no more.
    """

    def __init__(
        self,
        config: ClusterConfig,
        pool: Pool,
        retries: Retries,
        tasks: Tasks,
        *,
        name: str | None,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self.metadata: Metadata = EMPTY
        self._config = config
        self._pool = pool
        self._order = BrokerOrder(pool, rng)
        self._retries = retries
        self._tasks = tasks
        self._name = name
        self._rng = rng
        self._clock = clock
        self._next_round: _RefreshRound | None = None
        self._refresh_lock = asyncio.Lock()  # guards the order of metadata requests
        self._refreshed_at = float("-inf")
        self._paid_until = float("-inf")  # the time up to which the requests so far would be spread

    async def refresh(self, topics: Collection[str] | None) -> Metadata:
        """Request the brokers and these topics (None: all topics); return the new snapshot.

        Callers that come while a request is in flight share the next one.

        Raises:
            Disconnected: the cluster is closed.
            Retriable: no server answered within default.api.timeout.ms.
        """
        if self._tasks.closed:
            raise Disconnected("the cluster is closed", cluster=self._name)
        refresh_round = self._next_round
        if refresh_round is None:
            refresh_round = self._next_round = _RefreshRound()
            refresh_round.task = self._tasks.spawn(self._run(refresh_round))
        refresh_round.add(topics)
        return await asyncio.shield(refresh_round.task)

    async def refresh_stale(self) -> None:
        """Refresh all known topics if the metadata is older than metadata.max.age.ms."""
        if self._clock() - self._refreshed_at < self._config.metadata_max_age:
            return
        try:
            await self.refresh(list(self.metadata.topics))
        except TwinlogError as error:
            log.warning("cannot refresh the metadata, the cached metadata stays in use: %s", error)

    async def bootstrap(
        self, topics: Collection[str] | None = (), server_timeout: float | None = None
    ) -> Metadata:
        """Get metadata from the first bootstrap server that answers in `server_timeout` seconds.

        Raises:
            Retriable: none answered; the message has each address and why.
            UserError: the first server that answered refuses the client.
        """
        failures: list[str] = []
        hints: list[str] = []
        servers = list(self._config.bootstrap_servers)
        self._rng.shuffle(servers)
        for address in servers:
            try:
                async with asyncio.timeout(server_timeout):
                    connection = await self._pool.open(address)
                    try:
                        return await self._request(connection, topics)
                    finally:
                        await connection.close()
            except TimeoutError:
                failures.append(f"{address}: no response within {server_timeout:g} s")
            except (Retriable, ProtocolError) as error:
                failures.append(error.message)
                hints += [error.hint] if error.hint else []
        raise Retriable(
            f"no bootstrap server responds: {'; '.join(failures)}",
            cluster=self._name,
            hint="; ".join(dict.fromkeys(hints))
            or "compare bootstrap.servers and security.protocol with the brokers' listeners",
        )

    async def _run(self, refresh_round: _RefreshRound) -> Metadata:
        async with self._refresh_lock:
            pause = self._config.retry_backoff
            await asyncio.sleep(max(self._paid_until - (BURST - 1) * pause - self._clock(), 0))
            self._next_round = None
            try:
                return await self._retries.persist(lambda: self._fetch(refresh_round.topics))
            finally:
                self._paid_until = max(self._paid_until, self._clock()) + pause

    async def _fetch(self, topics: set[str] | None) -> Metadata:
        """Get metadata from a known broker; if none answers soon, from a bootstrap server.

        All callers wait for this, so a broker that hangs must not delay it by request.timeout.ms.
        The broker changes from call to call, connected or not: a broker that is cut off from the
        other brokers, but not from its clients, continues to name the leaders that it knows, itself
        among them.
        """
        brokers = self.metadata.brokers
        order = self._order.varied(brokers)
        for node_id, patience in zip(order, METADATA_PATIENCE, strict=False):
            address = Address(brokers[node_id].host, brokers[node_id].port)
            try:
                async with asyncio.timeout(patience):
                    connection = await self._pool.get(Key(node_id, CONTROL), address)
                    return await self._request(connection, topics)
            except (Retriable, ProtocolError, TimeoutError) as error:
                log.debug("no metadata from node %d: %s", node_id, error)
        return await self.bootstrap(topics)

    async def _request(self, connection: Connection, topics: Collection[str] | None) -> Metadata:
        item = MetadataRequest.MetadataRequestTopic
        topic_items = None if topics is None else [item(name=name) for name in sorted(topics)]
        request = MetadataRequest(
            topics=topic_items, allow_auto_topic_creation=False, min_version=4
        )
        response = await connection.call(request)
        check(response.error_code, "get metadata")
        last_metadata = self.metadata
        self.metadata = merge(last_metadata, response, all_topics=topics is None)
        self._pool.cluster_id = self.metadata.cluster_id
        self._refreshed_at = self._clock()
        moved_nodes = {
            n for n, b in last_metadata.brokers.items() if self.metadata.brokers.get(n) != b
        }
        if moved_nodes:
            await self._pool.close_where(lambda key, _: key.node_id in moved_nodes)
        return self.metadata
