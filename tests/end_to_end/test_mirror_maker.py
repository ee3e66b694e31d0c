"""`twinlog mirror-maker FILE`: a file of MirrorMaker 2, two clusters, flows in both directions."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import librdkafka_tools
import pytest
from remote_topics import places
from scraped import await_ready
from waiting import SECONDS, until

from twinlog.local import commands
from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import HOST, PortClaim
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FILE = """\
clusters = east, west
east.bootstrap.servers = {east}
west.bootstrap.servers = {west}
east->west.enabled = true
west->east.enabled = true
topics = orders-.*
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("mirror-maker")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


@contextmanager
def running(stage: Stage, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the file, and end it with SIGTERM."""
    file = folder / "mm2.properties"
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    file.write_text(FILE.format(east=east, west=west))
    with (folder / "mirror-maker.log").open("w") as log:
        process = subprocess.Popen(
            [*commands.TWINLOG, "mirror-maker", str(file), "--lanes", "1", *options],
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(180) == 0
        finally:
            process.kill()
            process.wait(120)


@contextmanager
def two_ports() -> Iterator[tuple[int, int]]:
    """Claim two ports that follow each other: each node has one."""
    with ExitStack() as stack:

        def claimed() -> tuple[int, int] | None:
            first = stack.enter_context(closing(PortClaim.fresh(1))).ports[0]
            second = stack.enter_context(closing(PortClaim.again([first + 1])))
            with socket.socket() as probe:
                free = probe.connect_ex((HOST, first + 1)) != 0
            return (first, first + 1) if second.ports and free else None

        yield until(claimed, what="two ports")


def topics(servers: str) -> set[str]:
    return set(librdkafka_tools.admin(servers).list_topics(timeout=120).topics)


def await_copy(cluster: LocalCluster, topic: str, count: int) -> None:
    def copied() -> bool:
        there = topic in topics(cluster.bootstrap_servers)
        return there and len(places(cluster, topic)) == count

    until(copied, SECONDS, f"{topic} with {count} records")


def test_active_active_without_cycles_and_a_group_that_follows(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: the example of KIP-382, with one command for both targets."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, group = f"orders-{topic}", f"group-{topic}"
    for servers, count in ((east, 50), (west, 30)):
        librdkafka_tools.make_topic(servers, name)
        librdkafka_tools.write(servers, name, librdkafka_tools.simple(count))
    librdkafka_tools.commit(east, group, name, {0: 20})
    with (
        two_ports() as ports,
        running(stage, tmp_path, "--metrics-address", str(ports[0])),
    ):
        await_copy(stage.destination, f"east.{name}", 50)
        await_copy(stage.source, f"west.{name}", 30)
        for port in ports:
            await_ready(f"127.0.0.1:{port}")

        def follows() -> bool:
            found = librdkafka_tools.committed(west, group, f"east.{name}")
            return found.get(0) == places(stage.destination, f"east.{name}")[20]

        until(follows, SECONDS, "the group's offset in the west")
        librdkafka_tools.write(east, name, librdkafka_tools.simple(10))
        await_copy(stage.destination, f"east.{name}", 60)
        until(lambda: "east.heartbeats" in topics(west), SECONDS, "the east's heartbeats")
    for servers in (east, west):
        cycles = {one for one in topics(servers) if one.count("east.") + one.count("west.") > 1}
        assert cycles == set()
