"""Twin of twinlog.kafka.backoff."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.backoff import Backoff


@given(failures=st.integers(0, 10_000), random=st.floats(0, 1))
def test_a_backoff_delay_is_bounded(failures: int, random: float) -> None:
    """Goal: any number of failures gives a pause within the jitter of `initial` and `maximum`."""
    delay = Backoff(0.05, 1.0).delay(failures, random)
    assert 0.05 * 0.79 <= delay <= 1.0 * 1.21


def test_delays_double_up_to_the_maximum() -> None:
    """Goal: without randomness the pauses are exact; jitter varies them in both directions."""
    backoff = Backoff(1.0, 5.0, jitter=0.5)
    assert [backoff.delay(n) for n in (1, 2, 3, 4, 100)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert (backoff.delay(1, 0.0), backoff.delay(1, 1.0)) == pytest.approx((0.5, 1.5))
