"""Where groups go on after their source has died, by `twinlog flows translate --group`.

The places are compared with the records themselves: a consumer of the target that begins there has
to read what the group has not read on the source.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import librdkafka_tools
import pytest
from confluent_kafka import Producer, TopicPartition
from remote_topics import records
from waiting import SECONDS, until

from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.local.commands import Done
from twinlog.local.stage import Stage
from twinlog.mirror.mm2_records import Checkpoint, encode

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

CHECKPOINTS = "a.checkpoints.internal"
SETTINGS = {
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "emit.heartbeats.enabled": "false",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
}
UNKNOWN = 3
"""Exit status of `translate` if an offset is unknown."""
TOPIC = "copied-orders"
COUNT = 300


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters, a flow `a->b`, and a node.

    The flow `c->b` has checkpoints switched off. `d->b` has those of MirrorMaker 2's defaults: the
    target, with its one broker, refuses their topic.
    """
    with Stage(tmp_path_factory.mktemp("groups-without-source")) as stage:
        stage.start_source()
        stage.start_destination()
        create(stage, "a", "copied-.*")
        create(stage, "c", "others-.*", **{"emit.checkpoints.enabled": "false"})
        create(stage, "d", "others-.*", **{"checkpoints.topic.replication.factor": "3"})
        stage.start_node()
        yield stage


def flows(stage: Stage, action: str, *arguments: str) -> Done:
    servers = stage.destination.bootstrap_servers
    return librdkafka_tools.twinlog("flows", action, "--bootstrap-server", servers, *arguments)


def create(stage: Stage, source: str, topics: str, **more: str) -> None:
    """Create a flow of the source under this alias."""
    file = stage.directory / "command.properties"
    file.write_text("mirror.topic.num.partitions=5\n")
    settings = {**SETTINGS, **more}
    created = flows(
        stage,
        "create",
        *("--command-config", str(file), "--source", source, "--target", "b"),
        *("--source-bootstrap-server", stage.source.bootstrap_servers, "--topics", topics),
        *(part for item in settings.items() for part in ("--config", "=".join(item))),
    )
    assert created.status == 0, created


def translated(stage: Stage, group: str, *flags: str) -> dict[str, Any]:
    """The result of the command for a group of a->b, which exists."""
    ran = flows(stage, "translate", "--flow", "a->b", "--group", group, "--json", *flags)
    assert ran.status in {0, UNKNOWN}, ran
    found: dict[str, Any] = json.loads(ran.output)
    assert found["all_known"] == (ran.status == 0)
    return found | {"errors": ran.errors}


