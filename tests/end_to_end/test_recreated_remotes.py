"""Flows whose remote topics are deleted on the target while they run, and recreated or not."""

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicMetadata
from readiness_check import find_readiness
from remote_topics import counts, places, values
from scene import reasons
from scraped import await_ready, scrape
from stored_flows import create
from waiting import SECONDS, until

from twinlog.kafka.types import TopicPartition
from twinlog.local.load import delete_before
from twinlog.local.stage import Stage
from twinlog.operations.readiness.reasons import Reason
from twinlog.store.mirrors import MirrorStore
from twinlog.store.recorded_maps import read_ends

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

SETTINGS = {
    "enabled": "true",
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.heartbeats.enabled": "false",
    "heartbeats.replication.enabled": "false",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
}
GOES_ON, FAILS = "a-to-b", "f-to-b"
LOST = "twinlog_destination_losses_total"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Stage]:
    """Two clusters, a flow that goes on, one that fails, and a node."""
    with Stage(tmp_path_factory.mktemp("recreated")) as stage:
        stage.start_source()
        stage.start_destination()
        goes_on = {**SETTINGS, "topics": "on-.*", "twinlog.data.loss": "continue"}
        assert create(stage, "a", goes_on) == GOES_ON
        assert create(stage, "f", {**SETTINGS, "topics": "fail-.*"}) == FAILS
        stage.start_node("node", "--metrics-address", metrics_address)
        await_ready(metrics_address)
        yield stage


def copied(stage: Stage, remote: str, count: int) -> None:
    def is_copied() -> bool:
        topics = librdkafka_tools.admin(stage.destination.bootstrap_servers).list_topics(timeout=60)
        return remote in topics.topics and counts(stage.destination, remote, 1) == [count]

    until(is_copied, SECONDS, f"{count} records in {remote}")


def recorded_end(stage: Stage, flow: str, topic: str, partition: int = 0) -> int | None:
    async def body() -> int | None:
        async with client(stage.destination) as destination:
            topics = (await MirrorStore(destination).snapshot()).topics_of(flow)
            return (await read_ends(destination, topics)).get(TopicPartition(topic, partition))

    return asyncio.run(body())


def findings(stage: Stage, topic: str) -> dict[Reason, str]:
    """What `readiness` finds of a topic."""
    settings = {"bootstrap.servers": stage.destination.bootstrap_servers}
    return reasons(asyncio.run(find_readiness(settings, GOES_ON, topic)))


def lost_range(stage: Stage, topic: str) -> str | None:
    """The range of lost copies that `readiness` reports."""
    text = findings(stage, topic).get(Reason.COPIES_LOST, "")
    found = re.search(r"lost copies of offsets (.*), which the source keeps", text)
    return found and found[1]


def recreate(stage: Stage, remote: str) -> None:
    servers = stage.destination.bootstrap_servers
    librdkafka_tools.delete_topic(servers, remote, returns=True)
    with suppress(KafkaException):  # the flow may have created it meanwhile
        librdkafka_tools.make_topic(servers, remote)


@contextmanager
def numbers(stage: Stage, topic: str, first: int) -> Iterator[list[int]]:
    """Write numbers to a topic of the source meanwhile; the list has those that were written."""
    ended, written = threading.Event(), list[int]()

    def write() -> None:
        while not ended.wait(0.02):
            number = first + len(written)
            record = [(0, None, str(number), None)]
            librdkafka_tools.write(stage.source.bootstrap_servers, topic, record)
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        ended.set()
        thread.join()


@pytest.mark.long
def test_a_flow_goes_on_in_recreated_remote_topics(
    stage: Stage, topic: str, metrics_address: str
) -> None:
    """Goal: each later record is there once; what is lost is reported, and groups skip nothing.

    It is recreated twice, the second time while the source is written to.
    """
    name, servers = f"on-{topic}", stage.source.bootstrap_servers
    remote, target = f"a.{name}", stage.destination.bootstrap_servers

    def row() -> dict[str, object]:
        return librdkafka_tools.described(stage, name)[0]

    def lost() -> float | None:
        return scrape(metrics_address).value(LOST, mirror=GOES_ON, topic=name, partition="0")

    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, [(0, None, str(at), None) for at in range(100)])
    librdkafka_tools.commit(servers, topic, name, {0: 40})
    copied(stage, remote, 100)
    until(lambda: recorded_end(stage, GOES_ON, name) == 100, SECONDS, "the map")
    place = places(stage.destination, remote)[40]
    until(
        lambda: librdkafka_tools.committed(target, topic, remote) == {0: place},
        SECONDS,
        "the group, which is at the end of the copies before there are more",
    )

    recreate(stage, remote)
    until(lambda: row()["destination_losses"] == 1, SECONDS, "the loss")
    assert row()["destination_last_loss"] == f"{remote}-0, offsets [0, 100)"
    assert row()["destination_lost_offsets"] == 100
    until(lambda: lost() == 1, SECONDS, "the metric")
    assert lost_range(stage, name) == "[0, 100)"
    librdkafka_tools.write(servers, name, [(0, None, str(at), None) for at in range(100, 150)])
    copied(stage, remote, 50)
    assert values(stage.destination, remote) == [str(at) for at in range(100, 150)]
    first = places(stage.destination, remote)[0]
    until(
        lambda: librdkafka_tools.committed(target, topic, remote) == {0: first},
        SECONDS,
        "the group in front of what is copied behind its offset",
    )
    found = findings(stage, name)
    skips = f"group {topic} would skip records of {name}-0 (source 40, destination 100)"
    assert skips in found[Reason.GROUP_SKIPS]
    librdkafka_tools.commit(servers, topic, name, {0: 100})
    assert Reason.GROUP_SKIPS not in findings(stage, name)
    delete_before(servers, [(name, 0, 60)])
    assert lost_range(stage, name) == "[60, 100)"
    delete_before(servers, [(name, 0, 100)])
    assert lost_range(stage, name) is None

    until(lambda: recorded_end(stage, GOES_ON, name) == 150, SECONDS, "the map")
    with numbers(stage, name, 150) as written:
        until(lambda: len(values(stage.destination, remote)) > 60, SECONDS, "copies meanwhile")
        recreate(stage, remote)
        before = len(written)
        until(
            lambda: str(150 + before) in values(stage.destination, remote),
            SECONDS,
            "what was written later",
        )
    end = 150 + len(written)
    until(lambda: values(stage.destination, remote)[-1:] == [str(end - 1)], SECONDS, "the last one")
    copies = [int(value) for value in values(stage.destination, remote)]
    assert copies == list(range(copies[0], end))
    assert 150 <= copies[0] <= 150 + before
    assert librdkafka_tools.await_state(stage, name, 0, "MIRRORING")["reason"] is None


