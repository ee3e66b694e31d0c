"""Configurations that must not be read, on real brokers; with lanes: end_to_end/test_configs.py."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from clients import client, make_topic, topic_configs, write_state
from secured_clusters import PASSWORDS, Secured, sasl
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigSource,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.states import State
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.subject import subject_of
from twinlog.operations.readiness.survey import survey
from twinlog.operations.readiness.verdict import judge
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import CONFIG_WRITER
from twinlog.store.mirrors import MirrorStore
from twinlog.store.topic_writer import TransactionalWriter
from twinlog.sync import configs as config_sync
from twinlog.sync.base import run_sync
from twinlog.sync.configs import ConfigDifference, ConfigSync, set_configs_back

pytestmark = pytest.mark.broker


async def retain(cluster: KafkaCluster, topics: list[str], milliseconds: int) -> None:
    alteration = Alteration("retention.ms", AlterOperation.SET, str(milliseconds))
    changes = {topic_resource(name): [alteration] for name in topics}
    assert set((await incremental_alter_configs(cluster, changes)).values()) == {None}

    async def are_set() -> bool:
        return {await retained(cluster, name) for name in topics} == {str(milliseconds)}

    await until_async(are_set)


async def retained(cluster: KafkaCluster, topic: str) -> str | None:
    return (await topic_configs(cluster, topic))["retention.ms"].value


@pytest.mark.parametrize("interruption", ["takeover", "crash"])
def test_what_a_user_sets_meanwhile_is_not_set_back(
    any_kafka: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch, interruption: str
) -> None:
    """Goal: neither another writer that takes over nor a crash undoes it; all else is set back.

    Both come between the set-back and its record.
    """
    needed = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}
    users = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    if interruption == "takeover":  # it does not tell whose it is
        users["max.message.bytes"] = "70000"
    change_configs = config_sync.change_configs

    async def run() -> None:
        async with client(any_kafka) as cluster, client(any_kafka) as another:

            async def become(values: dict[str, str]) -> None:
                async def are_set() -> bool:
                    found = await topic_configs(cluster, topic)
                    return {name: found[name].value for name in values} == values

                await until_async(are_set, what="the topic's configurations")

            async def change(values: dict[str, str]) -> None:
                alterations = [
                    Alteration(name, AlterOperation.SET, value) for name, value in values.items()
                ]
                changes = {topic_resource(topic): alterations}
                assert set((await incremental_alter_configs(another, changes)).values()) == {None}
                await become(values)

            async def interrupted(*args: Any) -> dict[str, Refusal]:
                monkeypatch.setattr(config_sync, "change_configs", change_configs)
                assert await change_configs(*args) == {}
                await become({"compression.type": "zstd", "message.timestamp.type": "CreateTime"})
                await change(users)
                if interruption == "crash":
                    raise Retriable("the node ends")
                await TransactionalWriter(another, CONFIG_WRITER).fence()
                return {}

            await make_topic(cluster, topic)
            await change({**needed, "max.message.bytes": str(64 << 20)})
            record = MirrorTopic(
                mirror=topic,
                topic=topic,
                topic_id=uuid4(),
                partitions=1,
                set_back=(("compression.type", "zstd"),),
                destination_topic_id=(await cluster.refresh([topic])).topics[topic].topic_id,
            )
            store = MirrorStore(cluster)
            await store.create_mirror(Mirror(name=topic, source={}, source_cluster_id="s"))
            await store.add_topics(topic, [record])
            await write_state(cluster, record, State.STOPPED)
            await store.change(lambda _: [replace(record, wanted=Wanted.STOPPED)])
            monkeypatch.setattr(config_sync, "change_configs", interrupted)
            if interruption == "crash":
                with pytest.raises(Retriable, match="the node ends"):
                    await set_configs_back(cluster, store, topic, [topic])
            assert await set_configs_back(cluster, store, topic, [topic]) == set()
            (stored,) = (await store.snapshot()).topics_of(topic)
            assert stored.set_back is None
            if interruption == "crash":
                await become({"max.message.bytes": "1048588"})
            await become(users)

    asyncio.run(run())


def test_a_topic_without_describe_configs_right_does_not_block_others(
    secured_pair: tuple[Secured, Secured], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others follow; it is counted, logged, has a reason of its own, and cannot be added."""
    destination_cluster, source_cluster = secured_pair[1], secured_pair[0]
    names = [f"{topic}-closed", f"{topic}-open"]
    kind, literal, prefixed = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
    who = ("User:mirror", "*")
    given = {Acl(kind, topic, prefixed, *who, Operation.DESCRIBE, Permission.ALLOW)} | {
        Acl(kind, name, literal, *who, Operation.DESCRIBE_CONFIGS, Permission.ALLOW)
        for name in names
    }
    closed = {one for one in given if one.resource_name == names[0]}
    mirror = sasl("PLAIN", "mirror", PASSWORDS["mirror"])

    async def run() -> None:
        await source_cluster.give(given)
        async with (
            source_cluster.root() as root,
            source_cluster.cluster("WORD", mirror) as source,
            destination_cluster.root() as destination,
        ):
            for name in names:
                await make_topic(root, name)
            await create_mirror(destination, topic, source_cluster.properties("WORD", mirror))
            await add_topics(destination, topic, names)
            await retain(root, names, 100_000_000)
            await source_cluster.take(closed)
            store = MirrorStore(destination)
            topics = [topic for topic in (await store.snapshot()).topics if topic.topic in names]
            context = sync_context(source, destination, store, topic, topics=topics)
            assert await run_sync(ConfigSync(), context) == 1
            told = f"{names[0]}: its configurations cannot be read on the source: TOPIC_AUTHOR"
            assert told in caplog.text

            async def followed() -> bool:  # a broker learns of it after the controller has answered
                return await retained(destination, names[1]) == "100000000"

            await until_async(followed)
            assert await retained(destination, names[0]) != "100000000"

            facts = await survey(destination, await subject_of(destination, topic, names))
            found = {
                topic.topic: [finding.reason for finding in topic.findings]
                for topic in judge(facts).topics
            }
            assert Reason.CONFIGURATION_UNREADABLE in found[names[0]]
            assert Reason.CONFIGURATION_UNREADABLE not in found[names[1]]

            more = [f"{topic}-closed-too", f"{topic}-open-too"]
            for name in more:
                await make_topic(root, name)
            await source_cluster.give(
                {Acl(kind, more[1], literal, *who, Operation.DESCRIBE_CONFIGS, Permission.ALLOW)}
            )
            with pytest.raises(UserError, match=f"{more[0]}: cannot read the configurations"):
                await add_topics(destination, topic, more)
            there_now = (await destination.refresh(more)).topics.keys()
            assert not there_now & set(more), "nothing was created"

    asyncio.run(run())


