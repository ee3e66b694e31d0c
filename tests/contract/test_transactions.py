"""Fillers and fences: what transactions leave in a log, and when."""

import asyncio

import pytest

from contract.bench import (
    Bench,
    batch,
    behaviour,
    content,
    empty_transactions,
    ends_at,
    log_end,
    send,
    values,
)
from contract.kafka_bench import KafkaBench, run_on_kafka
from twinlog.engines.ports import MarkerRequest, Markers
from twinlog.kafka.errors import Fenced
from twinlog.kafka.requests.transactions import ProducerId, add_partitions_to_txn
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

UNKNOWN_TOPIC_OR_PARTITION = 3


@behaviour
async def test_an_empty_transaction_fills_one_offset_of_each_partition(bench: Bench) -> None:
    """Goal: each named partition gets one control record, no other partition gets any."""
    keys = await bench.topic(5)
    await empty_transactions(bench, bench.name("filler"), keys[:4], 3)
    for key in keys[:4]:
        await ends_at(bench, key, 3)
        headers = await content(bench, key)
        assert [(h.base_offset, h.is_control, h.num_records) for h in headers] == [
            (0, True, 1),
            (1, True, 1),
            (2, True, 1),
        ]
    assert await log_end(bench, keys[4]) == 0


@behaviour
async def test_end_txn_is_answered_before_the_markers_are_written(bench: Bench) -> None:
    """Goal: directly after the end of the transaction the log end may not show it yet.

    It depends on who is quicker, the broker or this process, so it is tried until it is seen.
    """
    [key] = await bench.topic()
    producer = await bench.destination.init_producer(bench.name("filler"))
    for done in range(1, 5001):
        await bench.destination.empty_transaction(producer, [key])
        early = await log_end(bench, key) < done
        await ends_at(bench, key, done)
        if early:
            break
    assert early


@behaviour
async def test_init_producer_id_is_answered_after_the_markers_are_written(bench: Bench) -> None:
    """Goal: when InitProducerId is answered, every marker of the former epoch is in the log."""
    keys = await bench.topic(20)
    name = bench.name("filler")
    for done in range(1, 21):
        producer = await bench.destination.init_producer(name)
        await bench.destination.empty_transaction(producer, keys)
        await bench.destination.init_producer(name)
        ends = await bench.destination.log_ends(keys)
        assert {end.log_end for end in ends.values()} == {done}
        bounds = await bench.destination.bounds(keys)
        assert {b.high_watermark for b in bounds.values()} == {done}


@behaviour
async def test_a_former_owner_of_a_transactional_id_is_fenced(bench: Bench) -> None:
    """Goal: after a newer InitProducerId the older identity writes no marker."""
    [key] = await bench.topic()
    name = bench.name("filler")
    old = await bench.destination.init_producer(name)
    new = await bench.destination.init_producer(name)
    with pytest.raises(Fenced):
        await bench.destination.empty_transaction(old, [key])
    await bench.destination.empty_transaction(new, [key])
    await ends_at(bench, key, 1)


@behaviour
async def test_several_transactional_ids_fill_one_partition_concurrently(bench: Bench) -> None:
    """Goal: the log end depends only on the number of transactions."""
    [key] = await bench.topic()
    names = [bench.name("filler") for _ in range(6)]
    await asyncio.gather(*(empty_transactions(bench, name, [key], 4) for name in names))
    await ends_at(bench, key, 24)


@behaviour
async def test_a_refused_partition_does_not_affect_others_of_its_transaction(bench: Bench) -> None:
    """Goal: it gets its error, the others get their marker, and no transaction is left open."""
    keys = await bench.topic(2)
    gone = TopicPartition(bench.name("gone"), 0)
    name = bench.name("filler")
    producer = await bench.destination.init_producer(name)
    codes = await bench.destination.empty_transaction(producer, [keys[0], gone, keys[1]])
    assert codes == {keys[0]: 0, gone: UNKNOWN_TOPIC_OR_PARTITION, keys[1]: 0}
    for key in keys:
        await ends_at(bench, key, 1)
    alone = await bench.destination.empty_transaction(producer, [gone])
    assert alone == {gone: UNKNOWN_TOPIC_OR_PARTITION}
    assert await bench.destination.empty_transaction(producer, keys[:1]) == {keys[0]: 0}
    await bench.destination.init_producer(name)
    assert [await log_end(bench, key) for key in keys] == [2, 1]


