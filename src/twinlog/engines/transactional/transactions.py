"""A transaction on the target: batches, positions of groups, and entries of control topics.

    AddPartitionsToTxn -> Produce, one batch of each partition at a time -> Produce of what depends
    on where these have landed -> AddOffsetsToTxn, TxnOffsetCommit -> EndTxn

The coordinator of a group appends the offsets of a request to `__consumer_offsets` as one batch, of
at most `message.max.bytes`. So many offsets are several requests of the same transaction.

Of two offsets of a partition, the one counts that was appended last, whenever the transaction ends
(tests/engines/transactional/test_target_transactions.py). So what another client commits behind the
offsets of a transaction stays. What it has committed in front of them can be read until the end:
the offsets of the transaction are pending, and a reader that accepts this gets the former ones.
`before_commit` may read it, and end the transaction.

It ends in one of three ways:

- it is committed;
- it is refused, and read_committed readers will see nothing of it (`TransactionRefused`, `Fenced`);
- its outcome is unknown (`Disconnected`): the committed positions tell.

After anything but the first, the id has to be fenced again.

A transaction that fails is ended by InitProducerId. Its markers have a newer epoch, so what is held
in the network is refused then. The markers of EndTxn would have the same epoch.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from twinlog.engines.transactional.remote_tails import LandedBatches, tail_of_batch
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.retries import BeforeSend
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    LEFT_OUT,
    Fenced,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    check,
)
from twinlog.kafka.log.batch import TRANSACTIONAL, patched_header
from twinlog.kafka.log.records import Encoded
from twinlog.kafka.requests.transactions import (
    ProducerId,
    TransactionOffset,
    add_partitions_to_txn,
    init_producer_id,
    send_offsets_to_txn,
)
from twinlog.kafka.types import Offset, ProducerEpoch, TopicPartition
from twinlog.kafka.types import ProducerId as ProducerIdNumber
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.store.topic_writer import (
    ABORT_TIMEOUT,
    ALL,
    WRITE_TRIES,
    send_batches,
)
from twinlog.store.transactional_id import TRANSACTION_TIMEOUT_MS, TransactionalId

_LANE: Final = "transactions"
_OFFSETS_BYTES: Final = 500_000
"""Of the offsets of a request, by Kafka's default of `message.max.bytes` (1 MB)."""
_OFFSET_BYTES: Final = 60
"""Of an offset in the log, at most, besides names and metadata."""


class TransactionRefused(Retriable):
    """Some partitions refuse what is written to them; nothing of the transaction is committed."""

    def __init__(self, refusals: Mapping[TopicPartition, Refusal], message: str) -> None:
        super().__init__(message)
        self.refusals = refusals


GroupOffsets = Mapping[str, Mapping[TopicPartition, TransactionOffset]]
"""By group."""
Batches = Mapping[TopicPartition, Sequence[Encoded]]
"""By partition, in order."""
Landed = Mapping[TopicPartition, LandedBatches]
"""What of each partition has landed."""


def _none(_: object) -> Mapping[Any, Any]:
    return {}


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionContent:
    """What a transaction writes: batches by partition, and offsets by group.

    `offsets_behind` gives more offsets, by what of each partition has landed. `batches_behind` does
    so for more batches, which go to the partitions of `partitions_behind`; it is called before.
    `before_commit` is called when all of it has landed; an error from it ends the transaction.
    """

    batches: Batches = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=dict)
    offsets_behind: Callable[[Landed], GroupOffsets] = _none
    batches_behind: Callable[[Landed], Batches] = _none
    partitions_behind: Collection[TopicPartition] = ()
    before_commit: Callable[[], Awaitable[None]] = _nothing


