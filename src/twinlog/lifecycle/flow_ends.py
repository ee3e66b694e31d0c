"""Where a flow that begins at the end follows its topics from (`auto.offset.reset=latest`).

    topics are added by      how                     if brokers differ, or an end is unknown
    -----------------------  ----------------------  ----------------------------------------
    a node                   sync/flow_begins.py     the topic is added; its end is stored once a
                                                     later refresh finds it
    --takeover, an import    `agreed_ends`           nothing is added; the command is tried again
    of positions

It may take long until a node runs after a command. So a command stores the ends with the topics
that it adds, for all of their partitions (`MirrorTopic.followed_from`). `MirrorTopic.begins` goes
before them: what another program has copied, or an imported position. The ends of these partitions
are stored all the same. An entry for each partition is the evidence that all brokers have shown no
more of them, so partitions that the topic gets later are copied whole.
"""

from collections.abc import Mapping
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.partitions import Isolation, list_offsets
from twinlog.kafka.requests.topics import require_all_shown
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.flow import begins_at_end
from twinlog.mirror.flow_settings import FlowSettings

UNKNOWN: Final = -1

Offsets = tuple[int, ...]
"""`MirrorTopic.followed_from`."""


async def agreed_ends(
    source: KafkaCluster, settings: FlowSettings, topics: Mapping[str, Topic]
) -> dict[str, Offsets]:
    """Where a flow that begins at the end follows topics from that a command adds to it.

    Args:
        source: the source.
        settings: the flow's.
        topics: the source's topics as metadata has shown them, by name.

    Returns:
        By name, `MirrorTopic.followed_from`; there is none if the flow does not begin at the end.

    Raises:
        Retriable: a broker does not answer, or shows more partitions or another id of a topic; or
            the end of a partition is unknown.
    """
    if not begins_at_end(settings):
        return {}
    await require_all_shown(source, topics)
    unknown = {name: (UNKNOWN,) * len(topic.partitions) for name, topic in topics.items()}
    ends = await with_ends(source, unknown)
    for name, offsets in ends.items():
        if UNKNOWN in offsets:
            raise Retriable(
                f"the end of partition {offsets.index(UNKNOWN)} is unknown: it may have no leader",
                topic=name,
                cluster=source.name,
            )
    return ends


async def with_ends(source: KafkaCluster, known: Mapping[str, Offsets]) -> dict[str, Offsets]:
    """The offsets of topics, with the ends of their partitions where they are not known.

    An end is the last stable offset: a transaction that is open is copied whole, or not at all.

    Args:
        source: the source.
        known: by topic, an offset for each partition, or `UNKNOWN`.

    Returns:
        The same, with the ends that the source reports; none if all offsets were known.

    Raises:
        TwinlogError: the source does not answer.
    """
    unknown = [
        TopicPartition(name, index)
        for name, offsets in known.items()
        for index, offset in enumerate(offsets)
        if offset == UNKNOWN
    ]
    if not unknown:
        return {}
    ends = await list_offsets(source, unknown, isolation=Isolation.READ_COMMITTED)

    def offset_of(partition: TopicPartition, offset: int) -> int:
        answer = ends.get(partition)
        return offset if answer is None or isinstance(answer, Refusal) else answer.offset

    return {
        name: tuple(
            offset_of(TopicPartition(name, index), offset) for index, offset in enumerate(offsets)
        )
        for name, offsets in known.items()
    }
