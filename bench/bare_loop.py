"""How close the ports come to the limit of the machine.

    .venv/bin/python bench/bare_loop.py [--records 2000000] [--batch-records 500] [--profile]

Two clusters of one broker each on this machine; 8 partitions of zstd batches in the source; then

* limit: all is fetched and patched before the clock starts, and appended by a bare loop;
* loop:  one process and one event loop fetch, plan, patch and append.

The estimated limit: each byte is received, checked, checked again for the patched header, joined
(Python 3.11) and sent. Five passes at 5 GB/s are 0.2 s of CPU for each 200 MB, and cleared buffers
cost a sixth; Python itself costs about 60 us for a batch. So the process is far from its limit: the
limit is the destination's broker, which decompresses every batch to validate it.

Both keep five Produce requests in flight, each with a batch of every partition that has one. CPU
seconds are of this process (user, system), and of the two brokers.
"""

import argparse
import asyncio
import cProfile
import pstats
import random
import resource
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kafka.protocol.admin import CreateTopicsRequest

from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.engines.ports import Batch, ProducerIdentity
from twinlog.kafka import types
from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.errors import check
from twinlog.kafka.log.batch import HEADER_SIZE, new_header, patched_header
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.log.records import encode_tail, varint
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.plan import Data, plan

PARTITIONS = 8
VALUE_BYTES = 1024
RANDOM_SHARE = 0.25
"""Bytes of a value that zstd cannot compress: 1 KB becomes about 300 bytes."""
BODIES = 16
IN_FLIGHT = 5
QUEUED = 32
"""The number of fetched batches of a partition to be appended, at which fetching pauses."""
MAX_BYTES = 16 << 20
PARTITION_MAX_BYTES = 2 << 20


