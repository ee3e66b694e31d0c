"""Messages of v0 and v1 as kafka-python writes them, and wrappers as old clients wrote them."""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import cramjam
import pytest
from batch_builders import THEN, batch, record
from captures import check_cover, records_of
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import LegacyBatch, batches
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.log.legacy import STEP_MESSAGES, _xxh32, legacy_records, legacy_steps
from twinlog.kafka.log.records import decode
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import (
    MAX_PIECES,
    STEP_RECORDS,
    Data,
    Gap,
    Piece,
    finished,
    plan,
    planning,
)

Message = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp, key, value
LOG_APPEND_TIME: Final = 0x08
THREE: Final[Sequence[Message]] = [
    (0, THEN, b"key", b"value"),
    (1, THEN + 7, None, b""),
    (2, THEN - 9, b"", None),
]
LZ4_CHECKSUM_AT: Final = 6


def message_set(magic: int, messages: Sequence[Message], codec: Codec = Codec.NONE) -> bytes:
    """As kafka-python's builder writes it (codecs that it has)."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for offset, timestamp, key, value in messages:
        builder.append(offset, timestamp if magic else None, key, value)
    return bytes(builder.build())


def message(
    magic: int, offset: int, value: bytes | None, *, attributes: int = 0, timestamp: int = THEN
) -> bytes:
    """Return one hand-made message."""
    body = struct.pack(">bb", magic, attributes)
    body += struct.pack(">q", timestamp) if magic else b""
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(
    magic: int,
    messages: Sequence[Message],
    codec: Codec,
    offset: int,
    *,
    attributes: int = 0,
    timestamp: int = THEN,
) -> bytes:
    """A compressed set; its messages' offsets are as given."""
    value = bytes(compress(codec, message_set(magic, messages)))
    if magic == 0 and codec is Codec.LZ4:
        value = with_broken_checksum(value)
    return message(magic, offset, value, attributes=attributes | int(codec), timestamp=timestamp)


def with_broken_checksum(frame: bytes) -> bytes:
    """KAFKA-3160: the magic number is in the header's checksum, too."""
    wrong = _xxh32(memoryview(frame[:LZ4_CHECKSUM_AT])) >> 8 & 0xFF
    assert wrong != frame[LZ4_CHECKSUM_AT]
    return frame[:LZ4_CHECKSUM_AT] + bytes((wrong,)) + frame[LZ4_CHECKSUM_AT + 1 :]


def moved(messages: Sequence[Message], by: int) -> list[Message]:
    return [(offset + by, timestamp, key, value) for offset, timestamp, key, value in messages]


def planned_messages(data: bytes, position: int = 0) -> list[Message]:
    """Return the messages of a plan of this data."""
    pieces = plan(memoryview(data), Offset(position))
    check_cover(pieces, position)
    return [(r.offset, r.timestamp, r.key, r.value) for r in records_of(pieces)]  # type: ignore[misc]


def timeless(messages: Sequence[Message]) -> list[Message]:
    return [(offset, -1, key, value) for offset, _, key, value in messages]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_message_sets_of_kafka_python_are_read(magic: int, codec: Codec) -> None:
    """Goal: an independent encoder's messages, as its own decoder reads them."""
    data = message_set(magic, THREE, codec)
    expected = [
        (r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value)
        for group in MemoryRecords(data)
        for r in group
    ]
    if codec is Codec.NONE or magic == 0:
        # It does not set the offset of a wrapper, which the broker does.
        assert planned_messages(data) == expected == (list(THREE) if magic else timeless(THREE))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("base", [0, 5, 1 << 31, 1 << 53])
def test_wrapped_offsets_are_absolute_in_v0_and_relative_in_v1(codec: Codec, base: int) -> None:
    """Goal: v0 wraps offsets as they are, v1 relative ones, whose last is the wrapper's."""
    old = wrapper(0, moved(THREE, base), codec, base + 2)
    new = wrapper(1, THREE, codec, base + 2)
    assert planned_messages(old, base) == timeless(moved(THREE, base))
    assert planned_messages(new, base) == moved(THREE, base)


def test_a_compacted_wrapper_keeps_its_offsets() -> None:
    """Goal: relative offsets have holes then, and the first need not be 0."""
    left = [THREE[1], (5, THEN, None, b"five")]
    data = wrapper(1, left, Codec.GZIP, 105)
    assert planned_messages(data, 90) == moved(left, 100)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_large_wrapper_is_unwrapped_in_steps(magic: int) -> None:
    """Goal: B5: a lane is not held up, however many messages a wrapper contains."""
    count = 4 * STEP_MESSAGES + 1
    base = 7_000 if magic else 0
    messages = [(at, THEN, None, b"v") for at in range(count)]
    data = memoryview(wrapper(magic, messages, Codec.GZIP, base + count - 1))
    steps = list(legacy_steps(data, 0))
    runs = [run for run in steps if run is not None]
    assert len(steps) - len(runs) == 4, "a step for each part of the first walk"
    assert [len(run.records) for run in runs] == [STEP_MESSAGES] * 4 + [1]
    assert {(run.size, run.next_position) for run in runs} == {(len(data), len(data))}
    assert [r.offset for run in runs for r in run.records] == list(range(base, base + count))
    yielded = sum(1 for _ in planning(data, Offset(0)))
    assert yielded >= 2 * 4


