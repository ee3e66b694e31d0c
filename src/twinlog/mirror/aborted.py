"""Which transactional data of a Fetch answer is aborted, and what markers abort.

The answer itself identifies aborted data: the broker lists each aborted transaction that overlaps
the answer by producer id and first offset; it ends at its abort marker.
"""

from collections.abc import Iterable
from typing import Final

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.records import decode, raw_records
from twinlog.kafka.types import AbortedTransaction

_ABORT: Final = 0
_CONTROL_TYPE_AT: Final = 2


class Aborted:
    """The producers whose transactional data is aborted, at the current batch of the walk."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._transactions = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._open: set[int] = set()

    @property
    def any(self) -> bool:
        """Whether data from here on may be aborted."""
        return bool(self._transactions or self._open)

    def holds(self, header: Header) -> bool:
        """Whether this transactional data batch is of an aborted transaction."""
        self._begin(header)
        return header.producer_id in self._open

    def marker(self, header: Header, buffer: memoryview) -> None:
        """End the transaction of the marker's producer.

        An answer may begin at the marker itself, and list its transaction. That transaction has to
        begin here, or it would include the producer's next one.
        """
        self._begin(header)
        if header.producer_id in self._open and _control_type(header, buffer) == _ABORT:
            self._open.discard(header.producer_id)

    def _begin(self, header: Header) -> None:
        """Begin the transactions that start up to this batch's last offset, as consumers do."""
        while self._transactions and self._transactions[-1].first_offset < header.next_offset:
            self._open.add(self._transactions.pop().producer_id)


def aborted_within(buffer: memoryview) -> list[AbortedTransaction]:
    """The transactions that markers in these batches abort, as read_committed answers list them.

    Raises:
        CorruptBatch: a batch is damaged.
    """
    aborted: list[AbortedTransaction] = []
    first_offsets: dict[int, int] = {}
    for header in batches(buffer):
        if not header.is_control:
            if header.is_transactional:
                first_offsets.setdefault(header.producer_id, header.base_offset)
            continue
        first_offset = first_offsets.pop(header.producer_id, None)
        if first_offset is not None and _control_type(header, buffer) == _ABORT:
            aborted.append(AbortedTransaction(header.producer_id, first_offset))
    return aborted


def _control_type(header: Header, buffer: memoryview) -> int | None:
    """0 abort, 1 commit; a control record's key is version int16, type int16."""
    if header.num_records == 0:
        return None
    key = decode(raw_records(header, header.records(buffer))[0]).key
    if key is None or len(key) < _CONTROL_TYPE_AT + 2:
        raise CorruptBatch(f"the control record at offset {header.base_offset} has no type")
    return int.from_bytes(key[_CONTROL_TYPE_AT : _CONTROL_TYPE_AT + 2], "big", signed=True)
