"""`verify`, `readiness`, `switchover`, throttle and metrics of a flow, as a user has them."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import librdkafka_tools
import pytest
from remote_topics import counts
from scraped import Scraped, await_ready, scrape
from throttled_rates import measured
from waiting import SECONDS, until

from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.local.stage import Stage
from twinlog.operations.readiness.reasons import Reason

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FLOW = "a-to-b"
SETTINGS = {
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "heartbeats.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
}
MANAGER = "kafka_server_mirror_mirrorfetchermanager_"
METADATA = "kafka_server_mirror_mirrormetadatamanager_"
RATE = 200_000
VALUE = 10_000
RECORDS = 2400
"""They take two minutes: there is time for several measurements."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Stage]:
    """Start two clusters, a flow `a->b` that was created by command, and a node."""
    with Stage(tmp_path_factory.mktemp("flow-operations")) as stage:
        stage.start_source()
        stage.start_destination()
        file = stage.directory / "command.properties"
        file.write_text("mirror.topic.num.partitions=5\n")
        settings = [part for item in SETTINGS.items() for part in ("--config", "=".join(item))]
        created = command(
            stage,
            *("flows", "create"),
            *("--command-config", str(file), "--source", "a", "--target", "b"),
            *("--source-bootstrap-server", stage.source.bootstrap_servers),
            *("--topics", "copied-.*", *settings),
        )
        assert created.status == 0, created
        stage.start_node("node", "--metrics-address", metrics_address)
        await_ready(metrics_address)
        yield stage


def command(stage: Stage, *arguments: str) -> Done:
    """Run `twinlog` on the target."""
    split = 2 if arguments[0] == "flows" else 1
    servers = ("--bootstrap-server", stage.destination.bootstrap_servers)
    return librdkafka_tools.twinlog(*arguments[:split], *servers, *arguments[split:])


def readiness(stage: Stage, topic: str) -> dict[str, Any]:
    """Return the readiness of a topic of the flow, with the exit status and the reasons."""
    done = command(stage, "readiness", "--mirror", "a->b", "--topic", topic, "--json")
    assert done.status in {0, 3, 4}, done
    report: dict[str, Any] = json.loads(done.output)
    (row,) = report["topics"]
    reasons = [finding["reason"] for finding in (*report["findings"], *row["findings"])]
    return {**report, "status": done.status, "reasons": reasons, "row": row}


def alter(stage: Stage, *lines: str) -> None:
    file = stage.directory / "altered.properties"
    file.write_text("\n".join(lines) + "\n")
    done = stage.mirrors("--alter", "--mirror", "a->b", "--mirror-config", str(file))
    assert done.status == 0, done


