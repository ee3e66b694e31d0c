"""Twin of twinlog.engines.translated.sequence, with a model of the destination's log."""

from dataclasses import dataclass, field
from random import Random

import pytest
from batch_builders import THEN, altered, batch, holed, record
from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.translated.sequence import (
    MAX_IN_FLIGHT,
    PLAN_BELOW,
    NumberedBatch,
    PartitionSequence,
)
from twinlog.kafka.log.batch import batches
from twinlog.kafka.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.offset_runs import Ends, OffsetRuns
from twinlog.mirror.plan import Data, Gap, Piece, plan_with_epoch
from twinlog.mirror.sequence_plan import Contradiction, Landed, SequencePlan, resolve

FRESH = 0
BEGIN = Ends(Offset(0), Offset(0))


def _data(start: int, end: int, epoch: int | None = None) -> Data:
    whole = memoryview(batch([record(at) for at in range(start, end)]))
    (header,) = batches(whole)
    if epoch is not None:
        header = header._replace(leader_epoch=epoch)
    return Data(Offset(start), Offset(end), header, header.records(whole))


def _gap(start: int, end: int) -> Gap:
    return Gap(Offset(start), Offset(end), seen=True)


def _sequence(epoch: int = 0, recorded: Ends = BEGIN, position: int = 0) -> PartitionSequence:
    return PartitionSequence((ProducerId(7), ProducerEpoch(epoch)), recorded, Offset(position))


def _answer(sequence: PartitionSequence, base_offset: int) -> None:
    sequence.answered(sequence._in_flight[0], Offset(base_offset))


@dataclass
class Log:
    """The destination's log: source offsets of our records, None for those of others."""

    records: list[int | None] = field(default_factory=list)
    batches: list[tuple[int, Landed]] = field(default_factory=list)
    """With their epochs."""

    def append(self, epoch: int, outgoing: NumberedBatch) -> Offset:
        data, end = outgoing.data, len(self.records)
        self.records += range(data.start, data.end)
        count = data.end - data.start
        self.batches.append((epoch, Landed(outgoing.sequence, count, Offset(end))))
        return Offset(end)

    def of(self, epoch: int, start: int) -> list[Landed]:
        return [one for of, one in self.batches if of == epoch and one.offset >= start]


_ACTIONS = ("read", "plan", "stored", "send", "land", "record", "other", "drop")


class Life:
    """A partition that is copied by one owner after the other; each dies at any moment."""

    def __init__(self, rng: Random, pieces: list[Piece]) -> None:
        self.rng = rng
        self.pieces = pieces
        self.log = Log()
        self.plan: SequencePlan | None = None  # as it is stored
        self.map = OffsetRuns(BEGIN)  # as it is stored
        self.epoch = -1

    def own(self, steps: int) -> PartitionSequence:
        """Take over, then copy for so many steps."""
        recorded, position = self._locate()
        self.epoch += 1
        sequence = _sequence(self.epoch, recorded, position)
        rest = self._from(position)
        planning: SequencePlan | None = None
        for _ in range(steps):
            action = self.rng.choice(_ACTIONS)
            if action == "read" and rest:
                count = self.rng.randint(1, 4)
                sequence.offer(rest[:count])
                rest = rest[count:]
            elif action == "plan" and sequence.may_plan and sequence.wants_plan:
                planning = sequence.plan()
            elif action == "stored" and planning is not None:
                self.plan, planning = planning, None
                sequence.stored()
            elif action == "send" and (out := sequence.take(FRESH)) is not None:
                # What is sent behind a refused batch is refused as well.
                short = self.rng.random() < 0.2 or any(end is None for _, end in self._unanswered)
                self._unanswered.append((out, None if short else self.log.append(self.epoch, out)))
            elif action == "land" and self._unanswered:
                out, end = self._unanswered.pop(0)
                if end is None:
                    sequence.refused(out)
                else:
                    sequence.answered(out, end)
            elif action == "record" and sequence.landed and planning is None:
                self._record(sequence)
            elif action == "drop" and sequence.drop():
                rest = self._from(sequence.position)
            elif action == "other":
                self.log.records += [None] * self.rng.randint(1, 3)
        if planning is not None and self.rng.random() < 0.5:
            self.plan = planning  # it was stored, and its answer was lost
        return sequence

    def _from(self, position: int) -> list[Piece]:
        """What the source has from this offset on, in batches that may be cut otherwise."""
        pieces: list[Piece] = []
        for piece in self.pieces:
            if piece.end <= position:
                continue
            rest = _rest(piece, position)
            middle = self.rng.randint(rest.start, rest.end)
            for start, end in ((rest.start, middle), (middle, rest.end)):
                if start < end:
                    pieces.append((_data if isinstance(rest, Data) else _gap)(start, end))
        return pieces

    def _record(self, sequence: PartitionSequence) -> None:
        for run in sequence.landed:
            self.map.append(run)
        sequence.record(self.map.end)

    def _locate(self) -> tuple[Ends, int]:
        self._unanswered: list[tuple[NumberedBatch, Offset | None]] = []  # None: refused
        if self.plan is None:
            return BEGIN, 0
        tail = self.log.of(self.plan.epoch, self.plan.recorded.destination)
        found = resolve(self.plan, tail, whole_from=self.plan.recorded.destination)
        for run in found.runs:
            if run.source >= self.map.end.source:
                self.map.append(run)
        self.log.records.append(None)  # the fence
        return self.map.end, max(found.position, self.map.end.source)


