"""The exact engine as a lane knows it: the destination's log is the source's, offset by offset.

    ExactEngines  one for each lane: one connection to each destination broker for all mirrors
    ExactWriters  a state partition's producer ids (shard.py), and how its partitions are sealed
    ExactEngine   a mirror's data plane (data_plane.py), and its partitions as rows

A topic has the same name on both sides, so the data plane knows a partition by one name.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import Final
from weakref import WeakSet

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
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.foreign import Foreign, Searched
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.expiration import expirations
from twinlog.kafka.types import UNKNOWN_OFFSET, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Throttle

_SOURCE_SILENT_S: Final = 10.0
"""Beyond the longest wait of a fetch. The lag to a source that is silent for longer is unknown."""
_STATES: Final = {
    PartitionStage.PREPARING: State.PREPARING,
    PartitionStage.MIRRORING: State.MIRRORING,
    PartitionStage.FAILED: State.FAILED,
}


class ExactEngines:
    """The exact engines of one lane (`EnginesOfKind`)."""

    def __init__(self, lane: LaneContext) -> None:
        self.settings = lane.settings
        self._lane = lane
        self._port = KafkaDestination(lane.destination, lane.may_write)
        self._shards: WeakSet[Shard] = WeakSet()
        self._planes: WeakSet[DataPlane] = WeakSet()

    def writers(self, state_partition: int) -> "ExactWriters":
        """The producer ids for a state partition."""
        shard = Shard(state_partition, self._lane.id_prefix, self._port, self.settings)
        self._shards.add(shard)
        return ExactWriters(shard)

    def engine(self, mirror: str, source: KafkaCluster | None, observe: Observer) -> "ExactEngine":
        """An engine for a mirror; without a source, it only reports a failure."""
        engine = ExactEngine(
            mirror,
            observe,
            source=None if source is None else KafkaSource(source),
            destination=self._port,
            settings=self.settings,
            random=self._lane.random,
            brokers_time_ms=self._lane.destination.brokers_time.now_ms,
            confirm_ownership=self._lane.confirm_ownership,
        )
        self._planes.add(engine.plane)
        return engine

    async def refresh(self) -> None:
        """Read how long brokers remember producers.

        A broker may have been restarted with another setting. Without an answer the last known
        value stays, which is Kafka's default at first.
        """
        expiration, settings = await expirations(self._lane.destination), self.settings
        self.settings = replace(
            settings,
            producer_expiration_ms=expiration.producer_ms or settings.producer_expiration_ms,
            ids_expiration_ms=expiration.transactional_ms or settings.ids_expiration_ms,
        )
        for plane in self._planes:
            plane.settings = self.settings
        for shard in self._shards:
            shard.settings = self.settings


class ExactWriters:
    """The producer ids of one owned state partition (`SharedWriters`)."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    @property
    def id(self) -> int:
        """The producer id of the data."""
        return self.shard.data_producer

    @property
    def must_be_taken_over(self) -> bool:
        """Whether the data has another producer id by now, which does not fence the former one."""
        return self.shard.renamed

    async def open(self, beginnings: Beginnings) -> None:
        """Learn the producer id of the data.

        Raises:
            Fenced: the lane may not write any more.
            Retriable: not now; call it again.
        """
        del beginnings  # the destination's log shows what was copied
        await self.shard.open()

    async def close(self) -> None:
        """End all background work."""
        await self.shard.close()

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """Nothing is recorded of a mirror besides its states."""

    async def seal(
        self, partitions: Mapping[MirrorPartition, Sealing]
    ) -> Mapping[MirrorPartition, Sealed | Refusal]:
        """Fence these partitions, and find where the mirrored data ends.

        It ends at the fence, or at the first foreign record before it (foreign.py), which the
        reason names.

        Raises:
            Fenced, Retriable, UserError: see `SharedWriters.seal`.
        """
        if not partitions:
            return {}
        keys = {sealing.destination: name for name, sealing in partitions.items()}
        stored_ids = {
            sealing.destination.topic: sealing.topic_id for sealing in partitions.values()
        }
        topic_ids = {
            topic: topic_id for topic, topic_id in stored_ids.items() if topic_id is not None
        }
        begun = {key for key, name in keys.items() if partitions[name].begun}
        results = await self.shard.fence(keys, topic_ids, begun)
        fences = {key: end for key, end in results.items() if not isinstance(end, Refusal)}
        producers = self.shard.data_producers
        foreign = await self.shard.foreign(
            {
                key: Searched(last_mirrored.end, fence, {*last_mirrored.producers, *producers})
                for key, fence in fences.items()
                for last_mirrored in [partitions[keys[key]].last]
            }
        )
        sealed: dict[MirrorPartition, Sealed | Refusal] = {
            keys[key]: end for key, end in results.items() if isinstance(end, Refusal)
        }
        # A fenced partition whose log cannot be read now is left out: it is sealed again.
        for key, result in foreign.items():
            name = keys[key]
            sealed[name] = (
                result
                if isinstance(result, Refusal)
                else self._sealed(fences[key], result, partitions[name])
            )
        return sealed

    def _sealed(self, fence: Offset, foreign: Foreign | None, sealing: Sealing) -> Sealed:
        """The end of the mirrored data of a fenced partition.

        Foreign control records cannot be told from the mirror's (foreign.py). They shift what the
        mirror appends behind them, and the partition is FAILED for good. So if no foreign record
        shows where the difference begins, the proven end counts.
        """
        if foreign is not None:
            return Sealed(Offset(foreign.start), str(foreign))
        if sealing.last.differs and sealing.last.end != UNKNOWN_OFFSET:
            return Sealed(min(fence, sealing.last.end))
        return Sealed(fence)


