"""Empty records, a million to a batch, for offsets that nobody will read.

A mirror of a log that begins at offset 3,000,000 has to begin there too, and a partition's offsets
start at 0. So its first three million are used up by records without key and value, which
DeleteRecords then puts below the log start. Their batches carry the sequence as data does, so that
they too land once; zstd makes 763 KB of a million of them.
"""

import functools
from typing import Final

from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, encode_tail, encoded, varint
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import Data

BULK_RECORDS: Final = 1_000_000
"""Records of one batch: below every broker's `max.message.bytes` default when compressed."""

NO_TIMESTAMP: Final = -1


def empty_records(start: Offset, end: Offset) -> Data:
    """A batch of empty records from `start` on, up to `end` or as many as go into one."""
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
    """Whether a batch is of those that `empty_records` makes, so that nobody has read it yet."""
    return count == BULK_RECORDS and records == _batch(BULK_RECORDS).records
