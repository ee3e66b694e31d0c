"""Twin of twinlog.mirror.sequence_plan; whole lives are in engines/translated/test_sequence.py."""

import pytest

from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.sequence_plan import NOTHING, Contradiction, Landed, SequencePlan, resolve

PLAN = SequencePlan(
    ProducerId(7),
    ProducerEpoch(3),
    Sequence((1 << 31) - 2),
    ((Offset(10), Offset(13)), (Offset(14), Offset(20))),
    Ends(Offset(10), Offset(50)),
)


def _landed(sequence: int, count: int, offset: int) -> Landed:
    return Landed(Sequence(sequence % (1 << 31)), count, Offset(offset))


def test_sequence_numbers_wrap() -> None:
    found = resolve(PLAN, [_landed(-2, 3, 60), _landed(1, 2, 70)], complete=True)
    assert found == ((((10, 60, 3)), ((14, 70, 2))), 16)


def test_without_a_batch_in_the_log_the_recorded_end_is_the_position() -> None:
    assert resolve(PLAN, [], complete=True) == ((), 10)


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
        resolve(PLAN, landed, complete=True)


def test_a_log_that_has_lost_batches() -> None:
    """Those that are left say how many records were before them; without any, nothing is known."""
    landed = [_landed(0, 1, 70), _landed(3, 2, 75)]
    shorter = PLAN._replace(runs=(PLAN.runs[0], (Offset(14), Offset(18))))
    found = resolve(shorter, landed, complete=False)
    assert found == (((12, 70, 1), (16, 75, 2)), 18)
    for left in ([], landed[:1]):  # what has landed behind it may be gone
        with pytest.raises(Contradiction, match="is not known"):
            resolve(PLAN, left, complete=False)
    assert resolve(PLAN._replace(runs=()), [], complete=False) == ((), 10)


def test_the_broker_remembers_more_than_the_log_holds() -> None:
    """Goal: what was compacted away has landed, and is not copied again."""
    last = Sequence(4)
    assert resolve(PLAN, [], complete=False, last=last) == ((), 18)
    landed = [_landed(0, 2, 70)]
    found = resolve(PLAN, landed, complete=False, last=last)
    assert found == (((12, 70, 1), (14, 71, 1)), 18)
    with pytest.raises(Contradiction, match="up to 4, and the log ends with 1"):
        resolve(PLAN, [_landed(-2, 4, 60)], complete=True, last=last)


def test_a_broker_that_knows_of_no_batch_of_the_epoch() -> None:
    """Goal: nothing has landed; but if some was acknowledged, the log has lost it."""
    whole = PLAN._replace(sequence=Sequence(0))
    for complete in (True, False):
        assert resolve(whole, [], complete=complete, last=NOTHING) == ((), 10)
        later = PLAN._replace(sequence=Sequence(5))
        with pytest.raises(Contradiction, match="numbers up to 4 were acknowledged"):
            resolve(later, [], complete=complete, last=NOTHING)


def test_batches_may_land_after_the_broker_was_asked() -> None:
    landed = [_landed(-2, 3, 60), _landed(1, 2, 70)]
    found = resolve(PLAN, landed, complete=True, last=Sequence(0))
    assert found == (((10, 60, 3), (14, 70, 2)), 16)
