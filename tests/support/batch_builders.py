"""Batches built for tests, in addition to the real ones of `captures.py`."""

import struct
from collections.abc import Sequence
from typing import Final

from captures import NAMES, capture
from crc32c import crc32c
from hypothesis import strategies as st

from twinlog.kafka.log.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Header, batches
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.log.records import RawRecord, build, encode_tail, varint, whole

THEN: Final = 1_700_000_000_000
_CRC: Final = struct.Struct(">I")
_BASE: Final = struct.Struct(">q")
BIG: Final = (1 << 63) - 1


def record(
    offset: int, timestamp: int = THEN, value: bytes | None = b"v", key: bytes | None = None
) -> RawRecord:
    """Build one record."""
    return RawRecord(offset, timestamp, 0, memoryview(encode_tail(key, value)))


def batch(
    records: Sequence[RawRecord],
    codec: Codec = Codec.NONE,
    *,
    attributes: int = 0,
    producer_id: int = -1,
) -> bytes:
    """Build a batch as a log stores it, at the first record's offset."""
    made = whole(build(records, codec), attributes=attributes, producer_id=producer_id)
    return _BASE.pack(records[0].offset) + made[8:]


ABORT, COMMIT = 0, 1


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """Build the batch that ends a transaction, `ABORT` or `COMMIT`."""
    key = (0).to_bytes(2, "big") + kind.to_bytes(2, "big", signed=True)
    return batch(
        [record(offset, value=b"\0" * 6, key=key)],
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=producer_id,
    )


def holed(
    base: int, last: int, records: Sequence[tuple[int, int]], codec: Codec = Codec.NONE
) -> bytes:
    """Build a batch from `base` to `last` that keeps only these offsets and timestamps."""
    body = b""
    for offset, timestamp in records:
        rest = b"\0" + varint(timestamp - THEN) + varint(offset - base) + encode_tail(None, b"left")
        body += varint(len(rest)) + rest
    made = batch([record(base)], codec)
    fields = {"last_offset_delta": last - base, "num_records": len(records)}
    body = bytes(compress(codec, body))
    return altered(made, body=body, base_timestamp=THEN, max_timestamp=THEN, **fields)


_AT: Final = {
    "base_offset": (0, "q"),
    "length": (8, "i"),
    "leader_epoch": (12, "i"),
    "magic": (16, "b"),
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "base_timestamp": (27, "q"),
    "max_timestamp": (35, "q"),
    "producer_id": (43, "q"),
    "num_records": (57, "i"),
}


def altered(data: bytes, body: bytes | None = None, **fields: int) -> bytes:
    """Change header fields, or the records, of a batch; the checksum is correct."""
    out = bytearray(data if body is None else data[:61] + body)
    struct.pack_into(">i", out, 8, len(out) - 12)
    for name, value in fields.items():
        at, form = _AT[name]
        struct.pack_into(f">{form}", out, at, value)
    return bytes(rechecked(out))


def rechecked(data: bytearray) -> bytearray:
    """Return the same bytes, as one batch, with a correct checksum."""
    _CRC.pack_into(data, 17, crc32c(bytes(data[21:])))
    return data


def joined(*data: bytes) -> tuple[list[Header], memoryview]:
    """Concatenate batches; return their headers and bytes."""
    buffer = memoryview(b"".join(data))
    return list(batches(buffer)), buffer


# ---- strategies --------------------------------------------------------------------------------

timestamps = st.one_of(
    st.integers(THEN, THEN + 5000),
    st.sampled_from([-1, 0, BIG, BIG - 1, 1 << 31, 1 << 53]),
)
values = st.one_of(st.none(), st.sampled_from([0, 1, 57, 58, 59, 63, 64, 300]).map(bytes))
sizes = st.sampled_from([1, 1, 1, 1, 2, 3, 8, 9, 70])
bases = st.sampled_from([0, 1, (1 << 31) - 3, (1 << 53) - 2, 1 << 60])
codecs = st.sampled_from(list(Codec))


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Draw dense batches of one codec at consecutive offsets, of either timestamp type."""
    codec = draw(codecs)
    offset = draw(bases)
    made = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(sizes)
        value, key = draw(values), draw(st.sampled_from([None, b"", b"key"]))
        stamped = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME]))
        times = draw(st.lists(timestamps, min_size=1, max_size=3))
        epoch = draw(st.integers(-1, 2))
        for _ in range(draw(st.sampled_from([1, 1, 5, 30])) if count == 1 else 1):
            records = [
                record(offset + at, times[(offset + at) % len(times)], value, key)
                for at in range(count)
            ]
            made.append(altered(batch(records, codec, attributes=stamped), leader_epoch=epoch))
            offset += count
    return b"".join(made)


captures = st.sampled_from(NAMES).map(capture)
