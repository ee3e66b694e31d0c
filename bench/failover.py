"""How long a failover takes if the source is dead.

    .venv/bin/python bench/failover.py [--partitions 1 1000 10000] [--round 0 ...]

One node (two lanes) mirrors this many partitions, in topics of 100, each with a record. The source
is killed with SIGKILL; then the clock starts, and `kafka-mirrors --remove --topic '.*'` is run as a
user runs it, its modules compiled as pip leaves them. Four moments are measured:

* the first record of it in `__mirror_config` (until then Python has started and connected);
* the end of that command;
* the record in `__mirror_state` that the last partition is STOPPED;
* the acknowledgement of a producer's first write after that, to the partition STOPPED last.

Each run is stored in bench/results/failover.json; a round takes some six minutes.
"""

import argparse
import asyncio
import compileall
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

import results
from harness import (
    MIRROR,
    Others,
    add_topics,
    client,
    make_mirror,
    plain,
    start_cluster,
    twinlog,
)
from idle import AT_ONCE, TOPIC_PARTITIONS
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store.control_topics import CONFIG_TOPIC, STATE_TOPIC, fold_states
from twinlog.store.mirrors import MirrorStore
from twinlog.store.topic_reader import Tail

COUNTS: Final = (1, 1000, 10_000)
KEY: Final = ("partitions", "round")
PATIENCE_S: Final = 300.0
SETTLE_S: Final = 12.0
"""Longer than a lease: a partition with a new owner would wait for the rest of a lease."""


async def main() -> None:
    """Run the selected sizes, print a line for each, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    options = parser.parse_args()
    compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)
    for number in options.round or range(3):
        for count in options.partitions:
            run = {"partitions": count, "round": number, **await _measure(count)}
            results.put("failover", run, KEY)
            print(
                f"{count:>6} partitions: asked for after {run['asked_s']:.2f} s, "
                f"command {run['command_s']:.2f} s, all STOPPED after "
                f"{run['stopped_s']:.2f} s, written to after {run['written_s']:.2f} s; "
                f"others {run['others_cores']:.2f} cores",
                flush=True,
            )


async def _measure(count: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster() as destination,
    ):
        async with client(destination) as there, client(source) as here:
            await make_mirror(here, there, plain(source), {})
            with twinlog(plain(destination), log=Path(name, "twinlog.log")):
                async with _states(there) as states:
                    await _fill(here, there, source.bootstrap_servers, count)
                    await _await(states, State.MIRRORING, count)
                    await _caught_up(there, count)
                    await asyncio.sleep(SETTLE_S)
                    source.kill(1)
                    return await _fail_over(destination, there, states, count)


class _States:
    """The partitions' states as they are written."""

    def __init__(self) -> None:
        self.now: dict[MirrorPartition, State] = {}
        self.last: MirrorPartition | None = None
        self.changed = asyncio.Event()


@asynccontextmanager
async def _states(there: KafkaCluster) -> AsyncIterator[_States]:
    found = _States()

    async def follow() -> None:
        async with aclosing(Tail(there, STATE_TOPIC).follow()) as news:
            async for records in news:
                for name, state in fold_states(records).states.items():
                    found.now[name] = state.state
                    found.last = name
                found.changed.set()

    task = asyncio.create_task(follow())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _await(states: _States, wanted: State, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sum(state is wanted for state in states.now.values()) < count:
            states.changed.clear()
            await states.changed.wait()


async def _fill(here: KafkaCluster, there: KafkaCluster, servers: str, count: int) -> None:
    """Create this many partitions with a record each, in the source and in the mirror."""
    each = min(count, TOPIC_PARTITIONS)
    names = [f"failover-{number:03}" for number in range(count // each)]
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        answers = await create_topics(here, [NewTopic(name=n, partitions=each) for n in some])
        assert not any(isinstance(answer, Refusal) for answer in answers.values()), answers
        await add_topics(here, there, dict.fromkeys(some, each))
    producer = Producer({"bootstrap.servers": servers})
    for name in names:
        for index in range(each):
            producer.produce(name, partition=index, value=b"one")
            producer.poll(0)
    assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0


async def _caught_up(there: KafkaCluster, count: int) -> None:
    """Wait until each partition has its record."""
    store = MirrorStore(there)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            statuses, _ = await store.statuses()
            rows = [row for status in statuses.values() for row in status.partitions]
            if sum(row.destination_end for row in rows) >= count:
                return
            await asyncio.sleep(0.5)


async def _fail_over(
    destination: LocalCluster, there: KafkaCluster, states: _States, count: int
) -> dict[str, float]:
    producer = Producer({"bootstrap.servers": destination.bootstrap_servers, "linger.ms": 0})
    await asyncio.to_thread(producer.list_topics, timeout=60)
    config = Tail(there, CONFIG_TOPIC)
    await config.catch_up()
    others = Others()
    begun = time.perf_counter()
    asked = asyncio.create_task(_told(config, begun))
    command = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("kafka-mirrors")),
        *("--bootstrap-server", destination.bootstrap_servers),
        *("--remove", "--mirror", MIRROR, "--topic", ".*", "--wait-seconds", "0"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    ended = asyncio.create_task(_ended(command, begun))
    await _await(states, State.STOPPED, count)
    stopped = time.perf_counter() - begun
    assert states.last is not None
    producer.produce(states.last.topic, partition=states.last.partition, value=b"first")
    assert await asyncio.to_thread(producer.flush, 30) == 0
    written = time.perf_counter() - begun
    return {
        "asked_s": await asked,
        "command_s": await ended,
        "stopped_s": stopped,
        "written_s": written,
        "others_cores": others.cores(),
    }


async def _told(tail: Tail, begun: float) -> float:
    async with aclosing(tail.follow()) as news:
        await anext(news)
    return time.perf_counter() - begun


async def _ended(command: asyncio.subprocess.Process, begun: float) -> float:
    assert await command.wait() == 0
    return time.perf_counter() - begun


if __name__ == "__main__":
    asyncio.run(main())
