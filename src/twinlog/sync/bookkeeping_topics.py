"""Topics of MirrorMaker 2's records, which flows write beside the data (KIP-382)."""

from collections.abc import Sequence
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Mm2Record, encode
from twinlog.store.topic_writer import ALL, Entry, append

_CHUNK: Final = 1000
"""Records in one request."""


class BookkeepingTopics:
    """Writes to topics of one partition, and creates those that are missing, once."""

    def __init__(self) -> None:
        self._known: set[tuple[str | None, str]] = set()

    async def write(
        self, cluster: KafkaCluster, topic: str, factor: int, records: Sequence[Mm2Record]
    ) -> None:
        """Append records, which replace earlier ones with the same key; none: create the topic.

        Args:
            cluster: where the topic is.
            topic: its name.
            factor: the replication factor of a topic that is created.
            records: what is written.

        Raises:
            UserError: the topic may not be created or written to.
            Retriable: not written, or it is unknown whether it was.
        """
        if (cluster.cluster_id, topic) not in self._known:
            await _create(cluster, topic, factor)
            self._known.add((cluster.cluster_id, topic))
        for first in range(0, len(records), _CHUNK):
            entries = [
                Entry(topic, 0, *encode(record)) for record in records[first : first + _CHUNK]
            ]
            answers = await append(cluster, entries, acks=ALL)
            answer = answers[TopicPartition(topic, 0)]
            if isinstance(answer, Refusal):
                self._known.discard((cluster.cluster_id, topic))  # it may have been deleted
                answer.fail("write bookkeeping of a flow", topic=topic)


async def _create(cluster: KafkaCluster, topic: str, factor: int) -> None:
    found = (await cluster.refresh([topic])).topics.get(topic)
    if found is not None and not found.error:  # an error: it may not be described
        return
    new = NewTopic(
        name=topic, partitions=1, replication_factor=factor, configs={"cleanup.policy": "compact"}
    )
    answer = (await create_topics(cluster, [new]))[topic]
    if isinstance(answer, Refusal) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        answer.fail("create the topic", topic=topic)
