"""Twin of twinlog.engines.exact.gap_filler: which gaps wait after a round, and for how long."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import cast
from uuid import UUID

from positions import START
from sole_owner import owned_for_good

from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.events import LOOK, Queued
from twinlog.engines.exact.filler_ids import FillerIds
from twinlog.engines.exact.marker_writer import MarkerWriter
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.ports import DestinationPort, LogEnd, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Gap

STUCK, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_S = 3600.0
NODE = 3


class Writer(MarkerWriter):
    """Fills each gap at once, except those of `STUCK`."""

    def __init__(self) -> None:
        super().__init__("p.0.marker", cast("DestinationPort", None), 10)
        self.rounds: list[set[TopicPartition]] = []
        self.fails = True

    async def write(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
        self.rounds.append(set(gaps))
        await asyncio.sleep(0)
        if self.fails and STUCK in gaps:
            if len(gaps) == 1:
                raise Retriable("of the test")
            gaps = {p: gap for p, gap in gaps.items() if p != STUCK}
        return {p: LogEnd(0, gap.end, -1) for p, gap in gaps.items()}


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


class Bench:
    """A data plane with two partitions that one broker leads."""

    def __init__(self, backoff_s: float) -> None:
        settings = LaneSettings(fillers=0, backoff_s=backoff_s, backoff_max_s=max(30.0, backoff_s))
        destination = cast("DestinationPort", None)
        self.plane = DataPlane(
            cast("SourcePort", None),
            destination,
            settings,
            random.Random(1),
            lambda _: None,
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        self.shard = Shard(0, "p", destination, settings)
        self.writer = self.shard.markers = Writer()
        for key in (STUCK, OTHER):
            spec = PartitionSpec(
                partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False
            )
            self.plane.own(self.shard, [spec], lease_s=0.0)
            self[key].destination_node = NODE
            self[key].append.place(START, self.plane.now(), compared=True)

    def __getitem__(self, key: TopicPartition) -> ExactPartition:
        return self.plane.partitions[key]

    def queue(self, key: TopicPartition, end: int) -> None:
        """Queue a gap from the end of the partition's plan on."""
        start = self[key].append.planned_end
        self.plane.emit(self[key], Queued([Gap(start, Offset(end), seen=True)]))
        self.plane.emit(self[key], LOOK)

    async def until_filled(self, key: TopicPartition, end: int) -> None:
        await until_true(lambda: self[key].append.log_end == end)

    async def until_tried(self, times: int) -> None:
        """Wait for so many rounds with `STUCK`."""
        await until_true(lambda: sum(STUCK in one for one in self.writer.rounds) >= times)


def test_a_gap_that_makes_no_progress_delays_no_other_gap_of_its_broker() -> None:
    """Goal: whether the other is queued before the round ends, or while the first one waits."""

    async def body() -> None:
        bench = Bench(LONG_S)
        bench.queue(STUCK, 5)
        await bench.until_tried(1)
        for end in range(5, 50, 5):
            bench.queue(OTHER, end)
            await bench.until_filled(OTHER, end)
            bench.plane.emit(bench[STUCK], LOOK)
        assert bench.writer.rounds.count({STUCK}) == 1
        assert not any(len(one) > 1 for one in bench.writer.rounds)
        await bench.plane.close()

    asyncio.run(body())


def test_a_gap_that_makes_no_progress_waits_though_others_do() -> None:
    """Goal: rounds of others are no reason to try it without a pause."""

    async def body() -> None:
        bench = Bench(LONG_S)
        bench.queue(STUCK, 5)
        bench.queue(OTHER, 5)
        await bench.until_filled(OTHER, 5)
        bench.queue(OTHER, 10)
        await bench.until_filled(OTHER, 10)
        assert bench.writer.rounds == [{STUCK, OTHER}, {OTHER}]
        await bench.plane.close()

    asyncio.run(body())


def test_a_gap_is_tried_again_after_its_backoff() -> None:
    """Goal: without any other event; and its next pause is short again after progress."""

    async def body() -> None:
        bench = Bench(0.001)
        bench.queue(STUCK, 5)
        await bench.until_tried(3)
        bench.writer.fails = False
        await bench.until_filled(STUCK, 5)
        assert not bench.plane.gap_filler._stalls
        await bench.plane.close()

    asyncio.run(body())


def test_a_gap_that_another_kind_of_round_fills_does_not_wait() -> None:
    """Goal: where markers are refused, empty transactions fill it at once."""

    class Refused(Writer):
        async def write(
            self, gaps: Mapping[TopicPartition, Gap]
        ) -> Mapping[TopicPartition, LogEnd]:
            self.rounds.append(set(gaps))
            self.allowed = False
            return {}

    class Filler(FillerIds):
        async def fill(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
            return {p: LogEnd(0, gap.end, -1) for p, gap in gaps.items()}

    async def body() -> None:
        bench = Bench(LONG_S)
        bench.writer = bench.shard.markers = Refused()
        bench.shard.fillers = Filler(0, "p.0.filler", bench.plane.destination, LaneSettings())
        bench.shard.fillers._dirty.clear()
        bench.queue(STUCK, 5)
        await bench.until_filled(STUCK, 5)
        assert bench.writer.rounds == [{STUCK}]
        await bench.plane.close()

    asyncio.run(body())


def test_a_partition_that_leaves_is_not_tried_again() -> None:
    """Goal: nothing is written for a partition that the lane does not own any more."""

    async def body() -> None:
        bench = Bench(LONG_S)
        bench.queue(STUCK, 5)
        await until_true(lambda: bool(bench.plane.gap_filler._stalls))
        ((_, stall),) = bench.plane.gap_filler._stalls.items()
        assert stall.timer is not None
        await bench.plane.disown([STUCK])
        assert stall.timer.cancelled()
        assert not bench.plane.gap_filler._stalls
        await bench.plane.close()

    asyncio.run(body())
