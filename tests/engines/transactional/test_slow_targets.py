"""Transactions on a target that takes long for each batch, without brokers, in virtual time."""

import asyncio
import random
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from batch_builders import record
from flow_assignment import ASSIGNMENT, IN_TRANSACTIONS
from stored_beginnings import MemoryBeginnings

from model.loop import run
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional import transactions
from twinlog.engines.transactional.engine import TransactionalEngine
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.transactions import (
    TargetTransactions,
    TransactionContent,
    TransactionOutlasted,
)
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.engines.translated.partitions import FlowStage
from twinlog.kafka.client.metadata import EMPTY
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, Fenced, Refusal, TwinlogError, check
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data
from twinlog.store import transactional_id

TIMEOUT_S = 30.0


class SlowTarget:
    """A target that takes some time for each Produce request, and its coordinator."""

    def __init__(self, patch: pytest.MonkeyPatch, produce_s: float) -> None:
        self.produce_s = produce_s
        self.epoch = 0
        self.committed: dict[str, int] = {}
        """The offsets of the groups, by partition."""
        self.transactions = 0
        self.answer: TwinlogError | None = None
        """What the next Produce request raises."""
        self._since: float | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._pending: dict[str, int] = {}
        patch.setattr(transactions, "add_partitions_to_txn", self.add)
        patch.setattr(transactions, "send_batches", self.send)
        patch.setattr(transactions, "send_offsets_to_txn", self.send_offsets)
        patch.setattr(transactions, "init_producer_id", self.init)
        patch.setattr(transactional_id, "init_producer_id", self.init)
        patch.setattr(transactional_id, "end_txn", self.end)
        self.cluster: Any = SimpleNamespace(
            name="destination",
            metadata=EMPTY,
            brokers_time=SimpleNamespace(now_ms=lambda: 0),
            leaders=self.leaders,
        )

    async def leaders(self, _: object) -> Mapping[Any, Any]:
        return {}

    def take_over(self) -> None:
        """Raise the epoch, as another owner does."""
        self.epoch += 1

    def _check(self, producer: ProducerId, code: int) -> None:
        if self._since is not None and asyncio.get_running_loop().time() - self._since > TIMEOUT_S:
            self.epoch, self._since = self.epoch + 1, None  # the coordinator rolls it back
        if producer.epoch != self.epoch:
            check(code, "write")

    async def init(self, *_: object, **__: object) -> ProducerId:
        self.epoch, self._since, self._pending = self.epoch + 1, None, {}
        return ProducerId(7, self.epoch)

    async def add(
        self, _: object, __: str, producer: ProducerId, keys: Collection[Any], **___: Any
    ) -> Mapping[Any, None]:
        self.transactions += 1
        self._since = asyncio.get_running_loop().time()
        self._producer = producer
        self._check(producer, ErrorCode.PRODUCER_FENCED)
        return dict.fromkeys(keys)

    async def send(
        self, _: object, data: Mapping[TopicPartition, bytes], *__: object, **___: Any
    ) -> Mapping[TopicPartition, int | Refusal]:
        await asyncio.sleep(self.produce_s)
        if self.answer is not None:
            raise self.answer
        try:
            self._check(self._producer, ErrorCode.INVALID_PRODUCER_EPOCH)
        except Fenced:
            return dict.fromkeys(data, Refusal(ErrorCode.INVALID_PRODUCER_EPOCH))
        landed: dict[TopicPartition, int | Refusal] = {}
        for key in data:
            landed[key] = self._ends.get(key, 0)
            self._ends[key] = self._ends.get(key, 0) + 1
        return landed

    async def send_offsets(
        self, _: object, __: str, producer: ProducerId, ___: str, offsets: Any, **____: Any
    ) -> Mapping[Any, Any]:
        self._check(producer, ErrorCode.INVALID_PRODUCER_EPOCH)
        self._pending |= {str(key): one.offset for key, one in offsets.items()}
        return {}

    async def end(self, _: object, __: str, producer: ProducerId, **___: Any) -> None:
        self._check(producer, ErrorCode.PRODUCER_FENCED)
        self.committed |= self._pending
        self._since, self._pending = None, {}


def batches(start: int, count: int) -> list[Data]:
    """Batches of one record, with codecs in turn: none is merged with another one."""
    found = []
    for at in range(start, start + count):
        built = build([record(at, value=bytes(800))], (Codec.NONE, Codec.GZIP)[at % 2])
        found.append(Data(Offset(at), Offset(at + 1), built.header, built.records))
    return found


COUNT = 1500
"""Batches of each partition."""


