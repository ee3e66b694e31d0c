"""The compare-and-swap append: what a leader compares, and what it does not."""

import asyncio

from contract.bench import (
    Bench,
    batch,
    behaviour,
    empty_transactions,
    ends_at,
    header_of,
    last_sequence,
    leader_of,
    log_end,
    send,
    spoiled,
    values,
)
from twinlog.engines.ports import Batch
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.types import SEQUENCE_MODULUS, TopicPartition

OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_RECORD = 87


@behaviour
async def test_only_the_batch_with_the_next_sequence_is_appended(bench: Bench) -> None:
    """Goal: only the batch that follows the last one is appended."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    first, second = await send(
        bench,
        batch(key, values(3), producer_id=producer, sequence=0, timestamp=now),
        batch(key, values(2), producer_id=producer, sequence=3, timestamp=now),
    )
    assert (first.error, first.base_offset, second.error, second.base_offset) == (0, 0, 0, 3)
    for sequence in (0, 4, 6, 1000, SEQUENCE_MODULUS - 1):
        [refused] = await send(
            bench, batch(key, values(7), producer_id=producer, sequence=sequence, timestamp=now)
        )
        assert refused.error == OUT_OF_ORDER
    assert await log_end(bench, key) == 5
    assert await last_sequence(bench, key, producer) == (0, 4)


@behaviour
async def test_only_the_last_five_batches_are_recognised_as_duplicates(bench: Bench) -> None:
    """Goal: one of the last five batches is answered with its offset; older ones are refused."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    made = [
        batch(key, values(2), producer_id=producer, sequence=2 * at, timestamp=now)
        for at in range(7)
    ]
    sent = await send(bench, *made)
    assert [(a.base_offset, a.stamped_ms) for a in sent] == [(2 * at, -1) for at in range(7)]
    again = [(await send(bench, one))[0] for one in made]
    assert [a.error for a in again] == [OUT_OF_ORDER] * 2 + [0] * 5
    assert [a.base_offset for a in again[2:]] == [4, 6, 8, 10, 12]
    assert {a.stamped_ms for a in again[2:]} == {now}, "the newest timestamp of what stands there"
    assert await log_end(bench, key) == 14


@behaviour
async def test_duplicates_are_recognised_by_sequence_and_not_by_content(bench: Bench) -> None:
    """Goal: other content under the same sequences is *taken for* a duplicate, never compared."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    [_, other] = await send(
        bench,
        batch(key, [b"one"], producer_id=producer, timestamp=now),
        batch(key, [b"other"], producer_id=producer, timestamp=now),
    )
    assert (other.error, other.base_offset) == (0, 0)
    assert await log_end(bench, key) == 1


@behaviour
async def test_the_first_batch_of_a_producer_may_have_any_sequence(bench: Bench) -> None:
    """Goal: a producer's first batch is unguarded, whatever its sequence; the next is guarded."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    born, wrong, right = await send(
        bench,
        batch(key, values(3), producer_id=producer, sequence=12_345, timestamp=now),
        batch(key, values(4), producer_id=producer, sequence=3, timestamp=now),
        batch(key, values(4), producer_id=producer, sequence=12_348, timestamp=now),
    )
    assert (born.error, wrong.error, right.error) == (0, OUT_OF_ORDER, 0)


@behaviour
async def test_concurrent_copies_of_a_first_batch_are_appended_once(bench: Bench) -> None:
    """Goal: of many concurrent copies of a first batch one lands; all get its offset."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    first = batch(key, values(5), producer_id=producer, sequence=777, timestamp=bench.now_ms())
    node = await leader_of(bench, key)
    answers = await asyncio.gather(*(bench.destination.produce(node, [first]) for _ in range(8)))
    assert {(a[key].error, a[key].base_offset) for a in answers} == {(0, 0)}
    assert await log_end(bench, key) == 5


@behaviour
async def test_sequences_wrap_at_2_to_the_31(bench: Bench) -> None:
    """Goal: within a batch and between batches, 0 follows 2^31 - 1."""
    within, between = await bench.topic(2)
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    last = SEQUENCE_MODULUS - 1
    a, b = await send(
        bench,
        batch(within, values(5), producer_id=producer, sequence=last - 1, timestamp=now),
        batch(within, values(1), producer_id=producer, sequence=3, timestamp=now),
    )
    assert (a.error, b.error) == (0, 0)
    assert await last_sequence(bench, within, producer) == (0, 3)
    a, b, c = await send(
        bench,
        batch(between, values(2), producer_id=producer, sequence=last - 1, timestamp=now),
        batch(between, values(2), producer_id=producer, sequence=0, timestamp=now),
        batch(between, values(2), producer_id=producer, sequence=last - 1, timestamp=now),
    )
    assert (a.error, b.error, c.error, c.base_offset) == (0, 0, 0, 0)
    assert await last_sequence(bench, between, producer) == (0, 1)


@behaviour
async def test_a_new_producer_epoch_starts_at_sequence_0_and_fences_the_old_epoch(
    bench: Bench,
) -> None:
    """Goal: epochs are compared with what the partition has seen, not with the coordinator's."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    results = [
        (await send(bench, one))[0].error
        for one in (
            batch(key, values(1), producer_id=producer, epoch=5, sequence=9, timestamp=now),
            batch(key, values(1), producer_id=producer, epoch=6, sequence=10, timestamp=now),
            batch(key, values(1), producer_id=producer, epoch=6, sequence=0, timestamp=now),
            batch(key, values(1), producer_id=producer, epoch=5, sequence=10, timestamp=now),
        )
    ]
    assert results == [0, OUT_OF_ORDER, 0, INVALID_PRODUCER_EPOCH]


