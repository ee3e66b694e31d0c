"""Twin of twinlog.engines.destination.kept_ids; on brokers: tests/runtime/test_expired_ids.py."""

import asyncio
import itertools
import logging

import pytest

from twinlog.engines.destination import kept_ids
from twinlog.engines.destination.kept_ids import keep_ids
from twinlog.kafka.errors import Retriable


def test_ids_are_used_in_time_also_after_a_failure_and_a_shorter_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no id is forgotten, whatever a broker's setting is by then."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(kept_ids, "_LOOK_S", 0.005)
    expiration_ms = [10_000_000]
    uses: list[float] = []

    async def use() -> None:
        uses.append(asyncio.get_running_loop().time())
        if len(uses) == 1:
            raise Retriable("not now")

    async def body() -> None:
        keeping = asyncio.create_task(keep_ids("shard 3", lambda: expiration_ms[0], use))
        await asyncio.sleep(0.1)
        assert uses == []
        expiration_ms[0] = 80
        async with asyncio.timeout(60):
            while len(uses) < 3:
                await asyncio.sleep(0.001)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert all(later - earlier >= 0.019 for earlier, later in itertools.pairwise(uses))

    asyncio.run(body())
    assert caplog.messages == ["shard 3: its ids cannot be kept just now: not now"]


@pytest.mark.parametrize(("expiration_ms", "wait_s"), [(80_000, 20.0), (604_800_000, 60.0)])
def test_ids_are_used_several_times_before_they_would_be_forgotten(
    monkeypatch: pytest.MonkeyPatch, expiration_ms: int, wait_s: float
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise asyncio.CancelledError

    async def use() -> None:
        raise AssertionError("it is too early")

    monkeypatch.setattr("twinlog.engines.destination.kept_ids.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_ids("shard 3", lambda: expiration_ms, use))
    assert waits == [pytest.approx(wait_s, abs=1.0)]
