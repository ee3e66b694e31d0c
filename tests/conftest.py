"""Real brokers for the tests, started when the first test asks for them.

One broker of either version is there for the rest of the run; of what needs more of them, the
tests of a file have their own, as an idle broker, too, takes some percent of a core. They are
shared, so a test takes topics (and groups, and transactional ids) of its own: `topic`,
`fresh_name`. A test that kills brokers takes `trio` only if it leaves it whole, else a cluster of
its own. Logs stay in pytest's temporary folder after the run; data does not.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from secured_clusters import PASSWORDS, Secured, secured_cluster

from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

# How long an example takes says how busy the machine is, and nothing of the code.
hypothesis.settings.register_profile(
    "twinlog",
    max_examples=int(os.environ.get("TWINLOG_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("twinlog")

OLD_VERSION = "3.9.1"
"""The oldest Kafka that every broker test has to pass on."""

_NEVER_KILLED = {"broker.session.timeout.ms": "60000"}
"""Of brokers that no test kills: a machine that stalls for seconds takes no leader away."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of scenario_files.py, of tests/chaos, and of test_unusual_sources.py."""
    parser.addoption(
        "--rewrite", action="store_true", help="write what the scenarios print into their files"
    )
    parser.addoption("--times", type=int, default=10, help="kills of each kind (chaos)")
    parser.addoption(
        "--gone-seconds", type=float, default=300.0, help="how long sources are gone (chaos)"
    )
    parser.addoption("--scenario-times", type=int, default=1, help="of each unusual source")
    parser.addoption("--scenario-seed", default="", help="what decides their sizes and rates")
    parser.addoption("--chaos-seed", default="", help="what decides the moments and the victims")


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a destination, one broker each."""

    source: LocalCluster
    destination: LocalCluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker of the version that twinlog is built for."""
    with _cluster(tmp_path_factory, "kafka", config=_NEVER_KILLED) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_391(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker of the oldest version."""
    with _cluster(
        tmp_path_factory, "kafka-391", version=OLD_VERSION, config=_NEVER_KILLED
    ) as cluster:
        yield cluster


@pytest.fixture(
    scope="session", params=["kafka", pytest.param("kafka_391", marks=pytest.mark.long)]
)
def any_kafka(request: pytest.FixtureRequest) -> LocalCluster:
    """One broker, of the newest and of the oldest version in turn."""
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, LocalCluster)
    return cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters to mirror between."""
    with (
        _cluster(tmp_path_factory, "source", config=_NEVER_KILLED) as source,
        _cluster(tmp_path_factory, "destination", config=_NEVER_KILLED) as destination,
    ):
        yield Pair(source, destination)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers: replicas, leaders that move."""
    with _cluster(tmp_path_factory, "trio", brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker, which is killed. A broker of 4.3.1 begins a leader epoch when it restarts."""
    with _cluster(tmp_path_factory, "fragile") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secured_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Secured]]:
    """A source and a destination that know who is who, and who may do what."""
    home = tmp_path_factory.mktemp("certificates")
    folders = [tmp_path_factory.mktemp(f"secured-{side}") for side in ("source", "destination")]
    with (
        secured_cluster(home, folders[0], PASSWORDS) as source,
        secured_cluster(home, folders[1], PASSWORDS) as destination,
    ):
        yield source, destination


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Give a maker of names that no other test has: `fresh_name("group")`."""

    def name(stem: str) -> str:
        test = request.node.name.split("[")[0].removeprefix("test_")[:80]
        return f"{test}.{stem}.{uuid.uuid4().hex[:8]}"

    return name


@pytest.fixture
def topic(fresh_name: Callable[[str], str]) -> str:
    """Give a topic name that no other test has; the test creates it."""
    return fresh_name("topic")


@contextmanager
def _cluster(
    factory: pytest.TempPathFactory,
    name: str,
    *,
    brokers: int = 1,
    version: str | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[LocalCluster]:
    directory = factory.mktemp(name)
    chosen: dict[str, Any] = {} if version is None else {"version": version}
    with LocalCluster.start(
        brokers, directory=directory, config=config, jvm_flags=SHORT_LIVED, **chosen
    ) as cluster:
        yield cluster