def _rest(piece: Piece, position: int) -> Piece:
    if piece.start >= position:
        return piece
    return _data(position, piece.end) if isinstance(piece, Data) else _gap(position, piece.end)


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_each_record_is_copied_once_whenever_owners_die(seed: int, owners: int) -> None:
    rng = Random(seed)
    pieces: list[Piece] = []
    end = 0
    for _ in range(rng.randint(1, 30)):
        length = rng.randint(1, 6)
        pieces.append((_gap if rng.random() < 0.3 else _data)(end, end + length))
        end += length
    life = Life(rng, pieces)
    for _ in range(owners):
        life.own(rng.randint(0, 60))
    wanted = [at for p in pieces if isinstance(p, Data) for at in range(p.start, p.end)]
    copied = [at for at in life.log.records if at is not None]
    assert copied == wanted[: len(copied)]
    life.own(0)  # its map holds all that has landed
    where = {at: offset for offset, at in enumerate(life.log.records) if at is not None}
    assert {at: life.map.to_destination(at) for at in copied} == where
    assert sum(run.length for run in life.map.runs()) == len(copied)


def test_nothing_is_sent_that_the_stored_plan_does_not_name() -> None:
    sequence = _sequence()
    sequence.offer([_data(0, 3)])
    assert sequence.take(FRESH) is None
    sequence.plan()
    sequence.offer([_gap(3, 4), _data(4, 6)])
    assert sequence.take(FRESH) is None, "it is being stored"
    sequence.stored()
    assert sequence.take(FRESH) == NumberedBatch(_data(0, 3), SequenceNumber(0))
    assert sequence.take(FRESH) is None, "it is in no plan"
    assert sequence.plan().runs == ((0, 3), (4, 6))


def test_another_plan_is_wanted_when_few_planned_batches_are_left() -> None:
    """Each plan is a write to the destination: one for each batch would cost as much as these."""
    sequence = _sequence()

    def wants_plan() -> bool:
        return sequence.wants_plan

    sequence.offer([_data(at, at + 1) for at in range(PLAN_BELOW)])
    assert wants_plan()
    sequence.plan()
    sequence.stored()
    sequence.offer([_data(PLAN_BELOW, PLAN_BELOW + 1)])
    assert not wants_plan()
    assert sequence.take(FRESH) is not None
    assert wants_plan()


def test_old_batches_are_in_flight_alone() -> None:
    """A broker forgets a producer whose last batch is old, and compares no number then."""
    sequence = _sequence()
    sequence.offer([_data(0, 1), _data(1, 2)])
    sequence.plan()
    sequence.stored()
    fresh_after_ms = _data(0, 1).header.max_timestamp + 1
    assert sequence.take(fresh_after_ms) is not None
    assert sequence.take(fresh_after_ms) is None
    _answer(sequence, 5)
    assert sequence.take(fresh_after_ms) is not None


