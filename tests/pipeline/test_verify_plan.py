"""What verify compares, how it cuts it, and what a cleaner explains: its pure parts."""

import pytest

from made import THEN, batch, record
from twinlog.core.compare import CONTENT, EXTRA, MISSING, TIMESTAMP, Difference
from twinlog.core.errors import PartitionFailed
from twinlog.core.plan import Piece, plan
from twinlog.core.types import Offset, TopicPartition
from twinlog.pipeline.ports import Bounds
from twinlog.pipeline.verify import STRETCH, Extent, Stretch, _Keys, extent, stretches

ONE = TopicPartition("topic", 0)


def bounds(start: int, end: int, last_stable: int | None = None) -> Bounds:
    return Bounds(0, start, end, end if last_stable is None else last_stable)


@pytest.mark.parametrize(
    ("source", "destination", "compared", "behind", "differing"),
    [
        # The same, behind, and behind an open transaction of the source.
        (bounds(0, 9), bounds(0, 9), (0, 9), 0, []),
        (bounds(0, 9), bounds(0, 4), (0, 4), 5, []),
        (bounds(0, 9, 6), bounds(0, 6), (0, 6), 0, []),
        (bounds(0, 0), bounds(0, 0), (0, 0), 0, []),
        # The source's log begins later: by retention, before the mirror began, or past its end.
        (bounds(5, 9), bounds(0, 9), (5, 9), 0, []),
        (bounds(5, 9), bounds(5, 9), (5, 9), 0, []),
        (bounds(5, 9), bounds(0, 3), (3, 3), 4, []),
        (bounds(9, 9), bounds(9, 9), (9, 9), 0, []),
        # The destination lacks the beginning, all of it, or has more than there is.
        (bounds(0, 9), bounds(4, 9), (4, 9), 0, [(0, 4)]),
        (bounds(0, 9), bounds(9, 9), (9, 9), 0, [(0, 9)]),
        (bounds(0, 9), bounds(0, 12), (0, 9), 0, [(9, 12)]),
        (bounds(0, 9, 6), bounds(0, 9), (0, 6), 0, [(6, 9)]),
        (bounds(2, 9), bounds(12, 12), (9, 9), 0, [(2, 9), (9, 12)]),
    ],
)
def test_what_can_be_compared(
    *,
    source: Bounds,
    destination: Bounds,
    compared: tuple[int, int],
    behind: int,
    differing: list[tuple[int, int]],
) -> None:
    """Goal: where each log begins and ends, in all orders."""
    found = extent(ONE, source, destination)
    assert (found.partition, found.start, found.end, found.behind) == (ONE, *compared, behind)
    assert [(d.start, d.end) for d in found.differences] == differing


@pytest.mark.parametrize("side", ["source", "destination"])
def test_bounds_that_cannot_be_read(side: str) -> None:
    """Goal: not compared is not the same."""
    good, bad = bounds(0, 9), Bounds(3, -1, -1, -1)
    with pytest.raises(PartitionFailed, match=f"the {side}'s bounds") as caught:
        extent(ONE, *((bad, good) if side == "source" else (good, bad)))
    assert caught.value.code == 3


def of(partition: TopicPartition, start: int, end: int) -> Extent:
    return Extent(partition=partition, start=start, end=end, behind=0, differences=())


def test_stretches() -> None:
    """Goal: a million offsets a task, but a compacted partition whole, for its keys; none empty."""
    other, empty = TopicPartition("compacted", 1), TopicPartition("topic", 2)
    cut = stretches(
        [of(ONE, 5, 2 * STRETCH + 6), of(other, 7, 3 * STRETCH), of(empty, 4, 4)],
        {"topic": False, "compacted": True},
    )
    assert cut == [
        Stretch(ONE, 5, STRETCH + 5, compacted=False),
        Stretch(ONE, STRETCH + 5, 2 * STRETCH + 5, compacted=False),
        Stretch(ONE, 2 * STRETCH + 5, 2 * STRETCH + 6, compacted=False),
        Stretch(other, 7, 3 * STRETCH, compacted=True),
    ]


def keyed(*keys: bytes | None, tombstones: tuple[int, ...] = ()) -> list[Piece]:
    """A record of each key, at offset 0 and on."""
    records = [
        record(at, THEN, None if at in tombstones else b"v", key) for at, key in enumerate(keys)
    ]
    return plan(memoryview(batch(records)), Offset(0))


def told(start: int, end: int, reason: str = MISSING) -> Difference:
    return Difference(Offset(start), Offset(end), reason)


def test_what_a_cleaner_may_have_taken() -> None:
    """Goal: a record whose key comes again on both sides, or a tombstone; nothing else."""
    keys = _Keys()
    theirs = keyed(b"a", b"b", b"a", b"c", b"b", tombstones=(3,))
    keys.add(theirs, plan(memoryview(batch([record(2, THEN, b"v", b"a")])), Offset(2)), 5)
    assert keys.explain(told(0, 1))
    assert keys.explain(told(3, 4))
    assert not keys.explain(told(1, 2)), "the destination has no later b"
    assert not keys.explain(told(2, 3)), "the last a"
    assert not keys.explain(told(0, 2)), "one of the range is not explained"
    assert not keys.explain(told(9, 10)), "nothing is known of it"


@pytest.mark.parametrize("reason", [CONTENT, TIMESTAMP, EXTRA])
def test_what_no_cleaner_does(reason: str) -> None:
    """Goal: a record that was altered, or is too many, stays a difference whatever follows it."""
    keys = _Keys()
    keys.add(keyed(b"a", b"a", tombstones=(0,)), keyed(b"a", b"a"), 2)
    assert keys.explain(told(0, 1))
    assert not keys.explain(told(0, 1, reason))


def test_keys_beyond_the_end_are_not_counted() -> None:
    """Goal: what comes after the stretch that both sides have been read to is looked at later."""
    keys = _Keys()
    both = keyed(b"a", b"a")
    keys.add(both, both, 1)
    assert not keys.explain(told(0, 1))
    keys.add(both, both, 2)
    assert keys.explain(told(0, 1))
