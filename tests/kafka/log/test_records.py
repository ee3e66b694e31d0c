"""Records in and out: numbers, tails, whole batches; against two independent decoders."""

import pytest
from batch_builders import BIG, THEN, altered, batch, captures, codecs, record, timestamps
from captures import NAMES, Capture, as_seen, capture
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.util import decode_varint as their_decode
from kafka.record.util import encode_varint as their_encode

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Header, batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import (
    SMALL_VARINTS,
    RawRecord,
    build,
    decode,
    decode_varint,
    encode_tail,
    encode_varint,
    raw_records,
    varint,
    whole,
    wrapped,
)

longs = st.one_of(
    st.integers(-BIG - 1, BIG),
    st.integers(-200, 20_000),
    st.sampled_from([-BIG - 1, BIG, 1 << 31, -(1 << 31), len(SMALL_VARINTS)]),
)
contents = st.one_of(st.none(), st.binary(max_size=20), st.just(bytes(20_000)))


def read(data: bytes) -> list[RawRecord]:
    [header] = batches(memoryview(data))
    return raw_records(header, header.records(memoryview(data)))


# ---- numbers -----------------------------------------------------------------------------------


@given(longs)
def test_varints_are_encoded_as_by_kafka_python(value: int) -> None:
    """Goal: zigzag, in the same bytes, read back by both."""
    expected = bytearray()
    their_encode(value, expected.append)
    encoded = encode_varint(value)
    assert encoded == expected == varint(value)
    assert decode_varint(memoryview(b"??" + encoded + b"??"), 2) == (value, 2 + len(encoded))
    assert their_decode(bytearray(encoded)) == (value, len(encoded))


def test_the_table_of_small_varints_is_correct() -> None:
    assert tuple(map(encode_varint, range(1 << 14))) == SMALL_VARINTS


@pytest.mark.parametrize(
    ("value", "expected"), [(BIG + 1, -BIG - 1), (-BIG - 2, BIG), (1 << 64, 0), (-1, -1)]
)
def test_numbers_wrap_at_64_bits_as_in_java(value: int, expected: int) -> None:
    """Goal: the difference of two timestamps may need 65 bits; Java's has 64."""
    assert wrapped(value) == expected
    assert encode_varint(value) == encode_varint(expected)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\x80" * 10 + b"\0"])
def test_an_unterminated_varint_is_corrupt(data: bytes) -> None:
    """Goal: cut off, or of more than ten bytes."""
    with pytest.raises(CorruptBatch):
        decode_varint(memoryview(data), 0)


# ---- real batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_records_are_decoded_as_by_librdkafka(name: str) -> None:
    """Goal: librdkafka decodes each record of a real log as we do, in every codec."""
    log = capture(name)
    seen = {one.offset: one for one in log.seen}
    found = 0
    for header in log.headers:
        if not header.is_control:
            for raw in raw_records(header, header.records(log.buffer)):
                if raw.offset in seen:
                    assert as_seen(decode(raw)) == seen[raw.offset]
                    found += 1
    assert found == len(seen)


@pytest.mark.parametrize("name", NAMES)
def test_records_are_decoded_as_by_kafka_python(name: str) -> None:
    """Goal: a second decoder for uncompressed and gzip batches; markers too."""
    log = capture(name)
    for header, expected in zip(log.headers, MemoryRecords(log.data), strict=True):
        if header.codec in (Codec.NONE, Codec.GZIP) and header.num_records:
            decoded = [decode(raw) for raw in raw_records(header, header.records(log.buffer))]
            assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decoded] == [
                (t.offset, t.timestamp, t.key, t.value, t.headers) for t in expected
            ]


@given(captures, st.data(), codecs)
def test_rebuilt_batches_of_real_records_are_equal(
    log: Capture, data: st.DataObject, codec: Codec
) -> None:
    """Goal: records taken from a batch and put into another are the same."""
    header = data.draw(st.sampled_from([h for h in log.headers if h.is_dense]))
    records = raw_records(header, header.records(log.buffer))
    built = build(records, codec)
    assert raw_records(built.header, built.records) == records
    assert built.header.max_timestamp == max(r.timestamp for r in records)
    assert built.header.forwardable


# ---- synthetic batches -------------------------------------------------------------------------


@given(
    st.lists(st.tuples(timestamps, contents, contents), min_size=1, max_size=20),
    st.sampled_from([0, 1 << 31, 1 << 53]),
    codecs,
    st.lists(st.tuples(st.text(max_size=5), contents), max_size=3),
)
def test_built_batches_are_read_unchanged(
    made: list[tuple[int, bytes | None, bytes | None]],
    base: int,
    codec: Codec,
    headers: list[tuple[str, bytes | None]],
) -> None:
    """Goal: timestamps that go back, none at all, and 65 bits apart; null and large contents."""
    records = [
        RawRecord(base + at, timestamp, 0, memoryview(encode_tail(key, value, headers)))
        for at, (timestamp, key, value) in enumerate(made)
    ]
    built = build(records, codec)
    data = whole(built)
    assert read(data) == [r._replace(offset=r.offset - base) for r in records]
    [expected] = MemoryRecords(data)
    assert expected.validate_crc()
    for raw, (timestamp, key, value) in zip(records, made, strict=True):
        assert decode(raw) == (raw.offset, timestamp, key, value, tuple(headers))


