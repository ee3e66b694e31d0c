"""Twin of twinlog.mirror.offset_runs; its oracle is a list of single records."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import Offset
from twinlog.mirror import offset_runs
from twinlog.mirror.offset_runs import (
    EncodedRuns,
    Ends,
    OffsetRuns,
    Run,
    decode_runs,
    encode_runs,
    encoded_runs,
    landed_runs,
)

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
    assert decode_runs(START, data) == runs
    assert len(data) <= 3 * len(runs)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 1 << 40)] * 2, st.integers(1, 1 << 40)), min_size=1, max_size=20
    )
)
def test_long_numbers_survive_their_encoding(skips: list[tuple[int, int, int]]) -> None:
    runs = _runs(skips)
    assert decode_runs(START, encode_runs(START, runs)) == runs


@given(st.binary(max_size=40))
def test_any_bytes_are_runs_or_refused(data: bytes) -> None:
    """Goal: what decodes follows each other, so that a map can be built from it."""
    runs = OffsetRuns(START)
    try:
        for run in decode_runs(START, data):
            runs.append(run)
    except ProtocolError:
        return


@given(steps, st.data())
def test_bytes_that_were_altered_are_refused_or_end_as_recorded(
    skips: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Goal: a part whose runs are others is noticed by its end; none is cut off silently."""
    part = encoded_runs(START, _runs(skips))
    at = data.draw(st.integers(0, len(part.data) - 1))
    altered = bytearray(part.data)
    altered[at] ^= data.draw(st.integers(1, 255))
    for changed in (bytes(altered), part.data[:at], part.data + b"\0"):
        try:
            runs = EncodedRuns(part.start, part.end, changed).decoded()
        except ProtocolError:
            continue
        assert changed == bytes(altered)
        assert _mapped(runs).end == part.end


@pytest.mark.parametrize(
    ("end", "data"),
    [
        ((8, 4), b""),
        ((7, 3), b"\0\0\2"),
        ((7, 4), b"\0\0\2"),
        ((6, 9), b"\0\0\2"),
        ((1 << 63, 4), b"\0\0\2"),
    ],
)
def test_ends_that_no_runs_can_have_are_refused(end: tuple[int, int], data: bytes) -> None:
    """Goal: what a binary search goes by grows, also if nothing is decoded."""
    with pytest.raises(ProtocolError, match="recorded to begin"):
        EncodedRuns(START, Ends(*map(Offset, end)), data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\0", "cut off at byte 2"),
        (b"\0\0\x82", "cut off at byte 3"),
        (b"\0\0\2\0\0\x82", "cut off at byte 6"),
        (b"\0\0\2\0\x80\1", "cut off at byte 6"),
        (b"\1\0\2", "go back"),
        (b"\0\1\2", "go back"),
        (b"\0\0\0", "no record"),
        (b"\0\0\1", "no record"),
        (b"\x81\1\0\2", "go back"),
        (b"\0\0" + b"\xfe" + b"\xff" * 8 + b"\1", "runs of offsets end at"),
    ],
)
def test_bytes_that_are_no_runs_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        decode_runs(START, data)


parted = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5)), min_size=0, max_size=6
    ),
    max_size=8,
)
"""Parts of a map, each with what its runs skip and have; some have none."""


def _parts(skips: list[list[tuple[int, int, int]]]) -> tuple[list[EncodedRuns], list[Run]]:
    parts, runs, start = list[EncodedRuns](), list[Run](), START
    for its in skips:
        part = list[Run]()
        for skipped, skipped_there, length in its:
            source, destination = (part[-1].source_end, part[-1].destination_end) if part else start
            run = Run(Offset(source + skipped), Offset(destination + skipped_there), length)
            part.append(run)
        parts.append(encoded_runs(start, part))
        runs += part
        start = parts[-1].end
    return parts, runs


def _naive(side: int, runs: list[Run], offset: int) -> Run | None:
    return next((run for run in runs if offset < run[side] + run.length), None)


