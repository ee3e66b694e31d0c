"""The interface between a lane and the engines that move its partitions.

Mirrors have a kind (`mirror.kind`), and each kind has an engine. A lane knows three things of a
kind, and nothing of how it moves records:

    EnginesOfKind  one for each kind and lane: makes the other two
    Engine         one for each mirror and lane: moves the mirror's partitions
    SharedWriters  one for each kind and owned state partition: the identities that its
                   partitions are written under, and the way to end what is written under them

The lane decides which partitions an engine moves, and an engine reports rows (`PartitionProgress`).
An engine never stores a state, and never decides that a partition is another lane's.

Rules that every engine keeps:

- **One partition fails alone.** A failure is a row with the state FAILED and a reason. Only
  `Fenced` ends `Engine.run` of a usable source: the lane may not write any more.
- **Stop means stopped.** When `stop` returns, no request for these partitions is in flight.
- **Seal means sealed.** When `seal` has returned an end for a partition, no earlier write of any
  owner can land in it, however late it arrives: users may write to it from then on.
- **The destination is the truth.** An end that is reported as mirrored was read back from, or
  acknowledged by, the destination.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from twinlog.engines.dataframes import DataFrames
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import NO_LOSSES, RecordLosses
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Throttle
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.state_records import LastMirrored
from twinlog.store.status_records import NOTHING_FILLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A mirror partition that an engine is to move."""

    name: MirrorPartition
    """Its name in the control topics: mirror, source topic, partition."""
    source: TopicPartition
    destination: TopicPartition
    state_partition: int
    """The partition of `__mirror_state` that it belongs to."""
    source_topic_id: UUID
    destination_topic_id: UUID | None
    """None if it is not stored; then it is not compared."""
    compacted: bool
    """Whether `cleanup.policy` of the destination's topic contains `compact`."""
    former_writers: frozenset[int] = frozenset()
    """The `SharedWriters.id` of each former owner of this partition."""
    begin: int | None = None
    """The source's offset up to which another program has copied all (`MirrorTopic.begins`)."""
    followed_from: int | None = None
    """Where it begins if its flow begins at the end (`MirrorTopic.follows_from`)."""
    offsets_topic_id: UUID | None = None
    """Of the topic that records where its copies are (`MirrorTopic.offsets_topic_id`)."""
    lost_topic_ids: tuple[UUID, ...] = ()
    """Of the destination's former topics, with whose loss it goes on
    (`MirrorTopic.lost_topic_ids`)."""


class PartitionProgress(NamedTuple):
    """A row: what an engine reports of one of its partitions. Offsets that are unknown are -1."""

    name: MirrorPartition
    state_partition: int
    state: State
    """PREPARING, MIRRORING or FAILED."""
    reason: str | None = None
    """Why it is FAILED."""
    held_back: str | None = None
    """Why the source returns no records although it has some."""
    source_end: int = UNKNOWN_OFFSET
    """The source's high watermark."""
    source_last_stable: int = UNKNOWN_OFFSET
    """The source's last stable offset."""
    mirrored_end: int = UNKNOWN_OFFSET
    """The source's offset up to which the destination has everything."""
    destination_end: int = UNKNOWN_OFFSET
    """The destination's log end offset, as of the last acknowledged write."""
    records: int = 0
    bytes: int = 0
    lag_ms: int | None = None
    """See `PartitionStatus.lag_ms`."""
    source_time_ms: int | None = None
    """Time of the last contact with the source, in milliseconds since 1970."""
    filled: tuple[int, ...] = NOTHING_FILLED
    """Offsets that were filled, by `Absence`."""
    gap_ms: int = 0
    """Milliseconds for which it has waited for an answer that a gap needs."""
    epoch: LeaderEpoch = UNKNOWN_EPOCH
    """The source's leader epoch of the last mirrored record."""
    proved_end: Offset = UNKNOWN_OFFSET
    """The destination's offset up to which this owner knows that the log is the mirror's."""
    differs: bool = False
    """Whether the log is known to differ from the source's behind `proved_end`."""
    losses: RecordLosses = NO_LOSSES
    """What the destination has lost of a flow's records."""
    source_losses: RecordLosses = NO_LOSSES
    """What the source has lost of a flow's records before they were copied."""


class Sealing(NamedTuple):
    """A partition to seal, and what is known about what was written to it.

    `topic_id` is None if it is not stored. `last.producers` has each `SharedWriters.id` that the
    partition was written under. `offsets_topic_id` and `lost_topic_ids`: see `MirrorTopic`.
    `begun`: whether this owner has begun the stop, so that no former owner has sealed the partition
    for it.
    """

    destination: TopicPartition
    topic_id: UUID | None
    last: LastMirrored
    offsets_topic_id: UUID | None = None
    begun: bool = False
    lost_topic_ids: tuple[UUID, ...] = ()


NOTHING_COPIED: Final = "nothing was copied to this topic"
"""The reason of a sealed partition of a flow that has begun nothing. It is stored with the state,
and earlier versions have stored the same text: it is not to be changed (flow_handback.py)."""


class Sealed(NamedTuple):
    """Where the mirrored data of a sealed partition ends, and what an operator has to know."""

    end: Offset
    reason: str | None = None


class BrokerTraffic(NamedTuple):
    """Fetches from one source broker since the engine began (`FetcherStatus`)."""

    broker: int
    requests: int
    bytes: int
    errors: int


class ThrottledReads(NamedTuple):
    """Bytes of throttled partitions since the engine began, and whether it would read more."""

    bytes: int
    held_back: bool


