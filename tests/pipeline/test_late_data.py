"""A batch that is held in between and arrives when its records are gone from the source.

The gap in their place leaves the sequence as it is, so that the batch would land behind the gap.
The engine on the model; what brokers do is the contract suite's to prove.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from model.ports import ModelDestination
from model.world import KEY, World, scenario
from twinlog.core.errors import Disconnected
from twinlog.core.types import TopicPartition
from twinlog.pipeline.partition import Stage
from twinlog.pipeline.ports import Appended, Batch


class Hold:
    """Keeps the next Produce request of any client, which is told that the answer was lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: Callable[[], object] | None = None
        produce = ModelDestination.produce

        def hold(
            port: ModelDestination, node: int, batches: Sequence[Batch]
        ) -> Awaitable[Mapping[TopicPartition, Appended]]:
            if self.held is not None:
                return produce(port, node, batches)
            taken = [b._replace(records=memoryview(bytes(b.records))) for b in batches]
            self.held = lambda: port.cluster.produce(node, taken, {})
            lost: asyncio.Future[Mapping[TopicPartition, Appended]] = (
                asyncio.get_running_loop().create_future()
            )
            lost.set_exception(Disconnected("the answer was lost"))
            return lost

        monkeypatch.setattr(ModelDestination, "produce", hold)


@pytest.mark.parametrize("markers_allowed", [True, False])
def test_records_that_were_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch, markers_allowed: bool
) -> None:
    """Goal: their late batch is refused; what follows stands where it stands on the source."""

    @scenario
    async def story(world: World) -> None:
        world.destination.markers_allowed = markers_allowed
        await world.mirror()
        world.write("a", "b")
        await world.arrived()
        hold = Hold(monkeypatch)
        world.write("c", "d")
        await world.until(lambda: hold.held is not None)
        log = world.source.log(KEY)
        log.delete_before(4)
        await world.arrived()
        ours = world.ours
        assert hold.held is not None
        hold.held()
        assert world.ours == ours, "refused"
        world.write("g")
        await world.arrived()
        assert world.partition.stage is Stage.MIRRORING
        assert world.destination.log(KEY).batches[-1].header.base_offset == log.end - 1

    story()
