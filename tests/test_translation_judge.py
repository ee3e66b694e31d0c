"""The judge of translated offsets finds each kind of error, and no other."""

import pytest
from translation_judge import Pair, Place, summary

SOURCE = [Place(4, b"a"), Place(5, b"b"), Place(6, b"c"), Place(8, b"d")]
TARGET = [Place(9, b"a"), Place(10, b"b"), Place(11, b"c"), Place(13, b"d")]
PAIR = Pair(SOURCE, TARGET, 15)
"""The log of the source has a marker at 7, that of the target at 12 and 14."""


@pytest.mark.parametrize(
    ("committed", "translated", "distance"),
    [
        (0, 0, 0),
        (4, 9, 0),
        (5, 9, 1),
        (6, 9, 2),
        (6, 11, 0),
        (7, 12, 0),
        (7, 13, 0),
        (7, 11, 1),
        (7, 14, -1),
        (8, 13, 0),
        (8, 14, -1),
        (9, 14, 0),
        (9, 15, 0),
        (9, 16, -1),
        (9, 13, 1),
        (4, 15, -4),
        (4, None, None),
    ],
)
def test_a_position_is_judged_by_its_next_record(
    committed: int, translated: int | None, distance: int | None
) -> None:
    assert PAIR.judge(committed, translated).distance == distance


def test_a_record_that_was_copied_twice_counts_by_its_next_copy() -> None:
    """A position between the copies of a record, which MirrorMaker 2 has made after a kill."""
    twice = Pair(SOURCE, [*TARGET[:3], Place(12, b"b"), Place(13, b"c"), Place(14, b"d")], 15)
    assert [twice.judge(6, at).distance for at in (11, 12, 13)] == [0, 1, 0]


def test_values_have_to_be_unique() -> None:
    with pytest.raises(AssertionError, match="not unique"):
        Pair([Place(0, b"a"), Place(1, b"a")], [], 0)


def test_a_summary_counts_each_kind() -> None:
    places = [(4, 9), (5, 9), (8, 9), (8, 14), (4, None)]
    found = summary(PAIR.judge(committed, translated) for committed, translated in places)
    assert found == {
        "positions": 5,
        "exact": 1,
        "behind": 2,
        "ahead": 1,
        "none": 1,
        "median_behind": 2,
        "most_behind": 3,
        "most_ahead": 1,
    }
