"""Twin of twinlog.engines.translated.suspects, with a source whose answers are given."""

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from batch_builders import batch, record
from flow_assignment import ASSIGNMENT

from twinlog.engines.base import PartitionProgress
from twinlog.engines.ports import FetchResult, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source.absences import LATER_COMPACTED, SUSPECT_S, UNPROVEN_S
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, FlowStage
from twinlog.engines.translated.reader import FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    EpochEnd,
    FetchPosition,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absence
from twinlog.mirror.offset_runs import Ends

KEY = ASSIGNMENT.source
NODE = 3
END = 20
_Partition = FlowPartition[FlowWriters, PartitionSequence]


def fetched(records: bytes = b"", **more: object) -> Fetched:
    """An answer of a source whose last stable offset is `END`."""
    return Fetched(0, END, END, 0, (), memoryview(records))._replace(**cast("Any", more))


SILENT = ReadAlone(fetched(), 0, 5, local_start=0, compacts=True)
"""What only compaction explains."""


class Source:
    """A source (`SourcePort`) with one answer to each kind of request."""

    def __init__(self, partition: _Partition) -> None:
        self.partition = partition
        self.answer: Fetched | None = fetched()
        """None: the partition is left out, as one without news."""
        self.alone: ReadAlone | Retriable = SILENT
        self.asked = 0
        self.last_epoch = -2

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, FetchPosition], **_: int
    ) -> FetchResult:
        """Answer, and take the partition away from the loop, which ends."""
        assert node == NODE
        assert KEY in positions
        self.partition.source_node = -1
        if self.answer is None:
            return FetchResult({}, 0)
        return FetchResult({KEY: self.answer}, len(self.answer.records))

    async def read_alone(
        self, partition: TopicPartition, offset: int, *, last_epoch: int, **_: int
    ) -> ReadAlone:
        assert (partition, offset) == (KEY, 10)
        self.asked += 1
        self.last_epoch = last_epoch
        if isinstance(self.alone, Retriable):
            raise self.alone
        return self.alone


