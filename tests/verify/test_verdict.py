"""Every offset has one class, and two logs are the same only if readers see the same."""

from collections.abc import Iterator, Mapping
from itertools import product

import pytest
from batch_builders import THEN, batch, holed, record
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.log.batch import LOG_APPEND_TIME
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord
from twinlog.verify.log_view import Kind, Span, spans
from twinlog.verify.verdict import (
    COMPACTED,
    LOG_START,
    MAX_RANGES,
    Alive,
    DifferenceKind,
    Outcome,
    StretchClassifier,
    Tally,
    digest,
    outcome,
)

TABLE = """
              DATA    CONTROL ABORTED HOLE    BELOW   UNSEEN
    DATA      -       lost    lost    lost    begins  unseen
    CONTROL   added   absent  absent  hole    absent  unseen
    ABORTED   added   absent  absent  hole    absent  unseen
    HOLE      added   hole    hole    hole    hole    unseen
    BELOW     absent  absent  absent  absent  absent  absent
    UNSEEN    unseen  unseen  unseen  unseen  unseen  unseen
"""


def rows() -> Iterator[tuple[Kind, Kind, str]]:
    head, *lines = (line.split() for line in TABLE.strip().splitlines())
    for name, *cells in lines:
        for column, cell in zip(head, cells, strict=True):
            yield Kind[name], Kind[column], cell


def word(found: Outcome, *, compacted: bool) -> str:
    if found.absent:
        return "absent"
    names = {
        DifferenceKind.LOST: "lost",
        DifferenceKind.ADDED: "added",
        DifferenceKind.BEGINS: "begins",
        DifferenceKind.UNEXPLAINED: "hole",
    }
    assert found.differs != DifferenceKind.UNEXPLAINED or not compacted
    return names[found.differs] if found.differs else "unseen"


@pytest.mark.parametrize("compacted", [False, True])
def test_the_outcome_of_every_combination_of_kinds(*, compacted: bool) -> None:
    """Goal: all combinations, as documented; a hole is absent on a compacted topic only."""
    table = list(rows())
    # Only flows with transforms have the others.
    kinds = set(Kind) - {Kind.FILTERED, Kind.ROUTED, Kind.OTHERS}
    assert {row[:2] for row in table} == set(product(kinds, kinds))
    for source, destination, cell in table:
        if cell == "-":
            continue
        expected = "absent" if cell == "hole" and compacted else cell
        found = outcome(source, destination, compacted=compacted)
        assert word(found, compacted=compacted) == expected, (source, destination)


def walk(verdict: StretchClassifier, source: list[Span], destination: list[Span], end: int) -> None:
    """Walk both lists in step."""
    at = 0
    while at < end:
        left = next(one for one in source if one.end > at)
        right = next(one for one in destination if one.end > at)
        upto = min(left.end, right.end, end)
        verdict.add(left, right, at, upto)
        at = upto


def classified(
    source: list[Span], destination: list[Span], end: int, *, compacted: bool = False
) -> Tally:
    verdict = StretchClassifier(compacted=compacted)
    walk(verdict, source, destination, end)
    found = verdict.finish(complete=True)
    assert found.length == end
    return found


def of(*batches: bytes) -> list[Span]:
    return spans(memoryview(b"".join(batches)), 0)


FIVE = [record(at, THEN + at) for at in range(5)]


def test_control_records_in_place_of_data_differ() -> None:
    """Goal: records lost by a false gap are never the same, compacted or not (A1)."""
    for compacted in (False, True):
        found = classified(of(batch(FIVE)), [Span(0, 5, Kind.CONTROL)], 5, compacted=compacted)
        assert found.differences == [(0, 5, DifferenceKind.LOST)]
        assert (found.compared, found.differs) == (0, 5)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (record(2, THEN + 2, b"other"), DifferenceKind.CONTENT),
        (record(2, THEN + 2, None), DifferenceKind.CONTENT),
        (record(2, THEN + 2, key=b"other"), DifferenceKind.CONTENT),
        (record(2, THEN + 3), DifferenceKind.TIMESTAMP),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_changed_record_is_reported(changed: RawRecord, reason: str, codec: Codec) -> None:
    """Goal: the offset and the differing fields are reported, in any batches."""
    other = [*FIVE[:2], changed, *FIVE[3:]]
    found = classified(of(batch(FIVE)), of(*(batch([one], codec) for one in other)), 5)
    assert (found.compared, found.differences) == (4, [(2, 3, reason)])


def test_log_append_time_counts_as_the_timestamp() -> None:
    """Goal: LogAppendTime that was forwarded unchanged would be detected."""
    stamped = batch(FIVE, attributes=LOG_APPEND_TIME)
    assert classified(of(stamped), of(stamped), 5).compared == 5
    assert classified(of(stamped), of(batch(FIVE)), 5).differences == [
        (0, 4, DifferenceKind.TIMESTAMP)
    ]


