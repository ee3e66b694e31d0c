"""Records cut into parts, against `records.each_record` and `decode`; packed, against `build`.

All tests run with the installed module, which is compiled if there is a C compiler, and with its
source, interpreted: both have to do the same.
"""

from typing import Any

import pytest
from batch_builders import BIG, THEN, altered, batch, holed, joined, record, runs, timestamps
from captures import NAMES, capture
from compiled_forms import interpreted
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log import record_parts
from twinlog.kafka.log.batch import LOG_APPEND_TIME, Header
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.record_parts import CutRecord
from twinlog.kafka.log.records import (
    RawRecord,
    Record,
    build,
    decode,
    decode_headers,
    each_record,
    encode_headers,
    encode_tail,
    encode_varint,
    varint,
)

FORMS = {"installed": record_parts, "interpreted": interpreted(record_parts)}
both = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
contents = st.one_of(st.none(), st.binary(max_size=20), st.just(bytes(20_000)))
all_headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple)
MALFORMED = "malformed"


def cut(form: Any, header: Header, records: memoryview) -> list[Record | str]:
    """All records, in full, up to the first malformed one."""
    found: list[Record | str] = []
    try:
        for some in form.cut_records(header, records):
            assert len(some) <= record_parts.AT_ONCE
            for offset, timestamp, key, value, encoded in some:
                headers = decode_headers(memoryview(encoded), offset)
                found.append(Record(offset, timestamp, key, value, headers))
    except CorruptBatch:
        found.append(MALFORMED)
    return found


def expected(header: Header, records: memoryview) -> list[Record | str]:
    found: list[Record | str] = []
    try:
        found.extend(map(decode, each_record(header, records)))
    except CorruptBatch:
        found.append(MALFORMED)
    return found


def check(form: Any, data: bytes) -> None:
    headers, buffer = joined(data)
    for header in headers:
        records = header.records(buffer)
        assert cut(form, header, records) == expected(header, records)


@both
@given(data=runs())
def test_cut_records_are_those_of_the_oracle(form: Any, data: bytes) -> None:
    """Goal: any codec, timestamp type and timestamps, keys and values or none."""
    check(form, data)


@both
@pytest.mark.parametrize("name", NAMES)
def test_records_of_real_brokers_are_those_of_the_oracle(form: Any, name: str) -> None:
    check(form, capture(name).data)


@both
def test_compacted_batches_keep_their_offsets(form: Any) -> None:
    check(form, holed(5, 40, [(7, THEN), (8, THEN - 9), (40, THEN + 1)], Codec.LZ4))


@both
@given(at=st.integers(0, 200), byte=st.integers(0, 255), count=st.sampled_from([1, 3, 130]))
def test_altered_bytes_are_judged_as_by_the_oracle(
    form: Any, at: int, byte: int, count: int
) -> None:
    """Goal: one byte of a body anywhere has any value; nothing is read that is not there."""
    made = batch([record(7 + index, value=b"value", key=b"k") for index in range(count)])
    body = bytearray(made[61:])
    body[at % len(body)] = byte
    check(form, altered(made, body=bytes(body)))


@both
@given(length=st.integers(0, 60), more=st.binary(max_size=3))
def test_cut_off_and_longer_bodies_are_judged_as_by_the_oracle(
    form: Any, length: int, more: bytes
) -> None:
    made = batch([record(7 + index, value=b"value", key=b"k") for index in range(3)])
    check(form, altered(made, body=made[61 : 61 + length] + more))


LONG = encode_varint(-BIG - 1)
"""Ten bytes."""
BODIES = {
    "none": b"",
    "timestamp of ten bytes": b"\0" + LONG + b"\0\1\1\0",
    "offset delta of ten bytes": b"\0\0" + LONG + b"\1\1\0",
    "key length of ten bytes": b"\0\0\0" + LONG + b"\1\0",
    "key beyond the record": b"\0\0\0\x40\1\0",
    "value beyond the record": b"\0\0\0\1\x40\0",
    "no headers' count": b"\0\0\0\1\1",
    "endless varint": b"\0" + b"\xff" * 12,
    "headers without bytes": b"\0\0\0\1\1\x04",
}


