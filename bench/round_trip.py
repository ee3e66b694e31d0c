"""What a long round trip costs: to the source, with more connections; to the destination.

.venv/bin/python bench/round_trip.py [--to source] [--records 96000] [--round-trip 0.1] [--window 1]

A relay stands before the only broker of one cluster, which advertises the relay's address. Each
byte takes half a round trip through it, and each connection has at most `--window` megabytes in
flight, as TCP has with small buffers: one connection carries a window in a round trip. Everything
runs on this machine; the engine without Spark, on one core.

`--to destination` compares new records, with five batches of a partition in flight, with old ones,
with one batch in flight (docs/architecture/append.md, 3.).
"""

import argparse
import asyncio
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from harness import Load, client, make_topic, preload
from relay import relaying
from twinlog.engines.exact.data_plane import DataPlane
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.requests.topics import delete_topics
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.runtime.lane_options import parse_lane_settings

PARTITIONS = 8
FETCHERS = (4, 8, 16)
"""A distant broker has four connections at least."""
OLD_S = 3 * 86400.0
"""Older than the default time for which a broker remembers a producer."""


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", choices=("source", "destination"), default="source")
    parser.add_argument("--records", type=int, default=96_000, help="of 1 KB")
    parser.add_argument("--round-trip", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--window", type=int, default=1, metavar="MEGABYTES")
    options = parser.parse_args()
    load = Load(
        name="far", records=options.records, value_bytes=1000, batch_records=100, codec=Codec.NONE
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        clusters(Path(folder), options.window) as (close, distant, delay),
    ):
        if options.to == "source":
            asyncio.run(by_connections(load, options.round_trip, distant, close, delay))
        else:
            asyncio.run(by_age(load, options.round_trip, close, distant, delay))


@contextmanager
def clusters(
    folder: Path, window: int
) -> Iterator[tuple[LocalCluster, LocalCluster, "Synchronized[float]"]]:
    """Start a cluster, and one behind a relay; return both, and the relay's delay."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with (
        LocalCluster.start(1, directory=folder / "close") as close,
        LocalCluster.start(1, config=known, directory=folder / "distant") as distant,
        relaying([(port, distant.brokers[0].port)], window << 20) as delay,
    ):
        yield close, distant, delay


async def by_connections(
    load: Load,
    round_trip: float,
    source: LocalCluster,
    destination: LocalCluster,
    delay: "Synchronized[float]",
) -> None:
    """Mirror the same topic with more and more connections, each time into a new destination."""
    async with client(source) as theirs, client(destination) as ours:
        size = await preload(theirs, load)
        delay.value = round_trip / 2
        for fetchers in FETCHERS:
            await make_topic(ours, load.name, PARTITIONS)
            started = time.monotonic()
            async with mirror(theirs, ours, load.name, fetchers) as port:
                await arrived(port, load)
            seconds = time.monotonic() - started
            print(f"{fetchers} connections {size / seconds / 1e6:8.1f} MB/s")
            await forget(ours, load.name)


async def by_age(
    load: Load,
    round_trip: float,
    source: LocalCluster,
    destination: LocalCluster,
    delay: "Synchronized[float]",
) -> None:
    """Mirror new records, then old ones."""
    async with client(source) as theirs, client(destination) as ours:
        for name, age_s in (("new", 0.0), ("old", OLD_S)):
            aged = replace(load, name=name, age_s=age_s)
            delay.value = 0.0
            size = await preload(theirs, aged)
            await make_topic(ours, name, PARTITIONS)
            delay.value = round_trip / 2
            started = time.monotonic()
            async with mirror(theirs, ours, name, 1) as port:
                await arrived(port, aged)
            seconds = time.monotonic() - started
            print(f"{name} records {size / seconds / 1e6:8.1f} MB/s")


async def _owned_for_good() -> None:
    """Confirm the ownership at once: there is no other lane."""


@asynccontextmanager
async def mirror(
    theirs: KafkaCluster, ours: KafkaCluster, topic: str, fetchers: int
) -> AsyncIterator[KafkaDestination]:
    """Run an engine on the topic."""
    settings = parse_lane_settings({"mirror.num.replica.fetchers": str(fetchers)})
    source, port = KafkaSource(theirs), KafkaDestination(ours, lambda: True)
    engine = DataPlane(
        source,
        port,
        settings,
        random.Random(1),
        lambda _: None,
        brokers_time_ms=lambda: time.time_ns() // 1_000_000,
        confirm_ownership=_owned_for_good,
    )
    leaders = await source.leaders([topic])
    shard = Shard(0, f"twinlog.{fetchers}", port, settings)
    await shard.open()
    specs = [
        PartitionSpec(partition=key, source_topic_id=one.topic_id, shard=0, compacted=False)
        for key, one in leaders.items()
    ]
    engine.own(shard, specs, lease_s=0.0)
    running = asyncio.create_task(engine.run())
    try:
        yield port
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await shard.close()


async def arrived(port: KafkaDestination, load: Load) -> None:
    """Wait until all records have arrived."""
    keys = [TopicPartition(load.name, index) for index in range(PARTITIONS)]
    per_partition = load.records // PARTITIONS // load.batch_records * load.batch_records
    while any(end.log_end < per_partition for end in (await port.log_ends(keys)).values()):
        await asyncio.sleep(0.05)


async def forget(cluster: KafkaCluster, topic: str) -> None:
    """Delete the destination's topic, so that it can be created again."""
    await delete_topics(cluster, [topic])
    while topic in (await cluster.refresh([topic])).topics:
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
