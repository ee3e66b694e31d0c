"""Partitions that the exact engine reads from a follower: its leader is asked.

Which answers count: tests/engines/source/test_leader_bounds.py.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import cast
from uuid import UUID

import pytest
from positions import START
from sole_owner import owned_for_good
from waiting import until_async

from twinlog.engines.base import PartitionProgress
from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.engine import ExactEngine
from twinlog.engines.exact.events import LOOK, SourceBounds, SourceLed
from twinlog.engines.exact.followers import ExactFollowers
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.ports import DestinationPort, FetchResult, LeaderReport, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source import leader_bounds
from twinlog.engines.source.leader_bounds import BOUNDS_S
from twinlog.kafka.errors import Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, Offset, TopicPartition

KEY = TopicPartition("t", 0)
LEADER, FOLLOWER = 1, 2
TOPIC_ID = UUID(int=1)
EMPTY = LogBounds(0, 0, 0, 0, 5)


def _of(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """A condition for `until_async`."""

    async def look() -> bool:
        return condition()

    return look


class Source:
    """A source (`SourcePort`): a leader that names a follower, or not, and one without news."""

    def __init__(self) -> None:
        self.answer: LogBounds | Retriable = EMPTY
        self.asked = 0

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        assert list(partitions) == [KEY]
        self.asked += 1
        if isinstance(self.answer, Retriable):
            raise self.answer
        return {KEY: self.answer}

    async def leaders(self, _: object) -> Mapping[TopicPartition, LeaderReport]:
        return {KEY: LeaderReport(LEADER, 5, TOPIC_ID)}

    async def compacts(self, _: object) -> Mapping[str, bool | None]:
        return {}

    async def fetch(self, node: int, positions: object, **_: int) -> FetchResult:
        """Answer for the follower without news, after a while."""
        del positions
        assert node == FOLLOWER
        await asyncio.sleep(0.02)
        return FetchResult({KEY: Fetched(0, 0, 0, 0, (), memoryview(b""))}, 0)

    @staticmethod
    def round_trip_s(_: int) -> float:
        return 0.0


class Destination:
    """A destination (`DestinationPort`) that only says who leads."""

    async def leaders(self, _: object) -> Mapping[TopicPartition, LeaderReport]:
        return {KEY: LeaderReport(1, -1, TOPIC_ID)}


class World:
    """An engine with an empty partition, whose leader has just named the follower."""

    def __init__(self) -> None:
        self.source = Source()
        self.engine = ExactEngine(
            "m",
            lambda *_: None,
            source=cast("SourcePort", self.source),
            destination=cast("DestinationPort", Destination()),
            settings=LaneSettings(),
            random=random.Random(1),
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        plane = self.engine.plane
        shard = Shard(0, "p", plane.destination, LaneSettings())
        spec = PartitionSpec(partition=KEY, source_topic_id=TOPIC_ID, shard=0, compacted=False)
        plane.own(shard, [spec], lease_s=0.0)
        self.partition: ExactPartition = plane.partitions[KEY]
        self.partition.destination_node = 1
        self.partition.append.place(START, plane.now(), compared=True)
        plane.emit(self.partition, SourceLed(LeaderReport(LEADER, 5, TOPIC_ID)))
        plane.emit(self.partition, SourceBounds(Offset(0), Offset(0), 0, at_least=False))
        plane.fetcher.leave(self.partition)
        self.partition.source_replica = FOLLOWER
        self.partition.redirect_at = plane.now() + 1000
        self.partition.source_heard_at = plane.now()
        plane.emit(self.partition, LOOK)

    @property
    def row(self) -> PartitionProgress:
        [row] = self.engine.progress()
        return row


def ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leaders be asked fifty times a second."""
    for name in ("BOUNDS_S", "LOOK_S"):
        monkeypatch.setattr(leader_bounds, name, 0.02)
    monkeypatch.setattr("twinlog.engines.exact.followers.LOOK_S", 0.02)


