"""The epochs of markers: the broker's rule, and the epochs that marker_epochs.py chooses."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.exact.marker_epochs import (
    LAST_COORDINATOR_EPOCH,
    NO_MARKER,
    STEP,
    LastMarker,
    common,
    disputed,
    settled,
    used_up,
)

EPOCHS = st.integers(0, 32_000)
LASTS = st.builds(LastMarker, EPOCHS, st.integers(0, LAST_COORDINATOR_EPOCH // 2))


def lands(marker: LastMarker, last: LastMarker) -> bool:
    """Apply the broker's rule (tests/contract/test_transactions.py)."""
    return marker.epoch >= last.epoch and marker.coordinator_epoch >= last.coordinator_epoch


@given(LASTS, st.lists(st.integers(1, STEP), min_size=2, max_size=STEP, unique=True))
def test_marker_attempts_at_one_offset_exclude_each_other(
    last: LastMarker, later: list[int]
) -> None:
    """Goal: each attempt may land if it is the first, none behind another one."""
    epochs = [last.epoch + n for n in later]
    attempts = [LastMarker(epoch, disputed(last, epoch)) for epoch in epochs]
    assert all(lands(attempt, last) for attempt in attempts)
    assert not any(lands(one, other) for one, other in itertools.permutations(attempts, 2))


@given(st.lists(LASTS, min_size=1), st.integers(1, STEP))
def test_an_attempt_and_an_earlier_bulk_request_exclude_each_other(
    lasts: list[LastMarker], later: int
) -> None:
    """Goal: an attempt lands unless the request's last marker has landed; then it never lands.

    Behind the attempt no marker of the request lands.
    """
    epoch = lasts[0].epoch
    before, end = common([marker.coordinator_epoch for marker in lasts])
    many, only = LastMarker(epoch, before), LastMarker(epoch, end)
    for last in (lasts[0], many):
        attempt = LastMarker(epoch + later, disputed(last, epoch + later))
        assert settled(last, epoch)
        assert lands(many, last)
        assert lands(only, many)
        assert lands(attempt, last)
        assert not lands(attempt, only)
        assert not lands(many, attempt)
        assert not lands(only, attempt)


def test_epochs_are_valid_at_the_limits_of_both_numbers() -> None:
    """Goal: nothing is refused at either end of the numbers, and their exhaustion is detected."""
    assert disputed(NO_MARKER, 0) == STEP - 1
    assert disputed(NO_MARKER, 32_000) == 0
    near = LastMarker(5, LAST_COORDINATOR_EPOCH - STEP)
    assert used_up(near)
    assert common([near.coordinator_epoch]) == (near.coordinator_epoch, LAST_COORDINATOR_EPOCH)
    assert disputed(LastMarker(5, LAST_COORDINATOR_EPOCH), 6) == LAST_COORDINATOR_EPOCH
    assert not used_up(LastMarker(5, 10**9))
    assert common([]) == (0, STEP)
