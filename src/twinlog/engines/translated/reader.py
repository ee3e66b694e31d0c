"""Reads the source of a flow: one fetch session for each of its brokers.

A partition is read from its leader, or from the replica that the leader names (KIP-392). What such
a follower answers without records proves nothing: it may lag, or be cut off from the leader, which
is asked itself how far the source reaches (source/leader_bounds.py).

Throttled partitions have a session of their own, which waits for the rate (mirror/throttle.py).

An answer belongs to the sequence that it was asked for: if the partition is located again in the
meantime, the answer is dropped. So is a plan of it, during which other tasks run (loop_steps.py): a
partition may be revoked then, or have another leader, whose answer is planned first. An answer
without records proves nothing (source/absences.py).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from twinlog.engines.base import BrokerTraffic, ThrottledReads
from twinlog.engines.loop_steps import Steps
from twinlog.engines.ports import SourcePort
from twinlog.engines.source.absences import Absences
from twinlog.engines.source.jumps import believe, skips
from twinlog.engines.source.leader_bounds import LeaderBounds
from twinlog.engines.source.policies import SourcePolicies
from twinlog.engines.translated.followers import FlowFollowers
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, SourceQueue
from twinlog.engines.translated.suspects import FlowSuspects
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    CorruptBatch,
    ProtocolError,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    code_of,
)
from twinlog.kafka.log.merge import MERGED_BYTES
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.plan import Gap, planning_sound
from twinlog.mirror.throttle import TokenBucket, whole_bytes

log = logging.getLogger(__name__)

_THROTTLE_LOOK_S: Final = 0.5
"""The longest wait for the rate, which may change meanwhile."""
_SHORTER_S: Final = 30.0
"""How long a source's log has to be shorter than what was read until that is believed: the answers
may be those of a former leader that is cut off from the others."""

Loop = tuple[int, bool]
"""A broker, and whether its throttled partitions are read."""
_Partition = FlowPartition[Any, Any]
Asked = dict[TopicPartition, tuple[_Partition, SourceQueue, Offset]]
"""The partitions of a fetch, their sequences then, and the offsets that were asked for."""


class _NextFetch(NamedTuple):
    """What a loop reads now, and whether it leaves out partitions that may have room soon."""

    asked: Asked
    left_out: bool


class FlowReader:
    """The fetches of a flow."""

    def __init__(self, flow: FlowPartitions[Any, Any], source: SourcePort) -> None:
        self._flow = flow
        self._source = source
        self._counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.policies = SourcePolicies(flow.all, flow.pause)
        """Which topics of the source compact."""
        self.absences = Absences[_Partition](FlowSuspects(flow, source))
        """The partitions whose source has offsets, and answers without records."""
        self.leader_bounds = LeaderBounds[_Partition](FlowFollowers(flow, source))
        """How far partitions reach that are read from followers."""
        self._bucket: TokenBucket | None = None
        self._throttled_bytes = 0
        self._held_back = False

    def loops(self) -> set[Loop]:
        """What is to be read: brokers, and whether their throttled partitions."""
        throttle = self._flow.throttle
        return {
            (partition.read_node, throttle.covers(partition.source))
            for partition, _ in self._flow.copying
            if partition.read_node >= 0
        }

    def set_rate(self, rate: float) -> None:
        """Set the rate of throttled partitions, in bytes per second."""
        now = self._flow.now()
        if self._bucket is None:
            self._bucket = TokenBucket(rate, now)
        else:
            self._bucket.set_rate(rate, now)

    def take_throttled(self) -> ThrottledReads:
        """The reads of throttled partitions; `held_back` counts since the last call."""
        held_back, self._held_back = self._held_back, False
        return ThrottledReads(self._throttled_bytes, held_back)

    @property
    def traffic(self) -> list[BrokerTraffic]:
        """Requests, bytes and errors of each source broker."""
        return [BrokerTraffic(node, *counts) for node, counts in sorted(self._counts.items())]

    async def read(self, loop: Loop) -> None:
        """Read from one broker, as long as it leads partitions with room."""
        node, throttled = loop
        flow, settings, counts, failures = self._flow, self._flow.settings, self._counts[node], 0
        while (due := self._due(loop)).asked:
            asked, left_out = due
            bucket = self._bucket if throttled else None
            max_bytes = settings.fetch_max_bytes
            if bucket is not None:
                if wait := bucket.wait(flow.now()):
                    self._held_back = True
                    await asyncio.sleep(min(wait, _THROTTLE_LOOK_S))
                    continue
                loops = sum(covered for _, covered in self.loops())
                max_bytes = max(1, min(max_bytes, bucket.share // max(loops, 1)))
            asked_at = flow.now()
            # One that has no room now may have it soon: the broker must not wait for the others.
            wait_ms = settings.fetch_busy_wait_ms if left_out else settings.fetch_max_wait_ms
            counts[0] += 1
            followers = {key for key, (partition, _, _) in asked.items() if partition.follows}
            try:
                result = await self._source.fetch(
                    node,
                    {
                        key: FetchPosition(
                            offset, sequence.epochs.before(offset), partition.source_leader_epoch
                        )
                        for key, (partition, sequence, offset) in asked.items()
                    },
                    max_wait_ms=wait_ms,
                    max_bytes=max_bytes,
                    partition_max_bytes=settings.partition_fetch_bytes,
                    fetcher=int(throttled),
                )
            except (Retriable, ProtocolError) as error:
                counts[2] += 1
                failures += 1
                log.info("source broker %d: %s", node, error)
                self._leaders_may_have_moved(asked, str(error))
                await asyncio.sleep(flow.pause(failures + 1))
                continue
            failures = 0
            if bucket is not None:
                whole = sum(whole_bytes(one.records) for one in result.partitions.values())
                bucket.spend(whole, flow.now())
                self._throttled_bytes += whole
            steps = Steps()
            for key, fetched in result.partitions.items():
                await steps.pause()
                if key in asked:
                    counts[1] += len(fetched.records)
                    follower = key in followers
                    self._note_ends(node, *asked[key][:2], fetched, at_least=follower)
                    await self._take(*asked[key], fetched, steps, follower=follower)
            if not result.throttle_ms:  # otherwise partitions with news may be left out
                # One without news is left out of an answer; a refused one is not heard of.
                silent = {key for key, one in result.partitions.items() if one.error}
                self._heard(asked, silent | followers, asked_at)
                self._suspect_without_news(asked, result.partitions)
            flow.changed.set()
            if result.size < settings.fetch_small_bytes:
                await asyncio.sleep(settings.fetch_pace_s - (flow.now() - asked_at))

    def _heard(self, asked: Asked, others: Collection[TopicPartition], asked_at: float) -> None:
        """Note when the source's leader was last heard of, except for these other partitions."""
        for key, (partition, sequence, _) in asked.items():
            if partition.sequence is sequence and key not in others:
                partition.heard_at = asked_at

    def _suspect_without_news(self, asked: Asked, answered: Collection[TopicPartition]) -> None:
        """Suspect partitions that the source is known to have more of, and that it leaves out.

        Its session has no news of a partition that is asked for at the same position as before,
        also if it was located again in between.
        """
        for key in asked.keys() - answered:
            partition, sequence, offset = asked[key]
            if _belongs(partition, sequence, offset) and partition.source_stable > offset:
                self.absences.suspect(partition)

    def _leaders_may_have_moved(self, asked: Asked, why: str) -> None:
        for partition, _, _ in asked.values():
            partition.return_to_leader(why)
        self._flow.ask_leaders()

    def _loop_of(self, partition: _Partition) -> Loop:
        return partition.read_node, self._flow.throttle.covers(partition.source)

    def _due(self, loop: Loop) -> _NextFetch:
        settings, copying = self._flow.settings, self._flow.copying
        held = sum(sequence.queued_bytes for _, sequence in copying)
        if held + settings.fetch_max_bytes > settings.buffer_bytes:
            return _NextFetch({}, left_out=False)
        now, asks_blocked = self._flow.now(), self._flow.blocked_room > 0
        asked: Asked = {}
        starved: list[tuple[_Partition, SourceQueue]] = []
        left_out = False
        for partition, sequence in copying:
            if partition.source_replica >= 0 and now >= partition.redirect_at:
                partition.source_replica = -1  # the leader may name another one
            if self._loop_of(partition) != loop:
                continue
            has_room = sequence.queued_bytes < settings.partition_queue_bytes
            if partition.blocked:
                has_room = has_room and now >= partition.read_at
                if has_room and not asks_blocked:
                    starved.append((partition, sequence))
                    continue
            else:
                left_out = left_out or not has_room
            if has_room:
                asked[partition.source] = partition, sequence, sequence.position
        # What others cannot drop now is in flight, or in a plan that is being stored: it ends.
        may_starve = starved and 2 * self._flow.blocked_bytes >= settings.buffer_bytes
        if not may_starve and (longest := _longest_starved(starved)):
            partition, sequence = longest
            partition.read_at = now  # another one's turn is next
            asked[partition.source] = partition, sequence, sequence.position
        return _NextFetch(asked, left_out)

    async def _take(
        self,
        partition: _Partition,
        sequence: SourceQueue,
        offset: int,
        fetched: Fetched,
        steps: Steps,
        *,
        follower: bool,
    ) -> None:
        """Take an answer; a follower's does not prove where the source's log starts and ends."""
        if not _belongs(partition, sequence, offset):
            return
        if follower and (why := _refusal(fetched)):
            # A lagging follower gives the same answers for records that it does not have yet.
            partition.return_to_leader(why)
        elif fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._passed(partition, sequence, offset)
        elif fetched.error and code_of(fetched.error).reaction is Reaction.METADATA:
            partition.source_node = -1
            self._flow.ask_leaders()
        elif fetched.error:
            self._flow.trouble(partition, f"the source refuses: {Refusal(fetched.error)}")
        elif fetched.diverging is not None:
            self._flow.diverged(partition, sequence, fetched.diverging)
        else:
            partition.shorter_since = None
            lags = fetched.last_stable > offset
            if not follower and 0 <= fetched.high_watermark <= offset:
                partition.fresh = False  # what comes from now on was not there when it began
            if len(fetched.records):
                await self._queue(partition, sequence, offset, fetched, steps)
                # Less than one whole batch; skipped offsets are read twice.
                lags = lags and _belongs(partition, sequence, offset) and not partition.doubted
            elif lags:
                self._redirect(partition, fetched.preferred_replica)
            if lags:
                self.absences.suspect(partition)
            else:
                partition.unreadable = None
                self.absences.forget(partition)
            partition.note_lag(self._flow.now())

    def _note_ends(
        self,
        node: int,
        partition: _Partition,
        sequence: SourceQueue,
        fetched: Fetched,
        *,
        at_least: bool,
    ) -> None:
        """Note how far the source reaches, also if the records come too late: it is heard of.

        If another broker leads by now, or is read, its answers are newer.
        """
        if partition.sequence is sequence and not fetched.error and fetched.high_watermark >= 0:
            ends = fetched.high_watermark, fetched.last_stable
            at_least = at_least or node != partition.read_node
            partition.read_stable = max(partition.read_stable, fetched.last_stable)
            partition.note_ends(*ends, self._flow.now(), at_least=at_least)

    def _redirect(self, partition: _Partition, replica: int) -> None:
        """Read from the replica that the leader names (KIP-392); the leader returns no records."""
        now = self._flow.now()
        if replica < 0 or replica == partition.read_node or now < partition.redirect_at:
            return
        partition.source_replica = replica
        partition.redirect_at = now + self._flow.settings.leaders_max_age_s

    async def _queue(
        self,
        partition: _Partition,
        sequence: SourceQueue,
        offset: int,
        fetched: Fetched,
        steps: Steps,
    ) -> None:
        """Queue the records of an answer; unexplained skipped offsets are read twice (jumps.py)."""
        limit = self._flow.settings.buffer_bytes
        built_bytes = partition.may_build(MERGED_BYTES, self._flow.now())
        at = Offset(offset)
        try:
            planned = await steps.finish(
                planning_sound(fetched.records, at, fetched.aborted, limit, built_bytes)
            )
        except CorruptBatch as error:
            if _belongs(partition, sequence, offset):
                self._flow.trouble(partition, f"corrupt batch in a fetch from the source: {error}")
            return
        if not _belongs(partition, sequence, offset):
            return
        pieces = planned.pieces
        if any(map(skips, pieces)) and not self.policies.compacts(partition.source.topic):
            pieces, partition.doubted, unexplained = believe(pieces, partition.doubted)
            for jump in unexplained:
                log.warning(
                    "%s: the source skips offsets [%d, %d) in both of two readings, and "
                    "cleanup.policy=compact does not explain it",
                    partition.name,
                    jump.start,
                    jump.end,
                )
        sequence.offer(pieces)
        for piece in pieces:
            if isinstance(piece, Gap):
                partition.pass_over(piece)
            else:
                partition.fresh = False
                # It may be located again, or commit, at the end of any batch.
                sequence.epochs.learn(piece.end, LeaderEpoch(piece.header.leader_epoch))
        if pieces and pieces[-1].end == planned.pieces[-1].end:
            sequence.epochs.learn(sequence.position, planned.leader_epoch)

    async def _passed(self, partition: _Partition, sequence: SourceQueue, offset: int) -> None:
        """Find out which end of the source's log was passed."""
        try:
            bounds = (await self._source.bounds([partition.source]))[partition.source]
        except TwinlogError as error:
            self._flow.trouble(partition, f"the bounds of the source's log are unknown: {error}")
            return
        if not _belongs(partition, sequence, offset):
            return
        if bounds.error:
            self._flow.ask_leaders()
        elif bounds.start > offset:
            lost = Gap(
                Offset(offset),
                Offset(bounds.start),
                seen=False,
                spans=(AbsentSpan(Absence.LOG_START, Offset(bounds.start)),),
            )
            self._lost(partition, sequence, lost)
        else:
            self._shorter(partition, sequence, offset, bounds.high_watermark)

    def _shorter(
        self, partition: _Partition, sequence: SourceQueue, offset: int, source_end: int
    ) -> None:
        """Locate a partition again that the source refuses to read on, or believe its loss.

        A former leader that is cut off from the others has a shorter log, too. It is one for sure
        if its epoch is older than that of what was read. One that refuses an offset within its log
        has lost nothing.
        """
        self._flow.ask_leaders()
        leads_since = partition.source_leader_epoch
        if source_end >= offset or -1 < leads_since < sequence.epochs.before(Offset(offset)):
            partition.shorter_since = None
            reason = f"the source refuses to be read at {offset}; its log ends at {source_end}"
            self._flow.trouble(partition, reason)
            return
        now = self._flow.now()
        if partition.shorter_since is None:
            partition.shorter_since = now
        reason = (
            f"the source's log ends at {source_end}, and was copied up to {offset}: the source has "
            "lost records"
        )
        if now >= partition.shorter_since + _SHORTER_S:
            self._flow.fail(partition, reason, transient=False)
        else:
            self._flow.trouble(partition, reason)

    def _lost(self, partition: _Partition, sequence: SourceQueue, lost: Gap) -> None:
        """Report records that the source has deleted, and go on behind them if that is wanted.

        Retention may delete records while a flow begins. That is no failure.
        """
        fails = not self._flow.passes_lost and not partition.begins
        # What was read and has not landed is forgotten then, and the source has deleted it, too.
        start = sequence.mirrored_end if fails else lost.start
        reason = f"the source deleted records [{start}, {lost.end}) before they were copied"
        if not partition.begins:
            self._flow.note_deleted(partition, start, lost.end)
        if fails:
            self._flow.fail(partition, reason, transient=False)
            return
        log.error("%s: %s; going on behind them", partition.name, reason)
        sequence.offer([lost])
        partition.pass_over(lost)


def _longest_starved(
    blocked: Collection[tuple[_Partition, SourceQueue]],
) -> tuple[_Partition, SourceQueue] | None:
    """Which blocked partition is read although others hold all that they may.

    Only an append shows that its destination has its replicas again, and it has nothing to send.
    """
    idle = [
        (p, queue) for p, queue in blocked if not queue.queued_bytes and p.destination_node >= 0
    ]
    return min(idle, key=lambda one: one[0].read_at, default=None)


def _refusal(fetched: Fetched) -> str | None:
    """Why an answer has no news of a follower's log; None: it has."""
    if fetched.error:
        return str(Refusal(fetched.error))
    if fetched.diverging is not None:
        return f"its log ends at offset {fetched.diverging.end_offset}"
    return None


def _belongs(partition: _Partition, sequence: SourceQueue, offset: int) -> bool:
    """Whether an answer still applies that this sequence has asked for, from this offset on."""
    return partition.sequence is sequence and sequence.position == offset
