"""A node beside its lanes: what it counts as mirrored, and what its checks cost."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from uuid import UUID

import pytest
from clients import client, make_topic
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.node import node as node_module
from twinlog.node.node import Node, NodeConfig, NodeProgress
from twinlog.store.config_records import Mirror, MirrorTopic, encode
from twinlog.store.control_topics import status_entry
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.statuses import FRESH_S
from twinlog.store.topic_writer import append

SNAPSHOT = Snapshot().after(
    StoredRecord(0, 0, *encode(record))
    for record in (
        Mirror(name="m", source={}, source_cluster_id="c"),
        MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1),
    )
)


class Stored:
    """The stored control topics."""

    def __init__(self) -> None:
        self.time_ms = 1
        self.source_time_ms: int | None = None

    async def snapshot(self) -> Snapshot:
        return SNAPSHOT

    async def statuses(self) -> tuple[dict[int, Status], tuple[str, ...]]:
        row = PartitionStatus(
            partition=MirrorPartition("m", "t", 0),
            state=State.MIRRORING,
            source_end=10,
            source_last_stable=10,
            destination_end=10,
            source_time_ms=self.source_time_ms,
        )
        status = Status(
            state_partition=0, lane="l", node="n", time_ms=self.time_ms, partitions=(row,)
        )
        return {0: status}, ()


def test_an_unchanged_status_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions are waiting, without a lag of 0; only this process's clock counts."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: 0)
    monkeypatch.setattr(node_module, "time", clock)
    node, stored = Node(NodeConfig(node="n", destination={}), lambda _: None), Stored()

    def seen() -> NodeProgress:
        return node._measure(*asyncio.run(node._look(stored)))  # type: ignore[arg-type]

    assert seen().settled
    now += FRESH_S - 1
    assert seen().settled
    now += 2
    found = seen()
    assert (found.mirrored, found.waiting, found.settled) == (0, 1, False)
    stored.time_ms = 2
    assert seen().settled


@pytest.mark.long
@pytest.mark.broker
def test_polling_opens_no_further_connections(
    trio: LocalCluster, kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Goal: however often a node polls, it opens no further connections to its brokers (B3).

    Each poll has new records from each broker, as while lanes report.
    """
    looks = 0

    def watch(_: NodeProgress) -> None:
        nonlocal looks
        looks += 1

    async def report(lanes: KafkaCluster) -> None:
        for now in itertools.count():
            statuses = [
                Status(state_partition=number, lane="l", node="n", time_ms=now, partitions=())
                for number in range(6)
            ]
            with suppress(Retriable):  # as lanes go on after it
                await append(lanes, [status_entry(status) for status in statuses])
            await asyncio.sleep(0.2)

    async def looked(times: int) -> None:
        wanted = looks + times

        async def there() -> bool:
            return looks >= wanted

        await until_async(there, what=f"{times} looks")

    async def run() -> None:
        async with (
            client(kafka) as source,
            client(trio) as destination,
            client(trio) as lanes,
        ):
            await make_topic(source, topic)
            mirror = fresh_name("mirror")
            properties = {
                "bootstrap.servers": kafka.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            await add_topics(destination, mirror, topic)
            metrics = "127.0.0.1", 0
            node = Node(NodeConfig(node="n", destination={}, metrics_address=metrics), watch)
            store = MirrorStore(destination, background=True)
            job: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
            running = asyncio.create_task(
                node._supervise(destination, store, job, frozenset({"n-0"}))  # type: ignore[arg-type]
            )
            reporting = asyncio.create_task(report(lanes))
            await looked(5)
            opened, slots = destination.counters.opened, len(destination._pool._slots)
            await looked(10)
            # Concurrent reads may borrow one more lane; not one for each poll.
            assert destination.counters.opened < opened + 10
            assert len(destination._pool._slots) < slots + 10
            for task in (running, reporting):
                assert not task.done()
                task.cancel()
            await asyncio.gather(running, reporting, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("ahead_ms", [0, 86_400_000, -86_400_000])
def test_the_caught_up_time_ignores_a_wrong_lane_clock(
    ahead_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is by this machine's clock, and never too late: that would hide a time behind."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(node_module, "time", clock)
    node, stored = Node(NodeConfig(node="n", destination={}), lambda _: None), Stored()
    [topic] = SNAPSHOT.topics

    def look(written: float) -> int | None:
        """Poll a second later, at a status written 3 s after the last contact with the source."""
        nonlocal now
        now += 1.0
        stored.time_ms = int(written * 1000) + ahead_ms
        stored.source_time_ms = stored.time_ms - 3000
        asyncio.run(node._look(stored))  # type: ignore[arg-type]
        return node._marks.caught_up_ms(topic)

    assert look(1000.5) is None, "it may have been written at any time"
    assert look(1001.5) == 998_000
    assert look(1001.5) == 998_000, "one that has not changed is heard of once"
    now += FRESH_S
    assert look(1001.5) == 998_000
