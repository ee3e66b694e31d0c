"""Twin of twinlog.engines.translated.last_numbers, with a leader in memory."""

import asyncio
from collections.abc import Collection, Mapping
from typing import cast

import pytest

from twinlog.engines.ports import ActiveProducers, DestinationPort, LogEnd
from twinlog.engines.translated.last_numbers import LastNumbers, ask_last_numbers, last_number
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.types import (
    LogBounds,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerState,
    Sequence,
    TopicPartition,
)
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.sequence_plan import NOTHING, SequencePlan, Taken

KEY = TopicPartition("a.orders", 0)
PLAN = SequencePlan(
    ProducerId(7),
    ProducerEpoch(3),
    Sequence(0),
    ((Offset(10), Offset(20)),),
    Ends(Offset(10), Offset(50)),
)


class Leader:
    """A partition's leader: `elect` replaces it after as many questions about its watermark."""

    def __init__(self, *, watermark: int, end: int, last: int, elect_after: int = -1) -> None:
        self.watermark, self.end, self.last, self.epoch = watermark, end, last, 4
        self.elect_after = elect_after
        self.replicates_after = -1
        self.code = 0
        self.asked = 0

    async def log_ends(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {key: LogEnd(0, self.end, self.epoch) for key in keys}

    async def producers(
        self, keys: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ActiveProducers]:
        active = () if self.code else (ProducerState(7, 3, self.last),)
        return {key: ActiveProducers(self.code, active) for key in keys}

    async def bounds(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        self.asked += 1
        if self.asked == self.elect_after:  # what was not replicated is lost
            self.epoch, self.end, self.last = self.epoch + 1, self.watermark, 2
        if self.asked == self.replicates_after:
            self.watermark = self.end
        return {key: LogBounds(0, 0, self.watermark, self.watermark) for key in keys}


def _ask(leader: Leader, deadline_s: float = 5.0) -> LastNumbers:
    port = cast("DestinationPort", leader)
    return asyncio.run(ask_last_numbers(port, {KEY: PLAN}, deadline_s))


def test_a_number_counts_once_it_is_replicated() -> None:
    leader = Leader(watermark=53, end=60, last=9)
    leader.replicates_after = 3
    assert _ask(leader) == LastNumbers(taken={KEY: Taken(Sequence(9), Offset(60))})
    assert leader.asked == 3


@pytest.mark.parametrize("elect_after", [1, 2])
def test_a_number_that_an_election_takes_back_does_not_count(elect_after: int) -> None:
    """Goal: records are copied whose only copies were lost before they were replicated.

    The leader knows number 9; the next one has the log up to the high watermark, and knows 2.
    """
    leader = Leader(watermark=53, end=60, last=9, elect_after=elect_after)
    assert _ask(leader) == LastNumbers(taken={KEY: Taken(Sequence(2), Offset(53))})


def test_a_number_that_is_not_replicated_in_time_is_not_known() -> None:
    """Goal: no fence makes the broker forget it, and other partitions do not wait for long."""
    found = _ask(Leader(watermark=53, end=60, last=9), deadline_s=0.05)
    assert found == LastNumbers(
        unknown={KEY: "the end of the destination's log is not replicated yet"}
    )


def test_a_leader_that_does_not_tell() -> None:
    leader = Leader(watermark=60, end=60, last=9)
    leader.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert _ask(leader).unknown.keys() == {KEY}
    leader.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = _ask(leader)
    assert (found.taken, found.unknown) == ({}, {})
    assert found.refusals[KEY].code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([ProducerState(7, 3, 9)], 9),
        ([ProducerState(8, 3, 1), ProducerState(7, 3, 9)], 9),
        ([ProducerState(7, 2, 9)], NOTHING),  # a batch of the plan's would have brought its epoch
        ([ProducerState(7, 4, 9)], None),  # a fence has cleared it
        ([ProducerState(7, 3, -1)], None),
        ([], None),
    ],
)
def test_the_last_number_of_an_epoch(states: list[ProducerState], expected: int | None) -> None:
    assert last_number(PLAN, ActiveProducers(0, tuple(states))) == expected
