"""Producer ids and transactions: the coordinator's side of docs/architecture/append.md.

Versions are capped where newer ones have another meaning: AddPartitionsToTxn from 4 on is for
brokers only, and EndTxn 5 raises the epoch (KIP-890), which the append's sequences do not expect.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.client.pool import CONTROL, Lane
from twinlog.kafka.client.retries import BeforeSend, nothing
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    LEFT_OUT,
    Disconnected,
    ProtocolError,
    Reaction,
    Refusal,
    Retriable,
    check,
    code_of,
)
from twinlog.kafka.protocol import markers as protocol
from twinlog.kafka.protocol.markers import Marker
from twinlog.kafka.types import TopicPartition

_NO_GENERATION: Final = -1

_ABOUT_ALL: Final = (Reaction.COORDINATOR, Reaction.RETRY, Reaction.FENCED)


class ProducerId(NamedTuple):
    """The result of InitProducerId."""

    producer_id: int
    epoch: int


async def init_producer_id(
    cluster: KafkaCluster,
    transactional_id: str | None,
    *,
    timeout_ms: int = 60_000,
    timeout: float | None = None,
    before_send: BeforeSend = nothing,
    producer: ProducerId | None = None,
) -> ProducerId:
    """Get a producer id, or a transactional id's next epoch, which fences the earlier epochs.

    An open transaction of an earlier epoch is aborted first, markers included. The call waits while
    the coordinator is loading (14, 15, 16) or ends that transaction (51). A retry after a lost
    connection may raise the epoch by two.

    With `producer`, the epoch is raised only if this is still the id's newest one (KIP-360, Kafka
    2.5), and its transaction has ended.

    Raises:
        Fenced: `producer` is not the newest one.
        Retriable: no success within `timeout`.
        UserError: no right to the transactional id; `timeout_ms` is above the broker's maximum.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        max_version=5,
        **(
            {}
            if producer is None
            else {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "min_version": 3,
            }
        ),
    )
    if transactional_id is None:
        before_send()
        response = await cluster.call(request, timeout=timeout)
    else:
        response = await _coordinated(
            cluster, transactional_id, request, timeout, before_send=before_send
        )
    check(response.error_code, f"initialise the producer id of {transactional_id}")
    return ProducerId(response.producer_id, response.producer_epoch)


async def add_partitions_to_txn(
    cluster: KafkaCluster,
    transactional_id: str,
    producer: ProducerId,
    partitions: Collection[TopicPartition],
    *,
    timeout: float | None = None,
    before_send: BeforeSend = nothing,
) -> dict[TopicPartition, Refusal | None]:
    """Add partitions to the transaction (which opens it); None for each that was added.

    One refusal refuses all: the other partitions get 55 OPERATION_NOT_ATTEMPTED. The request is
    never sent again after a lost answer: a copy that arrives after EndTxn opens another
    transaction, whose marker arrives at some later time (tests/contract/test_transactions.py).

    Raises:
        Fenced: the id has a newer epoch.
        Disconnected: it is unknown whether they were added, or still will be.
        Retriable: no success within `timeout`.
    """
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            topic(name=name, partitions=indexes) for name, indexes in _by_topic(partitions)
        ],
        max_version=3,
    )
    response = await _coordinated(
        cluster,
        transactional_id,
        request,
        timeout,
        code=_whole,
        before_send=before_send,
        resend=False,
    )
    if code_of(_whole(response)).reaction is Reaction.FENCED:
        check(_whole(response), f"add partitions to the transaction of {transactional_id}")
    return {
        TopicPartition(t.name, p.partition_index): Refusal(p.partition_error_code)
        if p.partition_error_code
        else None
        for t in response.results_by_topic_v3_and_below
        for p in t.results_by_partition
    }


class TransactionOffset(NamedTuple):
    """An offset to commit for a group, within a transaction."""

    offset: int
    leader_epoch: int
    metadata: str


async def send_offsets_to_txn(
    cluster: KafkaCluster,
    transactional_id: str,
    producer: ProducerId,
    group: str,
    offsets: Mapping[TopicPartition, TransactionOffset],
    *,
    timeout: float | None = None,
    before_send: BeforeSend = nothing,
) -> dict[TopicPartition, Refusal]:
    """Commit offsets of a group without members when the transaction is committed (KIP-98).

    No request is sent again after a lost answer: a copy that arrives after EndTxn would belong to
    the next transaction.

    Returns:
        The partitions that are refused; the transaction has to be aborted then.

    Raises:
        Fenced: the id has a newer epoch.
        Disconnected: it is unknown whether they were added, or still will be.
        Retriable: no success within `timeout`.
        UserError: a right is missing.
    """
    adding = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
        max_version=3,
    )
    with cluster.needing("READ", f"the group {group}"):
        response = await _coordinated(
            cluster, transactional_id, adding, timeout, before_send=before_send, resend=False
        )
        check(response.error_code, f"add group {group} to the transaction of {transactional_id}")
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    part = topic.TxnOffsetCommitRequestPartition
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (name, index), (offset, leader_epoch, metadata) in offsets.items():
        by_topic[name].append(
            part(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        topics=[topic(name=name, partitions=parts) for name, parts in by_topic.items()],
        min_version=3,
        max_version=3,
    )
    response = await cluster.coordinators.call(
        Coordinator.GROUP,
        group,
        request,
        code=_offsets_whole,
        timeout=timeout,
        before_send=before_send,
        resend=False,
    )
    if code_of(_offsets_whole(response)).reaction is Reaction.FENCED:
        check(_offsets_whole(response), f"commit offsets of group {group} as {transactional_id}")
    answers = {
        TopicPartition(t.name, p.partition_index): Refusal(p.error_code) if p.error_code else None
        for t in response.topics
        for p in t.partitions
    }
    results = {partition: answers.get(partition, LEFT_OUT) for partition in offsets}
    return {partition: refusal for partition, refusal in results.items() if refusal is not None}


async def end_txn(
    cluster: KafkaCluster,
    transactional_id: str,
    producer: ProducerId,
    *,
    commit: bool,
    timeout: float | None = None,
    before_send: BeforeSend = nothing,
) -> None:
    """End the transaction. The markers are written some time *after* the answer.

    Raises:
        Fenced: the id has a newer epoch.
        Retriable: no success within `timeout`, or no transaction is open (48).
    """
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
        max_version=4,
    )
    response = await _coordinated(
        cluster, transactional_id, request, timeout, before_send=before_send
    )
    check(response.error_code, f"end the transaction of {transactional_id}")