@pytest.fixture
def copied(stage: Stage, topic: str) -> str:
    """Copy 50 records of a topic."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(50))
    until(
        lambda: counts(stage.destination, f"a.{name}", 1), SECONDS, "50", good=lambda n: n == [50]
    )
    return name


def await_map(stage: Stage, topic: str) -> None:
    """Wait until the map has all records: it is stored a moment after they are copied."""
    place = ("--topic", topic, "--partition", "0", "--offset", "49")
    until(
        lambda: command(stage, "flows", "translate", "--flow", FLOW, *place).status == 0,
        SECONDS,
        "the map of all records",
    )


def test_verify_proves_a_flow_and_finds_a_foreign_record(stage: Stage, copied: str) -> None:
    """Goal: the command with Spark; its statuses, its text, and its JSON form."""
    await_map(stage, copied)
    selection = ("verify", "--mirror", "a->b", "--topic", copied, "--master", "local[1]")
    same = command(stage, *selection)
    assert same.status == 0, same
    lines = same.output.splitlines()
    assert lines[0].startswith(f"{copied}-0: 50 offsets = 50 compared")
    shown = re.search(rf"; a\.{re.escape(copied)}-0: (\d+) offsets = 50 compared", lines[0])
    assert shown is not None, lines[0]
    end = int(shown[1])  # a partition that was located again has a fence
    assert lines[0].endswith("recorded map: 50 records agree, 0 differ, 0 not seen")
    assert lines[-1].endswith("the same")
    librdkafka_tools.write(
        stage.destination.bootstrap_servers, f"a.{copied}", [(0, None, "foreign", None)]
    )
    differs = command(stage, *selection, "--json")
    assert differs.status == 1, differs
    found = json.loads(differs.output)
    assert [(one["topic"], one["start"], one["end"]) for one in found["differences"]] == [
        (f"a.{copied}", end, end + 1)
    ]
    (log,) = found["logs"]
    remote = log["remote"]
    assert (log["topic"], log["compared"], log["differs"]) == (copied, 50, 0)
    assert (remote["flow"], remote["topic"], remote["differs"]) == (FLOW, f"a.{copied}", 1)
    assert remote["recorded_map"] == {"agrees": 50, "differs": 0, "not_seen": 0}


def test_readiness_of_a_flow(stage: Stage, copied: str, topic: str) -> None:
    """Goal: ready with its groups' checkpoints; then a group that has moved, and a lag."""
    servers, group = stage.source.bootstrap_servers, f"g-{topic}"
    librdkafka_tools.commit(servers, group, copied, {0: 20})

    def ready() -> dict[str, Any] | None:
        report = readiness(stage, copied)
        return report if report["status"] == 0 else None

    report = until(ready, SECONDS, "a flow that is ready")
    assert report["flow"]["heartbeat_age_ms"] < 10_000
    assert report["flow"]["checkpoint_age_ms"] is not None
    (facts,) = [facts for facts in report["row"]["groups"] if facts["group"] == group]
    assert (facts["due"], facts["behind"], facts["ahead"]) == (0, 0, 0)
    assert (report["lag"], report["lag_is_all"]) == (0, True)
    text = until(
        lambda: command(stage, "readiness", "--mirror", FLOW, "--topic", copied),
        SECONDS,
        "a flow that is ready",
        good=lambda done: done.status == 0,
    )
    sentence = text.output.splitlines()[-1]
    assert sentence.startswith(
        f"Flow {FLOW}: consumers can go on at the target: nothing would be lost"
    )
    assert "last heartbeat" in sentence

    paused = command(stage, "flows", "pause", "--flow", FLOW, "--topic", copied)
    assert paused.status == 0, paused

    def at_rest() -> bool:
        return "PAUSED" in readiness(stage, copied)["reasons"]

    until(at_rest, SECONDS, "PAUSED")
    librdkafka_tools.write(servers, copied, librdkafka_tools.simple(7))
    librdkafka_tools.commit(servers, group, copied, {0: 55})
    report = until(
        lambda: readiness(stage, copied),
        SECONDS,
        "a lag, and a group in front",
        good=lambda one: one["lag"] == 7 and {"PAUSED", "LAG", "GROUP_AHEAD"} <= {*one["reasons"]},
    )
    assert report["status"] == 3
    (facts,) = [facts for facts in report["row"]["groups"] if facts["group"] == group]
    assert facts["ahead"] == 5
    resumed = command(stage, "flows", "resume", "--flow", FLOW, "--topic", copied)
    assert resumed.status == 0, resumed
    until(ready, SECONDS, "a flow that is ready again")


def test_a_flow_is_not_switched_over(stage: Stage, copied: str) -> None:
    """Goal: one line that says what to do; nothing is changed."""
    done = command(stage, "switchover", "--mirror", "a->b", "--topic", copied)
    assert done.status == 1, done
    text = done.output + done.errors
    assert f"{FLOW} is a flow, and a flow is not switched over" in text
    assert "twinlog flows translate" in text
    assert "Traceback" not in text
    assert counts(stage.destination, f"a.{copied}", 1) == [50]


