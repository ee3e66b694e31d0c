"""Catching up with a backlog of many small transactions: twinlog and MirrorMaker 2.

    .venv/bin/python bench/transactions.py [--transactions 20000] [--replication 1 3]
        [--round 0 ...] [--only twinlog ...] [--beside PROGRAM]

Eight transactional producers (librdkafka) fill a topic of 8 partitions. Each transaction writes 10
records of 100 bytes to one partition, and takes the next partition after that, so that several
producers write to each. Every transaction ends in a marker, which stands at an offset of its own.
twinlog has to reproduce each marker at its offset. MirrorMaker 2 copies the records alone, with
read_committed, to offsets of their own.

The source has one broker. With `--replication 3` the destination has three, and the topic has three
replicas there. The contenders take turns. Each run is stored in bench/results/transactions.json; a
round takes about two minutes.

`--beside`, the `twinlog` of another checkout, shows the effect of a change (see catch_up.py).
"""

import argparse
import asyncio
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

import results
from catch_up import ONE_LANE, Bench
from harness import (
    Figures,
    Load,
    client,
    make_topic,
    plain,
    start_cluster,
    undisturbed,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.log.compression import Codec
from twinlog.local.cluster import LocalCluster

CONTENDERS = ("twinlog", ONE_LANE, "mm2-tuned")
WARM_RUNS = ("twinlog",) * 3
PRODUCERS = 8
RECORDS = 10
"""Records of a transaction."""
VALUE_BYTES = 100
KEY = ("replication", "contender", "round")


async def main() -> None:
    """Run the selected contenders, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=20_000)
    parser.add_argument("--replication", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--only", action="append", help="only these contenders")
    parser.add_argument("--beside", type=Path, help="another checkout's twinlog; printed, not kept")
    options = parser.parse_args()
    for replication in options.replication:
        await compare(replication, options)


async def compare(replication: int, options: argparse.Namespace) -> None:
    """Run the contenders in turns, with this replication factor on the destination."""
    load = Load(
        name="transactions",
        records=options.transactions * RECORDS,
        value_bytes=VALUE_BYTES,
        batch_records=RECORDS,
        codec=Codec.NONE,
    )
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster(replication) as destination,
    ):
        async with client(source) as here, client(destination) as there:
            rate = await fill(source, here, load)
            print(
                f"replication factor {replication}: {options.transactions} transactions of "
                f"{RECORDS} records, written at {rate:,.0f} transactions/s",
                flush=True,
            )
            bench = Bench(
                *(plain(source), plain(destination), here, there, load, Path(name)),
                options.beside,
                replication=replication,
                offsets=load.records + options.transactions,
                isolation="read_committed",
            )
            beside = ("beside",) if options.beside else ()
            for contender in (*WARM_RUNS, *beside):  # not stored: the brokers compile their code
                await bench.run(contender, "warm")
            for number in options.round or range(3):
                for contender in (*(options.only or CONTENDERS), *beside):
                    figures = await undisturbed(
                        partial(bench.run, contender), lambda found: found.others_cores
                    )
                    print(_line(contender, figures, options.transactions), flush=True)
                    if contender not in beside:
                        row: results.Run = {
                            "replication": replication,
                            "contender": contender,
                            "round": number,
                            "transactions": options.transactions,
                            "records": load.records,
                            "written_per_second": rate,
                            **asdict(figures),
                        }
                        results.put("transactions", row, KEY)


async def fill(cluster: LocalCluster, its: KafkaCluster, load: Load) -> float:
    """Create the topic and fill it; return the transactions per second that were written."""
    await make_topic(its, load.name, load.partitions)
    # The default executor may have fewer threads than there are producers.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(PRODUCERS))
    started = time.perf_counter()
    share = load.records // RECORDS // PRODUCERS
    writers = [
        asyncio.to_thread(write, cluster.bootstrap_servers, load, number, share)
        for number in range(PRODUCERS)
    ]
    await asyncio.gather(*writers)
    return share * PRODUCERS / (time.perf_counter() - started)


def write(servers: str, load: Load, number: int, transactions: int) -> None:
    """Write transactions, each to the partition after the last one's."""
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": f"{load.name}-{number}", "linger.ms": 0}
    )
    producer.init_transactions()
    failed = threading.Event()

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.set()

    for nth in range(transactions):
        producer.begin_transaction()
        for index in range(RECORDS):
            value = f"{number}-{nth}-{index}-".encode().ljust(load.value_bytes, b"x")
            producer.produce(
                load.name,
                value,
                partition=(number + nth) % load.partitions,
                on_delivery=delivered,
            )
        producer.commit_transaction()
    assert not failed.is_set()


def _line(contender: str, figures: Figures, transactions: int) -> str:
    return (
        f"  {contender:<13}{figures.records_per_second:>10,.0f} records/s"
        f"{figures.seconds:>8.2f} s, CPU {figures.cpu_seconds:6.2f} s"
        f" ({figures.cpu_seconds / transactions * 1e6:.0f} us/transaction);"
        f" 2nd half {figures.late_records_per_second:,.0f} records/s;"
        f" others {figures.others_cores:.2f} cores"
    )


if __name__ == "__main__":
    asyncio.run(main())
