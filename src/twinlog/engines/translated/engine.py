"""The engine of flows: it copies batches as they are to topics where they get other offsets.

Five kinds of work move partitions. A loop starts each whenever something has changed:

    leaders     where the partitions are, on both sides
    locating    what has landed, and where to go on (writers.py)
    fetches     for each source broker: read, plan, queue (reader.py)
    plans       for each state partition: what is queued is stored as planned (writers.py)
    sends       for each destination broker (sender.py)
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic
from weakref import WeakSet

from twinlog.engines.base import (
    Assignment,
    BrokerTraffic,
    LaneContext,
    Observer,
    PartitionProgress,
    SharedWriters,
    ThrottledReads,
)
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import (
    DestinationPort,
    SourcePort,
)
from twinlog.engines.translated.leaders import FlowLeaders
from twinlog.engines.translated.location import NotLocated, ToLocate
from twinlog.engines.translated.partitions import (
    FlowPartition,
    FlowPartitions,
    FlowStage,
    Q,
    W,
)
from twinlog.engines.translated.reader import FlowReader, Loop
from twinlog.engines.translated.sender import FlowSender
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import (
    Fenced,
    TwinlogError,
    UserError,
)
from twinlog.kafka.requests.expiration import expirations
from twinlog.kafka.types import Offset
from twinlog.mirror.flow import begins_at_end, flow_settings_of
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.throttle import Throttle

log = logging.getLogger(__name__)

_RECORD_S: Final = 1.0
"""How old the recorded map may be while nothing is planned."""
_PAUSE_S: Final = 0.1
"""The longest wait for a change."""
_LAST_RECORD_S: Final = 5.0
"""How long a stop waits for the record of what has landed; below the time in which a node ends."""

_Partition = FlowPartition[FlowWriters, PartitionSequence]


class FlowEngines:
    """The flows of one lane (`EnginesOfKind`)."""

    def __init__(self, lane: LaneContext) -> None:
        self._lane = lane
        self._port = KafkaDestination(lane.destination, lane.may_write)
        self._writers: WeakSet[FlowWriters] = WeakSet()
        self._flows: WeakSet[FlowPartitions[FlowWriters, PartitionSequence]] = WeakSet()

    def writers(self, state_partition: int) -> FlowWriters:
        """The producer id, plans and maps of a state partition."""
        writers = FlowWriters(state_partition, self._lane, self._port)
        self._writers.add(writers)
        return writers

    def engine(self, mirror: str, source: KafkaCluster | None, observe: Observer) -> "FlowEngine":
        """An engine for a flow; without a source, it only reports a failure."""
        del mirror
        port = None if source is None else KafkaSource(source)
        engine = FlowEngine(self._lane, port, self._port, observe)
        self._flows.add(engine.flow)
        return engine

    async def refresh(self) -> None:
        """Read how long brokers remember producers and transactional ids.

        A broker may have been restarted with another setting. Without an answer the last known
        value stays, which is Kafka's default at first. A lane without flows may get one before the
        next reading, so it reads, too.
        """
        expiration, settings = await expirations(self._lane.destination), self._lane.settings
        settings = replace(
            settings,
            producer_expiration_ms=expiration.producer_ms or settings.producer_expiration_ms,
            ids_expiration_ms=expiration.transactional_ms or settings.ids_expiration_ms,
        )
        self._lane = replace(self._lane, settings=settings)
        for flow in self._flows:
            flow.settings = settings
        for writers in self._writers:
            writers.settings = settings


class BaseFlowEngine(ABC, Generic[W, Q]):
    """What the engines of flows have in common (`Engine`): leaders, locating and fetches.

    How what was read reaches the destination is theirs: `W` writes for a state partition, `Q` is
    the queue of a partition.
    """

    _writers_type: type[W]

    def __init__(
        self,
        lane: LaneContext,
        source: SourcePort | None,
        destination: DestinationPort,
        observe: Observer,
    ) -> None:
        self._source = source
        self._destination = destination
        self.flow = self._flow = FlowPartitions[W, Q](
            lane.settings, lane.random, lambda row: observe(self, row)
        )
        self._leaders = FlowLeaders(self._flow, destination)
        self._reader = None if source is None else FlowReader(self._flow, source)
        self._ended_for: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._reading: dict[Loop, asyncio.Task[None]] = {}
        self._properties: Mapping[str, str] = {}
        self._unread: str | None = "the flow's settings are not known yet"

    @abstractmethod
    async def _find_positions(
        self, writers: W, begins: Mapping[FlowPartition[W, Q], Offset]
    ) -> Mapping[MirrorPartition, Q | NotLocated]:
        """Find out where partitions go on, or that they begin, and where.

        Raises:
            Fenced: the lane may not write any more.
            TwinlogError: not now.
        """

    @abstractmethod
    def _located(self, partition: FlowPartition[W, Q], result: Q | NotLocated) -> None:
        """Give a partition the queue that was found, or note why there is none."""

    @abstractmethod
    def _deliver(self, copying: Collection[tuple[FlowPartition[W, Q], Q]], now: float) -> None:
        """Start to write whatever may be written now."""

    def _busy(self, partition: FlowPartition[W, Q]) -> bool:
        """Whether something is in flight for a partition."""
        return partition.in_flight > 0 or partition.locating

    async def _left(self, partitions: Collection[FlowPartition[W, Q]]) -> None:
        """Complete what is stored of partitions that are stopped; nothing of them is in flight."""

    @property
    def throttle(self) -> Throttle:
        """The limit that `limit` has set."""
        return self._flow.throttle

    # ---- the lane's calls ----------------------------------------------------------------------

    @property
    def names(self) -> Collection[MirrorPartition]:
        """The partitions that it copies."""
        return list(self._flow.all)

    def start(
        self, writers: SharedWriters, assignments: Collection[Assignment], *, lease_s: float
    ) -> None:
        """Copy these partitions, too (`Engine.start`)."""
        assert isinstance(writers, self._writers_type)
        own = writers
        for assignment in assignments:
            if assignment.name in self._flow.all:
                continue
            # A fence of one producer id does not exclude data of another one: its lease has to end.
            wait_s = lease_s if assignment.former_writers - {writers.id} else 0.0
            partition = FlowPartition[W, Q](
                assignment,
                own,
                owned_before=lease_s > 0,
                fresh=lease_s == 0,
                locate_at=self._flow.now() + wait_s,
                unguarded_until=self._flow.now() + lease_s,
                followed_from=_followed_from(assignment),
            )
            self._flow.all[assignment.name] = partition
            own.losses.forget(assignment.name)  # as the counts of a former start are
            self._flow.note(partition)
            if self._ended_for is not None:
                self._flow.fail(partition, self._ended_for)
        self._flow.ask_leaders()

    async def stop(self, names: Collection[MirrorPartition]) -> None:
        """Copy these partitions no more (`Engine.stop`)."""
        leaving = [self._flow.all.pop(name) for name in names if name in self._flow.all]
        for partition in leaving:
            partition.leave()
            self._flow.news.add(partition.assignment.state_partition)
        while self._tasks and any(map(self._busy, leaving)):
            await asyncio.sleep(self._flow.settings.position_pause_s)
        if self._tasks:  # else the engine has ended
            await self._left(leaving)

    def fail_all(self, reason: str) -> None:
        """Report each partition, also those that are started later, as FAILED."""
        self._ended_for = reason
        for partition in self._flow.all.values():
            self._flow.fail(partition, reason)

    def take_news(self) -> set[int]:
        """The state partitions whose rows may have changed since the last call."""
        news, self._flow.news = self._flow.news, set()
        return news

    def progress(self, state_partitions: Collection[int] | None = None) -> list[PartitionProgress]:
        """The rows of all partitions of these state partitions; None: of all partitions."""
        now = self._flow.now()
        return [
            partition.row(now)
            for partition in self._flow.all.values()
            if state_partitions is None or partition.assignment.state_partition in state_partitions
        ]

    def limit(self, throttle: Throttle, *, lanes: int, log_start_delay_s: float) -> None:
        """Set the flow's limits (`Engine.limit`); nothing is deleted that it has copied."""
        del log_start_delay_s
        if throttle != self._flow.throttle:
            self._flow.throttle = throttle
            self.set_rate(throttle.rate / lanes)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Take the flow's settings; those that cannot be read leave the former ones in force.

        Without former ones no partition is located: it might begin elsewhere, or pass over records.
        """
        if properties == self._properties:
            return
        self._properties = dict(properties)
        try:
            # Without its policy: a lane has the names of topics, and may lack the policy's package.
            settings = flow_settings_of(properties)
        except UserError as error:
            log.warning("the flow's settings cannot be read, former ones stay: %s", error)
            if self._unread is not None:
                self._unread = f"the flow's settings cannot be read: {error}"
            return
        self._unread = None
        self._flow.passes_lost = settings.passes_lost
        self._flow.begins_at_end = begins_at_end(settings)

    def set_rate(self, rate: float) -> None:
        """Set this lane's rate for throttled partitions, in bytes per second."""
        if self._reader is not None:
            self._reader.set_rate(rate)

    def take_throttled(self) -> ThrottledReads:
        """The reads of throttled partitions; `held_back` counts since the last call."""
        if self._reader is None:
            return ThrottledReads(0, held_back=False)
        return self._reader.take_throttled()

    def traffic(self) -> Collection[BrokerTraffic]:
        """The fetches from each source broker."""
        return [] if self._reader is None else self._reader.traffic

    async def run(self) -> None:
        """Copy until cancelled; an engine runs once.

        Raises:
            Fenced: the lane may not write any more.
        """
        assert self._source is not None
        assert self._reader is not None
        self._failure = asyncio.get_running_loop().create_future()
        self._start(self._reader.policies.run(self._source))
        self._start(self._run(self._source))
        try:
            await self._failure
        finally:
            tasks, self._tasks = self._tasks, set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- tasks ---------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _run(self, source: SourcePort) -> None:
        """Start whatever may go on, whenever something has changed."""
        flow = self._flow
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await flow.changed.wait()
            flow.changed.clear()
            now = flow.now()
            if now >= flow.leaders_due and flow.all:
                flow.leaders_due = now + flow.settings.leaders_max_age_s
                self._start(self._leaders.ask(source))
            self._locate_due(source, now)
            copying = flow.copying
            assert self._reader is not None
            for loop in self._reader.loops():
                if loop not in self._reading or self._reading[loop].done():
                    self._reading[loop] = self._start(self._reader.read(loop))
            for partition in self._reader.absences.due():
                self._start(self._reader.absences.read(partition))
            for leader in self._reader.leader_bounds.due():
                self._start(self._reader.leader_bounds.ask(leader))
            self._deliver(copying, now)

    # ---- locating ------------------------------------------------------------------------------

    def _locate_due(self, source: SourcePort, now: float) -> None:
        due: defaultdict[W, list[FlowPartition[W, Q]]] = defaultdict(list)
        for partition in self._flow.all.values():
            idle = partition.sequence is None and not partition.locating
            may = partition.stage is not FlowStage.FAILED or partition.transient
            led = min(partition.source_node, partition.destination_node) >= 0
            if idle and may and led and not partition.in_flight and partition.locate_at <= now:
                due[partition.writers].append(partition)
        for writers, partitions in due.items():
            for partition in partitions:
                partition.locating = True
            self._start(self._locate(source, writers, partitions))

    async def _locate(
        self, source: SourcePort, writers: W, partitions: list[FlowPartition[W, Q]]
    ) -> None:
        """Find out where these partitions go on, and give each a queue.

        Raises:
            Fenced: the lane may not write any more.
        """
        if self._unread is not None:
            for partition in partitions:
                partition.locating = False
                self._flow.fail(partition, self._unread)
            return
        try:
            begins = await source_begins(source, partitions, at_end=self._flow.begins_at_end)
            known = {p: begins[p.name] for p in partitions if p.name in begins}
            located = await self._find_positions(writers, known) if known else {}
        except Fenced:
            raise
        except TwinlogError as error:
            for partition in partitions:
                self._flow.trouble(partition, f"its position cannot be found now: {error}")
            return
        finally:
            for partition in partitions:
                partition.locating = False
            self._flow.changed.set()
        for partition in partitions:
            if partition.gone:
                continue
            if partition.name in located:
                self._located(partition, located[partition.name])
            else:
                self._flow.trouble(partition, "the source's log start is not known")