@both
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("before", [0, 1, record_parts.AT_ONCE])
def test_unusual_records_are_judged_as_by_the_oracle(form: Any, name: str, before: int) -> None:
    made = batch([record(index) for index in range(before + 1)])
    usual = b"".join(
        varint(len(rest)) + rest
        for rest in (b"\0\0" + varint(index) + encode_tail(None, b"v") for index in range(before))
    )
    body = usual + varint(len(BODIES[name])) + BODIES[name]
    check(form, altered(made, body=body, last_offset_delta=before))


@both
def test_usual_records_before_an_unusual_one_are_skipped_in_steps(form: Any) -> None:
    """Goal: they are decoded twice, perhaps a million of them; the caller has its turns then."""
    lists = 20
    before = lists * record_parts.AT_ONCE
    made = batch([*map(record, range(before)), record(before, THEN - BIG)])
    ((header,), buffer) = joined(made)
    sizes = [len(some) for some in form.cut_records(header, header.records(buffer))]
    assert sizes == [record_parts.AT_ONCE] * lists + [0] * lists + [1]


@both
@pytest.mark.parametrize("base", [BIG, -BIG - 1, 1 << 60])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_timestamps_wrap_as_those_of_the_oracle(form: Any, base: int, attributes: int) -> None:
    made = batch([record(0), record(1, THEN + 5)], attributes=attributes)
    check(form, altered(made, base_timestamp=base))


@both
def test_a_batch_without_records_has_none(form: Any) -> None:
    made = altered(batch([record(0)]), body=b"", num_records=0)
    check(form, made)
    check(form, altered(made, body=b"\0"))


def cut_of(made: list[tuple[int, bytes | None, bytes | None, Any]]) -> list[CutRecord]:
    """Records as `cut_records` gives them, at offsets that nothing depends on."""
    return [
        (5 * at, timestamp, key, value, encode_headers(headers))
        for at, (timestamp, key, value, headers) in enumerate(made)
    ]


all_records = st.lists(
    st.tuples(timestamps, contents, contents, all_headers), min_size=1, max_size=9
)


@both
@given(made=all_records, first=st.integers(0, 9))
def test_packed_records_are_those_of_the_oracle(
    form: Any, made: list[tuple[int, bytes | None, bytes | None, Any]], first: int
) -> None:
    """Goal: the same bytes as `build`, for any timestamps, contents and headers."""
    raw = [
        RawRecord(at, timestamp, 0, memoryview(encode_tail(key, value, headers)))
        for at, (timestamp, key, value, headers) in enumerate(made)
    ]
    body, records = form.BatchBody(1 << 20, 100), cut_of(made)
    assert body.add(records[:first], 0) == min(first, len(records))
    assert body.add(records, min(first, len(records))) == len(records)
    expected = build(raw, Codec.NONE)
    assert body.encoded() == bytes(expected.records)
    assert (body.count, body.base_timestamp, body.max_timestamp) == (
        expected.header.num_records,
        expected.header.base_timestamp,
        expected.header.max_timestamp,
    )


@both
@given(
    sizes=st.lists(st.integers(0, 40), max_size=30),
    max_bytes=st.integers(1, 60),
    max_records=st.integers(1, 5),
)
def test_bodies_are_bounded(form: Any, sizes: list[int], max_bytes: int, max_records: int) -> None:
    """Goal: all records in order; no body could have one more; only a lone one is too large."""
    records: list[CutRecord] = [
        (at, THEN, b"k", bytes(size), b"\0") for at, size in enumerate(sizes)
    ]
    at, ranges = 0, []
    while at < len(records):
        body = form.BatchBody(max_bytes, max_records)
        end = body.add(records, at)
        assert body.count == end - at > 0
        assert body.add(records, end) == end
        ranges.append((at, end))
        at = end
    for start, end in ranges:
        total = sum(size + 2 for size in sizes[start:end])
        assert end - start <= max_records
        assert total <= max_bytes or end - start == 1
        if end < len(records) and end - start < max_records:
            assert total + sizes[end] + 2 > max_bytes


