"""The record batch, format v2: parsed, checked and patched in place.

A batch is forwarded without re-encoding. Only the header fields for its producer and its position
are rewritten. The records behind the header, compressed or not, stay the bytes that the source's
producer wrote.

    offset  size  field                      forwarded as
         0     8  base offset                0 (the broker assigns; a compressed batch's must be 0)
         8     4  batch length               kept (the bytes after this field)
        12     4  partition leader epoch     -1 (the broker assigns)
        16     1  magic                      2
        17     4  CRC-32C of all from 21 on  updated (checksum.py)
        21     2  attributes                 kept, without the bits below
        23     4  last offset delta          kept
        27     8  base timestamp             kept
        35     8  max timestamp              kept
        43     8  producer id                the state partition's
        51     2  producer epoch             the partition's on the destination
        53     4  base sequence              the partition's next
        57     4  records count              kept
        61        records

Attributes: bits 0 to 2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon set.
Bits 4 and 5 are cleared: a broker refuses control batches from clients, and the transactions of
copied data are decided. Bit 6 is cleared so that the destination's cleaner sets its own horizon.

Two kinds of batches cannot be forwarded as they are (`Header.forwardable`): a batch with holes,
which compaction leaves and a broker refuses (87 INVALID_RECORD), and one of LogAppendTime, whose
records' own timestamps are not those that the source's consumers see. `records.py` re-encodes
these.

The checksum of a received batch is always compared: brokers do not when they answer a Fetch.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.checksum import patched
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and batch length, which the batch length does not count."""
MAGIC: Final = 2

_BEFORE_CRC: Final = struct.Struct(">qiib")
_CRC: Final = struct.Struct(">I")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_LENGTH_AND_MAGIC: Final = struct.Struct(">ixxxxb")
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
_KEPT_ATTRIBUTES: Final = CODEC_MASK
_CODECS: Final = tuple(Codec)
_NO_CODEC: Final = len(_CODECS)

NO_PRODUCER: Final = ProducerId(-1)
NO_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
NO_CRC: Final = 0
"""Of a batch that is not built yet. One whose checksum is really 0 is treated the same, which is
correct, too."""


class Header(NamedTuple):
    """A batch's header, and its position in the buffer that it was read from."""

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    num_records: int

    @property
    def end(self) -> int:
        """The position after the batch in its buffer."""
        return self.position + LOG_OVERHEAD + self.length

    def records(self, buffer: memoryview) -> memoryview:
        """The bytes after the header, in the buffer that the batch was read from."""
        return buffer[self.position + HEADER_SIZE : self.end]

    @property
    def next_offset(self) -> Offset:
        """The offset after the batch's last offset."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> Codec:
        """The compression of the records."""
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker or another control record."""
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether consumers see the max timestamp instead of the records' own timestamps."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_dense(self) -> bool:
        """Whether each offset of the batch has a record."""
        return self.num_records == self.last_offset_delta + 1

    @property
    def forwardable(self) -> bool:
        """Whether a broker accepts it as it is, and its consumers see what the source's see."""
        return self.is_dense and not self.is_log_append_time


def batches(buffer: memoryview, position: int = 0, lowest: int = 0) -> Iterator[Header]:
    """The complete batches of a Fetch answer's records in order, each checked.

    A Fetch answer may end within a batch; the incomplete one is left out. The checksum does not
    cover the base offset, so offsets are checked too: they only grow.

    Args:
        buffer: consecutive record batches.
        position: where the first one begins.
        lowest: the lowest offset that it may have.

    Raises:
        CorruptBatch: an impossible length, count or offset, an unknown codec, a wrong checksum.
        LegacyBatch: a message of format v0 or v1 (`legacy.py` reads those).
    """
    size = len(buffer)
    fields_at, new = HEADER.unpack_from, tuple.__new__
    while position + _CRC_AT <= size:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, position + 8)
        if magic != MAGIC:
            if 0 <= magic < MAGIC:
                raise LegacyBatch(position, magic, lowest)
            raise CorruptBatch(f"unknown batch format v{magic} (magic)")
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptBatch(f"invalid batch length {length}: shorter than the batch header")
        end = position + LOG_OVERHEAD + length
        if end > size:
            return
        header = new(Header, (position, *fields_at(buffer, position)))
        if header.crc != crc32c(buffer[position + _CHECKED_FROM : end]):
            raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong checksum")
        offset = header.base_offset
        if offset < lowest:
            raise CorruptBatch(f"batch at offset {offset}, expected offset {lowest} or above")
        extent = header.last_offset_delta + 1
        if not 0 <= header.num_records <= extent or extent < 1:
            raise CorruptBatch(
                f"the batch at offset {offset} declares {header.num_records} records in {extent} "
                "offsets"
            )
        lowest = offset + extent
        if header.attributes & CODEC_MASK >= _NO_CODEC:
            raise CorruptBatch(f"the batch at offset {offset} has an unknown compression codec")
        yield header
        position = end


class LegacyBatch(Exception):
    """Messages of format v0 or v1 begin at `position` of the buffer, from offset `lowest` on."""

    def __init__(self, position: int, magic: int, lowest: int) -> None:
        super().__init__(f"message format v{magic}")
        self.position = position
        self.magic = magic
        self.lowest = lowest


def patched_header(
    header: Header,
    records: memoryview,
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    sequence: Sequence,
    *,
    attributes: int = 0,
) -> bytes:
    """The header with which a forwardable batch is produced, 61 bytes, checksum included.

    Args:
        header: as read from the source, or built by this process without a checksum.
        records: the batch's bytes after its header.
        producer_id: the state partition's producer id on the destination.
        epoch: the producer epoch of the destination's partition.
        sequence: of the batch's first record.
        attributes: bits besides the codec's, such as `TRANSACTIONAL`.
    """
    covered_bytes = _AFTER_CRC.pack(
        header.attributes & _KEPT_ATTRIBUTES | attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer_id,
        epoch,
        sequence,
        header.num_records,
    )
    if header.crc == NO_CRC:
        checksum = crc32c(records, crc32c(covered_bytes))
    else:
        checksum = patched(header.crc, _AFTER_CRC.pack(*header[6:]), covered_bytes, len(records))
    return _start(header.length, checksum) + covered_bytes


def new_header(
    *,
    length: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int,
    records: memoryview | bytes,
) -> bytes:
    """A 61-byte batch header for these records, at base offset 0, checksum included."""
    covered_bytes = _AFTER_CRC.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        epoch,
        sequence,
        count,
    )
    return _start(length, crc32c(records, crc32c(covered_bytes))) + covered_bytes


def _start(length: int, checksum: int) -> bytes:
    return _BEFORE_CRC.pack(0, length, -1, MAGIC) + _CRC.pack(checksum)
