"""Flows on real clusters: topics, records, configurations and group offsets (KIP-382, KIP-545)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import librdkafka_tools
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from mirror_maker_java import mirror_maker_java
from remote_topics import counts, places, values
from scraped import await_ready, scrape
from stored_flows import create
from waiting import SECONDS, until

from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.local.load import delete_before
from twinlog.local.stage import Stage
from twinlog.mirror.mm2_records import decode_heartbeat

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FLOW = "a-to-b"
SETTINGS = {
    "enabled": "true",
    "twinlog.data.loss": "continue",
    "topics": "copied-.*",
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "heartbeats.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
}

IN_TRANSACTIONS = {
    "topics": "exact-.*",
    "transaction.producer": "true",
    "emit.heartbeats.enabled": "false",
    "heartbeats.replication.enabled": "false",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Stage]:
    """Start two clusters, a flow `a->b`, another one `t->b` in transactions, and a node."""
    with Stage(tmp_path_factory.mktemp("flows")) as stage:
        stage.start_source()
        stage.start_destination()

        both = {**SETTINGS, "twinlog.source.heartbeats.enabled": "true"}
        assert create(stage, "a", both) == FLOW
        create(stage, "t", {**SETTINGS, **IN_TRANSACTIONS})
        stage.start_node("node", "--metrics-address", metrics_address)
        await_ready(metrics_address)
        yield stage


def exists(stage: Stage, topic: str, partitions: int) -> bool:
    admin = librdkafka_tools.admin(stage.destination.bootstrap_servers)
    metadata = admin.list_topics(timeout=120).topics.get(topic)
    return metadata is not None and len(metadata.partitions) == partitions


def await_copy(stage: Stage, topic: str, wanted: list[int]) -> None:
    until(lambda: exists(stage, topic, len(wanted)), SECONDS, f"{topic} with its partitions")
    until(
        lambda: counts(stage.destination, topic, len(wanted)) == wanted,
        SECONDS,
        f"{topic} with {wanted}",
    )


def test_a_topic_that_matches_is_copied_under_the_alias_of_its_source(
    stage: Stage, topic: str
) -> None:
    """Goal: what `topics` selects appears by itself, with its configurations; others do not."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name, 2, config={"retention.ms": "123456789"})
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(50, 0))
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(70, 1))
    await_copy(stage, f"a.{name}", [50, 70])
    admin = librdkafka_tools.admin(stage.destination.bootstrap_servers)
    assert not {topic, f"a.{topic}"} & admin.list_topics(timeout=120).topics.keys()
    until(
        lambda: librdkafka_tools.configs(stage.destination.bootstrap_servers, f"a.{name}"),
        what="its configurations",
        good=lambda configs: configs["retention.ms"] == "123456789",
    )


def test_a_topic_that_grows_is_copied_whole(stage: Stage, topic: str) -> None:
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name, 1)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10, 0))
    await_copy(stage, f"a.{name}", [10])
    librdkafka_tools.grow_topic(servers, name, 3)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20, 2))
    await_copy(stage, f"a.{name}", [10, 0, 20])


def write_transactions(servers: str, topic: str, count: int) -> None:
    """Write numbers, ten in each transaction: the record of number n has the offset n + n // 10."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(120)
    for first in range(0, count, 10):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(topic, str(number))
        producer.commit_transaction(120)


@pytest.mark.parametrize(("alias", "prefix"), [("a", "copied"), ("t", "exact")])
def test_a_group_continues_at_exactly_its_next_record(
    stage: Stage, topic: str, alias: str, prefix: str
) -> None:
    """Goal: anywhere in the log, behind the end too, and it follows a group that is rewound."""
    servers, name, group = stage.source.bootstrap_servers, f"{prefix}-{topic}", f"g-{topic}"
    librdkafka_tools.make_topic(servers, name)
    write_transactions(servers, name, 300)
    await_copy(stage, f"{alias}.{name}", [300])
    here = stage.destination.bootstrap_servers
    for number in (137, 300, 20, 299):
        librdkafka_tools.commit(servers, group, name, {0: number + number // 10})

        def follows(number: int = number) -> bool:
            with librdkafka_tools.consumer(here, group) as remote:
                copy = TopicPartition(f"{alias}.{name}", 0)
                (committed,) = remote.committed([copy], timeout=120)
                # Behind the last record is the end of the map.
                expected = [*places(stage.destination, copy.topic), None][number]
                last = places(stage.destination, copy.topic)[-1]
                return bool(committed.offset == (last + 1 if expected is None else expected))

        until(follows, SECONDS, f"the group's offset on the destination at {number}")


def test_a_group_is_not_in_front_of_a_log_whose_copies_are_deleted(
    stage: Stage, topic: str
) -> None:
    """Goal: with `latest`, it skips nothing that is copied behind the flow's own marker."""
    servers, here = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, group = f"exact-{topic}", f"g-{topic}"
    remote = f"t.{name}"

    def is_committed(offset: int) -> None:
        until(
            lambda: librdkafka_tools.committed(here, group, remote),
            SECONDS,
            f"the group's offset {offset} on the destination",
            good=lambda found: found == {0: offset},
        )

    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20))
    await_copy(stage, remote, [20])
    librdkafka_tools.commit(servers, group, name, {0: 20})
    behind = places(stage.destination, remote)[-1] + 1
    is_committed(behind)
    with librdkafka_tools.consumer(here, group) as client:
        _, end = client.get_watermark_offsets(TopicPartition(remote, 0), timeout=120)
    assert end > behind, "a marker is behind the last copy"
    delete_before(here, [(remote, 0, end)])
    is_committed(end)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(5, text="later"))
    await_copy(stage, remote, [5])
    reader = Consumer({"bootstrap.servers": here, "group.id": group, "auto.offset.reset": "latest"})
    try:
        reader.subscribe([remote])
        found = [message.value() for message in reader.consume(5, timeout=SECONDS)]
    finally:
        reader.close()
    assert found == [b"later%d" % number for number in range(5)]


