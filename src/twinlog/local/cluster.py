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
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twinlog.local import layout, probe
from twinlog.local.archive import archive_flags
from twinlog.local.artifacts import kafka_jars
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity
from twinlog.local.layout import Node
from twinlog.local.ports import HOST, PortClaim
from twinlog.local.processes import (
    SHORT_LIVED,
    JavaProcess,
    JavaProgram,
    ProcessGroup,
    last_error,
)

DEFAULT_VERSION = "4.3.1"
_START_SECONDS = 90.0
_SHUTDOWN_SECONDS = 60.0
_POLL_SECONDS = 0.03
_PORT_ATTEMPTS = 3
_CONTROLLER_HEAP = "256m"
STATE_FILE = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker: its address and log file."""

    node_id: int
    port: int
    log: Path

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings with which the nodes of a cluster are started."""

    version: str
    heap: str
    config: Mapping[str, str]
    jvm_flags: Sequence[str]
    listeners: Mapping[str, str] = field(default_factory=dict)
    proxied: Sequence[str] = ()
    classpath: Sequence[str] = ()


class _PortTakenError(LocalError):
    """Another program bound a claimed port first; the start is retried with other ports."""


class LocalCluster:
    """One to three brokers; see `start` and `open`."""

    def __init__(
        self,
        *,
        directory: Path,
        temporary: bool,
        settings: Settings,
        cluster_id: str,
        nodes: tuple[Node, ...],
        claim: PortClaim | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.cluster_id = cluster_id
        self._temporary = temporary
        self._nodes = {node.node_id: node for node in nodes}
        self._processes: dict[int, JavaProcess] = {}
        self._group = ProcessGroup()
        self._claim = claim

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
        quick = archive_flags(version, lambda flags: cls._train(version, flags))
        settings = Settings(
            version=version,
            heap=heap,
            config=dict(config or {}),
            jvm_flags=(*quick, *jvm_flags),
            listeners=dict(listeners or {}),
            proxied=tuple(proxied),
            classpath=tuple(classpath),
        )
        return cls._start(brokers, settings, directory, controllers)

    @classmethod
    def _train(cls, version: str, flags: tuple[str, ...]) -> None:
        """Run one broker once, to create the class archive (archive.py)."""
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
            except _PortTakenError:
                cluster._undo()
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
                    Node(**{**node, "directory": Path(node["directory"])})
                    for node in state["nodes"]
                ),
            )
            for node_id, identity in state["processes"].items():
                cluster._processes[int(node_id)] = JavaProcess(Identity(**identity))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocalError(f"no cluster in {directory}: {error}") from error
        return cluster

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The brokers, running or not."""
        return tuple(
            Broker(node_id=node.node_id, port=node.port, log=node.log)
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
        process = self._processes.get(self._node(node_id).node_id)
        return process is not None and process.alive

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
        self._running(node_id).kill()

    def shut_down(self, node_id: int) -> None:
        """Shut a node down as its operator would (SIGTERM): it moves its leaderships away first."""
        process = self._running(node_id)
        process.signal(signal.SIGTERM)
        process.wait(_SHUTDOWN_SECONDS)

    def pause(self, node_id: int) -> None:
        """Suspend a node (SIGSTOP)."""
        self._running(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Resume a suspended node (SIGCONT)."""
        self._running(node_id).signal(signal.SIGCONT)

    def start_broker(self, node_id: int) -> None:
        """Restart an ended node, with its data and at its port, and wait until it serves.

        Raises:
            LocalError: it runs already, or it does not start.
        """
        node = self._node(node_id)
        if self.alive(node_id):
            raise LocalError(f"node {node_id} is already running")
        if self._claim is None:
            self._claim = PortClaim.again(self._ports())
        self._spawn(node)
        self._await(lambda: self._serves(node, {node_id}))
        self._write_state()

    def stop(self) -> None:
        """Kill all nodes and remove their data (and a temporary directory as a whole)."""
        self._end_processes()
        for node in self._nodes.values():
            shutil.rmtree(node.data, ignore_errors=True)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def abandon(self) -> None:
        """Kill the nodes that this process started, and keep the files."""
        self._group.stop()
        self._release_ports()

    def release(self) -> None:
        """Let the cluster live on after this process."""
        self._write_state()
        self._group.release()
        self._release_ports()

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
        self._format(nodes)
        for node in nodes:
            self._spawn(node)
        everyone = {broker.node_id for broker in self.brokers}
        self._await(lambda: all(self._serves(node, everyone) for node in nodes))
        self._write_state()

    def _format(self, nodes: tuple[Node, ...]) -> None:
        """Run Kafka's own `kafka-storage format`, for all nodes at once."""
        formatting = {node.node_id: self._group.start(self._format_program(node)) for node in nodes}
        for node in nodes:
            process = formatting[node.node_id]
            process.wait(_START_SECONDS)
            if process.returncode != 0:
                raise LocalError(f"cannot format node {node.node_id}: {last_error(node.log)}")

    def _format_program(self, node: Node) -> JavaProgram:
        arguments = ["format", "--cluster-id", self.cluster_id, "--config", str(node.properties)]
        return JavaProgram(
            jars=kafka_jars(self.version),
            main="kafka.tools.StorageTool",
            arguments=arguments,
            flags=[*_archive_only(self.settings.jvm_flags), *SHORT_LIVED],
            heap=_CONTROLLER_HEAP,
            log=node.log,
        )

    def _spawn(self, node: Node) -> None:
        self._processes[node.node_id] = self._group.start(
            JavaProgram(
                jars=kafka_jars(self.version),
                classpath=self.settings.classpath,
                main="kafka.Kafka",
                arguments=[str(node.properties)],
                flags=self.settings.jvm_flags,
                heap=self.settings.heap if node.port is not None else _CONTROLLER_HEAP,
                log=node.log,
                descriptors=self._claim.descriptors if self._claim is not None else (),
            )
        )

    def _serves(self, node: Node, expected: set[int]) -> bool:
        """Whether a node lists the expected brokers; a node that has ended is an error."""
        if not self.alive(node.node_id):
            cause = f"node {node.node_id} ended: {last_error(node.log)}"
            raise (_PortTakenError if "Address already in use" in cause else LocalError)(cause)
        return node.port is None or probe.live_brokers(node.port) >= expected

    def _await(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                raise LocalError(f"not ready after {_START_SECONDS:g} s (logs: {self.directory})")
            time.sleep(_POLL_SECONDS)

    def _node(self, node_id: int) -> Node:
        if node_id not in self._nodes:
            known = ", ".join(map(str, self._nodes))
            raise LocalError(f"this cluster has no node {node_id}; its nodes are {known}")
        return self._nodes[node_id]

    def _ports(self) -> list[int]:
        every = [
            (
                *(node.port, node.controller_port),
                *(*node.listeners.values(), *node.advertised.values()),
            )
            for node in self._nodes.values()
        ]
        return [port for ports in every for port in ports if port is not None]

    def _running(self, node_id: int) -> JavaProcess:
        if not self.alive(node_id):
            raise LocalError(f"node {node_id} is not running")
        return self._processes[node_id]

    def _end_processes(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.kill()
        self.abandon()

    def _undo(self) -> None:
        """Undo a start: kill all nodes and remove all files."""
        self.stop()
        for node in self._nodes.values():
            shutil.rmtree(node.directory, ignore_errors=True)

    def _release_ports(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _write_state(self) -> None:
        state: dict[str, Any] = {
            "cluster_id": self.cluster_id,
            "settings": dataclasses.asdict(self.settings),
            "nodes": [dataclasses.asdict(node) for node in self._nodes.values()],
            "processes": {
                node_id: dataclasses.asdict(process.identity)
                for node_id, process in self._processes.items()
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


def _archive_only(flags: Sequence[str]) -> list[str]:
    """Return the flags with which another main class uses the brokers' class archive."""
    return [flag for flag in flags if flag.startswith(("-XX:SharedArchiveFile", "-Xlog:disable"))]
