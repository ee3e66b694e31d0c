"""Refreshes what follows a mirror's data, at each mirror's own interval, apart from the data path.

registry.py has the list of what follows, in order. A refresh reads the metadata of the mirror's
topics on both sides, and then runs one sync after another.

Syncs of flows have intervals of their own (`Sync.interval_s`), and the shortest is the refresh's.
One that has failed is run again by the next refresh. All of them are due for a mirror that has no
topic yet, whose topics or settings have changed, or that was assigned to this node just now.

The node that owns the mirror's partition of `__mirror_config` does this; a group like the lanes'
assigns these partitions. A failure is counted, logged and retried at the next refresh; the other
syncs go on.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.placement import config_partition
from twinlog.mirror.settings import parse_settings
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import CONFIG_TOPIC, partition_count
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import METADATA, Host, Sync, SyncContext, drop, is_mirrored, run_sync
from twinlog.sync.registry import create_syncs

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Seconds between two checks of whether a mirror's refresh is due
(mirror.metadata.refresh.interval.ms)."""
DEFAULT_INTERVAL_S: Final = 30.0
GIVE_UP_S: Final = 5.0
"""Seconds for which a mirror that is given up waits for the end of its refresh: one that closes
connections, or has sent a write. What comes later writes nothing (`SyncContext.is_ours`)."""
_NOT_YET: Final = Retriable("not refreshed yet")


