"""Queue, outputs and positions of a transactional flow, without brokers."""

import asyncio
from uuid import UUID

import pytest
from batch_builders import THEN, batch, record

from twinlog.engines.transactional.outputs import transformed
from twinlog.engines.transactional.positions import (
    PositionLost,
    found_position,
    position_metadata,
)
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, decode, encode_tail, raw_records
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data, Gap
from twinlog.mirror.record_transforms import FlowRecord
from twinlog.mirror.reported_positions import report_mark
from twinlog.mirror.transform_chain import TransformChain, parse_transforms
from twinlog.store.offset_log import fold_offsets
from twinlog.store.offset_records import BegunPartition, Route, encode
from twinlog.store.topic_reader import ControlRecord

REMOTE = TopicPartition("A.t", 3)


def data(start: int, end: int, codec: Codec = Codec.NONE, size: int = 1) -> Data:
    records = [record(at, THEN + at, b"v" * size, str(at).encode()) for at in range(start, end)]
    whole = memoryview(batch(records, codec))
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
    assert not queue.has_data
    queue.released()
    assert (queue.take(1 << 20), queue.position, queue.mirrored_end) == (
        ([first, second], 20),
        20,
        12,
    )
    queue.offer([data(20, 21)])
    assert queue.queued_bytes > held
    queue.committed(Offset(20))
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


def written(chain: TransformChain, *pieces: Data) -> dict[TopicPartition, list[RawRecord]]:
    found = asyncio.run(transformed(chain, pieces, REMOTE))
    assert found.failure is None
    return {
        key: [one for each in built for one in raw_records(each.header, each.records)]
        for key, built in found.batches.items()
    }


def test_records_without_transforms_keep_all_but_their_offsets() -> None:
    for codec in Codec:
        (found,) = written(TransformChain(), data(7, 300, codec), data(300, 302)).items()
        assert found[0] == REMOTE
        assert [(one.timestamp, bytes(one.tail)) for one in found[1]] == [
            (THEN + at, encode_tail(str(at).encode(), b"v")) for at in range(7, 302)
        ]


def test_batches_are_bounded() -> None:
    found = asyncio.run(
        transformed(TransformChain(), [data(0, 9, size=300_000), data(9, 9000)], REMOTE)
    )
    built = found.batches[REMOTE]
    assert sum(one.header.num_records for one in built) == 9000
    assert max(len(one.records) for one in built) < 900_000
    assert max(one.header.num_records for one in built) <= 4096


def test_records_are_dropped_and_routed() -> None:
    chain = parse_transforms(
        {
            "transforms": "f,r",
            "transforms.f.type": "Filter",
            "transforms.f.predicate": "p",
            "transforms.r.type": "InsertHeader",
            "transforms.r.header": "h",
            "transforms.r.value.literal": "x",
            "predicates": "p",
            "predicates.p.type": "RecordIsTombstone",
        }
    )
    (key, records), *_ = written(chain, data(0, 3)).items()
    assert key == REMOTE
    assert [decode(one).headers for one in records] == [(("h", b"x"),)] * 3
    tombstones = [record(at, value=None) for at in range(3)]
    whole = memoryview(batch(tombstones))
    (header,) = batches(whole)
    assert written(chain, Data(Offset(0), Offset(3), header, header.records(whole))) == {}


def test_records_before_one_that_fails_are_written() -> None:
    """Goal: an operator who skips that one loses no other."""
    chain = parse_transforms(
        {
            "transforms": "m",
            "transforms.m.type": "MaskField$Value",
            "transforms.m.fields": "a",
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
        }
    )
    values = [b'{"a":1}', b'{"a":2}', b"x", b'{"a":3}']
    whole = memoryview(batch([record(7 + at, value=value) for at, value in enumerate(values)]))
    (header,) = batches(whole)
    bad = Data(Offset(7), Offset(11), header, header.records(whole))
    found = asyncio.run(transformed(chain, [bad, data(11, 12)], REMOTE))
    assert found.failure is not None
    assert found.failure.offset == 9
    assert "offset 9 cannot be transformed: transform m: it is no JSON" in found.failure.reason
    (built,) = found.batches[REMOTE]
    assert built.header.num_records == 2


def test_a_defect_of_a_transform_fails_one_record() -> None:
    """Goal: its partition is FAILED at the record, which is not skipped; the flow goes on."""

    def broken(record: FlowRecord) -> FlowRecord:
        if record.value.data == b"bad":
            raise ZeroDivisionError("of the secret 4711")
        return record

    values = [b"a", b"bad", b"c"]
    whole = memoryview(batch([record(7 + at, value=value) for at, value in enumerate(values)]))
    (header,) = batches(whole)
    pieces = [Data(Offset(7), Offset(10), header, header.records(whole))]
    found = asyncio.run(transformed(TransformChain([("mine", broken)]), pieces, REMOTE))
    assert found.failure is not None
    assert found.failure.offset == 8
    assert "offset 8 cannot be transformed: ZeroDivisionError in test_tr" in found.failure.reason
    assert "4711" not in found.failure.reason
    (built,) = found.batches[REMOTE]
    assert [decode(one).value for one in raw_records(built.header, built.records)] == [b"a"]


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
        found_position(None, None, ROUTE, "g", 3, recreated=True)
    # It has begun since then, or other topics have.
    with pytest.raises(PositionLost):
        found_position(None, BegunPartition(NAME, ROUTE), ROUTE, "g", 3, recreated=True)
    former = BegunPartition(NAME, FORMER_SOURCE)
    assert found_position(None, former, ROUTE, "g", 3, recreated=True) is None
    here = Committed(5, OURS)
    assert found_position(here, None, ROUTE, "g", 3, recreated=True) == here


def test_what_has_begun_is_no_past_of_plans() -> None:
    """Goal: flows of both kinds share partitions of `__mirror_offsets`."""
    begun = BegunPartition(NAME, ROUTE)
    records = [ControlRecord(0, at, 0, *encode(begun)) for at in range(3)]
    stored = fold_offsets(records)
    assert (stored.begun, stored.has_past) == ({NAME: begun}, False)
