"""How a shard fills gaps, on the model of a cluster under virtual time.

The contract suite tests the brokers' behaviour. These tests cover the shard's reaction to it, also
when answers are lost, markers are late, and another owner takes over.
"""

import asyncio
import itertools
import logging
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import batch_builders
import pytest

from model.cluster import Cluster, Timings, control_records
from model.coordinator import State
from model.log import Marker
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination
from twinlog.engines.destination.data_id import DataId
from twinlog.engines.exact import marker_writer
from twinlog.engines.exact.fence_search import _stored
from twinlog.engines.exact.marker_epochs import (
    LAST_COORDINATOR_EPOCH,
    LAST_PRODUCER_EPOCH,
    STEP,
    LastMarker,
)
from twinlog.engines.exact.marker_writer import SHARED_GAP, MarkerWriter, write_all
from twinlog.engines.exact.shard import Shard
from twinlog.engines.ports import Batch, LogEnd, MarkerRequest, ProducerIdentity
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Disconnected, Fenced, Refusal, Retriable
from twinlog.kafka.log.batch import HEADER_SIZE, batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Gap

FILLERS = 3
SETTINGS = LaneSettings(fillers=FILLERS, marker_deadline_s=2.0)
TOPIC = "topic"
READ_ONLY = TopicPartition("read-only", 0)
"""A partition on which the owner has no WRITE: `Bench.deny`."""
TOPIC_AUTHORIZATION_FAILED = 29
NOT_LEADER = 6
INVALID_PRODUCER_EPOCH = 47


class Bench:
    """A cluster with one topic of four partitions, and shards on it."""

    def __init__(self, loop: VirtualLoop, *, markers_allowed: bool = False) -> None:
        rng = random.Random(3)
        self.loop = loop
        self.cluster = Cluster(
            loop,
            rng,
            nodes=(1, 2),
            timings=Timings(late_markers=0.01),
            markers_allowed=markers_allowed,
        )
        self.cluster.create_topic(TOPIC, 4)
        self.network = Network(loop, rng, Faults())

    def destination(self, owner: str = "owner") -> ModelDestination:
        return ModelDestination(self.cluster, self.network, owner)

    async def shard(
        self, destination: ModelDestination | None = None, settings: LaneSettings = SETTINGS
    ) -> Shard:
        shard = Shard(5, "twinlog", destination or self.destination(), settings)
        await shard.open()
        return shard

    def end(self, partition: int) -> int:
        return self.cluster.log(key(partition)).end

    def deny(self) -> None:
        """Revoke WRITE on the additional topic of `READ_ONLY`."""
        self.cluster.create_topic(READ_ONLY.topic)
        self.cluster.read_only.add(READ_ONLY.topic)

    def allow(self) -> None:
        """Grant WRITE on it again."""
        self.cluster.read_only.clear()

    async def settle(self) -> None:
        """Wait until everything in flight has ended."""
        await asyncio.sleep(5.0)


