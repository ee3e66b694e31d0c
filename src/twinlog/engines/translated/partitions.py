"""The partitions of one flow in one lane: their conditions, and how these are reported.

LOCATING ── located ──► COPYING ── trouble ──► LOCATING, after a backoff
│
FAILED: for good, or located again after a while (`transient`)
"""

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from twinlog.engines.base import Assignment, PartitionProgress, SharedWriters
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source.jumps import Jump
from twinlog.engines.translated.found_losses import FoundLosses
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    UNKNOWN_OFFSET,
    EpochEnd,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from twinlog.mirror.absence import Absence
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Gap, Piece
from twinlog.mirror.record_losses import NO_LOSSES, RecordLoss, RecordLosses
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Throttle

log = logging.getLogger(__name__)

_SOURCE_SILENT_S: Final = 10.0
"""The lag to a source that is silent for longer is unknown."""


TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""How a broker refuses a batch: by `max.message.bytes`, or by `segment.bytes`."""
_LEAST_BUILT: Final = 2048
"""Bytes; with less, hardly any batches would be merged."""
LACKS_REPLICAS: Final = "the destination has fewer in-sync replicas than min.insync.replicas"
"""Why a partition is held back whose appends are refused with NOT_ENOUGH_REPLICAS."""
_BLOCKED_SHARE: Final = 8
"""Blocked partitions hold at most about an eighth of the buffer, and the others have the rest."""
_SMALLER_S: Final = 600.0
"""How long smaller batches are built before ones of twice the size are tried again: the limit may
have been raised, or a batch of the source may have been refused. If not, one is refused again."""


class SourceQueue(Protocol):
    """What was read of a partition and has not landed, as its reader and its row see it."""

    epochs: SourceEpochs
    position: Offset
    """The source's offset from which the next piece is wanted."""
    mirrored_end: Offset
    """The source's offset up to which everything has landed."""
    queued_bytes: int

    @property
    def destination_end(self) -> int:
        """The destination's offset behind what has landed; -1 if it is not known."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in flight."""
        ...

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces that follow each other from `position` on."""
        ...


class LossyWriters(SharedWriters, Protocol):
    """Writers of a flow, which find out what its target has lost."""

    @property
    def losses(self) -> FoundLosses:
        """What was found, and not counted yet."""
        ...


W = TypeVar("W", bound=LossyWriters)
Q = TypeVar("Q", bound=SourceQueue)


class FlowStage(enum.Enum):
    """The condition of a partition."""

    LOCATING = enum.auto()
    COPYING = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True, eq=False)
class FlowPartition(Generic[W, Q]):
    """A partition, and its condition: `W` writes it, and `Q` is its queue."""

    assignment: Assignment
    writers: W
    owned_before: bool
    locate_at: float
    """When it may be located."""
    unguarded_until: float
    """Until then a request of a former epoch may be in flight, which only its fence excludes."""
    stage: FlowStage = FlowStage.LOCATING
    reason: str | None = None
    transient: bool = True
    sequence: Q | None = None
    """None unless it is COPYING."""
    leaving: Q | None = None
    """What was `sequence` when it was stopped. It takes the answers to what is in flight, and what
    has landed is recorded. None after trouble: then the log shows what has landed."""
    source_node: int = -1
    source_leader_epoch: int = UNKNOWN_EPOCH
    source_replica: int = -1
    """Read instead of the leader, as the leader asks (KIP-392)."""
    unreadable: str | None = None
    """Why the replica cannot be read that the leader names, until there are records again."""
    redirect_at: float = 0.0
    """No change to another replica, or back to the leader, before this."""
    destination_node: int = -1
    destination_epoch: LeaderEpoch = UNKNOWN_EPOCH
    """The leader epoch of the destination, when leaders were last asked for."""
    elected: bool = False
    """Whether the destination has elected another leader while it was being located."""
    in_flight: int = 0
    """Batches that are not answered, of former sequences too."""
    sent_to: int = -1
    """The broker that these were sent to."""
    send_at: float = 0.0
    """When it may be sent to again."""
    refusals: int = 0
    """Appends that were refused since one has landed, as too few replicas were in sync."""
    held_back: str | None = None
    """Why nothing is written just now, or nothing is read as the source has no leader."""
    silence: str | None = None
    """Why the source answers without records, although it has offsets (suspects.py)."""
    outlasted: str | None = None
    """Why its last transaction was not committed in time, until one is, or nothing is missing."""
    read_at: float = 0.0
    """When it may be read again if it is `blocked`: what it held was dropped."""
    built_bytes: int | None = None
    """The most bytes of a batch that is not the source's own, as several that are merged; None: the
    usual number. Less once the destination has refused a larger one (`note_too_large`)."""
    grow_at: float = 0.0
    """When twice `built_bytes` is tried."""
    locating: bool = False
    gone: bool = False
    failures: int = 0
    doubted: Collection[Jump] = ()
    source_end: int = UNKNOWN_OFFSET
    source_stable: int = UNKNOWN_OFFSET
    read_stable: int = UNKNOWN_OFFSET
    """The source's last stable offset by answers to Fetch, which names the topic's id. `source_end`
    and `source_stable` are also taken from answers by its name, which may be those of a topic that
    was created since."""
    shorter_since: float | None = None
    """Since when the source's log ends in front of what is to be read next."""
    heard_at: float | None = None
    """When the leader of the source was asked that has answered last. A follower's answers do not
    count: it may be cut off from the leader."""
    behind_since: float | None = None
    recorded_at: float = 0.0
    records: int = 0
    bytes: int = 0
    source_start: Offset = field(default=Offset(0))
    """The source's log start offset, when the partition was last located."""
    followed_from: Offset | None = None
    """Where it begins in a flow that begins at the end: what is stored, or else the end that the
    source had at its first location. Later ones may be further on, and what is between is not to be
    left out."""
    fresh: bool = False
    """Whether it had no owner before this one, and is still at its beginning. It is not any more
    once a record was read, which may land, answered or not, once the end of the source's log was
    reached, or if the flow begins at the end: what the source deletes from then on is lost."""
    passed: Counter[Absence] = field(default_factory=Counter)
    """Offsets of the source without a copy, by reason, since this owner has the partition."""
    passed_end: Offset = UNKNOWN_OFFSET
    """Up to here they are counted: what was dropped, or located again, is read again."""
    losses: RecordLosses = NO_LOSSES
    """What the target has lost of its records, since this owner has the partition."""
    source_losses: RecordLosses = NO_LOSSES
    """What the source has lost before it was copied, since this owner has the partition."""
    counted: tuple[Offset, Offset] = (UNKNOWN_OFFSET, UNKNOWN_OFFSET)
    """The last offsets that are counted as deleted by the source: they may be read again."""
    copied_to: Offset = UNKNOWN_OFFSET
    """The source's offset up to which everything had landed, when there was a sequence last."""
    lacks_source: bool = False
    """Whether the source does not know it, as a broker of it said last."""

    @property
    def begins(self) -> bool:
        """Whether nothing of it was copied yet, by no program."""
        return self.fresh and self.assignment.begin is None

    @property
    def read_node(self) -> int:
        """The source's broker that it is read from; -1 while the leader is not known."""
        return self.source_replica if self.follows else self.source_node

    @property
    def follows(self) -> bool:
        """Whether it is read from a follower."""
        return self.source_node >= 0 and self.source_replica >= 0

    def return_to_leader(self, why: str) -> None:
        """Read from the source's leader again, if it was read from a replica that fails so."""
        if self.source_replica >= 0:
            self.unreadable = (
                f"the source's leader redirects fetches to broker {self.source_replica} "
                f"(replica.selector.class), which cannot be read: {why}"
            )
            self.source_replica = -1

    def may_build(self, usual: int, now: float) -> int:
        """The most bytes of a batch that is not the source's own; usually, `usual` ones."""
        if self.built_bytes is not None and now >= self.grow_at:
            self.built_bytes *= 2
            self.grow_at = now + _SMALLER_S
        return min(self.built_bytes or usual, usual)

    def note_too_large(self, size: int, now: float) -> None:
        """Build smaller batches: one of so many bytes was refused (`TOO_LARGE`).

        The remote topic has the source's limit, which may be below the usual size of merged
        batches. A batch of the source is within it.
        """
        self.built_bytes = max(min(size, self.built_bytes or size) // 2, _LEAST_BUILT)
        self.grow_at = now + _SMALLER_S

    def leave(self) -> None:
        """Take nothing more in: it is stopped."""
        self.gone, self.leaving = True, self.sequence
        self.forget_sequence()

    def has(self, sequence: Q) -> bool:
        """Whether an answer still counts that this sequence has asked for."""
        return sequence is self.sequence or sequence is self.leaving

    def forget_sequence(self) -> None:
        """Drop what was read and has not landed."""
        if self.sequence is not None:
            self.copied_to = self.sequence.mirrored_end
        self.sequence = None

    def pass_over(self, gap: Gap) -> None:
        """Count offsets that have no copy, each one once."""
        if gap.end > self.passed_end:
            rest = gap.after(max(gap.start, self.passed_end))
            for reason, count in rest.reasons(gap.end):
                self.passed[reason] += count
            self.passed_end = gap.end

    @property
    def name(self) -> MirrorPartition:
        """Its name in the control topics."""
        return self.assignment.name

    @property
    def source(self) -> TopicPartition:
        """What is read."""
        return self.assignment.source

    @property
    def destination(self) -> TopicPartition:
        """What is written."""
        return self.assignment.destination

    @property
    def blocked(self) -> bool:
        """Whether its destination takes nothing now: it lacks replicas, or a leader."""
        return self.refusals > 0 or self.destination_node < 0

    @property
    def state(self) -> State:
        """The state that is reported; only the first location is PREPARING."""
        if self.stage is FlowStage.FAILED:
            return State.FAILED
        return State.MIRRORING if self.owned_before else State.PREPARING

    def __str__(self) -> str:
        return str(self.name)

    def note_ends(
        self, high_watermark: int, last_stable: int, now: float, *, at_least: bool
    ) -> None:
        """Note how far the source reaches, as one of its brokers says.

        `at_least`: it may reach further. A follower may lag behind, and what a leader was asked
        beside the fetches may be older than they are. The leader's own Fetch tells that the source
        has lost its end.
        """
        if at_least:
            high_watermark = max(high_watermark, self.source_end)
            last_stable = max(last_stable, self.source_stable)
        self.source_end, self.source_stable = high_watermark, last_stable
        self.note_lag(now)

    def note_lag(self, now: float) -> None:
        """Note whether everything has landed that the source has."""
        if self.sequence is None:
            self.behind_since = None
        elif self.sequence.mirrored_end >= self.source_stable:
            self.behind_since = self.outlasted = None
            if self.held_back == LACKS_REPLICAS:  # the source has compacted what was refused
                self.refusals, self.held_back = 0, None
        elif self.behind_since is None:
            self.behind_since = now

    def row(self, now: float) -> PartitionProgress:
        """What is reported."""
        sequence, stable = self.sequence, self.source_stable
        mirrored = UNKNOWN_OFFSET if sequence is None else sequence.mirrored_end
        if sequence is None and self.lacks_source:  # whoever removes its topic tells what was lost
            mirrored, stable = self.copied_to, min(stable, self.read_stable)
        landed = UNKNOWN_OFFSET if sequence is None else sequence.destination_end
        age_ns = 0 if self.heard_at is None else int((now - self.heard_at) * 1e9)
        source_time_ms = None if self.heard_at is None else (time.time_ns() - age_ns) // 1_000_000
        return PartitionProgress(
            name=self.name,
            state_partition=self.assignment.state_partition,
            state=self.state,
            reason=self.reason,
            held_back=self.held_back or self.outlasted or self.silence,
            source_end=self.source_end,
            source_last_stable=stable,
            mirrored_end=mirrored,
            destination_end=landed,
            records=self.records,
            bytes=self.bytes,
            lag_ms=self._lag_ms(now),
            source_time_ms=source_time_ms,
            filled=tuple(self.passed[reason] for reason in Absence),
            proved_end=Offset(landed),
            losses=self.losses,
            source_losses=self.source_losses,
        )

    def _lag_ms(self, now: float) -> int | None:
        if self.sequence is None:
            return None
        if self.behind_since is not None:
            return max(int((now - self.behind_since) * 1000), 1)  # 0: nothing is missing
        heard = self.heard_at is not None and now < self.heard_at + _SOURCE_SILENT_S
        return 0 if heard else None


class FlowPartitions(Generic[W, Q]):
    """The partitions of a flow in one lane, by name.

    Args:
        settings: the lane's limits.
        random: for jitter.
        observe: called at each change of a partition's state or reason.
    """

    def __init__(
        self,
        settings: LaneSettings,
        random: Random,
        observe: Callable[[PartitionProgress], None],
    ) -> None:
        self.settings = settings
        self.all: dict[MirrorPartition, FlowPartition[W, Q]] = {}
        self.news: set[int] = set()
        """State partitions whose rows may have changed."""
        self.changed = asyncio.Event()
        """Set when something may go on."""
        self.leaders_due = 0.0
        """When the leaders are to be asked for."""
        self.throttle = Throttle()
        self.begins_at_end = False
        """Whether partitions of which nothing was copied begin at the source's end."""
        self.passes_lost = False
        """Whether records are passed over that the source has deleted before they were copied, or
        that the target has lost."""
        self.passes_recreated = False
        """Whether it goes on in a topic of the target that was recreated."""
        self._random = random
        self._observe = observe

    @property
    def copying(self) -> list[tuple[FlowPartition[W, Q], Q]]:
        """The partitions that are copied, with their sequences."""
        return [(p, p.sequence) for p in self.all.values() if p.sequence is not None]

    @property
    def blocked_room(self) -> int:
        """The bytes that blocked partitions may hold more; negative: they hold more than that.

        Without such a share they would hold the whole buffer, and no other one would be read.
        """
        return self.settings.buffer_bytes // _BLOCKED_SHARE - self.blocked_bytes

    @property
    def blocked_bytes(self) -> int:
        """The bytes that blocked partitions hold."""
        return sum(queue.queued_bytes for partition, queue in self.copying if partition.blocked)

    def trouble(self, partition: FlowPartition[W, Q], reason: str) -> None:
        """Locate a partition again, after a backoff; FAILED if that has not helped for long."""
        if partition.gone:
            partition.leaving = None
            return
        partition.failures += 1
        partition.forget_sequence()
        partition.doubted = ()
        due = self.now() + self.pause(partition.failures)
        partition.locate_at = max(partition.locate_at, due)
        log.info("%s: %s; locating it again", partition.name, reason)
        if partition.failures >= self.settings.attempts:
            self.fail(partition, reason)
        elif partition.stage is FlowStage.COPYING:
            partition.stage = FlowStage.LOCATING
        self.changed.set()

    def locate_again(self, partition: FlowPartition[W, Q], reason: str) -> None:
        """Locate a partition again that has no trouble."""
        if partition.sequence is not None:
            log.info("%s: %s; locating it again", partition.name, reason)
            partition.forget_sequence()
            partition.doubted = ()
            if partition.stage is FlowStage.COPYING:
                partition.stage = FlowStage.LOCATING
            self.changed.set()

    def fail(self, partition: FlowPartition[W, Q], reason: str, *, transient: bool = True) -> None:
        """Stop copying a partition; a transient failure is tried again later."""
        was_for_good = partition.stage is FlowStage.FAILED and not partition.transient
        if partition.gone or was_for_good:
            return
        partition.forget_sequence()
        partition.transient = transient
        if transient:
            partition.failures += 1
            partition.locate_at = self.now() + max(self.pause(partition.failures), 1.0)
        if (partition.stage, partition.reason) != (FlowStage.FAILED, reason):
            partition.stage, partition.reason = FlowStage.FAILED, reason
            log.error("%s is FAILED: %s", partition.name, reason)
            self.note(partition)

    def diverged(self, partition: FlowPartition[W, Q], sequence: Q, source: EpochEnd) -> None:
        """Handle a source that has lost the end of its log since it was read."""
        if not sequence.idle and sequence.mirrored_end <= source.end_offset:
            reason = f"the source has lost records from offset {source.end_offset} on"
            self.trouble(partition, reason)
            return
        epoch = sequence.epochs.before(sequence.position)
        self.fail(
            partition,
            f"the source has lost records that were copied: copied up to offset "
            f"{sequence.mirrored_end} of leader epoch {epoch}; on the source, epoch "
            f"{source.leader_epoch} ends at offset {source.end_offset}, before later epochs",
            transient=False,
        )

    def note_losses(self, partition: FlowPartition[W, Q], losses: Iterable[RecordLoss]) -> None:
        """Count what the target has lost."""
        for loss in losses:
            log.error("%s: the target has lost records: %s", partition.name, loss.text)
            partition.losses = partition.losses.with_loss(loss)
            self.news.add(partition.assignment.state_partition)

    def note_deleted(self, partition: FlowPartition[W, Q], start: Offset, end: Offset) -> None:
        """Count offsets that the source has deleted before they were copied, each one once.

        What was read in front of them, and was dropped since, may be deleted by now as well.
        """
        first, last = partition.counted
        for lost in ((start, min(end, first)), (max(start, last), end)):
            if lost[1] > lost[0]:
                self._note_source_loss(partition, RecordLoss(partition.source, *lost))
        is_other = start > last or end < first
        partition.counted = (start, end) if is_other else (min(start, first), max(end, last))

    def note_source_recreated(self, partition: FlowPartition[W, Q]) -> None:
        """Log and count what was not copied of a source's topic that was deleted and recreated.

        Where the flow goes on, only records that are known to be lost are logged: a node counts the
        topic, and logs all that is recorded of it (`FlowTopics`).
        """
        start = None if partition.copied_to < 0 else partition.copied_to
        # Transactions that were open were never committed.
        known_end = min(partition.source_stable, partition.read_stable)
        end = None if known_end < 0 else Offset(known_end)
        if start is not None and end is not None and end <= start:
            end = None  # it may have had more than was last known
        loss = RecordLoss(partition.source, start, end, at_least=end is not None)
        if loss.offsets:
            log.error("%s: the source topic was recreated, and lost: %s", partition.name, loss.text)
        elif not self.passes_lost:
            text = "%s: the source topic was recreated, and may have lost records: %s"
            log.warning(text, partition.name, loss.text)
        if not self.passes_lost:
            self._note_source_loss(partition, loss)

    def _note_source_loss(self, partition: FlowPartition[W, Q], loss: RecordLoss) -> None:
        partition.source_losses = partition.source_losses.with_loss(loss)
        self.news.add(partition.assignment.state_partition)

    def note(self, partition: FlowPartition[W, Q]) -> None:
        """Report a change of state or reason."""
        self.news.add(partition.assignment.state_partition)
        self._observe(partition.row(self.now()))

    def pause(self, failures: int) -> float:
        """The backoff in seconds after a number of failures."""
        return self.settings.backoff.delay(failures, self._random.random())

    def ask_leaders(self, failures: int = 0) -> None:
        """Ask for the leaders soon; after failures, with a backoff."""
        due = self.now() + self.pause(failures) if failures else 0.0
        self.leaders_due = min(self.leaders_due, due)
        self.changed.set()

    @staticmethod
    def now() -> float:
        """The loop's clock, in seconds."""
        return asyncio.get_running_loop().time()
