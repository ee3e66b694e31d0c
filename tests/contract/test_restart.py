"""What a broker remembers of producers after a kill and a restart."""

from contract.bench import Bench, batch, last_sequence, leader_of, log_end, send, values
from contract.kafka_bench import run_on_kafka
from twinlog.engines.ports import Batch
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

OUT_OF_ORDER = 45
HOUR_MS = 3_600_000


def test_a_killed_broker_rebuilds_producer_state_from_its_log(hasty_kafka: LocalCluster) -> None:
    """Goal: after kill -9 sequence, epoch and only the last batch are rebuilt from the log.

    So one of several batches in flight that is sent again is refused, and is not a duplicate.
    """
    made: list[Batch] = []

    async def before(bench: Bench) -> None:
        [key] = await bench.topic()
        soon = bench.now_ms() + HOUR_MS  # the producer must not expire during the test
        made.extend(
            batch(key, values(2), producer_id=10**9, epoch=3, sequence=2 * at, timestamp=soon)
            for at in range(7)
        )
        assert {a.error for a in await send(bench, *made)} == {0}

    async def after(bench: Bench) -> None:
        key = made[0].partition
        await leader_of(bench, key)
        assert await last_sequence(bench, key, 10**9) == (3, 13)
        again = [(await send(bench, one))[0] for one in made]
        assert [a.error for a in again] == [OUT_OF_ORDER] * 6 + [0]
        assert again[-1].base_offset == 12

    run_on_kafka(hasty_kafka, before)
    hasty_kafka.kill(1)
    hasty_kafka.start_broker(1)
    run_on_kafka(hasty_kafka, after)


def test_a_stopped_broker_keeps_only_the_last_batch_of_each_producer(
    hasty_kafka: LocalCluster,
) -> None:
    """Goal: an orderly stop leaves a snapshot with only the last batch of each producer."""
    made: list[Batch] = []
    key: list[TopicPartition] = []

    async def before(bench: Bench) -> None:
        key.extend(await bench.topic())
        soon = bench.now_ms() + HOUR_MS
        made.extend(
            batch(key[0], values(2), producer_id=10**9, sequence=2 * at, timestamp=soon)
            for at in range(5)
        )
        await send(bench, *made)

    async def after(bench: Bench) -> None:
        await leader_of(bench, key[0])
        assert await log_end(bench, key[0]) == 10
        again = [(await send(bench, one))[0] for one in made]
        assert [a.error for a in again] == [OUT_OF_ORDER] * 4 + [0]
        assert again[-1].base_offset == 8

    run_on_kafka(hasty_kafka, before)
    hasty_kafka.shut_down(1)
    hasty_kafka.start_broker(1)
    run_on_kafka(hasty_kafka, after)
