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
from twinlog.lifecycle.source_configs import source_configs
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
_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "delete.retention.ms"
_NEEDED_CONFIGS: Final = frozenset({_POLICY, _RETENTION})
"""Without one of them, nothing is known of a topic: it may be compacted."""
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
        times = [self._caught_up.get(partition) for partition in topic.mirror_partitions]
        return None if None in times else min((at for at in times if at is not None), default=None)


def limit_ms(retention_ms: int) -> int:
    """For how long (ms) a topic may be behind."""
    return max(retention_ms, int(FRESH_S * 1000))


def store_period_ms(retention_ms: int) -> int:
    """How much newer (ms) than the stored one `caught_up_ms` has to be to be stored again."""
    return max(retention_ms // _SHARE, _LEAST_PERIOD_MS)


def behind_ms(record: Followed, now_ms: int) -> int:
    """For how long a topic was behind at most, if that was too long; else 0.

    The record of a topic without any lag may be a store period old. Where the retention is shorter
    than two periods, this would look like being behind, which is then found up to a period later.
    """
    now_behind = now_ms - record.caught_up_ms
    limit, period = limit_ms(record.retention_ms), store_period_ms(record.retention_ms)
    allowance = max(limit, min(limit, period) + period)
    return max(record.behind_ms, now_behind if now_behind > allowance else 0)


def topic_behind_ms(snapshot: Snapshot, topic: MirrorTopic, now_ms: int) -> int | None:
    """`behind_ms` of a topic of the snapshot; None if it was never tracked.

    The record of a former topic on the destination, which a rebuild has deleted, does not count.
    """
    record = snapshot.followed(topic.mirror, topic.topic)
    if record is None or record.destination_topic_id != topic.destination_topic_id:
        return None
    return behind_ms(record, now_ms)


def followed(
    topic: MirrorTopic,
    previous: Followed | None,
    caught_up_ms: int | None,
    retention_ms: int,
    now_ms: int,
) -> Followed:
    """The updated record of a compacted topic.

    Args:
        topic: the mirror's topic.
        previous: the record before; None if the topic was never tracked.
        caught_up_ms: see `Marks`.
        retention_ms: the source's delete.retention.ms.
        now_ms: the present time.
    """
    if previous is None or is_another(
        previous.destination_topic_id, topic.destination_topic_id or NO_ID
    ):
        previous = Followed(
            mirror=topic.mirror,
            topic=topic.topic,
            destination_topic_id=topic.destination_topic_id,
            caught_up_ms=now_ms,
            retention_ms=retention_ms,
            behind_ms=0,
        )
    newer = max(previous.caught_up_ms, caught_up_ms or 0)
    # Also where it has caught up: when it did since the check before is unknown.
    lag_ms = now_ms - previous.caught_up_ms
    # The retention was one of both while it was behind; the shorter one removes more.
    missed = lag_ms if lag_ms > limit_ms(min(previous.retention_ms, retention_ms)) else 0
    return replace(
        previous,
        caught_up_ms=newer,
        retention_ms=retention_ms,
        behind_ms=max(previous.behind_ms, missed),
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
        self._records: dict[tuple[str, str], Followed] = {}
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
        source_topics = (
            (await source.refresh([topic.topic for topic in paused])).topics if paused else {}
        )
        unchanged = [
            topic for topic in paused if is_mirrored(topic, source_topics.get(topic.topic))
        ]
        topics = [*context.same, *unchanged]
        failures = await self._read_retentions(source, topics)
        changes = [change for topic in topics for change in self._track(snapshot, topic)]
        return Tracked(changes, failures)

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
        stored_record = snapshot.followed(*key)
        if retention_ms is None:
            self._records.pop(key, None)
            return [] if stored_record is None else _not_compacted(stored_record)
        previous = latest_known(topic, self._records.get(key), stored_record)
        caught_up_ms = self.marks.caught_up_ms(topic)
        current = followed(topic, previous, caught_up_ms, retention_ms, self._now_ms())
        self._records[key] = current
        if current.behind_ms and not (previous and previous.behind_ms):
            log.warning(
                "mirror %s: %s was behind for %d s, longer than the source's "
                "delete.retention.ms (%d): deleted keys may have stayed on the destination; "
                "compare with twinlog verify",
                *(topic.mirror, topic.topic, current.behind_ms // 1000, retention_ms),
            )
        return [current] if is_to_be_stored(stored_record, current) else []

    async def _read_retentions(self, source: KafkaCluster, topics: Collection[MirrorTopic]) -> int:
        """Read which topics are compacted, and their retention; return how many failed."""
        now, failures = time.monotonic(), 0
        keys = {
            topic.topic: (topic.mirror, topic.topic_id)
            for topic in topics
            if self._retentions.get((topic.mirror, topic.topic_id), (0.0, None))[0] <= now
        }
        for name, configs in (await source_configs(source, list(keys))).items():
            if isinstance(configs, Refusal) or not configs.keys() >= _NEEDED_CONFIGS:
                failures += 1
            else:
                self._retentions[keys[name]] = now + CONFIGS_S, retention_of(configs)
        return failures


def _still_there(changes: Collection[ConfigChange], snapshot: Snapshot) -> list[ConfigChange]:
    """The changes for topics that their mirror still has."""
    topics = {(topic.mirror, topic.topic) for topic in snapshot.topics}
    return [
        change
        for change in changes
        if not isinstance(change, Followed) or (change.mirror, change.topic) in topics
    ]


def _not_compacted(record: Followed) -> list[ConfigChange]:
    """The change of a topic's record when its source does not remove tombstones any more.

    Otherwise `caught_up_ms` would not be updated any more, and the topic would seem to be behind.
    """
    if not record.behind_ms:
        return [Tombstone(key_of(record))]
    return [] if record.retention_ms == FOREVER_MS else [replace(record, retention_ms=FOREVER_MS)]


def latest_known(topic: MirrorTopic, *records: Followed | None) -> Followed | None:
    """What a topic's records show together: the latest time, and the longest time behind.

    The stored record is later than a node's own one if another node has owned the mirror meanwhile.
    Records of a former topic on the destination show nothing.
    """
    candidates = [
        record
        for record in records
        if record is not None
        and not is_another(record.destination_topic_id, topic.destination_topic_id or NO_ID)
    ]
    if not candidates:
        return None
    latest = max(candidates, key=lambda record: record.caught_up_ms)
    return replace(latest, behind_ms=max(record.behind_ms for record in candidates))


def is_to_be_stored(stored_record: Followed | None, current: Followed) -> bool:
    """Whether the record has changed enough to be written."""
    if stored_record is None or is_another(
        stored_record.destination_topic_id, current.destination_topic_id or NO_ID
    ):
        return True
    period = store_period_ms(current.retention_ms)
    return (
        current.retention_ms != stored_record.retention_ms
        or current.caught_up_ms - stored_record.caught_up_ms >= period
        or current.behind_ms - stored_record.behind_ms >= (period if stored_record.behind_ms else 1)
    )


def retention_of(configs: Mapping[str, SourceConfig]) -> int | None:
    """A topic's delete.retention.ms; None if it is not compacted. Both must be in `configs`."""
    if "compact" not in configs[_POLICY].value:
        return None
    return int(configs[_RETENTION].value)