@pytest.mark.parametrize("magic", [0, 1])
def test_a_plan_that_is_full_within_a_wrapper_loses_no_records(magic: int) -> None:
    """Goal: the rest of it is fetched again. It became a gap, before the next wrapper.

    Sets of 1,000 offsets of which compaction has left every second record: a piece for each.
    """
    size, count = 1000, 3 * MAX_PIECES // 1000
    data = b""
    for base in range(0, count * size, size):
        kept = [(at + (0 if magic else base), THEN, b"k", b"v") for at in range(1, size, 2)]
        data += wrapper(magic, kept, Codec.GZIP, base + size - 1)
    pieces: list[Piece] = []
    while not pieces or pieces[-1].end < count * size:
        position = pieces[-1].end if pieces else Offset(0)
        some = plan(memoryview(data), position)
        check_cover(some, position)
        pieces += some
    assert [one.offset for one in records_of(pieces)] == list(range(1, count * size, 2))


def test_a_plan_that_is_full_before_long_wrappers_has_no_gap() -> None:
    """Goal: a log without holes has no gap in its plan."""
    data = b"".join(message(1, at, b"x") for at in range(MAX_PIECES - 1))
    for base in range(MAX_PIECES - 1, MAX_PIECES + 10_000, 5000):
        kept = [(at, THEN, b"k", b"v") for at in range(5000)]
        data += wrapper(1, kept, Codec.GZIP, base + 4999)
    assert not [one for one in plan(memoryview(data), Offset(0)) if isinstance(one, Gap)]


def test_log_append_time_of_the_wrapper_applies_to_its_messages() -> None:
    """Goal: the wrapper's timestamp applies to all; a message's own is its own."""
    data = wrapper(1, THREE, Codec.GZIP, 2, attributes=LOG_APPEND_TIME, timestamp=77)
    data += message(1, 3, b"v", attributes=LOG_APPEND_TIME, timestamp=88)
    assert [one[1] for one in planned_messages(data)] == [77, 77, 77, 88]


def test_lz4_frames_of_old_clients_are_read() -> None:
    """Goal: KAFKA-3160's wrong header checksum, with a content size and without."""
    sized = bytes(cramjam.lz4.compress(message_set(0, THREE)))
    plain = bytes(compress(Codec.LZ4, message_set(0, THREE)))
    for frame, checksum_at in ((plain, 6), (sized, 14 if sized[4] & 8 else 6)):
        for checksum in (0, 1, 255, frame[checksum_at]):
            old = frame[:checksum_at] + bytes((checksum,)) + frame[checksum_at + 1 :]
            assert planned_messages(message(0, 2, old, attributes=3)) == timeless(THREE)
    wrong = plain[:6] + bytes((plain[6] ^ 1,)) + plain[7:]
    with pytest.raises(CorruptBatch, match="lz4"):
        planned_messages(message(1, 2, wrong, attributes=3))


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x02CC5D05), (b"abc", 0x32D153FF), (b"\x60\x40", 0x82)]
)
def test_xxh32_gives_the_published_values(data: bytes, expected: int) -> None:
    """Goal: two published values, and the byte that every LZ4 frame of 64 KB blocks has."""
    found = _xxh32(memoryview(data))
    assert expected in (found, found >> 8 & 0xFF)


def test_a_log_of_mixed_formats_is_read() -> None:
    """Goal: a log that went through all three, as upgrades leave it, and back again."""
    data = message_set(0, moved(THREE, 0))
    data += wrapper(1, THREE, Codec.SNAPPY, 5)
    data += batch([record(6), record(7)])
    data += message_set(1, moved(THREE, 8))
    data += batch([record(11)])
    assert [one[0] for one in planned_messages(data)] == list(range(12))
    for position in range(12):
        assert [one[0] for one in planned_messages(data, position)] == list(range(position, 12))


