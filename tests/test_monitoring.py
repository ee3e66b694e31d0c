"""What monitoring/ asks of Prometheus; that it is there to be asked: end_to_end/test_metrics.py."""

import json
import re

import yaml
from checkout import ROOT

MONITORING = ROOT / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
VARIABLES = {one["name"]: one["query"] for one in DASHBOARD["templating"]["list"]}
SHOWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = yaml.safe_load((MONITORING / "prometheus-alerts.yml").read_text())
WATCHED = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
RANGE = re.compile(r"\[(.+?)\]")
LABELS = re.compile(r"\b(?:by|on) \((.+?)\)")
METRIC = re.compile(r"\b(?:kafka_server|twinlog)_[a-z_]+(?:\{(.+?)\})?")


def test_rate_ranges_cover_several_scrapes() -> None:
    """A rate needs two of them, and Prometheus' own interval is a minute."""
    ranges = {found for expr in SHOWN + WATCHED for found in RANGE.findall(expr)}
    assert ranges <= {"$__rate_interval", "5m", "10m"}


def test_mirrors_of_different_destinations_are_separate() -> None:
    """They may have one name; a destination's nodes are a job."""
    grouped = [labels.split(", ") for expr in SHOWN + WATCHED for labels in LABELS.findall(expr)]
    assert grouped
    assert all("job" in labels for labels in grouped)


def test_the_dashboard_filters_by_the_selected_destinations() -> None:
    selectors = [found for expr in (*SHOWN, VARIABLES["mirror"]) for found in METRIC.findall(expr)]
    assert selectors
    assert all('job=~"$job"' in found for found in selectors)
