"""Twin of twinlog.engines.source.jumps: skipped offsets are accepted if two answers skip them."""

from batch_builders import batch, holed, record
from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.source.jumps import Jump, believe
from twinlog.kafka.log.batch import CONTROL, TRANSACTIONAL
from twinlog.kafka.types import Offset
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Data, Gap, Piece, plan


def jump(start: int, end: int) -> Jump:
    return Jump(Offset(start), Offset(end))


def marker(offset: int) -> bytes:
    key = bytes((0, 0, 0, 1))
    return batch([record(offset, key=key)], attributes=CONTROL | TRANSACTIONAL, producer_id=7)


def planned(*batches: bytes, position: int = 0) -> list[Piece]:
    return plan(memoryview(b"".join(batches)), Offset(position))


LOG = (
    batch([record(0), record(1)]),
    marker(2),
    batch([record(6)]),
    holed(7, 10, [(7, 1), (10, 1)]),
)


def test_the_first_answer_is_accepted_up_to_its_first_skip() -> None:
    """Goal: the marker before the first skip is taken, and both skips are in doubt."""
    taken, doubted, unexplained = believe(planned(*LOG), ())
    assert [(p.start, p.end) for p in taken] == [(0, 2), (2, 3)]
    assert doubted == (jump(3, 6), jump(8, 10))
    assert unexplained == ()
    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert gap.seen
    assert list(gap.reasons(gap.end)) == [(Absence.MARKER, 1)]


def test_a_skip_that_two_answers_agree_on_is_accepted() -> None:
    """Goal: offsets that both answers skip are unexplained, and counted as such."""
    _, doubted, _ = believe(planned(*LOG), ())
    taken, left, unexplained = believe(planned(*LOG, position=3), doubted)
    assert (left, unexplained) == ((), (jump(3, 6), jump(8, 10)))
    assert taken[-1].end == 11
    counts = [list(p.reasons(p.end)) for p in taken if isinstance(p, Gap)]
    assert counts == [[(Absence.UNEXPLAINED, 3)], [(Absence.UNEXPLAINED, 2)]]


def test_records_in_the_second_answer_replace_a_skip_of_the_first() -> None:
    """Goal: only the first answer had the skip: nothing is lost."""
    _, doubted, _ = believe(planned(*LOG), ())
    whole = (batch([record(at) for at in range(3, 6)]), *LOG[2:])
    taken, _, unexplained = believe(planned(*whole, position=3), doubted)
    assert isinstance(taken[0], Data)
    assert unexplained == (jump(8, 10),)


def test_a_skip_that_has_grown_is_in_doubt_again() -> None:
    """Goal: only exactly the same skip is accepted."""
    taken, doubted, _ = believe(planned(*LOG[2:], position=3), (jump(3, 5),))
    assert (taken, doubted[0]) == ([], jump(3, 6))


class Listed(list[Jump]):
    """Jumps that may be read in order only."""

    def __contains__(self, _: object) -> bool:
        raise AssertionError("all jumps are searched for one")


def test_thousands_of_skips_are_compared_in_linear_time() -> None:
    """Goal: each skip is looked up, and not searched among all of the answer before."""
    pieces = planned(*(marker(at) for at in range(0, 4000, 2)))
    taken, doubted, _ = believe(pieces, ())
    taken, left, unexplained = believe(
        planned(*(marker(at) for at in range(0, 4000, 2))), Listed(doubted)
    )
    assert (len(unexplained), left, taken[-1].end) == (1999, (), 3999)


@given(st.lists(st.sampled_from(["data", "marker", "skip"]), max_size=12))
def test_every_offset_is_accepted_exactly_once_and_in_order(kinds: list[str]) -> None:
    """Goal: over many answers, all is taken in order; skips only when seen before."""
    made: list[bytes] = []
    for end, kind in enumerate(kinds):
        if kind == "data":
            made.append(batch([record(end)]))
        elif kind == "marker":
            made.append(marker(end))
    covered = planned(*made)[-1].end if made else 0
    position, answers = 0, 0
    doubted: tuple[Jump, ...] = ()
    while position < covered:
        pieces = planned(*made, position=position)
        before = doubted
        taken, doubted, unexplained = believe(pieces, before)
        assert set(unexplained) <= set(before)
        for piece in taken:
            assert piece.start == position
            position = piece.end
        answers += 1
        assert answers <= 2
