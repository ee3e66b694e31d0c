"""ACLs on real brokers, with an authorizer and without."""

import asyncio

import pytest
from clients import client
from secured_clusters import Secured
from waiting import until_async

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.acls import create_acls, delete_acls, describe_acls
from twinlog.local.cluster import LocalCluster

pytestmark = pytest.mark.broker


def test_acls_are_created_described_and_deleted(secured_pair: tuple[Secured, Secured]) -> None:
    """ACLs of every kind, each twice; an ACL that only resembles a removed one stays."""
    name = "test_acls"
    kinds = [kind for kind in ResourceType if kind is not ResourceType.CLUSTER]
    acls = {
        Acl(kind, name, PatternType.LITERAL, f"User:{name}", "*", operation, Permission.ALLOW)
        for kind, operation in zip(
            kinds,
            (
                Operation.READ,
                Operation.DESCRIBE,
                Operation.TWO_PHASE_COMMIT,
                Operation.DESCRIBE,
                Operation.CREATE_TOKENS,
            ),
            strict=True,
        )
    }
    one = next(acl for acl in acls if acl.resource_type is ResourceType.TOPIC)
    alike = {
        one._replace(pattern_type=PatternType.PREFIXED),
        one._replace(permission=Permission.DENY),
        one._replace(host="10.0.0.1"),
        one._replace(principal="User:*"),
        one._replace(resource_name="*"),
    }
    wrong = one._replace(resource_type=ResourceType.CLUSTER)

    async def run() -> None:
        async with secured_pair[0].root() as cluster:

            async def ours() -> set[Acl]:
                found = await describe_acls(cluster)
                assert found is not None
                return {acl for acl in found if acl in acls | alike}

            async def wait_for(wanted: set[Acl]) -> None:
                async def there() -> bool:
                    return await ours() == wanted

                await until_async(there)

            for _ in range(2):
                answers = await create_acls(cluster, acls | alike)
                assert answers == dict.fromkeys(acls | alike)
                await wait_for(acls | alike)
            for _ in range(2):
                assert await delete_acls(cluster, [one]) == {one: None}
                await wait_for(acls - {one} | alike)
            refused = await create_acls(cluster, [wrong, one])
            assert isinstance(refused[wrong], Refusal)
            assert refused[one] is None
            await delete_acls(cluster, acls | alike)
            await wait_for(set())

    asyncio.run(run())


def test_describing_acls_without_an_authorizer_is_no_error(kafka: LocalCluster) -> None:
    """The absence of ACLs is no error of the caller."""

    async def run() -> None:
        async with client(kafka) as cluster:
            assert await describe_acls(cluster) is None

    asyncio.run(run())
