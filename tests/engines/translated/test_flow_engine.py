"""What the engine of flows does with a location, without brokers."""

import asyncio
import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from flow_assignment import ASSIGNMENT

from twinlog.engines.base import Assignment
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.ports import LeaderReport
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import FlowPartition, FlowStage
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import LogBounds, Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.offset_runs import Ends

CLUSTER = SimpleNamespace(brokers_time=SimpleNamespace(now_ms=lambda: 0))
LANE: Any = SimpleNamespace(
    settings=LaneSettings(),
    random=random.Random(1),
    destination=CLUSTER,
    id_prefix="lanes",
    may_write=lambda: True,
)
PORT: Any = SimpleNamespace()
REMOTE_ID = UUID(int=2)
LATEST = flow_properties(
    {"enabled": "true", "topics": "orders", "consumer.auto.offset.reset": "latest"}, "a", "b"
)


_Partition = FlowPartition[FlowWriters, PartitionSequence]


def _started(assignment: Assignment = ASSIGNMENT) -> tuple[FlowEngine, _Partition]:
    """A flow of one partition that had no owner."""
    engine = FlowEngine(LANE, None, PORT, lambda *_: None)
    engine.start(FlowWriters(0, LANE, PORT), [assignment], lease_s=0.0)
    (partition,) = engine.flow.all.values()
    return engine, partition


def _sequence(position: int, *, has_begun: bool) -> PartitionSequence:
    ends = Ends(Offset(position), Offset(50))
    producer = ProducerId(7), ProducerEpoch(1)
    return PartitionSequence(producer, ends, ends.source, has_begun=has_begun)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_flow_that_is_created_again_does_not_begin(has_begun: bool) -> None:
    """Goal: what the source has deleted since the former flow's end is reported as lost."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, _sequence(10, has_begun=has_begun))
        assert partition.begins is not has_begun
        # A second location finds its own map, and still nothing was read.
        engine._located(partition, _sequence(10, has_begun=True))
        assert partition.begins is not has_begun

    asyncio.run(body())


def test_the_lag_ends_with_a_location_that_finds_everything_copied() -> None:
    """Goal: an answer that was lost has landed; an idle source's next answer leaves it out."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, _sequence(10, has_begun=False))
        partition.source_end = partition.source_stable = 12
        partition.heard_at = engine.flow.now()
        partition.note_lag(0.0)
        assert partition.behind_since == 0.0
        engine.flow.trouble(partition, "an answer was lost")
        engine._located(partition, _sequence(12, has_begun=True))
        assert partition.row(engine.flow.now()).lag_ms == 0

    asyncio.run(body())


class LaterEnds:
    """A source (`SourcePort`) whose log has another last stable offset at each look."""

    def __init__(self, *ends: int) -> None:
        self._ends = list(ends)

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Any]:
        """Whoever asks is answered by the next end."""
        end = self._ends.pop(0)
        bounds = LogBounds(error=0, start=2, high_watermark=end + 3, last_stable=end)
        return dict.fromkeys(partitions, bounds)


@pytest.mark.parametrize(
    ("stored", "begins"),
    [
        (None, [5, 5, 3]),  # the first end that is known
        (0, [0, 0, 0]),  # a new partition
        (4, [4, 4, 3]),
        (1, [1, 1, 1]),  # what the source has deleted behind it is reported
    ],
)
def test_later_locations_of_a_flow_of_later_records_begin_no_further_on(
    stored: int | None, begins: list[int]
) -> None:
    """Goal: with `latest`, what is written while locations fail is copied.

    At last the source has lost its end. What it gets from then on is copied, too.
    """

    async def body() -> None:
        engine, partition = _started(replace(ASSIGNMENT, followed_from=stored))
        engine.configure(LATEST)
        asked: list[int] = []

        async def refuse(_: object, found: Mapping[_Partition, int]) -> Any:
            asked.extend(found.values())
            raise Retriable("below min.insync.replicas")

        engine._find_positions = refuse  # type: ignore[method-assign, assignment]
        source: Any = LaterEnds(5, 9, 3, 9)
        for _ in begins:
            await engine._locate(source, partition.writers, [partition])
        assert asked == begins
        # Another program has copied what is below: that counts.
        partition.assignment = replace(partition.assignment, begin=7)
        await engine._locate(source, partition.writers, [partition])
        assert asked[-1] == 7

    asyncio.run(body())


ABSENT_POLICY = {**LATEST, "mirror.flow.replication.policy.class": "com.example.AbsentPolicy"}
OF_A_NEWER_VERSION = {**LATEST, "mirror.flow.twinlog.of.a.newer.version": "1"}


def _asked(*configured: Mapping[str, str], followed_from: int | None = 100) -> list[int]:
    """Where a partition begins that is located after each of these settings.

    The source's log goes from 2 to 100.
    """
    asked: list[int] = []

    async def body() -> None:
        engine, partition = _started(replace(ASSIGNMENT, followed_from=followed_from))

        async def refuse(_: object, found: Mapping[_Partition, int]) -> Any:
            asked.extend(found.values())
            raise Retriable("below min.insync.replicas")

        engine._find_positions = refuse  # type: ignore[method-assign, assignment]
        source: Any = LaterEnds(*[100] * len(configured))
        for properties in configured:
            if properties:
                engine.configure(properties)
            partition.locating = True
            await engine._locate(source, partition.writers, [partition])
            assert not partition.locating

    asyncio.run(body())
    return asked


