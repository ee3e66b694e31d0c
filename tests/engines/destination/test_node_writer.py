"""The writer to one broker, tested without a broker."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.engines.destination import node_writer
from twinlog.engines.destination.node_writer import NodeWriter
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Fenced, Retriable
from twinlog.kafka.requests.topic_keys import TopicKeys


class _Unreachable(SimpleNamespace):
    """A cluster whose brokers refuse every connection."""

    name = "destination"
    config = SimpleNamespace(request_timeout=1.0)

    def connected(self, _node: int, _lane: str) -> None:
        return None

    async def connection(self, _node: int, _lane: str) -> None:
        raise Fenced("the lease has ended")


def test_a_refusal_without_a_waiter_is_not_logged() -> None:
    """An engine that ends drops its answers; asyncio must not log them."""
    logged: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        cluster = cast(KafkaCluster, _Unreachable())
        writer = NodeWriter(cluster, 1, TopicKeys(), lambda: None)
        answer = writer.send([])
        await asyncio.wait([answer])
        assert answer.done()
        del answer
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(run())
    assert logged == []


def test_answers_are_delivered_in_request_order() -> None:
    """A queued request is refused after the answers before it, and before the answers behind it.

    The partition's machine assigns the next answer to its oldest batch.
    """

    async def run() -> None:
        loop = asyncio.get_running_loop()
        sent: list[asyncio.Future[memoryview]] = [loop.create_future() for _ in range(2)]
        bodies = iter(sent)
        ready = asyncio.Event()
        connection = SimpleNamespace(
            can_send=True,
            ready=lambda _: ready.wait(),
            send_raw=lambda *_, **__: next(bodies),
            negotiate=lambda *_: 9,
            throttle=lambda _: None,
        )
        config = SimpleNamespace(request_timeout=30.0)
        cluster: Any = SimpleNamespace(name="d", config=config, connected=lambda *_: connection)
        keys = TopicKeys()
        writer = NodeWriter(cluster, 1, keys, lambda: None)
        first = writer.send([])
        connection.can_send = False  # a throttle
        second = writer.send([])
        await asyncio.sleep(0)
        keys.generation += 1  # another topic was recreated
        ready.set()
        await asyncio.sleep(0.01)
        assert not second.done()
        connection.can_send = True
        third = writer.send([])
        answered: list[object] = []
        for answer in (first, second, third):
            answer.add_done_callback(answered.append)
        for body in sent:  # both answered by the same bytes from the network
            body.set_result(memoryview(b"\x01\0\0\0\0\0"))
        await asyncio.wait([first, second, third])
        await asyncio.sleep(0)
        assert answered == [first, second, third]
        assert isinstance(second.exception(), Retriable)

    asyncio.run(run())


def test_a_queued_request_of_an_ended_engine_is_not_sent() -> None:
    """Goal: a queued request is dropped when its engine ends, however long the lease is.

    The lane may have lost the request's partition, and hold a lease again for other partitions.
    """

    async def run() -> None:
        sent: list[asyncio.Future[memoryview]] = []

        def send_raw(*_: object, **__: object) -> asyncio.Future[memoryview]:
            sent.append(asyncio.get_running_loop().create_future())
            return sent[-1]

        ready = asyncio.Event()
        connection = SimpleNamespace(
            can_send=False,  # a throttle
            ready=lambda _: ready.wait(),
            send_raw=send_raw,
            negotiate=lambda *_: 9,
            throttle=lambda _: None,
        )
        config = SimpleNamespace(request_timeout=30.0)
        cluster: Any = SimpleNamespace(name="d", config=config, connected=lambda *_: connection)
        writer = NodeWriter(cluster, 1, TopicKeys(), lambda: None)

        async def engine(answer: "asyncio.Future[Any]") -> None:
            await answer

        former = asyncio.create_task(engine(writer.send([])))
        await asyncio.sleep(0)
        former.cancel()
        await asyncio.wait([former])
        owner = writer.send([])
        ready.set()
        await asyncio.sleep(0.01)
        assert len(sent) == 1
        sent[0].set_result(memoryview(b"\x01\0\0\0\0\0"))
        assert await owner == {}

    asyncio.run(run())


@pytest.mark.parametrize("throttle_ms", [node_writer.LONG_THROTTLE_MS, 999])
def test_behind_a_long_throttle_one_request_is_in_flight(throttle_ms: int) -> None:
    """Goal: a broker that throttles again holds no requests that it would carry out much later.

    A short throttle ends within a lease, and costs no throughput.
    """

    async def run() -> None:
        sent: list[asyncio.Future[memoryview]] = []

        def send_raw(*_: object, **__: object) -> asyncio.Future[memoryview]:
            sent.append(asyncio.get_running_loop().create_future())
            return sent[-1]

        async def ready(_: float) -> None: ...

        throttles: list[int] = []
        connection = SimpleNamespace(
            can_send=True,
            ready=ready,
            send_raw=send_raw,
            negotiate=lambda *_: 9,
            throttle=throttles.append,
        )
        config = SimpleNamespace(request_timeout=30.0)
        cluster: Any = SimpleNamespace(name="d", config=config, connected=lambda *_: connection)
        writer = NodeWriter(cluster, 1, TopicKeys(), lambda: None)
        first = writer.send([])
        throttle = throttle_ms.to_bytes(4)
        sent[0].set_result(memoryview(b"\x01" + throttle + b"\0"))
        await first
        assert throttles == [throttle_ms]
        answers = [writer.send([]) for _ in range(3)]
        await asyncio.sleep(0.01)
        for at in range(1, 4):
            assert len(sent) == (4 if throttle_ms < node_writer.LONG_THROTTLE_MS else at + 1)
            sent[at].set_result(memoryview(b"\x01\0\0\0\0\0"))
            await asyncio.sleep(0.01)
        assert [answer.result() for answer in answers] == [{}, {}, {}]
        if throttle_ms >= node_writer.LONG_THROTTLE_MS:
            writer._alone_until = 0.0  # the minute has passed
            _ = [writer.send([]) for _ in range(2)]
            assert len(sent) == 6

    asyncio.run(run())
