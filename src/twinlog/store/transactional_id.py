"""A transactional id that one task writes under: its newest epoch, and its sequence numbers.

    fence() ─► begin() ─► the transaction ─► commit() ─► begin() ─► ...
      ▲            any error │
      └──────────────────────┘

`fence` takes ownership: it excludes all who had the id before, so only its caller decides about it.

An EndTxn that was sent again leaves a copy that may arrive later, and would end the next
transaction of the same epoch: half of it would be committed. So `begin` raises the epoch first. It
names its own epoch (KIP-360), so it succeeds only if nobody has taken over the id meanwhile, and
what was read behind the fence still holds.
"""

from collections.abc import Callable
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.retries import BeforeSend
from twinlog.kafka.errors import Disconnected, ProtocolError, Retriable, TwinlogError
from twinlog.kafka.requests.transactions import ProducerId, end_txn, init_producer_id
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.kafka.types import TopicPartition, advance

TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After this time the coordinator aborts a dead writer's transaction. It is longer than a broker's
death stays undetected (broker.session.timeout.ms, 9 s), so a writer survives a leader change."""


class TransactionalId:
    """See the module.

    Args:
        cluster: the cluster that has the id.
        name: the id.
        timeout_ms: how long a transaction of a dead writer stays open.
        before_send: called before each request; an exception from it ends the call.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        name: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        before_send: BeforeSend,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._before_send = before_send
        self._producer: ProducerId | None = None
        self._ended_twice = False  # the last transaction of this epoch
        self._sequences: dict[TopicPartition, SequenceNumber] = {}

    @property
    def ready(self) -> bool:
        """Whether `begin` may be called: `fence` succeeded, and no error has followed."""
        return self._producer is not None

    async def fence(self) -> ProducerId:
        """Take over the id: former owners are fenced, and their transactions are decided.

        Raises:
            Retriable: no success within default.api.timeout.ms.
            UserError: no right to the transactional id.
        """
        self._producer = None
        return self._enter(await self._next_epoch())

    async def begin(self) -> ProducerId:
        """The producer of the next transaction; until it is committed, the id is not ready.

        Raises:
            Fenced: another owner has taken over.
            Retriable, UserError: see `fence`, which has to be called again.
        """
        producer, self._producer = self._producer, None
        assert producer is not None, "call fence() first"
        if self._ended_twice:
            producer = self._enter(await self._next_epoch(of=producer))
            self._producer = None
        return producer

    async def commit(self, producer: ProducerId) -> None:
        """Commit the transaction of `begin`.

        Raises:
            Disconnected: the outcome is unknown.
            Fenced, UserError: it was refused.
        """
        once = await commit_txn(self._cluster, self.name, producer, self._before_send)
        self._producer, self._ended_twice = producer, not once

    def numbers(self, partition: TopicPartition, count: int) -> SequenceNumber:
        """The first of the next sequence numbers, of as many records of a partition."""
        sequence = self._sequences.get(partition, SequenceNumber(0))
        self._sequences[partition] = advance(sequence, count)
        return sequence

    async def _next_epoch(self, of: ProducerId | None = None) -> ProducerId:
        return await init_producer_id(
            self._cluster,
            self.name,
            timeout_ms=self._timeout_ms,
            before_send=self._before_send,
            producer=of,
        )

    def _enter(self, producer: ProducerId) -> ProducerId:
        self._producer, self._ended_twice = producer, False
        self._sequences.clear()
        return producer


async def commit_txn(
    cluster: KafkaCluster,
    transactional_id: str,
    producer: ProducerId,
    before_send: Callable[[], None],
) -> bool:
    """Commit a transaction; return whether EndTxn was sent once.

    A refusal is certain only as the answer to the first EndTxn: one that is sent again may be
    refused because the first one was carried out, and another writer has fenced since.

    Raises:
        Disconnected: the outcome is unknown.
        Fenced, UserError: it was refused.
    """
    send_count = 0

    def counted() -> None:
        nonlocal send_count
        send_count += 1
        before_send()

    try:
        await end_txn(cluster, transactional_id, producer, commit=True, before_send=counted)
    except TwinlogError as error:
        if send_count < 2 and not isinstance(error, Retriable | ProtocolError):
            raise
        raise Disconnected(
            f"unknown whether the transaction of {transactional_id} was committed: {error.message}",
            cluster=cluster.name,
        ) from error
    return send_count == 1