class Beginnings(Protocol):
    """Which partitions of a state partition have begun, as `__mirror_state` stores it.

    What an engine has recorded of a partition may be lost. Then this shows that it is lost, and not
    that nothing was copied: it is stored elsewhere, after the record and before the first write.
    """

    def has_begun(self, name: MirrorPartition) -> bool | None:
        """Whether anything may have been written; None: not known, as of an earlier version."""
        ...

    async def store(self, names: Collection[MirrorPartition]) -> None:
        """Store that these have begun; on return it is stored.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: it is unknown whether it was stored; call it again.
        """
        ...


class SharedWriters(Protocol):
    """The identities under which one kind of engine writes in one state partition."""

    @property
    def id(self) -> int:
        """Stored with each partition before anything is written to it, for later owners."""
        ...

    @property
    def must_be_taken_over(self) -> bool:
        """Whether it cannot seal any more what it has written, without another takeover."""
        ...

    async def open(self, beginnings: Beginnings) -> None:
        """Prepare to write, without fencing a former owner's data; called before its first use.

        Args:
            beginnings: of the state partition.

        Raises:
            Fenced: the lane may not write any more.
            Retriable: not now; call it again.
        """
        ...

    async def close(self) -> None:
        """End all background work."""
        ...

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """Take what is known of these (mirror, topic) for outdated: the mirror was deleted."""
        ...

    async def seal(
        self, partitions: Mapping[MirrorPartition, Sealing]
    ) -> Mapping[MirrorPartition, Sealed | Refusal]:
        """Make sure that no earlier write can land in these partitions any more.

        The caller has stopped them, and the leases of former owners have ended.

        Returns:
            A refusal where the user has to act. A partition that is left out is not sealed yet:
            call again.

        Raises:
            Fenced: the state partition has another owner.
            Retriable: not possible now; call again.
            UserError: a right is missing.
        """
        ...


class Engine(Protocol):
    """Moves the partitions of one mirror within one lane."""

    @property
    def names(self) -> Collection[MirrorPartition]:
        """The partitions that it moves."""
        ...

    @property
    def throttle(self) -> Throttle:
        """The limit that `limit` has set."""
        ...

    async def run(self) -> None:
        """Move partitions until cancelled; an engine runs once.

        Raises:
            Fenced: the lane may not write any more.
            TwinlogError: the source cannot be used.
        """
        ...

    def start(
        self, writers: SharedWriters, assignments: Collection[Assignment], *, lease_s: float
    ) -> None:
        """Move these partitions, too; those that it moves already are left as they are.

        Args:
            writers: of their state partition, opened.
            assignments: the partitions.
            lease_s: how long a former owner might still write; 0 if there was none.
        """
        ...

    async def stop(self, names: Collection[MirrorPartition]) -> None:
        """Move these partitions no more; on return nothing is in flight for them.

        What the engine records of them is complete then, if that can be stored within seconds. It
        need not be: a stop does not fail, and whoever moves them next finds out what has landed.
        """
        ...

    def fail_all(self, reason: str) -> None:
        """Report each partition, also those that are started later, as FAILED."""
        ...

    def take_news(self) -> set[int]:
        """The state partitions whose rows may have changed since the last call."""
        ...

    def progress(self, state_partitions: Collection[int] | None = None) -> list[PartitionProgress]:
        """The rows of all partitions of these state partitions; None: of all partitions."""
        ...

    def limit(self, throttle: Throttle, *, lanes: int, log_start_delay_s: float) -> None:
        """Set the mirror's limits.

        The throttle's rate is for `lanes` lanes together. Each lane takes an equal share, until
        `set_rate` is called. `log_start_delay_s`: `mirror.log.start.delay.ms`, in seconds.
        """
        ...

    def configure(self, properties: Mapping[str, str]) -> None:
        """Take the mirror's properties: before its partitions are started, and repeatedly."""
        ...

    def set_rate(self, rate: float) -> None:
        """Set this lane's rate for throttled partitions, in bytes per second."""
        ...

    def take_throttled(self) -> ThrottledReads:
        """The reads of throttled partitions; `held_back` counts since the last call."""
        ...

    def traffic(self) -> Collection[BrokerTraffic]:
        """The fetches from each source broker."""
        ...


Observer = Callable[[Engine, PartitionProgress], None]
"""Called at each change of a partition's state or reason."""


class EnginesOfKind(Protocol):
    """The engines of one kind in one lane."""

    def writers(self, state_partition: int) -> SharedWriters:
        """The identities for a state partition that the lane owns now; not opened yet."""
        ...

    def engine(self, mirror: str, source: KafkaCluster | None, observe: Observer) -> Engine:
        """An engine for a mirror; without a source, an engine that only reports a failure."""
        ...

    async def refresh(self) -> None:
        """Read again what has to be known about the destination's brokers.

        Called before new partitions are started, and periodically.

        Raises:
            TwinlogError: it cannot be read now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneContext:
    """What a lane gives to its engines."""

    destination: KafkaCluster
    settings: LaneSettings
    id_prefix: str
    """Transactional ids begin with it; the lanes' group id."""
    may_write: Callable[[], bool]
    """Whether the lane's lease lasts; asked before each request that writes."""
    confirm_ownership: Callable[[], Awaitable[None]]
    """Returns when no other lane is known to have owned a partition of this lane when it was
    called; it waits as long as that takes."""
    random: Random
    """For jitter."""
    dataframes: DataFrames | None = None
    """Applies transforms by Spark; None: this process cannot."""


class MirrorKind(Protocol):
    """A kind of mirror."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The engines of this kind in a lane."""
        ...

    async def translation(
        self,
        destination: KafkaCluster,
        topics: Collection[MirrorTopic],
        properties: Mapping[str, str],
    ) -> Translation:
        """Where the partitions and offsets of these topics are on the destination.

        Args:
            destination: the mirror's cluster.
            topics: topics of one mirror.
            properties: the mirror's.

        Raises:
            TwinlogError: it cannot be read now.
        """
        ...
