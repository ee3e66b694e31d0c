"""Three brokers: log end offsets above the high watermark, and leader changes."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from confluent_kafka import Producer
from waiting import until_async

from contract.bench import (
    Bench,
    batch,
    ends_at,
    fetched,
    last_sequence,
    leader_of,
    log_end,
    send,
    until,
    values,
)
from contract.kafka_bench import KafkaBench, run_on_kafka
from contract.model_bench import ModelBench, run_on_model
from twinlog.engines.ports import LeaderReport
from twinlog.kafka.errors import Fenced, Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, FetchPosition, LeaderEpoch, TopicPartition
from twinlog.local.cluster import LocalCluster


def _run(local: LocalCluster, behaviour: Callable[[KafkaBench], Awaitable[None]]) -> None:
    async def with_real(bench: Bench) -> None:
        assert isinstance(bench, KafkaBench)
        await behaviour(bench)

    run_on_kafka(local, with_real)


def _brokers(local: LocalCluster) -> list[int]:
    return [broker.node_id for broker in local.brokers]


def test_the_log_end_offset_may_exceed_the_high_watermark(own_trio: LocalCluster) -> None:
    """Goal: ListOffsets as replica -2 returns the leader's own end while a follower is stopped."""

    async def body(bench: KafkaBench) -> None:
        [key] = await bench.topic()
        await send(bench, batch(key, values(4), producer_id=10**9, timestamp=bench.now_ms()))
        leader = await leader_of(bench, key)
        follower = next(node for node in _brokers(own_trio) if node != leader)
        producer = Producer({"bootstrap.servers": own_trio.bootstrap_servers, "acks": "1"})
        await asyncio.to_thread(
            producer.list_topics, key.topic, 120
        )  # before the time limit starts

        async def apart() -> tuple[int, int]:
            own_trio.pause(follower)
            try:
                producer.produce(key.topic, b"above", partition=key.partition)
                assert await asyncio.to_thread(producer.flush, 120) == 0
                ends = (await bench.destination.log_ends([key]))[key]
                bounds = (await bench.destination.bounds([key]))[key]
            finally:
                own_trio.resume(follower)
            return ends.log_end, bounds.high_watermark

        async def together() -> bool:
            bounds = (await bench.destination.bounds([key]))[key]
            return bounds.high_watermark == (await bench.destination.log_ends([key]))[key].log_end

        # On a slow machine the controller may fence the follower before both have answered.
        for end in range(5, 15):
            if (found := await apart()) == (end, end - 1):
                break
            await until_async(together)
        assert found == (end, end - 1)

        async def caught_up() -> bool:
            found = (await bench.destination.bounds([key]))[key]
            return found.error == 0 and found.high_watermark == end

        await until(caught_up, "the follower to follow")

    _run(own_trio, body)


def test_log_end_and_producer_state_survive_the_death_of_the_leader(own_trio: LocalCluster) -> None:
    """Goal: after kill -9 of the leader the new one knows log end, sequences and duplicates."""

    async def body(bench: KafkaBench) -> None:
        [key] = await bench.topic()
        made = [
            batch(key, values(2), producer_id=10**9, epoch=2, sequence=2 * at, timestamp=now)
            for now in [bench.now_ms()]
            for at in range(6)
        ]
        assert {a.error for a in await send(bench, *made)} == {0}
        before = (await bench.destination.log_ends([key]))[key]
        leader = await leader_of(bench, key)
        own_trio.kill(leader)
        try:
            await _led_by_another(bench, key, leader)
            after = (await bench.destination.log_ends([key]))[key]
            assert (after.error, after.log_end) == (0, before.log_end)
            assert after.leader_epoch >= before.leader_epoch
            assert await last_sequence(bench, key, 10**9) == (2, 11)
            assert [a.base_offset for a in [(await send(bench, m))[0] for m in made[1:]]] == [
                2, 4, 6, 8, 10,
            ]  # fmt: skip
        finally:
            own_trio.start_broker(leader)

    _run(own_trio, body)


async def _led_by_another(bench: Bench, key: TopicPartition, former: int) -> None:
    async def ask() -> bool:
        return await leader_of(bench, key) not in (-1, former)

    await until(ask, f"another leader of {key}")


