"""The nodes of a local cluster, and their properties. Pure.

A single broker is broker and controller in one process. Several brokers have a separate controller:
then any number of brokers may be killed and restarted while the cluster lives, and no controller
election disturbs a test. For tests of controller elections there are three controllers.

    --brokers 1       node 1: broker + controller
    --brokers 3       nodes 1, 2, 3: brokers       node 100: controller
    controllers = 3   nodes 1, 2, 3: brokers       nodes 100, 101, 102: controllers
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import javaproperties

from twinlog.local.errors import LocalError
from twinlog.local.ports import HOST

CONTROLLER_ID = 100
MOST_BROKERS = 3
MOST_CONTROLLERS = 3
OLDEST = (3, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """One process of a cluster: the port of each of its roles, and the folder of its files."""

    node_id: int
    port: int | None
    controller_port: int | None
    directory: Path
    listeners: Mapping[str, int] = field(default_factory=dict)
    """Ports of additional listeners, by name."""
    advertised: Mapping[str, int] = field(default_factory=dict)
    """Advertised ports of the listeners that have a proxy: the proxy listens there."""

    @property
    def roles(self) -> str:
        """Kafka's `process.roles`."""
        ports = {"broker": self.port, "controller": self.controller_port}
        return ",".join(role for role, port in ports.items() if port is not None)

    @property
    def log(self) -> Path:
        """The node's log file."""
        return self.directory / "server.log"

    @property
    def data(self) -> Path:
        """Kafka's `log.dirs`."""
        return self.directory / "data"

    @property
    def properties(self) -> Path:
        """The node's configuration file."""
        return self.directory / "server.properties"


def port_count(brokers: int, listeners: int = 0, controllers: int = 1, proxied: int = 0) -> int:
    """Return the number of ports that a cluster with these additional listeners needs."""
    return brokers * (1 + listeners + proxied) + controllers


def plan_nodes(
    brokers: int,
    ports: Sequence[int],
    directory: Path,
    listeners: Collection[str] = (),
    controllers: int = 1,
    *,
    proxied: Collection[str] = (),
) -> tuple[LocalNode, ...]:
    """Return the nodes of a cluster, the controllers first.

    `proxied` are the listeners that have proxies. `ports` are, in this order, those of the
    controllers, of the brokers, of the listeners, and of the proxies.
    """
    free_ports = iter(ports)
    controller_ports, broker_ports = (
        [next(free_ports) for _ in range(count)] for count in (controllers, brokers)
    )
    more = [{name: next(free_ports) for name in listeners} for _ in range(brokers)]
    advertised = [{name: next(free_ports) for name in proxied} for _ in range(brokers)]
    nodes = tuple(
        _node(
            at + 1,
            directory,
            port=broker_ports[at],
            controller_port=controller_ports[0] if brokers == 1 else None,
            listeners=more[at],
            advertised=advertised[at],
        )
        for at in range(brokers)
    )
    if brokers == 1:
        return nodes
    return *(
        _node(CONTROLLER_ID + at, directory, controller_port=port)
        for at, port in enumerate(controller_ports)
    ), *nodes


def check_size(brokers: int, controllers: int = 1) -> None:
    """Check the number of brokers and of controllers.

    Raises:
        LocalError: the number is not supported.
    """
    if not 1 <= brokers <= MOST_BROKERS:
        raise LocalError(f"{brokers} brokers: expected 1 to {MOST_BROKERS}")
    most = 1 if brokers == 1 else MOST_CONTROLLERS
    if not 1 <= controllers <= most:
        raise LocalError(f"{controllers} controllers for {brokers} broker(s): expected 1 to {most}")