def test_a_lane_without_the_policy_of_a_flow_begins_where_the_flow_follows_it_from() -> None:
    """Goal: with `latest`, no history is copied because a package is missing in an executor."""
    assert _asked(ABSENT_POLICY) == [100]
    assert _asked(ABSENT_POLICY, followed_from=None) == [100]


def test_a_partition_whose_settings_were_never_read_does_not_begin() -> None:
    """Goal: with `latest`, no history is copied by a lane that cannot read a flow's settings.

    Once they were read, they stay in force.
    """
    assert _asked({}, OF_A_NEWER_VERSION) == []
    assert _asked({}, OF_A_NEWER_VERSION, LATEST, OF_A_NEWER_VERSION) == [100, 100]


def test_a_partition_without_readable_settings_is_failed() -> None:
    """Goal: an operator sees why it waits; and it goes on by itself, later."""

    async def body() -> None:
        engine, partition = _started()
        engine.configure(OF_A_NEWER_VERSION)
        source: Any = LaterEnds()
        await engine._locate(source, partition.writers, [partition])
        assert (partition.stage, partition.transient) == (FlowStage.FAILED, True)
        assert "twinlog.of.a.newer.version is not a setting of a flow" in (partition.reason or "")

    asyncio.run(body())


class Silent:
    """A destination and a source (`DestinationPort`, `SourcePort`) that answer nothing."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def appends_to(self, *_: object) -> bool:
        """No other flow has looked."""
        return True

    def produce(self, *_: object) -> asyncio.Future[object]:
        """Append."""
        return self.answer

    async def never(self, *_: object) -> Any:
        """Do not answer."""
        await asyncio.Event().wait()


def test_an_engine_that_ends_withdraws_a_request_whose_task_has_not_begun() -> None:
    """Goal: it is not sent in a later lease of the lane."""

    async def body() -> None:
        silent: Any = Silent()
        engine = FlowEngine(LANE, silent, silent, lambda *_: None)
        engine._run = silent.never  # type: ignore[method-assign]
        policies: Any = SimpleNamespace(run=silent.never)
        assert engine._reader is not None
        engine._reader.policies = policies
        engine.start(FlowWriters(0, LANE, silent), [ASSIGNMENT], lease_s=0.0)
        (partition,) = engine.flow.all.values()
        sequence = _sequence(0, has_begun=False)
        engine._located(partition, sequence)
        partition.destination_node = 1
        sequence.offer([empty_records(Offset(0), Offset(5))])
        sequence.plan()
        sequence.stored()
        running = asyncio.ensure_future(engine.run())
        await asyncio.sleep(0)
        running.cancel()
        engine._sender.send(1)  # its task is behind the engine's end in the loop
        await asyncio.wait([running])
        assert silent.answer.cancelled()

    asyncio.run(body())


class LookedAtByAnother:
    """A destination (`DestinationPort`) where another flow has seen `topic_id`; also a source."""

    def __init__(self, topic_id: UUID | None, found: UUID | None) -> None:
        self._topic_id, self._found = topic_id, found
        self.looks, self.appends = 0, 0

    def appends_to(self, _topic: str, topic_id: UUID | None) -> bool:
        """Compare with what was seen last."""
        return topic_id == self._topic_id

    def produce(self, *_: object) -> asyncio.Future[object]:
        """Append."""
        self.appends += 1
        return asyncio.get_running_loop().create_future()

    async def leaders(self, topics: Collection[str]) -> dict[TopicPartition, LeaderReport]:
        """Find the source's topic as it was, and the destination's anew."""
        await asyncio.sleep(0.01)
        if ASSIGNMENT.source.topic in topics:
            return {ASSIGNMENT.source: LeaderReport(1, 1, ASSIGNMENT.source_topic_id)}
        self.looks += 1
        self._topic_id = self._found
        assert self._found is not None
        return {ASSIGNMENT.destination: LeaderReport(1, 1, self._found)}

    async def never(self, *_: object, **__: object) -> Any:
        """Do not answer."""
        await asyncio.Event().wait()

    fetch = never


@pytest.mark.parametrize("is_same", [True, False])
def test_a_topic_that_another_flow_found_recreated_is_looked_at_first(is_same: bool) -> None:
    """Goal: nothing is appended by an id that this flow has not compared; the lane goes on.

    The other flow's answer may have been of a broker that is behind: then this one's tells.
    """

    async def body() -> None:
        known, other = REMOTE_ID, UUID(int=9)
        assignment = replace(ASSIGNMENT, destination_topic_id=known)
        port: Any = LookedAtByAnother(other, known if is_same else other)
        engine = FlowEngine(LANE, port, port, lambda *_: None)
        assert engine._reader is not None
        policies: Any = SimpleNamespace(run=port.never)
        engine._reader.policies = policies
        engine.start(FlowWriters(0, LANE, port), [assignment], lease_s=0.0)
        (partition,) = engine.flow.all.values()
        sequence = _sequence(0, has_begun=False)
        engine._located(partition, sequence)
        partition.source_node = partition.destination_node = 1
        sequence.offer([empty_records(Offset(0), Offset(5))])
        sequence.plan()
        sequence.stored()
        engine.flow.leaders_due = engine.flow.now() + 60.0
        running = asyncio.ensure_future(engine.run())
        async with asyncio.timeout(20):
            while not (port.appends if is_same else partition.stage is FlowStage.FAILED):
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        assert 1 <= port.looks <= 3
        assert bool(port.appends) == is_same

    asyncio.run(body())
