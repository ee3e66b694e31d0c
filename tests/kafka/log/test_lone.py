"""Lone records against the naive way of merging, and what ends a run of them.

All tests run with the installed module, which is compiled if there is a C compiler, and with its
source, interpreted: both have to do the same.
"""

from collections.abc import Callable
from typing import Any

import pytest
from batch_builders import THEN, altered, batch, joined, record, runs
from compiled_forms import interpreted
from hypothesis import given

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log import lone
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.merge import merge_by_records
from twinlog.kafka.log.records import Encoded

MergeLone = Callable[[memoryview, int], tuple[Encoded | None, int]]
FORMS = {"installed": lone.merge_lone, "interpreted": interpreted(lone).merge_lone}
both = pytest.mark.parametrize("merge_lone", FORMS.values(), ids=FORMS)


@both
@given(data=runs())
def test_merged_lone_records_equal_the_oracle(merge_lone: MergeLone, data: bytes) -> None:
    """Goal: what is merged in one go is what the oracle makes of the same batches, byte by byte."""
    headers, buffer = joined(data)
    merged, end = merge_lone(buffer, 0)
    taken = [header for header in headers if header.end <= end]
    assert not taken or taken[-1].end == end
    assert (merged is None) == (len(taken) < lone.MIN_RUN)
    if merged is not None:
        assert merged == merge_by_records(taken, buffer)


def lones(count: int, **fields: Any) -> list[bytes]:
    """Lone records; the header of the last is altered."""
    made = [batch([record(at, THEN + at)]) for at in range(count)]
    return [*made[:-1], altered(made[-1], **fields)] if fields else made


OTHERS = {
    "transactional": altered(lones(20)[-1], attributes=0x10),
    "control": altered(lones(20)[-1], attributes=0x20),
    "delete horizon": altered(lones(20)[-1], attributes=0x40),
    "compressed": altered(lones(20)[-1], attributes=0x01),
    "append time": altered(lones(20)[-1], attributes=0x08),
    "offset above": altered(lones(20)[-1], base_offset=20),
    "offset below": altered(lones(20)[-1], base_offset=18),
    "no records": altered(lones(20)[-1], num_records=0),
    "two offsets": altered(lones(20)[-1], last_offset_delta=1),
    "no bytes": altered(lones(20)[-1], body=b""),
    "no tail": altered(lones(20)[-1], body=b"\x08\0\0\0"),
    "bytes behind it": altered(lones(20)[-1], body=lones(1)[0][61:] + b"\0"),
    "timestamp delta": altered(lones(20)[-1], body=b"\x10\0\x02\0\x01\x01\0\0\0"),
    "offset delta": altered(lones(20)[-1], body=b"\x10\0\0\x02\x01\x01\0\0\0"),
    "no such size": altered(lones(20)[-1], body=b"\xff" * 4 + bytes(61)),
    "far in the future": altered(lones(20)[-1], base_timestamp=1 << 60),
    "far in the past": altered(lones(20)[-1], base_timestamp=-1 << 60),
    "older format": altered(lones(20)[-1], magic=1),
    "cut off": lones(20)[-1][:-1],
    "wrong checksum": lones(20)[-1][:-1] + b"!",
    "two records": batch([record(19), record(20)]),
    "too long": batch([record(19, value=bytes(20_000))]),
    "nothing": b"",
}


@both
@pytest.mark.parametrize("last", OTHERS.values(), ids=OTHERS)
def test_a_run_of_lone_records_ends_at_any_other_batch(merge_lone: MergeLone, last: bytes) -> None:
    """Goal: a batch of any other kind is left for `batches` to judge."""
    made = lones(20)[:-1]
    buffer = memoryview(b"".join((*made, last)))
    merged, end = merge_lone(buffer, 0)
    assert end == len(buffer) - len(last)
    assert merged is not None
    assert merged.header.num_records == 19


@both
@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 59, 60, 61, 62, 63, 64, 8183, 8184, 8185, 8186])
def test_records_at_the_limits_of_length_fields_are_merged(
    merge_lone: MergeLone, size: int
) -> None:
    """Goal: each length around the places where a length takes a byte more."""
    headers, buffer = joined(*(batch([record(at, value=bytes(size))]) for at in range(20)))
    merged, _ = merge_lone(buffer, 0)
    oracle = merge_by_records(headers, buffer) if size < 8185 else None
    assert merged == oracle


@both
def test_few_lone_records_are_not_merged(merge_lone: MergeLone) -> None:
    """Goal: a short run is reported with its end, so that it is not tried again."""
    buffer = memoryview(b"".join(lones(lone.MIN_RUN - 1)))
    assert merge_lone(buffer, 0) == (None, len(buffer))
    assert merge_lone(buffer[:20], 0) == (None, 0)


@both
@pytest.mark.parametrize("deltas", [(0, -1), (0, 16_383, 16_384), (0, 1 << 40, -(1 << 40))])
def test_any_timestamp_deltas_are_merged(merge_lone: MergeLone, deltas: tuple[int, ...]) -> None:
    """Goal: deltas of any length and sign, and the newest timestamp in the header."""
    times = (THEN + delta for delta in deltas * 16)
    headers, buffer = joined(*(batch([record(at, time)]) for at, time in enumerate(times)))
    merged, end = merge_lone(buffer, 0)
    assert (merged, end) == (merge_by_records(headers, buffer), len(buffer))


@both
def test_offsets_that_would_overflow_are_not_merged(merge_lone: MergeLone) -> None:
    """Goal: offsets that would overflow are left to `batches`."""
    for base in (-1, (1 << 63) - 3):
        made = [altered(each, base_offset=base) for each in lones(20)]
        assert merge_lone(memoryview(b"".join(made)), 0) == (None, 0)


@both
def test_a_long_run_is_split(merge_lone: MergeLone) -> None:
    """Goal: a merged batch stays below every usual max.message.bytes."""
    buffer = memoryview(b"".join(batch([record(at, value=bytes(5000))]) for at in range(200)))
    at, offset = 0, 0
    while at < len(buffer):
        merged, at = merge_lone(buffer, at)
        assert merged is not None
        assert merged.header.base_offset == offset
        assert len(merged.records) < 300_000
        offset = merged.header.next_offset
    assert offset == 200


@both
def test_a_corrupt_batch_ends_a_run_and_is_reported_by_the_reader(merge_lone: MergeLone) -> None:
    """Goal: a wrong checksum ends a lone run, and the next read reports it."""
    made = lones(30)
    made[20] = made[20][:-1] + b"?"
    buffer = memoryview(b"".join(made))
    _, end = merge_lone(buffer, 0)
    with pytest.raises(CorruptBatch, match="checksum"):
        list(batches(buffer, end))
