"""Rebased records against the naive way, and what is left to the general loop.

All tests run with the installed module, which is compiled if there is a C compiler, and with its
source, interpreted: both have to do the same.
"""

from collections.abc import Callable, Sequence

import pytest
from batch_builders import BIG, THEN, altered, batch, joined, record, runs
from compiled_forms import interpreted
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log import rebase
from twinlog.kafka.log.batch import LOG_APPEND_TIME, Header
from twinlog.kafka.log.compression import decompress
from twinlog.kafka.log.merge import _rebased_unusual, merge, merge_by_records
from twinlog.kafka.log.rebase import Part
from twinlog.kafka.log.records import encode_tail, encode_varint, raw_records

Rebased = Callable[[Sequence[Part]], tuple[bytes, int, int] | None]
FORMS = {"installed": rebase.rebased, "interpreted": interpreted(rebase).rebased}
both = pytest.mark.parametrize("rebased", FORMS.values(), ids=FORMS)


def parts_of(headers: Sequence[Header], buffer: memoryview) -> list[Part]:
    """The batches as the loop takes them."""
    return [
        (
            bytes(decompress(header.codec, header.records(buffer))),
            header.num_records,
            header.max_timestamp if header.is_log_append_time else header.base_timestamp,
            header.is_log_append_time,
        )
        for header in headers
    ]


@both
@given(data=runs())
def test_rebased_records_equal_the_oracle(rebased: Rebased, data: bytes) -> None:
    """Goal: byte by byte the same; records with timestamps 64 bits apart are left out."""
    headers, buffer = joined(data)
    oracle, records = merge_by_records(headers, buffer)
    found = rebased(parts_of(headers, buffer))
    if found is None:
        times = [raw.timestamp for h in headers for raw in raw_records(h, h.records(buffer))]
        assert max(times) >= BIG - 1
        return
    wanted = bytes(decompress(oracle.codec, records))
    assert found == (wanted, oracle.base_timestamp, oracle.max_timestamp)


@both
@given(data=runs(), edits=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3))
def test_any_bytes_are_rebased_as_by_the_general_loop(
    rebased: Rebased, data: bytes, edits: list[tuple[int, int]]
) -> None:
    """Goal: what is taken is what the general loop makes of it; nothing is read beyond the end."""
    headers, buffer = joined(data)
    parts = parts_of(headers, buffer)
    for at, byte in edits:
        nth = at % len(parts)
        body = parts[nth][0]
        place = at // len(parts) % len(body)
        parts[nth] = (body[:place] + bytes([byte]) + body[place + 1 :], *parts[nth][1:])
    if (found := rebased(parts)) is not None:
        group = [(h, memoryview(body)) for h, (body, *_) in zip(headers, parts, strict=True)]
        records, first, last = _rebased_unusual(group)
        assert found == (bytes(records), first, last)


def body(length: bytes, timestamp: bytes, offset: bytes, tail: bytes = b"\x01\x01\0") -> bytes:
    return length + b"\0" + timestamp + offset + tail


LONG = b"\x80" * 4 + b"\0"
ODD = {
    "no bytes": b"",
    "cut off": body(b"\x0c", b"\0", b"\0")[:-1],
    "bytes behind it": body(b"\x0c", b"\0", b"\0") + b"\0",
    "a negative length": body(b"\x0b", b"\0", b"\0"),
    "a length that ends before the deltas": b"\x02\0\0\0",
    "another offset delta": body(b"\x0c", b"\0", b"\x02"),
    "a negative offset delta": body(b"\x0c", b"\0", b"\x01"),
    "a longer offset delta": body(b"\x0e", b"\0", b"\x80\0"),
    "a varint without end": b"\xff" * 12,
    "a timestamp beyond 60 bits": body(b"\x1e", encode_varint(BIG), b"\0"),
}


@both
@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_unusual_records_are_left_to_the_general_loop(rebased: Rebased, data: bytes) -> None:
    """Goal: no part of such a batch is taken, wherever it is among others."""
    good = (body(b"\x0c", b"\0", b"\0"), 1, THEN, False)
    assert rebased([good]) is not None
    assert rebased([(data, 1, THEN, False)]) is None
    assert rebased([good, (data, 1, THEN, False)]) is None


@both
@pytest.mark.parametrize("timestamp", [1 << 60, BIG, -1 << 60, -BIG - 1])
def test_timestamps_that_could_overflow_are_left(rebased: Rebased, timestamp: int) -> None:
    """Goal: sums of 64 bits wrap in the general loop only."""
    assert rebased([(body(b"\x0c", b"\0", b"\0"), 1, timestamp, False)]) is None


@both
def test_numbers_longer_than_needed_are_read(rebased: Rebased) -> None:
    """Goal: a producer may pad lengths and timestamps; they are written again at their length."""
    usual, padded = body(b"\x0c", b"\x04", b"\0"), body(b"\x96" + LONG, b"\x84" + LONG, b"\0")
    assert len(padded) == len(usual) + 2 * len(LONG)
    assert rebased([(padded, 1, THEN, False)]) == rebased([(usual, 1, THEN, False)])


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_batches_with_an_unusual_record_are_merged_all_the_same(attributes: int) -> None:
    """Goal: the general loop takes the whole group."""
    far = encode_varint(BIG)
    tail = encode_tail(None, b"v")
    length = encode_varint(1 + len(far) + 1 + len(tail))
    odd = altered(batch([record(1)]), body=body(length, far, b"\0", tail), attributes=attributes)
    headers, buffer = joined(batch([record(0)]), odd, batch([record(2), record(3)]))
    [merged] = merge(headers, buffer)
    assert merged == merge_by_records(headers, buffer)


def test_corrupt_records_are_reported() -> None:
    """Goal: the general loop judges them, also behind batches that were taken."""
    bad = altered(batch([record(1)]), body=b"\x02\0\0\0")
    headers, buffer = joined(batch([record(0)]), bad)
    with pytest.raises(CorruptBatch, match="offset 1 do not match"):
        list(merge(headers, buffer))
