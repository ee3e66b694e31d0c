"""The fetch loops of distant source brokers."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import cast
from uuid import UUID

import pytest
from positions import START
from sole_owner import owned_for_good

from twinlog.engines.exact import fetch_loops
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.events import LOOK, SourceLed
from twinlog.engines.exact.fetch_loops import DISTANT_FETCHERS, DISTANT_S, FetchLoops
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.ports import DestinationPort, FetchResult, LeaderReport, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import FetchPosition, TopicPartition
from twinlog.mirror.throttle import Throttle

KEYS = [TopicPartition("t", index) for index in range(16)]


class Recording:
    """A source that notes each fetch and answers none; its round trip is as the test says."""

    def __init__(self) -> None:
        self.round_trip = 0.0
        self.fetches: list[tuple[int, set[TopicPartition], int]] = []
        self.answer = asyncio.Event()

    def round_trip_s(self, _: int) -> float:
        return self.round_trip

    async def fetch(
        self,
        _: int,
        positions: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        fetcher: int,
    ) -> FetchResult:
        del max_wait_ms, max_bytes
        self.fetches.append((fetcher, set(positions), partition_max_bytes))
        await self.answer.wait()
        self.answer.clear()
        return FetchResult({}, 0)


def _plane(source: Recording, settings: LaneSettings) -> DataPlane:
    plane = DataPlane(
        cast("SourcePort", source),
        cast("DestinationPort", None),
        settings,
        random.Random(1),
        lambda _: None,
        brokers_time_ms=lambda: 0,
        confirm_ownership=owned_for_good,
    )
    shard = Shard(0, "p", plane.destination, settings)
    specs = [
        PartitionSpec(partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False)
        for key in KEYS
    ]
    plane.own(shard, specs, lease_s=0.0)
    for partition in plane.partitions.values():
        partition.append.place(START, plane.now(), compared=True)
        partition.source_node = 1
        plane.fetcher.update(partition)
    return plane


def test_one_slow_answer_makes_no_broker_distant() -> None:
    loops = FetchLoops(LaneSettings())
    for seconds in (DISTANT_S, DISTANT_S, 0.0, DISTANT_S, DISTANT_S):
        loops.fetched(1, seconds)
        assert not loops.is_new_distant(1, DISTANT_S)
    loops.fetched(1, DISTANT_S)
    assert not loops.is_new_distant(1, 0.0)
    assert loops.is_new_distant(1, DISTANT_S)
    assert not loops.is_new_distant(1, DISTANT_S)


async def _fetches(source: Recording, count: int) -> list[tuple[int, set[TopicPartition], int]]:
    async with asyncio.timeout(60):
        while len(source.fetches) < count:
            await asyncio.sleep(0)
    return source.fetches


def test_a_near_broker_has_one_connection() -> None:
    async def body() -> None:
        source, settings = Recording(), LaneSettings()
        plane = _plane(source, settings)
        fetches = await _fetches(source, 1)
        assert fetches == [(0, set(KEYS), settings.partition_fetch_bytes)]
        await plane.close()

    asyncio.run(body())


def test_the_partitions_of_a_distant_broker_share_several_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once several fetches took as long as a round trip; each partition is in one loop."""

    async def body() -> None:
        source, settings = Recording(), LaneSettings(fetch_max_bytes=64 << 20)
        plane = _plane(source, settings)
        source.round_trip = DISTANT_S
        monkeypatch.setattr(fetch_loops, "DISTANT_FETCHES", 2)
        for count in range(1, 3):
            await _fetches(source, count)
            await asyncio.sleep(DISTANT_S)
            source.answer.set()
        fetches = (await _fetches(source, 2 + DISTANT_FETCHERS))[2:]
        assert {fetcher for fetcher, _, _ in fetches} == set(range(DISTANT_FETCHERS))
        fetched = [key for _, keys, _ in fetches for key in keys]
        assert sorted(fetched) == KEYS
        assert all(size == (64 << 20) // len(keys) for _, keys, size in fetches)
        await plane.close()

    asyncio.run(body())


def _led(plane: DataPlane, partition: ExactPartition) -> None:
    plane.emit(partition, SourceLed(LeaderReport(2, 5, UUID(int=1))))


def _throttled(plane: DataPlane, _: ExactPartition) -> None:
    plane.set_throttle(Throttle(rate=1000), lanes=1)


def _redirected(plane: DataPlane, partition: ExactPartition) -> None:
    plane.fetcher._redirect(partition, 3)
    plane.emit(partition, LOOK)


def _returned(plane: DataPlane, partition: ExactPartition) -> None:
    _redirected(plane, partition)
    partition.redirect_at = 0.0
    plane.emit(partition, LOOK)


@pytest.mark.parametrize("change", [_led, _throttled, _redirected, _returned])
def test_whatever_changes_the_loop_of_a_partition_moves_it(
    change: Callable[[DataPlane, ExactPartition], None],
) -> None:
    """Goal: it is fetched by the loop that it belongs to, and by no other."""

    async def body() -> None:
        plane = _plane(Recording(), LaneSettings())
        fetcher, partition = plane.fetcher, plane.partitions[KEYS[0]]
        partition.destination_node = 1
        change(plane, partition)
        key = fetcher._loops.key(partition)
        assert fetcher._keys[partition] == key
        assert [k for k, its in fetcher._positions.items() if partition.key in its] == [key]
        await plane.close()

    asyncio.run(body())


def test_a_new_leader_epoch_is_sent_with_the_next_fetch() -> None:
    """Goal: a leader refuses no fetch for long because the same broker leads in a new epoch."""

    async def body() -> None:
        plane = _plane(Recording(), LaneSettings())
        partition = plane.partitions[KEYS[0]]
        partition.destination_node = 1
        for epoch in (5, 6):
            plane.emit(partition, SourceLed(LeaderReport(1, epoch, UUID(int=1))))
            position = plane.fetcher._positions[1, 0][partition.key]
            assert position == partition.fetch_position
            assert position.leader_epoch == epoch
        await plane.close()

    asyncio.run(body())
