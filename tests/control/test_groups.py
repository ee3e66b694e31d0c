"""What is committed for a group; with brokers: tests/end_to_end/test_groups.py."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from twinlog.cluster.offsets import Committed
from twinlog.control.groups import Log, due_offsets
from twinlog.core.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
partitions = st.sampled_from([A, B, TopicPartition("u", 0)])
offsets = st.dictionaries(partitions, st.builds(Committed, st.integers(0, 50)))
logs = st.dictionaries(
    partitions,
    st.tuples(st.integers(0, 20), st.integers(0, 30)).map(lambda t: Log(t[0], t[0] + t[1])),
)


def test_it_is_copied_as_it_is() -> None:
    """With what the application has written beside it."""
    committed = {A: Committed(7, "seen")}
    assert due_offsets(committed, {}, {A: Log(0, 10)}) == committed


def test_it_goes_up_to_what_is_there() -> None:
    """An offset that is not there yet would be reset by the consumer's client."""
    source = {A: Committed(7), B: Committed(1)}
    due = due_offsets(source, {}, {A: Log(0, 5), B: Log(3, 9)})
    assert due == {A: Committed(5), B: Committed(3)}


@given(offsets, offsets, logs)
def test_never_back_and_never_outside(
    source: Mapping[TopicPartition, Committed],
    destination: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, Log],
) -> None:
    due = due_offsets(source, destination, logs)
    for partition, (offset, _) in due.items():
        assert partition in source
        assert logs[partition].start <= offset <= logs[partition].end
        assert partition not in destination or offset > destination[partition].offset
    for partition in source.keys() & logs.keys() - due.keys():
        assert destination[partition].offset >= min(source[partition].offset, logs[partition].end)
    after = {**destination, **due}
    assert not due_offsets(source, after, logs), "the next look finds nothing to do"
