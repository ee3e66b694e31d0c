"""Actions that a cancellation does not cut off (twinlog.kafka.client.tasks)."""

import asyncio

import pytest

from twinlog.kafka.client.tasks import to_its_end


def test_an_action_has_ended_when_its_cancelled_waiter_has() -> None:
    """Goal: what it has begun is complete, and its own error is not the waiter's."""

    async def run(*, fails: bool) -> list[str]:
        steps: list[str] = []

        async def act() -> None:
            steps.append("begun")
            await asyncio.sleep(0.01)
            steps.append("ended")
            if fails:
                raise ValueError

        waiter = asyncio.create_task(to_its_end(act()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return steps

    assert asyncio.run(run(fails=False)) == ["begun", "ended"]
    assert asyncio.run(run(fails=True)) == ["begun", "ended"]


def test_an_action_gives_its_result_or_error() -> None:
    async def two() -> int:
        return 2

    async def fail() -> int:
        raise ValueError("refused")

    assert asyncio.run(to_its_end(two())) == 2
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(to_its_end(fail()))
