"""Catching up with a backlog: twinlog, MirrorMaker 2 as it comes and tuned, and the limit.

    .venv/bin/python bench/catch_up.py [--records 2000000] [--rounds 3] [--load zstd ...]

Two clusters of one broker each, all on this machine, 8 partitions. The contenders take turns, so
that a slow minute of a shared machine hits all of them. Writes bench/results/catch_up.json.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from bare_loop import Work, limit
from harness import (
    Figures,
    Load,
    catch_up,
    catch_up_loads,
    client,
    forget_mirrors,
    make_mirror,
    mirror_maker,
    preload,
    twinlog,
)
from twinlog.cluster.admin import NewTopic, create_topics, delete_topics
from twinlog.cluster.client import KafkaCluster
from twinlog.control.store import MirrorStore
from twinlog.core.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.pipeline.kafka import KafkaDestination, KafkaSource
from twinlog.wire.config_records import Mirror

RESULTS = Path(__file__).parent / "results"
CONTENDERS = ("limit", "twinlog", "mm2-tuned", "mm2-defaults")
WARM_S = 20.0


async def main() -> None:
    """Run all, print a line for each run, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", action="append", help="only these loads")
    parser.add_argument("--only", action="append", help="only these contenders")
    options = parser.parse_args()
    runs: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster.start(1, heap="1g") as source,
        LocalCluster.start(1, heap="1g") as destination,
    ):
        async with client(source) as here, client(destination) as there:
            for load in catch_up_loads(options.records):
                if options.load and load.name not in options.load:
                    continue
                size = await preload(here, load)
                print(f"{load.name}: {load.records} records, {size / 1e6:.0f} MB", flush=True)
                for number in range(options.rounds):
                    for contender in options.only or CONTENDERS:
                        bench = Bench(source, destination, here, there, load, Path(name))
                        figures = await bench.run(contender, number)
                        print(_line(contender, figures, size), flush=True)
                        runs.append(_row(load, contender, number, size, figures))
                await delete_topics(here, [load.name])
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": platform.platform(), "runs": runs}, indent=1)
    (RESULTS / "catch_up.json").write_text(text + "\n")
    _summary(runs)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of one contender."""

    source: LocalCluster
    destination: LocalCluster
    here: KafkaCluster
    there: KafkaCluster
    load: Load
    folder: Path

    async def run(self, contender: str, number: int) -> Figures:
        """Run it on a topic of its own, and delete that."""
        if contender == "limit":
            return await self._limit(f"limit-{self.load.name}-{number}")
        if contender == "twinlog":
            return await self._twinlog()
        return await self._mirror_maker(contender, number)

    async def _limit(self, topic: str) -> Figures:
        load = self.load
        await create_topics(
            self.there, [NewTopic(name=topic, partitions=load.partitions, replication_factor=1)]
        )
        port = KafkaDestination(self.there, lambda: True)
        while any(leader.node < 0 for leader in (await port.leaders([topic])).values()):
            await asyncio.sleep(0.1)
        reader = KafkaSource(self.here)
        await reader.leaders([load.name])
        partitions = [TopicPartition(load.name, index) for index in range(load.partitions)]
        work = Work(1, load.records // load.partitions, partitions, await port.init_producer(topic))
        seconds, user, system = await limit(reader, port, topic, work, None)
        await delete_topics(self.there, [topic])
        return Figures(
            records_per_second=load.records / seconds,
            seconds=seconds,
            cpu_seconds=user + system,
            cpu_with_start=user + system,
            startup=0.0,
        )

    async def _twinlog(self) -> Figures:
        load = self.load
        # The node starts before it has anything to do, so that its start is not in the figures.
        store = MirrorStore(self.there)
        await store.create_mirror(
            Mirror(name="idle", source={"bootstrap.servers": "127.0.0.1:1"}, source_cluster_id="")
        )
        with twinlog(self.destination, log=self.folder / "twinlog.log") as pid:
            await asyncio.sleep(WARM_S)
            servers = self.source.bootstrap_servers
            await make_mirror(self.here, self.there, servers, {load.name: load.partitions})
            figures = await catch_up(self.there, load.name, load, pid)
        await forget_mirrors(self.there, [load.name])
        return figures

    async def _mirror_maker(self, contender: str, number: int) -> Figures:
        load = self.load
        alias = f"{contender.removeprefix('mm2-')}-{load.name}-{number}"
        with mirror_maker(
            self.source,
            self.destination,
            load.name,
            alias=alias,
            tuned=contender == "mm2-tuned",
            compression=load.codec.name.lower(),
            folder=self.folder,
        ) as pid:
            figures = await catch_up(self.there, f"{alias}.{load.name}", load, pid)
        await delete_topics(self.there, [f"{alias}.{load.name}"])
        return figures


def _row(load: Load, contender: str, number: int, size: int, figures: Figures) -> dict[str, object]:
    return {
        "load": load.name,
        "contender": contender,
        "round": number,
        "records": load.records,
        "bytes": size,
        "records_per_second": figures.records_per_second,
        "seconds": figures.seconds,
        "cpu_seconds": figures.cpu_seconds,
        "cpu_with_start": figures.cpu_with_start,
        "startup": figures.startup,
    }


def _line(contender: str, figures: Figures, size: int) -> str:
    return (
        f"  {contender:<13}{figures.records_per_second:>10,.0f} records/s"
        f"{figures.seconds:>8.2f} s, CPU {figures.cpu_seconds:6.2f} s"
        f" ({figures.cpu_seconds / size * 1e9:.1f} s/GB; with start {figures.cpu_with_start:.1f} s)"
    )


def _summary(runs: list[dict[str, object]]) -> None:
    groups: defaultdict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
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
