"""A node: `twinlog run`. It starts lanes on Spark, refreshes whole mirrors, and reports progress.

The node's own work is small, on purpose: the lanes move all data, and the destination cluster
stores all state. When a node dies, its lanes end, too, and the next node finds all it needs in the
destination cluster.

    Spark's job     blocks a thread of its own until all lanes have ended
    progress        `__mirror_status`, each second, for the caller (`--once` ends by it)
    refresh         what follows the data of the mirrors that this node owns (refresh.py)
    endpoint        metrics and health (metrics.py, health.py)
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.references import NOTHING
from twinlog.kafka.errors import (
    ControlTopicLost,
    Fenced,
    Retriable,
    TwinlogError,
    UnsupportedVersion,
)
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.membership import GroupMember
from twinlog.lifecycle.creation import connected, connected_source
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.node.endpoint import Answer, Answers, Endpoint
from twinlog.node.health import Health, live, ready
from twinlog.node.metrics import CONTENT_TYPE, Exposition
from twinlog.node.observation import Observed
from twinlog.node.stopping import ended_by
from twinlog.runtime.lane import LaneConfig, run_lane
from twinlog.runtime.session import map_tasks, start_spark, stop_spark
from twinlog.store.config_records import Wanted
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    LANES_GROUP,
    ControlTopics,
    check_state_partitions,
    create_control_topics,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.statuses import FRESH_S
from twinlog.sync.compaction import Compaction, Marks
from twinlog.sync.heartbeats import Heartbeats, SourceHeartbeats
from twinlog.sync.read_only import ReadOnly
from twinlog.sync.refresh import Refresher

log = logging.getLogger(__name__)

Rows = Mapping[MirrorPartition, PartitionStatus]

ONCE_PATIENCE_S: Final = 10.0
"""With `once`, how long the progress may stay the same before the sources are checked."""
STOP_PATIENCE_S: Final = 10.0
"""How long lanes may take to read the stop request and to end, before Spark ends them.