def test_no_more_batches_are_in_flight_than_a_broker_remembers() -> None:
    sequence = _sequence()
    sequence.offer([_data(at, at + 1) for at in range(MAX_IN_FLIGHT + 2)])
    sequence.plan()
    sequence.stored()
    assert sequence.take(FRESH) is not None
    assert sequence.take(FRESH) is None, "a broker takes any first number of an epoch"
    _answer(sequence, 0)
    assert [sequence.take(FRESH) is not None for _ in range(MAX_IN_FLIGHT + 1)] == [
        *[True] * MAX_IN_FLIGHT,
        False,
    ]


def test_gaps_pass_with_the_batches_before_them() -> None:
    sequence = _sequence()
    sequence.offer([_gap(0, 2), _data(2, 4), _gap(4, 7)])
    sequence.plan()
    sequence.stored()
    assert sequence.take(FRESH) is not None
    assert sequence.take(FRESH) is None
    assert sequence.mirrored_end == 2
    _answer(sequence, 0)
    assert sequence.mirrored_end == 7
    assert sequence.idle


def test_an_answer_below_the_last_one_is_refused() -> None:
    sequence = _sequence()
    sequence.offer([_data(0, 2), _data(2, 4)])
    sequence.plan()
    sequence.stored()
    sequence.take(FRESH)
    _answer(sequence, 5)
    sequence.take(FRESH)
    with pytest.raises(Contradiction, match="landed at 6, below 7"):
        _answer(sequence, 6)


def test_an_answer_that_comes_before_an_earlier_one_is_refused() -> None:
    """Goal: a batch is never recorded where another one has landed."""
    sequence = _sequence()
    sequence.offer([_data(at, at + 1) for at in range(3)])
    sequence.plan()
    sequence.stored()
    sequence.take(FRESH)
    _answer(sequence, 5)
    sequence.take(FRESH)
    later = sequence.take(FRESH)
    assert later is not None
    with pytest.raises(Contradiction, match="before an earlier one"):
        sequence.answered(later, Offset(7))


def test_offsets_without_a_copy_are_recorded_too() -> None:
    """Goal: the source may remove the records before a marker; nothing is lost then."""
    sequence = _sequence()

    def passed_gaps() -> bool:
        return sequence.passed_gaps

    sequence.offer([_data(0, 2), _gap(2, 3)])
    sequence.plan()
    sequence.stored()
    sequence.take(FRESH)
    _answer(sequence, 5)
    assert not passed_gaps(), "what has landed is recorded first"
    sequence.record(Ends(Offset(2), Offset(7)))
    assert passed_gaps()
    assert sequence.plan().recorded == (3, 7)
    assert not passed_gaps()


def test_refused_batches_are_sent_again_with_their_numbers_and_the_gaps_between_them() -> None:
    """Goal: nothing is passed over while the destination has too few in-sync replicas."""
    sequence = _sequence()
    pieces: list[Data | Gap] = [_data(0, 3), _gap(3, 5), _data(5, 6), _data(6, 8), _gap(8, 9)]
    sequence.offer(pieces[:1])
    sequence.plan()
    sequence.stored()
    first = sequence.take(FRESH)
    assert first is not None
    sequence.answered(first, Offset(0))
    sequence.offer(pieces[1:])
    sequence.plan()
    sequence.stored()
    sent = [sequence.take(FRESH), sequence.take(FRESH)]
    assert sequence.take(FRESH) is None
    for out in sent:
        assert out is not None
        assert not sequence.idle
        sequence.refused(out)
    assert sequence.mirrored_end == 5
    again = [sequence.take(FRESH), sequence.take(FRESH)]
    assert again == sent
    ends = []
    for out, base_offset in zip(again, (10, 20), strict=True):
        assert out is not None
        sequence.answered(out, Offset(base_offset))
        ends.append(sequence.mirrored_end)
    assert ends == [6, 9]
    assert sequence.idle


