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
            assert 0 < len(some) <= record_parts.AT_ONCE
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


@both
@given(
    made=st.lists(st.tuples(timestamps, contents, contents, all_headers), min_size=1, max_size=9)
)
def test_packed_records_are_those_of_the_oracle(
    form: Any, made: list[tuple[int, bytes | None, bytes | None, Any]]
) -> None:
    """Goal: the same bytes as `build`, for any timestamps, contents and headers."""
    raw = [
        RawRecord(at, timestamp, 0, memoryview(encode_tail(key, value, headers)))
        for at, (timestamp, key, value, headers) in enumerate(made)
    ]
    packed = form.pack_records(
        [
            (timestamp, key, value, encode_headers(headers))
            for timestamp, key, value, headers in made
        ],
        made[0][0],
    )
    assert packed == bytes(build(raw, Codec.NONE).records)
