"""Configurations of remote topics, on brokers with and without tiered storage."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest
from clients import client, make_topic, topic_configs
from sync_contexts import sync_context
from unusual_sources import TIERED_TOPIC, tiered
from waiting import until_async

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigResourceType,
    ConfigSource,
    NewTopic,
    Resource,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.lifecycle import flow_topics
from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.flow import flow_of
from twinlog.mirror.topic_configs import KEEPING
from twinlog.store.control_topics import ControlTopics
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.base import SyncContext, run_sync
from twinlog.sync.flow_topics import FlowConfigs

pytestmark = pytest.mark.broker

SOURCE_CONFIGS = {**TIERED_TOPIC, "retention.ms": "86400000"}
ALL_BROKERS = Resource(ConfigResourceType.BROKER, "")
"""The dynamic defaults of a cluster."""
WEEK, MONTHS = 604_800_000, 7_776_000_000


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A source with tiered storage and a retention of its brokers; a destination without."""
    folders = [tmp_path_factory.mktemp(side) for side in ("source", "destination", "remote")]
    config = {**tiered(folders[2], DEFAULT_VERSION), "log.retention.ms": str(WEEK)}
    with (
        LocalCluster.start(directory=folders[0], config=config, jvm_flags=SHORT_LIVED) as source,
        LocalCluster.start(directory=folders[1], jvm_flags=SHORT_LIVED) as destination,
    ):
        yield Pair(source, destination)


@asynccontextmanager
async def flow(
    pair: Pair, name: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[FlowClusters, MirrorStore]]:
    """A flow between two clusters, without topics."""
    async with client(pair.source) as source, client(pair.destination) as destination:
        connection = {"bootstrap.servers": pair.source.bootstrap_servers}
        values = {"enabled": "true", "replication.factor": "1", **(settings or {})}
        properties = stored_properties(connection, values, name, "b")
        mirror = await create_flow(
            destination, name, "b", properties, ControlTopics(state_partitions=5)
        )
        store = MirrorStore(destination)
        record = (await store.snapshot()).mirrors[mirror]
        clusters = FlowClusters(
            destination=destination, source=source, mirror=record, flow=flow_of(record.source)
        )
        yield clusters, store


async def added(flow: FlowClusters, name: str) -> None:
    """Have the flow copy a topic of the source."""
    await flow.add((await flow.source.refresh(None)).topics, {name: f"copy.{name}"})


async def refresh_context(flow: FlowClusters, store: MirrorStore) -> SyncContext:
    """What a refresh of the flow gives to its syncs."""
    snapshot = await store.snapshot()
    topics = snapshot.topics_of(flow.mirror.name)
    return sync_context(
        *(flow.source, flow.destination, store, flow.mirror.name),
        snapshot=snapshot,
        topics=topics,
    )


async def set_configs(cluster: KafkaCluster, topic: str) -> dict[str, str | None]:
    """The configurations that are set on a topic itself."""
    entries = await topic_configs(cluster, topic)
    return {
        name: entry.value for name, entry in entries.items() if entry.source == ConfigSource.TOPIC
    }


async def become(cluster: KafkaCluster, topic: str, wanted: Mapping[str, str | None]) -> None:
    """Wait until these are set on a topic, and no others: a broker learns of it a moment later."""

    async def are_set() -> bool:
        return await set_configs(cluster, topic) == wanted

    await until_async(are_set, what=f"{topic} with {wanted}")


async def alter(cluster: KafkaCluster, topic: str, **values: str) -> None:
    """Set configurations of a topic, and wait until its broker has them; `_` stands for a dot."""
    resource = topic_resource(topic)
    wanted = {name.replace("_", "."): value for name, value in values.items()}
    changes = [Alteration(name, AlterOperation.SET, value) for name, value in wanted.items()]
    assert await incremental_alter_configs(cluster, {resource: changes}) == {resource: None}

    async def are_set() -> bool:
        return wanted.items() <= (await set_configs(cluster, topic)).items()

    await until_async(are_set, what=f"{topic} with {wanted}")


