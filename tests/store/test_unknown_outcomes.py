"""What is said of a change whose commit got no answer (twinlog.store.mirrors, topic_writer)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import (
    Disconnected,
    Fenced,
    ProtocolError,
    Retriable,
    TwinlogError,
    UserError,
)
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.store import mirrors, transactional_id
from twinlog.store.config_records import StopRequest
from twinlog.store.control_topics import CONFIG_WRITER
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.topic_writer import Entry, TransactionalWriter

TIMEOUT_S = 60.0


def test_an_unknown_outcome_at_the_deadline_is_reported_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

    async def persist(attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()

    async def body() -> None:
        cluster: Any = SimpleNamespace(
            name="destination",
            persist=persist,
            config=SimpleNamespace(api_timeout=TIMEOUT_S),
            turns={CONFIG_WRITER: asyncio.Lock()},
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


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([Fenced("a newer epoch")], Fenced),
        ([Disconnected("no answer"), Fenced("a newer epoch")], Disconnected),
        ([Disconnected("no answer"), UserError("no right")], Disconnected),
        ([Disconnected("no answer")], Disconnected),
        ([ProtocolError("nonsense")], Disconnected),
    ],
    ids=["fenced", "lost, fenced", "lost, refused", "lost", "unreadable"],
)
def test_a_commit_refused_at_a_retry_has_an_unknown_outcome(
    answers: list[TwinlogError], error: type[TwinlogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: only the first EndTxn's refusal says that nothing was committed.

    The first one may have been carried out, and another writer may have fenced before the second.
    """

    async def end_txn(*_: object, before_send: Callable[[], None], **__: object) -> None:
        for answer in answers[:-1]:
            before_send()
            assert isinstance(answer, Retriable)  # it is sent again
        before_send()
        raise answers[-1]

    async def prepared(*_: object) -> dict[Any, int]:
        return {}

    monkeypatch.setattr(transactional_id, "end_txn", end_txn)
    monkeypatch.setattr(TransactionalWriter, "_prepare", prepared)
    cluster: Any = SimpleNamespace(name="destination")
    writer = TransactionalWriter(cluster, "id")
    writer._id._producer = ProducerId(1, 0)
    with pytest.raises(TwinlogError) as raised:
        asyncio.run(writer.write([Entry("t", 0, b"k", b"v")]))
    assert type(raised.value) is error
    assert not writer.ready
