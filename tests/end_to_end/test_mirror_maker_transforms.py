"""`twinlog mirror-maker FILE` with transforms: exactly once, though all is killed (KIP-656)."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import librdkafka_tools
import process_tree
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from remote_topics import records
from waiting import until

from twinlog.local import commands
from twinlog.local.identity import identity_of
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 120.0
FIRST = 2_000
COUNT = 30_000
MANY = 120_000
FILE = r"""
clusters = east, west
east.bootstrap.servers = {east}
west.bootstrap.servers = {west}
east->west.enabled = true
east->west.topics = {topics}
replication.factor = 1
heartbeats.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
west->east.emit.heartbeats.enabled = false
"""
TRANSFORMS = r"""
east->west.transforms = drop, mask, rename
east->west.transforms.drop.type = org.apache.kafka.connect.transforms.Filter
east->west.transforms.drop.predicate = test
east->west.transforms.mask.type = org.apache.kafka.connect.transforms.MaskField$Value
east->west.transforms.mask.fields = card
east->west.transforms.rename.type = org.apache.kafka.connect.transforms.RegexRouter
east->west.transforms.rename.regex = east\\.(.*)
east->west.transforms.rename.replacement = masked.$1
east->west.predicates = test
east->west.predicates.test.type = org.apache.kafka.connect.transforms.predicates.HasHeaderKey
east->west.predicates.test.name = test
east->west.value.converter = org.apache.kafka.connect.json.JsonConverter
east->west.value.converter.schemas.enable = false
"""
QUERY = r"""
east->west.twinlog.transform.sql = SELECT record, concat('masked.', substring(topic, 6)) AS topic, \
    struct(value.number, '' AS card) AS value \
    FROM records WHERE NOT exists(headers, h -> h.key = 'test')
east->west.twinlog.transform.value.format = json
east->west.twinlog.transform.value.schema = number BIGINT, card STRING
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("transforms")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


class Running:
    """The command, with all of its processes."""

    def __init__(self, file: Path, *arguments: str) -> None:
        with file.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                [*commands.TWINLOG, "mirror-maker", str(file), "--lanes", "1", *arguments],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End everything by SIGKILL: the command, the node, the JVM, the lanes."""
        found = [identity_of(one.pid) for one in process_tree.below(self.process.pid)]
        self.process.kill()
        self.process.wait(30)
        for one in found:
            if one is not None:
                one.signal(signal.SIGKILL)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


def arrived(stage: Stage, topic: str) -> list[str]:
    names = librdkafka_tools.admin(stage.destination.bootstrap_servers).list_topics(timeout=30)
    return [v for _, v in records(stage.destination, topic)] if topic in names.topics else []


def log_end(servers: str, topic: str) -> int:
    """The high watermark; a reader would not reach the end of a log that grows."""
    with librdkafka_tools.consumer(servers, "log-end") as consumer:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    return int(end)


def reported(servers: str, group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group; none while the cluster's first group has no coordinator."""
    try:
        return librdkafka_tools.committed(servers, group, topic)
    except KafkaException:
        return {}


EXPECTED = [f'{{"number":{number},"card":""}}' for number in range(COUNT) if number % 10]
"""What the transforms make of the records that `produce` writes."""


