"""Twin of twinlog.mirror.sequence_plan; whole lives are in engines/translated/test_sequence.py."""

import pytest

from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.sequence_plan import (
    NOTHING,
    Contradiction,
    Landed,
    SequencePlan,
    Taken,
    resolve,
)

PLAN = SequencePlan(
    ProducerId(7),
    ProducerEpoch(3),
    Sequence((1 << 31) - 2),
    ((Offset(10), Offset(13)), (Offset(14), Offset(20))),
    Ends(Offset(10), Offset(50)),
)


def _landed(sequence: int, count: int, offset: int) -> Landed:
    return Landed(Sequence(sequence % (1 << 31)), count, Offset(offset))


WHOLE = Offset(50)
"""The recorded end: the log lacks nothing."""


def _taken(last: int, log_end: int = 90) -> Taken:
    return Taken(Sequence(last), Offset(log_end))


def test_sequence_numbers_wrap() -> None:
    found = resolve(PLAN, [_landed(-2, 3, 60), _landed(1, 2, 70)], whole_from=WHOLE)
    assert found == ((((10, 60, 3)), ((14, 70, 2))), 16)


def test_without_a_batch_in_the_log_the_recorded_end_is_the_position() -> None:
    assert resolve(PLAN, [], whole_from=WHOLE) == ((), 10)


@pytest.mark.parametrize(
    ("landed", "reason"),
    [
        ([_landed(-1, 2, 60)], "has sequence 2147483647, expected 2147483646"),
        ([_landed(-2, 3, 60), _landed(2, 2, 70)], "has sequence 2, expected 1"),
        ([_landed(-2, 3, 60), _landed(1, 7, 70)], "no stored plan names"),
    ],
)
def test_batches_that_the_plan_does_not_explain(landed: list[Landed], reason: str) -> None:
    with pytest.raises(Contradiction, match=reason):
        resolve(PLAN, landed, whole_from=WHOLE)


def test_a_log_that_has_lost_batches() -> None:
    """Those that are left say how many records were before them; without any, nothing is known."""
    landed = [_landed(0, 1, 70), _landed(3, 2, 75)]
    shorter = PLAN._replace(runs=(PLAN.runs[0], (Offset(14), Offset(18))))
    found = resolve(shorter, landed, whole_from=Offset(80))
    assert found == (((12, 70, 1), (16, 75, 2)), 18)
    for left in ([], landed[:1]):  # what has landed behind it may be gone
        with pytest.raises(Contradiction, match="is not known"):
            resolve(PLAN, left, whole_from=Offset(75))
    assert resolve(PLAN._replace(runs=()), [], whole_from=Offset(75)) == ((), 10)


def test_what_follows_the_last_hole_shows_what_has_landed() -> None:
    """Goal: a partition is not FAILED because others' records were compacted in front of its own.

    A batch that is missing behind the hole would be an acknowledged loss.
    """
    found = resolve(PLAN, [_landed(0, 1, 70)], whole_from=Offset(70))
    assert found == (((12, 70, 1),), 13)
    found = resolve(PLAN, [_landed(0, 1, 70), _landed(1, 2, 73)], whole_from=Offset(71))
    assert found == (((12, 70, 1), (14, 73, 2)), 16)
    with pytest.raises(Contradiction, match="has sequence 2, expected 1"):
        resolve(PLAN, [_landed(0, 1, 70), _landed(2, 2, 73)], whole_from=Offset(71))
    with pytest.raises(Contradiction, match="up to 4, and the log ends with 0"):
        resolve(PLAN, [_landed(0, 1, 70)], whole_from=Offset(71), taken=_taken(4))


def test_the_broker_remembers_more_than_the_log_holds() -> None:
    """Goal: what was compacted away has landed, and is not copied again."""
    hole = Offset(80)
    assert resolve(PLAN, [], whole_from=hole, taken=_taken(4)) == ((), 18)
    landed = [_landed(0, 2, 70)]
    found = resolve(PLAN, landed, whole_from=hole, taken=_taken(4))
    assert found == (((12, 70, 1), (14, 71, 1)), 18)
    with pytest.raises(Contradiction, match="up to 4, and the log ends with 1"):
        resolve(PLAN, [_landed(-2, 4, 60)], whole_from=WHOLE, taken=_taken(4))


def test_a_number_says_nothing_of_what_was_taken_later_and_is_gone() -> None:
    """Goal: records are not copied again that have landed after the broker was asked."""
    with pytest.raises(Contradiction, match="is not known"):
        resolve(PLAN, [], whole_from=Offset(80), taken=_taken(4, log_end=79))
    assert resolve(PLAN, [], whole_from=Offset(79), taken=_taken(4, log_end=79)) == ((), 18)


def test_a_number_that_ends_the_plan_shows_all_of_it() -> None:
    """Goal: a partition is not FAILED where nothing is left that could have landed later."""
    late = Offset(80)
    found = resolve(PLAN, [], whole_from=late, taken=_taken(6, log_end=79))
    assert found == ((), 20)
    found = resolve(PLAN, [_landed(0, 2, 70)], whole_from=late, taken=_taken(6, log_end=79))
    assert found == (((12, 70, 1), (14, 71, 1)), 20)
    for last in (5, 7):
        with pytest.raises(Contradiction, match="is not known"):
            resolve(PLAN, [], whole_from=late, taken=_taken(last, log_end=79))


def test_a_broker_that_knows_of_no_batch_of_the_epoch() -> None:
    """Goal: nothing has landed; but if some was acknowledged, the log has lost it."""
    first = PLAN._replace(sequence=Sequence(0))
    for whole_from in (WHOLE, Offset(80)):
        taken = _taken(NOTHING)
        assert resolve(first, [], whole_from=whole_from, taken=taken) == ((), 10)
        later = PLAN._replace(sequence=Sequence(5))
        with pytest.raises(Contradiction, match="numbers up to 4 were acknowledged"):
            resolve(later, [], whole_from=whole_from, taken=taken)


def test_batches_may_land_after_the_broker_was_asked() -> None:
    landed = [_landed(-2, 3, 60), _landed(1, 2, 70)]
    found = resolve(PLAN, landed, whole_from=WHOLE, taken=_taken(0))
    assert found == (((10, 60, 3), (14, 70, 2)), 16)
