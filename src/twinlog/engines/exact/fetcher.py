"""Reads the source: for each of its brokers a fetch session with all partitions that it leads.

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
from typing import TYPE_CHECKING, Final
from zlib import crc32

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.jumps import believe
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.ports import FetchResult
from twinlog.kafka.errors import CorruptBatch, ProtocolError, Reaction, Retriable, code_of
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, FetchPosition, Offset, TopicPartition
from twinlog.mirror.plan import Piece, Planned, Planning, planning_sound
from twinlog.mirror.throttle import TokenBucket, whole_bytes

if TYPE_CHECKING:
    from twinlog.engines.exact.data_plane import DataPlane

log = logging.getLogger(__name__)

_Key = tuple[int, int]  # source broker, fetcher

_STEP_S: Final = 0.003
"""How long a plan may block the event loop."""
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


class Steps:
    """Yields to the event loop between steps: heartbeats must not wait for a plan."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._began = self._now()

    async def pause(self) -> None:
        """Yield to other tasks, if the last time was more than `_STEP_S` ago."""
        if self._now() - self._began > _STEP_S:
            await asyncio.sleep(0)
            self._began = self._now()

    async def finish(self, planning: Planning) -> Planned:
        """Run a plan to its end."""
        while True:
            try:
                next(planning)
            except StopIteration as stop:
                planned: Planned = stop.value
                return planned
            await self.pause()


