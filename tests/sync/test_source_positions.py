"""Positions of flows on their sources, on real brokers; the marks: mirror/reported_positions.py.

That a whole command reports them is in tests/end_to_end/test_mirror_maker_transforms.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import librdkafka_tools
import pytest
from clients import client, commit, make_topic
from confluent_kafka import Consumer
from group_tool import consumer_groups
from secured_clusters import Secured, sasl
from stored_flows import store_flow
from sync_contexts import sync_context
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group, position_metadata
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.reported_positions import is_reported, report_mark
from twinlog.store.config_records import Mirror, MirrorTopic, key_of
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_records import Route
from twinlog.store.snapshot import Snapshot
from twinlog.sync.source_positions import SourcePositions

pytestmark = pytest.mark.broker

IN_TRANSACTIONS = {"enabled": "true", "transaction.producer": "true"}


class Reported:
    """A flow that is not running, whose positions the test commits, and its report."""

    def __init__(
        self,
        source: KafkaCluster,
        destination: KafkaCluster,
        topic: MirrorTopic,
        settings: Mapping[str, str] = IN_TRANSACTIONS,
    ) -> None:
        self.source, self.destination, self.topic = source, destination, topic
        self.settings, self.now = dict(settings), 0.0
        self.group = position_group("twinlog", topic.mirror)
        self.sync = SourcePositions(lambda: self.now)

    async def copied(self, offset: int, partition: int = 0) -> None:
        """Commit a position as the flow does."""
        topic = self.topic
        route = Route(topic.topic_id, topic.destination_name, topic.destination_topic_id)
        position = Committed(offset, position_metadata(route, None))
        await self.commit(self.destination, topic.destination_name, position, partition)

    async def commit(
        self, cluster: KafkaCluster, topic: str, position: Committed, partition: int = 0
    ) -> None:
        key = TopicPartition(topic, partition)
        await commit(cluster, self.group, {key: position})

    async def report(self) -> int:
        """Report at once; how many failed."""
        self.now += 3600
        return await self.report_if_due()

    async def report_if_due(self) -> int:
        mirror = Mirror(
            name=self.topic.mirror,
            source=flow_properties(self.settings, "a", "b"),
            source_cluster_id="s",
        )
        context = sync_context(
            self.source,
            self.destination,
            MirrorStore(self.destination),
            mirror.name,
            snapshot=Snapshot({key_of(mirror): mirror}),
            topics=[self.topic],
        )
        return await self.sync.apply(context, await self.sync.compare(context))

    async def on_source(self) -> dict[int, tuple[int, str]]:
        """Offset and metadata by partition."""
        found = await committed_offsets(self.source, self.group)
        return {
            key.partition: (at.offset, at.metadata)
            for key, at in found.items()
            if key.topic == self.topic.topic
        }


def run(
    pair: Pair,
    topic: str,
    test: Callable[[Reported], Awaitable[None]],
    settings: Mapping[str, str] = IN_TRANSACTIONS,
) -> None:
    """Run a test with a flow of two partitions."""

    async def body() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            ids = []
            for cluster, name in ((source, topic), (destination, f"a.{topic}")):
                await make_topic(cluster, name, 2)
                ids.append((await cluster.refresh([name])).topics[name].topic_id)
            one = MirrorTopic(
                mirror=f"flow-{topic}",
                topic=topic,
                topic_id=ids[0],
                partitions=2,
                destination_topic=f"a.{topic}",
                destination_topic_id=ids[1],
            )
            await test(Reported(source, destination, one, settings))

    asyncio.run(body())


def test_positions_are_reported_at_the_interval(pair: Pair, topic: str) -> None:
    """Goal: those of the present topics, of partitions that have begun; also backwards."""

    async def test(flow: Reported) -> None:
        mark = report_mark(flow.topic.mirror, flow.destination.cluster_id)
        assert await flow.report() == 0
        assert await flow.on_source() == {}, "nothing was copied yet"
        await flow.copied(7)
        assert await flow.report_if_due() == 0
        assert await flow.on_source() == {}, "it is not time yet"
        flow.now += 59
        assert await flow.report_if_due() == 0
        assert await flow.on_source() == {0: (7, mark)}
        await flow.copied(5)
        await flow.copied(9, partition=1)
        assert await flow.report() == 0
        assert await flow.on_source() == {0: (5, mark), 1: (9, mark)}
        former = Route(uuid4(), flow.topic.destination_name, flow.topic.destination_topic_id)
        other = Committed(11, position_metadata(former, None))
        await flow.commit(flow.destination, flow.topic.destination_name, other)
        assert await flow.report() == 0
        assert await flow.on_source() == {0: (5, mark), 1: (9, mark)}, "of a former topic"

    run(pair, topic, test)


def test_it_is_off_by_a_negative_interval_and_for_other_flows(pair: Pair, topic: str) -> None:
    """Goal: nothing new on the sources of flows that neither are sinks nor use transactions."""

    async def test(flow: Reported) -> None:
        await flow.copied(7)
        never = {"twinlog.source.offsets.interval.seconds": "-1"}
        for settings in ({**IN_TRANSACTIONS, **never}, {"enabled": "true"}):
            flow.settings = settings
            assert await flow.report() == 0
            assert await flow.on_source() == {}

    run(pair, topic, test)


@pytest.mark.parametrize("metadata", ["", "x", "target"])
def test_a_group_of_another_program_is_not_touched(
    pair: Pair, topic: str, metadata: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: also one of a flow of the same name to another target; reported once, counted always.

    The offset is of another topic: whose a group is, all of its offsets tell.
    """

    async def test(flow: Reported) -> None:
        await flow.copied(7)
        foreign = f"foreign-{topic}"
        await make_topic(flow.source, foreign)
        text = report_mark(flow.topic.mirror, "another") if metadata == "target" else metadata
        await flow.commit(flow.source, foreign, Committed(3, text))
        with caplog.at_level(logging.WARNING):
            assert [await flow.report() for _ in range(3)] == [1, 1, 1]
        assert await flow.on_source() == {}
        assert len(caplog.records) == 1
        assert f"has an offset of another program, of {foreign}-0" in caplog.text

    run(pair, topic, test)


