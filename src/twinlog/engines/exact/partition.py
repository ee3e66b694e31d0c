"""A mirror partition as its lane holds it: its condition, and what its parts know about it."""

import enum
from dataclasses import dataclass, field
from typing import Final

from twinlog.engines.exact.append import PartitionAppend, Phase
from twinlog.engines.exact.log_starts import LogStarts
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.source.jumps import Jump
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    UNKNOWN_OFFSET,
    FetchPosition,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from twinlog.mirror.lag import LagClock

START: Final = Offset(0)


class Condition(enum.Enum):
    """What a partition's machine is about (machine.py)."""

    GONE = enum.auto()
    FILLING = enum.auto()
    WAITING = enum.auto()
    FAILED = enum.auto()
    DRAINING = enum.auto()
    LOCATING = enum.auto()
    APPENDING = enum.auto()


_OF_PHASE: Final = {
    Phase.FAILED: Condition.FAILED,
    Phase.DRAINING: Condition.DRAINING,
    Phase.PLACING: Condition.LOCATING,
    Phase.APPENDING: Condition.APPENDING,
}


@dataclass(slots=True, kw_only=True, eq=False)
class ExactPartition:
    """A mirror partition. Only its machine changes its condition; the rest are notes of the parts.

    Only the engine's event loop uses it.
    """

    spec: PartitionSpec
    append: PartitionAppend
    gone: bool = False
    stage: PartitionStage = PartitionStage.PREPARING
    reason: str = ""
    transient: bool = False  # FAILED, but a retry may help
    differs: bool = False  # FAILED for good: a failure has shown that the two logs differ
    attempts: int = 0  # consecutive failures, for the backoff
    unsettled: int = 0  # consecutive position reads that found a request in flight
    retry_at: float = 0.0  # no step before this time
    filling: bool = False  # a filler is in flight: the position must not be read
    source_node: int = -1
    source_replica: int = -1  # read instead of the leader, as the leader asks (KIP-392)
    redirect_at: float = 0.0  # no change to another replica, or back to the leader, before this
    destination_epoch: LeaderEpoch = UNKNOWN_EPOCH  # of the leader in the last answer
    doubted: tuple[Jump, ...] = ()  # skipped offsets that are read again before they are believed
    held_back: str = ""  # why the source answers without records although it has offsets
    source_leader_epoch: LeaderEpoch = UNKNOWN_EPOCH  # of the source's current leader
    source_epochs: SourceEpochs = field(default_factory=SourceEpochs)  # of the records read
    destination_node: int = -1
    topic_lost: bool = False  # by the last answer the destination's topic is absent or recreated
    source_start: Offset = UNKNOWN_OFFSET
    source_high_watermark: Offset = UNKNOWN_OFFSET
    source_stable: Offset = UNKNOWN_OFFSET
    source_heard_at: float | None = None  # last contact while its leader is not fetched from
    source_ends: LagClock = field(default_factory=LagClock)  # when its high watermarks were seen
    throttled: bool = False  # its fetches wait for the mirror's rate
    log_starts: LogStarts = field(default_factory=LogStarts)  # the source's, not yet followed
    destination_start: Offset = UNKNOWN_OFFSET
    bulk_until: Offset = START  # empty records are appended up to here, then deleted
    touched: int = 0  # the fetcher's clock when the position was last set
    ahead_since: float = 0.0  # when the destination was first found ahead of the source, or 0
    corrupt_reads: int = 0
    refused_fetches: int = 0  # in a row, by the leader that the metadata names
    records_moved: int = 0
    bytes_moved: int = 0
    gap_since: float = 0.0  # when it began to wait for an answer that a gap needs, or 0
    gap_seconds: float = 0.0  # for which it has waited so

    @property
    def key(self) -> TopicPartition:
        """The topic partition, the same in both clusters."""
        return self.spec.partition

    @property
    def read_node(self) -> int:
        """The source broker that it is read from."""
        return self.source_node if self.source_replica < 0 else self.source_replica

    @property
    def follows(self) -> bool:
        """Whether it is read from a follower, whose answers are no contact with the source."""
        return self.source_replica >= 0

    @property
    def fetch_position(self) -> FetchPosition:
        """The position of the next fetch from the source."""
        end = self.append.planned_end
        return FetchPosition(end, self.source_epochs.before(end), self.source_leader_epoch)

    def is_fetched_from(self, position: FetchPosition) -> bool:
        """Whether an earlier `fetch_position` still holds, without the epochs of all offsets.

        The epoch before an offset does not change: it is learned when the plan reaches the offset,
        before the partition is fetched from there.
        """
        return (
            position.offset == self.append.planned_end
            and position.leader_epoch == self.source_leader_epoch
        )

    @property
    def mirrored_epoch(self) -> LeaderEpoch:
        """The source's leader epoch of the destination's last record; -1 if unknown."""
        if self.append.phase is not Phase.APPENDING:
            return UNKNOWN_EPOCH
        return self.source_epochs.before(self.append.log_end)

    def gap_begins(self, now: float) -> None:
        """Note that a marker is sent, or the batch before one: what follows waits for the answer.

        A partition that always waits takes no more transactions than round trips allow.
        """
        self.gap_since = self.gap_since or now

    def gap_ends(self, now: float) -> None:
        """Note the answer to a marker."""
        if self.gap_since:
            self.gap_seconds += now - self.gap_since
            self.gap_since = 0.0

    def condition(self, now: float) -> Condition:
        """Its condition at this time of the loop's clock (machine.py)."""
        if self.gone:
            return Condition.GONE
        if self.filling:
            return Condition.FILLING
        if self.retry_at > now:
            return Condition.WAITING
        return _OF_PHASE[self.append.phase]

    def __str__(self) -> str:
        return str(self.key)
