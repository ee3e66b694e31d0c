"""The header: read, checked, patched; on real and on synthetic batches."""

import pytest
from batch_builders import THEN, altered, batch, captures, holed, record
from captures import NAMES, Capture, capture
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Header,
    LegacyBatch,
    batches,
    new_header,
    patched_header,
)
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.types import ProducerEpoch, ProducerId, Sequence

identities = st.tuples(
    st.integers(0, (1 << 63) - 1), st.integers(0, 32767), st.integers(0, (1 << 31) - 1)
)


def only(data: bytes) -> Header:
    [header] = batches(memoryview(data))
    return header


@pytest.mark.parametrize("name", NAMES)
def test_headers_are_read_as_by_kafka_python(name: str) -> None:
    """Goal: an independent reader finds the same batches with the same fields."""
    log = capture(name)
    decoded = list(MemoryRecords(log.data))
    for header, other in zip(log.headers, decoded, strict=True):
        assert other.validate_crc()
        assert (
            header.base_offset,
            header.last_offset_delta,
            header.attributes,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.num_records,
            header.crc,
            header.end - header.position,
        ) == (
            other.base_offset,
            other.last_offset_delta,
            other.attributes,
            other.first_timestamp,
            other.max_timestamp,
            other.producer_id,
            other.producer_epoch,
            other.base_sequence,
            other.records_count,
            other.crc,
            other.size_in_bytes,
        )
        assert header.is_control == other.is_control_batch
        assert header.is_transactional == other.is_transactional
        assert header.is_log_append_time == bool(other.timestamp_type)
        assert header.codec == other.compression_type
        assert header.next_offset == other.next_offset


