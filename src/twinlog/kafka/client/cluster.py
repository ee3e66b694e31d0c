"""A client of one cluster: its metadata, connections to its brokers, and calls that retry.

    cluster ─┬─► coordinators ─┐     coordinators of groups and transactional ids
             ├─► brokers ◄─────┘     which broker gets a request
             ├─► refresher           the metadata: brokers, topics, leaders
             ├─► pool                connections, by broker and lane
             └─► retries             which failures have a next try, and when

A call has tries, each on a connection that is open or is then opened; see `retries.py`. Only
idempotent requests may be sent this way: a request of a call may arrive more than once.

An answer about many partitions never becomes an exception because of one: see `partitions.py`.
"""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from twinlog.kafka.client.brokers import Brokers, Role
from twinlog.kafka.client.brokers_time import BrokersTime
from twinlog.kafka.client.configuration import ClusterConfig
from twinlog.kafka.client.connection import Connection, Counters
from twinlog.kafka.client.coordinators import Coordinators
from twinlog.kafka.client.metadata import Leader, Metadata
from twinlog.kafka.client.pool import CONTROL, Key, Lane, Pool
from twinlog.kafka.client.refresher import MetadataRefresher
from twinlog.kafka.client.retries import Retries
from twinlog.kafka.client.tasks import Tasks
from twinlog.kafka.errors import DENIED, Refusal, TwinlogError
from twinlog.kafka.types import TopicPartition

T = TypeVar("T")

MAX_HOUSEKEEPING: Final = 30.0


