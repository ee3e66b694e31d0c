"""Compacted topics whose mirror was behind for longer than the source keeps tombstones.

The source's cleaner removes a tombstone `delete.retention.ms` (a day by default) after it was
written. A mirror that reads the log later never sees it, and the deleted key's older record stays
on the destination for ever, with equal offsets and no lag. No log shows that afterwards, so the
time that a mirror was behind is tracked and stored:

    mark        a log end of the source that a lane has reported, with the time of last contact
    caught up   the time of the last mark that the destination has reached: all that the source
                held then is mirrored
    behind      the time since then; above delete.retention.ms, tombstones may be missed

For a topic that was never tracked, the first check is the baseline: what was mirrored before was
read for the first time. A topic that is paused before its first check is checked while it is paused
(`Compaction.compare`). Marks are last stable offsets, because a cleaner does not pass an open
transaction. Lanes report every 5 s, so a retention below `FRESH_S` counts as `FRESH_S`.

When the source's topic is not compacted any more, tracking ends; what it has missed stays stored.

`caught_up_ms` is stored seldom (`store_period_ms`), so a node that takes a topic over reads a
somewhat old one. What was mirrored since is unknown and counts as not mirrored: the topic then
seems to have been behind for longer than it was, never for less. With a retention of two minutes or
less, a takeover may be reported although no tombstone was missed.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID as NO_ID
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.errors import Refusal
from twinlog.lifecycle.destination_topics import source_configs
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.store.config_records import (
    ConfigChange,
    Followed,
    MirrorTopic,
    Tombstone,
    Wanted,
    key_of,
)
from twinlog.store.snapshot import Snapshot
from twinlog.store.status_records import PartitionStatus
from twinlog.store.statuses import FRESH_S
from twinlog.sync.base import Sync, SyncContext, is_mirrored

log = logging.getLogger(__name__)

FOREVER_MS: Final = (1 << 63) - 1
"""Stored as the delete.retention.ms of a topic that is not compacted any more."""
CONFIGS_S: Final = 600.0
"""Seconds for which a topic's policy and retention count as unchanged."""
_SHARE: Final = 24
_LEAST_PERIOD_MS: Final = 60_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Marks:
    """How far each partition has caught up with its source; kept in memory."""

    def __init__(self) -> None:
        self._marks: dict[MirrorPartition, tuple[int, int]] = {}
        self._caught_up: dict[MirrorPartition, int] = {}

    def observe(self, rows: Iterable[PartitionStatus]) -> None:
        """Update the marks from fresh statuses."""
        for row in rows:
            end = row.source_last_stable
            if row.source_time_ms is None or end < 0 or row.mirrored < 0:
                continue
            time_ms, marked = self._marks.get(row.partition, (row.source_time_ms, end))
            if row.mirrored >= end:
                time_ms, marked = row.source_time_ms, end
            if row.mirrored >= marked:
                self._caught_up[row.partition] = time_ms
                self._marks[row.partition] = row.source_time_ms, end
            else:
                self._marks[row.partition] = time_ms, marked

    def caught_up_ms(self, topic: MirrorTopic) -> int | None:
        """A time up to which all partitions have everything; None if that of one is unknown."""
        known = [self._caught_up.get(one) for one in topic.mirror_partitions]
        return None if None in known else min((at for at in known if at is not None), default=None)


def limit_ms(retention_ms: int) -> int:
    """For how long (ms) a topic may be behind."""
    return max(retention_ms, int(FRESH_S * 1000))


