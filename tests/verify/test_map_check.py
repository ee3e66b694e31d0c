"""`map_check`: a recorded map, compared with pairs of records that are known."""

from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Run
from twinlog.verify.map_check import MapCheck
from twinlog.verify.verdict import Tally


def run_of(source: int, remote: int, length: int) -> Run:
    return Run(Offset(source), Offset(remote), length)


def check(
    runs: list[Run],
    pairs: list[tuple[int, int, int]],
    end: int,
    *,
    begin: int = 0,
    claimed: int | None = None,
    taken_over: bool = False,
) -> Tally:
    """Compare a map with pairs; the offsets between these have no copy."""
    recorded_end = end if claimed is None else claimed
    checked = MapCheck(runs, begin, recorded_end, taken_over=taken_over)
    at = 0
    for source, remote, count in pairs:
        if source > at:
            checked.no_copy(at, source)
        checked.copied(source, remote, count)
        at = source + count
    if at < end:
        checked.no_copy(at, end)
    return checked.finish(end)


PAIRS = [(0, 5, 10), (11, 15, 4), (20, 30, 1)]
RIGHT = [run_of(*pair) for pair in PAIRS]


def test_a_right_map_agrees() -> None:
    """Goal: also if its runs are cut at other places than the pairs."""
    cut = [run_of(0, 5, 3), run_of(3, 8, 7), *RIGHT[1:]]
    for runs in (RIGHT, cut):
        tally = check(runs, PAIRS, 21)
        assert (tally.compared, tally.differs, tally.differences) == (15, 0, [])


def test_each_wrong_part_is_named() -> None:
    wrong = [run_of(0, 5, 4), run_of(4, 10, 6), run_of(10, 14, 5), run_of(25, 40, 2)]
    tally = check(wrong, PAIRS, 30)
    assert [(start, end) for start, end, _ in tally.differences] == [
        (4, 10),
        (10, 11),
        (20, 21),
        (25, 27),
    ]
    texts = [text for *_, text in tally.differences]
    assert texts[0] == "recorded map: it has remote offset 10, the copy is at 9"
    assert texts[1] == "recorded map: it has remote offset 14, and there is no copy"
    assert texts[2] == ("recorded map: it lacks this record, whose copy is at remote offset 30")
    assert tally.compared == 8


def test_a_map_that_ends_or_begins_early() -> None:
    """Goal: behind its end nothing is expected; in front of its begin only after a takeover."""
    assert check(RIGHT[:1], PAIRS, 21, claimed=11).differs == 0
    assert check(RIGHT[:1], PAIRS, 21, claimed=12).differs == 1
    late = [run_of(4, 9, 6), *RIGHT[1:]]
    assert check(late, PAIRS, 21, begin=4).differs == 4
    assert check(late, PAIRS, 21, begin=4, taken_over=True).differs == 0


def test_offsets_behind_the_source_are_wrong() -> None:
    tally = check([*RIGHT, run_of(21, 31, 3)], PAIRS, 22)
    assert [(start, end) for start, end, _ in tally.differences] == [(21, 22), (22, 24)]


def test_what_was_not_compared_is_not_judged() -> None:
    checked = MapCheck(RIGHT, 0, 21, taken_over=False)
    checked.unknown(0, 12)
    checked.copied(12, 16, 3)
    checked.no_copy(15, 20)
    checked.copied(20, 30, 1)
    tally = checked.finish(21)
    assert (tally.compared, tally.differs, tally.not_seen) == (4, 0, 11)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=8),
)
def test_it_finds_what_a_naive_comparison_finds(
    actual: list[tuple[int, int, int]], recorded: list[tuple[int, int, int]]
) -> None:
    """Goal: an offset is wrong exactly if both disagree about its copy."""

    def runs(skips: list[tuple[int, int, int]]) -> list[Run]:
        found, source, remote = [], 0, 0
        for before, skipped, count in skips:
            found.append(run_of(source + before, remote + skipped, count))
            source, remote = found[-1].source_end, found[-1].destination_end
        return found

    def places(all_runs: list[Run]) -> dict[int, int]:
        return {r.source + n: r.destination + n for r in all_runs for n in range(r.length)}

    truth, stored = runs(actual), runs(recorded)
    end = max([0, *(run.source_end for run in (*truth, *stored))])
    pairs = [(int(run.source), int(run.destination), run.length) for run in truth]
    tally = check(stored, pairs, end)
    right, wrong = places(truth), places(stored)
    offsets = right.keys() | wrong.keys()
    assert tally.differs == sum(right.get(at) != wrong.get(at) for at in offsets)
    assert tally.compared == sum(right.get(at) == wrong.get(at) for at in offsets)
