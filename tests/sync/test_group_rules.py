"""The offsets that are committed for a group; with brokers: test_groups_on_brokers.py."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.group_records import GroupMemory, PartitionMemory, metadata_checksum
from twinlog.sync.group_readings import Log
from twinlog.sync.group_rules import (
    due_offsets,
    in_destination_offsets,
    in_source_offsets,
    moved_by_others,
    own_offsets,
    remembered,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
partitions = st.sampled_from([A, B, TopicPartition("u", 0)])
committed = st.builds(Committed, st.integers(0, 50), st.sampled_from(["", "m", "n"]), st.just(-1))
offsets = st.dictionaries(partitions, committed)
logs = st.dictionaries(
    partitions,
    st.tuples(st.integers(0, 20), st.integers(0, 30)).map(lambda t: Log(t[0], t[0] + t[1])),
)


def memory(partitions: Mapping[TopicPartition, PartitionMemory]) -> GroupMemory:
    return GroupMemory(mirror="m", group="g", kind="classic", partitions=partitions)


def test_an_offset_is_copied_with_its_metadata() -> None:
    """It has the application's metadata, but not the source's leader epoch."""
    source = {A: Committed(7, "seen", 3)}
    assert due_offsets(source, {}, {A: Log(0, 10)}) == {A: Committed(7, "seen")}


def test_an_offset_beyond_the_log_end_is_lowered_to_it() -> None:
    """The consumer's client would reset an offset beyond the log end.

    Its metadata may refer to that very offset, and is left out until the offset itself follows.
    """
    source = {A: Committed(7, "of 7"), B: Committed(1, "of 1")}
    due = due_offsets(source, {}, {A: Log(0, 5), B: Log(3, 9)})
    assert due == {A: Committed(5), B: Committed(3)}
    assert due_offsets(source, due, {A: Log(0, 7), B: Log(3, 9)}) == {A: Committed(7, "of 7")}


@given(offsets, offsets, logs)
def test_offsets_are_never_lowered_and_stay_within_the_log(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
) -> None:
    """Offsets not known to be the mirror's own are never lowered."""
    due = due_offsets(source, destination, logs)
    for partition, (offset, *_) in due.items():
        assert partition in source
        assert logs[partition].start <= offset <= logs[partition].end
        assert partition not in destination or offset > destination[partition].offset
    for partition in source.keys() & logs.keys() - due.keys():
        assert destination[partition].offset >= min(source[partition].offset, logs[partition].end)
    after = {**destination, **due}
    assert not due_offsets(source, after, logs), "the next check finds nothing to do"


@given(offsets, offsets, logs)
def test_copied_offsets_follow_the_source_backwards(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
) -> None:
    """They become the source's, with metadata, except what the log end offset holds back."""
    due = due_offsets(source, destination, logs, own=destination.keys())
    after = {**destination, **due}
    for partition in source.keys() & logs.keys():
        if logs[partition].start <= source[partition].offset <= logs[partition].end:
            assert after[partition] == source[partition]
    assert not due_offsets(source, after, logs, own=after.keys()), "the next check does nothing"


def test_a_lower_high_watermark_lowers_no_offsets() -> None:
    """After an election the high watermark is lower for a moment; the source did not rewind."""
    assert not due_offsets({A: Committed(9)}, {A: Committed(8)}, {A: Log(0, 5)}, own={A})


@pytest.mark.parametrize(
    ("found", "is_own"),
    [
        (Committed(7, "m"), True),
        (Committed(8, "m"), False),
        (Committed(6, "m"), False),
        (Committed(7, ""), False),
        (Committed(7, "m", 0), False),  # a consumer's: the mirror commits no leader epoch
    ],
)
def test_an_offset_belongs_to_the_mirror_if_equal_to_the_copy(
    found: Committed, *, is_own: bool
) -> None:
    known = memory({A: PartitionMemory(7, 7, metadata_checksum("m"))})
    assert own_offsets({A: found}, known) == (frozenset({A}) if is_own else frozenset())
    assert own_offsets({A: found}, None) == frozenset()


