"""What idle mirrored partitions cost.

    .venv/bin/python bench/idle.py [--partitions 0 100 1000 10000] [--seconds 30] [--round 0 ...]

One node (`twinlog run`, two lanes) mirrors first nothing, then more and more partitions, in topics
of 100; none has a record. At each number the bench waits until all are MIRRORING, then `SETTLE_S`,
then counts CPU seconds for `--seconds`: of Spark's JVM, of the driver's Python process and of the
lanes, apart, and reads their memory (PSS) at the end. `0` is Spark and lanes with a mirror without
topics. Each run is stored in bench/results/idle.json; a round takes about three minutes, and with
10,000 partitions six.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import results
from harness import (
    Others,
    add_topics,
    client,
    cpu_seconds,
    make_mirror,
    parts,
    plain,
    proportional_memory,
    start_cluster,
    twinlog,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.mirror.states import State
from twinlog.store.mirrors import MirrorStore

COUNTS = (0, 100, 1000, 10_000)
TOPIC_PARTITIONS = 100
AT_ONCE = 10
"""Topics that are created and added in one step."""
WARM_S = 25.0
SETTLE_S = 15.0
PATIENCE_S = 240.0
KEY = ("partitions", "round")


async def main() -> None:
    """Run the selected sizes, print a line for each, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    options = parser.parse_args()
    for number in options.round or range(3):
        with (
            tempfile.TemporaryDirectory() as name,
            start_cluster() as source,
            start_cluster() as destination,
        ):
            async with client(source) as here, client(destination) as there:
                await make_mirror(here, there, plain(source), {})
                with twinlog(plain(destination), log=Path(name, "twinlog.log")) as pid:
                    await asyncio.sleep(WARM_S)
                    there_are = 0
                    for count in sorted(options.partitions):
                        begun = time.perf_counter()
                        await _grow(here, there, there_are, count)
                        there_are = count
                        await _all_mirroring(there, count)
                        ready = time.perf_counter() - begun
                        await asyncio.sleep(SETTLE_S)
                        found = await _measure(pid, options.seconds)
                        run = {"partitions": count, "round": number, "ready_s": ready, **found}
                        results.put("idle", run, KEY)
                        print(_line(run), flush=True)


async def _grow(here: KafkaCluster, there: KafkaCluster, have: int, want: int) -> None:
    """Create more empty topics in the source, and add them to the mirror."""
    numbers = range(have // TOPIC_PARTITIONS, want // TOPIC_PARTITIONS)
    names = [f"idle-{number:03}" for number in numbers]
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        new = [NewTopic(name=name, partitions=TOPIC_PARTITIONS) for name in some]
        answers = await create_topics(here, new)
        assert not any(isinstance(answer, Refusal) for answer in answers.values()), answers
        await add_topics(here, there, dict.fromkeys(some, TOPIC_PARTITIONS))


async def _all_mirroring(there: KafkaCluster, count: int) -> None:
    store = MirrorStore(there)
    deadline = time.perf_counter() + PATIENCE_S
    while (found := await _mirroring(store)) < count:
        assert time.perf_counter() < deadline, f"{found} of {count} partitions are mirroring"
        await asyncio.sleep(0.5)


async def _mirroring(store: MirrorStore) -> int:
    statuses, _ = await store.statuses()
    rows = [row for status in statuses.values() for row in status.partitions]
    return sum(row.state is State.MIRRORING for row in rows)


async def _measure(pid: int, seconds: float) -> Mapping[str, float]:
    """Return cores and megabytes of each part of a node."""
    node = parts(pid)
    groups = {"driver": node.driver, "lanes": node.lanes, "java": node.java}
    before = {name: cpu_seconds(pids) for name, pids in groups.items()}
    begun, others = time.perf_counter(), Others()
    await asyncio.sleep(seconds)
    passed = time.perf_counter() - begun
    cores = {f"{n}_cores": (cpu_seconds(pids) - before[n]) / passed for n, pids in groups.items()}
    memory = {f"{n}_mb": sum(map(proportional_memory, pids)) / 1e6 for n, pids in groups.items()}
    return {**cores, **memory, "others_cores": others.cores()}


def _line(run: results.Run) -> str:
    told = (
        f"{n} {run[n + '_cores']:.4f} cores {run[n + '_mb']:.0f} MB" for n in ("driver", "lanes")
    )
    return (
        f"{run['partitions']:>6} partitions: {', '.join(told)}, JVM {run['java_cores']:.4f} cores "
        f"{run['java_mb']:.0f} MB; all mirroring after {run['ready_s']:.1f} s; "
        f"others {run['others_cores']:.2f} cores"
    )


if __name__ == "__main__":
    asyncio.run(main())