class FlowEngine(BaseFlowEngine[FlowWriters, PartitionSequence]):
    """The engine of one flow in one lane, which copies batches as they are."""

    _writers_type = FlowWriters

    def __init__(
        self,
        lane: LaneContext,
        source: SourcePort | None,
        destination: DestinationPort,
        observe: Observer,
    ) -> None:
        super().__init__(lane, source, destination, observe)
        self._sender = FlowSender(
            self._flow, destination, self._start, lane.destination.brokers_time.now_ms
        )
        self._planning: dict[FlowWriters, Collection[_Partition]] = {}

    async def run(self) -> None:
        """Copy until cancelled (`Engine.run`)."""
        try:
            await super().run()
        finally:
            self._sender.withdraw()

    def configure(self, properties: Mapping[str, str]) -> None:
        """Take the flow's settings (`Engine.configure`)."""
        super().configure(properties)
        self._flow.passes_recreated = self._flow.passes_lost

    def _busy(self, partition: _Partition) -> bool:
        return super()._busy(partition) or partition in self._planning.get(partition.writers, ())

    async def _left(self, partitions: Collection[_Partition]) -> None:
        """Record what has landed of these, and that nothing else of them was sent.

        Else it would not be translated, nor count as copied, until they are located again: that may
        be never, or, after a pause, much later.
        """
        due: defaultdict[FlowWriters, dict[MirrorPartition, PartitionSequence]] = defaultdict(dict)
        for partition in partitions:
            sequence = partition.leaving
            if sequence is None:
                continue
            # What is only queued is not sent any more: the plan need not name it.
            if sequence.drop() or sequence.landed or sequence.passed_gaps:
                due[partition.writers][partition.name] = sequence
        await asyncio.gather(*(_record_last(*entry) for entry in due.items()))

    def _deliver(
        self, copying: Collection[tuple[_Partition, PartitionSequence]], now: float
    ) -> None:
        self._sender.make_room()
        self._plan_due(copying, now)
        for node in {p.destination_node for p, _ in copying} - {-1}:
            self._sender.send(node)

    async def _find_positions(
        self, writers: FlowWriters, begins: Mapping[_Partition, Offset]
    ) -> Mapping[MirrorPartition, PartitionSequence | NotLocated]:
        return await writers.locate(
            {
                p.name: ToLocate(
                    p.destination,
                    begin,
                    p.owned_before,
                    source_topic_id=p.assignment.source_topic_id,
                    topic_id=p.assignment.destination_topic_id,
                    copied_to=Offset(p.assignment.begin or 0),
                    offsets_topic_id=p.assignment.offsets_topic_id,
                    lost_topic_ids=p.assignment.lost_topic_ids,
                )
                for p, begin in begins.items()
            },
            passes_lost=self._flow.passes_lost,
        )

    def _located(self, partition: _Partition, result: PartitionSequence | NotLocated) -> None:
        located = isinstance(result, PartitionSequence)
        found = partition.writers.losses.take(partition.name, located=located)
        self._flow.note_losses(partition, found)
        if isinstance(result, PartitionSequence):
            if not partition.owned_before:  # what was stored is of a former flow of this name
                partition.fresh &= not result.has_begun
            partition.owned_before = True  # from now on it has to be fenced
            partition.sequence, partition.reason = result, None
            partition.refusals, partition.held_back = 0, None  # until it is refused again
            partition.stage, partition.recorded_at = FlowStage.COPYING, self._flow.now()
            partition.note_lag(partition.recorded_at)
            self._flow.note(partition)
            if partition.elected:
                partition.elected = False
                self._flow.locate_again(partition, "the destination has elected another leader")
        elif result.transient:
            self._flow.trouble(partition, result.reason)
            self._flow.ask_leaders(partition.failures)  # the topic may be another one by now
        else:
            self._flow.fail(partition, result.reason, transient=False)

    # ---- plans ---------------------------------------------------------------------------------

    def _plan_due(
        self, copying: Collection[tuple[_Partition, PartitionSequence]], now: float
    ) -> None:
        due: defaultdict[FlowWriters, dict[_Partition, PartitionSequence]] = defaultdict(dict)
        for partition, sequence in copying:
            unrecorded = bool(sequence.landed) or sequence.passed_gaps
            stale = unrecorded and now >= partition.recorded_at + _RECORD_S
            if sequence.wants_plan or stale:
                due[partition.writers][partition] = sequence
        for writers, sequences in due.items():
            if writers not in self._planning:
                self._planning[writers] = sequences.keys()
                self._start(self._plan(writers, sequences))

    async def _plan(
        self, writers: FlowWriters, sequences: Mapping[_Partition, PartitionSequence]
    ) -> None:
        try:
            await writers.record({p.name: sequence for p, sequence in sequences.items()})
        except Fenced:
            raise
        except TwinlogError as error:
            for partition, sequence in sequences.items():
                if partition.has(sequence):
                    self._flow.trouble(partition, f"its plan cannot be stored: {error}")
            return
        finally:
            del self._planning[writers]
            self._flow.changed.set()
        for partition, sequence in sequences.items():
            if partition.has(sequence):
                sequence.stored()
                partition.recorded_at = self._flow.now()