def test_changes_by_another_client_are_detected() -> None:
    known = memory({A: PartitionMemory(7, 7), B: PartitionMemory(9, -1, 0, 5)})
    same = {A: Committed(7), B: Committed(5)}
    assert not moved_by_others(same, own_offsets(same, known), known)
    for moved in ({A: Committed(8)}, {B: Committed(4)}, {TopicPartition("u", 0): Committed(1)}):
        assert moved_by_others(moved, own_offsets(moved, known), known)
    assert moved_by_others(same, frozenset(), None), "seen for the first time"
    assert not moved_by_others({}, frozenset(), None)


def test_unchecked_and_deleted_partitions_are_remembered() -> None:
    """A partition that was not checked, such as a paused one, keeps what is known of it.

    A checked partition without an offset was deleted on the source, until it has one again.
    """
    paused, gone = TopicPartition("paused", 0), TopicPartition("gone", 0)
    copies = {A: PartitionMemory(7, 7), paused: PartitionMemory(3, 3), gone: PartitionMemory(4, 4)}
    source = {A: Committed(8), B: Committed(9)}
    destination = {A: Committed(7), B: Committed(5)}
    after = {
        A: PartitionMemory(8, 7),
        B: PartitionMemory(9, -1, 0, 5),
        paused: PartitionMemory(3, 3),
        gone: PartitionMemory(-1, 4, deleted=1),
    }
    assert remembered(source, destination, {A}, memory(copies), {A, B, gone}) == after
    assert remembered(source, destination, {A}, memory(after), {A, B}) == after
    back = source | {gone: Committed(5)}
    known = memory(after)
    assert not remembered(back, destination, {A}, known, {A, B, gone})[gone].deleted


def mapped(*runs: tuple[int, int, int]) -> Translation:
    """Where offsets of partition A are, whose runs are these."""
    offsets = OffsetRuns(Ends(Offset(0), Offset(0)))
    for source, destination, length in runs:
        offsets.append(Run(Offset(source), Offset(destination), length))
    return Translation(maps={A: offsets})


def test_ownership_and_changes_are_told_by_offsets_of_the_destination() -> None:
    """Goal: equal offsets of the source do not count; a row of a former version has these."""
    copied = mapped((0, 0, 1000))
    known = memory({A: PartitionMemory(1000, 1000, translated=1)})
    former = memory({A: PartitionMemory(1000, 1000)})
    for raw, is_own in ((1000, True), (5000, False)):
        found = {A: Committed(raw)}
        assert own_offsets(found, known, copied) == (frozenset({A}) if is_own else frozenset())
        assert not own_offsets(found, former, copied)
        assert moved_by_others(found, own_offsets(found, known, copied), known, copied) != is_own
    seen = {A: Committed(5000)}
    after = memory(
        remembered({A: Committed(1000)}, seen, frozenset(), known, {A}, translation=copied)
    )
    assert after.partitions[A] == PartitionMemory(1000, -1, other=5000, sent=-1, translated=1)
    assert not moved_by_others(seen, frozenset(), after, copied)
    assert moved_by_others({A: Committed(5001)}, frozenset(), after, copied)


def test_offsets_are_compared_in_those_of_the_source() -> None:
    copied = mapped((0, 0, 10), (10, 50, 10))
    raw = {A: Committed(30, "m", 4), B: Committed(30)}
    found = {A: Committed(10, "m", 4), B: Committed(30)}
    assert in_source_offsets(raw, copied, {A: Committed(9)}, {A, B}, {}) == found
    assert in_source_offsets(raw, SAME, {A: Committed(9)}, {A, B}, {}) == raw


