"""The data plane of a mirror in one lane: moves the partitions that the lane owns.

It uses `ports.py`, no threads and no processes, and waits only in one event loop. A partition's
state machine (machine.py) decides what is done with it. The parts carry it out, each one kind of
action, and report what happens as events:

    events ─────────► step ─────────► actions
      ▲                                   │
      ├── placer          ◄── LOCATE      │   reads and compares positions
      ├── fetcher         ◄── FETCH       │   one loop for each source broker
      ├── absence reader  ◄── SUSPECT     │   reads alone what stays without records
      ├── sender          ◄── SEND, PUMP  │   one batch of many partitions in a request
      ├── gap filler      ◄── FILL        │   control records in place of absent offsets
      ├── confirmations   ◄── CONFIRM     │   of the ownership, before some gaps are filled
      ├── leaders         ◄── REFRESH     │   of both clusters
      └── timers          ◄── At, After ◄─┘

Each part only keeps the sets of partitions that wait for it, so that a step costs no more than the
partitions that it concerns. The parts know each other by `plane.py` only.

An error of one partition concerns this partition only. Fenced concerns all of them, since the lane
may not write any more: it ends `run`.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from twinlog.engines.exact.append import PartitionAppend
from twinlog.engines.exact.confirmations import Confirmations
from twinlog.engines.exact.events import (
    LOOK,
    After,
    At,
    Do,
    Event,
    Failure,
    Gone,
    Look,
    Moment,
    Note,
    RetryDue,
)
from twinlog.engines.exact.fetcher import Fetcher
from twinlog.engines.exact.followers import LeaderQuestions
from twinlog.engines.exact.gap_filler import GapFiller
from twinlog.engines.exact.leaders import Leaders
from twinlog.engines.exact.log_start_follower import LogStartFollower
from twinlog.engines.exact.machine import step
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.placer import Placer
from twinlog.engines.exact.sender import Sender
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.exact.suspects import AbsenceReader
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.source.policies import SourcePolicies
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.throttle import Throttle

log = logging.getLogger(__name__)


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
        confirm_ownership: see `LaneContext`.
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
        confirm_ownership: Callable[[], Awaitable[None]],
    ) -> None:
        self._brokers_time_ms = brokers_time_ms
        self.confirm_ownership = confirm_ownership
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
        self._clock: Callable[[], float] = _loop_time
        self._closed = False
        self._ended_for = ""
        self._news: set[int] = set()
        self.held_bytes = 0
        self.throttle = Throttle()
        self.policies = SourcePolicies(self.partitions, self.backoff)
        self.leaders = Leaders(self)
        self.log_starts = LogStartFollower(self)
        self.sender = Sender(self)
        self.gap_filler = GapFiller(self)
        self.confirmations = Confirmations(self)
        self.fetcher = Fetcher(self, self.policies)
        self.absences = AbsenceReader(self, self.fetcher)
        self.leader_questions = LeaderQuestions(self)
        self.placer = Placer(self, self.leaders, self.policies)
        self._carry_out: dict[Do, Callable[[ExactPartition], object]] = {
            Do.FETCH: self.fetcher.update,
            Do.LEAVE: self.fetcher.leave,
            Do.LEADER: self.fetcher.return_to_leader,
            Do.TOUCH: self.fetcher.touch,
            Do.SUSPECT: self.absences.suspect,
            Do.CLEAR: self.absences.forget,
            Do.LOCATE: self.placer.want,
            Do.SEND: self.sender.want,
            Do.UNSEND: self.sender.forget,
            Do.PUMP: lambda partition: self.pump(partition.destination_node),
            Do.FILL: self.gap_filler.want,
            Do.CONFIRM: self.confirmations.want,
            Do.TRIM: self.log_starts.want,
            Do.REFRESH: lambda partition: self.leaders.refresh(partition.key.topic),
            Do.REPORT: observe,
            Do.FORGET: self._forget,
            Do.LOOK_SOON: lambda partition: asyncio.get_running_loop().call_soon(
                self.emit, partition, LOOK
            ),
        }

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
            self.leaders.refresh(spec.partition.topic)
            self.policies.forget(spec.partition.topic)
            if spec.compacted:
                self.policies.ask(spec.partition.topic)
            self._observe(partition)
            if self._ended_for:
                self.emit(partition, Failure(self._ended_for))

    async def disown(self, specs: Collection[TopicPartition]) -> None:
        """Stop mirroring these partitions: nothing is sent for them after this call.

        Returns when everything in flight is answered, or when the engine has ended.
        """
        leaving = [self.partitions.pop(key) for key in specs if key in self.partitions]
        starts = self.log_starts.due(leaving)
        for partition in leaving:
            del self.by_shard[partition.spec.shard][partition.key]
            self.emit(partition, Gone())
        while not self._closed and any(p.append.in_flight or p.filling for p in leaving):
            await asyncio.sleep(self.settings.position_pause_s)
        if starts and not self._closed:
            await self.log_starts.move_last(starts)

    async def close(self) -> None:
        """End all tasks, without waiting for the network; what waits is never sent."""
        self._closed = True
        self.sender.withdraw()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the machines --------------------------------------------------------------------------

    def emit(self, partition: ExactPartition, event: Event) -> None:
        """Let the partition's machine take an event, and carry out its actions.

        After the engine has ended, timers change nothing.
        """
        if self._closed and isinstance(event, Look | RetryDue):
            return
        self.emit_all(((partition, event),))

    def emit_all(self, events: Iterable[tuple[ExactPartition, Event]]) -> None:
        """Let machines take events of one moment, as those of the answer to one request."""
        moment = Moment(self.now(), self.settings, self.backoff)
        for partition, event in events:
            try:  # as `guard`, which costs as much as a step
                self._step(partition, event, moment)
            except TwinlogError:
                raise
            except Exception as error:
                self._defect([partition], error)

    def _step(self, partition: ExactPartition, event: Event, moment: Moment) -> None:
        self._news.add(partition.spec.shard)
        before = partition.append.queued_bytes
        try:
            actions = step(partition, event, moment)
        finally:
            self.held_bytes += partition.append.queued_bytes - before
        for action in actions:
            if isinstance(action, Do):
                self._carry_out[action](partition)
            else:
                self._note_or_wait(partition, action)

    def _note_or_wait(self, partition: ExactPartition, action: At | After | Note) -> None:
        match action:
            case At(moment, event):
                asyncio.get_running_loop().call_at(moment, self.emit, partition, event)
            case After(delay, event):
                asyncio.get_running_loop().call_later(delay, self.emit, partition, event)
            case Note(level, text, attempt):
                log.log(level, "%s", text, extra={"attempt": attempt} if attempt else None)

    def _forget(self, partition: ExactPartition) -> None:
        self.fetcher.leave(partition)
        self.absences.forget(partition)
        self.placer.forget(partition)
        self.log_starts.forget(partition)
        self.sender.forget(partition)
        self.gap_filler.forget(partition)
        self.confirmations.forget(partition)

    def fail_all(self, reason: str) -> None:
        """Stop all partitions, and each that is added later; another engine will retry."""
        self._ended_for = reason
        for partition in list(self.partitions.values()):
            self.emit(partition, Failure(reason))

    # ---- interface to the lane -----------------------------------------------------------------

    @property
    def source(self) -> SourcePort:
        """The mirror's source.

        Raises:
            Retriable: it is not available; then no running task asks for it.
        """
        if self._source is None:
            raise Retriable("the source is not available")
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
            self.fetcher.set_rate(throttle.rate / lanes)
        else:
            self.fetcher.bucket = None
        for partition in self.partitions.values():
            covered = throttle.covers(partition.key)
            if partition.throttled != covered:
                self.fetcher.leave(partition)
                partition.throttled = covered
                # The answer of the loop that it leaves is dropped: the new loop fetches the same.
                self.fetcher.touch(partition)
                self.emit(partition, LOOK)

    # ---- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Mirror until cancelled; an engine runs once.

        Raises:
            Fenced: this lane may not write any more.
        """
        loop = asyncio.get_running_loop()
        self._clock = loop.time  # each event asks for the time; finding the loop is a system call
        self._failure = loop.create_future()
        self.start(self.leaders.run())
        self.start(self.log_starts.run())
        self.start(self.policies.run(self.source))
        self.start(self.leader_questions.run())
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
        task = asyncio.get_running_loop().create_task(coroutine)
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
        moment = Moment(self.now(), self.settings, self.backoff)
        for partition in partitions:
            if not partition.gone:
                self._step(partition, Failure(reason, transient=True), moment)

    # ---- for the parts (plane.py) --------------------------------------------------------------

    def pump(self, node: int) -> None:
        """Send the ready batches of one destination broker."""
        self.sender.pump(node)

    async def gather_gaps(self, node: int) -> None:
        """Wait for a moment, if batches are in flight to this broker that gaps follow."""
        await self.sender.gather_gaps(node)

    def answered(self) -> None:
        """Let fetches that wait for room go on: batches were answered."""
        self.fetcher.room()

    def shard(self, partition: ExactPartition) -> Shard:
        """The state partition that a mirror partition belongs to."""
        return self._shards[partition.spec.shard]

    def fresh_after_ms(self) -> int:
        """The oldest timestamp with which a broker will not soon forget the producer."""
        return self._brokers_time_ms() - self.settings.producer_expiration_ms // 2

    def backoff(self, failures: int) -> float:
        """Exponential, with jitter: partitions of a lost broker do not all retry at once."""
        return self.settings.backoff.delay(failures, self._random.random())

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._clock()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
