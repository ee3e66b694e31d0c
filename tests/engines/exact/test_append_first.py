"""The first batch after a position is sent alone; a record at a wrong offset is reported."""

from twinlog.engines.exact.append import Misplaced, PartitionAppend, Phase, position_of
from twinlog.kafka.log.batch import Header
from twinlog.kafka.types import Offset, ProducerId
from twinlog.mirror.plan import Data

NOTHING = memoryview(b"")


def data(start: int) -> Data:
    """Build a batch of one record."""
    header = Header(0, start, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return Data(Offset(start), Offset(start + 1), header, NOTHING)


def placed(batches: int) -> PartitionAppend:
    """Build a machine on an empty partition, with some batches to send."""
    machine = PartitionAppend(0.0)
    machine.place(position_of(Offset(0), (), ProducerId(7)), 1.0, compared=True)
    machine.offer([data(offset) for offset in range(batches)])
    return machine


def test_the_first_batch_after_a_position_is_sent_alone() -> None:
    """Five batches are in flight as soon as the broker has a batch to compare with."""
    machine = placed(9)
    assert machine.take(0) is not None
    assert machine.take(0) is None
    assert machine.answered(0) is None
    assert [machine.take(0) is not None for _ in range(6)] == [True] * 5 + [False]


def test_a_misplaced_batch_is_reported_after_a_refusal() -> None:
    """The producer state expired in mid-stream: the batch behind the refused one was appended."""
    machine = placed(9)
    machine.take(0)
    machine.answered(0)
    machine.take(0)
    machine.take(0)
    machine.refused()
    assert machine.phase is Phase.DRAINING
    assert machine.answered(1) == Misplaced(Offset(2), Offset(1))
    assert machine.phase.name == "FAILED"
