"""Twin of twinlog.node.metrics, for scrapes that come faster than they are rendered.

The text's content is tested with a node (tests/end_to_end/test_metrics.py, test_health.py).
"""

import asyncio
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLosses
from twinlog.mirror.settings import EXACT, TRANSLATED
from twinlog.mirror.states import State
from twinlog.node import metrics
from twinlog.node.metrics import Exposition
from twinlog.node.observation import Observed, ObservedPartition
from twinlog.store.status_records import PartitionStatus
from twinlog.sync.flow_topics import RECREATED


def test_disconnected_scrapers_occupy_at_most_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape held one of asyncio's threads until it ended; DNS and SASL waited for them."""
    go_on = threading.Event()
    rendered: list[Any] = []

    def text(collected: Any) -> bytes:
        rendered.append(collected)
        assert go_on.wait(60)
        return b"text"

    monkeypatch.setattr(metrics, "_text", text)
    monkeypatch.setattr(metrics, "MirrorCollector", lambda _: _Nothing())

    async def body() -> None:
        exposition, observed = Exposition(), cast("Observed", None)
        for _ in range(100):
            gone = asyncio.create_task(exposition.text(observed))
            async with asyncio.timeout(60):
                while not rendered:
                    await asyncio.sleep(0.001)  # its thread has begun
            await asyncio.sleep(0.001)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        waiting = [asyncio.create_task(exposition.text(observed)) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert len(rendered) == 1
        go_on.set()
        assert await asyncio.gather(*waiting) == [b"text", b"text"]
        assert await exposition.text(observed) == b"text"
        assert len(rendered) == 2, "what has been rendered is not the text of now"

    asyncio.run(body())


class _Nothing:
    def collect(self) -> list[Any]:
        return []


def test_losses_are_counted_of_flows() -> None:
    """Goal: a series is there before the first loss, so that an increase shows it."""
    name, other = MirrorPartition("flow", "orders", 1), MirrorPartition("exact", "orders", 1)
    losses = RecordLosses(2, 7, "a.orders-1, offsets [3, 10)")
    of_source = RecordLosses(1, 5, "orders-1, offsets [30, 35)")
    partitions = [
        ObservedPartition(each, State.MIRRORING, row)
        for each, row in [
            (
                name,
                PartitionStatus(
                    partition=name, state=State.FAILED, losses=losses, source_losses=of_source
                ),
            ),
            (name._replace(partition=0), PartitionStatus(partition=name, state=State.MIRRORING)),
            (name._replace(partition=2), None),
            (other, PartitionStatus(partition=other, state=State.MIRRORING)),
        ]
    ]
    observed = SimpleNamespace(
        errors=Counter({("flow", RECREATED): 3}),
        snapshot=SimpleNamespace(
            mirrors={
                "flow": SimpleNamespace(kind=TRANSLATED),
                "exact": SimpleNamespace(kind=EXACT),
            }
        ),
    )
    collector = metrics.MirrorCollector(cast("Observed", observed))
    found = {
        (metric.name, sample.labels["mirror"], sample.labels.get("partition")): sample.value
        for metric in collector._losses(partitions)
        for sample in metric.samples
    }
    assert found == {
        ("twinlog_destination_losses", "flow", "0"): 0,
        ("twinlog_destination_losses", "flow", "1"): 2,
        ("twinlog_destination_lost_offsets", "flow", "0"): 0,
        ("twinlog_destination_lost_offsets", "flow", "1"): 7,
        ("twinlog_source_losses", "flow", "0"): 0,
        ("twinlog_source_losses", "flow", "1"): 1,
        ("twinlog_source_lost_offsets", "flow", "0"): 0,
        ("twinlog_source_lost_offsets", "flow", "1"): 5,
        ("twinlog_source_topics_recreated", "flow", None): 3,
    }