def write_transactions(servers: str, numbers: range) -> None:
    """Write numbers, ten in a transaction; each third transaction is aborted, and repeated."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": TOPIC})
    producer.init_transactions(120)
    for first in numbers[::10]:
        for commit in ([False] if first % 30 == 0 else []) + [True]:
            producer.begin_transaction()
            for number in range(first, first + 10):
                producer.produce(TOPIC, str(number), partition=0)
            producer.flush(120)
            if commit:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)


def await_numbers(stage: Stage, count: int) -> None:
    until(
        lambda: [value for _, value in records(stage.destination, f"a.{TOPIC}")],
        SECONDS,
        f"{count} records",
        good=lambda values: values == list(map(str, range(count))),
    )


def read_by_group(servers: str, group: str, count: int) -> None:
    """Read and commit numbers on the source as a member of a group, which then leaves."""
    with librdkafka_tools.consumer(servers, group) as client:
        client.subscribe([TOPIC])
        for number in range(count):
            message = client.poll(120)
            assert message is not None
            assert message.error() is None
            assert message.value() == str(number).encode()
        client.commit(asynchronous=False)


def next_record(servers: str, partition: KafkaPartition, offset: int) -> str | None:
    """What a consumer of the target reads first from an offset on; None: it is at the end."""
    with librdkafka_tools.consumer(servers, "next-record") as client:
        at = TopicPartition(partition.topic, partition.partition, offset)
        if offset == client.get_watermark_offsets(at, timeout=120)[1]:
            return None
        client.assign([at])
        message = client.poll(120)
        assert message is not None
        value = message.value()
        assert value is not None
        return value.decode()


def write_checkpoint(stage: Stage, checkpoint: Checkpoint, *, removes: bool = False) -> None:
    """Write a checkpoint as another program may, or its tombstone."""
    producer = Producer({"bootstrap.servers": stage.destination.bootstrap_servers})
    key, value = encode(checkpoint)
    producer.produce(CHECKPOINTS, None if removes else value, key, partition=0)
    assert producer.flush(120) == 0


def kill_source(stage: Stage) -> None:
    for node in stage.source.living:
        stage.source.kill(node)


def test_groups_go_on_exactly_after_their_source_has_died(stage: Stage) -> None:
    """Goal: the next record of each group from the target alone; nothing where it is not proved."""
    here, there = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    librdkafka_tools.make_topic(here, TOPIC, 2)
    write_transactions(here, range(COUNT // 2))
    await_numbers(stage, COUNT // 2)
    # A fence between the target's records: it has other offsets than the source.
    assert flows(stage, "pause", "--flow", "a->b", "--topic", TOPIC).status == 0
    await_state(stage, "PAUSED")
    write_transactions(here, range(COUNT // 2, COUNT))
    assert flows(stage, "resume", "--flow", "a->b", "--topic", TOPIC).status == 0
    await_numbers(stage, COUNT)

    groups = {"begin": 0, "early": 37, "late": 237, "end": COUNT}
    source = records(stage.source, TOPIC)
    librdkafka_tools.commit(here, "begin", TOPIC, {0: 0})
    for group in ("early", "late", "end"):
        read_by_group(here, group, groups[group])
    librdkafka_tools.commit(here, "wrong", TOPIC, {0: source[5][0]})
    librdkafka_tools.commit(here, "removed", TOPIC, {0: source[5][0]})
    librdkafka_tools.commit(here, "console-consumer-7", TOPIC, {0: source[5][0]})
    expected: dict[str, int] = {}
    for group in (*groups, "wrong", "removed"):
        of_source = until(
            lambda group=group: translated(stage, group),
            SECONDS,
            f"the map of what {group} has read",
            good=lambda found: bool(found["all_known"]),
        )
        assert of_source["checkpoints"] is None
        (place,) = places(of_source)
        assert place is not None
        expected[group] = place
        by_checkpoint = until(
            lambda group=group: by_checkpoints(stage, group),
            SECONDS,
            f"the checkpoint of {group}",
        )
        assert places(by_checkpoint) == [expected[group]]
        assert by_checkpoint["errors"].startswith("these are the offsets of group")

    refused = "flow d-to-b: cannot write to d.checkpoints.internal: "
    until(lambda: refused in stage.nodes["node"].log.read_text(), SECONDS, refused)
    kill_source(stage)
    asked = flows(stage, "translate", "--flow", "a->b", "--group", "early")
    assert (asked.status, asked.output) == (1, "")
    assert asked.errors.startswith("Error: cluster source: ")
    assert "; if the source is dead, --from-checkpoints needs the target alone" in asked.errors
    for group, number in groups.items():
        found = translated(stage, group, "--from-checkpoints")
        assert found["all_known"] is True
        assert found["checkpoints"]["without_checkpoint"] == [{"topic": TOPIC, "partition": 1}]
        (one,) = found["offsets"]
        assert one["target"] == {
            "topic": f"a.{TOPIC}",
            "partition": 0,
            "offset": expected[group],
        }
        assert 0 <= one["checkpoint"]["age_ms"] < SECONDS * 1000
        remote = KafkaPartition(f"a.{TOPIC}", 0)
        read = next_record(there, remote, expected[group])
        assert read == (str(number) if number < COUNT else None), group

    for group in ("console-consumer-7", "nobody"):
        asked = flows(
            stage, *("translate", "--flow", "a->b", "--group", group), "--from-checkpoints"
        )
        assert asked.status == 1
        assert f"group {group} has no checkpoint in {CHECKPOINTS}" in asked.errors

    own = Checkpoint(
        group="wrong",
        partition=KafkaPartition(f"a.{TOPIC}", 0),
        upstream_offset=source[5][0],
        downstream_offset=expected["wrong"] + 20,
    )
    write_checkpoint(stage, own)
    found = translated(stage, "wrong", "--from-checkpoints")
    assert [one["answer"] for one in found["offsets"]] == ["UNPROVEN"]
    assert places(found) == [None]
    removed = Checkpoint(
        group="removed", partition=own.partition, upstream_offset=1, downstream_offset=1
    )
    write_checkpoint(stage, removed, removes=True)
    asked = flows(stage, "translate", "--flow", "a->b", "--group", "removed", "--from-checkpoints")
    assert asked.status == 1
    assert asked.errors.startswith(f"Error: group removed has no checkpoint in {CHECKPOINTS}; ")
    table = flows(stage, "translate", "--flow", "a->b", "--group", "early", "--from-checkpoints")
    header, row = (line.split() for line in table.output.splitlines())
    assert header[-2:] == ["CHECKPOINT-AGE", "ANSWER"]
    assert row[2:4] == [f"a.{TOPIC}-0", str(expected["early"])]

    none = flows(stage, "translate", "--flow", "d->b", "--group", "early", "--from-checkpoints")
    assert none.status == 1
    (line,) = none.errors.splitlines()
    assert "has no checkpoint in d.checkpoints.internal, which has none at all, or does" in line
    assert line.endswith("than checkpoints.topic.replication.factor (3)")
    without = flows(
        stage, *("translate", "--flow", "c->b", "--group", "early"), "--from-checkpoints"
    )
    assert without.status == 1
    (line,) = without.errors.splitlines()
    assert "and the flow writes none (emit.checkpoints.enabled=false)" in line

    # The topic's record is newer than the checkpoints, and the flow's is not.
    assert flows(stage, "pause", "--flow", "a->b", "--topic", TOPIC).status == 0
    assert places(translated(stage, "early", "--from-checkpoints")) == [expected["early"]]


def await_state(stage: Stage, wanted: str) -> None:
    def state() -> Sequence[str]:
        described = flows(stage, "describe", "--flow", "a->b", "--json")
        assert described.status == 0, described
        (flow,) = json.loads(described.output)
        return [row["state"] for row in flow["partitions"] if row["topic"] == TOPIC]

    until(state, SECONDS, wanted, good=lambda states: set(states) == {wanted})


def by_checkpoints(stage: Stage, group: str) -> dict[str, Any] | None:
    """The result of the command for a group, once it has a checkpoint."""
    ran = flows(
        stage, *("translate", "--flow", "a->b", "--group", group), "--from-checkpoints", "--json"
    )
    if ran.status == 1:
        assert f"group {group} has no checkpoint in {CHECKPOINTS}" in ran.errors, ran
        return None
    found: dict[str, Any] = json.loads(ran.output)
    return found | {"errors": ran.errors} if found["all_known"] else None


def places(found: dict[str, Any]) -> list[int | None]:
    return [one["target"]["offset"] for one in found["offsets"]]
