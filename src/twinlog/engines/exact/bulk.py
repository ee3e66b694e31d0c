"""Bulk: empty records, a million in a batch, for offsets that will never be read.

The mirror of a log that starts at offset 3,000,000 has to start there too, but a new partition's
offsets start at 0. So records without key and value use up the first three million, and
DeleteRecords moves the log start offset above them. Their batches carry the sequence as data does,
so each lands only once. zstd compresses a million of them to 763 KB.
"""

import functools
from typing import Final

from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, encode_tail, encoded, varint
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import Data

BULK_RECORDS: Final = 1_000_000
"""Records of one batch; compressed, it is below the default of `max.message.bytes`."""

NO_TIMESTAMP: Final = -1


def empty_records(start: Offset, end: Offset) -> Data:
    """A batch of empty records from `start` on, up to `end` or `BULK_RECORDS`."""
    count = min(end - start, BULK_RECORDS)
    header, records = _batch(count)
    header = header._replace(base_offset=start)
    return Data(start, Offset(start + count), header, records)


@functools.lru_cache(maxsize=2)
def _batch(count: int) -> Encoded:
    tail = encode_tail(None, None)
    parts: list[bytes] = []
    for delta in range(count):
        body = b"\0\0" + varint(delta) + tail
        parts += (varint(len(body)), body)
    return encoded(
        b"".join(parts),
        Codec.ZSTD,
        base_offset=0,
        count=count,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
    )


def is_bulk(records: memoryview, count: int) -> bool:
    """Whether `empty_records` made this (full) batch, so that it had no reader yet."""
    return count == BULK_RECORDS and records == _batch(BULK_RECORDS).records
