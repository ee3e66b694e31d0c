"""Queue and positions of a transactional flow, without brokers."""

from uuid import UUID

import pytest
from batch_builders import batch, record

from twinlog.engines.transactional.positions import (
    PositionLost,
    found_position,
    position_metadata,
)
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import batches
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data, Gap
from twinlog.mirror.reported_positions import report_mark
from twinlog.store.offset_log import fold_offsets
from twinlog.store.offset_records import (
    BegunPartition,
    OffsetRecord,
    Route,
    SharedPartition,
    encode,
)
from twinlog.store.topic_reader import ControlRecord


def data(start: int, end: int) -> Data:
    whole = memoryview(batch([record(at) for at in range(start, end)]))
    (header,) = batches(whole)
    return Data(Offset(start), Offset(end), header, header.records(whole))


def gap(start: int, end: int) -> Gap:
    return Gap(Offset(start), Offset(end), seen=True)


def test_a_transaction_takes_batches_and_the_gaps_between_them() -> None:
    queue = TransactionalQueue(Offset(10), LeaderEpoch(4))
    assert queue.epochs.before(Offset(10)) == 4
    queue.offer([gap(10, 12)])
    assert (queue.mirrored_end, queue.recorded, queue.has_data) == (12, 10, False)
    first, second = data(12, 15), data(16, 18)
    queue.offer([first, gap(15, 16), second, gap(18, 20)])
    held = queue.queued_bytes
    assert queue.take(1) == ([first], 16)
    assert (queue.has_data, queue.taken_bytes) == (False, first.held)
    queue.released()
    assert queue.taken_bytes == 0
    assert (queue.take(1 << 20), queue.position, queue.mirrored_end) == (
        ([first, second], 20),
        20,
        12,
    )
    queue.offer([data(20, 21)])
    assert queue.queued_bytes > held
    queue.committed(Offset(20))
    assert queue.taken_bytes == 0
    assert (queue.mirrored_end, queue.recorded, queue.has_data) == (20, 20, True)
    assert queue.take(1)[1] == 21
    queue.committed(Offset(21))
    assert (queue.queued_bytes, queue.idle) == (0, True)


def test_a_position_without_records_is_taken_alone() -> None:
    queue = TransactionalQueue(Offset(0), LeaderEpoch(-1))
    queue.offer([gap(0, 5)])
    assert queue.take(100) == ([], 5)
    queue.committed(Offset(5))
    assert queue.recorded == 5


def test_a_gap_that_is_passed_during_a_transaction_stays_passed() -> None:
    """Goal: the lag of a source with aborted transactions only ends."""
    queue = TransactionalQueue(Offset(0), LeaderEpoch(-1))
    queue.offer([gap(0, 3)])
    assert queue.take(100) == ([], 3)
    queue.offer([gap(3, 5)])
    queue.committed(Offset(3))
    assert (queue.mirrored_end, queue.recorded, queue.position) == (5, 3, 5)
    assert queue.take(100) == ([], 5)  # and the next position is due
    queue.committed(Offset(5))
    assert (queue.mirrored_end, queue.recorded) == (5, 5)


ONE, OTHER = UUID(int=1), UUID(int=2)
ROUTE = Route(ONE, "A.t", UUID(int=5))


FORMER_SOURCE, FORMER_REMOTE = Route(OTHER, "A.t", UUID(int=5)), Route(ONE, "A.t", UUID(int=6))
NAME = MirrorPartition("m", "t", 3)
OURS = position_metadata(ROUTE, None)
LOST = r"group g has no offset of A\.t-3"


