"""One cluster: its brokers, leaders and coordinators, and calls that retry.

A call has tries, each on a connection that is open or is then opened. Between tries there is a
backoff, and what the failure has shown to be stale is refreshed:

    failure                                   before the next try
    ----------------------------------------  -----------------------------------------
    no connection, connection lost            a backoff; `node=None`: another broker
    reaction RETRY                            a backoff (short ones for 51
                                              CONCURRENT_TRANSACTIONS, as Kafka's client)
    reaction METADATA (NOT_CONTROLLER, ...)   refresh the metadata
    reaction COORDINATOR                      find the coordinator
    an answer that cannot be decoded          a backoff; at most `MAX_NONSENSE` tries
    anything else                             no next try: the caller decides

So a request of a call may arrive more than once: after a lost connection it is unknown whether the
request was carried out. Only idempotent requests may be sent this way. Data is sent with
`Connection.send_raw`, which never retries.

An answer about many partitions never becomes an exception because of one: see `partitions.py`.
"""

import asyncio
import itertools
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, IntEnum
from typing import Any, Final, Self, TypeAlias, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.brokers_time import BrokersTime
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.client.connection import Connection, Counters
from twinlog.kafka.client.metadata import EMPTY, Leader, Metadata, merge
from twinlog.kafka.client.pool import Key, Lane, Pool
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    DENIED,
    Disconnected,
    ProtocolError,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    check,
    code_of,
)
from twinlog.kafka.types import TopicPartition

T = TypeVar("T")
BeforeSend: TypeAlias = Callable[[], None]
log = logging.getLogger(__name__)

CONTROL: Final = "control"
"""The lane of requests that move no data and are answered at once."""
SLOW: Final = "slow"
"""The lane of requests that a broker answers only after it has done something."""
MAX_TRIES: Final = 100
"""Tries of one call; its deadline nearly always comes first."""
MAX_NONSENSE: Final = 3
"""Tries of one call whose answers cannot be decoded."""
MAX_HOUSEKEEPING: Final = 30.0
METADATA_PATIENCE: Final = (5.0, 10.0)
"""Seconds that the first and the second known broker have to answer, before a bootstrap server is
asked: any broker has the same metadata. A bootstrap server has request.timeout.ms, for a cluster
that is slow."""
SILENT: Final = 1.0
"""Seconds without an answer after which other brokers are preferred."""

_CONCURRENT_BACKOFF: Final = Backoff(0.002, 0.1)


def nothing() -> None:
    """The default of `before_send`: do nothing, since any process may send the request."""


class Role(Enum):
    """A broker identified by its role."""

    CONTROLLER = "controller"


