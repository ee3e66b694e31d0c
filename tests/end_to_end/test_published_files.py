"""Published files of MirrorMaker 2 run as they are: not a byte is changed, nothing is added.

The host names in them exist nowhere. mapped_names/ leads them to brokers of this machine, outside
of the command. Their refresh of ten minutes does not end here: the command is ended and started
again to look at the topics once more, and the records that are there must not be copied again.
"""

import asyncio
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import librdkafka_tools
import pytest
from absent_brokers import register_absent_brokers
from checkout import ROOT
from mirror_maker_process import MirrorMakerProcess, mirror_maker
from remote_topics import places, values
from several_clusters import several_clusters
from waiting import SECONDS, until

from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.kafka.errors import TwinlogError
from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import PortClaim
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FILES = ROOT / "tests" / "data" / "mirror-maker"
KAFKAS = FILES / "connect-mirror-maker.properties"
KIP_FLOW = FILES / "kip-382-flow.properties"
KIP_PROPERTIES = FILES / "kip-382-properties.properties"
KIP_CLUSTERS = FILES / "kip-382-multicluster.properties"
RESOLVER = ROOT / "tests" / "support" / "mapped_names"
ADDRESSES = "TWINLOG_TEST_ADDRESSES"
"""See mapped_names/sitecustomize.py."""
REPLICATED = {"min.insync.replicas": "2"}
INTERNAL = "__"
"""Begins the names of topics in which brokers and twinlog's nodes keep their own state."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("published-files")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


def numbered(text: str, count: int) -> list[str]:
    return [f"{text}{number}" for number in range(count)]


def await_values(cluster: LocalCluster, topic: str, wanted: list[str]) -> None:
    until(lambda: topic in topics(cluster), SECONDS, f"the topic {topic}", pause=0.5)
    found = until(
        lambda: values(cluster, topic),
        SECONDS,
        f"{len(wanted)} records of {topic}",
        good=lambda found: len(found) >= len(wanted),
        pause=0.5,
    )
    assert found == wanted


def factors(cluster: LocalCluster) -> dict[str, int]:
    """The replication factor of each topic."""
    found = librdkafka_tools.admin(cluster.bootstrap_servers).list_topics(timeout=120).topics
    return {name: len(topic.partitions[0].replicas) for name, topic in found.items()}


def topics(cluster: LocalCluster) -> set[str]:
    return set(factors(cluster))


def lead(monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, str]) -> None:
    """Lead the host names of a file to other addresses."""
    monkeypatch.setenv(ADDRESSES, json.dumps(addresses))
    monkeypatch.setenv("PYTHONPATH", str(RESOLVER), prepend=os.pathsep)


def reached(cluster: LocalCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


def fill(cluster: LocalCluster, topic: str, count: int = 30) -> None:
    librdkafka_tools.make_topic(cluster.bootstrap_servers, topic)
    add(cluster, topic, topic, count)


def add(cluster: LocalCluster, topic: str, text: str, count: int = 10) -> None:
    records = librdkafka_tools.simple(count, text=text)
    librdkafka_tools.write(cluster.bootstrap_servers, topic, records)


def again(process: MirrorMakerProcess) -> None:
    """End the command and start it, which looks at the topics of each source."""
    process.end()
    process.start()


def await_hops(cluster: LocalCluster, hops: Mapping[str, int]) -> None:
    """Wait until heartbeats of others arrive over so many flows, and from nowhere else."""
    for alias, count in hops.items():
        until(
            lambda alias=alias: asyncio.run(
                RemoteClusterUtils.replication_hops(reached(cluster), alias)
            ),
            SECONDS,
            f"{count} hops from {alias}",
            good=lambda found, count=count: found == count,
            pause=0.5,
        )
    upstream = asyncio.run(RemoteClusterUtils.upstream_clusters(reached(cluster)))
    assert upstream == {alias for alias, count in hops.items() if count > 0}


def translated(cluster: LocalCluster, alias: str, group: str) -> dict[str, int]:
    """Where a group of another cluster goes on reading, by checkpoints; none: no topic of them."""
    try:
        found = asyncio.run(RemoteClusterUtils.translate_offsets(reached(cluster), alias, group))
    except TwinlogError:
        return {}
    return {partition.topic: offset.offset for partition, offset in found.items()}


def await_checkpoint(
    cluster: LocalCluster, alias: str, group: str, remote: str, record: int
) -> None:
    """Wait until a group's offset is translated to exactly the place of this record's copy."""
    until(
        lambda: translated(cluster, alias, group),
        SECONDS,
        f"the checkpoint of {group}",
        good=lambda found: found == {remote: places(cluster, remote)[record]},
        pause=0.5,
    )


def test_kafkas_own_file_copies_in_both_directions(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `twinlog mirror-maker config/connect-mirror-maker.properties`, byte for byte.

    One of the three hosts of each cluster is down, as others are there for that.
    """
    a, b = stage.source, stage.destination
    for cluster, topic in ((a, "orders"), (b, "payments")):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic)
        librdkafka_tools.write(
            cluster.bootstrap_servers, topic, librdkafka_tools.simple(30, text=topic)
        )
    with closing(PortClaim.fresh(1)) as closed:
        down = f"127.0.0.1:{closed.ports[0]}"
        addresses = {
            f"{alias}_host{number}:9092": down if number == 1 else cluster.bootstrap_servers
            for alias, cluster in (("A", a), ("B", b))
            for number in (1, 2, 3)
        }
        lead(monkeypatch, addresses)
        text = KAFKAS.read_text()
        with mirror_maker(tmp_path, text):
            assert (tmp_path / "mm2.properties").read_bytes() == KAFKAS.read_bytes()
            await_values(b, "A.orders", numbered("orders", 30))
            await_values(a, "B.payments", numbered("payments", 30))
            for cluster, topic in ((a, "orders"), (b, "payments")):
                more = librdkafka_tools.simple(10, text="later")
                librdkafka_tools.write(cluster.bootstrap_servers, topic, more)
            await_values(b, "A.orders", [*numbered("orders", 30), *numbered("later", 10)])
            await_values(a, "B.payments", [*numbered("payments", 30), *numbered("later", 10)])
            # Their copies may follow only at the file's next refresh, after ten minutes.
            for cluster in (a, b):
                until(
                    lambda cluster=cluster: "heartbeats" in topics(cluster),
                    SECONDS,
                    "heartbeats",
                    pause=0.5,
                )
                names = [name for name in topics(cluster) if not name.endswith(".internal")]
                copies = [name.split(".")[:-1] for name in names]
                assert all(len(aliases) < 2 for aliases in copies if {*aliases} & {"A", "B"}), (
                    copies
                )


