"""A second kind of mirror: topics get a prefix, and records another offset.

It keeps the interface of engines honest (`engines/base.py`): names and offsets of both sides
differ, and nothing outside of an engine may take one for the other. It copies record by record,
from memory, and promises nothing that a kill would test.

    source       orders        0 1 2 3 ...
    destination  copy.orders   - - - - - 0 1 2 3 ...     `SHIFT` records of its own come first
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from twinlog.engines.base import (
    Assignment,
    Beginnings,
    BrokerTraffic,
    LaneContext,
    Observer,
    PartitionProgress,
    Sealed,
    Sealing,
    SharedWriters,
    ThrottledReads,
)
from twinlog.engines.kafka_ports import KafkaSource
from twinlog.engines.kinds import KINDS
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.records import decode, raw_records
from twinlog.kafka.requests.partitions import list_offsets
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Throttle
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.topic_writer import ALL, Entry, append

KIND = "shifted"
PREFIX = "copy."
SHIFT = 5
PAUSE_S = 0.05
WRITER_ID = 4711


class Shifted:
    """The offsets of a partition (`OffsetMap`)."""

    def to_destination(self, offset: int) -> int:
        return offset + SHIFT

    def to_source(self, offset: int) -> int:
        return max(offset - SHIFT, 0)

    def lowest(self, offset: int) -> int:
        return offset


class ShiftedKind:
    """The kind (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> "ShiftedEngines":
        return ShiftedEngines(lane)

    async def translation(
        self,
        destination: KafkaCluster,
        topics: Collection[MirrorTopic],
        properties: Mapping[str, str],
    ) -> Translation:
        del destination, properties
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        return Translation(names, dict.fromkeys(names, Shifted()))


class ShiftedEngines:
    """The engines of a lane (`EnginesOfKind`)."""

    def __init__(self, lane: LaneContext) -> None:
        self._lane = lane
        self.refreshed = 0

    def writers(self, state_partition: int) -> "ShiftedWriters":
        del state_partition
        return ShiftedWriters(self._lane.destination)

    def engine(
        self, mirror: str, source: KafkaCluster | None, observe: Observer
    ) -> "ShiftedEngine":
        del mirror
        return ShiftedEngine(source, self._lane.destination, observe)

    async def refresh(self) -> None:
        self.refreshed += 1


class ShiftedWriters:
    """Who writes for a state partition (`SharedWriters`)."""

    id = WRITER_ID
    must_be_taken_over = False

    def __init__(self, destination: KafkaCluster) -> None:
        self._destination = destination

    async def open(self, beginnings: Beginnings) -> None: ...

    async def close(self) -> None: ...

    def forget(self, topics: Collection[tuple[str, str]]) -> None: ...

    async def seal(
        self, partitions: Mapping[MirrorPartition, Sealing]
    ) -> Mapping[MirrorPartition, Sealed | Refusal]:
        assert all(partition.last.producers == (WRITER_ID,) for partition in partitions.values())
        ends = await list_offsets(
            self._destination, [partition.destination for partition in partitions.values()]
        )
        return {
            name: end if isinstance(end, Refusal) else Sealed(Offset(end.offset))
            for name, one in partitions.items()
            for end in [ends[one.destination]]
        }


@dataclass(slots=True)
class Copied:
    """A partition and its condition."""

    assignment: Assignment
    state: State = State.PREPARING
    reason: str | None = None
    source_end: int = -1
    destination_end: int = -1
    records: int = 0
    heard_ms: int | None = None
    copying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def row(self) -> PartitionProgress:
        one, end = self.assignment, self.destination_end
        mirrored = -1 if end < 0 else Shifted().to_source(end)
        return PartitionProgress(
            name=one.name,
            state_partition=one.state_partition,
            state=self.state,
            reason=self.reason,
            source_end=Offset(self.source_end),
            source_last_stable=Offset(self.source_end),
            mirrored_end=Offset(mirrored),
            destination_end=Offset(end),
            records=self.records,
            lag_ms=0 if mirrored == self.source_end else 1,
            source_time_ms=self.heard_ms,
            proved_end=Offset(end),
        )


class ShiftedEngine:
    """The engine of a mirror (`Engine`)."""

    def __init__(
        self, source: KafkaCluster | None, destination: KafkaCluster, observe: Observer
    ) -> None:
        self._source = source
        self._destination = destination
        self._observe = observe
        self._copied: dict[MirrorPartition, Copied] = {}
        self._news: set[int] = set()
        self._ended_for: str | None = None
        self.throttle = Throttle()

    @property
    def names(self) -> Collection[MirrorPartition]:
        return list(self._copied)

    async def run(self) -> None:
        assert self._source is not None
        port = KafkaSource(self._source)
        while True:
            for one in list(self._copied.values()):
                async with one.copying:
                    if self._copied.get(one.assignment.name) is one:
                        await self._copy(port, one)
            await asyncio.sleep(PAUSE_S)

    async def _copy(self, port: KafkaSource, one: Copied) -> None:
        """Copy what one answer holds."""
        target, source = one.assignment.destination, one.assignment.source
        found = (await list_offsets(self._destination, [target]))[target]
        if isinstance(found, Refusal):
            self._change(one, State.FAILED, str(found))
            return
        if found.offset < SHIFT:
            await self._append(target, [(b"own", b"%d" % at) for at in range(found.offset, SHIFT)])
        end = max(found.offset, SHIFT)
        await port.leaders([source.topic])
        at = Shifted().to_source(end)
        answer = (await port.read({source: at}, partition_max_bytes=1 << 20))[source]
        pairs: list[tuple[bytes, bytes]] = []
        for header in batches(answer.records):
            for record in raw_records(header, header.records(answer.records)):
                if record.offset >= at:
                    assert record.offset == at + len(pairs), "it copies plain logs only"
                    whole = decode(record)
                    pairs.append((whole.key or b"", whole.value or b""))
        if pairs:
            await self._append(target, pairs)
        one.records += len(pairs)
        one.source_end, one.destination_end = answer.high_watermark, end + len(pairs)
        one.heard_ms = time.time_ns() // 1_000_000
        self._change(one, State.MIRRORING, None)

    async def _append(self, target: TopicPartition, pairs: list[tuple[bytes, bytes]]) -> None:
        answers = await append(
            self._destination, [Entry(*target, key, value) for key, value in pairs], acks=ALL
        )
        if isinstance(refusal := answers[target], Refusal):
            raise Retriable(str(refusal))

    def _change(self, one: Copied, state: State, reason: str | None) -> None:
        self._news.add(one.assignment.state_partition)
        if (one.state, one.reason) != (state, reason):
            one.state, one.reason = state, reason
            self._observe(self, one.row())

    def start(
        self, writers: SharedWriters, assignments: Collection[Assignment], *, lease_s: float
    ) -> None:
        assert isinstance(writers, ShiftedWriters)
        del lease_s
        for assignment in assignments:
            if assignment.name not in self._copied:
                one = self._copied[assignment.name] = Copied(assignment)
                self._news.add(assignment.state_partition)
                if self._ended_for is not None:
                    self._change(one, State.FAILED, self._ended_for)

    async def stop(self, names: Collection[MirrorPartition]) -> None:
        for name in names:
            if (one := self._copied.pop(name, None)) is not None:
                self._news.add(one.assignment.state_partition)
                async with one.copying:
                    pass

    def configure(self, properties: Mapping[str, str]) -> None:
        pass

    def fail_all(self, reason: str) -> None:
        self._ended_for = reason
        for one in self._copied.values():
            self._change(one, State.FAILED, reason)

    def take_news(self) -> set[int]:
        news, self._news = self._news, set()
        return news

    def progress(self, state_partitions: Collection[int] | None = None) -> list[PartitionProgress]:
        return [
            one.row()
            for one in self._copied.values()
            if state_partitions is None or one.assignment.state_partition in state_partitions
        ]

    def limit(self, throttle: Throttle, *, lanes: int, log_start_delay_s: float) -> None:
        del lanes, log_start_delay_s
        self.throttle = throttle

    def set_rate(self, rate: float) -> None: ...

    def take_throttled(self) -> ThrottledReads:
        return ThrottledReads(0, held_back=False)

    def traffic(self) -> Collection[BrokerTraffic]:
        return []


@contextmanager
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the kind, as an engine of the product is registered in engines/kinds.py."""
    with monkeypatch.context() as patch:
        patch.setitem(KINDS, KIND, ShiftedKind())
        yield
