"""What the source's logs hold below the destination's log start offsets.

Both clusters delete old records by themselves, with the same `retention.ms` and `retention.bytes`.
If the destination has deleted more, mirroring goes on: there is no lag, and both logs end at the
same offset. Then these records are lost with the source. The destination's retention may have been
shorter for a minute, or is shorter (`mirror.topic.properties.exclude`), or another client has
deleted records.

    source       | 0 ...          | not expired ...                      | log end
    destination                                        | log start ...   | log end
                                  |<-- these are counted -->|

Records that the source's own retention may delete at any moment are not counted: brokers delete
whole segments, which the two clusters cut at different offsets, so the log starts are hardly ever
the same. Expiry by time is known: a record is expired if it is older than `retention.ms`. Expiry by
size is not: for topics with `retention.bytes` nothing is counted (docs/readiness.md).
"""

import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import ListedOffset, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.source_configs import source_configs
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.mirror.translation import SAME, Translation
from twinlog.operations.readiness.facts import SourceLog
from twinlog.sync.translated_offsets import list_translated_offsets

SLACK_MS: Final = 600_000
"""Records that expire within this time count as expired: how much the clocks differ is unknown."""
_SHARE: Final = 10
_UNLIMITED: Final = -1
_NO_OFFSET: Final = -1


class Below(NamedTuple):
    """Offsets `[start, end)` that the source has not deleted and the destination does not have."""

    start: int
    end: int


class Front(NamedTuple):
    """A remote log that begins among copies whose places are not recorded."""

    remote: TopicPartition
    log_start: int
    """The remote log's, in its own offsets."""
    start: int
    end: int
    """The offsets `[start, end)` of the source whose copies they are."""


async def log_starts(
    destination: KafkaCluster,
    partitions: Collection[TopicPartition],
    translation: Translation = SAME,
) -> dict[TopicPartition, int]:
    """Where the destination's logs begin, in the source's offsets, of those that can be read."""
    offsets = await list_translated_offsets(
        destination, partitions, OffsetSpec.EARLIEST, translation
    )
    return {partition: at for partition, at in offsets.items() if not isinstance(at, Refusal)}


async def begins_later(
    source: KafkaCluster,
    logs: Mapping[TopicPartition, SourceLog],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Below]:
    """The partitions whose log begins later on the destination, and what the source has below.

    Args:
        source: the mirror's source.
        logs: the source's logs, read after `starts`: what it has deleted meanwhile is not counted.
        starts: the destination's log start offsets.

    Raises:
        Retriable: the source is unreachable.
    """
    return (await _kept(source, logs, starts)).ranges


class _Kept(NamedTuple):
    """What the source has below some offsets, and does not delete soon."""

    ranges: dict[TopicPartition, Below]
    since_ms: Mapping[TopicPartition, int]
    """The timestamp from which on retention keeps records, where it is by time."""
    firsts: Mapping[TopicPartition, ListedOffset | Refusal]
    """The first records of that time."""


async def _kept(
    source: KafkaCluster,
    logs: Mapping[TopicPartition, SourceLog],
    starts: Mapping[TopicPartition, int],
) -> _Kept:
    ranges = {
        p: Below(log.start, min(starts[p], log.end))
        for p, log in logs.items()
        if log.start is not None and p in starts and log.start < min(starts[p], log.end)
    }
    if not ranges:
        return _Kept({}, {}, {})
    now_ms = time.time_ns() // 1_000_000
    configs = await source_configs(source, sorted({partition.topic for partition in ranges}))
    since_ms = {partition: kept_since(configs[partition.topic], now_ms) for partition in ranges}
    timed = {partition: at for partition, at in since_ms.items() if at is not None and at > 0}
    firsts = await list_offsets(source, timed) if timed else {}
    for partition in [partition for partition in ranges if since_ms[partition] is None]:
        del ranges[partition]
    for partition, first in firsts.items():
        # A partition that cannot be read now is counted in full.
        if not isinstance(first, Refusal):
            start = ranges[partition].end if first.offset == _NO_OFFSET else first.offset
            ranges[partition] = Below(max(start, ranges[partition].start), ranges[partition].end)
    left = {partition: below for partition, below in ranges.items() if below.start < below.end}
    return _Kept(left, timed, firsts)


async def may_lack(
    source: KafkaCluster,
    destination: KafkaCluster,
    logs: Mapping[TopicPartition, SourceLog],
    fronts: Mapping[TopicPartition, Front],
) -> dict[TopicPartition, Below]:
    """Where the destination may have deleted copies of records that the source keeps.

    Where copies are in front of a map is not recorded, but copies have the timestamps of their
    originals, and their order. So if the first record that is not expired is the same on both
    sides, and the destination's log begins in front of it, only expired ones were deleted.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        logs: as for `begins_later`.
        fronts: the logs in question.

    Raises:
        Retriable: a cluster is unreachable.
    """
    kept = await _kept(source, logs, {p: front.end for p, front in fronts.items()})
    ranges = {
        p: Below(max(one.start, fronts[p].start), one.end)
        for p, one in kept.ranges.items()
        if max(one.start, fronts[p].start) < one.end
    }
    timed = {p: at for p, at in kept.since_ms.items() if p in ranges}
    if not timed:
        return ranges
    copies = await list_offsets(destination, {fronts[p].remote: at for p, at in timed.items()})
    return {
        partition: one
        for partition, one in ranges.items()
        if partition not in timed
        or not _is_copy(kept.firsts[partition], copies[fronts[partition].remote], fronts[partition])
    }


def _is_copy(original: ListedOffset | Refusal, copy: ListedOffset | Refusal, front: Front) -> bool:
    """Whether the first records that are not expired are the same, behind an expired copy."""
    return (
        not isinstance(original, Refusal)
        and not isinstance(copy, Refusal)
        and original.timestamp == copy.timestamp
        and copy.offset > front.log_start
    )


def kept_since(configs: Mapping[str, SourceConfig] | Refusal, now_ms: int) -> int | None:
    """The timestamp from which on a topic's retention keeps its records.

    Args:
        configs: the source topic's; a refusal counts as no retention at all.
        now_ms: the present time.

    Returns:
        0: it keeps all. None: it is unknown, as it depends on the size.
    """
    if isinstance(configs, Refusal) or "delete" not in _value(configs, "cleanup.policy"):
        return 0
    if _number(configs, "retention.bytes") != _UNLIMITED:
        return None
    retention = _number(configs, "retention.ms")
    if retention == _UNLIMITED:
        return 0
    return max(now_ms - retention + min(SLACK_MS, retention // _SHARE), 1)


def _value(configs: Mapping[str, SourceConfig], name: str) -> str:
    return configs[name].value if name in configs else ""


def _number(configs: Mapping[str, SourceConfig], name: str) -> int:
    return int(_value(configs, name) or _UNLIMITED)
