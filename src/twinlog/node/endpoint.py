"""A small HTTP server for metrics and probes, in the node's event loop.

In a thread of its own it would report a healthy node after the loop had stopped. It answers GET and
HEAD, one request on each connection; a request that h11 does not accept as HTTP/1.1 is refused.

A probe is answered however many idle clients are connected: the oldest connection is closed to make
room. An answer that takes long to render (metrics of thousands of partitions) is a coroutine, which
does not block the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Self

import h11

from twinlog.kafka.errors import UserError

PATIENCE_S: Final = 10.0
"""How long a client may take to send its request and to receive the answer."""
MAX_REQUEST: Final = 16 * 1024
MAX_CLIENTS: Final = 64
_READ: Final = 4096


class Answer(NamedTuple):
    """The HTTP response of a path."""

    status: int
    content_type: str
    body: bytes


Answers = Mapping[str, Callable[[], Answer | Awaitable[Answer]]]
_TEXT: Final = "text/plain; charset=utf-8"


class Endpoint:
    """The HTTP server; `answers` has a function for each path."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], None] = {}
        """In the order of their connections."""

    async def start(self, host: str, port: int) -> Self:
        """Listen at this address.

        Raises:
            UserError: the address is in use, or does not exist.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot serve metrics at {host}:{port}: {reason}") from error
        return self

    async def close(self) -> None:
        """Stop listening, and drop all connections."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= MAX_CLIENTS:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[task] = None
        writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits until all is sent
        sent = False
        try:
            # A client that sends nothing, disconnects or was closed to make room is not an error.
            with suppress(TimeoutError, OSError, asyncio.CancelledError):
                async with asyncio.timeout(PATIENCE_S):
                    writer.write(await self._respond(reader))
                    await writer.drain()
                    sent = True
        finally:
            self._clients.pop(task, None)
            if sent:
                writer.close()
            else:  # close() would keep the answer in memory until the client reads it
                writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        """The whole answer to one request; empty if no request came."""
        peer = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
        try:
            request = await _request(peer, reader)
        except h11.RemoteProtocolError as error:
            return _sent(peer, Answer(error.error_status_hint, _TEXT, b"no HTTP/1.1\n"))
        if request is None:
            return b""
        result = self._answer(request)
        answer = result if isinstance(result, Answer) else await result
        return _sent(peer, answer, with_body=request.method != b"HEAD")

    def _answer(self, request: h11.Request) -> Answer | Awaitable[Answer]:
        path = request.target.decode("ascii").partition("?")[0]
        handler = self._answers.get(path)
        if handler is None:
            paths = " ".join(self._answers)
            return Answer(404, _TEXT, f"available: {paths}\n".encode())
        if request.method not in {b"GET", b"HEAD"}:
            return Answer(405, _TEXT, b"GET and HEAD are answered\n")
        return handler()


async def _request(peer: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    while True:
        event = peer.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        peer.receive_data(await reader.read(_READ))


def _sent(peer: h11.Connection, answer: Answer, *, with_body: bool = True) -> bytes:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("connection", "close"),
    ]
    data = peer.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if with_body:
        data += peer.send(h11.Data(data=answer.body)) or b""
    return data + (peer.send(h11.EndOfMessage()) or b"")
