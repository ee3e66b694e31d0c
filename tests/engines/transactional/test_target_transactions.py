"""Transactions with records and positions, on brokers of both versions."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import librdkafka_tools
import pytest
from batch_builders import record
from clients import client
from remote_topics import records

from twinlog.engines.transactional import transactions as transactions_module
from twinlog.engines.transactional.transactions import (
    TargetTransactions,
    TransactionContent,
    TransactionOutlasted,
    TransactionRefused,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Fenced, Retriable
from twinlog.kafka.groups.offsets import Committed, commit_offsets, committed_offsets
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, build
from twinlog.kafka.requests.transactions import TransactionOffset, transaction_state
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

OFFSET = TransactionOffset(7, 3, "where")


def batches(*values: str) -> list[Encoded]:
    return [build([record(0, value=value.encode())], Codec.NONE) for value in values]


def transactions(cluster: KafkaCluster, name: str) -> TargetTransactions:
    return TargetTransactions(cluster, name, lambda: None)


async def positions(
    cluster: KafkaCluster, group: str, *keys: TopicPartition
) -> Mapping[TopicPartition, Committed]:
    return await committed_offsets(cluster, group, stable=True, partitions=keys)


def test_records_and_positions_are_committed_together(any_kafka: LocalCluster, topic: str) -> None:
    """Goal: several batches of a partition, and the epoch and metadata of a position."""
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic, 2)
    zero, one = (TopicPartition(topic, at) for at in (0, 1))

    async def run() -> None:
        async with client(any_kafka) as cluster:
            writer = transactions(cluster, topic)
            await writer.fence()
            content = {zero: batches("a", "b", "c"), one: batches("x")}
            await writer.write(TransactionContent(batches=content, offsets={topic: {zero: OFFSET}}))
            await writer.write(TransactionContent(batches={one: batches("y")}))
            # Positions alone are a transaction, too.
            await writer.write(TransactionContent(offsets={topic: {one: OFFSET}}))
            await writer.fence()  # the markers are written then
            assert await positions(cluster, topic, zero, one) == {
                zero: Committed(7, "where", 3),
                one: Committed(7, "where", 3),
            }

    asyncio.run(run())
    assert [value for _, value in records(any_kafka, topic, 0)] == ["a", "b", "c"]
    assert [value for _, value in records(any_kafka, topic, 1)] == ["x", "y"]


def test_many_positions_are_committed_together(any_kafka: LocalCluster, topic: str) -> None:
    """Goal: those of one transaction may be more than a batch of `__consumer_offsets` holds."""
    count = 300
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic, count)
    offsets = {
        TopicPartition(topic, at): TransactionOffset(at, 3, "x" * 4000) for at in range(count)
    }

    async def run() -> None:
        async with client(any_kafka) as cluster:
            writer = transactions(cluster, topic)
            await writer.fence()
            await writer.write(TransactionContent(offsets={topic: offsets}))
            await writer.fence()
            found = await positions(cluster, topic, *offsets)
            assert {key: at.offset for key, at in found.items()} == {
                key: at.offset for key, at in offsets.items()
            }

    asyncio.run(run())


@pytest.mark.parametrize("first", ["operator", "transaction"])
def test_an_offset_committed_beside_a_transaction_stays(
    any_kafka: LocalCluster, topic: str, first: str
) -> None:
    """Goal: in front of the transaction's it shows while these are pending; behind them it counts.

    The broker keeps the one that was appended last, although the transaction ends later.
    """
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic)
    key = TopicPartition(topic, 0)
    former, operators = Committed(5, "former"), Committed(9, "operator")
    seen: list[Mapping[TopicPartition, Committed]] = []

    async def run() -> None:
        async with client(any_kafka) as cluster, client(any_kafka) as operator:
            writer = transactions(cluster, topic)
            await writer.fence()

            async def commit(committed: Committed) -> None:
                answers = await commit_offsets(operator, topic, {key: committed})
                assert answers == {key: None}

            async def look() -> None:
                seen.append(await committed_offsets(cluster, topic, partitions=[key]))
                if first == "transaction":
                    await commit(operators)

            await commit(former)
            if first == "operator":
                await commit(operators)
            offsets = {topic: {key: OFFSET}}
            await writer.write(TransactionContent(offsets=offsets, before_commit=look))
            await writer.fence()  # the markers are written then
            found = (await positions(cluster, topic, key))[key]
            if first == "operator":
                assert seen == [{key: operators}]
                assert found.offset == OFFSET.offset
            else:
                assert seen == [{key: former}]
                assert found == operators

    asyncio.run(run())


def test_what_is_found_before_the_commit_ends_a_transaction(
    any_kafka: LocalCluster, topic: str
) -> None:
    """Goal: nothing of it counts, and another one follows after a fence."""
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic)
    key = TopicPartition(topic, 0)

    async def refuse() -> None:
        raise Retriable("another offset")

    async def run() -> None:
        async with client(any_kafka) as cluster:
            writer = transactions(cluster, topic)
            await writer.fence()
            content = TransactionContent(
                batches={key: batches("a")}, offsets={topic: {key: OFFSET}}
            )
            with pytest.raises(Retriable, match="another offset"):
                await writer.write(replace(content, before_commit=refuse))
            assert not writer.ready
            await writer.fence()
            assert await positions(cluster, topic, key) == {}
            await writer.write(replace(content, batches={key: batches("b")}))
            await writer.fence()
            assert (await positions(cluster, topic, key))[key].offset == OFFSET.offset

    asyncio.run(run())
    assert [value for _, value in records(any_kafka, topic)] == ["b"]


def test_a_refused_record_leaves_no_record_and_no_position(
    any_kafka: LocalCluster, topic: str
) -> None:
    """Goal: the partition that refuses is named, and the next transaction has all again."""
    small = {"max.message.bytes": "500"}
    servers = any_kafka.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.make_topic(servers, f"{topic}-small", config=small)
    key, other = TopicPartition(topic, 0), TopicPartition(f"{topic}-small", 0)

    async def run() -> None:
        async with client(any_kafka) as cluster:
            writer = transactions(cluster, topic)
            await writer.fence()
            content = {key: batches("a"), other: batches("x" * 1000)}
            with pytest.raises(TransactionRefused) as refused:
                await writer.write(
                    TransactionContent(batches=content, offsets={topic: {key: OFFSET}})
                )
            assert {p: r.code for p, r in refused.value.refusals.items()} == {
                other: ErrorCode.MESSAGE_TOO_LARGE
            }
            assert not writer.ready
            await writer.fence()
            assert await positions(cluster, topic, key) == {}
            missing = TopicPartition(f"{topic}-missing", 0)
            with pytest.raises(TransactionRefused):
                await writer.write(TransactionContent(offsets={topic: {missing: OFFSET}}))
            await writer.fence()
            await writer.write(TransactionContent(batches={key: batches("b")}))
            await writer.fence()

    asyncio.run(run())
    assert [value for _, value in records(any_kafka, topic)] == ["b"]


def test_a_former_owner_commits_nothing_any_more(any_kafka: LocalCluster, topic: str) -> None:
    """Goal: the same transactional id elsewhere excludes it, between its transactions or in one."""
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic)
    key = TopicPartition(topic, 0)
    content = TransactionContent(batches={key: batches("a")}, offsets={topic: {key: OFFSET}})

    async def run() -> None:
        async with client(any_kafka) as cluster, client(any_kafka) as another:
            former, owner = transactions(cluster, topic), transactions(another, topic)
            await former.fence()
            await former.write(content)
            await owner.fence()
            with pytest.raises(Fenced):
                await former.write(content)
            assert (await positions(another, topic, key))[key].offset == 7
            later = TransactionOffset(8, -1, "")
            await owner.write(
                TransactionContent(batches={key: batches("b")}, offsets={topic: {key: later}})
            )
            await owner.fence()
            assert (await positions(another, topic, key))[key].offset == 8

    asyncio.run(run())
    assert [value for _, value in records(any_kafka, topic)] == ["a", "b"]


@pytest.mark.parametrize("at", ["produce", "offsets", "end"])
def test_a_transaction_that_outlasts_its_timeout_is_told_from_a_takeover(
    any_kafka: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Goal: with whatever request it is met, nothing of it counts, and the next one is smaller."""
    librdkafka_tools.make_topic(any_kafka.bootstrap_servers, topic)
    key, sent = TopicPartition(topic, 0), 0
    content = TransactionContent(
        batches={key: batches("a", "b")}, offsets={topic: {key: OFFSET}}, source_bytes=1000
    )
    send_batches, send_offsets = (
        getattr(transactions_module, name) for name in ("send_batches", "send_offsets_to_txn")
    )

    async def run() -> None:
        async with client(any_kafka) as cluster:
            writer = TargetTransactions(cluster, topic, lambda: None, timeout_ms=1000)
            # Else it would end the transaction itself.
            monkeypatch.setattr(writer.size, "is_late", lambda _: False)

            async def rolled_back() -> None:
                while await transaction_state(cluster, topic) in {"Ongoing", "PrepareEpochFence"}:
                    await asyncio.sleep(0.1)

            async def send(*args: Any, **how: Any) -> Any:
                nonlocal sent
                sent += 1
                if sent == 2 and at == "produce":
                    await rolled_back()
                return await send_batches(*args, **how)

            async def offsets(*args: Any, **how: Any) -> Any:
                if at == "offsets":
                    await rolled_back()
                return await send_offsets(*args, **how)

            async def before_commit() -> None:
                if at == "end":
                    await rolled_back()

            with monkeypatch.context() as patch:
                patch.setattr(transactions_module, "send_batches", send)
                patch.setattr(transactions_module, "send_offsets_to_txn", offsets)
                await writer.fence()
                async with asyncio.timeout(120):
                    with pytest.raises(
                        TransactionOutlasted, match=r"transaction\.timeout\.ms is 1000"
                    ):
                        await writer.write(replace(content, before_commit=before_commit))
            assert not writer.ready
            assert writer.size.bytes == 250
            await writer.fence()
            assert await positions(cluster, topic, key) == {}
            await writer.write(replace(content, batches={key: batches("c")}))
            await writer.fence()
            assert (await positions(cluster, topic, key))[key].offset == OFFSET.offset

    asyncio.run(run())
    assert [value for _, value in records(any_kafka, topic)] == ["c"]


def test_nothing_is_sent_without_a_lease(kafka: LocalCluster, topic: str) -> None:
    """Goal: each request asks, also those of a transaction that has begun."""
    librdkafka_tools.make_topic(kafka.bootstrap_servers, topic)
    key = TopicPartition(topic, 0)
    content = TransactionContent(batches={key: batches("a")}, offsets={topic: {key: OFFSET}})
    left = 0

    def permit() -> None:
        nonlocal left
        if left == 0:
            raise Fenced("not sent: the lease has ended")
        left -= 1

    async def run() -> None:
        nonlocal left
        async with client(kafka) as cluster:
            writer = TargetTransactions(cluster, topic, permit)
            for allowed in range(20):
                left = 1000  # it is tried again while the coordinator ends a transaction
                await writer.fence()
                left = allowed
                try:
                    await writer.write(content)
                except Fenced:
                    continue
                break
            assert allowed >= 5  # partitions, records, group, offsets, end
            left = 1000
            await writer.fence()

    asyncio.run(run())
    assert [value for _, value in records(kafka, topic)] == ["a"]
