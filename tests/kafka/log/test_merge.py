"""Merging against the naive way, and what it leaves alone."""

import pytest
from batch_builders import THEN, altered, batch, captures, joined, record, runs
from captures import Capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.log.merge import MERGED_DECOMPRESSED, alone, merge, merge_by_records
from twinlog.kafka.log.records import Encoded, RawRecord, raw_records


def content(encoded: Encoded) -> tuple[Header, list[RawRecord]]:
    """A batch's header but for its length, and its records."""
    return encoded.header._replace(length=0), raw_records(encoded.header, encoded.records)


@given(runs())
def test_a_merged_run_equals_the_oracle(data: bytes) -> None:
    """Goal: record by record the same, in bytes too where nothing is compressed."""
    headers, buffer = joined(data)
    [merged] = merge(headers, buffer)
    oracle = merge_by_records(headers, buffer)
    assert content(merged) == content(oracle)
    if merged.header.codec is Codec.NONE:
        assert merged.records == oracle.records


@given(captures, st.data())
def test_merged_real_batches_equal_the_oracle(log: Capture, data: st.DataObject) -> None:
    """Goal: any stretch of dense batches of one codec in a real log."""
    start = data.draw(st.integers(0, len(log.headers) - 1))
    run: list[Header] = []
    for header in log.headers[start : start + 40]:
        if not header.is_dense or (
            run and (header.codec, header.base_offset) != (run[0].codec, run[-1].next_offset)
        ):
            break
        run.append(header)
    if run:
        [merged] = merge(run, log.buffer)
        assert content(merged) == content(merge_by_records(run, log.buffer))


def test_well_compressed_batches_are_merged_up_to_a_bound() -> None:
    """Goal: neither a merged batch nor the memory to make it grows with the compression ratio."""
    values = [bytes(100_000)] * 10 + [bytes(10_000_000)] + [bytes(100_000)] * 10
    headers, buffer = joined(
        *(batch([record(at, value=value)], Codec.ZSTD) for at, value in enumerate(values))
    )
    merged = list(merge(headers, buffer))
    assert [m.header.num_records for m in merged] == [7, 3, 1, 7, 3]
    assert merged[2] == Encoded(headers[10], headers[10].records(buffer))
    assert content(merged[0])[1] == content(merge_by_records(headers[:7], buffer))[1]
    assert MERGED_DECOMPRESSED > 7 * 100_000


def test_batches_with_wrong_record_lengths_are_corrupt() -> None:
    """Goal: wrong lengths, counts and offsets, with a right checksum."""
    good = batch([record(0), record(1)])
    body = good[61:]
    for wrong in (
        b"",
        body[:-1],
        body + b"\0",
        body[: len(body) // 2],
        b"\x01" + body[1:],
        b"\xff" * 11,
        body[:3] + b"\x02" + body[4:],
        body[:3] + b"\x01" + body[4:],
        body[:2] + b"\x80" + body[3:],
    ):
        for codec in Codec:
            data = bytes(compress(codec, wrong))
            headers, buffer = joined(altered(good, body=data, attributes=int(codec)))
            with pytest.raises(CorruptBatch):
                list(merge(headers, buffer))


def test_a_single_batch_is_forwarded_unless_it_has_log_append_time() -> None:
    """Goal: a batch is forwarded as it is, unless its readers see another time than it has."""
    headers, buffer = joined(
        batch([record(0)]), batch([record(1), record(2, THEN + 5)], attributes=0x08)
    )
    as_it_is, stamped = (alone(header, buffer) for header in headers)
    assert as_it_is == Encoded(headers[0], headers[0].records(buffer))
    assert {r.timestamp for r in raw_records(stamped.header, stamped.records)} == {THEN + 5}
    assert (stamped.header.base_timestamp, stamped.header.max_timestamp) == (THEN + 5, THEN + 5)
    assert stamped.header.forwardable
