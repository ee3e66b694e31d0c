"""The last number that a broker has taken of a plan, asked before a fence makes it forget that.

    log end ─► producers ─► log end ─► high watermark at the second log end ─► the same leader epoch

A leader answers for the end of its log, which may not be replicated. A clean election loses what is
above the high watermark; the number of a batch that was lost would count as landed, and its records
would never be copied. So an answer counts once the high watermark has reached a log end that was
asked for after it, in the same leader epoch: what is below it survives each clean election.

What a broker takes later stands in the log from the first log end on. An election in between moves
none of it below: the new leader has all up to the second log end.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.engines.destination.marker_polls import MarkerPolls
from twinlog.engines.ports import ActiveProducers, DestinationPort
from twinlog.kafka.errors import Refusal
from twinlog.kafka.types import Offset, Sequence, TopicPartition
from twinlog.mirror.sequence_plan import NOTHING, SequencePlan, Taken

_REPLICATION_S: Final = 2.0
"""How long to wait for replicas: other partitions of the state partition wait, too."""


@dataclass(frozen=True, slots=True)
class LastNumbers:
    """What brokers have taken of plans; a partition whose broker knows no producer is in neither.

    `refusals`: brokers refuse to tell it. `unknown`: it is not known yet, and why.
    """

    taken: dict[TopicPartition, Taken] = field(default_factory=dict)
    refusals: dict[TopicPartition, Refusal] = field(default_factory=dict)
    unknown: dict[TopicPartition, str] = field(default_factory=dict)


class _Answer(NamedTuple):
    """A leader's answer: it counts when the high watermark has reached `replicated_to`."""

    epoch: int | None
    """The leader epoch; None if it changed meanwhile."""
    log_end: int
    """Asked before the producers."""
    producers: ActiveProducers
    replicated_to: int
    """The log end, asked after the producers."""


async def ask_last_numbers(
    port: DestinationPort,
    plans: Mapping[TopicPartition, SequencePlan],
    deadline_s: float = _REPLICATION_S,
) -> LastNumbers:
    """Ask the brokers what they have taken of plans.

    Args:
        port: the destination.
        plans: the plans, by the destination's partition.
        deadline_s: how long to wait for replicas, in seconds.
    """
    found = LastNumbers()
    polls = MarkerPolls(deadline_s)
    answers: dict[TopicPartition, _Answer] = {}
    to_ask = list(plans)
    while to_ask or answers:
        answers |= await _ask(port, to_ask, found)
        replicated, to_ask = await _replicated(port, answers)
        for key, answer in replicated.items():
            if (last := last_number(plans[key], answer.producers)) is not None:
                found.taken[key] = Taken(last, Offset(answer.log_end))
        if polls.expired:
            break
        await polls.pause()
    for key in (*answers, *to_ask):
        found.unknown[key] = "the end of the destination's log is not replicated yet"
    return found


async def _ask(
    port: DestinationPort, keys: Collection[TopicPartition], found: LastNumbers
) -> Mapping[TopicPartition, _Answer]:
    """Answers of these partitions' leaders; those without are noted in `found`."""
    if not keys:
        return {}
    before = await port.log_ends(keys)
    producers = await port.producers(keys)
    after = await port.log_ends(keys)
    answers: dict[TopicPartition, _Answer] = {}
    for key in keys:
        begin, active, end = before.get(key), producers.get(key), after.get(key)
        if begin is None or active is None or end is None:
            found.unknown[key] = "the destination's leader gave no answer about producers"
        elif code := begin.error or active.error or end.error:
            refusal = Refusal(code)
            if refusal.reaction.retriable:
                found.unknown[key] = f"cannot read the destination's producers: {refusal}"
            else:
                found.refusals[key] = refusal
        else:
            epochs = {begin.leader_epoch, end.leader_epoch}
            epoch = end.leader_epoch if len(epochs) == 1 else None
            answers[key] = _Answer(epoch, begin.log_end, active, end.log_end)
    return answers


async def _replicated(
    port: DestinationPort, answers: dict[TopicPartition, _Answer]
) -> tuple[Mapping[TopicPartition, _Answer], list[TopicPartition]]:
    """The answers that count, and the partitions with another leader by now; both are removed."""
    if not answers:
        return {}, []
    bounds = await port.bounds(answers)
    ends = await port.log_ends(answers)  # afterwards: the watermark was of this epoch, or earlier
    replicated: dict[TopicPartition, _Answer] = {}
    elected: list[TopicPartition] = []
    for key, answer in list(answers.items()):
        bound, end = bounds.get(key), ends.get(key)
        if bound is None or bound.error or end is None or end.error:
            continue
        if end.leader_epoch != answer.epoch:
            elected.append(key)
        elif bound.high_watermark >= answer.replicated_to:
            replicated[key] = answer
        else:
            continue
        del answers[key]
    return replicated, elected


def last_number(plan: SequencePlan, remembered: ActiveProducers) -> Sequence | None:
    """The last number of the plan's epoch that the broker remembers (`Taken.last`).

    None: it does not know the producer, or only a later epoch of it.
    """
    for state in remembered.active:
        if state.producer_id != plan.producer_id or state.epoch > plan.epoch:
            continue
        if state.epoch < plan.epoch:
            return NOTHING  # a batch of the plan's would have brought its epoch
        if state.last_sequence >= 0:
            return Sequence(state.last_sequence)
    return None
