"""Flows whose source loses the end of a log in an unclean election, on three real brokers."""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from chaos_harness import await_in_sync
from confluent_kafka.admin import AdminClient
from lane_processes import lanes
from lost_logs import copied, write
from stored_flows import states, store_flow
from transformed_flows import PARTITIONS, flow_properties
from waiting import SECONDS, until

from conftest import Pair
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.start(
        3, directory=tmp_path_factory.mktemp("source"), jvm_flags=SHORT_LIVED, config=UNCLEAN
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own: its lanes would take over the mirrors of other tests."""
    with LocalCluster.start(
        directory=tmp_path_factory.mktemp("target"), jvm_flags=SHORT_LIVED
    ) as cluster:
        yield cluster


def replicated_flow(pair: Pair, settings: Mapping[str, str]) -> tuple[str, str]:
    """Create a flow of partitions that broker 1 leads; the others follow."""
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    properties = flow_properties(pair, settings)
    names, replicas = (topic, f"a.{topic}"), [(1, 2, 3)] * PARTITIONS
    asyncio.run(store_flow(pair, mirror, properties, names, PARTITIONS, source_replicas=replicas))
    return mirror, topic


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader)


@contextmanager
def written_to_the_leader_alone(cluster: LocalCluster, topic: str) -> Iterator[None]:
    """Its followers lack what the block writes, and lead when it ends, while broker 1 is down."""
    for node in (2, 3):
        cluster.kill(node)
    try:
        yield
        cluster.kill(1)
    finally:
        for node in (2, 3):
            cluster.start_broker(node)
    for partition in range(PARTITIONS):
        until(
            lambda: leader_of(cluster, topic, partition) in (2, 3),  # noqa: B023
            SECONDS,
            "an unclean election",
        )


@pytest.mark.parametrize("case", ["running", "killed"])
@pytest.mark.parametrize("kind", ["batches", "transactions"])
def test_a_source_that_has_lost_its_end_is_failed_and_nothing_of_it_is_left_out(
    source: LocalCluster, target: LocalCluster, tmp_path: Path, kind: str, case: str
) -> None:
    """Goal: what replaced lost records is never taken for what was copied, or skipped.

    The source grows past the copy again; what a killed lane had read is known to the next one.
    Partition 1 has the same election and loses nothing: it goes on.
    """
    pair = Pair(source, target)
    settings = {"transaction.producer": "true"} if kind == "transactions" else {}
    mirror, topic = replicated_flow(pair, settings)
    servers = source.bootstrap_servers
    with lanes(target.bootstrap_servers, tmp_path, {"metadata.max.age.ms": "2000"}) as nodes:
        nodes.start("first")
        write(servers, topic, "0", "1")
        write(servers, topic, "kept", partition=1)
        copied(pair, topic, 1, "kept")
        with written_to_the_leader_alone(source, topic):
            write(servers, topic, "2", "3")
            copied(pair, topic, 0, "0", "1", "2", "3")
            if case == "killed":
                nodes.kill("first")
        try:
            write(servers, topic, "4", "5", "6")
            write(servers, topic, "later", partition=1)
            if case == "killed":
                nodes.start("second")
            copied(pair, topic, 1, "kept", "later")
            _, reason = until(
                lambda: states(pair, mirror)[0],
                SECONDS,
                "the loss",
                good=lambda found: found[0] == "FAILED",
            )
            assert "the source has lost records that were copied: copied up to offset 4" in str(
                reason
            )
            assert "ends at offset 2, before later epochs" in str(reason)
            copied(pair, topic, 0, "0", "1", "2", "3")
            assert states(pair, mirror)[1][0] != "FAILED"
        finally:
            source.start_broker(1)
            await_in_sync(source)
