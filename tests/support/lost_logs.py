"""Logs of a broker that lose their end, and what flows to `a.TOPIC` make of it."""

from pathlib import Path

from confluent_kafka import Producer
from stored_flows import states
from transformed_flows import consumed
from waiting import SECONDS, until

from conftest import Pair
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster


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


def lose_marker(cluster: LocalCluster, log: TopicPartition) -> None:
    """Kill the broker, remove the marker at the end of a log, and start the broker again."""
    cluster.kill(1)
    path = log_file(cluster, log)
    *_, last = batches(memoryview(path.read_bytes()))
    assert last.is_control
    assert last.is_transactional
    with path.open("r+b") as file:
        file.truncate(last.position)
    cluster.start_broker(1)


def empty(cluster: LocalCluster, topic: str, keep: int) -> None:
    """Kill the broker, remove all but the first data batches of each partition, and start it."""
    cluster.kill(1)
    for folder in (cluster.directory / "node-1" / "data").glob(f"{topic}-*"):
        log = TopicPartition(topic, int(folder.name.rpartition("-")[2]))
        positions = [header.position for header in data_batches(cluster, log)]
        with log_file(cluster, log).open("r+b") as file:
            file.truncate(positions[keep] if keep < len(positions) else None)
    cluster.start_broker(1)


def write(servers: str, topic: str, *values: str, partition: int = 0) -> None:
    """Write a batch for each value; a value that begins with `v` has the header `vip`."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        headers: list[tuple[str, str | bytes | None]] = (
            [("vip", b"")] if value.startswith("v") else []
        )
        producer.produce(topic, value, partition=partition, headers=headers)
        assert producer.flush(120) == 0


def values(pair: Pair, topic: str, partition: int) -> list[bytes | None]:
    return routed_values(pair, f"a.{topic}", partition)


def routed_values(pair: Pair, name: str, partition: int = 0) -> list[bytes | None]:
    found = consumed(pair.destination.bootstrap_servers, name)
    return [value for value, _ in found[partition]]


def copied(pair: Pair, topic: str, partition: int, *wanted: str) -> None:
    routed(pair, f"a.{topic}", *wanted, partition=partition)


def routed(pair: Pair, name: str, *wanted: str, partition: int = 0) -> None:
    expected = [value.encode() for value in wanted]
    until(lambda: routed_values(pair, name, partition) == expected, SECONDS, f"{wanted}")


def copy_four(pair: Pair, topic: str) -> None:
    """Copy four records, each in a transaction or batch of its own."""
    for number in range(4):
        write(pair.source.bootstrap_servers, topic, str(number))
        copied(pair, topic, 0, *map(str, range(number + 1)))


def failed(pair: Pair, mirror: str, text: str) -> None:
    def is_failed() -> bool:
        state, reason = states(pair, mirror)[0]
        return state == "FAILED" and text in str(reason)

    until(is_failed, SECONDS, text)
