"""Brokers that a cluster knows and that do not run: most of a cluster of three may be down.

A controller places replicas on any brokers that have registered, also on those that are down
(fenced), as long as one is alive to lead. So a cluster of one process gives topics the factor of
three that a file asks for. The others are registered as they register themselves when they start;
none of them ever sends a heartbeat, so the controller never takes one for alive.
"""

import json
import socket
import struct
from typing import Any
from uuid import uuid4

from kafka.protocol.api_message import ApiMessage

import schemas
from twinlog.kafka.errors import check
from twinlog.local.cluster import STATE_FILE, LocalCluster
from twinlog.local.ports import HOST

_SECONDS = 30.0
_FEATURES = (
    "metadata.version",
    "kraft.version",
    "transaction.version",
    "group.version",
    "eligible.leader.replicas.version",
    "share.version",
    "streams.version",
)
_NOWHERE = 9
"""A port of the address that nobody is told: metadata leaves out brokers that are down."""


class BrokerRegistrationRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg]
    """The request of API 62, which a controller takes."""


class BrokerRegistrationResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg]
    """Its response."""


def register_absent_brokers(cluster: LocalCluster, count: int) -> None:
    """Register so many brokers, with the ids behind those of the cluster."""
    nodes = json.loads((cluster.directory / STATE_FILE).read_text())["nodes"]
    ports = [node["controller_port"] for node in nodes if node["controller_port"] is not None]
    controller = HOST, int(ports[0])
    first = max(broker.node_id for broker in cluster.brokers) + 1
    for broker in range(first, first + count):
        answer = _asked(controller, _registration(cluster.cluster_id, broker))
        check(answer.error_code, f"register broker {broker}")


def _registration(cluster_id: str, broker: int) -> Any:
    kind = BrokerRegistrationRequest
    return kind(
        version=4,
        broker_id=broker,
        cluster_id=cluster_id,
        incarnation_id=uuid4(),
        listeners=[kind.Listener(name="PLAINTEXT", host=HOST, port=_NOWHERE, security_protocol=0)],
        features=[
            kind.Feature(name=name, min_supported_version=0, max_supported_version=1000)
            for name in _FEATURES
        ],
        rack=None,
        is_migrating_zk_broker=False,
        log_dirs=[uuid4()],
        previous_broker_epoch=-1,
    )


def _asked(address: tuple[str, int], request: Any) -> Any:
    request.with_header(correlation_id=1, client_id="absent-broker")
    with socket.create_connection(address, _SECONDS) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            return BrokerRegistrationResponse.decode(answers.read(length), version=4, header=True)
