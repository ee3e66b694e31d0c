"""The engine of a lane: moves the mirror partitions of one mirror that the lane owns.

It uses `ports.py`, no threads and no processes, and waits only in one event loop. The path of a
partition:

    own() ─► placer ─► fetcher (one for each source broker) ─► pump (one for each destination
               ▲                                                broker) ─► answers
               │                                                    │
               └──────────── any answer that makes its position uncertain
                                       gaps ─► filler (one for each shard)

The partition's append machine (`engines/exact/append.py`) decides what may be done with it. The
engine only keeps the sets of partitions that wait for something, so that a step costs no more than
the partitions that it concerns:

    to_place     position to be read       ready[node]    a batch to send to this broker
    wanted[...]  to be fetched             gaps[shard]    a gap to be filled
    absences     behind, without data      to_trim        log start to follow the source's

An error of one partition concerns this partition only: it waits with backoff and jitter
(`trouble`), or is FAILED with its reason (`fail`) and is retried where a retry can help. Fenced
concerns all partitions, since the lane may not write any more: it ends `run`.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Final

from twinlog.engines.exact.absence_reader import Absences
from twinlog.engines.exact.append import Misplaced, PartitionAppend, Phase
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.fetcher import Fetcher
from twinlog.engines.exact.partition import ExactPartition, PartitionSpec, Stage
from twinlog.engines.exact.placer import Placer
from twinlog.engines.exact.ports import (
    WHOLE_TOPIC,
    Appended,
    Batch,
    DestinationPort,
    Leader,
    LogEnd,
    SourcePort,
)
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.source_policies import SourcePolicies
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    Disconnected,
    Fenced,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    UserError,
    code_of,
)
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Gap, Piece
from twinlog.mirror.throttle import Throttle, TokenBucket

log = logging.getLogger(__name__)

_Gaps = tuple[int, int]
"""The gaps that one request fills: (shard, destination broker, or `_ALL_NODES`)."""
_ALL_NODES: Final = -1

_OTHER_WRITER: Final = (
    "another producer writes to this topic, or a request of this mirror arrived late; "
    "the producer ids of the records before this offset show which"
)
_SOURCE_SILENT_S: Final = 10.0
"""Beyond the longest wait of a fetch. The lag to a source that is silent for longer is unknown."""


class DataPlane:
    """The mirror partitions of one source cluster that one lane owns.

    Args:
        source: the mirror's source; None if it is not available: then the engine never runs, and
            only reports the reason (`fail_all`).
        destination: shared by all engines of a lane.
        settings: the limits.
        random: for jitter.
        observe: called at each change of a partition's stage.
        brokers_time_ms: the time that the destination's brokers compare timestamps with.
    """

    def __init__(
        self,
        source: SourcePort | None,
        destination: DestinationPort,
        settings: LaneSettings,
        random: Random,
        observe: Callable[[ExactPartition], None],
        *,
        brokers_time_ms: Callable[[], int],
    ) -> None:
        self._brokers_time_ms = brokers_time_ms
        self._source = source
        self.destination = destination
        self.settings = settings
        self.partitions: dict[TopicPartition, ExactPartition] = {}
        self.by_shard: defaultdict[int, dict[TopicPartition, ExactPartition]] = defaultdict(dict)
        self._random = random
        self._observe = observe
        self._shards: dict[int, Shard] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._closed = False
        self._ended_for = ""
        self._ready: defaultdict[int, dict[ExactPartition, None]] = defaultdict(dict)
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        self._gaps: defaultdict[_Gaps, set[ExactPartition]] = defaultdict(set)
        self._filling: set[_Gaps] = set()
        self._stale_source: set[str] = set()
        self._stale_destination: set[str] = set()
        self._asked_destination: set[str] = set()
        self._leaders_wanted = asyncio.Event()
        self._to_trim: set[ExactPartition] = set()
        self._news: set[int] = set()
        self.held_bytes = 0
        self.throttle = Throttle()
        self.log_start_delay_s = 0.0
        self.policies = SourcePolicies(self.partitions, self._backoff)
        self.fetcher = Fetcher(self)
        self.absences = Absences(self)
        self._placer = Placer(self)

    # ---- ownership -----------------------------------------------------------------------------

    def own(self, shard: Shard, specs: Iterable[PartitionSpec], lease_s: float) -> None:
        """Begin to mirror these partitions of an opened shard, in addition to those it has.

        Args:
            shard: the state partition that they belong to.
            specs: the partitions; those that the engine owns already are left as they are.
            lease_s: for how long a former owner might still write; 0 if there was none.
        """
        self._shards[shard.number] = shard
        unguarded_from = self.now() + lease_s
        for spec in specs:
            if spec.partition in self.partitions:
                continue
            append = PartitionAppend(unguarded_from, owned_before=lease_s > 0)
            covered = self.throttle.covers(spec.partition)
            partition = ExactPartition(spec=spec, append=append, throttled=covered)
            self.partitions[spec.partition] = partition
            self.by_shard[spec.shard][spec.partition] = partition
            self._stale_source.add(spec.partition.topic)
            self._stale_destination.add(spec.partition.topic)
            self.policies.forget(spec.partition.topic)
            if spec.compacted:
                self.policies.ask(spec.partition.topic)
            self._observe(partition)
            if self._ended_for:
                self.fail(partition, self._ended_for)
        self._leaders_wanted.set()

    async def disown(self, specs: Collection[TopicPartition]) -> None:
        """Stop mirroring these partitions: nothing is sent for them after this call.

        Returns when everything in flight is answered, or when the engine has ended.
        """
        leaving = [self.partitions.pop(key) for key in specs if key in self.partitions]
        due = self._due_trims(leaving)
        for partition in leaving:
            del self.by_shard[partition.spec.shard][partition.key]
            self._news.add(partition.spec.shard)
            self._forget(partition)
            self._release(partition, lambda p: p.append.replace())
        while not self._closed and any(p.append.in_flight or p.filling for p in leaving):
            await asyncio.sleep(self.settings.position_pause_s)
        if due and not self._closed:
            # Otherwise a node that ends when it has caught up would leave the log start behind.
            with suppress(TwinlogError):
                await self.destination.delete_records(due)

    async def close(self) -> None:
        """End all tasks, without waiting for the network."""
        self._closed = True
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- interface to the lane -----------------------------------------------------------------

    @property
    def source(self) -> SourcePort:
        """The mirror's source.

        Raises:
            Retriable: it is not available; then no running task asks for it.
        """
        if self._source is None:
            raise Retriable("the source cannot be had")
        return self._source

    def take_news(self) -> set[int]:
        """Return the shards whose partitions may have changed since the last call."""
        news, self._news = self._news, set()
        return news

    def set_throttle(self, throttle: Throttle, *, lanes: int) -> None:
        """Limit what is fetched of some partitions from now on; fetches in flight still arrive.

        The rate is for `lanes` lanes together. Each lane takes an equal share until `set_rate`.
        """
        if throttle == self.throttle:
            return
        self.throttle = throttle
        if throttle.limits:
            self.set_rate(throttle.rate / lanes)
        else:
            self.fetcher.bucket = None
        for partition in self.partitions.values():
            covered = throttle.covers(partition.key)
            if partition.throttled != covered:
                self.fetcher.leave(partition)
                partition.throttled = covered
                # The answer of the loop that it leaves is dropped: the new loop fetches the same.
                partition.touched = self.fetcher.touch()
                self.advance(partition)

    def set_rate(self, rate: float) -> None:
        """Set the rate of throttled partitions, in bytes per second."""
        bucket = self.fetcher.bucket
        if bucket is None:
            self.fetcher.bucket = TokenBucket(rate, self.now())
        else:
            bucket.set_rate(rate, self.now())

    def lag_ms(self, partition: ExactPartition, now: float) -> int | None:
        """Age of the oldest record that is not mirrored, as in `PartitionStatus`; None: unknown."""
        append = partition.append
        if append.position is None or partition.source_high_watermark == UNKNOWN_OFFSET:
            return None
        since = partition.source_ends.since(append.log_end)
        if since is not None:
            return int((now - since) * 1000)
        answered = self.source_answered_at(partition)
        patience = _SOURCE_SILENT_S + self.settings.fetch_max_wait_ms / 1000
        return 0 if answered is not None and now < answered + patience else None

    # ---- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Mirror until cancelled; an engine runs once.

        Raises:
            Fenced: this lane may not write any more.
        """
        self._failure = asyncio.get_running_loop().create_future()
        self.start(self._follow_leaders())
        self.start(self._trim())
        self.start(self.policies.run(self.source))
        self._leaders_wanted.set()
        try:
            await self._failure
        finally:
            await self.close()

    def start(
        self,
        coroutine: Coroutine[object, object, None],
        about: Collection[ExactPartition] | None = None,
    ) -> None:
        """Run a task in the background; an exception that ends it ends `run`.

        A defect in a task about some partitions fails only these. In a closed engine nothing is
        started, since timers of its partitions still expire.
        """
        if self._closed:
            coroutine.close()
            return
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, about))

    def _ended(self, about: Collection[ExactPartition] | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and about is not None and not isinstance(error, TwinlogError):
            self._defect(about, error)
        elif error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    @contextmanager
    def guard(self, partitions: Collection[ExactPartition]) -> Iterator[None]:
        """Fail only these partitions if the guarded code has a defect; they are retried.

        A TwinlogError is raised on purpose and propagates.
        """
        try:
            yield
        except TwinlogError:
            raise
        except Exception as error:
            self._defect(partitions, error)

    def _defect(self, partitions: Collection[ExactPartition], error: BaseException) -> None:
        log.error("internal error: %s", ", ".join(map(str, partitions)), exc_info=error)
        reason = f"internal error, see the lane's log: {type(error).__name__}: {error}"
        for partition in partitions:
            if self.holds(partition):
                self.fail(partition, reason, transient=True)

    def shard(self, partition: ExactPartition) -> Shard:
        """The state partition that a mirror partition belongs to."""
        return self._shards[partition.spec.shard]

    def holds(self, partition: ExactPartition) -> bool:
        """Whether the engine still owns it; to be checked after each await."""
        return self.partitions.get(partition.key) is partition

    def fresh_after_ms(self) -> int:
        """The oldest timestamp with which a broker will not soon forget the producer."""
        return self._brokers_time_ms() - self.settings.producer_expiration_ms // 2

    def jitter(self) -> float:
        """A number from 0 to 1."""
        return self._random.random()

    @staticmethod
    def now() -> float:
        """The loop's clock, in seconds."""
        return asyncio.get_running_loop().time()

    def source_answered_at(self, partition: ExactPartition) -> float | None:
        """When the last answered fetch of this partition was sent, by `now`; None: none was."""
        return self.fetcher.answered_at(partition)

    # ---- what a partition waits for ------------------------------------------------------------

    def advance(self, partition: ExactPartition) -> None:
        """Put a partition into the set that its append machine requires."""
        with self.guard([partition]):
            self._advance(partition)

    def _advance(self, partition: ExactPartition) -> None:
        self._news.add(partition.spec.shard)
        if self._closed or not self.holds(partition):
            return
        if partition.filling:
            if partition.append.phase is Phase.APPENDING:
                self.fetcher.update(partition)  # otherwise its last position is fetched again
            return
        now = self.now()
        if partition.retry_at > now:
            asyncio.get_running_loop().call_at(partition.retry_at, self.advance, partition)
            self.fetcher.leave(partition)
            return
        append = partition.append
        if append.phase is Phase.PLACING:
            self.fetcher.leave(partition)
            self._placer.want(partition)
        elif append.phase is Phase.APPENDING:
            self._prepare(partition)
            if append.waits_for_lease:
                self._place_after_lease(partition)
            elif partition.append.gap_to_fill is not None:
                self._want_filler(partition)
            elif not append.idle:
                self._ready[partition.destination_node][partition] = None
            self.fetcher.update(partition)
        else:
            self.fetcher.leave(partition)

    def _prepare(self, partition: ExactPartition) -> None:
        """Use up the offsets below the source's log start offset, where nothing can be read."""
        append = partition.append
        if append.planned_end >= partition.bulk_until:
            return
        if append.queued_bytes == 0:
            self.offer(partition, [empty_records(append.planned_end, partition.bulk_until)])
        self._set_stage(partition, Stage.PREPARING, "")

    def offer(self, partition: ExactPartition, pieces: Iterable[Piece]) -> None:
        """Queue pieces of a partition, and count the bytes that they hold."""
        before = partition.append.queued_bytes
        partition.append.offer(pieces)
        self.held_bytes += partition.append.queued_bytes - before

    def _place_after_lease(self, partition: ExactPartition) -> None:
        """Read the position again when no other sender can be active any more."""
        if self.now() >= partition.append.unguarded_from:
            self._release(partition, lambda p: p.append.replace())
            asyncio.get_running_loop().call_soon(self.advance, partition)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(partition.append.unguarded_from, self.advance, partition)

    def _forget(self, partition: ExactPartition) -> None:
        self.fetcher.leave(partition)
        self.absences.clear(partition)
        self._placer.forget(partition)
        self._to_trim.discard(partition)
        for ready in self._ready.values():
            ready.pop(partition, None)
        for gaps in self._gaps.values():
            gaps.discard(partition)

    # ---- failures ------------------------------------------------------------------------------

    def trouble(self, partition: ExactPartition, what: str, code: int = 0) -> None:
        """Retry after a failure (after a backoff the position is read again), or `fail`."""
        reaction = code_of(code).reaction if code else Reaction.RETRY
        if reaction is Reaction.METADATA:
            self.leaders_are_stale(partition)
        if reaction in (Reaction.USER, Reaction.PARTITION, Reaction.PEER, Reaction.FENCED):
            self.fail(partition, f"{what}: {Refusal(code)}", transient=True)
            return
        what = f"{what}: {Refusal(code)}" if code else what
        if partition.attempts >= self.settings.attempts:
            self.fail(partition, what, transient=True)
            return
        partition.attempts += 1
        partition.retry_at = self.now() + self._backoff(partition.attempts)
        self._release(partition, lambda p: p.append.replace())
        log.info("%s: %s; trying again", partition, what, extra={"attempt": partition.attempts})
        self.advance(partition)

    def fail(self, partition: ExactPartition, reason: str, *, transient: bool = False) -> None:
        """Stop this partition only. A `transient` failure is retried later."""
        already = partition.append.phase is Phase.FAILED
        self._release(partition, lambda p: p.append.fail())
        # A partition that is FAILED for good stays so, whatever fails afterwards.
        partition.transient = transient and (partition.transient or not already)
        self._set_stage(partition, Stage.FAILED, reason)
        self._forget(partition)
        if transient and not already:
            self._try_again_later(partition)

    def fail_all(self, reason: str) -> None:
        """Stop all partitions, and each that is added later; another engine will retry."""
        self._ended_for = reason
        for partition in list(self.partitions.values()):
            self.fail(partition, reason)

    def _try_again_later(self, partition: ExactPartition) -> None:
        partition.attempts += 1
        delay = max(self._backoff(partition.attempts), 1.0)
        asyncio.get_running_loop().call_later(delay, self._try_again, partition)

    def _try_again(self, partition: ExactPartition) -> None:
        if self._closed or not self.holds(partition):
            return
        if partition.append.phase is not Phase.FAILED or not partition.transient:
            return
        self.leaders_are_stale(partition)
        if partition.topic_lost:
            # A position that is read before the leaders are known may be another topic's.
            self._try_again_later(partition)
        else:
            partition.append.retry()
            self.advance(partition)

    def _backoff(self, attempts: int) -> float:
        """Exponential, with jitter: partitions of a lost broker do not all retry at once."""
        return self.settings.backoff.delay(attempts, self.jitter())

    def placed(self, partition: ExactPartition) -> None:
        """Continue a partition whose position has been read."""
        partition.touched = self.fetcher.touch()
        if partition.append.log_end >= partition.bulk_until:
            self._set_stage(partition, Stage.MIRRORING, "")
        self.advance(partition)
        self.pump(partition.destination_node)

    def _set_stage(self, partition: ExactPartition, stage: Stage, reason: str) -> None:
        if (partition.stage, partition.reason) != (stage, reason):
            partition.stage, partition.reason = stage, reason
            self._news.add(partition.spec.shard)
            if stage is Stage.FAILED:
                log.error("%s is FAILED: %s", partition, reason)
            self._observe(partition)

    # ---- sending -------------------------------------------------------------------------------

    def pump(self, node: int) -> None:
        """Send the ready batches of one destination broker, several requests at a time."""
        ready = self._ready[node]
        while ready and self._in_flight[node] < self.settings.produce_in_flight:
            batches, owners = self._next_request(ready)
            if not batches:
                return
            self._in_flight[node] += 1
            answers = self.destination.produce(node, batches)
            self.start(self._answer(node, owners, answers), about=owners)

    def _next_request(
        self, ready: dict[ExactPartition, None]
    ) -> tuple[list[Batch], list[ExactPartition]]:
        """Take one batch of each ready partition, as many as the request may hold."""
        room, fresh_after_ms = self.settings.produce_max_bytes, self.fresh_after_ms()
        batches: list[Batch] = []
        owners: list[ExactPartition] = []
        for partition in list(ready):
            # A served partition moves to the end, so that each gets its turn.
            del ready[partition]
            outgoing = partition.append.take(fresh_after_ms)
            if outgoing is None:
                continue
            ready[partition] = None
            data, producer_id, epoch, sequence = outgoing
            header = patched_header(data.header, data.records, producer_id, epoch, sequence)
            batches.append(Batch(partition.key, header, data.records))
            owners.append(partition)
            room -= data.size
            if room <= 0:
                break
        return batches, owners

    async def _answer(
        self,
        node: int,
        owners: list[ExactPartition],
        request: Awaitable[Mapping[TopicPartition, Appended]],
    ) -> None:
        """Handle the outcome of one Produce request."""
        fenced: Fenced | None = None
        try:
            answers = await request
        except Disconnected as error:
            unguarded_from = self.now() + self.settings.lease_s
            for partition in owners:
                self.leaders_are_stale(partition)
                self._not_appended(
                    partition,
                    lambda p: p.append.lost(unguarded_from),
                    f"no answer to an append: {error}",
                )
        except (Fenced, Retriable) as error:
            # Not sent: the broker may be down; metadata is refreshed to find the new leader.
            fenced = error if isinstance(error, Fenced) else None
            for partition in owners:
                self.leaders_are_stale(partition)
                self._not_appended(
                    partition, lambda p: p.append.refused(), f"an append was not sent: {error}"
                )
        else:
            for partition in owners:
                with self.guard([partition]):
                    self._answer_one(partition, answers.get(partition.key))
        finally:
            self._in_flight[node] -= 1
        self.fetcher.room()
        self.pump(node)
        if fenced is not None:
            raise fenced

    def _answer_one(self, partition: ExactPartition, answer: Appended | None) -> None:
        if answer is None:
            unguarded_from = self.now() + self.settings.lease_s
            lost = "an append was not answered"
            self._not_appended(partition, lambda p: p.append.lost(unguarded_from), lost)
            return
        if answer.error:
            what = f"an append was refused{': ' if answer.message else ''}{answer.message}"
            self._not_appended(partition, lambda p: p.append.refused(), what, answer.error)
            return
        appending = partition.append.phase is Phase.APPENDING
        data = partition.append.oldest_in_flight
        misplaced = self._release(partition, lambda p: p.append.answered(answer.base_offset))
        if misplaced is not None:
            self.fail(
                partition,
                f"the batch of offset {misplaced.expected} landed at {misplaced.found} on the "
                f"destination: {_OTHER_WRITER}",
            )
            return
        if not appending:
            self.advance(partition)
            return
        # For a duplicate the broker answers with the newest timestamp of the batch that it has
        # (4.3.1, 3.9.1). If that is another batch, the comparison at the retry finds it.
        if answer.stamped_ms not in {-1, data.header.max_timestamp}:
            self.fail(
                partition,
                f"message.timestamp.type of the destination's topic seems to have been set: its "
                f"broker has put another time on the records from offset {answer.base_offset} on",
                transient=True,
            )
            return
        partition.attempts = 0
        if partition.stage is Stage.PREPARING and data.end >= partition.bulk_until:
            self._set_stage(partition, Stage.MIRRORING, "")
        if data.end <= partition.bulk_until:
            partition.append.filled_offsets[Absence.LOG_START] += data.header.num_records
        partition.records_moved += data.header.num_records
        partition.bytes_moved += data.size
        if partition.log_starts:
            self._to_trim.add(partition)
        self.advance(partition)

    def _not_appended(
        self,
        partition: ExactPartition,
        step: Callable[[ExactPartition], None],
        what: str,
        code: int = 0,
    ) -> None:
        """Handle a batch that did not land, or may not have; only the first one is reported."""
        appending = partition.append.phase is Phase.APPENDING
        self._release(partition, step)
        if appending and self.holds(partition):
            self.trouble(partition, what, code)
        else:
            self.advance(partition)

    def _release(
        self,
        partition: ExactPartition,
        step: Callable[[ExactPartition], Misplaced | None],
    ) -> Misplaced | None:
        """Do a step of the append machine, and subtract the bytes that it released."""
        before = partition.append.queued_bytes
        result = step(partition)
        self.held_bytes -= before - partition.append.queued_bytes
        return result

    # ---- gaps ----------------------------------------------------------------------------------

    def _want_filler(self, partition: ExactPartition) -> None:
        """Fill its gap in the next round of the gaps that share a request.

        Written markers have a round for each broker: one that hangs delays its own partitions only.
        """
        node = partition.destination_node if self.shard(partition).markers.allowed else _ALL_NODES
        key = partition.spec.shard, node
        self._gaps[key].add(partition)
        if key not in self._filling:
            self._filling.add(key)
            self.start(self._fill(key))

    async def _fill(self, key: _Gaps) -> None:
        """Fill gaps of one shard, round by round, until none is left."""
        failures = 0
        waiting = self._gaps[key]
        shard = self._shards[key[0]]
        try:
            while waiting:
                # A gap that is being filled had another leader; its round queues it again.
                gaps = {p: g for p in waiting if not p.filling and (g := p.append.gap_to_fill)}
                waiting.clear()
                if not gaps:
                    break
                progressed = False
                with self.guard(gaps):
                    progressed = await self._fill_round(shard, gaps)
                for partition in filter(self._still_gap, gaps):
                    self._want_filler(partition)
                if progressed:
                    failures = 0
                elif waiting:
                    failures += 1
                    await asyncio.sleep(self._backoff(failures))
        finally:
            self._filling.discard(key)

    def _still_gap(self, partition: ExactPartition) -> bool:
        return self.holds(partition) and partition.append.gap_to_fill is not None

    async def _fill_round(self, shard: Shard, gaps: Mapping[ExactPartition, Gap]) -> bool:
        """Run one round; if data has to be fenced first, only that. Whether a log end moved."""
        fencing = {p: gap for p, gap in gaps.items() if p.append.fences_data_first}
        gaps = fencing or gaps
        needs = {partition.key: gap for partition, gap in gaps.items()}
        for partition in gaps:
            partition.filling = True
        found: Mapping[TopicPartition, LogEnd] = {}
        try:
            found = await (shard.fence_data(needs) if fencing else shard.fill_gaps(needs))
        except Disconnected as error:
            for partition in gaps:
                self._lose_markers(partition, str(error))
        except Retriable as error:
            log.info("shard %d: gaps wait: %s", shard.number, error)
        except UserError as error:
            for partition in gaps:
                if self.holds(partition):
                    self.fail(partition, f"a gap cannot be filled: {error}", transient=True)
        finally:
            for partition in gaps:
                partition.filling = False
        moved = False
        for partition in gaps:
            moved = self._after_round(partition, found.get(partition.key)) or moved
        for partition in fencing:
            if partition.key in found and not found[partition.key].error:
                self._release(partition, lambda p: p.append.data_fenced())
                self.advance(partition)
        return moved

    def _after_round(self, partition: ExactPartition, end: LogEnd | None) -> bool:
        """Handle the result of a round for one gap; whether the log end offset moved."""
        if end is None or not self.holds(partition):
            self.advance(partition)
        elif end.error == ErrorCode.NETWORK_EXCEPTION:
            self._lose_markers(partition, "the connection was lost")
        elif end.error:
            self.trouble(partition, "a gap cannot be filled", end.error)
        else:
            return self._filled(partition, Offset(end.log_end))
        return False

    def _filled(self, partition: ExactPartition, log_end: Offset) -> bool:
        """Take the log end offset after a round; whether it is above the one before."""
        before = partition.append.log_end
        misplaced = partition.append.filled(log_end)
        if misplaced is not None:
            self.fail(
                partition,
                f"the destination's log ends at {misplaced.found}, expected {misplaced.expected}: "
                + _OTHER_WRITER,
            )
            return False
        if partition.append.phase is Phase.APPENDING:
            partition.attempts = 0
        self.advance(partition)
        self.pump(partition.destination_node)
        return log_end > before

    def _lose_markers(self, partition: ExactPartition, why: str) -> None:
        """Handle a marker request of unknown outcome."""
        if self.holds(partition):
            partition.append.unguarded_from = self.now() + self.settings.lease_s
            self.trouble(partition, f"no answer to markers: {why}")

    # ---- leaders -------------------------------------------------------------------------------

    def leaders_are_stale(self, partition: ExactPartition) -> None:
        """Refresh the leaders of this partition's topic on both clusters."""
        self._stale_source.add(partition.key.topic)
        self._stale_destination.add(partition.key.topic)
        self._leaders_wanted.set()

    def knows_topic(self, partition: ExactPartition) -> bool:
        """Whether the destination's leaders were refreshed since they were last found stale.

        The answer has the topic's id: until it arrives, the topic may have been recreated. True
        where no topic id is known to compare it with.
        """
        topic = partition.key.topic
        asked = topic in self._stale_destination or topic in self._asked_destination
        return partition.spec.destination_topic_id is None or not asked

    async def _follow_leaders(self) -> None:
        """Refresh leaders: at once when an answer shows that they moved, otherwise by age."""
        while True:
            try:
                async with asyncio.timeout(self.settings.leaders_max_age_s):
                    await self._leaders_wanted.wait()
            except TimeoutError:
                topics = {key.topic for key in self.partitions}
                self._stale_source |= topics
                self._stale_destination |= topics
            self._leaders_wanted.clear()
            source, self._stale_source = self._stale_source, set()
            destination, self._stale_destination = self._stale_destination, set()
            self._asked_destination = destination
            await asyncio.gather(
                self._ask_leaders(self.source, source, self._source_leader),
                self._ask_leaders(self.destination, destination, self._destination_leader),
            )
            await asyncio.sleep(self.settings.leaders_pause_s)

    async def _ask_leaders(
        self,
        port: SourcePort | DestinationPort,
        topics: set[str],
        tell: Callable[[ExactPartition, Leader | None], None],
    ) -> None:
        if not topics:
            return
        try:
            leaders = await port.leaders(topics)
        except Retriable as error:
            log.info("leaders are not known yet: %s", error)
            (self._stale_source if port is self.source else self._stale_destination).update(topics)
            asyncio.get_running_loop().call_later(self._backoff(3), self._leaders_wanted.set)
            return
        for partition in [p for p in self.partitions.values() if p.key.topic in topics]:
            whole = leaders.get(TopicPartition(partition.key.topic, WHOLE_TOPIC))
            tell(partition, leaders.get(partition.key, whole))
        if port is self.destination:
            self._asked_destination = set()

    def _source_leader(self, partition: ExactPartition, leader: Leader | None) -> None:
        if leader is None or leader.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.fail(partition, "the source does not have this partition", transient=True)
            return
        if leader.error == 0 and leader.topic_id != partition.spec.source_topic_id:
            self.fail(
                partition,
                f"the source's topic was deleted and recreated: it has the id {leader.topic_id}, "
                f"the mirror was made for {partition.spec.source_topic_id}",
            )
            return
        if leader.error and not code_of(leader.error).reaction.retriable:
            self.fail(partition, f"the source refuses: {Refusal(leader.error)}", transient=True)
            return
        if partition.source_node != leader.node:
            self.fetcher.return_to_leader(partition)
            self.fetcher.leave(partition)
            partition.source_node = leader.node
        partition.source_leader_epoch = LeaderEpoch(leader.epoch)
        self._led(partition)

    def _destination_leader(self, partition: ExactPartition, leader: Leader | None) -> None:
        lost = partition.spec.topic_loss(leader)
        was_lost, partition.topic_lost = partition.topic_lost, bool(lost)
        if leader is None or lost:
            self.fail(partition, lost, transient=True)
            return
        if was_lost:
            self._try_again(partition)
        if leader.error and not code_of(leader.error).reaction.retriable:
            self.fail(
                partition, f"the destination refuses: {Refusal(leader.error)}", transient=True
            )
            return
        if partition.destination_node != leader.node:
            self._ready[partition.destination_node].pop(partition, None)
            partition.destination_node = leader.node
        if 0 <= partition.destination_epoch < leader.epoch:
            # The new leader may not remember the producer. With nothing in flight, no answer would
            # show it, and up to five batches would be sent that the sequence does not guard.
            self._release(partition, lambda p: p.append.replace())
        if leader.epoch >= 0:
            partition.destination_epoch = LeaderEpoch(leader.epoch)
        self._led(partition)

    def _led(self, partition: ExactPartition) -> None:
        if partition.source_node < 0 or partition.destination_node < 0:
            asyncio.get_running_loop().call_later(
                self._backoff(2), self.leaders_are_stale, partition
            )
        else:
            self.advance(partition)

    # ---- log starts ----------------------------------------------------------------------------

    def source_starts_at(self, partition: ExactPartition, start: int) -> None:
        """Note the source's log start offset, which the destination's has to follow."""
        if start > partition.source_start:
            partition.source_start = Offset(start)
        if start > partition.destination_start and not partition.spec.compacted:
            partition.log_starts.seen(start, self.now())
            self._to_trim.add(partition)

    def _due_trims(self, partitions: Iterable[ExactPartition]) -> dict[TopicPartition, Offset]:
        """The partitions whose log start offset can be moved now, and the offset."""
        now, delay = self.now(), self.log_start_delay_s
        return {
            p.key: due
            for p in partitions
            if p in self._to_trim
            and p.append.phase is Phase.APPENDING
            and (due := p.log_starts.due(now, delay, p.bulk_until)) is not None
            and p.append.log_end >= due
        }

    async def _trim(self) -> None:
        """Move the destination's log start offsets to the source's."""
        while True:
            await asyncio.sleep(self.settings.trim_interval_s)
            due = self._due_trims(self._to_trim)
            if not due:
                continue
            try:
                answers = await self.destination.delete_records(due)
            except Retriable as error:
                log.info("log starts wait: %s", error)
                continue
            for key, code in answers.items():
                partition = self.partitions.get(key)
                if partition is None:
                    continue
                if not code:
                    partition.destination_start = due[key]
                    partition.log_starts.followed(due[key])
                    if not partition.log_starts:
                        self._to_trim.discard(partition)
                elif not code_of(code).reaction.retriable:
                    self._to_trim.discard(partition)
                    log.warning(
                        "%s: the destination's log start cannot follow the source's to %d: %s",
                        partition,
                        due[key],
                        Refusal(code),
                    )