def _refused_sequence() -> PartitionSequence:
    """A sequence that has copied up to 3, in epoch 4, whose next batch, 5 to 8, was refused.

    All of it was read in one answer, up to 10 in epoch 5.
    """
    sequence = _sequence()
    sequence.offer([_data(0, 3, 4), _gap(3, 5), _data(5, 8, 4), _data(8, 10, 5)])
    sequence.epochs.learn(Offset(10), LeaderEpoch(5))
    sequence.plan()
    sequence.stored()
    first = sequence.take(FRESH)
    assert first is not None
    sequence.answered(first, Offset(0))
    second = sequence.take(FRESH)
    assert second is not None
    assert sequence.drop() == 0, "it is in flight, and may land"
    sequence.refused(second)
    return sequence


def test_what_was_dropped_is_read_and_planned_again_with_the_numbers_that_were_not_sent() -> None:
    """Goal: memory is free for other partitions, and no record is left out or sent twice."""
    sequence = _refused_sequence()
    held = sequence.queued_bytes
    assert held > 0
    assert sequence.drop() == held
    assert (sequence.position, sequence.mirrored_end, sequence.queued_bytes) == (3, 3, 0)
    assert sequence.idle
    # It was compacted meanwhile.
    sequence.offer([_gap(3, 5), _data(5, 6), _gap(6, 7), _data(7, 9)])
    assert sequence.take(FRESH) is None, "the stored plan names other records"
    assert sequence.plan().runs == ((0, 3), (5, 6), (7, 9))
    assert sequence.drop() == 0, "the plan may be stored"
    sequence.stored()
    sent = sequence.take(FRESH)
    assert sent == NumberedBatch(_data(5, 6), SequenceNumber(3))


def test_the_leader_epoch_before_what_was_dropped_is_known() -> None:
    """Goal: a source that loses its end while nothing is read is noticed (KIP-320)."""
    sequence = _refused_sequence()
    assert sequence.epochs.before(Offset(3)) == -1, "it was read in the midst of an answer"
    assert sequence.drop() > 0
    assert (sequence.position, sequence.epochs.before(sequence.position)) == (3, 4)
    assert sequence.epochs.runs[-1].end == 3


def test_the_leader_epoch_is_known_behind_a_batch_that_was_built() -> None:
    """Goal: compaction, which leaves holes in batches, hides no source that loses its end."""
    kept = [(at, THEN) for at in (0, 1, 2, 5, 6)]
    found = plan_with_epoch(memoryview(altered(holed(0, 9, kept), leader_epoch=4)), Offset(0))
    sequence = _sequence()
    sequence.offer(found.pieces)
    sequence.epochs.learn(sequence.position, found.leader_epoch)
    sequence.plan()
    sequence.stored()
    first = sequence.take(FRESH)
    assert first is not None
    sequence.answered(first, Offset(0))
    _drop_refused(sequence)
    assert (sequence.position, sequence.epochs.before(sequence.position)) == (3, 4)


@pytest.mark.parametrize("position", [0, 500])
@pytest.mark.parametrize("begins_with_a_gap", [False, True])
def test_a_partition_that_has_copied_nothing_drops_what_it_holds(
    position: int, begins_with_a_gap: bool
) -> None:
    """Goal: partitions of a new flow, or that were just located, do not keep the buffer.

    It is read again from where it was located, where the same was known.
    """
    sequence = _sequence(recorded=Ends(Offset(position), Offset(7)), position=position)
    begin = position + 2 * begins_with_a_gap
    if begins_with_a_gap:
        sequence.offer([_gap(position, begin)])
    sequence.offer([_data(begin, begin + 3, 4), _data(begin + 3, begin + 9, 4)])
    sequence.epochs.learn(sequence.position, LeaderEpoch(4))
    sequence.plan()
    sequence.stored()
    out = sequence.take(FRESH)
    assert out is not None
    sequence.refused(out)
    assert sequence.drop() > 0
    assert (sequence.position, sequence.mirrored_end) == (position, position)
    assert sequence.epochs.before(sequence.position) == -1
    assert sequence.idle


