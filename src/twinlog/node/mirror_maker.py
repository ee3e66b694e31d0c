"""`twinlog mirror-maker`: the flows of a properties file, with a node for each destination.

    file -> for each target: create or alter its flows, then switch off those that are disabled
         -> remove topics that are no longer selected (lifecycle/flow_selection.py)
         -> take over from MirrorMaker 2, if wanted
         -> a process `twinlog run`
         -> heartbeats of pairs of clusters between which no topic is copied

A node has one Spark session, so each target has a process of its own. They end together: if one
fails, or this process is asked to stop.

A stop before the nodes are started cuts off what is being created, since a cluster may be
unreachable, and a takeover may compare much. What is stored is then as after a crash. A flow's
settings are written in one transaction, and so are the topics that it takes over. The same command
does the rest.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import javaproperties

from twinlog.kafka.client.configuration import parse_config
from twinlog.lifecycle.creation import connected
from twinlog.lifecycle.flow_creation import create_flow, take_over_topics
from twinlog.lifecycle.flow_handback import hand_back
from twinlog.lifecycle.flow_selection import (
    follow_selection,
    other_flows,
    paused_line,
    switch_off,
)
from twinlog.lifecycle.worker_offsets import OwnOffsets
from twinlog.mirror.flow import FlowRules, kept_settings
from twinlog.mirror.mirror_names import flow_name
from twinlog.node.stopping import ended_by
from twinlog.store.control_topics import ControlTopics, take_control_topics
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.heartbeats import beats_of, keep_beating

log = logging.getLogger(__name__)

_COMMAND: Final = (
    sys.executable,
    "-c",
    "from twinlog.interfaces.cli.start import twinlog; twinlog()",
    "run",
)
_END_S: Final = 25.0
"""How long nodes may take to end before they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFlow:
    """A flow to one target: its source's alias, and the properties of its mirror."""

    source: str
    properties: Mapping[str, str] = field(repr=False)
    """See `flow_creation.stored_properties`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster that flows copy to."""

    alias: str
    properties: Mapping[str, str] = field(repr=False)
    """Client properties, and those of its control topics."""
    flows: Sequence[StoredFlow]
    disabled: Sequence[str] = ()
    """The sources of flows to this cluster that the file disables (`A->B.enabled=false`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatPair:
    """A pair of clusters without a flow that copies topics: only heartbeats are written."""

    target: str
    properties: Mapping[str, str] = field(repr=False)
    """Client properties of the target."""
    flow: FlowRules


class MirrorMaker:
    """Runs flows until `stop` is called, or a node fails.

    Args:
        targets: the clusters that topics are copied to.
        pairs: those that get heartbeats only.
        arguments: of each node's command `twinlog run`.
        metrics: host and port of the first node's metrics; each further node has the next port.
        report: called with each line about partitions that are taken over from MirrorMaker 2, and
            about topics and flows that the file does not select.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        pairs: Sequence[HeartbeatPair],
        arguments: Sequence[str] = (),
        report: Callable[[str], None] = log.info,
        metrics: tuple[str, int] | None = None,
    ) -> None:
        self._targets = targets
        self._pairs = pairs
        self._arguments = tuple(arguments)
        self._metrics = metrics
        self._report = report
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask all nodes to end."""
        self._stop.set()

    async def run(self) -> int:
        """Run; return the exit status: 0 if it ended as requested.

        Raises:
            UserError: a flow cannot be created; no node was started.
            Retriable: a cluster is unreachable.
        """
        prepared: list[str] = []
        async with ended_by(self._stop):
            for target in self._targets:
                await _prepare(target, self._report, prepared)
        if self._stop.is_set():
            self._report(
                "stopped before any node was started; complete flows: "
                f"{', '.join(prepared) or 'none'}; the same command creates or completes all others"
            )
            return 0
        beats = [asyncio.create_task(_beat(pair)) for pair in self._pairs]
        try:
            with tempfile.TemporaryDirectory(prefix="twinlog-") as folder:
                return await self._supervise(Path(folder))
        finally:
            for beat in beats:
                beat.cancel()
            await asyncio.gather(*beats, return_exceptions=True)

    async def _supervise(self, folder: Path) -> int:
        nodes: dict[str, asyncio.subprocess.Process] = {}
        stopping = asyncio.create_task(self._stop.wait())
        try:
            for number, target in enumerate(self._targets):
                nodes[target.alias] = await self._start(target, folder, self._measured(number))
            ends = {
                asyncio.create_task(node.wait(), name=alias): alias for alias, node in nodes.items()
            }
            done, _ = await asyncio.wait({*ends, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                log.error(
                    "the node of cluster %s has ended with status %s; ending all others",
                    ends[task],
                    task.result(),
                )
            failed = bool(done - {stopping})
        finally:
            stopping.cancel()
            await _end(nodes)
        return 1 if failed else 0

    def _measured(self, number: int) -> Sequence[str]:
        """The option of a node that serves metrics."""
        if self._metrics is None:
            return ()
        host, port = self._metrics
        address = f"{f'[{host}]' if ':' in host else host}:{port + number}"
        self._report(
            f"metrics of the node of cluster {self._targets[number].alias}: "
            f"http://{address}/metrics"
        )
        return "--metrics-address", address

    async def _start(
        self, target: Target, folder: Path, measured: Sequence[str]
    ) -> asyncio.subprocess.Process:
        """Start a node; its properties are in a file, as others may see arguments."""
        config = folder / f"{target.alias}.properties"
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            javaproperties.dump(target.properties, file, timestamp=False)
        servers = target.properties["bootstrap.servers"]
        return await asyncio.create_subprocess_exec(
            *_COMMAND,
            "--bootstrap-server",
            servers,
            "--command-config",
            str(config),
            *self._arguments,
            *measured,
            # A signal of the terminal goes to this process, which ends its nodes in order.
            start_new_session=True,
        )


async def _prepare(
    target: Target, report: Callable[[str], None], prepared: MutableSequence[str]
) -> None:
    """Create or alter the flows to a target, and take over; append each flow's name when done."""
    properties = dict(target.properties)
    topics: ControlTopics = take_control_topics(properties)
    parsed = parse_config(properties)
    async with connected(parsed.config, target.alias) as cluster:
        own: list[str] = []
        for flow in target.flows:
            name = await create_flow(cluster, flow.source, target.alias, flow.properties, topics)
            log.info("flow %s is stored in cluster %s", name, target.alias)
            own.append(name)
        # Behind all that may refuse the file: else nothing would copy what is switched off.
        for source in target.disabled:
            for line in await switch_off(cluster, flow_name(source, target.alias)):
                report(f"{source}->{target.alias}: {line}")
        for flow, name in zip(target.flows, own, strict=True):
            for line in await follow_selection(cluster, name):
                report(f"{flow.source}->{target.alias}: {line}")
            for partition in await take_over_topics(cluster, name):
                report(f"{flow.source}->{target.alias}: {partition}")
            prepared.append(f"{flow.source}->{target.alias}")
        snapshot = await MirrorStore(cluster).snapshot()
        for flow, name in zip(target.flows, own, strict=True):
            mirror = snapshot.mirrors.get(name)
            if mirror is None:
                continue
            for line in (kept_settings(mirror.source, flow.properties), paused_line(mirror)):
                if line:
                    report(f"{flow.source}->{target.alias}: {line}")
        for name in other_flows(snapshot, own):
            report(
                f"warning: cluster {target.alias} also has flow {name}, which is not enabled here, "
                f"and goes on; twinlog flows delete --flow {name} ends it"
            )