@given(parted, st.integers(0, 8), st.integers(1, 3))
def test_a_map_of_encoded_parts_answers_as_one_of_runs(
    skips: list[list[tuple[int, int, int]]], encoded: int, kept: int
) -> None:
    """Goal: the parts that are decoded for an offset give what all runs give, wherever it is.

    In front of the map, in a run, between two, at the border of a part, behind the end. The oracles
    are a scan of all runs, and a map to which they were appended one by one.
    """
    parts, runs = _parts(skips)
    whole = _mapped(runs)
    lazy = OffsetRuns(START, parts[:encoded])
    for run in itertools.chain.from_iterable(part.decoded() for part in parts[encoded:]):
        lazy.append(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_runs, "_KEPT_PARTS", kept)
        assert (lazy.start, lazy.end, lazy.is_empty) == (whole.start, whole.end, not runs)
        assert _mapped(lazy.runs()).runs() == whole.runs()
        for offset in range(max(whole.end) + 3):
            for side, find in enumerate((lazy.at_source, lazy.at_destination)):
                found, expected = find(offset), _naive(side, runs, offset)
                if not skips[encoded:]:
                    assert found == expected
                assert (found is None) == (expected is None)
            assert lazy.to_destination(offset) == whole.to_destination(offset)
            assert lazy.to_source(offset) == whole.to_source(offset)
            assert lazy.lowest(offset) == whole.lowest(offset)
            before = [run for run in runs if run.source < offset]
            lowest = min(offset, before[-1].source_end) if before else START.source
            assert lazy.lowest(offset) == lowest


def test_a_lookup_decodes_what_it_lands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither the time nor the memory of a reader grows with the map's runs."""
    parts, _ = _parts([[(1, 1, 2)] * 3] * 50)
    decoded: list[Ends] = []
    original = offset_runs.decode_runs

    def decode(start: Ends, data: bytes) -> list[Run]:
        decoded.append(start)
        return original(start, data)

    monkeypatch.setattr(offset_runs, "decode_runs", decode)
    runs = OffsetRuns(START, parts)
    assert runs.to_destination(parts[30].start.source + 1) == parts[30].start.destination + 1
    assert runs.to_source(parts[30].start.destination + 2) == parts[30].start.source + 2
    assert runs.lowest(parts[30].start.source + 2) == parts[30].start.source + 2
    assert decoded == [parts[30].start]
    assert runs.to_destination(runs.end.source + 5) == runs.end.destination
    assert decoded == [parts[30].start]
    for part in parts:
        runs.to_source(part.start.destination)
    assert len(decoded) <= 1 + len(parts)
    assert len(runs._decoded) == offset_runs._KEPT_PARTS


def test_a_damaged_part_gives_no_offset_and_the_others_do() -> None:
    """Goal: runs that do not end where their part is recorded to end are never used."""
    parts, runs = _parts([[(1, 1, 2), (0, 3, 4)]] * 3)
    for data in (parts[1].data[:3], parts[1].data[:-1] + b"\6", parts[1].data[:-1], b"\xff"):
        damaged = [parts[0], EncodedRuns(parts[1].start, parts[1].end, data), parts[2]]
        lazy = OffsetRuns(START, damaged)
        for offset in range(parts[1].start.source, parts[1].end.source):
            with pytest.raises(ProtocolError, match="runs of offsets"):
                lazy.to_destination(offset)
        for offset in range(parts[1].start.destination, parts[1].end.destination):
            with pytest.raises(ProtocolError, match="runs of offsets"):
                lazy.to_source(offset)
        with pytest.raises(ProtocolError, match="runs of offsets"):
            lazy.runs()
        for run in (*runs[:2], *runs[4:]):
            assert lazy.to_destination(run.source) == run.destination
            assert lazy.to_source(run.destination) == run.source


def test_parts_that_do_not_follow_each_other_are_no_map() -> None:
    """Goal: nothing is translated by parts between which one is missing."""
    parts, _ = _parts([[(1, 1, 2)]] * 3)
    for wrong in ([parts[0], parts[2]], parts[1:], parts[::-1]):
        with pytest.raises(ValueError, match="a part begins at"):
            OffsetRuns(START, wrong)


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