def test_a_hole_without_compaction_is_a_difference() -> None:
    """Goal: only compaction leaves holes, so it is a difference on either side."""
    holes = of(holed(0, 4, [(0, THEN), (4, THEN)]))
    assert classified(holes, holes, 5).differences == [(1, 4, DifferenceKind.UNEXPLAINED)]
    assert classified(holes, holes, 5, compacted=True).absent[COMPACTED] == 3


def test_offsets_below_the_source_log_start_are_absent() -> None:
    """Goal: it is absent by evidence, and the record before the destination's start is not."""
    below = [Span(0, 5, Kind.BELOW)]
    assert classified(below, of(batch(FIVE)), 5).absent == {LOG_START: 5}
    assert classified(of(batch(FIVE)), below, 5).differences == [(0, 5, DifferenceKind.BEGINS)]


def test_counts_stay_exact_beyond_the_number_of_named_ranges() -> None:
    """Goal: counts stay exact where ranges are no longer named."""
    tally = Tally()
    for at in range(0, 4 * MAX_RANGES, 2):
        tally.differ(at, at + 1, DifferenceKind.LOST)
    assert tally.differs == 2 * MAX_RANGES
    assert len(tally.differences) == MAX_RANGES + 1
    assert tally.differences[-1].end == 4 * MAX_RANGES - 1


# ---- compacted logs, against a naive oracle ------------------------------------------------------

KEYS = (b"a", b"b", b"a key that is longer than its digest")
Entry = tuple[bytes, bytes | None]
Log = Mapping[int, Entry]


def stored_log(log: Log, end: int) -> list[Span]:
    """Return a log of these records, ended by a control record that proves the holes."""
    found, at = [], 0
    for offset, (key, value) in sorted(log.items()):
        if offset > at:
            found.append(Span(at, offset, Kind.HOLE))
        found += spans(memoryview(batch([record(offset, THEN, value, key)])), offset)
        at = offset + 1
    if at < end:
        found.append(Span(at, end, Kind.HOLE))
    return found


