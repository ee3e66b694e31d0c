"""`RemoteClusterUtils`: one question to a cluster, with a connection of its own.

It is Kafka's class of this name (KIP-382). Several questions cost less with one `MirrorClient`.
"""

import re
from collections.abc import Mapping
from typing import overload

from twinlog.interfaces.client.mirror_client import TIMEOUT_S, MirrorClient
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition


class RemoteClusterUtils:
    """The methods of `MirrorClient` as functions.

    `properties` are those of `MirrorClient`. Each function raises what its method raises, and
    UserError if a property is missing or malformed.
    """

    @staticmethod
    async def replication_hops(properties: Mapping[str, str], upstream_cluster_alias: str) -> int:
        """The least number of flows between a cluster and this one; -1 if there are none."""
        async with MirrorClient(properties) as client:
            return await client.replication_hops(upstream_cluster_alias)

    @staticmethod
    async def heartbeat_topics(properties: Mapping[str, str]) -> frozenset[str]:
        """The topics with heartbeats."""
        async with MirrorClient(properties) as client:
            return await client.heartbeat_topics()

    @staticmethod
    async def checkpoint_topics(properties: Mapping[str, str]) -> frozenset[str]:
        """The topics with checkpoints."""
        async with MirrorClient(properties) as client:
            return await client.checkpoint_topics()

    @staticmethod
    async def upstream_clusters(properties: Mapping[str, str]) -> frozenset[str]:
        """The aliases of all clusters whose heartbeats arrive here."""
        async with MirrorClient(properties) as client:
            return await client.upstream_clusters()

    @overload
    @staticmethod
    async def translate_offsets(
        properties: Mapping[str, str],
        remote_cluster_alias: str,
        consumer_group: str,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[TopicPartition, Committed]: ...

    @overload
    @staticmethod
    async def translate_offsets(
        properties: Mapping[str, str],
        remote_cluster_alias: str,
        consumer_group: re.Pattern[str],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, dict[TopicPartition, Committed]]: ...

    @staticmethod
    async def translate_offsets(
        properties: Mapping[str, str],
        remote_cluster_alias: str,
        consumer_group: str | re.Pattern[str],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[TopicPartition, Committed] | dict[str, dict[TopicPartition, Committed]]:
        """Where groups of another cluster go on reading here; see `remote_consumer_offsets`.

        Args:
            properties: see `MirrorClient`.
            remote_cluster_alias: that cluster's alias.
            consumer_group: the group's id there, or a pattern that ids match in full.
            timeout_s: seconds that reading may take.
        """
        async with MirrorClient(properties) as client:
            return await client.remote_consumer_offsets(
                consumer_group, remote_cluster_alias, timeout_s=timeout_s
            )
