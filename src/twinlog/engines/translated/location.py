"""What is asked when partitions of a flow are located, and what is answered (writers.py)."""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.engines.base import Sealing
from twinlog.engines.translated.last_numbers import LastNumbers
from twinlog.engines.translated.surviving_copies import MapWithoutLoss
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_records import LostCopies, MapTail, Route, StoredPlan

_NOTHING_COPIED: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class ToLocate:
    """A partition to locate.

    `begin`: where a flow that has copied nothing begins; None: it is only fenced then.
    `source_topic_id`: None if it does not matter.
    """

    destination: TopicPartition
    begin: Offset | None
    owned_before: bool
    source_topic_id: UUID | None = None
    topic_id: UUID | None = None
    """Of the destination's topic."""
    copied_to: Offset = _NOTHING_COPIED
    """The source's offset up to which another program has copied all."""
    offsets_topic_id: UUID | None = None
    """Of `__mirror_offsets` when the partition was added; None if it was not known."""
    lost_topic_ids: tuple[UUID, ...] = ()
    """Of the destination's former topics, with whose loss it goes on."""

    def follows(self, route: Route) -> bool:
        """Whether a plan of this route goes on: neither topic was recreated or replaced."""
        ids_known = self.source_topic_id in {None, route.source_topic_id}
        same = self.topic_id is None or route.topic_id in {None, self.topic_id}
        return ids_known and same and route.topic == self.destination.topic

    def goes_on(self, route: Route) -> bool:
        """Whether it goes on behind a plan of this route, with its copies or with their loss."""
        return self.follows(route) or self.outlives(route)

    def outlives(self, route: Route) -> bool:
        """Whether it goes on behind a plan of this route, whose remote topic was recreated."""
        present = route._replace(topic_id=self.topic_id)
        is_lost = route.topic_id in self.lost_topic_ids and not self.follows(route)
        return is_lost and self.follows(present)


class Landing(NamedTuple):
    """What is stored of a partition that was located, and where it goes on."""

    chunks: list[MapChunk]
    """The last parts of its map."""
    position: Offset
    """The next source offset."""
    tail: MapTail | None = None
    lost: LostCopies | None = None
    """Copies that the destination was found to have lost."""
    passed: MapWithoutLoss | None = None
    """The map without these, if it goes on."""


def begun_anew(
    name: MirrorPartition, start: Offset, fence: Offset, lost: LostCopies | None = None
) -> Landing:
    """A partition whose map begins behind its fence, at an offset of the source."""
    chunk = MapChunk(name, 0, Ends(start, Offset(fence + 1)), ())
    return Landing([chunk], start, lost=lost)


def slot_of(
    name: MirrorPartition,
    key: TopicPartition,
    plans: Mapping[MirrorPartition, StoredPlan],
    used: Collection[int],
) -> int:
    """Which producer id a partition is written under: one for each that shares a partition.

    Of two with the same sequence numbers the broker would take one.

    Args:
        name: the partition.
        key: the destination's partition.
        plans: all that are stored.
        used: the slots of others with the same destination that have none stored.
    """
    stored = plans.get(name)
    if stored is not None and stored.route.topic == key.topic:
        return stored.route.slot
    taken = {
        one.route.slot
        for other, one in plans.items()
        if (one.route.topic, other.partition) == key and other != name
    }
    return next(slot for slot in itertools.count() if slot not in {*taken, *used})


def to_seal(name: MirrorPartition, sealing: Sealing, stored: StoredPlan | None) -> ToLocate:
    """A partition that is only fenced.

    Args:
        name: the partition.
        sealing: what the lane knows of it.
        stored: its plan.
    """
    key = sealing.destination
    if sealing.topic_id is None and stored is not None:  # the topic's record may be gone
        key = TopicPartition(stored.route.topic, name.partition)
    return ToLocate(
        key,
        None,
        owned_before=True,
        topic_id=sealing.topic_id,
        offsets_topic_id=sealing.offsets_topic_id,
        lost_topic_ids=sealing.lost_topic_ids,
    )


@dataclass(frozen=True, slots=True)
class NotLocated:
    """Why the position of a partition is not known. `transient`: whether it may be known later."""

    reason: str
    transient: bool = True
    fence: Offset | None = None
    """The fence, if it is in the log."""


class FencedPartitions(NamedTuple):
    """Partitions whose earlier epochs are excluded, by the destination's partition.

    `ends` are those before the fences. Those with troubles are in `troubles` only, and those whose
    log is shorter than what was copied in `shorter`.
    """

    epoch: tuple[ProducerId, ProducerEpoch]
    ends: Mapping[TopicPartition, int]
    fences: Mapping[TopicPartition, Offset]
    numbers: LastNumbers
    troubles: Mapping[TopicPartition, str]
    shorter: Mapping[TopicPartition, str]
