"""How much memory a lane uses while it catches up with a large backlog.

    .venv/bin/python bench/memory.py [--megabytes 2500] [--buffer-mb 16 64 256] [--round 0 ...]

The backlog is JSON documents of 1,000 bytes, not compressed, 100 to a batch, in 100 partitions: so
many that `lane.buffer.bytes` bounds the lane's data, and not the queue of each partition. The
lanes' resident memory (PSS: pages that processes share are counted once) is read five times a
second. The figures are each lane's highest value, in the first quarter of the records and in total,
beside its value before the backlog existed. Each run is stored in bench/results/memory.json.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import results
from harness import (
    Load,
    Others,
    client,
    forget_mirrors,
    lanes_of,
    make_mirror,
    plain,
    preload,
    proportional_memory,
    start_cluster,
    twinlog,
)
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.store.config_records import Mirror
from twinlog.store.mirrors import MirrorStore

WARM_S = 20.0
PATIENCE_S = 240.0
PARTITIONS = 100
BATCH_RECORDS = 100
VALUE_BYTES = 1000
KEY = ("buffer_mb", "round")


async def main() -> None:
    """Run the selected sizes, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2500)
    parser.add_argument("--buffer-mb", type=int, nargs="+", default=(16, 64, 256))
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0")
    options = parser.parse_args()
    rounds = options.megabytes * 1_000_000 // (VALUE_BYTES * BATCH_RECORDS * PARTITIONS)
    load = Load(
        name="backlog",
        records=rounds * BATCH_RECORDS * PARTITIONS,
        value_bytes=VALUE_BYTES,
        batch_records=BATCH_RECORDS,
        codec=Codec.NONE,
        partitions=PARTITIONS,
    )
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster() as destination,
    ):
        async with client(source) as here, client(destination) as there:
            size = await preload(here, load)
            bench = Bench(source, destination, here, there, load, Path(name))
            for number in options.round or [0]:
                for buffer_mb in options.buffer_mb:
                    found = await bench.run(buffer_mb)
                    run = {"buffer_mb": buffer_mb, "round": number, "bytes": size, **found}
                    results.put("memory", run, KEY)
                    print(_line(run), flush=True)


@dataclass(frozen=True, slots=True)
class Bench:
    """The clusters and the backlog."""

    source: LocalCluster
    destination: LocalCluster
    here: KafkaCluster
    there: KafkaCluster
    load: Load
    folder: Path

    async def run(self, buffer_mb: int) -> Mapping[str, float]:
        """Catch up once; return megabytes of the largest lane, and the duration in seconds."""
        store = MirrorStore(self.there)
        await store.create_mirror(
            Mirror(name="idle", source={"bootstrap.servers": "127.0.0.1:1"}, source_cluster_id="")
        )
        options = ("--lane-property", f"lane.buffer.bytes={buffer_mb << 20}")
        log = self.folder / "twinlog.log"
        with twinlog(plain(self.destination), *options, log=log) as pid:
            await asyncio.sleep(WARM_S)
            before = _largest(pid)
            source = plain(self.source)
            await make_mirror(self.here, self.there, source, {self.load.name: PARTITIONS})
            found = await self._watch(pid)
        await forget_mirrors(self.there, [self.load.name])
        return {"idle_mb": before, **found}

    async def _watch(self, pid: int) -> Mapping[str, float]:
        port = KafkaDestination(self.there, lambda: False)
        partitions = [TopicPartition(self.load.name, index) for index in range(PARTITIONS)]
        begun, others = time.perf_counter(), Others()
        early = highest = 0.0
        records = 0
        while records < self.load.records:
            assert time.perf_counter() - begun < PATIENCE_S
            await self.there.refresh([self.load.name])
            ends = await port.log_ends(partitions)
            records = sum(max(end.log_end, 0) for end in ends.values())
            highest = max(highest, _largest(pid))
            if records < self.load.records / 4:
                early = highest
            await asyncio.sleep(0.2)
        return {
            "early_mb": early,
            "highest_mb": highest,
            "seconds": time.perf_counter() - begun,
            "others_cores": others.cores(),
        }


def _largest(pid: int) -> float:
    return max(map(proportional_memory, lanes_of(pid)), default=0) / 1e6


def _line(run: results.Run) -> str:
    size = float(run["bytes"]) / 1e9
    return (
        f"  lane.buffer.bytes {run['buffer_mb']:>4} MiB: idle {run['idle_mb']:.0f} MB, "
        f"first quarter {run['early_mb']:.0f} MB, highest {run['highest_mb']:.0f} MB; "
        f"{run['seconds']:.1f} s for {size:.2f} GB; others {run['others_cores']:.2f} cores"
    )


if __name__ == "__main__":
    asyncio.run(main())
