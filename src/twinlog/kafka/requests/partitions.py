"""Requests about many partitions, each sent to the brokers that lead them.

Every function takes many partitions and returns a result for each: the value, or a `Refusal` with
Kafka's code. If a broker refuses because leadership has moved, or is unreachable (13
NETWORK_EXCEPTION), those partitions are retried, a bounded number of times.

With `patience` a broker that hangs does not delay the answers of other brokers. Its partitions are
refused (13) when no broker has answered for that many seconds while its request is open, and they
are not retried. Without `patience`, as for writes whose outcome matters, all brokers are awaited.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from kafka.protocol.admin import DeleteRecordsRequest, DescribeProducersRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.client.pool import CONTROL, SLOW, Lane
from twinlog.kafka.client.retries import BeforeSend, nothing
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Reaction, Refusal, Retriable
from twinlog.kafka.types import EpochEnd, ProducerState, TopicPartition

Q = TypeVar("Q")
T = TypeVar("T")

TRIES: Final = 5
"""Tries of a partition before its refusal is the result."""
PATIENCE: Final = 5.0
"""Seconds that lanes give a broker that alone does not answer. A live broker answers such requests
within milliseconds; one that hangs is fenced by the controller after 9 s."""
CONSUMER: Final = -1
"""Replica id of a consumer: ListOffsets answers at most the high watermark."""
DEBUGGING: Final = -2
"""Replica id for debugging: ListOffsets answers the leader's own log end offset."""


class OffsetSpec(IntEnum):
    """Special values of a ListOffsets timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4


class Isolation(IntEnum):
    """The offset up to which a consumer may read."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ListedOffset(NamedTuple):
    """An offset, the timestamp of its record, and the leader epoch (-1 each if there is none)."""

    offset: int
    timestamp: int
    leader_epoch: int


Answers = dict[TopicPartition, T | Refusal]
Asked = Mapping[TopicPartition, tuple[Leader, Q]]
Ask = Callable[[int, Asked[Q]], Awaitable[Answers[T]]]


async def by_leader(
    cluster: KafkaCluster,
    questions: Mapping[TopicPartition, Q],
    ask: Ask[Q, T],
    *,
    tries: int = TRIES,
    patience: float | None = None,
) -> Answers[T]:
    """Ask each partition's leader its question; `ask(node, its partitions)` is one request.

    Leaders are asked at the same time. Raises only an error that concerns all partitions:
    UserError.

    Args:
        cluster: whose leaders.
        questions: what is asked, for each partition.
        ask: one request to one leader.
        tries: rounds; each later round retries what may get a better answer.
        patience: seconds for a broker that alone does not answer; None: request.timeout.ms.
    """
    answers: Answers[T] = {}
    pending = dict(questions)
    backoff = Backoff(cluster.config.retry_backoff, cluster.config.retry_backoff_max)
    for number in range(1, tries + 1):
        round_answers, hung_partitions = await _round(cluster, pending, ask, patience)
        answers.update(round_answers)
        pending = {
            p: questions[p] for p in pending if p not in hung_partitions and _again(answers[p])
        }
        if not pending or number == tries:
            break
        await asyncio.sleep(backoff.delay(number, cluster.rng.random()))
        await _refresh(cluster, pending)
    return answers


async def list_offsets(
    cluster: KafkaCluster,
    partitions: Collection[TopicPartition] | Mapping[TopicPartition, int],
    spec: int = OffsetSpec.LATEST,
    *,
    replica_id: int = CONSUMER,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    tries: int = TRIES,
    patience: float | None = None,
) -> Answers[ListedOffset]:
    """Offsets of partitions: `spec` for all, or a mapping with each one's (or a timestamp in ms).

    With `replica_id=DEBUGGING` and LATEST it is the leader's log end offset, which is above the
    high watermark while a follower lags; `leader_epoch` is then the leader's current one. The
    request carries the known leader epoch, so a broker that has another one refuses (KIP-320).
    """
    specs = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, spec)
    topic, item = ListOffsetsRequest.ListOffsetsTopic, None
    item = topic.ListOffsetsPartition

    async def ask(node: int, questions: Asked[int]) -> Answers[ListedOffset]:
        topics = [
            topic(
                name=name,
                partitions=[
                    item(partition_index=i, current_leader_epoch=leader.epoch, timestamp=timestamp)
                    for i, (leader, timestamp) in group
                ],
            )
            for name, group in _by_topic(questions)
        ]
        request = ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=int(isolation),
            topics=topics,
            timeout_ms=_milliseconds(cluster),
            min_version=4,
        )
        response = await _send(cluster, node, request)
        return {
            TopicPartition(t.name, p.partition_index): Refusal(p.error_code)
            if p.error_code
            else ListedOffset(p.offset, p.timestamp, p.leader_epoch)
            for t in response.topics
            for p in t.partitions
        }

    return await by_leader(cluster, specs, ask, tries=tries, patience=patience)


