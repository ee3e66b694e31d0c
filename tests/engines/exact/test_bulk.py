"""Batches of empty records."""

import pytest

from twinlog.engines.exact.bulk import BULK_RECORDS, NO_TIMESTAMP, empty_records, is_bulk
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, decode, raw_records, whole
from twinlog.kafka.types import Offset


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 70), (1 << 40, (1 << 40) + 9000)])
def test_each_offset_gets_one_empty_record(start: int, end: int) -> None:
    """Goal: each offset has one record, without key, value, headers and time."""
    data = empty_records(Offset(start), Offset(end))
    assert (data.start, data.end) == (start, end)
    found = [decode(raw) for raw in raw_records(data.header, data.records)]
    assert found == [(at, NO_TIMESTAMP, None, None, ()) for at in range(start, end)]
    assert not is_bulk(data.records, data.header.num_records)


def test_a_bulk_batch_is_bounded_and_recognised() -> None:
    """Goal: a batch is small enough for every broker, and is recognised again."""
    data = empty_records(Offset(7), Offset(3 * BULK_RECORDS))
    assert (data.start, data.end) == (7, 7 + BULK_RECORDS)
    assert data.size < 1_000_000
    assert is_bulk(data.records, BULK_RECORDS)
    assert not is_bulk(data.records[:-1], BULK_RECORDS)
    assert not is_bulk(data.records, BULK_RECORDS - 1)


def test_empty_records_form_a_valid_batch() -> None:
    """Goal: the bytes are a valid batch."""
    data = empty_records(Offset(0), Offset(500))
    sent = whole(Encoded(data.header, data.records))
    [header] = batches(memoryview(sent))
    assert (header.num_records, header.codec, header.forwardable) == (500, Codec.ZSTD, True)
