"""One connection attempt at a time, backoff that grows, and nothing left at the end."""

import asyncio
import random

import pytest
from fake_broker import API_VERSIONS, FakeBroker, Request, framed, refusing_port
from kafka.protocol.metadata import MetadataResponse

from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.client.connection import Counters
from twinlog.kafka.client.pool import Key, Pool
from twinlog.kafka.errors import Disconnected, Retriable

KEY = Key(1, "control")
METADATA = 3


def _pool(port: int, **options: float) -> Pool:
    config = ClusterConfig(bootstrap_servers=(Address("127.0.0.1", port),), **options)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    return Pool(config, rng=random.Random(1), clock=loop.time, counters=Counters())


def test_concurrent_callers_share_one_connection() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            pool = _pool(broker.port)
            address = Address("127.0.0.1", broker.port)
            connections = await asyncio.gather(*(pool.get(KEY, address) for _ in range(20)))
            assert len({id(c) for c in connections}) == 1
            assert len(broker.writers) == 1
            other = await pool.get(Key(1, 7), address)
            assert other is not connections[0]
            assert pool.peek(KEY) is connections[0]
            await pool.close()
            assert pool.peek(KEY) is None
            with pytest.raises(Disconnected):
                await pool.get(KEY, address)

    asyncio.run(run())


def test_a_cancelled_caller_does_not_cancel_the_shared_connection_attempt() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            pool = _pool(broker.port)
            address = Address("127.0.0.1", broker.port)
            first = asyncio.create_task(pool.get(KEY, address))
            second = asyncio.create_task(pool.get(KEY, address))
            await asyncio.sleep(0)
            first.cancel()
            assert not (await second).closed
            await pool.close()

    asyncio.run(run())


def test_connection_attempts_back_off_after_failures() -> None:
    async def run() -> None:
        with refusing_port() as port:
            pool = _pool(port, reconnect_backoff=0.1, reconnect_backoff_max=1000.0)
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number in range(1, 4):
                with pytest.raises(Retriable, match="refused"):
                    await pool.get(KEY, Address("127.0.0.1", port))
                assert pool.failures(KEY) == number
        assert 0.8 * 0.3 <= loop.time() - began < 100
        await pool.close()

    asyncio.run(run())


def test_close_cancels_a_hanging_connection_attempt() -> None:
    async def run() -> None:
        async with FakeBroker(mute=True) as broker:
            pool = _pool(broker.port)
            waiting = asyncio.create_task(pool.get(KEY, Address("127.0.0.1", broker.port)))
            await asyncio.sleep(0.05)
            await pool.close()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())


@pytest.mark.parametrize(("reported", "accepted"), [("mine", True), (None, True), ("other", False)])
def test_an_address_that_leads_to_another_cluster_gets_no_request(
    reported: str | None, accepted: bool
) -> None:
    """Goal: no request that writes reaches it; a broker that reports no id is believed."""

    async def answer(request: Request) -> bytes:
        response = MetadataResponse(
            brokers=[], cluster_id=reported, controller_id=1, topics=[], error_code=0
        )
        body = bytes(response.encode(version=request.version))
        return framed(request.correlation_id, body, flexible=True)

    async def run() -> None:
        async with FakeBroker(answer) as broker:
            pool = _pool(broker.port)
            pool.cluster_id = "mine"
            address = Address("127.0.0.1", broker.port)
            if accepted:
                assert not (await pool.get(KEY, address)).closed
            else:
                with pytest.raises(Retriable, match="a broker of cluster other, expected mine"):
                    await pool.get(KEY, address)
                assert pool.peek(KEY) is None
                assert pool.failures(KEY) == 1
            assert [request.api_key for request in broker.requests] == [API_VERSIONS, METADATA]
            await pool.close()

    asyncio.run(run())


def test_idle_connections_are_closed() -> None:
    """No state of them is kept."""

    async def run() -> None:
        async with FakeBroker() as broker:
            pool = _pool(broker.port)
            connection = await pool.get(KEY, Address("127.0.0.1", broker.port))
            await pool.close_where(lambda key, c: key == KEY and not c.in_flight)
            assert connection.closed
            assert not pool._slots
            await pool.close()

    asyncio.run(run())
