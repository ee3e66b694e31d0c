"""In which order ACLs are made and removed, with no broker."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.cluster import acls as module
from twinlog.cluster.acls import create_acls, delete_acls
from twinlog.cluster.client import KafkaCluster
from twinlog.core.acls import Acl, Operation, PatternType, Permission, ResourceType

ALLOW = Acl(
    *(ResourceType.TOPIC, "orders", PatternType.PREFIXED, "User:p", "*"),
    *(Operation.READ, Permission.ALLOW),
)
DENY = ALLOW._replace(
    resource_name="orders-secret", pattern_type=PatternType.LITERAL, permission=Permission.DENY
)


def test_a_denial_is_made_first_and_removed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whatever request is the last that is sent, nobody is allowed more than in the end."""
    monkeypatch.setattr(module, "CHUNK", 1)
    sent: list[int] = []

    class Cluster:
        async def call(self, request: Any, **_: Any) -> Any:
            done = SimpleNamespace(error_code=0, error_message=None, matching_acls=())
            [one] = getattr(request, "creations", None) or request.filters
            sent.append(one.permission_type)
            return SimpleNamespace(results=[done], filter_results=[done])

    cluster = cast("KafkaCluster", Cluster())
    asyncio.run(create_acls(cluster, [ALLOW, DENY]))
    asyncio.run(delete_acls(cluster, [ALLOW, DENY]))
    assert [Permission(one).name for one in sent] == ["DENY", "ALLOW", "ALLOW", "DENY"]
