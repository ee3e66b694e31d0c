"""One mirror partition on the destination: what may be sent, and what each answer means.

The rules are in docs/architecture/append.md. This state machine applies them to one partition. It
uses no network and no clock: times are arguments.

                       place(position)
      ┌────────► PLACING ───────────────► APPENDING ──┐ take() sends Data, answered() confirms it
      │             ▲                        │  ▲     │ gap_to_fill() names a gap, filled() ends it
      │ lost(),     │ all answers are in     │  └─────┘
      │ refused()   │                        │
      └──────── DRAINING ◄───────────────────┘ an answer that means the position is not known
                                             │
                    FAILED ◄─────────────────┘ an answer that means the two logs differ

Offsets, all of the source's log, which is the destination's too:

      log_end ──► sent_end ──► planned_end
      acknowledged   in flight    queued; the next fetch starts at planned_end

Invariants:

- the pieces in flight and in the queue are contiguous from `log_end` to `planned_end`;
- a gap is never in flight together with data;
- a gap that bytes of the source do not prove is filled only if the lane has confirmed, since it was
  planned, that it owns the partition (confirmations.py);
- `sequence` belongs to `sent_end`;
- the first batch after a position is in flight alone, and so is a batch behind an old one.

The sequence does not guard a filler, a first batch where the broker has forgotten the producer, or
old records, after which it soon forgets the producer. These need a position that was read after
`unguarded_from`: until then a request of a former owner, or an own request of unknown outcome, may
still be in flight.
"""

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, ProducerState, Sequence, advance
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Data, Gap, Piece

MAX_IN_FLIGHT: Final = 5
"""Batches of a partition. A broker remembers five to detect duplicates (since 0.11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a partition, as it was read from the destination.

    `known`: the broker knows the producer. `guarded`: the broker will compare the next sequence,
    because it knows the producer and will not soon forget it; or because the partition is empty, so
    that the first sender creates the entry that later ones are compared with. `fresh_after_ms`: the
    broker forgets a producer whose last batch has an older timestamp, at one of its next checks.
    """

    log_end: Offset
    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    guarded: bool
    known: bool = True
    fresh_after_ms: int = 0

    def guards(self, data: Data) -> bool:
        """Whether the batch can land only at its own offset, even if it is in flight twice.

        The broker detects the duplicate while it remembers the producer, which is as long as the
        timestamps of the first one are fresh.
        """
        return self.guarded and data.header.max_timestamp >= self.fresh_after_ms


def position_of(
    log_end: Offset,
    producers: Iterable[ProducerState],
    data_producer: ProducerId,
    fresh_after_ms: int = 0,
    *,
    of_several_ids: bool = False,
) -> Position:
    """The position that the destination's answers give.

    A broker does not compare batches of different producer ids. So the first batch in an empty
    partition, or behind a marker, is guarded only if all senders had the same id.

    Args:
        log_end: the partition's log end offset.
        producers: every producer that the partition's leader remembers.
        data_producer: the state partition's data producer id.
        fresh_after_ms: the oldest timestamp that is not near its expiry
            (producer.id.expiration.ms).
        of_several_ids: whether data of the mirror may carry another producer id.
    """
    for producer in producers:
        if producer.producer_id == data_producer:
            return Position(
                log_end=log_end,
                producer_id=data_producer,
                epoch=ProducerEpoch(producer.epoch),
                sequence=advance(Sequence(producer.last_sequence), 1),
                guarded=producer.last_timestamp >= fresh_after_ms
                and not (of_several_ids and producer.last_sequence < 0),
                fresh_after_ms=fresh_after_ms,
            )
    return Position(
        log_end=log_end,
        producer_id=data_producer,
        epoch=BIRTH_EPOCH,
        sequence=advance(Sequence(0), log_end),
        guarded=log_end == 0 and not of_several_ids,
        known=False,
        fresh_after_ms=fresh_after_ms,
    )


BIRTH_EPOCH: Final = ProducerEpoch(0)
"""The epoch of a partition's first batch, so that two first senders build the same bytes. A batch
of a higher epoch would be appended after one of a lower epoch, at sequence 0: duplicated data."""


class Phase(enum.Enum):
    """The state of the machine (see the module)."""

    PLACING = enum.auto()
    APPENDING = enum.auto()
    DRAINING = enum.auto()
    FAILED = enum.auto()


class Plan(NamedTuple):
    """What is planned at a moment: up to this offset, from this position."""

    position: Position | None
    end: Offset


class Outgoing(NamedTuple):
    """A batch to send, with its producer id, epoch and sequence, and what is queued behind it."""

    data: Data
    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    next_piece: Piece | None


