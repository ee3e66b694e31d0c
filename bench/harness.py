"""What the benches share: clusters, loads, contenders, and how they are measured.

A contender (twinlog, MirrorMaker 2) is a process tree that mirrors a topic by itself. What it does
is measured from outside, the same way for all: the destination's log ends are polled, the time runs
from the first record that is there to the last, and so do the CPU seconds of the whole tree, the
JVM included. Its start is in neither; it is told apart as `startup`.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from twinlog.cluster.admin import NewTopic, create_topics, delete_topics
from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.config import parse_config
from twinlog.cluster.mirrorlog import CONTROL_TOPICS
from twinlog.control.store import MirrorStore
from twinlog.core.batch import HEADER_SIZE
from twinlog.core.compression import Codec
from twinlog.core.errors import Refusal
from twinlog.core.records import RawRecord, build, encode_tail, whole
from twinlog.core.types import TopicPartition
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import JavaProgram, ProcessGroup
from twinlog.pipeline.kafka import KafkaDestination
from twinlog.pipeline.ports import Batch
from twinlog.wire.config_records import Mirror, MirrorTopic

IN_FLIGHT = 5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Records that are in the source before anybody starts."""

    name: str
    records: int
    value_bytes: int
    batch_records: int
    codec: Codec
    partitions: int = 8


def catch_up_loads(records: int) -> list[Load]:
    """The three loads of the catch-up bench."""
    return [
        Load(name="zstd", records=records, value_bytes=1000, batch_records=500, codec=Codec.ZSTD),
        Load(
            name="uncompressed",
            records=records,
            value_bytes=1000,
            batch_records=500,
            codec=Codec.NONE,
        ),
        Load(name="single", records=records, value_bytes=100, batch_records=1, codec=Codec.NONE),
    ]


def client(cluster: LocalCluster) -> KafkaCluster:
    """A client of a local cluster; an async context manager."""
    return KafkaCluster(parse_config({"bootstrap.servers": cluster.bootstrap_servers}).config)


async def preload(cluster: KafkaCluster, load: Load) -> int:
    """Make the load's topic and fill it; bytes on the wire.

    A fifth of each value is random, the rest words, so that zstd leaves about a third.
    """
    rng = random.Random(load.name)
    answers = await create_topics(
        cluster, [NewTopic(name=load.name, partitions=load.partitions, replication_factor=1)]
    )
    assert not isinstance(answers[load.name], Refusal), answers
    port = KafkaDestination(cluster, lambda: True)
    while any(leader.node < 0 for leader in (await port.leaders([load.name])).values()):
        await asyncio.sleep(0.1)
    bodies = [_batch(load, rng) for _ in range(16)]
    pending: deque[asyncio.Future[object]] = deque()
    rounds = load.records // load.partitions // load.batch_records
    size = 0
    for number in range(rounds):
        request = []
        for index in range(load.partitions):
            header, records = bodies[(number + index) % len(bodies)]
            request.append(Batch(TopicPartition(load.name, index), header, records))
            size += len(header) + len(records)
        pending.append(asyncio.ensure_future(port.produce(1, request)))  # type: ignore[arg-type]
        if len(pending) == IN_FLIGHT:
            _accepted(await pending.popleft())
    while pending:
        _accepted(await pending.popleft())
    return size


def _accepted(answers: object) -> None:
    assert isinstance(answers, Mapping)
    assert not any(answer.error for answer in answers.values()), answers


