"""The topics that `twinlog verify` compares: their partitions, and their identity."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.requests.topics import known_topics
from twinlog.kafka.types import TopicPartition
from twinlog.store.config_records import MirrorTopic
from twinlog.verify.job import Sides


async def topic_ids(
    source: KafkaCluster, destination: KafkaCluster, topics: Sequence[MirrorTopic]
) -> dict[str, Sides[UUID]]:
    """The topics' present ids; `NO_TOPIC_ID` for a topic without one, or that does not exist."""
    source_topics = (await source.refresh([topic.topic for topic in topics])).topics
    destination_topics = (
        await destination.refresh([topic.destination_name for topic in topics])
    ).topics
    topics_by_name = {
        topic.topic: (
            source_topics.get(topic.topic),
            destination_topics.get(topic.destination_name),
        )
        for topic in topics
    }
    return {
        name: Sides(*(NO_TOPIC_ID if topic is None else topic.topic_id for topic in sides))
        for name, sides in topics_by_name.items()
    }


def recreation(topic: MirrorTopic, ids: Mapping[str, Sides[UUID]]) -> str | None:
    """Why a topic's logs are not the mirrored ones; None if they are."""
    current_ids = ids[topic.topic]
    if is_another(topic.topic_id, current_ids.source):
        return "source: the topic was deleted and recreated"
    if is_another(topic.destination_topic_id, current_ids.destination):
        return "destination: the topic was deleted and recreated"
    return None


async def partitions_of(
    source: KafkaCluster, destination: KafkaCluster, topics: Sequence[MirrorTopic]
) -> list[TopicPartition]:
    """All partitions that the mirror knows, or that a broker of one of the clusters knows.

    Raises:
        Retriable: a broker does not answer. It may be the only one that knows a new partition.
    """
    source_topics = await known_topics(source, {topic.topic for topic in topics})
    destination_topics = await known_topics(
        destination, {topic.destination_name for topic in topics}
    )
    return [
        TopicPartition(topic.topic, index)
        for topic in topics
        for pair in [
            (source_topics.get(topic.topic), destination_topics.get(topic.destination_name))
        ]
        for index in range(
            max(
                topic.partitions,
                *(topic_side.partitions if topic_side else 0 for topic_side in pair),
            )
        )
    ]
