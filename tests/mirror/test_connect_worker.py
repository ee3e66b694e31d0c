"""Twin of connect_worker.py; test_mirror_maker_java.py compares the names with Java's."""

from twinlog.mirror.connect_worker import (
    STORED_NAMES,
    ConnectWorker,
    default_worker,
    stored_worker,
    worker_of,
)
from twinlog.mirror.flow import connect_worker_of, flow_of, flow_properties


def test_names_survive_being_stored() -> None:
    worker = ConnectWorker("g", "offsets")
    assert stored_worker(worker).keys() == STORED_NAMES
    assert worker_of(stored_worker(worker), "A") == worker
    assert worker_of({}, "A") == default_worker("A") == ("A-mm2", "mm2-offsets.A.internal")


def test_the_worker_goes_by_the_pair_of_aliases() -> None:
    """Goal: its names are Java's, also where the flow has another alias of its source."""
    for values in ({}, {"source.cluster.alias": "A"}, {"source.cluster.alias": " eu "}):
        properties = flow_properties(values, "A", "B")
        assert connect_worker_of(properties) == default_worker("A")
        assert flow_of(properties).settings.source_cluster_alias in {"A", "eu"}
