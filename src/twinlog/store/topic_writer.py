"""Writing to control topics: atomically and fenced, fenced only, or plainly.

`TransactionalWriter` writes records to one or more partitions. Readers see all of them or none, and
a write succeeds only while no other writer has taken over the transactional id:

    fence()   InitProducerId: former owners are fenced, their open transactions are aborted,
              markers included. A later read (read_committed) finds all that they ever wrote.
    write()   AddPartitionsToTxn -> Produce, one batch a partition -> EndTxn

So *fence, read, decide, write* is safe against concurrent writers with the same id: if another
writer fences in between, the write is Fenced and readers see nothing of it.

A write ends in one of three ways:

- it is committed;
- it is Fenced or refused, and readers will see nothing of it;
- its outcome is unknown (any other error after EndTxn was sent).

After any error the caller has to `fence` again, but *only if it still owns what it writes*: fencing
takes ownership, so a writer must never fence by itself.

`EpochWriter` writes to one partition under the id's newest epoch, without transactions: one request
for each write. Its first write in an epoch fences former owners, and only then may be read what
these have written.

Within the transaction a lost answer is harmless: batches carry sequences, so a repeated batch is
appended once. Produce is capped at version 11: from 12 on the broker adds partitions by itself
(KIP-890), and ends the epoch with each transaction.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple

from kafka.protocol.producer import ProduceRequest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.client.pool import Lane
from twinlog.kafka.client.retries import BeforeSend, nothing
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    Fenced,
    Refusal,
    Retriable,
    TwinlogError,
)
from twinlog.kafka.log.batch import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.requests.partitions import TRIES, Answers, Asked, by_leader
from twinlog.kafka.requests.transactions import (
    ProducerId,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.kafka.types import TopicPartition, advance
from twinlog.store.transactional_id import TRANSACTION_TIMEOUT_MS, TransactionalId

WRITE_TRIES: Final = 22
"""Tries of one Produce within a transaction: about 18 s."""
ABORT_TIMEOUT: Final = 2.0

PART_BYTES: Final = 600_000
"""Bytes of entries after which another batch of the same transaction begins: a batch is refused
above max.message.bytes, 1 MiB by default."""
_RECORD_BYTES: Final = 20
"""Of a record besides its key and value, at most."""
ALL: Final = -1
LEADER_ONLY: Final = 1

_LANE: Final = "control writes"
# The records may be stored; NETWORK_EXCEPTION is a lost answer.
_UNKNOWN_OUTCOME: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class Entry(NamedTuple):
    """A record to write. `value` is None for a tombstone."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


Clock = Callable[[], float]


