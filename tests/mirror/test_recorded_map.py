"""Twin of twinlog.mirror.recorded_map; its oracle is a list of single records."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run, encoded_runs
from twinlog.mirror.recorded_map import MapAnswer, OffsetAnswer, RecordedMap

START = Ends(Offset(7), Offset(3))
steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=20
)
"""For each batch: offsets that are skipped on both sides, and its records."""
tails = st.tuples(st.integers(0, 4), st.booleans())
"""Offsets without a copy behind the last record, and whether more is planned."""


def recorded(
    skips: list[tuple[int, int, int]], tail: tuple[int, bool]
) -> tuple[RecordedMap, list[tuple[int, int]]]:
    """A map, and its records as pairs of offsets."""
    runs, pairs = OffsetRuns(START), list[tuple[int, int]]()
    for skipped, skipped_there, length in skips:
        source, destination = runs.end
        run = Run(Offset(source + skipped), Offset(destination + skipped_there), length)
        pairs += [(run.source + at, run.destination + at) for at in range(length)]
        runs.append(run)
    return RecordedMap(runs, Offset(runs.end.source + tail[0]), tail[1]), pairs


@given(steps, tails)
def test_a_record_is_at_its_copy_and_nothing_else_is_a_record(
    skips: list[tuple[int, int, int]], tail: tuple[int, bool]
) -> None:
    offset_map, pairs = recorded(skips, tail)
    places, sources = dict(pairs), {place: source for source, place in pairs}
    for offset in range(offset_map.position + 3):
        found = offset_map.to_destination(offset)
        assert (found.answer is MapAnswer.RECORD) == (offset in places)
        if offset in places:
            assert found == OffsetAnswer(MapAnswer.RECORD, Offset(places[offset]), Offset(offset))
    for offset in range(pairs[-1][1] + 3):
        back = offset_map.to_source(offset)
        assert (back.answer is MapAnswer.RECORD) == (offset in sources)
        if offset in sources:
            assert back == OffsetAnswer(MapAnswer.RECORD, Offset(sources[offset]), Offset(offset))


@given(steps, tails)
def test_a_position_leaves_the_same_records_on_both_sides(
    skips: list[tuple[int, int, int]], tail: tuple[int, bool]
) -> None:
    """Goal: what is translated is exact for a group, too; what cannot be is not translated."""
    offset_map, pairs = recorded(skips, tail)
    for offset in range(offset_map.position + 3):
        place = offset_map.to_destination(offset).offset
        known = START.source <= offset <= offset_map.position
        assert (place is not None) == known
        if place is not None:
            left = [source for source, _ in pairs if source >= offset]
            assert [source for source, at in pairs if at >= place] == left
    end = offset_map.runs.end.destination
    for offset in range(end + 3):
        place = offset_map.to_source(offset).offset
        known = START.destination <= offset and (offset <= end or not offset_map.pending)
        assert (place is not None) == known
        if place is not None:
            left = [source for source, at in pairs if at >= offset]
            assert [source for source, _ in pairs if source >= place] == left


@given(steps, tails, st.lists(st.integers(0, 20)), st.lists(st.tuples(*[st.integers(0, 40)] * 2)))
def test_a_map_of_encoded_parts_gives_the_same_answers(
    skips: list[tuple[int, int, int]],
    tail: tuple[int, bool],
    cuts: list[int],
    lost: list[tuple[int, int]],
) -> None:
    """Goal: a reader may leave parts encoded; in front, between, behind, and where copies are lost.

    `cuts` are the runs at which another part begins; a part may have no run.
    """
    whole, _ = recorded(skips, tail)
    runs, start = whole.runs.runs(), START
    parts = []
    bounds = [0, *(min(cut, len(runs)) for cut in sorted(cuts)), len(runs)]
    for first, last in itertools.pairwise(bounds):
        parts.append(encoded_runs(start, runs[first:last]))
        start = parts[-1].end
    places = tuple((Offset(first), Offset(last)) for first, last in lost)
    whole = replace(whole, lost_places=places, lost_sources=places)
    parted = replace(whole, runs=OffsetRuns(START, parts))
    for offset in range(max(*whole.runs.end, whole.position) + 3):
        assert parted.to_destination(offset) == whole.to_destination(offset)
        assert parted.to_source(offset) == whole.to_source(offset)


def test_a_damaged_part_gives_no_answer() -> None:
    """Goal: neither a record, nor the next one, nor the end are named by what cannot be right."""
    first = encoded_runs(START, [Run(Offset(8), Offset(4), 3)])
    second = encoded_runs(first.end, [Run(Offset(15), Offset(10), 4)])
    damaged = replace(second, data=second.data[:-1] + b"\2")
    found = RecordedMap(OffsetRuns(START, [first, damaged]), second.end.source, pending=False)
    assert found.to_destination(9) == (MapAnswer.RECORD, 5, 9)
    assert found.to_destination(second.end.source) == (MapAnswer.END, second.end.destination, 19)
    for offset in (11, 15, 18):
        with pytest.raises(ProtocolError, match=r"end at \(16, 11\).*end at \(19, 14\)"):
            found.to_destination(offset)
    for offset in (7, 10, 13):
        with pytest.raises(ProtocolError, match="runs of offsets"):
            found.to_source(offset)


MAP = recorded([(0, 2, 3), (1, 0, 2)], (2, False))[0]
"""Source 7 to 9 and 11 to 12, at 5 to 7 and 8 to 9; 13 and 14 have no copy."""


@pytest.mark.parametrize(
    ("offset", "answer", "place", "limit"),
    [
        (6, MapAnswer.BEFORE_START, None, 7),
        (7, MapAnswer.RECORD, 5, 7),
        (10, MapAnswer.NEXT, 8, 11),
        (13, MapAnswer.END, 10, 13),
        (15, MapAnswer.END, 10, 13),
        (16, MapAnswer.NOT_COPIED, None, 13),
    ],
)
def test_offsets_of_the_source(
    offset: int, answer: MapAnswer, place: int | None, limit: int
) -> None:
    assert MAP.to_destination(offset) == (answer, place, limit)


@pytest.mark.parametrize(
    ("offset", "pending", "answer", "place", "limit"),
    [
        (2, False, MapAnswer.BEFORE_START, None, 3),
        (4, False, MapAnswer.NEXT, 7, 5),
        (9, False, MapAnswer.RECORD, 12, 9),
        (10, False, MapAnswer.END, 15, 10),
        (99, False, MapAnswer.END, 15, 10),
        (10, True, MapAnswer.END, 13, 10),
        (11, True, MapAnswer.NOT_COPIED, None, 10),
    ],
)
def test_offsets_of_the_destination(
    offset: int, pending: bool, answer: MapAnswer, place: int | None, limit: int
) -> None:
    """Goal: what may have landed and is not recorded yet is not taken for nothing."""
    offset_map = RecordedMap(MAP.runs, MAP.position, pending)
    assert offset_map.to_source(offset) == (answer, place, limit)


def test_a_map_without_records_is_a_position() -> None:
    empty = RecordedMap(OffsetRuns(START), START.source, pending=False)
    assert empty.to_destination(7) == (MapAnswer.END, 3, 7)
    assert empty.to_destination(8) == (MapAnswer.NOT_COPIED, None, 7)
    assert empty.to_source(3) == (MapAnswer.END, 7, 3)


def test_where_copies_are_lost_the_next_one_follows_and_nothing_is_translated_back() -> None:
    """Goal: no record that is there is passed over, on either side.

    A reader at such an offset of the target may have read the copies before they were lost, or
    what others have written there since.
    """
    runs = OffsetRuns(Ends(Offset(0), Offset(0)))
    for run in (Run(Offset(0), Offset(0), 5), Run(Offset(9), Offset(8), 2)):
        runs.append(run)
    # Copies of 5..8 were at 5..8; new ones are at 8 and 9.
    lost_sources, lost_places = ((Offset(5), Offset(9)),), ((Offset(5), Offset(8)),)
    found = RecordedMap(
        runs, Offset(11), pending=False, lost_sources=lost_sources, lost_places=lost_places
    )
    forward = [found.to_destination(offset) for offset in range(12)]
    assert [one.offset for one in forward] == [0, 1, 2, 3, 4, 8, 8, 8, 8, 8, 9, 10]
    assert [one.answer for one in forward[4:10]] == [
        MapAnswer.RECORD,
        *[MapAnswer.NEXT] * 4,
        MapAnswer.RECORD,
    ]
    assert [found.has_lost(offset) for offset in (4, 5, 8, 9)] == [False, True, True, False]
    back = [found.to_source(offset) for offset in range(10)]
    assert [one.offset for one in back] == [0, 1, 2, 3, 4, None, None, None, 9, 10]
    assert {one.answer for one in back[5:8]} == {MapAnswer.LOST}


def test_copies_without_a_place_are_in_front_of_the_map_and_of_what_is_lost() -> None:
    runs = OffsetRuns(Ends(Offset(10), Offset(50)))
    whole = RecordedMap(runs, Offset(10), pending=False)
    assert whole.front_end == 0, "nothing was copied below"
    lacking = replace(whole, lacks_start=True)
    assert lacking.front_end == 10
    assert replace(lacking, lost_sources=((Offset(12), Offset(14)),)).front_end == 10
    assert replace(lacking, lost_sources=((Offset(6), Offset(10)),)).front_end == 6
