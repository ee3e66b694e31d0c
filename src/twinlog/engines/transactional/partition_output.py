"""What one partition has in a transaction, and the position behind it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from twinlog.engines.transactional.outputs import Outputs, RecordFailure
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.source_position import Copies, SourcePosition
from twinlog.engines.transactional.transaction_size import TransactionSize
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.engines.translated.partitions import TOO_LARGE, FlowPartition
from twinlog.kafka.errors import Refusal
from twinlog.kafka.log.records import Encoded
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.flow import FlowRules
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.replication_policy import ReplicationPolicy
from twinlog.mirror.routed_names import RoutedPolicy, name_for_transforms
from twinlog.mirror.sequence_plan import SourceRun
from twinlog.store.offset_records import Route

TransactionalPartition = FlowPartition[TransactionalWriters, TransactionalQueue]
Taken = list[tuple[TransactionalPartition, TransactionalQueue]]


class PartitionOutput(NamedTuple):
    """What a partition has in a transaction, and its position behind it."""

    batches: Mapping[TopicPartition, Sequence[Encoded]]
    end: Offset
    records: int
    """Of the source, dropped ones included."""
    bytes: int
    failure: str | None
    """Why the record at `end` cannot be transformed."""
    sources: Sequence[SourceRun] | None = None
    """See `Outputs`; None: no map is recorded."""


def taken_now(
    partitions: Taken, size: TransactionSize
) -> Mapping[MirrorPartition, tuple[list[Data], Offset]]:
    """What a transaction takes of these partitions: of all of them, unless it has to be small."""
    waiting = [partition.name for partition, queue in partitions if queue.has_data]
    chosen, share = size.chosen(waiting)
    return {
        partition.name: queue.take(share)
        for partition, queue in partitions
        if partition.name in chosen or not queue.has_data
    }


def note_too_large(
    taken: Taken,
    outputs: Mapping[MirrorPartition, PartitionOutput],
    refusals: Mapping[TopicPartition, Refusal],
    now: float,
) -> None:
    """Build smaller batches of the partitions whose records are refused as too large."""
    refused = [key for key, refusal in refusals.items() if refusal.code in TOO_LARGE]
    for partition, _ in taken:
        batches = [one for key in refused for one in outputs[partition.name].batches.get(key, ())]
        if batches:
            partition.note_too_large(max(batch.header.length for batch in batches), now)


def partition_output(
    taken: Sequence[Data], end: Offset, result: Outputs, *, is_mapped: bool
) -> PartitionOutput:
    """What a partition has in a transaction.

    Args:
        taken: its batches of the source.
        end: the position behind them.
        result: of the transforms; with a failure, what is before it goes first.
        is_mapped: whether the flow records a map.
    """
    reason = None
    if result.failure is not None:
        end, reason = result.failure
    records = sum(max(0, min(one.end, end) - one.start) for one in taken)
    size = sum(one.size for one in taken)
    sources = result.sources if is_mapped else None
    return PartitionOutput(result.batches, end, records, size, reason, sources)


def route_of(partition: TransactionalPartition) -> Route:
    """Between which topics a partition is copied."""
    assignment = partition.assignment
    return Route(
        assignment.source_topic_id, partition.destination.topic, assignment.destination_topic_id
    )


def seen_by_transforms(flow: FlowRules, partition: TransactionalPartition) -> TopicPartition:
    """The remote partition by the name that transforms see (`name_for_transforms`)."""
    remote, alias = partition.destination, flow.settings.source_cluster_alias
    name = name_for_transforms(flow.policy, alias, partition.source.topic, remote.topic)
    return TopicPartition(name, remote.partition)


def route_mismatch(
    policy: ReplicationPolicy,
    partition: TransactionalPartition,
    queue: TransactionalQueue,
    result: Outputs,
) -> RecordFailure | None:
    """Why nothing of a partition is written, if its remote topic is not where it is routed to.

    It would be in no map, and groups would skip it. A start with other names is refused, but
    `kafka-mirrors --alter` changes transforms, and lanes take them one after another.
    """
    if not isinstance(policy, RoutedPolicy):
        return None
    others = sorted(key.topic for key in result.batches if key != partition.destination)
    if not others:
        return None
    return RecordFailure(
        queue.recorded,
        f"its records are routed to {others[0]}, and the flow copies {partition.source.topic} to "
        f"{partition.destination.topic}: start twinlog mirror-maker with the former transforms",
    )


def copied_to(partition: TransactionalPartition) -> Offset | None:
    """Where another program had copied to, as it was taken over."""
    begin = partition.assignment.begin
    return None if begin is None else Offset(begin)


def position_behind(
    partition: TransactionalPartition,
    queue: TransactionalQueue,
    output: PartitionOutput,
    first: int,
) -> SourcePosition:
    """The position behind what a partition has in a transaction.

    Args:
        partition: the partition.
        queue: where it was taken from.
        output: what it has in the transaction.
        first: which of the transaction's batches of the remote partition is its first one.
    """
    copies = None
    elsewhere = [key for key in output.batches if key != partition.destination]
    if output.sources is not None:
        count = len(output.batches.get(partition.destination, ()))
        copies = Copies(queue.recorded, output.sources, first, count)
    return SourcePosition(
        partition.destination,
        route_of(partition),
        output.end,
        queue.epochs.before(output.end),
        copied_to(partition),
        queue.fence,
        queue.tail,
        queue.routed,
        elsewhere,
        copies=copies,
    )
