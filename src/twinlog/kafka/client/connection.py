"""One connection to one broker: many requests in flight, answers strictly in order.

twinlog does not use kafka-python's connection because bytes that are forwarded have to be received
where they are forwarded from. The kernel writes into the frame itself (`receiver.py`); its body
goes to the caller as a writable `memoryview`, is patched in place and sent on.
docs/decisions/0004-asyncio-connections.md has the figures.

A broker answers a connection's requests in the order in which it received them. So the next answer
always belongs to the first request in flight; the correlation id only proves it. A request ends in
one of three ways:

    answered    the future has the response's body
    not sent    Retriable: it timed out before it was sent; it had no effect
    unknown     Disconnected (or, for the request whose answer was invalid, ProtocolError): the
                connection is closed, and it is unknown whether the broker has acted

A timeout closes the connection: a later answer could no longer be distinguished from the next
one's, and the requests behind the one that starves would starve, too.

Requests wait in `_outbox` while a gate is closed: `writing` (the kernel accepts no more),
`throttle` (the broker asked for a pause, KIP-219), `authentication` (a session is being renewed,
KIP-368: only the exchange may be sent). The outbox and the requests in flight are bounded together.

A throttle is a wait and no failure: timeouts count from its end. This also holds for requests in
flight: a broker that throttles mutes the connection, and reads them only afterwards (KIP-219).

Credentials are resolved when a connection is opened and when its session is renewed, so a password
that was changed on both sides is used by then.
"""

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest

from twinlog.kafka.client.authentication import authenticate
from twinlog.kafka.client.deadlines import Deadlines
from twinlog.kafka.client.dial import Options, dial, dial_error
from twinlog.kafka.client.receiver import Receiver
from twinlog.kafka.client.security import Security
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    Disconnected,
    ProtocolError,
    Retriable,
    TwinlogError,
    UserError,
    check,
)
from twinlog.kafka.protocol import frames
from twinlog.version import __version__

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

MAX_THROTTLE: Final = 3600.0
"""Seconds: no throttle is obeyed for longer. Brokers do not limit it: 4 MiB under a quota of 10
KB/s are about 400 s. Sending earlier gains nothing, since the broker has muted the connection."""
LONG_THROTTLE: Final = 10.0
"""Seconds: a throttle of this length or more is logged."""
WRITE_HIGH: Final = 4 << 20
"""Bytes that the kernel has not accepted yet; above it nothing more is written."""
LARGE: Final = 32 << 10
"""Bytes from which a part of a request gets its own system call."""
CLOSE_TIMEOUT: Final = 5.0
MIN_REAUTHENTICATION: Final = 1.0


@dataclass(slots=True)
class Counters:
    """What went through connections since they were created. Only grows."""

    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    responses: int = 0
    opened: int = 0
    throttled_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Request:
    """A request that has not ended. `correlation_id` is -1 until it is sent."""

    api_key: int
    api_version: int
    flexible: bool
    future: asyncio.Future[memoryview]
    start_time: float
    """When it was submitted; once it is in flight, when it was sent."""
    submitted_at: float
    timeout: float
    correlation_id: int = -1
    size: int = 0
    """Bytes of the body, once it is sent."""
    parts: Sequence[Buffer] = field(default=(), repr=False)


