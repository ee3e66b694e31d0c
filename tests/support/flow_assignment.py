"""An assignment of one partition of a flow, for tests without brokers."""

from typing import Final
from uuid import UUID

from twinlog.engines.base import Assignment
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition

SOURCE: Final = TopicPartition("orders", 0)
ASSIGNMENT: Final = Assignment(
    name=MirrorPartition("flow", *SOURCE),
    source=SOURCE,
    destination=TopicPartition("a.orders", 0),
    state_partition=0,
    source_topic_id=UUID(int=1),
    destination_topic_id=None,
    compacted=False,
)
IN_TRANSACTIONS: Final = {
    "mirror.kind": "transactional",
    "mirror.flow.source.cluster.alias": "a",
    "mirror.flow.target.cluster.alias": "b",
    "mirror.flow.transaction.producer": "true",
}
"""Properties of a flow in transactions."""
