"""What was found about a mirror, its topics and its groups before a failover.

survey.py and group_survey.py find these facts, verdict.py judges them. What is unknown is None or
empty; a field's docstring says which. Each serialises itself with the names that
`twinlog readiness --json` has for its fields.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.states import State
from twinlog.operations.readiness.reasons import Finding


class SourceLog(NamedTuple):
    """A partition on the source.

    Attributes:
        start: the log start offset; None if only a status reports the partition.
        high_watermark: the offset up to which all in-sync replicas have the log.
        last_stable: the offset up to which no transaction is open.
        log_end: the leader's log end offset, which is above the high watermark while a follower
            lags: a producer with acks=1 has been answered for these records. None: unknown.
    """

    start: int | None
    high_watermark: int
    last_stable: int
    log_end: int | None = None

    @property
    def end(self) -> int:
        """The log end offset, as far as it is known."""
        return max(self.high_watermark, self.log_end or 0)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self.last_stable < self.high_watermark


class SourceTopic(enum.Enum):
    """What has happened to a topic on the source."""

    SAME = enum.auto()
    GONE = enum.auto()
    MADE_AGAIN = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What was found about a mirror partition."""

    partition: int
    state: State
    reason: str | None = None
    """Why it is FAILED."""
    source: SourceLog | None = None
    """None: it cannot be read, and no fresh status reports it."""
    destination_end: int | None = None
    """The destination's high watermark, read before the source's."""
    lag_ms: int | None = None
    """Age of the oldest record that is not mirrored yet, as its owner reported; None: unknown."""
    held_by: tuple[str, ...] = ()
    """The producers that hold transactions open on the source, as text; none if they cannot be
    read."""
    reported_end: int | None = None
    """The destination's log end as the partition's owner reported it after `destination_end` was
    read, or when it stopped writing. None: no such report, or none needed as the source was read.
    """
    lacks: tuple[int, int] | None = None
    """Offsets `[start, end)` that the source keeps, and that are below the destination's log start.
    """
    may_lack: tuple[int, int] | None = None
    """Of a flow: offsets `[start, end)` that the source keeps, and of which it is not known where
    they were copied to; some copies may be below the destination's log start."""

    def as_json(self) -> Mapping[str, object]:
        """What both sides hold of it; None where that is unknown."""
        source = self.source
        return {
            "partition": self.partition,
            "state": self.state,
            "source_start": None if source is None else source.start,
            "source_offset": None if source is None else source.high_watermark,
            "source_last_stable_offset": None if source is None else source.last_stable,
            "source_log_end": None if source is None else source.log_end,
            "destination_offset": self.destination_end,
            "reported_end": self.reported_end,
            "lacks": None if self.lacks is None else list(self.lacks),
            "held_by": self.held_by,
        }


class Standing(NamedTuple):
    """The offset up to which a group has read a partition."""

    partition: TopicPartition
    offset: int


class Skip(NamedTuple):
    """A partition in which the destination's committed offset is ahead of the source's."""

    partition: TopicPartition
    source: int
    destination: int
    follows: bool
    """Whether the destination's offset is the mirror's own, and is lowered at the next check."""

    def __str__(self) -> str:
        return f"{self.partition} (source {self.source}, destination {self.destination})"

    def as_json(self) -> Mapping[str, object]:
        """Both offsets; the topic is known from where it is."""
        return {
            "partition": self.partition.partition,
            "source": self.source,
            "destination": self.destination,
            "follows": self.follows,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group that has committed for a topic on the source."""

    group: str
    kind: str = "classic"
    followed: bool = True
    """Whether its offsets are copied."""
    idle_on_source: bool = True
    idle_on_destination: bool = True
    due: int = 0
    """Partitions whose offsets are still to be copied, without those in `skips`."""
    behind: int = 0
    """Offsets that it would read again without these copies."""
    missing: int = 0
    """Partitions without an offset on the destination: auto.offset.reset decides there."""
    skips: tuple[Skip, ...] = ()
    ahead: int = 0
    """Offsets that it has read on the source and that the destination does not have."""
    left_out: tuple[Skip, ...] = ()
    """Of a flow: where the source has records that the group has not read, and that the target does
    not have, as the flow began behind them, or has gone on without lost copies; the destination's
    offset is where it goes on, as the source's."""
    deleted: tuple[Standing, ...] = ()
    """Offsets that the mirror has copied to the destination, and the source does not have now."""
    unread: int = 0
    """Offsets that it has not read on the source, in the partitions that it has committed for."""
    unread_from: tuple[Standing, ...] = ()
    """Where these begin."""

    @property
    def pending(self) -> bool:
        """Whether the next check copies something."""
        return self.followed and (self.due > 0 or any(skip.follows for skip in self.skips))

    def as_json(self) -> Mapping[str, object]:
        """What a failover means for it."""
        return {
            "group": self.group,
            "kind": self.kind,
            "followed": self.followed,
            "idle_on_source": self.idle_on_source,
            "idle_on_destination": self.idle_on_destination,
            "due": self.due,
            "behind": self.behind,
            "missing": self.missing,
            "ahead": self.ahead,
            "skips": self.skips,
            "left_out": self.left_out,
            "deleted": [
                {"partition": standing.partition.partition, "destination": standing.offset}
                for standing in self.deleted
            ],
            "unread": self.unread,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What was found about a topic. What is unknown of the source is None or empty."""

    topic: str
    on_source: SourceTopic = SourceTopic.UNKNOWN
    source_partitions: int | None = None
    destination_partitions: int | None = None
    destination_recreated: bool = False
    """Whether the destination's topic is not the one that the mirror writes to."""
    behind_ms: int = 0
    """For how long it was behind, if that was longer than delete.retention.ms; else 0."""
    partitions: tuple[PartitionFacts, ...]
    groups: tuple[GroupFacts, ...] = ()
    configurations: tuple[str, ...] = ()
    """Names of those that are not what they have to be."""
    synced: tuple[Finding, ...] = ()
    """Findings of syncs about it."""
    holds_heartbeats: bool = False
    """Of a flow: whether it copies heartbeats, of which the source gets another one each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFacts:
    """What is left to do until the destination's ACLs are the source's, as text."""

    to_make: tuple[str, ...] = ()
    to_remove: tuple[str, ...] = ()
    denying: tuple[str, ...] = ()
    """The source's denials that are not copied, since they would stop nodes."""
    missed: tuple[str, ...] = ()
    """The source's ACLs that are not copied, and that applications may need."""
    withheld: tuple[str, ...] = ()
    """The source's ACLs that are not copied, since a denial beside them is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFacts:
    """What only a flow has; ages in ms by this machine's clock. None: none, or it is unknown."""

    heartbeat_age_ms: int | None
    checkpoint_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """What was found about a mirror."""

    mirror: str
    topics: tuple[TopicFacts, ...]
    source_trouble: str | None = None
    """Why the source cannot be read; None: it was."""
    known_until_ms: int | None = None
    """If the source was not read: the time since last contact with it, by statuses; None: no status
    reports it."""
    node_runs: bool = True
    not_mirrored: Mapping[str, str] = field(default_factory=dict)
    """Source topics that the mirror covers and does not have, with the reason."""
    age_ms: int = 0
    """Time since the first of these facts was requested."""
    status_age_ms: int | None = None
    """Age of the oldest status that counts; None: none does."""
    unknown: tuple[Finding, ...] = ()
    """Findings about what else could not be read."""
    acls: AclFacts = AclFacts()
    synced: tuple[Finding, ...] = ()
    """Findings of syncs that concern no single topic."""
    flow: FlowFacts | None = None
    """None: it is no flow."""
