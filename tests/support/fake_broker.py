"""A server on loopback that speaks Kafka's frames and sends the answers that a test chooses."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from kafka.protocol.api_header import ResponseHeader
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as claimed:
        claimed.bind(("127.0.0.1", 0))
        yield claimed.getsockname()[1]


API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
HEARTBEAT = 12
RANGES = {3: (0, 12), 12: (0, 4), 17: (0, 1), 18: (0, 4), 36: (0, 2)}


@dataclass
class Request:
    """A request as received, with its first eight bytes parsed."""

    api_key: int
    version: int
    correlation_id: int
    frame: bytes


Answer = Callable[[Request], Awaitable[bytes | None]]


def framed(correlation_id: int, body: bytes, *, flexible: bool = False) -> bytes:
    """Encode a response with its length in front."""
    head = bytes(ResponseHeader(correlation_id=correlation_id).encode(flexible=flexible))
    return struct.pack(">i", len(head) + len(body)) + head + body


async def echo(request: Request) -> bytes:
    """Answer with the request's own bytes."""
    return framed(request.correlation_id, request.frame)


@dataclass
class FakeBroker:
    """Answers ApiVersions and SASL itself, all else by `answer`; None sends no answer."""

    answer: Answer = echo
    ranges: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(RANGES))
    session_lifetime_ms: int = 0
    password: str = "secret"
    mute: bool = False
    requests: list[Request] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    server: Any = None

    @property
    def port(self) -> int:
        return int(self.server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        for writer in self.writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
                request = Request(api_key, version, correlation_id, frame)
                self.requests.append(request)
                if self.mute:
                    continue
                response = self._own(request) or await self.answer(request)
                if response is not None:
                    writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _own(self, request: Request) -> bytes | None:
        match request.api_key:
            case 18:
                return framed(request.correlation_id, self._versions(request.version))
            case 17:
                error = 0 if request.frame.endswith(b"PLAIN") else 33
                response = SaslHandshakeResponse(error_code=error, mechanisms=["PLAIN", "OTHER"])
                return framed(request.correlation_id, bytes(response.encode(version=1)))
            case 36:
                good = request.frame.rstrip(b"\0").endswith(self.password.encode())
                response = SaslAuthenticateResponse(
                    error_code=0 if good else 58,
                    error_message=None if good else "wrong password",
                    auth_bytes=b"",
                    session_lifetime_ms=self.session_lifetime_ms,
                )
                body = bytes(response.encode(version=request.version))
                return framed(request.correlation_id, body, flexible=request.version >= 2)
        return None

    def _versions(self, version: int) -> bytes:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=k, min_version=low, max_version=high)
            for k, (low, high) in self.ranges.items()
        ]
        if version > self.ranges[API_VERSIONS][1]:
            return bytes(ApiVersionsResponse(error_code=35, api_keys=keys).encode(version=0))
        response = ApiVersionsResponse(error_code=0, api_keys=keys)
        return bytes(response.encode(version=version))