async def _record_last(
    writers: FlowWriters, sequences: Mapping[MirrorPartition, PartitionSequence]
) -> None:
    """Record these for the last time, unless that fails, or takes long.

    A lane that was fenced is refused. In each case the next location finds in the log what is not
    recorded, so it is no failure of the stop. A write that is given up may still be stored: it is
    true, and the writers read what is stored, under a new epoch, before they write again.
    """
    try:
        async with asyncio.timeout(_LAST_RECORD_S):
            await writers.record(sequences)
    except (TwinlogError, TimeoutError) as error:
        log.info(
            "%s and %d more are stopped; what has landed last is not recorded: %s",
            min(sequences),
            len(sequences) - 1,
            str(error) or f"no answer within {_LAST_RECORD_S:g} s",
        )


async def source_begins(
    source: SourcePort, partitions: Collection[FlowPartition[W, Q]], *, at_end: bool
) -> Mapping[MirrorPartition, Offset]:
    """Where partitions begin of which this flow has copied nothing.

    It is behind what another program has copied, or at the source's log start, or, `at_end`, where
    the flow follows it from. That is the last stable offset when it was added, or else when it was
    first located here, as a transaction that is open is copied whole or not at all. What the source
    has deleted behind it since is lost (`FlowReader`). If the source has lost its end since, what
    it gets from then on is copied.
    """
    bounds = await source.bounds([p.source for p in partitions])
    begins: dict[MirrorPartition, Offset] = {}
    for partition in partitions:
        log_bounds = bounds[partition.source]
        if log_bounds.error or log_bounds.start < 0:
            continue
        begin = Offset(log_bounds.start)
        partition.source_start = begin
        if at_end:
            end = Offset(log_bounds.last_stable)
            if partition.followed_from is None:
                partition.followed_from = end
            begin = min(partition.followed_from, end)
            partition.fresh = False  # what is deleted behind this place is lost
        copied_to = partition.assignment.begin
        begins[partition.name] = begin if copied_to is None else Offset(copied_to)
    return begins


def _followed_from(assignment: Assignment) -> Offset | None:
    offset = assignment.followed_from
    return None if offset is None else Offset(offset)
