"""`map_check`: a recorded map, compared with pairs of records that are known."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, Run, encode_runs
from twinlog.verify import map_check
from twinlog.verify.map_check import (
    LOST_COPIES,
    TOO_MANY_ENTRIES,
    MapCheck,
    MapClaim,
    SettledPlaces,
    not_judged,
)
from twinlog.verify.verdict import Tally


def run_of(source: int, remote: int, length: int) -> Run:
    return Run(Offset(source), Offset(remote), length)


def claim_of(runs: Sequence[Run], position: int, begin: int = 0, **claim: bool) -> MapClaim:
    """A map of a flow without transactions, or with what `claim` has."""
    start = Ends(Offset(begin), Offset(0))
    return MapClaim(start=start, position=position, runs=encode_runs(start, runs), **claim)


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
    checked = MapCheck(claim_of(runs, recorded_end, begin), begin if taken_over else 0)
    at = 0
    for source, remote, count in pairs:
        if source > at:
            checked.no_copy(at, source, is_record=False)
        checked.copied(source, remote, count)
        at = source + count
    if at < end:
        checked.no_copy(at, end, is_record=False)
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
    wrong = [run_of(0, 5, 4), run_of(4, 10, 4), run_of(10, 14, 5), run_of(25, 40, 2)]
    tally = check(wrong, PAIRS, 30)
    assert [(start, end) for start, end, _ in tally.differences] == [
        (4, 8),
        (8, 10),
        (10, 11),
        (20, 21),
        (25, 27),
    ]
    texts = [text for *_, text in tally.differences]
    assert texts[0] == "recorded map: it has remote offset 10, the copy is at 9"
    assert texts[1] == "recorded map: it lacks this record, whose copy is at remote offset 13"
    assert texts[2] == "recorded map: it has remote offset 14, and there is no copy"
    assert texts[3] == "recorded map: it lacks this record, whose copy is at remote offset 30"
    assert tally.compared == 8


def test_a_map_that_ends_or_begins_early() -> None:
    """Goal: behind its end nothing is expected; in front of its begin only after a takeover."""
    assert check(RIGHT[:1], PAIRS, 21, claimed=11).differs == 0
    assert check(RIGHT[:1], PAIRS, 21, claimed=12).differs == 1
    late = [run_of(4, 9, 6), *RIGHT[1:]]
    assert check(late, PAIRS, 21, begin=4).differs == 4
    assert check(late, PAIRS, 21, begin=4, taken_over=True).differs == 0


def test_a_map_that_lacks_its_start_is_not_seen_there() -> None:
    """Goal: copies in front of it are counted, never equal; those of another program are not its.

    What it has to have, it lacks as before.
    """
    late = [run_of(6, 11, 4), *RIGHT[1:]]
    claim = claim_of(late, 21, 6, lacks_start=True)

    def checked(own_begin: int = 0) -> Tally:
        check = MapCheck(claim, own_begin)
        check.copied(0, 5, 3)
        check.no_copy(3, 4, is_record=False)
        check.copied(4, 9, 6)
        check.copied(11, 15, 4)
        check.copied(20, 30, 1)
        return check.finish(21)

    tally = checked()
    assert (tally.compared, tally.not_seen, tally.differs) == (9, 5, 0)
    text = "recorded map: it begins at source offset 6, behind these copies"
    assert tally.unseen == [(0, 6, text)]
    tally = checked(own_begin=5)
    assert (tally.not_seen, tally.unseen) == (1, [(5, 6, text)])
    assert checked(own_begin=6).unseen == []
    claim = claim_of(late[1:], 21, 6, lacks_start=True)
    tally = checked()
    text = "recorded map: it lacks this record, whose copy is at remote offset 11"
    assert tally.differences == [(6, 10, text)]
    claim = claim_of(late, 21, 6)
    assert [one[:2] for one in checked().differences] == [(0, 3), (4, 6)], "nothing was there"


def test_a_second_copy_is_not_wrong() -> None:
    """Goal: what may repeat is wrong only where no unknown copy can be, and never agrees."""
    # The records 0 to 4 are at 0 to 4, and again at 5 to 9; 5 is at 10, and 11 is a marker.
    runs = [run_of(2, 7, 3), run_of(5, 10, 1)]

    def checked(
        end: int | None = 12, foreign: Sequence[int] = (), *, may_repeat: bool = True
    ) -> Tally:
        check = MapCheck(claim_of(runs, 6, may_repeat=may_repeat))
        check.copied(0, 0, 5)
        check.settled(0, 5)
        check.copied(5, 10, 1)
        check.settled(10, 11)
        check.settled(11, 12)
        return check.finish(6, remote_end=end, foreign=foreign)

    tally = checked()
    assert [one[:2] for one in tally.differences] == [(0, 2)], "records that it lacks"
    assert [one[:2] for one in tally.unseen] == [(2, 5)]
    assert (tally.compared, tally.not_seen) == (1, 3)
    tally = checked(foreign=[8])
    assert [one[:2] for one in tally.differences] == [(0, 2), (3, 4)]
    assert checked(may_repeat=False).not_seen == 0
    runs = [run_of(2, 3, 1), run_of(4, 11, 1), run_of(5, 12, 1)]
    assert [one[:2] for one in checked().differences] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert [one[:2] for one in checked(end=None).unseen] == [(5, 6)], "open at its end"


def test_what_a_flow_has_not_come_to() -> None:
    """Goal: an entry behind the copies is wrong, and a map that claims more is never equal."""
    for position in (10, 12, 30):
        check = MapCheck(claim_of([run_of(0, 5, 10), run_of(14, 19, 2)], position, may_repeat=True))
        check.copied(0, 5, 10)
        check.settled(5, 15)
        check.behind(10, 20)
        tally = check.finish(20, remote_end=15)
        assert [one[:2] for one in tally.differences] == [(14, 16)]
        assert (tally.compared, tally.not_seen) == (10, min(position, 20) - 10)


def test_settled_places_are_those_that_were_added() -> None:
    """Goal: each offset of a range, with neighbours merged, and with what is added at the end."""
    places = SettledPlaces()
    for start, end in ((2, 4), (4, 6), (9, 10), (1, 3)):
        places.add(start, end)
    expected = {2, 3, 4, 5, 9}
    for more, rest in (((), None), ((7, 0), 11)):
        now = places.with_more(more, rest)
        known = {*expected, *more, *(range(rest, 14) if rest else ())}
        for start in range(13):
            parts = list(now.parts(start, 14))
            assert [at for first, last, _ in parts for at in range(first, last)] == list(
                range(start, 14)
            )
            assert {at for first, last, on in parts for at in range(first, last) if on} == {
                at for at in known if at >= start
            }


def test_too_many_places_stay_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_check, "MAX_PLACES", 2)
    places = SettledPlaces()
    for start in (0, 2, 4):
        places.add(start, start + 1)
    assert [part[2] for part in places.parts(0, 5)] == [True, False, True, False]


def test_too_many_entries_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: those that follow each other are one; others are counted, and never equal."""
    monkeypatch.setattr(map_check, "MAX_ENTRIES", 2)
    check = MapCheck(claim_of([run_of(0, 5, 20)], 20, may_repeat=True))
    check.settled(0, 30)
    for at in range(4):
        check.copied(at, at, 1)
    for at in range(4, 8):
        check.no_copy(at, at + 1, is_record=True)
    check.copied(8, 9, 2)
    check.copied(10, 15, 10)
    tally = check.finish(20, remote_end=30)
    assert [one[:2] for one in tally.differences] == [(0, 4), (4, 8)]
    assert tally.unseen == [(8, 10, TOO_MANY_ENTRIES)]
    assert tally.compared == 10


def test_a_lost_map_is_not_judged() -> None:
    tally = not_judged(claim_of(RIGHT, 21, is_lost=True))
    assert (tally.compared, tally.differs, tally.not_seen) == (0, 0, 15)
    assert tally.unseen == [(0, 21, LOST_COPIES)]


def test_offsets_behind_the_source_are_wrong() -> None:
    tally = check([*RIGHT, run_of(21, 31, 3)], PAIRS, 22)
    assert [(start, end) for start, end, _ in tally.differences] == [(21, 22), (22, 24)]


def test_what_was_not_compared_is_not_judged() -> None:
    checked = MapCheck(claim_of(RIGHT, 21))
    checked.unknown(0, 12)
    checked.copied(12, 16, 3)
    checked.no_copy(15, 20, is_record=False)
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
