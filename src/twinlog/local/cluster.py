"""A real Kafka cluster on this machine.

    directory/cluster.json                its version, ports, processes
              node-1/server.properties    one folder for each process
                     server.log
                     data/

A cluster ends with the block that it was started for, or with the process that started it, however
that process ends. `release` lets it live on; `LocalCluster.open` finds it by its directory.
"""

import dataclasses
import json
import shutil
import signal
import sys
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twinlog.class_archives import archive_flags, archive_of, make_archive
from twinlog.local import layout
from twinlog.local.artifacts import kafka_jars
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity
from twinlog.local.layout import LocalNode
from twinlog.local.node_processes import NodeProcesses, PortTakenError, Settings
from twinlog.local.ports import HOST, PortClaim

DEFAULT_VERSION = "4.3.1"
_SHUTDOWN_SECONDS = 180.0
_PORT_ATTEMPTS = 3
STATE_FILE = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBroker:
    """One broker: its address and log file."""

    node_id: int
    port: int
    log: Path

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"


class LocalCluster:
    """One to three brokers; see `start` and `open`."""

    def __init__(
        self,
        *,
        directory: Path,
        temporary: bool,
        settings: Settings,
        cluster_id: str,
        nodes: tuple[LocalNode, ...],
        claim: PortClaim | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.cluster_id = cluster_id
        self._temporary = temporary
        self._nodes = {node.node_id: node for node in nodes}
        self._processes = NodeProcesses(directory, self._nodes, settings, claim)

    @classmethod
    def start(
        cls,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        *,
        config: Mapping[str, str] | None = None,
        heap: str = "512m",
        jvm_flags: Sequence[str] = (),
        directory: Path | None = None,
        listeners: Mapping[str, str] | None = None,
        controllers: int = 1,
        proxied: Sequence[str] = (),
        classpath: Sequence[str] = (),
    ) -> Self:
        """Start a cluster and wait until all its brokers serve.

        Args:
            brokers: how many.
            version: of Kafka.
            config: broker properties (`{node}`: the node's id).
            heap: each broker's -Xmx.
            jvm_flags: more flags for each node's JVM.
            directory: an empty or new folder (default: a temporary one, removed by `stop`).
            listeners: the security protocols of additional listeners, by name.
            controllers: how many; more than one only with several brokers.
            proxied: listeners that advertise other ports (see `proxy_ports`).
            classpath: folders and jars of plugins.

        Raises:
            LocalError, JavaError: it cannot be started; its directory with the logs is kept.
        """
        layout.check_size(brokers, controllers)
        layout.check_version(version)
        archive = archive_of(f"kafka-{version}", str(kafka_jars(version)))
        make_archive(archive, f"Kafka {version}", lambda flags: cls._train(version, flags))
        settings = Settings(
            version=version,
            heap=heap,
            config=dict(config or {}),
            jvm_flags=(*archive_flags(archive), *jvm_flags),
            listeners=dict(listeners or {}),
            proxied=tuple(proxied),
            classpath=tuple(classpath),
        )
        return cls._start(brokers, settings, directory, controllers)

    @classmethod
    def _train(cls, version: str, flags: tuple[str, ...]) -> None:
        """Run one broker once, to create the class archive."""
        settings = Settings(version=version, heap="512m", config={}, jvm_flags=flags)
        with cls._start(1, settings, None) as cluster:
            cluster.shut_down(1)

    @classmethod
    def _start(
        cls, brokers: int, settings: Settings, directory: Path | None, controllers: int = 1
    ) -> Self:
        for _ in range(_PORT_ATTEMPTS):
            home = (directory or Path(tempfile.mkdtemp(prefix="twinlog-kafka-"))).absolute()
            count = layout.port_count(
                brokers, len(settings.listeners), controllers, len(settings.proxied)
            )
            claim = PortClaim.fresh(count)
            cluster = cls(
                directory=home,
                temporary=directory is None,
                settings=settings,
                cluster_id=_random_id(),
                nodes=layout.plan_nodes(
                    *(brokers, claim.ports, home, settings.listeners),
                    controllers=controllers,
                    proxied=settings.proxied,
                ),
                claim=claim,
            )
            try:
                cluster._launch()
            except PortTakenError:
                cluster.stop()
                for node in cluster._nodes.values():
                    shutil.rmtree(node.directory, ignore_errors=True)
            except BaseException:
                cluster.abandon()
                raise
            else:
                return cluster
        raise LocalError(
            f"cannot start: other programs took the chosen ports {_PORT_ATTEMPTS} times"
        )

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a released cluster by its directory.

        Raises:
            LocalError: there is none.
        """
        try:
            state = json.loads((directory / STATE_FILE).read_text())
            cluster = cls(
                directory=directory,
                temporary=False,
                settings=Settings(**state["settings"]),
                cluster_id=state["cluster_id"],
                nodes=tuple(
                    LocalNode(**{**node, "directory": Path(node["directory"])})
                    for node in state["nodes"]
                ),
            )
            for node_id, identity in state["processes"].items():
                cluster._processes.adopt(int(node_id), Identity(**identity))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocalError(f"no cluster in {directory}: {error}") from error
        return cluster

    @property
    def brokers(self) -> tuple[LocalBroker, ...]:
        """The brokers, running or not."""
        return tuple(
            LocalBroker(node_id=node.node_id, port=node.port, log=node.log)
            for node in self._nodes.values()
            if node.port is not None
        )

    @property
    def bootstrap_servers(self) -> str:
        """All brokers' addresses, as Kafka's `bootstrap.servers`."""
        return ",".join(broker.address for broker in self.brokers)

    def listener(self, name: str) -> str:
        """All brokers' advertised addresses of one of the additional listeners."""
        every = [{**node.listeners, **node.advertised} for node in self._nodes.values()]
        return ",".join(f"{HOST}:{ports[name]}" for ports in every if name in ports)

    def proxy_ports(self, name: str) -> dict[int, tuple[int, int]]:
        """The advertised port of a proxied listener, and the port it binds, for each broker.

        A proxy has to listen at the first port and forward to the second.
        """
        return {
            node.node_id: (node.advertised[name], node.listeners[name])
            for node in self._nodes.values()
            if name in node.advertised
        }

    @property
    def version(self) -> str:
        """The version of Kafka."""
        return self.settings.version

    def alive(self, node_id: int) -> bool:
        """Whether a node's process exists (running or paused)."""
        return self._processes.alive(node_id)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes: the brokers, and the controllers that are nodes of their own."""
        return tuple(self._nodes)

    @property
    def living(self) -> tuple[int, ...]:
        """The nodes whose process exists."""
        return tuple(node_id for node_id in self._nodes if self.alive(node_id))

    def kill(self, node_id: int) -> None:
        """Kill a node (SIGKILL)."""
        self._processes.running(node_id).kill()

    def shut_down(self, node_id: int) -> None:
        """Shut a node down as its operator would (SIGTERM): it moves its leaderships away first."""
        process = self._processes.running(node_id)
        process.signal(signal.SIGTERM)
        process.wait(_SHUTDOWN_SECONDS)

    def pause(self, node_id: int) -> None:
        """Suspend a node (SIGSTOP); once this returns, it answers nothing."""
        self._processes.running(node_id).pause()

    def resume(self, node_id: int) -> None:
        """Resume a suspended node (SIGCONT)."""
        self._processes.running(node_id).signal(signal.SIGCONT)

    def start_broker(self, node_id: int) -> None:
        """Restart an ended node, with its data and at its port, and wait until it serves.

        Raises:
            LocalError: it runs already, or it does not start.
        """
        node = self._processes.node(node_id)
        if self.alive(node_id):
            raise LocalError(f"node {node_id} is already running")
        self._processes.claim_ports()
        self._processes.start(node)
        self._processes.wait_until_serving([node], {node_id})
        self._write_state()

    def stop(self) -> None:
        """Kill all nodes and remove their data (and a temporary directory as a whole)."""
        self._processes.kill_all()
        for node in self._nodes.values():
            shutil.rmtree(node.data, ignore_errors=True)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def abandon(self) -> None:
        """Kill the nodes that this process started, and keep the files."""
        self._processes.abandon()

    def release(self) -> None:
        """Let the cluster live on after this process."""
        self._write_state()
        self._processes.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.abandon()
            sys.stderr.write(f"the logs of the brokers are kept in {self.directory}\n")

    def _launch(self) -> None:
        nodes = tuple(self._nodes.values())
        for node in nodes:
            node.directory.mkdir(parents=True)
            settings = self.settings
            text = layout.render_properties(node, nodes, settings.config, settings.listeners)
            node.properties.write_text(text)
        self._processes.format(self.cluster_id)
        for node in nodes:
            self._processes.start(node)
        self._processes.wait_until_serving(nodes, {broker.node_id for broker in self.brokers})
        self._write_state()

    def _write_state(self) -> None:
        state: dict[str, Any] = {
            "cluster_id": self.cluster_id,
            "settings": dataclasses.asdict(self.settings),
            "nodes": [dataclasses.asdict(node) for node in self._nodes.values()],
            "processes": {
                node_id: dataclasses.asdict(identity)
                for node_id, identity in self._processes.identities().items()
            },
        }
        partial = self.directory / f"{STATE_FILE}.partial"
        partial.write_text(json.dumps(state, indent=1, default=str) + "\n")
        partial.replace(self.directory / STATE_FILE)


def _random_id() -> str:
    """Return a random Kafka id: 128 bits in base64; kafka-storage rejects a leading dash."""
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
