"""The engine of flows that transform records, or write in transactions (KIP-656).

    read (as in engines/translated) ─► queue ─► transform ─► a transaction for each state partition,
                                                             with records and positions

One transaction has records of many partitions. If some of these cannot be transformed or written,
they are FAILED, and the others go on in the next transaction.

Records may be routed to any topic. One that does not exist is created, with as many partitions as
the remote topic has. With a map of offsets they go to the remote topic only (routed_names.py).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Final, TypeVar

from twinlog.engines.base import LaneContext, Observer
from twinlog.engines.dataframes import DataFrames, QueryUnusable
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.transactional.kept_positions import KEEP_S
from twinlog.engines.transactional.micro_batch import frame_outputs
from twinlog.engines.transactional.outputs import BATCH_BYTES, Outputs, RecordFailure, transformed
from twinlog.engines.transactional.partition_output import (
    PartitionOutput,
    Taken,
    TransactionalPartition,
    copied_to,
    note_too_large,
    partition_output,
    position_behind,
    route_mismatch,
    route_of,
    seen_by_transforms,
    taken_now,
)
from twinlog.engines.transactional.positions import loss, position_group
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.record_rules import RecordRules, record_rules
from twinlog.engines.transactional.routed_tails import Doubt, in_doubt, to_compare_again
from twinlog.engines.transactional.source_position import SourcePosition, ToBegin
from twinlog.engines.transactional.transactions import TransactionOutlasted, TransactionRefused
from twinlog.engines.transactional.writers import Outdated, TransactionalWriters
from twinlog.engines.translated.engine import BaseFlowEngine
from twinlog.engines.translated.location import NotLocated
from twinlog.engines.translated.partitions import FlowStage
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    CorruptBatch,
    Fenced,
    Refusal,
    Retriable,
    TwinlogError,
    UserError,
)
from twinlog.kafka.log.records import Encoded
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import FlowRules
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data

log = logging.getLogger(__name__)

_RECORD_S: Final = 1.0
"""How old the committed position may be while offsets without a record are passed over."""
_STOP_POLL_S: Final = 0.1
"""How soon a partition that is to be stopped ends a query of Spark's."""

_T = TypeVar("_T")


class TransactionalEngines:
    """The transactional flows of one lane (`EnginesOfKind`)."""

    def __init__(self, lane: LaneContext) -> None:
        self._lane = lane
        self._port = KafkaDestination(lane.destination, lane.may_write)

    def writers(self, state_partition: int) -> TransactionalWriters:
        """The transactional id of a state partition."""
        return TransactionalWriters(state_partition, self._lane, self._port)

    def engine(
        self, mirror: str, source: KafkaCluster | None, observe: Observer
    ) -> "TransactionalEngine":
        """An engine for a flow; without a source, it only reports a failure."""
        port = None if source is None else KafkaSource(source)
        return TransactionalEngine(mirror, self._lane, port, self._port, observe=observe)

    async def refresh(self) -> None:
        """Nothing: a transaction does not depend on what brokers remember of producers."""


