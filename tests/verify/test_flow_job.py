"""`flow_job`: two logs that are compared by their records, on logs that are written down."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_flows import FACTS, KnownFacts, compare_logs
from written_logs import WrittenLog

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, Run, encode_runs
from twinlog.verify import flow_walk
from twinlog.verify.flow_job import (
    BEFORE,
    DELETED,
    FOREIGN,
    POLICY_UNREAD,
    REPEATED,
)
from twinlog.verify.flow_task import NO_BEGIN, FlowClaim, FlowCompared
from twinlog.verify.flow_walk import nearest
from twinlog.verify.job import OPEN_TRANSACTION, Sides
from twinlog.verify.log_view import Kind
from twinlog.verify.map_check import LOST_COPIES, MapClaim
from twinlog.verify.verdict import DifferenceKind, Tally


def compare(
    source: WrittenLog,
    remote: WrittenLog,
    claim: FlowClaim | None = None,
    *,
    open_offsets: int = 0,
    in_transactions: bool = False,
    facts: KnownFacts = FACTS,
) -> FlowCompared:
    """Compare two logs; check that each offset has one class."""
    result = compare_logs(
        *(source, remote, claim or FlowClaim(end=source.end)),
        open_offsets=open_offsets,
        in_transactions=in_transactions,
        facts=facts,
    )
    assert result.source.length + result.behind == source.end - source.start
    lengths = {end - remote.start for end in (remote.end, remote.end + open_offsets)}
    assert result.remote.length in lengths
    return result


def claimed(runs: Sequence[Run], end: int, begin: Ends = NO_BEGIN) -> FlowClaim:
    """What a flow without transactions claims: its map begins where it has begun."""
    recorded = MapClaim(start=begin, position=end, runs=encode_runs(begin, runs))
    return FlowClaim(begin=begin, end=end, map=recorded)


def ranges(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.differences]


def unseen(tally: Tally) -> list[tuple[int, int, str]]:
    return [(start, end, str(reason)) for start, end, reason in tally.unseen]


def same(result: FlowCompared) -> bool:
    tallies = (result.source, result.remote, *([result.recorded] if result.recorded else []))
    return not any(tally.differences or tally.unseen for tally in tallies)


def test_equal_records_at_other_offsets_are_the_same() -> None:
    """Goal: markers, aborted records, fences, and how batches are cut, do not matter."""
    source = WrittenLog().records("abc").skip(1).skip(2, Kind.ABORTED).records("defg").records("h")
    remote = WrittenLog().skip(1).records("abcde").skip(1).records("fg").records("h")
    runs = [
        Run(Offset(0), Offset(1), 3),
        Run(Offset(6), Offset(4), 2),
        Run(Offset(8), Offset(7), 3),
    ]
    result = compare(source, remote, claimed(runs, 11))
    assert same(result)
    assert (result.source.compared, result.remote.compared) == (8, 8)
    assert result.source.absent == {"marker": 1, "aborted": 2}
    assert result.recorded is not None
    assert result.recorded.compared == 8


def test_what_is_not_claimed_is_behind_and_what_is_claimed_is_missing() -> None:
    source, remote = WrittenLog().records("abcdef"), WrittenLog().records("abc")
    assert same(result := compare(source, remote, FlowClaim(end=3)))
    assert result.behind == 3
    result = compare(source, remote, FlowClaim(end=5))
    assert ranges(result.source) == [(3, 5, DifferenceKind.LOST)]
    assert result.behind == 1


def test_an_open_transaction_is_not_the_flows_once_all_is_copied() -> None:
    """Goal: it is the flow's own only as long as the source has records to copy."""
    source, remote = WrittenLog().records("abc"), WrittenLog().records("abc").skip(1)
    behind = compare(source, remote, FlowClaim(end=2), open_offsets=2, in_transactions=True)
    assert same(behind)
    stuck = compare(
        *(source, remote, FlowClaim(end=2)),
        open_offsets=2,
        in_transactions=True,
        facts=KnownFacts(moves=False),
    )
    assert unseen(stuck.remote) == [(4, 6, OPEN_TRANSACTION)]
    for in_transactions in (True, False):
        result = compare(source, remote, open_offsets=2, in_transactions=in_transactions)
        assert unseen(result.remote) == [(4, 6, OPEN_TRANSACTION)]