@pytest.mark.parametrize(
    ("runs", "offset", "log_end", "committed"),
    [
        ([(0, 0, 100)], 120, 101, 100),
        ([(0, 0, 100)], 110, 101, 100),  # its copy is lost
        ([], 120, 101, 0),
        ([(0, 0, 100), (120, 101, 5)], 120, 106, 101),
        ([(0, 0, 100), (120, 101, 5)], 125, 106, 106),
        ([(0, 0, 100), (120, 101, 500)], 140, 601, 121),
        ([(0, 0, 100), (120, 130, 5)], 125, 135, 135),  # not behind: it is raised
        ([(0, 0, 120)], 120, 121, None),
    ],
)
def test_an_own_offset_is_set_back_where_copies_are_lost(
    runs: list[tuple[int, int, int]], offset: int, log_end: int, committed: int | None
) -> None:
    """Goal: 120 was committed before the log was cut to 100; the group would skip new copies."""
    cut = replace(mapped(*runs), passed=frozenset({A}))
    offsets = cut.offsets(A)
    source = {A: Committed(offsets.lowest(offset))}
    logs = {A: Log(offsets.to_source(0), offsets.to_source(log_end), log_end)}
    raw = {A: Committed(120)}
    for own in (frozenset({A}), frozenset[TopicPartition]()):
        copies = in_source_offsets(raw, cut, source, own, logs)
        due = in_destination_offsets(due_offsets(source, copies, logs, own), raw, logs, own, cut)
        is_due = committed is not None and (bool(own) or committed > 120)
        assert due == ({A: Committed(committed)} if is_due and committed is not None else {})
        if due:  # once it is there, nothing is due any more
            copies = in_source_offsets(due, cut, source, own, logs)
            left = due_offsets(source, copies, logs, own)
            assert not in_destination_offsets(left, due, logs, own, cut)


@pytest.mark.parametrize(
    ("due", "raw", "is_own", "committed"),
    [
        (15, None, False, 55),
        (15, 30, False, 55),
        (15, 55, False, None),
        (15, 56, False, None),  # the group's own offset is not lowered
        (15, 56, True, 55),
        (15, 55, True, None),
    ],
)
def test_offsets_are_committed_in_those_of_the_destination(
    due: int, raw: int | None, *, is_own: bool, committed: int | None
) -> None:
    """Goal: what is there is not committed again, and an offset of another client not lowered."""
    copied = mapped((0, 0, 10), (10, 50, 10))
    destination = {} if raw is None else {A: Committed(raw)}
    own = {A} if is_own else set[TopicPartition]()
    logs = {A: Log(0, 20, 60)}
    found = in_destination_offsets({A: Committed(due)}, destination, logs, own, copied)
    assert found == ({} if committed is None else {A: Committed(committed)})


def test_no_offset_is_committed_behind_a_log_that_was_cut() -> None:
    """Goal: a consumer there would get OFFSET_OUT_OF_RANGE, and begin at either end."""
    cut = mapped((0, 50, 5), (5, 70, 10))  # others' records at 55 to 69; the log ends at 60
    offsets, source = cut.offsets(A), {A: Committed(12)}
    logs = {A: Log(0, offsets.to_source(60), 60)}
    due = in_destination_offsets(due_offsets(source, {}, logs), {}, logs, (), cut)
    assert due == {A: Committed(60)}
    copies = in_source_offsets(due, cut, source, {A}, logs)
    assert not due_offsets(source, copies, logs, {A})
    grown = {A: Log(0, offsets.to_source(80), 80)}
    due = in_destination_offsets(due_offsets(source, copies, grown, {A}), due, grown, {A}, cut)
    assert due == {A: Committed(77)}


@pytest.mark.parametrize(
    ("runs", "log_start", "log_end", "raw", "committed"),
    [
        ([(0, 0, 150)], 0, 152, 150, None),
        ([(0, 0, 150)], 152, 152, 150, 152),  # all copies are deleted, two fences follow them
        ([(0, 0, 150)], 151, 152, 150, 151),
        ([(0, 0, 150)], 152, 152, None, 152),
        ([(0, 0, 150)], 152, 152, 152, None),
        ([(0, 0, 150), (150, 152, 10)], 152, 162, 150, 152),
        ([(0, 0, 150), (150, 152, 10)], 155, 162, 150, 155),  # and some of what has followed
        ([(0, 0, 150), (150, 152, 10)], 155, 162, 155, None),
    ],
)
def test_no_offset_stays_in_front_of_a_log_that_begins_behind_its_copies(
    runs: list[tuple[int, int, int]],
    log_start: int,
    log_end: int,
    raw: int | None,
    committed: int | None,
) -> None:
    """Goal: a consumer there gets OFFSET_OUT_OF_RANGE, and with `latest` skips what is copied.

    The group has committed 150 on the source, the next offset of the copied log.
    """
    copied = mapped(*runs)
    offsets, source = copied.offsets(A), {A: Committed(150, "m")}
    there = {} if raw is None else {A: Committed(raw, "m")}
    start, end = offsets.to_source(log_start), offsets.to_source(log_end)
    logs = {A: Log(start, end, log_end, log_start)}
    for own in (frozenset({A}), frozenset[TopicPartition]()):
        copies = in_source_offsets(there, copied, source, own, logs)
        due = due_offsets(source, copies, logs, own)
        found = in_destination_offsets(due, there, logs, own, copied)
        assert {p: at.offset for p, at in found.items()} == (
            {} if committed is None else {A: committed}
        )
        if found:
            copies = in_source_offsets(found, copied, source, own, logs)
            due = due_offsets(source, copies, logs, own)
            assert not in_destination_offsets(due, found, logs, own, copied), "once is enough"


