"""Describes mirrors: the desired state of their topics, and what partitions' owners have reported.

Three control topics hold this (store/control_topics.py). If they differ, the state that an owner
has written into `__mirror_state` counts. Offsets come from the last status of the state partition
that holds this state: a recreated topic has another state partition, and the former one's last
status stays.

A stored state is what an owner wrote once. Only a fresh status, which is at most `FRESH_S` old,
shows that the partition is mirrored *now*. Without it, a partition that needs an owner
(`NEEDS_OWNER`) has no lag, and one that was PREPARING or MIRRORING is UNKNOWN, with the reason. One
that is FAILED in a fresh status is so before that is stored: `__mirror_state` may not be writable.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.absence import Absence
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import NO_LOSSES, RecordLosses
from twinlog.mirror.states import State
from twinlog.store.config_records import Mirror, MirrorTopic, NotMirrored, Wanted
from twinlog.store.control_topics import States
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import MIRROR_PARTITION_STATE, LastMirrored, PartitionState
from twinlog.store.status_records import NOTHING_FILLED, PartitionStatus, Status
from twinlog.store.statuses import is_fresh

NEEDS_OWNER: Final = frozenset(
    {State.UNKNOWN, State.PREPARING, State.MIRRORING, State.PAUSING, State.STOPPING}
)
"""States in which a partition makes no progress without a lane."""
_RUNNING: Final = frozenset({State.UNKNOWN, State.PREPARING, State.MIRRORING})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A mirror partition. Offsets are as its owner last reported, -1 if unknown.

    If no owner reports the destination's offset, it is read from the destination.
    """

    partition: int
    state: State
    reason: str | None = None
    """Why it is FAILED, what keeps it STOPPING, why it waits for records of the source, or that no
    lane reports it."""
    source_offset: int = -1
    """The source's high watermark."""
    source_last_stable_offset: int = -1
    """The source's last stable offset, up to which it can be mirrored."""
    destination_offset: int = -1
    """The destination's log end offset."""
    mirrored_offset: int = -1
    """The source's offset up to which the destination has everything, by the status."""
    lag: int = -1
    """Offsets that the destination is behind the source's high watermark. -1 if the status is not
    fresh, and while PAUSED: the source is not read then, and its offsets are those of the pause."""
    lag_ms: int | None = None
    """Age of the oldest record that is not mirrored yet; None if unknown."""
    source_time_ms: int | None = None
    """Time of last contact with the source, and of its offsets; None if unknown."""
    last_mirrored_epoch: int | None = None
    """The source's leader epoch of the last mirrored record; None if nothing was mirrored."""
    last_mirrored_end: int | None = None
    """The offset after that record once the partition is STOPPED, -1 before."""
    records: int = 0
    """Records that were appended since its owner took it over."""
    bytes: int = 0
    """Bytes of the batches that were appended since its owner took it over."""
    filled: tuple[int, ...] = NOTHING_FILLED
    """Offsets without a record for readers, filled since its owner took it over, by `Absence`."""
    losses: RecordLosses = NO_LOSSES
    """What the destination has lost of a flow's records since its owner took it over."""
    source_losses: RecordLosses = NO_LOSSES
    """What the source has lost of a flow's records before they were copied, since then."""
    lane: str | None = None
    node: str | None = None
    status_time_ms: int | None = None
    """When its owner wrote its last status; None if there is none."""
    fresh: bool = False
    """Whether that status is fresh (see the module)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic of a mirror, and its partitions in order."""

    topic: str
    destination_topic: str
    """Its name on the destination."""
    source_topic_id: UUID
    wanted: Wanted
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDescription:
    """A mirror, and its topics by name."""

    mirror: str
    source_bootstrap: str
    source_cluster_id: str
    topic_patterns: tuple[str, ...]
    """Regular expressions: new topics that match one are added."""
    replication_factor: int | None
    """Of the topics that are created for it; None: the destination's default."""
    topics: tuple[TopicDescription, ...]
    not_mirrored: NotMirrored
    """What else the mirror covers on its source, as of the last refresh."""


