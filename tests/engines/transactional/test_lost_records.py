"""Transactional flows whose target loses committed records: one broker, whose files are changed."""

import asyncio
from pathlib import Path

import pytest
from batch_builders import record
from clients import client
from confluent_kafka.admin import AdminClient, NewTopic
from lane_processes import lanes
from lost_logs import (
    SECONDS,
    copied,
    copy_four,
    failed,
    lose,
    lose_marker,
    routed,
    routed_values,
    values,
    write,
)
from stored_flows import losses
from transformed_flows import await_position, commit_position, new_flow, positions
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.engines.transactional.transactions import (
    GroupOffsets,
    TargetTransactions,
    TransactionContent,
)
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import state_partition
from twinlog.store.offset_log import OFFSETS_TOPIC
from twinlog.store.partition_counts import known_partition_count

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

ROUTE = {
    "transforms": "route",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "vip-$1",
    "transforms.route.predicate": "important",
    "predicates": "important",
    "predicates.important.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "predicates.important.name": "vip",
}
"""Records with the header `vip` go to `vip-a.TOPIC`, others to `a.TOPIC`."""


def offsets_log(cluster: LocalCluster, group: str) -> TopicPartition:
    """The partition of `__consumer_offsets` of a group, by Java's hash of its name."""
    data = cluster.directory / "node-1" / "data"
    count = len([*data.glob("__consumer_offsets-*")])
    number = 0
    for character in group:
        number = (31 * number + ord(character)) % (1 << 32)
    size = number if number < 1 << 31 else (1 << 32) - number
    return TopicPartition("__consumer_offsets", size % count)


@pytest.mark.long
def test_a_position_that_is_older_than_the_copy_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: if the target loses a committed position, nothing is copied twice.

    An operator's offset decides where the flow goes on.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {"transaction.producer": "true"})
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    remote = f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        copy_four(pair, topic)
        await_position(pair, mirror, topic, 4, SECONDS)
        nodes.kill("node")
        write(source, topic, "4")
        lose(fragile, offsets_log(fragile, position_group("twinlog", mirror)), 2)
        older = asyncio.run(positions(pair, mirror, topic))[0]
        assert 0 < older.offset < 4
        write(target, remote, "foreign")
        nodes.start("later")
        failed(pair, mirror, "the position is older than the copy")
        copied(pair, topic, 0, "0", "1", "2", "3", "foreign")
        assert asyncio.run(positions(pair, mirror, topic))[0] == older
        commit_position(pair, mirror, remote, 4)
        copied(pair, topic, 0, "0", "1", "2", "3", "foreign", "4")


@pytest.mark.parametrize("running", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_target_that_has_lost_committed_records_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path, running: bool
) -> None:
    """Goal: no owner goes on behind lost records, whoever fills the log again; others go on.

    An operator's offset decides which records are copied again.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {"transaction.producer": "true"})
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    remote = f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        copy_four(pair, topic)
        at = await_position(pair, mirror, topic, 4, SECONDS)
        assert "lost" not in at.metadata
        assert ";tail=" in at.metadata
        if not running:
            nodes.kill("node")
        lose(fragile, TopicPartition(remote, 0), 2)
        if not running:
            nodes.start("later")
        else:
            write(source, topic, "4")  # the next write is what shows it
        failed(pair, mirror, "the destination has lost records")
        counted = until(
            lambda: losses(pair, mirror)[0], SECONDS, "the count", good=lambda one: one.times == 1
        )
        assert counted.offsets > 0
        assert f"{remote}-0, offsets [" in str(counted.last)
        write(source, topic, "a", partition=1)
        copied(pair, topic, 1, "a")
        assert values(pair, topic, 0) == [b"0", b"1"]
        write(target, remote, *("foreign" for _ in range(6)))
        failed(pair, mirror, "others were written in their place")
        nodes.end()
        nodes.start("last")
        failed(pair, mirror, "commit the source's offset to go on at")
        until(lambda: losses(pair, mirror)[0].times == 1, SECONDS, "the count of the last owner")
        assert f"lost={remote}-0" in asyncio.run(positions(pair, mirror, topic))[0].metadata
        commit_position(pair, mirror, remote, 2)
        write(source, topic, "5")
        again = ["2", "3", "4", "5"] if running else ["2", "3", "5"]
        copied(pair, topic, 0, "0", "1", *["foreign"] * 6, *again)


def abort_next(pair: Pair, mirror: str, topic: str) -> None:
    """Write a transaction to the remote topic as the flow's owner does, and fail before its end."""

    def fail(_: object) -> GroupOffsets:
        raise Retriable("the owner fails")

    async def run() -> None:
        log = TopicPartition(f"a.{topic}", 0)
        async with client(pair.source) as source, client(pair.destination) as target:
            topic_id = (await source.refresh([topic])).topics[topic].topic_id
            count = await known_partition_count(target, OFFSETS_TOPIC)
            number = state_partition(mirror, topic_id, 0, count)
            owner = TargetTransactions(target, f"twinlog.{number}.transactions", lambda: None)
            await owner.fence()
            batch = build([record(0, value=b"later")], Codec.NONE)
            with pytest.raises(Retriable, match="the owner fails"):
                await owner.write(TransactionContent(batches={log: [batch]}, offsets_behind=fail))

    asyncio.run(run())


