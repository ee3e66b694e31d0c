"""Twin of twinlog.sync.created_acls: the ACLs that exist when the broker refuses some."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from twinlog.kafka import acls
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.sync import created_acls

ALLOW = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.PREFIXED,
    "User:app",
    "*",
    Operation.ALL,
    Permission.ALLOW,
)
DENY = ALLOW._replace(
    resource_name="orders-secret", pattern_type=PatternType.LITERAL, permission=Permission.DENY
)
OTHER = ALLOW._replace(principal="User:other")
REFUSED = Refusal(87)


class Broker:
    """A broker that carries out all requests except those it refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *refused: Acl) -> None:
        self.done: list[Acl] = []

        async def carry_out(_: KafkaCluster, acls: Iterable[Acl]) -> dict[Acl, Refusal | None]:
            answers = {acl: REFUSED if acl in refused else None for acl in sorted(acls)}
            self.done += [acl for acl, refusal in answers.items() if refusal is None]
            return answers

        monkeypatch.setattr(created_acls, "create_acls", carry_out)
        monkeypatch.setattr(created_acls, "delete_acls", carry_out)


def run(function: Any, *acls: Acl) -> set[Acl]:
    found: set[Acl] = asyncio.run(function(cast("KafkaCluster", None), acls))
    return found


def test_denials_are_created_first_and_removed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an allow never exists without its limiting denial, also if requests are missing."""
    broker = Broker(monkeypatch)
    assert run(created_acls._make, ALLOW, DENY) == set()
    assert run(created_acls._remove, ALLOW, DENY) == set()
    assert broker.done == [DENY, ALLOW, ALLOW, DENY]


def test_an_allow_is_not_created_if_its_denial_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a destination that refuses denials does not become more open than the source."""
    broker = Broker(monkeypatch, DENY)
    assert run(created_acls._make, ALLOW, DENY, OTHER) == {ALLOW, DENY}
    assert broker.done == [OTHER]
    assert any("the denials that limit them cannot be created" in line for line in caplog.messages)


def test_a_denial_stays_if_its_allow_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, ALLOW)
    assert run(created_acls._remove, ALLOW, DENY, OTHER) == {ALLOW, DENY}
    assert broker.done == [OTHER]


def test_acls_beyond_the_comparison_limit_count_as_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: names that the destination refuses hold up no node, and open nothing."""
    monkeypatch.setattr(acls, "MAX_PAIRS", 1)
    broker = Broker(monkeypatch, DENY)
    assert run(created_acls._make, ALLOW, DENY, OTHER) == {ALLOW, DENY, OTHER}
    broker = Broker(monkeypatch, ALLOW)
    second = DENY._replace(principal="User:another")
    assert run(created_acls._remove, ALLOW, DENY, OTHER, second) == {ALLOW, DENY, second}
    assert broker.done == [OTHER]
