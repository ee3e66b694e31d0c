"""What monitoring/ asks of Prometheus; that it is there to be asked: end_to_end/test_metrics.py."""

import json
import re
from pathlib import Path

import yaml

MONITORING = Path(__file__).parents[1] / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
SHOWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = yaml.safe_load((MONITORING / "prometheus-alerts.yml").read_text())
WATCHED = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
RANGE = re.compile(r"\[(.+?)\]")


def test_ranges_hold_scrapes_enough() -> None:
    """A rate needs two of them, and Prometheus' own interval is a minute."""
    ranges = {found for expr in SHOWN + WATCHED for found in RANGE.findall(expr)}
    assert ranges <= {"$__rate_interval", "5m", "10m"}