class ExactEngine:
    """The exact engine of one mirror in one lane (`Engine`).

    Args:
        mirror: its name.
        observe: called at each change of a partition's state or reason.
        source: see `DataPlane`.
        destination: see `DataPlane`.
        settings: the limits.
        random: for jitter.
        brokers_time_ms: see `DataPlane`.
        confirm_ownership: see `LaneContext`.
    """

    def __init__(
        self,
        mirror: str,
        observe: Observer,
        *,
        source: SourcePort | None,
        destination: DestinationPort,
        settings: LaneSettings,
        random: Random,
        brokers_time_ms: Callable[[], int],
        confirm_ownership: Callable[[], Awaitable[None]],
    ) -> None:
        self._mirror = mirror
        self._observe = observe
        self.plane = DataPlane(
            source,
            destination,
            settings,
            random,
            self._observed,
            brokers_time_ms=brokers_time_ms,
            confirm_ownership=confirm_ownership,
        )

    @property
    def names(self) -> Collection[MirrorPartition]:
        """The partitions that it moves."""
        return [MirrorPartition(self._mirror, *key) for key in self.plane.partitions]

    @property
    def throttle(self) -> Throttle:
        """The limit of what is fetched."""
        return self.plane.throttle

    async def run(self) -> None:
        """Mirror until cancelled.

        Raises:
            Fenced: the lane may not write any more.
        """
        await self.plane.run()

    def start(
        self, writers: SharedWriters, assignments: Collection[Assignment], *, lease_s: float
    ) -> None:
        """Mirror these partitions, too (`Engine.start`)."""
        assert isinstance(writers, ExactWriters)
        shard = writers.shard
        if not lease_s:
            shard.markers.first_owned({assignment.destination for assignment in assignments})
        shard.resumed({assignment.destination for assignment in assignments})
        self.plane.own(
            shard, [_spec(assignment, writers.id) for assignment in assignments], lease_s
        )

    async def stop(self, names: Collection[MirrorPartition]) -> None:
        """Stop mirroring these; on return nothing is in flight for them."""
        await self.plane.disown([name.source for name in names])

    def fail_all(self, reason: str) -> None:
        """Report each partition, also those that are started later, as FAILED."""
        self.plane.fail_all(reason)

    def take_news(self) -> set[int]:
        """The state partitions whose rows may have changed since the last call."""
        return self.plane.take_news()

    def progress(self, state_partitions: Collection[int] | None = None) -> list[PartitionProgress]:
        """The rows of all partitions of these state partitions; None: of all partitions."""
        now, by_shard = self.plane.now(), self.plane.by_shard
        if state_partitions is None:
            return [self._row(partition, now) for partition in self.plane.partitions.values()]
        return [
            self._row(partition, now)
            for number in state_partitions
            if number in by_shard
            for partition in by_shard[number].values()
        ]

    def limit(self, throttle: Throttle, *, lanes: int, log_start_delay_s: float) -> None:
        """Set the mirror's limits (`Engine.limit`)."""
        self.plane.set_throttle(throttle, lanes=lanes)
        self.plane.log_starts.delay_s = log_start_delay_s

    def configure(self, properties: Mapping[str, str]) -> None:
        """Nothing: it has no settings but its limits."""

    def set_rate(self, rate: float) -> None:
        """Set this lane's rate for throttled partitions, in bytes per second."""
        self.plane.fetcher.set_rate(rate)

    def take_throttled(self) -> ThrottledReads:
        """The reads of throttled partitions; `held_back` counts since the last call."""
        fetcher = self.plane.fetcher
        held_back, fetcher.held_back = fetcher.held_back, False
        return ThrottledReads(fetcher.throttled_bytes, held_back)

    def traffic(self) -> Collection[BrokerTraffic]:
        """The fetches from each source broker."""
        return [
            BrokerTraffic(broker, counts.requests, counts.bytes, counts.errors)
            for broker, counts in sorted(self.plane.fetcher.counts.items())
        ]

    def _observed(self, partition: ExactPartition) -> None:
        """Report a change; what happens to a partition after it was stopped is not reported."""
        if not partition.gone:
            self._observe(self, self._row(partition, self.plane.now()))

    def _lag_ms(
        self, partition: ExactPartition, now: float, answered_at: float | None
    ) -> int | None:
        """Age of the oldest record that is not mirrored, as in `PartitionStatus`; None: unknown."""
        append = partition.append
        if append.position is None or partition.source_high_watermark == UNKNOWN_OFFSET:
            return None
        began_at = partition.source_ends.since(append.log_end)
        if began_at is not None:
            return max(int((now - began_at) * 1000), 1)  # 0: nothing is missing
        patience = _SOURCE_SILENT_S + self.plane.settings.fetch_max_wait_ms / 1000
        return 0 if answered_at is not None and now < answered_at + patience else None

    def _row(self, partition: ExactPartition, now: float) -> PartitionProgress:
        append = partition.append
        answered_at = self.plane.fetcher.answered_at(partition)
        age_ns = 0 if answered_at is None else int((now - answered_at) * 1e9)
        end = append.log_end if append.position else UNKNOWN_OFFSET
        return PartitionProgress(
            name=MirrorPartition(self._mirror, *partition.key),
            state_partition=partition.spec.shard,
            state=_STATES[partition.stage],
            reason=partition.reason or None,
            held_back=partition.held_back or self._gap_held_back(partition) or None,
            source_end=partition.source_high_watermark,
            source_last_stable=partition.source_stable,
            mirrored_end=end,
            destination_end=end,
            records=partition.records_moved,
            bytes=partition.bytes_moved,
            lag_ms=self._lag_ms(partition, now, answered_at),
            source_time_ms=None if answered_at is None else (time.time_ns() - age_ns) // 1_000_000,
            filled=tuple(append.filled_offsets),
            gap_ms=int(partition.gap_seconds * 1000),
            epoch=partition.mirrored_epoch,
            # Not the log end offset: a foreign record in a gap looks like the filler that belongs
            # there.
            proved_end=append.own_end if append.position else UNKNOWN_OFFSET,
            differs=partition.differs,
        )

    def _gap_held_back(self, partition: ExactPartition) -> str:
        """Why its next gap is not filled now; empty if it has none, or there is no reason."""
        waits = partition.filling or partition.append.gap_to_fill is not None
        return self.plane.shard(partition).markers.held_back if waits else ""


def _spec(assignment: Assignment, data_producer: int) -> PartitionSpec:
    assert assignment.source == assignment.destination == assignment.name.source
    return PartitionSpec(
        partition=assignment.destination,
        source_topic_id=assignment.source_topic_id,
        shard=assignment.state_partition,
        compacted=assignment.compacted,
        destination_topic_id=assignment.destination_topic_id,
        of_several_ids=bool(assignment.former_writers - {data_producer}),
    )