@dataclass
class Work:
    """The log that is to be mirrored, and the progress."""

    node: int
    end: int
    partitions: list[TopicPartition]
    producer: ProducerIdentity
    queues: dict[TopicPartition, deque[Data]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    appended: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.queues = {p: deque() for p in self.partitions}
        self.ends = dict.fromkeys(self.partitions, 0)

    @property
    def fetched_all(self) -> bool:
        """Return whether nothing more is to be fetched."""
        return all(end >= self.end for end in self.ends.values())


def main() -> None:
    """Run both and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batch-records", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster.start(1, directory=Path(folder, "source")) as source,
        LocalCluster.start(1, directory=Path(folder, "destination")) as destination,
    ):
        asyncio.run(measure(source, destination, options))


async def measure(
    source: LocalCluster, destination: LocalCluster, options: argparse.Namespace
) -> None:
    """Load the source, then mirror it to a new topic for each figure."""
    async with started(source) as here, started(destination) as there:
        await make_topic(here, "source")
        node = await preload(here, options.records, options.batch_records)
        for number in range(options.rounds):
            for name, run in (("limit", limit), ("loop", loop)):
                topic = f"{name}-{number}"
                await make_topic(there, topic)
                port = KafkaDestination(there, lambda: True)
                await port.leaders([topic])
                producer = await port.init_producer(topic)
                partitions = [TopicPartition("source", index) for index in range(PARTITIONS)]
                work = Work(node, options.records // PARTITIONS, partitions, producer)
                profile = cProfile.Profile() if options.profile else None
                seconds, user, system = await run(KafkaSource(here), [port], topic, work, profile)
                if profile is not None:
                    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
                rate = options.records / seconds
                print(
                    f"{name:<6}{rate:>10,.0f} records/s {work.bytes / seconds / 1e6:>7,.0f} MB/s"
                    f"{seconds:>7.2f} s, CPU {user + system:.2f} s"
                    f" ({user:.2f} user, {system:.2f} system) for {work.bytes / 1e6:,.0f} MB",
                    flush=True,
                )


async def limit(
    source: KafkaSource,
    destinations: Sequence[KafkaDestination],
    topic: str,
    work: Work,
    profile: cProfile.Profile | None,
    *,
    pause_s: float = 0.0,
) -> tuple[float, float, float]:
    """Append batches fetched and patched before, after a pause.

    A broker works on one request of a connection at a time, so several connections, each of its own
    destination, keep more of its cores busy; the partitions are distributed over them. Each broker
    that leads some has a connection of its own.
    """
    while not work.fetched_all:
        await fetch_once(source, work, {p: work.ends[p] for p in work.partitions})
    nodes = {p: leader.node for p, leader in (await destinations[0].leaders([topic])).items()}
    dealt: defaultdict[tuple[int, int], list[list[Batch]]] = defaultdict(list)
    for request in batches_of(work, topic):
        shares: defaultdict[tuple[int, int], list[Batch]] = defaultdict(list)
        for batch in request:
            number = batch.partition.partition % len(destinations)
            shares[number, nodes[batch.partition]].append(batch)
        for connection, share in shares.items():
            dealt[connection].append(share)
    for destination in destinations:
        await destination.leaders([topic])
    await asyncio.sleep(pause_s)
    with Clock(profile) as clock:
        await asyncio.gather(
            *(
                append_prepared(destinations[number], node, requests)
                for (number, node), requests in dealt.items()
            )
        )
    await prove(destinations[0], topic, work)
    return clock.figures


async def append_prepared(
    destination: KafkaDestination, node: int, requests: Sequence[list[Batch]]
) -> None:
    """Append the requests to a broker in their order, five in flight."""
    answers: deque[asyncio.Future[object]] = deque()
    for request in requests:
        if len(answers) == IN_FLIGHT:
            await answers.popleft()
        answers.append(destination.produce(node, request))  # type: ignore[arg-type]
    while answers:
        await answers.popleft()


async def loop(
    source: KafkaSource,
    destinations: Sequence[KafkaDestination],
    topic: str,
    work: Work,
    profile: cProfile.Profile | None,
) -> tuple[float, float, float]:
    """Fetch, plan, patch and append."""
    with Clock(profile) as clock:
        await asyncio.gather(fetch_all(source, work), append_all(destinations[0], topic, work))
    await prove(destinations[0], topic, work)
    return clock.figures


async def fetch_all(source: KafkaSource, work: Work) -> None:
    """Fetch for the partitions whose queues have room."""
    while not work.fetched_all:
        wanted = {
            p: end
            for p, end in work.ends.items()
            if end < work.end and len(work.queues[p]) < QUEUED
        }
        if wanted:
            await fetch_once(source, work, wanted)
        else:
            await asyncio.sleep(0.001)


async def fetch_once(source: KafkaSource, work: Work, wanted: dict[TopicPartition, int]) -> None:
    """Send one Fetch, and plan its answer."""
    result = await source.fetch(
        work.node,
        {p: FetchPosition(end) for p, end in wanted.items()},
        max_wait_ms=100,
        max_bytes=MAX_BYTES,
        partition_max_bytes=PARTITION_MAX_BYTES,
    )
    for partition, fetched in result.partitions.items():
        take(work, partition, fetched)


def take(work: Work, partition: TopicPartition, fetched: Fetched) -> None:
    """Plan one partition's part of an answer."""
    assert fetched.error == 0
    pieces = plan(fetched.records, Offset(work.ends[partition]), fetched.aborted)
    for piece in pieces:
        assert isinstance(piece, Data)
        work.queues[partition].append(piece)
    if pieces:
        work.ends[partition] = pieces[-1].end


async def append_all(destination: KafkaDestination, topic: str, work: Work) -> None:
    """Append the planned batches, five requests in flight."""
    answers: deque[asyncio.Future[object]] = deque()
    while not work.fetched_all or answers or any(work.queues.values()):
        request = next(batches_of(work, topic), None)
        if request is not None and len(answers) < IN_FLIGHT:
            answers.append(destination.produce(1, request))  # type: ignore[arg-type]
            continue
        if request is not None:
            await answers.popleft()
            answers.append(destination.produce(1, request))  # type: ignore[arg-type]
        elif answers:
            await answers.popleft()
        else:
            await asyncio.sleep(0.0005)


def batches_of(work: Work, topic: str) -> Iterator[list[Batch]]:
    """Yield requests with the next batch of each partition that has one."""
    producer = ProducerId(work.producer.producer_id)
    epoch = ProducerEpoch(work.producer.epoch)
    while ready := [(p, queue.popleft()) for p, queue in work.queues.items() if queue]:
        request = []
        for (_, index), data in ready:
            header = patched_header(
                data.header, data.records, producer, epoch, types.Sequence(data.start)
            )
            request.append(Batch(TopicPartition(topic, index), header, data.records))
            work.bytes += data.size
        yield request


async def prove(destination: KafkaDestination, topic: str, work: Work) -> None:
    """Check that all records have arrived."""
    ends = await destination.log_ends([TopicPartition(topic, i) for i in range(PARTITIONS)])
    assert {end.log_end for end in ends.values()} == {work.end}


class Clock:
    """Wall and CPU seconds of a `with` block."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self._profile = profile
        self.figures = (0.0, 0.0, 0.0)

    def __enter__(self) -> "Clock":
        self._before = self._now()
        if self._profile is not None:
            self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.disable()
        after = self._now()
        wall, user, system = (b - a for a, b in zip(self._before, after, strict=True))
        self.figures = (wall, user, system)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime, usage.ru_stime


async def preload(cluster: KafkaCluster, records: int, batch_records: int) -> int:
    """Fill the source's topic; return its broker's id."""
    port = KafkaDestination(cluster, lambda: True)
    leaders = await port.leaders(["source"])
    (node,) = {leader.node for leader in leaders.values()}
    bodies = [zstd_records(batch_records, random.Random(seed)) for seed in range(BODIES)]
    rounds = records // PARTITIONS // batch_records
    assert rounds * PARTITIONS * batch_records == records, "whole batches only"
    now = int(time.time() * 1000)
    answers: deque[asyncio.Future[object]] = deque()
    for number in range(rounds):
        body = bodies[number % BODIES]
        header = new_header(
            length=HEADER_SIZE - 12 + len(body),
            attributes=Codec.ZSTD,
            last_offset_delta=batch_records - 1,
            base_timestamp=now,
            max_timestamp=now,
            producer_id=-1,
            epoch=-1,
            sequence=-1,
            count=batch_records,
            records=body,
        )
        if len(answers) == IN_FLIGHT:
            await answers.popleft()
        request = [Batch(TopicPartition("source", i), header, body) for i in range(PARTITIONS)]
        answers.append(port.produce(node, request))  # type: ignore[arg-type]
    while answers:
        await answers.popleft()
    return node


def zstd_records(count: int, rng: random.Random) -> memoryview:
    """Return the compressed records of a batch."""
    out = bytearray()
    for delta in range(count):
        noise = rng.randbytes(int(VALUE_BYTES * RANDOM_SHARE))
        tail = encode_tail(None, noise + b"x" * (VALUE_BYTES - len(noise)))
        record = b"\0" + varint(0) + varint(delta) + tail
        out += varint(len(record)) + record
    return memoryview(compress(Codec.ZSTD, out))


@asynccontextmanager
async def started(cluster: LocalCluster) -> AsyncIterator[KafkaCluster]:
    """Yield a client."""
    host, _, port = cluster.bootstrap_servers.partition(":")
    config = ClusterConfig(bootstrap_servers=(Address(host, int(port)),))
    async with KafkaCluster(config) as client:
        yield client


async def make_topic(cluster: KafkaCluster, name: str) -> None:
    """Create a topic with 8 partitions."""
    item = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[item], timeout_ms=30_000, validate_only=False)
    response = await cluster.call(request, node=CONTROLLER)
    check(response.topics[0].error_code, f"create {name}")
    await asyncio.sleep(1)


if __name__ == "__main__":
    main()
