"""Rights copied from a source make no principal a node: the node's measures, without brokers.

The conclusions from ACLs: tests/mirror/test_acl_scope.py. Counting a copied right on `*`, whose
denial on `__mirror` exists on the source alone, would lose a denial on the destination.
"""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka import acls
from twinlog.kafka.acls import Acl, AclChanges, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import UserError
from twinlog.mirror.settings import parse_settings
from twinlog.store.config_records import MadeAcl, MadeFor, Mirror, MirrorTopic, encode
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync import acls as acl_sync
from twinlog.sync import read_only
from twinlog.sync.read_only import ReadOnly

NOBODY: Any = None


def allowed(name: str, principal: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    kind, every, allow = ResourceType.TOPIC, Operation.ALL, Permission.ALLOW
    return Acl(kind, name, pattern, principal, "*", every, allow)


NODE = allowed("__mirror", "User:node", PatternType.PREFIXED)
ANYWHERE = allowed("*", "User:mallory")


def snapshot(*copied: Acl) -> Snapshot:
    """Return a mirror `m` of `orders` that has copied these ACLs."""
    records = (
        Mirror(name="m", source={}, source_cluster_id="s"),
        MirrorTopic(mirror="m", topic="orders", topic_id=UUID(int=1), partitions=1),
        *(MadeAcl(mirror="m", acl=acl, made_for=MadeFor.SOURCE) for acl in copied),
    )
    return Snapshot().after(StoredRecord(0, at, *encode(one)) for at, one in enumerate(records))


@pytest.mark.parametrize("already", [False, True], ids=["about to be copied", "copied before"])
def test_a_principal_with_a_copied_right_is_denied(
    already: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: it can never write to a mirror topic: its denials are made before the copy."""
    done: list[frozenset[Acl]] = []

    async def carry_out(*arguments: Any) -> int:
        changes: AclChanges = arguments[3]
        done.append(changes.make)
        return 0

    async def copying() -> int:
        done.append(frozenset({ANYWHERE}))
        return 0

    monkeypatch.setattr(read_only, "carry_out", carry_out)

    async def run() -> None:
        one = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
        one._snapshot = snapshot(*([ANYWHERE] if already else []))
        there, news = {NODE}, {ANYWHERE}
        if already:
            there, news = there | news, set()
        await one.allow("m", frozenset(there), frozenset(news), copying)

    asyncio.run(run())
    denials, copied = done
    assert copied == {ANYWHERE}
    assert {one.operation for one in denials if one.principal == "User:mallory"} == {
        *(Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
    }
    assert {one.resource_name for one in denials} == {"orders"}
    assert {one.permission for one in denials} == {Permission.DENY}


@pytest.mark.parametrize("refused", [0, 1])
def test_without_its_denial_no_right_is_copied(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a denial that the destination refuses opens no mirror topic to a copied right."""
    copied: list[Acl] = []

    async def carry_out(*_: Any) -> int:
        return refused

    async def copying() -> int:
        copied.append(ANYWHERE)
        return 0

    monkeypatch.setattr(read_only, "carry_out", carry_out)
    one = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
    one._snapshot = snapshot()
    assert asyncio.run(one.allow("m", frozenset({NODE}), frozenset({ANYWHERE}), copying)) == refused
    assert bool(copied) is not bool(refused)


def test_rights_that_would_need_too_many_denials_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a source fills neither a node's memory nor the destination's ACLs with its own.

    Each right on a prefix needs up to four denials for each topic. A right without a guard is not
    copied.
    """
    monkeypatch.setattr(acls, "MAX_DENIALS", 8)
    monkeypatch.setattr(read_only, "carry_out", NOBODY)

    async def copying() -> int:
        raise AssertionError("copied")

    one = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
    one._snapshot = snapshot()
    news = frozenset(allowed("ord", f"User:{who}", PatternType.PREFIXED) for who in "abc")
    with pytest.raises(UserError, match="more than 8 ACLs are needed to keep 1 topics read-only"):
        asyncio.run(one.allow("m", frozenset({NODE}), news, copying))


def test_denials_of_the_source_are_copied() -> None:
    """Goal: a denial is left out only to protect nodes."""
    ours = {NODE, ANYWHERE}

    async def nodes(known: Snapshot) -> frozenset[str]:
        settings = parse_settings({})
        found = await acl_sync._scope(NOBODY, known, "m", settings, about=[], ours=ours)
        return found.nodes

    assert asyncio.run(nodes(snapshot(ANYWHERE))) == {"User:node"}
    assert asyncio.run(nodes(snapshot())) == {"User:node", "User:mallory"}, (
        "it is the destination's"
    )
