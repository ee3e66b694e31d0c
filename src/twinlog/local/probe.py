"""The readiness probe of a cluster: which brokers a broker lists.

One Metadata request, version 1, for no topics (KIP-4; every Kafka from 0.10 on answers it). A
broker answers it only after its own start is complete, and lists only brokers that the controller
has unfenced, so a cluster is ready when each of its brokers lists them all.

    request   int32 size, int16 3, int16 1, int32 correlation, int16 -1 (no client id), int32 0
    response  int32 size, int32 correlation, int32 n, n x (int32 id, string host, int32 port,
              nullable string rack), ...
"""

import socket
import struct

from twinlog.local.ports import HOST

_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)
_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_MOST_BROKERS = 1000


def live_brokers(port: int) -> frozenset[int]:
    """Return the node ids that the broker at this port lists; none while it does not answer."""
    try:
        with socket.create_connection((HOST, port), timeout=_SECONDS) as connection:
            connection.sendall(_REQUEST)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 0 < size <= _MOST_BYTES:
                return frozenset()
            return _node_ids(_exactly(connection, size))
    except (OSError, struct.error):
        return frozenset()


def _node_ids(body: bytes) -> frozenset[int]:
    (count,) = struct.unpack_from(">i", body, 4)
    if not 0 <= count <= _MOST_BROKERS:
        return frozenset()
    node_ids, at = [], 8
    for _ in range(count):
        node_id, host_size = struct.unpack_from(">ih", body, at)
        at += 6 + host_size + 4
        (rack_size,) = struct.unpack_from(">h", body, at)
        at += 2 + max(rack_size, 0)
        node_ids.append(node_id)
    return frozenset(node_ids)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return bytes(parts)
