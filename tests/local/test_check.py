"""Twin of twinlog.local.check: the differences it has to find, and those it accepts."""

from collections.abc import Iterable
from typing import Any

import pytest

from twinlog.local.check import ConsumedRecord, LogExtent, Pair, Report, _Comparison
from twinlog.local.writers import Numbers


def consumed_record(offset: int, number: int, **other: Any) -> ConsumedRecord:
    record = ConsumedRecord(offset, 1000 + offset, b"k", False, 1, 2, "w", number)
    return record._replace(**other)


def compare(
    source: Iterable[ConsumedRecord],
    destination: Iterable[ConsumedRecord],
    *,
    compacted: bool = False,
    written: Numbers | None = None,
    end: int = 10,
) -> Report:
    told = None if written is None else {("t", 0, "w"): written, ("t", 1, "w"): Numbers(9, 9)}
    comparison = _Comparison(("t", 0), compacted=compacted, numbered=True, written=told)
    extents = Pair(LogExtent(0, 10, 10), LogExtent(0, end, end))
    return comparison.run(extents, list(source), list(destination))


ALL = (consumed_record(0, 1), consumed_record(1, 2), consumed_record(4, 3), consumed_record(9, 4))


def test_equal_logs_are_counted() -> None:
    """Records, and the offsets without a record, are counted."""
    report = compare(ALL, ALL, written=Numbers(4, 4))
    assert report == Report(partitions=1, records=4, gaps=6, writers=1)


@pytest.mark.parametrize(
    ("destination", "problem"),
    [
        (ALL[:2] + ALL[3:], "offset 4 is only on the source"),
        ((*ALL[:2], consumed_record(3, 2), *ALL[2:]), "offset 3 is only on the destination"),
        ((*ALL[:3], consumed_record(9, 4, value=7)), "offset 9 differs in value"),
        ((*ALL[:3], consumed_record(9, 4, timestamp=1008)), "offset 9 differs in timestamp"),
        (
            (*ALL[:3], consumed_record(9, 4, headers=7, key=None)),
            "offset 9 differs in key, headers",
        ),
    ],
)
def test_a_different_record_is_named_by_offset(
    destination: tuple[ConsumedRecord, ...], problem: str
) -> None:
    """A lost, doubled or altered record is found, and named by its offset."""
    assert f"t-0: {problem}" in compare(ALL, destination).problems


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ((consumed_record(0, 2),), "number 2 follows 0"),
        ((consumed_record(0, 1), consumed_record(1, 3)), "number 3 follows 1"),
        ((consumed_record(0, 1), consumed_record(1, 1)), "number 1 follows 1"),
        (
            (consumed_record(0, 1), consumed_record(1, 2), consumed_record(2, 1)),
            "number 1 follows 2",
        ),
    ],
)
def test_lost_and_repeated_record_numbers_are_reported(
    records: tuple[ConsumedRecord, ...], problem: str
) -> None:
    """Where both clusters have the same records, the numbers still show a loss."""
    report = compare(records, records)
    assert f"t-0: w: {problem}" in report.problems
    assert report.in_source == report.problems


def test_numbers_that_only_the_copies_have_wrong_are_not_the_source_s() -> None:
    """A copy that lacks a record is no wrong number of the source, beside one that is."""
    originals = (*ALL, consumed_record(7, 6))
    report = compare(originals, (ALL[0], *originals[2:]))
    assert {"t-0: w: number 3 follows 1", "t-0: w: number 6 follows 4"} <= set(report.problems)
    assert report.in_source == ["t-0: w: number 6 follows 4"]


@pytest.mark.parametrize(("told", "good"), [((4, 4), True), ((3, 4), True), ((5, 5), False)])
def test_the_last_acknowledged_number_must_exist(told: tuple[int, int], good: bool) -> None:
    """Acknowledged records exist; possibly committed ones may exist."""
    assert compare(ALL, ALL, written=Numbers(*told)).good is good


def test_different_log_end_offsets_are_reported() -> None:
    """A destination that ends earlier or later differs, even without a record in between."""
    assert "ends at 9" in compare(ALL[:3], ALL[:3], end=9).problems[0]
    assert "beyond" in compare(ALL, ALL, end=11).problems[0]


def test_records_removed_by_compaction_are_accepted() -> None:
    """If a later record of the key exists, either side may lack the earlier one."""
    a1, b1, a2 = (
        consumed_record(0, 1, key=b"a"),
        consumed_record(1, 2, key=b"b"),
        consumed_record(2, 3, key=b"a"),
    )
    assert compare([a1, b1, a2], [b1, a2], compacted=True).good
    assert compare([b1, a2], [a1, b1, a2], compacted=True).good
    assert not compare([a1, b1, a2], [a1, a2], compacted=True).good
    assert not compare([a1, b1, a2], [a1, b1], compacted=True).good