@pytest.mark.parametrize("answer", [Retriable("unreachable"), LogBounds(78, -1, -1, -1)])
def test_a_follower_without_news_is_no_contact_with_the_source(
    monkeypatch: pytest.MonkeyPatch, answer: LogBounds | Retriable
) -> None:
    """Goal: lag 0 and a recent time of contact are not reported without the leader's bounds."""
    ask_often(monkeypatch)

    async def body() -> None:
        world = World()
        world.source.answer = answer
        plane = world.engine.plane
        heard_at = world.partition.source_heard_at
        assert heard_at is not None
        assert world.row.lag_ms == 0
        running = asyncio.create_task(world.engine.run())
        counts = plane.fetcher.counts[FOLLOWER]
        try:
            both = _of(lambda: min(world.source.asked, counts.requests) > 3)
            await until_async(both, 20, "answers")
            assert world.partition.source_replica == FOLLOWER
            assert plane.fetcher.answered_at(world.partition) == heard_at
            now = plane.now()
            monkeypatch.setattr(plane, "now", lambda: now + 11)
            row = world.row
            assert (row.lag_ms, row.source_end) == (None, 0)
            assert row.source_time_ms is not None
            assert row.source_time_ms < time.time() * 1000 - 10_000
            monkeypatch.undo()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_the_leader_tells_how_far_the_source_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: its answers are contact, and what the follower does not have yet is a lag."""
    ask_often(monkeypatch)

    async def body() -> None:
        world = World()
        world.partition.source_heard_at = None
        running = asyncio.create_task(world.engine.run())
        try:
            await until_async(_of(lambda: world.row.lag_ms == 0), 20, "contact")
            world.source.answer = EMPTY._replace(high_watermark=30, last_stable=25)
            await until_async(_of(lambda: world.row.source_end == 30), 20, "the leader's end")
            assert world.row.source_last_stable == 25
            assert world.row.lag_ms
            assert world.partition.source_replica == FOLLOWER
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_the_answer_that_names_a_follower_is_the_last_contact() -> None:
    async def body() -> None:
        world = World()
        fetcher, partition = world.engine.plane.fetcher, world.partition
        fetcher.return_to_leader(partition)
        fetcher.update(partition)
        assert fetcher._keys[partition] == (LEADER, 0)
        asked_at = fetcher._counts_from[partition] + 1.0
        fetcher._answer_times[LEADER, 0] = asked_at
        partition.redirect_at = 0.0
        fetcher._redirect(partition, FOLLOWER)
        fetcher.update(partition)
        assert partition.follows
        fetcher._answer_times[FOLLOWER, 0] = asked_at + 5.0
        fetcher._counts_from[partition] = 0.0
        assert fetcher.answered_at(partition) == asked_at
        fetcher.leave(partition)
        assert fetcher.answered_at(partition) == asked_at
        await world.engine.plane.close()

    asyncio.run(body())


def test_a_leader_that_is_asked_by_name_moves_no_log_start() -> None:
    """Goal: no records are deleted by an answer that may be about a recreated topic."""

    async def body() -> None:
        world = World()
        followers = ExactFollowers(world.engine.plane)
        followers.heard(world.partition, LogBounds(0, 7, 30, 25, 5), 3.0)
        assert world.partition.source_heard_at == 3.0
        assert (world.row.source_end, world.row.source_last_stable) == (30, 25)
        assert world.partition.source_start == 0
        assert world.partition.log_starts.due(world.engine.plane.now(), 0.0) == 0
        followers.heard(world.partition, LogBounds(0, 7, 20, 20, 5), 4.0)
        assert (world.row.source_end, world.row.source_last_stable) == (30, 25), "at least"

    asyncio.run(body())


def test_only_partitions_with_a_position_that_are_read_from_followers_are_asked_for() -> None:
    """Goal: no bounds of a leader are noted that the machine drops."""

    async def body() -> None:
        world = World()
        followers, partition = ExactFollowers(world.engine.plane), world.partition
        before = followers.followed()[partition]
        assert (before.source, before.leader, before.leader_epoch) == (KEY, LEADER, 5)
        world.engine.plane.fetcher.touch(partition)
        assert followers.followed()[partition].reading != before.reading
        partition.append.replace()
        assert partition.append.phase is not Phase.APPENDING
        assert followers.followed() == {}
        partition.append.place(START, 0.0, compared=True)
        assert partition in followers.followed()
        partition.source_replica = -1
        assert followers.followed() == {}

    asyncio.run(body())


def test_the_questions_fit_the_patience() -> None:
    """Goal: one answer that is lost does not make the lag unknown."""
    assert 2 * BOUNDS_S < 10.0
