"""Catching up with a backlog: twinlog, MirrorMaker 2 by default and tuned, and the limit.

    .venv/bin/python bench/catch_up.py [--records 2000000] [--load zstd ...] [--round 0 ...]
        [--beside PROGRAM]

Two clusters of one broker each, all on this machine, 8 partitions. The contenders take turns, so
that a slow minute of a shared machine affects all of them. Each run is stored in
bench/results/catch_up.json as soon as it has ended; one load in one round takes about two minutes.

`--beside`, the `twinlog` of another checkout, shows the effect of a change: only turns on the same
brokers are comparable. New brokers take twice as long for their first runs, and each pair warms
differently.

The values are JSON documents of 1,000 bytes (documents.py), 500 in a batch, of which zstd leaves
290 bytes each; in the load `single` their first 100 bytes, each record in a batch of its own. The
data decides about the figures of a mirror that decompresses and compresses: with 256 random bytes
and 744 equal ones, which cost hardly anything to compress, tuned MirrorMaker 2 was a quarter faster
(189,000 instead of 152,000 records/s).
"""

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import results
from bare_loop import Work, limit
from harness import (
    PROGRAM,
    Figures,
    Load,
    Others,
    Properties,
    catch_up,
    catch_up_loads,
    client,
    connect,
    forget_mirrors,
    make_mirror,
    make_topic,
    mirror_maker,
    plain,
    preload,
    start_cluster,
    twinlog,
    undisturbed,
)
from twinlog.engines.kafka_ports import KafkaDestination, KafkaSource
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import delete_topics
from twinlog.kafka.types import TopicPartition
from twinlog.store.config_records import Mirror
from twinlog.store.mirrors import MirrorStore

LIMITS = {"limit": 1, "limit-lanes": 2}
"""How many connections append: one as in the bare loop of a lane, or as many as lanes run."""
CONTENDERS = (*LIMITS, "twinlog", "mm2-tuned", "mm2-defaults")
ONE_LANE = "twinlog-1"
"""twinlog with one lane; `twinlog` has a lane for each core."""
WARM_S = 20.0
"""Seconds after the previous run: a mirror has started by then, and the bare loop waits as long.

A machine may give memory that is free for some seconds back to its host, and take it again page by
page: a broker paid half as much for its writes where it got the pages of the previous run.
"""