async def describe_producers(
    cluster: KafkaCluster,
    partitions: Collection[TopicPartition],
    *,
    tries: int = TRIES,
    patience: float | None = None,
) -> Answers[tuple[ProducerState, ...]]:
    """The producers that each partition's leader remembers (DescribeProducers, Kafka 2.8)."""

    def decode(producer: Any) -> ProducerState:
        return ProducerState(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
        )

    return await _describe_producers(cluster, partitions, decode, tries, patience)


class OpenTransaction(NamedTuple):
    """A transaction's producer id, and its first offset."""

    producer_id: int
    first_offset: int


async def open_transactions(
    cluster: KafkaCluster, partitions: Collection[TopicPartition], *, tries: int = TRIES
) -> Answers[tuple[OpenTransaction, ...]]:
    """The open transactions of each partition, as its leader knows them (DescribeProducers)."""

    def decode(producer: Any) -> OpenTransaction:
        return OpenTransaction(producer.producer_id, producer.current_txn_start_offset)

    answers = await _describe_producers(cluster, partitions, decode, tries)
    return {
        partition: answer
        if isinstance(answer, Refusal)
        else tuple(sorted(transaction for transaction in answer if transaction.first_offset >= 0))
        for partition, answer in answers.items()
    }


async def _describe_producers(
    cluster: KafkaCluster,
    partitions: Collection[TopicPartition],
    decode: Callable[[Any], T],
    tries: int,
    patience: float | None = None,
) -> Answers[tuple[T, ...]]:
    topic = DescribeProducersRequest.TopicRequest

    async def ask(node: int, questions: Asked[None]) -> Answers[tuple[T, ...]]:
        topics = [
            topic(name=name, partition_indexes=[i for i, _ in group])
            for name, group in _by_topic(questions)
        ]
        response = await _send(cluster, node, DescribeProducersRequest(topics=topics))
        return {
            TopicPartition(t.name, p.partition_index): Refusal(p.error_code, p.error_message or "")
            if p.error_code
            else tuple(map(decode, p.active_producers))
            for t in response.topics
            for p in t.partitions
        }

    questions = dict.fromkeys(partitions)
    return await by_leader(cluster, questions, ask, tries=tries, patience=patience)