class KafkaCluster:
    """A client of one cluster. `start` it, `close` it; or use it as an async context manager.

    `name` appears in errors (`cluster source: ...`). The random source and the clock are used for
    backoffs and ages only; `brokers_time` is the time as the cluster reports it.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        name: str | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.name = name
        self.counters = Counters()
        self.brokers_time = BrokersTime()
        self.rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self._tasks = Tasks()
        self._pool = Pool(config, rng=self.rng, clock=clock, counters=self.counters)
        self._retries = Retries(config, name=name, rng=self.rng)
        self._refresher = MetadataRefresher(
            *(config, self._pool, self._retries, self._tasks), name=name, rng=self.rng, clock=clock
        )
        self._brokers = Brokers(self._pool, self._refresher, name=name, rng=self.rng)
        self.coordinators = Coordinators(self._brokers, self._retries, self.rng)
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By transactional id: a task that fences and writes under an id holds its lock. Without
        it, two tasks of this process would fence each other."""
        self._borrowed_lanes: set[int] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def metadata(self) -> Metadata:
        """The last snapshot of the metadata; `refresh` gets a new one."""
        return self._refresher.metadata

    @property
    def cluster_id(self) -> str:
        """The cluster's own id; available after `start`."""
        assert self.metadata.cluster_id is not None, (
            "the cluster is not started: call start() first"
        )
        return self.metadata.cluster_id

    async def start(self, timeout: float | None = None) -> None:
        """Find the cluster through one of the bootstrap servers.

        Each server has only a share of the time, so that there is time for the others.

        Raises:
            Retriable: none answered in time; the message has each address and why.
            UserError: the first server that answered refuses the client.
        """
        total_timeout = self.config.api_timeout if timeout is None else timeout
        server_timeout = total_timeout / (len(self.config.bootstrap_servers) + 1)
        try:
            await self.persist(
                lambda: self._refresher.bootstrap(server_timeout=server_timeout), total_timeout
            )
        except BaseException:
            await self.close()
            raise
        self._tasks.spawn(self._keep_house())

    async def close(self) -> None:
        """Close all connections and end all tasks; nothing is left when it returns."""
        await self._tasks.close()
        await self._pool.close()

    # Metadata

    async def refresh(self, topics: Collection[str] | None = ()) -> Metadata:
        """Request the brokers and these topics (None: all topics); return the new snapshot.

        Callers that come while a request is in flight share the next one.
        """
        return await self._refresher.refresh(topics)

    def leader(self, partition: TopicPartition) -> Leader | Refusal:
        """The leader in the last snapshot, or why there is none."""
        return self.metadata.leader(partition)

    async def leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Leader | Refusal]:
        """Leaders of partitions; topics without one in the snapshot are refreshed once."""
        partition_list = list(partitions)
        missing_topics = {p.topic for p in partition_list if isinstance(self.leader(p), Refusal)}
        if missing_topics:
            await self.refresh(missing_topics)
        return {p: self.leader(p) for p in partition_list}

    # Connections

    def connected(self, node_id: int, lane: Lane = CONTROL) -> Connection | None:
        """The connection that `connection` would return, if it is open now."""
        return self._pool.peek(Key(node_id, lane))

    async def connection(self, node_id: int, lane: Lane = CONTROL) -> Connection:
        """Return an open connection to a broker, separate for each lane.

        Raises:
            Retriable: the broker is unreachable, or not in the metadata.
            UserError, ProtocolError: see `Connection.open`.
        """
        return await self._brokers.connection(node_id, lane)

    async def any_connection(self) -> Connection:
        """Return a connection to some broker.

        Raises:
            Retriable: no broker is reachable within default.api.timeout.ms.
        """
        return await self.persist(lambda: self.connection(self._brokers.select(None)))

    def hangs(self, node_id: int, patience: float, lane: Lane = CONTROL) -> bool:
        """Whether a broker has not answered for `patience` seconds while requests are in flight."""
        return self._pool.hangs(Key(node_id, lane), patience)

    def round_trip_s(self, node_id: int) -> float:
        """The shortest round trip to a broker that opened a connection; 0 without a connection."""
        return self._pool.round_trip_s(node_id)

    def borrow_lane(self) -> Lane:
        """Return a lane that is the caller's alone until `return_lane`; its connections stay open.

        For short-lived users: there are as many lanes as there are users at the same time.
        """
        number = next(number for number in itertools.count() if number not in self._borrowed_lanes)
        self._borrowed_lanes.add(number)
        return f"borrowed {number}"

    async def return_lane(self, lane: Lane) -> None:
        """Release a lane for the next user, without connections on which it would have to wait."""
        try:
            await self._pool.close_where(
                lambda key, connection: key.lane == lane and connection.in_flight > 0
            )
        finally:
            self._borrowed_lanes.discard(int(str(lane).rpartition(" ")[2]))

    async def close_lanes(self, lanes: Collection[Lane]) -> None:
        """Close the connections of lanes that are no longer used."""
        await self._pool.close_where(lambda key, _: key.lane in lanes)

    # Calls

    async def call(
        self,
        request: Any,
        *,
        node: int | Role | None = None,
        timeout: float | None = None,
        request_timeout: float | None = None,
        lane: Lane = CONTROL,
        once: bool = False,
    ) -> Any:
        """Send a request to a broker (None: any) until one answers; return the decoded response.

        The caller handles errors within the response, except a retriable one at its top. With
        `once` there is one try: the caller must check what the request rests on before the next.

        Raises:
            Retriable: no success within `timeout` (default.api.timeout.ms).
            UserError: TLS, SASL or the broker's version are not compatible.
        """

        async def attempt() -> Any:
            connection = await self.connection(self._brokers.select(node), lane)
            response = await connection.call(request, timeout=request_timeout)
            await self._brokers.check(response.error_code if "error_code" in response.fields else 0)
            return response

        return await (attempt() if once else self.persist(attempt, timeout))

    async def persist(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Await `attempt()` until it raises nothing retriable; bounded in time and number.

        Raises:
            Retriable: the last try's error, or the deadline has passed.
        """
        return await self._retries.persist(attempt, timeout)

    @contextmanager
    def needing(self, operation: str, resource: str) -> Iterator[None]:
        """If a right is missing, name the principal, the operation and the resource."""
        try:
            yield
        except TwinlogError as error:
            if error.code in DENIED:
                self._retries.named(error).hint = f"grant this principal {operation} on {resource}"
            raise

    async def _keep_house(self) -> None:
        """Refresh stale metadata and close idle connections, until the cluster is closed."""
        config = self.config
        period = min(config.metadata_max_age / 2, config.max_idle / 2, MAX_HOUSEKEEPING)
        while True:
            await asyncio.sleep(period)
            await self._pool.close_idle()
            await self._refresher.refresh_stale()