class Flow:
    """A flow of one partition that has copied up to offset 10, and a clock that is set."""

    def __init__(self, *, compacted: bool = True) -> None:
        self.now = 100.0
        self.rows: list[PartitionProgress] = []
        self.flow = FlowPartitions[FlowWriters, PartitionSequence](
            LaneSettings(fetch_pace_s=0.0), random.Random(1), self.rows.append
        )
        self.flow.now = lambda: self.now  # type: ignore[method-assign]
        self.partition = _Partition(
            replace(ASSIGNMENT, compacted=compacted),
            cast("FlowWriters", None),
            owned_before=True,
            locate_at=0.0,
            unguarded_until=0.0,
        )
        producer = ProducerId(7), ProducerEpoch(1)
        ends = Ends(Offset(10), Offset(50))
        self.sequence = PartitionSequence(producer, ends, Offset(10))
        self.partition.sequence, self.partition.stage = self.sequence, FlowStage.COPYING
        self.partition.destination_node = NODE
        self.flow.all[ASSIGNMENT.name] = self.partition
        self.source = Source(self.partition)
        self.reader = FlowReader(self.flow, cast("SourcePort", self.source))

    async def fetch(self) -> None:
        """Fetch once."""
        self.partition.source_node = NODE
        await self.reader.read((NODE, False))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and read alone what is due then."""
        self.now += seconds
        for partition in self.reader.absences.due():
            await self.reader.absences.read(partition)

    async def suspect(self, alone: ReadAlone, *, readings: int = 2) -> None:
        """Have the source answer without records for so many readings."""
        self.source.alone = alone
        await self.fetch()
        await self.pass_time(SUSPECT_S)
        for _ in range(readings - 1):
            await self.pass_time(LOOK_INTERVAL_S)
        assert self.source.asked == readings

    @property
    def reason(self) -> str | None:
        """What `--describe` shows of a partition that is being copied."""
        row = self.partition.row(self.now)
        assert row.reason is None
        return row.held_back


def run(body: Coroutine[object, object, None]) -> None:
    asyncio.run(body)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SILENT._replace(throttle_ms=40), "the source throttles fetches (quota; 40 ms)"),
        (
            SILENT._replace(fetched=fetched(preferred_replica=2)),
            "the source's leader redirects fetches to broker 2 (replica.selector.class)",
        ),
        (SILENT._replace(local_start=15), "is in the source's remote storage"),
        (SILENT._replace(compacts=None), "the topic's cleanup.policy on the source is unknown"),
    ],
)
def test_a_source_that_returns_no_records_is_reported_with_the_reason(
    answer: ReadAlone, reason: str
) -> None:
    """Goal: a flow that copies nothing says why, in the words of the exact engine."""

    async def body() -> None:
        flow = Flow()
        await flow.suspect(answer)
        assert reason in str(flow.reason)
        assert flow.flow.news == {ASSIGNMENT.state_partition}
        assert flow.sequence.position == 10
        assert flow.partition.behind_since is not None
        await flow.pass_time(UNPROVEN_S - 0.1)
        assert flow.source.asked == 2
        await flow.pass_time(0.1)
        assert flow.source.asked == 3
        flow.source.answer = fetched(batch([record(10)]))
        await flow.fetch()
        assert flow.reason is None
        assert flow.sequence.position == 11
        await flow.pass_time(100.0)
        assert flow.source.asked == 3, "it is no suspect any more"

    run(body())


@pytest.mark.parametrize("has_all", [False, True])
def test_a_partition_that_is_located_again_is_still_a_suspect(has_all: bool) -> None:
    """Goal: its session has no news of it, and so leaves it out of each answer."""

    async def body() -> None:
        flow = Flow()
        await flow.fetch()
        at = Offset(END if has_all else 10)
        producer = ProducerId(7), ProducerEpoch(2)
        flow.sequence = PartitionSequence(producer, Ends(at, Offset(50)), at)
        flow.partition.sequence = flow.sequence
        flow.source.answer = None
        await flow.fetch()
        if has_all:
            await flow.pass_time(100.0)
            assert flow.source.asked == 0
            return
        await flow.pass_time(SUSPECT_S)
        await flow.pass_time(LOOK_INTERVAL_S)
        assert flow.source.asked == 2
        assert flow.sequence.position == END, "compaction has removed the rest"
        assert flow.partition.behind_since is None

    run(body())


def test_a_partition_that_is_only_slow_is_not_reported() -> None:
    """Goal: one answer without records is nothing unusual, and neither is a source with records."""

    async def body() -> None:
        flow = Flow()
        await flow.suspect(SILENT._replace(throttle_ms=40), readings=1)
        assert flow.reason is None
        flow.source.alone = SILENT._replace(fetched=fetched(batch([record(10)])))
        await flow.pass_time(LOOK_INTERVAL_S)
        assert flow.reason is None
        assert flow.sequence.position == 10, "the session's next answer has its records"
        flow.source.alone = SILENT._replace(throttle_ms=40)
        await flow.pass_time(UNPROVEN_S)
        assert flow.reason is None, "the first answer without records since"

    run(body())


def test_a_partition_that_has_all_is_no_suspect() -> None:
    async def body() -> None:
        flow = Flow()
        flow.source.answer = fetched(last_stable=10)
        await flow.fetch()
        await flow.pass_time(100.0)
        assert flow.source.asked == 0

    run(body())


def test_less_than_one_batch_is_no_record() -> None:
    async def body() -> None:
        flow = Flow()
        flow.source.answer = fetched(batch([record(10)])[:30])
        await flow.suspect(SILENT._replace(throttle_ms=40))
        assert "throttles" in str(flow.reason)

    run(body())


def test_the_rest_of_a_compacted_log_is_passed_over() -> None:
    """Goal: the lag ends, by the evidence that the exact engine takes, too."""

    async def body() -> None:
        flow = Flow()
        await flow.suspect(SILENT)
        assert (flow.sequence.position, flow.sequence.mirrored_end) == (END, END)
        assert flow.partition.row(flow.now).filled[Absence.COMPACTED] == END - 10
        assert flow.partition.behind_since is None
        assert flow.reason is None

    run(body())


def test_nothing_is_passed_over_if_compact_is_set_on_the_source_only() -> None:
    """Goal: it may have been set after records were lost."""

    async def body() -> None:
        flow = Flow(compacted=False)
        await flow.suspect(SILENT)
        assert flow.sequence.position == 10
        assert flow.reason == LATER_COMPACTED.reason

    run(body())


def test_records_that_are_missing_fail_the_partition() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.suspect(SILENT._replace(compacts=False))
        partition = flow.partition
        assert (partition.stage, partition.transient) == (FlowStage.FAILED, True)
        assert "the source has no batch from offset 10 up to its last stable offset 20" in str(
            partition.reason
        )
        assert partition.silence is None
        assert flow.rows[-1].reason == partition.reason

    run(body())


def test_a_source_that_has_lost_its_end_is_noticed_though_its_leader_names_a_replica() -> None:
    """Goal: no records are copied behind ones that the source has lost (KIP-320, KIP-392).

    A leader that names a replica to a session compares no epochs there.
    """

    async def body() -> None:
        flow = Flow()
        flow.sequence.epochs.place(Offset(10), LeaderEpoch(5))
        flow.source.answer = fetched(preferred_replica=2)
        lost = fetched(diverging=EpochEnd(4, 8))
        await flow.suspect(SILENT._replace(fetched=lost), readings=1)
        assert flow.source.last_epoch == 5
        partition = flow.partition
        assert (partition.stage, partition.transient) == (FlowStage.FAILED, False)
        assert "epoch 4 ends at offset 8, before later epochs" in str(partition.reason)
        assert flow.sequence.position == 10

    run(body())


@pytest.mark.parametrize("located_again", [False, True])
def test_a_partition_that_is_not_read_any_more_is_forgotten(located_again: bool) -> None:
    """Goal: no reason, and nothing to pass over, of another position or owner."""

    async def body() -> None:
        flow = Flow()
        await flow.suspect(SILENT._replace(throttle_ms=40))
        reason = flow.reason
        assert reason is not None
        flow.source.alone = SILENT
        flow.now += UNPROVEN_S
        (due,) = flow.reader.absences.due()
        sequence = None
        if located_again:
            sequence = PartitionSequence(
                (ProducerId(7), ProducerEpoch(2)), Ends(Offset(10), Offset(50)), Offset(10)
            )
        partition = flow.partition
        partition.sequence, partition.unreadable = sequence, "broker 2 is unreachable"
        await flow.reader.absences.read(due)
        assert flow.sequence.position == 10
        assert flow.reader.absences.due() == []
        assert flow.reason is None
        assert flow.partition.unreadable is None

    run(body())


def test_a_refusal_or_no_answer_is_tried_again() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.fetch()
        flow.source.alone = Retriable("unreachable")
        await flow.pass_time(SUSPECT_S)
        flow.source.alone = SILENT._replace(fetched=fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        flow.flow.leaders_due = flow.now + 30
        await flow.pass_time(UNPROVEN_S)
        assert flow.flow.leaders_due == 0.0
        await flow.pass_time(UNPROVEN_S - 1.0)
        assert flow.source.asked == 2
        await flow.pass_time(1.0)
        assert flow.source.asked == 3
        assert flow.reason is None

    run(body())
