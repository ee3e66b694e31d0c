"""What is compared of a topic that records are routed to, without the right to read it."""

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from secured_clusters import PASSWORDS, Secured, sasl

from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.transactional.remote_tails import tail_of_batch
from twinlog.engines.transactional.routed_tails import RoutedLoss, RoutedTail, compare_routed
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.kafka.types import Sequence, TopicPartition
from twinlog.mirror.placement import MirrorPartition

pytestmark = pytest.mark.broker


def test_a_principal_that_may_only_write_goes_on(
    secured_pair: tuple[Secured, Secured],
    fresh_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: a flow of an earlier version, whose principal has no READ there, is not FAILED.

    A log that is shorter is found all the same, and with READ each loss.
    """
    target, log = secured_pair[1], TopicPartition(fresh_name("routed"), 0)
    names = [MirrorPartition("flow", topic, 0) for topic in ("same", "another", "shorter")]
    logins = sasl("PLAIN", "alice", PASSWORDS["alice"])

    def right(operation: Operation) -> Acl:
        literal = (PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)
        return Acl(ResourceType.TOPIC, log.topic, *literal)

    async def run() -> None:
        async with target.root() as root:
            await create_topics(root, [NewTopic(name=log.topic, partitions=1)])
        producer = Producer({"bootstrap.servers": target.local.bootstrap_servers})
        for _ in range(3):
            producer.produce(log.topic, b"value", partition=0)
        assert producer.flush(120) == 0
        await target.give([right(Operation.WRITE)])
        another, shorter = (
            RoutedTail(log, None, tail_of_batch(0, count, (7, 4), Sequence(0)))
            for count in (2, 100)
        )
        async with target.cluster("WORD", logins) as cluster:
            port = KafkaDestination(cluster, lambda: True)
            routed = dict(zip(names, ((), (another,), (shorter,)), strict=True))
            denied = await compare_routed(port, routed)
            assert [isinstance(denied[name], RoutedLoss) for name in names] == [False, False, True]
            assert f"losses in the middle of {log} are not detected" in caplog.text
            await target.give([right(Operation.READ)])
            allowed = await compare_routed(port, routed)
            assert [isinstance(allowed[name], RoutedLoss) for name in names] == [False, True, True]
        await target.take([right(Operation.WRITE), right(Operation.READ)])

    asyncio.run(run())
