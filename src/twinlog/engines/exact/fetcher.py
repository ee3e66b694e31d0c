"""Reads the source: for each of its brokers fetch sessions with all partitions that it leads.

Backpressure: a partition with a full queue is left out of fetches until its queue has drained, and
no fetch is sent while the lane's buffer is full. While a partition is left out, fetches of the
others wait only briefly, so that it is fetched again soon.

Each fetch sends the leader epoch of the last record that was read. This detects a source that has
lost its end and grown again (`kafka/log/leader_epochs.py`).

Throttled partitions have fetch loops, sessions and connections of their own, so that they delay no
other partition. These loops wait for the mirror's rate (`mirror/throttle.py`). It counts batches as
the source stores them, without the part that is cut off at the end of an answer and fetched again:
about half a batch in each answer, and there is about one answer in half a second.

Small fetches are paced: the records that arrive in one interval are one Fetch and one Produce, not
one for each record. A record that arrives after an idle time does not wait.

The answer to a fetch belongs to the offsets that were requested. If a partition's position was
read again in the meantime, the partition is *touched*, by a clock that only counts these events,
and its part of the answer is dropped.
"""

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import (
    LOOK,
    CorruptRead,
    Diverged,
    FetchRefused,
    LeadersDoubted,
    Queued,
    Read,
    SourceBounds,
)
from twinlog.engines.exact.fetch_loops import FetchLoops, LoopKey, is_throttled
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.loop_steps import Steps
from twinlog.engines.ports import FetchResult
from twinlog.engines.source.jumps import believe
from twinlog.engines.source.policies import SourcePolicies
from twinlog.kafka.errors import CorruptBatch, ProtocolError, Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, Offset, TopicPartition
from twinlog.mirror.plan import Planned, planning_sound
from twinlog.mirror.throttle import TokenBucket, whole_bytes

log = logging.getLogger(__name__)

_THROTTLE_LOOK_S: Final = 0.5
"""The longest wait before the rate is checked again."""


@dataclass(slots=True)
class FetchCounts:
    """Counts of the fetches from one source broker, since the engine started."""

    requests: int = 0
    """Requests, answered or not."""
    bytes: int = 0
    """Bytes of batches in the answers."""
    errors: int = 0
    """Requests that were not answered, or refused as a whole."""