class Misplaced(NamedTuple):
    """An answer that shows that the logs differ: the expected offset and the actual one."""

    expected: Offset
    found: Offset


class PartitionAppend:
    """The append machine of one partition."""

    __slots__ = (
        "_confirmed_end",
        "_in_flight",
        "_placed_at",
        "_queue",
        "_remembered_ms",
        "_sequence",
        "_unanswered",
        "_unseen_end",
        "filled_offsets",
        "log_end",
        "own_end",
        "phase",
        "planned_end",
        "position",
        "queued_bytes",
        "unguarded_from",
    )

    def __init__(self, unguarded_from: float, *, owned_before: bool = False) -> None:
        self.phase = Phase.PLACING
        self.log_end = self.planned_end = Offset(0)
        # Everything below is proven to be the mirror's: compared with the source when the position
        # was read, or appended since. Offsets of a gap are not: they may hold a foreign record.
        self.own_end = Offset(0)
        self.queued_bytes = 0
        self.unguarded_from = unguarded_from
        self.filled_offsets = [0] * len(Absence)  # by reason, since this machine began
        self._unanswered = owned_before  # whether an unanswered batch may still land
        self._unseen_end = self._confirmed_end = Offset(0)
        self.position: Position | None = None  # as it was last read; None while it is unknown
        self._placed_at = 0.0
        self._sequence = Sequence(0)
        self._remembered_ms: int | None = None  # max timestamp of the last batch taken since
        self._queue: deque[Piece] = deque()
        self._in_flight: deque[Data] = deque()

    @property
    def idle(self) -> bool:
        """Whether all that was planned has been appended."""
        return not self._queue and not self._in_flight

    @property
    def unconfirmed(self) -> bool:
        """Whether a gap is planned that has to be confirmed, and is not yet (`confirm`)."""
        return self.phase is Phase.APPENDING and self._unseen_end > self._confirmed_end

    @property
    def in_flight(self) -> int:
        """The number of batches in flight."""
        return len(self._in_flight)

    @property
    def oldest_in_flight(self) -> Data:
        """The batch that the next answer is about."""
        return self._in_flight[0]

    @property
    def waits_for_lease(self) -> bool:
        """Whether it needs a position that is read after `unguarded_from` (`gap_to_fill`)."""
        position = self.position
        if position is None or not self._queue or self._alone:
            return False
        head = self._queue[0]
        return isinstance(head, Gap) or not position.guards(head)

    @property
    def _alone(self) -> bool:
        """Whether the position was read when no other sender could be active any more."""
        return self._placed_at >= self.unguarded_from

    def place(self, position: Position, read_at: float, *, compared: bool) -> None:
        """Continue from a position.

        Args:
            position: as read from the destination.
            read_at: when the request was sent.
            compared: whether the log's last records were compared with the source's.
        """
        assert self.phase is Phase.PLACING
        assert self.idle
        self.position = position
        self._placed_at = read_at
        self._sequence = position.sequence
        self._remembered_ms = None
        self.log_end = self.planned_end = position.log_end
        self._unseen_end = self._confirmed_end = position.log_end
        self.own_end = position.log_end if compared else min(self.own_end, position.log_end)
        self.phase = Phase.APPENDING

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Queue planned pieces; they must continue at the end of the plan."""
        for piece in pieces:
            assert piece.start == self.planned_end < piece.end
            self._queue.append(piece)
            self.planned_end = piece.end
            if isinstance(piece, Data):
                self.queued_bytes += piece.held
            elif not piece.seen:
                self._unseen_end = piece.end

    def confirm(self, plan: Plan) -> None:
        """Note that the lane owned the partition after this had been planned."""
        if plan.position is self.position:
            self._confirmed_end = max(self._confirmed_end, plan.end)

    def take(self, fresh_after_ms: int) -> Outgoing | None:
        """Return the next batch to send, if one may be sent now. It counts as sent.

        Args:
            fresh_after_ms: the oldest timestamp that is now not near its expiry.
        """
        position = self.position
        if (
            self.phase is not Phase.APPENDING
            or not self._queue
            or position is None
            or not self._room_for_one(fresh_after_ms)
        ):
            return None
        data = self._queue[0]
        if isinstance(data, Gap) or not (self._alone or position.guards(data)):
            return None
        self._queue.popleft()
        self._in_flight.append(data)
        next_piece = self._queue[0] if self._queue else None
        outgoing = Outgoing(data, position.producer_id, position.epoch, self._sequence, next_piece)
        self._sequence = advance(self._sequence, data.header.num_records)
        return outgoing

    def _room_for_one(self, fresh_after_ms: int) -> bool:
        """Whether one more batch may be in flight.

        If the batch before it is refused (too large, too few in-sync replicas, the leader changed),
        a broker that does not know the producer appends this one in its place, whatever its
        sequence: 3.9.1 and 4.3.1 do (tests/engines/test_kafka_ports.py). So a batch is in
        flight alone until one is acknowledged, and while acknowledged ones are so old that the
        broker may forget the producer.
        """
        if not self._in_flight:
            return True
        return (
            len(self._in_flight) < MAX_IN_FLIGHT
            and self._remembered_ms is not None
            and self._remembered_ms >= fresh_after_ms
            and all(data.header.max_timestamp >= fresh_after_ms for data in self._in_flight)
        )

    def answered(self, base_offset: int) -> Misplaced | None:
        """Take an acknowledgement: the oldest batch in flight landed at `base_offset`."""
        data = self._in_flight.popleft()
        self.queued_bytes -= data.held
        if base_offset == data.start == self.own_end:
            self.own_end = data.end
        if base_offset != data.start and self.phase is not Phase.FAILED:
            # Appended now or before, it is at the wrong offset, whatever the other outcomes were.
            self.fail()
            return Misplaced(data.start, Offset(base_offset))
        if self.phase is not Phase.APPENDING:
            self._settle()
            return None
        self._remembered_ms = data.header.max_timestamp
        self.log_end = data.end
        return None

    def refused(self) -> None:
        """Take a refusal of the oldest batch in flight: the position is not as expected."""
        data = self._in_flight.popleft()
        self.queued_bytes -= data.held
        self._drain()

    def lost(self, unguarded_from: float) -> None:
        """Take an unknown outcome: the oldest batch in flight got no answer.

        Args:
            unguarded_from: when it can no longer be in flight.
        """
        self.unguarded_from = max(self.unguarded_from, unguarded_from)
        self._unanswered = True
        self.refused()

    def replace(self) -> None:
        """Drop the plan and read the position again."""
        if self.phase is Phase.APPENDING:
            self._drain()

    @property
    def gap_to_fill(self) -> Gap | None:
        """The gap at the head of the queue, if it may be filled now."""
        if self.phase is not Phase.APPENDING or self._in_flight or not self._queue:
            return None
        gap = self._queue[0]
        if not isinstance(gap, Gap) or not self._alone:
            return None
        return gap if gap.seen or gap.end <= self._confirmed_end else None

    @property
    def fences_data_first(self) -> bool:
        """Whether the gap at the head of the queue has to begin with a marker that fences data.

        Records of the gap may have existed, and are compacted or deleted now. If they were sent,
        they may still arrive. The sequence continues behind a gap as if the gap were not there, so
        they would land behind it. The marker is of a new epoch of the data id, so they are refused.
        """
        if not self._unanswered or not self._queue:
            return False
        gap = self._queue[0]
        return isinstance(gap, Gap) and not gap.seen

    def data_fenced(self) -> None:
        """Note that earlier epochs are fenced; the position is read again, as its epoch changed."""
        self._unanswered = False
        self.replace()

    def filled(self, log_end: Offset) -> Misplaced | None:
        """Take the log end offset after a round that fills the gap at the head of the queue."""
        if self.phase is not Phase.APPENDING:
            return None
        gap = self._queue[0]
        assert isinstance(gap, Gap)
        if not gap.start <= log_end <= gap.end:
            self.fail()
            return Misplaced(gap.end, log_end)
        self.log_end = log_end
        if self.position is not None and not self.position.known and self._remembered_ms is None:
            # The first batch must equal the one that an owner would send after reading the
            # position at this end.
            self._sequence = advance(Sequence(0), log_end)
        for reason, count in gap.reasons(log_end):
            self.filled_offsets[reason] += count
        if log_end == gap.end:
            self._queue.popleft()
        elif log_end > gap.start:
            self._queue[0] = gap.after(log_end)
        return None

    def fail(self) -> None:
        """Stop sending."""
        self._forget_plan()
        self.phase = Phase.FAILED

    def retry(self) -> None:
        """Leave FAILED: the position is read again when nothing is in flight."""
        assert self.phase is Phase.FAILED
        self.phase = Phase.DRAINING
        self._settle()

    def _drain(self) -> None:
        self._forget_plan()
        if self.phase is not Phase.FAILED:
            self.phase = Phase.DRAINING
            self._settle()

    def _settle(self) -> None:
        if self.phase is Phase.DRAINING and not self._in_flight:
            self.phase = Phase.PLACING

    def _forget_plan(self) -> None:
        self.position = None
        self._queue.clear()
        self.queued_bytes = sum(data.held for data in self._in_flight)


def plan_of(append: PartitionAppend) -> Plan:
    """What is planned now, for `PartitionAppend.confirm`."""
    return Plan(append.position, append.planned_end)
