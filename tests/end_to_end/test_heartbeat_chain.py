"""Heartbeats along a chain of clusters that runs, A->B->C, by one file (KIP-382).

    A            B                     C
    heartbeats ► A.heartbeats ──────► B.A.heartbeats
                 heartbeats ────────► B.heartbeats
                                      heartbeats

No flow copies to A; the heartbeats there are those of pairs of clusters without a flow, which
MirrorMaker 2 writes as well. They are what shows C that it is two flows behind A.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import librdkafka_tools
import pytest
from mirror_maker_java import mirror_maker_java
from mirror_maker_process import mirror_maker
from remote_topics import values
from several_clusters import several_clusters
from waiting import SECONDS, until
from whole_logs import read_whole_log

from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.mm2_records import Heartbeat, decode_heartbeat

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FILE = """\
clusters = A, B, C
A.bootstrap.servers = {A}
B.bootstrap.servers = {B}
C.bootstrap.servers = {C}
A->B.enabled = true
B->C.enabled = true
topics = .*orders
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
emit.heartbeats.interval.seconds = 1
refresh.topics.interval.seconds = 1
"""
HEARTBEATS = {
    "A": {"heartbeats"},
    "B": {"heartbeats", "A.heartbeats"},
    "C": {"heartbeats", "B.heartbeats", "B.A.heartbeats"},
}
HOPS = {
    "A": {"B": -1, "C": -1},
    "B": {"A": 1, "C": -1},
    "C": {"A": 2, "B": 1},
}
"""Of each cluster: how many flows are between another one and it."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalCluster]]:
    """Start three clusters of one broker."""
    with several_clusters(tmp_path_factory.mktemp("chain"), "ABC") as started:
        yield started


def heartbeats(servers: str, topic: str) -> list[Heartbeat]:
    """The heartbeats of a topic."""
    found = []
    for message in (read_whole_log(servers, topic, [0]) or {0: []})[0]:
        heartbeat = decode_heartbeat(message.key(), message.value())
        assert heartbeat is not None
        found.append(heartbeat)
    return found


@pytest.mark.long
def test_the_end_of_a_chain_sees_the_heartbeats_of_its_beginning(
    clusters: dict[str, LocalCluster], tmp_path: Path
) -> None:
    """Goal: topics, hops and upstream clusters, for Python's clients and for MirrorMaker 2's own.

    Records go the same way, and heartbeats go on arriving.
    """
    servers = {name: cluster.bootstrap_servers for name, cluster in clusters.items()}
    librdkafka_tools.make_topic(servers["A"], "orders")
    librdkafka_tools.write(servers["A"], "orders", librdkafka_tools.simple(20))
    with (
        mirror_maker(tmp_path, FILE.format(**servers), "--lanes", "1"),
        mirror_maker_java(tmp_path) as java,
    ):
        admin = librdkafka_tools.admin(servers["C"])
        until(
            lambda: (
                {"B.A.heartbeats", "B.A.orders"} <= admin.list_topics(timeout=120).topics.keys()
            ),
            SECONDS,
            "the topics of A in C",
            pause=0.5,
        )
        until(
            lambda: values(clusters["C"], "B.A.orders"),
            SECONDS,
            "the records of A in C",
            good=lambda found: found == [f"v{at}" for at in range(20)],
            pause=0.5,
        )
        utils = java["RemoteClusterUtils"]
        for name, topics in HEARTBEATS.items():
            asked = {"bootstrap.servers": servers[name]}
            found = until(
                lambda asked=asked: asyncio.run(RemoteClusterUtils.heartbeat_topics(asked)),
                SECONDS,
                f"the topics of heartbeats of {name}",
                good=lambda found, topics=topics: len(found) >= len(topics),
                pause=1.0,
            )
            assert found == topics
            upstream = {other for other, hops in HOPS[name].items() if hops > 0}
            assert asyncio.run(RemoteClusterUtils.upstream_clusters(asked)) == upstream
            properties = java.properties(asked)
            assert set(utils.heartbeatTopics(properties)) == topics
            assert set(utils.upstreamClusters(properties)) == upstream
            for other, hops in HOPS[name].items():
                assert asyncio.run(RemoteClusterUtils.replication_hops(asked, other)) == hops
                assert utils.replicationHops(properties, other) == hops
        before = until(
            lambda: heartbeats(servers["C"], "B.A.heartbeats"), SECONDS, "heartbeats", pause=0.5
        )
        # They say which pair wrote them: A is the target of both that end there.
        assert {one.target_cluster_alias for one in before} == {"A"}
        assert {one.source_cluster_alias for one in before} <= {"B", "C"}
        last = max(one.timestamp for one in before)
        until(
            lambda: max(one.timestamp for one in heartbeats(servers["C"], "B.A.heartbeats")),
            SECONDS,
            "later heartbeats of A in C",
            good=lambda timestamp: timestamp >= last + 2000,
            pause=0.5,
        )
