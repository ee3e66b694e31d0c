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

from twinlog.engines.base import Engine, PartitionProgress
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.mirror.rates import Rate
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
        self.changed: set[int] = set()
        """State partitions with news that are not written yet."""
        self._reports: dict[int, tuple[tuple[PartitionStatus, ...], float]] = {}
        self._rates: defaultdict[str, Rate] = defaultdict(lambda: Rate(RATE_S))
        self._contacts: dict[str, tuple[int, float]] = {}

    async def write(
        self, engines: Engines, stops: Mapping[int, Collection[PartitionState]]
    ) -> None:
        """Write the statuses that have changed; a failure is logged, and retried by a later call.

        Args:
            engines: of the mirrors.
            stops: for each owned state partition, the partitions that are being stopped.
        """
        pending_stops = {number: states for number, states in stops.items() if states}
        numbers = {n for n in stops if n in self.changed or n in pending_stops or self._is_old(n)}
        self.changed = set()
        rows = _rows(engines, numbers)
        present = {
            n
            for n in stops
            if n in rows or n in pending_stops or (n not in numbers and n in self._reports)
        }
        self._reports = {
            number: report for number, report in self._reports.items() if number in present
        }
        throttles = self._throttles(engines)
        first = min(present, default=-1)
        if throttles and first not in numbers:
            numbers.add(first)
            rows |= _rows(engines, {first})
        records = []
        for number in present & numbers:
            number_rows = (*rows.get(number, ()), *map(_stopping, pending_stops.get(number, ())))
            is_new = self._is_new(number, number_rows)
            if number == first and (is_new or throttles):
                records.append(self._status(number, number_rows, _fetchers(engines), throttles))
            elif is_new:
                records.append(self._status(number, number_rows))
        if not records:
            return
        try:
            answers = await append(self._cluster, [status_entry(record) for record in records])
        except TwinlogError as error:
            log.warning("cannot write statuses: %s", error)
            self._reports.clear()
        else:
            refusals = {p: a for p, a in answers.items() if isinstance(a, Refusal)}
            for partition in refusals:
                self._reports.pop(partition.partition, None)
            for partition, answer in list(refusals.items())[:1]:
                log.warning("cannot write all statuses, for example to %s: %s", partition, answer)

    def _is_old(self, number: int) -> bool:
        return number not in self._reports or time.monotonic() >= self._reports[number][1] + AGAIN_S

    def _is_new(self, number: int, rows: tuple[PartitionStatus, ...]) -> bool:
        if not self._is_old(number) and self._reports[number][0] == rows:
            return False
        self._reports[number] = rows, time.monotonic()
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
        statuses = []
        for name, engine in engines.items():
            if engine.throttle.limits:
                reads = engine.take_throttled()
                rate = self._rates[name]
                rate.count(reads.bytes, time.monotonic())
                statuses.append(
                    ThrottleStatus(name, reads.bytes, int(rate.per_second), reads.held_back)
                )
        return tuple(statuses)

    async def share(self, engines: Engines) -> None:
        """Set this lane's share of the rate of each throttled mirror."""
        throttled = {name: engine for name, engine in engines.items() if engine.throttle.limits}
        if not throttled or self._lanes == 1:
            return
        try:
            statuses, _ = await read_statuses(self._cluster)
        except TwinlogError as error:
            log.warning(
                "cannot read the statuses of other lanes, the throttle's share stays unchanged: %s",
                error,
            )
            return
        peers = self._others(statuses.values())
        for name, engine in throttled.items():
            uses = [
                Use(throttle.byte_rate, throttle.held_back)
                for status in peers
                for throttle in status.throttles
                if throttle.mirror == name
            ]
            engine.set_rate(fair_part(engine.throttle.rate, uses))

    def _others(self, statuses: Collection[Status]) -> list[Status]:
        """The last status of each other lane of this node that still reports."""
        now = time.monotonic()
        latest: dict[str, Status] = {}
        for status in sorted(statuses, key=lambda status: status.time_ms):
            if status.node == self._node and status.lane != self._lane and status.throttles:
                latest[status.lane] = status
        for lane, status in latest.items():
            # By this lane's clock: clocks of other machines may be wrong.
            if self._contacts.get(lane, (0, 0.0))[0] != status.time_ms:
                self._contacts[lane] = status.time_ms, now
        return [
            status for lane, status in latest.items() if now < self._contacts[lane][1] + SILENT_S
        ]


def _rows(engines: Engines, numbers: Collection[int]) -> dict[int, list[PartitionStatus]]:
    """The rows of those of these state partitions that have any partition."""
    rows_by_number: defaultdict[int, list[PartitionStatus]] = defaultdict(list)
    for engine in engines.values():
        for row in engine.progress(numbers):
            rows_by_number[row.state_partition].append(_row(row))
    return dict(rows_by_number)


def _fetchers(engines: Engines) -> tuple[FetcherStatus, ...]:
    return tuple(
        FetcherStatus(name, *counts)
        for name, engine in engines.items()
        for counts in engine.traffic()
    )


def _stopping(change: PartitionState) -> PartitionStatus:
    return PartitionStatus(partition=change.partition, state=change.state, reason=change.reason)


def _row(progress: PartitionProgress) -> PartitionStatus:
    return PartitionStatus(
        partition=progress.name,
        state=progress.state,
        source_end=progress.source_end,
        source_last_stable=progress.source_last_stable,
        destination_end=progress.destination_end,
        mirrored_end=None
        if progress.mirrored_end == progress.destination_end
        else progress.mirrored_end,
        records=progress.records,
        bytes=progress.bytes,
        reason=progress.reason or progress.held_back,
        lag_ms=progress.lag_ms,
        source_time_ms=progress.source_time_ms,
        filled=progress.filled,
        gap_ms=progress.gap_ms,
        losses=progress.losses,
        source_losses=progress.source_losses,
    )
