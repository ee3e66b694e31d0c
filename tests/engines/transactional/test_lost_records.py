"""Transactional flows whose target loses committed records: one broker, whose files are changed."""

import asyncio
import secrets
from pathlib import Path

import pytest
from clients import client
from confluent_kafka import Producer
from lane_processes import lanes
from stored_flows import states
from transformed_flows import consumed, made, positions
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.groups.offsets import Committed, commit_offsets
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

SECONDS = 90.0


def log_file(cluster: LocalCluster, log: TopicPartition) -> Path:
    name = f"{log.topic}-{log.partition}"
    [path] = (cluster.directory / "node-1" / "data" / name).glob("*.log")
    return path


def data_batches(cluster: LocalCluster, log: TopicPartition) -> list[Header]:
    headers = batches(memoryview(log_file(cluster, log).read_bytes()))
    return [header for header in headers if not header.is_control]


def lose(cluster: LocalCluster, log: TopicPartition, count: int) -> None:
    """Kill the broker, remove the last data batches and all behind them, and start it again."""
    at = data_batches(cluster, log)[-count].position
    cluster.kill(1)
    with log_file(cluster, log).open("r+b") as file:
        file.truncate(at)
    cluster.start_broker(1)


def write(servers: str, topic: str, *values: str, partition: int = 0) -> None:
    """Write a batch for each value."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0


def values(pair: Pair, topic: str, partition: int) -> list[bytes]:
    found = consumed(pair.destination.bootstrap_servers, f"a.{topic}")
    return [value for value, _ in found[partition]]


def copied(pair: Pair, topic: str, partition: int, *wanted: str) -> None:
    expected = [value.encode() for value in wanted]
    until(lambda: values(pair, topic, partition) == expected, SECONDS, f"{wanted}")


def failed(pair: Pair, mirror: str, text: str) -> None:
    def is_failed() -> bool:
        state, reason = states(pair, mirror)[0]
        return state == "FAILED" and text in str(reason)

    until(is_failed, SECONDS, text)


def offsets_log(cluster: LocalCluster, group: str) -> TopicPartition:
    """The partition of `__consumer_offsets` of a group, by Java's hash of its name."""
    data = cluster.directory / "node-1" / "data"
    count = len([*data.glob("__consumer_offsets-*")])
    number = 0
    for character in group:
        number = (31 * number + ord(character)) % (1 << 32)
    size = number if number < 1 << 31 else (1 << 32) - number
    return TopicPartition("__consumer_offsets", size % count)


def commit(pair: Pair, mirror: str, remote: str, offset: int) -> None:
    """Commit a flow's offset for the partition 0, as an operator does."""

    async def decide() -> None:
        async with client(pair.destination) as cluster:
            key, group = TopicPartition(remote, 0), position_group("twinlog", mirror)
            assert (await commit_offsets(cluster, group, {key: Committed(offset)}))[key] is None

    asyncio.run(decide())


def test_a_position_that_is_older_than_the_copy_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: if the target loses a committed position, nothing is copied twice.

    An operator's offset decides where the flow goes on.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    asyncio.run(made(pair, mirror, topic, {"transaction.producer": "true"}))
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    remote = f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        for number in range(4):  # a transaction for each
            write(source, topic, str(number))
            copied(pair, topic, 0, *map(str, range(number + 1)))
        until(lambda: asyncio.run(positions(pair, mirror, topic))[0].offset == 4, SECONDS, "4")
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
        commit(pair, mirror, remote, 4)
        copied(pair, topic, 0, "0", "1", "2", "3", "foreign", "4")


@pytest.mark.parametrize("running", [True, False])
def test_a_target_that_has_lost_committed_records_is_failed(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path, running: bool
) -> None:
    """Goal: no owner goes on behind lost records, whoever fills the log again; others go on.

    An operator's offset decides which records are copied again.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    asyncio.run(made(pair, mirror, topic, {"transaction.producer": "true"}))
    source, target = kafka.bootstrap_servers, fragile.bootstrap_servers
    remote = f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        nodes.start("node")
        for number in range(4):  # a transaction for each
            write(source, topic, str(number))
            copied(pair, topic, 0, *map(str, range(number + 1)))
        at = asyncio.run(positions(pair, mirror, topic))[0]
        assert (at.offset, "lost" in at.metadata) == (4, False)
        assert ";tail=" in at.metadata
        if not running:
            nodes.kill("node")
        lose(fragile, TopicPartition(remote, 0), 2)
        if not running:
            nodes.start("later")
        else:
            write(source, topic, "4")  # the next write is what shows it
        failed(pair, mirror, "the destination has lost records")
        write(source, topic, "a", partition=1)
        copied(pair, topic, 1, "a")
        assert values(pair, topic, 0) == [b"0", b"1"]
        write(target, remote, *("foreign" for _ in range(6)))
        failed(pair, mirror, "others were written in their place")
        nodes.end()
        nodes.start("last")
        failed(pair, mirror, "commit the source's offset to go on at")
        assert "lost=1" in asyncio.run(positions(pair, mirror, topic))[0].metadata
        commit(pair, mirror, remote, 2)
        write(source, topic, "5")
        again = ["2", "3", "4", "5"] if running else ["2", "3", "5"]
        copied(pair, topic, 0, "0", "1", *["foreign"] * 6, *again)
