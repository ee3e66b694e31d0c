"""Any bytes give a result or `CorruptBatch`: never another exception, never without a bound.

Random bytes hardly pass a checksum. So real batches are altered too, and get a right checksum
again: the remaining errors are those of a faulty producer or broker.
"""

import time
from collections.abc import Callable
from typing import Final

import pytest
from batch_builders import captures, codecs, rechecked
from captures import Capture, capture, check_cover
from hypothesis import example, given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import LegacyBatch, batches
from twinlog.kafka.log.compression import Codec, TooLong, compress, decompress
from twinlog.kafka.log.legacy import legacy_records
from twinlog.kafka.log.lone import merge_lone
from twinlog.kafka.log.merge import MERGED_DECOMPRESSED, merge, merge_by_records
from twinlog.kafka.log.records import RawRecord, decode, raw_records
from twinlog.kafka.types import AbortedTransaction, Offset
from twinlog.mirror.plan import plan

anything = st.binary(max_size=300)
LIMIT: Final = 1 << 20
HEADER_FIELDS: Final = (0, 8, 12, 16, 17, 21, 22, 23, 27, 35, 43, 51, 53, 57, 61, 62, 63, 64)
"""The offsets of fields and records."""


def result_or_none(step: Callable[[], object]) -> object:
    """Return the result; None for the documented exceptions."""
    try:
        return step()
    except (CorruptBatch, LegacyBatch):
        return None


def try_all(data: bytes, position: int) -> None:
    """Run all readers of a log's bytes."""
    buffer = memoryview(data)
    result_or_none(lambda: list(batches(buffer)))
    result_or_none(lambda: [decode(r) for run in legacy_records(buffer, 0) for r in run.records])
    _, end = merge_lone(buffer, 0)
    assert 0 <= end <= len(data)
    aborted = [AbortedTransaction(at, 0) for at in range(20)]
    for listed in (aborted, []):
        pieces = result_or_none(lambda listed=listed: plan(buffer, Offset(position), listed))  # type: ignore[misc]
        if pieces:
            check_cover(pieces, position)  # type: ignore[arg-type]


def try_records(data: bytes) -> None:
    """Both ways to read a batch's records agree on whether they can be read."""
    buffer = memoryview(data)
    for header in result_or_none(lambda: list(batches(buffer))) or []:  # type: ignore[attr-defined]
        found = result_or_none(lambda: raw_records(header, header.records(buffer)))  # noqa: B023
        for raw in found or []:  # type: ignore[attr-defined]
            result_or_none(lambda: decode(raw))  # noqa: B023
        if header.is_dense:
            merged = result_or_none(lambda: list(merge([header], buffer)))  # noqa: B023
            if merged and found is None:
                # Its stated size is too large to be merged: it is forwarded as it is, unread.
                with pytest.raises(TooLong):
                    decompress(header.codec, header.records(buffer), MERGED_DECOMPRESSED)
                assert [one.records for one in merged] == [header.records(buffer)]  # type: ignore[attr-defined]
                continue
            assert (merged is None) == (found is None)
            if merged:
                oracle = merge_by_records([header], buffer)
                assert merged[0].header._replace(length=0) == oracle.header._replace(length=0)  # type: ignore[index]


@given(anything, st.integers(0, 50))
@example(b"\0" * 16 + b"\x02" + b"\0" * 60, 0)
@example(b"\0" * 11 + b"\x31\0\0\0\0\x02" + b"\0" * 60, 0)
@example(b"\xff" * 100, 0)
def test_any_bytes_give_records_or_corrupt_batch(data: bytes, position: int) -> None:
    """Goal: all readers, on nothing like a log."""
    try_all(data, position)


@given(st.integers(0, 2), anything, st.integers(0, 200))
def test_any_bytes_after_a_valid_length_and_magic_are_handled(
    magic: int, data: bytes, length: int
) -> None:
    """Goal: far enough in to meet the checks that come later."""
    try_all(bytes(8) + length.to_bytes(4, "big") + bytes(4) + bytes((magic,)) + data, 0)