def test_a_retention_that_was_unset_is_set_again_though_the_default_is_equal(
    pair: Pair, topic: str
) -> None:
    """Goal: a default that is lowered later deletes nothing; what is set is not set again."""

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            await make_topic(source, topic)
            servers = {"bootstrap.servers": pair.source.bootstrap_servers}
            await create_mirror(destination, topic, servers)
            await add_topics(destination, topic, [topic])
            store, sync = MirrorStore(destination), ConfigSync()
            topics = [one for one in (await store.snapshot()).topics if one.topic == topic]
            context = sync_context(source, destination, store, topic, topics=topics)
            resource = topic_resource(topic)

            async def is_set() -> bool:
                retention = (await topic_configs(destination, topic))["retention.ms"]
                assert retention.value == "604800000"
                return retention.source == ConfigSource.TOPIC

            async def is_unset() -> bool:
                return not await is_set()

            async def differing() -> tuple[str, ...]:
                difference = (await sync.compare(context))[topic]
                assert isinstance(difference, ConfigDifference), difference
                return difference.names

            assert await is_set()
            unset = {resource: [Alteration("retention.ms", AlterOperation.DELETE)]}
            assert await incremental_alter_configs(destination, unset) == {resource: None}
            await until_async(is_unset)
            assert await differing() == ("retention.ms",)
            assert await run_sync(sync, context) == 0
            await until_async(is_set)
            assert await differing() == ()

    asyncio.run(run())