class DescribedPartition(NamedTuple):
    """A partition with its mirror and topic: a row of `--describe`."""

    mirror: MirrorDescription
    topic: TopicDescription
    one: PartitionDescription

    def as_json(self) -> Mapping[str, object]:
        """All that is known about it, as one object."""
        partition = self.one
        return {
            "mirror": self.mirror.mirror,
            "topic": self.topic.topic,
            "partition": partition.partition,
            "source_offset": partition.source_offset,
            "source_last_stable_offset": partition.source_last_stable_offset,
            "destination_offset": partition.destination_offset,
            "lag": partition.lag,
            "lag_ms": partition.lag_ms,
            "state": partition.state,
            "reason": partition.reason,
            "wanted": self.topic.wanted,
            "last_mirrored_epoch": partition.last_mirrored_epoch,
            "last_mirrored_end": partition.last_mirrored_end,
            "source_topic_id": self.topic.source_topic_id,
            "records": partition.records,
            "bytes": partition.bytes,
            "filled_offsets": {
                reason.name.lower(): count
                for reason, count in zip(Absence, partition.filled, strict=True)
            },
            "lane": partition.lane,
            "node": partition.node,
            "status_time_ms": partition.status_time_ms,
            "fresh": partition.fresh,
            "source_time_ms": partition.source_time_ms,
            "destination_losses": partition.losses.times,
            "destination_lost_offsets": partition.losses.offsets,
            "destination_last_loss": partition.losses.last,
            "source_losses": partition.source_losses.times,
            "source_lost_offsets": partition.source_losses.offsets,
            "source_last_loss": partition.source_losses.last,
        }


class _Said(NamedTuple):
    """A partition's row in a status."""

    row: PartitionStatus
    status: Status


_Rows: TypeAlias = Mapping[MirrorPartition, dict[int, _Said]]
"""By state partition, the row that was written last at the end."""


def describe(
    snapshot: Snapshot,
    states: States,
    statuses: Iterable[Status],
    mirrors: Collection[str] | None = None,
    *,
    log_ends: Mapping[TopicPartition, int] | None = None,
    ages: Mapping[int, float] | None = None,
) -> tuple[MirrorDescription, ...]:
    """Describe all mirrors, or those of these names, in the order of their names.

    Args:
        snapshot: `__mirror_config`.
        states: `__mirror_state`.
        statuses: `__mirror_status`.
        mirrors: names; None: all.
        log_ends: of the destination's partitions for which no status reports one.
        ages: seconds since each status was written, by state partition (`ages_of`); None: all are
            fresh.
    """
    rows: defaultdict[MirrorPartition, dict[int, _Said]] = defaultdict(dict)
    for status in sorted(statuses, key=lambda status: status.time_ms):
        for row in status.partitions:
            rows[row.partition][status.state_partition] = _Said(row, status)
    return tuple(
        MirrorDescription(
            mirror=name,
            source_bootstrap=mirror.source.get("bootstrap.servers", ""),
            source_cluster_id=mirror.source_cluster_id,
            topic_patterns=mirror.topic_patterns,
            replication_factor=mirror.replication_factor,
            topics=tuple(
                _topic(topic, states, rows, log_ends or {}, ages)
                for topic in snapshot.topics_of(name)
            ),
            not_mirrored=snapshot.not_mirrored(name),
        )
        for name, mirror in _chosen(snapshot.mirrors, mirrors)
    )


def _chosen(
    mirrors: Mapping[str, Mirror], names: Collection[str] | None
) -> list[tuple[str, Mirror]]:
    return [(name, mirror) for name, mirror in mirrors.items() if names is None or name in names]


def without_log_end(mirrors: Collection[MirrorDescription]) -> list[TopicPartition]:
    """The partitions whose destination offset is unknown: paused ones, for example."""
    return [
        TopicPartition(topic.destination_topic, partition.partition)
        for mirror in mirrors
        for topic in mirror.topics
        for partition in topic.partitions
        if partition.destination_offset < 0
    ]


