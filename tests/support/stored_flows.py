"""Flows that are stored as the sync of a node would store them: one topic, on empty clusters."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from clients import client, make_topic
from waiting import until_async

from conftest import Pair
from twinlog import MirrorAdmin
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.lifecycle.creation import create_mirror
from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.local.stage import Stage
from twinlog.mirror.record_losses import RecordLosses
from twinlog.operations.results import DescribeMirrorsResult
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import ControlTopics, partition_count
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import create_offsets_topic, offsets_topic_id


async def topic_id(cluster: KafkaCluster, topic: str) -> UUID:
    """The id of a new topic, once the broker that is asked knows it."""

    async def known() -> bool:
        return topic in (await cluster.refresh([topic])).topics

    await until_async(known, what=f"metadata of {topic}")
    return cluster.metadata.topics[topic].topic_id


def create(stage: Stage, source: str, settings: Mapping[str, str]) -> str:
    """Create a flow from a stage's source, under this alias, as commands do; return its name."""

    async def body() -> str:
        connection = {"bootstrap.servers": stage.source.bootstrap_servers}
        async with client(stage.destination) as destination:
            properties = stored_properties(connection, settings, source, "b")
            topics = ControlTopics(state_partitions=5)
            return await create_flow(destination, source, "b", properties, topics)

    return asyncio.run(body())


async def store_flow(
    pair: Pair,
    mirror: str,
    properties: Mapping[str, str],
    names: tuple[str, str],
    partitions: int,
    *,
    source_replicas: Sequence[Sequence[int]] = (),
    remote_replicas: Sequence[Sequence[int]] = (),
    remote_configs: Mapping[str, str] | None = None,
) -> None:
    """Create a flow, and its topic by the names of the source and the target.

    Replicas are the brokers of each partition; without them it has one.
    """
    topic, remote = names
    async with client(pair.source) as source, client(pair.destination) as destination:
        await create_mirror(
            destination, mirror, properties, topics=ControlTopics(state_partitions=5)
        )
        count = await until_async(lambda: partition_count(destination), what="control topics")
        await create_offsets_topic(destination, count or 0)
        await make_topic(source, topic, partitions, replicas=source_replicas)
        await make_topic(
            destination, remote, partitions, replicas=remote_replicas, configs=remote_configs
        )
        ids = [await topic_id(source, topic), await topic_id(destination, remote)]
        offsets_id = await until_async(lambda: offsets_topic_id(destination), what="their topic")
        record = MirrorTopic(
            mirror=mirror,
            topic=topic,
            topic_id=ids[0],
            partitions=partitions,
            destination_topic=remote,
            destination_topic_id=ids[1],
            offsets_topic_id=offsets_id,
        )
        await MirrorStore(destination).change(lambda _: [record])


def states(pair: Pair, mirror: str) -> dict[int, tuple[str, str | None]]:
    """State and reason of the partitions of a flow."""
    return {
        row.one.partition: (row.one.state.name, row.one.reason)
        for row in _described(pair, mirror).partitions
    }


def losses(pair: Pair, mirror: str) -> dict[int, RecordLosses]:
    """What the target has lost of the partitions of a flow, as their owner has counted it."""
    return {row.one.partition: row.one.losses for row in _described(pair, mirror).partitions}


def _described(pair: Pair, mirror: str) -> DescribeMirrorsResult:
    """Describe a flow, as soon as no transaction of a writer that was killed is open."""

    async def described() -> DescribeMirrorsResult:
        async with MirrorAdmin({"bootstrap.servers": pair.destination.bootstrap_servers}) as admin:

            async def read() -> DescribeMirrorsResult | None:
                with suppress(Retriable):
                    return await admin.describe_mirrors([mirror])
                return None

            found = await until_async(read, 240.0, f"the states of {mirror}")
        assert found is not None
        return found

    return asyncio.run(described())