@pytest.mark.long
def test_the_file_of_kip_382_copies_in_both_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: its five lines, with all defaults: factors of 2 and 3, all topics, all groups.

    Nothing goes in a circle: the look that adds the heartbeats sees the copies of both directions.
    """
    with several_clusters(
        tmp_path / "clusters", ("primary", "backup"), brokers=3, config=REPLICATED
    ) as clusters:
        primary, backup = clusters["primary"], clusters["backup"]
        hosts = {"vip1:9092": primary, "vip2:9092": backup}
        lead(monkeypatch, {host: cluster.brokers[0].address for host, cluster in hosts.items()})
        excluded = {"orders.replica", "mm2-other.internal"}
        for cluster, topic in ((primary, "orders"), (backup, "payments")):
            fill(cluster, topic)
            for name in excluded:
                fill(cluster, name, 5)
        librdkafka_tools.commit(primary.bootstrap_servers, "billing", "orders", {0: 20})
        librdkafka_tools.commit(backup.bootstrap_servers, "audit", "payments", {0: 10})
        with mirror_maker(tmp_path, KIP_FLOW.read_text(), "--lanes", "1") as process:
            assert (tmp_path / "mm2.properties").read_bytes() == KIP_FLOW.read_bytes()
            await_values(backup, "primary.orders", numbered("orders", 30))
            await_values(primary, "backup.payments", numbered("payments", 30))
            for cluster in (primary, backup):
                until(
                    lambda cluster=cluster: "heartbeats" in topics(cluster), SECONDS, "heartbeats"
                )
            again(process)
            await_hops(primary, {"backup": 1})
            await_hops(backup, {"primary": 1})
            await_checkpoint(backup, "primary", "billing", "primary.orders", 20)
            await_checkpoint(primary, "backup", "audit", "backup.payments", 10)
            for cluster, topic in ((primary, "orders"), (backup, "payments")):
                add(cluster, topic, "later")
            await_values(backup, "primary.orders", numbered("orders", 30) + numbered("later", 10))
            await_values(
                primary, "backup.payments", numbered("payments", 30) + numbered("later", 10)
            )
        for cluster, own, topic, other in (
            (primary, "orders", "payments", "backup"),
            (backup, "payments", "orders", "primary"),
        ):
            found = {
                name: factor
                for name, factor in factors(cluster).items()
                if not name.startswith(INTERNAL)
            }
            assert found == {
                own: 3,
                **dict.fromkeys(excluded, 3),
                f"{other}.{topic}": 2,
                f"{other}.heartbeats": 2,
                "heartbeats": 3,
                f"{other}.checkpoints.internal": 3,
                f"mm2-offset-syncs.{other}.internal": 3,
            }


@pytest.mark.long
def test_the_properties_of_kip_382_copy_in_one_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what its lines leave out is not copied, and nothing goes back.

    Of the three brokers that the default factors need, one runs in each cluster.

    `emit.heartbeats` and `sync.group.offsets` are no names of MirrorMaker 2, and have no effect.
    """
    with several_clusters(tmp_path / "clusters", ("us-west", "us-east")) as clusters:
        west, east = clusters["us-west"], clusters["us-east"]
        for cluster in (west, east):
            register_absent_brokers(cluster, 2)
        hosts = {"host1:9092": west, "host2:9092": east, "localhost:9092": west}
        lead(monkeypatch, {host: cluster.brokers[0].address for host, cluster in hosts.items()})
        servers = west.bootstrap_servers
        fill(west, "orders")
        fill(west, "topics_to_blacklist")
        fill(east, "payments")
        librdkafka_tools.transaction(servers, "orders", "aborted", commit=False)
        librdkafka_tools.transaction(servers, "orders", "committed", commit=True)
        wanted = numbered("orders", 30) + numbered("committed-", 10)
        for group in ("group1", "group2", "group3"):
            librdkafka_tools.commit(servers, group, "orders", {0: 20})
        with mirror_maker(tmp_path, KIP_PROPERTIES.read_text(), "--lanes", "1") as process:
            assert (tmp_path / "mm2.properties").read_bytes() == KIP_PROPERTIES.read_bytes()
            await_values(east, "us-west.orders", wanted)
            for cluster in (west, east):
                until(
                    lambda cluster=cluster: "heartbeats" in topics(cluster), SECONDS, "heartbeats"
                )
            again(process)
            await_hops(east, {"us-west": 1})
            await_hops(west, {"us-east": -1})
            await_checkpoint(east, "us-west", "group1", "us-west.orders", 20)
            add(west, "orders", "later")
            await_values(east, "us-west.orders", wanted + numbered("later", 10))
            librdkafka_tools.commit(servers, "group1", "orders", {0: 25})
            librdkafka_tools.commit(servers, "group3", "orders", {0: 25})
            await_checkpoint(east, "us-west", "group1", "us-west.orders", 25)
            await_checkpoint(east, "us-west", "group2", "us-west.orders", 20)
        assert translated(east, "us-west", "group3") == {}
        assert librdkafka_tools.committed(east.bootstrap_servers, "group1", "us-west.orders") == {}
        assert {name for name in topics(east) if not name.startswith(INTERNAL)} == {
            "payments",
            "us-west.orders",
            "us-west.heartbeats",
            "heartbeats",
            "us-west.checkpoints.internal",
        }
        # Also no topic of a node: there is no flow that could copy.
        assert topics(west) - {"__consumer_offsets", "__transaction_state"} == {
            "orders",
            "topics_to_blacklist",
            "heartbeats",
            "mm2-offset-syncs.us-east.internal",
        }