def latest(log: Mapping[int, Entry], end: int) -> dict[bytes, tuple[int, bytes]]:
    """Return each key's latest value below `end`, with its offset; a deleted key has none."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset in sorted(log):
        if offset < end:
            last[log[offset][0]] = offset, log[offset][1]
    return {key: (at, value) for key, (at, value) in last.items() if value is not None}


def judge_logs(source: Log, destination: Log, reached: int, end: int) -> Tally:
    """Do what `verify/job.py` does, on lists: offsets below `reached` are compared."""
    verdict = StretchClassifier(compacted=True)
    walk(verdict, stored_log(source, end), stored_log(destination, reached), reached)
    keys = verdict.keys
    assert keys is not None
    for log, on_source in ((source, True), (destination, False)):
        for offset in sorted(log):
            if offset >= reached:
                key, value = log[offset]
                verdict.newer(record(offset, THEN, value, key), on_source=on_source)
    alive = []
    for log, on_source in ((source, False), (destination, True)):
        search = Alive(keys.tombstones(on_source=on_source))
        search.add(record(at, THEN, log[at][1], log[at][0]) for at in sorted(log))
        alive.append(search.keys)
    tally = verdict.finish(complete=True, alive_on_source=alive[0], alive_on_destination=alive[1])
    assert tally.length == reached
    return tally


entries = st.tuples(st.sampled_from(KEYS), st.sampled_from([b"x", b"y", None]))


@given(st.lists(entries, max_size=8), st.data())
def test_logs_with_different_latest_values_differ(
    written: list[Entry], drawn: st.DataObject
) -> None:
    """Goal: whatever is missing on either side, logs whose latest values differ are not the same.

    Any records may be missing, not only those that a cleaner removes.
    """
    every = dict(enumerate(written))
    end = len(written)
    offsets = st.sets(st.sampled_from(range(end))) if end else st.just(set())
    source = {at: one for at, one in every.items() if at not in drawn.draw(offsets)}
    destination = {at: one for at, one in every.items() if at not in drawn.draw(offsets)}
    tally = judge_logs(source, destination, end, end)
    if latest(source, end) != latest(destination, end):
        assert tally.differs


@given(st.lists(entries, max_size=10), st.data())
def test_compaction_causes_no_difference(written: list[Entry], drawn: st.DataObject) -> None:
    """Goal: a sound mirror is the same whenever each cleaner ran, with deletions, behind or not.

    Sound: the source keeps tombstones until the mirror has them; else a deletion is missed (E2).
    """
    every = dict(enumerate(written))
    end = len(written)
    reached = drawn.draw(st.integers(0, end))
    source = compact(every, drawn, end, tombstones_below=reached)
    copied = {at: one for at, one in every.items() if at < reached}
    destination = compact(copied, drawn, reached, tombstones_below=reached)
    tally = judge_logs(source, destination, reached, end)
    assert tally.differences == []


def compact(log: Log, drawn: st.DataObject, end: int, *, tombstones_below: int) -> Log:
    """Return a log after a cleaner: superseded records up to any offset go, then tombstones."""
    upto = drawn.draw(st.integers(0, end))
    last = {key: at for at, (key, _) in sorted(log.items()) if at < upto}
    kept = {at: one for at, one in log.items() if at >= upto or last[one[0]] == at}
    if drawn.draw(st.booleans()):
        gone = min(upto, tombstones_below)
        kept = {at: one for at, one in kept.items() if at >= gone or one[1] is not None}
    return kept


def test_a_stale_key_whose_tombstone_was_compacted_is_a_difference() -> None:
    """Goal: E2: the mirror was paused for longer than delete.retention.ms."""
    tally = judge_logs({3: (b"b", b"x")}, {0: (b"a", b"old"), 3: (b"b", b"x")}, 4, 4)
    assert tally.differences == [(0, 1, DifferenceKind.LATEST)]
    tally = judge_logs({0: (b"a", b"x"), 2: (b"a", None)}, {0: (b"a", b"x"), 3: (b"b", b"x")}, 4, 4)
    assert [difference.start for difference in tally.differences] == [2, 3]


def test_unseen_successors_make_a_record_unseen() -> None:
    """Goal: a record whose successor was not seen counts as not seen, and not as a difference."""
    verdict = StretchClassifier(compacted=True)
    verdict.add(stored_log({0: (b"a", b"x")}, 1)[0], Span(0, 1, Kind.HOLE), 0, 1)
    verdict.tally.see_not(1, 5, "why")
    tally = verdict.finish(complete=False)
    assert (tally.differs, tally.not_seen, tally.length) == (0, 5, 5)


def test_key_digests_are_bounded_and_do_not_collide() -> None:
    """Goal: short keys are their own digests; long ones have a bounded size and do not collide."""
    assert digest(b"short") == b"short"
    long = {digest(bytes([at]) * 500) for at in range(50)}
    assert len(long) == 50
    assert {len(one) for one in long} == {16}


@given(st.lists(entries, max_size=10), st.data())
def test_compaction_during_the_read_causes_no_difference(
    written: list[Entry], drawn: st.DataObject
) -> None:
    """Goal: records appended since the ends were read explain what cleaners have removed by now.

    They explain nothing else: without some of them, differing latest values are found.
    """
    every = dict(enumerate(written))
    end = len(written)
    destination_end = drawn.draw(st.integers(0, end))
    asked = drawn.draw(st.integers(0, destination_end))
    source = compact(every, drawn, end, tombstones_below=destination_end)
    copied = {at: one for at, one in every.items() if at < destination_end}
    destination = compact(copied, drawn, destination_end, tombstones_below=destination_end)
    assert judge_logs(source, destination, asked, end).differences == []
    lost = drawn.draw(st.sets(st.integers(0, max(asked - 1, 0))))
    damaged = {at: one for at, one in destination.items() if at >= asked or at not in lost}
    whole = {**source, **{at: one for at, one in damaged.items() if at not in source}}
    if destination_end == end and latest(whole, end) != latest(damaged, end):
        assert judge_logs(whole, damaged, asked, end).differs


def test_uncompared_records_do_not_explain_added_records() -> None:
    """Goal: foreign records of one key in a hole and behind the end are a difference."""
    source = {0: (b"k", b"x"), 2: (b"other", b"x")}
    destination = {
        0: (b"k", b"x"),
        1: (b"k", b"foreign"),
        2: (b"other", b"x"),
        3: (b"k", b"foreign"),
    }
    assert judge_logs(source, destination, 3, 3).differs == 1
    later = {3: (b"k", b"x")}
    assert judge_logs(source | later, destination | later, 3, 4).differs == 0


def test_a_keyless_record_on_one_side_is_not_seen() -> None:
    """Goal: a keyless record on one side alone is neither the same nor a difference."""
    verdict = StretchClassifier(compacted=True)
    lone = spans(memoryview(batch([record(0, THEN, b"x", None)])), 0)
    walk(verdict, lone, [Span(0, 1, Kind.HOLE)], 1)
    tally = verdict.finish(complete=True)
    assert (tally.not_seen, tally.differs, tally.absent.total()) == (1, 0, 0)