class Connection:
    """A connection that is open, negotiated and authenticated (see `open`)."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        security: Callable[[], Security],
        options: Options,
        counters: Counters,
        rng: random.Random,
    ) -> None:
        """Create a connection that is not open yet; callers use `open`."""
        self.host = host
        self.port = port
        self.versions: Mapping[int, tuple[int, int]] = {}
        """API key to the lowest and highest version that the broker supports."""
        self.counters = counters
        self._security = security
        self._options = options
        self._rng = rng
        self._client_id = options.client_id.encode()[: frames.MAX_CLIENT_ID]
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = Receiver(
            self._longest, self._on_frame, self._on_nonsense, self._gate, self._on_lost
        )
        self._counted_bytes = 0
        self._in_flight: deque[_Request] = deque()
        self._outbox: deque[_Request] = deque()
        self._gates: set[str] = set()
        self._room = asyncio.Event()
        self._room.set()
        self._correlation_id = 0
        self._error: TwinlogError | None = None
        self._alert: ssl.SSLError | None = None
        """The TLS error that ended the connection, if any: with TLS 1.3 a client's certificate is
        refused only after the handshake."""
        self._loss: asyncio.Future[None] = self._loop.create_future()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._deadlines = Deadlines(self._loop, self._end_late)
        self._throttled_until = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._broker_versions: Any = None
        self.last_used = self._loop.time()
        self._answered_at = self.round_trip_s = 0.0  # round trip: of ApiVersions, answered at once

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        security: Callable[[], Security] = Security,
        options: Options | None = None,
        counters: Counters | None = None,
        rng: random.Random | None = None,
    ) -> Self:
        """Connect, negotiate versions, authenticate; bounded by `options.setup_timeout`.

        `security` returns the credentials, now and whenever the session is renewed.

        Raises:
            Retriable: the address is unreachable, or the setup took too long; the message has the
                address and why. Or `security` cannot resolve the credentials.
            UserError: TLS or SASL settings do not match the broker's.
            ProtocolError: the peer is no Kafka broker.
        """
        options = options or Options()
        self = cls(
            host,
            port,
            security=security,
            options=options,
            counters=counters or Counters(),
            rng=rng or random.Random(),  # noqa: S311 (jitter, no secret)
        )
        try:
            async with asyncio.timeout(options.setup_timeout):
                credentials = security()
                await self._connect(credentials)
                await self._negotiate()
                await self._authenticate(credentials)
        except TimeoutError as error:
            await self.close()
            raise Retriable(
                f"{self.address}: cannot connect within {options.setup_timeout:g} s"
            ) from error
        except OSError as error:
            await self.close()
            raise dial_error(self.address, error) from error
        except Disconnected as error:
            await self.close()
            if self._alert is None:
                raise
            raise dial_error(self.address, self._alert) from error
        except BaseException:
            await self.close()
            raise
        self.counters.opened += 1
        return self

    @property
    def address(self) -> str:
        """`host:port`, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more. What was in flight has failed by then."""
        return self._error is not None

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._in_flight) + len(self._outbox)

    @property
    def throttled(self) -> bool:
        """Whether a pause that the broker asked for has not ended (KIP-219)."""
        return self._throttled_until > self._loop.time()

    @property
    def silent_s(self) -> float:
        """Seconds for which the next answer has been outstanding; 0 while the broker throttles."""
        if not self._in_flight:
            return 0.0
        return max(
            self._loop.time()
            - max(self._in_flight[0].start_time, self._answered_at, self._throttled_until),
            0.0,
        )

    @property
    def can_send(self) -> bool:
        """Whether a request would be written at once."""
        return not self._gates and not self.closed and self.in_flight < self._options.max_in_flight

    def negotiate(self, api_key: int, lowest: int, highest: int) -> int:
        """The highest version of an API that the broker and `lowest`..`highest` have in common.

        Raises:
            UserError: there is none.
        """
        broker_lowest, broker_highest = self.versions.get(api_key, (0, -1))
        version = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            raise UserError(
                f"{self.address}: API {api_key} is needed in a version from {lowest} to "
                f"{highest}, the broker supports {broker_lowest} to {broker_highest}",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return version

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until a request can be written at once.

        Args:
            timeout: seconds, not counted while the broker throttles; None: the caller bounds it.

        Raises:
            Disconnected: the connection is closed.
            Retriable: it could not be written within `timeout`.
        """
        start = self._loop.time()
        while not self.can_send:
            self._raise_if_closed()
            self._room.clear()
            try:
                async with asyncio.timeout_at(timeout and self._limit(start, timeout)):
                    await self._room.wait()
            except TimeoutError as error:
                assert timeout is not None
                if self._limit(start, timeout) <= self._loop.time():
                    raise Retriable(f"{self.address}: not sent within {timeout:g} s") from error

    async def call(self, request: Any, *, timeout: float | None = None) -> Any:
        """Send one of kafka-python's requests; return its decoded response.

        The version is the highest that both sides support, within the request's own `min_version`
        and `max_version`. A throttle in the response is obeyed before the next request.

        Raises:
            Retriable: it was not sent in time.
            Disconnected: the outcome is unknown.
            ProtocolError: the response cannot be decoded; the connection is closed.
            UserError: the broker does not support the API in a suitable version.
        """
        return await self._exchange(request, self._version(request), timeout)

    def send_raw(
        self,
        api_key: int,
        api_version: int,
        parts: Sequence[Buffer],
        *,
        flexible: bool,
        timeout: float | None = None,
    ) -> asyncio.Future[memoryview]:
        """Send a request whose body is `parts` in order; return a future of the response's body.

        For the hot path: nothing is encoded or decoded. The parts must not change until the future
        is done. The body is a view of its own buffer and may be written to.

        Raises:
            Disconnected: the connection is closed (nothing was sent).
            Retriable: `max_in_flight` requests have not ended: `await ready()` first.
        """
        return self._submit(api_key, api_version, parts, flexible=flexible, timeout=timeout)

    def throttle(self, milliseconds: int) -> None:
        """Send nothing for this long: a response's `throttle_time_ms` (KIP-219)."""
        pause = min(milliseconds / 1000, MAX_THROTTLE)
        until = self._loop.time() + pause
        if pause <= 0 or until <= self._throttled_until or self.closed:
            return
        if pause >= LONG_THROTTLE:
            log.warning("%s: throttled for %.0f s by a broker quota", self.address, pause)
        self.counters.throttled_seconds += until - max(self._throttled_until, self._loop.time())
        self._throttled_until = until
        self._gate("throttle", True)
        self._timer("throttle", pause, lambda: self._gate("throttle", False))

    async def close(self) -> None:
        """Close at once; what is in flight ends as Disconnected. Returns when nothing is left."""
        self._fail(Disconnected(f"{self.address}: connection closed by this client"))
        if self._renewal is not None and self._renewal is not asyncio.current_task():
            await asyncio.wait({self._renewal}, timeout=CLOSE_TIMEOUT)
        if self._transport is not None:
            await asyncio.wait({self._loss}, timeout=CLOSE_TIMEOUT)

    async def wait_closed(self) -> TwinlogError:
        """Wait until the connection is closed; return why."""
        await asyncio.shield(self._loss)
        assert self._error is not None
        return self._error

    # Setting up

    async def _connect(self, security: Security) -> None:
        sock = await dial(self._loop, self.host, self.port, self._options)
        try:
            context = security.ssl_context()
            transport, _ = await self._loop.create_connection(
                lambda: self._receiver,
                sock=sock,
                ssl=context,
                server_hostname=self.host if context is not None else None,
            )
        except (ConnectionError, ssl.SSLEOFError) as error:
            # Without TLS nothing is exchanged here. asyncio reports this without a message,
            # OpenSSL with an invalid errno.
            sock.close()
            raise Retriable(
                f"{self.address}: the broker closed the connection in the TLS handshake",
                hint="compare security.protocol with this listener: it may not speak TLS",
            ) from error
        except BaseException:
            sock.close()
            raise
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)

    async def _negotiate(self) -> None:
        """Send ApiVersions; if the version is refused, in the one the broker names (KIP-511)."""
        version = int(ApiVersionsRequest.max_version)
        for _ in range(2):
            request = ApiVersionsRequest(
                client_software_name="twinlog", client_software_version=__version__
            )
            response = await self._exchange(request, version, None, urgent=True)
            self.round_trip_s = self._loop.time() - self.last_used
            ranges = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            version = min(version, ranges.get(frames.API_VERSIONS, (0, 0))[1])
        check(response.error_code, f"get the API versions of {self.address}")
        self.versions = ranges
        self._broker_versions = BrokerVersionData(api_versions=ranges)

    async def _authenticate(self, security: Security) -> None:
        if security.sasl is None:
            return
        lifetime = await authenticate(self._urgently, security.sasl, self.host)
        if lifetime > 0:
            share = self._rng.uniform(0.85, 0.95)
            delay = max(lifetime * share, MIN_REAUTHENTICATION)
            self._timer("authentication", delay, self._start_renewal)

    def _start_renewal(self) -> None:
        self._renewal = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        """Authenticate again before the session ends; nothing else is sent meanwhile (KIP-368)."""
        self._gate("authentication", True)
        try:
            async with asyncio.timeout(self._options.request_timeout):
                await self._authenticate(self._security())
        except TimeoutError:
            self._fail(Disconnected(f"{self.address}: reauthentication timed out"))
        except TwinlogError as error:
            self._fail(error)
        else:
            self._gate("authentication", False)

    async def _urgently(self, request: Any) -> Any:
        return await self._exchange(request, self._version(request), None, urgent=True)

    # Requests and responses

    def _version(self, request: Any) -> int:
        self._raise_if_closed()
        try:
            return int(self._broker_versions.api_version(request))
        except IncompatibleBrokerVersion as error:
            raise UserError(
                f"{self.address}: {error}", code=ErrorCode.UNSUPPORTED_VERSION
            ) from error

    async def _exchange(
        self, request: Any, version: int, timeout: float | None, *, urgent: bool = False
    ) -> Any:
        timeout = self._options.request_timeout if timeout is None else timeout
        start = self._loop.time()
        if not urgent:
            await self.ready(timeout)
        body = request.encode(version=version)
        view = await self._submit(
            request.API_KEY,
            version,
            (body,),
            flexible=frames.request_flexible(request, version),
            timeout=max(self._limit(start, timeout) - self._loop.time(), 0.0),
            urgent=urgent,
        )
        try:
            response = frames.decode_body(frames.response_class(request.API_KEY), version, view)
        except ProtocolError as error:
            self._on_nonsense(error)
            raise
        self.throttle(getattr(response, "throttle_time_ms", 0) or 0)
        return response

    def _submit(
        self,
        api_key: int,
        api_version: int,
        parts: Sequence[Buffer],
        *,
        flexible: bool,
        timeout: float | None,
        urgent: bool = False,
    ) -> asyncio.Future[memoryview]:
        self._raise_if_closed()
        if self.in_flight >= self._options.max_in_flight and not urgent:
            raise Retriable(f"{self.address}: cannot send, {self.in_flight} requests are in flight")
        future: asyncio.Future[memoryview] = self._loop.create_future()
        now = self._loop.time()
        timeout = self._options.request_timeout if timeout is None else timeout
        request = _Request(api_key, api_version, flexible, future, now, now, timeout, parts=parts)
        self._deadlines.watch(now + timeout)
        if urgent or not self._gates:
            self._transmit(request)
        else:
            self._outbox.append(request)
        return future

    def _transmit(self, request: _Request) -> None:
        assert self._transport is not None
        self._correlation_id = (self._correlation_id + 1) & frames.MAX_CORRELATION_ID
        request.correlation_id = self._correlation_id
        parts, request.parts = request.parts, ()
        size = request.size = sum(map(len, parts))
        header = frames.encode_request_header(
            request.api_key,
            request.api_version,
            request.correlation_id,
            self._client_id,
            flexible=request.flexible,
            body_size=size,
        )
        self._in_flight.append(request)
        self.last_used = request.start_time = self._loop.time()
        self.counters.requests += 1
        self.counters.bytes_out += len(header) + size
        self._write([header, *parts])

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Give the parts to the transport: small ones joined, large ones as they are.

        `writelines` of Python 3.11 joins all of them, which copies each byte once, or twice if the
        kernel does not accept all at once.
        """
        assert self._transport is not None
        small_parts: list[Buffer] = []
        for part in parts:
            if len(part) < LARGE:
                small_parts.append(part)
                continue
            if small_parts:
                self._transport.write(b"".join(small_parts))
                small_parts = []
            self._transport.write(part)
        if small_parts:
            self._transport.write(b"".join(small_parts))

    def _longest(self) -> int:
        """The maximum length of the next response, which answers the oldest request."""
        if not self._in_flight:
            raise ProtocolError(f"{self.address}: a response that matches no request in flight")
        request = self._in_flight[0]
        max_length = frames.longest_response(request.api_key, request.size)
        return min(self._options.max_frame, max_length)

    def _on_frame(self, frame: memoryview) -> None:
        request = self._in_flight[0]
        flexible = request.flexible and request.api_key != frames.API_VERSIONS
        correlation_id, body_at = frames.parse_response_header(frame, flexible=flexible)
        if correlation_id != request.correlation_id:
            raise ProtocolError(
                f"{self.address}: response with correlation id {correlation_id}, expected "
                f"{request.correlation_id}"
            )
        self._in_flight.popleft()
        self._answered_at = self._loop.time()
        self._count_in()
        self.counters.responses += 1
        if not request.future.done():
            request.future.set_result(frame[body_at:])
        self._make_room()

    def _limit(self, start: float, timeout: float) -> float:
        """The time at which a wait that began at `start` is over."""
        return max(start, self._throttled_until) + timeout

    def _end_late(self) -> None:
        """End requests whose time is over; one that is in flight ends the connection."""
        for request in (*self._in_flight, *self._outbox):
            limit = self._limit(request.submitted_at, request.timeout)
            late = f"within {request.timeout:g} s"
            if limit > self._loop.time():  # it was submitted later, or the broker has throttled
                self._deadlines.watch(limit)
            elif request.correlation_id >= 0:
                api = f"{self.address}: API {request.api_key}"
                self._fail(Disconnected(f"{api}: no response {late}"))
                return
            else:
                self._outbox.remove(request)
                if not request.future.done():
                    request.future.set_exception(Retriable(f"{self.address}: not sent {late}"))

    # Gates, timers, the end

    def _gate(self, name: str, closed: bool) -> None:
        if closed:
            self._gates.add(name)
        else:
            self._gates.discard(name)
            self._make_room()

    def _make_room(self) -> None:
        while self._outbox and not self._gates:
            request = self._outbox.popleft()
            if not request.future.done():
                self._transmit(request)
        if not self._room.is_set() and self.can_send:
            self._room.set()

    def _timer(self, name: str, delay: float, action: Callable[[], None]) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        self._timers[name] = self._loop.call_later(delay, action)

    def _count_in(self) -> None:
        self.counters.bytes_in += self._receiver.received - self._counted_bytes
        self._counted_bytes = self._receiver.received

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise Disconnected(f"{self.address}: the connection is closed") from self._error

    def _on_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._alert = exc
        reason = "the broker closed the connection" if exc is None else str(exc)
        self._fail(Disconnected(f"{self.address}: {reason}"))
        if not self._loss.done():
            self._loss.set_result(None)

    def _on_nonsense(self, error: TwinlogError) -> None:
        """Close: the data is no valid answer. The parser does not know the peer, so add it."""
        if not error.message.startswith(self.address):
            error.message = f"{self.address}: {error.message}"
        self._fail(error)

    def _fail(self, error: TwinlogError) -> None:
        """Close, and end every request; a ProtocolError is about the oldest request's answer."""
        if self._error is not None:
            return
        self._error = error
        self._receiver.stopped = True
        self._count_in()
        self._deadlines.cancel()
        for timer in self._timers.values():
            timer.cancel()
        if self._renewal is not None and self._renewal is not asyncio.current_task():
            self._renewal.cancel()
        if self._transport is not None:
            self._transport.abort()
        requests = [*self._in_flight, *self._outbox]
        self._in_flight.clear()
        self._outbox.clear()
        for index, request in enumerate(requests):
            if not request.future.done():
                request.future.set_exception(_for_request(error, first=index == 0))
        self._room.set()


def _for_request(error: TwinlogError, *, first: bool) -> TwinlogError:
    """A separate exception for each request: one instance must not be raised in two places."""
    cls = ProtocolError if first and isinstance(error, ProtocolError) else Disconnected
    separate = cls(error.message, hint=error.hint)
    separate.__cause__ = error
    return separate