@behaviour
async def test_markers_of_another_producer_keep_the_sequence(bench: Bench) -> None:
    """Goal: another producer's markers take offsets, and the sequence continues as before."""
    [key] = await bench.topic()
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    await send(bench, batch(key, values(3), producer_id=producer, timestamp=now))
    await empty_transactions(bench, bench.name("filler"), [key], 4)
    await ends_at(bench, key, 7)
    [answer] = await send(
        bench, batch(key, values(3), producer_id=producer, sequence=3, timestamp=now)
    )
    assert (answer.error, answer.base_offset) == (0, 7)


@behaviour
async def test_a_marker_in_the_same_epoch_keeps_the_sequence(bench: Bench) -> None:
    """Goal: an empty transaction of the data's own id, in the data's epoch, changes nothing."""
    [key] = await bench.topic()
    identity = await bench.destination.init_producer(bench.name("data"))
    producer, epoch = identity.producer_id, identity.epoch
    now = bench.now_ms()
    first = batch(key, values(3), producer_id=producer, epoch=epoch, timestamp=now)
    await send(bench, first)
    await bench.destination.empty_transaction(identity, [key])
    await ends_at(bench, key, 4)
    assert await last_sequence(bench, key, producer) == (epoch, 2)
    [again] = await send(bench, first)
    [goes_on] = await send(
        bench, batch(key, values(1), producer_id=producer, epoch=epoch, sequence=3, timestamp=now)
    )
    assert (again.base_offset, goes_on.error, goes_on.base_offset) == (0, 0, 4)


@behaviour
async def test_a_fence_affects_only_the_partitions_of_its_transaction(bench: Bench) -> None:
    """Goal: an empty transaction in the next epoch fences the partitions that it names."""
    fenced, going_on, born_later = await bench.topic(3)
    name = bench.name("data")
    old = await bench.destination.init_producer(name)
    producer, now = old.producer_id, bench.now_ms()

    def data(key: TopicPartition, epoch: int, sequence: int) -> Batch:
        return batch(
            key,
            values(2),
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
            timestamp=now,
        )

    for key in (fenced, going_on):
        assert (await send(bench, data(key, old.epoch, 0)))[0].error == 0
    new = await bench.destination.init_producer(name)
    assert (new.producer_id, new.epoch) == (producer, old.epoch + 1)
    # The old epoch is valid until the marker is written.
    assert (await send(bench, data(fenced, old.epoch, 2)))[0].error == 0
    await bench.destination.empty_transaction(new, [fenced])
    await ends_at(bench, fenced, 5)
    answers = [
        (await send(bench, one))[0].error
        for one in (
            data(fenced, old.epoch, 4),
            data(fenced, new.epoch, 4),
            data(fenced, new.epoch, 0),
            data(going_on, old.epoch, 2),
            data(born_later, new.epoch, 0),
        )
    ]
    assert answers == [INVALID_PRODUCER_EPOCH, OUT_OF_ORDER, 0, 0, 0]


@behaviour
async def test_describe_producers_reports_sequence_minus_1_after_a_fence(bench: Bench) -> None:
    """Goal: after a fence DescribeProducers reports the new epoch and -1, and 0 comes next."""
    [key] = await bench.topic()
    name = bench.name("data")
    old = await bench.destination.init_producer(name)
    now = bench.now_ms()
    await send(bench, batch(key, values(2), producer_id=old.producer_id, timestamp=now))
    new = await bench.destination.init_producer(name)
    await bench.destination.empty_transaction(new, [key])
    await ends_at(bench, key, 3)
    assert await last_sequence(bench, key, new.producer_id) == (new.epoch, -1)


@behaviour
async def test_invalid_batches_are_refused_and_nothing_is_appended(bench: Bench) -> None:
    """Goal: control bit, holes, counts, checksums, sizes: refused, and nothing is appended."""
    [key] = await bench.topic(config={"max.message.bytes": "2000"})
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    good = batch(key, values(3), producer_id=producer, timestamp=bench.now_ms())
    large = batch(key, values(3, 1000), producer_id=producer, timestamp=bench.now_ms())
    garbled = good._replace(header=good.header[:17] + b"\0\0\0\0" + good.header[21:])
    cases = [
        (spoiled(good, control=True), INVALID_RECORD),
        (spoiled(good, last_offset_delta=5), INVALID_RECORD),
        (spoiled(good, last_offset_delta=1), INVALID_RECORD),
        (garbled, 2),
        (large, 10),
    ]
    for made, code in cases:
        [answer] = await send(bench, made)
        assert answer.error == code
    assert await log_end(bench, key) == 0
    assert (await send(bench, good))[0].error == 0


@behaviour
async def test_a_batch_must_begin_at_offset_0(bench: Bench) -> None:
    """Goal: the source's base offset has to be cleared, compressed or not."""
    [key] = await bench.topic()
    for codec in (Codec.ZSTD, Codec.NONE):
        good = batch(key, values(30), producer_id=1, timestamp=bench.now_ms(), codec=codec)
        moved = good._replace(header=(500).to_bytes(8) + good.header[8:])
        assert header_of(moved).base_offset == 500
        assert (await send(bench, moved))[0].error == INVALID_RECORD
    assert await log_end(bench, key) == 0


@behaviour
async def test_a_compacted_topic_refuses_records_without_a_key(bench: Bench) -> None:
    """Goal: a topic that became compacted at the destination only cannot take keyless records."""
    [key] = await bench.topic(policy="compact")
    producer = (await bench.destination.init_producer(bench.name("data"))).producer_id
    now = bench.now_ms()
    keyless, keyed = await send(
        bench,
        batch(key, values(1), producer_id=producer, timestamp=now, record_key=None),
        batch(key, values(1), producer_id=producer, timestamp=now),
    )
    assert (keyless.error, keyed.error) == (INVALID_RECORD, 0)
