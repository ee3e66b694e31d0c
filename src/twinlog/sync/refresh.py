"""Refreshes what follows a mirror's data, at each mirror's own interval, apart from the data path.

    topics          new ones, more partitions, deleted ones      topics.py
    configurations  of topics                                    configs.py
    groups          their committed offsets                      group_rules.py
    ACLs            of the cluster                               acls.py

The node that owns the mirror's partition of `__mirror_config` does this; a group like the lanes'
assigns these partitions. A failure is counted, logged and retried at the next refresh; the other
parts go on.
"""

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final
from uuid import UUID

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.kafka.requests.topics import absent_everywhere
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.placement import config_partition
from twinlog.mirror.settings import parse_settings
from twinlog.mirror.states import State
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import CONFIG_TOPIC, partition_count
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.acls import AclSync
from twinlog.sync.compaction import Compaction
from twinlog.sync.configs import set_configs_back, sync_configs
from twinlog.sync.group_offsets import QUIET_CHECKS, GroupSync
from twinlog.sync.read_only import ReadOnly
from twinlog.sync.topics import (
    Room,
    add_new_topics,
    follow_origins,
    grow_topics,
    missing,
    name_extra,
    stop_deleted,
)

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Seconds between two checks of whether a mirror's refresh is due
(mirror.metadata.refresh.interval.ms)."""
DEFAULT_INTERVAL_S: Final = 30.0


class Sync(enum.Enum):
    """The parts of a refresh, under the names of KIP-1279's metrics that count their errors."""

    METADATA = "MetadataRefreshError"
    CONFIGS = "TopicConfigMetadataSyncError"
    GROUPS = "ConsumerGroupOffsetSyncError"
    ACLS = "AclSyncError"


