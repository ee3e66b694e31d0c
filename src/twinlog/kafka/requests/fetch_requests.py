"""Fetch requests to a cluster's brokers, with or without a session.

A request names topics by the keys of the metadata. If these are *pinned*, a topic keeps its id
until its caller asks for its leaders again, so that a recreated topic is refused, not read.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.client.metadata import Metadata
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, ProtocolError
from twinlog.kafka.protocol import fetch
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests.topic_keys import TopicKeys
from twinlog.kafka.types import FetchPosition, TopicPartition

_NOTHING: Final = memoryview(b"")


class Limits(NamedTuple):
    """The limits of an answer to Fetch."""

    isolation: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int


class FetchRequests:
    """Fetch requests to one cluster, with the topic keys of its metadata.

    Args:
        cluster: the cluster, started.
        pinned: whether a topic's id changes by `refresh` only.
    """

    def __init__(self, cluster: KafkaCluster, *, pinned: bool) -> None:
        self.cluster = cluster
        self._keys = TopicKeys()
        self._renew: Collection[str] | None = () if pinned else None

    @property
    def generation(self) -> int:
        """Counts how often a topic was found to have another id than before."""
        return self._keys.generation

    async def refresh(self, topics: Collection[str]) -> Metadata:
        """Refresh the metadata of these topics, whose ids count from now on."""
        metadata = await self.cluster.refresh(topics)
        self._keys.learn(metadata, topics)
        return metadata

    def learn(self) -> None:
        """Add topics that the metadata has by now; pinned ids stay."""
        self._keys.learn(self.cluster.metadata, self._renew)

    def __contains__(self, topic: str) -> bool:
        return topic in self._keys

    async def exchange(
        self,
        connection: Connection,
        positions: Mapping[TopicPartition, FetchPosition],
        forgotten_partitions: Collection[TopicPartition],
        session: tuple[int, int],
        limits: Limits,
    ) -> tuple[fetch.FetchResponse, int]:
        """Send one request; return the response and its size in bytes.

        Raises:
            Disconnected: there was no response; or it was invalid, and the connection is closed.
        """
        version = self._keys.version(
            connection, fetch.API_KEY, fetch.MIN_VERSION, fetch.MAX_VERSION, fetch.BY_ID
        )
        keys, names = self._keys.maps(by_id=version >= fetch.BY_ID)
        request = fetch.encode_fetch(
            version,
            keys,
            positions,
            forgotten_partitions,
            session_id=session[0],
            session_epoch=session[1],
            isolation=limits.isolation,
            max_wait_ms=limits.max_wait_ms,
            min_bytes=1,
            max_bytes=limits.max_bytes,
            partition_max_bytes=limits.partition_max_bytes,
        )
        timeout = self.cluster.config.request_timeout + limits.max_wait_ms / 1000
        try:
            body = await connection.send_raw(
                fetch.API_KEY, version, (request,), flexible=True, timeout=timeout
            )
            response = fetch.decode_fetch(version, names, body)
        except ProtocolError as error:
            await connection.close()
            raise Disconnected(str(error), cluster=self.cluster.name) from error
        connection.throttle(response.throttle_ms)
        return response, len(body)

    async def unknown(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Fetched]:
        """The partitions whose topic is not in the metadata, even after a refresh; usually none."""
        self.learn()
        missing_topics = {p.topic for p in partitions if p.topic not in self._keys}
        if not missing_topics:
            return {}
        self._keys.learn(await self.cluster.refresh(missing_topics), self._renew)
        failure = failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {p: failure for p in partitions if p.topic not in self._keys}


def failed(code: int) -> Fetched:
    """The result of a partition that was not read: this error, and no offsets."""
    return Fetched(code, -1, -1, -1, (), _NOTHING)
