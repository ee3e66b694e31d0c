"""Twin of twinlog.mirror.aborted: whose data is aborted, at each batch of a walk."""

from batch_builders import ABORT, COMMIT, batch, joined, marker, record

from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.types import AbortedTransaction
from twinlog.mirror.aborted import Aborted, aborted_within


def data(offset: int, producer_id: int) -> bytes:
    """A batch of a transaction."""
    return batch([record(offset)], attributes=TRANSACTIONAL, producer_id=producer_id)


LOG = (data(0, 7), data(1, 8), marker(2, 7, ABORT), data(3, 7), marker(4, 7, COMMIT))


def test_aborted_transactions_are_derived_from_the_markers() -> None:
    """Goal: as an answer lists them, from the markers alone; an open transaction is not aborted."""
    log = b"".join(LOG) + marker(5, 9, ABORT) + data(6, 7)
    assert aborted_within(memoryview(log)) == [AbortedTransaction(7, 0)]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    """Goal: from there on nothing is aborted, also for who asks only whether anything is."""
    headers, buffer = joined(*LOG)
    aborted = Aborted([AbortedTransaction(7, 0)])
    assert aborted.any
    assert aborted.holds(headers[0])
    assert not aborted.holds(headers[1])
    aborted.marker(headers[2], buffer)
    assert (aborted.any, aborted.holds(headers[3])) == (False, False)
    assert not Aborted([]).any


def test_one_that_begins_later_is_known_before() -> None:
    """Goal: who asks whether anything is aborted is told of the batches that follow."""
    headers, _ = joined(*LOG)
    aborted = Aborted([AbortedTransaction(7, 3)])
    assert not aborted.holds(headers[0])
    assert aborted.any
    assert aborted.holds(headers[3])
