"""A cluster's access control lists: thin functions, as in topics.py.

Creating an ACL that exists and deleting one that does not change nothing, so each request may be
carried out twice.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from kafka.protocol.admin import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
)

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.pool import SLOW
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, check
from twinlog.kafka.requests.topics import refusal_of

CHUNK: Final = 1000
"""ACLs in one request."""
_ANY: Final = 1


async def describe_acls(cluster: KafkaCluster, node: int | None = None) -> frozenset[Acl] | None:
    """All ACLs of a cluster, as one broker knows them; None without an authorizer.

    A broker authorizes by the ACLs that it knows. `node` is the broker to ask; None: any.

    Raises:
        UserError: no right to describe them (DESCRIBE on the cluster).
        Retriable: the cluster does not answer.
    """
    request = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    response = await cluster.call(request, node=node)
    if response.error_code == ErrorCode.SECURITY_DISABLED:
        return None
    check(response.error_code, "read the ACLs", response.error_message)
    return frozenset(
        Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in response.resources
        for acl in resource.acls
    )


async def describe_acls_everywhere(cluster: KafkaCluster) -> dict[int, frozenset[Acl] | None]:
    """The ACLs that each broker lists, by its id; None: it has no authorizer.

    One that is behind, or cut off from the controllers, lists too few. Without any broker in the
    cluster's metadata the result is empty: nothing is known then.

    Raises:
        UserError, Retriable: as `describe_acls`, for any of the brokers.
    """
    brokers = list((await cluster.refresh([])).brokers)
    listings = await asyncio.gather(*(describe_acls(cluster, node) for node in brokers))
    return dict(zip(brokers, listings, strict=True))


async def acls_of_any_broker(cluster: KafkaCluster) -> frozenset[Acl] | None:
    """The ACLs that at least one broker lists; None: no broker has an authorizer.

    Raises:
        Retriable: a broker does not answer, or no broker is known.
        UserError: as `describe_acls`.
    """
    lists = await describe_acls_everywhere(cluster)
    if not lists:
        raise Retriable("the ACLs cannot be read: the cluster's metadata names no broker")
    known = [listing for listing in lists.values() if listing is not None]
    return frozenset[Acl]().union(*known) if known else None


async def may_alter_acls(cluster: KafkaCluster) -> bool:
    """Whether the client may create and delete ACLs (ALTER on the cluster), as a broker reports.

    Raises:
        Retriable: the cluster does not answer.
    """
    request = DescribeClusterRequest(include_cluster_authorized_operations=True, max_version=1)
    response = await cluster.call(request)
    check(response.error_code, "describe the cluster", response.error_message)
    return Operation.ALTER in (response.authorized_operations or ())


async def create_acls(cluster: KafkaCluster, acls: Iterable[Acl]) -> dict[Acl, Refusal | None]:
    """Create ACLs; None for each that exists afterwards.

    Raises:
        Retriable: the cluster does not answer.
    """
    answers: dict[Acl, Refusal | None] = {}
    for chunk in _chunks(acls):
        item = CreateAclsRequest.AclCreation
        request = CreateAclsRequest(
            creations=[
                item(
                    resource_type=int(acl.resource_type),
                    resource_name=acl.resource_name,
                    resource_pattern_type=int(acl.pattern_type),
                    principal=acl.principal,
                    host=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission),
                )
                for acl in chunk
            ]
        )
        response = await cluster.call(request, node=CONTROLLER, lane=SLOW)
        answers |= dict(zip(chunk, map(refusal_of, response.results), strict=True))
    return answers


async def delete_acls(cluster: KafkaCluster, acls: Iterable[Acl]) -> dict[Acl, Refusal | None]:
    """Delete exactly these ACLs; None for each that does not exist afterwards.

    Raises:
        Retriable: the cluster does not answer.
    """
    answers: dict[Acl, Refusal | None] = {}
    for chunk in _chunks(acls):
        item = DeleteAclsRequest.DeleteAclsFilter
        request = DeleteAclsRequest(
            filters=[
                item(
                    resource_type_filter=int(acl.resource_type),
                    resource_name_filter=acl.resource_name,
                    pattern_type_filter=int(acl.pattern_type),
                    principal_filter=acl.principal,
                    host_filter=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission),
                )
                for acl in chunk
            ]
        )
        response = await cluster.call(request, node=CONTROLLER, lane=SLOW)
        for acl, result in zip(chunk, response.filter_results, strict=True):
            refusals = [refusal_of(answer) for answer in (result, *result.matching_acls)]
            answers[acl] = next((refusal for refusal in refusals if refusal is not None), None)
    return answers


def _chunks(acls: Iterable[Acl]) -> Iterable[Sequence[Acl]]:
    """Split into requests of at most `CHUNK` ACLs."""
    ordered_acls = sorted(acls)
    return (ordered_acls[start : start + CHUNK] for start in range(0, len(ordered_acls), CHUNK))