@pytest.mark.parametrize("produce_s", [0.001, 0.1, 1.0, 12.0])
def test_a_flow_to_a_slow_target_makes_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, produce_s: float
) -> None:
    """Goal: however long a batch takes, transactions get as small as they have to, and no smaller.

    The one that has taken too long is reported, and no partition is FAILED for it.
    """
    target = SlowTarget(monkeypatch, produce_s)
    lane: Any = SimpleNamespace(
        settings=replace(LaneSettings(), produce_max_bytes=1024 * 1024),
        random=random.Random(1),
        destination=target.cluster,
        dataframes=None,
        id_prefix="lanes",
        may_write=lambda: True,
    )
    port: Any = SimpleNamespace()
    second = replace(
        ASSIGNMENT,
        name=MirrorPartition("flow", "orders", 1),
        source=TopicPartition("orders", 1),
        destination=TopicPartition("a.orders", 1),
    )

    async def body(_: object) -> None:
        engine = TransactionalEngine("flow", lane, None, port, observe=lambda *_: None)
        engine.configure(IN_TRANSACTIONS)
        assert engine._rules is not None
        writers = TransactionalWriters(0, lane, port)
        engine.start(writers, [ASSIGNMENT, second], lease_s=0.0)
        await writers.open(MemoryBeginnings())
        partitions = list(engine.flow.all.values())
        held_back = set[str | None]()

        async def turn() -> None:
            """One transaction with what is left, after a location if there has to be one."""
            if any(partition.sequence is None for partition in partitions):
                await writers._fence()
                for partition in partitions:
                    position = target.committed.get(str(partition.destination), 0)
                    queue = TransactionalQueue(
                        Offset(position), LeaderEpoch(-1), fence=writers._fences
                    )
                    engine._located(partition, queue)
                    queue.offer(batches(position, COUNT - position))
            taken = [(p, p.sequence) for p in partitions if p.sequence is not None]
            writing = [(p, queue) for p, queue in taken if queue.has_data]
            assert engine._rules is not None
            for partition, _ in writing:
                partition.in_flight += 1
            await engine._write(writers, writing, engine._rules)

        def copied() -> int:
            return sum(target.committed.values())

        turns = 0
        while copied() < 2 * COUNT and turns < 60:
            turns += 1
            await turn()
            for partition in partitions:
                held_back.add(partition.row(engine.flow.now()).held_back)
                assert partition.stage is not FlowStage.FAILED
        if produce_s < 1.0:
            assert copied() == 2 * COUNT
        else:
            assert copied() > 25, "at least a batch in each later transaction"
        warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        slow = produce_s > 0.01
        assert bool(warnings) is slow
        assert held_back == {None} or slow
        if slow:
            assert len(warnings) < 9
            assert warnings[0].startswith("flow flow, state partition 0: ")
            assert "transaction.timeout.ms is 30000" in warnings[0]
            assert re.search(
                r"; its 1048\d{3} bytes are copied again, up to 262\d{3} at once", warnings[0]
            )
            reasons = [one for one in held_back if one is not None]
            assert all("transaction.timeout.ms is 30000" in one for one in reasons)
            # The ones that are committed say no more of it.
            assert None in held_back
        assert all(partition.failures == 0 for partition in partitions)

    run(body)


CONTENT = TransactionContent(
    batches={ASSIGNMENT.destination: [build([record(0)], Codec.NONE)] * 2}, source_bytes=100_000
)


@pytest.mark.parametrize("by_timeout", [True, False])
def test_a_rollback_by_the_timeout_is_told_from_a_takeover(
    monkeypatch: pytest.MonkeyPatch, *, by_timeout: bool
) -> None:
    """Goal: the first is tried again and names its cause; the second ends the flow's engine."""
    target = SlowTarget(monkeypatch, 19.0 if by_timeout else 2.0)

    async def body(_: object) -> None:
        writer = TargetTransactions(target.cluster, "id", lambda: None)
        await writer.fence()
        if by_timeout:
            with pytest.raises(TransactionOutlasted) as late:
                await writer.write(CONTENT)
            assert str(late.value) == (
                "cannot write as id: INVALID_PRODUCER_EPOCH (47): the coordinator has rolled the "
                "transaction back by its timeout: it was refused after 38.0 s, and "
                "transaction.timeout.ms is 30000"
            )
            assert writer.size.bytes == 25_000
        else:
            later = asyncio.get_running_loop().call_later(1.0, target.take_over)
            with pytest.raises(Fenced, match=r"another owner .* after 2.0 s, and transaction.time"):
                await writer.write(CONTENT)
            later.cancel()
        assert not writer.ready

    run(body)


def test_a_lease_that_ends_in_a_long_transaction_is_no_rollback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the lane that may not write any more does not fence the next owner."""
    target = SlowTarget(monkeypatch, 31.0)

    async def body(_: object) -> None:
        writer = TargetTransactions(target.cluster, "id", lambda: None)
        await writer.fence()
        target.answer = Fenced("not sent: the lease has ended")
        with pytest.raises(Fenced, match="the lease has ended"):
            await writer.write(CONTENT)
        await writer.fence()
        target.answer = Disconnected("no answer")
        with pytest.raises(Disconnected):
            await writer.write(CONTENT)

    run(body)
