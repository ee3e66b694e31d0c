"""Twin of twinlog.local.check: the differences it has to find, and those it accepts."""

from collections.abc import Iterable

import pytest

from twinlog.local.check import ConsumedRecord, LogExtent, Pair, Report, _Comparison
from twinlog.local.writers import Numbers


def seen(offset: int, number: int, **other: object) -> ConsumedRecord:
    record = ConsumedRecord(offset, 1000 + offset, b"k", False, 1, 2, "w", number)
    return record._replace(**other)


def compare(
    there: Iterable[ConsumedRecord],
    here: Iterable[ConsumedRecord],
    *,
    compacted: bool = False,
    written: Numbers | None = None,
    end: int = 10,
) -> Report:
    told = None if written is None else {("t", 0, "w"): written, ("t", 1, "w"): Numbers(9, 9)}
    comparison = _Comparison(("t", 0), compacted=compacted, numbered=True, written=told)
    extents = Pair(LogExtent(0, 10, 10), LogExtent(0, end, end))
    return comparison.run(extents, list(there), list(here))


ALL = (seen(0, 1), seen(1, 2), seen(4, 3), seen(9, 4))


def test_the_same() -> None:
    """Records, and the offsets without a record, are counted."""
    report = compare(ALL, ALL, written=Numbers(4, 4))
    assert report == Report(partitions=1, records=4, gaps=6, writers=1)


@pytest.mark.parametrize(
    ("here", "problem"),
    [
        (ALL[:2] + ALL[3:], "offset 4 is only on the source"),
        ((*ALL[:2], seen(3, 2), *ALL[2:]), "offset 3 is only on the destination"),
        ((*ALL[:3], seen(9, 4, value=7)), "offset 9 differs in value"),
        ((*ALL[:3], seen(9, 4, timestamp=1008)), "offset 9 differs in timestamp"),
        ((*ALL[:3], seen(9, 4, headers=7, key=None)), "offset 9 differs in key, headers"),
    ],
)
def test_a_record_differs(here: tuple[ConsumedRecord, ...], problem: str) -> None:
    """A lost, doubled or altered record is found, and named by its offset."""
    assert f"t-0: {problem}" in compare(ALL, here).problems


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ((seen(0, 2),), "number 2 follows 0"),
        ((seen(0, 1), seen(1, 3)), "number 3 follows 1"),
        ((seen(0, 1), seen(1, 1)), "number 1 follows 1"),
        ((seen(0, 1), seen(1, 2), seen(2, 1)), "number 1 follows 2"),
    ],
)
def test_numbers(records: tuple[ConsumedRecord, ...], problem: str) -> None:
    """Where both clusters have the same records, the numbers still show a loss."""
    assert f"t-0: w: {problem}" in compare(records, records).problems


@pytest.mark.parametrize(("told", "good"), [((4, 4), True), ((3, 4), True), ((5, 5), False)])
def test_the_last_number(told: tuple[int, int], good: bool) -> None:
    """Acknowledged records exist; possibly committed ones may exist."""
    assert compare(ALL, ALL, written=Numbers(*told)).good is good


def test_the_ends() -> None:
    """A destination that ends earlier or later differs, even without a record in between."""
    assert "ends at 9" in compare(ALL[:3], ALL[:3], end=9).problems[0]
    assert "beyond" in compare(ALL, ALL, end=11).problems[0]


def test_cleaners() -> None:
    """If a later record of the key exists, either side may lack the earlier one."""
    a1, b1, a2 = seen(0, 1, key=b"a"), seen(1, 2, key=b"b"), seen(2, 3, key=b"a")
    assert compare([a1, b1, a2], [b1, a2], compacted=True).good
    assert compare([b1, a2], [a1, b1, a2], compacted=True).good
    assert not compare([a1, b1, a2], [a1, a2], compacted=True).good
    assert not compare([a1, b1, a2], [a1, b1], compacted=True).good