class TargetTransactions:
    """The transactions of one transactional id; the caller writes one at a time.

    Args:
        cluster: the target.
        transactional_id: the id.
        before_send: called before each request; an exception from it ends the call.
    """

    def __init__(
        self, cluster: KafkaCluster, transactional_id: str, before_send: BeforeSend
    ) -> None:
        self._cluster = cluster
        self._before_send = before_send
        self._id = TransactionalId(cluster, transactional_id, before_send=before_send)

    @property
    def ready(self) -> bool:
        """Whether `write` may be called: `fence` succeeded, and no error has followed."""
        return self._id.ready

    async def fence(self) -> int:
        """Exclude all earlier epochs of the id; their transactions are decided. The producer id.

        Raises:
            Retriable: no success within default.api.timeout.ms.
            UserError: no right to the transactional id.
            Fenced: the lane may not write any more.
        """
        return (await self._id.fence()).producer_id

    async def write(self, content: TransactionContent) -> None:
        """Write all of it, or nothing.

        Raises:
            TransactionRefused, Fenced, Disconnected, Retriable, UserError: see the module.
        """
        producer = await self._id.begin()
        try:
            await self._prepare(producer, content)
        except Fenced:
            raise
        except TwinlogError:
            with suppress(TwinlogError):  # at once: readers wait for the transaction's end
                await init_producer_id(
                    self._cluster,
                    self._id.name,
                    timeout_ms=TRANSACTION_TIMEOUT_MS,
                    timeout=ABORT_TIMEOUT,
                    before_send=self._before_send,
                )
            raise
        await self._id.commit(producer)

    async def _prepare(self, producer: ProducerId, content: TransactionContent) -> None:
        partitions = dict.fromkeys([*content.batches, *content.partitions_behind])
        if partitions:
            answers = await add_partitions_to_txn(
                self._cluster,
                self._id.name,
                producer,
                list(partitions),
                before_send=self._before_send,
            )
            self._check(partitions, answers)
        landed = await self._produce(producer, content.batches)
        await self._produce(producer, content.batches_behind(landed))
        all_offsets = {**content.offsets, **content.offsets_behind(landed)}
        for group, offsets in all_offsets.items():
            for portion in _portions(group, offsets):
                refusals = await send_offsets_to_txn(
                    self._cluster,
                    self._id.name,
                    producer,
                    group,
                    portion,
                    before_send=self._before_send,
                )
                self._check(refusals, refusals)
        await content.before_commit()

    async def _produce(self, producer: ProducerId, content: Batches) -> Landed:
        """Append batches, in order in each partition."""
        landed: dict[TopicPartition, LandedBatches] = {}
        for batches in _rounds(content):
            numbers = {p: self._id.numbers(p, b.header.num_records) for p, b in batches.items()}
            data = {p: _whole(batch, producer, numbers[p]) for p, batch in batches.items()}
            results = await send_batches(
                self._cluster,
                data,
                ALL,
                transactional_id=self._id.name,
                tries=WRITE_TRIES,
                before_send=self._before_send,
                lane=_LANE,
            )
            self._check(data, results)
            for key, batch in batches.items():
                base, count = results[key], batch.header.num_records
                if isinstance(base, Refusal) or base < 0:
                    raise Retriable(f"the broker does not tell where a batch of {key} landed")
                tail, place = tail_of_batch(base, count, producer, numbers[key]), Offset(base)
                former = landed.get(key) or LandedBatches(place, tail)
                if key in landed and place < former.tail.end:
                    # A leader that knows nothing of the producer takes any number as its first.
                    raise Retriable(
                        f"the destination has lost records: a batch landed at {place} of {key}, "
                        f"which the transaction had written up to {former.tail.end}"
                    )
                landed[key] = LandedBatches(former.start, tail, (*former.batches, (place, count)))
        return landed

    def _check(
        self, partitions: Iterable[TopicPartition], answers: Mapping[TopicPartition, object]
    ) -> None:
        """Raise if one of these partitions is refused, or left out."""
        results = {partition: answers.get(partition, LEFT_OUT) for partition in partitions}
        refusals = {p: answer for p, answer in results.items() if isinstance(answer, Refusal)}
        for refusal in refusals.values():
            if refusal.reaction is Reaction.FENCED:
                check(refusal.code, f"write as {self._id.name}")
        causes = {
            p: refusal
            for p, refusal in refusals.items()
            if refusal.code != ErrorCode.OPERATION_NOT_ATTEMPTED
        }
        if refusals:
            first, refusal = next(iter((causes or refusals).items()))
            raise TransactionRefused(causes or refusals, f"{first} refuses a write: {refusal}")


def _whole(batch: Encoded, producer: ProducerId, sequence: SequenceNumber) -> bytes:
    header = patched_header(
        batch.header,
        batch.records,
        ProducerIdNumber(producer.producer_id),
        ProducerEpoch(producer.epoch),
        sequence,
        attributes=TRANSACTIONAL,
    )
    return header + bytes(batch.records)


def _rounds(
    batches: Mapping[TopicPartition, Sequence[Encoded]],
) -> Iterator[dict[TopicPartition, Encoded]]:
    """One batch of each partition at a time: a Produce request has no more."""
    for number in range(max(map(len, batches.values()), default=0)):
        yield {p: each[number] for p, each in batches.items() if number < len(each)}


def _portions(
    group: str, offsets: Mapping[TopicPartition, TransactionOffset]
) -> Iterator[dict[TopicPartition, TransactionOffset]]:
    """The offsets of a group, as many at a time as fit into a batch; all at once if they do."""
    portion: dict[TopicPartition, TransactionOffset] = {}
    size = 0
    for key, offset in offsets.items():
        texts = group, key.topic, offset.metadata
        added = _OFFSET_BYTES + sum(len(text.encode()) for text in texts)
        if portion and size + added > _OFFSETS_BYTES:
            yield portion
            portion, size = {}, 0
        portion[key] = offset
        size += added
    yield portion
