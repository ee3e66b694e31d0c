"""Whether a checkpoint is about the records that a recorded map is about.

A checkpoint has an offset of the source (*upstream*), which the group has committed there, and one
of the destination (*downstream*), where the map had it when the checkpoint was written:

    the map                              checkpoint  it was written
    -----------------------------------  ----------  -------------------------------
    source       10 11 12 13 14 15 16    (12, 54)    when 12 was copied, or later
    destination  52 53 54 55 59 60 61    (15, 56)    when only 10 to 13 were copied

The map only grows, so a checkpoint of the same map is one of these two: it has the place that the
map gives (SAME), or the end that the map had before the group's record was copied (GROWN). Then the
map has the place of the group's next record, and the downstream offset is in front of it.

Any other one was written by the map of another topic, or of a former copy. Nothing removes it: a
group of a topic that was deleted keeps its checkpoint, whose upstream offset is about records that
the map does not have.

The numbers alone do not show that a checkpoint is of this map: where both topics were deleted and
recreated, the former map may have had the same places. operations/checkpoint_offsets.py leaves out
checkpoints that may be about a former topic.
"""

from enum import Enum, auto

from twinlog.mirror.mm2_records import Checkpoint
from twinlog.mirror.recorded_map import MapAnswer, RecordedMap


class CheckpointProof(Enum):
    """How a map shows that a checkpoint is about its records."""

    SAME = auto()
    """The map has the upstream offset at the downstream offset."""
    GROWN = auto()
    """It ended at the downstream offset, in front of what has the upstream offset now."""
    NONE = auto()
    """The checkpoint may be about other records than the map."""


def proof_of(checkpoint: Checkpoint, offset_map: RecordedMap) -> CheckpointProof:
    """Whether a checkpoint is about the records of the map of its partition, which was read later.

    Args:
        checkpoint: of a group in the remote partition.
        offset_map: of the only source partition that is copied there.

    Raises:
        ProtocolError: the part of the map that is needed is damaged.
    """
    upstream, downstream = checkpoint.upstream_offset, checkpoint.downstream_offset
    place = offset_map.to_destination(upstream).offset
    if place == downstream:
        return CheckpointProof.SAME
    begin = offset_map.runs.start.destination
    if downstream <= begin or (place is not None and downstream >= place):
        return CheckpointProof.NONE
    last = offset_map.to_source(downstream - 1)
    was_end = last.answer is MapAnswer.RECORD and last.offset is not None and last.offset < upstream
    return CheckpointProof.GROWN if was_end else CheckpointProof.NONE
