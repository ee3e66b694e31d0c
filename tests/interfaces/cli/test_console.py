"""`twinlog console`: the lines of Kafka's formatters, and what cannot be decoded."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from clients import client, make_topic, put
from mm2_samples import SAMPLES
from waiting import until

from twinlog.interfaces.cli.main import main
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.mm2_records import Checkpoint, Heartbeat, Mm2Record, OffsetSync, encode
from twinlog.store.topic_writer import Entry

KAFKAS = "org.apache.kafka.connect.mirror.formatters."
BASIC = ("console", "--bootstrap-server", "h:1", "--topic", "t")


def console(cluster: LocalCluster, topic: str, formatter: str, *more: str) -> Result:
    arguments = ["console", "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    return CliRunner().invoke(main, [*arguments, "--formatter", formatter, *more])


def write(cluster: LocalCluster, topic: str, *pairs: tuple[bytes, bytes | None]) -> None:
    """Create a topic of MirrorMaker 2 with these records."""

    async def run() -> None:
        async with client(cluster) as kafka:
            await make_topic(kafka, topic, configs={"cleanup.policy": "compact"})
            if pairs:
                await put(kafka, [Entry(topic, 0, *pair) for pair in pairs])

    asyncio.run(run())


@pytest.mark.parametrize("name", ["NoOpFormatter", "kafka.CheckpointFormatter", "checkpoint"])
def test_an_unknown_formatter_is_refused(name: str) -> None:
    done = CliRunner().invoke(main, [*BASIC, "--formatter", name])
    assert done.exit_code == 2
    expected = "expected one of CheckpointFormatter, HeartbeatFormatter, OffsetSyncFormatter"
    assert f"'{name}': {expected}" in done.stderr


@pytest.mark.parametrize("name", ["CheckpointMessageFormatter", f"{KAFKAS}HeartbeatFormatter"])
def test_names_of_kip_382_are_accepted(name: str) -> None:
    done = CliRunner().invoke(main, [*BASIC, "--formatter", name, "--max-messages", "0"])
    assert "Invalid value for '--max-messages'" in done.stderr


REQUIRED = "The partition is required when offset is specified."
TOGETHER = "Options from-beginning and offset cannot be specified together."
INCORRECT = (
    "The provided offset value '{}' is incorrect. Valid values are 'earliest', 'latest', or a "
    "non-negative long."
)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--offset", "1"), REQUIRED),
        (("--offset", "latest", "--from-beginning"), REQUIRED),
        (("--partition", "0", "--offset", "1", "--from-beginning"), TOGETHER),
        (("--partition", "0", "--offset", "-1"), INCORRECT.format("-1")),
        (("--partition", "0", "--offset", "last"), INCORRECT.format("last")),
        (("--partition", "0", "--offset", str(1 << 63)), INCORRECT.format(1 << 63)),
        (("--partition", "0", "--offset", "9" * 5000), INCORRECT.format("9" * 5000)),
        (("--partition", "-1"), "-1 is not in the range"),
    ],
)
def test_errors_of_partition_and_offset_are_kafkas(words: tuple[str, ...], error: str) -> None:
    done = CliRunner().invoke(main, [*BASIC, "--formatter", "HeartbeatFormatter", *words])
    assert done.exit_code == 2
    assert error in " ".join(done.stderr.split())


@pytest.mark.broker
@pytest.mark.parametrize("kind", [Heartbeat, Checkpoint, OffsetSync])
def test_lines_are_those_of_kafkas_formatters(
    any_kafka: LocalCluster, topic: str, kind: type[Mm2Record]
) -> None:
    """Goal: the lines that test_mirror_maker_java.py takes from Kafka's classes."""
    samples = [sample for sample in SAMPLES if isinstance(sample.record, kind)]
    write(any_kafka, topic, *(encode(sample.record) for sample in samples))
    for formatter in (f"{kind.__name__}Formatter", f"{KAFKAS}{kind.__name__}Formatter"):
        done = console(any_kafka, topic, formatter, "--from-beginning", "--timeout-ms", "300")
        assert done.stdout.splitlines() == [sample.text for sample in samples]
        assert done.stderr == f"Processed a total of {len(samples)} messages\n"
        assert done.exit_code == 0


