"""How fast one connection receives, and what it costs: twinlog's against kafka-python's.

    .venv/bin/python bench/fetch_connection.py [--gigabytes 4] [--rounds 3]

One broker, 8 partitions of 4 MB. Every Fetch asks for all of them from offset 0, 1 MB each (8 MB an
answer, which the broker sends from its page cache), two requests in flight. Each measurement is a
process of its own; CPU seconds (user, system) are of that process alone.

* ours, bytes: `Connection.send_raw`; the answer is not decoded.
* ours, decoded: the same, decoded by `kafka/protocol/fetch.py` into views of it.
* ours, 4096: as decoded, but never given more than 4096 bytes of buffer at a time.
* kafka-python: `KafkaConnectionManager.send`, which decodes into bytes.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.client.receiver import Receiver
from twinlog.kafka.protocol.compact import topic_key
from twinlog.kafka.protocol.fetch import decode_fetch
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.local.cluster import LocalCluster

TOPIC = "bench"
PARTITIONS = 8
PARTITION_BYTES = 4 << 20
PARTITION_MAX = 1 << 20
RECORD_BYTES = 1024
IN_FLIGHT = 2
VERSION = 12
FETCH = 1
WAYS = ("ours, bytes", "ours, decoded", "ours, 4096", "kafka-python")


def main() -> None:
    """Measure each way in turn, so that other load of the machine affects all alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SERVER"))
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    if options.one is not None:
        print(json.dumps(measure(options.one[0], options.one[1], size)))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster.start(1, directory=Path(folder, "kafka"), heap="1g") as local,
    ):
        asyncio.run(prepare(local.bootstrap_servers))
        for _ in range(options.rounds):
            for way in WAYS:
                report(way, local.bootstrap_servers, options.gigabytes)


def report(way: str, server: str, gigabytes: float) -> None:
    """Run one measurement in a process of its own, and print it."""
    command = [sys.executable, __file__, "--gigabytes", str(gigabytes), "--one", way, server]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    got = json.loads(answer.stdout)
    cost = (got["user"] + got["system"]) / got["bytes"] * 1e9
    print(
        f"{way:<14} {got['bytes'] / got['seconds'] / 1e6:>6,.0f} MB/s   CPU {cost:.2f} s/GB "
        f"({got['user'] / got['bytes'] * 1e9:.2f} user, {got['system'] / got['bytes'] * 1e9:.2f}"
        f" system)   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


async def prepare(server: str) -> None:
    """Create the topic, and its records: incompressible bytes."""
    async with KafkaCluster(parse_config({"bootstrap.servers": server}, {}).config) as cluster:
        await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS)])
    producer = Producer({"bootstrap.servers": server, "linger.ms": 50, "batch.size": 500_000})
    for partition in range(PARTITIONS):
        for _ in range(PARTITION_BYTES // RECORD_BYTES):
            producer.produce(TOPIC, os.urandom(RECORD_BYTES), partition=partition)
        producer.flush()


def measure(way: str, server: str, size: int) -> dict[str, float]:
    """Fetch until `size` bytes have arrived; return seconds and CPU seconds after a warm-up."""
    if way == "kafka-python":
        return theirs(server, size)
    if way == "ours, 4096":
        whole = Receiver.get_buffer
        Receiver.get_buffer = lambda self, hint: whole(self, hint)[:4096]  # type: ignore[assignment]
    return asyncio.run(ours(server, size, decoded=way != "ours, bytes"))


async def ours(server: str, size: int, *, decoded: bool) -> dict[str, float]:
    """Measure `Connection.send_raw`."""
    host, port = server.split(":")
    connection = await Connection.open(host, int(port))
    names = {topic_key(TOPIC, None): TOPIC}
    body = bytes(request().encode(version=VERSION))
    figures = Figures()
    pending: deque[asyncio.Future[memoryview]] = deque()
    while figures.bytes < size:
        while len(pending) < IN_FLIGHT:
            pending.append(connection.send_raw(FETCH, VERSION, (body,), flexible=True))
        answer = await pending.popleft()
        if decoded:
            got = sum(
                len(p.records) for p in decode_fetch(VERSION, names, answer).partitions.values()
            )
        else:
            got = len(answer)
        figures.add(got)
    result = figures.result()
    await asyncio.gather(*pending)
    await connection.close()
    return result


def theirs(server: str, size: int) -> dict[str, float]:
    """Measure kafka-python's connection manager, on its own event loop."""
    net = NetworkSelector()
    manager = KafkaConnectionManager(
        net, bootstrap_servers=server, receive_message_max_bytes=128 << 20
    )
    manager.bootstrap(10_000)

    async def run() -> dict[str, float]:
        figures = Figures()
        pending: deque[Any] = deque()
        while figures.bytes < size:
            while len(pending) < IN_FLIGHT:
                pending.append(manager.send(request(), node_id=1))
            answer = await pending.popleft()
            figures.add(sum(len(p.records) for t in answer.responses for p in t.partitions))
        result = figures.result()
        for future in pending:
            await future
        return result

    result: dict[str, float] = net.run(run)
    manager.close()
    return result


class Figures:
    """Counts since the end of the warm-up."""

    warm_up = 20

    def __init__(self) -> None:
        self.answers = 0
        self.bytes = 0
        self._begin()

    def add(self, size: int) -> None:
        """Count an answer."""
        assert size >= PARTITIONS * PARTITION_MAX * 0.4, size
        self.answers += 1
        self.bytes += size
        if self.answers == self.warm_up:
            self.bytes = 0
            self._begin()

    def result(self) -> dict[str, float]:
        """Return bytes, seconds, CPU seconds."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "bytes": self.bytes,
            "seconds": time.perf_counter() - self._began,
            "user": usage.ru_utime - self._usage.ru_utime,
            "system": usage.ru_stime - self._usage.ru_stime,
        }

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)


def request() -> Any:
    """Return the Fetch that all ways send."""
    item = FetchRequest.FetchTopic
    partitions = [
        item.FetchPartition(
            partition=index,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=PARTITION_MAX,
        )
        for index in range(PARTITIONS)
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=PARTITIONS * PARTITION_MAX,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[item(topic=TOPIC, partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
        max_version=VERSION,
    )


if __name__ == "__main__":
    main()