class TransactionalWriter:
    """Writes under one transactional id. It must not be used by two tasks at once.

    `before_send` is called before each request of the transaction; an exception ends the call.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        transactional_id: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        clock: Clock = time.time,
        before_send: BeforeSend = nothing,
    ) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._clock = clock
        self._before_send = before_send
        self._id = TransactionalId(
            cluster, transactional_id, timeout_ms=timeout_ms, before_send=before_send
        )

    @property
    def ready(self) -> bool:
        """Whether `write` may be called: `fence` succeeded, and no error has followed."""
        return self._id.ready

    async def fence(self) -> None:
        """Take over the id: former owners are fenced, and their transactions are decided.

        Raises:
            Retriable: no success within default.api.timeout.ms.
            UserError: no right to the transactional id.
        """
        await self._id.fence()

    async def write(self, entries: Sequence[Entry]) -> dict[TopicPartition, int]:
        """Write all entries or none; return the offset of each partition's last record.

        Readers see the records a moment after the answer (`Tail.catch_up` waits for it).

        Raises:
            Fenced: another writer has the id; readers see none of the records.
            Disconnected: the outcome is unknown.
            Retriable, UserError, PartitionFailed: refused; readers see none of the records.
        """
        assert entries
        producer = await self._id.begin()
        offsets = await self._prepare(producer, entries)
        await self._id.commit(producer)
        return offsets

    async def _prepare(
        self, producer: ProducerId, entries: Sequence[Entry]
    ) -> dict[TopicPartition, int]:
        """Do everything before EndTxn. A failure is aborted, now or by the next `fence`."""
        groups = _by_partition(entries)
        await wait_for_quotas(self._cluster, groups, _LANE)
        try:
            answers = await add_partitions_to_txn(
                self._cluster,
                self.transactional_id,
                producer,
                list(groups),
                before_send=self._before_send,
            )
            with self._needing(answers):
                _raise_first(answers, f"write as {self.transactional_id}")
            return await self._produce(producer, groups)
        except Fenced:
            raise
        except TwinlogError:
            with suppress(TwinlogError):
                await end_txn(
                    self._cluster,
                    self.transactional_id,
                    producer,
                    commit=False,
                    timeout=ABORT_TIMEOUT,
                )
            raise

    def _needing(self, partitions: Collection[TopicPartition]) -> AbstractContextManager[None]:
        topics = ", ".join(sorted({partition.topic for partition in partitions}))
        return self._cluster.needing(
            "WRITE", f"the topic {topics} and the transactional id {self.transactional_id}"
        )

    async def _produce(
        self, producer: ProducerId, groups: Mapping[TopicPartition, list[Entry]]
    ) -> dict[TopicPartition, int]:
        now_ms = int(self._clock() * 1000)
        last: dict[TopicPartition, int] = {}
        for part in _parts(groups):
            batches = {
                partition: _batch(group, now_ms, producer, self._id.numbers(partition, len(group)))
                for partition, group in part.items()
            }
            answers = await send_batches(
                self._cluster,
                batches,
                ALL,
                transactional_id=self.transactional_id,
                tries=WRITE_TRIES,
            )
            with self._needing(answers):
                _raise_first(answers, f"write as {self.transactional_id}")
            last |= {
                partition: answer + len(part[partition]) - 1
                for partition, answer in answers.items()
                if isinstance(answer, int)
            }
        return last


class EpochWriter:
    """Writes to one partition under a transactional id's newest epoch, without transactions.

    It must not be used by two tasks at once. `before_send` is called before each request that could
    fence or write; an exception ends the call.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        transactional_id: str,
        *,
        clock: Clock = time.time,
        before_send: BeforeSend = nothing,
    ) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._clock = clock
        self._before_send = before_send
        self._producer: ProducerId | None = None
        self._sequence = SequenceNumber(0)

    async def fence(self, entries: Callable[[ProducerId], Sequence[Entry]]) -> int:
        """Take over the id, and write: from then on, writes of former owners are refused.

        This holds for writes under the same producer id. A coordinator gives an id another one when
        its epochs have ended, or when it was not used for long.

        Args:
            entries: what is written in the new epoch.

        Returns:
            The producer id.

        Raises:
            Fenced: another owner has taken over meanwhile.
            Retriable: not possible now; call it again.
            UserError: a right is missing.
        """
        self._producer = None
        producer = await self._next_epoch()
        self._producer, self._sequence = producer, SequenceNumber(0)
        await self.write(entries(producer))
        return producer.producer_id

    async def keep_id(self) -> None:
        """Use the id: its coordinator forgets one that nobody uses.

        The present epoch stays valid: it is fenced by the first batch of a later one.

        Raises:
            Fenced, Retriable, UserError: see `fence`.
        """
        await self._next_epoch()

    async def _next_epoch(self) -> ProducerId:
        return await init_producer_id(self._cluster, self._id, before_send=self._before_send)

    async def write(self, entries: Sequence[Entry]) -> None:
        """Append entries of one partition in one batch; it is replicated when this returns.

        After any error the caller has to `fence` again, if it still owns what it writes.

        Raises:
            Fenced: another owner has taken over.
            Retriable: it is unknown whether the entries were written.
            UserError: a right is missing.
        """
        producer = self._producer
        assert producer is not None, "call fence() first"
        self._producer = None
        (group,) = _by_partition(entries).items()
        partition, records = group
        data = _batch(
            records, int(self._clock() * 1000), producer, self._sequence, transactional=False
        )
        answer = await self._append(partition, data)
        with self._cluster.needing("WRITE", f"the topic {partition.topic}"):
            _raise_first({partition: answer}, f"write as {self._id}")
        self._sequence = advance(self._sequence, len(records))
        self._producer = producer

    async def _append(self, partition: TopicPartition, data: bytes) -> int | Refusal:
        batches, permit = {partition: data}, self._before_send
        answers = await send_batches(
            self._cluster, batches, ALL, tries=WRITE_TRIES, before_send=permit
        )
        return answers[partition]


async def append(
    cluster: KafkaCluster,
    entries: Sequence[Entry],
    *,
    acks: int = LEADER_ONLY,
    clock: Clock = time.time,
) -> Answers[int]:
    """Write without a transaction; return each partition's base offset, or its error code.

    For records that are overwritten soon: nothing fences the write, and after a lost answer the
    records may be stored twice.

    Raises:
        UserError: see `partitions.by_leader`.
    """
    now_ms = int(clock() * 1000)
    batches = {
        partition: _batch(group, now_ms, None, NO_SEQUENCE)
        for partition, group in _by_partition(entries).items()
    }
    return await send_batches(cluster, batches, acks)


