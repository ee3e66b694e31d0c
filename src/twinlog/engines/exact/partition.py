"""One mirror partition as a lane holds it: the append machine, and what is known around it."""

import enum
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from twinlog.engines.exact.append import PartitionAppend, Phase
from twinlog.engines.exact.jumps import Jump
from twinlog.engines.exact.log_starts import LogStarts
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.types import UNKNOWN_EPOCH, FetchPosition, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.lag import LagClock

UNKNOWN: Final = Offset(-1)
"""An offset that nobody has told us yet."""
START: Final = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """What a mirror partition is: given by the control plane, the same for every owner.

    `shard` is its state partition. `destination_topic_id` is None where nobody has written it down:
    then it is not compared. `compacted` says that the destination's topic refuses records
    without a key and DeleteRecords, because its cleanup.policy contains `compact`. `of_several_ids`
    says that data may stand there, or be under way, which bears another producer id than ours.
    """

    partition: TopicPartition
    source_topic_id: UUID
    shard: int
    compacted: bool
    destination_topic_id: UUID | None = None
    of_several_ids: bool = False


class Stage(enum.Enum):
    """What a lane says of a partition; the control plane maps it to KIP-1279's states."""

    PREPARING = enum.auto()
    MIRRORING = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True, kw_only=True, eq=False)
class MirrorPartition:
    """The mutable part. Only the engine's own loop touches it."""

    spec: PartitionSpec
    append: PartitionAppend
    stage: Stage = Stage.PREPARING
    reason: str = ""
    transient: bool = False  # FAILED, yet trying again may help
    attempts: int = 0  # failures in a row, for the backoff
    unsettled: int = 0  # position reads in a row that found something under way
    retry_at: float = 0.0  # no step before this time
    filling: bool = False  # a filler is under way: its position must not be read
    source_node: int = -1
    source_replica: int = -1  # read instead of the leader, as the leader asks (KIP-392)
    redirect_at: float = 0.0  # not before this time to another replica, or back to the leader
    destination_epoch: LeaderEpoch = UNKNOWN_EPOCH  # of the leader that was last told
    doubted: tuple[Jump, ...] = ()  # skipped offsets that are read again before they are believed
    held_back: str = ""  # why the source answers no records although it has offsets there
    source_leader_epoch: LeaderEpoch = UNKNOWN_EPOCH  # of the election that made it lead
    source_epochs: SourceEpochs = field(default_factory=SourceEpochs)  # of what was read there
    destination_node: int = -1
    topic_lost: bool = False  # the destination was last told to have no topic, or another one
    source_start: Offset = UNKNOWN
    source_high_watermark: Offset = UNKNOWN
    source_stable: Offset = UNKNOWN
    source_heard_at: float | None = None  # when it was last fetched, while it is not
    source_ends: LagClock = field(default_factory=LagClock)  # when its high watermarks were seen
    throttled: bool = False  # its fetches wait for the mirror's rate
    log_starts: LogStarts = field(default_factory=LogStarts)  # that the destination's follows
    destination_start: Offset = UNKNOWN
    bulk_until: Offset = START  # empty records are appended up to here, then deleted
    touched: int = 0  # the fetcher's clock when the position was last set
    ahead_since: float = 0.0  # when the destination was first seen ahead of the source, or 0
    corrupt_reads: int = 0
    records_moved: int = 0
    bytes_moved: int = 0
    caught_up_at: float = field(default=0.0)  # when it last held all that was stable

    @property
    def key(self) -> TopicPartition:
        """The topic partition, the same in both clusters."""
        return self.spec.partition

    @property
    def read_node(self) -> int:
        """The source broker that it is read from."""
        return self.source_node if self.source_replica < 0 else self.source_replica

    @property
    def fetch_position(self) -> FetchPosition:
        """Where the source is to be read on."""
        end = self.append.planned_end
        return FetchPosition(end, self.source_epochs.before(end), self.source_leader_epoch)

    @property
    def mirrored_epoch(self) -> LeaderEpoch:
        """The source's leader epoch of the destination's last record; -1 where it is not known."""
        if self.append.phase is not Phase.APPENDING:
            return UNKNOWN_EPOCH
        return self.source_epochs.before(self.append.log_end)

    @property
    def caught_up(self) -> bool:
        """Whether the destination holds all that the source is known to have decided."""
        return (
            self.append.phase is Phase.APPENDING
            and self.append.idle
            and 0 <= self.source_stable <= self.append.log_end
        )

    def __str__(self) -> str:
        return str(self.key)
