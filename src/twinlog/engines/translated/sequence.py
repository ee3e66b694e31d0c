"""The sequence of one partition: which records its next sequence numbers stand for.

    queued ──plan(), stored()──► ready ──take()──► in flight ──answered()──► landed ──record()──►
      │                     │      ▲                   │
      └───── drop() ────────┘      └───── refused() ───┘
                │
                ▼
            read again

Invariants:

- no number is sent that the stored plan does not name (mirror/sequence_plan.py);
- an epoch's numbers begin with 0, and each epoch has one owner;
- the pieces are in order of offset on both sides.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from twinlog.kafka.log.leader_epochs import EpochRun, SourceEpochs
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    advance,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.absence import Absence
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.plan import Data, Gap, Piece
from twinlog.mirror.sequence_plan import Contradiction, SequencePlan, SourceRun

MAX_IN_FLIGHT: Final = 5
"""Batches of a partition. A broker remembers five to detect duplicates (since 0.11)."""
PLAN_BELOW: Final = 2
"""Planned batches that wait to be sent, below which the next plan is due. Storing it takes about as
long as a batch; each plan is a request to the destination, and a fifth of a lane's work."""


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A batch to send, with its first sequence number."""

    data: Data
    sequence: SequenceNumber


class PartitionSequence:
    """The sequence of one partition, in one epoch of its writer.

    Args:
        producer: id and epoch; no number of the epoch was used.
        recorded: where the recorded map ends. All that has landed is recorded.
        position: the next source offset; not below `recorded`'s.
        epochs: the source's leader epochs before `position`, as far as they are known.
        has_begun: whether a map was stored before: the partition does not begin there.
    """

    def __init__(
        self,
        producer: tuple[ProducerId, ProducerEpoch],
        recorded: Ends,
        position: Offset,
        epochs: Iterable[EpochRun] = (),
        *,
        has_begun: bool = False,
    ) -> None:
        self.has_begun = has_begun
        self.producer_id, self.epoch = producer
        self.epochs = SourceEpochs(epochs)
        """The leader epochs of what was read (KIP-320)."""
        self.epochs.place(position, UNKNOWN_EPOCH)
        self.recorded = recorded
        self.position = position
        """The source's offset from which the next piece is wanted."""
        self.mirrored_end = position
        """The source's offset up to which everything has landed, gaps included."""
        self.queued_bytes = 0
        self._pieces: deque[Piece] = deque()  # not sent
        self._ready = 0  # batches in `_pieces` that the stored plan names
        self._in_flight: deque[NumberedBatch] = deque()
        self._refused: list[NumberedBatch] = []  # those before the ones in flight
        self._next = SequenceNumber(0)
        self._first = SequenceNumber(0)  # of the first record that is not recorded
        self._unrecorded: deque[SourceRun] = deque()  # sent or not, from `_first` on
        self._landed: list[Run] = []
        self._gap_end = position  # of the last gap that was dropped while batches were in flight
        self._last_ms: int | None = None  # timestamp of the last batch that has landed
        self._last = position, self.epochs.before(position)  # its end, and its leader epoch
        self._deleted_end = Offset(0)  # of the last gap before which the source has deleted all
        self._unplanned = 0  # queued batches that no plan names
        self._storing = False
        self._planning = 0  # queued batches that only the plan names that is being stored

    @property
    def may_plan(self) -> bool:
        """Whether no plan is being stored."""
        return not self._storing

    @property
    def wants_plan(self) -> bool:
        """Whether there are batches that no plan names, and few that one names."""
        return self._unplanned > 0 and self._ready < PLAN_BELOW

    @property
    def destination_end(self) -> Offset:
        """The destination's offset behind the last record that has landed."""
        return self._landed[-1].destination_end if self._landed else self.recorded.destination

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in flight."""
        return not self._pieces and not self._in_flight and not self._refused

    @property
    def in_flight(self) -> int:
        """Batches that are not answered."""
        return len(self._in_flight)

    @property
    def landed(self) -> Sequence[Run]:
        """What has landed, and is not recorded yet."""
        return self._landed

    def follows(self, plan: SequencePlan, mapped: Ends) -> bool:
        """Whether a stored plan is this sequence's, and its map ends where this one goes on."""
        stored = plan.producer_id, plan.epoch, mapped.destination
        return stored == (self.producer_id, self.epoch, self.recorded.destination)

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces that follow each other from `position` on; gaps are not copied."""
        for piece in pieces:
            assert piece.start == self.position
            self._pieces.append(piece)
            self.position = piece.end
            if isinstance(piece, Data):
                self.queued_bytes += piece.held
                self._unplanned += 1
                self._extend(piece)
        self._skip_gaps()

    def _extend(self, data: Data) -> None:
        if self._unrecorded and self._unrecorded[-1][1] == data.start:
            self._unrecorded[-1] = (self._unrecorded[-1][0], data.end)
        else:
            self._unrecorded.append((data.start, data.end))

    def _skip_gaps(self) -> None:
        """Drop the gaps before the next batch; one behind batches in flight passes with these."""
        while self._pieces and not isinstance(self._pieces[0], Data):
            gap = self._pieces.popleft()
            if isinstance(gap, Gap) and gap.spans and gap.spans[-1].reason is Absence.LOG_START:
                self._deleted_end = gap.end
            if not self._in_flight and not self._refused:
                self.mirrored_end = gap.end
            else:
                self._gap_end = gap.end

    @property
    def passed_gaps(self) -> bool:
        """Whether offsets without a copy follow the recorded ones, and nothing else does."""
        complete = self.idle and not self._landed and not self._unrecorded
        return complete and self.mirrored_end > self.recorded.source

    def plan(self) -> SequencePlan:
        """The plan of all that is known, to be stored; then `stored` is called.

        Offsets without a copy count as recorded: the source may remove them, and what it holds next
        to them.
        """
        assert not self._storing
        if self.passed_gaps:
            self.recorded = Ends(self.mirrored_end, self.recorded.destination)
        self._storing = True
        self._planning, self._unplanned = self._unplanned, 0
        return SequencePlan(
            self.producer_id, self.epoch, self._first, tuple(self._unrecorded), self.recorded
        )

    def stored(self) -> None:
        """Note that the last plan is stored: what it names may be sent."""
        self._ready += self._planning
        self._planning, self._storing = 0, False

    def take(self, fresh_after_ms: int, *, guarded: bool = True) -> NumberedBatch | None:
        """The next batch to send now.

        Args:
            fresh_after_ms: a broker forgets a producer whose last batch is older, its fence
                included, and then compares no number: such a batch is in flight alone.
            guarded: whether no request of a former epoch can be in flight any more; otherwise no
                old batch is sent.
        """
        self._skip_gaps()
        piece = self._pieces[0] if self._pieces else None
        if not isinstance(piece, Data) or self._ready == 0:
            return None
        if self._refused:
            return None
        if not guarded and piece.header.max_timestamp < fresh_after_ms:
            return None
        timestamps = [out.data.header.max_timestamp for out in self._in_flight]
        if self._in_flight and (
            self._last_ms is None  # a broker takes any first number of an epoch
            or len(self._in_flight) >= MAX_IN_FLIGHT
            or min(timestamps, default=0) < fresh_after_ms
            or piece.header.max_timestamp < fresh_after_ms
            or self._last_ms < fresh_after_ms
        ):
            return None
        self._pieces.popleft()
        self._ready -= 1
        outgoing = NumberedBatch(piece, self._next)
        self._next = advance(self._next, piece.end - piece.start)
        self._in_flight.append(outgoing)
        return outgoing

    def answered(self, numbered: NumberedBatch, base_offset: Offset) -> Data:
        """Take an acknowledgement: this batch, the oldest one in flight, is at `base_offset`.

        Raises:
            Contradiction: it is another one, or is below what has landed before.
        """
        if self._refused or not self._in_flight or self._in_flight[0] is not numbered:
            raise Contradiction(
                f"the batch of source offset {numbered.data.start} was acknowledged before an "
                "earlier one"
            )
        data = self._in_flight.popleft().data
        run = Run(data.start, base_offset, data.end - data.start)
        end = self.destination_end
        if base_offset < end:
            raise Contradiction(
                f"the batch of source offset {data.start} landed at {base_offset}, below {end}"
            )
        self.queued_bytes -= data.held
        self._last_ms = data.header.max_timestamp
        self._last = data.end, LeaderEpoch(data.header.leader_epoch)
        self.mirrored_end = data.end if self._in_flight else max(data.end, self._gap_end)
        last = self._landed[-1] if self._landed else None
        if last is not None and (last.source_end, last.destination_end) == run[:2]:
            self._landed[-1] = last._replace(length=last.length + run.length)
        else:
            self._landed.append(run)
        self._skip_gaps()
        return data

    def refused(self, numbered: NumberedBatch) -> None:
        """Send a batch again that was certainly not appended, once all behind it are refused.

        It keeps its number. The broker refuses what is in flight behind it, or that is refused for
        the same reason.

        Raises:
            Contradiction: an earlier batch is in flight.
        """
        if not self._in_flight or self._in_flight[0] is not numbered:
            raise Contradiction(
                f"the batch of source offset {numbered.data.start} was refused before an earlier "
                "one was answered"
            )
        self._refused.append(self._in_flight.popleft())
        if self._in_flight:
            return
        first, last = self._refused[0], self._refused[-1].data
        if self._gap_end > last.end:  # it was to pass with the batches in flight
            self._pieces.appendleft(Gap(last.end, self._gap_end, seen=False))
        self._gap_end = first.data.start
        for batch in reversed(self._refused):
            self._pieces.appendleft(batch.data)
            self._ready += 1
        self._next, self._refused = first.sequence, []

    def drop(self) -> int:
        """Forget what is queued: it is read, and planned, again; return the bytes that it held.

        The numbers that a stored plan gives it were not sent, or were refused. The next plan
        replaces that one before they are. Nothing is dropped while some of it is in flight, or is
        being planned.

        It is read again from where the last batch has landed, or a location would go on: the gaps
        behind that, too. Its leader epoch is known there, so that a source is noticed that loses
        its end while nothing is read (KIP-320); or as little as right behind a location.

        Not from below the source's log start, behind which the partition has already gone on: there
        is nothing to read, and it would look as if records had been lost.
        """
        if self._in_flight or self._refused or self._storing or not self._pieces:
            return 0
        end, epoch = self._last
        # What was to pass with a batch that was refused has not been passed.
        deleted = self._deleted_end if self._deleted_end <= self.mirrored_end else end
        position = max(end, self.recorded.source, deleted)
        self.epochs.place(position, epoch if position == end else UNKNOWN_EPOCH)
        self.position = self.mirrored_end = self._gap_end = position
        while self._unrecorded and self._unrecorded[-1][1] > position:
            start, _ = self._unrecorded.pop()
            if start < position:
                self._unrecorded.append((start, position))
        dropped, self.queued_bytes = self.queued_bytes, 0
        self._pieces.clear()
        self._ready = self._unplanned = 0
        return dropped

    def record(self, recorded: Ends) -> None:
        """Note that the map is recorded up to here, where one of the runs in `landed` ends."""
        self.recorded = recorded
        kept = [run for run in self._landed if run.source >= recorded.source]
        split = [run for run in self._landed if run.source < recorded.source < run.source_end]
        self._landed = [
            *(
                Run(recorded.source, recorded.destination, run.source_end - recorded.source)
                for run in split
            ),
            *kept,
        ]
        while self._unrecorded and self._unrecorded[0][0] < recorded.source:
            start, end = self._unrecorded.popleft()
            dropped = min(end, recorded.source) - start
            self._first = advance(self._first, dropped)
            if start + dropped < end:
                self._unrecorded.appendleft((Offset(start + dropped), end))
