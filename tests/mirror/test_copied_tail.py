"""Which record of the source another program has copied last."""

from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.log.records import Record
from twinlog.kafka.types import Offset
from twinlog.mirror.copied_tail import CopiedTail, OffsetRange, content


def record(offset: int, text: str, timestamp: int = 5) -> Record:
    return Record(offset, timestamp, None, text.encode(), (("h", b"1"),))


def records(text: str, first: int = 0) -> list[Record]:
    """One record for each character, whose content is that character."""
    return [record(first + index, character) for index, character in enumerate(text)]


def tail_of(source: list[Record], last: Record, recorded: int | None) -> CopiedTail:
    tail = CopiedTail(last, None if recorded is None else Offset(recorded))
    tail.look(one for one in source if recorded is None or one.offset >= recorded)
    return tail


def test_the_end_is_behind_the_last_copy() -> None:
    tail = tail_of(records("abcdefgh"), record(70, "e"), 2)
    assert (tail.end, tail.copies) == (5, 2)


def test_nothing_more_was_copied_than_was_recorded() -> None:
    tail = tail_of(records("abcdefgh"), record(70, "c"), 2)
    assert (tail.end, tail.copies) == (3, 0)


def test_nothing_is_recorded() -> None:
    tail = tail_of(records("abcdefgh"), record(70, "c"), None)
    assert (tail.end, tail.copies) == (3, 3)


def test_a_record_that_is_not_there() -> None:
    """Goal: key, timestamp and headers count, too."""
    source = records("abcd")
    for last in (
        record(70, "x"),
        record(70, "b", timestamp=6),
        record(70, "b")._replace(key=b"k"),
        record(70, "b")._replace(headers=()),
        record(70, "b")._replace(headers=(("h", None),)),
    ):
        tail = tail_of(source, last, 0)
        assert (tail.end, tail.copies, tail.records) == (None, 0, 3)


def test_of_equal_records_the_first_counts() -> None:
    """Goal: a record is rather copied twice than not at all."""
    tail = tail_of(records("abcbdb"), record(70, "b"), 0)
    assert (tail.end, tail.copies) == (2, 1)
    # The recorded one may be the last copy, too.
    tail = tail_of(records("abcb"), record(70, "b"), 1)
    assert (tail.end, tail.copies) == (2, 0)


def test_ranges_are_shown() -> None:
    assert str(OffsetRange(Offset(2), Offset(6))) == "[2, 6)"


@given(
    st.text("ab", min_size=1, max_size=12),
    st.data(),
)
def test_no_record_is_missed_whatever_was_copied(text: str, data: st.DataObject) -> None:
    """Goal: all below the end was copied.

    The naive twin knows what was copied: all up to `copied`, which it does not tell.
    """
    source = records(text)
    copied = data.draw(st.integers(0, len(text) - 1))
    recorded = data.draw(st.one_of(st.none(), st.integers(0, copied)))
    tail = tail_of(source, source[copied]._replace(offset=99), recorded)
    assert tail.end is not None
    assert tail.end <= copied + 1
    begin = 0 if recorded is None else recorded + 1
    ours = [content(one) for one in source[begin : tail.end]]
    assert len(ours) == tail.copies
