"""How control topics are created: replicated like Kafka's own internal topics."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import NewTopic, create_topics

_MAX_REPLICATION: Final = 3
_IN_SYNC: Final = {"min.insync.replicas": "2"}
"""Of topics that must not be lost, if they have three replicas."""


class StoredTopic(NamedTuple):
    """A control topic to create. `durable`: it must not be lost."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    durable: bool = True


async def create_stored(
    cluster: KafkaCluster, topics: Collection[StoredTopic], replication_factor: int | None = None
) -> None:
    """Create control topics; those that exist by then stay as they are.

    Args:
        cluster: the destination. Its metadata has all brokers.
        topics: what to create.
        replication_factor: None: 3, or the number of brokers if that is less.

    Raises:
        UserError: no right to create one, or fewer brokers than the replication factor.
        Retriable: the cluster is unreachable.
    """
    factor = replication_factor or min(_MAX_REPLICATION, len(cluster.metadata.brokers))
    in_sync = _IN_SYNC if factor >= _MAX_REPLICATION else {}
    new_topics = [
        NewTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=factor,
            configs={**topic.configs, **(in_sync if topic.durable else {})},
        )
        for topic in topics
    ]
    for name, answer in (await create_topics(cluster, new_topics)).items():
        if isinstance(answer, Refusal) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            with cluster.needing("CREATE", f"the topic {name}"):
                answer.fail(f"create the control topic {name}")
