"""Twin of twinlog.engines.exact.confirmations."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from positions import START

from twinlog.engines.exact.append import PartitionAppend, Plan, plan_of
from twinlog.engines.exact.confirmations import Confirmations
from twinlog.engines.exact.events import Confirmed
from twinlog.engines.exact.partition import ExactPartition
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import Gap


class FakePlane:
    """Runs the part's tasks, answers its questions when told, and collects its events."""

    def __init__(self) -> None:
        self.questions: list[asyncio.Future[None]] = []
        self.events: list[tuple[ExactPartition, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, coroutine: Coroutine[object, object, None]) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    def emit(self, partition: ExactPartition, event: Confirmed) -> None:
        self.events.append((partition, event))
        partition.append.confirm(event.plan)

    async def confirm_ownership(self) -> None:
        self.questions.append(asyncio.get_running_loop().create_future())
        await self.questions[-1]


def partition_with_gap() -> Any:
    """A partition with one gap that is not seen."""

    class Partition:
        append = PartitionAppend(0.0)

    Partition.append.place(START, 1.0, compared=True)
    Partition.append.offer([Gap(Offset(0), Offset(3), seen=False)])
    return Partition()


def test_waiting_partitions_share_a_request_and_later_partitions_the_next() -> None:
    """Goal: who comes while a question is under way is not confirmed by its answer."""

    async def body() -> None:
        plane, (first, second, third) = (
            FakePlane(),
            (partition_with_gap(), partition_with_gap(), partition_with_gap()),
        )
        confirmations = Confirmations(plane)  # type: ignore[arg-type]
        confirmations.want(first)
        confirmations.want(second)
        await asyncio.sleep(0)
        confirmations.want(third)
        confirmations.want(first)  # its plan has grown, as far as this part knows
        first.append.offer([Gap(Offset(3), Offset(4), seen=False)])
        plane.questions[0].set_result(None)
        await asyncio.sleep(0.01)
        plan = Confirmed(Plan(START, Offset(3)))
        assert sorted((id(p), event) for p, event in plane.events) == sorted(
            [(id(first), plan), (id(second), plan)]
        )
        assert len(plane.questions) == 2
        plane.questions[1].set_result(None)
        await asyncio.sleep(0.01)
        assert plane.events[2:] != []
        assert {id(p): event.plan.end for p, event in plane.events[2:]} == {
            id(first): 4,
            id(third): 3,
        }
        assert all(task.done() for task in plane.tasks)

    asyncio.run(body())


def test_confirmed_and_forgotten_partitions_send_no_request() -> None:
    """Goal: no question without a gap that waits."""

    async def body() -> None:
        plane, (first, second) = FakePlane(), (partition_with_gap(), partition_with_gap())
        confirmations = Confirmations(plane)  # type: ignore[arg-type]
        first.append.confirm(plan_of(first.append))
        confirmations.want(first)
        confirmations.want(second)
        confirmations.forget(second)
        await asyncio.sleep(0.01)
        assert plane.questions == []

    asyncio.run(body())