def test_records_missing_in_the_middle_are_missing_whatever_is_claimed() -> None:
    source, remote = WrittenLog().records("abcdef"), WrittenLog().records("abef")
    result = compare(source, remote, FlowClaim())
    assert ranges(result.source) == [(2, 4, DifferenceKind.LOST)]
    assert ranges(result.remote) == []
    assert result.source.compared == 4


@pytest.mark.parametrize(
    ("copy", "found"),
    [
        ("abXcd", [(2, 3, FOREIGN)]),
        ("abcdX", [(4, 5, FOREIGN)]),
        ("Xabcd", [(0, 1, FOREIGN)]),
        ("abcbcd", [(3, 5, REPEATED)]),
        ("abcdabcd", [(4, 8, REPEATED)]),
        ("abcXYbd", [(3, 5, FOREIGN), (5, 6, REPEATED)]),
    ],
)
def test_records_too_many_are_foreign_or_repeated(
    copy: str, found: list[tuple[int, int, str]]
) -> None:
    result = compare(WrittenLog().records("abcd"), WrittenLog().records(copy))
    assert ranges(result.remote) == found
    assert ranges(result.source) == []
    assert result.source.compared == 4


def test_records_in_another_order_differ() -> None:
    result = compare(WrittenLog().records("abcd"), WrittenLog().records("acbd"))
    assert ranges(result.source) == [(1, 2, DifferenceKind.LOST)]
    assert ranges(result.remote) == [(2, 3, REPEATED)]


def test_altered_records_are_named_on_both_sides() -> None:
    source = WrittenLog().records("ab").records("c", 7).records("d")
    remote = WrittenLog().records("aX").records("c", 8).records("d")
    result = compare(source, remote)
    expected = [(1, 2, DifferenceKind.CONTENT), (2, 3, DifferenceKind.TIMESTAMP)]
    assert ranges(result.source) == ranges(result.remote) == expected


def test_altered_records_beside_markers_are_named_on_both_sides() -> None:
    """Goal: offsets that never had a record make no copy missing; those of a hole may."""
    source = WrittenLog().records("ab").skip(1).records("cd")
    remote = WrittenLog().records("aX").skip(2, Kind.ABORTED).records("Yd")
    result = compare(source, remote)
    assert ranges(result.source) == [
        (1, 2, DifferenceKind.CONTENT),
        (3, 4, DifferenceKind.CONTENT),
    ]
    assert ranges(result.remote) == [
        (1, 2, DifferenceKind.CONTENT),
        (4, 5, DifferenceKind.CONTENT),
    ]
    result = compare(WrittenLog().records("a").sparse(["b", None]).records("d"), remote)
    assert DifferenceKind.CONTENT not in {reason for _, _, reason in ranges(result.source)}


def test_records_whose_original_was_deleted_are_not_seen() -> None:
    """Goal: retention on the source proves nothing, and never counts as good."""
    source = WrittenLog(start=3).records("def")
    result = compare(source, WrittenLog().records("abcdef"))
    assert unseen(result.remote) == [(0, 3, f"no original: source: {DELETED}")]
    assert ranges(result.remote) == []
    assert result.source.compared == 3
    result = compare(source, WrittenLog().records("abcdXef"))
    assert ranges(result.remote) == [(4, 5, FOREIGN)], "only in front of the first pair"


def test_records_whose_copy_was_deleted_are_not_seen() -> None:
    remote = WrittenLog(start=3).records("def")
    result = compare(WrittenLog().records("abcdef"), remote)
    assert unseen(result.source) == [(0, 3, f"no copy: remote log: {DELETED}")]
    assert ranges(result.source) == []
    result = compare(WrittenLog().records("abcdxef"), remote)
    assert ranges(result.source) == [(4, 5, DifferenceKind.LOST)]


def test_holes_of_compaction_explain_only_what_is_beside_them() -> None:
    """Goal: a record without a pair beside a hole is not seen; any other one differs."""
    source = WrittenLog().records("abcdefgh")
    remote = WrittenLog().sparse(["a", None, "c", "d"]).records("fgh")
    result = compare(source, remote)
    assert [(start, end) for start, end, _ in unseen(result.source)] == [(1, 2)]
    assert ranges(result.source) == [(4, 5, DifferenceKind.LOST)]
    source = WrittenLog().sparse(["a", None, "c", "d"])
    result = compare(source, WrittenLog().records("abcXd"))
    assert [(start, end) for start, end, _ in unseen(result.remote)] == [(1, 2)]
    assert ranges(result.remote) == [(3, 4, FOREIGN)]


