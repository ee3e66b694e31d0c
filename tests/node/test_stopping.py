"""Twin of twinlog.node.stopping: what a request to stop cuts off, and what it leaves alone."""

import asyncio
from contextlib import suppress

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.node.stopping import ended_by


@pytest.mark.parametrize("before", [False, True])
def test_a_stop_cuts_off_the_body(before: bool) -> None:
    """Goal: a stop before the body or in it ends its wait, and the caller goes on."""

    async def run() -> list[str]:
        steps, stop, waits = [], asyncio.Event(), asyncio.Event()

        async def body() -> None:
            async with ended_by(stop):
                try:
                    waits.set()
                    await asyncio.Event().wait()
                finally:
                    steps.append("cleaned up")
            steps.append("goes on")
            await asyncio.sleep(0)  # where a cancellation that is left would arrive

        if before:
            stop.set()
        task = asyncio.create_task(body())
        await waits.wait()
        stop.set()
        await task
        return steps

    assert asyncio.run(run()) == ["cleaned up", "goes on"]


def test_without_a_stop_nothing_changes() -> None:
    """Goal: the body's errors and its own cancellation are the caller's; no task is left."""

    async def run() -> None:
        stop = asyncio.Event()
        async with ended_by(stop):
            await asyncio.sleep(0)
        for error in (Retriable("away"), TimeoutError("of its own"), asyncio.CancelledError()):
            with pytest.raises(type(error)):
                async with ended_by(stop):
                    raise error
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_stop_does_not_hide_an_error() -> None:
    """Goal: what has failed before the stop could end it is told."""

    async def run() -> None:
        stop = asyncio.Event()
        async with ended_by(stop):
            with suppress(asyncio.CancelledError):
                stop.set()
                await asyncio.Event().wait()
            raise Retriable("away")

    with pytest.raises(Retriable):
        asyncio.run(run())