@pytest.mark.parametrize(
    ("committed", "begun", "copied_to", "expected"),
    [
        (Committed(5, OURS), ROUTE, None, 5),
        (Committed(5, OURS), None, None, 5),
        (Committed(5, position_metadata(ROUTE._replace(topic_id=None), None)), ROUTE, None, 5),
        (Committed(5, ""), None, None, 5),  # of an operator, or of another program
        (Committed(5, ""), ROUTE, None, 5),
        (Committed(5, ""), FORMER_SOURCE, None, "before a topic was recreated"),
        (Committed(5, ""), FORMER_REMOTE, None, "before a topic was recreated"),
        (Committed(5, position_metadata(FORMER_SOURCE, None)), None, None, None),
        (Committed(5, position_metadata(FORMER_REMOTE, None)), FORMER_REMOTE, None, None),
        (Committed(5, OURS), ROUTE, 9, None),  # another program has copied on, up to 9
        (Committed(12, OURS), ROUTE, 9, 12),
        (Committed(5, position_metadata(ROUTE, Offset(9))), ROUTE, 9, 5),
        (Committed(5, ""), ROUTE, 9, "before another program has copied all up to 9"),
        (Committed(5, ""), None, 9, "before another program has copied all up to 9"),
        (Committed(9, ""), ROUTE, 9, 9),
        (Committed(9, ""), None, 9, 9),
        (Committed(5, report_mark("A-to-B", "id")), None, None, None),  # of a flow from here
        (Committed(5, report_mark("A-to-B", "id")), ROUTE, None, LOST),
        (None, None, None, None),
        (None, FORMER_SOURCE, None, None),
        (None, FORMER_REMOTE, None, None),  # the remote topic was recreated
        (None, Route(ONE, "A.t", None), None, LOST),
        (None, ROUTE, None, LOST),
    ],
)
def test_where_a_partition_goes_on(
    committed: Committed | None, begun: Route | None, copied_to: int | None, expected: object
) -> None:
    """Goal: the table of positions.py; a missing offset alone does not mean a beginning."""
    other = None if copied_to is None else Offset(copied_to)
    record_of = None if begun is None else BegunPartition(NAME, begun)
    if isinstance(expected, str):
        with pytest.raises(PositionLost, match=expected):
            found_position(committed, record_of, ROUTE, "g", 3, copied_to=other)
        return
    found = found_position(committed, record_of, ROUTE, "g", 3, copied_to=other)
    assert (None if found is None else found.offset) == expected


def test_an_operator_may_go_back_behind_a_takeover_that_has_begun() -> None:
    """Goal: what is not dated has been committed since the partition has begun."""
    begun = BegunPartition(NAME, ROUTE, Offset(9))
    found = found_position(Committed(5, ""), begun, ROUTE, "g", 3, copied_to=Offset(9))
    assert found is not None
    assert found.offset == 5
    with pytest.raises(PositionLost, match="up to 12; commit 12 for this group"):
        found_position(Committed(5, ""), begun, ROUTE, "g", 3, copied_to=Offset(12))


def test_a_missing_offset_is_a_loss_if_the_record_of_beginnings_was_recreated() -> None:
    """Goal: a partition that was copied does not begin anew where both were lost."""
    with pytest.raises(PositionLost):
        found_position(None, None, ROUTE, "g", 3, begun_before=True)
    # It has begun since then, or other topics have.
    with pytest.raises(PositionLost):
        found_position(None, BegunPartition(NAME, ROUTE), ROUTE, "g", 3, begun_before=True)
    former = BegunPartition(NAME, FORMER_SOURCE)
    assert found_position(None, former, ROUTE, "g", 3, begun_before=True) is None
    here = Committed(5, OURS)
    assert found_position(here, None, ROUTE, "g", 3, begun_before=True) == here


def test_what_has_begun_is_no_past_of_plans() -> None:
    """Goal: flows of both kinds share partitions of `__mirror_offsets`."""
    begun = BegunPartition(NAME, ROUTE)
    remote = TopicPartition("a.t", 3)
    kept: list[OffsetRecord] = [begun, begun, SharedPartition(remote)]
    stored = fold_offsets(ControlRecord(0, at, 0, *encode(one)) for at, one in enumerate(kept))
    assert (stored.begun, stored.shared, stored.has_past) == ({NAME: begun}, {remote}, False)
