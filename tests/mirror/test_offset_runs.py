"""Twin of twinlog.mirror.offset_runs; its oracle is a list of single records."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run, decode_runs, encode_runs, landed_runs

START = Ends(Offset(7), Offset(3))
steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=30
)
"""For each batch: offsets that are skipped on both sides, and its records."""


def _runs(skips: list[tuple[int, int, int]]) -> list[Run]:
    source, destination = START
    batches = []
    for skipped, skipped_there, length in skips:
        run = Run(Offset(source + skipped), Offset(destination + skipped_there), length)
        batches.append(run)
        source, destination = run.source_end, run.destination_end
    return batches


def _pairs(batches: list[Run]) -> list[tuple[int, int]]:
    return [(run.source + at, run.destination + at) for run in batches for at in range(run.length)]


def _mapped(batches: list[Run]) -> OffsetRuns:
    runs = OffsetRuns(START)
    for run in batches:
        runs.append(run)
    return runs


@given(steps)
def test_each_record_is_translated_to_itself(skips: list[tuple[int, int, int]]) -> None:
    batches = _runs(skips)
    runs = _mapped(batches)
    for source, destination in _pairs(batches):
        assert runs.to_destination(source) == destination
        assert runs.to_source(destination) == source


@given(steps)
def test_a_group_reads_exactly_the_records_from_its_offset_on(
    skips: list[tuple[int, int, int]],
) -> None:
    """Goal: whatever a group has committed on the source, the same records are left to read."""
    batches = _runs(skips)
    runs, pairs = _mapped(batches), _pairs(batches)
    for offset in range(START.source, pairs[-1][0] + 3):
        translated = runs.to_destination(offset)
        left = [source for source, _ in pairs if source >= offset]
        assert [source for source, at in pairs if at >= translated] == left


@given(steps)
def test_a_destination_that_ends_anywhere_holds_what_the_map_says(
    skips: list[tuple[int, int, int]],
) -> None:
    batches = _runs(skips)
    runs, pairs = _mapped(batches), _pairs(batches)
    for end in range(START.destination, pairs[-1][1] + 3):
        held = [source for source, at in pairs if at < end]
        assert [source for source, _ in pairs if source < runs.to_source(end)] == held


@given(steps)
def test_runs_are_merged_and_survive_their_encoding(skips: list[tuple[int, int, int]]) -> None:
    runs = _mapped(_runs(skips)).runs()
    for before, after in itertools.pairwise(runs):
        assert (before.source_end, before.destination_end) != after[:2]
    data = encode_runs(START, runs)
    assert list(decode_runs(START, data)) == runs
    assert len(data) <= 3 * len(runs)


@given(st.binary(max_size=40))
def test_any_bytes_are_runs_or_refused(data: bytes) -> None:
    """Goal: what decodes follows each other, so that a map can be built from it."""
    runs = OffsetRuns(START)
    try:
        for run in decode_runs(START, data):
            runs.append(run)
    except ProtocolError:
        return


def test_nothing_is_mapped_at_first() -> None:
    runs = OffsetRuns(START)
    assert (runs.end, runs.to_destination(100), runs.to_source(100)) == (START, 3, 7)


@pytest.mark.parametrize(
    "run",
    [Run(Offset(6), Offset(3), 1), Run(Offset(7), Offset(2), 1), Run(Offset(7), Offset(3), 0)],
)
def test_a_run_before_the_end_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        OffsetRuns(START).append(run)


def test_the_size_of_a_map() -> None:
    """Goal: a billion records in transactions of ten take 300 MB; without transactions, 4 bytes."""
    transactions = [(0, 0, 10)] + [(1, 0, 10)] * 99_999
    assert len(encode_runs(START, _mapped(_runs(transactions)).runs())) == 300_000
    plain = OffsetRuns(START)
    for at in range(0, 1_000_000, 500):
        plain.append(Run(Offset(7 + at), Offset(3 + at), 500))
    assert len(encode_runs(START, plain.runs())) == 5


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8),
    st.lists(st.integers(1, 4), min_size=1),
    st.randoms(use_true_random=False),
)
def test_landed_records_are_where_their_batches_are(
    sources: list[tuple[int, int]], cuts: list[int], rng: Random
) -> None:
    """Goal: the runs are what counting record by record gives."""
    ranges: list[tuple[Offset, Offset]] = []
    at = 7
    for skipped, length in sources:
        ranges.append((Offset(at + skipped), Offset(at + skipped + length)))
        at += skipped + length
    offsets = [offset for start, end in ranges for offset in range(start, end)]
    batches: list[tuple[Offset, int]] = []
    places: list[int] = []
    base = 3
    while len(places) < len(offsets):
        count = min(rng.choice(cuts), len(offsets) - len(places))
        base += rng.randrange(3)
        batches.append((Offset(base), count))
        places += range(base, base + count)
        base += count
    runs = landed_runs(ranges, batches)
    assert [
        (run.source + at, run.destination + at) for run in runs for at in range(run.length)
    ] == list(zip(offsets, places, strict=True))
    grown = OffsetRuns(START)
    for run in runs:
        grown.append(run)


def test_records_without_a_place_are_refused() -> None:
    """Goal: no offset is given to a record by its number, if the numbers do not agree."""
    with pytest.raises(ValueError, match="1 records at 11 have no offset on the source"):
        landed_runs([(Offset(0), Offset(1))], [(Offset(10), 2)])
    for sources in ([(Offset(0), Offset(3))], [(Offset(0), Offset(2)), (Offset(4), Offset(5))]):
        with pytest.raises(ValueError, match="have landed nowhere"):
            landed_runs(sources, [(Offset(10), 2)])
