"""Twin of twinlog.local.cluster: real brokers start, die, restart, and leave nothing behind."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from twinlog.local import probe
from twinlog.local.artifacts import kafka_jars
from twinlog.local.cluster import LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.identity import Identity
from twinlog.local.processes import JavaProgram, ProcessGroup

pytestmark = pytest.mark.broker


def _quiet(cluster: LocalCluster, **more: str) -> dict[str, str | int | float | bool]:
    """Return an outside client's configuration, without its log lines."""
    return {"bootstrap.servers": cluster.bootstrap_servers, "log_level": "0", **more}


def _create(cluster: LocalCluster, topic: str) -> None:
    admin = AdminClient(_quiet(cluster))
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(120)


def _produce(cluster: LocalCluster, topic: str, value: str) -> None:
    producer = Producer(_quiet(cluster, acks="all"))
    producer.produce(topic, value)
    assert producer.flush(120) == 0


def _values(cluster: LocalCluster, topic: str, count: int) -> list[str]:
    consumer = Consumer(_quiet(cluster, **{"group.id": "unused"}))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [(message.value() or b"").decode() for message in consumer.consume(count, 120)]
    finally:
        consumer.close()


def test_a_single_broker_serves_clients(any_kafka: LocalCluster, topic: str) -> None:
    """An outside client finds the broker and the cluster id, and writes and reads records."""
    metadata = AdminClient(_quiet(any_kafka)).list_topics(timeout=120)
    assert sorted(metadata.brokers) == [1]
    assert str(metadata.cluster_id) == any_kafka.cluster_id
    _create(any_kafka, topic)
    _produce(any_kafka, topic, "a")
    assert _values(any_kafka, topic, 1) == ["a"]


@pytest.mark.long
def test_three_brokers_continue_when_any_broker_is_killed(
    trio: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """With each broker killed in turn, acks=all goes on, and the broker rejoins."""
    everyone = {broker.node_id for broker in trio.brokers}
    for broker in trio.brokers:
        topic = fresh_name(str(broker.node_id))
        _create(trio, topic)
        trio.kill(broker.node_id)
        _produce(trio, topic, "while it is down")
        assert _values(trio, topic, 1) == ["while it is down"]
        trio.start_broker(broker.node_id)
        for each in trio.brokers:
            until(lambda port=each.port: probe.live_brokers(port) == everyone)


def test_a_second_cluster_has_other_ports_and_keeps_its_records(
    fresh_name: Callable[[str], str], kafka: LocalCluster
) -> None:
    """A second cluster of the same code has other ports; a killed broker has kept its records."""
    with LocalCluster.start(config={"log.segment.bytes": "1048576"}) as cluster:
        assert cluster.bootstrap_servers != kafka.bootstrap_servers
        assert cluster.cluster_id != kafka.cluster_id
        topic = fresh_name("topic")
        _create(cluster, topic)
        _produce(cluster, topic, "kept")
        cluster.kill(1)
        assert not cluster.alive(1)
        with pytest.raises(LocalError, match="is not running"):
            cluster.pause(1)
        cluster.start_broker(1)
        assert _values(cluster, topic, 1) == ["kept"]
        with pytest.raises(LocalError, match="is already running"):
            cluster.start_broker(1)
        cluster.pause(1)
        assert cluster.alive(1)
        cluster.resume(1)
        cluster.shut_down(1)
        assert not cluster.alive(1)
    assert not cluster.directory.exists()


_OWNER = """
import os, signal
from twinlog.local.cluster import LocalCluster
cluster = LocalCluster.start()
for identity in cluster._processes.identities().values():
    print(identity.pid, identity.started)
print(cluster.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_brokers_end_when_their_owner_is_killed() -> None:
    """A test run that is killed with SIGKILL leaves files, and no process."""
    told = _output(_OWNER)
    broker, directory = told.splitlines()
    pid, _, started = broker.partition(" ")
    left = Identity(int(pid), started)
    until(lambda: not left.alive(), what="the end of the broker")
    assert (Path(directory) / "node-1" / "server.log").exists()
    subprocess.run(["rm", "-r", directory], check=True)


def test_error_for_an_invalid_property_is_one_line(tmp_path: Path) -> None:
    """The error has Kafka's own words and the log's path; nothing runs, the log is kept."""
    with pytest.raises(LocalError) as caught:
        LocalCluster.start(config={"log.segment.bytes": "much"}, directory=tmp_path / "it")
    message = str(caught.value)
    assert "Invalid value much for configuration log.segment.bytes" in message
    assert "\n" not in message
    assert str(tmp_path / "it" / "node-1" / "server.log") in message


def test_error_for_an_unpublished_version_names_the_artifact() -> None:
    """The missing artifact is named, on one line."""
    with pytest.raises(LocalError, match=r"cannot fetch .*kafka_2\.13:4\.3\.999") as caught:
        LocalCluster.start(version="4.3.999")
    assert "\n" not in str(caught.value)


def test_console_tools_of_kafka_run(kafka: LocalCluster, tmp_path: Path) -> None:
    """Any main class of the fetched jars runs to its end and returns its output."""
    with ProcessGroup() as group:
        printed = group.run(
            JavaProgram(
                jars=kafka_jars(kafka.version),
                main="kafka.tools.StorageTool",
                arguments=["random-uuid"],
                log=tmp_path / "tool.log",
            )
        )
    assert len(printed.strip()) == 22


def _output(code: str) -> str:
    """Run Python code in a process of its own, however that ends, and return its output."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
