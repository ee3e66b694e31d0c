"""The engines of a lane: one for each mirror that the lane has partitions of.

An engine exists while its source is connected, or to report why it is not (`RunningEngine`). Which
partitions it has is decided by the reconciler (reconciler.py), which calls `run_partitions` and
`stop_all_but`.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from twinlog.engines.base import (
    Assignment,
    Engine,
    LaneContext,
    PartitionProgress,
    SharedWriters,
)
from twinlog.engines.kinds import KINDS
from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_source
from twinlog.kafka.client.metadata import check_cluster_id
from twinlog.kafka.client.references import Grants
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Fenced, Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.requests import topics as admin
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import parse_settings, split_settings
from twinlog.mirror.states import State
from twinlog.mirror.throttle import Throttle
from twinlog.runtime.ownership import OwnedStatePartition
from twinlog.runtime.reconciler import Mirrored
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.snapshot import Snapshot

log = logging.getLogger(__name__)

CONNECT_S: Final = 10.0
"""How long a source may take to answer; then that is reported, and the connection is retried."""
FIRST_PAUSE_S: Final = 0.5
"""The first backoff before a source is connected again."""
SOURCE_PAUSE_S: Final = 5.0
"""The longest backoff before a source is connected again, and the backoff after a defect."""
_AFTER_A_DEFECT: Final = 30
"""After a defect, the longest backoff follows."""
REFRESH_S: Final = 60.0
"""The interval of `EnginesOfKind.refresh`."""


class MirrorEngines:
    """The engines of one lane.

    Args:
        context: what each kind of engine gets.
        owned: the owned state partitions, kept up to date by the lane.
        lane: the lane's name.
        lanes: how many lanes the node has.
        snapshot: the desired state as the lane knows it.
        on_change: called when there is something to reconcile.
    """

    def __init__(
        self,
        context: LaneContext,
        owned: Mapping[int, OwnedStatePartition],
        *,
        lane: str,
        lanes: int,
        snapshot: Callable[[], Snapshot],
        on_change: Callable[[], None],
    ) -> None:
        self.lane = lane
        self.random = context.random
        self._cluster = context.destination
        self._kinds = {name: kind.in_lane(context) for name, kind in KINDS.items()}
        self._owned = owned
        self._lanes = lanes
        self._snapshot = snapshot
        self._on_change = on_change
        self._engines: dict[str, RunningEngine] = {}
        self._ended_news: set[int] = set()
        self._compacted: dict[tuple[str, str, UUID | None], bool] = {}
        self._remote_ids: dict[MirrorPartition, UUID | None] = {}  # as partitions were started
        self._refresh_due = time.monotonic()

    @property
    def grants(self) -> Grants:
        """What the properties of mirrors may read on this machine."""
        return self._cluster.config.grants

    @property
    def running(self) -> dict[str, Engine]:
        """The engines that can be given partitions, by mirror."""
        return {
            n: runner.engine for n, runner in self._engines.items() if runner.engine is not None
        }

    def kind_of(self, mirror: str) -> str | None:
        """The kind of a mirror; None if the mirror is not known."""
        config = self._snapshot().mirrors.get(mirror)
        return None if config is None else config.kind

    def writers(self, state_partition: int) -> Mapping[str, SharedWriters]:
        """Who writes for a state partition, for each kind of mirror."""
        return {name: kind.writers(state_partition) for name, kind in self._kinds.items()}

    async def close(self) -> None:
        """End all engines; what they have not sent is never sent."""
        while self._engines:
            _, runner = self._engines.popitem()
            await runner.close()

    # ---- before a reconciliation ---------------------------------------------------------------

    async def prepare(self) -> None:
        """Bring the engines up to date with the desired state of their mirrors.

        Raises:
            TwinlogError: something failed; the first reason.
        """
        await self._end_engines()
        await self._refresh()
        for name, engine in self.running.items():
            if (mirror := self._snapshot().mirrors.get(name)) is not None:
                self._configure(engine, mirror)

    async def _end_engines(self) -> None:
        """End the engines of mirrors that were deleted, or whose source has changed."""
        for name, runner in list(self._engines.items()):
            if not _same_source(runner.mirror, self._snapshot().mirrors.get(name)):
                if runner.engine is not None:
                    leaving = runner.engine.names
                    await runner.engine.stop(leaving)
                    self._forget(leaving)
                    self._ended_news |= runner.engine.take_news()
                await runner.close()
                del self._engines[name]

    @property
    def refresh_is_due(self) -> bool:
        """Whether `prepare` should be called, as what the engines know is old."""
        return time.monotonic() >= self._refresh_due

    async def _refresh(self) -> None:
        """Let engines read what they have to know: before new partitions run, and periodically."""
        if all(owned.informed for owned in self._owned.values()) and not self.refresh_is_due:
            return
        self._refresh_due = time.monotonic() + REFRESH_S
        for kind in self._kinds.values():
            await kind.refresh()

    # ---- the reconciler's callbacks ------------------------------------------------------------

    async def stop_all_but(self, keep: Collection[MirrorPartition]) -> None:
        """Stop mirroring all but these; on return, nothing of the others is in flight.

        Those are stopped, too, that are to go on in a recreated topic: `run_partitions` starts them
        anew, as if this lane had just taken them over.
        """
        names = set(keep) - self._going_on()
        stops: list[tuple[Engine, Sequence[MirrorPartition]]] = []
        for engine in self.running.values():
            if leaving := [name for name in engine.names if name not in names]:
                self._note(engine.progress())  # before the engine drops these partitions
                stops.append((engine, leaving))
        await self._stop(stops)
        # Pausing and resuming a topic makes its new cleanup.policy count.
        topics = {(name.mirror, name.topic) for _, stopped in stops for name in stopped}
        for key in [key for key in self._compacted if key[:2] in topics]:
            del self._compacted[key]

    async def stop_state_partitions(self, numbers: Collection[int]) -> None:
        """Stop mirroring the partitions of these; on return, nothing of them is in flight."""
        await self._stop(
            [
                (engine, [row.name for row in engine.progress(numbers)])
                for engine in self.running.values()
            ]
        )

    async def _stop(self, stops: Collection[tuple[Engine, Sequence[MirrorPartition]]]) -> None:
        """Stop partitions of engines at once: many engines take no longer than the slowest one."""
        await asyncio.gather(*(engine.stop(leaving) for engine, leaving in stops))
        for _, leaving in stops:
            self._forget(leaving)

    def _forget(self, names: Collection[MirrorPartition]) -> None:
        for name in names:
            self._remote_ids.pop(name, None)

    def _going_on(self) -> set[MirrorPartition]:
        """The partitions that were started before their topic had its present remote topic."""
        return {
            name
            for topic in self._snapshot().topics
            if topic.lost_topic_ids
            for name in topic.mirror_partitions
            if (started_with := self._remote_ids.get(name)) in topic.lost_topic_ids
            and started_with != topic.destination_topic_id
        }

    async def run_partitions(self, owned: OwnedStatePartition, targets: Sequence[Mirrored]) -> None:
        """Mirror these partitions of a state partition; a failed topic holds up no other topic."""
        self._remote_ids |= {
            name: topic.destination_topic_id
            for name, topic in targets
            if name not in self._remote_ids
        }
        trouble: TwinlogError | None = None
        assigned: defaultdict[str, list[Assignment]] = defaultdict(list)
        for name, topic in targets:
            try:
                assigned[name.mirror].append(await self._assignment(name, topic, owned.number))
            except TwinlogError as error:
                trouble = error
        for mirror, assignments in assigned.items():
            await self._run_mirror(mirror, owned, assignments)
        if trouble is not None:
            raise trouble

    async def _assignment(
        self, name: MirrorPartition, topic: MirrorTopic, state_partition: int
    ) -> Assignment:
        return Assignment(
            name=name,
            source=name.source,
            destination=topic.on_destination(name),
            state_partition=state_partition,
            source_topic_id=topic.topic_id,
            destination_topic_id=topic.destination_topic_id,
            compacted=await self._is_compacted(name, topic),
            begin=topic.begin(name.partition),
            followed_from=topic.follows_from(name.partition),
            offsets_topic_id=topic.offsets_topic_id,
            lost_topic_ids=topic.lost_topic_ids,
        )

    async def _is_compacted(self, name: MirrorPartition, mirrored: MirrorTopic) -> bool:
        topic = mirrored.destination_name
        incarnation = name.mirror, name.topic, mirrored.destination_topic_id
        if incarnation not in self._compacted:
            resource = admin.topic_resource(topic)
            answers = await admin.describe_configs(self._cluster, [resource], ["cleanup.policy"])
            entries = answers[resource]
            if isinstance(entries, Refusal):
                if entries.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return False  # the engine reports the missing topic for each partition
                raise Retriable(f"cannot read the cleanup.policy of {topic}: {entries}")
            policy = entries["cleanup.policy"].value or ""
            self._compacted[incarnation] = "compact" in policy
        return self._compacted[incarnation]

    async def _run_mirror(
        self, mirror: str, owned: OwnedStatePartition, assignments: Collection[Assignment]
    ) -> None:
        runner = self._engines.get(mirror)
        if runner is not None and runner.engine is not None:
            await owned.run(runner.engine, assignments)
            return
        config = self._snapshot().mirrors.get(mirror)
        if runner is not None or config is None:
            return  # it is called again when the engine is ready, or the mirror known
        if config.kind in self._kinds:
            self._engines[mirror] = RunningEngine(self, config)
            return
        reason = f"this version of twinlog has no engine for mirror.kind={config.kind}"
        log.warning("mirror %s: %s", mirror, reason)
        for assignment in assignments:
            owned.reported.changed(assignment.name, State.FAILED, reason)

    # ---- the engines' callbacks ----------------------------------------------------------------

    def engine_for(self, mirror: Mirror, cluster: KafkaCluster | None) -> Engine:
        """An engine for a connected source; for None, an engine that only reports a failure."""
        engine = self._kinds[mirror.kind].engine(mirror.name, cluster, self._observe)
        # At once: it may be given partitions before the next `prepare`.
        self._configure(engine, mirror)
        return engine

    def _configure(self, engine: Engine, mirror: Mirror) -> None:
        throttle, delay_s = _limits(mirror)
        engine.limit(throttle, lanes=self._lanes, log_start_delay_s=delay_s)
        engine.configure(mirror.source)

    def engine_changed(self, mirror: str, *, ended: bool) -> None:
        """Reconcile again: a mirror's engine is ready for partitions, or has ended."""
        if ended:
            self._engines.pop(mirror, None)
        self._on_change()

    def _observe(self, engine: Engine, row: PartitionProgress) -> None:
        """Note a change; an engine that was replaced is not heard any more."""
        runner = self._engines.get(row.name.mirror)
        owned = self._owned.get(row.state_partition)
        if owned is not None and runner is not None and runner.engine is engine:
            owned.reported.observe(row)

    def note_news(self) -> set[int]:
        """Note how far the partitions have got that have changed.

        Returns:
            The state partitions whose rows may have changed since the last call.
        """
        numbers, self._ended_news = self._ended_news, set()
        for engine in self.running.values():
            news = engine.take_news()
            numbers |= news
            self._note(engine.progress(news))
        return numbers

    def _note(self, rows: Iterable[PartitionProgress]) -> None:
        for row in rows:
            if (owned := self._owned.get(row.state_partition)) is not None:
                owned.reported.mirrored(row)


