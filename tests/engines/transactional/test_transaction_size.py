"""The bound of transactions (transaction_size.py)."""

import pytest

from twinlog.engines.transactional.transaction_size import LEAST_BYTES, TransactionSize

USUAL = 4 * 1024 * 1024
TIMEOUT_S = 30.0


def sized(now: int) -> TransactionSize:
    size = TransactionSize(USUAL, TIMEOUT_S)
    size.bytes = now
    return size


@pytest.mark.parametrize(
    ("bound", "size", "seconds", "committed", "then"),
    [
        (1000, 800, 2.4, True, 2000),
        (1000, 800, 2.5, True, 1000),
        (1000, 800, 10.0, True, 1000),
        (1000, 800, 10.1, True, 400),
        (1000, 800, 2.4, False, 1000),
        (1000, 800, 10.0, False, 1000),
        (1000, 800, 10.1, False, 200),
        # One batch may be larger than the bound.
        (1000, 5000, 2.4, True, 10_000),
        (1000, 5000, 31.0, False, 250),
        (1000, 5000, 31.0, True, 500),
        # It is never less than one batch, nor more than usual.
        (1, 800, 31.0, False, 1),
        (USUAL, 800, 2.4, True, USUAL),
        (USUAL - 1, 800, 2.4, True, USUAL),
        # Positions alone say nothing of records.
        (1000, 0, 31.0, False, 1000),
        (1000, 0, 1.0, True, 1000),
    ],
)
def test_the_bound_follows_from_how_long_transactions_take(
    bound: int, size: int, seconds: float, committed: bool, then: int
) -> None:
    after = sized(bound)
    after.ended(size, seconds, committed=committed)
    assert after.bytes == then


@pytest.mark.parametrize("per_batch_s", [0.001, 0.05, 0.5, 5.0, 25.0])
def test_a_slow_target_gets_what_it_commits_in_time(per_batch_s: float) -> None:
    """Goal: whatever a batch takes, soon all transactions are committed before their timeout."""
    batch, size = 850, TransactionSize(USUAL, TIMEOUT_S)
    late = 0
    for _ in range(60):
        (_, *_), share = size.chosen(["p"])
        batches = max(share // batch, 1)
        seconds = batches * per_batch_s
        in_time = seconds < TIMEOUT_S and not size.is_late(seconds)
        late = 0 if in_time else late + 1
        assert late < 9
        size.ended(batches * batch, min(seconds, TIMEOUT_S), committed=in_time)
    assert late == 0
    if per_batch_s < 0.01:
        assert size.bytes == USUAL


def test_all_partitions_have_a_share_of_the_usual_bound() -> None:
    for count in (1, 7, 1000):
        chosen, share = TransactionSize(USUAL, TIMEOUT_S).chosen(range(count))
        assert {*chosen} == {*range(count)}
        assert share == max(USUAL // count, LEAST_BYTES)


def test_partitions_take_turns_if_the_bound_is_too_small_for_all() -> None:
    """Goal: none is left out for good, also if another one always fails."""
    for bound, count in ((1, 1), (LEAST_BYTES - 1, 1), (3 * LEAST_BYTES, 3)):
        size, seen = sized(bound), set[int]()
        for _ in range(7):
            chosen, share = size.chosen(range(7))
            assert len(chosen) == count
            assert share == min(bound, LEAST_BYTES)
            seen |= {*chosen}
        assert seen == {*range(7)}
    assert sized(1000).chosen([]) == ((), 1000)


def test_flows_that_take_turns_leave_out_no_partition() -> None:
    """Goal: two flows of a state partition alternate, and each of them asks every second time."""
    size, seen = sized(1), set[str]()
    for _ in range(2):
        for waiting in (["a0", "a1"], ["b0", "b1"]):
            chosen, _ = size.chosen(waiting)
            seen |= {*chosen}
    assert seen == {"a0", "a1", "b0", "b1"}


def test_a_late_transaction_is_ended_if_the_next_one_can_be_smaller() -> None:
    """Goal: what cannot be divided any more has all of its time."""
    assert not sized(USUAL).is_late(20.0)
    assert sized(USUAL).is_late(20.1)
    assert not sized(LEAST_BYTES).is_late(29.0)
