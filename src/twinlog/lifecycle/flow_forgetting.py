"""Forgets what a flow has recorded, when it is deleted: one that is created again begins anew.

    recorded                                    is removed
    ------------------------------------------  ------------------------------------------------
    plans, maps, begun partitions of            by tombstones, in the transaction that deletes the
    `__mirror_offsets`                          flow
    positions of a flow that writes in          by DeleteGroups, before: without its positions a
    transactions, in its group                  partition that has begun is FAILED, and copies
                                                nothing twice

All partitions are STOPPED then, and their owners write nothing more of them. An owner that goes on
reads again what is recorded, when it sees that the flow was deleted (`SharedWriters.forget`).
"""

from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.deletion import delete_group
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import Mirror
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.offset_log import forgetting_entries
from twinlog.store.topic_writer import Entry


async def forget_flow(destination: KafkaCluster, mirror: Mirror) -> list[Entry]:
    """Delete the positions of a flow; return the tombstones for what else it has recorded.

    Args:
        destination: the flow's target.
        mirror: the flow, of which all partitions are STOPPED.

    Raises:
        Retriable: the destination is unreachable.
        UserError: a right is missing, or the group has members.
        ProtocolError: what is recorded cannot be read.
    """
    if mirror.kind == TRANSACTIONAL:
        await delete_group(destination, position_group(LANES_GROUP, mirror.name))
    return await forgetting_entries(destination, mirror.name)
