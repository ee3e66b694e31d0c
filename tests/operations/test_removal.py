"""Twin of twinlog.operations.removal: STOPPED is seen, not concluded from what is not shown."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.mirror.states import State
from twinlog.operations import removal
from twinlog.operations.removal import await_stopped


def described(*rows: tuple[str, State]) -> Any:
    """Return what `--describe` shows: a partition of each topic, in this state."""
    return SimpleNamespace(
        partitions=tuple(
            SimpleNamespace(
                topic=SimpleNamespace(topic=topic),
                one=SimpleNamespace(partition=0, state=state, reason=None),
            )
            for topic, state in rows
        )
    )


def awaited(answers: Iterable[Any], *, timeout_s: float = 5.0) -> Any:
    """Wait for the topics t and u; the last answer is repeated."""
    left = list(answers)

    async def describe() -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asyncio.run(await_stopped(describe, ["t", "u"], timeout_s, lambda _: None))


DONE = described(("t", State.STOPPED), ("u", State.STOPPED), ("other", State.MIRRORING))


def test_a_removal_waits_until_all_topics_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it waits through other states and failed reads; rows of other topics are left out."""
    monkeypatch.setattr(removal, "LOOK_S", 0.0)
    stopping = described(("t", State.STOPPED), ("u", State.STOPPING))
    found = awaited([stopping, Retriable("no answer"), DONE])
    assert [row.topic.topic for row in found] == ["t", "u"]


@pytest.mark.parametrize("rows", [(), (("t", State.STOPPED),)])
def test_a_topic_without_rows_has_an_unknown_state(rows: tuple[tuple[str, State], ...]) -> None:
    """Goal: a topic whose record cannot be read has no rows, and an unknown state."""
    with pytest.raises(Retriable, match=r"the states of .*u are unknown"):
        awaited([described(*rows)], timeout_s=0.0)


def test_an_interrupted_wait_reports_that_the_removal_continues() -> None:
    """Goal: Ctrl-C ends the wait, not the removal, and the operator is told so."""
    told: list[str] = []

    async def describe() -> Any:
        return described(("t", State.STOPPING))

    async def interrupted() -> None:
        waiting = asyncio.ensure_future(await_stopped(describe, ["t"], 60.0, told.append))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(interrupted())
    assert told == [f"interrupted; {removal.CONTINUES}"]