def shown(stage: Stage) -> Mapping[str, TopicMetadata]:
    admin = librdkafka_tools.admin(stage.destination.bootstrap_servers)
    return admin.list_topics(timeout=60).topics


@pytest.mark.long
def test_a_deleted_remote_topic_is_created_again_with_continue(
    stage: Stage, topic: str, metrics_address: str
) -> None:
    """Goal: as the flow has created it first; each later record is there once. Else none is.

    A topic that was removed from the flow before is not created, nor one of a flow that fails.
    """
    names = name, removed, fails = f"on-{topic}", f"on-{topic}-removed", f"fail-{topic}"
    remotes = [f"a.{name}", f"a.{removed}", f"f.{fails}"]
    remote, servers = remotes[0], stage.source.bootstrap_servers
    target = stage.destination.bootstrap_servers
    config = {"retention.ms": "123456789", "max.message.bytes": "2000000"}
    for one, other in zip(names, remotes, strict=True):
        librdkafka_tools.make_topic(servers, one, 2, config)
        records = [(at % 2, None, str(at), None) for at in range(100)]
        librdkafka_tools.write(servers, one, records)
        until(
            lambda: other in shown(stage) and counts(stage.destination, other, 2) == [50, 50],  # noqa: B023
            SECONDS,
            f"the records in {other}",
        )
    for index in range(2):
        until(lambda: recorded_end(stage, GOES_ON, name, index) == 50, SECONDS, "the map")  # noqa: B023
    first = librdkafka_tools.configs(target, remote)

    answer = stage.mirrors("--remove", "--mirror", GOES_ON, "--topic", removed)
    assert answer.status == 0, answer
    librdkafka_tools.await_state(stage, removed, 0, "STOPPED")
    for other in remotes[1:]:
        librdkafka_tools.delete_topic(target, other)
    with numbers(stage, name, 100) as written:
        librdkafka_tools.delete_topic(target, remote, returns=True)
        before = len(written)
        until(
            lambda: str(101 + before) in values(stage.destination, remote),
            SECONDS,
            "what was written later",
        )
    assert len(shown(stage)[remote].partitions) == 2
    assert librdkafka_tools.configs(target, remote) == first
    end = 100 + len(written)
    until(lambda: values(stage.destination, remote)[-1:] == [str(end - 1)], SECONDS, "the last one")
    copies = [int(value) for value in values(stage.destination, remote)]
    assert copies == list(range(copies[0], end))
    assert 100 <= copies[0] <= 101 + before

    def lost(partition: int) -> dict[str, object]:
        return librdkafka_tools.described(stage, name)[partition]

    until(lambda: lost(1)["destination_losses"] == 1, SECONDS, "the loss of the idle partition")
    assert lost(1)["destination_last_loss"] == f"{remote}-1, offsets [0, 50)"
    metric = {"mirror": GOES_ON, "topic": name, "partition": "0"}
    until(lambda: scrape(metrics_address).value(LOST, **metric) == 1, SECONDS, "the metric")
    for index in range(2):
        librdkafka_tools.await_state(stage, name, index, "MIRRORING")
    # Both were deleted before, and the same node has refreshed both flows since.
    assert not {*remotes[1:]} & shown(stage).keys()
    librdkafka_tools.await_state(stage, fails, 0, "FAILED")


@pytest.mark.long
def test_a_recreated_remote_topic_is_failed_without_continue(stage: Stage, topic: str) -> None:
    """Goal: by default an operator decides, and nothing is written to the new topic."""
    name, servers = f"fail-{topic}", stage.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10))
    copied(stage, f"f.{name}", 10)
    recreate(stage, f"f.{name}")
    failed = librdkafka_tools.await_state(stage, name, 0, "FAILED")
    until(
        lambda: (
            "deleted and recreated" in str(librdkafka_tools.described(stage, name)[0]["reason"])
        ),
        SECONDS,
        f"the reason, after {failed['reason']}",
    )
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10))
    until(
        lambda: librdkafka_tools.described(stage, name)[0]["destination_losses"] == 1,
        SECONDS,
        "the count",
    )
    assert counts(stage.destination, f"f.{name}", 1) == [0]
