"""What mirrored partitions cost while nothing happens.

    .venv/bin/python bench/idle.py [--partitions 100 --partitions 1000 ...] [--seconds 30]

CPU and memory of twinlog's processes, the JVM and the Python processes apart; `0` is Spark and the
lanes with nothing to mirror. Writes bench/results/idle.json.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from harness import (
    client,
    cpu_seconds,
    descendants,
    forget_mirrors,
    is_java,
    make_mirror,
    proportional_memory,
    twinlog,
)
from twinlog.cluster.admin import NewTopic, create_topics
from twinlog.cluster.client import KafkaCluster
from twinlog.control.store import MirrorStore
from twinlog.core.states import State
from twinlog.local.cluster import LocalCluster
from twinlog.wire.config_records import Mirror

RESULTS = Path(__file__).parent / "results"
COUNTS = (0, 100, 1000, 10_000)
TOPIC_PARTITIONS = 100
SETTLE_S = 20.0
PATIENCE_S = 600.0


async def main() -> None:
    """Run all, print a line for each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    runs = []
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster.start(1, heap="2g") as source,
        LocalCluster.start(1, heap="2g") as destination,
    ):
        async with client(source) as here, client(destination) as there:
            made = 0
            for count in options.partitions or COUNTS:
                while made * TOPIC_PARTITIONS < count:
                    await create_topics(
                        here, [NewTopic(name=f"idle-{made:03}", partitions=TOPIC_PARTITIONS)]
                    )
                    made += 1
                run = await _run(
                    count, options.seconds, source, destination, here, there, Path(name)
                )
                runs.append(run)
                print(
                    f"{count:>6} partitions: Python {run['python_cores']:.3f} cores "
                    f"{run['python_mb']:.0f} MB, JVM {run['java_cores']:.3f} cores "
                    f"{run['java_mb']:.0f} MB; all mirroring after {run['ready_s']:.1f} s",
                    flush=True,
                )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "idle.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n")


async def _run(  # noqa: PLR0917
    count: int,
    seconds: float,
    source: LocalCluster,
    destination: LocalCluster,
    here: KafkaCluster,
    there: KafkaCluster,
    folder: Path,
) -> dict[str, float]:
    topics = {f"idle-{index:03}": TOPIC_PARTITIONS for index in range(count // TOPIC_PARTITIONS)}
    store = MirrorStore(there)
    await store.create_mirror(
        Mirror(name="idle", source={"bootstrap.servers": "127.0.0.1:1"}, source_cluster_id="")
    )
    if topics:
        await make_mirror(here, there, source.bootstrap_servers, topics)
    begun = time.perf_counter()
    with twinlog(destination, log=folder / "twinlog.log") as pid:
        while await _mirroring(store) < count:
            assert time.perf_counter() - begun < PATIENCE_S
            await asyncio.sleep(0.5)
        ready = time.perf_counter() - begun
        await asyncio.sleep(SETTLE_S)
        pids = descendants(pid)
        java = [one for one in pids if is_java(one)]
        python = [one for one in pids if one not in java]
        before = cpu_seconds(python), cpu_seconds(java), time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - before[2]
        found = {
            "partitions": count,
            "ready_s": ready,
            "python_cores": (cpu_seconds(python) - before[0]) / passed,
            "java_cores": (cpu_seconds(java) - before[1]) / passed,
            "python_mb": sum(map(proportional_memory, python)) / 1e6,
            "java_mb": sum(map(proportional_memory, java)) / 1e6,
        }
    await forget_mirrors(there, list(topics))
    return found


async def _mirroring(store: MirrorStore) -> int:
    statuses, _ = await store.statuses()
    rows = [row for status in statuses.values() for row in status.partitions]
    return sum(row.state is State.MIRRORING for row in rows)


if __name__ == "__main__":
    asyncio.run(main())
