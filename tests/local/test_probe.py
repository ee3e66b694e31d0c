"""Twin of twinlog.local.probe: whatever answers at a port, the probe returns a set of ids."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from twinlog.local import probe
from twinlog.local.ports import HOST


@contextmanager
def _server(answer: bytes) -> Iterator[int]:
    """Serve one connection: read a request, send the answer, close."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(18)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        yield int(listener.getsockname()[1])
        server.join()


def test_brokers_are_read_with_and_without_racks() -> None:
    """Host names and racks have any length."""
    body = struct.pack(">ii", 1, 2)
    body += struct.pack(">ih4sih", 7, 4, b"host", 9092, -1)
    body += struct.pack(">ih1sih3s", 8, 1, b"h", 9093, 3, b"a-b")
    with _server(struct.pack(">i", len(body)) + body) as port:
        assert probe.live_brokers(port) == {7, 8}


def test_a_refused_connection_gives_no_brokers() -> None:
    """A refused connection is a broker that does not serve yet."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        assert probe.live_brokers(free.getsockname()[1]) == frozenset()


def test_a_truncated_answer_gives_no_brokers() -> None:
    """A broker killed while it answers does not serve."""
    with _server(struct.pack(">iii", 100, 1, 1)) as port:
        assert probe.live_brokers(port) == frozenset()


@given(st.binary(max_size=64))
def test_any_body_gives_node_ids_or_a_struct_error(body: bytes) -> None:
    """Answers of other programs at a port never end the wait with another error."""
    try:
        found = probe._node_ids(body)
    except struct.error:
        return
    assert isinstance(found, frozenset)
