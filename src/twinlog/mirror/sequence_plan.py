"""What the sequence numbers of a partition stand for, and what of it has landed.

The destination assigns the offsets of a flow's batches, so a batch cannot be told by where it
lands. It is told by its sequence number: the broker takes each number of an epoch once, in order.
What the numbers stand for is a *plan*, which is stored before any of them is sent:

    numbers         0 .. 9     10 .. 14      15 .. 24          the plan: runs of source offsets,
    source        100 .. 109  111 .. 115    120 .. 129         (100, 110), (111, 116), (120, 130)
    destination    71 ..  80   83 ..  87    (not sent yet)     found in the log, or answered

A plan begins where the map that is recorded ends (offset_runs.py). So all that is not recorded is
in the plan, and a new owner finds it in the destination's log from the recorded end on: each batch
in it has its sequence number (`resolve`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from twinlog.kafka.types import (
    SEQUENCE_MODULUS,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    advance,
)
from twinlog.mirror.offset_runs import Ends, Run

SourceRun = tuple[Offset, Offset]
"""Source offsets `[start, end)`, each with a record."""


class Contradiction(Exception):
    """The destination's log holds what no plan explains: the next position is not known."""


class LostBatches(Contradiction):
    """The log is whole, and lacks batches of the plan that the broker had taken."""


NOTHING: Final = Sequence(-1)
"""No number: the one before an epoch's first."""


class Taken(NamedTuple):
    """What a broker had taken of a plan, asked before a fence makes it forget that."""

    last: Sequence
    """The last number, or `NOTHING`."""
    log_end: Offset
    """Where the log ended before; what was taken later is behind it."""


class SequencePlan(NamedTuple):
    """What sequence numbers stand for, from `sequence` on, in one epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    runs: tuple[SourceRun, ...]
    recorded: Ends
    """Where the recorded map ends; the first number is the next record behind it."""


class Landed(NamedTuple):
    """A batch in the destination's log: its first sequence number, its records, its offset."""

    sequence: Sequence
    records: int
    offset: Offset


class Resolved(NamedTuple):
    """What a plan and the destination's log prove: what has landed, and where to go on."""

    runs: tuple[Run, ...]
    position: Offset


def resolve(
    plan: SequencePlan,
    batches: Iterable[Landed],
    *,
    whole_from: Offset,
    taken: Taken | None = None,
) -> Resolved:
    """Find out what of a plan has landed.

    A log that lacks offsets, because it was compacted or has lost its start, proves less:

    | the plan's last batch in the log | what was taken | the records behind it |
    | --- | --- | --- |
    | at the end of the last hole, or behind | | have not landed: they would be in the log |
    | before it | known, up to a log end behind the hole | have landed up to that number |
    | before it | all of the plan | have landed: the plan names no others |
    | before it | else | it is not known |

    Args:
        plan: the last one that was stored.
        batches: the batches of its epoch in the destination's log, from its recorded end up to the
            fence, in order.
        whole_from: the end of the last hole in that part of the log, which still holds all that was
            ever appended from there on; the recorded end if it has none.
        taken: what the broker had taken of this epoch, before the fence; None if it did not know
            the producer.

    Raises:
        LostBatches: the broker had taken batches that are not in the log.
        Contradiction: the batches are not the plan's, or what is left of the log does not show
            whether any batch has landed.
    """
    runs: list[Run] = []
    position = plan.recorded.source
    expected = plan.sequence
    rest = deque(plan.runs)
    shown_to = plan.recorded.destination  # the end of the plan's last batch in the log
    for batch in batches:
        if shown_to < whole_from:  # the batches between are gone, and have landed
            _take(rest, (batch.sequence - expected) % SEQUENCE_MODULUS)
        elif batch.sequence != expected:
            raise Contradiction(
                f"the batch at offset {batch.offset} has sequence {batch.sequence}, expected "
                f"{expected}"
            )
        at = batch.offset
        for start, end in _take(rest, batch.records):
            runs.append(Run(start, at, end - start))
            at = Offset(at + end - start)
            position = end
        expected, shown_to = advance(batch.sequence, batch.records), at
    missing = 0 if taken is None else _missing(plan, expected, taken.last)
    if shown_to >= whole_from:
        if missing and taken is not None:
            raise LostBatches(
                f"the broker has taken numbers up to {taken.last}, and the log ends with "
                f"{expected - 1}"
            )
    elif taken is not None and (whole_from <= taken.log_end or missing == _count(rest)):
        for _, end in _take(rest, missing):
            position = end
    elif rest:
        raise Contradiction(
            f"whether records from source offset {rest[0][0]} on were copied is not known: "
            "the destination's log has been compacted or has lost its start, and the broker does "
            "not remember the producer"
        )
    return Resolved(tuple(runs), position)


def _missing(plan: SequencePlan, expected: Sequence, last: Sequence) -> int:
    """How many numbers from `expected` on the broker has taken.

    Raises:
        Contradiction: it lacks numbers that were acknowledged.
    """
    known = -plan.sequence if last == NOTHING else _ahead(last, plan.sequence)
    if known < 0:
        raise Contradiction(
            f"numbers up to {plan.sequence - 1} were acknowledged, and the broker knows them up to "
            f"{last}: the destination's log has lost records"
        )
    # Not more than it has: batches may have landed since the broker was asked.
    return 0 if last == NOTHING else max(0, _ahead(last, expected))


def _count(runs: Iterable[SourceRun]) -> int:
    """How many records these are."""
    return sum(end - start for start, end in runs)


def _ahead(last: Sequence, expected: Sequence) -> int:
    """How many numbers from `expected` on the broker has taken; negative if it lacks some."""
    ahead = (last + 1 - expected) % SEQUENCE_MODULUS
    return ahead if ahead < SEQUENCE_MODULUS // 2 else ahead - SEQUENCE_MODULUS


def _take(runs: "deque[SourceRun]", count: int) -> list[SourceRun]:
    """Take that many records from the front.

    Raises:
        Contradiction: they are not so many.
    """
    taken: list[SourceRun] = []
    while count > 0:
        if not runs:
            raise Contradiction("the destination's log holds records that no stored plan names")
        start, end = runs[0]
        middle = min(end, Offset(start + count))
        taken.append((start, middle))
        count -= middle - start
        if middle == end:
            runs.popleft()
        else:
            runs[0] = (middle, end)
    return taken
