"""Partitions that a flow reads from a follower: its leader is asked (source/leader_bounds.py)."""

import asyncio
import random
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flow_assignment import ASSIGNMENT
from waiting import until_async

from twinlog.engines.base import PartitionProgress
from twinlog.engines.ports import FetchResult, LeaderReport, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source import leader_bounds
from twinlog.engines.source.leader_bounds import BOUNDS_S
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, FlowStage
from twinlog.engines.translated.reader import FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.errors import Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.mirror.offset_runs import Ends

KEY = ASSIGNMENT.source
LEADER, FOLLOWER = 3, 2
END = 10
"""What the follower holds, and the flow has copied."""


class Source:
    """A source (`SourcePort`): a follower without news, and a leader that answers, or not."""

    def __init__(self, partition: FlowPartition[FlowWriters, PartitionSequence]) -> None:
        self.partition = partition
        self.bounds_are: LogBounds | Retriable = LogBounds(0, 0, END, END)
        self.asked = 0

    async def fetch(self, node: int, positions: object, **_: int) -> FetchResult:
        """Answer, and take the partition away from the loop, which ends."""
        del positions
        assert node == FOLLOWER
        self.partition.source_node = -1
        return FetchResult({KEY: Fetched(0, END, END, 0, (), memoryview(b""))}, 0)

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        assert list(partitions) == [KEY]
        self.asked += 1
        if isinstance(self.bounds_are, Retriable):
            raise self.bounds_are
        return {KEY: self.bounds_are}


class Flow:
    """A flow of one partition, whose leader has just named a follower, and a clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.flow = FlowPartitions[FlowWriters, PartitionSequence](
            LaneSettings(fetch_pace_s=0.0), random.Random(1), lambda _: None
        )
        self.flow.now = lambda: self.now  # type: ignore[method-assign]
        self.partition = partition = FlowPartition[FlowWriters, PartitionSequence](
            ASSIGNMENT,
            cast("FlowWriters", None),
            owned_before=True,
            locate_at=0.0,
            unguarded_until=0.0,
        )
        producer = ProducerId(7), ProducerEpoch(1)
        partition.sequence = PartitionSequence(producer, Ends(Offset(END), Offset(50)), Offset(END))
        partition.stage = FlowStage.COPYING
        partition.source_node, partition.source_replica = LEADER, FOLLOWER
        partition.redirect_at = self.now + 1000
        partition.heard_at = self.now
        partition.note_ends(END, END, self.now, at_least=True)
        self.flow.all[ASSIGNMENT.name] = partition
        self.source = Source(partition)
        self.reader = FlowReader(self.flow, cast("SourcePort", self.source))

    async def follow(self, seconds: int) -> PartitionProgress:
        """Read from the follower for so long, once a second, and ask the leader when it is due."""
        for _ in range(seconds):
            self.now += 1
            for leader in self.reader.leader_bounds.due():
                await self.reader.leader_bounds.ask(leader)
            await self.reader.read((FOLLOWER, False))
            self.partition.source_node = LEADER
        return self.partition.row(self.now)


@pytest.mark.parametrize("unreachable", [True, False])
def test_a_follower_without_news_is_no_contact_with_the_source(unreachable: bool) -> None:
    """Goal: while it is cut off, lag 0 and a recent time of contact are not reported.

    The leader, which may have taken records since, is unreachable or refuses.
    """

    async def body() -> None:
        flow = Flow()
        refused = Retriable("unreachable") if unreachable else LogBounds(6, -1, -1, -1)
        flow.source.bounds_are = refused
        before = flow.partition.row(flow.now)
        assert before.lag_ms == 0
        row = await flow.follow(15)
        assert flow.source.asked >= 15 / BOUNDS_S - 1
        assert row.lag_ms is None
        assert row.source_time_ms is not None
        assert flow.partition.heard_at == 100.0
        assert row.source_end == END

    asyncio.run(body())


def test_the_leader_tells_how_far_the_source_reaches() -> None:
    """Goal: what the follower does not have yet is a lag."""

    async def body() -> None:
        flow = Flow()
        row = await flow.follow(15)
        assert row.lag_ms == 0
        assert flow.partition.heard_at is not None
        assert flow.partition.heard_at >= flow.now - BOUNDS_S
        flow.source.bounds_are = LogBounds(0, 0, 30, 25)
        row = await flow.follow(6)
        assert (row.source_end, row.source_last_stable) == (30, 25)
        assert row.lag_ms is not None
        assert row.lag_ms >= 2000

    asyncio.run(body())


def test_what_the_leader_has_by_name_is_no_loss_of_a_recreated_topic() -> None:
    """Goal: it may be the new topic's: no records are reported as lost that have never been."""

    async def body() -> None:
        flow = Flow()
        flow.source.bounds_are = LogBounds(0, 0, 30, 25)
        row = await flow.follow(6)
        assert row.source_end == 30
        flow.partition.forget_sequence()
        flow.flow.note_source_recreated(flow.partition)
        last = flow.partition.source_losses.last
        assert last == f"{KEY}, offsets from {END} on, if there were any"

    asyncio.run(body())


