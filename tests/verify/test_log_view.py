"""What a log's bytes prove about each offset."""

import pytest
from batch_builders import THEN, altered, batch, captures, holed, record
from captures import Capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import CONTROL, TRANSACTIONAL
from twinlog.verify.log_view import Kind, Span, spans


def kinds(found: list[Span]) -> list[tuple[int, int, Kind]]:
    return [(one.start, one.end, one.kind) for one in found]


@given(captures, st.data())
def test_spans_of_a_real_log_have_the_records_of_librdkafka(
    log: Capture, data: st.DataObject
) -> None:
    """Goal: from any offset on, the data is exactly what librdkafka saw in the same log."""
    start = data.draw(st.integers(0, log.end - 1))
    found = spans(log.answer(start), start, log.aborted.get(start, ()))
    assert [one.start for one in found] == [start, *(one.end for one in found[:-1])]
    seen = [
        offset
        for one in found
        for offset in range(one.start, one.end)
        if one.record(offset) is not None
    ]
    assert seen == [one.offset for one in log.seen if one.offset >= start]


def data(base: int, count: int = 1, *, producer_id: int = -1, attributes: int = 0) -> bytes:
    records = [record(base + at, THEN) for at in range(count)]
    return altered(batch(records), attributes=attributes, producer_id=producer_id)


def marker(at: int, producer_id: int) -> bytes:
    return data(at, producer_id=producer_id, attributes=TRANSACTIONAL | CONTROL)


def test_each_kind_of_span_is_derived_from_bytes() -> None:
    """Goal: markers, aborted data, holes between batches, an emptied batch.

    The end of one transaction is not that of the next.
    """
    log = b"".join(
        [
            data(0, 2),
            data(2, 2, producer_id=7, attributes=TRANSACTIONAL),
            marker(4, 7),
            data(5, producer_id=7, attributes=TRANSACTIONAL),
            marker(6, 7),
            data(9),
            holed(10, 12, []),
            data(13),
        ]
    )
    assert kinds(spans(memoryview(log), 1, [(7, 2)])) == [
        (1, 2, Kind.DATA),
        (2, 4, Kind.ABORTED),
        (4, 5, Kind.CONTROL),
        (5, 6, Kind.DATA),
        (6, 7, Kind.CONTROL),
        (7, 9, Kind.HOLE),
        (9, 10, Kind.DATA),
        (10, 13, Kind.HOLE),
        (13, 14, Kind.DATA),
    ]


def test_without_bytes_no_span_is_concluded() -> None:
    """Goal: an empty answer, one that is cut off, and one below the position give no span."""
    assert spans(memoryview(b""), 5) == []
    assert spans(memoryview(data(5, 3)[:-1]), 5) == []
    assert spans(memoryview(data(0, 5)), 5) == []


def test_offsets_before_a_corrupt_batch_are_proven() -> None:
    """Goal: offsets before it are proved; without any, it is an error."""
    bad = bytearray(data(1))
    bad[-1] ^= 1
    assert kinds(spans(memoryview(data(0) + bytes(bad)), 0)) == [(0, 1, Kind.DATA)]
    with pytest.raises(CorruptBatch):
        spans(memoryview(bytes(bad)), 1)
