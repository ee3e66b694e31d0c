"""How fast a counter grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.rates import Rate


@given(st.floats(0.1, 60), st.integers(0, 10**9), st.lists(st.floats(0.1, 20), max_size=50))
def test_the_rate_of_a_steady_counter_is_exact(
    window: float, rate: int, pauses: list[float]
) -> None:
    """The rate is right at any time, and the window stores no more than it has to."""
    found, now = Rate(window), 1000.0
    found.count(int(rate * now), now)
    assert found.per_second == 0.0
    for pause in pauses:
        now += pause
        found.count(int(rate * now), now)
        assert found.per_second == pytest.approx(rate, abs=10 / min(pauses))
    assert all(at > now - window for at, _ in list(found._samples)[2:])


def test_the_rate_of_a_stopped_counter_is_0_after_the_window() -> None:
    rate = Rate(10.0)
    rate.count(0, 0.0)
    rate.count(500, 5.0)
    assert rate.per_second == 100.0
    for second in range(6, 16):
        rate.count(500, float(second))
    assert rate.per_second == 0.0


def test_a_counter_that_restarts_gives_no_negative_rate() -> None:
    rate = Rate(10.0)
    rate.count(500, 1.0)
    rate.count(10, 2.0)
    assert rate.per_second == 0.0
    rate.count(30, 3.0)
    assert rate.per_second == 20.0


def test_two_counts_at_the_same_time_give_no_rate() -> None:
    rate = Rate(10.0)
    rate.count(5, 1.0)
    rate.count(9, 1.0)
    assert rate.per_second == 0.0