class Refresher:
    """Refreshes the mirrors that this node owns. Its methods `on_...` are a group's callbacks."""

    def __init__(
        self, cluster: KafkaCluster, store: MirrorStore, latest: Callable[[], Snapshot]
    ) -> None:
        self.errors: Counter[tuple[str, Sync]] = Counter()
        """Failures by mirror and part: of topics, groups, ACLs, or a whole part."""
        self._cluster = cluster
        self._store = store
        self._latest = latest
        self._ours: set[int] = set()
        self._partitions = 0
        self._missing: dict[str, set[MirrorTopic]] = {}
        self.compaction = Compaction(store)
        self.read_only = ReadOnly(cluster, store, self._is_ours, self._acls_failed, self._set_back)
        self._acls = AclSync(cluster, store, self.read_only)
        self._groups = GroupSync(cluster)

    async def on_assigned(self, partitions: set[int]) -> None:
        """Take over these partitions of `__mirror_config`."""
        self._ours |= partitions
        self._groups.forget()

    async def on_revoked(self, partitions: set[int]) -> None:
        """Give up these partitions to another node."""
        self._ours -= partitions

    async def on_lost(self, partitions: set[int]) -> None:
        """Give up these partitions, which another node may own already."""
        self._ours -= partitions

    async def run(self) -> None:
        """Refresh each mirror at its own interval, until cancelled; a slow one delays no other."""
        looked: dict[str, float] = {}
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                for name, mirror in self._latest().mirrors.items():
                    under_way = name in running and not running[name].done()
                    # The present interval counts: it may have been altered since the last refresh.
                    due = looked[name] + _interval(mirror) if name in looked else now
                    if not under_way and due <= now:
                        looked[name] = now
                        running[name] = tasks.create_task(self._look_after(name))

    async def _look_after(self, name: str) -> None:
        try:
            if await self._is_ours(name):
                await self._refresh(name)
        except TwinlogError as error:
            self.errors[name, Sync.METADATA] += 1
            log.warning("mirror %s cannot be refreshed: %s", name, error)
        except Exception:
            # A bug here must not end the lanes, which move the data.
            self.errors[name, Sync.METADATA] += 1
            log.exception("mirror %s cannot be refreshed", name)

    async def _is_ours(self, name: str) -> bool:
        if not self._partitions:
            self._partitions = await partition_count(self._cluster, CONFIG_TOPIC) or 0
        return config_partition(name, self._partitions or 1) in self._ours

    async def _refresh(self, name: str) -> None:
        snapshot = await self._store.snapshot()
        mirror = snapshot.mirrors.get(name)
        if mirror is None:
            return
        # Paused and removed topics are left as they are (KIP-1279, "Pause Topics").
        topics = [topic for topic in snapshot.topics_of(name) if topic.wanted is Wanted.MIRRORING]
        settings = parse_settings(mirror.source)
        kind = kind_named(mirror.kind)  # nothing is done for a kind of a newer version
        async with connected_source(mirror, self._cluster.config.grants) as source:
            there = await self._sync_topics(source, mirror, snapshot, topics)
            known = [topic for topic in topics if topic.topic in there]
            exclude = settings.topic_properties_exclude
            configs = sync_configs(source, self._cluster, self._store, known, exclude)
            await self._try(name, Sync.CONFIGS, configs)
            check = self._check_compaction(source, snapshot, name, known)
            await self._try(name, Sync.CONFIGS, check)
            # A recreated topic stays MIRRORING until its lane has detected that.
            partitions = await self._mirroring(known)
            translation = await kind.translation(self._cluster, snapshot.topics_of(name))
            groups = self._groups.sync(
                source,
                name,
                settings.groups_include,
                partitions,
                quiet_s=QUIET_CHECKS * settings.refresh_interval,
                wanted=lambda: self._wanted(name),
                translation=translation,
            )
            await self._try(name, Sync.GROUPS, groups)
            if topics:
                acls = self._acls.sync(source, name, settings)
                await self._try(name, Sync.ACLS, acls)

    async def _check_compaction(
        self, source: KafkaCluster, snapshot: Snapshot, mirror: str, known: Collection[MirrorTopic]
    ) -> int:
        """Check these topics, and paused ones that were never checked (`Compaction.check`).

        The latter were added just before the pause. Without a baseline, the first check after the
        pause would be it, and tombstones that the source has removed meanwhile would be missed
        without a finding.
        """
        paused = [
            topic
            for topic in snapshot.topics_of(mirror)
            if topic.wanted is Wanted.PAUSED and snapshot.followed(mirror, topic.topic) is None
        ]
        found = (await source.refresh([one.topic for one in paused])).topics if paused else {}
        there = [one for one in paused if _is_same(one, found.get(one.topic))]
        return await self.compaction.check(source, snapshot, [*known, *there])

    def _wanted(self, mirror: str) -> set[str]:
        """The topics that are to be mirrored now, by the latest `__mirror_config`."""
        return {
            topic.topic
            for topic in self._latest().topics_of(mirror)
            if topic.wanted is Wanted.MIRRORING
        }

    def _acls_failed(self, mirror: str, count: int) -> None:
        self.errors[mirror, Sync.ACLS] += count

    async def _set_back(self, mirror: str, topics: Collection[str]) -> Collection[str]:
        try:
            failed = await set_configs_back(self._cluster, self._store, mirror, topics)
        except UserError as error:
            log.warning("mirror %s: configurations cannot be set back: %s", mirror, error)
            failed = set(topics)
        self.errors[mirror, Sync.CONFIGS] += len(failed)
        return failed

    async def _try(self, mirror: str, sync: Sync, action: Awaitable[int]) -> None:
        try:
            self.errors[mirror, sync] += await action
        except TwinlogError as error:
            self.errors[mirror, sync] += 1
            log.warning("mirror %s, %s: %s", mirror, sync.value, error)

    async def _sync_topics(
        self,
        source: KafkaCluster,
        mirror: Mirror,
        snapshot: Snapshot,
        topics: Collection[MirrorTopic],
    ) -> dict[str, int]:
        """Bring the set of topics up to date; return the partition counts of the mirrored ones.

        A topic that was recreated on either side is left alone: the lanes report it.
        """
        found = (await source.refresh([topic.topic for topic in topics])).topics
        gone = missing(topics, found)
        deleted = gone & self._missing.get(mirror.name, set())
        self._missing[mirror.name] = gone
        if deleted:
            await self._try(mirror.name, Sync.METADATA, self._stop_deleted(source, deleted))
        ours = (await self._cluster.refresh([topic.topic for topic in topics])).topics
        made_again = {
            topic.topic
            for topic in topics
            if (here := ours.get(topic.topic))
            and is_another(topic.destination_topic_id, here.topic_id)
        }
        there = {
            topic.topic: len(known.partitions)
            for topic in topics
            if (known := found.get(topic.topic))
            and _is_same(topic, known)
            and topic.topic not in made_again
        }
        counts = {name: len(topic.partitions) for name, topic in ours.items()}
        self.errors[mirror.name, Sync.METADATA] += name_extra(topics, there, counts)
        room = Room(mirror, snapshot.topics)
        growth = grow_topics(self._cluster, self._store, topics, there, counts, room=room)
        await self._try(mirror.name, Sync.METADATA, growth)
        origins = follow_origins(source, self._cluster, self._store, topics)
        await self._try(mirror.name, Sync.METADATA, origins)
        news = add_new_topics(source, self._cluster, self._store, mirror, snapshot)
        await self._try(mirror.name, Sync.METADATA, news)
        return there

    async def _stop_deleted(self, source: KafkaCluster, gone: Collection[MirrorTopic]) -> int:
        """Remove topics that were missing in two checks, if no broker knows them; return 0.

        Raises:
            Retriable: a broker of the source does not answer; nothing is removed.
        """
        absent = await absent_everywhere(source, {topic.topic for topic in gone})
        deleted = [topic for topic in gone if topic.topic in absent]
        return await stop_deleted(self._store, deleted) if deleted else 0

    async def _mirroring(self, topics: Iterable[MirrorTopic]) -> dict[TopicPartition, UUID]:
        states = await self._store.states()
        return {
            name.source: topic.topic_id
            for topic in topics
            for name in topic.mirror_partitions
            if states.state(name) is State.MIRRORING
        }


def _interval(mirror: Mirror) -> float:
    """Seconds between two refreshes; the default for invalid settings, which a refresh reports."""
    try:
        return parse_settings(mirror.source).refresh_interval
    except UserError:
        return DEFAULT_INTERVAL_S


def _is_same(topic: MirrorTopic, found: Topic | None) -> bool:
    """Whether the source's topic of this name is the one that is mirrored."""
    return found is not None and found.topic_id == topic.topic_id
