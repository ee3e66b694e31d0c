"""Two clusters, a mirror between them, and a running node, shared by the tests of a file.

Each test adds its own topics. A test that stops a node, kills a broker or the like has its own
stage (test_kills.py, test_takeover.py).
"""

from collections.abc import Generator, Iterator

import pytest
from scraped import await_ready

from twinlog.local.ports import PortClaim
from twinlog.local.stage import Stage

MIRROR = "everything"
REFRESH = "mirror.metadata.refresh.interval.ms=1000"
LOG_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of each node's log to the report of a failed test: its folder may be gone."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("world")
    if report.failed and isinstance(stage, Stage):
        for name, node in stage.nodes.items():
            lines = node.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((f"log of {name}", "\n".join(lines)))
    return report


@pytest.fixture(scope="module")
def metrics_address() -> Iterator[str]:
    """Return the address where the world's node serves its metrics."""
    ports = PortClaim.fresh(1)
    yield f"127.0.0.1:{ports.ports[0]}"
    ports.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Stage]:
    """Start a source, a destination, a mirror without topics, and a node."""
    with Stage(tmp_path_factory.mktemp("world")) as stage:
        stage.start_source()
        stage.start_destination()
        stage.create_mirror(MIRROR, [REFRESH])
        stage.start_node("node", "--metrics-address", metrics_address, "--log-format", "json")
        await_ready(metrics_address)
        yield stage