@pytest.mark.parametrize("is_compacted", [False, None])
def test_holes_that_compaction_does_not_explain_are_not_the_same(is_compacted: bool | None) -> None:
    """Goal: both logs lack the same record, which the source's `cleanup.policy` does not remove."""
    facts = KnownFacts(compacted=is_compacted)
    whole, lacking = WrittenLog().records("abc"), WrittenLog().sparse(["a", None, "c"])
    for source, remote in ((lacking, WrittenLog().records("ac")), (whole, lacking)):
        side = "source" if source is lacking else "remote"
        tally = getattr(compare(source, remote, facts=facts), side)
        found = ranges(tally) if is_compacted is False else unseen(tally)
        reason = DifferenceKind.UNEXPLAINED if is_compacted is False else POLICY_UNREAD
        assert found == [(1, 2, reason)]


def test_what_cannot_be_read_is_not_seen_on_both_sides() -> None:
    source = WrittenLog().records("ab").skip(4, Kind.UNSEEN, "no answer")
    result = compare(source, WrittenLog().records("abcd"))
    assert unseen(result.source) == [(2, 6, "no answer")]
    assert [(start, end) for start, end, _ in unseen(result.remote)] == [(2, 4)]
    result = compare(WrittenLog().records("abcd"), source)
    assert [(start, end) for start, end, _ in unseen(result.source)] == [(2, 4)]
    assert not result.source.differences


def test_what_is_in_front_of_the_begin_is_compared_by_itself() -> None:
    """Goal: another program has copied abc, b twice; the flow has begun at c, and copied it too."""
    source = WrittenLog().records("abcdef")
    remote = WrittenLog().records("abbcX").records("cdef")
    begin = Ends(Offset(2), Offset(5))
    runs = [Run(Offset(2), Offset(5), 4)]
    result = compare(source, remote, replace(claimed(runs, 6, begin), taken_over=True))
    assert not result.source.differences
    assert not result.remote.differences
    assert not unseen(result.source)
    text = f"no original: source: {BEFORE}"
    assert unseen(result.remote) == [(2, 5, text)]
    assert result.source.compared == 6
    assert result.recorded is not None
    assert (result.recorded.compared, result.recorded.differs) == (4, 0)


def test_a_wrong_begin_makes_nothing_good() -> None:
    """Goal: a begin that is recorded too far is found, whatever it says of both sides."""
    source, remote = WrittenLog().records("abcdef"), WrittenLog().records("abcdef")
    for at in ((3, 3), (2, 4), (4, 2), (6, 6), (9, 9), (0, 3), (3, 0)):
        begin = Ends(Offset(at[0]), Offset(at[1]))
        assert not same(compare(source, remote, claimed([], 6, begin))), at


def test_a_wrong_map_is_reported_and_records_stay_equal() -> None:
    source, remote = WrittenLog().records("abcdef"), WrittenLog().records("abcdef")
    runs = [Run(Offset(0), Offset(0), 2), Run(Offset(2), Offset(3), 3)]
    result = compare(source, remote, claimed(runs, 6))
    assert result.source.compared == result.remote.compared == 6
    assert result.recorded is not None
    assert [(start, end) for start, end, _ in ranges(result.recorded)] == [(2, 5), (5, 6)]


def stamped(log: WrittenLog) -> WrittenLog:
    """The log, as if a broker had set its timestamps (LogAppendTime)."""
    for span in log.spans:
        assert span.batch is not None
        assert span.batch.header is not None
        attributes = span.batch.header.attributes | 8
        span.batch.header = span.batch.header._replace(attributes=attributes)
    return log


def run_of(source: int, remote: int, length: int) -> Run:
    return Run(Offset(source), Offset(remote), length)


def mapped(
    runs: Sequence[Run],
    end: int,
    begin: tuple[int, int] = (0, 0),
    position: int | None = None,
    **settings: bool,
) -> FlowClaim:
    """What a flow in transactions claims: its map has a beginning and a position of its own."""
    start = Ends(*map(Offset, begin))
    recorded = MapClaim(
        start=start,
        position=end if position is None else position,
        runs=encode_runs(start, runs),
        may_repeat=True,
        **settings,
    )
    return FlowClaim(end=end, map=recorded)


