"""One connection against a server that misbehaves on purpose, and against real brokers."""

import asyncio
import gc
import random
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from fake_broker import (
    HEARTBEAT,
    RANGES,
    SASL_AUTHENTICATE,
    FakeBroker,
    Request,
    echo,
    framed,
    refusing_port,
)
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListOffsetsRequest,
)
from kafka.protocol.metadata import MetadataRequest
from waiting import until_async

from twinlog.kafka.client.configuration import ClusterConfig, parse_config
from twinlog.kafka.client.connection import LARGE, MAX_THROTTLE, Connection
from twinlog.kafka.client.dial import Options
from twinlog.kafka.client.security import Sasl, Security, Tls
from twinlog.kafka.errors import (
    Disconnected,
    ProtocolError,
    Retriable,
    TwinlogError,
    UserError,
)
from twinlog.kafka.protocol.frames import MAX_DECODED
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

QUIET = "quiet"
PLAIN = Security(sasl=Sasl(mechanism="PLAIN", username="alice", password="secret"))


async def _open(
    broker: FakeBroker, security: Security | None = None, **options: object
) -> Connection:
    return await Connection.open(
        "127.0.0.1",
        broker.port,
        security=lambda: security or Security(),
        options=Options(**options),  # type: ignore[arg-type]
        rng=random.Random(1),
    )


async def _silent(_request: Request) -> None:
    return None


def _heartbeat(throttle_ms: int = 0, error: int = 0) -> bytes:
    response = HeartbeatResponse(throttle_time_ms=throttle_ms, error_code=error)
    return bytes(response.encode(version=4))


def _raw(connection: Connection, *parts: bytes | memoryview) -> asyncio.Future[memoryview]:
    return connection.send_raw(HEARTBEAT, 0, parts, flexible=False, timeout=60)


def test_many_requests_in_flight_get_matching_responses() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            connection = await _open(broker, max_in_flight=200)
            futures = [_raw(connection, b"a" * i, b"b%d" % i) for i in range(200)]
            for i, future in enumerate(futures):
                body = await future
                assert bytes(body).endswith(b"a" * i + b"b%d" % i)
                assert not body.readonly
            assert connection.counters.requests == 201
            assert connection.in_flight == 0
            await connection.close()

    asyncio.run(run())


def test_request_parts_of_any_size_arrive_in_order() -> None:
    """Small parts are sent together, large ones separately."""
    sizes = (1, LARGE - 1, LARGE, 10, 3 << 20, 0, 1, LARGE + 1, LARGE)
    parts = [memoryview(random.Random(at).randbytes(size)) for at, size in enumerate(sizes)]

    async def run() -> None:
        async with FakeBroker() as broker:
            connection = await _open(broker, send_buffer=256 << 10)
            for _ in range(3):
                body = await _raw(connection, *parts)
                assert bytes(body).endswith(b"".join(parts))
            await connection.close()

    asyncio.run(run())


def test_in_flight_is_bounded_and_ready_waits() -> None:
    async def run() -> None:
        release = asyncio.Event()

        async def wait(request: Request) -> bytes:
            await release.wait()
            return await echo(request)

        async with FakeBroker(wait) as broker:
            connection = await _open(broker, max_in_flight=2)
            futures = [_raw(connection, b"x"), _raw(connection, b"y")]
            with pytest.raises(Retriable, match="2 requests are in flight"):
                _raw(connection, b"z")
            ready = asyncio.create_task(connection.ready())
            await asyncio.sleep(0)
            assert not ready.done()
            release.set()
            await ready
            await asyncio.gather(*futures)
            await connection.close()

    asyncio.run(run())


def test_a_timeout_closes_the_connection_with_unknown_outcomes() -> None:
    async def run() -> None:
        async with FakeBroker(_silent) as broker:
            connection = await _open(broker)
            slow = _raw(connection, b"slow")
            with pytest.raises(Disconnected, match="API 12: no response"):
                await connection.call(HeartbeatRequest(group_id="g"), timeout=0.05)
            with pytest.raises(Disconnected):
                await slow
            assert connection.closed
            with pytest.raises(Disconnected):
                _raw(connection, b"late")
            assert "no response" in str(await connection.wait_closed())

    asyncio.run(run())