@given(captures, st.data())
def test_batches_with_flipped_bits_are_handled(log: Capture, data: st.DataObject) -> None:
    """Goal: bits flipped anywhere, first with the checksum as it was, then with a right one."""
    header = data.draw(st.sampled_from(log.headers))
    whole = bytearray(log.data[header.position : header.end])
    places = st.one_of(st.sampled_from(HEADER_FIELDS), st.integers(0, len(whole) - 1))
    for _ in range(data.draw(st.integers(1, 3))):
        at = min(data.draw(places), len(whole) - 1)
        whole[at] ^= data.draw(st.integers(1, 255))
    follows = log.data[header.end : header.end + 2000]
    position = data.draw(st.integers(0, header.next_offset))
    try_all(bytes(whole) + follows, position)
    # Its length is right again, so that the checksum covers the bytes that are read.
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    right = bytes(rechecked(whole))
    try_all(right + follows, position)
    try_records(right)


def test_a_batch_with_an_excessive_decompressed_length_is_handled() -> None:
    """Goal: the stated length is believed, not allocated; its readers check whether it is right."""
    log = capture("broker-snappy")
    header = log.headers[0]
    whole = bytearray(log.data[header.position : header.end])
    whole[62] ^= 0x80  # bare snappy, which begins with its length, instead of snappy-java's blocks
    try_records(bytes(rechecked(whole)))


@given(captures, st.data())
def test_batches_with_cut_or_repeated_records_are_handled(
    log: Capture, data: st.DataObject
) -> None:
    """Goal: records cut off, doubled, or replaced, in an otherwise right batch."""
    header = data.draw(st.sampled_from([h for h in log.headers if h.num_records]))
    whole = log.data[header.position : header.end]
    plain = bytes(decompress(header.codec, memoryview(whole)[61:]))
    cut = data.draw(st.integers(0, min(len(plain), 500)))
    body = (
        plain[:cut]
        + data.draw(st.sampled_from([b"", plain[cut:], plain]))
        + data.draw(st.sampled_from([b"", b"\0", b"\x02\0", b"\xff" * 12]))
    )
    bent = bytearray(whole[:61] + bytes(compress(header.codec, body)))
    bent[8:12] = (len(bent) - 12).to_bytes(4, "big")
    right = bytes(rechecked(bent))
    try_all(right, header.base_offset)
    try_records(right)


@given(captures, st.data())
def test_a_log_split_at_any_byte_is_handled(log: Capture, data: st.DataObject) -> None:
    """Goal: an answer that ends, or begins, within a batch."""
    start = data.draw(st.integers(0, len(log.data)))
    end = data.draw(st.integers(start, len(log.data)))
    try_all(log.data[start:end], 0)
    try_all(log.data[:end], 0)


@given(codecs, anything, st.booleans())
def test_any_compressed_bytes_are_handled(codec: Codec, data: bytes, whole: bool) -> None:
    """Goal: each codec, on noise and on its own data with noise in it."""
    made = bytes(compress(codec, data * 20)) if whole else b""
    result_or_none(lambda: decompress(codec, memoryview(made[: len(data)] + data), LIMIT))
    result_or_none(lambda: decompress(codec, memoryview(made + data), LIMIT))


@given(st.binary(max_size=60))
def test_any_record_tail_is_handled(tail: bytes) -> None:
    """Goal: a record's tail; what is read back is what was there."""
    result_or_none(lambda: decode(RawRecord(0, 0, 0, memoryview(tail))))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_refusing_a_decompression_bomb_costs_no_more_than_its_bound(codec: Codec) -> None:
    """Goal: the time and memory of refusing it do not grow with its decompressed size."""
    bomb = memoryview(bytes(compress(codec, bytes(64 << 20))))
    started = time.process_time()
    with pytest.raises(TooLong):
        decompress(codec, bomb, LIMIT)
    assert time.process_time() - started < 2.0


def test_impossible_record_counts_cause_no_allocation() -> None:
    """Goal: two thousand million records are not allocated because of a header."""
    bent = bytearray(bytes(8) + bytes(4) + b"\xff" * 4 + b"\x02" + bytes(44) + b"\x06\0\0\0")
    bent[23:27] = bent[57:61] = b"\x7f\xff\xff\xff"
    bent[8:12] = (len(bent) - 12).to_bytes(4, "big")
    started = time.process_time()
    try_records(bytes(rechecked(bent)))
    assert time.process_time() - started < 2.0
    many = RawRecord(0, 0, 0, memoryview(b"\x01\x01\xfe\xff\xff\xff\x0f"))
    with pytest.raises(CorruptBatch):
        decode(many)