MAPPED = Sides(
    WrittenLog().records("abc").skip(1).records("defg").skip(1, Kind.ABORTED).records("hij"),
    WrittenLog().skip(2).records("abc").skip(1).records("defg").skip(1).records("hij").skip(1),
)
"""Two logs that are the same, with other offsets."""
RIGHT = [run_of(0, 2, 3), run_of(4, 6, 4), run_of(9, 11, 3)]
"""The map of them."""
IN_FRONT = "recorded map: it begins at source offset 4, behind these copies"


@pytest.mark.parametrize(
    ("runs", "differing"),
    [
        (RIGHT, []),
        ([run_of(0, 2, 2), run_of(2, 4, 1), *RIGHT[1:]], []),
        ([RIGHT[0], run_of(4, 7, 4), RIGHT[2]], [(4, 8)]),
        ([RIGHT[0], run_of(4, 5, 4), RIGHT[2]], [(4, 8)]),
        ([RIGHT[0], run_of(4, 7, 3), RIGHT[2]], [(4, 7), (7, 8)]),
        ([run_of(1, 2, 3), *RIGHT[1:]], [(0, 1), (1, 3), (3, 4)]),
        ([RIGHT[0], RIGHT[2]], [(4, 8)]),
        (RIGHT[:2], [(9, 12)]),
        ([RIGHT[0], run_of(3, 5, 1), *RIGHT[1:]], [(3, 4)]),
        ([*RIGHT[:2], run_of(8, 10, 1), RIGHT[2]], [(8, 9)]),
        ([*RIGHT, run_of(12, 14, 2)], [(12, 14)]),
        ([*RIGHT[:2], run_of(9, 15, 3)], [(9, 12)]),
    ],
)
def test_each_fault_in_the_map_of_a_flow_in_transactions_is_found(
    runs: list[Run], differing: list[tuple[int, int]]
) -> None:
    """Goal: runs that are shifted, missing or too many; the records stay equal."""
    result = compare(*MAPPED, mapped(runs, 12), in_transactions=True)
    assert result.source.compared == 10
    assert not result.source.differences
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == differing
    assert same(result) == (not differing)
    assert result.recorded.not_seen == 0


def test_what_a_map_does_not_have_is_not_seen() -> None:
    """Goal: one that has begun later, or that has lost records, is never equal.

    If it claims that nothing was copied before, it is wrong.
    """
    late = mapped(RIGHT[1:], 12, (4, 6), lacks_start=True)
    result = compare(*MAPPED, late)
    assert result.recorded is not None
    assert unseen(result.recorded) == [(0, 4, IN_FRONT)]
    assert (result.recorded.compared, result.recorded.not_seen) == (7, 3)
    assert not result.recorded.differences
    shifted = mapped([run_of(4, 7, 4), RIGHT[2]], 12, (4, 6), lacks_start=True)
    result = compare(*MAPPED, shifted)
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(4, 8)]
    result = compare(*MAPPED, mapped(RIGHT[1:], 12, (4, 6)))
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(0, 3)]
    for runs in (RIGHT, RIGHT[1:]):
        result = compare(*MAPPED, mapped(runs, 12, is_lost=True))
        assert result.recorded is not None
        assert (result.recorded.compared, result.recorded.differs) == (0, 0)
        assert unseen(result.recorded) == [(0, 12, LOST_COPIES)]
        assert not same(result)


def test_a_map_is_held_to_its_own_position() -> None:
    """Goal: what was copied since it was read is not lacking; what it has to have, is."""
    assert same(compare(*MAPPED, mapped(RIGHT[:2], 9)))
    behind = compare(*MAPPED, mapped(RIGHT[:2], 12, position=9)).recorded
    assert behind is not None
    reason = "recorded map: it ends at source offset 9, in front of these copies"
    assert unseen(behind) == [(9, 12, reason)], "it was read after the position"
    assert not same(compare(*MAPPED, mapped(RIGHT[:2], 9, position=12)))
    # An operator has set the position back; nothing was copied again yet.
    assert same(compare(*MAPPED, mapped(RIGHT, 4, position=12)))


def test_entries_behind_what_is_copied_are_wrong() -> None:
    """Goal: also if the flow does not claim the records; an open transaction may have them."""
    source, remote = WrittenLog().records("abcdef"), WrittenLog().records("abc").skip(1)
    claim = mapped([run_of(0, 0, 3), run_of(4, 4, 1)], 3)
    result = compare(source, remote, claim)
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(4, 5)]
    assert result.behind == 3
    result = compare(source, remote, claim, open_offsets=2, in_transactions=True)
    assert result.recorded is not None
    assert result.recorded == Tally(compared=3, not_seen=1)
    beyond = mapped([*RIGHT[:2], run_of(9, 15, 3)], 12)
    result = compare(*MAPPED, beyond, open_offsets=5)
    assert result.recorded is not None
    assert [one[:2] for one in unseen(result.recorded)] == [(9, 12)]
    assert not result.recorded.differences
    result = compare(source, remote, mapped([run_of(0, 0, 3)], 3, position=5))
    assert result.recorded is not None
    assert [one[:2] for one in unseen(result.recorded)] == [(3, 5)]


