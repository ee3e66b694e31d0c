"""What the control plane says of a partition of the exact engine, and what the engine reports."""

import enum
from dataclasses import dataclass
from uuid import UUID

from twinlog.engines.ports import LeaderReport
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.types import TopicPartition
from twinlog.store.config_records import topic_id_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """The control plane's description of a mirror partition, the same for every owner.

    `shard` is its state partition. `destination_topic_id` is None if it is not stored: then it is
    not compared. `compacted`: the destination's topic refuses records without a key and
    DeleteRecords, because its cleanup.policy contains `compact`. `of_several_ids`: data in the log
    or in flight may carry another producer id than the data id has now.
    """

    partition: TopicPartition
    source_topic_id: UUID
    shard: int
    compacted: bool
    destination_topic_id: UUID | None = None
    of_several_ids: bool = False

    def topic_loss(self, leader: LeaderReport | None) -> str:
        """Why the destination does not have the mirror's topic; empty if it does, or if unknown."""
        if leader is None or leader.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "the destination does not have this partition"
        topic_id = self.destination_topic_id
        if topic_id is None or not is_another(topic_id, leader.topic_id):
            return ""
        return (
            f"the destination's topic was deleted and recreated: it has the id "
            f"{topic_id_text(leader.topic_id)}, the mirror's was {topic_id_text(topic_id)}; remove "
            "it "
            f"from the mirror, delete it there, and add it again"
        )


class PartitionStage(enum.Enum):
    """What an engine reports of a partition; the control plane maps it to KIP-1279's states."""

    PREPARING = enum.auto()
    MIRRORING = enum.auto()
    FAILED = enum.auto()
