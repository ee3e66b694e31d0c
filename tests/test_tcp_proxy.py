"""The proxy that tests put before brokers: each fault does what it says, on plain sockets."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import librdkafka_tools
import pytest
from fake_broker import refusing_port
from tcp_proxy import PROXIED, PROXIED_LISTENER, WRITE_TXN_MARKERS, Faults, Proxies
from waiting import until

from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import HOST
from twinlog.local.processes import SHORT_LIVED

SECONDS = 60.0


class Peer:
    """Stands in for a broker: notes what arrives on each connection, and echoes it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.ends: list[str] = []
        self._server = socket.create_server((HOST, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            index = len(self.received)
            self.received.append(b"")
            arguments = connection, index
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, connection: socket.socket, index: int) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received[index] += data
                    connection.sendall(data)
            except OSError as error:
                self.ends.append(type(error).__name__)
            else:
                self.ends.append("end")

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    with closing(Peer()) as one:
        yield one


@pytest.fixture
def proxies(peer: Peer) -> Iterator[Proxies]:
    with Proxies({1: (0, peer.port)}) as one:
        yield one


@contextmanager
def connect(proxies: Proxies) -> Iterator[socket.socket]:
    port = int(proxies.bootstrap_servers.split(":")[1])
    with socket.create_connection((HOST, port), SECONDS) as client:
        yield client


def request(api: int, size: int = 20) -> bytes:
    """A frame with an API key; the body is of no account."""
    return struct.pack(">ihh", size + 4, api, 0) + bytes(size)


def exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        assert part, f"ended after {len(data)} of {count} bytes"
        data += part
    return data


def until_reset(client: socket.socket) -> bytes:
    """What arrives before a reset."""
    data = b""
    try:
        while part := client.recv(100):
            data += part
    except ConnectionResetError:
        return data
    raise AssertionError("the connection was closed, not reset")


def send_and_receive(proxies: Proxies) -> None:
    with connect(proxies) as client:
        client.sendall(request(3))
        exactly(client, len(request(3)))


def reset(client: socket.socket) -> None:
    """Close it with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_all_bytes_pass_in_both_directions(proxies: Proxies, peer: Peer) -> None:
    """Some megabytes in both directions at once, in odd pieces, then the end."""
    data = b"".join(request(at % 60, at % 7001) for at in range(2000))
    with connect(proxies) as client:
        client.settimeout(SECONDS)
        sender = threading.Thread(target=lambda: client.sendall(data))
        sender.start()
        assert exactly(client, len(data)) == data
        sender.join()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b"", "the peer has closed after our end"
    assert peer.received == [data]
    assert peer.ends == ["end"]
    assert proxies.bytes_passed == 2 * len(data)
    until(lambda: proxies.connections == 0)


def test_a_half_closed_connection_is_answered(proxies: Proxies, peer: Peer) -> None:
    """Half-close semantics: our end passes, and the answer to what was sent before it comes."""
    with connect(proxies) as client:
        client.sendall(request(3))
        client.shutdown(socket.SHUT_WR)
        assert exactly(client, len(request(3))) == request(3)
        assert client.recv(1) == b""
    until(lambda: peer.ends == ["end"])


def test_a_delay_applies_to_each_direction(proxies: Proxies) -> None:
    """Each way takes that long."""
    proxies.set(Faults(delay=(0.2, 0.3)))
    with connect(proxies) as client:
        before = time.monotonic()
        client.sendall(request(3))
        exactly(client, len(request(3)))
    assert 0.4 <= time.monotonic() - before < SECONDS


def test_a_rate_limits_the_throughput(proxies: Proxies) -> None:
    """400 KB at 400 KB a second take about a second; the queue is bounded meanwhile."""
    proxies.set(Faults(rate=400_000))
    data = request(0, 400_000)
    with connect(proxies) as client:
        before = time.monotonic()
        threading.Thread(target=lambda: client.sendall(data)).start()
        assert exactly(client, len(data)) == data
    assert 0.4 <= time.monotonic() - before < SECONDS


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_held_requests_are_delivered_after_the_client_disconnects(
    proxies: Proxies, peer: Peer, end: Callable[[socket.socket], None]
) -> None:
    """Held at the request that was waited for; what came before it passes at once."""
    hold = proxies.hold(api=WRITE_TXN_MARKERS)
    other, held = request(3), request(WRITE_TXN_MARKERS) + request(0)
    with connect(proxies) as client, connect(proxies) as second:
        client.sendall(other + held)
        hold.await_caught(SECONDS)
        assert exactly(client, len(other)) == other
        assert not hold.abandoned
        second.sendall(request(WRITE_TXN_MARKERS))
        assert exactly(second, 28) == request(WRITE_TXN_MARKERS), "only one is held"
        end(client)
    until(lambda: hold.abandoned)
    assert peer.received[0] == other
    hold.release()
    until(lambda: peer.received[0] == other + held)
    until(lambda: peer.ends == ["end", "end"])


def test_held_answers_are_delayed_until_released(proxies: Proxies, peer: Peer) -> None:
    """The request arrives; its answer waits."""
    hold = proxies.hold(api=0, answers=True)
    with connect(proxies) as client:
        client.sendall(request(0))
        until(lambda: peer.received == [request(0)])
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        hold.release()
        client.settimeout(SECONDS)
        assert exactly(client, len(request(0))) == request(0)


def test_a_hold_applies_only_to_current_connections(proxies: Proxies, peer: Peer) -> None:
    """Connections of now, but not those that come later."""
    with connect(proxies) as client:
        client.sendall(request(3))
        exactly(client, len(request(3)))
        hold = proxies.hold()
        client.sendall(request(4))
        with connect(proxies) as later:
            later.sendall(request(5))
            exactly(later, len(request(5)))
        assert peer.received[0] == request(3)
        hold.release()
        until(lambda: peer.received[0] == request(3) + request(4))


def test_a_cut_resets_both_sides(proxies: Proxies, peer: Peer) -> None:
    """Both sides see a reset, and the next connection is taken."""
    with connect(proxies) as client:
        client.sendall(request(3))
        exactly(client, len(request(3)))
        proxies.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    until(lambda: peer.ends == ["ConnectionResetError"])
    with connect(proxies) as client:
        client.sendall(request(3))
        exactly(client, len(request(3)))


def test_a_connection_is_cut_after_a_number_of_bytes(proxies: Proxies, peer: Peer) -> None:
    """The answer ends in its middle: 28 bytes of the request, 10 of the answer."""
    proxies.set(Faults(cut_after=38))
    with connect(proxies) as client:
        client.sendall(request(3))
        data = until_reset(client)
    assert peer.received == [request(3)]
    assert len(data) <= 10


def test_a_connection_is_cut_at_a_request(proxies: Proxies, peer: Peer) -> None:
    """It does not arrive, what came before it does; other connections go on."""
    proxies.set(Faults(cut_at=lambda data: data == request(4)))
    with connect(proxies) as client, connect(proxies) as other:
        client.sendall(request(3))
        exactly(client, len(request(3)))
        client.sendall(request(4))
        until_reset(client)
        other.sendall(request(5))
        exactly(other, len(request(5)))
    until(lambda: sorted(peer.received) == [request(3), request(5)])


def test_a_black_hole_delivers_no_bytes_and_resets_afterwards(proxies: Proxies, peer: Peer) -> None:
    """Nothing arrives, no end either; connections that lost bytes are reset when it is over."""
    with connect(proxies) as client, connect(proxies) as idle:
        for one in (client, idle):
            one.sendall(request(3))
            exactly(one, len(request(3)))
        proxies.set(Faults(black_hole=True))
        client.sendall(request(4))
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        with connect(proxies) as new:
            new.sendall(request(5))
            new.settimeout(0.2)
            with pytest.raises(TimeoutError):
                new.recv(1)
        proxies.clear()
        client.settimeout(SECONDS)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        idle.sendall(request(6))
        assert exactly(idle, len(request(6))) == request(6), "it has lost nothing"
    assert peer.received[:2] == [request(3), request(3) + request(6)]
    assert peer.received[2:] in ([], [b""])


def test_new_connections_are_refused(proxies: Proxies) -> None:
    """New connections are reset."""
    proxies.set(Faults(refuse=True))
    with pytest.raises(ConnectionError):
        send_and_receive(proxies)


def test_a_dead_peer_resets_the_connection() -> None:
    """A port at which nothing listens looks like a reset to the client."""
    with (
        refusing_port() as port,
        Proxies({1: (0, port)}) as proxies,
        pytest.raises(ConnectionError),
    ):
        send_and_receive(proxies)


@pytest.mark.broker
def test_clients_of_a_cluster_use_only_the_proxies(topic: str) -> None:
    """Two brokers: a client that begins at the proxies has all its records pass through them."""
    with (
        LocalCluster.start(
            2, listeners=PROXIED_LISTENER, proxied=[PROXIED], jvm_flags=SHORT_LIVED
        ) as cluster,
        Proxies.of(cluster, seed=1) as proxies,
    ):
        assert proxies.bootstrap_servers == cluster.listener(PROXIED)
        librdkafka_tools.make_topic(proxies.bootstrap_servers, topic, 4)
        before = proxies.bytes_passed
        records = [(at % 4, None, bytes(1000), None) for at in range(1000)]
        librdkafka_tools.write(proxies.bootstrap_servers, topic, records)
        assert proxies.bytes_passed - before > 1_000_000
        passed = proxies.bytes_passed
        librdkafka_tools.write(cluster.bootstrap_servers, topic, records)
        assert proxies.bytes_passed == passed, "the brokers' own listener is not behind them"
