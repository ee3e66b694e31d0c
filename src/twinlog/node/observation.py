"""A node's view of all mirrors, from the control topics and the lanes' group.

    states        __mirror_state, followed as it is written
    rows          __mirror_status, read each second
    lanes         the members of the lanes' group: those that heartbeat in time

A status counts as long as it is *fresh*: its lane is a member, and it was written within `OLD_S` by
this node's own clock, so that other clocks do not matter. A stale status says nothing about now,
and is left out.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.groups.offsets import static_members
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.rates import Rate
from twinlog.mirror.states import State
from twinlog.store.control_topics import States, follow_states
from twinlog.store.snapshot import Snapshot
from twinlog.store.status_records import FetcherStatus, PartitionStatus, Status, ThrottleStatus

log = logging.getLogger(__name__)

OLD_S: Final = 15.0
"""The age of a stale status: lanes write each one every 5 s at least (runtime/status_writer.py)."""
REQUEST_RATE_S: Final = 60.0
"""The window of a fetcher's request rate (Kafka's: one minute)."""
BYTE_RATE_S: Final = 11.0
"""The window of the throttled byte rate (Kafka's: replication.quota.window.num seconds)."""
_PAUSE_S: Final = 5.0
_LONG_AGO: Final = float("-inf")
_RUNNING: Final = frozenset({State.UNKNOWN, State.PREPARING, State.MIRRORING, State.FAILED})


class ObservedPartition(NamedTuple):
    """A mirror partition; `row` is None if no fresh status has it."""

    name: MirrorPartition
    state: State
    row: PartitionStatus | None


class Fetching(NamedTuple):
    """A lane's fetches from one source broker; requests per second in the last minute."""

    lane: str
    status: FetcherStatus
    request_rate: float


class Throttled(NamedTuple):
    """A lane's fetches of throttled partitions; bytes per second in the last 11 s."""

    lane: str
    status: ThrottleStatus
    byte_rate: float


class Observed:
    """The node's view of all mirrors (see the module).

    Args:
        cluster: the destination.
        group_id: the lanes' group.
        ours: the names of this node's own lanes.
        errors: counts of failed refreshes, by mirror and metric (refresh.py).
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        group_id: str,
        ours: frozenset[str],
        errors: Counter[tuple[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ours = ours
        self.errors = errors
        self.snapshot = Snapshot()
        self.states = States({}, {})
        self._clock = clock
        self._cluster = cluster
        self._group_id = group_id
        self._members: frozenset[str] = frozenset()
        self._statuses: Mapping[int, Status] = {}
        self._updates: dict[int, tuple[int, float]] | None = None
        self._requests: defaultdict[tuple[str, str, int], Rate]
        self._requests = defaultdict(lambda: Rate(REQUEST_RATE_S))
        self._throttled: defaultdict[tuple[str, str], Rate] = defaultdict(lambda: Rate(BYTE_RATE_S))
        self._looked_at = self._alive_at = clock()

    async def run(self) -> None:
        """Follow the states, for ever."""
        while True:
            try:
                async with aclosing(follow_states(self._cluster)) as news:
                    async for states in news:
                        self.states = states
            except TwinlogError as error:
                log.warning("cannot follow the partitions' states: %s", error)
                await asyncio.sleep(_PAUSE_S)

    async def look(self, snapshot: Snapshot, statuses: Mapping[int, Status]) -> None:
        """Take what was read just now, and read which lanes are members of the group.

        Raises:
            TwinlogError: the destination does not answer.
        """
        self.take(await static_members(self._cluster, self._group_id), snapshot, statuses)

    def take(
        self, members: frozenset[str], snapshot: Snapshot, statuses: Mapping[int, Status]
    ) -> None:
        """Take the members, the snapshot and the statuses that the destination reports now."""
        self._members, self.snapshot, self._statuses = members, snapshot, statuses
        now = self._looked_at = self._clock()
        if self.alive:
            self._alive_at = now
        if self._updates is None:
            # The age of these statuses is unknown; a living lane writes again soon.
            self._updates = {n: (status.time_ms, _LONG_AGO) for n, status in statuses.items()}
        for number, status in statuses.items():
            if self._updates.get(number, (None, 0.0))[0] != status.time_ms:
                self._updates[number] = status.time_ms, now
                self._count(status)

    def _count(self, status: Status) -> None:
        at = status.time_ms / 1000
        for fetcher in status.fetchers:
            key = (status.lane, fetcher.mirror, fetcher.broker)
            self._requests[key].count(fetcher.requests, at)
        for throttle in status.throttles:
            self._throttled[status.lane, throttle.mirror].count(throttle.bytes, at)

    # ---- the view ------------------------------------------------------------------------------

    @property
    def alive(self) -> frozenset[str]:
        """The lanes of this node that are members of the group."""
        return self.ours & self._members

    @property
    def silent_s(self) -> float:
        """Seconds since the destination last answered all requests of a poll."""
        return self._clock() - self._looked_at

    @property
    def dead_s(self) -> float:
        """Seconds from the last poll with a living lane of this node (or the start) to the last."""
        return self._looked_at - self._alive_at

    def partitions(self) -> Iterator[ObservedPartition]:
        """All mirror partitions."""
        rows = {row.partition: row for status in self._fresh() for row in status.partitions}
        for topic in self.snapshot.topics:
            for name in topic.mirror_partitions:
                state = self.states.state(name)
                yield ObservedPartition(name, state, rows.get(name) if state in _RUNNING else None)

    def fetching(self) -> Iterator[Fetching]:
        """The fetches of each living lane."""
        for lane, status in self._lanes().items():
            for fetcher in status.fetchers:
                rate = self._requests[lane, fetcher.mirror, fetcher.broker].per_second
                yield Fetching(lane, fetcher, rate)

    def throttled(self) -> Iterator[Throttled]:
        """The fetches of throttled partitions of each living lane."""
        for lane, status in self._lanes().items():
            for throttle in status.throttles:
                yield Throttled(lane, throttle, self._throttled[lane, throttle.mirror].per_second)

    def _fresh(self) -> Iterator[Status]:
        oldest = self._clock() - OLD_S
        updates = self._updates or {}
        for number, status in self._statuses.items():
            if status.lane in self._members and updates[number][1] > oldest:
                yield status

    def _lanes(self) -> dict[str, Status]:
        """The last fresh status of each lane that has figures of the lane itself."""
        latest: dict[str, Status] = {}
        for status in sorted(self._fresh(), key=lambda status: status.time_ms):
            if status.fetchers or status.throttles:
                latest[status.lane] = status
        return latest
