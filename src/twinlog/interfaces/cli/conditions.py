"""What has to be known of partitions besides their table: on standard error."""

import time
from collections.abc import Collection, Iterable, Sequence

from twinlog.interfaces.cli.output import say
from twinlog.mirror.states import State
from twinlog.operations.describe import NEEDS_OWNER, DescribedPartition
from twinlog.store.config_records import NotMirrored
from twinlog.store.statuses import FRESH_S


def say_conditions(rows: Sequence[DescribedPartition]) -> None:
    """Print reasons of states, and warn of stale statuses and silent sources."""
    for mirror, topic, partition in rows:
        if partition.reason is not None and (partition.fresh or partition.state not in NEEDS_OWNER):
            name = f"{mirror.mirror}/{topic.topic}-{partition.partition}"
            say(f"{name} is {partition.state.name}: {partition.reason}")
        for side, losses in (
            ("destination has lost records", partition.losses),
            ("source has lost records that were not copied", partition.source_losses),
        ):
            if losses.times:
                say(
                    f"{mirror.mirror}/{topic.topic}-{partition.partition}: the {side} "
                    f"{losses.times} time(s) since {partition.lane} has the partition, the last "
                    f"ones of {losses.last}"
                )
    _warn_old(rows)
    _warn_silent(rows)


def say_incomplete(mirrors: Iterable[NotMirrored], unreadable: Collection[str]) -> None:
    """Warn of topics that are not mirrored, and of records that cannot be read."""
    for not_mirrored in mirrors:
        for topic, reason in not_mirrored.topics:
            say(f"{not_mirrored.mirror}: source topic {topic} is not mirrored: {reason}")
        if not_mirrored.total > len(not_mirrored.topics):
            say(f"{not_mirrored.mirror}: {not_mirrored.total} source topics are not mirrored")
    for trouble in unreadable:
        say(f"cannot be read: {trouble}")


def _warn_old(rows: Sequence[DescribedPartition]) -> None:
    """Warn of partitions that need an owner and have no fresh status: their offsets are stale."""
    silent = [row for row in rows if row.one.state in NEEDS_OWNER and not row.one.fresh]
    if silent:
        mirror, topic, partition = silent[0]
        say(
            f"{len(silent)} of {len(rows)} partitions have no status from the last {FRESH_S:g} s: "
            "check that a node is running (twinlog run). For example "
            f"{mirror.mirror}/{topic.topic}-{partition.partition}: {partition.reason}"
        )


def _warn_silent(rows: Iterable[DescribedPartition]) -> None:
    """Warn of sources that have not answered: the shown offsets of their partitions are stale."""
    contacts: dict[str, list[int]] = {}
    for mirror, _, partition in rows:
        if partition.source_time_ms is not None and partition.status_time_ms is not None:
            silent_ms = partition.status_time_ms - partition.source_time_ms
            if partition.state is State.MIRRORING and silent_ms > FRESH_S * 1000:
                contacts.setdefault(mirror.mirror, []).append(partition.source_time_ms)
    for name, times in contacts.items():
        silence_s = time.time() - min(times) / 1000
        say(
            f"{name}: the source has not responded for {silence_s:.0f} s for {len(times)} "
            "partition(s); SOURCE-OFFSET and LAG are as of then (see twinlog readiness)"
        )
