"""Whether topics are still those that a mirror copies, as every broker of a cluster reports.

Brokers learn at different times that a topic was recreated. One of them may have answered for the
new topic when another one still shows the former id. So each broker is asked, and the answers count
for what was read before the question: where they show the copied topic, that was about it. Nothing
follows for what is read later.

    rule              a topic counts if                          then
    ----------------  -----------------------------------------  --------------------------------
    recreated_topics  some broker knows another topic of its     its configurations are left as
                      name, on either side                       they are
    doubtful_topics   some broker of the source does not show    its offsets of groups are not
                      the copied topic, and nothing else         copied

A topic that brokers do not know at all is doubtful, and not recreated.
"""

import logging
from collections.abc import Collection, Mapping
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import known_topics
from twinlog.store.config_records import MirrorTopic
from twinlog.sync.base import SyncContext

log = logging.getLogger(__name__)


async def recreated_topics(
    context: SyncContext, topics: Collection[MirrorTopic]
) -> set[MirrorTopic]:
    """Those of these topics that were recreated on either side, as some broker knows.

    Raises:
        Retriable: a broker of either cluster does not answer.
    """
    if not topics:
        return set()
    source = await known_topics(context.source, {topic.topic for topic in topics})
    destination = await known_topics(
        context.destination, {topic.destination_name for topic in topics}
    )
    sides = [
        (topic, topic_id, side.get(name))
        for topic in topics
        for topic_id, name, side in (
            (topic.topic_id, topic.topic, source),
            (topic.destination_topic_id, topic.destination_name, destination),
        )
    ]
    return {
        topic
        for topic, topic_id, known in sides
        if known is not None and known.has_another(topic_id)
    }


async def doubtful_topics(
    source: KafkaCluster,
    names: Collection[str],
    topic_ids: Mapping[str, UUID],
    *,
    tells: bool = True,
) -> set[str]:
    """Those of these topics that were recreated on the source, or may have been; logged if told.

    Args:
        source: the mirror's source.
        names: topics of the source.
        topic_ids: the id of each of them, as it is copied.
        tells: whether they are logged.

    Raises:
        Retriable: a broker of the source does not answer.
    """
    if not names:
        return set()
    topics = await known_topics(source, names)
    doubtful = {
        name
        for name in names
        if (topic := topics.get(name)) is None or topic.agreed_id != topic_ids[name]
    }
    for name in doubtful if tells else ():
        log.warning(
            "%s may have been recreated on the source: its group offsets are not copied", name
        )
    return doubtful
