"""The token bucket: the rate holds over any stretch of time, and is used up."""

from itertools import accumulate

import pytest
from batch_builders import captures
from captures import Capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.throttle import (
    ALL,
    UNLIMITED,
    Throttle,
    TokenBucket,
    Use,
    fair_part,
    whole_bytes,
)

rates = st.integers(1, 2**31)
readers = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),  # seconds that the reader takes or has nothing to do
        st.floats(0.0, 3.0),  # what it gets, in shares
    ),
    min_size=1,
    max_size=30,
)


@given(rates, readers)
def test_the_rate_is_never_exceeded(rate: int, pauses: list[tuple[float, float]]) -> None:
    """The rate holds over every stretch, whatever a reader does that waits as requested."""
    bucket, now = TokenBucket(rate, 0.0), 0.0
    share = bucket.share
    reads: list[tuple[float, int, int]] = []
    for pause, shares in pauses:
        now += pause
        while wait := bucket.wait(now):
            now += wait
        size = int(shares * share)
        bucket.spend(size, now)
        reads.append((now, size, max(0, size - share)))
    for first in range(len(reads)):
        total = 0
        for at, size, over in reads[first:]:
            total += size
            seconds = at - reads[first][0]
            assert total <= (seconds * rate + share + over) * (1 + 1e-6) + 2


@given(rates, st.lists(st.floats(0.01, 3.0), min_size=1, max_size=60))
def test_the_rate_is_fully_used(rate: int, sizes: list[float]) -> None:
    """A reader that always has data gets the rate, except one share."""
    bucket, now, total = TokenBucket(rate, 0.0), 0.0, 0
    for shares in sizes:
        while wait := bucket.wait(now):
            now += wait
        size = max(1, int(shares * bucket.share))
        bucket.spend(size, now)
        total += size
    assert total >= (now * rate - bucket.share) * (1 - 1e-6) - 2


@given(st.integers(1, 60), rates)
def test_an_idle_time_accumulates_one_share_at_most(seconds: int, rate: int) -> None:
    bucket = TokenBucket(rate, 0.0)
    assert bucket.wait(float(seconds)) == 0.0
    bucket.spend(bucket.share, float(seconds))
    assert bucket.wait(float(seconds)) > 0.0


@given(rates, st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), st.integers(0, 1))
def test_lanes_divide_a_rate_fairly(rate: int, wants: list[float], first: int) -> None:
    """Each computes its own part: soon all of the rate is used if wanted, and never more."""
    wanted = [want * rate for want in wants]
    uses = [Use(0.0, bool(first)) for _ in wanted]
    for _ in range(50):
        parts = [fair_part(rate, uses[:at] + uses[at + 1 :]) for at in range(len(uses))]
        uses = [Use(min(part, want), want > part) for part, want in zip(parts, wanted, strict=True)]
    total = sum(use.rate for use in uses)
    assert total <= 1.5 * rate
    if len(wanted) <= 2:
        assert total == pytest.approx(min(rate, sum(wanted)), rel=0.05)


def test_a_changed_rate_applies_at_once() -> None:
    """A backlog from a high rate does not stop a low one for minutes."""
    bucket = TokenBucket(1e6, 0.0)
    bucket.spend(8_000_000, 0.0)
    assert bucket.wait(0.0) == pytest.approx(8.5)
    bucket.set_rate(1e3, 0.0)
    assert bucket.wait(0.0) == pytest.approx(1.0, rel=0.01)
    bucket.set_rate(1e9, 0.0)
    assert bucket.wait(0.0) < 1.0


def test_no_tokens_are_added_while_the_clock_does_not_advance() -> None:
    bucket = TokenBucket(1000, 5.0)
    bucket.spend(100, 5.0)
    assert bucket.wait(4.0) == bucket.wait(5.0)


@given(captures, st.integers(0))
def test_a_truncated_batch_does_not_count(one: Capture, cut: int) -> None:
    records = memoryview(one.data)[: cut % (len(one.data) + 1)]
    ends = list(accumulate((12 + header.length for header in one.headers), initial=0))
    assert whole_bytes(records) == max(end for end in ends if end <= len(records))


@given(st.binary(max_size=60))
def test_any_bytes_give_a_size_within_the_data(data: bytes) -> None:
    assert 0 <= whole_bytes(memoryview(data)) <= len(data)


@pytest.mark.parametrize(
    ("throttle", "covered"),
    [
        (Throttle(), []),
        (Throttle(1000), ["a-0", "a-1", "b-0"]),
        (Throttle(UNLIMITED, {"a": frozenset({ALL})}), []),
        (Throttle(1000, {}), []),
        (Throttle(1000, {"a": frozenset({ALL})}), ["a-0", "a-1"]),
        (Throttle(1000, {"a": frozenset({1}), "c": frozenset({0})}), ["a-1"]),
    ],
)
def test_a_throttle_covers_the_configured_partitions(
    throttle: Throttle, covered: list[str]
) -> None:
    keys = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert [str(key) for key in keys if throttle.covers(key)] == covered