def store_period_ms(retention_ms: int) -> int:
    """How much newer (ms) than the stored one `caught_up_ms` has to be to be stored again."""
    return max(retention_ms // _SHARE, _LEAST_PERIOD_MS)


def behind_ms(found: Followed, now_ms: int) -> int:
    """For how long a topic was behind at most, if that was too long; else 0.

    The record of a topic without any lag may be a store period old. Where the retention is shorter
    than two periods, this would look like being behind, which is then found up to a period later.
    """
    now_behind = now_ms - found.caught_up_ms
    limit, period = limit_ms(found.retention_ms), store_period_ms(found.retention_ms)
    allowed = max(limit, min(limit, period) + period)
    return max(found.behind_ms, now_behind if now_behind > allowed else 0)


def topic_behind_ms(snapshot: Snapshot, topic: MirrorTopic, now_ms: int) -> int | None:
    """`behind_ms` of a topic of the snapshot; None if it was never tracked.

    The record of a former topic on the destination, which a rebuild has deleted, does not count.
    """
    found = snapshot.followed(topic.mirror, topic.topic)
    if found is None or found.destination_topic_id != topic.destination_topic_id:
        return None
    return behind_ms(found, now_ms)


def followed(
    topic: MirrorTopic,
    before: Followed | None,
    caught_up_ms: int | None,
    retention_ms: int,
    now_ms: int,
) -> Followed:
    """The updated record of a compacted topic.

    Args:
        topic: the mirror's topic.
        before: the record before; None if the topic was never tracked.
        caught_up_ms: see `Marks`.
        retention_ms: the source's delete.retention.ms.
        now_ms: the present time.
    """
    if before is None or is_another(
        before.destination_topic_id, topic.destination_topic_id or NO_ID
    ):
        before = Followed(
            mirror=topic.mirror,
            topic=topic.topic,
            destination_topic_id=topic.destination_topic_id,
            caught_up_ms=now_ms,
            retention_ms=retention_ms,
            behind_ms=0,
        )
    newer = max(before.caught_up_ms, caught_up_ms or 0)
    # Also where it has caught up: when it did since the check before is unknown.
    behind = now_ms - before.caught_up_ms
    # The retention was one of both while it was behind; the shorter one removes more.
    missed = behind if behind > limit_ms(min(before.retention_ms, retention_ms)) else 0
    return replace(
        before,
        caught_up_ms=newer,
        retention_ms=retention_ms,
        behind_ms=max(before.behind_ms, missed),
    )


class Tracked(NamedTuple):
    """The records to store, and how many topics could not be checked."""

    changes: Sequence[ConfigChange]
    failed: int


class Compaction(Sync[Tracked]):
    """Tracks the compacted topics of the mirrors that this node refreshes."""

    name = "compacted topics"
    metric = "TopicConfigMetadataSyncError"

    def __init__(self, now_ms: Callable[[], int] = _wall_ms) -> None:
        self.marks = Marks()
        self._now_ms = now_ms
        self._known: dict[tuple[str, str], Followed] = {}
        self._retentions: dict[tuple[str, UUID], tuple[float, int | None]] = {}

    async def compare(self, context: SyncContext) -> Tracked:
        """Check these topics, and paused ones that were never checked.

        The latter were added just before the pause. Without a baseline, the first check after the
        pause would be it, and tombstones that the source has removed meanwhile would be missed
        without a finding.

        Raises:
            Retriable: the source is unreachable.
        """
        source, snapshot = context.source, context.snapshot
        paused = [
            topic
            for topic in snapshot.topics_of(context.name)
            if topic.wanted is Wanted.PAUSED
            and latest_known(topic, snapshot.followed(context.name, topic.topic)) is None
        ]
        found = (await source.refresh([one.topic for one in paused])).topics if paused else {}
        there = [one for one in paused if is_mirrored(one, found.get(one.topic))]
        topics = [*context.same, *there]
        failed = await self._read_retentions(source, topics)
        changes = [one for topic in topics for one in self._track(snapshot, topic)]
        return Tracked(changes, failed)

    async def apply(self, context: SyncContext, difference: Tracked) -> int:
        """Store the records that have changed; return how many topics could not be checked."""
        changes = difference.changes
        if changes:
            await context.store.change(lambda latest: _still_there(changes, latest))
        return difference.failed

    def _track(self, snapshot: Snapshot, topic: MirrorTopic) -> list[ConfigChange]:
        """The change of a topic's stored record, if its retention is known."""
        key = (topic.mirror, topic.topic)
        if (topic.mirror, topic.topic_id) not in self._retentions:
            return []
        _, retention_ms = self._retentions[topic.mirror, topic.topic_id]
        stored = snapshot.followed(*key)
        if retention_ms is None:
            self._known.pop(key, None)
            return [] if stored is None else _not_compacted(stored)
        before = latest_known(topic, self._known.get(key), stored)
        caught_up_ms = self.marks.caught_up_ms(topic)
        now = followed(topic, before, caught_up_ms, retention_ms, self._now_ms())
        self._known[key] = now
        if now.behind_ms and not (before and before.behind_ms):
            log.warning(
                "mirror %s: %s was behind for %d s, longer than the source's "
                "delete.retention.ms (%d): deleted keys may have stayed on the destination; "
                "compare with twinlog verify",
                *(topic.mirror, topic.topic, now.behind_ms // 1000, retention_ms),
            )
        return [now] if is_to_be_stored(stored, now) else []

    async def _read_retentions(self, source: KafkaCluster, topics: Collection[MirrorTopic]) -> int:
        """Read which topics are compacted, and their retention; return how many failed."""
        now, failed = time.monotonic(), 0
        due = {
            topic.topic: (topic.mirror, topic.topic_id)
            for topic in topics
            if self._retentions.get((topic.mirror, topic.topic_id), (0.0, None))[0] <= now
        }
        for name, configs in (await source_configs(source, list(due))).items():
            if isinstance(configs, Refusal):
                failed += 1
            else:
                self._retentions[due[name]] = now + CONFIGS_S, retention_of(configs)
        return failed


def _still_there(changed: Collection[ConfigChange], snapshot: Snapshot) -> list[ConfigChange]:
    """The changes for topics that their mirror still has."""
    topics = {(topic.mirror, topic.topic) for topic in snapshot.topics}
    return [
        one for one in changed if not isinstance(one, Followed) or (one.mirror, one.topic) in topics
    ]


def _not_compacted(stored: Followed) -> list[ConfigChange]:
    """The change of a topic's record when its source does not remove tombstones any more.

    Otherwise `caught_up_ms` would not be updated any more, and the topic would seem to be behind.
    """
    if not stored.behind_ms:
        return [Tombstone(key_of(stored))]
    return [] if stored.retention_ms == FOREVER_MS else [replace(stored, retention_ms=FOREVER_MS)]


def latest_known(topic: MirrorTopic, *records: Followed | None) -> Followed | None:
    """What a topic's records show together: the latest time, and the longest time behind.

    The stored record is later than a node's own one if another node has owned the mirror meanwhile.
    Records of a former topic on the destination show nothing.
    """
    found = [
        one
        for one in records
        if one is not None
        and not is_another(one.destination_topic_id, topic.destination_topic_id or NO_ID)
    ]
    if not found:
        return None
    latest = max(found, key=lambda one: one.caught_up_ms)
    return replace(latest, behind_ms=max(one.behind_ms for one in found))


def is_to_be_stored(stored: Followed | None, now: Followed) -> bool:
    """Whether the record has changed enough to be written."""
    if stored is None or is_another(stored.destination_topic_id, now.destination_topic_id or NO_ID):
        return True
    period = store_period_ms(now.retention_ms)
    return (
        now.retention_ms != stored.retention_ms
        or now.caught_up_ms - stored.caught_up_ms >= period
        or now.behind_ms - stored.behind_ms >= (period if stored.behind_ms else 1)
    )


def retention_of(configs: Mapping[str, SourceConfig]) -> int | None:
    """A topic's delete.retention.ms; None if it is not compacted."""
    policy = configs.get("cleanup.policy")
    retention = configs.get("delete.retention.ms")
    if policy is None or retention is None or "compact" not in policy.value:
        return None
    return int(retention.value)
