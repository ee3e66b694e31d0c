"""A batch that is held in the network, and arrives when its offset has become another record's.

Its records may be deleted at the source. The gap in their place does not advance the sequence, so
the late batch would land behind the gap. Or it arrives just before the batch that replaces it.
These tests run the engine on the model; the contract suite tests the brokers' behaviour.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from sole_owner import owned_for_good

from model.ports import ModelDestination
from model.world import KEY, World, scenario
from twinlog.engines.exact.spec import PartitionStage
from twinlog.engines.ports import Appended, Batch
from twinlog.kafka.errors import Disconnected
from twinlog.kafka.types import TopicPartition


class Hold:
    """Holds the next Produce request of any client; the client gets a lost answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, until_next: bool = False) -> None:
        self.held: Callable[[], object] | None = None
        self.sent_again = 0
        produce = ModelDestination.produce

        def hold(
            port: ModelDestination, node: int, batches: Sequence[Batch]
        ) -> Awaitable[Mapping[TopicPartition, Appended]]:
            if self.held is not None:
                if until_next and not self.sent_again:
                    self.held()
                self.sent_again += 1
                return produce(port, node, batches)
            taken = [b._replace(records=memoryview(bytes(b.records))) for b in batches]
            self.held = lambda: port.cluster.produce(node, taken, {})
            lost: asyncio.Future[Mapping[TopicPartition, Appended]] = (
                asyncio.get_running_loop().create_future()
            )
            lost.set_exception(Disconnected("the answer was lost"))
            return lost

        monkeypatch.setattr(ModelDestination, "produce", hold)


async def _held_batch(world: World, monkeypatch: pytest.MonkeyPatch, markers_allowed: bool) -> Hold:
    """Mirror offsets 0 and 1; return what holds the batch of 2 and 3."""
    world.destination.markers_allowed = markers_allowed
    await world.mirror()
    world.write("a", "b")
    await world.arrived()
    hold = Hold(monkeypatch)
    world.write("c", "d")
    await world.until(lambda: hold.held is not None)
    return hold


@pytest.mark.parametrize("markers_allowed", [True, False])
def test_a_late_batch_of_deleted_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, markers_allowed: bool
) -> None:
    """Goal: the late batch of deleted records is refused; later records keep their offsets."""

    @scenario
    async def story(world: World) -> None:
        hold = await _held_batch(world, monkeypatch, markers_allowed)
        log = world.source.log(KEY)
        log.delete_before(4)
        await world.arrived()
        destination_bytes = world.ours
        assert hold.held is not None
        hold.held()
        assert world.ours == destination_bytes, "refused"
        world.write("g")
        await world.arrived()
        assert world.partition.stage is PartitionStage.MIRRORING
        assert world.destination.log(KEY).batches[-1].header.base_offset == log.end - 1

    story()


@pytest.mark.parametrize("markers_allowed", [True, False])
def test_a_late_first_batch_after_a_gap_is_not_stored_twice(
    monkeypatch: pytest.MonkeyPatch, markers_allowed: bool
) -> None:
    """Goal: both are the same batch, so that the second one is a duplicate for the broker.

    The first copy's sequence was the offset where the gap began, the repetition's was the offset
    where the gap ended: the second followed the first, and the records were stored twice. Seed
    325602.
    """

    @scenario
    async def story(world: World) -> None:
        world.destination.markers_allowed = markers_allowed
        world.write_marker()
        hold = Hold(monkeypatch, until_next=True)
        world.write("a")
        await world.mirror()
        await world.until(lambda: hold.sent_again > 0)
        world.write("b")
        await world.arrived()
        await asyncio.sleep(20)
        log = world.destination.log(KEY)
        assert [batch.header.base_offset for batch in log.batches] == [0, 1, 2]
        assert world.partition.stage is PartitionStage.MIRRORING

    story()


@pytest.mark.parametrize("markers_allowed", [True, False])
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_former_owner_fills_no_gap_over_records_of_the_new_owner(
    monkeypatch: pytest.MonkeyPatch, markers_allowed: bool, confirmed: bool
) -> None:
    """Goal: it fills nothing, as it cannot confirm that it owns the partition; seed 373727.

    If it could, the new owner's batch would land behind the gap.
    """

    @scenario
    async def story(world: World) -> None:
        hold = await _held_batch(world, monkeypatch, markers_allowed)
        assert hold.held is not None
        world.source.log(KEY).delete_before(4)
        never = asyncio.get_running_loop().create_future
        confirm = owned_for_good if confirmed else never
        await world.mirror(beside=True, confirm_ownership=confirm)
        former = world.partition
        await world.until(lambda: former.append.planned_end == 4)
        await asyncio.sleep(2)
        hold.held()
        landed = world.destination.log(KEY).batches[-1].header.base_offset
        assert landed == (4 if confirmed else 2)

    story()