async def delete_records(
    cluster: KafkaCluster,
    offsets: Mapping[TopicPartition, int],
    *,
    tries: int = TRIES,
    patience: float | None = None,
    before_send: BeforeSend = nothing,
) -> Answers[int]:
    """Move log start offsets up to these offsets; the low watermark of each. Idempotent."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic

    async def ask(node: int, questions: Asked[int]) -> Answers[int]:
        topics = [
            topic(
                name=name,
                partitions=[
                    topic.DeleteRecordsPartition(partition_index=i, offset=offset)
                    for i, (_, offset) in group
                ],
            )
            for name, group in _by_topic(questions)
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=_milliseconds(cluster))
        response = await _send(cluster, node, request, before_send, SLOW)
        return {
            TopicPartition(t.name, p.partition_index): Refusal(p.error_code)
            if p.error_code
            else p.low_watermark
            for t in response.topics
            for p in t.partitions
        }

    return await by_leader(cluster, offsets, ask, tries=tries, patience=patience)


async def offset_for_leader_epoch(
    cluster: KafkaCluster, epochs: Mapping[TopicPartition, int], *, tries: int = TRIES
) -> Answers[EpochEnd]:
    """The end offset of each partition's epoch in its leader's log (KIP-320)."""
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    item = topic.OffsetForLeaderPartition

    async def ask(node: int, questions: Asked[int]) -> Answers[EpochEnd]:
        topics = [
            topic(
                topic=name,
                partitions=[
                    item(partition=i, current_leader_epoch=leader.epoch, leader_epoch=epoch)
                    for i, (leader, epoch) in group
                ],
            )
            for name, group in _by_topic(questions)
        ]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics, min_version=3)
        response = await _send(cluster, node, request)
        return {
            TopicPartition(t.topic, p.partition): Refusal(p.error_code)
            if p.error_code
            else EpochEnd(p.leader_epoch, p.end_offset)
            for t in response.topics
            for p in t.partitions
        }

    return await by_leader(cluster, epochs, ask, tries=tries)


async def _round(
    cluster: KafkaCluster,
    questions: Mapping[TopicPartition, Q],
    ask: Ask[Q, T],
    patience: float | None,
) -> tuple[Answers[T], set[TopicPartition]]:
    """Ask each question once; return the answers, and the partitions whose leaders hang.

    A partition that is missing in an answer is refused as unreachable.
    """
    answers: Answers[T] = {
        p: Refusal(ErrorCode.NETWORK_EXCEPTION, "missing in the broker's response")
        for p in questions
    }
    nodes: defaultdict[int, dict[TopicPartition, tuple[Leader, Q]]] = defaultdict(dict)
    for partition, leader in (await _leaders(cluster, questions)).items():
        if isinstance(leader, Refusal):
            answers[partition] = leader
        else:
            nodes[leader.node_id][partition] = (leader, questions[partition])
    hanging_nodes = {
        node for node in nodes if patience is not None and cluster.hangs(node, patience)
    }
    tasks = {
        asyncio.create_task(_ask_node(node, node_questions, ask)): node
        for node, node_questions in nodes.items()
        if node not in hanging_nodes or len(hanging_nodes) == len(nodes)
    }
    try:
        for task in await _answered(tasks, patience):
            answers.update((p, answer) for p, answer in task.result().items() if p in answers)
            del nodes[tasks[task]]
    finally:
        for task in tasks:
            task.cancel()
    hung_leaders = {p: node for node, node_questions in nodes.items() for p in node_questions}
    answers.update(
        (p, Refusal(ErrorCode.NETWORK_EXCEPTION, f"node {node} does not respond, other brokers do"))
        for p, node in hung_leaders.items()
    )
    return answers, set(hung_leaders)


async def _answered(
    tasks: Collection[asyncio.Task[T]], patience: float | None
) -> Collection[asyncio.Task[T]]:
    """The tasks that are done: all, unless some have answered and the rest is late."""
    done: set[asyncio.Task[T]] = set()
    pending = set(tasks)
    while pending:
        limit = patience if done else None
        finished_tasks, pending = await asyncio.wait(
            pending, timeout=limit, return_when=asyncio.FIRST_COMPLETED
        )
        if not finished_tasks:
            break
        done |= finished_tasks
        if any(task.exception() for task in finished_tasks):
            break
    return done


async def _leaders(
    cluster: KafkaCluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Leader | Refusal]:
    partition_list = list(partitions)
    try:
        return await cluster.leaders(partition_list)
    except (Retriable, ProtocolError) as error:
        return dict.fromkeys(partition_list, Refusal(ErrorCode.NETWORK_EXCEPTION, str(error)))


async def _ask_node(node: int, questions: Asked[Q], ask: Ask[Q, T]) -> Answers[T]:
    try:
        return await ask(node, questions)
    except (Retriable, ProtocolError) as error:
        return dict.fromkeys(questions, Refusal(ErrorCode.NETWORK_EXCEPTION, str(error)))


async def _send(
    cluster: KafkaCluster,
    node: int,
    request: Any,
    before_send: BeforeSend = nothing,
    lane: Lane = CONTROL,
) -> Any:
    connection = await cluster.connection(node, lane)
    await connection.ready()
    before_send()
    return await connection.call(request)


async def _refresh(cluster: KafkaCluster, partitions: Iterable[TopicPartition]) -> None:
    try:
        await cluster.refresh({p.topic for p in partitions})
    except (Retriable, ProtocolError):
        return  # the next round reports for each partition why it has no leader


def _again(answer: object) -> bool:
    """Whether the same question may have a better answer later."""
    if not isinstance(answer, Refusal):
        return False
    return answer.code == ErrorCode.NETWORK_EXCEPTION or answer.reaction in (
        Reaction.METADATA,
        Reaction.RETRY,
    )


def _by_topic(questions: Mapping[TopicPartition, T]) -> Iterator[tuple[str, list[tuple[int, T]]]]:
    groups: defaultdict[str, list[tuple[int, T]]] = defaultdict(list)
    for partition, value in questions.items():
        groups[partition.topic].append((partition.partition, value))
    return iter(groups.items())


def _milliseconds(cluster: KafkaCluster) -> int:
    return int(cluster.config.request_timeout * 1000)