def _batch(load: Load, rng: random.Random) -> tuple[bytes, memoryview]:
    now = time.time_ns() // 1_000_000
    words = [rng.randbytes(4).hex() for _ in range(500)]
    records = []
    for offset in range(load.batch_records):
        noise = rng.randbytes(load.value_bytes // 5)
        text = " ".join(rng.choice(words) for _ in range(load.value_bytes // 9)).encode()
        value = (noise + text)[: load.value_bytes]
        records.append(RawRecord(offset, now, 0, memoryview(encode_tail(None, value))))
    data = whole(build(records, load.codec))
    return data[:HEADER_SIZE], memoryview(data)[HEADER_SIZE:]


# ---- processes ---------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """A process and all below it that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children.get(one, [])
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of these processes so far."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def proportional_memory(pid: int) -> int:
    """A process's share of memory in bytes (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def is_java(pid: int) -> bool:
    """Whether a process is a JVM."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False


@contextmanager
def twinlog(destination: LocalCluster, *options: str, log: Path) -> Iterator[int]:
    """`twinlog run` as a user starts it; its pid."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("twinlog")),
                "run",
                "--bootstrap-server",
                destination.bootstrap_servers,
                *options,
            ],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


TUNED = {
    # KAFKA_FACTS: what more than doubles MirrorMaker 2's throughput.
    "producer.batch.size": "524288",
    "producer.linger.ms": "20",
    "producer.max.request.size": "10485760",
    "consumer.max.poll.records": "5000",
    "consumer.max.partition.fetch.bytes": "2097152",
    "consumer.fetch.max.bytes": "52428800",
}


@contextmanager
def mirror_maker(
    source: LocalCluster,
    destination: LocalCluster,
    topic: str,
    *,
    alias: str,
    tuned: bool,
    compression: str,
    folder: Path,
) -> Iterator[int]:
    """MirrorMaker 2 with two tasks, as `connect-mirror-maker.sh` runs it; its pid.

    Its topic on the destination is `{alias}.{topic}`.
    """
    properties = {
        "clusters": f"{alias}, target",
        f"{alias}.bootstrap.servers": source.bootstrap_servers,
        "target.bootstrap.servers": destination.bootstrap_servers,
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": topic,
        f"target->{alias}.enabled": "false",
        "tasks.max": "2",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "refresh.groups.enabled": "false",
        "dedicated.mode.enable.internal.rest": "false",
        "source.consumer.auto.offset.reset": "earliest",
        "target.producer.compression.type": compression,
    }
    if tuned:
        for name, value in TUNED.items():
            side = "source" if name.startswith("consumer") else "target"
            properties[f"{side}.{name}"] = value
    file = folder / f"{alias}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    with ProcessGroup() as group:
        process = group.start(
            JavaProgram(
                jars=mirror_maker_jars("4.3.1"),
                main="org.apache.kafka.connect.mirror.MirrorMaker",
                arguments=[str(file)],
                heap="2g",
                log=folder / f"{alias}.log",
            )
        )
        yield process.identity.pid


# ---- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run gave. CPU seconds are of the contender's whole process tree."""

    records_per_second: float
    seconds: float
    cpu_seconds: float
    cpu_with_start: float
    startup: float


async def catch_up(
    destination: KafkaCluster, topic: str, load: Load, pid: int, *, limit_s: float = 600.0
) -> Figures:
    """Watch a contender mirror a load; see the module."""
    port = KafkaDestination(destination, lambda: False)
    partitions = [TopicPartition(topic, index) for index in range(load.partitions)]
    begun = time.perf_counter()
    first: tuple[float, float, int] | None = None
    while True:
        assert time.perf_counter() - begun < limit_s, f"{topic} is not there after {limit_s} s"
        await destination.refresh([topic])
        ends = await port.log_ends(partitions)
        there = sum(max(end.log_end, 0) for end in ends.values())
        now = time.perf_counter()
        if there and first is None:
            first = (now, cpu_seconds(descendants(pid)), there)
        if there >= load.records and first is not None:
            cpu = cpu_seconds(descendants(pid))
            seconds = now - first[0]
            return Figures(
                records_per_second=(there - first[2]) / seconds,
                seconds=seconds,
                cpu_seconds=cpu - first[1],
                cpu_with_start=cpu,
                startup=first[0] - begun,
            )
        await asyncio.sleep(0.02 if first else 0.1)


async def forget_mirrors(destination: KafkaCluster, topics: Sequence[str]) -> None:
    """Delete mirrored topics and the control topics, and wait until they are gone."""
    names = [*CONTROL_TOPICS, *topics]
    await delete_topics(destination, names)
    while True:
        metadata = await destination.refresh(names)
        if not any(name in metadata.topics and not metadata.topics[name].error for name in names):
            return
        await asyncio.sleep(0.2)


async def make_mirror(
    source: KafkaCluster, destination: KafkaCluster, servers: str, topics: Mapping[str, int]
) -> None:
    """A mirror of these topics (name: partitions), whose destination topics are made anew."""
    store = MirrorStore(destination)
    await store.create_mirror(
        Mirror(
            name="bench",
            source={"bootstrap.servers": servers},
            source_cluster_id=source.cluster_id,
        )
    )
    await create_topics(
        destination,
        [NewTopic(name=n, partitions=count, replication_factor=1) for n, count in topics.items()],
    )
    found = (await source.refresh(list(topics))).topics
    await store.add_topics(
        "bench",
        [
            MirrorTopic(mirror="bench", topic=n, topic_id=found[n].topic_id, partitions=count)
            for n, count in topics.items()
        ],
    )
