"""Deletes a consumer group with its committed offsets: DeleteGroups."""

from kafka.protocol.admin import DeleteGroupsRequest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import check


async def delete_group(cluster: KafkaCluster, group: str) -> None:
    """Delete a group without members, and its committed offsets; one that does not exist is.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing, or the group has members.
    """
    response = await cluster.coordinators.call(
        Coordinator.GROUP,
        group,
        DeleteGroupsRequest(groups_names=[group], max_version=2),
        code=lambda answer: answer.results[0].error_code,
    )
    [result] = response.results
    if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return
    with cluster.needing("DELETE", f"the group {group}"):
        check(result.error_code, f"delete group {group}")