def test_clients_of_mirror_maker_read_checkpoints_and_heartbeats(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: Kafka's own RemoteClusterUtils find a group's offsets, exactly translated."""
    servers, name, group = stage.source.bootstrap_servers, f"copied-{topic}", f"g-{topic}"
    librdkafka_tools.make_topic(servers, name)
    write_transactions(servers, name, 100)
    librdkafka_tools.commit(servers, group, name, {0: 55 + 5})
    here = {"bootstrap.servers": stage.destination.bootstrap_servers}
    with mirror_maker_java(tmp_path) as java:
        utils, properties = java["RemoteClusterUtils"], java.properties(here)

        def translated() -> bool:
            offsets = utils.translateOffsets(properties, "a", group, java.seconds(120))
            partition = java.partition(f"a.{name}", 0)
            at = places(stage.destination, f"a.{name}")
            return bool(at[55:] and partition in offsets and offsets[partition].offset() == at[55])

        until(translated, SECONDS, "the checkpoint")
        until(
            lambda: utils.replicationHops(properties, "a") == 1, SECONDS, "the source's heartbeats"
        )
        until(
            lambda: {"heartbeats", "a.heartbeats"} <= set(utils.heartbeatTopics(properties)),
            SECONDS,
            "the topics of heartbeats",
        )
        assert "a.checkpoints.internal" in set(utils.checkpointTopics(properties))
    # Its own: from a to b, at b.
    found = asyncio.run(RemoteClusterUtils.translate_offsets(here, "a", group))
    place = places(stage.destination, f"a.{name}")[55]
    assert found[KafkaPartition(f"a.{name}", 0)].offset == place
    with librdkafka_tools.consumer(stage.destination.bootstrap_servers, f"h-{topic}") as reader:
        reader.assign([TopicPartition("heartbeats", 0, 0)])

        def own() -> bool:
            message = reader.poll(120)
            assert message is not None
            found = decode_heartbeat(message.key(), message.value())
            assert found is not None
            return (found.source_cluster_alias, found.target_cluster_alias) == ("a", "b")

        until(own, SECONDS, "the flow's own heartbeat")


def test_records_that_were_deleted_before_they_were_copied_are_reported(
    stage: Stage, topic: str
) -> None:
    """Goal: with `continue` the flow goes on behind them, and says how many are lost."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(100))
    await_copy(stage, f"a.{name}", [100])
    selection = ("--mirror", FLOW, "--topic", name)
    assert stage.mirrors("--pause", *selection).status == 0
    librdkafka_tools.await_state(stage, name, 0, "PAUSED")
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(60))
    delete_before(servers, [(name, 0, 130)])
    assert stage.mirrors("--resume", *selection).status == 0
    until(
        lambda: len(values(stage.destination, f"a.{name}")) == 100 + 30,
        SECONDS,
        "the records that are left",
    )

    def counted() -> bool:
        row = librdkafka_tools.described(stage, name)[0]
        lost = (row["source_losses"], row["source_lost_offsets"], row["source_last_loss"])
        expected = (1, 30, f"{name}-0, offsets [100, 130)")
        return bool(row["filled_offsets"]["log_start"] == 30 and lost == expected)

    until(counted, SECONDS, "the count of lost records")


def test_a_recreated_source_topic_is_copied_behind_the_former_one(
    stage: Stage, topic: str, metrics_address: str
) -> None:
    """Goal: nothing of the new one is left out; MirrorMaker 2 goes on at its old offset.

    It is counted, and the log has what may be lost of the former one.
    """

    def recreated() -> float | None:
        return scrape(metrics_address).value("twinlog_source_topics_recreated_total", mirror=FLOW)

    before = until(recreated, what="the metric", good=lambda found: found is not None) or 0
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(100, text="former"))
    await_copy(stage, f"a.{name}", [100])
    librdkafka_tools.delete_topic(servers, name)
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(150, text="later"))
    expected = [f"former{at}" for at in range(100)] + [f"later{at}" for at in range(150)]
    until(
        lambda: values(stage.destination, f"a.{name}") == expected, SECONDS, "both topics' records"
    )
    until(recreated, what="the count", good=lambda found: found != before)
    assert recreated() == before + 1
    said = f"{name} was deleted and recreated on the source: records of the former topic that were "
    log = stage.nodes["node"].log.read_text()
    assert f"{said}not copied are lost, if there were any ({name}-0: copied up to offset" in log


