"""Twin of twinlog.mirror.translation."""

from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.translation import SAME, Translation

A, COPY = TopicPartition("a", 0), TopicPartition("s.a", 0)


class Behind:
    """A destination whose log begins with `offsets` of its own."""

    def __init__(self, offsets: int) -> None:
        self._offsets = offsets

    def to_destination(self, offset: int) -> int:
        return offset + self._offsets

    def to_source(self, offset: int) -> int:
        return max(offset - self._offsets, 0)

    def lowest(self, offset: int) -> int:
        return offset


RENAMED = Translation({A: COPY}, {A: Behind(5)})


def test_an_exact_mirror_keeps_names_and_offsets() -> None:
    assert SAME.name(A) == A
    assert SAME.topic("a") == "a"
    assert SAME.offsets(A).to_destination(7) == SAME.offsets(A).to_source(7) == 7
    assert SAME.by_source([A], {A: 1, COPY: 2}) == {A: 1}
    assert SAME.from_destination({A: 1, COPY: 2}) == {A: 1, COPY: 2}


def test_offsets_that_another_program_has_copied_are_not_translated() -> None:
    """Goal: a group there is not moved in front of records that it has not read."""
    taken_over = Translation({A: COPY}, {A: Behind(5)}, begins={A: 7})
    assert [taken_over.translates(A, offset) for offset in (0, 6, 7, 8)] == [False] * 2 + [True] * 2
    assert RENAMED.translates(A, 0)
    assert SAME.translates(A, 0)
    offsets = {A: 6, COPY: 0}
    assert taken_over.untranslated(offsets) == {A}
    assert Translation(unknown=frozenset({COPY})).untranslated(offsets) == {COPY}
    assert SAME.untranslated(offsets) == frozenset()


def test_only_a_partition_without_a_map_keeps_its_offsets() -> None:
    """Goal: what a group has committed besides does not describe other records there."""
    runs = OffsetRuns(Ends(Offset(0), Offset(0)))
    runs.append(Run(Offset(0), Offset(0), 3))  # the same so far
    assert not Translation({A: COPY}, {A: runs}).keeps_offsets(A)
    assert SAME.keeps_offsets(A)


def test_offsets_are_not_translated_where_the_copy_is_lost() -> None:
    """Goal: the map names places at which the destination may have other records now."""
    lost = Translation({A: COPY}, {A: Behind(5)}, lost=frozenset({A}))
    assert lost.untranslated({A: 6, COPY: 0}) == {A}


def test_names_and_offsets_are_translated_in_both_directions() -> None:
    assert RENAMED.topic("a") == "s.a"
    assert RENAMED.offsets(A).to_destination(7) == 12
    assert RENAMED.offsets(A).to_source(12) == 7
    assert RENAMED.offsets(A).to_source(3) == 0
    assert RENAMED.by_source([A], {A: 1, COPY: 2}) == {A: 2}


def test_a_destination_topic_with_the_source_name_is_not_the_copy() -> None:
    """Goal: what is read of the destination's own `a` is not taken for the source's `a`."""
    assert RENAMED.from_destination({A: 1, COPY: 2}) == {A: 2}
    assert RENAMED.from_destination({A: 1}) == {}
