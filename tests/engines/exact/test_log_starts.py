"""Twin of twinlog.engines.exact.log_starts."""

from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.exact.log_starts import MAX_MOVES, LogStarts


def test_the_example_of_the_module_docstring_holds() -> None:
    starts = LogStarts()
    for start, at in ((100, 0.0), (140, 30.0), (200, 70.0)):
        starts.seen(start, at)
    assert starts.due(59.0, 60.0) is None
    assert starts.due(80.0, 60.0) == 100
    starts.followed(100)
    assert starts.due(80.0, 60.0) is None
    assert starts.due(130.0, 60.0) == 200
    starts.followed(200)
    assert not starts


def test_without_a_delay_log_starts_are_due_at_once() -> None:
    """Goal: no delay applies without a setting, and where the offsets below were never records."""
    starts = LogStarts()
    starts.seen(7, 5.0)
    starts.seen(9, 5.0)
    assert starts.due(5.0, 0.0) == 9
    assert starts.due(5.0, 60.0, at_once=7) == 7
    assert starts.due(5.0, float("inf")) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 40), st.booleans()), max_size=300),
    st.floats(1, 30),
)
def test_log_starts_are_due_after_one_delay_and_before_two(
    moves: list[tuple[int, float, bool]], delay: float
) -> None:
    """Goal: in any order of moves, what is due was known for the delay; all is due after two."""
    starts, known = LogStarts(), dict[int, float]()
    now, start = 0.0, 1
    for step, pause, follow in moves:
        now, start = now + pause, start + step
        starts.seen(start, now)
        known.setdefault(start, now)
        due = starts.due(now, delay)
        if due is not None:
            assert now >= known[due] + delay
            if follow:
                starts.followed(due)
        assert len(starts._moves) <= MAX_MOVES
    assert starts.due(now + delay, delay) in {start, None}
    starts.followed(start)
    assert not starts