With the steps after it, a stop takes less than the 30 s after which Kubernetes kills a pod. So a
node whose destination is unreachable ends by itself, too.
"""
LAST_LOOK_S: Final = 5.0
"""How long the last read of the progress may take."""
_LONG_AGO: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The configuration of a node. Times in seconds."""

    node: str
    destination: Mapping[str, str] = field(repr=False)
    control_topics: ControlTopics = field(default_factory=ControlTopics)
    """How they are created, if they do not exist yet."""
    master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    lanes: int | None = None
    group_id: str = LANES_GROUP
    session_timeout_s: float = 10.0
    settings: LaneSettings = field(default_factory=LaneSettings)
    once: bool = False
    log_level: str = "WARNING"
    log_format: str = "text"
    metrics_address: tuple[str, int] | None = None
    """Host and port of metrics and health; None disables the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """The progress of all mirror partitions at one moment, as the lanes report it."""

    mirrored: int
    failed: tuple[PartitionStatus, ...]
    waiting: int
    lag: int
    records: int
    bytes: int

    @property
    def settled(self) -> bool:
        """Whether nothing is left to mirror, except in FAILED partitions."""
        return self.waiting == 0 and self.lag == 0


class _Heard(NamedTuple):
    """When a status was written: by its lane's clock, which may be wrong, and by this process's."""

    time_ms: int
    at: float
    """The latest time: it was read then."""
    after: float
    """The earliest time: the read before did not have it yet."""


class Node:
    """A running node. `watch` is called with its progress each second."""

    def __init__(self, config: NodeConfig, watch: Callable[[NodeProgress], None]) -> None:
        self._config = config
        self._watch = watch
        self._snapshot = Snapshot()
        self._latest: NodeProgress | None = None
        self._stop_before: int | None = None
        self._contacts: dict[int, _Heard] = {}
        self._looked_at = _LONG_AGO
        self._grants = NOTHING
        self._marks = Marks()
        self._stop = asyncio.Event()
        self._observed: Observed | None = None
        self._endpoint = Endpoint(self._answers())

    def stop(self) -> None:
        """Ask the node to end; its lanes finish what is in flight."""
        self._stop.set()

    async def run(self) -> NodeProgress | None:
        """Run until asked to stop; with `once`, until all is mirrored.

        Returns:
            The last progress; None if it was stopped before it knew any.

        Raises:
            UserError: Spark, the destination or the address of the metrics cannot be used.
        """
        if self._config.metrics_address is not None:
            await self._endpoint.start(*self._config.metrics_address)
        try:
            return await self._run()
        finally:
            await self._endpoint.close()

    def _answers(self) -> Answers:
        """The served paths; before the destination has answered, the node reports `starting`."""

        def healthy(probe: Callable[[Observed], Health], starting: int) -> Answer:
            if self._observed is None:
                return Answer(starting, "application/json", b'{"status": "starting"}\n')
            health = probe(self._observed)
            return Answer(health.status, "application/json", health.body)

        rendering = Exposition()

        async def metrics() -> Answer:
            text = b"" if self._observed is None else await rendering.text(self._observed)
            return Answer(200, CONTENT_TYPE, text)

        return {
            "/metrics": metrics,
            "/health": lambda: healthy(ready, starting=503),
            "/health/ready": lambda: healthy(ready, starting=503),
            "/health/live": lambda: healthy(live, starting=200),
        }

    async def _run(self) -> NodeProgress | None:
        config = self._config
        parsed = parse_config(config.destination)
        for warning in parsed.warnings:
            log.warning("--command-config: %s", warning)
        async with AsyncExitStack() as stack:
            async with ended_by(self._stop):
                cluster = await stack.enter_async_context(connected(parsed.config, "destination"))
                store = await self._begin(cluster)
            if self._stop.is_set():
                return None
            spark = await asyncio.to_thread(start_spark, config.master, config.spark_conf)
            lanes = config.lanes or spark.defaultParallelism
            arguments = [self._lane(index, lanes) for index in range(lanes)]
            job = asyncio.create_task(asyncio.to_thread(map_tasks, spark, run_lane, arguments))
            try:
                names = frozenset(argument.name for argument in arguments)
                return await self._supervise(cluster, store, job, names)
            finally:
                await asyncio.to_thread(stop_spark, spark)
                # If Spark had to end the lanes, the cancelled job is not an error.
                await asyncio.gather(job, return_exceptions=True)

    async def _begin(self, cluster: KafkaCluster) -> MirrorStore:
        """Create the control topics, and read what earlier nodes have stored there."""
        self._grants = cluster.config.grants
        store = MirrorStore(cluster, background=True)
        await create_control_topics(cluster, self._config.control_topics)
        # Stop requests and statuses that are stored now are of earlier nodes. Clocks are not
        # compared for that: a clock may jump.
        snapshot = await store.snapshot()
        await check_state_partitions(cluster, snapshot)
        request = snapshot.stops.get(self._config.node)
        self._stop_before = None if request is None else request.requested_ms
        self._hear((await store.statuses())[0], _LONG_AGO)
        return store

    def _lane(self, index: int, lanes: int) -> LaneConfig:
        config = self._config
        # A lease ends before the session does; a new owner waits for the whole session timeout.
        lease_s = max(config.settings.lease_s, config.session_timeout_s)
        return LaneConfig(
            node=config.node,
            index=index,
            lanes=lanes,
            destination=config.destination,
            settings=replace(config.settings, lease_s=lease_s),
            group_id=config.group_id,
            session_timeout_s=config.session_timeout_s,
            stop_before=self._stop_before,
            log_level=config.log_level,
            log_format=config.log_format,
        )

    async def _supervise(
        self,
        cluster: KafkaCluster,
        store: MirrorStore,
        job: "asyncio.Task[list[None]]",
        lanes: frozenset[str],
    ) -> NodeProgress | None:
        refresher = Refresher(cluster, store, lambda: self._snapshot)
        self._marks = refresher.host.sync(Compaction).marks
        group = GroupMember(
            cluster,
            GroupConfig(
                group_id=f"{self._config.group_id}.mirrors",
                topic=CONFIG_TOPIC,
                session_timeout=self._config.session_timeout_s,
                heartbeat_interval=min(1.0, self._config.session_timeout_s / 6),
            ),
            refresher,
        )
        refresher.holds_lease = lambda: group.holds_lease
        beside = [
            asyncio.create_task(group.run()),
            asyncio.create_task(refresher.run()),
            asyncio.create_task(refresher.host.sync(ReadOnly).run()),
            asyncio.create_task(refresher.host.sync(Heartbeats).run()),
            asyncio.create_task(refresher.host.sync(SourceHeartbeats).run()),
        ]
        if self._config.metrics_address is not None:
            observed = Observed(cluster, self._config.group_id, lanes, refresher.errors)
            self._observed = observed
            beside.append(asyncio.create_task(observed.run()))
        watching = asyncio.create_task(self._progress(store, group, refresher))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait(
                [job, watching, stopping, *beside], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if job.done() and not self._stop.is_set():
                await store.snapshot()  # raises if the lanes ended because of an unknown format
                raise Fenced(
                    f"all lanes have ended: another node may use the name {self._config.node}",
                    hint="give each node its own name (--node)",
                )
            await self._end_lanes(store, job)
            return await self._last_progress(store)
        finally:
            await group.close(leave=True)
            for task in (watching, stopping, *beside):
                task.cancel()
            await asyncio.gather(watching, stopping, *beside, return_exceptions=True)

    async def _end_lanes(self, store: MirrorStore, job: "asyncio.Task[list[None]]") -> None:
        """Request the lanes to end by themselves, so that no takeover waits for a timeout."""
        try:
            async with asyncio.timeout(STOP_PATIENCE_S):
                await store.request_stop(self._config.node, self._now_unlike_before())
                await asyncio.shield(job)
        except TimeoutError:
            log.warning("lanes have not ended within %g s, Spark ends them", STOP_PATIENCE_S)

    async def _last_progress(self, store: MirrorStore) -> NodeProgress | None:
        """The progress now; the last known one if the destination does not answer."""
        with suppress(TimeoutError, Retriable):
            async with asyncio.timeout(LAST_LOOK_S):
                return self._measure(*await self._look(store))
        log.warning("cannot read the final progress from the destination")
        return self._latest

    def _now_unlike_before(self) -> int:
        now = time.time_ns() // 1_000_000
        return now + 1 if now == self._stop_before else now

    # ---- progress ------------------------------------------------------------------------------

    async def _progress(self, store: MirrorStore, group: GroupMember, refresher: Refresher) -> None:
        """Report the progress each second: for ever, or with `once` until all is mirrored.

        All is what the sources have, so with `once` each mirror has to be refreshed before the
        progress is read: a refresh finds new topics and partitions.
        """
        previous, changed_at = None, time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            try:
                refreshed = (
                    self._config.once
                    and group.holds_lease
                    and await refresher.has_refreshed(self._mirrors_with_topics())
                )
                progress = self._measure(*await self._look(store))
                await store.states()  # raises if the states' topic is lost
            except (UnsupportedVersion, ControlTopicLost):
                raise
            except TwinlogError as error:
                log.warning("cannot read the progress: %s", error)
                continue
            self._latest = progress
            self._watch(progress)
            if self._config.once:
                if progress.settled and refreshed:
                    return
                refusal = refresher.refusal(self._mirrors_with_topics())
                if progress.settled and refusal is not None:
                    if progress.failed:  # which is told as well, and has its exit status
                        return
                    raise refusal
                changed_at = time.monotonic() if progress != previous else changed_at
                previous = progress
                if time.monotonic() - changed_at > ONCE_PATIENCE_S:
                    await self._check_sources()
                    changed_at = time.monotonic()

    async def _check_sources(self) -> None:
        """Check that the sources answer: without them `once` would never end.

        Raises:
            Retriable, UserError: a source does not answer.
        """
        for name in self._mirrors_with_topics():
            async with connected_source(self._snapshot.mirrors[name], self._grants):
                pass

    def _mirrors_with_topics(self) -> list[str]:
        """The mirrors that have topics to mirror, or add those that match an expression."""
        names = {t.mirror for t in self._snapshot.topics if t.wanted is Wanted.MIRRORING}
        names |= {m.name for m in self._snapshot.mirrors.values() if m.topic_patterns}
        return sorted(names)

    async def _look(self, store: MirrorStore) -> tuple[Snapshot, Rows]:
        before, self._looked_at = self._looked_at, time.monotonic()
        snapshot = self._snapshot = await store.snapshot()
        statuses, _ = await store.statuses()
        if self._observed is not None:
            await self._observed.look(snapshot, statuses)
        self._hear(statuses, time.monotonic(), before)
        oldest = time.monotonic() - FRESH_S
        fresh = {n: status for n, status in statuses.items() if self._contacts[n].at > oldest}
        rows = {row.partition: row for status in fresh.values() for row in status.partitions}
        for number, status in fresh.items():
            self._marks.observe(self._by_this_clock(number, status))
        return snapshot, rows

    def _hear(self, statuses: Mapping[int, Status], now: float, before: float = _LONG_AGO) -> None:
        """Note when statuses were seen to change, by this process's clock.

        A status that does not change has no owner any more: its partitions are waiting, not done.
        """
        for number, status in statuses.items():
            contact = self._contacts.get(number)
            if contact is None or contact.time_ms != status.time_ms:
                self._contacts[number] = _Heard(status.time_ms, now, before)

    def _by_this_clock(self, number: int, status: Status) -> Iterator[PartitionStatus]:
        """A status's rows, with the lane's times converted to this machine's clock.

        Empty if the earliest time of the status is unknown.
        """
        after = self._contacts[number].after
        if after == _LONG_AGO:
            return
        written_ms = time.time_ns() // 1_000_000 - int((time.monotonic() - after) * 1000)
        for row in status.partitions:
            if row.source_time_ms is not None:
                age_ms = status.time_ms - row.source_time_ms
                yield replace(row, source_time_ms=written_ms - age_ms)

    @staticmethod
    def _measure(snapshot: Snapshot, rows: Rows) -> NodeProgress:
        names = [
            name
            for topic in snapshot.topics
            if topic.wanted is Wanted.MIRRORING
            for name in topic.mirror_partitions
        ]
        known_rows = [rows[name] for name in names if name in rows]
        failures = tuple(row for row in known_rows if row.state is State.FAILED)
        mirroring = [row for row in known_rows if row.state is State.MIRRORING]
        return NodeProgress(
            mirrored=len(mirroring),
            failed=failures,
            waiting=len(names) - len(mirroring) - len(failures),
            lag=sum(_behind(row) for row in mirroring),
            records=sum(row.records for row in known_rows),
            bytes=sum(row.bytes for row in known_rows),
        )


def _behind(row: PartitionStatus) -> int:
    if row.source_last_stable < 0 or row.mirrored < 0:
        return 1
    return max(row.source_last_stable - row.mirrored, 0)