async def transaction_state(
    cluster: KafkaCluster, transactional_id: str, *, timeout: float | None = None
) -> str:
    """The state that the coordinator has recorded of an id's transaction.

    DescribeTransactions, Kafka 3.0. Until CompleteCommit or CompleteAbort, a coordinator that takes
    over sends the markers *again*, also to partitions that have them already, and each lands. The
    log then ends at a higher offset than it should, and may grow to it after the first marker was
    visible (tests/kafka/requests/test_markers.py).

    Raises:
        Retriable: no success within `timeout`; the id is not known (105).
        UserError: no right to the id.
    """
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await _coordinated(
        cluster,
        transactional_id,
        request,
        timeout,
        code=lambda answer: answer.transaction_states[0].error_code,
    )
    (state,) = response.transaction_states
    check(state.error_code, f"describe the transaction of {transactional_id}")
    return str(state.transaction_state)


async def transactional_ids(cluster: KafkaCluster, producer_ids: Collection[int]) -> dict[int, str]:
    """The transactional ids of producer ids, as far as the client may list them (ListTransactions).

    Raises:
        Retriable: some broker does not answer.
    """
    if not producer_ids:
        return {}
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=sorted(producer_ids), max_version=0
    )
    brokers = cluster.metadata.brokers
    answers = await asyncio.gather(*(cluster.call(request, node=node) for node in brokers))
    for answer in answers:
        check(answer.error_code, "list the transactions")
    return {
        transaction.producer_id: transaction.transactional_id
        for answer in answers
        for transaction in answer.transaction_states
    }


async def write_txn_markers(
    cluster: KafkaCluster,
    node: int,
    requests: Sequence[Sequence[Marker]],
    *,
    lane: Lane = CONTROL,
    before_send: BeforeSend = nothing,
) -> list[protocol.Results]:
    """Send control records to the leader `node`; for each producer id, its partitions' error codes.

    The requests are sent at once, and carried out one after the other. Needs the right
    CLUSTER_ACTION; nothing fences it. An answer names producer ids only: if one is in several
    markers of a request, the last one's result hides the others. Sent once: after a Disconnected it
    is unknown what was written.

    Raises:
        Disconnected: the outcome is unknown.
        UserError: the broker does not have the API (35).
    """
    connection = cluster.connected(node, lane) or await cluster.connection(node, lane)
    answers: list[asyncio.Future[memoryview]] = []
    try:
        for markers in requests:
            await connection.ready()
            connection.negotiate(protocol.API_KEY, protocol.VERSION, protocol.VERSION)
            before_send()
            body = protocol.encode_write_txn_markers(markers)
            answers.append(
                connection.send_raw(protocol.API_KEY, protocol.VERSION, [body], flexible=True)
            )
        return [protocol.decode_write_txn_markers(await answer) for answer in answers]
    except ProtocolError as error:
        await connection.close()
        raise Disconnected(str(error), cluster=cluster.name, node=node) from error
    except Retriable as error:
        if not answers or isinstance(error, Disconnected):
            raise
        raise Disconnected(str(error), cluster=cluster.name, node=node) from error
    finally:
        for answer in answers:
            answer.cancel()


async def _coordinated(
    cluster: KafkaCluster,
    transactional_id: str,
    request: Any,
    timeout: float | None,
    **options: Any,
) -> Any:
    return await cluster.coordinators.call(
        Coordinator.TRANSACTION, transactional_id, request, timeout=timeout, **options
    )


def _whole(response: Any) -> int:
    """The code in an AddPartitionsToTxn response that is about the whole request, else 0."""
    codes = (
        p.partition_error_code
        for t in response.results_by_topic_v3_and_below
        for p in t.results_by_partition
    )
    return next(
        (
            c
            for c in codes
            if code_of(c).reaction in _ABOUT_ALL and c != ErrorCode.OPERATION_NOT_ATTEMPTED
        ),
        0,
    )


def _offsets_whole(response: Any) -> int:
    """The code in a TxnOffsetCommit response that is about the whole request, else 0."""
    codes = (p.error_code for t in response.topics for p in t.partitions)
    return next((code for code in codes if code_of(code).reaction in _ABOUT_ALL), 0)


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        groups[topic].append(index)
    return groups.items()
