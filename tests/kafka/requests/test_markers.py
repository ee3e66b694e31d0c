"""How many markers one transaction leaves, if its coordinator moves.

Gap filling has to allow for this behaviour of brokers: a coordinator that takes over sends the
markers of every transaction that is not recorded as complete, and a partition's leader appends
each marker that it gets.
"""

import asyncio

import pytest
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import DEBUGGING, Answers, ListedOffset, list_offsets
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.kafka.requests.transactions import (
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    transaction_state,
)
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(900)]
PARTITIONS = 30
ROUNDS = 8


class Round:
    """One empty transaction on all partitions of a new topic, and their log end offsets."""

    def __init__(self, cluster: KafkaCluster, local: LocalCluster, name: str) -> None:
        self.cluster, self.local, self.name = cluster, local, name
        self.partitions = [TopicPartition(name, index) for index in range(PARTITIONS)]

    async def ends(self) -> Answers[ListedOffset]:
        return await list_offsets(self.cluster, self.partitions, replica_id=DEBUGGING)

    async def answered(self) -> bool:
        return not any(isinstance(end, Refusal) for end in (await self.ends()).values())

    async def complete(self) -> bool:
        return (await transaction_state(self.cluster, self.name)).startswith("Complete")

    async def run(self, *, wait: bool) -> set[int]:
        """Return the log end offsets, with the coordinator shut down once EndTxn was answered."""
        topic = NewTopic(name=self.name, partitions=PARTITIONS)
        await create_topics(self.cluster, [topic])
        await until_async(self.answered, 60, "leaders")
        producer = await init_producer_id(self.cluster, self.name)
        await add_partitions_to_txn(self.cluster, self.name, producer, self.partitions)
        node = await self.cluster.coordinators.find(Coordinator.TRANSACTION, self.name)
        await end_txn(self.cluster, self.name, producer, commit=True)
        if wait:
            await until_async(self.complete, 60, "the transaction's end")
        await asyncio.to_thread(self.local.shut_down, node)
        await until_async(self.complete, 60, "the transaction's end")
        await until_async(self.answered, 60, "leaders")
        ends = {end.offset for end in (await self.ends()).values()}  # type: ignore[union-attr]
        await asyncio.to_thread(self.local.start_broker, node)
        return ends


async def _rounds(local: LocalCluster, name: str, *, wait: bool) -> list[set[int]]:
    properties = {"bootstrap.servers": local.bootstrap_servers, "retry.backoff.ms": "20"}
    async with KafkaCluster(parse_config(properties, {}).config) as cluster:
        return [
            await Round(cluster, local, f"{name}.{number}").run(wait=wait)
            for number in range(ROUNDS)
        ]


def test_a_marker_is_written_once_if_the_transaction_end_was_awaited(
    trio: LocalCluster, topic: str
) -> None:
    """After CompleteCommit no coordinator sends a marker again."""
    assert asyncio.run(_rounds(trio, topic, wait=True)) == [{1}] * ROUNDS


def test_a_marker_may_be_repeated_if_the_coordinator_moves_before_the_end(
    trio: LocalCluster, topic: str
) -> None:
    """EndTxn is answered, the coordinator is restarted as operators do, and logs are too long."""
    found = asyncio.run(_rounds(trio, topic, wait=False))
    assert max(max(ends) for ends in found) > 1, found
