"""What the recorded map of a partition proves about an offset, and what it does not.

`OffsetRuns` (offset_runs.py) always has a number. Here an offset is exact, or it is not given:

    source       0 .. 9        10 11 12    13    14 15     16 ..
    destination  (not copied)  52 53 54  (none)  55 56     (not recorded)
                 BEFORE_START  RECORD     NEXT   RECORD    END, then NOT_COPIED

An offset is a position, too: a group that has committed it reads the record there next, or the one
that follows. `offset` is then the position on the other side from which the same records are left
to read, so it is exact also where no record is: before the next copied record (NEXT), or behind the
last one (END).

Behind the last recorded run there are two more facts. `position` is the source's offset below which
everything was copied or has no copy. `pending` is whether a stored plan names records that are not
in the map: nothing is sent that no plan names (decision 0014). So without a pending plan, nothing
that was copied before the map was read is missing in it.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import OffsetRuns

NONE_UNPROVEN: Final = Offset(0)
"""See `RecordedMap.unproven_end`."""


class MapAnswer(Enum):
    """What is known of an offset; a map gives the first five."""

    RECORD = auto()
    """A record that was copied has this offset."""
    NEXT = auto()
    """No copied record has it; the next one that was copied is known."""
    END = auto()
    """Everything before it was copied, and nothing that is copied already follows."""
    NOT_COPIED = auto()
    """It is behind the map: not copied yet, or not recorded yet."""
    BEFORE_START = auto()
    """It is below the offset at which the flow began."""
    NO_MAP = auto()
    """Nothing of the partition was copied yet."""
    NOT_IN_FLOW = auto()
    """The flow does not copy the partition, or nothing to it."""
    NO_RECORD = auto()
    """There is no record with this timestamp or a later one."""
    BEHIND_LOG = auto()
    """It is behind the end of the target's log."""
    LOST = auto()
    """The target is known to have lost records: others may be where the map has these."""
    RECREATED = auto()
    """The topic was deleted or recreated on one side: its offsets are others now."""
    UNREADABLE = auto()
    """A cluster refuses to answer."""
    UNPROVEN = auto()
    """A group's checkpoint has it, and may be about other records, or was not written again; or the
    partition is FAILED, and the source may have other records than those that were copied."""
    STALE = auto()
    """A group's checkpoint has it, and is so old that the group may have another offset since."""


class OffsetAnswer(NamedTuple):
    """Where an offset is on the other side."""

    answer: MapAnswer
    offset: Offset | None
    """The position on the other side; None if it is not known."""
    limit: Offset
    """NEXT: the offset, on the side of the question, of the next copied record. BEFORE_START: that
    at which the map begins. END and NOT_COPIED: that at which it ends. Otherwise the offset."""


@dataclass(frozen=True, slots=True)
class RecordedMap:
    """The map of one partition, as it was read together with its plan (see the module)."""

    runs: OffsetRuns
    position: Offset
    pending: bool
    lacks_start: bool = False
    """Whether more was copied below, and where to is not known: parts of the map are lost, or
    another program has copied it."""
    lost: bool = False
    """Whether the destination is known to have lost records: others may be at their offsets."""
    lost_sources: tuple[tuple[Offset, Offset], ...] = ()
    """Offsets `[start, end)` of the source whose copies are lost; the map goes on behind them."""
    lost_places: tuple[tuple[Offset, Offset], ...] = ()
    """Where these copies were: up to where new ones follow, or further, behind the end of those
    that are lost. A position there may be of before the loss, or of after it."""
    follows_another: bool = False
    """Whether a former map may have been given up for it: offsets that it gave may be too high."""
    unproven_end: Offset = NONE_UNPROVEN
    """What was copied of the source's offsets below it may be lost: the map has begun anew, or a
    loss reaches down to its beginning. 0: none."""

    def has_lost(self, offset: int) -> bool:
        """Whether the destination has lost the copy of this offset of the source."""
        return any(start <= offset < end for start, end in self.lost_sources)

    @property
    def front_end(self) -> Offset:
        """The source's offset below which copies are whose place is not known; 0: there are none.

        Copies that are known to be lost are none of them.
        """
        firsts = [self.runs.start.source, *(start for start, _ in self.lost_sources)]
        return min(firsts) if self.lacks_start else Offset(0)

    def may_precede_loss(self, offset: int) -> bool:
        """Whether a position on the destination may be of before copies there were lost.

        Its reader has read other records then than those that the map has below it.
        """
        return any(start <= offset < end for start, end in self.lost_places)

    def to_destination(self, offset: int) -> OffsetAnswer:
        """Where the destination has this offset of the source.

        Args:
            offset: on the source, 0 or more.

        Raises:
            ProtocolError: the part of the map that has it is damaged.
        """
        start, end = self.runs.start, self.runs.end
        if offset < start.source:
            return OffsetAnswer(MapAnswer.BEFORE_START, None, start.source)
        run = self.runs.at_source(offset)
        if run is not None:
            is_record = run.source <= offset
            answer = MapAnswer.RECORD if is_record else MapAnswer.NEXT
            limit = Offset(offset) if is_record else run.source
            return OffsetAnswer(answer, run.destination_of(offset), limit)
        if offset <= max(self.position, end.source):
            return OffsetAnswer(MapAnswer.END, end.destination, end.source)
        return OffsetAnswer(MapAnswer.NOT_COPIED, None, end.source)

    def to_source(self, offset: int) -> OffsetAnswer:
        """Which offset of the source this offset of the destination is, in the log as it is now.

        Of a position that may be of before a loss, see `may_precede_loss`.

        Args:
            offset: on the destination, 0 or more, and not behind the log's end when the map was
                read.

        Raises:
            ProtocolError: the part of the map that has it is damaged.
        """
        start = self.runs.start
        if offset < start.destination:
            return OffsetAnswer(MapAnswer.BEFORE_START, None, start.destination)
        run = self.runs.at_destination(offset)
        if run is not None and run.destination <= offset:
            return OffsetAnswer(MapAnswer.RECORD, run.source_of(offset), Offset(offset))
        if self.may_precede_loss(offset):
            return OffsetAnswer(MapAnswer.LOST, None, Offset(offset))
        if run is not None:
            return OffsetAnswer(MapAnswer.NEXT, run.source, run.destination)
        return self._source_end(offset)

    def _source_end(self, offset: int) -> OffsetAnswer:
        """See `to_source`: behind the last run."""
        end = self.runs.end
        if not self.pending:
            place = max(self.position, end.source)
            return OffsetAnswer(MapAnswer.END, place, end.destination)
        if offset == end.destination:
            # What is pending lands here or behind, whatever comes of it.
            return OffsetAnswer(MapAnswer.END, end.source, end.destination)
        return OffsetAnswer(MapAnswer.NOT_COPIED, None, end.destination)
