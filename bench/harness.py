"""The shared part of the benches: clusters, loads, contenders, and their measurement.

A contender (twinlog, MirrorMaker 2) is a process tree that mirrors a topic by itself. It is
measured from outside, the same way for all: the destination's log end offsets are polled. Time and
the CPU seconds of the whole tree, the JVM included, count from the first arrived record to the
last. The start is in neither figure; it is reported apart as `startup`. Since a JVM is slow at
first, the second half of the records is reported apart, too.

The cores that other programs took in the same time are reported with each figure (`others_cores`),
so that a disturbed run is recognized.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from documents import order
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.ports import Batch
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Refusal
from twinlog.kafka.log.batch import HEADER_SIZE
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.requests.topics import (
    NewTopic,
    absent_everywhere,
    create_topics,
    delete_topics,
)
from twinlog.kafka.types import TopicPartition
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import JavaProgram, ProcessGroup, Program
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import CONTROL_TOPICS
from twinlog.store.mirrors import MirrorStore

IN_FLIGHT = 5
MIRROR = "bench"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Records that are in the source before a contender starts."""

    name: str
    records: int
    value_bytes: int
    batch_records: int
    codec: Codec
    partitions: int = 8
    age_s: float = 0.0
    """The age of the records."""


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


Properties = Mapping[str, str]
"""A client's properties, as Java's clients and twinlog take them."""


def plain(cluster: LocalCluster) -> Properties:
    """Return the properties of a client of a cluster's listener without TLS and SASL."""
    return {"bootstrap.servers": cluster.bootstrap_servers}


def client(cluster: LocalCluster) -> KafkaCluster:
    """Return a client of a local cluster; an async context manager."""
    return connect(plain(cluster))


def connect(properties: Properties) -> KafkaCluster:
    """Return a client with these properties; an async context manager."""
    return KafkaCluster(parse_config(properties).config)


async def make_topic(
    cluster: KafkaCluster, name: str, partitions: int, replication: int = 1
) -> None:
    """Create a topic, and wait until every partition's leader serves it."""
    new = NewTopic(name=name, partitions=partitions, replication_factor=replication)
    answers = await create_topics(cluster, [new])
    assert not isinstance(answers[name], Refusal), answers
    port = KafkaDestination(cluster, lambda: False)
    all_of_it = [TopicPartition(name, index) for index in range(partitions)]
    deadline = time.monotonic() + 60
    while True:
        await port.leaders([name])
        ends = await port.log_ends(all_of_it)
        if not any(end.error for end in ends.values()):
            return
        assert time.monotonic() < deadline, f"{name} is not served"
        await asyncio.sleep(0.1)


async def preload(cluster: KafkaCluster, load: Load) -> int:
    """Create the load's topic and fill it; return its bytes on the wire.

    The values are JSON documents (documents.py), shorter values their prefixes. Each batch is one
    of 16: a broker and a mirror do not benefit from the repetition.
    """
    rng = random.Random(load.name)
    await make_topic(cluster, load.name, load.partitions)
    port = KafkaDestination(cluster, lambda: True)
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
        pending.append(asyncio.ensure_future(port.produce(1, request)))
        if len(pending) == IN_FLIGHT:
            _accepted(await pending.popleft())
    while pending:
        _accepted(await pending.popleft())
    return size


def _accepted(answers: object) -> None:
    assert isinstance(answers, Mapping)
    assert not any(answer.error for answer in answers.values()), answers


def _batch(load: Load, rng: random.Random) -> tuple[bytes, memoryview]:
    written = int((time.time() - load.age_s) * 1000)
    records = []
    for offset in range(load.batch_records):
        value = order(rng, 1000)[: load.value_bytes]
        records.append(RawRecord(offset, written, 0, memoryview(encode_tail(None, value))))
    data = whole(build(records, load.codec))
    return data[:HEADER_SIZE], memoryview(data)[HEADER_SIZE:]


# ---- processes ---------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Return a process and all its living descendants."""
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
    """Return the user and system time of these processes so far."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def proportional_memory(pid: int) -> int:
    """Return a process's share of memory in bytes (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The processes of a node, by kind."""

    driver: list[int]
    java: list[int]
    lanes: list[int]

    @property
    def python(self) -> list[int]:
        """Return all processes but Spark's own."""
        return self.driver + self.lanes


def parts(pid: int) -> Parts:
    """Return the processes of `twinlog run`: the driver (its root), Spark's JVM, the lanes.

    The lanes' common parent, which only waits, counts as a lane.
    """
    below = [one for one in descendants(pid) if one != pid]
    java = [one for one in below if _command(one)[0].endswith("java")]
    return Parts(driver=[pid], java=java, lanes=[one for one in below if one not in java])


def lanes_of(pid: int) -> list[int]:
    """Return the lanes alone: the children of the process from which Spark forks its tasks."""
    lanes = parts(pid).lanes
    return [one for parent in lanes for one in descendants(parent) if one != parent]


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


