"""Requests to several brokers, one of which hangs."""

import asyncio
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.errors import Disconnected, Refusal, UserError
from twinlog.kafka.requests.partitions import Answers, Asked, by_leader
from twinlog.kafka.types import TopicPartition

PARTITIONS = [TopicPartition("orders", index) for index in range(6)]
NODES = 3
HUNG = 2
NETWORK_EXCEPTION = 13


class _Cluster(SimpleNamespace):
    """Three brokers; partition `n` is led by broker `n % 3`."""

    name = "destination"
    rng = random.Random(1)
    config = SimpleNamespace(retry_backoff=0.01, retry_backoff_max=0.02)
    hanging: frozenset[int] = frozenset()

    async def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        return {p: Leader(p.partition % NODES, 0) for p in partitions}

    async def refresh(self, _topics: Iterable[str]) -> None:
        return None

    def hangs(self, node: int, _patience: float) -> bool:
        return node in self.hanging


class _Brokers:
    """The requests to each broker. The hung broker answers when it is released."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.goes_on = asyncio.Event()

    async def ask(self, node: int, asked: Asked[None]) -> Answers[int]:
        self.asked.append(node)
        if node == HUNG:
            await self.goes_on.wait()
        return dict.fromkeys(asked, node)


def cluster(**changes: Any) -> KafkaCluster:
    return cast(KafkaCluster, _Cluster(**changes))


def test_a_hung_broker_delays_only_its_own_partitions() -> None:
    """The others' answers come; its own partitions are refused, and not requested again."""

    async def run() -> None:
        brokers = _Brokers()
        async with asyncio.timeout(60):
            answers = await by_leader(
                cluster(), dict.fromkeys(PARTITIONS), brokers.ask, patience=0.05
            )
        for partition, answer in answers.items():
            if partition.partition % NODES == HUNG:
                assert isinstance(answer, Refusal)
                assert answer.code == NETWORK_EXCEPTION
                assert "node 2 does not respond" in str(answer)
            else:
                assert answer == partition.partition % NODES
        assert sorted(brokers.asked) == [0, 1, 2]

    asyncio.run(run())


@pytest.mark.parametrize("patience", [None, 100.0])
def test_a_late_answer_within_the_patience_is_awaited(patience: float | None) -> None:
    """A late answer is waited for without patience, and within it."""

    async def run() -> None:
        brokers = _Brokers()
        asyncio.get_running_loop().call_later(0.1, brokers.goes_on.set)
        answers = await by_leader(
            cluster(), dict.fromkeys(PARTITIONS), brokers.ask, patience=patience
        )
        assert answers == {p: p.partition % NODES for p in PARTITIONS}

    asyncio.run(run())


def test_a_single_broker_gets_the_full_timeout() -> None:
    """It has its full time, whatever is known of it: no other answer is delayed."""

    async def run() -> None:
        brokers = _Brokers()
        asyncio.get_running_loop().call_later(0.1, brokers.goes_on.set)
        own = [p for p in PARTITIONS if p.partition % NODES == HUNG]
        known = cluster(hanging=frozenset({HUNG}))
        answers = await by_leader(known, dict.fromkeys(own), brokers.ask, patience=0.02)
        assert answers == dict.fromkeys(own, HUNG)

    asyncio.run(run())


def test_a_known_hung_broker_gets_no_request() -> None:
    """It gets no request until it has answered the former one."""

    async def run() -> None:
        brokers = _Brokers()
        known = cluster(hanging=frozenset({HUNG}))
        async with asyncio.timeout(60):
            answers = await by_leader(
                known, dict.fromkeys(PARTITIONS), brokers.ask, patience=1000.0
            )
        assert sorted(brokers.asked) == [0, 1]
        assert isinstance(answers[PARTITIONS[HUNG]], Refusal)

    asyncio.run(run())


def test_an_error_of_the_whole_request_is_raised() -> None:
    """It is raised at once, although other brokers have not answered."""

    async def run() -> None:
        async def ask(node: int, asked: Asked[None]) -> Answers[int]:
            if node == 0:
                raise UserError("no right")
            await asyncio.Event().wait()
            return dict.fromkeys(asked, node)

        async with asyncio.timeout(60):
            with pytest.raises(UserError, match="no right"):
                await by_leader(cluster(), dict.fromkeys(PARTITIONS), ask)

    asyncio.run(run())


def test_a_request_is_retried_after_a_lost_connection() -> None:
    """Only the affected partitions are retried, a bounded number of times."""

    async def run() -> None:
        asked_nodes: list[int] = []

        async def ask(node: int, asked: Asked[None]) -> Answers[int]:
            asked_nodes.append(node)
            if node == 0:
                raise Disconnected("lost")
            return dict.fromkeys(asked, node)

        answers = await by_leader(
            cluster(), dict.fromkeys(PARTITIONS), ask, tries=3, patience=100.0
        )
        assert sorted(asked_nodes) == [0, 0, 0, 1, 2]
        assert isinstance(answers[PARTITIONS[0]], Refusal)

    asyncio.run(run())
