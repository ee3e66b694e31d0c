"""A flow with transforms on real brokers: lanes that are killed, and what is where afterwards."""

import asyncio
import json
import random
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from group_tool import consumer_groups
from lane_processes import lanes
from stored_flows import states
from transformed_flows import (
    PARTITIONS,
    await_position,
    check_copies,
    commit_position,
    consumed,
    count,
    flow_properties,
    headers_of,
    kill_lanes,
    new_flow,
    numbers_written_to,
    positions,
)
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.lifecycle.changes import alter_mirror

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

PACKAGE = "org.apache.kafka.connect.transforms."
TRANSFORMS = {
    "transforms": "drop, route, mask, mark",
    "transforms.drop.type": f"{PACKAGE}Filter",
    "transforms.drop.predicate": "skipped",
    "transforms.route.type": f"{PACKAGE}RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "vip-$1",
    "transforms.route.predicate": "important",
    "transforms.mask.type": f"{PACKAGE}MaskField$Value",
    "transforms.mask.fields": "secret",
    "transforms.mark.type": f"{PACKAGE}InsertHeader",
    "transforms.mark.header": "copied",
    "transforms.mark.value.literal": "yes",
    "predicates": "skipped, important",
    "predicates.skipped.type": f"{PACKAGE}predicates.HasHeaderKey",
    "predicates.skipped.name": "skip",
    "predicates.important.type": f"{PACKAGE}predicates.HasHeaderKey",
    "predicates.important.name": "vip",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


def transformed(number: int) -> tuple[bytes, object]:
    """What the transforms make of a number."""
    value = f'{{"number":{number},"secret":""}}'
    return value.encode(), [*headers_of(number), ("copied", b"yes")]


def test_transformed_records_arrive_once_though_lanes_are_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: kill -9 of the owner at random moments: each record once, in order, in its topic."""
    _, topic = new_flow(pair, TRANSFORMS)
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    writing = numbers_written_to(source, topic)
    try:
        with lanes(destination, tmp_path) as running:
            kill_lanes(running, 5, f"a.{topic}", random.Random(11), SECONDS)
            committed = writing.end()
            running.start("last")
            check_copies(destination, topic, committed, transformed, SECONDS)
    finally:
        writing.end()


UNIFORM = {
    "none": ({"transaction.producer": "true"}, "a.", []),
    "route": (
        {
            "transforms": "r",
            "transforms.r.type": f"{PACKAGE}RegexRouter",
            "transforms.r.regex": r"a\.(.*)",
            "transforms.r.replacement": "b.$1",
        },
        "b.",
        [],
    ),
    "header": (
        {
            "transforms": "h",
            "transforms.h.type": f"{PACKAGE}InsertHeader",
            "transforms.h.header": "copied",
            "transforms.h.value.literal": "yes",
        },
        "a.",
        [("copied", b"yes")],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "none")) for name in UNIFORM],
)
def test_large_and_small_batches_arrive_once_though_lanes_are_killed(
    pair: Pair, tmp_path: Path, name: str
) -> None:
    """Goal: batches that are forwarded, merged, or get headers, with kill -9 of the owner."""
    transforms, prefix, added = UNIFORM[name]
    _, topic = new_flow(pair, transforms)
    remote, rng = f"{prefix}{topic}", random.Random(12)
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    settings = {"bootstrap.servers": source, "linger.ms": 1000, "batch.size": 200_000}
    producer = Producer({**settings, "compression.type": "zstd", "enable.idempotence": True})
    wanted: defaultdict[int, list[object]] = defaultdict(list)

    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.1):
            partition = rng.randrange(PARTITIONS)
            for _ in range(rng.choice((1, 3, 60))):  # 60 are above 64 KiB
                number = sum(map(len, wanted.values()))
                value, headers = b"%d " % number + rng.randbytes(1200), headers_of(number)
                producer.produce(topic, value, partition=partition, headers=headers)
                wanted[partition].append((value, [*headers, *added]))
            assert producer.flush(120) == 0  # a batch

    writing = threading.Thread(target=write)
    writing.start()
    try:
        with lanes(destination, tmp_path) as running:
            kill_lanes(running, 3, remote, random.Random(13), SECONDS)
            stop.set()
            writing.join(180)
            running.start("last")
            total = sum(map(len, wanted.values()))
            until(lambda: count(destination, remote) >= total, SECONDS, f"{total} records")
            assert consumed(destination, remote) == wanted
    finally:
        stop.set()
        writing.join(180)


def test_a_record_that_cannot_be_transformed_stops_its_partition_only(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: FAILED with the offset; it goes on where an operator commits the next one."""
    mirror, topic = new_flow(pair, TRANSFORMS)
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    producer = Producer({"bootstrap.servers": source})
    good = json.dumps({"number": 1, "secret": "x"})
    for partition, values in ((0, [good, "{", good]), (1, [good] * 3)):
        for value in values:
            producer.produce(topic, value, partition=partition)
            assert producer.flush(120) == 0  # a batch for each
    with lanes(destination, tmp_path) as running:
        running.start("node")
        until(lambda: len(consumed(destination, f"a.{topic}")[1]) == 3, SECONDS, "the other one")

        def failed() -> bool:
            state, reason = states(pair, mirror)[0]
            return state == "FAILED" and "offset 1 cannot be transformed: transform mask" in str(
                reason
            )

        until(failed, SECONDS, "the reason")
        # What is before it is written, and its own offset is the position.
        until(lambda: len(consumed(destination, f"a.{topic}")[0]) == 1, SECONDS, "one record")
        await_position(pair, mirror, topic, 1, SECONDS)
        until(lambda: states(pair, mirror)[1][0] == "MIRRORING", SECONDS, "the other partition")
        commit_position(pair, mirror, f"a.{topic}", 2)
        until(lambda: states(pair, mirror)[0][0] == "MIRRORING", SECONDS, "it goes on")
        await_position(pair, mirror, topic, 3, SECONDS)
        until(lambda: len(consumed(destination, f"a.{topic}")[0]) == 2, SECONDS, "two records")


def test_transforms_that_are_altered_count_from_the_next_record_on(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: without a restart; and transforms that cannot be read let no record through."""
    one = {
        "transforms": "mark",
        "transforms.mark.type": "InsertHeader",
        "transforms.mark.header": "h",
        "transforms.mark.value.literal": "first",
    }
    mirror, topic = new_flow(pair, one)
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    producer = Producer({"bootstrap.servers": source})

    def write(value: str) -> None:
        producer.produce(topic, value, partition=0)
        assert producer.flush(120) == 0

    async def alter(transforms: Mapping[str, str]) -> None:
        async with client(pair.destination) as cluster:
            properties = flow_properties(pair, one)
            changes = {f"mirror.flow.{name}": text for name, text in transforms.items()}
            await alter_mirror(cluster, mirror, {**properties, **changes}, replaces=True)

    write("a")
    with lanes(destination, tmp_path) as running:
        running.start("node")
        until(lambda: count(destination, f"a.{topic}") == 1, SECONDS, "the first record")
        asyncio.run(alter({"transforms.mark.type": "Mine"}))
        until(lambda: states(pair, mirror)[0][0] == "FAILED", SECONDS, "the unknown transform")
        write("b")
        asyncio.run(alter({"transforms.mark.value.literal": "second"}))
        until(lambda: count(destination, f"a.{topic}") == 2, SECONDS, "the second record")
    assert consumed(destination, f"a.{topic}")[0] == [
        (b"a", [("h", b"first")]),
        (b"b", [("h", b"second")]),
    ]


def test_a_flow_begins_and_goes_on_where_its_group_says(pair: Pair, tmp_path: Path) -> None:
    """Goal: KIP-656's one-time offset job; and a group that was deleted is no new beginning.

    Where the source has deleted records behind that offset, they are lost, and not passed over.
    """
    mirror, topic = new_flow(pair, {"transaction.producer": "true"})
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    group = position_group("twinlog", mirror)
    producer = Producer({"bootstrap.servers": source})

    def commit(offset: int, partition: int = 0) -> None:
        """As docs/operations/transforms.md has it."""
        librdkafka_tools.commit(destination, group, f"a.{topic}", {partition: offset})

    def values() -> list[bytes | None]:
        return [value for value, _ in consumed(destination, f"a.{topic}")[0]]

    for number in range(10):
        for partition in (0, 1):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(120) == 0
    purged = TopicPartition(topic, 1, 8)
    of_source = AdminClient({"bootstrap.servers": source})
    of_source.delete_records([purged])[purged].result(120)
    commit(4)
    commit(4, partition=1)
    with lanes(destination, tmp_path) as running:
        running.start("node")
        until(lambda: len(values()) == 6, SECONDS, "the records from offset 4 on")
        until(lambda: states(pair, mirror)[1][0] == "FAILED", SECONDS, "the lost records")
        running.kill("node")
        admin = AdminClient({"bootstrap.servers": destination})
        admin.delete_consumer_groups([group])[group].result(120)
        running.start("later")

        def lost() -> bool:
            state, reason = states(pair, mirror)[0]
            return state == "FAILED" and "the position is lost" in str(reason)

        until(lost, SECONDS, "the lost position")
        commit(10)

        def dated() -> bool:
            at = asyncio.run(positions(pair, mirror, topic)).get(0)
            return at is not None and at.offset == 10 and at.metadata.startswith("source-topic-id=")

        until(dated, SECONDS, "the topics' ids in the operator's offset, without a record")
        producer.produce(topic, "10", partition=0)
        assert producer.flush(120) == 0
        until(lambda: len(values()) == 7, SECONDS, "the next record")
        # What docs/operations/transforms.md has for an offset that may be of a former topic.
        running.end()
        which = ("--group", group, "--topic", f"a.{topic}:0")
        consumer_groups(destination, *which, "--delete-offsets")
        assert 0 not in asyncio.run(positions(pair, mirror, topic))
    assert values() == [str(number).encode() for number in range(4, 11)]