@pytest.mark.long
def test_a_target_that_has_lost_only_the_marker_of_a_transaction_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: nothing is written behind an open transaction, whoever has written there since.

    Once a later transaction has aborted its records with its own, that is a loss.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {"transaction.producer": "true"})
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    remote = f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        copy_four(pair, topic)
        await_position(pair, mirror, topic, 4, SECONDS)
        nodes.kill("node")
        lose_marker(fragile, TopicPartition(remote, 0))
        write(target, remote, "foreign")
        nodes.start("later")
        failed(pair, mirror, "without the marker of the last transaction")
        write(source, topic, "4")
        write(source, topic, "a", partition=1)
        copied(pair, topic, 1, "a")
        assert values(pair, topic, 0) == [b"0", b"1", b"2"]
        nodes.kill("later")
        abort_next(pair, mirror, topic)
        copied(pair, topic, 0, "0", "1", "2", "foreign")
        nodes.start("last")
        failed(pair, mirror, "has lost the marker that committed the records up to")
        counted = until(
            lambda: losses(pair, mirror)[0], SECONDS, "the count", good=lambda one: one.times == 1
        )
        assert f"{remote}-0, offsets up to " in str(counted.last)
        assert asyncio.run(positions(pair, mirror, topic))[0].offset == 4
        commit_position(pair, mirror, remote, 3)
        copied(pair, topic, 0, "0", "1", "2", "foreign", "3", "4")


def four_routed(pair: Pair, topic: str) -> None:
    """Copy four records to the topic that they are routed to, and a fifth to the remote topic."""
    source = pair.source.bootstrap_servers
    for number in range(4):  # a transaction for each
        write(source, topic, f"v{number}")
        routed(pair, f"vip-a.{topic}", *(f"v{at}" for at in range(number + 1)))
    write(source, topic, "4")
    copied(pair, topic, 0, "4")


