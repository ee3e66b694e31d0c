"""What happens to a cluster whose control topics are deleted, on real brokers."""

import asyncio
import uuid

import pytest
from clients import client, put, write_state
from waiting import until_async

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ControlTopicLost, UnsupportedVersion
from twinlog.kafka.requests.topics import NewTopic, create_topics, delete_topics
from twinlog.mirror.states import State
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    STATE_TOPIC,
    STATUS_TOPIC,
    ControlTopics,
    config_entry,
    create_control_topics,
    partition_count,
)
from twinlog.store.mirrors import MirrorStore

pytestmark = pytest.mark.broker


async def delete(cluster: KafkaCluster, name: str) -> None:
    await delete_topics(cluster, [name])

    async def gone() -> bool:
        return name not in (await cluster.refresh([name])).topics

    await until_async(gone)


@pytest.mark.parametrize("lost", [STATE_TOPIC, CONFIG_TOPIC])
def test_a_lost_control_topic_is_not_recreated_and_is_reported(pair: Pair, lost: str) -> None:
    """Neither a node nor a command creates it again, and a running reader reports the loss."""

    async def run() -> None:
        where = pair.source if lost == STATE_TOPIC else pair.destination
        async with client(where) as cluster:
            running = MirrorStore(cluster)
            mirror = Mirror(name="m", source={"bootstrap.servers": "x:1"}, source_cluster_id="c")
            await running.create_mirror(mirror)
            topic = MirrorTopic(mirror="m", topic="t", topic_id=uuid.uuid4(), partitions=2)
            await running.add_topics("m", [topic])
            await write_state(cluster, topic, State.MIRRORING)
            assert await running.snapshot()
            assert await running.states()
            count = await partition_count(cluster, lost)
            assert count
            await delete(cluster, lost)
            store = MirrorStore(cluster)
            read = store.states if lost == STATE_TOPIC else store.snapshot
            with pytest.raises(ControlTopicLost, match=f"{lost} does not exist, but __mirror_"):
                await read()
            with pytest.raises(ControlTopicLost, match=lost):
                await create_control_topics(cluster, ControlTopics())
            with pytest.raises(ControlTopicLost, match=lost):
                await store.create_mirror(mirror)
            assert lost not in (await cluster.refresh([lost])).topics
            # An operator may create it by hand; a reader that ran before does not go on.
            await create_topics(
                cluster, [NewTopic(name=lost, partitions=count, replication_factor=1)]
            )
            read = running.states if lost == STATE_TOPIC else running.snapshot

            async def told() -> bool:
                try:
                    await read()
                except ControlTopicLost as error:
                    return "deleted and recreated" in str(error)
                return False

            await until_async(told)

    asyncio.run(run())


def test_a_lost_status_topic_is_recreated(pair: Pair) -> None:
    """It has nothing that is needed: lanes write it each second."""

    async def run() -> None:
        async with client(pair.source) as cluster:
            await delete(cluster, STATUS_TOPIC)
            await create_control_topics(cluster, ControlTopics())
            assert STATUS_TOPIC in (await cluster.refresh([STATUS_TOPIC])).topics

    asyncio.run(run())


def test_an_unreadable_control_record_is_not_overwritten(pair: Pair) -> None:
    """A newer version may have written it: a command of this one would silently undo that."""

    async def run() -> None:
        async with client(pair.source) as cluster:
            await create_control_topics(cluster, ControlTopics())
            store = MirrorStore(cluster)
            mirror = Mirror(name="newer", source={}, source_cluster_id="c")
            entry = config_entry(mirror, (await partition_count(cluster, CONFIG_TOPIC)) or 0)
            await put(cluster, [entry._replace(value=b'{"version": 99}')])
            with pytest.raises(UnsupportedVersion, match="refusing to overwrite a record"):
                await store.change(lambda _: [mirror])
            assert "newer" not in (await store.snapshot()).mirrors

    asyncio.run(run())
