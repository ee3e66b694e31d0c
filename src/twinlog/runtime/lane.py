"""A lane: one long-lived Spark task that owns state partitions and their mirror partitions.

    group (kafka/groups/membership.py)   which partitions of __mirror_state this lane owns
    __mirror_config            which mirrors and topics there are, followed as it is written
    engines (engine.py)        one for each source cluster, all appending through one connection
                               to each destination broker
    __mirror_state             a record for each change of a partition's state, under a
                               transactional id of its state partition: a former owner's is refused
    __mirror_status            progress, once a second, for each state partition that has any

Order at a takeover:

1. Fence the state partition: a former owner cannot write states any more.
2. Read the states.
3. Place and append. A mirror partition without a state has never had an owner. Every other one
   waits until the former owner's lease has ended, before any request that the broker does not
   guard.

One failed partition, mirror or unreachable source never ends a lane. A lane ends when:

- its node gets a stop request;
- another process has its instance id: that process owns its state partitions already;
- the process that Spark forked it from has died: Spark could not end it any more, so the lane ends
  by itself and Spark starts it again.
"""

import asyncio
import logging
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from twinlog.engines.exact.engine import Engine
from twinlog.engines.exact.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.exact.partition import MirrorPartition, PartitionSpec
from twinlog.engines.exact.settings import LaneSettings
from twinlog.engines.exact.shard import Shard
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config, parse_source
from twinlog.kafka.client.metadata import check_cluster_id
from twinlog.kafka.client.references import NOTHING
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    ControlTopicLost,
    Fenced,
    Refusal,
    Retriable,
    TwinlogError,
    UnsupportedVersion,
    UserError,
)
from twinlog.kafka.groups.membership import GroupConfig, GroupMember
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.requests.expiration import expirations
from twinlog.kafka.types import TopicPartition
from twinlog.logs import set_up
from twinlog.mirror.placement import MirrorPartition as Name
from twinlog.mirror.settings import parse_settings, split_settings
from twinlog.mirror.throttle import Throttle
from twinlog.runtime.heap import keep_freed
from twinlog.runtime.ownership import OwnedShard
from twinlog.runtime.reconciler import Mirrored, Ways
from twinlog.runtime.state_log import StateLog
from twinlog.runtime.status_writer import SHARE_S, Reporter
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    STATE_TOPIC,
    check_state_partitions,
    follow_config,
    partition_count,
    read_config,
)
from twinlog.store.snapshot import Snapshot
from twinlog.store.topic_reader import UNDECIDED

log = logging.getLogger(__name__)

PARENT_INTERVAL_S: Final = 1.0
"""The interval of checks whether Spark can still end this lane."""
CATCH_UP_S: Final = 5.0
"""How long the desired state may be behind at a takeover; then the takeover is retried."""
CONNECT_S: Final = 10.0
"""How long a source may take to answer; then that is reported, and the connection is retried."""
FIRST_PAUSE_S: Final = 0.5
"""The first backoff before a source is connected again."""
SOURCE_PAUSE_S: Final = 5.0
"""The longest backoff before a source is connected again, and the backoff after a defect."""
AGAIN_S: Final = 1.0
"""How long a failed lane waits before it ends: Spark starts it again at once."""
EXPIRATION_S: Final = 60.0
"""The interval of reads of how long brokers remember a producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """The configuration of a lane, pickled by Spark as it is.

    `destination` holds client properties, with references to secrets unresolved.
    """

    node: str
    index: int
    lanes: int
    """How many lanes the node has."""
    destination: Mapping[str, str] = field(repr=False)
    settings: LaneSettings
    group_id: str
    session_timeout_s: float
    stop_before: int | None = None
    """The stop request that was stored at the node's start, for an earlier node of its name."""
    log_level: str = "WARNING"
    log_format: str = "text"

    @property
    def name(self) -> str:
        """The lane's name, and its static member id in the group."""
        return f"{self.node}-{self.index}"


def run_lane(config: LaneConfig) -> None:
    """Run a lane until it is asked to stop: the body of a Spark task."""
    set_up(config.log_level, config.log_format, config.name)
    keep_freed(config.settings.buffer_bytes)
    try:
        asyncio.run(Lane(config).run())
    except (Fenced, UnsupportedVersion, ControlTopicLost) as error:
        # A restart would take the name back from its new process, which would do the same, for
        # ever. Nor does a restart help with an unknown format of the control topics.
        log.error("%s; this lane ends", error)  # noqa: TRY400 - one line
    except TwinlogError as error:
        log.warning("%s; this lane is started again", error)
        time.sleep(AGAIN_S)
        raise


