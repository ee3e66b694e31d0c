"""The statuses that a lane writes to `__mirror_status` each second, and reads of other lanes.

- A status of a state partition is written when it has changed, and again after `AGAIN_S`. So an
  older status has no owner. Until then no record is built for a state partition whose engines have
  no news.
- Partitions that are being stopped are in no engine any more. They are reported, too: a refused
  stop may take hours, and the partition has an owner.
- The lane's own figures (fetchers, throttles) are in the first of its records.

The lanes of a node share the rate of a throttled mirror (mirror/throttle.py, `fair_part`),
according to the rate that each lane reports.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from twinlog.engines.exact.engine import Engine
from twinlog.engines.exact.partition import MirrorPartition, Stage
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.mirror.placement import MirrorPartition as Name
from twinlog.mirror.rates import Rate
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Use, fair_part
from twinlog.store.control_topics import read_statuses, status_entry
from twinlog.store.state_records import PartitionState
from twinlog.store.status_records import FetcherStatus, PartitionStatus, Status, ThrottleStatus
from twinlog.store.topic_writer import append

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""The time after which an unchanged status is written again."""
SHARE_S: Final = 1.0
"""The interval of checks of how fast the node's other lanes read throttled partitions."""
RATE_S: Final = 2.0
"""The window of the rate that a lane reports."""
SILENT_S: Final = 5.0
"""The time after which a lane with an unchanged status counts as reading nothing."""

STATES: Final = {
    Stage.PREPARING: State.PREPARING,
    Stage.MIRRORING: State.MIRRORING,
    Stage.FAILED: State.FAILED,
}

Engines = Mapping[str, Engine]


class Reporter:
    """Writes a lane's statuses, and reads those of its node's other lanes.

    Args:
        cluster: the destination.
        node: the lane's node.
        lane: the lane's name.
        lanes: how many lanes the node has.
    """

    def __init__(self, cluster: KafkaCluster, node: str, lane: str, lanes: int) -> None:
        self._cluster = cluster
        self._node = node
        self._lane = lane
        self._lanes = lanes
        self._said: dict[int, tuple[tuple[PartitionStatus, ...], float]] = {}
        self._rates: defaultdict[str, Rate] = defaultdict(lambda: Rate(RATE_S))
        self._heard: dict[str, tuple[int, float]] = {}

    async def write(
        self, engines: Engines, stops: Mapping[int, Collection[PartitionState]]
    ) -> None:
        """Write the statuses that have changed; a failure is logged, and retried by a later call.

        Args:
            engines: of the mirrors.
            stops: for each owned state partition, the partitions that are being stopped.
        """
        news = {number for engine in engines.values() for number in engine.take_news()}
        mirrored = _by_shard(engines, stops.keys())
        stopped = {number: some for number, some in stops.items() if some}
        there = mirrored.keys() | stopped.keys()
        self._said = {number: said for number, said in self._said.items() if number in there}
        throttles = self._throttles(engines)
        first = min(there, default=-1)
        records = []
        for number in there:
            speaks = number == first and bool(throttles)
            asks = speaks or number in news or number in stopped
            if not asks and not self._is_old(number):
                continue
            now = Engine.now()
            rows = (
                *(_row(*one, now) for one in mirrored.get(number, ())),
                *(_stopping(one) for one in stopped.get(number, ())),
            )
            due = self._is_due(number, rows)
            if number == first and (due or throttles):
                records.append(self._status(number, rows, _fetchers(engines), throttles))
            elif due:
                records.append(self._status(number, rows))
        if not records:
            return
        try:
            answers = await append(self._cluster, [status_entry(record) for record in records])
        except TwinlogError as error:
            log.warning("progress could not be written: %s", error)
            self._said.clear()
        else:
            refused = {p: a for p, a in answers.items() if isinstance(a, Refusal)}
            for where in refused:
                self._said.pop(where.partition, None)
            for where, answer in list(refused.items())[:1]:
                log.warning("progress could not be written, to %s for one: %s", where, answer)

    def _is_old(self, number: int) -> bool:
        return number not in self._said or time.monotonic() >= self._said[number][1] + AGAIN_S

    def _is_due(self, number: int, rows: tuple[PartitionStatus, ...]) -> bool:
        if not self._is_old(number) and self._said[number][0] == rows:
            return False
        self._said[number] = rows, time.monotonic()
        return True

    def _status(
        self,
        number: int,
        rows: Iterable[PartitionStatus],
        fetchers: tuple[FetcherStatus, ...] = (),
        throttles: tuple[ThrottleStatus, ...] = (),
    ) -> Status:
        return Status(
            state_partition=number,
            lane=self._lane,
            node=self._node,
            time_ms=time.time_ns() // 1_000_000,
            partitions=tuple(rows),
            fetchers=fetchers,
            throttles=throttles,
        )

    # ---- throttled partitions ------------------------------------------------------------------

    def _throttles(self, engines: Engines) -> tuple[ThrottleStatus, ...]:
        """The throttled reads of each mirror that has throttled partitions."""
        found = []
        for name, engine in engines.items():
            if engine.throttle.limits:
                fetcher = engine.fetcher
                size, held_back = fetcher.throttled_bytes, fetcher.held_back
                fetcher.held_back = False
                rate = self._rates[name]
                rate.count(size, time.monotonic())
                found.append(ThrottleStatus(name, size, int(rate.per_second), held_back))
        return tuple(found)

    async def share(self, engines: Engines) -> None:
        """Set this lane's share of the rate of each throttled mirror."""
        throttled = {name: one for name, one in engines.items() if one.throttle.limits}
        if not throttled or self._lanes == 1:
            return
        try:
            statuses, _ = await read_statuses(self._cluster)
        except TwinlogError as error:
            log.warning("what the other lanes read is not known: %s", error)
            return
        others = self._others(statuses.values())
        for name, engine in throttled.items():
            uses = [
                Use(one.byte_rate, one.held_back)
                for status in others
                for one in status.throttles
                if one.mirror == name
            ]
            engine.set_rate(fair_part(engine.throttle.rate, uses))

    def _others(self, statuses: Collection[Status]) -> list[Status]:
        """The last status of each other lane of this node that still reports."""
        now = time.monotonic()
        last: dict[str, Status] = {}
        for status in sorted(statuses, key=lambda one: one.time_ms):
            if status.node == self._node and status.lane != self._lane and status.throttles:
                last[status.lane] = status
        for lane, status in last.items():
            # By this lane's clock: clocks of other machines may be wrong.
            if self._heard.get(lane, (0, 0.0))[0] != status.time_ms:
                self._heard[lane] = status.time_ms, now
        return [status for lane, status in last.items() if now < self._heard[lane][1] + SILENT_S]


