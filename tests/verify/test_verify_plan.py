"""What verify reads, how it splits it, and that its counts are the log's length: pure parts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.interfaces.cli.verify import _as_text
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.operations.serialise import json_data
from twinlog.operations.verification import verification
from twinlog.operations.verification_report import DIFFERS, NOT_SEEN, SAME
from twinlog.verify.job import (
    BEYOND,
    OPEN_TRANSACTION,
    STRETCH,
    Compared,
    Extent,
    Stretch,
    extent,
    stretches,
)
from twinlog.verify.verdict import LOG_START, Tally

ONE = TopicPartition("topic", 0)


def bounds(start: int, end: int, last_stable: int | None = None) -> LogBounds:
    return LogBounds(0, start, end, end if last_stable is None else last_stable)


@pytest.mark.parametrize(
    ("source", "destination", "read", "behind", "below", "beyond"),
    [
        # The same, behind, and behind an open transaction of the source.
        (bounds(0, 9), bounds(0, 9), (0, 9), 0, 0, []),
        (bounds(0, 9), bounds(0, 4), (0, 4), 5, 0, []),
        (bounds(0, 9, 6), bounds(0, 6), (0, 6), 0, 0, []),
        (bounds(0, 0), bounds(0, 0), (0, 0), 0, 0, []),
        # The source's log begins later: by retention, before the mirror began, or past its end.
        (bounds(5, 9), bounds(0, 9), (5, 9), 0, 5, []),
        (bounds(5, 9), bounds(5, 9), (5, 9), 0, 0, []),
        (bounds(5, 9), bounds(0, 3), (5, 5), 4, 5, []),
        (bounds(9, 9), bounds(9, 9), (9, 9), 0, 0, []),
        # The destination's begins later: the source is read there, for lost records.
        (bounds(0, 9), bounds(4, 9), (0, 9), 0, 0, []),
        (bounds(0, 9), bounds(9, 9), (0, 9), 0, 0, []),
        # The destination has more than the source has decided.
        (bounds(0, 9), bounds(0, 12), (0, 9), 0, 0, [(9, 12)]),
        (bounds(0, 9, 6), bounds(0, 9), (0, 6), 0, 0, [(6, 9)]),
        (bounds(2, 9), bounds(12, 12), (2, 9), 0, 0, [(9, 12)]),
    ],
)
def test_the_compared_range_lies_between_the_bounds_of_both_logs(
    *,
    source: LogBounds,
    destination: LogBounds,
    read: tuple[int, int],
    behind: int,
    below: int,
    beyond: list[tuple[int, int]],
) -> None:
    """Goal: the logs begin and end in all orders."""
    found = extent(ONE, source, destination)
    assert (found.start, found.end, found.behind) == (*read, behind)
    assert found.tally.absent[LOG_START] == below
    assert found.tally.differences == [(*one, BEYOND) for one in beyond]


def test_undecided_destination_records_are_not_seen() -> None:
    """Goal: undecided records of the destination were not seen."""
    found = extent(ONE, bounds(0, 9), bounds(0, 8, 5))
    assert (found.end, found.behind) == (5, 1)
    assert found.tally.unseen == [(5, 8, OPEN_TRANSACTION)]


@pytest.mark.parametrize("side", ["source", "destination"])
def test_unreadable_bounds_are_not_seen(side: str) -> None:
    """Goal: not compared is not the same; nothing was seen of both logs."""
    good, bad = bounds(0, 9), LogBounds(3, -1, -1, -1)
    found = extent(ONE, *((bad, good) if side == "source" else (good, bad)))
    [unseen] = found.tally.unseen
    assert unseen[:2] == (0, 9)
    assert f"{side}: UNKNOWN_TOPIC_OR_PARTITION (3)" in unseen.reason
    both = extent(ONE, bad, bad)
    assert verification([both], []).verdict == NOT_SEEN


def edges() -> st.SearchStrategy[LogBounds]:
    return st.lists(st.integers(0, 12), min_size=3, max_size=3).map(
        lambda three: LogBounds(0, min(three), max(three), sorted(three)[1])
    )


@given(edges(), edges())
def test_the_counts_add_up_to_the_length(source: LogBounds, destination: LogBounds) -> None:
    """Goal: they cover the lower log start to the higher end, for any bounds; nothing twice."""
    found = extent(ONE, source, destination)
    end = max(source.last_stable, destination.high_watermark)
    assert found.length == end - min(source.start, destination.start)
    tally = Tally(compared=found.end - found.start)
    stretch = Stretch(ONE, found.start, found.end, compacted=False)
    whole = verification([found], [Compared(stretch, tally)])
    assert whole.counts.length == found.length
    assert whole.counts.not_seen == found.tally.not_seen
    assert (whole.verdict == SAME) == (not found.tally.differs and not found.tally.not_seen)


def test_offsets_of_a_task_without_a_report_are_not_seen() -> None:
    """Goal: what no task reports was not seen; a difference takes precedence."""
    found = extent(ONE, bounds(0, 9), bounds(0, 9))
    whole = verification([found], [])
    assert (whole.verdict, whole.counts.not_seen, whole.counts.length) == (NOT_SEEN, 9, 9)
    assert whole.unseen
    tally = Tally()
    tally.differ(0, 1, "why")
    worse = verification([found], [Compared(Stretch(ONE, 0, 1, compacted=False), tally)])
    assert (worse.verdict, worse.counts.not_seen) == (DIFFERS, 8)


def of(partition: TopicPartition, start: int, end: int) -> Extent:
    return Extent(
        partition=partition,
        start=start,
        end=end,
        length=end - start,
        behind=0,
        tally=Tally(),
    )


def test_unreadable_configurations_are_named() -> None:
    """Goal: configurations not compared are named, and the rest is not called the same."""
    known = bounds(0, 5)
    tally = Tally(compared=5)
    compared = [Compared(Stretch(ONE, 0, 5, compacted=False), tally)]
    same = verification([extent(ONE, known, known)], compared)
    assert same.verdict == SAME
    found = replace(same, unreadable=("__mirror_config-3, offset 7: a newer version",))
    assert (found.verdict, found.equal) == (NOT_SEEN, False)
    text = _as_text(found)
    assert "NOT SEEN what this unreadable record describes: __mirror_config-3, offset 7" in text
    assert "nor what 1 unreadable record(s) describe" in text
    as_json: Any = json_data(found)
    assert as_json["unreadable"] == list(found.unreadable)


def test_partitions_are_split_into_stretches_unless_compacted() -> None:
    """Goal: a million offsets a task, but a compacted partition whole, for its keys; none empty."""
    other, empty = TopicPartition("compacted", 1), TopicPartition("topic", 2)
    end = 2 * STRETCH + 6
    cut = stretches(
        [of(ONE, 5, end), of(other, 7, 3 * STRETCH), of(empty, 4, 4)],
        {"topic": False, "compacted": True},
    )
    assert cut == [
        Stretch(ONE, 5, STRETCH + 5, compacted=False),
        Stretch(ONE, STRETCH + 5, 2 * STRETCH + 5, compacted=False),
        Stretch(ONE, 2 * STRETCH + 5, end, compacted=False),
        Stretch(other, 7, 3 * STRETCH, compacted=True),
    ]