def _deleted(start: int, end: int) -> Gap:
    """Records that the source has deleted."""
    spans = (AbsentSpan(Absence.LOG_START, Offset(end)),)
    return Gap(Offset(start), Offset(end), seen=False, spans=spans)


def _drop_refused(sequence: PartitionSequence) -> None:
    out = sequence.take(FRESH)
    assert out is not None
    sequence.refused(out)
    assert sequence.drop() > 0


def test_deleted_records_are_not_read_again_that_were_passed_while_a_flow_began() -> None:
    """Goal: retention may delete records while a flow begins; it has not lost them.

    Data is queued before a plan records the gap, so that the map ends before it.
    """
    sequence = _sequence()
    sequence.offer([_deleted(0, 100)])
    sequence.offer([_data(100, 105, 4), _data(105, 107, 4)])
    assert sequence.plan().recorded == (0, 0)
    sequence.stored()
    _drop_refused(sequence)
    assert (sequence.position, sequence.mirrored_end) == (100, 100)
    assert sequence.epochs.before(sequence.position) == -1
    sequence.offer([_data(100, 102, 4)])
    assert sequence.plan().runs == ((100, 102),)


def test_deleted_records_behind_what_has_landed_are_not_read_again() -> None:
    sequence = _sequence()
    sequence.offer([_data(0, 3, 4), _deleted(3, 100), _data(100, 105, 4)])
    sequence.plan()
    sequence.stored()
    first = sequence.take(FRESH)
    assert first is not None
    assert sequence.take(FRESH) is None, "the gap is to pass with the batch in flight"
    sequence.answered(first, Offset(0))
    _drop_refused(sequence)
    assert (sequence.position, sequence.mirrored_end) == (100, 100)
    assert sequence.plan().runs == ((0, 3),)


def test_what_was_refused_before_deleted_records_is_read_again() -> None:
    """Goal: no record is left out that the source still has, or that it has lost unnoticed."""
    sequence = _sequence()
    sequence.offer([_data(0, 3, 4), _deleted(3, 100), _data(100, 105, 4)])
    sequence.plan()
    sequence.stored()
    first = sequence.take(FRESH)
    assert first is not None
    assert sequence.take(FRESH) is None, "the gap is to pass with the batch in flight"
    sequence.refused(first)
    assert sequence.drop() > 0
    assert (sequence.position, sequence.mirrored_end) == (0, 0)


def test_recorded_offsets_without_a_copy_are_not_read_again() -> None:
    """Goal: the map ends behind them, and never moves backwards."""
    sequence = _sequence()
    sequence.offer([_gap(0, 4)])
    sequence.epochs.learn(Offset(4), LeaderEpoch(6))
    assert sequence.plan().recorded == (4, 0)
    sequence.stored()
    sequence.offer([_gap(4, 5), _data(5, 8, 6)])
    sequence.epochs.learn(Offset(8), LeaderEpoch(6))
    assert sequence.drop() > 0
    assert (sequence.position, sequence.epochs.before(sequence.position)) == (4, 6)


def test_a_batch_is_not_refused_before_an_earlier_one_is_answered() -> None:
    sequence = _sequence()
    sequence.offer([_data(0, 3)])
    sequence.plan()
    sequence.stored()
    out = sequence.take(FRESH)
    assert out is not None
    sequence.answered(out, Offset(0))
    with pytest.raises(Contradiction, match="before an earlier one"):
        sequence.refused(out)


def test_a_sequence_follows_its_own_plan_and_map_only() -> None:
    """Goal: what another owner has stored, or an older map, is not gone on with."""
    sequence = _sequence(epoch=3, recorded=Ends(Offset(10), Offset(50)), position=12)
    plan, end = sequence.plan(), Ends(Offset(8), Offset(50))
    assert sequence.follows(plan, end)
    assert not sequence.follows(plan, Ends(Offset(8), Offset(49)))
    assert not sequence.follows(plan._replace(epoch=ProducerEpoch(2)), end)
    assert not sequence.follows(plan._replace(producer_id=ProducerId(8)), end)