CENTERS = {center: (f"{center}-1", f"{center}-2") for center in ("west", "east", "north")}
FLOWS = {
    *(pair for one, other in CENTERS.values() for pair in ((one, other), (other, one))),
    *((f"{a}-1", f"{b}-1") for a in CENTERS for b in CENTERS if a != b),
}
"""The twelve that the file of six clusters enables."""


def ways_by_hops(flows: Collection[tuple[str, str]]) -> list[list[tuple[str, ...]]]:
    """The ways along flows that pass no cluster twice: first those of one flow, then of two."""
    found, longer = [], [tuple(flow) for flow in sorted(flows)]
    while longer:
        found.append(longer)
        longer = [(*way, b) for way in longer for a, b in flows if a == way[-1] and b not in way]
    return found


WAYS = ways_by_hops(FLOWS)
"""The longest ones have four flows: from west-2 by west-1, east-1 and north-1 to north-2."""


def copied(way: Sequence[str], topic: str) -> str:
    """The name at the end of a way of what is at its beginning."""
    return ".".join((*reversed(way[:-1]), topic))


def copies(alias: str, topic: str) -> set[str]:
    """The names of all copies that arrive at a cluster."""
    return {copied(way, topic) for ways in WAYS for way in ways if way[-1] == alias}


def await_ways(
    clusters: Mapping[str, LocalCluster], ways: Iterable[Sequence[str]], more: Sequence[str] = ()
) -> None:
    """Wait until each of these ways has brought what was written at its beginning."""
    for way in ways:
        wanted = [*numbered(way[0], 10), *more]
        await_values(clusters[way[-1]], copied(way, "orders"), wanted)