@both
def test_a_body_counts_records_of_more_than_one_byte(form: Any) -> None:
    """Goal: the largest offset deltas and sizes of each length of a varint."""
    made = [(THEN + at, b"k", bytes(at % 130), ()) for at in range(20_000)]
    raw = [
        RawRecord(at, timestamp, 0, memoryview(encode_tail(key, value)))
        for at, (timestamp, key, value, _) in enumerate(made)
    ]
    body = form.BatchBody(1 << 30, 1 << 20)
    assert body.add(cut_of(list(made)), 0) == len(made)
    assert body.encoded() == bytes(build(raw, Codec.NONE).records)


@both
@given(made=all_records, added=all_headers.filter(bool))
def test_added_headers_are_behind_the_own_ones(
    form: Any, made: list[tuple[int, bytes | None, bytes | None, Any]], added: Any
) -> None:
    more = encode_headers(added)[1:]
    assert form.with_headers(cut_of(made), len(added), more) == cut_of(
        [(timestamp, key, value, (*own, *added)) for timestamp, key, value, own in made]
    )


MORE = encode_headers((("n", b"new"),))[1:]


@both
@given(data=st.binary(max_size=12) | all_headers.map(encode_headers), at=st.integers(0, 30))
def test_headers_before_added_ones_are_judged_as_by_the_oracle(
    form: Any, data: bytes, at: int
) -> None:
    """Goal: any bytes; what cannot be read is refused, and the rest keeps its meaning."""
    data = data[:at]
    try:
        expected = (*decode_headers(memoryview(data), 7), ("n", b"new"))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            form.with_headers([(7, THEN, None, None, data)], 1, MORE)
        return
    ((*rest, found),) = form.with_headers([(7, THEN, None, None, data)], 1, MORE)
    assert rest == [7, THEN, None, None]
    assert decode_headers(memoryview(found), 7) == expected


@both
@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (b"\x82\x00\x02h\x01", b"\x02h\x01"),  # a count of two bytes
        (b"\x02\x82\x00h\x02x", b"\x82\x00h\x02x"),
        (b"\x02\x02h\x03", b"\x02h\x03"),  # null as -2
        (b"\x02" + b"\x82" + b"\x80" * 8 + b"\x00" + b"h\x01", b"\x02h\x01"),  # of ten bytes
    ],
)
def test_own_headers_keep_their_bytes(form: Any, own: bytes, kept: bytes) -> None:
    """Goal: also varints that are longer than they need to be; up to nine bytes."""
    ((*_, found),) = form.with_headers([(7, THEN, None, None, own)], 1, MORE)
    assert found == b"\x04" + kept + MORE


HEADERS = {
    "nothing": b"",
    "a negative count": b"\x01",
    "more than there are": b"\x04\x02h\x01",
    "a count beyond all": b"\xfe" + b"\xff" * 7 + b"\x7f",
    "fewer than there are": b"\x02\x02h\x01\x02",
    "no name": b"\x02\x01\x01",
    "a name beyond the end": b"\x02\x06h\x01",
    "a value beyond the end": b"\x02\x02h\x06x",
    "an endless varint": b"\xff" * 12,
}


@both
@pytest.mark.parametrize("name", HEADERS)
def test_malformed_headers_are_refused(form: Any, name: str) -> None:
    with pytest.raises(CorruptBatch):
        decode_headers(memoryview(HEADERS[name]), 7)
    with pytest.raises(CorruptBatch):
        form.with_headers([(7, THEN, None, None, HEADERS[name])], 1, MORE)