class RunningEngine:
    """A mirror's source and its engine, which is None until the source has answered."""

    def __init__(self, engines: "MirrorEngines", mirror: Mirror) -> None:
        self.engine: Engine | None = None
        self.mirror = mirror
        self._engines = engines
        self._failures = 0  # in a row, since the source was connected
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Connect, however long it takes, then mirror until the lease ends.

        If the source refuses the connection, or the configuration does not lead to it, the engine
        reports the reason for each of its partitions. An unreachable source is retried.
        """
        name, lane = self.mirror.name, self._engines.lane
        while True:
            try:
                await self._mirror()
            except Fenced as error:
                # Nothing may be written now. Partitions that stay owned get a new engine later.
                log.warning("mirror %s: %s", name, error)
                await asyncio.sleep(self._backoff(self._failures + 1))
                self._engines.engine_changed(name, ended=True)
                return
            except TwinlogError as error:
                log.warning("mirror %s: %s", name, error)
                if self.engine is not None or not isinstance(error, Retriable):
                    self._failed(str(error))
            except Exception as error:
                # A defect must not end the mirror: nothing would report it, nor start it again.
                # An error that may hold a secret is a TwinlogError from its origin (security.py).
                log.exception("mirror %s", name)
                self._failed(f"{type(error).__name__}, an internal error: see the log of {lane}")
                self._failures = _AFTER_A_DEFECT
            self._failures += 1
            await asyncio.sleep(self._backoff(self._failures))

    def _backoff(self, failures: int) -> float:
        backoff = Backoff(FIRST_PAUSE_S, SOURCE_PAUSE_S)
        return backoff.delay(failures, self._engines.random.random())

    async def _mirror(self) -> None:
        """Connect, and mirror until an error.

        Raises:
            Fenced: the lease has ended.
            TwinlogError: the source cannot be used.
        """
        name = self.mirror.name
        config = parse_source(self.mirror.source, self._engines.grants).config
        cluster = KafkaCluster(config, name=f"source of {name}")
        try:
            await cluster.start(CONNECT_S)
            check_cluster_id("the source", cluster.cluster_id, self.mirror.source_cluster_id)
            self.engine = self._engines.engine_for(self.mirror, cluster)
            self._engines.engine_changed(name, ended=False)
            self._failures = 0
            await self.engine.run()
        finally:
            await cluster.close()

    def _failed(self, reason: str) -> None:
        if self.engine is None:
            self.engine = self._engines.engine_for(self.mirror, None)
            self._engines.engine_changed(self.mirror.name, ended=False)
        self.engine.fail_all(reason)

    async def close(self) -> None:
        """End the engine, and close the connection to the source."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _same_source(previous: Mirror, current: Mirror | None) -> bool:
    """Whether a mirror's source is still the same; only another source needs another engine."""
    return (
        current is not None
        and previous.kind == current.kind
        and split_settings(previous.source)[1] == split_settings(current.source)[1]
        and previous.source_cluster_id == current.source_cluster_id
    )


def _limits(mirror: Mirror) -> tuple[Throttle, float]:
    """The throttle, and the delay of log start offsets in seconds."""
    try:
        settings = parse_settings(mirror.source)
    except UserError as error:
        # A newer command may have written the settings. Not deleting is the safe choice: records
        # that stay too long can still be deleted later.
        log.warning(
            "mirror %s is not throttled, and does not delete records: %s", mirror.name, error
        )
        return Throttle(), math.inf
    return settings.throttle, settings.log_start_delay
