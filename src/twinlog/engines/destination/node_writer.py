"""Produce requests to one broker, on one connection, in the order in which they were given.

The append relies on this order. A batch that overtakes the one before it is refused where the
sequence guards it, and lands at the wrong offset where nothing guards it yet (a partition's first).
So a request either follows the one before it on the same connection, or is not sent:

    the connection                 a request
    ---------------------------    -----------------------------------------------------------
    is open and takes requests     is handed to it before `send` returns
    is open, takes none now        waits for *this* connection, behind requests that wait already
    does not exist                 waits until it does
    is lost, or late               is refused (Retriable: nothing was sent), and so are all
                                   requests that wait behind it
    is throttled by a quota        waits until it is not
    was, for long                  waits until the one before it is answered

A broker that throttles reads nothing more of the connection, but what it has received it carries
out afterwards, also if the lane has died meanwhile: later than any lease. So behind a long throttle
one request is in flight.

A request is also refused if a topic was found to have another id while it waited: it was meant for
the topic before it was recreated.

The lease is checked when bytes are handed over, not when the request is given: a request that still
waits when the lease ends is never sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from twinlog.engines.ports import Appended, Batch
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.errors import Disconnected, ProtocolError, Retriable, TwinlogError
from twinlog.kafka.protocol import produce
from twinlog.kafka.requests.topic_keys import TopicKeys
from twinlog.kafka.types import TopicPartition

LANE: Final = "produce"
MAX_WAITING: Final = 256
"""The most requests that wait for the connection."""
LONG_THROTTLE_MS: Final = 1000
ALONE_S: Final = 60.0
"""For how long after such a throttle one request is in flight: the quota is likely to apply again.
Brokers measure a rate over 11 s (quota.window.num)."""
_BROKER_SHARE: Final = 0.8
"""Share of the request timeout that the broker may wait for its followers."""

Answers: TypeAlias = Mapping[TopicPartition, Appended]


class _Given(NamedTuple):
    batches: Sequence[Batch]
    answer: asyncio.Future[Answers]
    generation: int  # of the topic keys when the request was given
    before: asyncio.Future[Answers] | None  # the answer to the request before it


class NodeWriter:
    """The writer to one broker. `permit` raises if the lane may not write any more."""

    def __init__(
        self, cluster: KafkaCluster, node: int, keys: TopicKeys, permit: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._keys = keys
        self._permit = permit
        self._queue: deque[_Given] = deque()
        self._last_answer: asyncio.Future[Answers] | None = None
        self._last_sent: asyncio.Future[memoryview] | None = None
        self._alone_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timeout = cluster.config.request_timeout

    def send(self, batches: Sequence[Batch]) -> asyncio.Future[Answers]:
        """Give a request; its answer is settled after those of the requests before it.

        Cancelling the future withdraws a request that still waits, but not one that was sent.
        """
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        request = _Given(batches, answer, self._keys.generation, self._last_answer)
        self._last_answer = answer
        connection = self._cluster.connected(self._node, LANE)
        ready = connection is not None and connection.can_send and self._must_precede is None
        if not self._queue and connection is not None and ready:
            self._transmit(connection, request)
        elif len(self._queue) >= MAX_WAITING:
            _refuse(request, self._unsent("too many Produce requests are queued"))
        else:
            self._queue.append(request)
            if len(self._queue) == 1:
                self._spawn(self._send_waiting(connection))
        return answer

    @property
    def _must_precede(self) -> "asyncio.Future[memoryview] | None":
        """The response that the next request has to wait for, if any."""
        last = self._last_sent
        if last is None or last.done() or asyncio.get_running_loop().time() >= self._alone_until:
            return None
        return last

    async def _send_waiting(self, connection: Connection | None) -> None:
        """Send the waiting requests in order, on one connection; after an error refuse the rest."""
        failure: TwinlogError = self._unsent("closed")
        try:
            if connection is None:
                async with asyncio.timeout(self._timeout):
                    connection = await self._cluster.connection(self._node, LANE)
            while self._queue:
                await connection.ready(self._timeout)
                if (before := self._must_precede) is not None:
                    await asyncio.wait([before])
                    continue
                self._transmit(connection, self._queue.popleft())
        except TimeoutError:
            failure = self._unsent(f"no connection within {self._timeout:g} s")
        except Retriable as error:
            failure = self._unsent(str(error))
        except TwinlogError as error:
            failure = error
        finally:
            while self._queue:
                _refuse(self._queue.popleft(), copy(failure))

    def _transmit(self, connection: Connection, request: _Given) -> None:
        """Hand a request over. An error is its answer.

        A cancelled request is not sent: its engine has ended, and another owner may have its
        partitions, even if this lane holds a lease again.
        """
        if request.answer.cancelled():
            return
        if request.generation != self._keys.generation:
            _refuse(request, self._unsent("a topic was recreated in the meantime"))
            return
        try:
            version = self._keys.version(
                connection,
                produce.API_KEY,
                produce.MIN_VERSION,
                produce.MAX_VERSION,
                produce.BY_ID,
            )
            keys, names = self._keys.maps(by_id=version >= produce.BY_ID)
            milliseconds = int(self._timeout * _BROKER_SHARE * 1000)
            parts = produce.encode_produce(keys, request.batches, timeout_ms=milliseconds)
            self._permit()
            self._last_sent = body = connection.send_raw(
                produce.API_KEY, version, parts, flexible=True
            )
        except KeyError as error:
            _refuse(request, self._unsent(f"the metadata has no topic {error}"))
        except Retriable as error:
            _refuse(request, self._unsent(str(error)))
        except TwinlogError as error:
            _refuse(request, error)
        else:
            decode = partial(produce.decode_produce, version, names)
            body.add_done_callback(partial(self._answered, connection, request, decode))

    def _answered(
        self,
        connection: Connection,
        request: _Given,
        decode: Callable[[memoryview], produce.ProduceResponse],
        body: asyncio.Future[memoryview],
    ) -> None:
        """Take the response, or its absence. A response that cannot be decoded counts as none."""
        try:
            response = decode(body.result())
            answers = _answers(response, request.batches)
        except ProtocolError as error:
            self._spawn(connection.close())
            _refuse(request, self._unknown(error))
        except TwinlogError as error:
            _refuse(request, self._unknown(error))
        else:
            connection.throttle(response.throttle_ms)
            if response.throttle_ms >= LONG_THROTTLE_MS:
                now = asyncio.get_running_loop().time()
                self._alone_until = now + response.throttle_ms / 1000 + ALONE_S
            _in_turn(request, partial(request.answer.set_result, answers))

    def _unsent(self, why: str) -> Retriable:
        return Retriable(f"not sent: {why}", cluster=self._cluster.name, node=self._node)

    def _unknown(self, error: TwinlogError) -> Disconnected:
        disconnect = Disconnected(str(error), cluster=self._cluster.name, node=self._node)
        disconnect.__cause__ = error
        return disconnect

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _answers(response: produce.ProduceResponse, batches: Sequence[Batch]) -> Answers:
    """The result of each batch.

    Raises:
        ProtocolError: a batch has no result.
    """
    for batch in batches:
        if batch.partition not in response.partitions:
            raise ProtocolError(f"a Produce response leaves out {batch.partition}")
    return response.partitions


def _refuse(request: _Given, error: TwinlogError) -> None:
    """End a request with an error, which may never be retrieved: its engine may have ended."""

    def refuse() -> None:
        request.answer.set_exception(error)
        request.answer.exception()  # otherwise asyncio logs that it was never retrieved

    _in_turn(request, refuse)


def _in_turn(request: _Given, settle: Callable[[], None]) -> None:
    """Settle an answer after those before it: answers of a partition follow its batches' order."""
    if request.before is not None and not request.before.done():
        request.before.add_done_callback(lambda _: _in_turn(request, settle))
    elif not request.answer.done():
        settle()
