"""The rate at which bytes arrive under a throttle, measured on a machine that may stand still."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 20.0
TRIES = 4


def measured(arrived: Callable[[], int], rate: float, tolerance: float, then: Callable[[], T]) -> T:
    """Measure until a rate is kept for 20 s; it may never be exceeded.

    A machine that stands still makes a rate lower, and a measurement inexact: its two moments are
    known as well as two looks at the clock around each tell. So one that is too low, or not known
    well enough, is repeated.

    Args:
        arrived: the bytes so far.
        rate: the limit, in bytes a second.
        tolerance: how far it may differ, as a part of it.
        then: what is wanted of the end of the measurement that counts.
    """
    found = []
    for _ in range(TRIES):
        first, before, second = time.monotonic(), arrived(), time.monotonic()
        time.sleep(SECONDS)
        third, after, fourth = time.monotonic(), arrived(), time.monotonic()
        result = then()
        lowest = (after - before) / (fourth - first)
        highest = (after - before) / max(third - second, 0.1)
        found.append((lowest, highest))
        assert lowest < (1 + tolerance) * rate, found
        if (1 - tolerance) * rate < lowest <= highest < (1 + tolerance) * rate:
            return result
    raise AssertionError(f"not within {tolerance:g} of {rate:g} bytes a second: {found}")
