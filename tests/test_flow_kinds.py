"""What readers with read_uncommitted see of a flow: each error in it is found."""

import pytest
from flow_kinds import FUNCTION, QUERY, Copied, Placed, aborted


def record(number: int, value: bytes = b"v") -> Copied:
    return b"k", value, (1, 1000 + number), [("number", b"%d" % number)]


COMMITTED: Placed = [(3, record(1)), (4, record(2)), (9, record(3))]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ([], 0),
        ([(0, record(1)), (1, record(2))], 2),
        ([(0, record(1)), (1, record(1)), (6, record(3)), (7, record(3))], 4),
    ],
)
def test_copies_before_the_committed_one_are_counted(more: Placed, count: int) -> None:
    assert aborted(COMMITTED, sorted([*COMMITTED, *more], key=lambda one: one[0])) == count


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ([*COMMITTED, (11, record(2))], "a copy at 11 follows the committed one at 4"),
        ([(0, record(4)), *COMMITTED], "at 0 is the copy of no record"),
        ([(0, record(1, b"w")), *COMMITTED], "at 0 is the copy of no record"),
        ([(3, record(1, b"w")), *COMMITTED[1:]], "another record is committed at 3"),
        (COMMITTED[1:], r"not seen: \[3\]"),
    ],
)
def test_each_error_is_found(seen: Placed, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        aborted(COMMITTED, seen)


def test_records_that_are_alike_prove_nothing() -> None:
    with pytest.raises(AssertionError, match="not unique"):
        aborted([(0, record(1)), (1, record(1))], [])


def test_a_copy_names_its_place() -> None:
    """Goal: no two records of a partition have the same copy, whatever their values are."""
    for value in (b"{}", None):
        assert len({QUERY.changed("a.t-0", offset, value) for offset in range(50)}) == 50


def test_the_function_drops_single_records_and_whole_runs() -> None:
    """Goal: the same runs whatever the values are, so that a micro-batch may have no result."""
    values = [b"%d" % number for number in range(400)]
    dropped = [at for at, value in enumerate(values) if not FUNCTION.kept(at, value)]
    runs = {at for at in range(400) if at // 10 % 4 == 0}
    assert runs < set(dropped)
    assert 200 < len(dropped) < 300
    assert not FUNCTION.kept(11, None)
    assert not FUNCTION.kept(11, b"")