@given(st.integers(0, 400))
def test_a_message_set_may_end_within_a_message(cut: int) -> None:
    """Goal: a fetch of old messages ends within one, and the cut message is left out."""
    data = message_set(1, THREE) + wrapper(1, THREE, Codec.GZIP, 5)
    found = planned_messages(data[:cut])
    assert found == [*THREE, *moved(THREE, 3)][: len(found)]
    assert len(found) in (0, 1, 2, 3, 6)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_that_decompresses_beyond_the_limit_is_refused(magic: int) -> None:
    """Goal: it is refused with its size, as a present-day batch is (B8)."""
    data = memoryview(wrapper(magic, [(0, THEN, None, bytes(10_000))], Codec.GZIP, 0))
    assert len(data) < 1_000
    [piece] = finished(planning(data, Offset(0), (), 20_000)).pieces
    assert isinstance(piece, Data)
    with pytest.raises(CorruptBatch, match="decompresses to more than 1000"):
        finished(planning(data, Offset(0), (), 1_000))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_plan_yields_between_old_messages(codec: Codec) -> None:
    """Goal: an answer full of them does not hold up the loop's other tasks (B5)."""
    messages = [(at, THEN, None, b"") for at in range(STEP_RECORDS)]
    sets = range(4)
    if codec is Codec.NONE:
        data = b"".join(message_set(1, moved(messages, at * STEP_RECORDS)) for at in sets)
    else:
        lasts = [(at + 1) * STEP_RECORDS - 1 for at in sets]
        data = b"".join(wrapper(1, messages, codec, last) for last in lasts)
    yielded = sum(1 for _ in planning(memoryview(data), Offset(0)))
    assert yielded >= len(sets) - 1


def test_re_encoded_messages_form_a_forwardable_batch() -> None:
    """Goal: it has the same codec, is dense, and of CreateTime."""
    [piece] = plan(memoryview(wrapper(1, THREE, Codec.LZ4, 2)), Offset(0))
    assert isinstance(piece, Data)
    assert piece.header.forwardable
    assert piece.header.codec is Codec.LZ4
    assert piece.header.max_timestamp == THEN + 7


ONE = message(1, 0, b"v")
INNER = message_set(1, THREE)


def wrapped(value: bytes, magic: int = 1) -> bytes:
    return message(magic, 9, value, attributes=1)


CORRUPT = {
    "checksum": ONE[:-1] + b"?",
    "size below the least": struct.pack(">qi", 0, 5) + ONE[12:],
    "negative size": struct.pack(">qi", 0, -1) + ONE[12:],
    "key past the end": message(1, 0, None)[:-8] + struct.pack(">ii", 99, -1),
    "unknown codec": message(1, 0, b"v", attributes=5),
    "zstd, which is of v2": message(1, 0, b"v", attributes=4),
    "nothing wrapped": wrapped(bytes(compress(Codec.GZIP, b""))),
    "no value wrapped": message(1, 0, None, attributes=1),
    "nonsense wrapped": wrapped(b"nonsense"),
    "wrapped twice": wrapped(bytes(compress(Codec.GZIP, wrapped(b"")))),
    "another format wrapped": wrapped(bytes(compress(Codec.GZIP, INNER)), magic=0),
    "a batch of v2 wrapped": wrapped(bytes(compress(Codec.GZIP, batch([record(0)])))),
    "offsets that go back": message(1, 5, b"") + message(1, 4, b""),
    "an offset twice": message(1, 5, b"") + message(1, 5, b""),
    "within a wrapper": wrapped(bytes(compress(Codec.GZIP, ONE + ONE))),
    "below a batch": batch([record(7)]) + message(1, 7, b""),
    "a batch below": message(1, 7, b"") + batch([record(7)]),
    "a negative offset": message(0, -1, b""),
}
for _name in ("checksum", "key past the end"):
    _bad = bytearray(CORRUPT[_name])
    if _name == "key past the end":
        _bad[12:16] = struct.pack(">I", zlib.crc32(bytes(_bad[16:])))
    CORRUPT[_name] = bytes(_bad)


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_invalid_messages_are_reported_as_corrupt(data: bytes) -> None:
    """Goal: the one documented error."""
    with pytest.raises(CorruptBatch):
        plan(memoryview(data), Offset(0))


def test_a_v1_message_too_short_for_its_timestamp_is_corrupt() -> None:
    """Goal: the size is enough for v0, and the format is v1."""
    body = struct.pack(">bbii", 1, 0, -1, -1)
    body = struct.pack(">I", zlib.crc32(body)) + body
    with pytest.raises(CorruptBatch, match="truncated"):
        list(legacy_records(memoryview(struct.pack(">qi", 0, len(body)) + body + bytes(9)), 0))


def test_the_batch_reader_reports_the_position_of_legacy_messages() -> None:
    """Goal: it reports the position, and the first offset."""
    data = memoryview(batch([record(3)]) + ONE)
    found = batches(data)
    next(found)
    with pytest.raises(LegacyBatch) as caught:
        next(found)
    assert (caught.value.magic, caught.value.lowest) == (1, 4)
    [run] = legacy_records(data, caught.value.position)
    assert decode(run.records[0]).value == b"v"
    assert run.next_position == len(data)