def _topic(
    topic: MirrorTopic,
    states: States,
    rows: _Rows,
    log_ends: Mapping[TopicPartition, int],
    ages: Mapping[int, float] | None,
) -> TopicDescription:
    return TopicDescription(
        topic=topic.topic,
        destination_topic=topic.destination_name,
        source_topic_id=topic.topic_id,
        wanted=topic.wanted,
        partitions=tuple(
            _partition(name, states, rows, log_ends.get(topic.on_destination(name), -1), ages)
            for name in topic.mirror_partitions
        ),
    )


def _said(partition: MirrorPartition, states: States, rows: _Rows) -> _Said | None:
    """The last row from the state partition that holds its state; if that is unknown, from any."""
    partition_rows = rows.get(partition) or {}
    place = states.places.get((MIRROR_PARTITION_STATE, partition))
    return (
        next(reversed(partition_rows.values()), None)
        if place is None
        else partition_rows.get(place)
    )


def _partition(
    partition: MirrorPartition,
    states: States,
    rows: _Rows,
    log_end: int,
    ages: Mapping[int, float] | None,
) -> PartitionDescription:
    report = _said(partition, states, rows)
    row = report.row if report else PartitionStatus(partition=partition, state=State.UNKNOWN)
    state = states.states.get(partition) or PartitionState(partition, row.state, row.reason)
    mirrored = states.epochs.get(partition)
    age = _age(report, ages)
    fresh = age is not None and is_fresh(age)
    if fresh and row.state is State.FAILED and state.state in _RUNNING:
        state = PartitionState(partition, State.FAILED, row.reason)
    silent = state.state in NEEDS_OWNER and not fresh
    watched = state.state is not State.PAUSED and not silent
    return PartitionDescription(
        partition=partition.partition,
        state=State.UNKNOWN if silent and state.state in _RUNNING else state.state,
        reason=_silence(state, age) if silent else _reason(state, row),
        source_offset=row.source_end,
        source_last_stable_offset=row.source_last_stable,
        destination_offset=row.destination_end if row.destination_end >= 0 else log_end,
        mirrored_offset=row.mirrored,
        lag=row.lag if watched else -1,
        lag_ms=row.lag_ms if watched else None,
        source_time_ms=row.source_time_ms,
        last_mirrored_epoch=None if mirrored is None else mirrored.epoch,
        last_mirrored_end=_last_mirrored_end(state.state, mirrored),
        records=row.records,
        bytes=row.bytes,
        filled=row.filled,
        losses=row.losses,
        source_losses=row.source_losses,
        lane=report.status.lane if report else None,
        node=report.status.node if report else None,
        status_time_ms=report.status.time_ms if report else None,
        fresh=fresh,
    )


def _age(report: _Said | None, ages: Mapping[int, float] | None) -> float | None:
    """Age of the status that has this row; None if there is none."""
    if report is None:
        return None
    return 0.0 if ages is None else ages.get(report.status.state_partition, float("inf"))


def _silence(state: PartitionState, age_s: float | None) -> str:
    """That no lane reports a partition, since when, and its last stored state."""
    text = f"the last stored state is {state.state.name}"
    if state.state is State.STOPPING and state.reason:
        text += f" ({state.reason})"
    if age_s is None:
        return f"no lane has reported it; {text}"
    if age_s < 0:
        return f"its last status is {-age_s:.0f} s ahead of this machine's clock; {text}"
    return f"no lane has reported it for {age_s:.0f} s; {text}"


def _last_mirrored_end(state: State, last_mirrored: LastMirrored | None) -> int | None:
    """Exact once it is STOPPED; before that only a bound is known, which is not shown (-1)."""
    if last_mirrored is None:
        return None
    return last_mirrored.end if state is State.STOPPED else -1


def _reason(state: PartitionState, row: PartitionStatus) -> str | None:
    """The reason that is stored with the state; a status may be older than the state."""
    if state.state is State.FAILED:
        return state.reason or row.reason
    if state.state is row.state is State.MIRRORING:
        return row.reason
    return state.reason if state.state in {State.STOPPING, State.STOPPED} else None
