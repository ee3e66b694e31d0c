"""A flow's partitions that are read from followers: leaders are asked (source/leader_bounds.py)."""

from collections.abc import Collection, Mapping
from typing import Any

from twinlog.engines.ports import SourcePort
from twinlog.engines.source.leader_bounds import FollowedPartition
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions
from twinlog.kafka.types import LogBounds, TopicPartition

_Partition = FlowPartition[Any, Any]


class FlowFollowers:
    """What a flow knows of them (`Followers`)."""

    def __init__(self, flow: FlowPartitions[Any, Any], source: SourcePort) -> None:
        self._flow = flow
        self._source = source

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._flow.now()

    def followed(self) -> Mapping[_Partition, FollowedPartition]:
        """Those that are copied from followers now."""
        return {
            partition: FollowedPartition(
                source=partition.source,
                leader=partition.source_node,
                leader_epoch=partition.source_leader_epoch,
                high_watermark=partition.source_end,
                last_stable=partition.source_stable,
                reading=(partition.source_replica, sequence),
            )
            for partition, sequence in self._flow.copying
            if partition.follows
        }

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Ask the source."""
        return await self._source.bounds(partitions)

    def heard(self, partition: _Partition, bounds: LogBounds, asked_at: float) -> None:
        """Note the ends, and the contact, unless the leader was read and heard of since."""
        ends = bounds.high_watermark, bounds.last_stable
        partition.note_ends(*ends, self.now(), at_least=True)
        partition.heard_at = max(asked_at, partition.heard_at or asked_at)
