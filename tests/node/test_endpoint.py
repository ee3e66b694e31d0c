"""The HTTP port, with clients of all kinds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from twinlog.node import endpoint as endpoint_module
from twinlog.node.endpoint import MAX_CLIENTS, MAX_REQUEST, Answer, Endpoint

HEAD = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def serve(talk: Callable[[int], Awaitable[None]]) -> None:
    """Run a client against an endpoint with one path."""

    async def body() -> None:
        endpoint = Endpoint({"/here": lambda: Answer(503, "text/plain", b"so\n")})
        await endpoint.start("127.0.0.1", 0)
        assert endpoint._server is not None
        try:
            await talk(endpoint._server.sockets[0].getsockname()[1])
        finally:
            await endpoint.close()

    asyncio.run(body())


async def exchange(port: int, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status", "end"),
    [
        (HEAD % b"/here", b"503", b"\r\n\r\nso\n"),
        (HEAD % b"/here?x=1", b"503", b"\r\n\r\nso\n"),
        (HEAD % b"/", b"404", b"available: /here\n"),
        ((HEAD % b"/here").replace(b"GET", b"HEAD"), b"503", b"\r\n\r\n"),
        ((HEAD % b"/here").replace(b"GET", b"POST"), b"405", b"GET and HEAD are answered\n"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"400", b"no HTTP/1.1\n"),
        (HEAD % (b"/" + b"x" * 2 * MAX_REQUEST), b"431", b"no HTTP/1.1\n"),
    ],
)
def test_requests_are_answered_whole_and_byte_by_byte(
    request_bytes: bytes, status: bytes, end: bytes
) -> None:
    """Requests are answered whole and byte by byte."""

    async def talk(port: int) -> None:
        answer = await exchange(port, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.endswith(end)
        assert b"connection: close" in answer.lower()
        if status not in {b"400", b"431"}:  # the rest of a refused request is not read
            assert answer == await exchange(port, *(bytes([one]) for one in request_bytes))

    serve(talk)


def test_a_client_that_sends_nothing_gets_no_answer() -> None:
    """Silent clients get no answer: one that disconnects, and one connected when the node ends."""

    async def talk(port: int) -> None:
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.close()
        reader, stays = await asyncio.open_connection("127.0.0.1", port)
        assert (await exchange(port, HEAD % b"/here")).startswith(b"HTTP/1.1 503")
        task = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        stays.close()
        assert await task == b""

    serve(talk)


def test_idle_clients_do_not_delay_a_probe() -> None:
    """Any number of idle clients: the one that has waited longest is closed for the next."""

    async def talk(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MAX_CLIENTS)]
        for _ in range(3):
            answer = await asyncio.wait_for(exchange(port, HEAD % b"/here"), 60)
            assert answer.endswith(b"so\n")
        assert await asyncio.wait_for(idle[0][0].read(), 60) == b"", "it made room"
        for _, writer in idle:
            writer.close()

    serve(talk)


def test_an_answer_to_a_client_that_does_not_read_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer larger than the system's buffers is dropped after a while."""
    monkeypatch.setattr(endpoint_module, "PATIENCE_S", 0.1)
    served: list[asyncio.StreamWriter] = []

    async def body() -> None:
        large = Answer(200, "text/plain", bytes(32 << 20))
        endpoint = Endpoint({"/large": lambda: large})
        serving = endpoint._serve

        async def noting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.append(writer)
            await serving(reader, writer)

        monkeypatch.setattr(endpoint, "_serve", noting)
        await endpoint.start("127.0.0.1", 0)
        assert endpoint._server is not None
        port = endpoint._server.sockets[0].getsockname()[1]
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(60):
            while not served or not served[0].transport.is_closing():
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)
        assert served[0].transport.get_write_buffer_size() == 0
        client.transport.abort()
        await endpoint.close()

    asyncio.run(body())


def test_a_slow_answer_does_not_delay_others() -> None:
    """One example is the metrics of many partitions."""
    rendered = asyncio.Event()

    async def slow() -> Answer:
        await rendered.wait()
        return Answer(200, "text/plain", b"at last\n")

    async def body() -> None:
        endpoint = Endpoint({"/slow": slow, "/here": lambda: Answer(200, "text/plain", b"so\n")})
        await endpoint.start("127.0.0.1", 0)
        assert endpoint._server is not None
        port = endpoint._server.sockets[0].getsockname()[1]
        waiting = asyncio.create_task(exchange(port, HEAD % b"/slow"))
        answer = await asyncio.wait_for(exchange(port, HEAD % b"/here"), 60)
        assert answer.endswith(b"so\n")
        assert not waiting.done()
        rendered.set()
        assert (await waiting).endswith(b"at last\n")
        await endpoint.close()

    asyncio.run(body())