async def lost_end_is_reported(bench: Bench, key: TopicPartition, before: LeaderReport) -> None:
    """A reader that had read up to 6 learns that all from 4 on is lost, also after regrowth.

    Two records were lost at 4; the log has not been written since.
    """
    leader = (await bench.source.leaders([key.topic]))[key]
    assert leader.epoch > before.epoch

    async def told(*position: int) -> Fetched:
        return await fetched(bench, leader.node, key, FetchPosition(*position))

    assert (await told(6, before.epoch, leader.epoch)).diverging == EpochEnd(before.epoch, 4)
    again = [
        batch(key, values(2), producer_id=10**9 + 1, sequence=2 * at, timestamp=bench.now_ms())
        for at in range(2)
    ]
    assert {a.error for a in await send(bench, *again)} == {0}

    async def replicated() -> bool:
        return (await bench.source.bounds([key]))[key].last_stable == 8

    await until(replicated, "the log to grow past what was lost")
    found = await told(6, before.epoch, leader.epoch)
    assert (found.error, found.diverging, len(found.records)) == (0, EpochEnd(before.epoch, 4), 0)

    async def alone(last_epoch: LeaderEpoch) -> Fetched:
        how = {"max_wait_ms": 0, "partition_max_bytes": 1 << 20}
        return (await bench.source.read_alone(key, 6, **how, last_epoch=last_epoch)).fetched

    found = await alone(LeaderEpoch(before.epoch))
    assert (found.error, found.diverging, len(found.records)) == (0, EpochEnd(before.epoch, 4), 0)
    found = await alone(LeaderEpoch(leader.epoch))
    assert found.diverging is None
    assert len(found.records) > 0
    found = await told(6)
    assert [h.next_offset for h in batches(found.records)] == [8]  # the loss is not reported
    assert {h.leader_epoch for h in batches(found.records)} == {leader.epoch}
    found = await told(6, leader.epoch, leader.epoch)
    assert (found.error, found.diverging) == (0, None)
    assert (await told(6, before.epoch, before.epoch)).error == 74


def test_the_model_reports_a_lost_log_end_to_a_fetch() -> None:
    """Goal: see `lost_end_is_reported`; on real brokers in the test that follows."""

    async def body(bench: Bench) -> None:
        assert isinstance(bench, ModelBench)
        [key] = await bench.topic()
        await send(bench, batch(key, values(4), producer_id=10**9, timestamp=bench.now_ms()))
        await send(
            bench, batch(key, values(2), producer_id=10**9, sequence=4, timestamp=bench.now_ms())
        )
        before = (await bench.source.leaders([key.topic]))[key]
        bench.cluster.move_leader(key, lose=2)
        await _led_by_another(bench, key, before.node)
        await lost_end_is_reported(bench, key, before)

    run_on_model(body, nodes=(1, 2, 3))


async def nothing_lands(
    bench: Bench, keys: Sequence[TopicPartition], restore: Callable[[], Awaitable[None]]
) -> None:
    """With too few in-sync replicas a batch is refused, and a marker is late, until `restore`.

    The first key's partition has too few, the second one's has enough. A transaction of both is
    incomplete until then: its id gets no other epoch.
    """
    short, other = keys

    async def refused() -> bool:
        probe = batch(short, values(1), producer_id=10**9, timestamp=bench.now_ms())
        return (await send(bench, probe))[0].error == 19

    await until(refused, "an append to be refused")  # a broker learns of it a moment later

    async def lacks(expected: Sequence[TopicPartition]) -> bool:
        return list(await bench.destination.lacking_replicas(keys)) == list(expected)

    await until(lambda: lacks([short]), "metadata without the replica")
    end = await log_end(bench, short)
    first = batch(short, values(2), producer_id=10**9 + 1, timestamp=bench.now_ms())
    assert [(await send(bench, first))[0].error for _ in range(2)] == [19, 19]
    producer = await bench.destination.init_producer(bench.name("fence"))
    codes = await bench.destination.empty_transaction(producer, keys)
    assert codes == dict.fromkeys(keys, 0)
    await ends_at(bench, other, 1)
    renewal = asyncio.ensure_future(bench.destination.init_producer(producer.transactional_id))
    assert not (await asyncio.wait([renewal], timeout=2.0))[0]
    assert await log_end(bench, short) == end
    await restore()
    try:
        renewed = await renewal
    except Retriable:  # on a busy machine, to restore takes longer than a client waits
        renewed = await bench.destination.init_producer(producer.transactional_id)
    assert renewed.epoch == producer.epoch + 1
    await until(lambda: lacks([]), "metadata with all replicas")
    assert await log_end(bench, short) == end + 1
    assert [(await send(bench, first))[0][:2] for _ in range(2)] == [(0, end + 1)] * 2


