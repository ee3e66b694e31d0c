"""The processes of a local cluster's nodes, and the claim on the ports that they bind."""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twinlog.local import probe
from twinlog.local.artifacts import kafka_jars
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity
from twinlog.local.layout import LocalNode
from twinlog.local.ports import PortClaim
from twinlog.local.processes import (
    SHORT_LIVED,
    JavaProcess,
    JavaProgram,
    ProcessGroup,
    last_error,
)

_START_SECONDS = 240.0
_POLL_SECONDS = 0.03
_CONTROLLER_HEAP = "256m"


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


class PortTakenError(LocalError):
    """Another program bound a claimed port first; the start is retried with other ports."""


class NodeProcesses:
    """One process for each node, by node id; a node that was never started has none.

    `directory` is the cluster's, for messages. Without a `claim`, another process has it.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Mapping[int, LocalNode],
        settings: Settings,
        claim: PortClaim | None = None,
    ) -> None:
        self._directory = directory
        self._nodes = nodes
        self._settings = settings
        self._claim = claim
        self._processes: dict[int, JavaProcess] = {}
        self._group = ProcessGroup()

    def adopt(self, node_id: int, identity: Identity) -> None:
        """Add a process that another process has started."""
        self._processes[node_id] = JavaProcess(identity)

    def identities(self) -> dict[int, Identity]:
        """The processes, also those that have ended."""
        return {node_id: process.identity for node_id, process in self._processes.items()}

    def alive(self, node_id: int) -> bool:
        """Whether a node's process exists (running or paused)."""
        process = self._processes.get(self.node(node_id).node_id)
        return process is not None and process.alive

    def node(self, node_id: int) -> LocalNode:
        """A node by its id.

        Raises:
            LocalError: there is none with this id.
        """
        if node_id not in self._nodes:
            ids = ", ".join(map(str, self._nodes))
            raise LocalError(f"this cluster has no node {node_id}; its nodes are {ids}")
        return self._nodes[node_id]

    def running(self, node_id: int) -> JavaProcess:
        """A node's process.

        Raises:
            LocalError: the node does not run.
        """
        if not self.alive(node_id):
            raise LocalError(f"node {node_id} is not running")
        return self._processes[node_id]

    def format(self, cluster_id: str) -> None:
        """Run Kafka's own `kafka-storage format`, for all nodes at once."""
        formatting = {
            node_id: self._group.start(self._format_program(node, cluster_id))
            for node_id, node in self._nodes.items()
        }
        for node_id, process in formatting.items():
            process.wait(_START_SECONDS)
            if process.returncode != 0:
                cause = last_error(self._nodes[node_id].log)
                raise LocalError(f"cannot format node {node_id}: {cause}")

    def start(self, node: LocalNode) -> None:
        """Start a node; the process keeps the claim on the ports also after this one has ended."""
        self._processes[node.node_id] = self._group.start(
            JavaProgram(
                jars=kafka_jars(self._settings.version),
                classpath=self._settings.classpath,
                main="kafka.Kafka",
                arguments=[str(node.properties)],
                flags=self._settings.jvm_flags,
                heap=self._settings.heap if node.port is not None else _CONTROLLER_HEAP,
                log=node.log,
                descriptors=self._claim.descriptors if self._claim is not None else (),
            )
        )

    def wait_until_serving(self, nodes: Sequence[LocalNode], expected: set[int]) -> None:
        """Wait until each of `nodes` lists the brokers `expected`.

        Raises:
            PortTakenError: a node has ended because another program has its port.
            LocalError: a node has ended, or does not serve in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not all(self._serves(node, expected) for node in nodes):
            if time.monotonic() > deadline:
                raise LocalError(f"not ready after {_START_SECONDS:g} s (logs: {self._directory})")
            time.sleep(_POLL_SECONDS)

    def claim_ports(self) -> None:
        """Claim the nodes' ports again, unless this process has the claim."""
        if self._claim is None:
            self._claim = PortClaim.again(self._ports())

    def kill_all(self) -> None:
        """Kill all processes, whoever started them, and wait until they are gone."""
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.kill()
        self.abandon()

    def abandon(self) -> None:
        """Kill the processes that this process started."""
        self._group.stop()
        self._release_ports()

    def release(self) -> None:
        """Let the processes live on after this one."""
        self._group.release()
        self._release_ports()

    def _format_program(self, node: LocalNode, cluster_id: str) -> JavaProgram:
        arguments = ["format", "--cluster-id", cluster_id, "--config", str(node.properties)]
        return JavaProgram(
            jars=kafka_jars(self._settings.version),
            main="kafka.tools.StorageTool",
            arguments=arguments,
            flags=[*_archive_only(self._settings.jvm_flags), *SHORT_LIVED],
            heap=_CONTROLLER_HEAP,
            log=node.log,
        )

    def _serves(self, node: LocalNode, expected: set[int]) -> bool:
        """Whether a node lists the expected brokers; a node that has ended is an error."""
        if not self.alive(node.node_id):
            cause = f"node {node.node_id} ended: {last_error(node.log)}"
            raise (PortTakenError if "Address already in use" in cause else LocalError)(cause)
        return node.port is None or probe.live_brokers(node.port) >= expected

    def _ports(self) -> list[int]:
        ports = [
            port
            for node in self._nodes.values()
            for port in (
                *(node.port, node.controller_port),
                *(*node.listeners.values(), *node.advertised.values()),
            )
        ]
        return [port for port in ports if port is not None]

    def _release_ports(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def _archive_only(flags: Sequence[str]) -> list[str]:
    """Return the flags with which another main class uses the brokers' class archive."""
    return [flag for flag in flags if flag.startswith(("-XX:SharedArchiveFile", "-Xlog:disable"))]
