"""From a record's creation to its arrival at a consumer of the destination, under a steady load.

    .venv/bin/python bench/delay.py [--rate 2000] [--partitions 100] [--seconds 30] [--rounds 3]

A producer process writes its clock into each record; a consumer process of the destination
compares. Both are the same for all contenders, which take turns. Writes bench/results/delay.json.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from multiprocessing.queues import Queue
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from harness import (
    client,
    cpu_seconds,
    descendants,
    forget_mirrors,
    make_mirror,
    mirror_maker,
    twinlog,
)
from twinlog.cluster.admin import NewTopic, create_topics, delete_topics
from twinlog.cluster.client import KafkaCluster
from twinlog.control.store import MirrorStore
from twinlog.local.cluster import LocalCluster
from twinlog.wire.config_records import Mirror

RESULTS = Path(__file__).parent / "results"
CONTENDERS = ("twinlog", "mm2-tuned", "mm2-defaults")
WARM_S = 25.0
SETTLE_S = 10.0
VALUE_BYTES = 100


async def main() -> None:
    """Run all, print a line for each run, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    runs: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster.start(1, heap="1g") as source,
        LocalCluster.start(1, heap="1g") as destination,
    ):
        async with client(source) as here, client(destination) as there:
            for number in range(options.rounds):
                for contender in options.only or CONTENDERS:
                    run = await _run(
                        contender, number, options, source, destination, here, there, Path(name)
                    )
                    runs.append(run)
                    print(_line(run), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "delay.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    groups: defaultdict[str, list[dict[str, object]]] = defaultdict(list)
    for run in runs:
        groups[str(run["contender"])].append(run)
    print("medians")
    for contender, group in groups.items():
        medians = {
            key: statistics.median(float(str(run[key])) for run in group)
            for key in ("p50_ms", "p99_ms", "max_ms", "cores")
        }
        print(_line({"contender": contender, "received": "", **medians}))


async def _run(  # noqa: PLR0917 - one run is told all there is
    contender: str,
    number: int,
    options: argparse.Namespace,
    source: LocalCluster,
    destination: LocalCluster,
    here: KafkaCluster,
    there: KafkaCluster,
    folder: Path,
) -> dict[str, object]:
    topic = f"steady-{contender}-{number}"
    new = [NewTopic(name=topic, partitions=options.partitions, replication_factor=1)]
    await create_topics(here, new)
    await asyncio.sleep(2)
    running: AbstractContextManager[int]
    if contender == "twinlog":
        arrives = topic
        store = MirrorStore(there)
        await store.create_mirror(
            Mirror(name="idle", source={"bootstrap.servers": "127.0.0.1:1"}, source_cluster_id="")
        )
        running = twinlog(destination, log=folder / "twinlog.log")
    else:
        alias = f"{contender.removeprefix('mm2-')}-{number}"
        arrives = f"{alias}.{topic}"
        running = mirror_maker(
            source,
            destination,
            topic,
            alias=alias,
            tuned=contender == "mm2-tuned",
            compression="none",
            folder=folder,
        )
    with running as pid:
        if contender == "twinlog":
            servers = source.bootstrap_servers
            await make_mirror(here, there, servers, {topic: options.partitions})
        await asyncio.sleep(WARM_S)
        delays, cores = await asyncio.to_thread(
            _measure, source, destination, topic, arrives, options, pid
        )
    if contender == "twinlog":
        await forget_mirrors(there, [topic])
    else:
        await delete_topics(there, [arrives])
    await delete_topics(here, [topic])
    delays.sort()
    return {
        "contender": contender,
        "round": number,
        "rate": options.rate,
        "partitions": options.partitions,
        "received": len(delays),
        "p50_ms": delays[len(delays) // 2],
        "p99_ms": delays[int(len(delays) * 0.99)],
        "max_ms": delays[-1],
        "cores": cores,
    }


def _measure(  # noqa: PLR0917
    source: LocalCluster,
    destination: LocalCluster,
    topic: str,
    arrives: str,
    options: argparse.Namespace,
    pid: int,
) -> tuple[list[float], float]:
    """Delays in milliseconds of the records that were created after the load had settled."""
    context = multiprocessing.get_context("spawn")
    results: Queue[list[float]] = context.Queue()
    seconds = SETTLE_S + options.seconds
    sending = context.Process(
        target=_send,
        args=(source.bootstrap_servers, topic, options.partitions, options.rate, seconds),
    )
    receiving = context.Process(
        target=_receive,
        args=(destination.bootstrap_servers, arrives, options.partitions, seconds, results),
    )
    receiving.start()
    sending.start()
    time.sleep(SETTLE_S)
    before, begun = cpu_seconds(descendants(pid)), time.perf_counter()
    time.sleep(options.seconds)
    cores = (cpu_seconds(descendants(pid)) - before) / (time.perf_counter() - begun)
    delays = results.get(timeout=120)
    sending.join(60)
    receiving.join(60)
    return delays, cores


def _send(servers: str, topic: str, partitions: int, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    begun = time.perf_counter()
    padding = b"x" * (VALUE_BYTES - 20)
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        while (ahead := due - time.perf_counter()) > 0:
            producer.poll(0)
            time.sleep(min(ahead, 0.001))
        producer.produce(topic, b"%020d" % time.time_ns() + padding, partition=number % partitions)
    producer.flush(30)


def _receive(
    servers: str, topic: str, partitions: int, seconds: float, results: "Queue[list[float]]"
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "delay",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    begun = time.time_ns()
    delays: list[float] = []
    end = time.perf_counter() + seconds + 15
    while time.perf_counter() < end:
        for message in consumer.consume(1000, 0.05):
            now = time.time_ns()
            if message.error() is None:
                created = int(message.value()[:20])
                if created - begun > SETTLE_S * 1e9:
                    delays.append((now - created) / 1e6)
    consumer.close()
    results.put(delays)


def _line(run: dict[str, object]) -> str:
    return (
        f"  {run['contender']:<14}p50 {run['p50_ms']:8.1f} ms  p99 {run['p99_ms']:8.1f} ms  "
        f"max {run['max_ms']:8.1f} ms  {run['cores']:.2f} cores  {run['received']}"
    )


if __name__ == "__main__":
    asyncio.run(main())
