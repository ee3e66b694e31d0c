"""A node's HTTP port, as Prometheus and probes see it."""

import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from waiting import until

SECONDS = 60.0
START_SECONDS = 300.0


class Scraped(NamedTuple):
    """All samples of a scrape by name and labels, and all metric names, with or without samples."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]
    names: set[str]

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.samples if found == name]


def get(address: str, path: str) -> tuple[int, str]:
    """Return status and body of a GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def await_ready(address: str) -> None:
    """Wait until a started node has all its lanes."""

    def ready() -> bool:
        try:
            return get(address, "/health/ready")[0] == 200
        except OSError:
            return False

    until(ready, START_SECONDS, f"a node that is ready at {address}")


def scrape(address: str) -> Scraped:
    """Scrape `/metrics`."""
    status, text = get(address, "/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    return Scraped(
        {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples},
        {family.name + ("_total" if family.type == "counter" else "") for family in families},
    )
