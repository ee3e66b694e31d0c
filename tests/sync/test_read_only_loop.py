"""The loop that keeps topics read-only, with many mirrors, some of them slow."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest
from clients import none_refused
from waiting import until_async

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests import acls as acl_requests
from twinlog.store.config_records import (
    ConfigRecord,
    MadeAcl,
    MadeFor,
    Mirror,
    encode,
    encode_key,
    key_of,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync import read_only
from twinlog.sync.read_only import MIRRORS_AT_ONCE, ReadOnly

MIRRORS = [
    Mirror(name=f"m{at:02}", source={"bootstrap.servers": "h:1"}, source_cluster_id="c")
    for at in range(3 * MIRRORS_AT_ONCE)
]
SNAPSHOT = Snapshot(MappingProxyType({key_of(mirror): mirror for mirror in MIRRORS}))


class _Store(SimpleNamespace):
    """A store with these mirrors, and no changes."""

    async def follow(self) -> AsyncIterator[Snapshot]:
        yield SNAPSHOT
        await asyncio.Event().wait()


def test_a_slow_mirror_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other mirrors are checked again and again, with bounded concurrency."""
    monkeypatch.setattr(read_only, "TICK_S", 0.01)
    looks: Counter[str] = Counter()
    now = most = 0

    async def is_ours(mirror: str) -> bool:
        nonlocal now, most
        looks[mirror] += 1
        now += 1
        most = max(most, now)
        await (asyncio.Event().wait() if mirror == "m00" else asyncio.sleep(0))
        now -= 1
        return False

    async def run() -> None:
        loop = ReadOnly(
            cast(KafkaCluster, None), cast(MirrorStore, _Store()), is_ours, _count, none_refused
        )
        task = asyncio.create_task(loop.run())

        async def all_again() -> bool:
            return all(looks[mirror.name] >= 3 for mirror in MIRRORS[1:])

        await until_async(all_again, what="the other mirrors")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert looks["m00"] == 1
    assert 1 < most <= MIRRORS_AT_ONCE


def test_denials_stay_for_an_unreadable_topic() -> None:
    """Whether its users may write to it is unknown. Other topics get no denials for it."""
    denial = Acl(
        ResourceType.TOPIC,
        "made",
        PatternType.LITERAL,
        "User:app",
        "*",
        Operation.WRITE,
        Permission.DENY,
    )
    made = MadeAcl(mirror="m00", acl=denial, made_for=MadeFor.READ_ONLY)
    unreadable = [encode_key(("topic", "m00", topic)) for topic in ("made", "another")]
    records = [*(encode(one) for one in (MIRRORS[0], made)), *((key, b"{") for key in unreadable)]
    snapshot = Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))
    loop = ReadOnly(
        *(cast(KafkaCluster, None), cast(MirrorStore, _Store())), _never, _count, none_refused
    )
    assert asyncio.run(loop._guarded(snapshot, "m00")) == (frozenset({"made"}), False)


def _acl(principal: str, permission: Permission, topic: str = "t") -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, topic, pattern, principal, "*", Operation.WRITE, permission)


ALLOWED, DENIED = _acl("User:app", Permission.ALLOW), _acl("User:app", Permission.DENY)
OTHER = _acl("User:other", Permission.DENY, "other")


@pytest.mark.parametrize(
    ("second", "removed"),
    [
        ({ALLOWED, DENIED}, set()),
        ({DENIED}, {DENIED}),
        (set(), {DENIED}),
        (None, set()),
        ("no brokers", set()),
    ],
    ids=["lists-the-need", "lists-none", "lists-nothing", "silent", "not-in-the-metadata"],
)
def test_a_denial_is_removed_only_if_no_broker_lists_its_need(
    monkeypatch: pytest.MonkeyPatch, second: set[Acl] | str | None, removed: set[Acl]
) -> None:
    """The broker that is asked first is behind. Denials of topics that have left do not wait."""

    async def describe(_: object, node: int = 0) -> frozenset[Acl]:
        if node == 0:
            return frozenset()
        if not isinstance(second, set):
            raise Retriable("no answer")
        return frozenset(second)

    async def refresh(_: object) -> SimpleNamespace:
        return SimpleNamespace(brokers=range(0 if second == "no brokers" else 2))

    for module in (read_only, acl_requests):
        monkeypatch.setattr(module, "describe_acls", describe)
    destination = cast(KafkaCluster, SimpleNamespace(refresh=refresh))
    store = cast(MirrorStore, _Store())
    made = [MadeAcl(mirror="m00", acl=acl, made_for=MadeFor.READ_ONLY) for acl in (DENIED, OTHER)]
    records: list[ConfigRecord] = [MIRRORS[0], *made]
    snapshot = Snapshot().after(StoredRecord(0, at, *encode(one)) for at, one in enumerate(records))
    loop = ReadOnly(destination, store, _never, _count, none_refused)
    found = asyncio.run(loop._compare(loop._context(snapshot, "m00"), {"t"}))
    assert found.remove == found.forget == removed | {OTHER}


async def _never(_mirror: str) -> bool:
    return False


def _count(_mirror: str, number: int) -> None:
    assert number == 0
