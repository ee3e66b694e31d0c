"""How long the source has had records that the destination lacks: against a full history."""

from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.lag import MAX_MARKS, RESOLUTION_S, LagClock

steps = st.lists(
    st.tuples(
        st.floats(0.0, 5.0),  # seconds since the previous step
        st.integers(0, 50),  # new records on the source
        st.floats(0.0, 1.0),  # the share of the missing records that is mirrored then
        st.booleans(),  # whether the lag is read
    ),
    max_size=200,
)


@given(steps)
def test_the_lag_is_close_to_the_naive_twin(moves: list[tuple[float, int, float, bool]]) -> None:
    """The lag is never too small, and too large by a quarter at most."""
    clock, everything = LagClock(), [(0, 0.0)]
    now, end, reached = 0.0, 0, 0
    for pause, more, share, asked in moves:
        now, end = now + pause, end + more
        clock.seen(end, now)
        everything.append((end, now))
        reached += int(share * (end - reached))
        if not asked:
            continue
        truth = next((at for end_offset, at in everything if end_offset > reached), None)
        told = clock.since(reached)
        if truth is None:
            assert told is None
        else:
            assert told is not None
            assert told <= truth
            assert truth - told <= max(2 * RESOLUTION_S, (now - told) / 4)


def test_the_number_of_marks_is_bounded_for_a_backlog_of_a_day() -> None:
    """Nothing is mirrored, and the source grows ten times a second."""
    clock = LagClock()
    for tenth in range(1, 864_000, 7):
        clock.seen(tenth, tenth / 10)
    assert len(clock._marks) <= MAX_MARKS
    assert clock.since(0) == 0.1


def test_a_lower_log_end_is_ignored() -> None:
    """A new leader's high watermark is lower for a moment."""
    clock = LagClock()
    clock.seen(10, 1.0)
    clock.seen(7, 2.0)
    clock.seen(10, 3.0)
    assert clock.since(5) == 1.0
    assert clock.since(10) is None
    clock.seen(11, 4.0)
    assert clock.since(10) == 4.0
