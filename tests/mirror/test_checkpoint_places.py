"""Twin of twinlog.mirror.checkpoint_places."""

import pytest

from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.checkpoint_places import CheckpointProof, proof_of
from twinlog.mirror.mm2_records import Checkpoint
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.recorded_map import RecordedMap

SAME, GROWN, NONE = CheckpointProof
REMOTE = TopicPartition("A.orders", 0)


def checkpoint(upstream: int, downstream: int) -> Checkpoint:
    return Checkpoint(
        group="g", partition=REMOTE, upstream_offset=upstream, downstream_offset=downstream
    )


def offset_map() -> RecordedMap:
    """The map of the module: source 10 to 13 at 52 to 55, 14 to 16 at 59 to 61.

    The map begins at source offset 10, two offsets in front of its first record.
    """
    runs = OffsetRuns(Ends(Offset(10), Offset(50)))
    runs.append(Run(Offset(10), Offset(52), 4))
    runs.append(Run(Offset(14), Offset(59), 3))
    return RecordedMap(runs, Offset(18), pending=False)


@pytest.mark.parametrize(
    ("upstream", "downstream", "expected"),
    [
        (10, 52, SAME),
        (12, 54, SAME),
        (14, 59, SAME),
        (17, 62, SAME),  # behind the last record, where the next one follows
        (14, 56, GROWN),  # the map ended behind 13
        (15, 56, GROWN),
        (16, 54, GROWN),
        (19, 62, GROWN),  # behind all that is copied
        (19, 56, GROWN),
        (12, 55, NONE),  # the group would skip a record
        (14, 60, NONE),
        (15, 58, NONE),  # no map has ended among records of others
        (15, 57, NONE),
        (17, 63, NONE),
        (19, 63, NONE),  # behind all that the map has
        (12, 50, NONE),  # of a former map, where this one begins
        (12, 51, NONE),
        (12, 7, NONE),
        (12, 0, NONE),
        (9, 50, NONE),  # below the map
        (9, 54, NONE),
        (10, 50, NONE),
    ],
)
def test_a_checkpoint_counts_if_the_map_had_given_it(
    upstream: int, downstream: int, expected: CheckpointProof
) -> None:
    assert proof_of(checkpoint(upstream, downstream), offset_map()) is expected


def test_each_checkpoint_that_a_growing_map_gives_is_one_of_it() -> None:
    """Goal: whatever was copied when it was written, and whatever is copied since."""
    steps = [Run(Offset(at), Offset(50 + at + at // 3), 1) for at in range(10, 25)]
    for known in range(1, len(steps)):
        earlier = OffsetRuns(Ends(Offset(10), Offset(50)))
        for run in steps[:known]:
            earlier.append(run)
        for grown in range(known, len(steps) + 1):
            later = OffsetRuns(Ends(Offset(10), Offset(50)))
            for run in steps[:grown]:
                later.append(run)
            whole = RecordedMap(later, later.end.source, pending=False)
            for upstream in range(10, 27):
                given = checkpoint(upstream, earlier.to_destination(upstream))
                found = proof_of(given, whole)
                place = whole.to_destination(upstream).offset
                same = place == given.downstream_offset
                assert found is (SAME if same else GROWN), (
                    given,
                    grown,
                )
