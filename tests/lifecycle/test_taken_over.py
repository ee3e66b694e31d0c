"""The lines of partitions that a flow takes over."""

import pytest

from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.lifecycle.taken_over import TakenOver, begun_behind, begun_whole
from twinlog.mirror.copied_tail import OffsetRange

ONE = TopicPartition("t", 0)


def test_what_was_recorded_is_in_the_line() -> None:
    """Goal: the operator sees where it begins, what that goes by, and what may be there twice."""
    line = str(TakenOver(ONE, Offset(0), None))
    assert line == (
        "t-0: begins at offset 0, MirrorMaker 2 has recorded nothing; no record is copied twice"
    )
    twice = OffsetRange(Offset(3), Offset(8))
    line = str(TakenOver(ONE, Offset(3), Offset(2), twice, "it is compacted"))
    assert line.endswith("offset 2; up to 5 records, [3, 8), may be copied twice: it is compacted")


def test_what_an_empty_partition_never_gets_is_in_the_line() -> None:
    """Goal: who has deleted a remote topic to copy it again sees that `recorded` does not."""
    begun = TakenOver(ONE, Offset(6), Offset(5), OffsetRange(Offset(6), Offset(9)), "unproven")
    line = str(begun_behind(begun, 2, "a.t"))
    assert line.endswith(
        "offset 5; a.t-0 is empty, and [2, 6) of the source is not copied to it, "
        "as twinlog.takeover=recorded says"
    )
    nothing = begun_behind(begun, 6, None)
    assert not nothing.warns
    assert str(nothing).endswith("no record is copied twice")


@pytest.mark.parametrize(
    ("recorded", "repeated", "reason"),
    [
        (4, None, "twinlog.takeover=recorded begins at offset 5"),
        (5, (5, 6), "twinlog.takeover=recorded begins at offset 6"),
        (99, (5, 100), "twinlog.takeover=recorded begins at offset 100"),
        (100, (5, 100), "the source's log ends at 100, so the topic was recreated, or has lost"),
    ],
)
def test_a_partition_that_is_copied_whole(
    recorded: int, repeated: tuple[int, int] | None, reason: str
) -> None:
    """Goal: only what the source still has, and was recorded, may be copied twice."""
    begun = begun_whole(
        *(ONE, LogBounds(0, 5, 100, 100), Offset(recorded), "a.t"), by_others=False, is_usual=True
    )
    assert (begun.begin, begun.recorded, begun.repeated) == (5, recorded, repeated)
    assert begun.reason.startswith("a.t-0 is empty, and ")
    assert reason in begun.reason