def test_metrics_have_flows_under_the_names_of_the_source(
    metrics_address: str, copied: str
) -> None:
    """Goal: the labels of a mirror: the flow's name, and the source's topic and partition."""
    labels = {"mirror": FLOW, "topic": copied, "partition": "0"}

    def caught_up() -> Scraped | None:
        found = scrape(metrics_address)
        age = found.value("twinlog_partition_lag_seconds", **labels)
        ends = [
            found.value(f"twinlog_partition_{side}_offset", **labels)
            for side in ("source", "destination")
        ]
        mirroring = found.value(f"{METADATA}mirroringpartitionstate", mirror=FLOW) or 0
        whole = age == 0 and all((end or 0) >= 50 for end in ends)
        return found if whole and mirroring >= 1 else None

    found = until(caught_up, SECONDS, "no lag")
    assert found.value("kafka_server_fetcherlagmetrics_consumerlag", **labels) == 0
    assert found.value("twinlog_partition_source_offset", **labels) == 50
    assert found.value(f"{MANAGER}maxlag", mirror=FLOW) is not None
    assert found.value(f"{MANAGER}failedpartitionscount", mirror=FLOW) == 0
    names = {one["topic"] for one in found.labels("twinlog_partition_source_offset")}
    assert f"a.{copied}" not in names
    fetched = found.labels("kafka_server_fetcherstats_bytes_total")
    assert FLOW in {one["mirror"] for one in fetched}
    assert all(one["lane"].startswith("node-") for one in fetched)
    errors = found.value(f"{METADATA}consumergroupoffsetsyncerror_total", mirror=FLOW)
    assert errors is not None


@pytest.mark.long
def test_a_flow_keeps_to_its_throttle(stage: Stage, metrics_address: str, topic: str) -> None:
    """Goal: the setting of exact mirrors: within a tenth over 20 s, and its metrics."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    alter(
        stage,
        f"mirror.replication.throttled.rate={RATE}",
        f"mirror.replication.throttled.replicas={name}:*",
    )
    try:
        librdkafka_tools.make_topic(servers, name, 1)
        values = [(0, None, os.urandom(VALUE), None) for _ in range(RECORDS)]
        librdkafka_tools.write(servers, name, values, batch_size=20_000, linger_ms=50)

        def copied() -> int:
            done = command(stage, "flows", "describe", "--flow", FLOW, "--json")
            assert done.status == 0, done
            (flow,) = json.loads(done.output)
            rows = [row for row in flow["partitions"] if row["topic"] == name]
            return int(rows[0]["destination_offset"]) if rows else -1

        until(lambda: copied() > 0, SECONDS, "the first records")
        view = ConsumerView(stage.destination.bootstrap_servers)
        place = (f"a.{name}", 0)
        found = measured(
            lambda: view.ends([place])[place] * VALUE, RATE, 0.15, lambda: scrape(metrics_address)
        )
        assert found.value("twinlog_throttled_rate_limit", mirror=FLOW) == RATE
        by_lane = found.labels("kafka_server_mirrorreplication_byterate")
        assert {one["mirror"] for one in by_lane} == {FLOW}
        rates = [found.value("kafka_server_mirrorreplication_byterate", **one) for one in by_lane]
        assert 0.8 * RATE < sum(one or 0 for one in rates) < 1.2 * RATE
    finally:
        alter(stage, f"mirror.replication.throttled.rate={(1 << 63) - 1}")
    until(copied, SECONDS, "all records", good=lambda end: end >= RECORDS)


@pytest.mark.long
def test_a_flow_without_a_node_is_not_ready(
    stage: Stage, metrics_address: str, copied: str
) -> None:
    """Goal: no node, and old heartbeats; what is copied is still known, as it is recorded."""
    await_map(stage, copied)
    node = stage.nodes["node"]
    node.signal(15)
    node.end()
    try:

        def reported() -> dict[str, Any] | None:
            report = readiness(stage, copied)
            wanted = {Reason.NO_NODE.name, Reason.HEARTBEAT.name, Reason.NOT_MIRRORING.name}
            return report if wanted <= set(report["reasons"]) and report["lag"] == 0 else None

        report = until(reported, SECONDS, "no node and old heartbeats")
        assert report["status"] == 4
        assert report["flow"]["heartbeat_age_ms"] > 10_000
    finally:
        stage.start_node("node", "--metrics-address", metrics_address)
        await_ready(metrics_address)