def key(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


def gaps(*extents: tuple[int, int]) -> dict[TopicPartition, Gap]:
    """Return the gaps of partition 0, of 1, and so on."""
    return {
        key(at): Gap(Offset(start), Offset(end), seen=True)
        for at, (start, end) in enumerate(extents)
    }


def ends(found: Mapping[TopicPartition, LogEnd]) -> dict[int, int]:
    assert not any(end.error for end in found.values())
    return {one.partition: end.log_end for one, end in found.items()}


def scenario(
    body: Callable[[Bench], Awaitable[None]] | None = None, *, markers_allowed: bool = False
) -> Callable[..., Any]:
    """Turn a coroutine function of a bench into a test that runs under virtual time."""
    if body is None:
        return partial(scenario, markers_allowed=markers_allowed)

    def test() -> None:
        async def main(loop: VirtualLoop) -> None:
            await body(Bench(loop, markers_allowed=markers_allowed))

        run(main)

    test.__doc__ = body.__doc__
    test.__name__ = body.__name__
    return test


# ---- empty transactions ------------------------------------------------------------------------


@scenario
async def test_a_round_fills_as_many_offsets_as_filler_ids(bench: Bench) -> None:
    """Goal: three ids fill three offsets of each gap in a round, never one too many."""
    shard = await bench.shard()
    wanted = gaps((0, 5), (0, 1), (0, 2))
    assert ends(await shard.fillers.fill(wanted)) == {0: 3, 1: 1, 2: 2}
    assert ends(await shard.fillers.fill(gaps((3, 5)))) == {0: 5}
    await bench.settle()
    assert [bench.end(at) for at in range(4)] == [5, 1, 2, 0]


@scenario
async def test_a_filled_gap_holds_only_control_records(bench: Bench) -> None:
    """Goal: the offsets are used up by control records, which no consumer sees."""
    shard = await bench.shard()
    await shard.fillers.fill(gaps((0, 3)))
    assert all(b.header.is_control for b in bench.cluster.log(key(0)).batches)


@scenario
async def test_nothing_is_written_to_a_gap_that_is_already_filled(bench: Bench) -> None:
    """Goal: where the log is past the gap, its end is reported and nothing is written."""
    shard = await bench.shard()
    await shard.fillers.fill(gaps((0, 3), (0, 1)))
    assert ends(await shard.fillers.fill(gaps((0, 3), (0, 3)))) == {0: 3, 1: 3}
    assert ends(await shard.fillers.fill(gaps((1, 2), (7, 9)))) == {0: 3, 1: 3}
    await bench.settle()
    assert (bench.end(0), bench.end(1)) == (3, 3)


@scenario
async def test_a_partition_without_leader_delays_only_itself(bench: Bench) -> None:
    """Goal: its error is its own result; the others are filled."""
    shard = await bench.shard()
    bench.cluster.partition(key(1)).leader = -1
    found = await shard.fillers.fill(gaps((0, 2), (0, 2)))
    assert found[key(1)].error
    assert found[key(0)].log_end == 2


@scenario
async def test_a_partition_without_write_right_delays_only_itself(bench: Bench) -> None:
    """Goal: its refusal is its own result; the others are filled in the same round.

    Nothing of it is in flight then, so that it is filled as soon as the right is granted.
    """
    shard = await bench.shard()
    bench.deny()
    before = bench.loop.time()
    found = dict(await shard.fillers.fill(gaps((0, 3), (0, 1)) | {READ_ONLY: gaps((0, 2))[key(0)]}))
    assert bench.loop.time() - before < SETTINGS.marker_deadline_s
    assert found.pop(READ_ONLY) == LogEnd(TOPIC_AUTHORIZATION_FAILED, -1, -1)
    assert ends(found) == {0: 3, 1: 1}
    alone = await shard.fillers.fill({READ_ONLY: gaps((0, 2))[key(0)]})
    assert alone == {READ_ONLY: LogEnd(TOPIC_AUTHORIZATION_FAILED, -1, -1)}
    await bench.settle()
    assert (bench.end(0), bench.end(1), bench.cluster.log(READ_ONLY).end) == (3, 1, 0)
    bench.allow()
    assert ends(await shard.fillers.fill({READ_ONLY: gaps((0, 2))[key(0)]})) == {0: 2}
    await shard.close()


@scenario
async def test_markers_are_counted_when_a_right_is_granted_within_a_round(bench: Bench) -> None:
    """Goal: one id's transaction is refused, another's is not: its markers are counted exactly."""
    shard = await bench.shard()
    destination = shard._destination
    assert isinstance(destination, ModelDestination)
    refusing = [True, False, True]

    async def some(
        producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        if not refusing or not refusing.pop():
            return await ModelDestination.empty_transaction(destination, producer, partitions)
        left = [p for p in partitions if p != key(1)]
        codes = await ModelDestination.empty_transaction(destination, producer, left)
        return {**codes, key(1): TOPIC_AUTHORIZATION_FAILED}

    destination.empty_transaction = some  # type: ignore[method-assign]
    assert ends(await shard.fillers.fill(gaps((0, 3), (0, 3)))) == {0: 3, 1: 1}
    assert ends(await shard.fillers.fill(gaps((3, 4), (1, 3)))) == {0: 4, 1: 3}
    await bench.settle()
    assert (bench.end(0), bench.end(1)) == (4, 3)
    await shard.close()


@scenario
async def test_late_markers_delay_only_their_partitions(bench: Bench) -> None:
    """Goal: while a marker may still arrive, its partition is not written; the others go on.

    The id of the late marker is not used again before it has a new epoch.
    """
    shard = await bench.shard()
    assert ends(await shard.fillers.fill(gaps((0, 1), (0, 1)))) == {0: 1, 1: 1}
    destination = shard._destination
    assert isinstance(destination, ModelDestination)
    leader = bench.cluster.partition(key(1)).leader

    async def lead_away_then_end(
        producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        codes = await ModelDestination.empty_transaction(destination, producer, partitions)
        bench.cluster.partition(key(1)).leader = -1
        return codes

    destination.empty_transaction = lead_away_then_end  # type: ignore[method-assign]
    found = await shard.fillers.fill(gaps((1, 2), (1, 2)))
    del destination.empty_transaction
    assert key(1) not in found
    assert found.get(key(0), LogEnd(0, 2, 0)).log_end == 2
    before = bench.loop.time()
    assert ends(await shard.fillers.fill({key(2): gaps((0, 2))[key(0)]})) == {2: 2}
    assert bench.loop.time() - before < SETTINGS.marker_deadline_s
    assert key(1) not in await shard.fillers.fill(gaps((2, 3), (1, 2)))
    bench.cluster.partition(key(1)).leader = leader
    await bench.settle()
    assert ends(await shard.fillers.fill(gaps((bench.end(0), bench.end(0)), (1, 2))))[1] == 2
    await bench.settle()
    assert bench.end(1) == 2
    await shard.close()


@scenario
async def test_a_marker_lost_with_its_leader_is_written_again_once(bench: Bench) -> None:
    """Goal: a marker that no follower has still arrives: its coordinator writes it again.

    Its id used to be taken for clean, and its next marker was written behind the repeated one.
    """
    shard = await bench.shard()
    bench.cluster.lag(key(0), 60.0)
    assert not await shard.fillers.fill(gaps((0, 1)))
    assert bench.end(0) == 1
    bench.cluster.move_leader(key(0), lose=0)
    filled = False
    while not filled:
        await asyncio.sleep(0.1)
        found = await shard.fillers.fill(gaps((0, 1)))
        filled = found.get(key(0), LogEnd(0, 0, 0)).log_end == 1
    await bench.settle()
    assert bench.end(0) == 1
    await shard.close()


@scenario
async def test_a_new_owner_fences_the_former_owner(bench: Bench) -> None:
    """Goal: everything that the former owner begins afterwards is refused with an error."""
    former = await bench.shard(bench.destination("former"))
    await former.fillers.fill(gaps((0, 1)))
    owner = await bench.shard(bench.destination("owner"))
    assert ends(await owner.fillers.fill(gaps((1, 2)))) == {0: 2}
    with pytest.raises(Fenced):
        await former.fillers.fill(gaps((2, 9)))
    await bench.settle()
    assert bench.end(0) == 2
    assert former.data_producer == owner.data_producer


@scenario
async def test_an_open_transaction_of_a_former_owner_is_ended_first(bench: Bench) -> None:
    """Goal: the former owner's marker is in the log before the new owner reads the log end."""
    former = bench.destination("former")
    identity = await former.init_producer("twinlog.5.filler.1")
    coordinator = bench.cluster.coordinator
    assert coordinator.add_partitions(*identity, [key(0)]) == 0
    owner = await bench.shard()
    assert ends(await owner.fillers.fill(gaps((0, 4)))) == {0: 4}
    await bench.settle()
    assert bench.end(0) == 4


@scenario
async def test_a_gap_is_filled_exactly_after_a_lost_answer(bench: Bench) -> None:
    """Goal: after a lost answer the gap is filled to its end, and not beyond."""
    shard = await bench.shard()
    destination = shard._destination
    assert isinstance(destination, ModelDestination)
    lose = [True, False, True]

    async def losing(
        producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        codes = await ModelDestination.empty_transaction(destination, producer, partitions)
        if lose and lose.pop():
            raise Disconnected("lost")
        return codes

    destination.empty_transaction = losing  # type: ignore[method-assign]
    end = 0
    for _ in range(20):
        try:
            found = await shard.fillers.fill(gaps((end, 8)))
        except Disconnected:
            continue
        end = found[key(0)].log_end if key(0) in found else end
        if end == 8:
            break
    await bench.settle()
    assert (end, bench.end(0)) == (8, 8)
    await shard.close()


@scenario
async def test_two_mirrors_fill_gaps_of_one_shard(bench: Bench) -> None:
    """Goal: each mirror has its own engine, and none fences what another has in flight."""
    shard = await bench.shard()
    await shard.fillers.fill(gaps((0, 1)))

    async def fill(partition: int) -> None:
        end = bench.end(partition)
        while end < 30:
            found = await shard.fillers.fill({key(partition): gaps((end, 30))[key(0)]})
            end = found[key(partition)].log_end if key(partition) in found else end
            await asyncio.sleep(0.001)

    await asyncio.gather(*(fill(partition) for partition in range(4)))
    await bench.settle()
    assert [bench.end(partition) for partition in range(4)] == [30] * 4
    await shard.close()


@scenario
async def test_a_fence_does_not_disturb_filler_ids_in_use(bench: Bench) -> None:
    """Goal: it cleans the id that blocks its partition, and no id that is in use elsewhere."""
    shard = await bench.shard()
    await shard.fillers.fill(gaps((0, 1)))
    shard.fillers._dirty[1] = frozenset([key(1)])  # as a late marker leaves it
    del shard.fillers._clean[1]
    destination = shard._destination

    async def busy(transactional_id: str) -> ProducerIdentity:
        del destination.init_producer
        raise Retriable(f"the coordinator of {transactional_id} is busy")

    destination.init_producer = busy  # type: ignore[method-assign]
    filling = asyncio.ensure_future(shard.fillers.fill(gaps((1, 30))))
    while len(shard.fillers._dirty) < FILLERS:
        await asyncio.sleep(0.001)
    assert await shard.fence([key(1)]) == {key(1): 0}
    found = await filling
    assert found[key(0)].log_end == bench.end(0) > 1
    await bench.settle()
    assert found[key(0)].log_end == bench.end(0)
    await shard.close()


@scenario
async def test_a_fence_needs_no_cleaning_of_filler_ids(bench: Bench) -> None:
    """Goal: a lease after the shard was opened, a fence waits for its own marker only."""
    shard = await bench.shard()
    await asyncio.sleep(SETTINGS.lease_s + 1.0)
    destination = shard._destination
    assert isinstance(destination, ModelDestination)
    asked: list[str] = []

    async def counted(transactional_id: str) -> ProducerIdentity:
        asked.append(transactional_id)
        return await ModelDestination.init_producer(destination, transactional_id)

    destination.init_producer = counted  # type: ignore[method-assign]
    assert await shard.fence([key(0)]) == {key(0): 0}
    assert asked == ["twinlog.5", "twinlog.5.marker", "twinlog.5"], "no filler's"
    assert ends(await shard.fillers.fill(gaps((1, 2), (0, 3)))) == {0: 2, 1: 3}
    assert asked == ["twinlog.5", "twinlog.5.marker", "twinlog.5"], "no filler's"
    await shard.close()


@scenario
async def test_a_foreign_record_raises_the_reported_log_end(bench: Bench) -> None:
    """Goal: the log end offset is beyond the filled gap; the append machine fails the partition."""
    shard = await bench.shard()
    bench.cluster.log(key(0)).append_marker(Marker(99, 0, committed=True), bench.cluster.now_ms)
    assert ends(await shard.fillers.fill(gaps((0, 1)))) == {0: 1}
    bench.cluster.log(key(0)).append_marker(Marker(99, 0, committed=True), bench.cluster.now_ms)
    assert ends(await shard.fillers.fill(gaps((0, 1)))) == {0: 2}
    await shard.close()


@scenario
async def test_closing_a_shard_ends_its_tasks(bench: Bench) -> None:
    """Goal: no task of a shard continues after the shard was given away."""
    shard = await bench.shard()
    bench.network.cut("owner", 1)
    bench.network.cut("owner", 2)
    filling = asyncio.ensure_future(shard.fillers.fill(gaps((0, 1))))
    await asyncio.sleep(0.5)
    await shard.close()
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)
    bench.network.heal()
    await bench.settle()
    assert bench.end(0) == 0
    await (await bench.shard()).close()


# ---- written markers ---------------------------------------------------------------------------


@scenario(markers_allowed=True)
async def test_written_markers_fill_a_gap_up_to_the_request_limit(bench: Bench) -> None:
    """Goal: as many as a gap needs, up to the limit of a request, once a first one has landed."""
    shard = await bench.shard(settings=replace(SETTINGS, markers_at_once=100))
    found = await shard.markers.write(gaps((0, 7), (0, 101), (0, 1001)))
    assert ends(found) == {0: 1, 1: 1, 2: 1}
    found = await shard.markers.write(gaps((1, 7), (1, 101), (1, 1001)))
    assert ends(found) == {0: 7, 1: 101, 2: 101}
    assert shard.markers.allowed
    assert ends(await shard.markers.write(gaps((7, 8), (101, 102)))) == {0: 8, 1: 102}
    await bench.settle()
    assert [bench.end(at) for at in range(4)] == [8, 102, 101, 0]


class Counting(ModelDestination):
    """A destination that notes the requests for markers, and may lose the answers."""

    def note(self) -> None:
        """Begin to note them."""
        self.noted: list[list[int]] = []
        self.loses = False

    async def write_markers(
        self, requests: Sequence[MarkerRequest], **how: Any
    ) -> Mapping[TopicPartition, int]:
        """Note the producer ids of a request."""
        self.noted.append([request.producer.producer_id for request in requests])
        found = await super().write_markers(requests, **how)
        if self.loses:
            raise Disconnected("the answer was lost")
        return found


async def two_shards(bench: Bench) -> tuple[Counting, Shard, Shard]:
    """Return two shards that have written to partitions 0 and 1, and their destination."""
    destination = Counting(bench.cluster, bench.network, "owner")
    destination.note()
    shards = [Shard(number, "twinlog", destination, SETTINGS) for number in (5, 6)]
    for at, shard in enumerate(shards):
        await shard.open()
        gap = Gap(Offset(0), Offset(9), seen=True)
        assert not shard.ready(key(at), gap)
        assert ends(await shard.fill_gaps({key(at): gap})) == {at: 1}
        assert shard.ready(key(at), gap.after(Offset(1)))
    destination.note()
    return destination, shards[0], shards[1]


async def fill_in_shared_request(first: Shard, second: Shard, start: int, end: int) -> Any:
    """Fill this gap of partitions 0 and 1, each in a shard of its own, by one request."""
    gap = Gap(Offset(start), Offset(end), seen=True)
    parts = {
        first.markers: await first.markers.prepare({key(0): gap}),
        second.markers: await second.markers.prepare({key(1): gap}),
    }
    return await write_all(parts, first._destination)


@scenario(markers_allowed=True)
async def test_shards_write_markers_in_a_shared_request(bench: Bench) -> None:
    """Goal: each writes under its own producer id, one marker or several."""
    destination, first, second = await two_shards(bench)
    gaps = {key(0): Gap(Offset(1), Offset(9), seen=True)}
    assert first.markers.prepare_ready(gaps) == await first.markers.prepare(gaps)
    assert ends(await fill_in_shared_request(first, second, 1, 2)) == {0: 2, 1: 2}
    assert ends(await fill_in_shared_request(first, second, 2, 9)) == {0: 9, 1: 9}
    ids = [await first.markers.producer_id(), await second.markers.producer_id()]
    assert destination.noted == [ids, ids]
    assert ids[0] != ids[1]
    assert [bench.end(0), bench.end(1)] == [9, 9]


@scenario(markers_allowed=True)
async def test_all_shards_take_a_new_epoch_after_a_lost_shared_request(bench: Bench) -> None:
    """Goal: all shards of it take the next epoch, and read before they write again."""
    destination, first, second = await two_shards(bench)
    destination.loses = True
    with pytest.raises(Disconnected):
        await fill_in_shared_request(first, second, 1, 2)
    gap = Gap(Offset(1), Offset(2), seen=True)
    assert not first.ready(key(0), gap)
    assert not second.ready(key(1), gap)
    destination.loses = False
    assert ends(await fill_in_shared_request(first, second, 1, 2)) == {0: 2, 1: 2}
    assert [bench.end(0), bench.end(1)] == [2, 2]


@scenario(markers_allowed=True)
async def test_large_gaps_and_renewing_shards_share_no_request(bench: Bench) -> None:
    """Goal: a gap that takes long, and one whose shard waits for a new epoch, delay no others."""
    _, first, second = await two_shards(bench)
    small = Gap(Offset(1), Offset(1 + SHARED_GAP), seen=True)
    assert first.ready(key(0), small)
    assert not first.ready(key(0), replace(small, end=Offset(2 + SHARED_GAP)))
    assert not first.ready(key(0), replace(small, seen=False))
    async with second.markers._renewing:
        assert not second.ready(key(1), small)
    assert second.ready(key(1), small)


@scenario(markers_allowed=True)
async def test_the_shard_with_most_partitions_is_last(bench: Bench) -> None:
    """Goal: the entry that brokers have to answer is the one that is least likely to be gone."""
    destination, first, second = await two_shards(bench)
    gap = Gap(Offset(0), Offset(1), seen=True)
    parts = {
        first.markers: await first.markers.prepare({key(2): gap, key(3): gap}),
        second.markers: await second.markers.prepare({key(1): gap}),
    }
    await write_all(parts, destination)
    ids = [await second.markers.producer_id(), await first.markers.producer_id()]
    assert destination.noted[-1] == ids


@scenario(markers_allowed=True)
async def test_a_refusal_in_a_shared_request_affects_only_its_shard(bench: Bench) -> None:
    """Goal: an error of one shard's partition is no error of the other's."""
    _, first, second = await two_shards(bench)
    await second.markers.keep_id()
    newer = MarkerWriter("twinlog.6.marker", second._destination, 10)
    assert ends(await newer.write({key(1): Gap(Offset(1), Offset(2), seen=True)})) == {1: 2}
    second.markers._lasts[key(1)] = LastMarker((await second.markers._epoch()).epoch, 0)
    assert ends(await fill_in_shared_request(first, second, 1, 2)) == {0: 2, 1: 2}, (
        "the end is read"
    )
    assert [bench.end(0), bench.end(1)] == [2, 2]


@scenario(markers_allowed=True)
async def test_the_log_end_is_read_each_time_in_a_gap_that_had_records(bench: Bench) -> None:
    """Goal: in a gap that has had records the end is read each time, whoever wrote last."""
    shard = await bench.shard()
    assert ends(await shard.markers.write(gaps((0, 1)))) == {0: 1}
    records = [RawRecord(at, 1, 0, memoryview(encode_tail(b"k", b"v"))) for at in range(2)]
    partition = bench.cluster.partition(key(0))
    partition.log.append(whole(build(records, Codec.NONE)))
    bench.cluster._replicate(partition)
    gap = Gap(Offset(1), Offset(4), seen=False)
    assert ends(await shard.markers.write({key(0): gap})) == {0: 3}
    assert ends(await shard.markers.write({key(0): gap.after(Offset(3))})) == {0: 4}
    assert bench.end(0) == 4


@scenario
async def test_transactions_fill_gaps_without_the_right_to_write_markers(bench: Bench) -> None:
    """Goal: this is detected once, nothing is written, and transactions fill from then on."""
    shard = await bench.shard()
    assert shard.markers.allowed
    assert (await shard.markers.write(gaps((0, 2))), shard.markers.allowed) == ({}, False)
    assert bench.end(0) == 0
    assert ends(await shard.fillers.fill(gaps((0, 2)))) == {0: 2}


@scenario
async def test_transactions_fill_gaps_if_brokers_lack_write_txn_markers(bench: Bench) -> None:
    """Goal: the same holds for a service that does not have WriteTxnMarkers, or has lost it."""
    shard = await bench.shard()
    bench.cluster.markers_refusal = 35
    assert await shard.markers.write(gaps((0, 2))) == {}
    assert not shard.markers.allowed
    assert ends(await shard.fillers.fill(gaps((0, 2)))) == {0: 2}
    assert await shard.markers.fence([key(0)]) == {key(0): 0}


@scenario(markers_allowed=True)
async def test_a_partition_without_leader_gets_a_separate_error(bench: Bench) -> None:
    """Goal: the error is that partition's own."""
    shard = await bench.shard()
    bench.cluster.partition(key(1)).leader = -1
    found = await shard.markers.write(gaps((0, 2), (0, 2)))
    assert found[key(0)].log_end == 1
    assert found[key(1)].error


@scenario(markers_allowed=True)
async def test_a_lost_answer_to_markers_raises_an_error(bench: Bench) -> None:
    """Goal: the outcome is unknown, so the caller gets an error and has to read the log's end."""
    shard = await bench.shard()
    await shard.markers.write(gaps((0, 1)))
    bench.network.cut("owner", 1)
    bench.network.cut("owner", 2)
    with pytest.raises(Disconnected):
        await shard.markers.write(gaps((1, 5)))


# ---- stopping ----------------------------------------------------------------------------------


def batch(partition: int, producer: int, epoch: int, sequence: int) -> Batch:
    """Build one record, as an owner with this epoch sends it."""
    one = build([RawRecord(0, 1_000, 0, memoryview(encode_tail(None, b"v")))], Codec.NONE)
    data = whole(one, producer_id=producer, epoch=epoch, sequence=sequence)
    return Batch(key(partition), data[:HEADER_SIZE], memoryview(data)[HEADER_SIZE:])


async def send_batch(bench: Bench, one: Batch, owner: str = "owner") -> int:
    """Send a batch; return its error code."""
    node = bench.cluster.partition(one.partition).leader
    answers = await bench.destination(owner).produce(node, [one])
    return answers[one.partition].error


@scenario
async def test_a_fenced_partition_refuses_batches_of_the_former_epoch(bench: Bench) -> None:
    """Goal: from the marker on, a batch of the former epoch is refused; other partitions go on.

    This includes a partition that never had a batch: its first one would be accepted with any
    sequence.
    """
    shard = await bench.shard()
    for partition in (0, 1):
        assert await send_batch(bench, batch(partition, shard.data_producer, 0, 0)) == 0
    assert await shard.fence([key(0), key(2)]) == {key(0): 1, key(2): 0}
    assert [bench.end(at) for at in range(3)] == [2, 1, 1]
    assert await send_batch(bench, batch(0, shard.data_producer, 0, 1)) == INVALID_PRODUCER_EPOCH
    assert await send_batch(bench, batch(2, shard.data_producer, 0, 0)) == INVALID_PRODUCER_EPOCH
    assert await send_batch(bench, batch(1, shard.data_producer, 0, 1)) == 0


@scenario
async def test_a_partition_without_leader_is_fenced_later(bench: Bench) -> None:
    """Goal: it is skipped, the others are fenced at once; later it is fenced, too."""
    shard = await bench.shard()
    bench.cluster.partition(key(1)).leader = -1
    assert await shard.fence([key(0), key(1)]) == {key(0): 0}
    bench.cluster.partition(key(1)).leader = 2
    assert await shard.fence([key(1)]) == {key(1): 0}
    assert (bench.end(0), bench.end(1)) == (1, 1)


def leads_away(bench: Bench, shard: Shard) -> ModelDestination:
    """Let a partition lose its leader while the next transactions end, until it is deleted."""
    destination = shard._destination
    assert isinstance(destination, ModelDestination)

    async def lead_away_then_end(
        producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        codes = await ModelDestination.empty_transaction(destination, producer, partitions)
        bench.cluster.partition(key(1)).leader = -1
        return codes

    destination.empty_transaction = lead_away_then_end  # type: ignore[method-assign]
    return destination


@scenario
async def test_a_coordinator_move_writes_no_markers_after_a_stop(bench: Bench) -> None:
    """Goal: a partition that is reported as fenced gets no more markers if its coordinator moves.

    The transaction of a fence is not complete while one of its partitions has no leader, and
    another coordinator writes the markers of all of them again.
    """
    shard = await bench.shard()
    destination = leads_away(bench, shard)
    found = await shard.fence([key(0), key(1)])
    del destination.empty_transaction
    told = {p: bench.cluster.log(p).end for p in found}
    bench.cluster.coordinator.move()
    bench.cluster.partition(key(1)).leader = 2
    await bench.settle()
    assert {p: bench.cluster.log(p).end for p in told} == told, "users write to these by now"
    assert await shard.fence([key(0), key(1)]) == {key(0): 0, key(1): 0}, "and stopped later"
    stopped = bench.end(0), bench.end(1)
    bench.cluster.coordinator.move()
    await bench.settle()
    assert (bench.end(0), bench.end(1)) == stopped


@scenario
async def test_a_coordinator_move_writes_no_markers_after_a_gap(bench: Bench) -> None:
    """Goal: data follows a gap that begins with a fence once no other marker can arrive."""
    shard = await bench.shard()
    destination = leads_away(bench, shard)
    found = await shard.fence_data(gaps((0, 1), (0, 1)))
    del destination.empty_transaction
    told = {p: bench.cluster.log(p).end for p in found}
    bench.cluster.coordinator.move()
    bench.cluster.partition(key(1)).leader = 2
    await bench.settle()
    assert {p: bench.cluster.log(p).end for p in told} == told


@scenario
async def test_a_stop_waits_until_the_transaction_is_complete(bench: Bench) -> None:
    """Goal: until their coordinator has noted the markers, another one writes them again."""
    shard = await bench.shard()

    async def noted_later(
        after: Mapping[TopicPartition, int], identity: ProducerIdentity
    ) -> dict[TopicPartition, Offset]:
        stand = await DataId._markers(shard._data, after, identity)
        known = bench.cluster.coordinator._ids["twinlog.5"]
        known.state = State.ENDING
        bench.loop.later(1.0, lambda: setattr(known, "state", State.COMPLETE))
        return stand

    shard._data._markers = noted_later  # type: ignore[assignment]
    before = bench.loop.time()
    assert await shard.fence([key(0)]) == {key(0): 0}
    assert bench.loop.time() - before >= 1.0


@scenario
async def test_a_partition_without_write_right_is_fenced_later(bench: Bench) -> None:
    """Goal: the others are fenced as fast as ever; it is not, and reports why, until it may be.

    However often that is tried, it uses up no epoch.
    """
    shard = await bench.shard()
    bench.deny()
    before = bench.loop.time()
    refused = {READ_ONLY: Refusal(TOPIC_AUTHORIZATION_FAILED)}
    found = await shard.fence([key(0), READ_ONLY, key(1)])
    assert found == {key(0): 0, key(1): 0, **refused}
    assert bench.loop.time() - before < SETTINGS.marker_deadline_s
    epoch = bench.cluster.coordinator._ids["twinlog.5"].epoch
    for _ in range(3):
        assert await shard.fence([READ_ONLY]) == refused
    assert bench.cluster.coordinator._ids["twinlog.5"].epoch == epoch
    assert bench.cluster.log(READ_ONLY).end == 0
    bench.allow()
    assert await shard.fence([READ_ONLY]) == {READ_ONLY: 0}
    late = batch(0, shard.data_producer, 0, 0)._replace(partition=READ_ONLY)
    assert await send_batch(bench, late) == INVALID_PRODUCER_EPOCH
    await bench.settle()
    assert (bench.end(0), bench.end(1), bench.cluster.log(READ_ONLY).end) == (1, 1, 1)


@scenario
async def test_the_epoch_of_a_refused_fence_is_invalid_after_a_takeover(bench: Bench) -> None:
    """Goal: the epoch that was kept for it is refused like any other of a former owner."""
    former = await bench.shard(bench.destination("former"))
    bench.deny()
    await former.fence([READ_ONLY])
    await bench.shard()
    bench.allow()
    with pytest.raises(Fenced):
        await former.fence([READ_ONLY])
    await bench.settle()
    assert bench.cluster.log(READ_ONLY).end == 0


class Blind(ModelDestination):
    """A destination on which the log of one partition cannot be read."""

    code = TOPIC_AUTHORIZATION_FAILED

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        found = await super().read(partitions, partition_max_bytes=partition_max_bytes)
        nothing = Fetched(self.code, -1, -1, -1, (), memoryview(b""))
        return {p: nothing if p == key(1) else one for p, one in found.items()}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (TOPIC_AUTHORIZATION_FAILED, {key(1): Refusal(TOPIC_AUTHORIZATION_FAILED)}),
        (NOT_LEADER, {}),
    ],
)
def test_an_unreadable_partition_delays_no_other_fence(
    code: int, told: dict[TopicPartition, Refusal]
) -> None:
    """Goal: whether it is fenced already is unknown, so it is not fenced, and reports why."""

    @scenario
    async def story(bench: Bench) -> None:
        destination = Blind(bench.cluster, bench.network, "owner")
        destination.code = code
        shard = await bench.shard(destination)
        for partition in (0, 1):
            assert await send_batch(bench, batch(partition, shard.data_producer, 0, 0)) == 0
        assert await shard.fence([key(0), key(1)]) == {key(0): 1, **told}
        assert (bench.end(0), bench.end(1)) == (2, 1)

    story()


@scenario
async def test_a_deleted_topic_needs_no_fence(bench: Bench) -> None:
    """Goal: a deleted topic does not block the removal of itself and others for ever.

    Its deletion is accepted after a lease: a broker with stale metadata does not know a new topic
    yet.
    """
    shard = await bench.shard()
    gone = TopicPartition("gone", 0)
    assert await shard.fence([gone, key(0)]) == {key(0): 0}
    assert await shard.fence([gone]) == {}
    await asyncio.sleep(SETTINGS.lease_s)
    assert await shard.fence([gone]) == {gone: -1}
    assert await shard.fence([gone]) == {}, "it may have been there since"
    bench.cluster.create_topic(gone.topic, 1)
    assert await shard.fence([gone]) == {gone: 0}, "it was only not known"


def test_an_emptied_control_batch_does_not_end_the_search_for_fences() -> None:
    """Goal: it has no key that gives its type, and does not end the search for fences."""
    emptied = batch_builders.altered(
        batch_builders.batch([batch_builders.record(0)], attributes=1 << 5), num_records=0, body=b""
    )
    [header] = batches(memoryview(emptied))
    assert _stored(header, memoryview(emptied)) == (header, False)


@scenario
async def test_a_recreated_topic_gets_no_fence(bench: Bench) -> None:
    """Goal: it is no longer the mirror's; its removal still ends, and that of others at once.

    The recreation is accepted after it was reported for a lease: a broker with stale metadata may
    report a former topic.
    """
    other = TopicPartition("other", 0)
    ids = {
        key(0).topic: bench.cluster.topics[key(0).topic].topic_id,
        other.topic: bench.cluster.create_topic(other.topic).topic_id,
    }
    shard = await bench.shard()
    bench.cluster.delete_topic(other.topic)
    bench.cluster.create_topic(other.topic)
    assert await shard.fence([other, key(0)], ids) == {key(0): 0}
    await asyncio.sleep(SETTINGS.lease_s)
    assert await shard.fence([other, key(0)], ids) == {other: -1, key(0): 0}
    assert bench.cluster.log(other).end == 0
    assert await shard.fence([other], {}) == {other: 0}, "where its id is not known"


@scenario
async def test_a_stale_topic_id_from_a_broker_only_delays_the_fence(bench: Bench) -> None:
    """Goal: if a broker reports a topic older than the mirror's, it is asked again, then fenced."""
    topic = bench.cluster.topics[key(0).topic]
    ids = {key(0).topic: topic.topic_id}
    shard = await bench.shard()
    topic.topic_id, now = uuid4(), topic.topic_id
    for _ in range(3):
        assert await shard.fence([key(0)], ids) == {}
    topic.topic_id = now
    assert await shard.fence([key(0)], ids) == {key(0): 0}


@scenario(markers_allowed=True)
async def test_a_fence_with_markers_is_recognised_without_the_right(bench: Bench) -> None:
    """Goal: mirroring ended at the fence of a former owner, which was able to write markers.

    The next owner took the fence's second record for one of the mirror's, and the end for a higher
    one.
    """
    former = await bench.shard()
    assert await former.fence([key(0)]) == {key(0): 0}
    assert bench.end(0) == 2
    bench.cluster.markers_allowed = False
    owner = await bench.shard()
    owner.markers.allowed = False
    assert await owner.fence([key(0)]) == {key(0): 0}


@scenario
async def test_the_first_of_many_fences_is_the_end_of_mirroring(bench: Bench) -> None:
    """Goal: mirroring ended at the first fence, however often a stop was tried."""
    for _ in range(70):
        shard = await bench.shard()
        assert await shard.fence([key(0)]) == {key(0): 0}
        await shard.close()
    assert bench.end(0) >= 70


@scenario
async def test_an_owner_with_an_expired_lease_cannot_fence(bench: Bench) -> None:
    """Goal: an owner whose lease has ended cannot stop what another one owns now."""
    lapsed = ModelDestination(bench.cluster, bench.network, "former", lambda: False)
    shard = await bench.shard()
    former = Shard(5, "twinlog", lapsed, SETTINGS)
    former._data.producer_id = shard.data_producer
    with pytest.raises(Fenced):
        await former.fence([key(0)])
    await bench.settle()
    assert bench.end(0) == 0


@scenario
async def test_the_fence_of_a_former_owner_is_found(bench: Bench) -> None:
    """Goal: mirroring ended where a former owner has fenced the log, even if it is fenced again."""
    former = await bench.shard()
    assert await send_batch(bench, batch(0, former.data_producer, 0, 0)) == 0
    assert await former.fence([key(0)]) == {key(0): 1}
    owner = await bench.shard()
    assert await owner.fence([key(0), key(1)]) == {key(0): 1, key(1): 0}
    assert await former.fence([key(0)]) == {key(0): 1}
    await bench.settle()
    assert (bench.end(0), bench.end(1)) == (4, 1), "each owner's fence, and no other"


@pytest.mark.parametrize("markers_allowed", [True, False])
@pytest.mark.parametrize("another_owner", [True, False])
def test_the_fence_at_a_gap_is_not_where_mirroring_ended(
    another_owner: bool, markers_allowed: bool
) -> None:
    """Goal: a gap of one offset, which no record follows, is mirrored: the stop counts it.

    The stop's own fences keep their end, however often it is repeated.
    """

    @scenario(markers_allowed=markers_allowed)
    async def story(bench: Bench) -> None:
        shard = await bench.shard()
        for sequence in range(2):
            one = batch(0, shard.data_producer, 0, sequence)
            assert await send_batch(bench, one) == 0
        gap = Gap(Offset(2), Offset(3), seen=False)
        assert ends(await shard.fence_data({key(0): gap})) == {0: 3}
        if another_owner:
            shard = await bench.shard()
        for _ in range(2):
            assert await shard.fence([key(0)], begun=[key(0)]) == {key(0): 3}
        following = await bench.shard()
        assert await following.fence([key(0)]) == {key(0): 2}, "the safe end of what is unknown"

    story()


@scenario
async def test_a_later_stop_does_not_end_at_the_fence_of_an_earlier_one(bench: Bench) -> None:
    """Goal: mirroring has passed the first fence, so the second stop ends behind it."""
    shard = await bench.shard()
    assert await shard.fence([key(0)], begun=[key(0)]) == {key(0): 0}
    shard.resumed([key(0)])
    assert await shard.fence([key(0)], begun=[key(0)]) == {key(0): 1}
    assert await shard.fence([key(0)], begun=[key(0)]) == {key(0): 1}


@scenario
async def test_a_fence_of_unknown_outcome_is_found_by_the_next_attempt(bench: Bench) -> None:
    """Goal: where this owner has begun the stop, its own first fence counts, late as it may be."""
    shard = await bench.shard()
    destination = leads_away(bench, shard)
    assert await shard.fence([key(0), key(1)], begun=[key(0), key(1)]) == {}
    del destination.empty_transaction
    bench.cluster.partition(key(1)).leader = 2
    found = await shard.fence([key(0), key(1)], begun=[key(0), key(1)])
    assert found == {key(0): 0, key(1): 0}
    assert bench.end(0) > 1, "fenced again"


@scenario
async def test_a_batch_from_before_a_second_stop_is_refused(bench: Bench) -> None:
    """Goal: a late batch is refused if mirroring restarted, and stopped before anything landed.

    It was sent at a position whose epoch is that of the former fence.
    """
    shard = await bench.shard()
    assert await shard.fence([key(0)]) == {key(0): 0}
    [state] = bench.cluster.producers(key(0)).active
    late = batch(0, shard.data_producer, state.epoch, 0)
    assert await shard.fence([key(0)]) == {key(0): 0}
    assert await send_batch(bench, late) == INVALID_PRODUCER_EPOCH


@scenario
async def test_an_interrupted_fence_is_completed_and_found(bench: Bench) -> None:
    """Goal: its transaction is ended first, so that its marker is seen: mirroring ended there."""
    former = bench.destination("former")
    identity = await former.init_producer("twinlog.5")
    assert bench.cluster.coordinator.add_partitions(*identity, [key(0)]) == 0
    owner = await bench.shard()
    assert await owner.fence([key(0)]) == {key(0): 0}
    await bench.settle()
    assert bench.end(0) == 2


async def leave_open_transaction_of_former_owner(bench: Bench) -> None:
    """Let a former owner die within a transaction of partition 0."""
    coordinator = bench.cluster.coordinator
    _, producer_id, epoch = coordinator.init("twinlog.5.filler.0")
    coordinator.add_partitions("twinlog.5.filler.0", producer_id, epoch, [key(0)])


@scenario
async def test_a_former_owners_open_transaction_ends_before_the_fence(bench: Bench) -> None:
    """A former owner died in a transaction: otherwise its marker would land behind the fence."""
    await leave_open_transaction_of_former_owner(bench)
    shard = await bench.shard()
    assert await shard.fence([key(0)]) == {key(0): 1}
    await asyncio.sleep(2 * bench.cluster.timings.transaction_timeout)
    assert bench.end(0) == 2


@scenario
async def test_a_former_owners_open_transaction_ends_before_a_fenced_gap(
    bench: Bench,
) -> None:
    """Goal: the fence does not fill a gap of one offset while a former owner's marker may arrive.

    It used to: data followed, and the marker landed behind it. Seed 100197 of the simulation.
    """
    await leave_open_transaction_of_former_owner(bench)
    shard = await bench.shard()
    found = await shard.fence_data(gaps((0, 1)))
    assert found[key(0)].error, "his marker stands where the gap began"
    assert bench.end(0) == 1
    await bench.settle()
    await asyncio.sleep(2 * bench.cluster.timings.transaction_timeout)
    assert bench.end(0) == 1


@scenario(markers_allowed=True)
async def test_a_former_owners_open_transaction_ends_before_written_markers(bench: Bench) -> None:
    """Goal: the right may have been granted since the former owner filled with transactions."""
    await leave_open_transaction_of_former_owner(bench)
    shard = await bench.shard()
    await shard.fill_gaps(gaps((0, 1)))
    assert bench.end(0) == 1
    await bench.settle()
    await asyncio.sleep(2 * bench.cluster.timings.transaction_timeout)
    assert bench.end(0) == 1


class Held(ModelDestination):
    """A destination whose next WriteTxnMarkers is held by the network, and delivered later."""

    def hold(self) -> Callable[[], object]:
        """Hold the next request; return a function that delivers it."""
        held: list[Callable[[], object]] = []
        answering = self.write_markers

        async def lost(
            requests: Sequence[MarkerRequest], *, committed: bool = False, **_: object
        ) -> Mapping[TopicPartition, int]:
            self.write_markers = answering  # type: ignore[method-assign]
            records = {
                partition: control_records(
                    markers, Marker(*request.producer[1:], committed=committed)
                )
                for request in requests
                for partition, markers in request.partitions.items()
            }
            held.append(partial(self.cluster.write_markers, records))
            raise Disconnected("the answer was lost")

        self.write_markers = lost  # type: ignore[method-assign]
        return lambda: [deliver() for deliver in held]


async def holding(bench: Bench, start: int = 0, end: int = 1) -> tuple[Shard, Callable[[], object]]:
    """Return a shard whose request to fill this gap of partition 0 is held, and its delivery."""
    destination = Held(bench.cluster, bench.network, "owner")
    shard = await bench.shard(destination)
    if start > bench.end(0):
        assert ends(await shard.markers.write(gaps((0, start)))) == {0: 1}
        assert ends(await shard.markers.write(gaps((1, start)))) == {0: start}
    deliver = destination.hold()
    with pytest.raises(Disconnected):
        await shard.markers.write(gaps((start, end)))
    return shard, deliver


@scenario(markers_allowed=True)
async def test_a_late_marker_request_is_refused_after_its_gap_was_filled(bench: Bench) -> None:
    """Goal: it arrives when the gap is full, and moves no later offset (E1)."""
    shard, deliver = await holding(bench)
    assert ends(await shard.markers.write(gaps((0, 1)))) == {0: 1}
    deliver()
    assert bench.end(0) == 1


@scenario(markers_allowed=True)
async def test_a_repeated_marker_request_is_refused_after_the_late_first_copy(bench: Bench) -> None:
    """Goal: the late one arrives just before the gap is filled again, which then is full (E1)."""
    shard, deliver = await holding(bench)
    write = shard._destination.write_markers

    async def just_after(*args: object, **kwargs: object) -> object:
        deliver()
        return await write(*args, **kwargs)  # type: ignore[arg-type]

    shard._destination.write_markers = just_after  # type: ignore[method-assign,assignment]
    assert ends(await shard.markers.write(gaps((0, 1)))) == {0: 1}
    assert bench.end(0) == 1


@pytest.mark.parametrize("come_first", [False, True])
def test_a_late_bulk_marker_request_fills_the_gap_only_to_its_end(come_first: bool) -> None:
    """Goal: however many of them have landed, the gap is filled to its end and not beyond it."""

    @scenario(markers_allowed=True)
    async def story(bench: Bench) -> None:
        shard, deliver = await holding(bench, 10, 20)
        if come_first:
            deliver()
            assert bench.end(0) == 20
        end = ends(await shard.markers.write(gaps((10, 20))))[0]
        assert end == (20 if come_first else 11)
        deliver()
        if not come_first:
            assert ends(await shard.markers.write(gaps((end, 20)))) == {0: 20}
        deliver()
        assert bench.end(0) == 20

    story()


@scenario(markers_allowed=True)
async def test_one_of_several_late_requests_for_an_offset_is_appended(bench: Bench) -> None:
    """Goal: of all requests that were ever sent for one offset, one lands, in any order."""
    for order in itertools.permutations(range(3)):
        before = bench.end(0)
        held = [await holding(bench, before, before + 1) for _ in range(3)]
        for at in order:
            held[at][1]()
        assert bench.end(0) == before + 1, order


@scenario(markers_allowed=True)
async def test_a_late_marker_request_is_refused_after_a_stop(bench: Bench) -> None:
    """Goal: requests of any owner land neither behind STOPPED nor among users' records."""
    _, deliver = await holding(bench)
    owner, deliver_own = await holding(bench)
    assert await owner.fence([key(0)]) == {key(0): 0}
    assert bench.end(0) == 2, "the fence of the data, and that of the markers"
    deliver()
    deliver_own()
    assert bench.end(0) == 2


class PartlyForbidden(ModelDestination):
    """A destination whose brokers answer WriteTxnMarkers as the test says, by partition."""

    codes: Mapping[TopicPartition, int] = {}

    async def write_markers(
        self, requests: Sequence[MarkerRequest], **how: Any
    ) -> Mapping[TopicPartition, int]:
        answers = await super().write_markers(requests, **how)
        return {p: self.codes.get(p, code) for p, code in answers.items()}


@pytest.mark.parametrize("refusal", [31, 35])
@pytest.mark.parametrize("forbidden_before", [True, False])
def test_a_broker_that_forbids_markers_proves_nothing_of_others(
    refusal: int, forbidden_before: bool
) -> None:
    """Goal: a stop waits for each leader's own answer while a right is being withdrawn.

    One broker does not allow markers any more; the answer of another one was lost. The marker, or
    an earlier one, may still land there.
    """

    @scenario(markers_allowed=True)
    async def story(bench: Bench) -> None:
        destination = PartlyForbidden(bench.cluster, bench.network, "owner")
        shard = await bench.shard(destination)
        shard.markers.allowed = not forbidden_before
        destination.codes = {key(0): refusal, key(1): 13}
        assert await shard.markers.fence([key(0), key(1)]) == {key(0): 0, key(1): 13}
        assert await shard.markers.fence([key(1)]) == {key(1): 13}
        destination.codes = {key(0): refusal, key(1): refusal}
        assert await shard.markers.fence([key(0), key(1)]) == {key(0): 0, key(1): 0}

    story()


@scenario(markers_allowed=True)
async def test_a_broker_that_forbids_markers_hides_no_unknown_last_marker(bench: Bench) -> None:
    """Goal: a partition whose last marker cannot be read is not taken for fenced."""
    destination = PartlyForbidden(bench.cluster, bench.network, "owner")
    shard = await bench.shard(destination)
    destination.codes = {key(0): 31}
    bench.cluster.partition(key(1)).leader = -1
    codes = await shard.markers.fence([key(0), key(1)])
    assert codes[key(0)] == 0
    assert codes[key(1)] == NOT_LEADER


@scenario(markers_allowed=True)
async def test_markers_are_fenced_only_if_a_request_may_be_unanswered(bench: Bench) -> None:
    """Goal: one control record is enough if the last marker is its own, or no owner came before."""
    shard = await bench.shard()
    await shard.markers.write(gaps((0, 1)))
    shard.markers.first_owned([key(1)])
    assert await shard.fence([key(0), key(1)]) == {key(0): 1, key(1): 0}
    assert (bench.end(0), bench.end(1)) == (2, 1)


@scenario(markers_allowed=True)
async def test_the_end_of_mirroring_is_found_behind_both_fences(bench: Bench) -> None:
    """Goal: behind both fences, the next owner still finds where mirroring ended."""
    former = await bench.shard()
    assert await send_batch(bench, batch(0, former.data_producer, 0, 0)) == 0
    assert await former.fence([key(0)]) == {key(0): 1}
    owner = await bench.shard()
    assert await owner.fence([key(0)]) == {key(0): 1}


@scenario(markers_allowed=True)
async def test_gap_markers_after_an_earlier_stop_are_no_fence(bench: Bench) -> None:
    """Goal: after mirroring again up to a gap, the log ends in markers that are not of a stop."""
    shard = await bench.shard()
    assert await shard.fence([key(0)]) == {key(0): 0}
    assert ends(await shard.markers.write(gaps((2, 4)))) == {0: 4}
    assert await shard.fence([key(0)]) == {key(0): 4}


@scenario(markers_allowed=True)
async def test_missing_markers_are_written_again(bench: Bench) -> None:
    """Goal: the broker answers 0 although some markers are missing; the log end shows it (A2)."""
    shard = await bench.shard()
    assert ends(await shard.markers.write(gaps((0, 40)))) == {0: 1}
    bench.cluster._in_sync = lambda markers: markers[:3]  # type: ignore[method-assign]
    assert ends(await shard.markers.write(gaps((1, 40)))) == {0: 4}
    del bench.cluster._in_sync
    assert ends(await shard.markers.write(gaps((4, 40)))) == {0: 40}
    assert bench.end(0) == 40


@scenario(markers_allowed=True)
async def test_exhausted_coordinator_epochs_lead_to_a_new_producer_id(bench: Bench) -> None:
    """Goal: another producer id is taken, for which coordinator epochs begin again."""
    bench.cluster.coordinator.first_epoch = 32_760
    shard = await bench.shard()
    shard.markers._lasts[key(0)] = LastMarker(32_760, LAST_COORDINATOR_EPOCH - STEP)
    await shard.markers.producer_id()
    shard.markers._lasts[key(0)] = LastMarker(32_760, LAST_COORDINATOR_EPOCH - STEP)
    assert ends(await shard.markers.write(gaps((0, 3)))) == {0: 3}
    assert ends(await shard.markers.write(gaps((3, 9)))) == {0: 4}
    assert ends(await shard.markers.write(gaps((4, 9)))) == {0: 9}
    ids = {state.producer_id for state in bench.cluster.producers(key(0)).active}
    assert len(ids) == 2


class SlowEpochs(ModelDestination):
    """A coordinator that takes a second for each epoch of the marker id, and may be unreachable."""

    unreachable = False

    async def init_producer(self, transactional_id: str) -> ProducerIdentity:
        if transactional_id.endswith(".marker"):
            await asyncio.sleep(1.0)
            if self.unreachable:
                raise Retriable("the coordinator is unreachable")
        return await super().init_producer(transactional_id)


@contextmanager
def logged(log: logging.Logger) -> Iterator[list[logging.LogRecord]]:
    """Collect what is logged, of any level."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


LEFT = 100
"""Producer epochs that are left when the coordinator epochs end."""


async def nearly_used_up(bench: Bench) -> tuple[Shard, SlowEpochs]:
    """Return a shard that needs another producer id for its next marker on partition 0."""
    bench.cluster.coordinator.first_epoch = LAST_PRODUCER_EPOCH - LEFT
    destination = SlowEpochs(bench.cluster, bench.network, "owner")
    shard = await bench.shard(destination)
    epoch = (await shard.markers._epoch()).epoch
    shard.markers._lasts[key(0)] = LastMarker(epoch, LAST_COORDINATOR_EPOCH - STEP)
    assert ends(await shard.markers.write(gaps((0, 1)))) == {0: 1}
    return shard, destination


@scenario(markers_allowed=True)
async def test_no_round_waits_long_for_another_producer_id(bench: Bench) -> None:
    """Goal: a round ends, so that its partitions can be revoked; the id is taken all the same."""
    shard, _ = await nearly_used_up(bench)
    gap = gaps((1, 2))
    began = bench.loop.time()
    for _ in range(2):
        with pytest.raises(Retriable, match="waits for another producer id"):
            await shard.fill_gaps(gap)
        assert "another producer id of twinlog.5.marker" in shard.markers.held_back
    assert bench.loop.time() - began < 25
    assert bench.end(0) == 1
    await asyncio.sleep(LEFT)
    assert not shard.markers.held_back
    assert ends(await shard.fill_gaps(gap)) == {0: 2}
    ids = {state.producer_id for state in bench.cluster.producers(key(0)).active}
    assert len(ids) == 2


@scenario(markers_allowed=True)
async def test_what_another_producer_id_costs_is_logged_once(bench: Bench) -> None:
    """Goal: what waits, for how long, and that nothing is lost; also if it has to begin again."""
    shard, destination = await nearly_used_up(bench)
    with logged(marker_writer.log) as records:
        for seconds, unreachable in ((40, False), (5, True), (LEFT, False)):
            destination.unreachable = unreachable
            with pytest.raises(Retriable):
                await shard.fill_gaps(gaps((1, 2)))
            await asyncio.sleep(seconds)
        assert ends(await shard.fill_gaps(gaps((1, 2)))) == {0: 2}
    warnings = [one.getMessage() for one in records if one.levelname == "WARNING"]
    assert len(warnings) == 1
    told = re.search(r"wait for about (\d+) s \((\d+) InitProducerId", warnings[0])
    assert told is not None
    assert int(told[2]) == LEFT - marker_writer._SAMPLE
    assert int(told[2]) <= int(told[1]) <= 1.2 * int(told[2])
    assert "nothing is lost" in warnings[0]
    assert [one.levelname for one in records][-1] == "INFO"


@scenario(markers_allowed=True)
async def test_a_closed_shard_takes_no_other_producer_id(bench: Bench) -> None:
    """Goal: an owner that has released its state partition uses up no more of its epochs."""
    shard, _ = await nearly_used_up(bench)
    with pytest.raises(Retriable):
        await shard.fill_gaps(gaps((1, 2)))
    await shard.close()
    assert not shard.markers.held_back
    before = bench.cluster.coordinator._ids["twinlog.5.marker"].epoch
    await asyncio.sleep(20)
    assert bench.cluster.coordinator._ids["twinlog.5.marker"].epoch == before


@scenario(markers_allowed=True)
async def test_no_marker_is_written_while_producer_epochs_are_used_up(bench: Bench) -> None:
    """Goal: one in an epoch far above the last marker's would not exclude others' attempts."""
    shard, destination = await nearly_used_up(bench)
    written: list[int] = []
    write_markers = destination.write_markers

    async def note(
        requests: Sequence[MarkerRequest], **options: Any
    ) -> Mapping[TopicPartition, int]:
        written.extend(request.producer.producer_id for request in requests)
        return await write_markers(requests, **options)

    destination.write_markers = note  # type: ignore[method-assign]
    former = shard.markers._used_up
    while bench.end(0) < 3:
        with suppress(Retriable):
            await shard.fill_gaps(gaps((bench.end(0), 3)))
    assert written
    assert former not in written
