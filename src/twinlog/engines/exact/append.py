"""One mirror partition on the destination: what may be sent, and what each answer means.

The theory is in docs/architecture/append.md. This machine holds one partition to it; it knows no
network and no clock, the time comes in.

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

Invariants: the pieces in flight and in the queue follow each other without a hole from `log_end`
to `planned_end`; a gap is never in flight together with data; `sequence` belongs to `sent_end`;
the first batch after a position is in flight alone, and so is one behind an old batch.

What the sequence does not guard (a filler; a first batch where the broker has forgotten the
producer; old records, after which it soon will) needs a position that was read after
`unguarded_from`: until then somebody else, or a request of our own whose outcome we do not know,
may still be under way.
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
"""Batches of a partition. A broker remembers five for telling a duplicate (since 0.11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a partition stands on the destination, as it was read there.

    `known` says that the broker knows the producer. `guarded` says that it will compare the next
    sequence: it knows the producer, and will for a while; or the partition is empty, so that
    whoever comes first creates what the others are compared with. `fresh_after_ms` says what lasts:
    the broker forgets a producer whose last batch has an older timestamp, at some next check.
    """

    log_end: Offset
    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    guarded: bool
    known: bool = True
    fresh_after_ms: int = 0


def position_of(
    log_end: Offset,
    producers: Iterable[ProducerState],
    data_producer: ProducerId,
    fresh_after_ms: int = 0,
    *,
    of_several_ids: bool = False,
) -> Position:
    """The position from what the destination says.

    What bears another producer id is not compared with ours. So whoever comes first in an empty
    partition, or behind a marker, is compared with nobody unless all had one id.

    Args:
        log_end: the partition's log end offset.
        producers: every producer that the partition's leader remembers.
        data_producer: the state partition's data producer id.
        fresh_after_ms: timestamps from here on are not near their expiry
            (producer.id.expiration.ms).
        of_several_ids: whether data of the mirror may bear another id.
    """
    for known in producers:
        if known.producer_id == data_producer:
            return Position(
                log_end=log_end,
                producer_id=data_producer,
                epoch=ProducerEpoch(known.epoch),
                sequence=advance(Sequence(known.last_sequence), 1),
                guarded=known.last_timestamp >= fresh_after_ms
                and not (of_several_ids and known.last_sequence < 0),
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
"""Whoever sends a partition's first batch sends it in this epoch, so that two who do build the
same bytes. A higher one would be taken after a lower one's, at sequence 0, and double the data."""


class Phase(enum.Enum):
    """Where the machine stands (see the module)."""

    PLACING = enum.auto()
    APPENDING = enum.auto()
    DRAINING = enum.auto()
    FAILED = enum.auto()


class Outgoing(NamedTuple):
    """A batch to send, and who it is to be from."""

    data: Data
    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence


class Misplaced(NamedTuple):
    """An answer that tells that the logs differ: what was expected, what was found."""

    expected: Offset
    found: Offset


class PartitionAppend:
    """The machine of one partition."""

    __slots__ = (
        "_in_flight",
        "_placed_at",
        "_position",
        "_queue",
        "_remembered_ms",
        "_sequence",
        "_unanswered",
        "filled_offsets",
        "log_end",
        "own_end",
        "phase",
        "planned_end",
        "queued_bytes",
        "unguarded_from",
    )

    def __init__(self, unguarded_from: float, *, owned_before: bool = False) -> None:
        self.phase = Phase.PLACING
        self.log_end = self.planned_end = Offset(0)
        # Everything below is proven to be the mirror's: compared with the source when the position
        # was read, or appended since. Offsets of a gap are not: a foreign record may stand there.
        self.own_end = Offset(0)
        self.queued_bytes = 0
        self.unguarded_from = unguarded_from
        self.filled_offsets = [0] * len(Absence)  # by reason, since this machine began
        self._unanswered = owned_before  # whether a batch may still arrive, however late
        self._position: Position | None = None
        self._placed_at = 0.0
        self._sequence = Sequence(0)
        self._remembered_ms: int | None = None  # of the last batch that was taken since
        self._queue: deque[Piece] = deque()
        self._in_flight: deque[Data] = deque()

    @property
    def position(self) -> Position | None:
        """As it was last read; None while it is not known."""
        return self._position

    @property
    def idle(self) -> bool:
        """Whether all that was planned has been appended."""
        return not self._queue and not self._in_flight

    @property
    def in_flight(self) -> int:
        """How many batches have been sent and not answered."""
        return len(self._in_flight)

    @property
    def oldest_in_flight(self) -> Data:
        """The batch that the next answer is about."""
        return self._in_flight[0]

    @property
    def waits_for_lease(self) -> bool:
        """Whether it needs a position that is read after `unguarded_from` (`gap_to_fill`)."""
        position = self._position
        if position is None or not self._queue or self._alone:
            return False
        head = self._queue[0]
        return isinstance(head, Gap) or not self._guarded(head, position)

    def _guarded(self, data: Data, position: Position) -> bool:
        """Whether the batch can land in its place only, even if it is under way twice.

        The broker tells the second from the first by what it remembers, and it remembers for as
        long as the first one's timestamps are fresh.
        """
        fresh = data.header.max_timestamp >= position.fresh_after_ms
        return self._alone or (position.guarded and fresh)

    @property
    def _alone(self) -> bool:
        """Whether nobody else can have been at work since the position was read."""
        return self._placed_at >= self.unguarded_from

    def place(self, position: Position, read_at: float, *, compared: bool) -> None:
        """Go on from a position.

        Args:
            position: as the destination has it.
            read_at: when it was asked for.
            compared: whether the log's last records were compared with the source's.
        """
        assert self.phase is Phase.PLACING
        assert self.idle
        self._position = position
        self._placed_at = read_at
        self._sequence = position.sequence
        self._remembered_ms = None
        self.log_end = self.planned_end = position.log_end
        self.own_end = position.log_end if compared else min(self.own_end, position.log_end)
        self.phase = Phase.APPENDING

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Queue what was planned; it must go on where the plan ended."""
        for piece in pieces:
            assert piece.start == self.planned_end < piece.end
            self._queue.append(piece)
            self.planned_end = piece.end
            if isinstance(piece, Data):
                self.queued_bytes += piece.held

    def take(self, fresh_after_ms: int) -> Outgoing | None:
        """The next batch to send, if one may be sent now. It counts as sent.

        Args:
            fresh_after_ms: timestamps from here on are, now, not near their expiry.
        """
        position = self._position
        if (
            self.phase is not Phase.APPENDING
            or not self._queue
            or position is None
            or not self._room_for_one(fresh_after_ms)
        ):
            return None
        data = self._queue[0]
        if isinstance(data, Gap) or not self._guarded(data, position):
            return None
        self._queue.popleft()
        self._in_flight.append(data)
        outgoing = Outgoing(data, position.producer_id, position.epoch, self._sequence)
        self._sequence = advance(self._sequence, data.header.num_records)
        return outgoing

    def _room_for_one(self, fresh_after_ms: int) -> bool:
        """Whether one more batch may be under way.

        Were the one in front of it refused (too large, too few replicas, the leader gone), a broker
        that knows nothing of the producer would take it in that one's place, whatever its sequence:
        3.9.1 and 4.3.1 do (tests/engines/exact/test_kafka_ports.py). So it goes alone until a batch
        has been taken, and while the broker may forget what it has taken because it is old.
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
        """The oldest batch in flight was taken, and landed at `base_offset`."""
        data = self._in_flight.popleft()
        self.queued_bytes -= data.held
        if base_offset == data.start == self.own_end:
            self.own_end = data.end
        if base_offset != data.start and self.phase is not Phase.FAILED:
            # Taken now or before, it stands in the wrong place, whatever became of earlier ones.
            self.fail()
            return Misplaced(data.start, Offset(base_offset))
        if self.phase is not Phase.APPENDING:
            self._settle()
            return None
        self._remembered_ms = data.header.max_timestamp
        self.log_end = data.end
        return None

    def refused(self) -> None:
        """The oldest batch in flight was refused: the position is not what we thought."""
        data = self._in_flight.popleft()
        self.queued_bytes -= data.held
        self._drain()

    def lost(self, unguarded_from: float) -> None:
        """The oldest batch in flight got no answer: whether it landed is unknown.

        Args:
            unguarded_from: when it can no longer be under way.
        """
        self.unguarded_from = max(self.unguarded_from, unguarded_from)
        self._unanswered = True
        self.refused()

    def replace(self) -> None:
        """Ask for the position anew, whatever was planned."""
        if self.phase is Phase.APPENDING:
            self._drain()

    @property
    def gap_to_fill(self) -> Gap | None:
        """The gap whose turn it is, if it may be filled now."""
        if self.phase is not Phase.APPENDING or self._in_flight or not self._queue:
            return None
        gap = self._queue[0]
        return gap if isinstance(gap, Gap) and self._alone else None

    @property
    def fences_data_first(self) -> bool:
        """Whether the gap whose turn it is begins with a marker that fences data.

        Records that were there once, and are compacted or deleted now, may have been sent, and may
        still arrive: the sequence goes on behind a gap as if it were not there, so that they would
        land behind it. The marker is of a new epoch of the data's producer, and they are refused.
        """
        gap = self._queue[0] if self._queue else None
        return self._unanswered and isinstance(gap, Gap) and not gap.seen

    def data_fenced(self) -> None:
        """Data of earlier epochs is refused from now on; the position has another epoch, too."""
        self._unanswered = False
        self.replace()

    def filled(self, log_end: Offset) -> Misplaced | None:
        """The log now ends at `log_end`, while a gap is being filled."""
        if self.phase is not Phase.APPENDING:
            return None
        gap = self._queue[0]
        assert isinstance(gap, Gap)
        if not gap.start <= log_end <= gap.end:
            self.fail()
            return Misplaced(gap.end, log_end)
        self.log_end = log_end
        if self._position is not None and not self._position.known and self._remembered_ms is None:
            # The first batch is to be the one that whoever reads the position here would send.
            self._sequence = advance(Sequence(0), log_end)
        for reason, count in gap.reasons(log_end):
            self.filled_offsets[reason] += count
        if log_end == gap.end:
            self._queue.popleft()
        elif log_end > gap.start:
            self._queue[0] = gap.after(log_end)
        return None

    def fail(self) -> None:
        """Nothing more is sent."""
        self._forget_plan()
        self.phase = Phase.FAILED

    def retry(self) -> None:
        """Leave FAILED: the position is read again, once all answers are in."""
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
        self._position = None
        self._queue.clear()
        self.queued_bytes = sum(data.held for data in self._in_flight)