def test_a_group_with_members_is_not_touched(
    pair: Pair, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the broker refuses the commit; when the members are gone, it is reported again."""

    async def test(flow: Reported) -> None:
        await flow.copied(7)
        consumer = Consumer(
            {"bootstrap.servers": pair.source.bootstrap_servers, "group.id": flow.group}
        )
        consumer.subscribe([topic])
        try:
            until(lambda: consumer.poll(0.2) is None and consumer.assignment(), what="the member")
            with caplog.at_level(logging.WARNING):
                assert [await flow.report(), await flow.report()] == [1, 1]
            (line,) = [record.getMessage() for record in caplog.records]
            assert "has members on the source (UNKNOWN_MEMBER_ID" in line
            assert await flow.on_source() == {}
        finally:
            consumer.close()
        assert await flow.report() == 0
        assert (await flow.on_source())[0][0] == 7

    run(pair, topic, test)


def test_a_sink_without_transactions_reports_its_map(pair: Pair, topic: str) -> None:
    """Goal: KIP-656's at-least-once sink has its group on the source; where it took over counts."""
    begins = (40,)

    async def body() -> None:
        settings = {"enabled": "true", "connector.type": "sink"}
        connection = {"bootstrap.servers": pair.source.bootstrap_servers}
        properties = stored_properties(connection, settings, "a", "b")
        name = f"flow-{topic}"
        await store_flow(pair, name, properties, (topic, f"a.{topic}"), 2)
        async with client(pair.source) as source, client(pair.destination) as destination:
            (stored,) = (await MirrorStore(destination).snapshot()).topics_of(name)
            more: dict[str, Any] = {**stored_fields(stored), "begins": begins}
            flow = Reported(source, destination, MirrorTopic(**more), settings)
            assert await flow.report() == 0
            assert {key: at[0] for key, at in (await flow.on_source()).items()} == {0: 40}

    asyncio.run(body())


def stored_fields(topic: MirrorTopic) -> dict[str, Any]:
    return {name: getattr(topic, name) for name in MirrorTopic.__dataclass_fields__}


def test_the_tool_of_the_source_shows_the_lag(pair: Pair, topic: str) -> None:
    """Goal: `kafka-consumer-groups --describe`, Kafka's own."""
    librdkafka_records = librdkafka_tools.simple(10)

    async def test(flow: Reported) -> None:
        librdkafka_tools.write(pair.source.bootstrap_servers, topic, librdkafka_records)
        await flow.copied(7)
        assert await flow.report() == 0

    run(pair, topic, test)
    group = position_group("twinlog", f"flow-{topic}")
    shown = consumer_groups(pair.source.bootstrap_servers, "--describe", "--group", group)
    rows = [line.split() for line in shown.splitlines() if topic in line]
    assert [row[1:6] for row in rows] == [[topic, "0", "7", "10", "3"]], shown


def test_a_right_that_is_missing_is_reported_once_and_harms_nothing(
    secured_pair: tuple[Secured, Secured], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: with the two rights of docs/operations/rights.md, it is reported."""
    here, _ = secured_pair
    user = f"reader-{topic}"
    mechanism = "SCRAM-SHA-256"

    def right(kind: ResourceType, name: str, operation: Operation) -> Acl:
        allow, literal = Permission.ALLOW, PatternType.LITERAL
        return Acl(kind, name, literal, f"User:{user}", "*", operation, allow)

    async def body() -> None:
        await here.set_password(user, "secret", [mechanism])
        as_user = here.cluster("WORD", sasl(mechanism, user, "secret"))
        async with here.root() as root, secured_pair[1].root() as destination, as_user as source:
            ids = []
            for cluster, name in ((root, topic), (destination, f"a.{topic}")):
                await make_topic(cluster, name)
                ids.append((await cluster.refresh([name])).topics[name].topic_id)
            one = MirrorTopic(
                mirror=f"flow-{topic}",
                topic=topic,
                topic_id=ids[0],
                partitions=1,
                destination_topic=f"a.{topic}",
                destination_topic_id=ids[1],
            )
            flow = Reported(source, destination, one)
            await flow.copied(7)
            rights = [
                right(ResourceType.TOPIC, topic, Operation.READ),
                right(ResourceType.GROUP, flow.group, Operation.DESCRIBE),
                right(ResourceType.GROUP, flow.group, Operation.READ),
            ]
            await asyncio.to_thread(asyncio.run, here.give(rights[:1]))
            with caplog.at_level(logging.WARNING):
                assert [await flow.report(), await flow.report()] == [1, 1]
                await asyncio.to_thread(asyncio.run, here.give(rights[1:2]))
                assert [await flow.report(), await flow.report()] == [1, 1]
            texts = [record.getMessage() for record in caplog.records]
            assert [text for text in texts if "shows no lag" in text] == texts
            assert len(texts) == 2, texts
            assert (await committed_offsets(root, flow.group)) == {}
            await asyncio.to_thread(asyncio.run, here.give(rights[2:]))
            assert await flow.report() == 0
            (at,) = (await committed_offsets(root, flow.group)).values()
            assert at.offset == 7
            assert is_reported(at.metadata)

    asyncio.run(body())