@pytest.mark.broker
def test_json_has_each_field(kafka: LocalCluster, fresh_name: Callable[[str], str]) -> None:
    expected = {
        "HeartbeatFormatter": (
            {"source_cluster_alias": "us-west", "target_cluster_alias": "us-east"},
            {"timestamp": 1700000000000},
        ),
        "CheckpointFormatter": (
            {"group": "billing", "topic": "us-west.orders", "partition": 3},
            {
                "upstream_offset": 1234567890123,
                "downstream_offset": 1234567890000,
                "metadata": "méta",
            },
        ),
        "OffsetSyncFormatter": (
            {"topic": "orders", "partition": 3},
            {"upstream_offset": 100, "downstream_offset": 7},
        ),
    }
    for sample in (SAMPLES[0], SAMPLES[1], SAMPLES[3]):
        formatter = f"{type(sample.record).__name__}Formatter"
        topic = fresh_name(formatter)
        key, value = encode(sample.record)
        write(kafka, topic, (key, value), (key, None), (key, b""))
        more = ("--from-beginning", "--timeout-ms", "300", "--json")
        done = console(kafka, topic, formatter, *more)
        first, tombstone, damaged = map(json.loads, done.stdout.splitlines())
        fields, content = expected[formatter]
        assert first.pop("timestamp") > 1700000000000
        assert first == {"partition": 0, "offset": 0, "key": fields, "value": content}
        assert (tombstone["offset"], tombstone["key"], tombstone["value"]) == (1, fields, None)
        assert damaged["offset"] == 2
        assert damaged.keys() == {"partition", "offset", "timestamp", "error"}
        assert done.exit_code == 1
        assert "Error: 1 of them could not be decoded" in done.stderr


@pytest.mark.broker
def test_records_that_are_no_checkpoints_are_named(kafka: LocalCluster, topic: str) -> None:
    """Goal: the rest is printed; control characters of foreign text are escaped."""
    record = Checkpoint(
        group="g\x1b[2J",
        partition=TopicPartition("t", 0),
        upstream_offset=1,
        downstream_offset=2,
    )
    key, value = encode(record)
    write(kafka, topic, (b"?", b"?"), (key, None), (key, value))
    done = console(kafka, topic, "CheckpointFormatter", "--from-beginning", "--timeout-ms", "300")
    damaged, tombstone, line = done.stdout.splitlines()
    assert damaged.startswith(
        "Undecodable{partition=0, offset=0}: the key of a checkpoint is trunc"
    )
    group = r"consumerGroupId=g\x1b[2J, topicPartition=t-0"
    assert tombstone == f"Checkpoint{{{group}}} (tombstone)"
    assert line == f"Checkpoint{{{group}, upstreamOffset=1, downstreamOffset=2, metadata=}}"
    assert done.exit_code == 1


@pytest.mark.broker
def test_it_begins_at_the_end_and_stops_where_it_is_told(kafka: LocalCluster, topic: str) -> None:
    records = [
        OffsetSync(partition=TopicPartition("t", 0), upstream_offset=at, downstream_offset=at)
        for at in range(5)
    ]
    write(kafka, topic, *map(encode, records))
    done = console(kafka, topic, "OffsetSyncFormatter", "--timeout-ms", "100")
    assert (done.stdout, done.exit_code) == ("", 0)
    more = ("--from-beginning", "--max-messages", "3")
    done = console(kafka, topic, "OffsetSyncFormatter", *more)
    assert done.stdout.splitlines() == [str(record) for record in records[:3]]
    assert done.stderr == "Processed a total of 3 messages\n"