def await_heartbeats(clusters: Mapping[str, LocalCluster], ways: Iterable[Sequence[str]]) -> None:
    """Wait for the topics of heartbeats at the end of these ways."""
    for way in ways:
        name, cluster = copied(way, "heartbeats"), clusters[way[-1]]
        until(lambda name=name, cluster=cluster: name in topics(cluster), SECONDS, name, pause=0.5)


def check_topics(alias: str, cluster: LocalCluster) -> None:
    """Check that a cluster has its own topics, and the copies that its flows bring."""
    found = {name for name in topics(cluster) if not name.startswith(INTERNAL)}
    beats = {name for name in found if name.endswith("heartbeats")}
    assert beats <= {"heartbeats", *copies(alias, "heartbeats")}
    assert found - beats == {
        "orders",
        *copies(alias, "orders"),
        *(f"{a}.checkpoints.internal" for a, b in FLOWS if b == alias),
        *(f"mm2-offset-syncs.{b}.internal" for a, b in FLOWS if a == alias),
    }


@contextmanager
def three_commands(folder: Path) -> Iterator[list[MirrorMakerProcess]]:
    """Run the file of six clusters as the KIP does: a command for each data center."""
    with ExitStack() as stack:
        processes = []
        for center, near in CENTERS.items():
            (folder / center).mkdir()
            text = KIP_CLUSTERS.read_text()
            command = mirror_maker(folder / center, text, "--lanes", "1", "--clusters", *near)
            processes.append(stack.enter_context(command))
            written = (folder / center / "mm2.properties").read_bytes()
            assert written == KIP_CLUSTERS.read_bytes()
        yield processes


@pytest.mark.long
def test_the_six_clusters_of_kip_382_get_each_topic_by_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: twelve flows, and heartbeats alone between the other 18 pairs.

    Each cluster has one broker that runs, and two that have registered and are down: the defaults
    need three. A start sees the copies of the one before, so each takes them one flow further. What
    goes in a circle would come with the second one.
    """
    assert [len(ways) for ways in WAYS] == [12, 18, 18, 6]
    aliases = sorted({alias for alias, _ in FLOWS})
    with several_clusters(tmp_path / "clusters", aliases) as clusters:
        lead(
            monkeypatch,
            {f"{alias}:9092": cluster.bootstrap_servers for alias, cluster in clusters.items()},
        )
        for alias, cluster in clusters.items():
            register_absent_brokers(cluster, 2)
            librdkafka_tools.make_topic(cluster.bootstrap_servers, "orders")
            add(cluster, "orders", alias)
            librdkafka_tools.commit(cluster.bootstrap_servers, "billing", "orders", {0: 6})
        with three_commands(tmp_path) as processes:
            await_ways(clusters, WAYS[0])
            beats: list[tuple[str, ...]] = [(alias,) for alias in aliases]
            for ways, before in zip(WAYS[1:], WAYS, strict=False):
                await_heartbeats(clusters, beats)
                beats = before
                for process in processes:
                    process.end()
                for process in processes:
                    process.start()
                await_ways(clusters, ways)
            for alias, cluster in clusters.items():
                hops = {
                    way[0]: count
                    for count, ways in reversed([*enumerate(WAYS, 1)])
                    for way in ways
                    if way[-1] == alias
                }
                await_hops(cluster, hops)
            for source, target in sorted(FLOWS):
                await_checkpoint(clusters[target], source, "billing", f"{source}.orders", 6)
            for cluster in clusters.values():
                add(cluster, "orders", "later", 5)
            for ways in WAYS:
                await_ways(clusters, ways, numbered("later", 5))
        for alias, cluster in clusters.items():
            check_topics(alias, cluster)
