"""Twin of twinlog.engines.exact.suspects, with a source whose answers are given."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import batch, record
from positions import START
from sole_owner import owned_for_good

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.events import Queued
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.exact.suspects import ExactSuspects
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source.absences import LATER_COMPACTED, SUSPECT_S, UNPROVEN_S, Absences
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absence, AbsentSpan
from twinlog.mirror.plan import Gap

KEY = TopicPartition("t", 0)
AT, END = Offset(5), Offset(20)
GAP = Gap(AT, END, seen=False, spans=(AbsentSpan(Absence.COMPACTED, END),))


def fetched(records: bytes = b"", **more: object) -> Fetched:
    """An answer of a source whose last stable offset is `END`."""
    return Fetched(0, END, END, 0, (), memoryview(records))._replace(**cast("Any", more))


SILENT = ReadAlone(fetched(), 0, 5, local_start=0, compacts=True)
"""What only compaction explains."""
THROTTLED = SILENT._replace(throttle_ms=40)


class Mirror:
    """A partition that is read up to offset 5, its source, and a clock that is set."""

    def __init__(self, *, compacted: bool = True) -> None:
        self.now = 100.0
        self.alone = SILENT
        self.asked = 0
        self.touches = False
        self.plane = DataPlane(
            cast("SourcePort", self),
            cast("DestinationPort", None),
            LaneSettings(),
            random.Random(1),
            lambda _: None,
            brokers_time_ms=lambda: 0,
            confirm_ownership=owned_for_good,
        )
        self.plane._clock = lambda: self.now
        self.plane.pump = lambda _: None  # type: ignore[assignment]
        shard = Shard(0, "p", self.plane.destination, LaneSettings(fillers=0))
        spec = PartitionSpec(
            partition=KEY, source_topic_id=UUID(int=1), shard=0, compacted=compacted
        )
        self.plane.own(shard, [spec], lease_s=0.0)
        self.partition = self.plane.partitions[KEY]
        self.partition.append.place(START, self.now, compared=True)
        self.plane.emit(self.partition, Queued([empty_records(Offset(0), AT)]))
        suspects = ExactSuspects(self.plane, self.plane.fetcher)
        self.absences = Absences(suspects)

    async def read_alone(self, partition: TopicPartition, offset: int, **_: int) -> ReadAlone:
        """The source's answer, whose place is taken by a position that is read again."""
        assert (partition, offset) == (KEY, AT)
        self.asked += 1
        if self.touches:
            self.plane.fetcher.touch(self.partition)
        return self.alone

    async def pass_time(self, *times: float) -> None:
        """Let times pass, and read alone what is due after each."""
        for seconds in times:
            self.now += seconds
            for partition in self.absences.due():
                await self.absences.read(partition)


def run(body: Coroutine[object, object, None]) -> None:
    asyncio.run(body)


def test_the_rest_of_a_compacted_log_becomes_a_gap() -> None:
    async def body() -> None:
        mirror = Mirror()
        mirror.absences.suspect(mirror.partition)
        await mirror.pass_time(SUSPECT_S, LOOK_INTERVAL_S)
        assert mirror.partition.append.planned_end == END
        assert mirror.partition.append._queue[-1] == GAP
        assert mirror.partition.touched == mirror.plane.fetcher.clock > 0
        assert not mirror.absences.has_suspects
        await mirror.plane.close()

    run(body())


@pytest.mark.parametrize(
    ("answer", "compacted", "reason"),
    [
        (THROTTLED, True, "the source throttles fetches (quota; 40 ms)"),
        (SILENT, False, LATER_COMPACTED.reason),
    ],
)
def test_the_reason_is_reported_until_there_are_records(
    answer: ReadAlone, compacted: bool, reason: str
) -> None:
    async def body() -> None:
        mirror = Mirror(compacted=compacted)
        mirror.alone = answer
        mirror.absences.suspect(mirror.partition)
        await mirror.pass_time(SUSPECT_S, LOOK_INTERVAL_S)
        assert mirror.partition.held_back == reason
        assert mirror.partition.append.planned_end == AT
        mirror.alone = SILENT._replace(fetched=fetched(batch([record(5)])[:30]))
        await mirror.pass_time(UNPROVEN_S)
        assert mirror.partition.held_back == "the source answers with less than one batch"
        mirror.alone = SILENT._replace(fetched=fetched(batch([record(5)])))
        await mirror.pass_time(UNPROVEN_S)
        assert mirror.partition.held_back == ""
        assert mirror.partition.append.planned_end == 6
        assert mirror.absences.due() == []
        assert not mirror.absences.has_suspects
        await mirror.plane.close()

    run(body())


def test_records_that_are_missing_fail_the_partition() -> None:
    async def body() -> None:
        mirror = Mirror()
        mirror.alone = SILENT._replace(compacts=False)
        mirror.absences.suspect(mirror.partition)
        await mirror.pass_time(SUSPECT_S, LOOK_INTERVAL_S)
        assert (mirror.partition.stage, mirror.partition.transient) == (
            PartitionStage.FAILED,
            True,
        )
        assert "the source has no batch from offset 5 up to" in mirror.partition.reason
        assert mirror.partition.append.phase is Phase.FAILED
        await mirror.plane.close()

    run(body())


def test_an_answer_for_a_position_that_was_read_again_is_dropped() -> None:
    """Goal: no gap by an answer to a request that was sent for the position before."""

    async def body() -> None:
        mirror = Mirror()
        mirror.absences.suspect(mirror.partition)
        await mirror.pass_time(SUSPECT_S)
        mirror.touches = True
        await mirror.pass_time(LOOK_INTERVAL_S)
        assert (mirror.asked, mirror.partition.append.planned_end) == (2, AT)
        mirror.touches = False
        await mirror.pass_time(UNPROVEN_S)
        assert (mirror.asked, mirror.partition.append.planned_end) == (3, END)
        await mirror.plane.close()

    run(body())


def test_nothing_is_read_alone_while_the_buffer_is_full() -> None:
    """Goal: a lane holds no more than its buffer (docs/operations/settings.md)."""

    async def body() -> None:
        mirror = Mirror()
        mirror.absences.suspect(mirror.partition)
        held, mirror.plane.held_bytes = mirror.plane.held_bytes, LaneSettings().buffer_bytes
        await mirror.pass_time(SUSPECT_S)
        assert mirror.asked == 0
        mirror.plane.held_bytes = held
        await mirror.pass_time(UNPROVEN_S)
        assert mirror.asked == 1
        await mirror.plane.close()

    run(body())


def test_the_loop_runs_as_long_as_there_are_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a data plane without suspects does not wake up for them."""
    monkeypatch.setattr("twinlog.engines.exact.suspects._LOOK_S", 0.001)

    async def body() -> None:
        mirror = Mirror()
        mirror.alone = THROTTLED
        for asked in (1, 2):
            mirror.plane.absences.suspect(mirror.partition)
            assert len(mirror.plane._tasks) == 1
            mirror.now += SUSPECT_S
            async with asyncio.timeout(60):
                while mirror.asked < asked:
                    await asyncio.sleep(0.001)
                mirror.plane.absences.forget(mirror.partition)
                while mirror.plane._tasks:
                    await asyncio.sleep(0.001)
        await mirror.plane.close()

    run(body())
