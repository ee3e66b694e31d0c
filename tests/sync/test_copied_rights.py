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
from twinlog.store.config_records import ConfigRecord, MadeAcl, MadeFor, Mirror, MirrorTopic, encode
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
    records: tuple[ConfigRecord, ...] = (
        Mirror(name="m", source={}, source_cluster_id="s"),
        MirrorTopic(mirror="m", topic="orders", topic_id=UUID(int=1), partitions=1),
        *(MadeAcl(mirror="m", acl=acl, made_for=MadeFor.SOURCE) for acl in copied),
    )
    return Snapshot().after(
        StoredRecord(0, at, *encode(change)) for at, change in enumerate(records)
    )


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
        guard = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
        guard._snapshot = snapshot(*([ANYWHERE] if already else []))
        existing, added = {NODE}, {ANYWHERE}
        if already:
            existing, added = existing | added, set()
        await guard.allow("m", frozenset(existing), frozenset(added), copying)

    asyncio.run(run())
    denials, copied = done
    assert copied == {ANYWHERE}
    assert {guard.operation for guard in denials if guard.principal == "User:mallory"} == {
        *(Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
    }
    assert {guard.resource_name for guard in denials} == {"orders"}
    assert {guard.permission for guard in denials} == {Permission.DENY}


@pytest.mark.parametrize("refused", [0, 1])
def test_no_right_is_copied_if_its_denial_is_refused(
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
    guard = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
    guard._snapshot = snapshot()
    assert (
        asyncio.run(guard.allow("m", frozenset({NODE}), frozenset({ANYWHERE}), copying)) == refused
    )
    assert bool(copied) is not bool(refused)


def test_rights_that_need_too_many_denials_are_not_copied(
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

    guard = ReadOnly(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
    guard._snapshot = snapshot()
    added = frozenset(allowed("ord", f"User:{who}", PatternType.PREFIXED) for who in "abc")
    with pytest.raises(UserError, match="more than 8 ACLs are needed to keep 1 topics read-only"):
        asyncio.run(guard.allow("m", frozenset({NODE}), added, copying))


def test_denials_of_the_source_are_copied() -> None:
    """Goal: a denial is left out only to protect nodes."""
    mirror_acls = {NODE, ANYWHERE}

    async def nodes(known: Snapshot) -> frozenset[str]:
        settings = parse_settings({})
        found = await acl_sync._scope(
            NOBODY, known, "m", settings, about=[], destination_acls=mirror_acls
        )
        return found.nodes

    assert asyncio.run(nodes(snapshot(ANYWHERE))) == {"User:node"}
    assert asyncio.run(nodes(snapshot())) == {"User:node", "User:mallory"}, (
        "it is the destination's"
    )
