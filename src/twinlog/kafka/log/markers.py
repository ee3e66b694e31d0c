"""Control batches that end a transaction.

key    version (int16), type (int16: 0 abort, 1 commit)
value  version (int16), coordinator epoch (int32)
"""

from typing import Final

from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.records import decode, raw_records

_ABORT: Final = (0).to_bytes(2)
_COMMIT: Final = (1).to_bytes(2)


def commits(header: Header, buffer: memoryview) -> bool:
    """Whether a batch is the marker that commits a transaction of its producer.

    Args:
        header: of the batch.
        buffer: the one that it was read from.
    """
    return _kind(header, buffer) == _COMMIT


def aborts(header: Header, buffer: memoryview) -> bool:
    """Whether a batch is the marker that aborts a transaction of its producer.

    Args:
        header: of the batch.
        buffer: the one that it was read from.
    """
    return _kind(header, buffer) == _ABORT


def _kind(header: Header, buffer: memoryview) -> bytes | None:
    """The type of a control batch; None: it is none, or the log cleaner has emptied it."""
    if not header.is_control or not header.num_records:
        return None
    key = decode(raw_records(header, header.records(buffer))[0]).key
    return None if key is None else key[2:4]
