"""Heartbeats of flows, in MirrorMaker 2's format (KIP-382), in loops of their own.

    heartbeats of          written to    by which clients on B
    ---------------------  ------------  -----------------------------------------------------------
    a flow A->B            B             see that the flow lives
    its other direction,   A             recognize A, since the flow copies them to A.heartbeats
    B->A, on request

`twinlog mirror-maker` writes the second kind for a direction of its file that copies no topics.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.flow import FlowRules, flow_of, flow_settings_of
from twinlog.mirror.mm2_records import Heartbeat
from twinlog.store.config_records import Mirror
from twinlog.sync.base import METADATA, Host, MirrorContext, Sync
from twinlog.sync.bookkeeping_topics import BookkeepingTopics
from twinlog.sync.flow_topics import FLOWS

log = logging.getLogger(__name__)

_TICK_S: Final = 0.25
_LOOK_S: Final = 1.0
"""Between two looks at which flows have their heartbeats on the source written."""
_AFTER_DEFECT_S: Final = 60.0


class Beats(NamedTuple):
    """Heartbeats that are written to the target of a pair of clusters."""

    source_alias: str
    target_alias: str
    topic: str
    factor: int
    """The replication factor of the topic, if it is created; -1: the cluster's default."""
    interval_s: float

    def now(self) -> Heartbeat:
        """The heartbeat of this moment."""
        return Heartbeat(
            source_cluster_alias=self.source_alias,
            target_cluster_alias=self.target_alias,
            timestamp=time.time_ns() // 1_000_000,
        )


def beats_of(flow: FlowRules, *, reverse: bool = False) -> Beats:
    """The heartbeats of a flow, or of its other direction."""
    settings, policy = flow
    aliases = (settings.source_cluster_alias, settings.target_cluster_alias)
    return Beats(
        *(aliases[::-1] if reverse else aliases),
        policy.heartbeats_topic(),
        settings.heartbeats_topic_replication_factor,
        max(1, settings.emit_heartbeats_interval_seconds),
    )


async def _always() -> bool:
    return True


async def keep_beating(
    beats: Beats,
    connect: Callable[[], AbstractAsyncContextManager[KafkaCluster]],
    place: str,
    *,
    is_wanted: Callable[[], Awaitable[bool]] = _always,
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Write heartbeats until they are not wanted; trouble is logged, and tried again.

    Args:
        beats: the heartbeats.
        connect: connects to the cluster.
        place: the cluster, in messages.
        is_wanted: asked before each one.
        failed: called at each failure.
    """
    topics, trouble = BookkeepingTopics(), ""
    pause = 0.0
    while True:
        await asyncio.sleep(pause)
        pause = beats.interval_s
        try:
            if not await is_wanted():
                return
            async with connect() as cluster:
                while await is_wanted():
                    await topics.write(cluster, beats.topic, beats.factor, [beats.now()])
                    trouble = ""
                    await asyncio.sleep(beats.interval_s)
                return
        except TwinlogError as error:
            failed()
            if str(error) != trouble:  # not each second
                log.warning("cannot write heartbeats to %s: %s", place, error)
            trouble = str(error)
        except Exception:
            # A defect must not end the heartbeats, whose absence nobody would notice.
            failed()
            log.exception("cannot write heartbeats to %s", place)
            pause = max(_AFTER_DEFECT_S, pause)


class _BesideRefreshes(Sync[None]):
    """A sync with a loop of its own, which has nothing to compare."""

    kinds = FLOWS
    metric = METADATA
    needs_source = False

    def __init__(self, host: Host) -> None:
        self._host = host

    async def compare(self, context: MirrorContext) -> None:
        """Nothing: a heartbeat is no difference."""

    async def apply(self, context: MirrorContext, difference: None) -> int:
        """Nothing; see `run`."""
        del context, difference
        return 0


class Heartbeats(_BesideRefreshes):
    """Writes the heartbeats of this node's flows."""

    name = "heartbeats"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._topics = BookkeepingTopics()
        self._due: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    @classmethod
    def create(cls, host: Host) -> "Heartbeats":
        """The heartbeats of one node."""
        return cls(host)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            mirrors = self._host.latest().mirrors
            flows = {name: mirror for name, mirror in mirrors.items() if self.serves(mirror.kind)}
            now = time.monotonic()
            due = [name for name in flows if self._due.get(name, now) <= now]
            await asyncio.gather(*(self._beat(flows[name], now) for name in due))

    async def _beat(self, mirror: Mirror, now: float) -> None:
        name = mirror.name
        try:
            flow = flow_of(mirror.source)
            beats = beats_of(flow)
            self._due[name] = now + beats.interval_s
            if not flow.settings.emits_heartbeats or not await self._host.is_ours(name):
                return
            await self._topics.write(
                self._host.destination, beats.topic, beats.factor, [beats.now()]
            )
            self._troubles.pop(name, None)
        except TwinlogError as error:
            self._host.failed(name, self.metric, 1)
            if self._troubles.get(name) != str(error):  # not each second
                log.warning("flow %s: cannot write its heartbeats: %s", name, error)
            self._troubles[name] = str(error)
        except Exception:
            # A defect here must not end the lanes, which move the data.
            self._host.failed(name, self.metric, 1)
            self._due[name] = now + _AFTER_DEFECT_S
            log.exception("flow %s: cannot write its heartbeats", name)


class SourceHeartbeats(_BesideRefreshes):
    """Writes heartbeats to the sources of this node's flows, where that is wanted."""

    name = "heartbeats on the source"

    @classmethod
    def create(cls, host: Host) -> "SourceHeartbeats":
        """Those of one node."""
        return cls(host)

    async def run(self) -> None:
        """Write until cancelled, with a connection for each flow."""
        writing: dict[str, tuple[Mirror, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(_LOOK_S)
                mirrors = self._host.latest().mirrors
                for name, (mirror, task) in list(writing.items()):
                    if mirrors.get(name) != mirror:
                        task.cancel()
                    if task.done():
                        del writing[name]
                for name, mirror in mirrors.items():
                    if name not in writing and self.serves(mirror.kind) and _is_wanted(mirror):
                        writing[name] = mirror, tasks.create_task(self._beat(mirror))

    async def _beat(self, mirror: Mirror) -> None:
        """Write those of a flow while it is this node's."""
        name, host = mirror.name, self._host
        try:
            beats = beats_of(flow_of(mirror.source), reverse=True)
        except UserError:  # `Heartbeats` reports it
            return
        except Exception:  # of a policy that is no part of twinlog
            host.failed(name, self.metric, 1)
            log.exception("flow %s: cannot write heartbeats to its source", name)
            await asyncio.sleep(_AFTER_DEFECT_S)
            return
        await keep_beating(
            beats,
            lambda: connected_source(mirror, host.destination.config.grants),
            f"the source of flow {name}",
            is_wanted=lambda: host.is_ours(name),
            failed=lambda: host.failed(name, self.metric, 1),
        )


def _is_wanted(mirror: Mirror) -> bool:
    try:
        settings = flow_settings_of(mirror.source)
    except UserError:
        return False  # `Heartbeats` reports it
    is_on = settings.enabled and settings.twinlog_source_heartbeats_enabled
    return is_on and settings.emit_heartbeats_interval_seconds > 0