@given(captures, st.data(), identities)
def test_a_forwarded_batch_keeps_all_bytes_behind_the_header(
    log: Capture, data: st.DataObject, identity: tuple[int, int, int]
) -> None:
    """Goal: behind the header nothing changes; the checksum is that of what is sent."""
    header = data.draw(st.sampled_from(log.headers))
    records = header.records(log.buffer)
    producer_id, epoch, sequence = identity
    patched = patched_header(
        header, records, ProducerId(producer_id), ProducerEpoch(epoch), Sequence(sequence)
    )
    sent = patched + bytes(records)
    assert sent[HEADER_SIZE:] == log.data[header.position + HEADER_SIZE : header.end]
    assert int.from_bytes(sent[17:21], "big") == crc32c(sent[21:])
    if not header.num_records:
        return
    [found] = MemoryRecords(sent)
    assert found.validate_crc()
    assert (found.base_offset, found.leader_epoch) == (0, -1)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == identity
    assert found.attributes == header.attributes & 0x07
    back = only(sent)
    assert (
        back._replace(
            position=header.position,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            attributes=header.attributes,
            crc=header.crc,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        == header
    )


@given(captures, st.data())
def test_a_buffer_may_end_within_a_batch(log: Capture, data: st.DataObject) -> None:
    """Goal: whole batches are found, the rest is left out."""
    cut = data.draw(st.integers(0, len(log.data)))
    found = list(batches(log.buffer[:cut]))
    assert found == [header for header in log.headers if header.end <= cut]


@pytest.mark.parametrize(
    ("attributes", "forwardable"),
    [(0, True), (TRANSACTIONAL, True), (DELETE_HORIZON, True), (LOG_APPEND_TIME, False)],
)
def test_attributes_decide_whether_a_batch_is_forwarded_unchanged(
    attributes: int, forwardable: bool
) -> None:
    """Goal: LogAppendTime is not forwarded; bits that a broker refuses or sets are cleared."""
    made = batch([record(0), record(1)], Codec.NONE, attributes=attributes)
    header = only(made)
    assert header.forwardable == forwardable
    for bits in (0, TRANSACTIONAL):
        patched = patched_header(
            header,
            header.records(memoryview(made)),
            ProducerId(1),
            ProducerEpoch(0),
            Sequence(0),
            attributes=bits,
        )
        assert only(patched + made[HEADER_SIZE:]).attributes == bits


def test_batches_with_holes_are_not_forwarded_unchanged() -> None:
    """Goal: the count shows a batch that compaction has thinned or emptied."""
    assert only(batch([record(5), record(6)])).is_dense
    thinned, emptied = only(holed(5, 9, [(6, THEN)])), only(holed(5, 9, []))
    assert not thinned.is_dense
    assert not thinned.forwardable
    assert (emptied.num_records, emptied.forwardable, emptied.next_offset) == (0, False, 10)


GOOD = batch([record(7), record(8)], Codec.GZIP, attributes=CONTROL)
CORRUPT = {
    "a byte of the records": GOOD[:-1] + b"?",
    "a byte of the header": GOOD[:30] + b"?" + GOOD[31:],
    "the checksum": GOOD[:17] + b"?" + GOOD[18:],
    "the length below the header's": GOOD[:8] + (48).to_bytes(4, "big") + GOOD[12:],
    "a negative length": GOOD[:8] + b"\xff" * 4 + GOOD[12:],
    "an unknown format": altered(GOOD, magic=3),
    "a negative format": altered(GOOD, magic=-1),
    "more records than offsets": altered(GOOD, num_records=3),
    "fewer records than none": altered(GOOD, num_records=-1),
    "no offsets": altered(GOOD, last_offset_delta=-1, num_records=0),
    "fewer offsets than none": altered(GOOD, last_offset_delta=-5, num_records=-4),
    "an unknown codec": altered(GOOD, attributes=5),
    "a negative offset": altered(GOOD, base_offset=-1),
    "the offset of the batch before": GOOD + GOOD,
    "an offset within the batch before": GOOD + altered(GOOD, base_offset=8),
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_invalid_batches_are_reported_as_corrupt(data: bytes) -> None:
    """Goal: brokers do not check their answers; the offset is not even in the checksum."""
    with pytest.raises(CorruptBatch):
        list(batches(memoryview(data)))


def test_a_batch_below_the_expected_offset_is_corrupt() -> None:
    """Goal: a reader that goes on in a buffer gives the end of the batch before."""
    assert len(list(batches(memoryview(GOOD), 0, 7))) == 1
    with pytest.raises(CorruptBatch, match="expected offset 8 or above"):
        list(batches(memoryview(GOOD), 0, 8))


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_reported_with_their_position(magic: int) -> None:
    """Goal: the offset where older messages begin is reported, after the batches before it."""
    found = batches(memoryview(GOOD + altered(GOOD, magic=magic)))
    assert next(found).base_offset == 7
    with pytest.raises(LegacyBatch) as caught:
        next(found)
    assert (caught.value.position, caught.value.magic) == (len(GOOD), magic)


@pytest.mark.parametrize("base", [(1 << 31) - 1, 1 << 31, (1 << 53) + 1, (1 << 63) - 10])
def test_offsets_use_64_bits(base: int) -> None:
    """Goal: offsets are 64 bits, whatever else is 32 or a double elsewhere."""
    header = only(batch([record(base), record(base + 1)]))
    assert (header.base_offset, header.next_offset) == (base, base + 2)


def test_unusual_timestamps_are_kept() -> None:
    """Goal: -1 (none), before 1970, and a horizon in the base timestamp's place."""
    for base in (-1, -5, 0, THEN):
        made = altered(batch([record(0)]), base_timestamp=base, max_timestamp=base - 1)
        header = only(made)
        patched = patched_header(
            header, header.records(memoryview(made)), ProducerId(1), ProducerEpoch(0), Sequence(0)
        )
        again = only(patched + made[HEADER_SIZE:])
        assert (again.base_timestamp, again.max_timestamp) == (base, base - 1)


def test_a_new_header_has_each_field_at_its_place() -> None:
    """Goal: each field is where the layout has it."""
    header = new_header(
        length=51,
        attributes=4,
        last_offset_delta=2,
        base_timestamp=3,
        max_timestamp=4,
        producer_id=5,
        epoch=6,
        sequence=7,
        count=3,
        records=b"ab",
    )
    found = only(header + b"ab")
    assert found[:5] == (0, 0, 51, -1, 2)
    assert found[6:] == (4, 2, 3, 4, 5, 6, 7, 3)
    assert found.codec is Codec.ZSTD