def test_a_target_without_tiered_storage_gets_the_rest(
    clusters: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the topic is created and altered, and it is logged what it does not get.

    The broker refuses `remote.storage.enable` with INVALID_CONFIG, so that nothing was copied.
    """
    caplog.set_level(logging.INFO)

    async def body() -> None:
        topic = fresh_name("topic")
        async with flow(clusters, fresh_name("a")) as (ours, store):
            await make_topic(ours.source, topic, configs=SOURCE_CONFIGS)
            await added(ours, topic)
            wanted = {"segment.bytes": "1048576", "retention.ms": "86400000"}
            await become(ours.destination, f"copy.{topic}", wanted)
            text = "without remote.storage.enable, local.retention.ms: tiered storage is"
            assert f"copy.{topic} is created {text}" in caplog.text
            await alter(ours.source, topic, retention_ms="96400000")
            sync = FlowConfigs()
            for _ in range(2):
                assert await run_sync(sync, await refresh_context(ours, store)) == 0
            changed = {**wanted, "retention.ms": "96400000"}
            await become(ours.destination, f"copy.{topic}", changed)
            assert caplog.text.count(f"copy.{topic} follows the configurations of {topic} {text}")
            assert caplog.text.count("follows the configurations") == 1, "it is logged once"

    asyncio.run(body())


def test_tiered_storage_of_a_remote_topic_stays(
    clusters: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Goal: what the target's operator has set is not unset, as the source does not have it."""

    async def body() -> None:
        topic = fresh_name("topic")
        reverse = Pair(clusters.destination, clusters.source)
        async with flow(reverse, fresh_name("a")) as (ours, store):
            await make_topic(ours.source, topic)
            await added(ours, topic)
            await alter(
                *(ours.destination, f"copy.{topic}"),
                remote_storage_enable="true",
                local_retention_ms="1000",
                retention_ms="5000",
            )
            assert await run_sync(FlowConfigs(), await refresh_context(ours, store)) == 0
            wanted = {"remote.storage.enable": "true", "local.retention.ms": "1000"}
            await become(ours.destination, f"copy.{topic}", wanted)

    asyncio.run(body())


@asynccontextmanager
async def dynamic_defaults(cluster: KafkaCluster, topic: str, **values: str) -> AsyncIterator[None]:
    """Set dynamic defaults of a cluster, and wait until a topic has them; `_` is a dot."""
    names = {name.replace("_", "."): value for name, value in values.items()}

    async def change(operation: AlterOperation) -> None:
        changes = [Alteration(f"log.{name}", operation, value) for name, value in names.items()]
        changed = await incremental_alter_configs(cluster, {ALL_BROKERS: changes})
        assert changed == {ALL_BROKERS: None}

    async def are_known() -> bool:
        entries = await topic_configs(cluster, topic)
        return all(
            (entries[name].value, entries[name].source)
            == (value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
            for name, value in names.items()
        )

    async def are_gone() -> bool:
        entries = await topic_configs(cluster, topic)
        origins = {entries[name].source for name in names}
        return ConfigSource.DYNAMIC_DEFAULT_BROKER not in origins

    await change(AlterOperation.SET)
    try:
        await until_async(are_known, what=f"dynamic defaults {names}")
        yield
    finally:
        await change(AlterOperation.DELETE)
        await until_async(are_gone, what="the former defaults, which other tests have")


def test_a_remote_topic_follows_each_origin_of_a_value_as_with_mirror_maker_2(
    clusters: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an operator's retention stays where the source's is from server.properties.

    Set on the topic and set for all brokers are copied, also when the remote topic is created;
    Kafka's own default is unset. What keeps less is logged before with both values.
    """

    async def body() -> None:
        topic = fresh_name("topic")
        remote = f"copy.{topic}"
        async with flow(clusters, fresh_name("a")) as (ours, store):
            await make_topic(ours.source, topic, configs={"segment.bytes": "1048576"})
            async with dynamic_defaults(ours.source, topic, retention_bytes="50000000"):
                entries = await topic_configs(ours.source, topic)
                assert {name: entries[name].source for name in KEEPING} == {
                    "cleanup.policy": ConfigSource.DEFAULT,
                    "delete.retention.ms": ConfigSource.DEFAULT,
                    "min.compaction.lag.ms": ConfigSource.DEFAULT,
                    "retention.bytes": ConfigSource.DYNAMIC_DEFAULT_BROKER,
                    "retention.ms": ConfigSource.STATIC_BROKER,
                }
                await added(ours, topic)
                copied = {"segment.bytes": "1048576", "retention.bytes": "50000000"}
                await become(ours.destination, remote, copied)
                await alter(
                    *(ours.destination, remote),
                    retention_ms=str(MONTHS),
                    retention_bytes="90000000",
                    delete_retention_ms=str(WEEK),
                    segment_bytes="2097152",
                )
                sync = FlowConfigs()
                for _ in range(2):
                    assert await run_sync(sync, await refresh_context(ours, store)) == 0
                    await become(ours.destination, remote, {**copied, "retention.ms": str(MONTHS)})
        text = f"{remote} may keep less from now on, as its source topic does: "
        (warning,) = [one.getMessage() for one in caplog.records if text in one.getMessage()]
        assert set(warning.split(text)[1].split(", ")) == {
            "retention.bytes from 90000000 to 50000000",
            f"delete.retention.ms from {WEEK} to the target's default (the source's is 86400000)",
        }

    asyncio.run(body())


def test_source_defaults_are_kafkas_and_not_those_of_server_properties(
    clusters: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Goal: a short `log.retention.ms` of a small source deletes nothing on the target."""

    async def body() -> None:
        topic = fresh_name("topic")
        remote = f"copy.{topic}"
        async with flow(clusters, fresh_name("a"), {"use.defaults.from": "source"}) as (
            ours,
            store,
        ):
            await make_topic(ours.source, topic)
            await added(ours, topic)
            await alter(ours.destination, remote, retention_ms=str(MONTHS), retention_bytes="9")
            assert await run_sync(FlowConfigs(), await refresh_context(ours, store)) == 0

            async def follows() -> bool:
                return (await set_configs(ours.destination, remote))["retention.bytes"] == "-1"

            await until_async(follows, what="the source's default of retention.bytes")
            found = await set_configs(ours.destination, remote)
            assert found["retention.ms"] == str(MONTHS)
            assert found["delete.retention.ms"] == "86400000"

    asyncio.run(body())


def test_topics_with_one_copy_do_not_undo_each_others_configurations(
    clusters: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the copy does not have the shortest retention of all at every second check."""

    async def body() -> None:
        names = [fresh_name("topic") for _ in range(2)]
        common = fresh_name("common")
        async with flow(clusters, fresh_name("a")) as (ours, store):
            for name, milliseconds in zip(names, ("86400000", "3600000"), strict=True):
                own = {"retention.ms": milliseconds, "max.message.bytes": "70000"}
                await make_topic(ours.source, name, configs=own)
                topics = (await ours.source.refresh(None)).topics
                await ours.add(topics, {name: common})
            first = {"retention.ms": "86400000", "max.message.bytes": "70000"}
            await become(ours.destination, common, first)
            for name in names:
                await alter(ours.source, name, max_message_bytes="80000", segment_bytes="1048576")
            sync = FlowConfigs()
            both = {**first, "max.message.bytes": "80000", "segment.bytes": "1048576"}
            for _ in range(3):
                assert await run_sync(sync, await refresh_context(ours, store)) == 0
                await become(ours.destination, common, both)
            differ = f"{common} has the records of {', '.join(sorted(names))}, whose configurations"
            text = f"{differ} differ: retention.ms of {common} is left as it is"
            assert caplog.text.count(text) == 1, "it is logged once"

    asyncio.run(body())


def test_what_the_target_refuses_is_named_with_the_setting_that_excludes_it(
    clusters: Pair, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: where a policy of the target's refuses a configuration, the error says what to do."""

    async def refuse(_: KafkaCluster, topics: list[NewTopic]) -> dict[str, Refusal]:
        refusal = Refusal(ErrorCode.POLICY_VIOLATION, "retention.ms is too long")
        return {topic.name: refusal for topic in topics}

    async def body() -> None:
        topic = fresh_name("topic")
        async with flow(clusters, fresh_name("a")) as (ours, _):
            await make_topic(ours.source, topic)
            monkeypatch.setattr(flow_topics, "create_topics", refuse)
            with pytest.raises(UserError) as refused:
                await added(ours, topic)
            assert "exclude configurations by config.properties.exclude" in refused.value.hint

    asyncio.run(body())