def test_a_lost_connection_gives_unknown_outcomes() -> None:
    async def run() -> None:
        async with FakeBroker(_silent) as broker:
            connection = await _open(broker)

            async def all_are_there() -> bool:
                return len(broker.requests) == 11

            futures = [_raw(connection, b"x") for _ in range(10)]
            await until_async(all_are_there, what="all requests")
            broker.writers[0].transport.abort()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert all(type(r) is Disconnected for r in results)
            assert len({id(r) for r in results}) == 10
            assert connection.closed
            await connection.close()

    asyncio.run(run())


def test_a_response_out_of_order_is_a_protocol_error() -> None:
    """The first in line gets the ProtocolError, the others an unknown outcome."""

    async def skip(request: Request) -> bytes:
        return framed(request.correlation_id + 1, b"")

    async def run() -> None:
        async with FakeBroker(skip) as broker:
            connection = await _open(broker)
            results = await asyncio.gather(
                _raw(connection, b"x"), _raw(connection, b"y"), return_exceptions=True
            )
            assert [type(r) for r in results] == [ProtocolError, Disconnected]
            assert "correlation id" in str(results[0])
            await connection.close()

    asyncio.run(run())


def test_a_response_without_a_request_closes_the_connection() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            connection = await _open(broker)
            broker.writers[0].write(framed(99, b""))
            error = await asyncio.wait_for(connection.wait_closed(), 60)
            assert isinstance(error, ProtocolError)

    asyncio.run(run())


@given(garbage=st.binary(min_size=1, max_size=60), whole=st.booleans())
def test_any_bytes_give_a_response_or_a_documented_error(garbage: bytes, whole: bool) -> None:
    """Garbage is the body of a good frame, or the stream itself; then the server disconnects."""

    async def run() -> None:
        async def answer(request: Request) -> bytes:
            broker.writers[0].write(
                framed(request.correlation_id, garbage, flexible=True) if whole else garbage
            )
            broker.writers[0].close()
            return b""

        async with FakeBroker(answer) as broker:
            connection = await _open(broker, max_frame=1 << 16)
            try:
                await connection.call(HeartbeatRequest(group_id="g"), timeout=5)
            except (ProtocolError, Disconnected):
                assert connection.closed
            await connection.close()

    asyncio.run(run())


def test_responses_without_records_have_a_smaller_length_limit() -> None:
    """Otherwise a broker could make the event loop decode 128 MiB for a heartbeat."""

    async def long(_request: Request) -> bytes:
        return struct.pack(">i", MAX_DECODED + 1)

    async def run() -> None:
        async with FakeBroker(long) as broker:
            connection = await _open(broker)
            with pytest.raises(ProtocolError, match=f"frame length {MAX_DECODED + 1} "):
                await connection.call(HeartbeatRequest(group_id="g"), timeout=5)
            await connection.close()

    asyncio.run(run())


