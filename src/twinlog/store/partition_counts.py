"""The partition count of a control topic that was created before: what is stored needs it.

Without the count it is not known in which partition a record is. A broker with stale metadata may
not know a topic that exists, so its answer is tried again. A topic that no broker has was deleted,
and no command creates it again: trying again would only hide that.
"""

import asyncio
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests.topics import absent_everywhere
from twinlog.store.control_topics import partition_count

_LOOKS: Final = 3
_LOOK_S: Final = 0.3


async def known_partition_count(cluster: KafkaCluster, topic: str) -> int:
    """How many partitions a control topic has.

    Args:
        cluster: the destination.
        topic: a control topic that was created before.

    Raises:
        UserError: no right to see it; or it was deleted: no broker has had it for about a second.
        Retriable: the broker that was asked does not know the topic, or not yet.
    """
    for _ in range(_LOOKS):  # a topic that has just been created may be unknown to all
        if (count := await partition_count(cluster, topic)) is not None:
            return count
        if not await absent_everywhere(cluster, [topic]):
            raise Retriable("a broker does not know the topic yet", topic=topic)
        await asyncio.sleep(_LOOK_S)
    raise UserError(
        f"the control topic {topic} does not exist",
        cluster=cluster.name,
        hint='it was deleted and is not recreated automatically: see "A lost control topic" in '
        "docs/operations/control-topics.md",
        code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
