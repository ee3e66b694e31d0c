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
from twinlog.store.config_records import MadeAcl, MadeFor, Mirror, encode, encode_key, key_of
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync import read_only
from twinlog.sync.read_only import MIRRORS_AT_ONCE, ReadOnly

MIRRORS = [
    Mirror(name=f"m{at:02}", source={"bootstrap.servers": "h:1"}, source_cluster_id="c")
    for at in range(3 * MIRRORS_AT_ONCE)
]
SNAPSHOT = Snapshot(MappingProxyType({key_of(one): one for one in MIRRORS}))


class _Store(SimpleNamespace):
    """A store with these mirrors, and no changes."""

    async def follow(self) -> AsyncIterator[Snapshot]:
        yield SNAPSHOT
        await asyncio.Event().wait()


def test_a_mirror_that_takes_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
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
            return all(looks[one.name] >= 3 for one in MIRRORS[1:])

        await until_async(all_again, 10, "the other mirrors")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert looks["m00"] == 1
    assert 1 < most <= MIRRORS_AT_ONCE


def test_what_was_denied_stays_where_a_topic_cannot_be_read() -> None:
    """Whether its users may write to it is unknown. Other topics get no denials for it."""
    denial = Acl(
        *(ResourceType.TOPIC, "made", PatternType.LITERAL),
        *("User:app", "*", Operation.WRITE, Permission.DENY),
    )
    made = MadeAcl(mirror="m00", acl=denial, made_for=MadeFor.READ_ONLY)
    unreadable = [encode_key(("topic", "m00", topic)) for topic in ("made", "another")]
    records = [*(encode(one) for one in (MIRRORS[0], made)), *((key, b"{") for key in unreadable)]
    snapshot = Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))
    loop = ReadOnly(
        *(cast(KafkaCluster, None), cast(MirrorStore, _Store())), _never, _count, none_refused
    )
    assert asyncio.run(loop._guarded(snapshot, "m00")) == ({"made"}, False)


async def _never(_mirror: str) -> bool:
    return False


def _count(_mirror: str, number: int) -> None:
    assert number == 0