class Others:
    """The cores that other programs use (all but this process and its descendants)."""

    def __init__(self) -> None:
        self._begun = self._now()

    def cores(self) -> float:
        """Return the cores used since this object was created."""
        begun, now = self._begun, self._now()
        return max(0.0, (now[1] - begun[1] - (now[2] - begun[2])) / (now[0] - begun[0]))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        user, nice, system, _, _, irq, softirq = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
        )
        ended = os.times()
        ours = cpu_seconds(descendants(os.getpid())) + ended.children_user + ended.children_system
        return time.perf_counter(), (user + nice + system + irq + softirq) / CLOCK_TICKS, ours


ATTEMPTS = 2
DISTURBED = 0.25
"""Cores that other programs take, from which on a run is disturbed."""

T = TypeVar("T")


async def undisturbed(run: Callable[[str], Awaitable[T]], others: Callable[[T], float]) -> T:
    """Return a run's result, or that of a second run if other programs disturbed the first.

    Args:
        run: gets a name that no other attempt has.
        others: the cores that other programs took during a run.
    """
    for attempt in range(ATTEMPTS):
        found = await run(f"{time.time_ns() // 1_000_000_000:x}")
        if others(found) < DISTURBED:
            break
        if attempt + 1 < ATTEMPTS:
            print(f"  disturbed by {others(found):.2f} cores: once more", flush=True)
    return found


PROGRAM = Path(sys.executable).with_name("twinlog")


@contextmanager
def twinlog(
    destination: Properties, *options: str, log: Path, program: Path = PROGRAM
) -> Iterator[int]:
    """Start `twinlog run` as a user does; return its pid."""
    file = log.with_suffix(".properties")
    write_properties(file, destination)
    argv = [str(program), "run", "--bootstrap-server", destination["bootstrap.servers"]]
    argv += ["--command-config", str(file), *options]
    # The group ends it even if this process is killed.
    with ProcessGroup() as group:
        process = group.start(Program(argv=argv, log=log))
        yield process.identity.pid
        process.signal(signal.SIGTERM)
        process.wait(40)


def write_properties(file: Path, properties: Properties) -> None:
    """Write a Java properties file; of what needs an escape, values may have line ends."""
    escaped = {name: value.replace("\n", "\\n") for name, value in properties.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))


TUNED = {
    # This more than doubles MirrorMaker 2's throughput.
    "producer.batch.size": "524288",
    "producer.linger.ms": "20",
    "producer.max.request.size": "10485760",
    "consumer.max.poll.records": "5000",
    "consumer.max.partition.fetch.bytes": "2097152",
    "consumer.fetch.max.bytes": "52428800",
}


MIRROR_MAKER_JVM = ("-Xms2g", "-XX:+AlwaysPreTouch")
"""With this heap, touched before it begins, and the serial collector (as all programs of the
benches) it is fastest: 152,000 records/s where the script's G1 and a growing heap gave 120,000."""
BROKER_HEAP = "1g"
BROKER_JVM = ("-Xms1g", "-XX:+AlwaysPreTouch")
"""Memory that the system has not allocated yet is not part of the comparison."""
BROKER_CONFIG = {"log.segment.delete.delay.ms": "0"}
"""By default the files of a run's topics are deleted a minute after it, during the next run: with
100 partitions and more that holds up both brokers for a second."""


def start_cluster(
    brokers: int = 1, config: Properties | None = None, **options: Any
) -> LocalCluster:
    """Start a cluster, of one broker in most benches; a context manager.

    Several brokers have a controller of its own, whose heap is smaller than the brokers' first one.
    """
    flags = BROKER_JVM if brokers == 1 else ()
    return LocalCluster.start(
        brokers,
        heap=BROKER_HEAP,
        jvm_flags=flags,
        config={**BROKER_CONFIG, **(config or {})},
        **options,
    )


@contextmanager
def mirror_maker(
    source: Properties,
    destination: Properties,
    topic: str,
    *,
    alias: str,
    tuned: bool,
    compression: str,
    folder: Path,
    replication: int = 1,
    isolation: str = "read_uncommitted",
    connector: Properties = MappingProxyType({}),
) -> Iterator[int]:
    """Start MirrorMaker 2 with two tasks, as `connect-mirror-maker.sh` does; return its pid.

    Its topic on the destination is `{alias}.{topic}`. `connector` are further properties of its
    source connector, such as `transforms`. Its tasks' consumers are configured by
    `{alias}.consumer.*`; `source.consumer.*` at the top of the file is silently ignored.
    """
    properties = {
        "clusters": f"{alias}, target",
        **{f"{alias}.{name}": value for name, value in source.items()},
        **{f"target.{name}": value for name, value in destination.items()},
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": topic,
        f"target->{alias}.enabled": "false",
        "tasks.max": "2",
        "replication.factor": str(replication),
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
        f"{alias}.consumer.auto.offset.reset": "earliest",
        f"{alias}.consumer.isolation.level": isolation,
        "target.producer.compression.type": compression,
        **{f"{alias}->target.{name}": value for name, value in connector.items()},
    }
    if tuned:
        for name, value in TUNED.items():
            side = alias if name.startswith("consumer") else "target"
            properties[f"{side}.{name}"] = value
    file = folder / f"{alias}.properties"
    write_properties(file, properties)
    with ProcessGroup() as group:
        process = group.start(
            JavaProgram(
                jars=mirror_maker_jars("4.3.1"),
                main="org.apache.kafka.connect.mirror.MirrorMaker",
                arguments=[str(file)],
                flags=MIRROR_MAKER_JVM,
                heap="2g",
                log=folder / f"{alias}.log",
            )
        )
        yield process.identity.pid