async def hand_back_flows(
    targets: Sequence[Target], own: OwnOffsets, report: Callable[[str], None]
) -> None:
    """Record where MirrorMaker 2 goes on with flows whose topics were removed.

    Args:
        targets: the clusters with flows.
        own: what becomes of offsets that MirrorMaker 2 has recorded itself.
        report: receives a line for each partition.

    Raises:
        UserError, TwinlogError: see `flow_handback.hand_back`; other flows may be done.
    """
    for target in targets:
        properties = dict(target.properties)
        take_control_topics(properties)
        async with connected(parse_config(properties).config, target.alias) as cluster:
            for flow in target.flows:
                name = flow_name(flow.source, target.alias)
                for partition in await hand_back(cluster, name, flow.properties, own):
                    report(f"{flow.source}->{target.alias}: {partition}")


async def _end(nodes: Mapping[str, asyncio.subprocess.Process]) -> None:
    """Ask the nodes to end, then kill those that do not."""
    running = [node for node in nodes.values() if node.returncode is None]
    for node in running:
        with suppress(ProcessLookupError):
            node.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await asyncio.gather(*(node.wait() for node in running))
    for node in running:
        if node.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            await node.wait()


async def _beat(pair: HeartbeatPair) -> None:
    """Write the heartbeats of a pair until cancelled."""
    await keep_beating(
        beats_of(pair.flow),
        lambda: connected(parse_config(dict(pair.properties)).config, pair.target),
        f"cluster {pair.target}",
    )
