"""The commands on a mirror's topics: pause, resume, remove; and the mirror's deletion."""

import asyncio
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from checkout import DOCS
from clients import client, put
from confluent_kafka import TopicPartition
from readiness_check import find_readiness
from waiting import until

from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.local.stage import Stage
from twinlog.operations.readiness.reasons import Reason
from twinlog.store.config_records import MIRROR_VERSION, Feature
from twinlog.store.control_topics import CONFIG_PARTITIONS, config_entry

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

MIRROR = "life"
PATIENCE_S = 30.0
"""Kubernetes' default terminationGracePeriodSeconds."""


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Start two clusters, a mirror without topics, and a node."""
    with Stage(folder) as stage:
        stage.start_source()
        stage.start_destination()
        stage.create_mirror(MIRROR, state_partitions=5)
        stage.start_node("node")
        yield stage


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("life")) as stage:
        yield stage


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Stage]:
    """Start a stage of which one cluster does not outlive the test."""
    with staged(tmp_path / "doomed") as stage:
        yield stage


def command(stage: Stage, *arguments: str) -> str:
    done = stage.mirrors(*arguments, "--mirror", MIRROR)
    assert done.status == 0, done.errors
    return done.output.strip()


def refused(stage: Stage, name: str, *arguments: str) -> None:
    done = stage.mirrors(*arguments, "--mirror", MIRROR)
    assert done.status == 1
    assert done.errors.startswith(f"Error: {name}: "), done.errors


def mirrored(stage: Stage, topic: str) -> None:
    """Mirror a topic of two partitions with records to its end."""
    servers = stage.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(100, 0), *librdkafka_tools.simple(100, 1)]
    )
    stage.add(topic, MIRROR)
    for partition in (0, 1):
        librdkafka_tools.await_state(stage, topic, partition, "MIRRORING")
    stage.await_no_lag([topic])


def ends(stage: Stage, topic: str) -> list[int]:
    found = ConsumerView(stage.destination.bootstrap_servers).ends([(topic, 0), (topic, 1)])
    return [found[topic, 0], found[topic, 1]]


@pytest.mark.long
def test_a_resumed_topic_continues_at_the_same_offsets(life: Stage, topic: str) -> None:
    """While it is paused nothing is copied; then it continues, at the same offsets."""
    mirrored(life, topic)
    refused(life, "MIRROR_TOPIC_NOT_PAUSED", "--resume", "--topic", topic)
    assert command(life, "--pause", "--topic", topic) == (
        f"Paused mirroring for 1 topic(s) in mirror {MIRROR}: [{topic}]"
    )
    for partition in (0, 1):
        librdkafka_tools.await_state(life, topic, partition, "PAUSED")
        until(
            lambda partition=partition: librdkafka_tools.described(life, topic)[partition],
            what="its last status",
            good=lambda row: row["destination_offset"] == 100,
        )
    refused(life, "MIRROR_TOPIC_ALREADY_PAUSED", "--pause", "--topic", topic)
    refused(life, "MIRROR_NOT_EMPTY", "--delete")
    librdkafka_tools.write(
        life.source.bootstrap_servers, topic, librdkafka_tools.simple(50, 1, "later")
    )
    time.sleep(2)
    assert ends(life, topic) == [100, 100]
    assert command(life, "--resume", "--topic", topic) == (
        f"Resumed mirroring for 1 topic(s) in mirror {MIRROR}: [{topic}]"
    )
    for partition in (0, 1):
        librdkafka_tools.await_state(life, topic, partition, "MIRRORING")
    life.await_no_lag([topic])
    report = life.check([topic], numbered=False)
    assert report.good, report.problems
    assert report.records == 250
    assert life.verify("--topic", topic).status == 0


@pytest.mark.long
def test_a_paused_topic_stays_paused_under_a_new_owner(life: Stage, topic: str) -> None:
    """A paused topic stays paused when its owner dies, and the next owner resumes it."""
    mirrored(life, topic)
    command(life, "--pause", "--topic", topic)
    for partition in (0, 1):
        librdkafka_tools.await_state(life, topic, partition, "PAUSED")
    life.nodes["node"].signal(15)
    life.nodes["node"].end()
    librdkafka_tools.write(
        life.source.bootstrap_servers, topic, librdkafka_tools.simple(50, 0, "later")
    )
    life.start_node("node")
    time.sleep(12)
    assert ends(life, topic) == [100, 100]
    command(life, "--resume", "--topic", topic)
    life.await_no_lag([topic])
    librdkafka_tools.await_state(life, topic, 0, "MIRRORING")
    assert life.verify("--topic", topic).status == 0


@pytest.mark.long
def test_a_deleted_destination_topic_fails_alone(life: Stage, topic: str) -> None:
    """It was deleted on the destination; a new owner fails its partitions alone."""
    gone, kept = f"{topic}-gone", f"{topic}-kept"
    mirrored(life, gone)
    mirrored(life, kept)
    life.nodes["node"].signal(15)
    life.nodes["node"].end()
    librdkafka_tools.delete_topic(life.destination.bootstrap_servers, gone)
    librdkafka_tools.write(
        life.source.bootstrap_servers, kept, librdkafka_tools.simple(50, 0, "later")
    )
    life.start_node("node")
    life.await_no_lag([kept])
    failed = librdkafka_tools.await_state(life, gone, 0, "FAILED")
    assert "the destination does not have this partition" in failed["reason"]
    command(life, "--remove", "--topic", gone)
    for partition in (0, 1):
        librdkafka_tools.await_state(life, gone, partition, "STOPPED")
    librdkafka_tools.await_state(life, kept, 0, "MIRRORING")


@pytest.mark.long
def test_alter_reconnects_to_the_source(life: Stage, topic: str, tmp_path: Path) -> None:
    """Another address of the same source: nothing is lost. Another cluster is refused."""
    mirrored(life, topic)
    config = tmp_path / "changed.properties"
    config.write_text(f"bootstrap.servers={life.destination.bootstrap_servers}\n")
    done = life.mirrors("--alter", "--mirror", MIRROR, "--mirror-config", str(config))
    assert done.status == 1
    assert "bootstrap.servers of the source lead to cluster" in done.errors
    port = life.source.bootstrap_servers.rpartition(":")[2]
    config.write_text(f"bootstrap.servers=localhost:{port}\nclient.id=altered\n")
    assert command(life, "--alter", "--mirror-config", str(config)) == (
        f"Completed updating config for mirror {MIRROR}."
    )
    assert f"localhost:{port}" in life.mirrors("--list").output
    librdkafka_tools.write(
        life.source.bootstrap_servers, topic, librdkafka_tools.simple(50, 1, "later")
    )
    life.await_no_lag([topic])
    librdkafka_tools.await_state(life, topic, 1, "MIRRORING")
    report = life.check([topic], numbered=False)
    assert report.good, report.problems
    assert report.records == 250


@pytest.mark.long
def test_a_node_ends_on_request_while_its_destination_is_unreachable(
    doomed: Stage, topic: str
) -> None:
    """It ends when it is asked to, before orchestrators kill it."""
    mirrored(doomed, topic)
    doomed.destination.kill(1)
    node = doomed.nodes["node"]
    assert node.end(PATIENCE_S) == 0
    assert "cannot read the final progress from the destination" in node.log.read_text()


def test_failover_with_a_dead_source(doomed: Stage, topic: str) -> None:
    """The source is killed; its topics are removed, written to, and forgotten."""
    gone, kept, last = f"{topic}-gone", f"{topic}-kept", f"{topic}.last"
    mirrored(doomed, gone)
    mirrored(doomed, kept)
    mirrored(doomed, last)
    command(doomed, "--pause", "--topic", kept)
    librdkafka_tools.await_state(doomed, kept, 0, "PAUSED")
    librdkafka_tools.await_state(doomed, kept, 1, "PAUSED")
    librdkafka_tools.write(
        doomed.source.bootstrap_servers, kept, librdkafka_tools.simple(30, 1, "late")
    )
    _, said = until(
        lambda: readiness(doomed, "--topic", f"{topic}-.*"),
        what="a lag that is known",
        good=lambda found: (found[0], found[1]["lag"], found[1]["findings"]) == (3, 30, []),
    )
    assert said["readiness"] == "WARNING"
    assert {one["topic"]: reasons(one) for one in said["topics"]} == {
        gone: [],
        kept: ["PAUSED", "LAG"],
    }
    doomed.source.kill(1)
    unreadable = ["GROUP_UNREADABLE", "CONFIGURATION_UNREADABLE"]
    wanted = (3, 0, ["SOURCE_UNREACHABLE", *unreadable])
    _, dead = until(  # a status that grows old meanwhile is another finding
        lambda: readiness(doomed, "--topic", gone),
        what="a dead source, without an authorizer",
        good=lambda found: (found[0], found[1]["lag"], reasons(found[1])) == wanted,
    )
    assert "last contact " in dead["findings"][0]["text"]
    answer = json.loads(command(doomed, "--remove", "--topic", f"{topic}-.*", "--json"))
    assert answer == {"mirror": MIRROR, "removed": [gone, kept]}
    for name in (gone, kept):
        for partition in (0, 1):
            librdkafka_tools.await_state(doomed, name, partition, "STOPPED")
    fenced = ends(doomed, gone)
    assert set(fenced) <= {101, 102}, "one marker or two fence each partition"
    written = {(kept, 0): 100, (kept, 1): 130}
    left_of_it = ConsumerView(doomed.destination.bootstrap_servers).read(
        dict.fromkeys(written, (0, 101)), time.monotonic() + 180
    )
    lost = sum(written.values()) - sum(map(len, left_of_it.values()))
    assert lost == said["lag"], "what readiness has said"
    stopped = librdkafka_tools.described(doomed, gone)
    assert [stopped[at]["last_mirrored_end"] for at in (0, 1)] == [100, 100]
    assert [stopped[at]["last_mirrored_epoch"] for at in (0, 1)] == [0, 0]
    refused(doomed, "MIRROR_TOPIC_BEING_REMOVED", "--remove", "--topic", gone)
    refused(doomed, "MIRROR_TOPIC_BEING_REMOVED", "--resume", "--topic", kept)
    librdkafka_tools.write(
        doomed.destination.bootstrap_servers, gone, librdkafka_tools.simple(10, 0, "new")
    )
    assert ends(doomed, gone) == [fenced[0] + 10, fenced[1]]
    command(doomed, "--remove", "--topic", ".*")
    until(lambda: not not_stopped(doomed), what="all partitions STOPPED")
    assert command(doomed, "--delete") == f"Deleted mirror {MIRROR}"
    assert MIRROR not in doomed.mirrors("--list").output
    refused(doomed, "UNKNOWN_MIRROR", "--delete")
    # No lane writes to the topics any more.
    librdkafka_tools.write(
        doomed.destination.bootstrap_servers, gone, librdkafka_tools.simple(10, 1, "new")
    )
    assert ends(doomed, gone) == [end + 10 for end in fenced]
    asyncio.run(newer_format(doomed))
    node = doomed.nodes["node"]
    until(lambda: not node.alive, what="the node's end")
    assert "Error: UNSUPPORTED_VERSION: " in node.log.read_text()


async def newer_format(stage: Stage) -> None:
    """Store a control topic format of a future version."""
    entry = config_entry(Feature(name=MIRROR_VERSION, level=2), CONFIG_PARTITIONS)
    async with client(stage.destination) as cluster:
        await put(cluster, [entry])


def readiness(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return what `twinlog readiness` reports of the mirror."""
    servers = stage.destination.bootstrap_servers
    done = commands.run(
        *(commands.TWINLOG, "readiness", "--bootstrap-server", servers, "--mirror", MIRROR),
        *(*arguments, "--json"),
        seconds=300,
    )
    assert done.output, done.errors
    return done.status, json.loads(done.output)