@behaviour
async def test_written_markers_are_in_the_log_when_the_response_arrives(bench: Bench) -> None:
    """Goal: WriteTxnMarkers leaves exactly the wanted number of control records, at once."""
    keys = await bench.topic(3)
    wanted = dict(zip(keys, (Markers(1), Markers(70, 0, 9), Markers(2500)), strict=True))
    producer = await bench.destination.init_producer(bench.name("filler"))
    assert set(
        (await bench.destination.write_markers([MarkerRequest(producer, wanted)])).values()
    ) == {0}
    for key, (count, *_) in wanted.items():
        assert await log_end(bench, key) == count
        assert all(header.is_control for header in await content(bench, key))


@behaviour
async def test_an_identity_can_run_transactions_after_it_wrote_markers(bench: Bench) -> None:
    """Goal: after markers were written with an identity, it still fills by transactions."""
    [key] = await bench.topic()
    producer = await bench.destination.init_producer(bench.name("filler"))
    await bench.destination.write_markers([MarkerRequest(producer, {key: Markers(100)})])
    await bench.destination.empty_transaction(producer, [key])
    await ends_at(bench, key, 101)
    [answer] = await send(
        bench, batch(key, values(2), producer_id=10**9, sequence=101, timestamp=bench.now_ms())
    )
    assert (answer.error, answer.base_offset) == (0, 101)


@behaviour
async def test_markers_of_an_old_epoch_are_refused(bench: Bench) -> None:
    """Goal: after markers of a newer epoch, the partition refuses those of an older one (47)."""
    touched, untouched = await bench.topic(2)
    name = bench.name("marker")
    old = await bench.destination.init_producer(name)
    new = await bench.destination.init_producer(name)
    assert await bench.destination.write_markers([MarkerRequest(old, {touched: Markers(3)})]) == {
        touched: 0
    }
    assert await bench.destination.write_markers([MarkerRequest(new, {touched: Markers(1)})]) == {
        touched: 0
    }
    both = {touched: Markers(2), untouched: Markers(2)}
    answers = await bench.destination.write_markers([MarkerRequest(old, both)])
    assert answers == {touched: 47, untouched: 0}
    assert (await log_end(bench, touched), await log_end(bench, untouched)) == (4, 2)


@behaviour
async def test_only_one_of_two_mutually_exclusive_markers_is_written(bench: Bench) -> None:
    """Goal: of a newer producer epoch and a newer coordinator epoch one lands, whichever is first.

    marker_epochs.py relies on this. A marker that is not below in either epoch lands, too.
    """
    one, other = await bench.topic(2)
    name = bench.name("marker")
    old = await bench.destination.init_producer(name)
    new = await bench.destination.init_producer(name)
    first, again = Markers(1, 7, 7), Markers(1, 6, 6)
    for key, steps in (
        (one, ((first, old, 0), (again, new, 52), (Markers(2, 7, 9), new, 0), (first, new, 52))),
        (other, ((again, new, 0), (first, old, 47), (first, new, 0), (first, new, 0))),
    ):
        for markers, producer, code in steps:
            assert await bench.destination.write_markers(
                [MarkerRequest(producer, {key: markers})]
            ) == {key: code}
        assert await log_end(bench, key) == 3
    known = (await bench.destination.producers([one, other])).values()
    states = {(s.producer_id, s.epoch, s.coordinator_epoch) for one in known for s in one.active}
    assert states == {(*new[1:], 9), (*new[1:], 7)}


@behaviour
async def test_a_written_marker_does_not_block_a_transactions_own_marker(bench: Bench) -> None:
    """Goal: written markers with coordinator epoch 0 do not block a transaction's own marker."""
    [key] = await bench.topic()
    name = bench.name("filler")
    old = await bench.destination.init_producer(name)
    new = await bench.destination.init_producer(name)
    assert await bench.destination.write_markers([MarkerRequest(old, {key: Markers(1)})]) == {
        key: 0
    }
    await bench.destination.empty_transaction(new, [key])
    await ends_at(bench, key, 2)


@pytest.mark.broker
def test_a_late_add_partitions_request_opens_another_transaction(any_kafka: LocalCluster) -> None:
    """Goal: AddPartitionsToTxn again after EndTxn, in the same epoch, opens *another* transaction.

    So a request that is retried after Disconnected, and whose first copy arrives late, leaves one
    marker too many: with the next epoch, or when the coordinator times the transaction out.
    """

    async def body(bench: Bench) -> None:
        assert isinstance(bench, KafkaBench)
        [key] = await bench.topic()
        name = bench.name("filler")
        identity = await bench.destination.init_producer(name)
        await bench.destination.empty_transaction(identity, [key])
        await ends_at(bench, key, 1)
        late = await add_partitions_to_txn(
            bench.client, name, ProducerId(identity.producer_id, identity.epoch), [key]
        )
        assert late == {key: None}
        await bench.destination.init_producer(name)
        assert await log_end(bench, key) == 2

    run_on_kafka(any_kafka, body)
