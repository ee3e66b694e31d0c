"""What is translated of a flow that writes in transactions."""

import asyncio
from typing import cast
from uuid import UUID

from twinlog.engines.transactional.kind import TransactionalKind
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import TopicPartition
from twinlog.store.config_records import MirrorTopic


def test_without_a_map_there_is_nothing_to_compare_offsets_with() -> None:
    """Goal: no checkpoint is set back where a flow that another program began has no map."""
    topic = MirrorTopic(
        mirror="flow",
        topic="orders",
        topic_id=UUID(int=1),
        partitions=1,
        destination_topic="a.orders",
        begins=(4000,),
    )
    properties = {
        "mirror.kind": "transactional",
        "mirror.flow.source.cluster.alias": "a",
        "mirror.flow.target.cluster.alias": "b",
        "mirror.flow.transaction.producer": "true",
    }
    cluster = cast("KafkaCluster", None)  # nothing is asked
    found = asyncio.run(TransactionalKind().translation(cluster, [topic], properties))
    name = TopicPartition("orders", 0)
    assert found.names == {name: TopicPartition("a.orders", 0)}
    assert found.unknown == {name}
    assert not found.maps
    assert not found.begins
