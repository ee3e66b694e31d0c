"""The topics that a source has, for a survey of readiness.

A broker that is behind, or cut off from the controllers, does not list a topic that was created
since, nor a partition. Readiness would not miss it. So every broker is asked, and what one of them
knows counts. Of a broker that does not answer it is not known what only that one knows.
"""

from collections.abc import Mapping
from typing import NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.requests.topics import known_topics
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.operations.readiness.sync_survey import bounded


class SourceTopics(NamedTuple):
    """What the brokers of a source know, taken together."""

    topics: Mapping[str, Topic]
    """All topics. One that the broker does not list which has answered for the others has no
    partitions here."""
    counts: Mapping[str, int]
    """How many partitions they have, where more is known than from one broker."""
    findings: tuple[Finding, ...] = ()
    """What is not known."""


async def all_source_topics(source: KafkaCluster, part_s: float | None) -> SourceTopics:
    """Ask every broker of a source for its topics.

    Args:
        source: the cluster.
        part_s: seconds for the brokers besides the first that answers; None: it takes what it
            takes.

    Raises:
        TwinlogError: the source is unreachable; or a broker of it, without `part_s`.
    """
    topics = dict((await source.refresh(None)).topics)
    try:
        async with bounded(part_s):
            known = await known_topics(source)
    except TwinlogError as error:
        if part_s is None:
            raise
        text = f"topics: unknown whether the source has others, or more partitions: {error}"
        return SourceTopics(topics, {}, (Finding(Reason.SOURCE_UNREADABLE, text),))
    for name, topic in known.items():
        if name not in topics:
            topics[name] = Topic(name, next(iter(topic.ids)), topic.internal, {})
    return SourceTopics(topics, {name: topic.partitions for name, topic in known.items()})