class Lane:
    """A running lane. Its methods are the callbacks of its group."""

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self._settings = config.settings
        self.grants = NOTHING
        """What the properties of mirrors may read on this machine."""
        self._parent = os.getppid()
        self._random = random.Random()  # noqa: S311 - jitter
        self._stack = AsyncExitStack()
        self._snapshot = Snapshot()
        self._owned: dict[int, OwnedShard] = {}
        self._engines: dict[str, _RunningEngine] = {}
        self._compacted: dict[tuple[str, UUID | None], bool] = {}
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._assigned = asyncio.Event()  # set when a state partition was assigned
        self._expiration_due = time.monotonic()
        self._ways = Ways(
            self._owned,
            wanted=lambda: self._snapshot.owned(self._shards),
            catch_up=self._catch_up,
            disown=self._disown,
            run=self._run_partitions,
            changed=self._changed.set,
            random=self._random,
        )
        self._changing = asyncio.Lock()  # guards `_owned` and `_engines`

    async def run(self) -> None:
        """Run until asked to stop.

        Raises:
            Fenced: another process runs under this lane's name.
        """
        async with self._stack:
            destination = parse_config(
                {"tcp.user.timeout.ms": "2000", **self.config.destination}
            ).config
            self.grants = destination.grants
            self._cluster = await self._stack.enter_async_context(
                KafkaCluster(destination, name="destination")
            )
            self._port = KafkaDestination(self._cluster, self._may_write)
            self._group = GroupMember(
                self._cluster,
                GroupConfig(
                    group_id=self.config.group_id,
                    topic=STATE_TOPIC,
                    instance_id=self.config.name,
                    session_timeout=self.config.session_timeout_s,
                    heartbeat_interval=min(1.0, self.config.session_timeout_s / 6),
                ),
                self,
            )
            self._reporter = Reporter(
                self._cluster, self.config.node, self.config.name, self.config.lanes
            )
            self._shards = await partition_count(self._cluster) or 0
            if not self._shards:
                raise UserError(f"{STATE_TOPIC} does not exist", hint="create a mirror first")
            await check_state_partitions(self._cluster, await read_config(self._cluster))
            group = asyncio.create_task(self._group.run())
            tasks = [
                group,
                asyncio.create_task(self._follow()),
                asyncio.create_task(self._reconcile_when_changed()),
                asyncio.create_task(self._report()),
                asyncio.create_task(self._share()),
                asyncio.create_task(self._watch_parent()),
                asyncio.create_task(self._stop.wait()),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                await self._group.close(leave=True)
                await group
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.on_lost(set(self._owned))
                for running in self._engines.values():
                    await running.close()

    async def _watch_parent(self) -> None:
        while os.getppid() == self._parent:
            await asyncio.sleep(PARENT_INTERVAL_S)
        raise Retriable("the process that Spark has forked this lane from is gone")

    def _may_write(self) -> bool:
        return self._group.holds_lease

    # ---- the group's callbacks -----------------------------------------------------------------

    async def on_assigned(self, partitions: set[int]) -> None:
        """Take these state partitions; they are opened in the background."""
        async with self._changing:
            self._take(partitions)

    async def on_revoked(self, partitions: set[int]) -> None:
        """End all work on these state partitions, then release them."""
        async with self._changing:
            await self._drop(partitions)

    async def on_lost(self, partitions: set[int]) -> None:
        """Drop these state partitions: another lane may own them."""
        await self.on_revoked(partitions)

    def _take(self, partitions: Collection[int]) -> None:
        for number in partitions:
            shard = Shard(number, self.config.group_id, self._port, self._settings)
            states = StateLog(self._cluster, number, self.config.group_id, self._may_write)
            self._owned[number] = OwnedShard(shard, states, self._may_write, self._settings.lease_s)
        self._assigned.set()
        self._changed.set()

    async def _drop(self, partitions: Collection[int]) -> None:
        for engine in self._running():
            await engine.disown(
                [p.key for p in engine.partitions.values() if p.spec.shard in partitions]
            )
        for number in partitions:
            if (owned := self._owned.pop(number, None)) is not None:
                await owned.close()

    def _running(self) -> list[Engine]:
        return [one.engine for one in self._engines.values() if one.engine is not None]

    # ---- the desired state ---------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_on()
            except (UnsupportedVersion, ControlTopicLost):
                raise
            except TwinlogError as error:
                log.warning("what is wanted cannot be followed: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _follow_on(self) -> None:
        async with aclosing(follow_config(self._cluster)) as snapshots:
            async for snapshot in snapshots:
                for reason in snapshot.unreadable.values():
                    log.warning("%s", reason)
                gone = self._snapshot.deleted(snapshot)
                recreated = self._snapshot.recreated(snapshot)
                for owned in self._owned.values():
                    owned.forget(gone)
                    owned.forget_ends(recreated)
                self._snapshot = snapshot
                self._changed.set()
                stop = snapshot.stops.get(self.config.node)
                if stop is not None and stop.requested_ms != self.config.stop_before:
                    self._stop.set()

    async def _reconcile_when_changed(self) -> None:
        """Reconcile after each change, and retry a failed round with backoff.

        A newly assigned state partition does not wait for the backoff of an earlier failure.
        """
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._assigned.clear()
            try:
                async with self._changing:
                    await self._reconcile()
                failures = 0
            except TwinlogError as error:
                log.warning("not all that is owned can be worked on yet: %s", error)
                try:
                    pause = self._settings.backoff.delay(failures + 1, self._random.random())
                    async with asyncio.timeout(pause):
                        await self._assigned.wait()
                    failures = 0
                except TimeoutError:
                    failures += 1
                self._changed.set()

    async def _reconcile(self) -> None:
        """Bring the owned mirror partitions to their desired states (reconciler.py).

        Raises:
            TwinlogError: something failed; the first reason.
        """
        await self._end_engines()
        await self._read_expiration()
        self._set_engines()
        await self._ways.go()

    async def _read_expiration(self) -> None:
        """Read how long brokers remember producers: before new partitions run, and periodically.

        A broker may have been restarted with another setting. Without an answer the last known
        value stays, which is Kafka's default at first.
        """
        opened = all(owned.informed for owned in self._owned.values())
        if opened and time.monotonic() < self._expiration_due:
            return
        self._expiration_due = time.monotonic() + EXPIRATION_S
        told, known = await expirations(self._cluster), self._settings
        self._settings = replace(
            known,
            producer_expiration_ms=told.producer_ms or known.producer_expiration_ms,
            ids_expiration_ms=told.transactional_ms or known.ids_expiration_ms,
        )
        for engine in self._running():
            engine.settings = self._settings
        for owned in self._owned.values():
            owned.shard.settings = self._settings

    async def _catch_up(self) -> None:
        """Wait until this lane has read all that is in `__mirror_config` now."""
        there = (await read_config(self._cluster, patience=UNDECIDED)).ends
        deadline = time.monotonic() + CATCH_UP_S
        while any(self._snapshot.ends.get(index, 0) < end for index, end in there.items()):
            if time.monotonic() > deadline:
                raise Retriable(f"{CONFIG_TOPIC} cannot be followed to its end")
            await asyncio.sleep(self._settings.position_pause_s)

    async def _run_partitions(self, owned: OwnedShard, wanted: Sequence[Mirrored]) -> None:
        """Mirror these partitions of a state partition; a failed topic holds up no other topic."""
        trouble: TwinlogError | None = None
        specs: defaultdict[str, list[PartitionSpec]] = defaultdict(list)
        for name, topic in wanted:
            try:
                specs[name.mirror].append(await self._spec(name, topic, owned.shard.number))
            except TwinlogError as error:
                trouble = error
        for mirror, some in specs.items():
            await self._own(mirror, owned, some)
        if trouble is not None:
            raise trouble

    async def _end_engines(self) -> None:
        """End the engines of mirrors that were deleted, or whose source has changed."""
        for name, running in list(self._engines.items()):
            if not _same_source(running.mirror, self._snapshot.mirrors.get(name)):
                if running.engine is not None:
                    await running.engine.disown(list(running.engine.partitions))
                await running.close()
                del self._engines[name]

    def _set_engines(self) -> None:
        """Apply the mirrors' throttles and log start delays to the running engines."""
        for name, running in self._engines.items():
            mirror = self._snapshot.mirrors.get(name)
            if running.engine is not None and mirror is not None:
                throttle, delay = _limits(mirror)
                running.engine.set_throttle(throttle, lanes=self.config.lanes)
                running.engine.log_start_delay_s = delay

    async def _disown(self, keep: Collection[Name]) -> None:
        """Stop mirroring all but these; on return, no request of other partitions is in flight."""
        self._note_epochs()  # before the engines drop these partitions
        for mirror, running in list(self._engines.items()):
            if running.engine is not None:
                kept = {TopicPartition(n.topic, n.partition) for n in keep if n.mirror == mirror}
                await running.engine.disown(running.engine.partitions.keys() - kept)

    async def _spec(self, name: Name, topic: MirrorTopic, shard: int) -> PartitionSpec:
        return PartitionSpec(
            partition=TopicPartition(name.topic, name.partition),
            source_topic_id=topic.topic_id,
            shard=shard,
            compacted=await self._is_compacted(topic),
            destination_topic_id=topic.destination_topic_id,
        )

    async def _is_compacted(self, mirrored: MirrorTopic) -> bool:
        topic = mirrored.topic
        incarnation = topic, mirrored.destination_topic_id
        if incarnation not in self._compacted:
            resource = admin.topic_resource(topic)
            answers = await admin.describe_configs(self._cluster, [resource], ["cleanup.policy"])
            entries = answers[resource]
            if isinstance(entries, Refusal):
                if entries.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return False  # the engine reports the missing topic for each partition
                raise Retriable(f"the cleanup.policy of {topic} is not known: {entries}")
            policy = entries["cleanup.policy"].value or ""
            self._compacted[incarnation] = "compact" in policy
        return self._compacted[incarnation]

    async def _own(self, mirror: str, owned: OwnedShard, specs: Collection[PartitionSpec]) -> None:
        running = self._engines.get(mirror)
        if running is None or running.engine is None:
            known = self._snapshot.mirrors.get(mirror)
            if running is None and known is not None:
                self._engines[mirror] = _RunningEngine(self, known)
            return
        await owned.run(mirror, running.engine, specs)

    def engine_for(self, mirror: str, cluster: KafkaCluster | None) -> Engine:
        """An engine for a connected source; for None, an engine that only reports a failure."""
        return Engine(
            None if cluster is None else KafkaSource(cluster),
            self._port,
            self._settings,
            self._random,
            lambda partition: self._observe(mirror, partition),
            brokers_time_ms=self._cluster.brokers_time.now_ms,
        )

    def engine_changed(self, mirror: str, *, ended: bool) -> None:
        """Reconcile again: a mirror's engine is ready for partitions, or has ended."""
        if ended:
            self._engines.pop(mirror, None)
        self._changed.set()

    # ---- states and statuses -------------------------------------------------------------------

    def _observe(self, mirror: str, partition: MirrorPartition) -> None:
        owned = self._owned.get(partition.spec.shard)
        if owned is not None and self._runs(mirror, partition):
            owned.observe(mirror, partition)

    def _runs(self, mirror: str, partition: MirrorPartition) -> bool:
        """Whether an engine has this partition: reports of a disowned partition are ignored."""
        running = self._engines.get(mirror)
        return (
            running is not None and running.engine is not None and running.engine.holds(partition)
        )

    async def _report(self) -> None:
        """Write changed states and progress, once a second."""
        while True:
            await asyncio.sleep(1.0)
            self._note_epochs()
            await asyncio.gather(
                *(self._write_states(number, owned) for number, owned in self._owned.items())
            )
            if self._ways.pause_is_due or time.monotonic() >= self._expiration_due:
                self._changed.set()
            if self._may_write():
                stops = {number: owned.being_stopped for number, owned in self._owned.items()}
                await self._reporter.write(self._engines_by_mirror(), stops)

    async def _write_states(self, number: int, owned: OwnedShard) -> None:
        try:
            await owned.write_states()
        except Fenced as error:
            await self._fenced(owned, error)
        except TwinlogError as error:
            log.warning("states of state partition %d wait: %s", number, error)

    async def _fenced(self, owned: OwnedShard, error: Fenced) -> None:
        """Drop a state partition that was fenced, and take it again if the group still assigns it.

        Both happen under one lock. A callback that revokes the partition meanwhile drops it after
        that, so every `OwnedShard` that is created is dropped by a callback.
        """
        number = owned.shard.number
        async with self._changing:
            if self._owned.get(number) is not owned:
                return  # it has been revoked since
            log.warning("state partition %d: %s", number, error)
            await self._drop({number})
            if number in self._group.owned:
                self._take({number})

    def _note_epochs(self) -> None:
        """Note the source's leader epochs that the destination has by now."""
        for mirror, running in self._engines.items():
            if running.engine is not None:
                for partition in running.engine.partitions.values():
                    owned = self._owned.get(partition.spec.shard)
                    if owned is not None:
                        owned.mirrored(Name(mirror, *partition.key), partition)

    async def _share(self) -> None:
        """Share the rates of throttled mirrors with the node's other lanes."""
        while True:
            await asyncio.sleep(SHARE_S)
            await self._reporter.share(self._engines_by_mirror())

    def _engines_by_mirror(self) -> dict[str, Engine]:
        return {n: one.engine for n, one in self._engines.items() if one.engine is not None}


class _RunningEngine:
    """A mirror's source and its engine, which is None until the source has answered."""

    def __init__(self, lane: Lane, mirror: Mirror) -> None:
        self.engine: Engine | None = None
        self.mirror = mirror
        self._lane = lane
        self._pause_s = FIRST_PAUSE_S
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Connect, however long it takes, then mirror until the lease ends.

        If the source refuses the connection, or the configuration does not lead to it, the engine
        reports the reason for each of its partitions. An unreachable source is retried.
        """
        name, lane = self.mirror.name, self._lane.config.name
        while True:
            try:
                await self._mirror()
            except Fenced as error:
                # Nothing may be written now. Partitions that stay owned get a new engine later.
                log.warning("mirror %s: %s", name, error)
                await asyncio.sleep(self._pause_s)
                self._lane.engine_changed(name, ended=True)
                return
            except TwinlogError as error:
                log.warning("mirror %s: %s", name, error)
                if self.engine is not None or not isinstance(error, Retriable):
                    self._failed(str(error))
            except Exception as error:
                # A defect must not end the mirror: nothing would report it, nor start it again.
                # An error that may hold a secret is a TwinlogError from its origin (security.py).
                log.exception("mirror %s", name)
                self._failed(f"{type(error).__name__}, a defect: see the log of {lane}")
                self._pause_s = SOURCE_PAUSE_S
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, SOURCE_PAUSE_S)

    async def _mirror(self) -> None:
        """Connect, and mirror until an error.

        Raises:
            Fenced: the lease has ended.
            TwinlogError: the source cannot be used.
        """
        name = self.mirror.name
        config = parse_source(self.mirror.source, self._lane.grants).config
        cluster = KafkaCluster(config, name=f"source of {name}")
        try:
            await cluster.start(CONNECT_S)
            check_cluster_id("the source", cluster.cluster_id, self.mirror.source_cluster_id)
            self.engine = self._lane.engine_for(name, cluster)
            self._lane.engine_changed(name, ended=False)
            self._pause_s = FIRST_PAUSE_S
            await self.engine.run()
        finally:
            await cluster.close()

    def _failed(self, reason: str) -> None:
        if self.engine is None:
            self.engine = self._lane.engine_for(self.mirror.name, None)
            self._lane.engine_changed(self.mirror.name, ended=False)
        self.engine.fail_all(reason)

    async def close(self) -> None:
        """End the engine, and close the connection to the source."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _same_source(old: Mirror, new: Mirror | None) -> bool:
    """Whether a mirror's source is still the same; only another source needs another engine."""
    return (
        new is not None
        and split_settings(old.source)[1] == split_settings(new.source)[1]
        and old.source_cluster_id == new.source_cluster_id
    )


def _limits(mirror: Mirror) -> tuple[Throttle, float]:
    """The throttle, and the delay of log start offsets in seconds."""
    try:
        settings = parse_settings(mirror.source)
    except UserError as error:
        # A newer command may have written the settings. Not deleting is the safe choice: records
        # that stay too long can still be deleted later.
        log.warning("mirror %s is not throttled, and deletes nothing: %s", mirror.name, error)
        return Throttle(), math.inf
    return settings.throttle, settings.log_start_delay
