"""The delay from a record's creation to its arrival at a destination consumer, at a steady load.

    .venv/bin/python bench/delay.py [--rate 2000] [--partitions 100] [--seconds 30] [--round 0 ...]
        [--beside PROGRAM]

A producer process writes its clock and a number into each record, just before it hands the record
to its client (librdkafka, linger 1 ms). A consumer process of the destination (librdkafka, too)
compares that with its own clock when it gets the record. Both run on this machine, so there is one
clock. They are the same for all contenders, which take turns on the same two brokers, in another
order in each round, after one run that is not stored and that warms up the brokers. `none` is the
same consumer at the source, without a mirror: the part of the delay that is not the mirror's.

The load runs from before the mirror starts until the end. The measurement begins after the first
record has arrived and then `SETTLE_S` have passed, and lasts `--seconds`. Each record of that time
must arrive (a second copy does not count), else the run is an error. Each run is stored in
bench/results/delay.json; a round takes about six minutes.

`--beside`, the `twinlog` of another checkout, shows the effect of a change (see catch_up.py).
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

import results
from harness import (
    PROGRAM,
    Others,
    client,
    cpu_seconds,
    descendants,
    forget_mirrors,
    make_mirror,
    make_topic,
    mirror_maker,
    plain,
    start_cluster,
    twinlog,
    undisturbed,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import delete_topics
from twinlog.local.cluster import LocalCluster

CONTENDERS = ("none", "twinlog", "mm2-tuned", "mm2-defaults")
START_S = 90.0
"""Seconds that a contender may take until its first record arrives."""
SETTLE_S = 15.0
DRAIN_S = 30.0
"""Seconds after the measured time that its last record may take."""
VALUE_BYTES = 1000
KEY = ("contender", "round")
TWINLOGS = ("twinlog", "beside")


async def main() -> None:
    """Run the selected contenders, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000, help="records per second")
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--only", action="append", help="only these contenders")
    parser.add_argument("--beside", type=Path, help="another checkout's twinlog; printed, not kept")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster() as destination,
    ):
        async with client(source) as here, client(destination) as there:
            bench = Bench(source, destination, here, there, options, Path(name))
            await bench.run("twinlog", "warm")
            for number in options.round or range(3):
                beside = ("beside",) if options.beside else ()
                contenders = deque((*(options.only or CONTENDERS), *beside))
                contenders.rotate(number)
                for contender in contenders:
                    found = await undisturbed(
                        partial(bench.run, contender), lambda found: found["others_cores"]
                    )
                    run = {"contender": contender, "round": number, **found}
                    print(_line(run), flush=True)
                    if contender not in beside:
                        results.put("delay", run, KEY)