class Fetcher:
    """All fetch loops of an engine."""

    def __init__(self, engine: "DataPlane") -> None:
        self._engine = engine
        self._wanted: defaultdict[_Key, dict[TopicPartition, FetchPosition]] = defaultdict(dict)
        self._left_out: defaultdict[_Key, set[ExactPartition]] = defaultdict(set)
        self._wake: dict[_Key, asyncio.Event] = {}
        self._answered: dict[_Key, float] = {}
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

    def touch(self) -> int:
        """Advance the clock: answers to fetches that are in flight are older."""
        self._clock += 1
        return self._clock

    def update(self, partition: ExactPartition) -> None:
        """Fetch a partition from the end of its plan, unless its queue is full."""
        append = partition.append
        if partition.source_node < 0 or append.planned_end < partition.bulk_until:
            return
        if partition.source_replica >= 0 and self._engine.now() >= partition.redirect_at:
            self.return_to_leader(partition)
        key = self._key(partition)
        if append.queued_bytes >= self._engine.settings.partition_queue_bytes:
            partition.source_heard_at = self.answered_at(partition)
            self._wanted[key].pop(partition.key, None)
            self._left_out[key].add(partition)
            return
        self._left_out[key].discard(partition)
        self._wanted[key][partition.key] = partition.fetch_position
        if key not in self._wake:
            self._wake[key] = asyncio.Event()
            self._engine.start(self._loop(key))
        self._wake[key].set()

    def leave(self, partition: ExactPartition) -> None:
        """Stop fetching a partition."""
        key = self._key(partition)
        if key in self._wake:
            partition.source_heard_at = self.answered_at(partition)
            self._wanted[key].pop(partition.key, None)
            self._left_out[key].discard(partition)

    def answered_at(self, partition: ExactPartition) -> float | None:
        """When the last answered fetch of this partition was sent; None: none was answered.

        Each answer counts for all partitions of its fetch, since it lists only those with news.
        """
        key = self._key(partition)
        if partition.key not in self._wanted.get(key, ()):
            return partition.source_heard_at
        return self._answered.get(key, partition.source_heard_at)

    def room(self) -> None:
        """Wake fetches that wait for room: the lane holds less than before."""
        self._room.set()

    def _key(self, partition: ExactPartition) -> _Key:
        fetchers = self._engine.settings.fetchers_per_broker
        own = fetchers if partition.throttled else 0
        if fetchers == 1:
            return partition.read_node, own
        topic, index = partition.key  # the topic too: topics of one partition are spread as well
        return partition.read_node, own + (crc32(topic.encode()) + index) % fetchers

    def _bucket(self, key: _Key) -> TokenBucket | None:
        """The rate limit of a fetch loop."""
        return self.bucket if key[1] >= self._engine.settings.fetchers_per_broker else None

    def _max_bytes(self, bucket: TokenBucket | None) -> int:
        """The size limit of an answer; the throttled loops share the rate equally."""
        most = self._engine.settings.fetch_max_bytes
        if bucket is None:
            return most
        loops = sum(1 for key, wanted in self._wanted.items() if wanted and self._bucket(key))
        return max(1, min(most, bucket.share // max(loops, 1)))

    # ---- one loop ------------------------------------------------------------------------------

    async def _loop(self, key: _Key) -> None:
        node, fetcher = key
        settings = self._engine.settings
        failures = 0
        while True:
            await self._something_to_do(key)
            started = self._clock
            asked_at = self._engine.now()
            bucket = self._bucket(key)
            counts = self.counts[node]
            counts.requests += 1
            wait_ms = (
                settings.fetch_busy_wait_ms if self._left_out[key] else settings.fetch_max_wait_ms
            )
            try:
                result = await self._engine.source.fetch(
                    node,
                    dict(self._wanted[key]),
                    max_wait_ms=wait_ms,
                    max_bytes=self._max_bytes(bucket),
                    partition_max_bytes=settings.partition_fetch_bytes,
                    fetcher=fetcher,
                )
            except (Retriable, ProtocolError) as error:
                failures += 1
                counts.errors += 1
                log.info("source broker %d: %s", node, error, extra={"failures": failures})
                self._leaders_may_have_moved(key)
                await asyncio.sleep(settings.backoff.delay(failures + 1, self._engine.jitter()))
                continue
            failures = 0
            if not result.throttle_ms:  # otherwise partitions with news may be left out
                self._answered[key] = asked_at
            size = sum(len(fetched.records) for fetched in result.partitions.values())
            counts.bytes += size
            if bucket is not None:
                whole = sum(whole_bytes(fetched.records) for fetched in result.partitions.values())
                bucket.spend(whole, self._engine.now())
                self.throttled_bytes += whole
            await self._take_all(result, started)
            if result.size < settings.fetch_small_bytes and not self._left_out[key]:
                await asyncio.sleep(settings.fetch_pace_s - (self._engine.now() - asked_at))

    async def _something_to_do(self, key: _Key) -> None:
        """Wait for partitions to fetch, for room for the answer, and for the rate."""
        settings = self._engine.settings
        while True:
            if not self._wanted[key]:
                self._wake[key].clear()
                await self._wake[key].wait()
            elif self._engine.held_bytes + settings.fetch_max_bytes > settings.buffer_bytes:
                self._room.clear()
                await self._room.wait()
            elif (bucket := self._bucket(key)) and (wait := bucket.wait(self._engine.now())):
                self.held_back = True
                await asyncio.sleep(min(wait, _THROTTLE_LOOK_S))
            else:
                return

    def _leaders_may_have_moved(self, key: _Key) -> None:
        for name in list(self._wanted[key]):
            partition = self._engine.partitions.get(name)
            if partition is not None:
                self.return_to_leader(partition)
                self._engine.leaders_are_stale(partition)

    # ---- answers -------------------------------------------------------------------------------

    async def _take_all(self, result: FetchResult, started: int) -> None:
        steps = Steps()
        nodes = set()
        for name, fetched in result.partitions.items():
            await steps.pause()
            partition = self._engine.partitions.get(name)
            if partition is not None and self._belongs(partition, started):
                with self._engine.guard([partition]):
                    nodes.add(partition.destination_node)
                    follower = partition.source_replica >= 0
                    await self._take(partition, fetched, started, steps, follower=follower)
        for node in nodes:  # not after each partition: a Produce holds batches of many
            self._engine.pump(node)

    def _belongs(self, partition: ExactPartition, started: int) -> bool:
        """Whether the answer to a fetch of that time still applies to the partition."""
        return (
            self._engine.holds(partition)
            and partition.touched <= started
            and partition.append.phase is Phase.APPENDING
        )

    async def _take(
        self,
        partition: ExactPartition,
        fetched: Fetched,
        started: int,
        steps: "Steps",
        *,
        follower: bool,
    ) -> None:
        """Take an answer; a follower's does not prove where the source's log starts and ends."""
        if fetched.error:
            self._refused(partition, fetched.error)
        elif fetched.diverging is not None and follower:
            # A lagging follower gives the same answer for records that it does not have yet.
            self.return_to_leader(partition)
            self._engine.advance(partition)
        elif fetched.diverging is not None:
            self._diverged(partition, fetched.diverging)
        elif len(fetched.records):
            self._note_ends(partition, fetched, follower=follower)
            await self._take_records(partition, fetched, started, steps)
        else:
            self._note_ends(partition, fetched, follower=follower)
            self._take_none(partition, fetched)

    def _note_ends(self, partition: ExactPartition, fetched: Fetched, *, follower: bool) -> None:
        high_watermark, stable = Offset(fetched.high_watermark), Offset(fetched.last_stable)
        if follower:
            high_watermark = max(high_watermark, partition.source_high_watermark)
            stable = max(stable, partition.source_stable)
        else:
            self._engine.source_starts_at(partition, fetched.log_start)
        partition.source_high_watermark = high_watermark
        partition.source_ends.seen(high_watermark, self._engine.now())
        partition.source_stable = stable

    async def _take_records(
        self, partition: ExactPartition, fetched: Fetched, started: int, steps: "Steps"
    ) -> None:
        """Plan the records of an answer, in steps between which other tasks run."""
        position = partition.append.planned_end
        limit = self._engine.settings.buffer_bytes
        try:
            planned = await steps.finish(
                planning_sound(fetched.records, position, fetched.aborted, limit)
            )
        except CorruptBatch as error:
            if self._belongs(partition, started):
                self._corrupt(partition, error)
            return
        if not self._belongs(partition, started) or partition.append.planned_end != position:
            return
        partition.corrupt_reads = 0
        if planned.pieces:
            self._engine.absences.clear(partition)
            self._believe(partition, planned)
        elif fetched.last_stable > position:
            self._engine.absences.suspect(partition)  # less than one batch
        if partition.append.idle:
            partition.attempts = 0  # all that was planned is appended, so nothing is left to retry
        self._engine.advance(partition)

    def _believe(self, partition: ExactPartition, planned: Planned) -> None:
        """Queue a plan; unexplained skipped offsets are read twice (jumps.py)."""
        pieces = planned.pieces
        topic = partition.key.topic
        if not (partition.spec.compacted and self._engine.policies.compacts(topic)):
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
            self._engine.offer(partition, pieces)
            if pieces[-1].end == planned.pieces[-1].end:
                partition.source_epochs.learn(partition.append.planned_end, planned.leader_epoch)

    def _take_none(self, partition: ExactPartition, fetched: Fetched) -> None:
        """Take an answer without records, which proves nothing (mirror/absence.py)."""
        append = partition.append
        if append.idle:
            partition.attempts = 0
        if fetched.last_stable <= append.planned_end:
            self._engine.absences.clear(partition)
        else:
            self._engine.absences.suspect(partition)
            self._redirect(partition, fetched.preferred_replica)
        self._engine.advance(partition)

    # ---- one partition alone -------------------------------------------------------------------

    def may_read_alone(self, partition: ExactPartition) -> bool:
        """Whether the buffer and the rate allow a request for this partition alone."""
        settings = self._engine.settings
        if self._engine.held_bytes + settings.partition_fetch_bytes > settings.buffer_bytes:
            return False
        bucket = self._bucket(self._key(partition))
        return bucket is None or not bucket.wait(self._engine.now())

    async def take_alone(self, partition: ExactPartition, fetched: Fetched, started: int) -> None:
        """Take the answer to a request for this partition alone.

        The partition is touched: answers of session fetches in flight are older.
        """
        bucket = self._bucket(self._key(partition))
        if bucket is not None:
            size = whole_bytes(fetched.records)
            bucket.spend(size, self._engine.now())
            self.throttled_bytes += size
        await self._take(partition, fetched, started, Steps(), follower=False)
        self._engine.pump(partition.destination_node)
        partition.touched = self.touch()

    def touch_and_offer(self, partition: ExactPartition, pieces: list[Piece]) -> None:
        """Queue pieces that did not come from a session's answer."""
        partition.touched = self.touch()
        self._engine.offer(partition, pieces)
        self._engine.advance(partition)

    # ---- preferred replicas --------------------------------------------------------------------

    def _redirect(self, partition: ExactPartition, replica: int) -> None:
        """Read from the replica that the leader names (KIP-392); the leader returns no records."""
        now = self._engine.now()
        if replica < 0 or replica == partition.read_node or now < partition.redirect_at:
            return
        self.leave(partition)
        partition.source_replica = replica
        partition.redirect_at = now + self._engine.settings.leaders_max_age_s
        partition.touched = self.touch()

    def return_to_leader(self, partition: ExactPartition) -> None:
        """Read from the leader again; it may name another replica."""
        if partition.source_replica >= 0:
            self.leave(partition)
            partition.source_replica = -1
            partition.touched = self.touch()

    def _corrupt(self, partition: ExactPartition, error: CorruptBatch) -> None:
        """Read again, in case the network corrupted the batch; fail if it stays corrupt."""
        partition.corrupt_reads += 1
        if partition.corrupt_reads < self._engine.settings.corrupt_reads:
            self._engine.trouble(partition, f"what the source sent is corrupt: {error}")
        else:
            self._engine.fail(
                partition, f"the source's log holds a corrupt batch: {error}", transient=True
            )

    def _diverged(self, partition: ExactPartition, source: EpochEnd) -> None:
        """Handle a source that has lost the end of its log since it was read.

        If only queued or in-flight records may be lost, the position is read again: the records
        that have landed may still be the source's.
        """
        append = partition.append
        position = partition.fetch_position
        if append.idle or append.log_end > source.end_offset:
            self._engine.fail(
                partition,
                f"the source has lost records that were mirrored: they reach up to offset "
                f"{append.log_end} of leader epoch {position.last_epoch}, the source's epoch "
                f"{source.leader_epoch} ends at offset {source.end_offset} and others follow",
            )
        else:
            self._engine.trouble(
                partition, f"the source has lost records from offset {source.end_offset} on"
            )

    def _refused(self, partition: ExactPartition, code: int) -> None:
        if partition.source_replica >= 0:
            self.return_to_leader(partition)
            self._engine.advance(partition)
        elif code_of(code).reaction is Reaction.METADATA:
            self.leave(partition)
            partition.source_node = -1
            self._engine.leaders_are_stale(partition)
        else:
            # This includes OFFSET_OUT_OF_RANGE: the placer finds out which end was passed.
            self._engine.trouble(partition, "the source refused a fetch", code)
