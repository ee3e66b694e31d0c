"""Two clusters with a mirror between them, and a node that runs: shared by the tests of a file.

Each test adds topics of its own. What stops a node, kills a broker or the like has a stage of its
own (test_kills.py, test_takeover.py).
"""

from collections.abc import Iterator

import pytest
from scraped import await_ready

from twinlog.local.ports import PortClaim
from twinlog.local.stage import Stage

MIRROR = "everything"
REFRESH = "mirror.metadata.refresh.interval.ms=1000"


@pytest.fixture(scope="module")
def metrics_address() -> Iterator[str]:
    """Where the world's node serves its metrics."""
    ports = PortClaim.fresh(1)
    yield f"127.0.0.1:{ports.ports[0]}"
    ports.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Stage]:
    """A source, a destination, a mirror without topics, a node."""
    with Stage(tmp_path_factory.mktemp("world")) as stage:
        stage.start_source()
        stage.start_destination()
        stage.create_mirror(MIRROR, [REFRESH])
        stage.start_node("node", "--metrics-address", metrics_address, "--log-format", "json")
        await_ready(metrics_address)
        yield stage