def reasons(found: dict[str, Any]) -> list[str]:
    return [one["reason"] for one in found["findings"]]


def not_stopped(stage: Stage) -> list[str]:
    """Return the partitions that are not STOPPED."""
    rows = json.loads(command(stage, "--describe", "--json"))
    return [f"{row['topic']}-{row['partition']}" for row in rows if row["state"] != "STOPPED"]


SECTION = "## Stale keys of a compacted topic\n"
CLEANED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
}
BEHIND_S = 20.0
"""More than the smallest lag that counts as behind (FRESH_S)."""


class Stale:
    """Compacted topics with a key that the source has deleted and the destination has not."""

    def __init__(self, stage: Stage, mirror: str, topics: Sequence[str]) -> None:
        self.stage, self.mirror, self.topics = stage, mirror, topics
        self.source = stage.source.bootstrap_servers
        page = (DOCS / "operations" / "verifying.md").read_text()
        self.section = page.partition(SECTION)[2].partition("\n## ")[0]

    def arise(self) -> None:
        """Pause the mirror for longer than its source keeps a tombstone."""
        self.stage.create_mirror(self.mirror, ["mirror.metadata.refresh.interval.ms=1000"])
        for topic in self.topics:
            librdkafka_tools.make_topic(self.source, topic, 1, CLEANED)
            librdkafka_tools.write(self.source, topic, [(0, "k1", "old", None)])
            self.stage.add(topic, self.mirror)
        self.stage.await_no_lag(self.topics)
        self._command("--pause", "PAUSED")
        began = time.monotonic()
        for topic in self.topics:
            librdkafka_tools.write(self.source, topic, [(0, "k1", None, None)])
        for topic in self.topics:
            until(lambda topic=topic: self._cleaned(topic), 300, "the cleaner")
        until(lambda: time.monotonic() - began > BEHIND_S, what="a mirror that is behind")
        self._command("--resume", "MIRRORING")
        self.stage.await_no_lag(self.topics)

    def _command(self, action: str, state: str) -> None:
        done = self.stage.mirrors(action, "--topic", "|".join(self.topics), "--mirror", self.mirror)
        assert done.status == 0, done.errors
        for topic in self.topics:
            librdkafka_tools.await_state(self.stage, topic, 0, state)

    def _cleaned(self, topic: str) -> bool:
        """Return whether the source has nothing of the key; write a record to close a segment."""
        librdkafka_tools.write(self.source, topic, [(0, "last", "v", None)])
        return "k1" not in keys(self.source, topic)

    def run_page(self, program: str, topic: str) -> list[Done]:
        """Run the section's commands of one program, with this test's names."""
        names = {
            "destination:9092": self.stage.destination.bootstrap_servers,
            "my-topic": topic,
            "my-mirror": self.mirror,
        }
        found = []
        for line in self.section.splitlines():
            if line.startswith(f"$ {program} "):
                words = shlex.split(line)[2:]
                arguments = [names.get(word, word) for word in words]
                begin = commands.KAFKA_MIRRORS if program == "kafka-mirrors" else commands.TWINLOG
                found.append(commands.run(begin, *arguments))
        return found

    def missed(self) -> set[str]:
        """Return the topics for which readiness reports missed tombstones."""
        servers = {"bootstrap.servers": self.stage.destination.bootstrap_servers}
        found = asyncio.run(find_readiness(servers, self.mirror, ".*"))
        return {
            topic.topic
            for topic in found.topics
            if any(finding.reason is Reason.COMPACTION_MISSED for finding in topic.findings)
        }


