"""The transaction coordinator: transactional ids, their epochs, and the writing of markers.

                    add_partitions              end                     all markers replicated
    EMPTY/COMPLETE ────────────────► ONGOING ─────────► ENDING ───────────────────────► COMPLETE
          ▲                             │                  │ any request: 51
          └───── init (epoch + 1) ◄─────┴── init: epoch + 1, abort, and 51 until it is replicated

`end` is answered when the decision is made; the markers are written later, each with its own delay.
No epoch is 32767: at 32766 the next init gives a new producer id, in epoch 0. The coordinator
itself aborts an open transaction after its timeout, in the next epoch.

Source: `TransactionCoordinator`, `TransactionMetadata` (protocol versions before transaction
version 2, which twinlog uses on purpose: in version 2 a transaction's end changes the epoch).

An id that was not used for `transactional.id.expiration.ms` is forgotten, and gets another producer
id when it is used again (contract/test_expiry.py). Data and written markers do not use the id.
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
    """The state of one transactional id."""

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
    ending: frozenset[TopicPartition] = frozenset()  # as the transaction log stores them
    number: int = 0  # of transactions; a timeout ends only the transaction that it was set for
    used_at: float = 0.0


class Coordinator:
    """All transactional ids.

    `write` schedules a marker for a partition, and calls its callback when the marker is
    replicated, however long that takes.
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
        self._epoch = 0  # the coordinator epoch: how often the coordinator has moved
        self.first_epoch = 0
        """The first epoch of new ids; scenarios of epoch exhaustion set it high."""

    def new_producer_id(self) -> int:
        """Return an unused producer id."""
        self._next_producer_id += 1
        return self._next_producer_id

    def init(self, name: str) -> tuple[int, int, int]:
        """Answer InitProducerId: error, producer id, epoch."""
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
        """Answer AddPartitionsToTxn: an error code."""
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
        """Answer EndTxn: an error code; the markers follow later."""
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
        """Move to another broker, which writes all markers of incomplete transactions again.

        A partition that has its marker already gets a second one (kafka/requests/test_markers.py).
        The former coordinator's requests that arrive later are refused for their coordinator epoch.
        """
        self._epoch += 1
        for known in self._ids.values():
            if known.state is State.ENDING:
                known.partitions.update(known.ending)
                self._end(known, committed=known.committed)

    def _used(self, name: str) -> Transactional | None:
        """Return the entry of an id that is used now; None if it is unknown or expired."""
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
                return  # a former coordinator sent it
            known.partitions.discard(partition)
            if not known.partitions:
                known.state = State.COMPLETE

        for partition in sorted(known.partitions):
            self._write(partition, marker, partial(stands, partition))

    def _time_out(self, known: Transactional, number: int) -> None:
        if known.state is State.ONGOING and known.number == number:
            known.epoch += 1
            self._end(known, committed=False)
