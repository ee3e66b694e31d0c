"""Forgets what a flow has recorded, when it is deleted: one that is created again begins anew.

    recorded                                    is removed
    ------------------------------------------  ------------------------------------------------
    plans, maps, begun partitions of            by tombstones, in the transaction that deletes the
    `__mirror_offsets`                          flow
    positions of a flow that writes in          by DeleteGroups, before: without its positions a
    transactions, in its group                  partition that has begun is FAILED, and copies
                                                nothing twice

A flow that does not write in transactions has no group. But a former flow of its name may have
left one, and its positions would count again for a later one. So it is deleted, too, as far as that
is possible: who may neither delete nor describe it can still delete such a flow, and a line names
the group.

All partitions are STOPPED then, and their owners write nothing more of them. An owner that goes on
reads again what is recorded, when it sees that the flow was deleted (`SharedWriters.forget`).
"""

from collections.abc import Callable

from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.groups.deletion import delete_group
from twinlog.kafka.groups.offsets import committed_offsets, list_groups
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import Mirror
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.offset_log import forgetting_entries
from twinlog.store.topic_writer import Entry


async def forget_flow(
    destination: KafkaCluster, mirror: Mirror, tell: Callable[[str], None]
) -> list[Entry]:
    """Delete the positions of a flow; return the tombstones for what else it has recorded.

    Args:
        destination: the flow's target.
        mirror: the flow, of which all partitions are STOPPED.
        tell: receives a line if positions of a former flow of this name may be left.

    Raises:
        Retriable: the destination is unreachable.
        UserError: a right is missing, or the group has members.
        ProtocolError: what is recorded cannot be read.
    """
    group = position_group(LANES_GROUP, mirror.name)
    try:
        await delete_group(destination, group)
    except UserError as error:
        exists = mirror.kind == TRANSACTIONAL or await _exists(destination, group)
        if exists:
            raise
        if exists is None:
            tell(
                f"group {group} was not deleted, and it is not known whether it exists: {error}; "
                f"its positions would count again if a flow {mirror.name} with "
                "transaction.producer or transforms is created: delete the group before"
            )
    return await forgetting_entries(destination, mirror.name)


async def _exists(destination: KafkaCluster, group: str) -> bool | None:
    """Whether a group exists that may not be deleted; None: it is not known."""
    try:
        # Without DESCRIBE on the group this is refused, and a list of groups just lacks it.
        if await committed_offsets(destination, group):
            return True
        return group in await list_groups(destination)
    except (UserError, Retriable):
        return None
