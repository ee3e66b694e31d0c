"""Tests of sessions and leases, which a machine that stalls for as long ends by itself.

A watcher beside the test notes how long this process has not run, and how long a broker has not
answered. What goes wrong while either was longer than a session allows proves nothing, and the test
is run again; what goes wrong without it is a failure.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError

TRIES: Final = 5
_LOOK_S: Final = 0.1


def run_without_stall(
    watched: Callable[[], KafkaCluster], longest_s: float, test: Callable[[], Awaitable[None]]
) -> None:
    """Run a test; again, up to `TRIES` times, if it fails during a stall of `longest_s`.

    Args:
        watched: makes a client of the cluster; its brokers have to answer while the test runs.
        longest_s: the seconds that the test's sessions allow.
        test: what is run. It has to take topics and groups of its own each time.
    """
    for number in range(1, TRIES + 1):
        stall = asyncio.run(_run(watched(), test, longest_s if number < TRIES else None))
        if stall is None:
            return
        sys.stdout.write(f"stalled for {stall:.1f} s, and run again\n")


async def _run(
    cluster: KafkaCluster, test: Callable[[], Awaitable[None]], longest_s: float | None
) -> float | None:
    """Return the seconds of a stall during which it has failed; None if it has not."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            try:
                await asyncio.sleep(_LOOK_S)
                with contextlib.suppress(TwinlogError):
                    await cluster.refresh()
            finally:
                longest = max(longest, loop.time() - before - _LOOK_S)

    async with cluster:
        watching = asyncio.create_task(watch())
        try:
            await test()
        except Exception:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if longest_s is None or longest < longest_s:
                raise
            return longest
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    return None
