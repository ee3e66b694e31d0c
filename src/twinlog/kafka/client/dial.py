"""Connects a socket to a broker, with the options that must be set before it connects."""

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Final

from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.kafka.protocol import frames

MAX_ADDRESSES: Final = 8
"""Addresses of one host name that are tried."""
MAX_IN_FLIGHT: Final = 64
"""Requests of one connection that are in flight or wait to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a connection. Times are in seconds, sizes in bytes."""

    client_id: str = "twinlog"
    request_timeout: float = 30.0
    setup_timeout: float = 10.0
    max_frame: int = frames.MAX_FRAME
    max_in_flight: int = MAX_IN_FLIGHT
    send_buffer: int = -1
    """SO_SNDBUF; -1 leaves it to the kernel."""
    receive_buffer: int = -1
    """SO_RCVBUF; -1 leaves it to the kernel."""
    user_timeout: float | None = None
    """TCP_USER_TIMEOUT, where the platform has it: after this long without an acknowledgement the
    kernel drops the connection *and the data that it holds*, so that nothing old is sent later."""


async def dial(
    loop: asyncio.AbstractEventLoop, host: str, port: int, options: Options
) -> socket.socket:
    """Connect a socket to one of the host's addresses, tried in order."""
    failure = OSError("the host name resolves to no address")
    for family, kind, protocol, _, address in (await _resolve(loop, host, port))[:MAX_ADDRESSES]:
        sock = socket.socket(family, kind, protocol)
        try:
            _configure(sock, options)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """Resolve a name; a literal address needs no resolver (and so no thread)."""
    kind, numeric = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=numeric)
    except socket.gaierror:
        return list(await loop.getaddrinfo(host, port, type=kind))
    except UnicodeError as error:
        raise OSError("invalid host name") from error


def _configure(sock: socket.socket, options: Options) -> None:
    """Set what must be set before connecting (buffer sizes decide the window scale)."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if options.receive_buffer >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
    if options.send_buffer >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.user_timeout is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(options.user_timeout * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def dial_error(address: str, error: OSError) -> TwinlogError:
    """The error for a failed connection: UserError if the settings are wrong, else Retriable."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UserError(
            f"{address}: certificate verify failed: {error.verify_message}",
            hint="check ssl.truststore.*, and that the certificate contains this host name",
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return UserError(
            f"{address}: TLS handshake failed: {error.reason or error}",
            hint="compare security.protocol, ssl.keystore.* and ssl.truststore.* with the listener",
        )
    if error.errno is None or isinstance(error, socket.gaierror):
        return Retriable(f"{address}: {error.strerror or error}")
    return Retriable(f"{address}: {os.strerror(error.errno)}")