@pytest.mark.long
def test_a_topic_that_was_deleted_and_returns_later_counts_as_recreated(
    stage: Stage, topic: str, metrics_address: str
) -> None:
    """Goal: also if the flow has noticed the deletion before, which it reports.

    With `twinlog.data.loss=fail` the present topic is not copied as if nothing were lost.
    """

    def recreated() -> float:
        found = scrape(metrics_address).value("twinlog_source_topics_recreated_total", mirror=FLOW)
        return found or 0

    def log() -> str:
        return stage.nodes["node"].log.read_text()

    servers, names = stage.source.bootstrap_servers, [f"copied-{topic}", f"fails-{topic}"]
    fails = {**SETTINGS, "twinlog.data.loss": "fail", "topics": "fails-.*"}
    create(stage, "f", fails)
    for name, alias in zip(names, "af", strict=True):
        librdkafka_tools.make_topic(servers, name)
        librdkafka_tools.write(servers, name, librdkafka_tools.simple(30, text="former"))
        await_copy(stage, f"{alias}.{name}", [30])
    before = recreated()
    for name in names:
        librdkafka_tools.delete_topic(servers, name)
    for name in names:
        librdkafka_tools.await_state(stage, name, 0, "STOPPED")
        assert f"{name} was deleted on the source: records of the former topic that were" in log()
    for name in names:
        librdkafka_tools.make_topic(servers, name)
        librdkafka_tools.write(servers, name, librdkafka_tools.simple(20, text="later"))
    former, later = [f"former{at}" for at in range(30)], [f"later{at}" for at in range(20)]
    until(
        lambda: values(stage.destination, f"a.{names[0]}") == former + later, SECONDS, "both topics"
    )
    until(recreated, what="the count", good=lambda found: found == before + 1)
    why = f"{names[1]} is not copied: it was deleted and recreated on the source"
    until(lambda: why in log(), SECONDS, "why the other one is not copied")
    assert values(stage.destination, f"f.{names[1]}") == former
    there = ("--bootstrap-server", stage.destination.bootstrap_servers)
    asked = librdkafka_tools.twinlog("readiness", *there, "--mirror", "f-to-b", "--json")
    assert "not added: it was deleted and recreated on the source" in asked.output
    changed = {**fails, "twinlog.data.loss": "continue"}
    del changed["enabled"]
    done = librdkafka_tools.twinlog(
        *("flows", "create", *there),
        *("--source", "f", "--target", "b", "--source-bootstrap-server", servers, "--replace"),
        *(part for one in changed.items() for part in ("--config", "=".join(one))),
    )
    assert done.status == 0, done
    until(
        lambda: values(stage.destination, f"f.{names[1]}") == former + later, SECONDS, "it goes on"
    )


def test_a_recreated_topic_is_copied_whole_by_a_flow_that_began_at_the_end(
    stage: Stage, topic: str
) -> None:
    """Goal: `latest` is where a flow begins, not where it goes on after a loss."""
    servers, name = stage.source.bootstrap_servers, f"end-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20, text="before"))
    latest = {"consumer.auto.offset.reset": "latest", "topics": "end-.*"}
    create(stage, "d", {**SETTINGS, **latest})
    librdkafka_tools.await_state(stage, name, 0, "MIRRORING")
    librdkafka_tools.delete_topic(servers, name)
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(30, text="later"))
    expected = [f"later{at}" for at in range(30)]
    until(lambda: values(stage.destination, f"d.{name}") == expected, SECONDS, "the new topic")


def test_a_flow_that_was_deleted_goes_on_where_it_was(stage: Stage, topic: str) -> None:
    """Goal: neither --remove nor --delete forget what was copied: nothing is copied twice."""
    servers, name = stage.source.bootstrap_servers, f"other-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(50))
    settings = {**SETTINGS, "topics": "other-.*"}
    flow = create(stage, "c", settings)
    await_copy(stage, f"c.{name}", [50])
    removed = stage.mirrors("--remove", "--topic", ".*", "--mirror", flow, "--wait-seconds", "180")
    assert removed.status == 0, removed
    deleted = stage.mirrors("--delete", "--mirror", flow)
    assert deleted.status == 0, deleted
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10, text="later"))
    assert create(stage, "c", settings) == flow
    until(
        lambda: values(stage.destination, f"c.{name}")[50:51] == ["later0"],
        SECONDS,
        "the later records",
    )
    expected = [*(f"v{at}" for at in range(50)), *(f"later{at}" for at in range(10))]
    until(lambda: values(stage.destination, f"c.{name}") == expected, SECONDS, "each record once")
