"""Flows with transforms: how they are stored, written to, and read back."""

import asyncio
import json
import random
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from clients import client, commit
from lane_processes import Lanes
from number_producer import NumberProducer
from stored_flows import store_flow
from waiting import until
from whole_logs import read_whole_log

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.lifecycle.changes import alter_mirror
from twinlog.lifecycle.flow_creation import stored_properties

PARTITIONS = 3


def flow_properties(pair: Pair, transforms: Mapping[str, str]) -> dict[str, str]:
    connection = {"bootstrap.servers": pair.source.bootstrap_servers}
    settings = {"enabled": "true", "topics": "x", "replication.factor": "-1", **transforms}
    return stored_properties(connection, settings, "a", "b")


def new_flow(pair: Pair, transforms: Mapping[str, str]) -> tuple[str, str]:
    """Create a flow that copies a new topic to `a.TOPIC`; return the names of both."""
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    properties = flow_properties(pair, transforms)
    asyncio.run(store_flow(pair, mirror, properties, (topic, f"a.{topic}"), PARTITIONS))
    return mirror, topic


def headers_of(number: int) -> list[tuple[str, str | bytes | None]]:
    headers: list[tuple[str, str | bytes | None]] = [("n", str(number).encode())]
    if number % 5 == 0:
        headers.append(("skip", b""))
    if number % 7 == 0:
        headers.append(("vip", b""))
    return headers


def numbers_written_to(servers: str, topic: str) -> NumberProducer:
    """A producer that writes objects with a number and a secret, as JSON."""

    def record(number: int) -> dict[str, object]:
        value = json.dumps({"number": number, "secret": f"s{number}"})
        return {"value": value, "headers": headers_of(number)}

    return NumberProducer(servers, topic, PARTITIONS, record, {"compression.type": "lz4"})


def consumed(
    servers: str, topic: str, partitions: int = PARTITIONS
) -> dict[int, list[tuple[bytes | None, object]]]:
    """Value and headers of all committed records of a topic, by partition."""
    found = defaultdict[int, list[tuple[bytes | None, object]]](list)
    for index, messages in (read_whole_log(servers, topic, range(partitions)) or {}).items():
        if messages:
            found[index] = [(one.value(), one.headers()) for one in messages]
    return found


def count(servers: str, topic: str) -> int:
    return sum(map(len, consumed(servers, topic).values()))


def await_progress(servers: str, topic: str, rng: random.Random, seconds: float) -> None:
    """Wait until 100 more records have arrived in a topic, and then for a random moment."""
    before = count(servers, topic)
    until(lambda: count(servers, topic) > before + 100, seconds, "the flow goes on")
    threading.Event().wait(rng.random())


def kill_lanes(running: Lanes, times: int, topic: str, rng: random.Random, seconds: float) -> None:
    """Start lanes one after another; kill each at a random moment while it writes to a topic."""
    for turn in range(times):
        node = f"node-{turn}"
        running.start(node)
        await_progress(running.servers, topic, rng, seconds)
        running.kill(node)


def check_copies(
    servers: str,
    topic: str,
    numbers: Collection[int],
    transformed: Callable[[int], tuple[bytes | None, object]],
    seconds: float,
) -> None:
    """Wait until the copies of these numbers are there, and check that there is nothing else.

    Args:
        servers: the target's addresses.
        topic: the source's topic. Numbers with the header `vip` are copied to `vip-a.TOPIC`, others
            to `a.TOPIC`; those with the header `skip` are not.
        numbers: what was committed on the source.
        transformed: value and headers of a number's copy.
        seconds: how long to wait.
    """
    for name, important in ((f"a.{topic}", False), (f"vip-a.{topic}", True)):
        wanted: defaultdict[int, list[tuple[bytes | None, object]]] = defaultdict(list)
        for number in sorted(numbers):
            if number % 5 and (number % 7 == 0) == important:
                wanted[number % PARTITIONS].append(transformed(number))
        total = sum(map(len, wanted.values()))
        assert total > 50
        until(
            lambda name=name, total=total: count(servers, name) >= total,
            seconds,
            f"{total} records in {name}",
        )
        assert consumed(servers, name) == wanted


async def positions(pair: Pair, mirror: str, topic: str) -> dict[int, Committed]:
    """What a flow has committed; records are seen before the positions of their transaction."""
    group = position_group("twinlog", mirror)
    async with client(pair.destination) as destination:
        found = await committed_offsets(destination, group, stable=True)
    return {key.partition: one for key, one in found.items() if key.topic == f"a.{topic}"}


def commit_position(pair: Pair, mirror: str, remote: str, offset: int) -> None:
    """Commit a flow's position of partition 0, as an operator does.

    Args:
        pair: the clusters.
        mirror: the flow.
        remote: the topic on the target.
        offset: of the source.
    """

    async def run() -> None:
        async with client(pair.destination) as cluster:
            key, group = KafkaPartition(remote, 0), position_group("twinlog", mirror)
            await commit(cluster, group, {key: Committed(offset)})

    asyncio.run(run())


def await_position(pair: Pair, mirror: str, topic: str, offset: int, seconds: float) -> Committed:
    """Wait until the position of partition 0 is this one, and return it.

    Records and positions of a transaction have markers of their own: the position may be committed
    after its records are readable.
    """
    found = until(
        lambda: asyncio.run(positions(pair, mirror, topic)).get(0),
        seconds,
        f"the position {offset}",
        good=lambda at: at is not None and at.offset == offset,
    )
    assert found is not None
    return found


async def alter(pair: Pair, mirror: str, transforms: Mapping[str, str]) -> None:
    """Give a flow other transforms."""
    async with client(pair.destination) as cluster:
        await alter_mirror(cluster, mirror, flow_properties(pair, transforms), replaces=True)