def test_a_partition_that_has_just_fallen_behind_has_a_lag() -> None:
    """Goal: lag 0 is reported only where nothing is missing."""

    async def body() -> None:
        flow = Flow()
        flow.partition.note_ends(30, 25, flow.now, at_least=True)
        assert flow.partition.row(flow.now).lag_ms == 1

    asyncio.run(body())


def test_only_leaders_of_followed_partitions_are_asked() -> None:
    """Goal: no request where each answer comes from the leader."""

    async def body() -> None:
        flow = Flow()
        flow.partition.source_replica = -1
        flow.now += 100
        assert flow.reader.leader_bounds.due() == []
        flow.partition.source_replica = FOLLOWER
        flow.now += 1
        assert flow.reader.leader_bounds.due() == [], "it has just named the follower"
        flow.now += BOUNDS_S
        assert flow.reader.leader_bounds.due() == [LEADER]
        flow.now += BOUNDS_S
        assert flow.reader.leader_bounds.due() == [], "it is being asked"
        flow.partition.source_replica = -1
        await flow.reader.leader_bounds.ask(LEADER)
        assert flow.source.asked == 0

    asyncio.run(body())


def test_an_answer_about_a_partition_that_is_located_again_does_not_count() -> None:
    async def body() -> None:
        flow = Flow()
        flow.now += BOUNDS_S
        assert flow.reader.leader_bounds.due() == []
        flow.now += BOUNDS_S
        (leader,) = flow.reader.leader_bounds.due()
        asking = asyncio.ensure_future(flow.reader.leader_bounds.ask(leader))
        flow.flow.locate_again(flow.partition, "a test")
        await asking
        assert flow.partition.heard_at == 100.0

    asyncio.run(body())


def test_an_engine_asks_leaders_while_it_reads_from_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: its rows show the lag to what the leader has."""
    for name in ("BOUNDS_S", "LOOK_S"):
        monkeypatch.setattr(leader_bounds, name, 0.01)

    class Waiting(Source):
        async def leaders(self, _: object) -> Mapping[TopicPartition, LeaderReport]:
            return {KEY: LeaderReport(LEADER, 0, ASSIGNMENT.source_topic_id or NO_TOPIC_ID)}

        async def compacts(self, _: object) -> Mapping[str, bool | None]:
            return {}

        async def fetch(self, node: int, positions: object, **_: int) -> FetchResult:
            await asyncio.sleep(0.01)
            del positions
            assert node == FOLLOWER
            return FetchResult({}, 0)

    class Destination:
        async def leaders(self, _: object) -> Mapping[TopicPartition, LeaderReport]:
            return {ASSIGNMENT.destination: LeaderReport(1, -1, NO_TOPIC_ID)}

        def appends_to(self, *_: object) -> bool:
            return True

    async def body() -> None:
        partition = Flow().partition
        partition.destination_node = 1
        partition.redirect_at = asyncio.get_running_loop().time() + 1000
        source = Waiting(partition)
        source.bounds_are = LogBounds(0, 0, 30, 25)
        lane: Any = SimpleNamespace(
            settings=LaneSettings(),
            random=random.Random(1),
            destination=SimpleNamespace(brokers_time=SimpleNamespace(now_ms=lambda: 0)),
        )
        ports = cast("Any", source), cast("Any", Destination())
        engine = FlowEngine(lane, *ports, lambda *_: None)
        engine.flow.all[ASSIGNMENT.name] = partition
        running = asyncio.create_task(engine.run())
        try:
            await until_async(lambda: _has_lag(partition), 10, "the leader's end")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


async def _has_lag(partition: FlowPartition[FlowWriters, PartitionSequence]) -> bool:
    return partition.source_stable == 25 and partition.behind_since is not None