def produce(servers: str, topic: str, numbers: range) -> None:
    """Write a thousand records a second."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        value = json.dumps({"number": number, "card": f"4111-{number}"})
        headers = [("test", b"")] if number % 10 == 0 else []
        producer.produce(topic, value, partition=0, headers=headers)
        producer.poll(0)
        if number % 30 == 0:
            threading.Event().wait(0.03)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("transforms", [TRANSFORMS, QUERY], ids=["in-the-lane", "by-spark"])
def test_records_are_transformed_once_though_all_is_killed(
    stage: Stage, topic: str, tmp_path: Path, transforms: str
) -> None:
    """Goal: dropped, masked, routed, each once at read_committed, after kill -9 in the middle.

    The source's own group of the flow follows the positions.
    """
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, file = f"orders-{topic}", tmp_path / "mm2.properties"
    report = "twinlog.source.offsets.interval.seconds = 1\n"
    file.write_text(FILE.format(east=east, west=west, topics=name) + transforms + report)
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    running = Running(file)
    load = threading.Thread(target=produce, args=(east, name, range(FIRST, COUNT)), daemon=True)
    try:
        until(lambda: arrived(stage, f"masked.{name}"), SECONDS, "the first records")
        load.start()
        until(lambda: log_end(west, f"masked.{name}") > 2 * FIRST, SECONDS, "later ones")
        running.kill()
        assert load.is_alive()
        assert len(arrived(stage, f"masked.{name}")) < len(EXPECTED)
        running = Running(file)
        load.join(SECONDS)
        until(
            lambda: len(arrived(stage, f"masked.{name}")) >= len(EXPECTED),
            SECONDS,
            f"{len(EXPECTED)} records",
        )
        assert arrived(stage, f"masked.{name}") == EXPECTED
        assert arrived(stage, f"east.{name}") == []
        group = "twinlog.flow.east-to-west"
        until(
            lambda: reported(east, group, name) == {0: COUNT},
            SECONDS,
            "the position on the source",
        )
        running.end()
        assert librdkafka_tools.committed(west, group, f"east.{name}") == {0: COUNT}
    finally:
        running.kill()
        if load.ident is not None:
            load.join(SECONDS)


def test_transactions_without_transforms_copy_records_as_they_are(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: `transaction.producer` (KIP-656)."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, file = f"plain-{topic}", tmp_path / "mm2.properties"
    text = FILE.format(east=east, west=west, topics=name).replace("east", "third")
    file.write_text(text + "transaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    librdkafka_tools.write(east, name, librdkafka_tools.simple(500), compression_type="zstd")
    running = Running(file)
    try:
        until(lambda: len(arrived(stage, f"third.{name}")) >= 500, SECONDS, "500 records")
        assert arrived(stage, f"third.{name}") == [f"v{at}" for at in range(500)]
        running.end()
    finally:
        running.kill()


def test_instances_change_to_a_sink_one_by_one(stage: Stage, topic: str, tmp_path: Path) -> None:
    """Goal: KIP-656's migration: some with the old and some with the new file, all killed once.

    The flow is that of the file that was started last, for all of them. Transactions are another
    kind of flow: they are refused, and the others go on.
    """
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, old, new, last = f"step-{topic}", *(tmp_path / f"{n}.properties" for n in "onl")
    text = FILE.format(east=east, west=west, topics=name).replace("east", "fourth")
    old.write_text(text)
    new.write_text(f"{text}connector.type = sink\ntwinlog.source.offsets.interval.seconds = 1\n")
    last.write_text(f"{text}connector.type = sink\ntransaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    remote, group = f"fourth.{name}", "twinlog.flow.fourth-to-west"
    running = [Running(old, "--node", f"step-{at}") for at in (0, 1)]
    load = threading.Thread(target=produce, args=(east, name, range(FIRST, MANY)), daemon=True)
    try:
        until(lambda: arrived(stage, remote), SECONDS, "the first records")
        load.start()
        assert reported(east, group, name) == {}
        for at in (0, 1):
            running[at].kill()
            running[at] = Running(new, "--node", f"step-{at}")
            before = log_end(west, remote)
            until(lambda before=before: log_end(west, remote) > before, SECONDS, "more records")
        until(lambda: reported(east, group, name), SECONDS, "the source's group")
        refused = commands.run(commands.TWINLOG, "mirror-maker", str(last), seconds=120)
        assert refused.status == 1, refused
        assert load.is_alive(), "all of this happens under load"
        assert "flow fourth-to-west exists without transforms and transaction.producer" in (
            refused.errors
        )
        load.join(SECONDS)
        until(lambda: log_end(west, remote) >= MANY, SECONDS, f"{MANY} records")
        until(lambda: len(arrived(stage, remote)) >= MANY, SECONDS, f"{MANY} records")
        values = [json.loads(value)["number"] for value in arrived(stage, remote)]
        assert values == list(range(MANY))
        until(
            lambda: reported(east, group, name) == {0: MANY},
            SECONDS,
            "the position on the source",
        )
        for one in running:
            one.end()
    finally:
        for one in running:
            one.kill()
        if load.ident is not None:
            load.join(SECONDS)


def test_a_flow_changes_to_transactions_and_back(stage: Stage, topic: str, tmp_path: Path) -> None:
    """Goal: by the positions that are handed back and taken over, each record once, under load."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, plain, transactional = f"kind-{topic}", tmp_path / "plain", tmp_path / "transactional"
    text = FILE.format(east=east, west=west, topics=name).replace("east", "fifth")
    plain.write_text(text)
    transactional.write_text(f"{text}transaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    remote, flow = f"fifth.{name}", ("--mirror", "fifth-to-west")
    running = Running(plain)
    load = threading.Thread(target=produce, args=(east, name, range(FIRST, MANY)), daemon=True)
    try:
        load.start()
        for old, new in ((plain, transactional), (transactional, plain)):
            before = _end(stage, remote)
            until(
                lambda before=before: _end(stage, remote) > before + FIRST, SECONDS, "more records"
            )
            removed = stage.mirrors("--remove", "--topic", ".*", *flow, "--wait-seconds", "60")
            assert removed.status == 0, removed
            running.end()
            done = commands.run(
                commands.TWINLOG, "mirror-maker", str(old), "--hand-back", seconds=120
            )
            assert done.status == 0, done
            assert "MirrorMaker 2 goes on at offset" in done.errors
            deleted = stage.mirrors("--delete", *flow)
            assert deleted.status == 0, deleted
            running = Running(new, "--takeover")
        load.join(SECONDS)
        until(lambda: _end(stage, remote) >= MANY, SECONDS, f"{MANY} records")
        until(lambda: len(arrived(stage, remote)) >= MANY, SECONDS, f"{MANY} records")
        values = [json.loads(value)["number"] for value in arrived(stage, remote)]
        assert values == list(range(MANY))
        running.end()
    finally:
        running.kill()
        if load.ident is not None:
            load.join(SECONDS)


def _end(stage: Stage, topic: str) -> int:
    """The log end; 0 while there is no such topic."""
    servers = stage.destination.bootstrap_servers
    names = librdkafka_tools.admin(servers).list_topics(timeout=30)
    return log_end(servers, topic) if topic in names.topics else 0