async def main() -> None:
    """Run the selected contenders, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--load", action="append", help="only these loads")
    parser.add_argument("--only", action="append", help="only these contenders")
    parser.add_argument("--beside", type=Path, help="another checkout's twinlog; printed, not kept")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster() as destination,
    ):
        async with client(source) as here, client(destination) as there:
            for load in catch_up_loads(options.records):
                if options.load and load.name not in options.load:
                    continue
                size = await preload(here, load)
                print(f"{load.name}: {load.records} records, {size / 1e6:.0f} MB", flush=True)
                bench = Bench(
                    *(plain(source), plain(destination), here, there, load, Path(name)),
                    options.beside,
                )
                # These runs are not stored: they make both brokers compile their code.
                beside = ("beside",) if options.beside else ()
                for contender in ("limit", "twinlog", *beside):
                    await bench.run(contender, "warm")
                for number in options.round or range(3):
                    for contender in (*(options.only or CONTENDERS), *beside):
                        figures = await undisturbed(
                            partial(bench.run, contender), lambda found: found.others_cores
                        )
                        print(line(contender, figures, size), flush=True)
                        if contender not in beside:
                            row = _row(load, contender, number, size, figures)
                            results.put("catch_up", row, ("load", "contender", "round"))
                await delete_topics(here, [load.name])
    _summary(results.load("catch_up"))


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of one contender."""

    source: Properties
    """By which the contenders reach it."""
    destination: Properties
    here: KafkaCluster
    there: KafkaCluster
    load: Load
    folder: Path
    beside: Path | None
    replication: int = 1
    """Of the mirrored topic on the destination."""
    offsets: int | None = None
    """The sum of twinlog's log end offsets, if the load has markers (`harness.catch_up`)."""
    isolation: str = "read_uncommitted"
    """Of MirrorMaker 2's consumers."""
    connector: Properties = field(default_factory=dict)
    """Further properties of MirrorMaker 2's source connector."""

    async def run(self, contender: str, name: str) -> Figures:
        """Run it on a topic of its own, with `name` in the topic's name, and delete that topic."""
        if contender in LIMITS:
            topic = f"{contender}-{self.load.name}-{name}"
            return await self._limit(topic, LIMITS[contender])
        if contender == "twinlog":
            return await self._twinlog(PROGRAM)
        if contender == ONE_LANE:
            return await self._twinlog(PROGRAM, "--lanes", "1")
        if contender == "beside":
            assert self.beside is not None
            return await self._twinlog(self.beside)
        return await self._mirror_maker(contender, name)

    async def _limit(self, topic: str, connections: int) -> Figures:
        async with AsyncExitStack() as stack:
            clients = [connect(self.destination) for _ in range(connections)]
            ports = [
                KafkaDestination(await stack.enter_async_context(each), lambda: True)
                for each in clients
            ]
            return await self._limit_of(topic, ports)

    async def _limit_of(self, topic: str, ports: Sequence[KafkaDestination]) -> Figures:
        load = self.load
        await make_topic(self.there, topic, load.partitions, self.replication)
        for port in ports:
            await port.leaders([topic])
        reader = KafkaSource(self.here)
        await reader.leaders([load.name])
        partitions = [TopicPartition(load.name, index) for index in range(load.partitions)]
        producer = await ports[0].init_producer(topic)
        work = Work(1, load.records // load.partitions, partitions, producer)
        others = Others()
        seconds, user, system = await limit(reader, ports, topic, work, None, pause_s=WARM_S)
        cores = others.cores()
        await delete_topics(self.there, [topic])
        return Figures(
            records_per_second=load.records / seconds,
            seconds=seconds,
            cpu_seconds=user + system,
            cpu_with_start=user + system,
            startup=0.0,
            late_records_per_second=load.records / seconds,
            late_cpu_seconds=(user + system) / 2,
            others_cores=cores,
        )

    async def _twinlog(self, program: Path, *options: str) -> Figures:
        load = self.load
        async with self.node(program, *options) as pid:
            topics = {load.name: load.partitions}
            await make_mirror(self.here, self.there, self.source, topics, self.replication)
            figures = await catch_up(self.there, load.name, load, pid, offsets=self.offsets)
        await forget_mirrors(self.there, [load.name])
        return figures

    @asynccontextmanager
    async def node(self, program: Path, *options: str) -> AsyncIterator[int]:
        """Start twinlog before it has work, so that its start is in no figure; its pid."""
        await MirrorStore(self.there).create_mirror(
            Mirror(name="idle", source={"bootstrap.servers": "127.0.0.1:1"}, source_cluster_id="")
        )
        log = self.folder / "twinlog.log"
        with twinlog(self.destination, *options, log=log, program=program) as pid:
            await asyncio.sleep(WARM_S)
            yield pid

    async def _mirror_maker(self, contender: str, name: str) -> Figures:
        load = self.load
        alias = f"{contender.removeprefix('mm2-')}-{load.name}-{name}"
        with mirror_maker(
            self.source,
            self.destination,
            load.name,
            alias=alias,
            tuned=contender == "mm2-tuned",
            compression=load.codec.name.lower(),
            folder=self.folder,
            replication=self.replication,
            isolation=self.isolation,
            connector=self.connector,
        ) as pid:
            figures = await catch_up(self.there, f"{alias}.{load.name}", load, pid)
        await delete_topics(self.there, [f"{alias}.{load.name}"])
        return figures


def _row(load: Load, contender: str, number: int, size: int, figures: Figures) -> results.Run:
    return {
        "load": load.name,
        "contender": contender,
        "round": number,
        "records": load.records,
        "bytes": size,
        **asdict(figures),
    }


def line(contender: str, figures: Figures, size: int) -> str:
    """Return the figures of a run that moved this many bytes, for a person."""
    return (
        f"  {contender:<13}{figures.records_per_second:>10,.0f} records/s"
        f"{figures.seconds:>8.2f} s, CPU {figures.cpu_seconds:6.2f} s"
        f" ({figures.cpu_seconds / size * 1e9:.1f} s/GB);"
        f" 2nd half {figures.late_records_per_second:,.0f} records/s"
        f" ({figures.late_cpu_seconds / size * 2e9:.1f} s/GB);"
        f" others {figures.others_cores:.2f} cores"
    )


def _summary(runs: list[results.Run]) -> None:
    groups: defaultdict[tuple[str, str], list[results.Run]] = defaultdict(list)
    for run in runs:
        groups[str(run["load"]), str(run["contender"])].append(run)
    print("medians")
    for (load, contender), group in groups.items():
        rate = statistics.median(float(str(run["records_per_second"])) for run in group)
        cpu = statistics.median(
            float(str(run["cpu_seconds"])) / float(str(run["bytes"])) * 1e9 for run in group
        )
        print(f"  {load:<14}{contender:<14}{rate:>10,.0f} records/s  CPU {cpu:6.1f} s/GB")


if __name__ == "__main__":
    asyncio.run(main())
