"""The lag behind producers that write transactions as fast as they can.

    .venv/bin/python bench/live_transactions.py [--seconds 300] [--load short streams]
        [--replication 1 3] [--round 0 ...]

Two loads, on a topic of 8 partitions that has the same replication factor on both sides:

* short: eight transactional producers; each transaction writes 10 records of 100 bytes to one
  partition, and takes the next partition after that. Nothing limits them.
* streams: thirty producers, as the tasks of a Kafka Streams application with exactly_once_v2 and
  commit.interval.ms=100; each writes a record to every partition, and commits 100 ms later.

The mirror runs before the producers start. The lag, in offsets of all partitions (markers are
offsets, too), is read once a second from both clusters' log end offsets. After the producers' end
the time is measured until it is 0. Each run is stored in bench/results/live_transactions.json.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Producer

import results
from harness import (
    client,
    cpu_seconds,
    descendants,
    forget_mirrors,
    make_mirror,
    make_topic,
    plain,
    start_cluster,
    twinlog,
)
from transactions import PRODUCERS, RECORDS, VALUE_BYTES
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import delete_topics
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

PARTITIONS = 8
TASKS = 30
COMMIT_S = 0.1
DRAIN_S = 600.0
"""Seconds after the producers' end that the mirror may take."""
KEY = ("load", "replication", "round")

Write = Callable[[Producer, str, int, int], None]
"""Writes the nth transaction of a producer of this number to the topic."""


async def main() -> None:
    """Measure each load with each replication factor, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--load", nargs="*", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--replication", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    options = parser.parse_args()
    for replication in options.replication:
        with (
            tempfile.TemporaryDirectory() as folder,
            start_cluster(replication) as source,
            start_cluster(replication) as destination,
        ):
            log = Path(folder) / "twinlog.log"
            for number in options.round or range(3):
                for load in options.load:
                    figures = await measure(
                        source, destination, (load, replication, options.seconds), log
                    )
                    print(_line(load, replication, figures), flush=True)
                    run: results.Run = {
                        "load": load,
                        "replication": replication,
                        "round": number,
                        "seconds": options.seconds,
                        **figures,
                    }
                    results.put("live_transactions", run, KEY)


async def measure(
    source: LocalCluster, destination: LocalCluster, case: tuple[str, int, float], log: Path
) -> dict[str, float]:
    """Mirror a topic while a load writes to it; return the figures of the run."""
    load, replication, seconds = case
    # The default executor has fewer threads than there are producers.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(TASKS + 1))
    topic = f"live-{load}-{time.time_ns()}"
    async with client(source) as source_client, client(destination) as destination_client:
        await make_topic(source_client, topic, PARTITIONS, replication)
        servers = source.bootstrap_servers
        await make_mirror(
            source_client, destination_client, plain(source), {topic: PARTITIONS}, replication
        )
        lag = Lag(source_client, destination_client, topic)
        with twinlog(plain(destination), log=log) as pid:
            await asyncio.to_thread(_write, servers, topic, load, 0, 0.0)
            await lag.gone(DRAIN_S)
            cpu, began = cpu_seconds(descendants(pid)), time.perf_counter()
            producers = asyncio.gather(
                *(
                    asyncio.to_thread(_write, servers, topic, load, number, seconds)
                    for number in range(LOADS[load][0])
                )
            )
            lags = []
            while not producers.done():
                await asyncio.sleep(1.0)
                lags.append(await lag.now())
            written, wrote_s = sum(producers.result()), time.perf_counter() - began
            cores = (cpu_seconds(descendants(pid)) - cpu) / wrote_s
            at_end = await lag.now()
            drained_s = await lag.gone(DRAIN_S)
        await forget_mirrors(destination_client, [topic])
        await delete_topics(source_client, [topic])
    half = len(lags) // 2
    return {
        "transactions_per_second": written / wrote_s,
        "lag_median_first_half": statistics.median(lags[:half]),
        "lag_median_second_half": statistics.median(lags[half:]),
        "lag_max": max(lags),
        "lag_at_end": at_end,
        "drained_s": drained_s,
        "cores": cores,
    }


class Lag:
    """The offsets by which the destination's topic is behind the source's."""

    def __init__(self, source: KafkaCluster, destination: KafkaCluster, topic: str) -> None:
        self._ports = [KafkaDestination(cluster, lambda: True) for cluster in (source, destination)]
        self._partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]

    async def now(self) -> int:
        """The lag now; the destination is read first, so that it is not too small."""
        mirrored, written = [await self._end(port) for port in reversed(self._ports)]
        return written - mirrored

    async def _end(self, port: KafkaDestination) -> int:
        ends = await port.log_ends(self._partitions)
        assert not any(end.error for end in ends.values()), ends
        return sum(end.log_end for end in ends.values())

    async def gone(self, limit_s: float) -> float:
        """Wait until the lag is 0; return the seconds that this took."""
        began = time.perf_counter()
        while await self.now() > 0:
            assert time.perf_counter() - began < limit_s, f"a lag remains after {limit_s:g} s"
            await asyncio.sleep(0.05)
        return time.perf_counter() - began


def _write(servers: str, topic: str, load: str, number: int, seconds: float) -> int:
    """Write transactions as this producer for this time, at least one; return how many."""
    transactional_id = f"{topic}-{number}"
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions()
    end, nth = time.perf_counter() + seconds, 0
    while nth == 0 or time.perf_counter() < end:
        producer.begin_transaction()
        LOADS[load][1](producer, topic, number, nth)
        producer.commit_transaction()
        nth += 1
    return nth


def _short(producer: Producer, topic: str, number: int, nth: int) -> None:
    value = f"{number}-{nth}-".encode().ljust(VALUE_BYTES, b"x")
    for _ in range(RECORDS):
        producer.produce(topic, value, partition=(number + nth) % PARTITIONS)


def _streams(producer: Producer, topic: str, number: int, nth: int) -> None:
    value = f"{number}-{nth}-".encode().ljust(VALUE_BYTES, b"x")
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition)
    time.sleep(COMMIT_S)


LOADS: dict[str, tuple[int, Write]] = {"short": (PRODUCERS, _short), "streams": (TASKS, _streams)}
"""For each load the number of producers, and what a transaction of them writes."""


def _line(load: str, replication: int, figures: dict[str, float]) -> str:
    return (
        f"{load}, replication factor {replication}: "
        f"{figures['transactions_per_second']:,.0f} transactions/s, lag "
        f"{figures['lag_median_first_half']:,.0f} then {figures['lag_median_second_half']:,.0f} "
        f"offsets (at most {figures['lag_max']:,.0f}), {figures['lag_at_end']:,.0f} at the end, "
        f"0 after {figures['drained_s']:.2f} s; {figures['cores']:.2f} cores"
    )


if __name__ == "__main__":
    asyncio.run(main())