# ---- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run. CPU seconds are of the contender's whole process tree.

    `late_*` are those of the second half of the records.
    """

    records_per_second: float
    seconds: float
    cpu_seconds: float
    cpu_with_start: float
    startup: float
    late_records_per_second: float
    late_cpu_seconds: float
    others_cores: float


class _Moment(NamedTuple):
    time: float
    cpu: float
    records: int


async def catch_up(
    destination: KafkaCluster,
    topic: str,
    load: Load,
    pid: int,
    *,
    limit_s: float = 240.0,
    offsets: int | None = None,
) -> Figures:
    """Measure a contender that mirrors a load; see the module.

    Args:
        destination: the contender's destination.
        topic: its topic there.
        load: what it mirrors.
        pid: its root process.
        limit_s: seconds until it must have ended.
        offsets: the sum of the log end offsets at the end, if it copies markers as well.
    """
    offsets = offsets or load.records
    port = KafkaDestination(destination, lambda: False)
    partitions = [TopicPartition(topic, index) for index in range(load.partitions)]
    begun = time.perf_counter()
    others = Others()
    first: _Moment | None = None
    half: _Moment | None = None
    while True:
        assert time.perf_counter() - begun < limit_s, f"{topic} is not there after {limit_s} s"
        if first is None:
            await destination.refresh([topic])
        ends = await port.log_ends(partitions)
        there = sum(max(end.log_end, 0) for end in ends.values()) * load.records // offsets
        if first is None and there:
            others = Others()
            first = _moment(pid, there)
        if half is None and there >= load.records / 2:
            half = _moment(pid, there)
        if first and half and there >= load.records:
            last = _moment(pid, there)
            return Figures(
                records_per_second=(there - first.records) / (last.time - first.time),
                seconds=last.time - first.time,
                cpu_seconds=last.cpu - first.cpu,
                cpu_with_start=last.cpu,
                startup=first.time - begun,
                late_records_per_second=(there - half.records) / (last.time - half.time),
                late_cpu_seconds=last.cpu - half.cpu,
                others_cores=others.cores(),
            )
        await asyncio.sleep(0.05 if first else 0.1)


def _moment(pid: int, records: int) -> _Moment:
    return _Moment(time.perf_counter(), cpu_seconds(descendants(pid)), records)


async def forget_mirrors(destination: KafkaCluster, topics: Sequence[str]) -> None:
    """Delete mirrored topics and the control topics, and wait until no broker knows them."""
    names = [*CONTROL_TOPICS, *topics]
    await delete_topics(destination, names)
    while await absent_everywhere(destination, names) != {*names}:
        await asyncio.sleep(0.2)


async def make_mirror(
    source: KafkaCluster,
    destination: KafkaCluster,
    reached: Properties,
    topics: Mapping[str, int],
    replication: int = 1,
) -> None:
    """Create a mirror of these topics (name: partitions), with new destination topics.

    `reached` are the properties by which the mirror reaches the source.
    """
    store = MirrorStore(destination)
    await store.create_mirror(
        Mirror(
            name=MIRROR,
            source=reached,
            source_cluster_id=source.cluster_id,
        )
    )
    if topics:
        await add_topics(source, destination, topics, replication)


async def _described(cluster: KafkaCluster, topics: Collection[str]) -> Mapping[str, Topic]:
    """Return topics as the cluster describes them, once it knows all of them."""
    deadline = time.monotonic() + 60
    while True:
        found = (await cluster.refresh(list(topics))).topics
        if all(name in found and not found[name].error for name in topics):
            return found
        assert time.monotonic() < deadline, "new topics are not described"
        await asyncio.sleep(0.1)


async def add_topics(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Mapping[str, int],
    replication: int = 1,
) -> None:
    """Add topics to the mirror (name: partitions), with new destination topics."""
    answers = await create_topics(
        destination,
        [
            NewTopic(name=name, partitions=count, replication_factor=replication)
            for name, count in topics.items()
        ],
    )
    assert not any(isinstance(answer, Refusal) for answer in answers.values()), answers
    found = await _described(source, topics)
    await MirrorStore(destination).add_topics(
        MIRROR,
        [
            MirrorTopic(mirror=MIRROR, topic=n, topic_id=found[n].topic_id, partitions=count)
            for n, count in topics.items()
        ],
    )
