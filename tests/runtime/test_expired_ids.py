"""A mirror that has run for longer than a coordinator remembers unused transactional ids.

That time is `transactional.id.expiration.ms`, a week by default. Data and written markers do not
use an id (contract/test_expiry.py), and records of one producer id are not fenced by another one.
So the owner uses the ids regularly; without that each of these tests fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from engines.exact.test_late_data import Hold
from model.cluster import control_records
from model.log import Marker
from model.ports import ModelDestination
from model.world import KEY, World, scenario
from twinlog.engines.ports import MarkerRequest
from twinlog.kafka.errors import Disconnected
from twinlog.kafka.types import TopicPartition

EXPIRATION_S = 4.0
QUIET_S = 10 * EXPIRATION_S


def data(world: World) -> list[tuple[int, int]]:
    """Return offsets and counts of the destination's data batches."""
    headers = [stored.header for stored in world.destination.log(KEY).batches]
    return [(header.base_offset, header.num_records) for header in headers if not header.is_control]


def run_with_held_batch(
    body: Callable[[World, Hold], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mirror records long after the ids would have expired; hold one more batch."""

    @scenario
    async def story(world: World) -> None:
        world.expire_ids(EXPIRATION_S)
        await world.mirror()
        world.write("a", "b")
        await world.arrived()
        await asyncio.sleep(QUIET_S)
        hold = Hold(monkeypatch)
        world.write("c", "d")
        await world.until(lambda: hold.held is not None)
        await body(world, hold)

    story()


def test_a_late_batch_after_a_stop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World, hold: Hold) -> None:
        await world.engine.disown([KEY])
        await world._shards[-1].fence([KEY])
        await asyncio.sleep(1)
        before = data(world)
        assert hold.held is not None
        hold.held()
        assert data(world) == before

    run_with_held_batch(body, monkeypatch)


def test_a_late_batch_after_a_gap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has deleted its records meanwhile."""

    async def body(world: World, hold: Hold) -> None:
        world.source.log(KEY).delete_before(4)
        await world.arrived()
        assert hold.held is not None
        hold.held()
        await asyncio.sleep(QUIET_S)
        assert all(offset < 4 for offset, _ in data(world))
        assert world.destination.log(KEY).end == 4

    run_with_held_batch(body, monkeypatch)


def test_a_late_batch_after_a_takeover_is_no_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World, hold: Hold) -> None:
        await world.mirror(lease_s=10.0)
        await world.arrived()
        assert hold.held is not None
        hold.held()
        await asyncio.sleep(QUIET_S)
        assert data(world) == [(0, 2), (2, 2)]

    run_with_held_batch(body, monkeypatch)


def test_a_late_marker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts at the same offset exclude each other."""
    write = ModelDestination.write_markers
    held: list[Callable[[], object]] = []

    async def hold(
        port: ModelDestination,
        requests: Sequence[MarkerRequest],
        *,
        committed: bool = False,
        node: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        if held:
            return await write(port, requests, committed=committed, node=node)
        records = {
            partition: control_records(markers, Marker(*request.producer[1:], committed=committed))
            for request in requests
            for partition, markers in request.partitions.items()
        }
        held.append(lambda: port.cluster.write_markers(records))
        raise Disconnected("the answer was lost")

    @scenario
    async def story(world: World) -> None:
        world.expire_ids(EXPIRATION_S)
        await world.mirror()
        world.write_marker()
        world.write("a")
        await world.arrived()
        await asyncio.sleep(QUIET_S)
        monkeypatch.setattr(ModelDestination, "write_markers", hold)
        world.write_marker()
        await world.until(lambda: bool(held))
        await world.arrived()
        end = world.destination.log(KEY).end
        held[0]()
        assert world.destination.log(KEY).end == end

    story()


@scenario
async def test_an_expiration_reported_later_keeps_the_id_in_use(world: World) -> None:
    """The expiration was unknown at the takeover, or a broker has another one now."""
    await world.mirror()
    world.write("a")
    await world.arrived()
    (shard,) = world._shards
    world.expire_ids(400.0)
    await asyncio.sleep(1000)
    identity = await shard._destination.init_producer(shard._id)
    assert identity.producer_id == shard.data_producer


def test_a_new_producer_id_waits_for_the_lease_of_the_former_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former owner's batch has another producer id, so the new owner waits for its lease.

    The coordinator has lost the id, which no owner could have kept.
    """

    @scenario
    async def story(world: World) -> None:
        await world.mirror()
        hold = Hold(monkeypatch)
        world.write("a")
        await world.until(lambda: hold.held is not None)
        world.destination.coordinator._ids.clear()
        await world.mirror(lease_s=10.0, of_several_ids=True)
        await asyncio.sleep(5)
        assert hold.held is not None
        hold.held()
        await world.arrived()
        await asyncio.sleep(20)
        assert data(world) == [(0, 1)]

    story()