def test_nothing_lands_in_the_model_with_too_few_in_sync_replicas() -> None:
    """Goal: see `nothing_lands`; on real brokers in the test that follows."""

    async def body(bench: Bench) -> None:
        assert isinstance(bench, ModelBench)
        keys = await bench.topic(2)
        bench.cluster.lack_replicas(keys[0], 1000.0)

        async def restore() -> None:
            bench.cluster.end_lacks()

        await nothing_lands(bench, keys, restore)

    run_on_model(body)


@pytest.mark.long
def test_nothing_lands_with_too_few_in_sync_replicas(own_trio: LocalCluster) -> None:
    """Goal: a batch is refused before it is appended, and the marker follows later."""

    async def body(bench: KafkaBench) -> None:
        [short] = await bench.topic(config={"min.insync.replicas": "3"})
        [other] = await bench.topic(config={"min.insync.replicas": "1"})
        leaders = {await leader_of(bench, short), await leader_of(bench, other)}
        killed = next(node for node in _brokers(own_trio) if node not in leaders)
        own_trio.kill(killed)

        async def restore() -> None:
            await asyncio.to_thread(own_trio.start_broker, killed)

        try:
            await nothing_lands(bench, [short, other], restore)
        finally:
            if not own_trio.alive(killed):
                own_trio.start_broker(killed)

    _run(own_trio, body)


def test_an_unclean_election_rewinds_log_end_and_sequence_together(own_trio: LocalCluster) -> None:
    """Goal: lost records are lost from the producer state too: log end and sequence agree."""

    async def body(bench: KafkaBench) -> None:
        [key] = await bench.topic(
            config={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        )
        made = [
            batch(key, values(2), producer_id=10**9, sequence=2 * at, timestamp=bench.now_ms())
            for at in range(4)
        ]
        await send(bench, *made[:2])
        leader = await leader_of(bench, key)
        others = [node for node in _brokers(own_trio) if node != leader]
        for node in others:
            own_trio.kill(node)

        async def alone() -> bool:
            return (await send(bench, made[2]))[0].error == 0

        try:
            before = (await bench.source.leaders([key.topic]))[key]
            await until(alone, "the leader to go on alone")
            own_trio.kill(leader)
            for node in others:
                own_trio.start_broker(node)
            await _led_by_another(bench, key, leader)
            assert await log_end(bench, key) == 4
            assert await last_sequence(bench, key, 10**9) == (0, 3)
            await lost_end_is_reported(bench, key, before)
        finally:
            for node in _brokers(own_trio):
                if not own_trio.alive(node):
                    own_trio.start_broker(node)

    _run(own_trio, body)


@pytest.mark.long
def test_markers_are_never_lost_and_may_be_written_twice(own_trio: LocalCluster) -> None:
    """Goal: leaders that die (kill -9) while empty transactions end lose no marker.

    The coordinator writes a marker again if its write was not confirmed, so there may be more
    control records than transactions. The test prints how many, and asserts the invariants.
    """

    async def body(bench: KafkaBench) -> None:
        keys = await bench.topic(24)
        producer = await bench.destination.init_producer(bench.name("filler"))
        done = 0
        stop = asyncio.Event()

        async def fill() -> None:
            nonlocal done
            while not stop.is_set():
                await bench.destination.empty_transaction(producer, keys)
                done += 1

        filling = asyncio.ensure_future(fill())
        try:
            for node in _brokers(own_trio):
                await asyncio.sleep(2.0)
                own_trio.kill(node)
                await asyncio.sleep(2.0)
                await asyncio.to_thread(own_trio.start_broker, node)
        finally:
            stop.set()
        with suppress(Retriable, Fenced):
            await filling

        async def complete() -> bool:  # its coordinator was killed last
            with suppress(Retriable):
                await bench.destination.init_producer(producer.transactional_id)
                return True
            return False

        await until(complete, "the end of the last transaction")
        ends = [await log_end(bench, key) for key in keys]
        sys.stdout.write(f"{done} transactions answered, log ends {sorted(ends)}\n")
        assert min(ends) >= done

    _run(own_trio, body)
