"""A lane: one long-lived Spark task that owns state partitions and their mirror partitions.

    group (kafka/groups/membership.py)   which partitions of __mirror_state this lane owns
    __mirror_config            which mirrors and topics there are, followed as it is written
    engines (mirror_engines.py)   one for each mirror, of the mirror's kind (engines/base.py)
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
import os
import random
import time
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Final

from twinlog.engines.base import LaneContext
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.errors import (
    ControlTopicLost,
    Fenced,
    Retriable,
    TwinlogError,
    UnsupportedVersion,
    UserError,
)
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.membership import GroupMember
from twinlog.logs import set_up
from twinlog.runtime.dataframe_process import DataFrameProcess
from twinlog.runtime.heap import collect_seldom, keep_freed
from twinlog.runtime.mirror_engines import MirrorEngines
from twinlog.runtime.ownership import OwnedStatePartition
from twinlog.runtime.reconciler import Ways
from twinlog.runtime.state_log import StateLog
from twinlog.runtime.status_writer import SHARE_S, Reporter
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
AGAIN_S: Final = 1.0
"""How long a failed lane waits before it ends: Spark starts it again at once."""


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
    collect_seldom()
    try:
        asyncio.run(Lane(config).run())
    except (Fenced, UnsupportedVersion, ControlTopicLost) as error:
        # A restart would take the name back from its new process, which would do the same, for
        # ever. Nor does a restart help with an unknown format of the control topics.
        log.error("%s; this lane ends", error)  # noqa: TRY400 - one line
    except TwinlogError as error:
        log.warning("%s; restarting this lane", error)
        time.sleep(AGAIN_S)
        raise


class Lane:
    """A running lane. Its methods are the callbacks of its group."""

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self._settings = config.settings
        self._parent = os.getppid()
        self._random = random.Random()  # noqa: S311 - jitter
        self._stack = AsyncExitStack()
        self._snapshot = Snapshot()
        self._owned: dict[int, OwnedStatePartition] = {}
        self._stop = asyncio.Event()
        self._change = asyncio.Event()
        self._assigned = asyncio.Event()  # set when a state partition was assigned
        self._changing = asyncio.Lock()  # guards `_owned` and `_engines`
        self._dataframes = DataFrameProcess()

    async def run(self) -> None:
        """Run until asked to stop.

        Raises:
            Fenced: another process runs under this lane's name.
        """
        async with self._stack:
            destination = parse_config(
                {"tcp.user.timeout.ms": "2000", **self.config.destination}
            ).config
            self._dataframes = DataFrameProcess(destination.grants)
            self._cluster = await self._stack.enter_async_context(
                KafkaCluster(destination, name="destination")
            )
            self._make_engines()
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
                await self._dataframes.close()

    async def _watch_parent(self) -> None:
        while os.getppid() == self._parent:
            await asyncio.sleep(PARENT_INTERVAL_S)
        raise Retriable("the process that Spark forked this lane from has ended")

    def _make_engines(self) -> None:
        context = LaneContext(
            destination=self._cluster,
            settings=self._settings,
            id_prefix=self.config.group_id,
            may_write=self._may_write,
            confirm_ownership=self._confirm_ownership,
            random=self._random,
            dataframes=self._dataframes,
        )
        self._engines = MirrorEngines(
            context,
            self._owned,
            lane=self.config.name,
            lanes=self.config.lanes,
            snapshot=lambda: self._snapshot,
            on_change=self._change.set,
        )
        self._ways = Ways(
            self._owned,
            targets=lambda: self._snapshot.owned(self._shards),
            catch_up=self._catch_up,
            disown=self._engines.stop_all_but,
            run=self._engines.run_partitions,
            on_change=self._change.set,
            random=self._random,
        )

    def _may_write(self) -> bool:
        return self._group.holds_lease

    async def _confirm_ownership(self) -> None:
        await self._group.confirm()

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
        """Drop these state partitions, which are all: another lane may own them.

        All engines end. Otherwise a request that still waits, for example behind a quota of the
        destination, would be sent when the next membership has a lease.
        """
        async with self._changing:
            await self._engines.close()
            await self._drop(partitions)

    def _take(self, partitions: Collection[int]) -> None:
        for number in partitions:
            self._owned[number] = OwnedStatePartition(
                number,
                writers=self._engines.writers(number),
                kind_of=self._engines.kind_of,
                states=StateLog(self._cluster, number, self.config.group_id, self._may_write),
                may_write=self._may_write,
                settings=self._settings,
            )
        self._assigned.set()
        self._change.set()

    async def _drop(self, partitions: Collection[int]) -> None:
        await self._engines.stop_state_partitions(partitions)
        for number in partitions:
            if (owned := self._owned.get(number)) is not None:
                await owned.close()
                # Not before: a call that the rebalance timeout has ended is followed by `on_lost`.
                del self._owned[number]

    # ---- the desired state ---------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_on()
            except (UnsupportedVersion, ControlTopicLost):
                raise
            except TwinlogError as error:
                log.warning("cannot follow __mirror_config, retrying: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _follow_on(self) -> None:
        async with aclosing(follow_config(self._cluster)) as snapshots:
            async for snapshot in snapshots:
                for reason in snapshot.unreadable.values():
                    log.warning("%s", reason)
                deleted = self._snapshot.deleted(snapshot)
                recreated = self._snapshot.recreated(snapshot)
                for owned in self._owned.values():
                    owned.forget(deleted, recreated)
                self._snapshot = snapshot
                self._change.set()
                stop = snapshot.stops.get(self.config.node)
                if stop is not None and stop.requested_ms != self.config.stop_before:
                    self._stop.set()

    async def _reconcile_when_changed(self) -> None:
        """Reconcile after each change, and retry a failed round with backoff.

        A newly assigned state partition does not wait for the backoff of an earlier failure.
        """
        failures = 0
        while True:
            await self._change.wait()
            self._change.clear()
            self._assigned.clear()
            try:
                async with self._changing:
                    await self._reconcile()
                failures = 0
            except TwinlogError as error:
                log.warning("cannot start or stop all owned partitions yet: %s", error)
                try:
                    pause = self._settings.backoff.delay(failures + 1, self._random.random())
                    async with asyncio.timeout(pause):
                        await self._assigned.wait()
                    failures = 0
                except TimeoutError:
                    failures += 1
                self._change.set()

    async def _reconcile(self) -> None:
        """Bring the owned mirror partitions to their desired states (reconciler.py).

        Raises:
            TwinlogError: something failed; the first reason.
        """
        await self._engines.prepare()
        await self._ways.go()

    async def _catch_up(self) -> None:
        """Wait until this lane has read all that is in `__mirror_config` now."""
        ends = (await read_config(self._cluster, patience=UNDECIDED)).ends
        deadline = time.monotonic() + CATCH_UP_S
        while any(self._snapshot.ends.get(index, 0) < end for index, end in ends.items()):
            if time.monotonic() > deadline:
                raise Retriable(f"cannot read {CONFIG_TOPIC} up to its end within {CATCH_UP_S:g} s")
            await asyncio.sleep(self._settings.position_pause_s)

    # ---- states and statuses -------------------------------------------------------------------

    async def _report(self) -> None:
        """Write changed states and progress, once a second."""
        while True:
            await asyncio.sleep(1.0)
            self._reporter.changed |= self._engines.note_news()
            await asyncio.gather(
                *(self._write_states(number, owned) for number, owned in self._owned.items())
            )
            if self._ways.pause_is_due or self._engines.refresh_is_due:
                self._change.set()
            if self._may_write():
                stops = {number: owned.being_stopped for number, owned in self._owned.items()}
                await self._reporter.write(self._engines.running, stops)

    async def _write_states(self, number: int, owned: OwnedStatePartition) -> None:
        try:
            await owned.write_states()
        except Fenced as error:
            await self._fenced(owned, error)
        except TwinlogError as error:
            log.warning("cannot write states of state partition %d yet: %s", number, error)

    async def _fenced(self, owned: OwnedStatePartition, error: Fenced) -> None:
        """Drop a state partition that was fenced, and take it again if the group still assigns it.

        Both happen under one lock. A callback that revokes the partition meanwhile drops it after
        that, so every `OwnedStatePartition` that is created is dropped by a callback.
        """
        number = owned.number
        async with self._changing:
            if self._owned.get(number) is not owned:
                return  # it has been revoked since
            log.warning("state partition %d: %s", number, error)
            await self._drop({number})
            if number in self._group.owned:
                self._take({number})

    async def _share(self) -> None:
        """Share the rates of throttled mirrors with the node's other lanes."""
        while True:
            await asyncio.sleep(SHARE_S)
            await self._reporter.share(self._engines.running)
