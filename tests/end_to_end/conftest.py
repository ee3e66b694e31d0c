"""Two clusters with a mirror between them, and a node that runs: shared by the tests here.

Each test adds topics of its own. What stops a node, kills a broker or the like has a stage of its
own (test_kills.py, test_takeover.py).
"""

from collections.abc import Iterator

import pytest

from twinlog.local.stage import Stage

MIRROR = "everything"
REFRESH = "mirror.metadata.refresh.interval.ms=1000"


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A source, a destination, a mirror without topics, a node."""
    with Stage(tmp_path_factory.mktemp("world")) as stage:
        stage.start_source()
        stage.start_destination()
        stage.create_mirror(MIRROR, [REFRESH])
        stage.start_node("node")
        yield stage
