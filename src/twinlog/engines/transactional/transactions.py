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
- it is refused, or has outlasted its timeout, and read_committed readers will see nothing of it
  (`TransactionRefused`, `TransactionOutlasted`, `Fenced`);
- its outcome is unknown (`Disconnected`): the committed positions tell.

After anything but the first, the id has to be fenced again.

The coordinator rolls back a transaction that is open for longer than its timeout, under a newer
epoch. So what follows is refused with the codes of a takeover by another owner
(tests/engines/transactional/test_target_transactions.py). A transaction that was open for less was
not rolled back so. One that takes too long is ended before, and the next one is smaller
(transaction_size.py).

A transaction that fails is ended by InitProducerId. Its markers have a newer epoch, so what is held
in the network is refused then. The markers of EndTxn would have the same epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from twinlog.engines.transactional.remote_tails import LandedBatches, tail_of_batch
from twinlog.engines.transactional.transaction_size import TransactionSize
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.pool import Lane
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
    wait_for_quotas,
)
from twinlog.store.transactional_id import TRANSACTION_TIMEOUT_MS, TransactionalId

_LANE: Final = "transactions"
_LANE_BEHIND: Final = "transactions behind"
"""A broker that throttles the producer of the batches before holds up this connection later only:
within the transaction, the throttle could outlast its timeout."""
_USUAL_BYTES: Final = 4 * 1024 * 1024
_EPOCH_RAISED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""How brokers refuse an epoch of the id that is not the newest one any more."""
_OFFSETS_BYTES: Final = 500_000
"""Of the offsets of a request, by Kafka's default of `message.max.bytes` (1 MB)."""
_OFFSET_BYTES: Final = 60
"""Of an offset in the log, at most, besides names and metadata."""


class TransactionRefused(Retriable):
    """Some partitions refuse what is written to them; nothing of the transaction is committed."""

    def __init__(self, refusals: Mapping[TopicPartition, Refusal], message: str) -> None:
        super().__init__(message)
        self.refusals = refusals


class TransactionOutlasted(Retriable):
    """It was rolled back by its timeout, or ended before; nothing of it is committed."""


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
    `source_bytes`: of the batches of the source that it has.
    """

    batches: Batches = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=dict)
    offsets_behind: Callable[[Landed], GroupOffsets] = _none
    batches_behind: Callable[[Landed], Batches] = _none
    partitions_behind: Collection[TopicPartition] = ()
    before_commit: Callable[[], Awaitable[None]] = _nothing
    source_bytes: int = 0


class TargetTransactions:
    """The transactions of one transactional id; the caller writes one at a time.

    Args:
        cluster: the target.
        transactional_id: the id.
        before_send: called before each request; an exception from it ends the call.
        max_bytes: the usual bound of what a transaction has of the source.
        timeout_ms: `transaction.timeout.ms`.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        transactional_id: str,
        before_send: BeforeSend,
        *,
        max_bytes: int = _USUAL_BYTES,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        self.size = TransactionSize(max_bytes, timeout_ms / 1000)
        """How much of the source the next transaction may have."""
        self._cluster = cluster
        self._before_send = before_send
        self._timeout_ms = timeout_ms
        self._start = 0.0  # of the last transaction, by the loop's clock
        self._id = TransactionalId(
            cluster, transactional_id, timeout_ms=timeout_ms, before_send=before_send
        )

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
            TransactionRefused, TransactionOutlasted, Fenced, Disconnected, Retriable, UserError:
                see the module.
        """
        for lane, partitions in (
            (_LANE, content.batches),
            (_LANE_BEHIND, content.partitions_behind),
        ):
            await wait_for_quotas(self._cluster, partitions, lane)
        producer = await self._id.begin()
        self._start, committed = asyncio.get_running_loop().time(), False
        try:
            await self._whole(producer, content)
            committed = True
        except Fenced as error:
            if error.code not in _EPOCH_RAISED:
                raise
            raise self._rolled_back(error) from error
        finally:
            self.size.ended(content.source_bytes, self._open_s, committed=committed)

    async def _whole(self, producer: ProducerId, content: TransactionContent) -> None:
        try:
            await self._prepare(producer, content)
        except Fenced:
            raise
        except TwinlogError:
            with suppress(TwinlogError):  # at once: readers wait for the transaction's end
                await init_producer_id(
                    self._cluster,
                    self._id.name,
                    timeout_ms=self._timeout_ms,
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
        await self._produce(producer, content.batches_behind(landed), _LANE_BEHIND)
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

    @property
    def _open_s(self) -> float:
        """For how long the last transaction was open, at most."""
        return asyncio.get_running_loop().time() - self._start

    @property
    def _of_timeout(self) -> str:
        return f"after {self._open_s:.1f} s, and transaction.timeout.ms is {self._timeout_ms}"

    def _rolled_back(self, error: Fenced) -> TwinlogError:
        """Why the epoch of a transaction was raised."""
        if self._open_s * 1000 < self._timeout_ms:
            text = f"{error.message}: another owner has raised the epoch {self._of_timeout}"
            return Fenced(text, code=error.code)
        return TransactionOutlasted(
            f"{error.message}: the coordinator has rolled the transaction back by its timeout: it "
            f"was refused {self._of_timeout}",
            code=error.code,
        )

    async def _produce(self, producer: ProducerId, content: Batches, lane: Lane = _LANE) -> Landed:
        """Append batches, in order in each partition.

        Raises:
            TransactionOutlasted: the transaction is late.
        """
        landed: dict[TopicPartition, LandedBatches] = {}
        rounds = _rounds(content)
        for number, batches in enumerate(rounds):
            if number and self.size.is_late(self._open_s):
                raise TransactionOutlasted(
                    f"the transaction of {self._id.name} was ended {self._of_timeout}: {number} of "
                    f"{len(rounds)} batches of a partition had landed, one after another"
                )
            numbers = {p: self._id.numbers(p, b.header.num_records) for p, b in batches.items()}
            data = {p: _numbered(batch, producer, numbers[p]) for p, batch in batches.items()}
            results = await send_batches(
                self._cluster,
                data,
                ALL,
                transactional_id=self._id.name,
                tries=WRITE_TRIES,
                before_send=self._before_send,
                lane=lane,
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


def _numbered(batch: Encoded, producer: ProducerId, sequence: SequenceNumber) -> bytes:
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
) -> list[dict[TopicPartition, Encoded]]:
    """One batch of each partition at a time: a Produce request has no more."""
    return [
        {p: each[number] for p, each in batches.items() if number < len(each)}
        for number in range(max(map(len, batches.values()), default=0))
    ]


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
