"""The positions that a transactional flow commits, and what becomes of them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from twinlog.engines.transactional.positions import position_group, position_metadata
from twinlog.engines.transactional.remote_tails import LandedBatches, RemoteTail
from twinlog.engines.transactional.routed_tails import RoutedTails
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests.transactions import TransactionOffset
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import SourceRun
from twinlog.store.offset_records import BegunPartition, Route


@dataclass(frozen=True, slots=True)
class ToBegin:
    """A partition to locate: between which topics it is copied, and where it would begin."""

    route: Route
    begin: Offset
    copied_to: Offset | None = None
    """Where another program has copied to, as it was taken over."""
    begun_in: UUID | None = None
    """The id of the `__mirror_offsets` in which a former owner may have recorded that it has begun;
    None if it had none, or the id is not known."""
    lost_topic_ids: Collection[UUID] = ()
    """See `MirrorTopic`."""
    source_start: Offset = field(default=Offset(0))
    """The source's log start offset."""

    def again(self) -> "ToBegin":
        """The same, once all of its copies are lost: behind what another program has copied.

        A flow that begins at the end may have copied what is in front of `followed_from`: that may
        be stored later, and the flow may have had another setting before.
        """
        return replace(self, begin=Offset(max(self.source_start, self.copied_to or 0)))

    def is_lost(self, begun: BegunPartition | None) -> bool:
        """Whether it has begun in a former remote topic, in which all copies are lost."""
        return (
            begun is not None
            and begun.route.topic_id in self.lost_topic_ids
            and begun.route.source_topic_id == self.route.source_topic_id
        )


class Copies(NamedTuple):
    """The copies of a partition in its remote partition that a transaction writes."""

    start: Offset
    """The position before it."""
    sources: Sequence[SourceRun]
    """The source's offsets of these records, in order."""
    first: int
    """Which of the transaction's batches of the remote partition is the first one with them."""
    batches: int
    """How many batches these are."""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A position to commit: of the remote partition, in the source's offsets."""

    remote: TopicPartition
    route: Route
    offset: Offset
    epoch: LeaderEpoch
    copied_to: Offset | None
    fence: int
    """The number of the fence behind which the partition was located."""
    tail: RemoteTail | None = None
    """Of the remote partition; None: nothing was copied, or it is not known."""
    routed: RoutedTails = ()
    """Of other logs that have records of it."""
    routed_to: Collection[TopicPartition] = ()
    """Other logs that get records of it in this transaction."""
    lost: TopicPartition | None = None
    """Where the target is known to have lost records that were copied."""
    copies: Copies | None = None
    """None: no map is recorded."""

    def begun(self, name: MirrorPartition) -> BegunPartition:
        """The record that the partition of this name has begun."""
        return BegunPartition(name, self.route, self.copied_to)

    def committed(self) -> TransactionOffset:
        """What the group's offset is."""
        metadata = position_metadata(
            self.route, self.copied_to, self.tail, routed=self.routed, lost=self.lost
        )
        return TransactionOffset(self.offset, self.epoch, metadata)


def behind(
    position: SourcePosition, landed: LandedBatches | None, recorded_in: UUID | None
) -> SourcePosition:
    """A position with the tail behind what has landed in its remote partition.

    Args:
        position: the position.
        landed: None: nothing.
        recorded_in: see `RemoteTail`.

    Raises:
        Retriable: the log has become shorter. Located again, the partition is FAILED.
    """
    if landed is None:
        return position
    # At the tail's end the marker that committed it is missing. The commit of this transaction
    # writes one for both, while a refusal would abort both.
    if position.tail is not None and landed.start < position.tail.end:
        raise Retriable(
            f"the destination has lost records: a batch landed at {landed.start} of "
            f"{position.remote}, which had been written up to {position.tail.end}"
        )
    return replace(position, tail=landed.tail._replace(recorded_in=recorded_in))


def by_group(
    id_prefix: str, positions: Mapping[MirrorPartition, SourcePosition]
) -> dict[str, dict[TopicPartition, TransactionOffset]]:
    """What is committed of these positions, by group and remote partition.

    Args:
        id_prefix: of the lanes' transactional ids (`LaneContext.id_prefix`).
        positions: of flows.
    """
    offsets: defaultdict[str, dict[TopicPartition, TransactionOffset]] = defaultdict(dict)
    for name, position in positions.items():
        offsets[position_group(id_prefix, name.mirror)][position.remote] = position.committed()
    return offsets