def check_version(version: str) -> None:
    """Check a Kafka version by its form and age.

    Raises:
        LocalError: it is malformed, or too old to run without ZooKeeper.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        raise LocalError(f"invalid Kafka version {version!r}: expected a version such as 4.3.1")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise LocalError(f"unsupported Kafka version {version}: expected 3.9.0 or newer")


def render_properties(
    node: LocalNode,
    nodes: tuple[LocalNode, ...],
    overrides: Mapping[str, str],
    protocols: Mapping[str, str] | None = None,
) -> str:
    """Return the text of a node's configuration file; the overrides win.

    `protocols` are the security protocols of the additional listeners, by name. `{node}` in an
    override is the node's id: for a rack, for instance.
    """
    node_overrides = {
        name: value.replace("{node}", str(node.node_id)) for name, value in overrides.items()
    }
    properties = {**_place(node, nodes, protocols or {}), **_quick_start(nodes), **node_overrides}
    return str(javaproperties.dumps(properties, timestamp=None))


def _node(
    node_id: int,
    directory: Path,
    *,
    port: int | None = None,
    controller_port: int | None = None,
    listeners: Mapping[str, int] | None = None,
    advertised: Mapping[str, int] | None = None,
) -> LocalNode:
    return LocalNode(
        node_id=node_id,
        port=port,
        controller_port=controller_port,
        directory=directory / f"node-{node_id}",
        listeners=listeners or {},
        advertised=advertised or {},
    )


OWN_LISTENERS: Final = ("CONTROLLER", "PLAINTEXT")
"""Names of the listeners that every cluster has."""


def _place(
    node: LocalNode, nodes: tuple[LocalNode, ...], protocols: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties that place a node in its cluster."""
    listeners = {"PLAINTEXT": node.port, "CONTROLLER": node.controller_port, **node.listeners}
    listener_protocols = {**dict.fromkeys(OWN_LISTENERS, "PLAINTEXT"), **protocols}
    urls = [f"{name}://{HOST}:{port}" for name, port in listeners.items() if port is not None]
    voters = [node for node in nodes if node.controller_port is not None]
    return {
        **_advertised(node),
        "process.roles": node.roles,
        "node.id": str(node.node_id),
        "listeners": ",".join(urls),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in listener_protocols.items()
        ),
        "controller.quorum.voters": ",".join(
            f"{voter.node_id}@{HOST}:{voter.controller_port}" for voter in voters
        ),
        "log.dirs": str(node.data),
    }


def _advertised(node: LocalNode) -> dict[str, str]:
    """Return the advertised listeners of a node that has proxies; else nothing."""
    if not node.advertised:
        return {}
    ports = {"PLAINTEXT": node.port, **node.listeners, **node.advertised}
    urls = [f"{name}://{HOST}:{port}" for name, port in ports.items()]
    return {"advertised.listeners": ",".join(urls)}


_EXAMPLE: Final = plan_nodes(1, (1, 2), Path())
PLACES: Final = frozenset((*_place(_EXAMPLE[0], _EXAMPLE, {}), "advertised.listeners"))
"""Properties that place a node in its cluster: with other values it could not be found."""


def _quick_start(nodes: tuple[LocalNode, ...]) -> dict[str, str]:
    """Return properties with which a small cluster starts fast and notices a killed broker soon."""
    brokers = sum(node.port is not None for node in nodes)
    replicas, least = str(brokers), str(max(1, brokers - 1))
    return {
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": least,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": least,
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # Default: 9 s until a killed broker's partitions get new leaders, and as long until the
        # controller lets the same broker register again. A machine that stalls for longer ends one
        # broker's session: its partitions move once, as after a kill, and clients go on.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # Default: 60 s; a broker that was killed and cannot register again until then ends.
        "initial.broker.registration.timeout.ms": "240000",
        # Default: 128 MB of the heap, filled with zeros at the start, for the log cleaner.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        # Default: 10 MB for each of a segment's indexes, sparse at first. On a disk with megabytes
        # of read-ahead, the first index entry makes the system fill all that with zeros: 100 new
        # partitions held up a broker for two seconds.
        "log.index.size.max.bytes": str(1 << 20),
    }
