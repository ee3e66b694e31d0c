"""When a node refreshes, and how it counts failures (twinlog.sync.refresh), without brokers."""

import asyncio
from typing import Any, cast

import pytest
from sync_contexts import sync_context

from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.store.config_records import Mirror, key_of
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync import refresh
from twinlog.sync.base import METADATA, Sync, SyncContext
from twinlog.sync.refresh import Refresher


def test_failures_counted_during_a_sync_are_added() -> None:
    """Goal: failures that another loop reports while a sync runs are added, not overwritten."""
    cluster: Any = None
    refresher = Refresher(cluster, cast("MirrorStore", None), Snapshot)

    class Slow(Sync[int]):
        name, metric = "a test", METADATA

        async def compare(self, context: SyncContext) -> int:
            await asyncio.sleep(0)
            refresher.host.failed(context.name, METADATA, 5)
            return 2

        async def apply(self, context: SyncContext, difference: int) -> int:
            del context
            return difference

    asyncio.run(refresher._run(Slow(), sync_context(None, None, None)))
    assert refresher.errors["m", METADATA] == 7


MIRROR = Mirror(name="m", source={}, source_cluster_id="s")


def idle_refresher() -> Refresher:
    """A refresher of one mirror, in a group that has not assigned anything yet."""
    cluster: Any = None
    snapshot = Snapshot({key_of(MIRROR): MIRROR})
    refresher = Refresher(cluster, cast("MirrorStore", None), lambda: snapshot)
    refresher._partitions = 1
    return refresher


def test_a_mirror_assigned_after_the_first_look_is_refreshed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: not only an interval (30 s) later; a group of default brokers assigns after 3 s."""
    monkeypatch.setattr(refresh, "TICK_S", 0.001)
    refresher = idle_refresher()
    refreshed = asyncio.Event()

    async def note(_name: str, _now: float) -> None:
        refreshed.set()

    monkeypatch.setattr(refresher, "_refresh", note)

    async def run() -> None:
        task = asyncio.create_task(refresher.run())
        await asyncio.sleep(0.02)
        assert not refreshed.is_set()
        await refresher.on_assigned({0})
        async with asyncio.timeout(5):
            await refreshed.wait()
        task.cancel()

    asyncio.run(run())


def test_a_mirror_is_refreshed_when_a_refresh_has_come_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a mirror of this node counts only then; another node's counts at once."""
    refresher = idle_refresher()
    errors: list[Exception | None] = [Retriable("no answer"), UserError("refused"), None]

    async def end(_name: str, _now: float) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    monkeypatch.setattr(refresher, "_refresh", end)

    async def run() -> list[tuple[bool, str | None]]:
        results: list[tuple[bool, str | None]] = []
        for assigned in (False, True, True, True, True):
            if assigned:
                await refresher.on_assigned({0})
            if assigned and results[1:]:
                await refresher._look_after("m", 0.0)
            refusal = refresher.refusal(["m"])
            results.append(
                (await refresher.has_refreshed(["m"]), None if refusal is None else refusal.message)
            )
        return results

    assert asyncio.run(run()) == [
        (True, None),
        (False, None),
        (False, None),
        (False, "refused"),
        (True, None),
    ]


def test_no_mirror_counts_as_refreshed_while_its_owner_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a broker that does not know `__mirror_config` makes no mirror another node's."""

    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(refresh, "partition_count", unknown)
    refresher = idle_refresher()
    refresher._partitions = 0
    assert not asyncio.run(refresher.has_refreshed(["m"]))


@pytest.mark.parametrize(
    ("error", "counts"), [(Retriable("no answer"), False), (UserError("refused"), True)]
)
def test_a_refresh_without_an_answer_about_topics_does_not_count(
    monkeypatch: pytest.MonkeyPatch, error: TwinlogError, counts: bool
) -> None:
    """Goal: a slow source is asked again before a single run ends; a refusal stays one."""
    refresher = idle_refresher()

    class Unanswered(Sync[int]):
        name, metric = "a test", METADATA

        async def compare(self, _context: SyncContext) -> int:
            raise error

        async def apply(self, _context: SyncContext, _difference: int) -> int:
            return 0

    async def one_sync(_name: str, _now: float) -> None:
        await refresher._run(Unanswered(), sync_context(None, None, None))

    monkeypatch.setattr(refresher, "_refresh", one_sync)

    async def run() -> bool:
        await refresher.on_assigned({0})
        await refresher._look_after("m", 0.0)
        return await refresher.has_refreshed(["m"])

    assert asyncio.run(run()) is counts


@pytest.mark.parametrize("lost", [False, True])
def test_a_refresh_has_ended_when_its_mirror_is_given_up(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Goal: it does not write what it has read behind what the next owner writes."""
    monkeypatch.setattr(refresh, "TICK_S", 0.001)
    refresher = idle_refresher()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def read_for_ever(_name: str, _now: float) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    monkeypatch.setattr(refresher, "_refresh", read_for_ever)

    async def run() -> None:
        task = asyncio.create_task(refresher.run())
        await refresher.on_assigned({0})
        async with asyncio.timeout(5):
            await begun.wait()
        await refresher.on_revoked({1})
        assert not ended.is_set()
        await (refresher.on_lost if lost else refresher.on_revoked)({0})
        assert ended.is_set()
        begun.clear()
        await refresher.on_assigned({0})
        async with asyncio.timeout(5):
            await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_nothing_is_written_once_another_node_may_serve_the_mirror() -> None:
    """Goal: a node that was suspended while it read writes nothing when it goes on."""
    refresher = idle_refresher()
    leased, applied = [True], list[int]()

    class Suspended(Sync[int]):
        name, metric = "a test", METADATA

        async def compare(self, _context: SyncContext) -> int:
            leased[0] = False
            return 1

        async def apply(self, _context: SyncContext, difference: int) -> int:
            applied.append(difference)
            return 0

    context = sync_context(None, None, None, is_ours=lambda: leased[0])
    assert not asyncio.run(refresher._run(Suspended(), context))
    assert (applied, refresher.errors["m", METADATA]) == ([], 1)


def test_no_refresh_begins_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is read that could not be written; it is due as soon as there is a lease."""
    refresher, refreshed = idle_refresher(), list[str]()

    async def note(name: str, _now: float) -> None:
        refreshed.append(name)

    monkeypatch.setattr(refresher, "_refresh", note)

    async def run(lease: bool) -> None:
        refresher.holds_lease = lambda: lease
        await refresher.on_assigned({0})
        await refresher._look_after("m", 5.0)

    asyncio.run(run(False))
    assert (refreshed, refresher._looked) == ([], {})
    asyncio.run(run(True))
    assert (refreshed, refresher._looked) == (["m"], {"m": 5.0})
