"""Both ways of merging against the naive one, and what each of them leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures import Capture
from made import THEN, altered, batch, captures, joined, record, runs
from twinlog.core.batch import Header, batches
from twinlog.core.compression import Codec, compress
from twinlog.core.errors import CorruptBatch
from twinlog.core.merge import (
    LONE_MIN_RUN,
    MERGED_DECOMPRESSED,
    alone,
    merge,
    merge_by_records,
    merge_lone,
)
from twinlog.core.records import Encoded, RawRecord, raw_records


def content(made: Encoded) -> tuple[Header, list[RawRecord]]:
    """A batch's header but for its length, and its records."""
    return made.header._replace(length=0), raw_records(made.header, made.records)


@given(runs())
def test_a_run_as_the_oracle_has_it(data: bytes) -> None:
    """Goal: record by record the same, in bytes too where nothing is compressed."""
    headers, buffer = joined(data)
    [merged] = merge(headers, buffer)
    oracle = merge_by_records(headers, buffer)
    assert content(merged) == content(oracle)
    if merged.header.codec is Codec.NONE:
        assert merged.records == oracle.records


@given(captures, st.data())
def test_real_batches_as_the_oracle_has_them(log: Capture, data: st.DataObject) -> None:
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


@given(runs())
def test_lone_records_as_the_oracle_has_them(data: bytes) -> None:
    """Goal: what is merged in one go is what the oracle makes of the same batches, byte by byte."""
    headers, buffer = joined(data)
    merged, end = merge_lone(buffer, 0)
    taken = [header for header in headers if header.end <= end]
    assert not taken or taken[-1].end == end
    assert (merged is None) == (len(taken) < LONE_MIN_RUN)
    if merged is not None:
        assert merged == merge_by_records(taken, buffer)


def lone(count: int, **fields: int) -> list[bytes]:
    """Lone records; the header of the last is altered."""
    made = [batch([record(at, THEN + at)]) for at in range(count)]
    return [*made[:-1], altered(made[-1], **fields)] if fields else made


OTHERS = {
    "transactional": altered(lone(20)[-1], attributes=0x10),
    "control": altered(lone(20)[-1], attributes=0x20),
    "delete horizon": altered(lone(20)[-1], attributes=0x40),
    "compressed": altered(lone(20)[-1], attributes=0x01),
    "append time": altered(lone(20)[-1], attributes=0x08),
    "offset above": altered(lone(20)[-1], base_offset=20),
    "offset below": altered(lone(20)[-1], base_offset=18),
    "no records": altered(lone(20)[-1], num_records=0),
    "two offsets": altered(lone(20)[-1], last_offset_delta=1),
    "no bytes": altered(lone(20)[-1], body=b""),
    "no tail": altered(lone(20)[-1], body=b"\x08\0\0\0"),
    "bytes behind it": altered(lone(20)[-1], body=lone(1)[0][61:] + b"\0"),
    "timestamp delta": altered(lone(20)[-1], body=b"\x10\0\x02\0\x01\x01\0\0\0"),
    "offset delta": altered(lone(20)[-1], body=b"\x10\0\0\x02\x01\x01\0\0\0"),
    "older format": altered(lone(20)[-1], magic=1),
    "cut off": lone(20)[-1][:-1],
    "wrong checksum": lone(20)[-1][:-1] + b"!",
    "two records": batch([record(19), record(20)]),
    "too long": batch([record(19, value=bytes(20_000))]),
    "nothing": b"",
}


@pytest.mark.parametrize("last", OTHERS.values(), ids=OTHERS)
def test_a_run_ends_where_a_batch_is_of_another_kind(last: bytes) -> None:
    """Goal: whatever it is, it is left for `batches` to judge."""
    made = lone(20)[:-1]
    buffer = memoryview(b"".join((*made, last)))
    merged, end = merge_lone(buffer, 0)
    assert end == len(buffer) - len(last)
    assert merged is not None
    assert merged.header.num_records == 19


@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 59, 60, 61, 62, 63, 64, 8183, 8184, 8185, 8186])
def test_lengths_of_one_and_two_bytes(size: int) -> None:
    """Goal: each length around the places where a length takes a byte more."""
    headers, buffer = joined(*(batch([record(at, value=bytes(size))]) for at in range(20)))
    merged, _ = merge_lone(buffer, 0)
    oracle = merge_by_records(headers, buffer) if size < 8185 else None
    assert merged == oracle


def test_few_lone_records_are_not_merged() -> None:
    """Goal: a short run is told with its end, so that nobody tries it again."""
    buffer = memoryview(b"".join(lone(LONE_MIN_RUN - 1)))
    assert merge_lone(buffer, 0) == (None, len(buffer))
    assert merge_lone(buffer[:20], 0) == (None, 0)


def test_a_long_run_is_cut() -> None:
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


def test_well_compressed_batches_are_merged_up_to_a_bound() -> None:
    """Goal: neither one merged batch nor what is held to make it grows with the compression."""
    values = [bytes(100_000)] * 10 + [bytes(10_000_000)] + [bytes(100_000)] * 10
    headers, buffer = joined(
        *(batch([record(at, value=value)], Codec.ZSTD) for at, value in enumerate(values))
    )
    merged = list(merge(headers, buffer))
    assert [m.header.num_records for m in merged] == [7, 3, 1, 7, 3]
    assert merged[2] == Encoded(headers[10], headers[10].records(buffer))
    assert content(merged[0])[1] == content(merge_by_records(headers[:7], buffer))[1]
    assert MERGED_DECOMPRESSED > 7 * 100_000


def test_what_does_not_hold_its_records_is_corrupt() -> None:
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


def test_alone() -> None:
    """Goal: a batch goes as it is, unless its readers see another time than it says."""
    headers, buffer = joined(
        batch([record(0)]), batch([record(1), record(2, THEN + 5)], attributes=0x08)
    )
    as_it_is, stamped = (alone(header, buffer) for header in headers)
    assert as_it_is == Encoded(headers[0], headers[0].records(buffer))
    assert {r.timestamp for r in raw_records(stamped.header, stamped.records)} == {THEN + 5}
    assert (stamped.header.base_timestamp, stamped.header.max_timestamp) == (THEN + 5, THEN + 5)
    assert stamped.header.forwardable


def test_batches_are_left_for_the_reader_to_judge() -> None:
    """Goal: a wrong checksum ends a lone run, and reading on from there says so."""
    made = lone(30)
    made[20] = made[20][:-1] + b"?"
    buffer = memoryview(b"".join(made))
    _, end = merge_lone(buffer, 0)
    with pytest.raises(CorruptBatch, match="checksum"):
        list(batches(buffer, end))
