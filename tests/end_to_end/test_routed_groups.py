"""Groups go on in topics that records are routed to, though all is killed, on real clusters.

orders ──east.orders──► eu.orders     `RegexRouter`, where `TopicNameMatches`
plain  ──────────────► east.plain     not routed
"""

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from librdkafka_tools import twinlog
from mirror_maker_process import MirrorMakerProcess, mirror_maker
from number_producer import NumberProducer
from remote_topics import raw_records
from waiting import SECONDS, until

from twinlog import RemoteClusterUtils
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import TopicPartition
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

PARTITIONS = 2
POSITIONS = 10
FILE = r"""
clusters = east, west
east.bootstrap.servers = {east}
west.bootstrap.servers = {west}
east->west.enabled = true
east->west.topics = orders-{topic},plain-{topic}
west->east.emit.heartbeats.enabled = false
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
east->west.transforms = drop, mask, rename
east->west.transforms.drop.type = org.apache.kafka.connect.transforms.Filter
east->west.transforms.drop.predicate = test
east->west.transforms.mask.type = org.apache.kafka.connect.transforms.MaskField$Value
east->west.transforms.mask.fields = card
east->west.transforms.rename.type = org.apache.kafka.connect.transforms.RegexRouter
east->west.transforms.rename.regex = east\\.(.*)
east->west.transforms.rename.replacement = eu.$1
east->west.transforms.rename.predicate = orders
east->west.predicates = test, orders
east->west.predicates.test.type = org.apache.kafka.connect.transforms.predicates.HasHeaderKey
east->west.predicates.test.name = test
east->west.predicates.orders.type = \
    org.apache.kafka.connect.transforms.predicates.TopicNameMatches
east->west.predicates.orders.pattern = east\\.orders-.*
east->west.value.converter = org.apache.kafka.connect.json.JsonConverter
east->west.value.converter.schemas.enable = false
"""
MAPPED = """
emit.checkpoints.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two clusters."""
    with Stage(tmp_path_factory.mktemp("routed-groups")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


def produced(number: int) -> dict[str, object]:
    """A record; one in ten is dropped."""
    headers = [("test", b"")] if number % 10 == 0 else []
    return {"value": json.dumps({"number": number, "card": f"4111-{number}"}), "headers": headers}


def numbers(records: Collection[tuple[int, bytes]]) -> list[int]:
    return [json.loads(value)["number"] for _, value in records]


def copied(stage: Stage, topic: str) -> int:
    return sum(len(raw_records(stage.destination, topic, index)) for index in range(PARTITIONS))


def kill_while_it_copies(stage: Stage, running: MirrorMakerProcess, remote: str) -> None:
    """Kill all while records are copied, and start anew."""
    before = copied(stage, remote)
    until(lambda: copied(stage, remote) > before + 100, SECONDS, f"100 more records in {remote}")
    running.kill()
    running.start()


def translated(stage: Stage, topic: str, partition: int, offsets: Iterable[int]) -> list[Any]:
    """Where the command sends these offsets, in their order."""
    servers = stage.destination.bootstrap_servers
    done = twinlog(
        *("flows", "translate", "--bootstrap-server", servers, "--flow", "east-to-west"),
        *("--topic", topic, "--partition", str(partition), "--json"),
        *(word for offset in offsets for word in ("--offset", str(offset))),
    )
    assert done.status == 0, done
    return [found["target"] for found in json.loads(done.output)["offsets"]]


def checkpoint(stage: Stage, group: str) -> dict[TopicPartition, int]:
    """Where a client of MirrorMaker 2 sends a group."""
    properties = {"bootstrap.servers": stage.destination.bootstrap_servers}
    try:
        found = asyncio.run(RemoteClusterUtils.translate_offsets(properties, "east", group))
    except UserError:
        return {}  # the first checkpoint creates the topic
    return {partition: at.offset for partition, at in found.items()}


def first_read(servers: str, group: str, remote: TopicPartition) -> tuple[int, int]:
    """Offset and number of the first record that a consumer of the group gets of a partition."""
    with librdkafka_tools.consumer(servers, group) as client:
        client.subscribe([remote.topic])
        message = until(
            lambda: client.poll(0.2),
            SECONDS,
            f"a record of {remote} for {group}",
            good=lambda got: (
                got is not None and got.error() is None and got.partition() == remote.partition
            ),
            pause=0.0,
        )
    assert message is not None
    return message.offset(), json.loads(message.value())["number"]


@pytest.mark.long
def test_groups_go_on_at_their_next_record_in_a_routed_topic(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: positions anywhere, after kill -9: committed, as checkpoint, and by command exact.

    Nothing is ever committed for the topic that the policy names, which is not created.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    orders, routed, unrouted = f"orders-{topic}", f"eu.orders-{topic}", f"east.orders-{topic}"
    for name in (orders, f"plain-{topic}"):
        librdkafka_tools.make_topic(east, name, PARTITIONS, config={"retention.ms": "123456789"})
    librdkafka_tools.write(east, f"plain-{topic}", [(0, None, '{"number":1,"card":"c"}', None)])
    writing = NumberProducer(east, orders, PARTITIONS, produced, {"compression.type": "lz4"})
    try:
        properties = FILE.format(east=east, west=west, topic=topic) + MAPPED
        with mirror_maker(tmp_path, properties, "--lanes", "1") as running:
            kill_while_it_copies(stage, running, routed)
            kept = [number for number in writing.end() if number % 10]
            until(lambda: copied(stage, routed) >= len(kept), SECONDS, f"{len(kept)} records")
            until(lambda: copied(stage, f"east.plain-{topic}") == 1, SECONDS, "the other topic")
            places = {
                index: raw_records(stage.destination, routed, index) for index in range(PARTITIONS)
            }
            for index, records in places.items():
                assert numbers(records) == [n for n in kept if n % PARTITIONS == index]
            expected: dict[str, tuple[TopicPartition, int, int]] = {}
            positions: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
            for turn in range(POSITIONS):
                index, group = chance.randrange(PARTITIONS), f"g{turn}-{topic}"
                source = raw_records(stage.source, orders, index)
                copies = dict(zip(numbers(places[index]), places[index], strict=True))
                last = next(at for at, value in reversed(source) if numbers([(at, value)])[0] % 10)
                offset = chance.randrange(last + 1)
                following = numbers([one for one in source if one[0] >= offset])
                number = next(each for each in following if each in copies)
                expected[group] = TopicPartition(routed, index), copies[number][0], number
                positions[index].append((offset, copies[number][0]))
                librdkafka_tools.commit(east, group, orders, {index: offset})
            for index, some in positions.items():
                assert translated(stage, orders, index, [offset for offset, _ in some]) == [
                    {"topic": routed, "partition": index, "offset": place} for _, place in some
                ]
            for group, (remote, offset, number) in expected.items():
                until(
                    lambda group=group: librdkafka_tools.committed(west, group, routed),
                    SECONDS,
                    f"{group} at {remote}: {offset}",
                    good=lambda at, remote=remote, offset=offset: at == {remote.partition: offset},
                )
                until(
                    lambda group=group: checkpoint(stage, group),
                    SECONDS,
                    f"a checkpoint of {group} at {remote}: {offset}",
                    good=lambda at, remote=remote, offset=offset: at == {remote: offset},
                )
                assert librdkafka_tools.committed(west, group, unrouted) == {}
                assert first_read(west, group, remote) == (offset, number)
        topics = librdkafka_tools.admin(west).list_topics(timeout=120).topics
        assert unrouted not in topics
        assert librdkafka_tools.configs(west, routed)["retention.ms"] == "123456789"
        verified = twinlog("verify", "--bootstrap-server", west, "--mirror", "east-to-west")
        assert verified.status == 0, verified
    finally:
        writing.end()


@pytest.mark.long
def test_a_deleted_flow_does_not_begin_anew_in_its_routed_topic(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: with a map or without, each record is once in the topic; forgotten, it begins anew."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    orders, routed = f"orders-{topic}", f"eu3.orders-{topic}"
    text = FILE.format(east=east, west=west, topic=topic)
    text = text.replace("eu.", "eu3.").replace("east", "third")
    unmapped = tmp_path / "unmapped.properties"
    unmapped.write_text(text)
    librdkafka_tools.make_topic(east, orders, PARTITIONS)
    record = '{"number":1,"card":"c"}'
    librdkafka_tools.write(east, orders, [(0, None, record, None)] * 100)
    flow = ("--flow", "third-to-west")
    here = ("--bootstrap-server", west)
    with mirror_maker(tmp_path, text + MAPPED, "--lanes", "1"):
        until(lambda: copied(stage, routed) == 100, SECONDS, f"100 records in {routed}")
        deleted = twinlog("flows", "delete", *here, *flow)
        assert deleted.status == 0, deleted
    refused = twinlog("mirror-maker", str(unmapped))
    assert refused.status == 1, refused
    assert f"was copied to {routed} before, and would be copied to " in refused.errors
    assert "twinlog flows delete --forget-offsets" in refused.errors
    librdkafka_tools.write(east, orders, [(0, None, record, None)])
    with mirror_maker(tmp_path, text + MAPPED, "--lanes", "1"):
        until(lambda: copied(stage, routed) == 101, SECONDS, "the next record only")
        forgotten = twinlog("flows", "delete", *here, *flow, "--forget-offsets")
        assert forgotten.status == 0, forgotten
    with mirror_maker(tmp_path, text, "--lanes", "1"):
        until(lambda: copied(stage, routed) == 202, SECONDS, "all records once more")


@pytest.mark.long
def test_a_flow_that_has_topics_gets_a_map_in_steps(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: each record once in the routed topic, and groups behind the change are translated."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    orders, routed, group = f"orders-{topic}", f"eu2.orders-{topic}", f"g-{topic}"
    text = FILE.format(east=east, west=west, topic=topic)
    text = text.replace("eu.", "eu2.").replace("east", "second")
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old = MirrorMakerProcess(folders[0], text, "--lanes", "1")
    mapped = f"{text}{MAPPED}twinlog.takeover = recorded\n"
    new = MirrorMakerProcess(folders[1], mapped, "--lanes", "1", "--takeover")
    librdkafka_tools.make_topic(east, orders, PARTITIONS)
    writing = NumberProducer(east, orders, PARTITIONS, produced, {})
    flow = ("--mirror", "second-to-west")
    try:
        old.start()
        until(lambda: copied(stage, routed) > 100, SECONDS, f"100 records in {routed}")
        refused = twinlog("mirror-maker", str(folders[1] / "mm2.properties"))
        assert refused.status == 1, refused
        assert "a map of offsets can be switched on only before the flow has topics" in (
            refused.errors
        )
        removed = stage.mirrors("--remove", "--topic", ".*", *flow, "--wait-seconds", "180")
        assert removed.status == 0, removed
        old.end()
        done = twinlog("mirror-maker", str(folders[0] / "mm2.properties"), "--hand-back")
        assert done.status == 0, done
        assert stage.mirrors("--delete", *flow).status == 0
        begin = copied(stage, routed)
        new.start()
        until(lambda: copied(stage, routed) > begin + 100, SECONDS, f"more records in {routed}")
        kept = [number for number in writing.end() if number % 10]
        until(lambda: copied(stage, routed) >= len(kept), SECONDS, f"{len(kept)} records")
        places = raw_records(stage.destination, routed)
        assert numbers(places) == [number for number in kept if number % PARTITIONS == 0]
        source = raw_records(stage.source, orders)
        number = numbers(places)[-20]
        offset = next(at for at, value in source if numbers([(at, value)]) == [number])
        librdkafka_tools.commit(east, group, orders, {0: offset})
        until(
            lambda: librdkafka_tools.committed(west, group, routed),
            SECONDS,
            f"{group} at {places[-20][0]}",
            good=lambda at: at == {0: places[-20][0]},
        )
        new.end()
    finally:
        writing.end()
        old.clean_up()
        new.clean_up()
