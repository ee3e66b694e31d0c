"""What is asked when partitions of a flow are located, and what is answered (writers.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.engines.translated.last_numbers import LastNumbers
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.store.offset_records import Route

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

    def follows(self, route: Route) -> bool:
        """Whether a plan of this route goes on: neither topic was recreated or replaced."""
        ids_known = self.source_topic_id in {None, route.source_topic_id}
        same = self.topic_id is None or route.topic_id in {None, self.topic_id}
        return ids_known and same and route.topic == self.destination.topic


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