def test_the_response_length_limit_depends_on_the_partitions_requested() -> None:
    """Goal: a source's answer about log end offsets does not delay a lane's heartbeats."""
    partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    topic = ListOffsetsRequest.ListOffsetsTopic(
        name="t", partitions=[partition(partition_index=0, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
    said = 100_000

    async def long(_request: Request) -> bytes:
        return struct.pack(">i", said)

    async def run(ranges: dict[int, tuple[int, int]]) -> None:
        async with FakeBroker(long, ranges) as broker:
            connection = await _open(broker)
            with pytest.raises(ProtocolError, match=f"frame length {said} "):
                await connection.call(request, timeout=5)
            await connection.close()

    for version in (1, 7):
        asyncio.run(run(RANGES | {2: (1, version)}))


def test_an_oversized_frame_is_refused_before_allocation() -> None:
    async def huge(_request: Request) -> bytes:
        return struct.pack(">i", (1 << 31) - 1)

    async def run() -> None:
        async with FakeBroker(huge) as broker:
            connection = await _open(broker)
            with pytest.raises(ProtocolError, match="frame length 2147483647"):
                await _raw(connection, b"x")
            await connection.close()

    asyncio.run(run())


def test_a_malformed_response_body_closes_the_connection() -> None:
    async def short(request: Request) -> bytes:
        return framed(request.correlation_id, _heartbeat()[:-1], flexible=True)

    async def run() -> None:
        async with FakeBroker(short) as broker:
            connection = await _open(broker)
            with pytest.raises(ProtocolError, match="HeartbeatResponse v4"):
                await connection.call(HeartbeatRequest(group_id="g"))
            assert connection.closed

    asyncio.run(run())


def test_requests_during_a_throttle_wait_in_order() -> None:
    """Requests sent meanwhile wait in order, whatever their timeout: a throttle is a wait."""

    async def throttled(request: Request) -> bytes:
        if request.version == 4:
            return framed(request.correlation_id, _heartbeat(2000), flexible=True)
        return await echo(request)

    async def run() -> None:
        async with FakeBroker(throttled) as broker:
            connection = await _open(broker)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await connection.call(HeartbeatRequest(group_id="g"))
            assert not connection.can_send
            hasty = connection.send_raw(HEARTBEAT, 0, [b"no"], flexible=False, timeout=1.0)
            futures = [_raw(connection, b"%d" % i) for i in range(3)]
            await connection.ready(0.05)
            bodies = [bytes(await f)[-1:] for f in (hasty, *futures)]
            assert bodies == [b"o", b"0", b"1", b"2"]
            assert loop.time() - began >= 1.9
            assert 1.5 < connection.counters.throttled_seconds < MAX_THROTTLE
            assert len(broker.requests) == 6
            assert not connection.throttled
            await connection.close()

    asyncio.run(run())


def test_timeouts_of_requests_in_flight_start_after_a_throttle() -> None:
    """The broker has muted the connection behind the first answer, and reads them afterwards."""

    async def throttled(request: Request) -> bytes:
        if request.version == 4:
            return framed(request.correlation_id, _heartbeat(2000), flexible=True)
        await asyncio.sleep(2.1)
        return await echo(request)

    async def run() -> None:
        async with FakeBroker(throttled) as broker:
            connection = await _open(broker)
            first = asyncio.create_task(connection.call(HeartbeatRequest(group_id="g")))
            await asyncio.sleep(0)
            second = connection.send_raw(HEARTBEAT, 0, [b"2"], flexible=False, timeout=1.5)
            await first
            assert connection.throttled
            assert bytes(await second).endswith(b"2")
            third = connection.send_raw(HEARTBEAT, 0, [b"3"], flexible=False, timeout=0.05)
            with pytest.raises(Disconnected, match="no response"):
                await third
            await connection.close()

    asyncio.run(run())


def test_waiting_at_a_closed_gate_has_a_deadline_without_a_throttle() -> None:
    """One example is a session that is being renewed."""

    async def run() -> None:
        async with FakeBroker() as broker:
            connection = await _open(broker)
            connection._gate("authentication", True)
            with pytest.raises(Retriable, match="not sent") as caught:
                await connection.ready(0.05)
            assert type(caught.value) is Retriable
            hasty = connection.send_raw(HEARTBEAT, 0, [b"no"], flexible=False, timeout=0.05)
            with pytest.raises(Retriable, match="not sent") as caught:
                await hasty
            assert type(caught.value) is Retriable
            assert len(broker.requests) == 1
            await connection.close()

    asyncio.run(run())


def test_sending_waits_for_a_slow_broker() -> None:
    """A broker that does not read closes the gate; nothing is lost when it reads again."""

    async def run() -> None:
        async with FakeBroker(lambda r: echo(Request(0, 0, r.correlation_id, b""))) as broker:
            connection = await _open(broker, send_buffer=256 << 10)
            broker.writers[0].transport.pause_reading()  # type: ignore[attr-defined]
            big = bytes(3 << 20)
            futures = [_raw(connection, big) for _ in range(8)]
            assert not connection.can_send
            broker.writers[0].transport.resume_reading()  # type: ignore[attr-defined]
            await asyncio.wait_for(asyncio.gather(*futures), 120)
            await connection.close()

    asyncio.run(run())


def test_a_cancelled_request_does_not_affect_others() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            connection = await _open(broker)
            first, second = _raw(connection, b"1"), _raw(connection, b"2")
            first.cancel()
            assert bytes(await second).endswith(b"2")
            await connection.close()

    asyncio.run(run())


@pytest.mark.parametrize("highest", [0, 2, 3, 4])
def test_versions_are_negotiated_with_old_brokers(highest: int) -> None:
    """An ApiVersions that the broker does not have is repeated in the broker's version."""

    async def run() -> None:
        async with FakeBroker(ranges={18: (0, highest), 12: (0, 2)}) as broker:
            connection = await _open(broker)
            assert connection.versions[12] == (0, 2)
            assert broker.requests[-1].version == highest
            assert connection.negotiate(12, 0, 4) == 2
            with pytest.raises(UserError, match="API 12 is needed"):
                connection.negotiate(12, 3, 4)
            with pytest.raises(UserError, match="Metadata"):
                await connection.call(MetadataRequest(topics=[]))
            await connection.close()

    asyncio.run(run())


def test_the_client_software_name_is_sent() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            await (await _open(broker)).close()
            assert b"twinlog" in broker.requests[0].frame

    asyncio.run(run())


def test_a_wrong_sasl_password_is_a_user_error() -> None:
    async def run() -> None:
        async with FakeBroker(password="other") as broker:
            with pytest.raises(UserError, match="wrong password") as caught:
                await _open(broker, PLAIN)
            assert "secret" not in str(caught.value)

    asyncio.run(run())


def test_error_for_an_unsupported_sasl_mechanism_names_the_supported() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            scram = Security(sasl=Sasl(mechanism="SCRAM-SHA-256", username="a", password="b"))
            with pytest.raises(UserError, match="SCRAM-SHA-256: it offers PLAIN, OTHER"):
                await _open(broker, scram)

    asyncio.run(run())


def test_a_sasl_session_is_renewed_before_expiry() -> None:
    """Requests go on meanwhile, and none is sent between the exchange's own (KIP-368)."""

    async def run() -> None:
        async with FakeBroker(session_lifetime_ms=1100) as broker:
            connection = await _open(broker, PLAIN)
            deadline = asyncio.get_running_loop().time() + 60
            while sum(r.api_key == 36 for r in broker.requests) < 3:
                assert asyncio.get_running_loop().time() < deadline
                await connection.ready()
                await asyncio.gather(*(_raw(connection, b"x") for _ in range(5)))
                await asyncio.sleep(0.01)
            keys = [r.api_key for r in broker.requests]
            starts = [i for i, key in enumerate(keys) if key == 17]
            assert len(starts) >= 3
            assert all(keys[i + 1] == 36 for i in starts if i + 1 < len(keys))
            await connection.close()

    asyncio.run(run())


def test_a_failed_reauthentication_closes_the_connection() -> None:
    async def run() -> None:
        async with FakeBroker(session_lifetime_ms=1000) as broker:
            connection = await _open(broker, PLAIN)
            broker.password = "changed"
            error = await asyncio.wait_for(connection.wait_closed(), 60)
            assert isinstance(error, UserError)
            await connection.close()

    asyncio.run(run())


async def _renewed(broker: FakeBroker, times: int) -> None:
    async def there() -> bool:
        return sum(r.api_key == SASL_AUTHENTICATE for r in broker.requests) >= times

    await until_async(there, what="a session that is renewed")


def _referring(file: Path, port: int) -> ClusterConfig:
    """Return a client configuration whose password is in a file."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="a" password="${{file:{file}:pw}}";',
    }
    return parse_config(properties, {}).config


def test_a_sasl_session_is_renewed_with_the_current_password(tmp_path: Path) -> None:
    """A new connection uses it, too; the parsed configuration stays unchanged."""
    file = tmp_path / "secrets.properties"
    file.write_text("pw=first")

    async def run() -> None:
        async with FakeBroker(session_lifetime_ms=1000, password="first") as broker:
            config = _referring(file, broker.port)
            connection = await Connection.open(
                "127.0.0.1", broker.port, security=config.security_now
            )
            broker.password = "second"
            file.write_text("pw=second")
            await _renewed(broker, 3)
            assert not connection.closed
            again = await Connection.open("127.0.0.1", broker.port, security=config.security_now)
            await again.close()
            await connection.close()

    asyncio.run(run())


def test_an_unreadable_secret_is_retried_by_the_next_connection(tmp_path: Path) -> None:
    """The connection that needs it is closed, and the next one opens once it is readable."""
    file = tmp_path / "secrets.properties"
    file.write_text("pw=secret")

    async def run() -> None:
        async with FakeBroker(session_lifetime_ms=1000) as broker:
            now = _referring(file, broker.port).security_now
            connection = await Connection.open("127.0.0.1", broker.port, security=now)
            file.unlink()
            error = await asyncio.wait_for(connection.wait_closed(), 60)
            assert type(error) is Retriable
            assert error.message.startswith("sasl.jaas.config: ")
            with pytest.raises(
                Retriable, match=r"secrets\.properties does not exist or is not a file"
            ):
                await Connection.open("127.0.0.1", broker.port, security=now)
            file.write_text("pw=secret")
            await (await Connection.open("127.0.0.1", broker.port, security=now)).close()
            await connection.close()

    asyncio.run(run())


def test_an_invalid_tls_context_leaves_no_open_socket() -> None:
    async def run() -> None:
        async with FakeBroker() as broker:
            with pytest.raises(UserError, match=r"ssl\.truststore"):
                await _open(broker, Security(tls=Tls(trusted="no PEM")))
        gc.collect()

    asyncio.run(run())


async def _why_not(host: str, port: int, seconds: float = 60.0) -> TwinlogError:
    with pytest.raises(TwinlogError) as caught:
        await Connection.open(host, port, options=Options(setup_timeout=seconds))
    return caught.value


async def _refuse() -> TwinlogError:
    with refusing_port() as port:
        return await _why_not("127.0.0.1", port)


async def _never_answer() -> TwinlogError:
    async with FakeBroker(mute=True) as broker:
        return await _why_not("127.0.0.1", broker.port, 0.2)


async def _unknown_name() -> TwinlogError:
    with pytest.raises(TwinlogError) as caught:
        await Connection.open("no-such-host.invalid", 9092)
    return caught.value


async def _impossible_name() -> TwinlogError:
    return await _why_not("a..b", 9092)


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (_refuse, "Connection refused"),
        (_never_answer, "cannot connect within 0.2 s"),
        (_unknown_name, "no-such-host.invalid:9092: "),
        (_impossible_name, "a..b:9092: invalid host name"),
    ],
)
def test_connection_errors_are_one_line(
    attempt: Callable[[], Coroutine[Any, Any, TwinlogError]], reason: str
) -> None:
    error = asyncio.run(attempt())
    assert type(error) is Retriable
    assert reason in str(error)
    assert "\n" not in str(error)


@pytest.mark.broker
def test_concurrent_calls_are_answered_by_real_brokers(any_kafka: LocalCluster) -> None:
    async def run() -> None:
        host, port = any_kafka.bootstrap_servers.split(",")[0].split(":")
        connection = await Connection.open(host, int(port))
        answers = await asyncio.gather(
            *(connection.call(MetadataRequest(topics=[])) for _ in range(300))
        )
        assert all(a.brokers for a in answers)
        assert connection.counters.responses == 301
        await connection.close()

    asyncio.run(run())


@pytest.mark.broker
def test_requests_in_flight_at_a_kill_have_unknown_outcomes(tmp_path: Path) -> None:
    """All futures fail with an unknown outcome; a new connection works after the restart."""

    async def run(local: LocalCluster) -> None:
        host, port = local.bootstrap_servers.split(",")[0].split(":")
        (node,) = local.node_ids
        connection = await Connection.open(host, int(port))
        waiting = [asyncio.ensure_future(_long_fetch(connection)) for _ in range(20)]
        answered, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not answered
        assert connection.in_flight == 20
        local.kill(node)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(r) for r in results} == {Disconnected}
        with pytest.raises(Retriable, match="refused"):
            await Connection.open(host, int(port))
        await asyncio.to_thread(local.start_broker, node)
        again = await Connection.open(host, int(port))
        assert (await again.call(MetadataRequest(topics=[]))).brokers
        await again.close()

    with LocalCluster.start(1, directory=tmp_path, jvm_flags=SHORT_LIVED) as local:
        librdkafka_tools.make_topic(local.bootstrap_servers, QUIET)
        librdkafka_tools.write(
            local.bootstrap_servers, QUIET, librdkafka_tools.simple(1)
        )  # its leader is elected
        asyncio.run(run(local))


def _long_fetch(connection: Connection) -> Awaitable[object]:
    """Send a Fetch that the broker holds for minutes, as its topic has no more records."""
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=200_000,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                topic=QUIET,
                partitions=[
                    topic.FetchPartition(
                        partition=0, fetch_offset=1, partition_max_bytes=1, current_leader_epoch=-1
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
        max_version=12,
    )
    return connection.call(request, timeout=300)