def _by_partition(entries: Iterable[Entry]) -> dict[TopicPartition, list[Entry]]:
    groups: dict[TopicPartition, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(TopicPartition(entry.topic, entry.partition), []).append(entry)
    return groups


def _parts(
    groups: Mapping[TopicPartition, list[Entry]],
) -> Iterator[dict[TopicPartition, list[Entry]]]:
    """The entries of each partition in order, in parts that brokers accept as one batch."""
    remaining = {partition: deque(group) for partition, group in groups.items()}
    while remaining:
        part: dict[TopicPartition, list[Entry]] = {}
        for partition, entries in remaining.items():
            size = _size(entries[0])
            part[partition] = [entries.popleft()]
            while entries and size + _size(entries[0]) <= PART_BYTES:
                size += _size(entries[0])
                part[partition].append(entries.popleft())
        yield part
        remaining = {partition: entries for partition, entries in remaining.items() if entries}


def _size(entry: Entry) -> int:
    return len(entry.key) + len(entry.value or b"") + _RECORD_BYTES


def _batch(
    entries: Sequence[Entry],
    now_ms: int,
    producer: ProducerId | None,
    sequence: SequenceNumber,
    *,
    transactional: bool = True,
) -> bytes:
    records = [
        RawRecord(offset, now_ms, 0, memoryview(encode_tail(entry.key, entry.value)))
        for offset, entry in enumerate(entries)
    ]
    return whole(
        build(records, Codec.NONE),
        attributes=TRANSACTIONAL if producer is not None and transactional else 0,
        producer_id=NO_PRODUCER if producer is None else producer.producer_id,
        epoch=NO_EPOCH if producer is None else producer.epoch,
        sequence=sequence,
    )


async def wait_for_quotas(
    cluster: KafkaCluster, partitions: Collection[TopicPartition], lane: Lane
) -> None:
    """Wait for throttles before a transaction: within it, they could outlast its timeout.

    Raises:
        Retriable: not now.
    """
    for leader in (await cluster.leaders(partitions)).values():
        if isinstance(leader, Leader):
            connection = cluster.connected(leader.node_id, lane)
            if connection is not None and connection.throttled:
                await connection.ready(cluster.config.request_timeout)


async def send_batches(
    cluster: KafkaCluster,
    batches: Mapping[TopicPartition, bytes],
    acks: int,
    *,
    transactional_id: str | None = None,
    tries: int = TRIES,
    before_send: BeforeSend = nothing,
    lane: Lane = _LANE,
) -> Answers[int]:
    """Produce one batch to each partition; return base offsets or error codes.

    A batch is sent again after a lost answer: without a sequence it may be stored twice. `lane` is
    the connection's.

    Raises:
        UserError: see `partitions.by_leader`.
    """

    async def ask(node: int, questions: Asked[bytes]) -> Answers[int]:
        connection = await cluster.connection(node, lane)
        before_send()
        request = _request(questions, acks, transactional_id, int(_replica_timeout(cluster) * 1000))
        response = await connection.call(request)
        answers: dict[TopicPartition, int | Refusal] = {}
        for topic in response.responses:
            for part in topic.partition_responses:
                partition = TopicPartition(topic.name, part.index)
                if part.error_code:
                    answers[partition] = Refusal(part.error_code, part.error_message or "")
                else:
                    answers[partition] = part.base_offset
                    cluster.brokers_time.heard(part.log_append_time_ms)
        return answers

    return await by_leader(cluster, batches, ask, tries=tries)


def _replica_timeout(cluster: KafkaCluster) -> float:
    """Seconds that a broker may wait for in-sync replicas: less than the request timeout."""
    return cluster.config.request_timeout * 0.8


def _request(
    questions: Asked[bytes], acks: int, transactional_id: str | None, timeout_ms: int
) -> Any:
    topic = ProduceRequest.TopicProduceData
    by_topic: dict[str, list[Any]] = {}
    for partition, (_, batch) in questions.items():
        item = topic.PartitionProduceData(index=partition.partition, records=batch)
        by_topic.setdefault(partition.topic, []).append(item)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[topic(name=name, partition_data=items) for name, items in by_topic.items()],
        min_version=8,
        max_version=11,
    )


def _raise_first(answers: Mapping[TopicPartition, object], action: str) -> None:
    """Raise the most specific error code: OPERATION_NOT_ATTEMPTED (55) names no cause."""
    refusals = [(p, answer) for p, answer in answers.items() if isinstance(answer, Refusal)]
    if not refusals:
        return
    partition, refusal = min(
        refusals, key=lambda item: item[1].code == ErrorCode.OPERATION_NOT_ATTEMPTED
    )
    if refusal.code in _UNKNOWN_OUTCOME:
        raise Retriable(f"cannot {action}: {refusal}", topic=partition.topic, code=refusal.code)
    refusal.fail(action, topic=partition.topic, partition=partition.partition)
