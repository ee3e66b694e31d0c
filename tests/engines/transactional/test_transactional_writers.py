"""Which transactions are written at all: after fences of one's own, and after doubtful answers."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.engines.transactional import transactions
from twinlog.engines.transactional import writers as writers_module
from twinlog.engines.transactional.transactions import TargetTransactions, TransactionContent
from twinlog.engines.transactional.writers import Outdated, SourcePosition, TransactionalWriters
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.config_records import MirrorTopic
from twinlog.store.offset_records import Route

REMOTE = TopicPartition("A.t", 0)
NAME = MirrorPartition("m", "t", 0)
CLUSTER: Any = SimpleNamespace(name="destination")


class Transactions:
    """A transactional id that is always fenced at once."""

    def __init__(self) -> None:
        self.ready = False
        self.written: list[TransactionContent] = []

    async def fence(self) -> int:
        self.ready = True
        return 7

    async def write(self, content: TransactionContent) -> None:
        self.written.append(content)


def position(fence: int) -> SourcePosition:
    route = Route(UUID(int=1), REMOTE.topic, UUID(int=2))
    return SourcePosition(REMOTE, route, Offset(5), LeaderEpoch(UNKNOWN_EPOCH), None, fence)


def test_positions_from_before_a_fence_are_not_written() -> None:
    """Goal: who takes the id back does not write what another owner may have written meanwhile."""
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes")
    writers = TransactionalWriters(0, lane, port=SimpleNamespace())  # type: ignore[arg-type]
    fake: Any = Transactions()
    writers._transactions = fake

    async def run() -> None:
        await writers.open()
        await writers.write({}, {NAME: position(1)})
        await writers.open()
        with pytest.raises(Outdated):
            await writers.write({}, {NAME: position(1)})
        await writers.write({}, {NAME: position(2)})
        fake.ready = False  # an error, as of another flow of this state partition
        with pytest.raises(Outdated):
            await writers.write({}, {NAME: position(2)})

    asyncio.run(run())
    assert len(fake.written) == 2


def test_a_transaction_that_fails_is_ended_by_a_newer_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what the network still holds of it is refused: markers of EndTxn would let it in."""
    ended: list[str] = []

    async def refuse(*_: object, **__: object) -> None:
        raise Retriable("no answer")

    async def init_producer_id(_: object, transactional_id: str, **__: object) -> ProducerId:
        ended.append(transactional_id)
        return ProducerId(1, 1)

    monkeypatch.setattr(transactions, "send_offsets_to_txn", refuse)
    monkeypatch.setattr(transactions, "init_producer_id", init_producer_id)
    writer = TargetTransactions(CLUSTER, "id", lambda: None)
    writer._id._producer = ProducerId(1, 0)
    with pytest.raises(TwinlogError, match="no answer"):
        asyncio.run(writer.write(TransactionContent(offsets={"g": {}})))
    assert ended == ["id"]
    assert not writer.ready


def test_two_topics_do_not_share_one_position() -> None:
    """Goal: a policy of one's own that gives two topics one name is refused for such a flow."""
    topic = MirrorTopic(
        mirror="m", topic="x.t", topic_id=UUID(int=1), partitions=1, destination_topic="t"
    )
    clusters: Any = SimpleNamespace(mirror=SimpleNamespace(kind="transactional"))
    check = FlowClusters._check_positions
    check(clusters, [topic], {"x.t": "t", "x.u": "u"})
    with pytest.raises(TwinlogError, match=r"x\.t and y\.t would both be copied to t"):
        check(clusters, [topic], {"y.t": "t"})
    with pytest.raises(TwinlogError, match="would both be copied to t"):
        check(clusters, [], {"x.t": "t", "y.t": "t"})
    clusters.mirror.kind = "translated"
    check(clusters, [topic], {"y.t": "t"})


def test_what_was_forgotten_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an owner that goes on does not miss the position of a flow that was deleted."""
    begun = {NAME: position(1).route}
    reads: list[int] = []

    async def read_whole(_: object, __: object, numbers: list[int]) -> list[object]:
        reads.extend(numbers)
        return []

    async def topic_id(_: object) -> UUID:
        return UUID(int=9)

    monkeypatch.setattr(writers_module, "read_whole", read_whole)
    monkeypatch.setattr(writers_module, "offsets_topic_id", topic_id)
    monkeypatch.setattr(
        writers_module, "fold_offsets", lambda _: SimpleNamespace(begun=dict(begun))
    )
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes")
    writers = TransactionalWriters(3, lane, port=SimpleNamespace())  # type: ignore[arg-type]
    fake: Any = Transactions()
    writers._transactions = fake

    async def run() -> None:
        assert NAME in await writers._take_over()
        writers.forget({("m", "other")})
        await writers._take_over()
        assert len(reads) == 1
        begun.clear()
        writers.forget({("m", "t")})
        writers.forget(set())
        assert await writers._take_over() == {}
        assert reads == [3, 3]

    asyncio.run(run())
