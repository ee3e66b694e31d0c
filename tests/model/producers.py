"""What a partition's leader remembers of producers: Kafka's idempotence check.

The broker's own code is `ProducerStateManager`, `ProducerAppendInfo` and `ProducerStateEntry`.

    entry of a producer in the partition      batch's sequence    answer
    ----------------------------------------  ------------------  ------------------------------
    none                                      any                 appended
    of a higher epoch                         any                 47 INVALID_PRODUCER_EPOCH
    of this epoch, one of the last 5 batches  the same first,last  duplicate: where it landed
    of this epoch, last sequence s            s + 1 mod 2^31      appended
    of this epoch, no batch (a marker only)   0                   appended
    of a lower epoch                          0                   appended
    else                                                          45 OUT_OF_ORDER_SEQUENCE_NUMBER

A transaction marker is refused for a higher epoch of the entry (47), or of its last marker's
transaction coordinator (52 TRANSACTION_COORDINATOR_FENCED); it is not compared otherwise.

An entry's time is its last batch's *max timestamp*, or its last marker's. The leader forgets the
entry when that time is `producer.id.expiration.ms` ago; it looks for such entries each
`producer.id.expiration.check.interval.ms`, so an entry outlives its time by up to that.

46 DUPLICATE_SEQUENCE_NUMBER is not answered by any version from 2.8 on.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.log.batch import Header
from twinlog.kafka.types import SEQUENCE_MODULUS, ProducerState

REMEMBERED_BATCHES: Final = 5
OUT_OF_ORDER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
TRANSACTION_COORDINATOR_FENCED: Final = 52
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


class Refused(Exception):
    """The append is refused, with Kafka's error code."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Remembered(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class Entry:
    """One producer's state in the partition."""

    epoch: int = NO_EPOCH
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int | None = None
    batches: deque[Remembered] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    @property
    def last_sequence(self) -> int:
        """Of the epoch's last batch; -1 if there was none in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def enter(self, epoch: int) -> None:
        """Go on in this epoch; a new one has no batches yet."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class Producers:
    """All entries of one partition."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def get(self, producer_id: int) -> Entry | None:
        """One producer's entry."""
        return self._entries.get(producer_id)

    def described(self) -> tuple[ProducerState, ...]:
        """What DescribeProducers answers."""
        return tuple(
            ProducerState(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp,
                entry.coordinator_epoch,
            )
            for producer_id, entry in self._entries.items()
        )

    def duplicate(self, header: Header) -> Remembered | None:
        """The same batch, if it is among the last five of its producer and epoch."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        wanted = (header.base_sequence, last_sequence(header))
        for batch in entry.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def check(self, header: Header) -> None:
        """Raise `Refused` unless this data batch continues its producer's sequence."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            raise Refused(INVALID_PRODUCER_EPOCH)
        expected = 0
        if header.producer_epoch == entry.epoch:
            expected = (entry.last_sequence + 1) % SEQUENCE_MODULUS
        if header.base_sequence != expected:
            raise Refused(
                OUT_OF_ORDER, f"sequence {header.base_sequence}, {expected} was the next one"
            )
        if entry.transaction_start is not None and not header.is_transactional:
            raise Refused(INVALID_TXN_STATE)

    def data(self, header: Header, base_offset: int) -> None:
        """Take in a batch that is being appended."""
        entry = self._entries.setdefault(header.producer_id, Entry())
        entry.enter(header.producer_epoch)
        entry.timestamp = header.max_timestamp
        entry.batches.append(
            Remembered(
                header.base_sequence,
                last_sequence(header),
                base_offset,
                base_offset + header.last_offset_delta,
            )
        )
        if header.is_transactional and entry.transaction_start is None:
            entry.transaction_start = base_offset

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Raise `Refused` if the producer's, or its last marker's coordinator's, epoch is newer."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise Refused(INVALID_PRODUCER_EPOCH)
        if entry is not None and coordinator_epoch < entry.coordinator_epoch:
            raise Refused(TRANSACTION_COORDINATOR_FENCED)

    def marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int
    ) -> int | None:
        """A marker was appended; gives the first offset of the transaction that it ended."""
        entry = self._entries.setdefault(producer_id, Entry())
        entry.enter(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.timestamp = timestamp
        start, entry.transaction_start = entry.transaction_start, None
        return start

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget those whose time is so long ago, unless in a transaction."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.transaction_start is not None or now_ms - entry.timestamp < expiration_ms
        }

    def forget_all_but_last(self) -> None:
        """Keep of each producer the last batch only: what a broker's snapshot holds."""
        for entry in self._entries.values():
            while len(entry.batches) > 1:
                entry.batches.popleft()


def last_sequence(header: Header) -> int:
    """The sequence of a batch's last record."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_MODULUS