def keys(servers: str, topic: str) -> dict[str, str | None]:
    """Return each key's last value in partition 0, as a consumer sees it."""
    end = ConsumerView(servers).ends([(topic, 0)])[topic, 0]
    found: dict[str, str | None] = {}
    with librdkafka_tools.consumer(servers, f"{topic}-keys") as client:
        client.assign([TopicPartition(topic, 0, 0)])

        def read() -> bool:
            for message in client.consume(1000, 1.0):
                assert message.error() is None
                value = message.value()
                found[(message.key() or b"").decode()] = None if value is None else value.decode()
            (position,) = client.position([TopicPartition(topic, 0)])
            return position.offset >= end

        until(read, what=f"all of {topic}")
    return found


@pytest.mark.long
def test_stale_keys_are_repaired(life: Stage, fresh_name: Callable[[str], str]) -> None:
    """Goal: E2: by tombstones, or by a rebuild, as docs/operations/verifying.md describes."""
    few, many = fresh_name("few"), fresh_name("many")
    stale = Stale(life, fresh_name("stale"), (few, many))
    stale.arise()
    destination = life.destination.bootstrap_servers
    shown = re.search(r"^DIFFERS my-topic-0 .*$", stale.section, re.MULTILINE)
    assert shown is not None
    for topic in (few, many):
        assert keys(destination, topic)["k1"] == "old"
        (found,) = stale.run_page("twinlog", topic)
        assert found.status == 1
        assert shown[0].replace("my-topic", topic) in found.output.splitlines()
    until(stale.missed, what="both findings", good=lambda found: found == {few, many})

    librdkafka_tools.write(life.source.bootstrap_servers, few, [(0, "k1", None, None)])
    for done in stale.run_page("kafka-mirrors", many):
        assert done.status == 0, done.errors
    life.await_no_lag([few, many])
    assert keys(destination, few).get("k1") is None
    assert "k1" not in keys(destination, many)
    for topic in (few, many):
        (found,) = stale.run_page("twinlog", topic)
        assert (found.status, "the same" in found.output) == (0, True), found.output
    # It is known for ever, but of a topic that was mirrored again.
    until(stale.missed, what="one finding", good=lambda found: found == {few})
