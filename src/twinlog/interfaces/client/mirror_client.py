"""`MirrorClient`: what MirrorMaker 2's topics tell about a cluster and those it is copied from.

It is Kafka's class of this name (KIP-382, *Remote Cluster Utils*), as of Kafka 4.3, with the same
methods, properties and results. It connects to one cluster, the destination of flows:

    heartbeat_topics, upstream_clusters, replication_hops    names of heartbeats topics
    remote_topics                                            names of topics
    checkpoint_topics, remote_consumer_offsets               topics of checkpoints

Names are taken apart by the replication policy, so a client needs the same policy as the flow.

Kafka's client returns what it has when something is missing. Here a result is complete, or there is
an exception, since a missing topic or offset makes a consumer start at a wrong place:

- Topics are asked of every broker: one that has just started may not know all.
- Checkpoints are read up to the high watermark at the time of the call, without those of aborted
  transactions, which MirrorMaker 2 leaves behind with `exactly.once.source.support`.
- A deadline that passes, and a checkpoint that cannot be decoded, are errors.
- A tombstone removes a checkpoint.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, overload

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import ClusterConfig, parse_config
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Retriable, UserError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.requests.topics import topic_names
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint, decode_checkpoint, decode_checkpoint_key
from twinlog.mirror.replication_policy import (
    INTERNAL_SEPARATOR,
    POLICY_CLASS,
    SEPARATOR,
    SOURCE_ALIAS,
    ReplicationPolicy,
    all_sources,
    count_hops,
    policy_of,
)
from twinlog.store.topic_reader import ControlRecord, latest, read_whole
from twinlog.text import few

UNREACHABLE: Final = -1
"""The hops from a cluster that nothing is copied from."""
TIMEOUT_S: Final = 60.0
"""Seconds that reading checkpoints may take."""
CONNECT_S: Final = 10.0
"""Seconds within which the cluster has to answer first."""

_PATIENCE: Final = 0.8
_POLICY: Final = frozenset({POLICY_CLASS, SEPARATOR, INTERNAL_SEPARATOR, SOURCE_ALIAS})
_ADMIN: Final = "admin."
_CONSUMER: Final = "consumer."
_PREFIXES: Final = (_ADMIN, _CONSUMER, "producer.")


class MirrorClient:
    """A client of one cluster; an async context manager.

    Every method may raise, in addition to its own errors:

        UserError    a right is missing, or the cluster refuses the client
        Retriable    the cluster does not answer
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Take properties as of Kafka's MirrorClient.

        Args:
            properties: `bootstrap.servers`, security and `replication.policy.*`. With the prefix
                `admin.` they are for listing topics alone, with `consumer.` for reading
                checkpoints alone.

        Raises:
            UserError: a property is missing or malformed, or there is no such policy.
        """
        for name, value in properties.items():
            if not isinstance(value, str):
                raise UserError(f"{name} is a {type(value).__name__}: expected text (str)")
        self._policy = policy_of(properties)
        self._of_admin, self._of_consumer = (
            _client_properties(properties, prefix) for prefix in (_ADMIN, _CONSUMER)
        )
        admin, consumer = parse_config(self._of_admin), parse_config(self._of_consumer)
        self._configs: tuple[ClusterConfig, ClusterConfig] = admin.config, consumer.config
        self.warnings: Final = tuple(dict.fromkeys((*admin.warnings, *consumer.warnings)))
        """Properties that are not used, a line each."""
        self._stack = AsyncExitStack()
        self._admin: KafkaCluster
        self._consumer: KafkaCluster

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._admin = await _connected(self._configs[0], stack)
            self._consumer = self._admin
            if self._of_consumer != self._of_admin:
                self._consumer = await _connected(self._configs[1], stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def replication_policy(self) -> ReplicationPolicy:
        """The policy by which names are understood."""
        return self._policy

    async def replication_hops(self, upstream_cluster_alias: str) -> int:
        """The least number of flows between a cluster and this one: from A by B to C it is 2.

        Returns:
            1 or more; -1 if no heartbeats of that cluster arrive here.
        """
        topics = await self.heartbeat_topics()
        hops = (count_hops(self._policy, topic, upstream_cluster_alias) for topic in topics)
        return min((count for count in hops if count is not None), default=UNREACHABLE)

    async def heartbeat_topics(self) -> frozenset[str]:
        """The topics with heartbeats: the cluster's own, and copies of those of others."""
        return await self._topics(self._policy.is_heartbeats_topic)

    async def checkpoint_topics(self) -> frozenset[str]:
        """The topics with checkpoints, one for each source."""
        return await self._topics(self._policy.is_checkpoints_topic)

    async def upstream_clusters(self) -> frozenset[str]:
        """The aliases of all clusters whose heartbeats arrive here, over any number of hops."""
        topics = await self.heartbeat_topics()
        return frozenset[str]().union(*(all_sources(self._policy, topic) for topic in topics))

    async def remote_topics(self, source: str | None = None) -> frozenset[str]:
        """The topics that are copies, also of heartbeats, except internal ones.

        Args:
            source: only those that were copied directly from this cluster; None: all.
        """

        def is_remote(topic: str) -> bool:
            if self._policy.is_internal_topic(topic):
                return False
            alias = self._policy.topic_source(topic)
            return alias is not None and source in {None, alias}

        return await self._topics(is_remote)

    @overload
    async def remote_consumer_offsets(
        self, consumer_group: str, remote_cluster_alias: str, *, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, Committed]: ...

    @overload
    async def remote_consumer_offsets(
        self,
        consumer_group: re.Pattern[str],
        remote_cluster_alias: str,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, dict[TopicPartition, Committed]]: ...

    async def remote_consumer_offsets(
        self,
        consumer_group: str | re.Pattern[str],
        remote_cluster_alias: str,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[TopicPartition, Committed] | dict[str, dict[TopicPartition, Committed]]:
        """Where groups of another cluster go on reading here, as of their last checkpoints.

        Args:
            consumer_group: the group's id on that cluster, or a pattern that ids match in full.
            remote_cluster_alias: that cluster's alias.
            timeout_s: seconds that reading may take.

        Returns:
            The offset, with the metadata that the group has committed, for each partition, by its
            name here. For a pattern this by group; groups without a checkpoint are left out.

        Raises:
            UserError: the cluster has no topic with checkpoints of that one, or may not be read.
            Retriable: the end was not reached in time, or the cluster does not answer.
            ProtocolError: a checkpoint cannot be decoded.
        """
        found = await self._checkpoints(consumer_group, remote_cluster_alias, timeout_s)
        if isinstance(consumer_group, str):
            return _offsets(found.get(consumer_group, ()))
        return {group: _offsets(checkpoints) for group, checkpoints in found.items()}

    async def _checkpoints(
        self, wanted: str | re.Pattern[str], alias: str, timeout_s: float
    ) -> Mapping[str, list[Checkpoint]]:
        """The last checkpoints, by group."""
        topic = self._policy.checkpoints_topic(alias)
        try:
            async with asyncio.timeout(timeout_s):
                topics = await self._topics(lambda name: name == topic)
                if not topics:
                    raise await self._no_checkpoints(topic, alias)
                # MirrorMaker 2 writes to this partition only, and reads no other. A transaction
                # that stays open is reported as the reason, before the time is over.
                patience = timeout_s * _PATIENCE
                records = await read_whole(self._consumer, topic, [0], patience=patience)
        except TimeoutError:
            raise Retriable(
                f"the checkpoints were not read up to their end within {timeout_s:g} s",
                topic=topic,
                partition=0,
                hint="try again, with a longer timeout",
            ) from None
        groups: defaultdict[str, list[Checkpoint]] = defaultdict(list)
        for record in latest(records).values():
            checkpoint = _decoded(topic, record, wanted)
            if checkpoint is not None:
                groups[checkpoint.group].append(checkpoint)
        return groups

    async def _no_checkpoints(self, topic: str, alias: str) -> UserError:
        names = few(sorted(await self.checkpoint_topics())) or "none"
        return UserError(
            f"there are no checkpoints of cluster {alias!r}: the topic does not exist, or this "
            f"principal may not describe it (topics with checkpoints: {names})",
            topic=topic,
            hint="check the alias, replication.policy.*, and that the flow emits checkpoints",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )

    async def _topics(self, wanted: Callable[[str], bool]) -> frozenset[str]:
        return frozenset(filter(wanted, await topic_names(self._admin)))


def _client_properties(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The properties of one of the two clients: those with its prefix have priority."""
    common = {
        name: value
        for name, value in properties.items()
        if not name.startswith(_PREFIXES) and name not in _POLICY
    }
    own = {
        name.removeprefix(prefix): value
        for name, value in properties.items()
        if name.startswith(prefix)
    }
    return common | own


async def _connected(config: ClusterConfig, stack: AsyncExitStack) -> KafkaCluster:
    cluster = KafkaCluster(config)
    await cluster.start(min(config.api_timeout, CONNECT_S))
    stack.push_async_callback(cluster.close)
    return cluster


def _decoded(topic: str, record: ControlRecord, wanted: str | re.Pattern[str]) -> Checkpoint | None:
    """The checkpoint, if it is of a group that is wanted."""
    try:
        group, _ = decode_checkpoint_key(record.key)
        is_wanted = group == wanted if isinstance(wanted, str) else wanted.fullmatch(group)
        return decode_checkpoint(record.key, record.value) if is_wanted else None
    except ProtocolError as error:
        raise ProtocolError(
            error.message,
            topic=topic,
            partition=record.partition,
            offset=record.offset,
            hint="only MirrorMaker 2 and twinlog may write to this topic; a tombstone with the "
            "record's key removes it",
        ) from error


def _offsets(checkpoints: Iterable[Checkpoint]) -> dict[TopicPartition, Committed]:
    return {c.partition: Committed(c.downstream_offset, c.metadata) for c in checkpoints}
