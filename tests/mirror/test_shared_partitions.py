"""Where a group goes on in a partition that several source partitions share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.shared_partitions import Feeder, JoinedPartition, SharedPlace
from twinlog.mirror.translation import Translation

A, B, C = (TopicPartition(topic, 0) for topic in "abc")
ALL = TopicPartition("all", 0)
OTHERS = TopicPartition("records of others", 0)


def runs(*parts: tuple[int, int, int], start: tuple[int, int] = (0, 0)) -> OffsetRuns:
    """The map of a partition: source, destination and length of its runs."""
    offsets = OffsetRuns(Ends(Offset(start[0]), Offset(start[1])))
    for source, destination, length in parts:
        offsets.append(Run(Offset(source), Offset(destination), length))
    return offsets


def shared(end: int | None = 100, **feeders: Feeder) -> JoinedPartition:
    """The partition `all`, of these topics."""
    return JoinedPartition(
        remote=ALL, feeders={TopicPartition(t, 0): one for t, one in feeders.items()}, end=end
    )


# a at 0-9 and 30-39 (offsets 0-9 and 12-21), b at 10-29
MAPPED_A = Feeder(offsets=runs((0, 0, 10), (12, 30, 10)), settled=True)
MAPPED_B = Feeder(offsets=runs((0, 10, 20)), settled=True)


@pytest.mark.parametrize(
    ("a", "b", "place", "whose"),
    [
        (3, 5, 3, A),
        (10, 5, 15, B),  # the next one of `a` is behind the hole, at 30
        (13, 20, 31, A),  # `b` is read to its end: what it gets next is behind the log's end
        (22, 19, 29, B),
        (22, 20, 40, A),
        (99, 99, 40, A),  # committed beyond what is copied
    ],
)
def test_it_is_the_lowest_place(a: int, b: int, place: int, whose: TopicPartition) -> None:
    one = shared(a=MAPPED_A, b=MAPPED_B)
    assert one.place({A: a, B: b}) == SharedPlace(place, whose, "")


def test_records_of_other_writers_are_not_passed() -> None:
    """Goal: behind the last copy, at 39, others have written up to 99, and the group read nothing.

    Another mirror copies to the topic, or applications write there since a failover.
    """
    one = shared(a=MAPPED_A, b=MAPPED_B, c=Feeder(settled=True))
    assert one.place({A: 22, B: 20}) == SharedPlace(40, A, "")
    assert one.place({A: 22, B: 20, C: 0}) == SharedPlace(40, A, "")
    lost = replace(MAPPED_A, offsets=runs((0, 0, 10), (12, 90, 10)), lost=True)
    one = shared(a=lost, b=MAPPED_B, c=replace(MAPPED_A, passed=True))
    assert one.reach == 40, "others may be in their place"
    begun = replace(MAPPED_B, offsets=runs(start=(5, 100)), begin=5)
    assert shared(a=MAPPED_A, b=begun).place({A: 22, B: 5}) == SharedPlace(40, A, "")


def test_before_the_first_copy_there_is_no_place() -> None:
    """Goal: what the log has is of others."""
    one = shared(a=Feeder(settled=True), b=Feeder(settled=True))
    assert one.place({A: 3}) == SharedPlace(None, None, "its offset of a-0 is not translated")
    begun = Feeder(offsets=runs(start=(0, 50)))
    for settled in (False, True):
        one = shared(a=replace(begun, settled=settled, begin=2), b=Feeder(settled=True))
        assert one.place({A: 3}) == SharedPlace(None, None, "its offset of a-0 is not translated")
    assert shared(a=MAPPED_A, b=begun).place({A: 22, B: 0}) == SharedPlace(40, A, "")
    anew = Feeder(offsets=runs(start=(5, 60)), begin=5, passed=True, settled=True)
    assert shared(a=anew).place({A: 7}) == SharedPlace(60, A, ""), "where its map begins anew"


def test_the_end_of_a_map_counts_while_more_may_have_been_sent() -> None:
    """Goal: a record that was sent and not recorded yet is not skipped."""
    one = shared(a=MAPPED_A, b=replace(MAPPED_B, settled=False))
    assert one.place({A: 22, B: 20}) == SharedPlace(30, B, "")


def test_the_beginning_of_the_log_is_a_place() -> None:
    """Goal: of `b` something may be sent, to 0 or behind: a floor is no higher."""
    begun = Feeder(offsets=runs())
    assert shared(a=MAPPED_A, b=begun).place({A: 22, B: 0}) == SharedPlace(0, B, "")
    lacks = "it has no offset of c-0"
    one = shared(a=MAPPED_A, b=begun, c=Feeder())
    assert one.place({A: 22, B: 0}) == (None, None, lacks), "but it shows no rewind"


def test_a_place_behind_the_end_is_the_end() -> None:
    """Goal: `c` has nothing below the end, and may have something between it and such a place."""
    one = shared(5, a=MAPPED_A, c=Feeder(settled=True))
    assert one.place({A: 9}) == SharedPlace(5, A, "")


@pytest.mark.parametrize(
    ("feeder", "lacks"),
    [
        (Feeder(settled=True), ""),
        (Feeder(offsets=runs(start=(0, 7)), settled=True), ""),
        (Feeder(), "it has no offset of c-0"),
        (Feeder(offsets=runs(start=(0, 7))), "it has no offset of c-0"),
        (Feeder(settled=True, begin=4), "it has no offset of c-0"),
        (Feeder(offsets=runs((0, 50, 1)), settled=True), "it has no offset of c-0"),
        (Feeder(offsets=runs(), settled=True, passed=True), "it has no offset of c-0"),
        (Feeder(settled=True, lost=True), "it has no offset of c-0"),
        (Feeder(settled=True, known_before=True), "it has no offset of c-0"),
        (
            Feeder(offsets=runs(start=(0, 7)), settled=True, known_before=True),
            "it has no offset of c-0",
        ),
    ],
)
def test_a_feeder_without_an_offset_has_to_be_empty(feeder: Feeder, lacks: str) -> None:
    """Goal: what the group has not read of it may be in front of its place in the others."""
    one = shared(a=MAPPED_A, c=feeder)
    assert one.place({A: 22}) == ((None, None, lacks) if lacks else (40, A, ""))
    assert one.place({A: 13}) == (31, A, lacks)


@pytest.mark.parametrize(
    ("feeder", "floor"),
    [
        (Feeder(offsets=runs((4, 50, 1), start=(4, 50)), begin=4), (31, A)),
        (Feeder(offsets=runs((0, 5, 9)), lost=True), (31, A)),
        (Feeder(), (31, A)),
        (Feeder(offsets=runs((4, 20, 1), start=(4, 20)), begin=4, passed=True), (20, C)),
        (Feeder(offsets=runs((6, 20, 1), start=(4, 15)), begin=4, passed=True), (20, C)),
        (Feeder(offsets=runs(start=(4, 15)), begin=4, passed=True), (15, C)),
    ],
)
def test_an_offset_that_is_not_translated_gives_none(
    feeder: Feeder, floor: tuple[int, TopicPartition]
) -> None:
    """Goal: nothing is guessed; what is known shows where a group cannot be behind of."""
    place = shared(a=MAPPED_A, c=feeder).place({A: 13, C: 3})
    assert place == SharedPlace(*floor, "its offset of c-0 is not translated")


@pytest.mark.parametrize(
    ("b", "end"),
    [
        (MAPPED_B, 100),
        (replace(MAPPED_B, settled=False), 100),
        (replace(MAPPED_B, lost=True), 100),
        (MAPPED_B, 35),
    ],
)
def test_only_a_record_in_a_map_shows_a_rewind(b: Feeder, end: int) -> None:
    """Goal: a place that dips does not set back a group that lacks an offset, for good.

    A record is being copied, copies are lost, or a leader shows an earlier end for a moment.
    """
    one = shared(end, a=MAPPED_A, b=b, c=Feeder())
    lacks = one.place({A: 22, B: 20}).lacks
    assert "it has no offset of c-0" in lacks
    assert one.place({A: 22, B: 20}) == (None, None, lacks)
    assert one.place({A: 13, B: 20}) == (31, A, lacks), "rewound"
    assert one.place({A: 20, B: 20}).lowest == (38 if end > 38 else None)


def test_the_end_of_a_map_that_goes_on_without_lost_copies_is_a_floor() -> None:
    """Goal: what was committed before the loss may be behind what is copied since."""
    one = shared(a=replace(MAPPED_A, passed=True), b=MAPPED_B, c=Feeder())
    assert one.place({A: 22, B: 20}) == (40, A, "it has no offset of c-0")
    assert one.place({A: 99, B: 20}) == (40, A, "it has no offset of c-0")


def test_offsets_of_a_recreated_topic_are_no_places() -> None:
    """Goal: the map is about other records: neither raised nor lowered by them."""
    one = shared(a=MAPPED_A, b=MAPPED_B, c=Feeder(settled=True))
    text = "a-0 was recreated or deleted on the source"
    assert one.place({A: 3, B: 20}, {"a"}) == (None, None, text)
    assert one.place({A: 3, B: 15}, {"a"}) == (25, B, text)
    assert one.place({B: 20}, {"a"}) == (None, None, text)
    assert one.place({A: 22, B: 20, C: 3}, {"c"}) == (40, A, ""), "nothing of it was copied"


def test_an_unknown_end_gives_none() -> None:
    text = "the log of all-0 cannot be read, or its source partitions have changed"
    assert shared(None, a=MAPPED_A).place({A: 3}) == SharedPlace(None, None, text)
    assert shared(a=MAPPED_A).place({}) == SharedPlace(None, None, "it has no offset of a-0")


def test_topics_of_which_something_is_copied() -> None:
    one = shared(a=MAPPED_A, b=Feeder(settled=True), c=Feeder())
    assert one.topics == {"a", "b", "c"}
    assert one.copied_topics == {"a", "c"}


@given(
    st.lists(st.sampled_from([A, B, C, OTHERS]), max_size=40),
    st.data(),
)
def test_nothing_unread_is_in_front(order: list[TopicPartition], data: st.DataObject) -> None:
    """Goal: issue 19: a group skips no record of any feeder, whatever the broker's order is.

    Nor does it skip what others have written behind the last copy.

    The maps are read one after another while copying goes on, and may lag; topics begin late; the
    source has offsets without records. The oracle knows the whole log.
    """
    end = data.draw(st.integers(0, len(order)), "the log end, read first")
    copied: dict[TopicPartition, list[tuple[int, int]]] = {A: [], B: [], C: []}
    following = dict.fromkeys(copied, 0)
    for at, partition in enumerate(order):
        if partition == OTHERS:
            continue
        offset = following[partition] + data.draw(st.integers(0, 2), "offsets without a record")
        copied[partition].append((offset, at))
        following[partition] = offset + 1
    feeders: dict[TopicPartition, Feeder] = {}
    committed: dict[TopicPartition, int] = {}
    for partition, records in copied.items():
        read_at = data.draw(st.integers(end, len(order)), "the log end when the map is read")
        sent = sum(at < read_at for _, at in records)
        recorded = data.draw(st.integers(0, sent), "records in the map")
        offsets = runs(*((offset, at, 1) for offset, at in records[:recorded]))
        has_map = recorded or data.draw(st.booleans(), "begun")
        feeders[partition] = Feeder(
            offsets=offsets if has_map else None,
            settled=recorded == sent and data.draw(st.booleans()),
        )
        if data.draw(st.booleans(), "committed"):
            committed[partition] = data.draw(st.integers(0, following[partition] + 3))
    place = JoinedPartition(remote=ALL, feeders=feeders, end=end).place(committed)
    unread = [
        at
        for partition, records in copied.items()
        for offset, at in records
        if offset >= committed.get(partition, 0)
    ]
    if place.lowest is None:
        assert not committed or place.lacks
    elif not place.lacks:
        assert place.lowest <= min([*unread, end])
        behind = [at + 1 for records in copied.values() for _, at in records]
        assert place.lowest <= max(behind, default=-1)
        assert place.feeder in committed
    else:
        # Of the partition that shows the rewind, a floor is the first unread record.
        assert place.feeder is not None
        assert place.lowest in unread
        assert place.lowest == min(
            at for offset, at in copied[place.feeder] if offset >= committed[place.feeder]
        )


@given(st.lists(st.sampled_from([A, B]), min_size=1, max_size=40), st.data())
def test_it_is_no_lower_than_it_has_to_be(order: list[TopicPartition], data: st.DataObject) -> None:
    """Goal: once all is recorded, a group goes on at its first unread record, or at the end."""
    places = {key: [at for at, one in enumerate(order) if one == key] for key in (A, B)}
    feeders = {
        key: Feeder(offsets=runs(*((n, at, 1) for n, at in enumerate(its))), settled=True)
        for key, its in places.items()
    }
    committed = {key: data.draw(st.integers(0, len(its))) for key, its in places.items()}
    first = min([len(order), *(at for key, its in places.items() for at in its[committed[key] :])])
    one = JoinedPartition(remote=ALL, feeders=feeders, end=len(order))
    assert one.place(committed).lowest == first


def test_a_translation_joins_what_shares_a_partition() -> None:
    """Goal: groups count there in the destination's offsets, under the first partition's name."""
    names = {A: ALL, B: ALL, C: C}
    maps = {A: runs((0, 0, 5)), C: runs((0, 3, 2))}
    plain = Translation(
        names, maps, unknown=frozenset({B}), begins={A: 2, C: 1}, settled=frozenset({A})
    )
    read = plain.with_shared({ALL: 9}, names, {B, C})
    assert read.shared == {
        A: JoinedPartition(
            remote=ALL,
            feeders={A: Feeder(offsets=maps[A], begin=2, settled=True), B: Feeder(settled=True)},
            end=9,
        )
    }
    assert [read.key(one) for one in (A, B, C)] == [A, A, C]
    assert read.topics(A) == {"a", "b"}
    assert read.copied_topics(A) == {"a"}
    assert read.topics(C) == {"c"}
    joined = read.joined()
    assert joined.names == {A: ALL, C: C}
    assert (joined.offsets(A).to_destination(7), joined.offsets(C).to_destination(1)) == (7, 4)
    assert (joined.unknown, joined.begins) == (frozenset(), {C: 1})
    assert joined.from_destination({ALL: 5, C: 6}) == {A: 5, C: 6}
    assert plain.with_shared({ALL: 9}, names, ()).shared[A].feeders[B] == Feeder()
    again = plain.with_shared({ALL: 9}, names, {B}, {"b"})
    assert again.shared[A].feeders[B] == Feeder(settled=True, known_before=True)
    assert again.copied_topics(A) == {"a", "b"}
    part = read.of_topics({"b"})
    assert part.unknown == {B}
    assert (part.names, part.shared) == ({B: ALL}, read.shared)
    assert read.of_topics({"c"}).shared == {}


def test_partitions_that_share_one_only_by_one_reading_have_no_end() -> None:
    """Goal: a topic that was added meanwhile may have records that the maps lead past."""
    plain = Translation({A: ALL}, {A: runs((0, 0, 5))})
    assert plain.with_shared({ALL: 9}, {A: ALL, B: ALL}, {B}).shared[A].end is None
    read = Translation({A: ALL, B: ALL, C: ALL}).with_shared({ALL: 9}, {A: ALL, B: ALL}, ())
    assert read.shared[A].end is None
    read = Translation({A: ALL, B: ALL}).with_shared({ALL: 9}, {A: ALL}, ())
    assert (read.shared[A].end, sorted(read.keys)) == (None, [A, B]), "its records are still there"
    assert plain.with_shared({}, {A: ALL, B: ALL}, ()).shared[A].end is None


def test_a_topic_that_cannot_be_read_may_be_copied_to_each_partition() -> None:
    """Goal: no place is known, also where one source partition alone is known to be copied."""
    names = {A: ALL, C: C}
    plain = Translation(names, {A: runs((0, 0, 5)), C: runs((0, 3, 2))}, settled=frozenset(names))
    assert plain.with_shared({ALL: 9}, names, ()).shared == {}
    read = plain.with_shared({ALL: 9}, names, (), unread={"w", "x"})
    assert read.keys == {A: A, C: C}
    text = "topics of the flow that cannot be read may be copied there, too: w, x"
    assert read.shared[A].place({A: 2}) == SharedPlace(2, A, text), "a group may be rewound"
    assert read.shared[A].place({A: 5}) == SharedPlace(None, None, text)
    assert read.shared[C].place({C: 1}) == SharedPlace(None, None, text), "its log was not read"
