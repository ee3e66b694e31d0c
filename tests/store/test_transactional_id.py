"""Twin of twinlog.store.transactional_id, without brokers and with them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from clients import client

from twinlog.kafka.errors import Disconnected, Fenced
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.local.cluster import LocalCluster
from twinlog.store import transactional_id
from twinlog.store.transactional_id import TransactionalId

CLUSTER: Any = SimpleNamespace(name="destination")


class Coordinator:
    """Requests of one id: `sent` is how often each EndTxn is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sent: int = 1) -> None:
        self.sent = sent
        self.newest = ProducerId(7, 0)
        monkeypatch.setattr(transactional_id, "end_txn", self.end)
        monkeypatch.setattr(transactional_id, "init_producer_id", self.init)

    async def init(self, *_: object, producer: ProducerId | None, **__: object) -> ProducerId:
        if producer not in {None, self.newest}:
            raise Fenced("a newer epoch")
        self.newest = ProducerId(7, self.newest.epoch + 1)
        return self.newest

    async def end(self, *_: object, before_send: Callable[[], None], **__: object) -> None:
        for _again in range(self.sent):
            before_send()


def _id() -> TransactionalId:
    return TransactionalId(CLUSTER, "id", before_send=lambda: None)


def test_transactions_follow_each_other_in_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        Coordinator(monkeypatch)
        own = _id()
        assert not own.ready
        await own.fence()
        for _ in range(2):
            producer = await own.begin()
            assert (producer.epoch, own.ready) == (1, False)
            await own.commit(producer)
            assert own.ready

    asyncio.run(body())


def test_an_epoch_whose_end_was_sent_twice_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a copy of EndTxn that arrives later does not commit half of the next transaction."""

    async def body() -> None:
        coordinator = Coordinator(monkeypatch, sent=2)
        own = _id()
        await own.fence()
        await own.commit(await own.begin())
        assert own.ready
        producer = await own.begin()
        assert producer.epoch == 2
        coordinator.sent = 1
        await own.commit(producer)
        assert (await own.begin()).epoch == 2

    asyncio.run(body())


def test_a_newer_epoch_is_not_taken_from_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who has sent EndTxn twice does not take the id back."""

    async def body() -> None:
        Coordinator(monkeypatch, sent=2)
        former = _id()
        await former.fence()
        await former.commit(await former.begin())
        await _id().fence()
        with pytest.raises(Fenced):
            await former.begin()
        assert not former.ready

    asyncio.run(body())


def test_an_unknown_outcome_needs_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        Coordinator(monkeypatch)
        own = _id()
        await own.fence()
        producer = await own.begin()

        async def lost(*_: object, **__: object) -> None:
            raise Disconnected("no answer")

        monkeypatch.setattr(transactional_id, "end_txn", lost)
        with pytest.raises(Disconnected):
            await own.commit(producer)
        assert not own.ready

    asyncio.run(body())


@pytest.mark.broker
def test_brokers_raise_the_epoch_of_the_newest_one_only(
    any_kafka: LocalCluster, topic: str
) -> None:
    """Goal: an epoch whose EndTxn was sent twice is left, unless another owner has taken over."""

    async def body() -> None:
        async with client(any_kafka) as cluster:
            former = TransactionalId(cluster, topic, before_send=lambda: None)
            first = await former.fence()
            former._ended_twice = True
            second = await former.begin()
            assert second == (first.producer_id, first.epoch + 1)
            former._producer, former._ended_twice = second, True
            await TransactionalId(cluster, topic, before_send=lambda: None).fence()
            with pytest.raises(Fenced):
                await former.begin()

    asyncio.run(body())