@pytest.mark.parametrize(
    ("copies", "offset", "raw", "committed"),
    [
        (0, 1000, 1100, 1201),
        (5, 1000, 1100, 1201),
        (5, 1000, 1201, None),
        (5, 1003, 1100, 1204),
        (5, 1003, 1203, 1204),
        (5, 1003, 1205, None),  # the group's own
    ],
)
def test_no_offset_stays_in_front_of_where_a_takeover_begins(
    copies: int, offset: int, raw: int, committed: int | None
) -> None:
    """Goal: MirrorMaker 2 has copied to 1200, and committed 1100: the rest would be read again."""
    offsets = OffsetRuns(Ends(Offset(1000), Offset(1201)))
    if copies:
        offsets.append(Run(Offset(1000), Offset(1201), copies))
    copied, source = Translation(maps={A: offsets}, begins={A: 1000}), {A: Committed(offset)}
    logs = {A: Log(offsets.to_source(0), offsets.to_source(1201 + copies), 1201 + copies)}
    there = {A: Committed(raw)}
    translated = in_source_offsets(there, copied, source, (), logs)
    due = due_offsets(source, translated, logs, ())
    found = in_destination_offsets(due, there, logs, (), copied)
    assert found == ({} if committed is None else {A: Committed(committed)})
    if found:
        translated = in_source_offsets(found, copied, source, {A}, logs)
        assert not due_offsets(source, translated, logs, {A}), "once is enough"


def test_an_offset_in_a_former_topic_s_copies_is_not_raised_over_them() -> None:
    """Goal: a recreated topic is copied behind them, and a group there has them left to read."""
    offsets = OffsetRuns(Ends(Offset(0), Offset(1200)))
    copied, source = Translation(maps={A: offsets}, begins={A: 0}), {A: Committed(0)}
    logs = {A: Log(0, 0, 1200)}
    translated = in_source_offsets({A: Committed(100)}, copied, source, (), logs)
    assert not due_offsets(source, translated, logs, ())


@pytest.mark.parametrize("there", [30, 50])
def test_of_several_rows_of_a_shared_partition_the_one_that_is_there_counts(there: int) -> None:
    """Goal: an offset that an earlier version has committed for one of them is still lowered."""
    b = TopicPartition("z", 0)
    names = dict.fromkeys((A, b), TopicPartition("all", 0))
    maps = {A: OffsetRuns(Ends(Offset(0), Offset(0))), b: OffsetRuns(Ends(Offset(0), Offset(0)))}
    read = Translation(names, maps).with_shared({}, names, ()).joined()
    memory = GroupMemory(
        mirror="m",
        group="g",
        kind="classic",
        partitions={
            A: PartitionMemory(10, 30, translated=1),
            b: PartitionMemory(5, 50, translated=1),
        },
    )
    destination = {A: Committed(there)}
    assert own_offsets(destination, memory, read) == {A}
    assert not moved_by_others(destination, {A}, memory, read)
    kept = remembered({}, destination, {A}, memory, {A}, unplaced={A}, translation=read)
    assert kept[A].copied == there
    assert own_offsets({A: Committed(40)}, memory, read) == frozenset()