class TransactionalEngine(BaseFlowEngine[TransactionalWriters, TransactionalQueue]):
    """The engine of one flow in one lane (`Engine`)."""

    _writers_type = TransactionalWriters

    def __init__(
        self,
        mirror: str,
        lane: LaneContext,
        source: SourcePort | None,
        destination: DestinationPort,
        *,
        observe: Observer,
    ) -> None:
        super().__init__(lane, source, destination, observe)
        self._mirror = mirror
        self._cluster = lane.destination
        self._id_prefix = lane.id_prefix
        self._dataframes = lane.dataframes
        self._writing: set[TransactionalWriters] = set()
        self._configured: Mapping[str, str] = {}
        self._rules: RecordRules | None = None
        self._has_maps = False  # by the last rules that could be read
        self._unreadable = "the flow's settings are not known yet"
        self._stuck: dict[MirrorPartition, Offset] = {}  # at records that cannot be transformed
        self._partitions_of: dict[str, int] = {}  # of topics that records are routed to
        self._routed_due = 0.0

    def configure(self, properties: Mapping[str, str]) -> None:
        """Take the flow's settings and transforms.

        While the transforms cannot be read, nothing is written: records would go unchanged.
        """
        super().configure(properties)
        if properties == self._configured:
            return
        self._configured = dict(properties)
        try:
            rules = record_rules(properties)
            if isinstance(rules.transforms, DataFrameTransform):
                self._cluster.config.grants.check_dataframes()
        except UserError as error:
            self._rules, self._unreadable = None, f"the flow's settings cannot be read: {error}"
        else:
            self._rules = rules
            self._flow.passes_recreated = rules.passes_recreated
            had_maps, self._has_maps = self._has_maps, self._rules.is_mapped
            if had_maps and not self._has_maps:
                # Where nothing is copied, no transaction drops the map.
                for partition, _ in self._flow.copying:
                    self._flow.locate_again(partition, "no map of offsets is recorded any more")

    @property
    def _is_mapped(self) -> bool:
        return self._rules is not None and self._rules.is_mapped

    # ---- locating ------------------------------------------------------------------------------

    async def _locate(
        self,
        source: SourcePort,
        writers: TransactionalWriters,
        partitions: list[TransactionalPartition],
    ) -> None:
        if self._rules is not None:
            await super()._locate(source, writers, partitions)
            return
        for partition in partitions:
            partition.locating = False
            self._flow.fail(partition, self._unreadable)

    async def _find_positions(
        self, writers: TransactionalWriters, begins: Mapping[TransactionalPartition, Offset]
    ) -> Mapping[MirrorPartition, TransactionalQueue | NotLocated]:
        shared = self._shared(begins)
        to_locate = {
            p.name: ToBegin(
                route_of(p),
                begin,
                copied_to(p),
                p.assignment.offsets_topic_id if p.owned_before else None,
                p.assignment.lost_topic_ids,
                p.source_start,
            )
            for p, begin in begins.items()
            if p.name not in shared
        }
        results: dict[MirrorPartition, TransactionalQueue | NotLocated] = {**shared}
        if to_locate:
            is_mapped = self._is_mapped
            located = await writers.locate(
                self._mirror,
                to_locate,
                passes_lost=self._flow.passes_lost,
                is_mapped=is_mapped,
                has_routed=self._rules is None or self._rules.has_routed,
            )
            if is_mapped and not self._is_mapped:  # the map is to be dropped
                reason = NotLocated("the flow's settings have changed; locating it again")
                located = dict.fromkeys(to_locate, reason)
            results.update(located)
        return results

    def _shared(
        self, partitions: Collection[TransactionalPartition]
    ) -> Mapping[MirrorPartition, NotLocated]:
        """Those of these partitions whose remote one is another partition's of this flow, too.

        Both would have one position. Such topics are not added; an earlier version may have.
        """
        names: defaultdict[TopicPartition, list[MirrorPartition]] = defaultdict(list)
        for partition in self._flow.all.values():
            names[partition.destination].append(partition.name)
        return {
            partition.name: NotLocated(
                f"{' and '.join(str(name.source) for name in sorted(sharing))} are copied to "
                f"{partition.destination}, which has one position: exclude all but one of the "
                "topics",
                transient=False,
            )
            for partition in partitions
            if len(sharing := names[partition.destination]) > 1
        }

    def _located(
        self, partition: TransactionalPartition, result: TransactionalQueue | NotLocated
    ) -> None:
        located = isinstance(result, TransactionalQueue)
        found = partition.writers.losses.take(partition.name, located=located)
        self._flow.note_losses(partition, found)
        if isinstance(result, TransactionalQueue):
            if not partition.owned_before:  # later, it is the position that it has committed itself
                partition.fresh &= not result.has_begun
            partition.owned_before = True
            partition.sequence, partition.recorded_at = result, self._flow.now()
            partition.note_lag(partition.recorded_at)
            # At the same record it stays FAILED until this is behind it.
            if self._stuck.get(partition.name) != result.position:
                self._goes_on(partition)
            if partition.elected:  # its log may have been compared before that
                partition.elected = False
                self._flow.locate_again(partition, "the destination has elected another leader")
        elif result.transient:
            self._flow.trouble(partition, result.reason)
        else:  # it is located again, as an operator may commit another position
            self._flow.fail(partition, result.reason)

    # ---- transactions --------------------------------------------------------------------------

    def _deliver(
        self, copying: Collection[tuple[TransactionalPartition, TransactionalQueue]], now: float
    ) -> None:
        if self._rules is None:
            for partition, _ in copying:
                self._flow.fail(partition, self._unreadable)
            return
        if now >= self._routed_due:
            self._routed_due = now + self._flow.settings.leaders_max_age_s
            self._start(self._follow_routed())
        due: defaultdict[TransactionalWriters, Taken] = defaultdict(list)
        for partition, queue in copying:
            age = now - partition.recorded_at
            passed = queue.mirrored_end > queue.recorded and age >= _RECORD_S
            if queue.has_data or passed or age >= KEEP_S:
                due[partition.writers].append((partition, queue))
        for writers, partitions in due.items():
            if writers not in self._writing:
                self._writing.add(writers)
                for partition, _ in partitions:
                    partition.in_flight += 1
                self._start(self._write(writers, partitions, self._rules))

    async def _follow_routed(self) -> None:
        """Locate partitions again whose records were routed to what has changed since."""
        topics = {one.log.topic for _, queue in self._flow.copying for one in queue.routed}
        try:
            leaders = await self._destination.leaders(topics) if topics else {}
        except TwinlogError as error:
            log.info("leaders of routed topics cannot be refreshed now; retrying: %s", error)
            return
        for partition, queue in self._flow.copying:
            if reason := to_compare_again(queue.routed, leaders):
                self._flow.locate_again(partition, reason)

    async def _write(
        self, writers: TransactionalWriters, partitions: Taken, rules: RecordRules
    ) -> None:
        """Write what these partitions have queued, in one transaction.

        Raises:
            Fenced: the lane may not write any more.
        """
        taken: Taken = []
        try:
            outputs = await self._outputs(partitions, rules)
            taken = [(p, queue) for p, queue in partitions if p.name in outputs]
            refused = await self._unroutable(outputs, rules.flow)
            if refused:
                self._refused(taken, outputs, refused)
                return
            batches: defaultdict[TopicPartition, list[Encoded]] = defaultdict(list)
            positions: dict[MirrorPartition, SourcePosition] = {}
            for p, queue in taken:
                output, first = outputs[p.name], len(batches.get(p.destination, ()))
                positions[p.name] = position_behind(p, queue, output, first)
                for key, built in output.batches.items():
                    batches[key] += built
            if positions:
                source_bytes = sum(queue.taken_bytes for _, queue in taken)
                written = await writers.write(batches, positions, source_bytes)
                self._committed(taken, outputs)
                for partition, queue in taken:
                    position = written[partition.name]
                    queue.tail, queue.routed = position.tail, position.routed
        except TransactionRefused as error:
            causes = {key: str(refusal) for key, refusal in error.refusals.items()}
            self._partitions_of = {}  # not cleared: another write may be looking at it
            note_too_large(taken, outputs, error.refusals, self._flow.now())
            self._refused(taken, outputs, causes)
        except QueryUnusable as error:
            for partition, queue in partitions:
                self._stuck_at(partition, queue, RecordFailure(queue.recorded, str(error)))
        except Fenced:
            raise
        except TwinlogError as error:
            self._failed(partitions, error)
        finally:
            self._writing.discard(writers)
            for partition, _ in partitions:
                partition.in_flight -= 1
            self._flow.changed.set()

    def _failed(self, partitions: Taken, error: TwinlogError) -> None:
        if isinstance(error, TransactionOutlasted):
            log.warning(
                "flow %s, state partition %d: %s; its %d bytes are copied again, up to %d at once",
                self._mirror,
                partitions[0][0].assignment.state_partition,
                error,
                sum(queue.taken_bytes for _, queue in partitions),
                partitions[0][0].writers.size.bytes,
            )
        for partition, queue in partitions:
            if partition.sequence is not queue:
                continue
            if isinstance(error, TransactionOutlasted) and queue.taken_bytes:
                partition.outlasted = str(error)
                self._flow.news.add(partition.assignment.state_partition)
            if isinstance(error, Outdated | TransactionOutlasted):
                self._flow.locate_again(partition, str(error))
            else:
                self._flow.trouble(partition, f"a transaction has failed: {error}")

    async def _outputs(
        self, partitions: Taken, rules: RecordRules
    ) -> dict[MirrorPartition, PartitionOutput]:
        """What these partitions have for a transaction; those that have trouble are left out.

        Raises:
            QueryUnusable: the transform by Spark cannot be applied to any record.
            TwinlogError: not now.
        """
        taken = taken_now(partitions, partitions[0][0].writers.size)
        waiting = [partition for partition, _ in partitions]
        while True:
            data = {p: taken[p.name][0] for p, _ in partitions if p.name in taken}
            results = await self._transformed(data, rules, waiting)
            outputs: dict[MirrorPartition, PartitionOutput] = {}
            has_doubt = False
            for partition, queue in partitions:
                if partition.name not in taken:
                    continue
                result = results[partition.name]
                if isinstance(result, CorruptBatch):
                    if partition.sequence is queue:
                        self._flow.trouble(partition, f"corrupt batch from the source: {result}")
                    continue
                found = route_mismatch(rules.flow.policy, partition, queue, result)
                failure = found or result.failure
                if failure is not None and failure.offset == queue.recorded:
                    self._stuck_at(partition, queue, failure)
                elif doubt := in_doubt(queue.routed, result.batches):
                    self._doubted(partition, queue, doubt)
                    has_doubt = True
                else:
                    outputs[partition.name] = partition_output(
                        *taken[partition.name], result, is_mapped=rules.is_mapped
                    )
            # Rows of the others may be made of records of those left out (micro_batch.py).
            if not has_doubt or not isinstance(rules.transforms, DataFrameTransform):
                return outputs
            partitions = [one for one in partitions if one[0].name in outputs]

    async def _transformed(
        self,
        data: Mapping[TransactionalPartition, Sequence[Data]],
        rules: RecordRules,
        waiting: Collection[TransactionalPartition],
    ) -> Mapping[MirrorPartition, Outputs | CorruptBatch]:
        """The results of the transforms; a stop of those that wait for them ends a query."""
        results: dict[MirrorPartition, Outputs | CorruptBatch] = {}
        for_spark: dict[TopicPartition, Sequence[Data]] = {}
        now, transforms = self._flow.now(), rules.transforms
        for partition, batches in data.items():
            chain = rules.of_topic(partition.source.topic)
            if isinstance(chain, DataFrameTransform):
                for_spark[partition.destination] = batches
                continue
            try:
                results[partition.name] = await transformed(
                    chain,
                    batches,
                    seen_by_transforms(rules.flow, partition),
                    partition.may_build(BATCH_BYTES, now),
                    mapped=partition.destination if rules.is_mapped else None,
                )
            except CorruptBatch as error:
                results[partition.name] = error
        by_spark: Mapping[TopicPartition, Outputs | CorruptBatch] = {}
        if isinstance(transforms, DataFrameTransform) and any(for_spark.values()):
            max_bytes = min(one.may_build(BATCH_BYTES, now) for one in data)
            frames, is_mapped = _available(self._dataframes), rules.is_mapped
            query = frame_outputs(frames, transforms, for_spark, max_bytes, is_mapped=is_mapped)
            by_spark = await self._unless_stopped(query, waiting)
        for partition in data:
            if partition.name not in results:
                results[partition.name] = by_spark.get(partition.destination, Outputs({}))
        return results

    async def _unless_stopped(
        self, query: Coroutine[object, object, _T], partitions: Collection[TransactionalPartition]
    ) -> _T:
        """The result of a query; a partition that is to be stopped does not wait for it.

        Raises:
            Outdated: a partition was stopped; the others are to be located again.
        """
        task = asyncio.ensure_future(query)
        try:
            while not task.done() and not any(partition.gone for partition in partitions):
                await asyncio.wait({task}, timeout=_STOP_POLL_S)
        finally:
            task.cancel()  # without effect if it is done
        if not task.done():
            raise Outdated("a partition of the same transaction was stopped")
        return task.result()

    async def _unroutable(
        self, outputs: Mapping[MirrorPartition, PartitionOutput], rules: FlowRules
    ) -> Mapping[TopicPartition, str]:
        """Create the topics that records are routed to; the partitions that do not exist.

        Raises:
            Retriable: the target is unreachable, or does not show a topic yet.
        """
        known, wanted = self._partitions_of, dict[str, int]()
        for name, output in outputs.items():
            remote = self._flow.all[name].destination if name in self._flow.all else None
            for key in output.batches:
                if key != remote:
                    wanted[key.topic] = max(wanted.get(key.topic, 0), key.partition + 1)
        unknown = [topic for topic in wanted if known.get(topic, 0) < wanted[topic]]
        refusals = await self._find(unknown, rules, known) if unknown else {}
        refused: dict[TopicPartition, str] = {}
        for output in outputs.values():
            for topic, index in output.batches:
                if topic in refusals:
                    refused[TopicPartition(topic, index)] = refusals[topic]
                elif topic in wanted and index >= known[topic]:
                    refused[TopicPartition(topic, index)] = (
                        f"topic {topic} has {known[topic]} partitions: raise it to at least "
                        f"{index + 1}"
                    )
        return refused

    async def _find(
        self, names: Collection[str], rules: FlowRules, known: dict[str, int]
    ) -> Mapping[str, str]:
        """Add to `known` how many partitions these topics have; those that are missing are created.

        Returns:
            Why topics cannot be created.
        """
        refusals: dict[str, str] = {}
        topics = (await self._cluster.refresh(names)).topics
        missing = [
            name
            for name in names
            if name not in topics or topics[name].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        if missing:
            count = await self._remote_partitions()
            new = [
                NewTopic(
                    name=name,
                    partitions=count,
                    replication_factor=rules.settings.replication_factor,
                )
                for name in missing
            ]
            for name, answer in (await create_topics(self._cluster, new)).items():
                if isinstance(answer, Refusal) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    refusals[name] = f"topic {name} cannot be created: {answer}"
                else:
                    log.info("flow %s: created %s for routed records", self._mirror, name)
            topics = (await self._cluster.refresh(names)).topics
        for name in names:
            if name in refusals:
                continue
            topic = topics.get(name)
            if topic is None or topic.error or not topic.partitions:
                raise Retriable("the target does not show the topic yet", topic=name)
            known[name] = len(topic.partitions)
        return refusals

    async def _remote_partitions(self) -> int:
        """The most partitions that a remote topic of this flow has, as far as this lane has it."""
        remotes = {p.destination.topic for p in self._flow.all.values()}
        topics = (await self._cluster.refresh(remotes)).topics
        return max((len(topics[n].partitions) for n in remotes if n in topics), default=1)

    def _refused(
        self,
        taken: Taken,
        outputs: Mapping[MirrorPartition, PartitionOutput],
        causes: Mapping[TopicPartition, str],
    ) -> None:
        """Note that nothing was committed, since these destination partitions refuse writes.

        If no partition is to blame, all are located again.
        """
        to_blame = [
            p for p, _ in taken if not causes.keys().isdisjoint(outputs[p.name].batches)
        ] or [p for p, _ in taken]
        for partition, queue in taken:
            if partition.sequence is not queue:
                continue
            keys = [key for key in outputs[partition.name].batches if key in causes]
            if partition not in to_blame:
                queue.released()
            elif keys:
                self._flow.trouble(partition, f"{keys[0]} refuses its records: {causes[keys[0]]}")
            else:
                reason = next(iter(causes.values()))
                self._flow.trouble(partition, f"a transaction was refused: {reason}")

    def _committed(self, taken: Taken, outputs: Mapping[MirrorPartition, PartitionOutput]) -> None:
        now = self._flow.now()
        for partition, queue in taken:
            output = outputs[partition.name]
            queue.committed(output.end)
            partition.failures, partition.recorded_at, partition.outlasted = 0, now, None
            if output.failure is not None:
                self._stuck_at(partition, queue, RecordFailure(output.end, output.failure))
            elif partition.stage is not FlowStage.COPYING and partition.sequence is queue:
                self._goes_on(partition)
            partition.records += output.records
            partition.bytes += output.bytes
            partition.note_lag(now)
            self._flow.news.add(partition.assignment.state_partition)

    def _stuck_at(
        self, partition: TransactionalPartition, queue: TransactionalQueue, failure: RecordFailure
    ) -> None:
        """Fail a partition at a record; it is tried again, as transforms may be altered.

        It stays FAILED until it is behind that record, and does not change its state at each try.
        """
        if partition.sequence is queue:
            self._stuck[partition.name] = failure.offset
            self._flow.fail(partition, failure.reason)

    def _doubted(
        self, partition: TransactionalPartition, queue: TransactionalQueue, doubt: Doubt
    ) -> None:
        """Note that records go where records may be lost: it is located, and compared, again."""
        if partition.sequence is queue:
            group = position_group(self._id_prefix, self._mirror)
            reason = loss(doubt.reason, queue.recorded, group)
            self._stuck[partition.name] = queue.recorded
            if doubt.is_missing:
                self._flow.fail(partition, reason)
            else:
                self._flow.trouble(partition, reason)

    def _goes_on(self, partition: TransactionalPartition) -> None:
        self._stuck.pop(partition.name, None)
        partition.stage, partition.reason = FlowStage.COPYING, None
        self._flow.note(partition)


def _available(dataframes: DataFrames | None) -> DataFrames:
    if dataframes is None:
        raise QueryUnusable("this process cannot start Spark for twinlog.transform.*")
    return dataframes