def test_a_map_may_have_the_second_copy_of_a_record() -> None:
    """Goal: a position that was set back: the map is not wrong there, and not equal either."""
    source = WrittenLog().records("abcdef")
    remote = WrittenLog().records("abcd").skip(1).records("cd").skip(1).records("ef").skip(1)
    runs = [run_of(2, 5, 2), run_of(4, 8, 2)]
    result = compare(source, remote, mapped(runs, 6, (2, 5), lacks_start=True))
    assert ranges(result.remote) == [(5, 7, REPEATED)]
    assert result.recorded is not None
    assert not result.recorded.differences
    assert (result.recorded.compared, result.recorded.not_seen) == (2, 4)
    assert [one[:2] for one in unseen(result.recorded)] == [(2, 4), (0, 2)]
    # The records there are others': that is known of foreign ones, too.
    remote = WrittenLog().records("abcd").skip(1).records("XY").skip(1).records("ef").skip(1)
    result = compare(source, remote, mapped(runs, 6, (2, 5), lacks_start=True))
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(2, 4)]


def test_places_that_are_known_by_no_equal_record_are_not_judged() -> None:
    """Goal: copies that were altered, and a target that stamps times, which no repeat equals."""
    source = WrittenLog().records("abcdef")
    altered = WrittenLog().records("abXdef")
    result = compare(source, altered, mapped([run_of(0, 0, 1), run_of(1, 2, 1)], 6, position=2))
    assert ranges(result.remote) == [(2, 3, DifferenceKind.CONTENT)]
    assert result.recorded is not None
    assert [one[:2] for one in unseen(result.recorded)] == [(2, 6), (1, 2)]
    assert not result.recorded.differences
    repeated = WrittenLog().records("abcd", 5).records("cd", 5).records("ef", 5)
    runs = [run_of(0, 1, 1), run_of(2, 4, 2), run_of(4, 6, 2)]
    result = compare(source, stamped(repeated), mapped(runs, 6))
    assert result.recorded is not None
    assert [one[:2] for one in ranges(result.recorded)] == [(0, 1), (1, 2)]
    assert [one[:2] for one in unseen(result.recorded)] == [(2, 4)]
    assert result.recorded.compared == 2


@given(
    skips=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=5
    )
)
@settings(max_examples=300, deadline=None)
def test_a_map_is_right_exactly_if_it_has_each_place(skips: list[tuple[int, int, int]]) -> None:
    """Goal: any map, compared with the places that are known."""
    runs, at = [], (0, 0)
    for source, remote, count in skips:
        runs.append(run_of(at[0] + source, at[1] + remote, count))
        at = runs[-1].source_end, runs[-1].destination_end
    right, stored = (
        {run.source + n: run.destination + n for run in each for n in range(run.length)}
        for each in (RIGHT, runs)
    )
    result = compare(*MAPPED, mapped(runs, 12))
    assert result.recorded is not None
    offsets = right.keys() | stored.keys()
    assert result.recorded.differs == sum(right.get(one) != stored.get(one) for one in offsets)
    assert result.recorded.compared == sum(right.get(one) == stored.get(one) for one in offsets)
    assert result.recorded.not_seen == 0


def test_a_target_that_stamps_times_differs_in_times_only() -> None:
    """Goal: records are still known by their contents (LogAppendTime on the target)."""
    source, remote = WrittenLog().records("abcd"), WrittenLog().records("abd", 5)
    result = compare(source, stamped(remote))
    assert ranges(result.remote) == [(0, 3, DifferenceKind.TIMESTAMP)]
    assert (2, 3, DifferenceKind.LOST) in ranges(result.source)


def numbered(first: int, end: int) -> list[str]:
    return [f"value-{number}" for number in range(first, end)]


def batched(values: Sequence[str], size: int) -> WrittenLog:
    log = WrittenLog()
    for first in range(0, len(values), size):
        log.records(values[first : first + size])
    return log


