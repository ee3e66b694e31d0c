"""A node's HTTP answers: metrics with their values, health with its reasons, and monitoring/."""

import json
import re
import time
from typing import Any

import librdkafka_tools
import pytest
import yaml
from checkout import ROOT
from confluent_kafka import Producer
from scraped import Scraped, get, scrape
from waiting import until

from twinlog.local.stage import Stage
from twinlog.mirror.states import State
from twinlog.sync.registry import METRICS

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MANAGER = "kafka_server_mirror_mirrorfetchermanager_"
METADATA = "kafka_server_mirror_mirrormetadatamanager_"
NAME = re.compile(r"\b(?:kafka_server|twinlog)_[a-z_]+")


@pytest.fixture
def mirrored(world: Stage, metrics_address: str, topic: str) -> str:
    """Mirror a topic of one partition with 100 records, until the node's metrics show it."""
    servers = world.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(100))
    world.add(topic, "everything")

    def told() -> bool:
        labels = {"mirror": "everything", "topic": topic, "partition": "0"}
        found = scrape(metrics_address)
        return found.value("twinlog_partition_destination_offset", **labels) == 100

    until(told, what="the mirrored offset among the metrics")
    return topic


def test_exported_metrics_agree_with_other_sources(
    world: Stage, metrics_address: str, mirrored: str
) -> None:
    """KIP-1279's metrics, with values confirmed by other sources."""
    mirror = {"mirror": "everything"}
    labels = {**mirror, "topic": mirrored, "partition": "0"}

    def caught_up() -> Scraped | None:
        found = scrape(metrics_address)
        lag = found.value("twinlog_partition_lag_seconds", **labels)
        return found if (lag, found.value(MANAGER + "maxlag", **mirror)) == (0, 0) else None

    samples = until(caught_up, what="no lag")
    assert samples.value("kafka_server_fetcherlagmetrics_consumerlag", **labels) == 0
    assert samples.value("twinlog_partition_source_offset", **labels) == 100
    assert samples.value(MANAGER + "deadthreadcount") == 0
    lanes = samples.value("twinlog_lanes")
    assert lanes

    def states() -> dict[State, float | None]:
        found = scrape(metrics_address)
        names = {state: f"{METADATA}{state.name.lower()}partitionstate" for state in State}
        return {state: found.value(name, **mirror) for state, name in names.items()}

    def described() -> dict[State, int]:
        rows = [row["state"] for row in librdkafka_tools.all_described(world)]
        return {state: rows.count(state.name) for state in State}

    until(lambda: (states(), described()), good=lambda found: found[0] == found[1], what="states")
    failed = scrape(metrics_address).value(MANAGER + "failedpartitionscount", **mirror)
    assert failed == described()[State.FAILED]
    assert len(METRICS) >= 4
    for metric in METRICS:
        assert samples.value(f"{METADATA}{metric.lower()}_total", **mirror) is not None
    by_fetcher = samples.labels("kafka_server_fetcherstats_bytes_total")
    assert by_fetcher
    for one in by_fetcher:
        assert one["mirror"] == "everything"
        assert one["lane"].startswith("node-")
        assert (samples.value("kafka_server_fetcherstats_requests_total", **one) or 0) > 0
    slowest = until(lambda: scrape(metrics_address).value(MANAGER + "minfetchrate", **mirror))
    assert slowest is not None
    assert slowest > 0


@pytest.mark.long
def test_filled_markers_and_their_wait_are_counted(
    world: Stage, metrics_address: str, mirrored: str
) -> None:
    """A transaction's marker is a filled offset, and the time that it takes is counted."""
    servers = world.source.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": mirrored})
    producer.init_transactions()
    began = time.monotonic()
    for _ in range(20):
        producer.begin_transaction()
        producer.produce(mirrored, b"value", partition=0)
        producer.commit_transaction()
    labels = {"mirror": "everything", "topic": mirrored, "partition": "0"}

    def counted() -> Scraped | None:
        found = scrape(metrics_address)
        markers = found.value("twinlog_filled_offsets_total", reason="marker", **labels)
        return found if markers == 20 else None

    samples = until(counted, what="20 markers")
    waited = samples.value("twinlog_partition_marker_wait_seconds_total", **labels)
    assert waited is not None
    assert 0 < waited < time.monotonic() - began


@pytest.mark.usefixtures("mirrored")
def test_health_endpoints_report_the_state_of_the_node(metrics_address: str) -> None:
    """The node is ready and alive; FAILED partitions are counted, and do not change that."""

    def ready() -> dict[str, Any] | None:
        status, text = get(metrics_address, "/health/ready")
        told = json.loads(text)
        return told if status == 200 and told["partitions"].get("MIRRORING") else None

    told = until(ready, what="a node that is ready, and mirrors")
    assert (told["status"], told["reasons"]) == ("healthy", [])
    assert told["lanes"]["started"] == told["lanes"]["alive"] > 0
    assert told["partitions"]["MIRRORING"] > 0
    assert get(metrics_address, "/health")[0] == 200
    assert get(metrics_address, "/health/live")[0] == 200
    status, text = get(metrics_address, "/elsewhere")
    assert (status, text) == (404, "available: /metrics /health /health/ready /health/live\n")


@pytest.mark.usefixtures("mirrored")
def test_dashboard_alerts_and_page_name_exactly_the_exported_metrics(metrics_address: str) -> None:
    """Every metric of monitoring/ and docs/metrics.md is exported, and vice versa."""
    exported = until(lambda: scrape(metrics_address).names, 60)
    dashboard = json.loads((ROOT / "monitoring" / "grafana-dashboard.json").read_text())
    asked = [one["query"] for one in dashboard["templating"]["list"]]
    asked += [one["expr"] for panel in dashboard["panels"] for one in panel.get("targets", [])]
    shown = {name for text in asked for name in NAME.findall(text)}
    rules = yaml.safe_load((ROOT / "monitoring" / "prometheus-alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    watched = {name for rule in alerts for name in NAME.findall(rule["expr"])}
    assert shown
    assert watched
    assert shown | watched <= exported
    for rule in alerts:
        assert {"alert", "expr", "for", "labels", "annotations"} <= rule.keys()
        assert {"summary", "description"} <= rule["annotations"].keys()
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert exported == set(NAME.findall(page))