class Coordinator(IntEnum):
    """Types of coordinators, with FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTION = 1


CONTROLLER: Final = Role.CONTROLLER


class _Batch:
    """Topics of the next metadata request; None is all topics."""

    def __init__(self) -> None:
        self.topics: set[str] | None = set()
        self.task: asyncio.Task[Metadata]

    def add(self, topics: Collection[str] | None) -> None:
        if topics is None:
            self.topics = None
        elif self.topics is not None:
            self.topics.update(topics)


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
        self.metadata: Metadata = EMPTY
        self.counters = Counters()
        self.brokers_time = BrokersTime()
        self.rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self._clock = clock
        self._pool = Pool(config, rng=self.rng, clock=clock, counters=self.counters)
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max)
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By transactional id: a task that fences and writes under an id holds its lock. Without
        it, two tasks of this process would fence each other."""
        self._borrowed: set[int] = set()
        self._coordinators: dict[tuple[Coordinator, str], int] = {}
        self._next_batch: _Batch | None = None
        self._refreshing = asyncio.Lock()  # guards the order of metadata requests
        self._refreshed_at = float("-inf")
        self._not_before = float("-inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        whole = self.config.api_timeout if timeout is None else timeout
        each = whole / (len(self.config.bootstrap_servers) + 1)
        try:
            await self.persist(lambda: self._bootstrap(each=each), whole)
        except BaseException:
            await self.close()
            raise
        self._spawn(self._keep_house())

    async def close(self) -> None:
        """Close all connections and end all tasks; nothing is left when it returns."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    # Metadata

    async def refresh(self, topics: Collection[str] | None = ()) -> Metadata:
        """Request the brokers and these topics (None: all topics); return the new snapshot.

        Callers that come while a request is in flight share the next one.
        """
        if self._closed:
            raise Disconnected("the cluster is closed", cluster=self.name)
        batch = self._next_batch
        if batch is None:
            batch = self._next_batch = _Batch()
            batch.task = self._spawn(self._run(batch))
        batch.add(topics)
        return await asyncio.shield(batch.task)

    def leader(self, partition: TopicPartition) -> Leader | Refusal:
        """The leader in the last snapshot, or why there is none."""
        return self.metadata.leader(partition)

    async def leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Leader | Refusal]:
        """Leaders of partitions; topics without one in the snapshot are refreshed once."""
        wanted = list(partitions)
        missing = {p.topic for p in wanted if isinstance(self.leader(p), Refusal)}
        if missing:
            await self.refresh(missing)
        return {p: self.leader(p) for p in wanted}

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
        if node_id not in self.metadata.brokers:
            await self.refresh()
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise Retriable(
                "no broker with this id in the metadata", cluster=self.name, node=node_id
            )
        return await self._pool.get(Key(node_id, lane), Address(broker.host, broker.port))

    async def any_connection(self) -> Connection:
        """Return a connection to some broker.

        Raises:
            Retriable: no broker is reachable within default.api.timeout.ms.
        """
        return await self.persist(lambda: self.connection(self._pick(None)))

    def hangs(self, node_id: int, patience: float, lane: Lane = CONTROL) -> bool:
        """Whether a broker has not answered for `patience` seconds while requests are in flight."""
        connection = self.connected(node_id, lane)
        return connection is not None and connection.silent_s >= patience

    def borrow_lane(self) -> Lane:
        """Return a lane that is the caller's alone until `return_lane`; its connections stay open.

        For short-lived users: there are as many lanes as there are users at the same time.
        """
        number = next(number for number in itertools.count() if number not in self._borrowed)
        self._borrowed.add(number)
        return f"borrowed {number}"

    async def return_lane(self, lane: Lane) -> None:
        """Release a lane for the next user, without connections on which it would have to wait."""
        try:
            await self._pool.close_where(lambda key, its: key.lane == lane and its.in_flight > 0)
        finally:
            self._borrowed.discard(int(str(lane).rpartition(" ")[2]))

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
            connection = await self.connection(self._pick(node), lane)
            response = await connection.call(request, timeout=request_timeout)
            await self._judge(response.error_code if "error_code" in response.fields else 0)
            return response

        return await (attempt() if once else self.persist(attempt, timeout))

    async def coordinator(
        self, kind: Coordinator, key: str, *, timeout: float | None = None
    ) -> int:
        """Find the broker that coordinates a group or a transactional id (cached).

        Raises:
            Retriable: there is none within `timeout` (default.api.timeout.ms).
            UserError: no right to the group or the id.
        """
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        return await self.persist(lambda: self._find_coordinator(kind, key), timeout)

    def forget_coordinator(self, kind: Coordinator, key: str) -> None:
        """Drop the cached coordinator: it has moved, or does not answer."""
        self._coordinators.pop((kind, key), None)

    async def doubt_coordinator(self, kind: Coordinator, key: str) -> None:
        """Ask another broker than the cached coordinator, and trust it if it names another one.

        A broker that is cut off from all but its clients continues to answer as coordinator. If no
        other broker answers, nothing changes.
        """
        known = self._coordinators.get((kind, key))
        others = [node for node in self.metadata.brokers if node != known]
        if known is not None and others:
            with suppress(TwinlogError):
                await self._find_coordinator(kind, key, self.rng.choice(others))

    async def call_coordinator(
        self,
        kind: Coordinator,
        key: str,
        request: Any,
        *,
        code: Callable[[Any], int] | None = None,
        timeout: float | None = None,
        request_timeout: float | None = None,
        lane: Lane = CONTROL,
        before_send: BeforeSend = nothing,
        resend: bool = True,
    ) -> Any:
        """Send a request to a coordinator, even if it moves, until it answers.

        `code` extracts the error code of a response that does not have it at its top.
        `before_send` is called before each send; an exception from it ends the call.
        `resend` False is for what must not arrive twice: after a lost answer there is no next try.

        Raises:
            Retriable: no success within `timeout` (default.api.timeout.ms).
            Disconnected: without `resend`, the answer was lost.
        """
        lost: Disconnected | None = None

        async def attempt() -> Any:
            node = await self.coordinator(kind, key)
            try:
                connection = await self.connection(node, lane)
                await connection.ready()
                before_send()
                response = await connection.call(request, timeout=request_timeout)
            except (Retriable, ProtocolError) as error:
                self.forget_coordinator(kind, key)
                if resend or not isinstance(error, Disconnected):
                    raise
                nonlocal lost
                lost = error
                return None
            number = response.error_code if code is None else code(response)
            if code_of(number).reaction is Reaction.COORDINATOR:
                self.forget_coordinator(kind, key)
                check(number, f"call the coordinator of {key}")
            await self._judge(number)
            return response

        response = await self.persist(attempt, timeout)
        if lost is not None:
            raise lost
        return response

    async def persist(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Await `attempt()` until it raises nothing retriable; bounded in time and number.

        Raises:
            Retriable: the last try's error, or the deadline has passed.
        """
        timeout = self.config.api_timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failure: TwinlogError | None = None
        for tries in range(1, MAX_TRIES + 1):
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                late = Retriable(f"timed out after {timeout:g} s", cluster=self.name)
                raise (failure or late) from error
            except TwinlogError as error:
                failure = self._named(error)
                if not _once_more(error, tries):
                    raise
            pause = self._pause(failure, tries)
            if loop.time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        assert failure is not None
        raise failure

    @contextmanager
    def needing(self, operation: str, resource: str) -> Iterator[None]:
        """If a right is missing, name the principal, the operation and the resource."""
        try:
            yield
        except TwinlogError as error:
            if error.code in DENIED:
                self._named(error).hint = f"grant this principal {operation} on {resource}"
            raise

    # Internals

    def _named(self, error: TwinlogError) -> TwinlogError:
        error.cluster = error.cluster or self.name
        if error.code in DENIED:
            error.principal = self.config.security.principal
        return error

    def _pause(self, failure: TwinlogError, tries: int) -> float:
        concurrent = failure.code == ErrorCode.CONCURRENT_TRANSACTIONS
        return (_CONCURRENT_BACKOFF if concurrent else self._backoff).delay(
            tries, self.rng.random()
        )

    async def _find_coordinator(self, kind: Coordinator, key: str, node: int | None = None) -> int:
        request = FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
        connection = await self.connection(self._pick(node))
        response = await connection.call(request)
        found = response.coordinators[0] if response.coordinators else response
        what = f"find the coordinator of {kind.name.lower()} {key}"
        check(found.error_code, what, found.error_message)
        self._coordinators[kind, key] = found.node_id
        return int(found.node_id)

    async def _judge(self, code: int) -> None:
        """Raise if the whole request should be retried, after a refresh of what is stale."""
        reaction = code_of(code).reaction
        if reaction is Reaction.METADATA:
            await self.refresh()
        if reaction in (Reaction.METADATA, Reaction.RETRY, Reaction.COORDINATOR):
            check(code, "call the broker")

    def _pick(self, node: int | Role | None) -> int:
        if isinstance(node, int):
            return node
        if node is CONTROLLER and self.metadata.controller_id in self.metadata.brokers:
            return self.metadata.controller_id
        if not self.metadata.brokers:
            raise Retriable("the metadata contains no broker", cluster=self.name)
        return self._willing()[0]

    def _willing(self) -> list[int]:
        """All brokers; first those that are likely to answer soon."""
        brokers = self._shuffled()
        return sorted(brokers, key=lambda n: (self._reluctance(n), self.connected(n) is None))

    def _shuffled(self) -> list[int]:
        brokers = list(self.metadata.brokers)
        self.rng.shuffle(brokers)
        return brokers

    def _reluctance(self, node_id: int) -> tuple[int, bool]:
        """Sort key: brokers that are unreachable or do not answer come last."""
        return self._pool.failures(Key(node_id, CONTROL)), self.hangs(node_id, SILENT)

    async def _run(self, batch: _Batch) -> Metadata:
        async with self._refreshing:
            # No wait after `start`, which asked for no topic: a command's first request is urgent.
            await asyncio.sleep(max(self._not_before - self._clock(), 0))
            self._next_batch = None
            try:
                return await self.persist(lambda: self._fetch_metadata(batch.topics))
            finally:
                self._not_before = self._clock() + self.config.retry_backoff

    async def _fetch_metadata(self, topics: set[str] | None) -> Metadata:
        """Get metadata from a known broker; if none answers soon, from a bootstrap server.

        All callers wait for this, so a broker that hangs must not delay it by request.timeout.ms.
        The broker changes from call to call, connected or not: a broker that is cut off from the
        other brokers, but not from its clients, continues to name the leaders that it knows, itself
        among them.
        """
        brokers = self.metadata.brokers
        willing = sorted(self._shuffled(), key=self._reluctance)
        for node_id, patience in zip(willing, METADATA_PATIENCE, strict=False):
            address = Address(brokers[node_id].host, brokers[node_id].port)
            try:
                async with asyncio.timeout(patience):
                    connection = await self._pool.get(Key(node_id, CONTROL), address)
                    return await self._ask(connection, topics)
            except (Retriable, ProtocolError, TimeoutError) as error:
                log.debug("no metadata from node %d: %s", node_id, error)
        return await self._bootstrap(topics)

    async def _bootstrap(
        self, topics: Collection[str] | None = (), each: float | None = None
    ) -> Metadata:
        """Get metadata from the first bootstrap server that answers within `each` seconds."""
        failures: list[str] = []
        hints: list[str] = []
        servers = list(self.config.bootstrap_servers)
        self.rng.shuffle(servers)
        for address in servers:
            try:
                async with asyncio.timeout(each):
                    connection = await self._pool.open(address)
                    try:
                        return await self._ask(connection, topics)
                    finally:
                        await connection.close()
            except TimeoutError:
                failures.append(f"{address}: no response within {each:g} s")
            except (Retriable, ProtocolError) as error:
                failures.append(error.message)
                hints += [error.hint] if error.hint else []
        raise Retriable(
            f"no bootstrap server responds: {'; '.join(failures)}",
            cluster=self.name,
            hint="; ".join(dict.fromkeys(hints))
            or "compare bootstrap.servers and security.protocol with the brokers' listeners",
        )

    async def _ask(self, connection: Connection, topics: Collection[str] | None) -> Metadata:
        item = MetadataRequest.MetadataRequestTopic
        named = None if topics is None else [item(name=name) for name in sorted(topics)]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False, min_version=4)
        response = await connection.call(request)
        check(response.error_code, "get metadata")
        old = self.metadata
        self.metadata = merge(old, response, everything=topics is None)
        self._refreshed_at = self._clock()
        moved = {n for n, b in old.brokers.items() if self.metadata.brokers.get(n) != b}
        if moved:
            await self._pool.close_where(lambda key, _: key.node_id in moved)
        return self.metadata

    async def _keep_house(self) -> None:
        """Refresh stale metadata and close idle connections, until the cluster is closed."""
        config = self.config
        period = min(config.metadata_max_age / 2, config.max_idle / 2, MAX_HOUSEKEEPING)
        while True:
            await asyncio.sleep(period)
            await self._pool.close_where(self._idle)
            if self._clock() - self._refreshed_at >= config.metadata_max_age:
                await self._refresh_old()

    def _idle(self, _key: Key, connection: Connection) -> bool:
        since = asyncio.get_running_loop().time() - connection.last_used
        busy = connection.in_flight or connection.throttled
        return not busy and since > self.config.max_idle

    async def _refresh_old(self) -> None:
        try:
            await self.refresh(list(self.metadata.topics))
        except TwinlogError as error:
            log.warning("cannot refresh the metadata, the cached metadata stays in use: %s", error)

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Retrieve the outcome, so that it is not reported as lost: a waiter may be cancelled."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


def _once_more(error: TwinlogError, tries: int) -> bool:
    if isinstance(error, ProtocolError):
        return tries < MAX_NONSENSE
    return isinstance(error, Retriable)
