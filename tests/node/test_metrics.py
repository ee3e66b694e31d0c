"""Twin of twinlog.node.metrics, for scrapes that come faster than they are rendered.

The text's content is tested with a node (tests/end_to_end/test_metrics.py, test_health.py).
"""

import asyncio
import threading
from typing import Any, cast

import pytest

from twinlog.node import metrics
from twinlog.node.metrics import Exposition
from twinlog.node.observation import Observed


def test_disconnected_scrapers_occupy_at_most_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape held one of asyncio's threads until it ended; DNS and SASL waited for them."""
    go_on = threading.Event()
    rendered: list[Any] = []

    def text(collected: Any) -> bytes:
        rendered.append(collected)
        assert go_on.wait(10)
        return b"text"

    monkeypatch.setattr(metrics, "_text", text)
    monkeypatch.setattr(metrics, "MirrorCollector", lambda _: _Nothing())

    async def body() -> None:
        exposition, observed = Exposition(), cast("Observed", None)
        for _ in range(100):
            gone = asyncio.create_task(exposition.text(observed))
            await asyncio.sleep(0.001)  # its thread has begun
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
