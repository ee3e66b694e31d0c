"""Control batches that end a transaction.

key    version (int16), type (int16: 0 abort, 1 commit)
value  version (int16), coordinator epoch (int32)
"""

from typing import Final

from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.records import decode, raw_records

_COMMIT: Final = (1).to_bytes(2)


def commits(header: Header, buffer: memoryview) -> bool:
    """Whether a batch is the marker that commits a transaction of its producer.

    Args:
        header: of the batch.
        buffer: the one that it was read from.
    """
    if not header.is_control or not header.num_records:  # the log cleaner may have emptied it
        return False
    key = decode(raw_records(header, header.records(buffer))[0]).key
    return key is not None and key[2:4] == _COMMIT