@pytest.mark.long
@pytest.mark.parametrize("running", [True, False])
def test_a_routed_topic_that_has_lost_committed_records_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path, running: bool
) -> None:
    """Goal: no owner goes on behind lost records that were routed, whoever fills the log again.

    The remote topic has lost nothing, and its own records follow those that are lost.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, ROUTE)
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    vip = f"vip-a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        four_routed(pair, topic)
        write(source, topic, "v", partition=1)
        until(lambda: routed_values(pair, vip, 1) == [b"v"], SECONDS, "the other partition")
        at = await_position(pair, mirror, topic, 5, SECONDS)
        assert f";routed={vip}/0/" in at.metadata
        if not running:
            nodes.kill("node")
        lose(fragile, TopicPartition(vip, 0), 2)
        if not running:
            nodes.start("later")
        failed(pair, mirror, f"{vip}-0, to which records were routed: the destination has lost")
        write(source, topic, "a", partition=1)
        copied(pair, topic, 1, "a")
        write(target, vip, *("foreign" for _ in range(6)))
        failed(pair, mirror, "others were written in their place")
        nodes.end()
        nodes.start("last")
        failed(pair, mirror, f"lost records of {vip}-0; position 5 of group")
        write(source, topic, "v5", "6")
        commit_position(pair, mirror, f"a.{topic}", 2)
        routed(pair, vip, "v0", "v1", *["foreign"] * 6, "v2", "v3", "v5")
        copied(pair, topic, 0, "4", "4", "6")


def delete(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(120)
    until(lambda: topic not in admin.list_topics(timeout=120).topics, SECONDS, "the deletion")


@pytest.mark.long
def test_a_routed_topic_that_was_recreated_is_failed(pair: Pair, tmp_path: Path) -> None:
    """Goal: the id tells it, though the new topic is longer and the flow writes nothing to it."""
    mirror, topic = new_flow(pair, ROUTE)
    source, target = (one.bootstrap_servers for one in (pair.source, pair.destination))
    vip = f"vip-a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        write(source, topic, "v0", "v1", "2")
        routed(pair, vip, "v0", "v1")
        copied(pair, topic, 0, "2")
        delete(target, vip)
        admin = AdminClient({"bootstrap.servers": target})
        admin.create_topics([NewTopic(vip, 3, 1)])[vip].result(120)
        write(target, vip, *("foreign" for _ in range(9)))
        failed(pair, mirror, "the topic was deleted and recreated, and records were copied up to")
        write(source, topic, "v3")
        nodes.end()
        nodes.start("later")
        write(source, topic, "a", partition=1)
        copied(pair, topic, 1, "a")
        failed(pair, mirror, "commit the source's offset to go on at")
        assert routed_values(pair, vip) == [b"foreign"] * 9
        commit_position(pair, mirror, f"a.{topic}", 1)
        routed(pair, vip, *["foreign"] * 9, "v1", "v3")
        copied(pair, topic, 0, "2", "2")


@pytest.mark.long
def test_a_routed_topic_that_was_deleted_is_not_created_again(pair: Pair, tmp_path: Path) -> None:
    """Goal: it fails nobody as long as nothing is routed there, as an old day of TimestampRouter.

    What would begin it anew waits for an operator.
    """
    mirror, topic = new_flow(pair, ROUTE)
    source, target = (one.bootstrap_servers for one in (pair.source, pair.destination))
    vip = f"vip-a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        write(source, topic, "v0", "1")
        routed(pair, vip, "v0")
        copied(pair, topic, 0, "1")
        delete(target, vip)
        write(source, topic, "2")
        copied(pair, topic, 0, "1", "2")
        nodes.end()
        nodes.start("later")
        write(source, topic, "3")
        copied(pair, topic, 0, "1", "2", "3")
        write(source, topic, "v4", "5")
        failed(pair, mirror, f"the destination does not have {vip}-0, to which records were routed")
        assert vip not in AdminClient({"bootstrap.servers": target}).list_topics(timeout=120).topics
        assert values(pair, topic, 0) == [b"1", b"2", b"3"]
        commit_position(pair, mirror, f"a.{topic}", 4)
        routed(pair, vip, "v4")
        copied(pair, topic, 0, "1", "2", "3", "5")


def test_a_flow_that_passes_losses_goes_on(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: with `continue` nothing is copied twice or left out besides what the target has lost.

    A deleted topic is created again, once every broker has said that it is gone.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {**ROUTE, "twinlog.data.loss": "continue"})
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    vip = f"vip-a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        four_routed(pair, topic)
        lose(fragile, TopicPartition(vip, 0), 2)
        write(source, topic, "5", "v6")
        routed(pair, vip, "v0", "v1", "v6")
        copied(pair, topic, 0, "4", "5")
        delete(target, vip)
        write(source, topic, "7", "v8")
        copied(pair, topic, 0, "4", "5", "7")
        routed(pair, vip, "v8")
        until(
            lambda: str(losses(pair, mirror)[0].last),
            SECONDS,
            "the second loss",
            good=lambda last: f"{vip}-0, offsets up to " in last,
        )
        nodes.end()
    lines = (tmp_path / "node.log").read_text()
    assert f"{vip}-0, to which records were routed: " in lines
    assert "; going on at position" in lines
    assert "the topic was deleted, and records were copied up to" in lines
