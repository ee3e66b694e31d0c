"""Fetch requests to a cluster's brokers, with or without a session; both ports use them."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, ProtocolError, Refusal, check
from twinlog.kafka.protocol import fetch
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests import partitions as questions
from twinlog.kafka.requests.topic_keys import TopicKeys
from twinlog.kafka.types import UNKNOWN_EPOCH, FetchPosition, Offset, TopicPartition

MAX_READ: Final = 64 << 20
"""Bytes of one answer to `read`."""
READ_LANE: Final = "read"

_NOTHING: Final = memoryview(b"")


class Limits(NamedTuple):
    """The limits of an answer to Fetch."""

    isolation: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int


class NodeReader:
    """Fetch requests to one cluster, with the topic keys of its metadata."""

    def __init__(self, cluster: KafkaCluster, keys: TopicKeys, *, pinned: bool = False) -> None:
        self._cluster = cluster
        self._keys = keys
        self._renew: Collection[str] | None = () if pinned else None

    async def exchange(
        self,
        connection: Connection,
        wanted: Mapping[TopicPartition, FetchPosition],
        forgotten: Collection[TopicPartition],
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
            wanted,
            forgotten,
            session_id=session[0],
            session_epoch=session[1],
            isolation=limits.isolation,
            max_wait_ms=limits.max_wait_ms,
            min_bytes=1,
            max_bytes=limits.max_bytes,
            partition_max_bytes=limits.partition_max_bytes,
        )
        timeout = self._cluster.config.request_timeout + limits.max_wait_ms / 1000
        try:
            body = await connection.send_raw(
                fetch.API_KEY, version, (request,), flexible=True, timeout=timeout
            )
            response = fetch.decode_fetch(version, names, body)
        except ProtocolError as error:
            await connection.close()
            raise Disconnected(str(error), cluster=self._cluster.name) from error
        connection.throttle(response.throttle_ms)
        return response, len(body)

    async def unknown(self, wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, Fetched]:
        """The partitions whose topic is not in the metadata, even after a refresh; usually none."""
        self._keys.learn(self._cluster.metadata, self._renew)
        missing = {p.topic for p in wanted if p.topic not in self._keys}
        if not missing:
            return {}
        self._keys.learn(await self._cluster.refresh(missing), self._renew)
        gone = failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {p: gone for p in wanted if p.topic not in self._keys}

    async def read(
        self, offsets: Mapping[TopicPartition, int], isolation: int, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets from each leader, without a session."""
        limits = Limits(isolation, 0, MAX_READ, partition_max_bytes)

        async def ask(node: int, asked: questions.Asked[int]) -> questions.Answers[Fetched]:
            connection = await self._cluster.connection(node, READ_LANE)
            await connection.ready()
            self._keys.learn(self._cluster.metadata, self._renew)
            wanted = {
                p: FetchPosition(offset, leader_epoch=leader.epoch)
                for p, (leader, offset) in asked.items()
            }
            response, _ = await self.exchange(connection, wanted, (), (0, fetch.NO_SESSION), limits)
            check(response.error, "read")
            return {
                p: Refusal(part.error) if part.error else part
                for p, part in response.partitions.items()
            }

        answers = await questions.by_leader(
            self._cluster, offsets, ask, patience=questions.PATIENCE
        )
        return {
            p: failed(answer.code) if isinstance(answer, Refusal) else answer
            for p, answer in answers.items()
        }

    async def read_alone(
        self, partition: TopicPartition, offset: int, limits: Limits
    ) -> tuple[Fetched, int, int]:
        """Read this partition alone; return its part, the throttle time and the leader epoch.

        Raises:
            Retriable: no answer arrived.
        """
        leader = (await self._cluster.leaders([partition]))[partition]
        if isinstance(leader, Refusal):
            return failed(leader.code), 0, UNKNOWN_EPOCH
        connection = await self._cluster.connection(leader.node_id, READ_LANE)
        await connection.ready()
        self._keys.learn(self._cluster.metadata, self._renew)
        if partition.topic not in self._keys:
            return failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0, UNKNOWN_EPOCH
        wanted = {partition: FetchPosition(Offset(offset), leader_epoch=leader.epoch)}
        response, _ = await self.exchange(connection, wanted, (), (0, fetch.NO_SESSION), limits)
        check(response.error, "read")
        fetched = response.partitions.get(partition)
        if fetched is None:
            # An answer that a quota has emptied lists no partition, and no offsets.
            fetched = failed(0)
        return fetched, response.throttle_ms, leader.epoch


def failed(code: int) -> Fetched:
    """The result of a partition that could not be read."""
    return Fetched(code, -1, -1, -1, (), _NOTHING)
