"""The transaction coordinator: transactional ids, their epochs, and when their markers stand.

                    add_partitions              end                     all markers stand
    EMPTY/COMPLETE ────────────────► ONGOING ─────────► ENDING ───────────────────────► COMPLETE
          ▲                             │                  │ any request: 51
          └───── init (epoch + 1) ◄─────┴── init: epoch + 1, abort, and 51 until it stands

`end` is answered when the decision is taken; the markers are written after that, each in its time.
An epoch is never 32767: at 32766 the next init gives a new producer id, in epoch 0. An open
transaction is aborted by the coordinator itself after its timeout, in the next epoch.

Source: `TransactionCoordinator`, `TransactionMetadata` (protocol versions before transaction
version 2, which twinlog uses on purpose: there a transaction's end does not change the epoch).

An id that was not used for `transactional.id.expiration.ms` is forgotten, and has another producer
id in its next life (contract/test_expiry.py): data and written markers are no use of it.
"""

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from model.log import Marker
from twinlog.kafka.types import TopicPartition

INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
PRODUCER_FENCED: Final = 90
LAST_EPOCH: Final = 32766


class State(enum.Enum):
    """Of one transactional id."""

    EMPTY = enum.auto()
    ONGOING = enum.auto()
    ENDING = enum.auto()
    COMPLETE = enum.auto()


@dataclass(slots=True)
class Transactional:
    """One transactional id."""

    producer_id: int
    epoch: int = -1
    state: State = State.EMPTY
    committed: bool = False
    partitions: set[TopicPartition] = field(default_factory=set)
    ending: frozenset[TopicPartition] = frozenset()  # as the log of transactions has them
    number: int = 0  # of transactions, so that a timeout ends the one that it was set for
    used_at: float = 0.0


class Coordinator:
    """All transactional ids.

    `write` is to write a marker on a partition at some time and to call what it is given when the
    marker stands (is replicated), however long that takes.
    """

    def __init__(
        self,
        write: Callable[[TopicPartition, Marker, Callable[[], None]], None],
        watch: Callable[[Callable[[], None]], None],
        time: Callable[[], float],
        expiration: Callable[[], float],
    ) -> None:
        self._write = write
        self._watch = watch
        self._time = time
        self._expiration = expiration
        self._ids: dict[str, Transactional] = {}
        self._next_producer_id = 1000
        self._epoch = 0  # of the coordinator: how often it has moved
        self.first_epoch = 0
        """Of new ids; a scenario of the epochs' end sets it high."""

    def new_producer_id(self) -> int:
        """A producer id that nobody has."""
        self._next_producer_id += 1
        return self._next_producer_id

    def init(self, name: str) -> tuple[int, int, int]:
        """InitProducerId: error, producer id, epoch."""
        known = self._used(name)
        if known is None:
            known = self._ids[name] = Transactional(self.new_producer_id(), self.first_epoch - 1)
        known.used_at = self._time()
        if known.state is State.ENDING:
            return CONCURRENT_TRANSACTIONS, -1, -1
        if known.state is State.ONGOING:
            known.epoch += 1
            self._end(known, committed=False)
            return CONCURRENT_TRANSACTIONS, -1, -1
        if known.epoch >= LAST_EPOCH:
            known.producer_id, known.epoch = self.new_producer_id(), -1
        known.epoch += 1
        known.state = State.EMPTY
        return 0, known.producer_id, known.epoch

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> int:
        """AddPartitionsToTxn: an error code."""
        known = self._used(name)
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return PRODUCER_FENCED
        if known.state is State.ENDING:
            return CONCURRENT_TRANSACTIONS
        if known.state is not State.ONGOING:
            known.state = State.ONGOING
            known.number += 1
            number = known.number
            self._watch(lambda: self._time_out(known, number))
        known.partitions.update(partitions)
        return 0

    def end(self, name: str, producer_id: int, epoch: int, *, committed: bool) -> int:
        """EndTxn: an error code; the markers come later."""
        known = self._used(name)
        if known is None or known.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return PRODUCER_FENCED
        if known.state is State.ONGOING:
            self._end(known, committed=committed)
            return 0
        if known.state is State.EMPTY or known.committed != committed:
            return INVALID_TXN_STATE
        return CONCURRENT_TRANSACTIONS if known.state is State.ENDING else 0

    def move(self) -> None:
        """Another broker takes over: what is not complete gets all of its markers again.

        What has its marker already gets another one (kafka/requests/test_markers.py). What the
        former one has sent, and what comes later, is refused for its coordinator epoch.
        """
        self._epoch += 1
        for known in self._ids.values():
            if known.state is State.ENDING:
                known.partitions.update(known.ending)
                self._end(known, committed=known.committed)

    def _used(self, name: str) -> Transactional | None:
        """What is known of an id that is used now: nothing if that was too long ago."""
        known, now = self._ids.get(name), self._time()
        if known is None:
            return None
        idle = known.state in {State.EMPTY, State.COMPLETE}
        if idle and now > known.used_at + self._expiration():
            del self._ids[name]
            return None
        known.used_at = now
        return known

    def _end(self, known: Transactional, *, committed: bool) -> None:
        known.state, known.committed = State.ENDING, committed
        known.ending = frozenset(known.partitions)
        epoch = self._epoch
        marker = Marker(known.producer_id, known.epoch, committed, epoch)

        def stands(partition: TopicPartition) -> None:
            if epoch != self._epoch:
                return  # whoever sent it coordinates nothing any more
            known.partitions.discard(partition)
            if not known.partitions:
                known.state = State.COMPLETE

        for partition in sorted(known.partitions):
            self._write(partition, marker, partial(stands, partition))

    def _time_out(self, known: Transactional, number: int) -> None:
        if known.state is State.ONGOING and known.number == number:
            known.epoch += 1
            self._end(known, committed=False)