def sync(partition: int, at: int) -> OffsetSync:
    """A record that tells where it is."""
    return OffsetSync(
        partition=TopicPartition("t", partition), upstream_offset=at, downstream_offset=at
    )


@pytest.mark.broker
def test_one_partition_from_an_offset_on(any_kafka: LocalCluster, topic: str) -> None:
    """Goal: what kafka-console-consumer prints, also from within a batch.

    An offset that the log does not have is replaced by the end, and a warning names it.
    """
    entries = [
        Entry(topic, partition, *encode(sync(partition, at)))
        for partition in range(3)
        for at in range(5)
    ]

    async def fill() -> None:
        async with client(any_kafka) as kafka:
            await make_topic(kafka, topic, 3)
            await put(kafka, entries)  # one batch for each partition

    async def trim() -> None:
        async with client(any_kafka) as kafka:
            done = await delete_records(kafka, {TopicPartition(topic, 1): Offset(2)})
            assert list(done.values()) == [2]

    def shown(*more: str) -> tuple[list[str], str]:
        words = (*more, "--timeout-ms", "300")
        done = console(any_kafka, topic, "OffsetSyncFormatter", "--partition", "1", *words)
        assert done.exit_code == 0, done.stderr
        *warnings, _ = done.stderr.splitlines()
        return done.stdout.splitlines(), " ".join(warnings)

    asyncio.run(fill())
    lines = [str(sync(1, at)) for at in range(5)]
    assert shown("--offset", "2") == (lines[2:], "")
    assert shown("--offset", "Earliest") == shown("--from-beginning") == (lines, "")
    assert shown() == shown("--offset", "latest") == shown("--offset", "5") == ([], "")
    text = f"Warning: {topic}: partition 1 has no offset {{}}: expected {{}} to 5; beginning at its"
    assert shown("--offset", "6") == ([], f"{text.format(6, 0)} end, 5")
    asyncio.run(trim())
    assert shown("--offset", "1") == ([], f"{text.format(1, 2)} end, 5")
    assert shown("--offset", "2") == shown("--offset", "earliest") == (lines[2:], "")


@pytest.mark.broker
def test_a_missing_partition_is_an_error(kafka: LocalCluster, topic: str, tmp_path: Path) -> None:
    """Goal: not an empty output; Kafka's tool waits for the partition without end."""
    write(kafka, topic)
    hasty = tmp_path / "client.properties"
    hasty.write_text("default.api.timeout.ms=2000\n")
    more = ("--partition", "1", "--timeout-ms", "100", "--command-config", str(hasty))

    def refused() -> str:
        done = console(kafka, topic, "HeartbeatFormatter", *more)
        assert done.exit_code == 1
        return done.stderr

    text = "the partition is not in the metadata: the topic has 1 partitions"
    until(refused, what="an answer within 2 s", good=lambda errors: text in errors)


@pytest.mark.broker
def test_a_missing_topic_is_an_error(kafka: LocalCluster, topic: str) -> None:
    """Goal: not an empty output."""
    done = console(kafka, topic, "HeartbeatFormatter", "--timeout-ms", "100")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {topic}: the topic does not exist; check the name")


@pytest.mark.broker
def test_ctrl_c_ends_it_and_a_closed_pipe_too(kafka: LocalCluster, topic: str) -> None:
    """Goal: neither is an error with a traceback or a message."""
    write(kafka, topic, *(encode(sample.record) for sample in SAMPLES[:1]))
    # Tests that run in the background may ignore the signal, and a process inherits that.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from twinlog.interfaces.cli.start import twinlog; twinlog()"
    )
    command = [sys.executable, "-c", start, "console", "--topic", topic, "--from-beginning"]
    command += ["--bootstrap-server", kafka.bootstrap_servers, "--formatter", "HeartbeatFormatter"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SAMPLES[0].text}\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (130, "Processed a total of 1 messages\n")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