def test_far_pairs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a gap, and foreign records, that are longer than what is looked at closely."""
    monkeypatch.setattr(flow_walk, "WINDOWS", (4, 16))
    values = numbered(0, 1000)
    lost = [*values[:100], *values[700:]]
    result = compare(batched(values, 7), batched(lost, 11))
    assert ranges(result.source) == [(100, 700, DifferenceKind.LOST)]
    assert not result.remote.differences
    more = [*values[:100], *(f"x{at}" for at in range(600)), *values[100:]]
    result = compare(batched(values, 7), batched(more, 11))
    assert ranges(result.remote) == [(100, 700, FOREIGN)]
    assert not result.source.differences
    other = [f"x{at}" for at in range(600)]
    result = compare(batched(values, 7), batched(other, 11), FlowClaim(end=10))
    assert ranges(result.remote) == [(0, 600, FOREIGN)]
    assert ranges(result.source) == [(0, 10, DifferenceKind.LOST)]
    assert result.behind == 990


@given(
    copied=st.integers(0, 30),
    claimed=st.integers(0, 30),
    edits=st.lists(
        st.tuples(st.sampled_from(["lose", "add", "repeat", "alter"]), st.integers(0, 30)),
        max_size=3,
    ),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    markers=st.sets(st.integers(0, 30)),
    window=st.integers(1, 8),
)
@settings(max_examples=300, deadline=None)
def test_only_a_whole_copy_is_good(
    *,
    copied: int,
    claimed: int,
    edits: list[tuple[str, int]],
    sizes: tuple[int, int],
    markers: set[int],
    window: int,
) -> None:
    """Goal: good exactly if the remote records are the source's first ones, all that is claimed."""
    values = numbered(0, 30)
    copy = values[:copied]
    for edit, place in edits:
        at = min(place, len(copy))
        if edit == "add":
            copy.insert(at, f"foreign-{place}")
        elif edit == "repeat" and copy:
            copy.insert(at, copy[place % len(copy)])
        elif edit == "alter" and at < len(copy):
            copy[at] = f"altered-{place}"
        elif at < len(copy):
            del copy[at]
    source, remote = batched(values, sizes[0]), WrittenLog()
    for at, value in enumerate(copy):
        if at in markers:
            remote.skip(1)
        remote.records([value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_walk, "WINDOWS", (window,))
        result = compare(source, remote, FlowClaim(end=claimed))
    good = copy == values[: len(copy)] and claimed <= len(copy)
    assert same(result) == good, (ranges(result.source), ranges(result.remote))
    assert not result.source.unseen
    assert not result.remote.unseen
    assert result.source.compared == result.remote.compared


@given(
    removed=st.tuples(st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29))),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    foreign=st.none() | st.integers(0, 29),
    window=st.integers(1, 8),
)
@settings(max_examples=300, deadline=None)
def test_two_cleaners_make_no_difference_and_hide_no_pair(
    *,
    removed: tuple[set[int], set[int]],
    sizes: tuple[int, int],
    foreign: int | None,
    window: int,
) -> None:
    """Goal: both logs are compacted at random: what both have is compared, the rest is not seen.

    A foreign record is never good.
    """
    values = numbered(0, 30)
    logs: list[WrittenLog] = []
    for gone, size in zip(removed, sizes, strict=True):
        kept = [None if at in gone else value for at, value in enumerate(values)]
        if foreign is not None and len(logs) == 1:
            kept.insert(foreign, "foreign")
        log = WrittenLog()
        for first in range(0, len(kept), size):
            log.sparse(kept[first : first + size])
        logs.append(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_walk, "WINDOWS", (window,))
        source, remote = logs
        result = compare(source, remote)
    both = 30 - len(removed[0] | removed[1])
    assert result.source.compared == result.remote.compared == both
    assert not result.source.differences
    if foreign is None:
        assert not result.remote.differences
        assert same(result) == (removed[0] == removed[1])
    else:
        assert not same(result)
        assert len(result.remote.differences) + len(result.remote.unseen) >= 1


def test_the_nearest_pair_has_the_fewest_records_before_it() -> None:
    keys = [b"a", b"b", b"c", b"d"]
    assert nearest(keys, [b"x", b"c", b"b"]) == (2, 1)
    assert nearest(keys, [b"x", b"y", b"z"]) is None
    assert nearest(keys, [b"d", b"x", b"x", b"x", b"a"]) == (3, 0)
    assert nearest([b"a", b"a"], [b"x", b"a"]) == (0, 1)
