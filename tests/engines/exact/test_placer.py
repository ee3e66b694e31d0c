"""Twin of twinlog.engines.exact.placer, for cases that the simulation seldom or never reaches."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from model.world import KEY, World, scenario
from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.leaders import Leaders
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.placer import Placer
from twinlog.engines.exact.plane import Plane
from twinlog.engines.source.policies import SourcePolicies


class Slow(Placer):
    """Reads when the test tells it to, and gives one partition up meanwhile."""

    def __init__(self, plane: object) -> None:
        super().__init__(cast("Plane", plane), cast("Leaders", None), cast("SourcePolicies", None))
        self.reads: list[list[ExactPartition]] = []
        self.go_on: list[asyncio.Event] = []

    async def _read(self, batch: Any) -> Any:
        self.reads.append(list(batch))
        self.go_on.append(event := asyncio.Event())
        await event.wait()
        return {}

    async def _prove(self, found: Any) -> None:
        """Find nothing."""


def test_an_abandoned_position_is_read_by_one_other_batch() -> None:
    """Otherwise two batches read it, and the slower one sets a position that is out of date.

    The first batch gives a partition up and goes on with its others. The second one reads it. The
    first one ends. No other batch may read it until the second one has ended.
    """

    async def body() -> None:
        tasks: list[asyncio.Future[None]] = []

        def start(coroutine: Any, about: object = None) -> None:
            del about
            tasks.append(asyncio.ensure_future(coroutine))

        append = SimpleNamespace(phase=Phase.PLACING)
        one, other = (
            cast(
                "ExactPartition",
                SimpleHash(append=append, source_node=1, destination_node=1, gone=False),
            )
            for _ in range(2)
        )
        settings = SimpleNamespace(read_partitions_at_once=50)
        placer = Slow(SimpleNamespace(settings=settings, start=start, now=lambda: 0.0))
        placer.want(one)
        placer.want(other)
        await until(lambda: len(placer.reads) == 1)
        placer._placing.pop(one)  # as `_give_up` does
        placer.want(one)
        await until(lambda: len(placer.reads) == 2)
        placer.go_on[0].set()
        await tasks[0]
        placer.want(one)
        for _ in range(5):
            await asyncio.sleep(0)
        assert placer.reads == [[one, other], [one]]
        placer.go_on[1].set()
        await tasks[1]
        placer.want(one)
        await until(lambda: len(placer.reads) == 3)
        placer.go_on[2].set()
        await asyncio.gather(*tasks)

    asyncio.run(body())


def test_a_batch_cancelled_while_waiting_releases_its_partitions() -> None:
    """Otherwise no batch could ever read their positions again."""

    async def body() -> None:
        placer = Slow(SimpleNamespace(now=lambda: 0.0))
        one = cast("ExactPartition", SimpleHash())
        batch = [one]
        placer._placing[one] = batch
        waiting = asyncio.ensure_future(placer._place(batch, asyncio.Semaphore(0)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not placer._placing

    asyncio.run(body())


@scenario
async def test_bulk_records_are_sent_after_a_former_owners_transaction_ends(world: World) -> None:
    """Goal: a transaction that a former owner left open ends before anything is sent.

    It used to end behind the bulk records, and moved every record by one offset.
    """
    coordinator = world.destination.coordinator
    _, producer_id, epoch = coordinator.init("twinlog.0.filler.0")
    coordinator.add_partitions("twinlog.0.filler.0", producer_id, epoch, [KEY])
    begin_with_bulk(world)
    await world.mirror()
    await world.arrived()
    assert world.destination.log(KEY).batches[0].header.is_control
    await asyncio.sleep(2 * world.destination.timings.transaction_timeout)
    assert world.destination.log(KEY).end == world.source.log(KEY).end


@scenario
async def test_bulk_records_are_sent_after_a_former_owners_lease_ends(world: World) -> None:
    """Goal: nothing is sent while markers written by a former owner may still arrive."""
    begin_with_bulk(world)
    await world.mirror(lease_s=5.0)
    await asyncio.sleep(4.9)
    assert world.destination.log(KEY).end == 0
    await world.arrived()


def begin_with_bulk(world: World) -> None:
    """Begin the source's log at offset 100."""
    for at in range(101):
        world.write(str(at))
    world.source.log(KEY).delete_before(100)


class SimpleHash(SimpleNamespace):
    """A hashable namespace."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)