class Fetcher:
    """All fetch loops of an engine."""

    def __init__(self, plane: Plane, policies: SourcePolicies) -> None:
        self._plane = plane
        self._policies = policies
        self._keys: dict[ExactPartition, LoopKey] = {}  # of what is fetched or left out
        self._positions: defaultdict[LoopKey, dict[TopicPartition, FetchPosition]] = defaultdict(
            dict
        )
        self._left_out: defaultdict[LoopKey, set[ExactPartition]] = defaultdict(set)
        self._wake: dict[LoopKey, asyncio.Event] = {}
        self._loops = FetchLoops(plane.settings)
        self._answer_times: dict[LoopKey, float] = {}  # when the last answered fetch was sent
        self._counts_from: dict[ExactPartition, float] = {}  # see `answered_at`
        self._room = asyncio.Event()
        self._clock = 0
        self.counts: defaultdict[int, FetchCounts] = defaultdict(FetchCounts)
        """Counts by source broker."""
        self.bucket: TokenBucket | None = None
        """Limits what throttled partitions may read; None: no limit."""
        self.throttled_bytes = 0
        self.held_back = False
        """Whether a fetch of throttled partitions has waited since this was last set to False."""

    @property
    def clock(self) -> int:
        """The current time of the clock that counts touches (see the module)."""
        return self._clock

    def touch(self, partition: ExactPartition) -> None:
        """Drop a partition's part of the answers to fetches that are in flight."""
        self._clock += 1
        partition.touched = self._clock

    def update(self, partition: ExactPartition) -> None:
        """Fetch a partition from the end of its plan, unless its queue is full."""
        append = partition.append
        if partition.source_node < 0 or append.planned_end < partition.bulk_until:
            return
        if partition.follows and self._plane.now() >= partition.redirect_at:
            self.return_to_leader(partition)
        if (key := self._keys.get(partition)) is None:  # what changes its loop calls `leave`
            key = self._keys[partition] = self._loops.key(partition)
        positions, left_out = self._positions[key], self._left_out[key]
        if append.queued_bytes >= self._plane.settings.partition_queue_bytes:
            if partition not in left_out:
                partition.source_heard_at = self.answered_at(partition)
                positions.pop(partition.key, None)
                left_out.add(partition)
            return
        last_position = positions.get(partition.key)
        if last_position is None:
            left_out.discard(partition)
            self._counts_from[partition] = self._plane.now()
        elif partition.is_fetched_from(last_position):
            return  # as after most answers of the destination, which do not change the plan
        positions[partition.key] = partition.fetch_position
        if key not in self._wake:
            self._wake[key] = asyncio.Event()
            self._plane.start(self._loop(key))
        self._wake[key].set()

    def leave(self, partition: ExactPartition) -> None:
        """Stop fetching a partition."""
        if (key := self._keys.get(partition)) is not None:
            partition.source_heard_at = self.answered_at(partition)
            self._positions[key].pop(partition.key, None)
            self._left_out[key].discard(partition)
            del self._keys[partition]
            self._counts_from.pop(partition, None)

    def answered_at(self, partition: ExactPartition) -> float | None:
        """When its leader was last asked that has answered; None: none has.

        An answer counts for all partitions of its fetch, since it lists only those with news: not
        for one that has joined the loop since, and not for one that it refuses. A follower's answer
        counts for none: it may be cut off from the leader, which is asked itself (followers.py).
        """
        key = self._keys.get(partition)
        if key is None or partition.follows or partition.key not in self._positions.get(key, ()):
            return partition.source_heard_at
        asked_at = self._answer_times.get(key)
        if asked_at is None or asked_at < self._counts_from[partition]:
            return partition.source_heard_at
        return asked_at

    def set_rate(self, rate: float) -> None:
        """Set the rate of throttled partitions, in bytes per second."""
        now = self._plane.now()
        if self.bucket is None:
            self.bucket = TokenBucket(rate, now)
        else:
            self.bucket.set_rate(rate, now)

    def room(self) -> None:
        """Wake fetches that wait for room: the lane holds less than before."""
        self._room.set()

    def _bucket(self, key: LoopKey) -> TokenBucket | None:
        """The rate limit of a fetch loop."""
        return self.bucket if is_throttled(key) else None

    def _max_bytes(self, bucket: TokenBucket | None) -> int:
        """The size limit of an answer; the throttled loops share the rate equally."""
        most = self._plane.settings.fetch_max_bytes
        if bucket is None:
            return most
        loops = sum(
            1 for key, positions in self._positions.items() if positions and self._bucket(key)
        )
        return max(1, min(most, bucket.share // max(loops, 1)))

    # ---- one loop ------------------------------------------------------------------------------

    async def _loop(self, key: LoopKey) -> None:
        node, fetcher = key
        settings = self._plane.settings
        failures = 0
        while True:
            await self._something_to_do(key)
            if self._is_found_distant(node):
                continue
            clock = self._clock
            asked_at = self._plane.now()
            bucket = self._bucket(key)
            counts = self.counts[node]
            counts.requests += 1
            wait_ms = (
                settings.fetch_busy_wait_ms if self._left_out[key] else settings.fetch_max_wait_ms
            )
            try:
                result = await self._plane.source.fetch(
                    node,
                    dict(self._positions[key]),
                    max_wait_ms=wait_ms,
                    max_bytes=self._max_bytes(bucket),
                    partition_max_bytes=self._loops.partition_max_bytes(
                        key, len(self._positions[key])
                    ),
                    fetcher=fetcher,
                )
            except (Retriable, ProtocolError) as error:
                failures += 1
                counts.errors += 1
                log.info("source broker %d: %s", node, error, extra={"failures": failures})
                self._leaders_may_have_moved(key)
                await asyncio.sleep(self._plane.backoff(failures + 1))
                continue
            failures = 0
            self._loops.fetched(node, self._plane.now() - asked_at)
            if not result.throttle_ms:  # otherwise partitions with news may be left out
                self._note_answer(key, result, asked_at)
            size = sum(len(fetched.records) for fetched in result.partitions.values())
            counts.bytes += size
            if bucket is not None:
                whole = sum(whole_bytes(fetched.records) for fetched in result.partitions.values())
                bucket.spend(whole, self._plane.now())
                self.throttled_bytes += whole
            await self._take_all(result, clock)
            if result.size < settings.fetch_small_bytes and not self._left_out[key]:
                await asyncio.sleep(settings.fetch_pace_s - (self._plane.now() - asked_at))

    def _is_found_distant(self, node: int) -> bool:
        """Whether the broker is now known to be distant: its partitions get other fetch loops."""
        if not self._loops.is_new_distant(node, self._plane.source.round_trip_s(node)):
            return False
        for partition in [partition for partition, key in self._keys.items() if key[0] == node]:
            # The answer of the loop that it leaves is dropped: the new loop fetches the same.
            self.leave(partition)
            self.touch(partition)
            self._plane.emit(partition, LOOK)
        return True

    def _note_answer(self, key: LoopKey, result: FetchResult, asked_at: float) -> None:
        """Note when the source was last heard of; a partition that it refuses was not."""
        for name, fetched in result.partitions.items():
            partition = self._plane.partitions.get(name)
            if fetched.error and partition is not None and self._keys.get(partition) == key:
                partition.source_heard_at = self.answered_at(partition)
                self._counts_from[partition] = self._plane.now()
        self._answer_times[key] = asked_at

    async def _something_to_do(self, key: LoopKey) -> None:
        """Wait for partitions to fetch, for room for the answer, and for the rate."""
        settings = self._plane.settings
        while True:
            if not self._positions[key]:
                self._wake[key].clear()
                await self._wake[key].wait()
            elif self._plane.held_bytes + settings.fetch_max_bytes > settings.buffer_bytes:
                self._room.clear()
                await self._room.wait()
            elif (bucket := self._bucket(key)) and (wait := bucket.wait(self._plane.now())):
                self.held_back = True
                await asyncio.sleep(min(wait, _THROTTLE_LOOK_S))
            else:
                return

    def _leaders_may_have_moved(self, key: LoopKey) -> None:
        for name in list(self._positions[key]):
            partition = self._plane.partitions.get(name)
            if partition is not None:
                self.return_to_leader(partition)
                self._plane.emit(partition, LeadersDoubted())

    # ---- answers -------------------------------------------------------------------------------

    async def _take_all(self, result: FetchResult, clock: int) -> None:
        steps = Steps()
        nodes = set()
        for name, fetched in result.partitions.items():
            await steps.pause()
            partition = self._plane.partitions.get(name)
            if partition is not None and self._belongs(partition, clock):
                with self._plane.guard([partition]):
                    nodes.add(partition.destination_node)
                    follows = partition.follows
                    await self._take(partition, fetched, clock, steps, follower=follows)
        for node in nodes:  # not after each partition: a Produce holds batches of many
            self._plane.pump(node)

    def _belongs(self, partition: ExactPartition, clock: int) -> bool:
        """Whether the answer to a fetch of that time still applies to the partition."""
        return (
            not partition.gone
            and partition.touched <= clock
            and partition.append.phase is Phase.APPENDING
        )

    async def _take(
        self,
        partition: ExactPartition,
        fetched: Fetched,
        clock: int,
        steps: Steps,
        *,
        follower: bool,
    ) -> None:
        """Take an answer; a follower's does not prove where the source's log starts and ends."""
        emit = self._plane.emit
        if fetched.error:
            emit(partition, FetchRefused(fetched.error))
        elif fetched.diverging is not None and follower:
            # A lagging follower gives the same answer for records that it does not have yet.
            self.return_to_leader(partition)
            emit(partition, LOOK)
        elif fetched.diverging is not None:
            emit(partition, Diverged(fetched.diverging))
        else:
            bounds = Offset(fetched.high_watermark), Offset(fetched.last_stable)
            emit(partition, SourceBounds(*bounds, fetched.log_start, at_least=follower))
            if len(fetched.records):
                await self._take_records(partition, fetched, clock, steps)
            else:
                self._take_none(partition, fetched)

    async def _take_records(
        self, partition: ExactPartition, fetched: Fetched, clock: int, steps: Steps
    ) -> None:
        """Plan the records of an answer, in steps between which other tasks run."""
        position = partition.append.planned_end
        limit = self._plane.settings.buffer_bytes
        try:
            planned = await steps.finish(
                planning_sound(fetched.records, position, fetched.aborted, limit)
            )
        except CorruptBatch as error:
            if self._belongs(partition, clock):
                self._plane.emit(partition, CorruptRead(str(error)))
            return
        if not self._belongs(partition, clock) or partition.append.planned_end != position:
            return
        whole = bool(planned.pieces)
        if whole:
            self._believe(partition, planned)
        lagging = fetched.last_stable > position
        self._plane.emit(partition, Read(sound=True, explained=whole, behind=lagging))

    def _believe(self, partition: ExactPartition, planned: Planned) -> None:
        """Queue a plan; unexplained skipped offsets are read twice (jumps.py)."""
        pieces = planned.pieces
        topic = partition.key.topic
        if not (partition.spec.compacted and self._policies.compacts(topic)):
            pieces, partition.doubted, unexplained = believe(pieces, partition.doubted)
            for jump in unexplained:
                log.warning(
                    "%s: the source skips offsets [%d, %d) in both of two readings, and "
                    "cleanup.policy=compact on source and destination does not explain it",
                    partition,
                    jump.start,
                    jump.end,
                )
        if pieces:
            self._plane.emit(partition, Queued(pieces))
            if pieces[-1].end == planned.pieces[-1].end:
                partition.source_epochs.learn(partition.append.planned_end, planned.leader_epoch)

    def _take_none(self, partition: ExactPartition, fetched: Fetched) -> None:
        """Take an answer without records, which proves nothing (mirror/absence.py)."""
        lagging = fetched.last_stable > partition.append.planned_end
        if lagging:
            self._redirect(partition, fetched.preferred_replica)
        self._plane.emit(partition, Read(sound=False, explained=not lagging, behind=lagging))

    # ---- one partition alone -------------------------------------------------------------------

    def may_read_alone(self, partition: ExactPartition) -> bool:
        """Whether the buffer and the rate allow a request for this partition alone."""
        settings = self._plane.settings
        if self._plane.held_bytes + settings.partition_fetch_bytes > settings.buffer_bytes:
            return False
        bucket = self._bucket(self._loops.key(partition))
        return bucket is None or not bucket.wait(self._plane.now())

    async def take_alone(self, partition: ExactPartition, fetched: Fetched, clock: int) -> None:
        """Take the answer to a request for this partition alone.

        The partition is touched: answers of session fetches in flight are older.
        """
        bucket = self._bucket(self._loops.key(partition))
        if bucket is not None:
            size = whole_bytes(fetched.records)
            bucket.spend(size, self._plane.now())
            self.throttled_bytes += size
        await self._take(partition, fetched, clock, Steps(), follower=False)
        self._plane.pump(partition.destination_node)
        self.touch(partition)

    # ---- preferred replicas --------------------------------------------------------------------

    def _redirect(self, partition: ExactPartition, replica: int) -> None:
        """Read from the replica that the leader names (KIP-392); the leader returns no records."""
        now = self._plane.now()
        if replica < 0 or replica == partition.read_node or now < partition.redirect_at:
            return
        self.leave(partition)
        partition.source_replica = replica
        partition.redirect_at = now + self._plane.settings.leaders_max_age_s
        self.touch(partition)

    def return_to_leader(self, partition: ExactPartition) -> None:
        """Read from the leader again; it may name another replica."""
        if partition.follows:
            self.leave(partition)
            partition.source_replica = -1
            self.touch(partition)