def test_a_record_of_several_megabytes_is_read() -> None:
    """Goal: lengths of four bytes, in each codec."""
    value = bytes(range(256)) * 20_000
    for codec in Codec:
        [raw] = read(batch([record(3, value=value)], codec))
        assert decode(raw).value == value


def test_log_append_time_replaces_the_timestamps_of_records() -> None:
    """Goal: readers see the batch's max timestamp on every record, not the records' own."""
    made = batch([record(0, 5), record(1, 9)], attributes=LOG_APPEND_TIME)
    made = altered(made, max_timestamp=77)
    assert [r.timestamp for r in read(made)] == [77, 77]


def test_timestamps_are_relative_to_the_delete_horizon() -> None:
    """Goal: with bit 6 the base timestamp is the horizon, and the deltas are relative to it.

    MemoryRecordsBuilder takes the horizon for its base timestamp, and DefaultRecordBatch adds
    that field to each delta, whatever the bit; the real batch is of tests/data/compacted.
    """
    log = capture("compacted")
    horizons = [h for h in log.headers if h.attributes & 0x40 and not h.is_control]
    assert horizons
    for header in horizons:
        found = raw_records(header, header.records(log.buffer))
        assert max(r.timestamp for r in found) == header.max_timestamp < header.base_timestamp


def test_a_built_batch_has_the_given_attributes_and_producer() -> None:
    """Goal: a transaction's or control batch for the tests' brokers, with its producer."""
    made = whole(
        build([record(0)], Codec.ZSTD),
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=9,
        epoch=8,
        sequence=7,
    )
    [header] = batches(memoryview(made))
    assert (header.is_control, header.is_transactional, header.codec) == (True, True, Codec.ZSTD)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 8, 7)


TWO = batch([record(0), record(1)])
BODY = TWO[61:]
CORRUPT = {
    "none": b"",
    "one of two": BODY[: len(BODY) // 2],
    "cut off": BODY[:-1],
    "more behind": BODY + b"\0",
    "a length of 0": b"\0" + BODY[1:],
    "a negative length": b"\x01" + BODY[1:],
    "a huge length": b"\xfe" * 9 + b"\x01" + BODY[1:],
    "an offset twice": BODY[: len(BODY) // 2] * 2,
    "an offset outside": BODY[:3] + b"\x04" + BODY[4:],
    "a negative offset": BODY[:3] + b"\x01" + BODY[4:],
    "offsets that go back": BODY[len(BODY) // 2 :] + BODY[: len(BODY) // 2],
    "deltas behind the end": b"\x02\0\x04\0\0\0",
}


@pytest.mark.parametrize("body", CORRUPT.values(), ids=CORRUPT)
def test_records_that_do_not_match_the_batch_length_are_corrupt(body: bytes) -> None:
    """Goal: the checksum may be right and the producer wrong."""
    with pytest.raises(CorruptBatch):
        read(altered(TWO, body=body))


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"\x01",
        b"\x01\x01",
        b"\x01\x01\x02",
        b"\x01\x01\x01",
        b"\x04a",
        b"\x01\x04a",
        b"\x01\x01\x7e",
        b"\x01\x01\x02\x01\x01",
        b"\x01\x01\x02\x02a\x04a",
        b"\x01\x01\x00\x00",
        b"\x01\x01" + b"\xfe\xff\xff\xff\x0f",
    ],
)
def test_an_invalid_record_tail_is_corrupt(tail: bytes) -> None:
    """Goal: lengths and counts past the end, a header without name, bytes behind the last."""
    with pytest.raises(CorruptBatch):
        decode(RawRecord(0, 0, 0, memoryview(tail)))


def test_header_names_that_are_not_utf_8_are_kept() -> None:
    """Goal: names are bytes in the end; invalid UTF-8 comes out unchanged."""
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    raw = RawRecord(0, 0, 0, memoryview(encode_tail(None, None, [(name, None)])))
    assert decode(raw).headers == ((name, None),)


def test_an_empty_batch_has_no_records() -> None:
    """Goal: the rest that compaction leaves of a producer's last batch has no records."""
    log = capture("compacted")
    empty = [h for h in log.headers if h.num_records == 0]
    assert empty
    assert all(raw_records(h, h.records(log.buffer)) == [] for h in empty)
    assert isinstance(empty[0], Header)


def test_the_time_of_synthetic_batches_needs_a_long_varint() -> None:
    """Goal: the synthetic batches' time needs a long varint."""
    assert encode_varint(THEN) == varint(THEN)
