"""The producer state of a partition's leader: Kafka's idempotence check.

The broker's own code is `ProducerStateManager`, `ProducerAppendInfo` and `ProducerStateEntry`.

    entry of a producer in the partition      batch's sequence    answer
    ----------------------------------------  ------------------  ------------------------------
    none                                      any                 appended
    of a higher epoch                         any                 47 INVALID_PRODUCER_EPOCH
    of this epoch, one of the last 5 batches  the same first,last  duplicate: its first offset
    of this epoch, last sequence s            s + 1 mod 2^31      appended
    of this epoch, no batch (a marker only)   0                   appended
    of a lower epoch                          0                   appended
    else                                                          45 OUT_OF_ORDER_SEQUENCE_NUMBER

A transaction marker is refused if the entry has a higher epoch (47), or a last marker of a higher
coordinator epoch (52 TRANSACTION_COORDINATOR_FENCED); nothing else is compared.

An entry's time is the *max timestamp* of its last batch, or the time of its last marker. The leader
forgets the entry when that time is `producer.id.expiration.ms` ago. It checks for such entries each
`producer.id.expiration.check.interval.ms`, so an entry may last longer by up to that interval.

No version from 2.8 on answers 46 DUPLICATE_SEQUENCE_NUMBER.
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
        """The last sequence of the epoch; -1 if the epoch has no batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def enter(self, epoch: int) -> None:
        """Switch to this epoch; a new epoch has no batches yet."""
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
        """Return a producer's entry."""
        return self._entries.get(producer_id)

    def described(self) -> tuple[ProducerState, ...]:
        """Return what DescribeProducers answers."""
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
        """Return the same batch, if it is among the last five of its producer and epoch."""
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
        """Record a batch that is being appended."""
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
        """Raise `Refused` if a newer producer epoch or coordinator epoch is known."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise Refused(INVALID_PRODUCER_EPOCH)
        if entry is not None and coordinator_epoch < entry.coordinator_epoch:
            raise Refused(TRANSACTION_COORDINATOR_FENCED)

    def marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int
    ) -> int | None:
        """Record an appended marker; return the first offset of the transaction that it ended."""
        entry = self._entries.setdefault(producer_id, Entry())
        entry.enter(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.timestamp = timestamp
        start, entry.transaction_start = entry.transaction_start, None
        return start

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the entries whose time is `expiration_ms` ago, except open transactions."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.transaction_start is not None or now_ms - entry.timestamp < expiration_ms
        }

    def forget_all_but_last(self) -> None:
        """Keep only the last batch of each producer, as a broker's snapshot does."""
        for entry in self._entries.values():
            while len(entry.batches) > 1:
                entry.batches.popleft()


def last_sequence(header: Header) -> int:
    """Return the sequence of a batch's last record."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_MODULUS
