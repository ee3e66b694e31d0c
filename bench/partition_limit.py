"""How many small transactions one partition can take, by replication factor and round trip.

    .venv/bin/python bench/partition_limit.py [--transactions 2000] [--replication 1 3]
        [--round-trip 0 1 20] [--round 0 ...]

Each transaction of a partition takes two requests to the destination, one after the other: its
batch, and its marker. So the limit of a partition follows from the destination's answers, and more
lanes do not raise it. The engine runs without Spark, alone; the source has one broker, and one
producer has written transactions of 10 records of 100 bytes to its only partition. Relays before
the destination's brokers make a round trip of `--round-trip` milliseconds. The figure counts from
the first transaction that has arrived to the last. Each run is stored in
bench/results/partition_limit.json.
"""

import argparse
import asyncio
import time

import results
from harness import Load, client, make_topic, start_cluster
from relay import LISTENER, RELAYED, relaying
from round_trip import forget, mirror
from transactions import RECORDS, VALUE_BYTES, write
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.types import TopicPartition
from twinlog.local.ports import HOST

KEY = ("replication", "round_trip_ms", "round")


async def main() -> None:
    """Measure each combination, print a line for each, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=2000)
    parser.add_argument("--replication", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--round-trip", type=float, nargs="*", default=[0.0, 1.0, 20.0])
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    options = parser.parse_args()
    load = Load(
        name="limit",
        records=options.transactions * RECORDS,
        value_bytes=VALUE_BYTES,
        batch_records=RECORDS,
        codec=Codec.NONE,
        partitions=1,
    )
    with start_cluster() as source:
        async with client(source) as theirs:
            await make_topic(theirs, load.name, 1)
            await asyncio.to_thread(write, source.bootstrap_servers, load, 0, options.transactions)
            for replication in options.replication:
                await compare(theirs, load, replication, options)


async def compare(
    theirs: KafkaCluster, load: Load, replication: int, options: argparse.Namespace
) -> None:
    """Measure with this replication factor on the destination."""
    with (
        start_cluster(replication, listeners=LISTENER, proxied=[RELAYED]) as destination,
        relaying(list(destination.proxy_ports(RELAYED).values())) as delay,
    ):
        relays = ",".join(f"{HOST}:{port}" for port, _ in destination.proxy_ports(RELAYED).values())
        async with client(destination) as near:
            await measure(theirs, near, load, replication)  # not stored: it warms up the brokers
        for number in options.round or range(3):
            for milliseconds in options.round_trip:
                delay.value = milliseconds / 2000
                servers = relays if milliseconds else destination.bootstrap_servers
                config = parse_config({"bootstrap.servers": servers}).config
                async with KafkaCluster(config) as ours:
                    rate = await measure(theirs, ours, load, replication)
                print(
                    f"replication factor {replication}, round trip {milliseconds:g} ms: "
                    f"{rate:,.0f} transactions/s",
                    flush=True,
                )
                run: results.Run = {
                    "replication": replication,
                    "round_trip_ms": milliseconds,
                    "round": number,
                    "transactions_per_second": rate,
                }
                results.put("partition_limit", run, KEY)


async def measure(theirs: KafkaCluster, ours: KafkaCluster, load: Load, replication: int) -> float:
    """Mirror the topic into a new one; return transactions per second."""
    await make_topic(ours, load.name, 1, replication)
    end = load.records + load.records // RECORDS
    key = TopicPartition(load.name, 0)
    first: tuple[float, int] | None = None
    async with mirror(theirs, ours, load.name, 1) as port:
        while True:
            there = (await port.log_ends([key]))[key].log_end
            if first is None and there > 0:
                first = time.perf_counter(), there
            if there >= end and first is not None:
                break
            await asyncio.sleep(0.02)
    seconds = time.perf_counter() - first[0]
    await forget(ours, load.name)
    return (end - first[1]) / (RECORDS + 1) / seconds


if __name__ == "__main__":
    asyncio.run(main())