class Refresher:
    """Refreshes the mirrors that this node owns. Its methods `on_...` are a group's callbacks."""

    def __init__(
        self, cluster: KafkaCluster, store: MirrorStore, latest: Callable[[], Snapshot]
    ) -> None:
        self.errors: Counter[tuple[str, str]] = Counter()
        """Failures by mirror and metric: of topics, groups, ACLs, or a whole sync."""
        self._cluster = cluster
        self._store = store
        self._latest = latest
        self._looked: dict[str, float] = {}
        self._runs: dict[str, _Runs] = {}
        self._ends: dict[str, TwinlogError | None] = {}  # of each mirror's last refresh
        self._unanswered: set[str] = set()  # mirrors whose set of topics it could not read
        self._config_partitions: set[int] = set()
        self._refreshes: dict[str, asyncio.Task[None]] = {}  # by mirror
        self.holds_lease: Callable[[], bool] = lambda: True
        """Whether no other node can own what this one owns; set by whoever runs the group."""
        self._partitions = 0
        self.host = Host(cluster, store, is_ours=self._is_ours, failed=self._failed, latest=latest)
        """The node's syncs."""
        self._syncs = create_syncs(self.host)

    async def on_assigned(self, partitions: set[int]) -> None:
        """Take over these partitions of `__mirror_config`."""
        self._config_partitions |= partitions

        def moved(mirror: str) -> bool:
            count = self._partitions  # 0: no mirror was served yet
            return not count or config_partition(mirror, count) in partitions

        drop(moved, self._runs)
        for sync in self._syncs:
            sync.forget(moved)

    async def on_revoked(self, partitions: set[int]) -> None:
        """Give up these partitions to another node; their refreshes have ended then."""
        await self._give_up(partitions)

    async def on_lost(self, partitions: set[int]) -> None:
        """Give up these partitions, which another node may own already."""
        await self._give_up(partitions)

    async def _give_up(self, partitions: set[int]) -> None:
        """End what is under way: it would write what it has read before its successor has."""
        self._config_partitions -= partitions
        given_up = [task for name, task in self._refreshes.items() if not self._owns(name)]
        for task in given_up:
            task.cancel()
        if given_up:
            await asyncio.wait(given_up, timeout=GIVE_UP_S)

    async def run(self) -> None:
        """Refresh each mirror at its own interval, until cancelled; a slow one delays no other."""
        refreshes = self._refreshes
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                for name, mirror in self._latest().mirrors.items():
                    under_way = name in refreshes and not refreshes[name].done()
                    # The present interval counts: it may have been altered since the last refresh.
                    looked_at = self._looked.get(name)
                    due_at = now if looked_at is None else looked_at + _interval(mirror)
                    if not under_way and due_at <= now:
                        refreshes[name] = tasks.create_task(self._look_after(name, now))

    async def has_refreshed(self, mirrors: Collection[str]) -> bool:
        """Whether each of these mirrors was refreshed by this node, or belongs to another one.

        A refresh that could not read the set of topics does not count; what else failed in one is
        in `errors`. The caller has checked that
        the node is a member of the group: before, no mirror is its own.

        Raises:
            Retriable: it is unknown whether one belongs to this node.
        """
        for name in mirrors:
            ours = await self._is_ours(name)
            if not self._partitions or (ours and self._ends.get(name, _NOT_YET) is not None):
                return False
        return True

    def refusal(self, mirrors: Collection[str]) -> UserError | None:
        """Why the last refresh of one of these mirrors was refused as a whole; trying is no use."""
        ends = (self._ends.get(name) for name in mirrors if self._owns(name))
        return next((error for error in ends if isinstance(error, UserError)), None)

    async def _look_after(self, name: str, now: float) -> None:
        """Refresh a mirror, if it is this node's; one that is not yet is due at the next tick."""
        try:
            if not await self._is_ours(name) or not self.holds_lease():
                return
            self._unanswered.discard(name)
            await self._refresh(name, now)
            unanswered = name in self._unanswered
            self._ends[name] = _NOT_YET if unanswered else None
        except TwinlogError as error:
            self._ends[name] = error
            self.errors[name, METADATA] += 1
            log.warning("cannot refresh mirror %s: %s", name, error)
        except Exception as error:
            # A bug here must not end the lanes, which move the data.
            self._ends[name] = UserError(f"cannot refresh mirror {name}: internal error: {error!r}")
            self.errors[name, METADATA] += 1
            log.exception("cannot refresh mirror %s: internal error", name)
        self._looked[name] = now

    async def _is_ours(self, name: str) -> bool:
        if not self._partitions:
            self._partitions = await partition_count(self._cluster, CONFIG_TOPIC) or 0
        return self._owns(name)

    def _owns(self, name: str) -> bool:
        """Whether a mirror is this node's; False while the number of partitions is unknown."""
        if not self._partitions:
            return False
        return config_partition(name, self._partitions) in self._config_partitions

    async def _refresh(self, name: str, now: float) -> None:
        snapshot = await self._store.snapshot()
        mirror = snapshot.mirrors.get(name)
        if mirror is None:
            return
        # Paused and removed topics are left as they are (KIP-1279, "Pause Topics").
        topics = [topic for topic in snapshot.topics_of(name) if topic.wanted is Wanted.MIRRORING]
        served = _Served(mirror, frozenset(topic.incarnation for topic in topics))
        runs = self._runs.get(name)
        # Without a topic: it may have been deleted and created again since.
        if runs is None or runs.served != served or not snapshot.topics_of(name):
            runs = self._runs[name] = _Runs(served, {})
        settings = parse_settings(mirror.source)
        kind_named(mirror.kind)  # nothing is done for a kind of a newer version
        names = [topic.topic for topic in topics]
        copies = [topic.destination_name for topic in topics]
        async with connected_source(mirror, self._cluster.config.grants) as source:
            source_topics = (await source.refresh(names)).topics
            destination_topics = (await self._cluster.refresh(copies)).topics
            context = SyncContext(
                destination=self._cluster,
                store=self._store,
                name=name,
                snapshot=snapshot,
                source=source,
                settings=settings,
                topics=topics,
                same=[
                    topic for topic in topics if _is_same(topic, source_topics, destination_topics)
                ],
                there=source_topics,
                here=destination_topics,
                latest=self._latest,
                is_ours=lambda: self._owns(name) and self.holds_lease(),
            )
            for sync in self._syncs:
                serves = sync.needs_source and sync.serves(mirror.kind)
                if not serves or not sync.concerns(settings, topics):
                    continue
                if runs.is_due(sync, now) and await self._run(sync, context):
                    runs.last[sync] = now

    async def _run(self, sync: Sync[Any], context: SyncContext) -> bool:
        """Run one sync; count and log its failure, so that the others go on.

        Returns:
            Whether nothing of it has failed.
        """
        try:
            failures = await run_sync(sync, context)
            # Not before: what is counted meanwhile (`Host.failed`) would be overwritten.
            self._failed(context.name, sync.metric, failures)
        except TwinlogError as error:
            if sync.metric == METADATA and isinstance(error, Retriable):
                self._unanswered.add(context.name)
            self.errors[context.name, sync.metric] += 1
            log.warning("mirror %s, %s: %s", context.name, sync.metric, error)
        except Exception:
            self.errors[context.name, sync.metric] += 1
            log.exception("mirror %s, %s", context.name, sync.metric)
        else:
            return not failures
        return False

    def _failed(self, mirror: str, metric: str, count: int) -> None:
        self.errors[mirror, metric] += count


class _Served(NamedTuple):
    """What syncs run for: a mirror, and the identities of its topics that are mirrored."""

    mirror: Mirror
    topics: frozenset[tuple[object, ...]]


class _Runs(NamedTuple):
    """When syncs were last run for a mirror, without a failure."""

    served: _Served
    last: dict[Sync[Any], float]

    def is_due(self, sync: Sync[Any], now: float) -> bool:
        """Whether a sync's interval has passed."""
        return sync not in self.last or now >= self.last[sync] + sync.interval_s(self.served.mirror)


def _interval(mirror: Mirror) -> float:
    """Seconds between two refreshes; the default for invalid settings, which a refresh reports."""
    try:
        return parse_settings(mirror.source).refresh_interval
    except UserError:
        return DEFAULT_INTERVAL_S


def _is_same(
    topic: MirrorTopic, source_topics: Mapping[str, Topic], destination_topics: Mapping[str, Topic]
) -> bool:
    """Whether the source has the topic that is mirrored, and the destination its copy."""
    copy = destination_topics.get(topic.destination_name)
    recreated = copy is not None and is_another(topic.destination_topic_id, copy.topic_id)
    return is_mirrored(topic, source_topics.get(topic.topic)) and not recreated
