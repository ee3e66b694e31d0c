"""How many records the Spark of `verify` gets at a time (twinlog.verify.query_job)."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.log.records import RawRecord
from twinlog.verify.query_job import MAX_BATCH, MAX_BYTES, batches


def raws(*sizes: int) -> list[RawRecord]:
    data = memoryview(bytes(max(sizes, default=0)))
    return [RawRecord(at, 0, 0, data[:size]) for at, size in enumerate(sizes)]


def test_a_batch_has_so_many_records_at_most() -> None:
    assert [len(one) for one in batches(raws(*[10] * (2 * MAX_BATCH + 1)))] == [
        MAX_BATCH,
        MAX_BATCH,
        1,
    ]


@given(st.lists(st.sampled_from([0, 1, MAX_BYTES // 3, MAX_BYTES, MAX_BYTES + 1, 2 * MAX_BYTES])))
def test_a_batch_has_so_many_bytes_or_one_record(sizes: list[int]) -> None:
    """Goal: Spark ran out of memory, and its job never ended, where records are large."""
    records = raws(*sizes)
    found = list(batches(records))
    assert [raw for one in found for raw in one] == records
    assert all(len(one) == 1 or sum(len(raw.tail) for raw in one) <= MAX_BYTES for one in found)
    for one, following in itertools.pairwise(found):
        assert sum(len(raw.tail) for raw in one) + len(following[0].tail) > MAX_BYTES