def _by_shard(
    engines: Engines, owned: Collection[int]
) -> Mapping[int, list[tuple[str, Engine, MirrorPartition]]]:
    """The mirror partitions of each of these state partitions, with their mirror and engine."""
    there: defaultdict[int, list[tuple[str, Engine, MirrorPartition]]] = defaultdict(list)
    for name, engine in engines.items():
        for partition in engine.partitions.values():
            if partition.spec.shard in owned:
                there[partition.spec.shard].append((name, engine, partition))
    return there


def _fetchers(engines: Engines) -> tuple[FetcherStatus, ...]:
    return tuple(
        FetcherStatus(name, broker, counts.requests, counts.bytes, counts.errors)
        for name, engine in engines.items()
        for broker, counts in sorted(engine.fetcher.counts.items())
    )


def _stopping(one: PartitionState) -> PartitionStatus:
    return PartitionStatus(partition=one.partition, state=one.state, reason=one.reason)


def _row(mirror: str, engine: Engine, partition: MirrorPartition, now: float) -> PartitionStatus:
    answered = engine.source_answered_at(partition)
    age_ns = 0 if answered is None else int((now - answered) * 1e9)
    return PartitionStatus(
        partition=Name(mirror, partition.key.topic, partition.key.partition),
        state=STATES[partition.stage],
        source_end=partition.source_high_watermark,
        source_last_stable=partition.source_stable,
        destination_end=partition.append.log_end if partition.append.position else -1,
        records=partition.records_moved,
        bytes=partition.bytes_moved,
        reason=partition.reason or partition.held_back or None,
        lag_ms=engine.lag_ms(partition, now),
        source_time_ms=None if answered is None else (time.time_ns() - age_ns) // 1_000_000,
        filled=tuple(partition.append.filled_offsets),
    )
