"""Flows on real clusters: topics, records, configurations and group offsets (KIP-382, KIP-545)."""

import asyncio
from collections.abc import Iterator

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer, TopicPartition
from waiting import until

from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage
from twinlog.store.control_topics import ControlTopics

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 90.0
SETTINGS = {
    "enabled": "true",
    "topics": "copied-.*",
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters, a flow `a->b`, and a node."""
    with Stage(tmp_path_factory.mktemp("flows")) as stage:
        stage.start_source()
        stage.start_destination()

        async def create() -> None:
            source = {"bootstrap.servers": stage.source.bootstrap_servers}
            async with client(stage.destination) as destination:
                properties = stored_properties(source, SETTINGS, "a", "b")
                topics = ControlTopics(state_partitions=5)
                assert await create_flow(destination, "a", "b", properties, topics) == "a-to-b"

        asyncio.run(create())
        stage.start_node()
        yield stage


def ends(stage: Stage, topic: str, partitions: int) -> list[int]:
    """The log ends of a topic on the destination; 0 for what does not exist."""
    view = ConsumerView(stage.destination.bootstrap_servers)
    keys = [(topic, index) for index in range(partitions)]
    extents = view.extents(keys)
    return [extents[key].end for key in keys]


def exists(stage: Stage, topic: str, partitions: int) -> bool:
    admin = librdkafka_tools.admin(stage.destination.bootstrap_servers)
    metadata = admin.list_topics(timeout=30).topics.get(topic)
    return metadata is not None and len(metadata.partitions) == partitions


def await_copy(stage: Stage, topic: str, wanted: list[int]) -> None:
    until(lambda: exists(stage, topic, len(wanted)), SECONDS, f"{topic} with its partitions")
    until(lambda: ends(stage, topic, len(wanted)) == wanted, SECONDS, f"{topic} with {wanted}")


def test_a_topic_that_matches_is_copied_under_the_alias_of_its_source(
    stage: Stage, topic: str
) -> None:
    """Goal: what `topics` selects appears by itself, with its configurations; others do not."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name, 2, config={"retention.ms": "123456789"})
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(50, 0))
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(70, 1))
    await_copy(stage, f"a.{name}", [50, 70])
    admin = librdkafka_tools.admin(stage.destination.bootstrap_servers)
    assert not {topic, f"a.{topic}"} & admin.list_topics(timeout=30).topics.keys()
    configs = librdkafka_tools.configs(stage.destination.bootstrap_servers, f"a.{name}")
    assert configs["retention.ms"] == "123456789"


def test_a_topic_that_grows_is_copied_whole(stage: Stage, topic: str) -> None:
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name, 1)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10, 0))
    await_copy(stage, f"a.{name}", [10])
    librdkafka_tools.grow_topic(servers, name, 3)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20, 2))
    await_copy(stage, f"a.{name}", [10, 0, 20])


def test_a_group_continues_at_exactly_its_next_record(stage: Stage, topic: str) -> None:
    """Goal: anywhere in the log, though each transaction has a marker that is not copied."""
    servers, name, group = stage.source.bootstrap_servers, f"copied-{topic}", f"g-{topic}"
    librdkafka_tools.make_topic(servers, name)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(30)
    for first in range(0, 300, 10):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(name, str(number))
        producer.commit_transaction(30)
    await_copy(stage, f"a.{name}", [300])
    # Behind each ten records is a marker: the record with number 137 is at 137 + 13.
    librdkafka_tools.commit(servers, group, name, {0: 150})

    def follows() -> bool:
        with librdkafka_tools.consumer(stage.destination.bootstrap_servers, group) as remote:
            (committed,) = remote.committed([TopicPartition(f"a.{name}", 0)], timeout=30)
            return bool(committed.offset == 137)

    until(follows, SECONDS, "the group's offset on the destination")