@dataclass(frozen=True, slots=True)
class Bench:
    """The clusters, and the measurement of one contender."""

    source: LocalCluster
    destination: LocalCluster
    here: KafkaCluster
    there: KafkaCluster
    options: argparse.Namespace
    folder: Path

    async def run(self, contender: str, name: str) -> Mapping[str, float]:
        """Measure one run, on a topic of its own, with `name` in the topic's name."""
        topic = f"steady-{contender}-{name}"
        partitions = self.options.partitions
        await make_topic(self.here, topic, partitions)
        alias = f"{contender}-{name}"
        arrives = f"{alias}.{topic}" if contender.startswith("mm2") else topic
        if contender in TWINLOGS:
            source = plain(self.source)
            await make_mirror(self.here, self.there, source, {topic: partitions})
        with self._contender(contender, topic, alias) as pid:
            cluster = self.source if contender == "none" else self.destination
            found = await asyncio.to_thread(self._measure, topic, cluster, arrives, pid)
        if contender in TWINLOGS:
            await forget_mirrors(self.there, [topic])
        elif contender != "none":
            await delete_topics(self.there, [arrives])
        await delete_topics(self.here, [topic])
        return {"partitions": partitions, **found}

    def _contender(
        self, contender: str, topic: str, alias: str
    ) -> AbstractContextManager[int | None]:
        if contender == "none":
            return nullcontext()
        if contender in TWINLOGS:
            program = PROGRAM if contender == "twinlog" else self.options.beside
            log = self.folder / "twinlog.log"
            return twinlog(plain(self.destination), log=log, program=program)
        return mirror_maker(
            plain(self.source),
            plain(self.destination),
            topic,
            alias=alias,
            tuned=contender == "mm2-tuned",
            compression="none",
            folder=self.folder,
        )

    def _measure(
        self, topic: str, cluster: LocalCluster, arrives: str, pid: int | None
    ) -> Mapping[str, float]:
        """Return the figures of one run; see the module. Milliseconds, records, cores."""
        options = self.options
        with (
            _load(self.source.bootstrap_servers, topic, options.partitions, options.rate) as load,
            _arrivals(cluster.bootstrap_servers, arrives, options.partitions) as arrivals,
        ):
            arrivals.first(START_S)
            time.sleep(SETTLE_S)
            begin, cpu, others = time.time_ns(), _cpu(pid), Others()
            time.sleep(options.seconds)
            end = time.time_ns()
            cores = (_cpu(pid) - cpu) / (end - begin) * 1e9
            others_cores = others.cores()
            time.sleep(1.0)
            created = load.stop()
            wanted = {number for number, at in enumerate(created) if begin <= at < end}
            arrived = arrivals.until(max(wanted), DRAIN_S)
        delays = sorted((arrived[n] - created[n]) / 1e6 for n in wanted if n in arrived)
        assert len(delays) == len(wanted), f"{len(wanted) - len(delays)} records did not arrive"
        return {
            "rate": len(wanted) / options.seconds,
            "records": len(delays),
            "p50_ms": delays[len(delays) // 2],
            "p99_ms": delays[len(delays) * 99 // 100],
            "max_ms": delays[-1],
            "cores": cores,
            "others_cores": others_cores,
        }


def _cpu(pid: int | None) -> float:
    return cpu_seconds(descendants(pid)) if pid is not None else 0.0


# ---- the two processes ---------------------------------------------------------------------------

_CONTEXT = multiprocessing.get_context("spawn")


@contextmanager
def _process(target: Callable[..., None], *arguments: object) -> Iterator[SpawnProcess]:
    process = _CONTEXT.Process(target=_with_parent, args=(target, *arguments), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _with_parent(target: Callable[..., None], *arguments: object) -> None:
    """Run it, and end with the bench, also when the bench is killed."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    target(*arguments)


class Loading:
    """The producer, as the bench controls it."""

    def __init__(self, ended: Event, answer: "Queue[list[int]]") -> None:
        self._ended = ended
        self._answer = answer

    def stop(self) -> list[int]:
        """End it; return each record's creation time, in nanoseconds since the epoch, by number."""
        self._ended.set()
        return self._answer.get(timeout=60)


@contextmanager
def _load(servers: str, topic: str, partitions: int, rate: int) -> Iterator[Loading]:
    ended, answer = _CONTEXT.Event(), _CONTEXT.Queue()
    with _process(_send, servers, topic, partitions, rate, ended, answer):
        yield Loading(ended, answer)


def _send(  # noqa: PLR0917 - a process's arguments have no names
    servers: str, topic: str, partitions: int, rate: int, ended: Event, answer: "Queue[list[int]]"
) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    padding = b"x" * (VALUE_BYTES - 10)
    created: list[int] = []
    begun = time.perf_counter()
    while not ended.is_set():
        due = int((time.perf_counter() - begun) * rate)
        while len(created) < due:
            number = len(created)
            created.append(time.time_ns())
            producer.produce(topic, b"%010d" % number + padding, partition=number % partitions)
        producer.poll(0)
        time.sleep(0.0005)
    assert producer.flush(30) == 0
    answer.put(created)


class Arrivals:
    """The consumer, as the bench controls it."""

    def __init__(
        self, arrived: Event, last: "Queue[tuple[int, float]]", answer: "Queue[dict[int, int]]"
    ) -> None:
        self._arrived = arrived
        self._last = last
        self._answer = answer

    def first(self, seconds: float) -> None:
        """Wait for the first record."""
        assert self._arrived.wait(seconds), f"nothing has arrived after {seconds:g} s"

    def until(self, number: int, seconds: float) -> dict[int, int]:
        """Return each record's first arrival, once all up to this number arrived or on timeout."""
        self._last.put((number, seconds))
        return self._answer.get(timeout=seconds + 30)


@contextmanager
def _arrivals(servers: str, topic: str, partitions: int) -> Iterator[Arrivals]:
    arrived, last, answer = _CONTEXT.Event(), _CONTEXT.Queue(), _CONTEXT.Queue()
    with _process(_receive, servers, topic, partitions, arrived, last, answer):
        yield Arrivals(arrived, last, answer)


def _receive(  # noqa: PLR0917
    servers: str,
    topic: str,
    partitions: int,
    arrived: Event,
    last: "Queue[tuple[int, float]]",
    answer: "Queue[dict[int, int]]",
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "delay",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "allow.auto.create.topics": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    times: dict[int, int] = {}
    missing: set[int] | None = None
    deadline = float("inf")
    while missing is None or (missing and time.monotonic() < deadline):
        # One at a time: consume(n) would hold records back until it has n of them.
        message = consumer.poll(0.01)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            number = int(value[:10])
            times.setdefault(number, time.time_ns())
            if missing is not None:
                missing.discard(number)
            elif not arrived.is_set():
                arrived.set()
        elif missing is None and not last.empty():
            number, seconds = last.get()
            missing = set(range(number + 1)) - times.keys()
            deadline = time.monotonic() + seconds
    consumer.close()
    answer.put(times)


def _line(run: results.Run) -> str:
    return (
        f"  {run['contender']:<14}p50 {run['p50_ms']:8.1f} ms  p99 {run['p99_ms']:8.1f} ms  "
        f"max {run['max_ms']:8.1f} ms  {run['cores']:.2f} cores  {run['rate']:.0f} records/s"
        f"  others {run['others_cores']:.2f} cores"
    )


if __name__ == "__main__":
    asyncio.run(main())
