"""What a comparison by content asks the clusters besides records: why a log is as it is.

question                                       evidence
---------------------------------------------  ---------------------------------------------
may compaction have removed these records?     `cleanup.policy` of either topic
is the open transaction one of many, or stuck? whether the last stable offset has moved on
"""

import asyncio
from typing import Final, Protocol

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import describe_configs, topic_resource
from twinlog.kafka.types import TopicPartition
from twinlog.verify.job import Sides
from twinlog.verify.log_reader import read_bounds

POLICY: Final = "cleanup.policy"
_LOOK_S: Final = 0.5


class LogFacts(Protocol):
    """What is known of a pair of logs (`AskedFacts`)."""

    async def is_compacted(self) -> bool | None:
        """Whether compaction explains holes; None: it cannot be read."""
        ...

    async def moves_on(self, last_stable: int) -> bool:
        """Whether the remote log's last stable offset gets beyond this one."""
        ...


class AskedFacts:
    """Asks both clusters.

    Args:
        clusters: both, connected.
        partitions: the source's, and the remote one.
        patience: seconds to wait for a transaction that is open.
    """

    def __init__(
        self,
        clusters: Sides[KafkaCluster],
        partitions: Sides[TopicPartition],
        patience: float,
    ) -> None:
        self._clusters = clusters
        self._partitions = partitions
        self._patience = patience

    async def is_compacted(self) -> bool | None:
        """See `LogFacts`. A policy that may not be read is no evidence, for either answer.

        Raises:
            TwinlogError: a cluster is unreachable.
        """
        is_known = True
        for cluster, partition in zip(self._clusters, self._partitions, strict=True):
            resource = topic_resource(partition.topic)
            entries = (await describe_configs(cluster, [resource], [POLICY]))[resource]
            if isinstance(entries, Refusal):
                # A topic that does not exist has no holes.
                is_known &= entries.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif (entry := entries.get(POLICY)) is None or entry.value is None:
                is_known = False
            elif "compact" in entry.value:
                return True
        return False if is_known else None

    async def moves_on(self, last_stable: int) -> bool:
        """See `LogFacts`.

        Raises:
            TwinlogError: the target is unreachable, or refuses.
        """
        clock = asyncio.get_running_loop().time
        remote, end = self._partitions.destination, clock() + self._patience
        while True:
            bounds = (await read_bounds(self._clusters.destination, [remote]))[remote]
            if not bounds.error and bounds.last_stable > last_stable:
                return True
            if clock() >= end:
                return False
            await asyncio.sleep(_LOOK_S)
