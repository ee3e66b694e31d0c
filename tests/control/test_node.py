"""A node's progress: only what lanes report now is mirrored."""

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from twinlog.control import node as node_module
from twinlog.control.described import FRESH_S
from twinlog.control.node import Node, NodeConfig, Progress
from twinlog.core.placement import MirrorPartition
from twinlog.core.states import State
from twinlog.wire.config_records import Mirror, MirrorTopic, encode
from twinlog.wire.snapshot import Snapshot, Written
from twinlog.wire.status_records import PartitionStatus, Status

SNAPSHOT = Snapshot().after(
    Written(0, 0, *encode(record))
    for record in (
        Mirror(name="m", source={}, source_cluster_id="c"),
        MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1),
    )
)


class Stored:
    """The control topics."""

    def __init__(self) -> None:
        self.time_ms = 1

    async def snapshot(self) -> Snapshot:
        return SNAPSHOT

    async def statuses(self) -> tuple[dict[int, Status], tuple[str, ...]]:
        row = PartitionStatus(
            partition=MirrorPartition("m", "t", 0),
            state=State.MIRRORING,
            source_end=10,
            source_last_stable=10,
            destination_end=10,
        )
        status = Status(
            state_partition=0, lane="l", node="n", time_ms=self.time_ms, partitions=(row,)
        )
        return {0: status}, ()


def test_a_status_that_stands_still_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions are waiting, with no lag of 0; by this process's clock alone."""
    now = 1000.0
    monkeypatch.setattr(node_module, "time", SimpleNamespace(monotonic=lambda: now))
    node, stored = Node(NodeConfig(node="n", destination={}), lambda _: None), Stored()

    def seen() -> Progress:
        return node._measure(*asyncio.run(node._look(stored)))  # type: ignore[arg-type]

    assert seen().settled
    now += FRESH_S - 1
    assert seen().settled
    now += 2
    found = seen()
    assert (found.mirrored, found.waiting, found.settled) == (0, 1, False)
    stored.time_ms = 2
    assert seen().settled
