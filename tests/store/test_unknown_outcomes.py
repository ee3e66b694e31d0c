"""What a command says of a change whose commit got no answer (twinlog.store.mirrors)."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import Disconnected, Retriable
from twinlog.store import mirrors
from twinlog.store.config_records import StopRequest
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot

TIMEOUT_S = 60.0


def test_an_unknown_outcome_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what may be stored is not called `not written`."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    class Writer:
        def __init__(self, *_: object) -> None: ...

        async def fence(self) -> None: ...

        async def write(self, _entries: object) -> None:
            nonlocal now
            now += TIMEOUT_S + 1
            raise Disconnected("no answer to EndTxn")

    async def nothing(*_: object) -> list[Any]:
        return []

    async def read() -> Any:
        return SimpleNamespace(snapshot=Snapshot(), table={})

    async def body() -> None:
        cluster: Any = SimpleNamespace(
            name="destination",
            config=SimpleNamespace(api_timeout=TIMEOUT_S),
            turns={mirrors.CONFIG_WRITER: asyncio.Lock()},
        )
        for name in ("config_reader", "state_reader", "status_reader"):
            monkeypatch.setattr(mirrors, name, lambda _: None)
        monkeypatch.setattr(mirrors, "TransactionalWriter", Writer)
        monkeypatch.setattr(mirrors, "check_state_partitions", nothing)
        store = MirrorStore(cluster)
        store._config = SimpleNamespace(partitions=5, read=read)  # type: ignore[assignment]
        await store.change(lambda _: [StopRequest(node="n", requested_ms=1)])

    with pytest.raises(Retriable, match="unknown whether it was written"):
        asyncio.run(body())
