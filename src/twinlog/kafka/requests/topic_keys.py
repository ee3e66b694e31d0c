"""A topic on the wire: its name, or from some version on its id (KIP-516).

The maps only grow. A deleted topic keeps its key, so that a fetch session can still forget it, and
an answer that was in flight can still be decoded.
"""

from collections.abc import Collection
from uuid import UUID

from twinlog.kafka.client.connection import Connection
from twinlog.kafka.client.metadata import EMPTY, NO_TOPIC_ID, Metadata
from twinlog.kafka.protocol.compact import topic_key


class TopicKeys:
    """The keys of all topics that the metadata has ever contained."""

    def __init__(self) -> None:
        self._by_name: tuple[dict[str, bytes], dict[bytes, str]] = {}, {}
        self._by_id: tuple[dict[str, bytes], dict[bytes, str]] = {}, {}
        self._last_metadata = EMPTY
        self._without_ids = False
        self.generation = 0
        """Counts how often a topic was found to have another id than before."""

    def learn(self, metadata: Metadata, renewals: Collection[str] | None = None) -> None:
        """Add the topics of a snapshot.

        Args:
            metadata: the snapshot.
            renewals: topics that may have another id than before; None is all of them.
        """
        if metadata is self._last_metadata and not renewals:
            return
        self._last_metadata = metadata
        # A topic that may not be described has no id either, and proves nothing about the broker.
        self._without_ids = any(
            topic.topic_id == NO_TOPIC_ID and not topic.error for topic in metadata.topics.values()
        )
        renewed = False
        for name, topic in metadata.topics.items():
            if renewals is not None and name in self and name not in renewals:
                continue
            key = topic.topic_id.bytes
            renewed |= self._by_id[0].get(name, key) != key
            _add(self._by_id, name, key)
            _add(self._by_name, name, topic_key(name, None))
        self.generation += renewed

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_name[0]

    def topic_id(self, topic: str) -> UUID:
        """The id of a topic; `NO_TOPIC_ID`: none is known."""
        key = self._by_id[0].get(topic)
        return NO_TOPIC_ID if key is None else UUID(bytes=key)

    def maps(self, *, by_id: bool) -> tuple[dict[str, bytes], dict[bytes, str]]:
        """The maps from topic to key, and from key to topic."""
        return self._by_id if by_id else self._by_name

    def version(
        self, connection: Connection, api_key: int, lowest: int, highest: int, by_id: int
    ) -> int:
        """The version to use: one before `by_id` if some topic has no id (metadata before 2.8).

        Raises:
            UserError: the broker is too old.
        """
        if self._without_ids:
            highest = by_id - 1
        return connection.negotiate(api_key, lowest, highest)


def _add(maps: tuple[dict[str, bytes], dict[bytes, str]], name: str, key: bytes) -> None:
    maps[0][name] = key
    maps[1][key] = name
