"""Twin of twinlog.engines.loop_steps: when other tasks have their turns."""

import asyncio
from collections.abc import Generator

import pytest
from loop_beats import beating

from twinlog.engines import loop_steps
from twinlog.engines.loop_steps import Steps
from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.types import UNKNOWN_EPOCH
from twinlog.mirror.plan import Planned

COUNT = 10
RESULT = Planned([], UNKNOWN_EPOCH)


def plan(*, corrupt: bool = False) -> Generator[None, None, Planned]:
    for _ in range(COUNT):
        yield
    if corrupt:
        raise CorruptBatch("of the test")
    return RESULT


@pytest.mark.parametrize(("step_s", "turns"), [(0.0, COUNT), (3600.0, 0)])
def test_others_have_their_turns_after_long_steps_only(
    monkeypatch: pytest.MonkeyPatch, step_s: float, turns: int
) -> None:
    """Goal: each turn costs the loop a round, which short plans do not need."""
    monkeypatch.setattr(loop_steps, "_STEP_S", step_s)

    async def body() -> None:
        async with beating() as beats:
            assert await Steps().finish(plan()) is RESULT
            assert turns <= beats.count <= turns + 1

    asyncio.run(body())


def test_an_error_of_a_plan_is_raised() -> None:
    async def body() -> None:
        with pytest.raises(CorruptBatch, match="of the test"):
            await Steps().finish(plan(corrupt=True))

    asyncio.run(body())
