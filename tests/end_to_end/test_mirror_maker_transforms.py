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
from confluent_kafka import Producer, TopicPartition
from remote_topics import records
from waiting import until

from twinlog.local import commands
from twinlog.local.identity import identity_of
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 120.0
FIRST = 2_000
COUNT = 30_000
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


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("transforms")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


class Running:
    """The command, with all of its processes."""

    def __init__(self, file: Path) -> None:
        with file.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                [*commands.TWINLOG, "mirror-maker", str(file), "--lanes", "1"],
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


def test_records_are_transformed_once_though_all_is_killed(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: dropped, masked, routed, each once at read_committed, after kill -9 in the middle.

    The source's own group of the flow follows the positions.
    """
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, file = f"orders-{topic}", tmp_path / "mm2.properties"
    report = "twinlog.source.offsets.interval.seconds = 1\n"
    file.write_text(FILE.format(east=east, west=west, topics=name) + TRANSFORMS + report)
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    running = Running(file)
    load = threading.Thread(target=produce, args=(east, name, range(FIRST, COUNT)))
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
            lambda: librdkafka_tools.committed(east, group, name) == {0: COUNT},
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
