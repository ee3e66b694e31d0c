"""How long a leader remembers a producer: by the records' time, not by their arrival.

And how long a coordinator remembers a transactional id: by its transactions and InitProducerId.
"""

import asyncio
from contextlib import suppress

from contract.bench import (
    Behaviour,
    Bench,
    batch,
    ends_at,
    last_sequence,
    log_end,
    send,
    until,
    values,
)
from contract.kafka_bench import run_on_kafka
from contract.model_bench import HASTY, run_on_model
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

OUT_OF_ORDER = 45
DAY_MS = 86_400_000
TRIES = 10


class HeldUp(Exception):
    """A machine that stalls lets expire what is to be there still: that proves nothing."""


async def _in_time(bench: Bench, behaviour: Behaviour) -> None:
    """Run a behaviour until nothing has held it up."""
    for _ in range(TRIES):
        with suppress(HeldUp):
            await behaviour(bench)
            return
    raise AssertionError(f"held up {TRIES} times")


def _not_yet(bench: Bench, expires_ms: float) -> None:
    """Check, after an answer, that nothing of this time had expired by then."""
    if bench.now_ms() >= expires_ms:
        raise HeldUp


def test_the_model_expires_producers_by_record_timestamp() -> None:
    """Goal: the model forgets producers as the brokers below do."""
    run_on_model(producers_expire_by_record_timestamp, HASTY)
    run_on_model(producers_expire_by_marker_timestamp, HASTY)
    run_on_model(data_does_not_extend_a_transactional_id, HASTY)


def test_a_broker_expires_producers_by_record_timestamp(hasty_kafka: LocalCluster) -> None:
    """Goal: see `producers_expire_by_record_timestamp`."""
    run_on_kafka(hasty_kafka, producers_expire_by_record_timestamp)


def test_a_broker_expires_producers_by_marker_timestamp(hasty_kafka: LocalCluster) -> None:
    """Goal: see `producers_expire_by_marker_timestamp`."""
    run_on_kafka(hasty_kafka, producers_expire_by_marker_timestamp)


def test_data_does_not_keep_a_transactional_id_from_expiring(hasty_kafka: LocalCluster) -> None:
    """Goal: see `data_does_not_extend_a_transactional_id`."""
    run_on_kafka(hasty_kafka, data_does_not_extend_a_transactional_id)


async def _forgotten(bench: Bench, key: TopicPartition, producer: int) -> None:
    async def ask() -> bool:
        return await last_sequence(bench, key, producer) is None

    await until(ask, f"{key} to forget {producer}")


async def producers_expire_by_record_timestamp(bench: Bench) -> None:
    """Old records' producers are forgotten at the next check even if just written; fresh ones stay.

    Producers of records with future timestamps are remembered. A forgotten producer may send any
    sequence and any epoch.
    """
    await _in_time(bench, _expire_by_record_timestamp)


async def _expire_by_record_timestamp(bench: Bench) -> None:
    old, fresh, future = await bench.topic(3)
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    lifetime = int(HASTY.producer_id_expiration * 1000)
    for key, time in ((old, now - DAY_MS), (fresh, now + lifetime), (future, now + 600_000)):
        made = batch(key, values(3), producer_id=producer, epoch=4, sequence=7, timestamp=time)
        assert (await send(bench, made))[0].error == 0
    await _forgotten(bench, old, producer)
    known = await last_sequence(bench, fresh, producer)
    _not_yet(bench, now + 2 * lifetime)
    assert known == (4, 9)
    for key, code in ((old, 0), (fresh, OUT_OF_ORDER)):
        made = batch(key, values(2), producer_id=producer, epoch=4, sequence=1, timestamp=now)
        answer = (await send(bench, made))[0]
        _not_yet(bench, now + 2 * lifetime)
        assert answer.error == code
    # A batch is sent again after its producer was forgotten: it lands twice.
    await _forgotten(bench, fresh, producer)
    made = batch(fresh, values(3), producer_id=producer, epoch=0, sequence=7, timestamp=now)
    end = await log_end(bench, fresh)
    assert (await send(bench, made))[0].base_offset == end
    assert await last_sequence(bench, future, producer) == (4, 9)


async def producers_expire_by_marker_timestamp(bench: Bench) -> None:
    """A marker counts as fresh when it is written, and so keeps the state before it."""
    await _in_time(bench, _expire_by_marker_timestamp)


async def _expire_by_marker_timestamp(bench: Bench) -> None:
    [key] = await bench.topic()
    identity = await bench.destination.init_producer(bench.name("data"))
    producer = identity.producer_id
    made = batch(
        key,
        values(3),
        producer_id=producer,
        epoch=identity.epoch,
        timestamp=bench.now_ms() - DAY_MS,
    )
    await send(bench, made)
    expires_ms = bench.now_ms() + HASTY.producer_id_expiration * 1000
    await bench.destination.empty_transaction(identity, [key])
    await ends_at(bench, key, 4)
    known = await last_sequence(bench, key, producer)
    _not_yet(bench, expires_ms)
    assert known in {(identity.epoch, 2), (identity.epoch, -1)}  # -1: a check ran in between
    await asyncio.sleep(HASTY.producer_id_expiration / 6)
    later = await last_sequence(bench, key, producer)
    _not_yet(bench, expires_ms)
    assert later == known
    await _forgotten(bench, key, producer)


async def data_does_not_extend_a_transactional_id(bench: Bench) -> None:
    """An id expires even if its producer writes data; then it gets another producer id.

    A fence of the new producer id refuses nothing of the former one. An id that is requested again
    in time stays.
    """
    await _in_time(bench, _expire_in_spite_of_data)


async def _expire_in_spite_of_data(bench: Bench) -> None:
    [key] = await bench.topic()
    left, kept = bench.name("left"), bench.name("kept")
    first = await bench.destination.init_producer(left)
    asked_ms = bench.now_ms()
    same = await bench.destination.init_producer(kept)
    producer = first.producer_id
    for number in range(6):
        made = batch(
            key, values(1), producer_id=producer, epoch=0, sequence=number, timestamp=bench.now_ms()
        )
        assert (await send(bench, made))[0].error == 0
        await asyncio.sleep(HASTY.transactional_id_expiration / 4)
        again = await bench.destination.init_producer(kept)
        _not_yet(bench, asked_ms + HASTY.transactional_id_expiration * 1000)
        asked_ms = bench.now_ms()
        assert again.producer_id == same.producer_id
    for _ in range(TRIES):  # brokers look for expired ids from time to time
        second = await bench.destination.init_producer(left)
        if second.producer_id != producer:
            break
        await asyncio.sleep(1.5 * HASTY.transactional_id_expiration)
    assert second.producer_id != producer
    end = await log_end(bench, key)
    await bench.destination.empty_transaction(second, [key])
    await ends_at(bench, key, end + 1)
    made = batch(
        key, values(1), producer_id=producer, epoch=0, sequence=6, timestamp=bench.now_ms()
    )
    assert (await send(bench, made))[0].base_offset == end + 1
