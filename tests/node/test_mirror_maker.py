"""Twin of twinlog.node.mirror_maker: stops while flows are created, and heartbeats that fail."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.flow import flow_of, flow_properties
from twinlog.mirror.settings import RATE
from twinlog.node import mirror_maker
from twinlog.node.mirror_maker import HeartbeatPair, MirrorMaker, StoredFlow, Target
from twinlog.store.config_records import Mirror, key_of
from twinlog.store.snapshot import Snapshot

STOPPED = (
    "stopped before any node was started; complete flows: a->b; the same command creates or "
    "completes all others"
)


class Empty:
    """What is stored on a target: nothing."""

    def __init__(self, _: object) -> None:
        pass

    async def snapshot(self) -> Snapshot:
        return Snapshot()


def test_a_stop_during_the_creation_starts_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it ends at once, as requested, and tells which flows are complete."""
    lines: list[str] = []
    at_work = asyncio.Event()
    closed: list[str] = []

    @asynccontextmanager
    async def connected(_: object, target: str) -> AsyncIterator[str]:
        try:
            yield target
        finally:
            closed.append(target)

    async def create_flow(_: object, source: str, target: str, *__: object) -> str:
        return f"{source}-to-{target}"

    async def take_over_topics(_: object, name: str) -> list[str]:
        if name == "a-to-c":
            at_work.set()
            await asyncio.Event().wait()
        return ["t-0 begins at 7"]

    async def follow_selection(*_: object) -> list[str]:
        return []

    async def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a node is started")

    for step in (connected, create_flow, follow_selection, take_over_topics):
        monkeypatch.setattr(mirror_maker, step.__name__, step)
    monkeypatch.setattr(mirror_maker, "MirrorStore", Empty)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    flow = StoredFlow(source="a", properties={})
    properties = {"bootstrap.servers": "h:1"}
    targets = [
        Target(alias=alias, properties=properties, flows=[flow]) for alias in ("b", "c", "d")
    ]

    async def run() -> int:
        maker = MirrorMaker(targets, [], report=lines.append)
        running = asyncio.create_task(maker.run())
        await at_work.wait()
        maker.stop()
        return await running

    assert asyncio.run(run()) == 0
    assert closed == ["b", "c"]
    assert lines == ["a->b: t-0 begins at 7", STOPPED]


@pytest.mark.parametrize("refused", [False, True])
def test_a_start_that_is_refused_switches_nothing_off(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Goal: a renamed alias, whose new flow is refused, does not end the copying of the old one."""
    steps: list[str] = []

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        yield

    async def create_flow(_: object, source: str, target: str, *__: object) -> str:
        steps.append(f"create {source}")
        if refused and source == "d":
            raise UserError("a name belongs to another flow")
        return f"{source}-to-{target}"

    async def switch_off(_: object, name: str) -> list[str]:
        steps.append(f"switch off {name}")
        return []

    async def nothing(_: object, name: str) -> list[str]:
        steps.append(f"go on with {name}")
        return []

    for step in (connected, create_flow, switch_off):
        monkeypatch.setattr(mirror_maker, step.__name__, step)
    for name in ("follow_selection", "take_over_topics"):
        monkeypatch.setattr(mirror_maker, name, nothing)
    monkeypatch.setattr(mirror_maker, "MirrorStore", Empty)
    flows = [StoredFlow(source=source, properties={}) for source in ("a", "d")]
    properties = {"bootstrap.servers": "h:1"}
    target = Target(alias="b", properties=properties, flows=flows, disabled=["c"])
    with pytest.raises(UserError) if refused else nullcontext():
        asyncio.run(mirror_maker._prepare(target, lambda _: None, []))
    assert steps[:2] == ["create a", "create d"]
    assert ("switch off c-to-b" in steps) != refused
    assert steps[3:] == ([] if refused else ["go on with a-to-b"] * 2 + ["go on with d-to-b"] * 2)


def test_a_start_reports_what_a_flow_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a throttle that the file does not set is in force, and one line tells how to end it."""
    mirror = Mirror(name="a-to-b", source={RATE: "7"}, source_cluster_id="s")

    class Altered(Empty):
        async def snapshot(self) -> Snapshot:
            return Snapshot({key_of(mirror): mirror})

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        yield

    async def create_flow(_: object, source: str, target: str, *__: object) -> str:
        return f"{source}-to-{target}"

    async def nothing(*_: object) -> list[str]:
        return []

    for step in (connected, create_flow):
        monkeypatch.setattr(mirror_maker, step.__name__, step)
    for name in ("follow_selection", "take_over_topics"):
        monkeypatch.setattr(mirror_maker, name, nothing)
    monkeypatch.setattr(mirror_maker, "MirrorStore", Altered)

    def lines(properties: Mapping[str, str]) -> list[str]:
        flow = StoredFlow(source="a", properties=properties)
        servers = {"bootstrap.servers": "h:1"}
        reported: list[str] = []
        target = Target(alias="b", properties=servers, flows=[flow])
        asyncio.run(mirror_maker._prepare(target, reported.append, []))
        return reported

    (line,) = lines({})
    assert line == (
        f"a->b: keeps {RATE}=7, which kafka-mirrors --alter or an earlier start has set; to undo "
        "it, set its default"
    )
    assert lines({RATE: "7"}) == []
    mirror = replace(mirror, source={}, paused=True)
    (line,) = lines({})
    assert line == (
        "a->b: it is paused, with topics that it gets, until twinlog flows resume --flow a-to-b"
    )


def test_an_unexpected_error_does_not_end_heartbeats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: it is logged, and the next heartbeat is tried; they would stop without a line."""
    tries: list[str] = []
    pauses: list[float] = []

    @asynccontextmanager
    async def failing(_: object, name: str) -> AsyncIterator[None]:
        tries.append(name)
        if len(tries) > 1:
            raise asyncio.CancelledError
        if tries:
            raise ValueError("a defect")
        yield

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(mirror_maker, "connected", failing)
    monkeypatch.setattr(asyncio, "sleep", pause)
    rules = flow_of(flow_properties({"enabled": "false"}, "A", "B"))
    pair = HeartbeatPair(target="B", properties={"bootstrap.servers": "b:9092"}, flow=rules)
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        asyncio.run(mirror_maker._beat(pair))
    assert tries == ["B", "B"]
    assert pauses == [0, 60]
    assert "cannot write heartbeats to cluster B" in caplog.text
    assert "a defect" in caplog.text
