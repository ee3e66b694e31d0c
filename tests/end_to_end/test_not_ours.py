"""What users can do to a mirror's topics on a destination without an authorizer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import librdkafka_tools
import pytest
from waiting import until

from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

MIRROR = "everything"
OTHER = {"cleanup.policy": "delete", "retention.ms": "3600000"}
"""The configuration with which a topic that was mirrored as compacted is recreated."""


def mirrored(stage: Stage, topic: str, config: dict[str, str] | None = None) -> None:
    """Mirror a topic of two partitions with records to its end."""
    servers = stage.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2, config)
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(100, 0), *librdkafka_tools.simple(100, 1)]
    )
    stage.add(topic, MIRROR)
    for partition in (0, 1):
        librdkafka_tools.await_state(stage, topic, partition, "MIRRORING")
    stage.await_no_lag([topic])


def ends(stage: Stage, topic: str, partitions: int = 2) -> list[int]:
    found = ConsumerView(stage.destination.bootstrap_servers).ends(
        [(topic, i) for i in range(partitions)]
    )
    return [found[topic, index] for index in range(partitions)]


@contextmanager
def written(stage: Stage, topic: str) -> Iterator[None]:
    """Write to both partitions at the source while the block runs."""
    done = Event()

    def write() -> None:
        while not done.wait(0.05):
            some = [
                *librdkafka_tools.simple(5, 0, "later"),
                *librdkafka_tools.simple(5, 1, "later"),
            ]
            librdkafka_tools.write(stage.source.bootstrap_servers, topic, some)

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def restarted(stage: Stage) -> None:
    stage.nodes["node"].signal(15)
    stage.nodes["node"].end()
    stage.start_node("node")


def removed(stage: Stage, topic: str) -> None:
    done = stage.mirrors("--remove", "--topic", topic, "--mirror", MIRROR)
    assert done.status == 0, done.errors
    for partition in (0, 1):
        librdkafka_tools.await_state(stage, topic, partition, "STOPPED")


@pytest.mark.long
def test_a_recreated_destination_topic_is_failed_for_good(world: Stage, topic: str) -> None:
    """FAILED for good, under load and after a restart; nothing is ever written to it."""
    again, kept = f"{topic}-again", f"{topic}-kept"
    servers = world.destination.bootstrap_servers
    mirrored(world, again, {"cleanup.policy": "compact"})
    mirrored(world, kept)
    with written(world, again), written(world, kept):
        librdkafka_tools.delete_topic(servers, again)
        librdkafka_tools.make_topic(servers, again, 2, OTHER)
        for partition in (0, 1):
            librdkafka_tools.await_state(world, again, partition, "FAILED")
        restarted(world)
        before = ends(world, kept)
        until(lambda: min(ends(world, kept)) > max(before), 180, "records of the other topic")
    world.await_no_lag([kept])
    for partition in (0, 1):
        failed = librdkafka_tools.await_state(world, again, partition, "FAILED")
        assert "the destination's topic was deleted and recreated" in failed["reason"]
    assert ends(world, again) == [0, 0]
    assert librdkafka_tools.configs(servers, again).items() >= OTHER.items(), (
        "they are not ours to change"
    )
    removed(world, again)
    assert ends(world, again) == [0, 0], "no marker either"
    world.add(again, MIRROR)
    for partition in (0, 1):
        librdkafka_tools.await_state(world, again, partition, "MIRRORING")
    world.await_no_lag([again])
    report = world.check([again, kept], numbered=False)
    assert report.good, report.problems


def readiness(stage: Stage, topic: str) -> list[str]:
    """Return the findings of `twinlog readiness`."""
    servers = stage.destination.bootstrap_servers
    done = commands.run(
        *(commands.TWINLOG, "readiness", "--bootstrap-server", servers, "--mirror", MIRROR),
        *("--topic", topic, "--json"),
        seconds=300,
    )
    assert done.output, done.errors
    found = json.loads(done.output)
    return [one["reason"] for topic in found["topics"] for one in topic["findings"]]


@pytest.mark.long
def test_partitions_added_by_another_client_are_reported(world: Stage, topic: str) -> None:
    """They are named; mirroring goes on. When the source grows, foreign records are FAILED."""
    source, servers = world.source.bootstrap_servers, world.destination.bootstrap_servers
    mirrored(world, topic)
    librdkafka_tools.grow_topic(servers, topic, 4)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(3, 3, "foreign"))
    until(
        lambda: f"{topic} has 4 partitions, 2 are mirrored" in _log(world),
        what="a warning",
    )
    until(
        lambda: readiness(world, topic),
        what="the finding alone",
        good=lambda found: found == ["EXTRA_PARTITIONS"],
    )
    librdkafka_tools.write(source, topic, librdkafka_tools.simple(50, 1, "later"))
    world.await_no_lag([topic])
    assert set(librdkafka_tools.described(world, topic)) == {0, 1}
    librdkafka_tools.grow_topic(source, topic, 4)
    some = [*librdkafka_tools.simple(10, 2), *librdkafka_tools.simple(10, 3)]
    librdkafka_tools.write(source, topic, some)
    librdkafka_tools.await_state(world, topic, 2, "MIRRORING")
    failed = librdkafka_tools.await_state(world, topic, 3, "FAILED")
    assert "the destination differs from the source" in failed["reason"]
    until(lambda: ends(world, topic, 4) == [100, 150, 10, 3], what="all that is the source's")
    for partition in (0, 1):
        librdkafka_tools.await_state(world, topic, partition, "MIRRORING")


def _log(stage: Stage) -> str:
    return stage.nodes["node"].log.read_text()
