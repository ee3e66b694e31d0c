"""Waits until topics that were removed from a mirror are STOPPED, and what is known about them.

A removal is stored at once; the nodes carry it out. Until then the topics are read-only.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from twinlog.kafka.errors import Retriable
from twinlog.mirror.states import State
from twinlog.operations.describe import DescribedPartition
from twinlog.operations.results import DescribeMirrorsResult
from twinlog.text import few

TELL_S: Final = 3.0
"""Seconds between two reports of what is waited for."""
LOOK_S: Final = 0.5
"""Seconds between two checks."""
CONTINUES: Final = "the removal is stored and continues; --describe shows the states"

Describe = Callable[[], Awaitable[DescribeMirrorsResult]]
"""Describes the mirror."""


async def await_stopped(
    describe: Describe, topics: Collection[str], timeout_s: float, tell: Callable[[str], None]
) -> tuple[DescribedPartition, ...]:
    """Wait until all partitions of these topics are STOPPED; return them.

    Args:
        describe: describes the topics' mirror.
        topics: their names.
        timeout_s: how long to wait, in seconds.
        tell: receives now and then what is waited for, as text, and what an interruption leaves.

    Raises:
        Retriable: not in time, or the states cannot be read. The removal is stored all the same.
    """
    try:
        return await _until_stopped(describe, topics, timeout_s, tell)
    except asyncio.CancelledError:
        tell(f"interrupted; {CONTINUES}")
        raise


async def _until_stopped(
    describe: Describe, topics: Collection[str], timeout_s: float, tell: Callable[[str], None]
) -> tuple[DescribedPartition, ...]:
    deadline = time.monotonic() + timeout_s
    reported_at = time.monotonic()
    while True:
        try:
            rows = _of(await describe(), topics)
            problem = _not_stopped(rows) or _not_described(rows, topics)
        except Retriable as error:
            rows, problem = (), str(error)
        if not problem:
            return rows
        if time.monotonic() >= deadline:
            raise Retriable(f"not STOPPED within {timeout_s:g} s: {problem}", hint=CONTINUES)
        if time.monotonic() - reported_at >= TELL_S:
            reported_at = time.monotonic()
            tell(f"waiting until STOPPED (the removal is stored): {problem}")
        await asyncio.sleep(LOOK_S)


def _of(result: DescribeMirrorsResult, topics: Collection[str]) -> tuple[DescribedPartition, ...]:
    return tuple(row for row in result.partitions if row.topic.topic in topics)


def _not_described(rows: Collection[DescribedPartition], topics: Collection[str]) -> str:
    """The topics without any partition: an unreadable record is no STOPPED; empty if none."""
    names = sorted(set(topics) - {row.topic.topic for row in rows})
    return f"the states of {few(names)} are unknown" if names else ""


def _not_stopped(rows: Collection[DescribedPartition]) -> str:
    """The partitions that are not STOPPED yet, with state and reason; empty if there are none."""
    texts = [
        f"{row.topic.topic}-{row.one.partition} is {row.one.state.name}"
        + (f" ({row.one.reason})" * bool(row.one.reason))
        for row in rows
        if row.one.state is not State.STOPPED
    ]
    return f"{len(texts)} partition(s): {few(texts, '; ')}" if texts else ""
