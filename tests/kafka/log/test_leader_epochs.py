"""Twin of twinlog.kafka.log.leader_epochs."""

from batch_builders import altered, batch, captures, joined, record
from captures import Capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.log.leader_epochs import MAX_RUNS, SourceEpochs, epoch_at
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset


def learned(*reads: tuple[int, int]) -> SourceEpochs:
    """Return what is known after some reads, each up to an offset, with its last record's epoch."""
    epochs = SourceEpochs()
    for end, epoch in reads:
        epochs.learn(Offset(end), LeaderEpoch(epoch))
    return epochs


def known_epochs(epochs: SourceEpochs, upto: int) -> list[int]:
    """Return the epoch before each offset."""
    return [epochs.before(Offset(offset)) for offset in range(upto)]


def test_no_epoch_is_known_before_the_first_read() -> None:
    """Before the first read no epoch is known."""
    assert known_epochs(SourceEpochs(), 3) == [-1, -1, -1]


def test_offsets_between_two_reads_of_one_epoch_have_that_epoch() -> None:
    """Epochs only grow along a log: offsets between two of the same epoch have it too."""
    assert known_epochs(learned((2, 5), (5, 5)), 7) == [-1, -1, 5, 5, 5, 5, -1]


def test_offsets_between_different_epochs_are_unknown() -> None:
    """The answer that ends in another epoch began in one that was not seen."""
    assert known_epochs(learned((2, 5), (6, 7)), 8) == [-1, -1, 5, -1, -1, -1, 7, -1]


def test_a_message_without_epoch_leaves_the_position_unknown() -> None:
    """Formats v0 and v1 have none; the next batch has one."""
    epochs = learned((2, 5), (4, -1))
    assert known_epochs(epochs, 5) == [-1, -1, 5, -1, -1]
    epochs.learn(Offset(6), LeaderEpoch(5))
    assert epochs.before(Offset(6)) == 5


def test_a_position_discards_epochs_of_later_offsets() -> None:
    """Records that were read, but not appended, prove nothing about a later read of them."""
    epochs = learned((1, 5), (4, 5), (6, 7))
    epochs.place(Offset(3), LeaderEpoch(9))
    assert known_epochs(epochs, 8) == [-1, 5, 5, 5, -1, -1, -1, -1]


def test_an_unknown_position_takes_the_epoch_of_the_source() -> None:
    """A new owner asks the source; so does one whose position is where an epoch began."""
    epochs = learned((2, 5), (6, 7))
    epochs.place(Offset(4), LeaderEpoch(6))
    assert known_epochs(epochs, 6) == [-1, -1, 5, -1, 6, -1]
    epochs.place(Offset(1), UNKNOWN_EPOCH)
    assert known_epochs(epochs, 6) == [-1] * 6


def test_the_number_of_stored_epochs_is_bounded() -> None:
    """The oldest epochs are forgotten."""
    epochs = learned(*((10 * epoch, epoch) for epoch in range(1, MAX_RUNS + 3)))
    assert [epochs.before(Offset(10 * epoch)) for epoch in (1, 2, 3)] == [-1, -1, 3]


LOGS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=12
)
"""Batches: offsets missing before, offsets, and by how much the epoch is higher."""


@given(LOGS, st.data())
def test_reported_epochs_are_correct_or_unknown(
    log: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """After any reads, in any steps, and at any position: an epoch is right, or not given."""
    truth: list[LeaderEpoch | None] = [UNKNOWN_EPOCH]  # truth[n]: the epoch before offset n
    epochs = SourceEpochs()
    epoch, read, ends = 0, 0, []
    for hole, count, more in log:
        epoch += more
        truth += [None] * hole + [LeaderEpoch(epoch)] * count
        ends.append(len(truth) - 1)
    for end in ends:
        if end > read and data.draw(st.booleans()):
            last = truth[end]
            assert last is not None
            epochs.learn(Offset(end), last)
            read = end
            if data.draw(st.booleans()):
                read = data.draw(st.integers(0, read))
                told = truth[read]
                epochs.place(Offset(read), UNKNOWN_EPOCH if told is None else told)
    for offset, expected in enumerate(truth):
        found = epochs.before(Offset(offset))
        same_around = expected is None and found in _around(truth, offset)
        assert found in (expected, UNKNOWN_EPOCH) or same_around


def _around(truth: list[LeaderEpoch | None], offset: int) -> set[LeaderEpoch]:
    """Return the epoch of a hole, if both sides of it have the same one."""
    before = next((e for e in reversed(truth[:offset]) if e is not None), None)
    after = next((e for e in truth[offset:] if e is not None), None)
    return {before} if before is not None and before == after else set()


def test_the_epoch_of_an_offset_is_that_of_its_batch() -> None:
    """It is known within a batch, and not in a hole between two, nor after the last."""
    headers, buffer = joined(
        altered(batch([record(0), record(1)]), leader_epoch=3),
        altered(batch([record(4)]), leader_epoch=4),
    )
    assert [header.next_offset for header in headers] == [2, 5]
    assert [epoch_at(buffer, offset) for offset in range(6)] == [3, 3, -1, -1, 4, -1]


@given(captures)
def test_real_batches_have_a_leader_epoch(log: Capture) -> None:
    """These are batches that real brokers have sent: each batch has an epoch of 0 or more."""
    for header in log.headers:
        assert epoch_at(log.buffer, header.base_offset) == header.leader_epoch >= 0
