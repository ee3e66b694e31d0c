"""How a refresh counts failures (twinlog.sync.refresh), without brokers."""

import asyncio
from typing import Any, cast

from sync_contexts import sync_context

from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import METADATA, Sync, SyncContext
from twinlog.sync.refresh import Refresher


def test_what_is_counted_meanwhile_counts() -> None:
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
