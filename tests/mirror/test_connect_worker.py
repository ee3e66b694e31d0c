"""Twin of connect_worker.py; test_mirror_maker_java.py compares the names with Java's."""

from twinlog.lifecycle.flow_creation import properties_of
from twinlog.mirror.connect_worker import (
    STORED_NAMES,
    ConnectWorker,
    default_worker,
    stored_worker,
    worker_of,
)
from twinlog.mirror.flow import connect_worker_of, flow_of, flow_properties
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file

HEADER = """\
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
emit.heartbeats.enabled = false
"""


def test_names_survive_being_stored() -> None:
    worker = ConnectWorker("g", "offsets", "own")
    assert worker.offsets_topics == ("offsets", "own"), "what is in the own one has precedence"
    assert default_worker("A").offsets_topics == ("mm2-offsets.A.internal",)
    assert stored_worker(worker).keys() == STORED_NAMES
    assert worker_of(stored_worker(worker), "A") == worker
    assert worker_of({}, "A") == default_worker("A")
    assert default_worker("A") == ("A-mm2", "mm2-offsets.A.internal", "")


def test_the_worker_goes_by_the_pair_of_aliases() -> None:
    """Goal: its names are Java's, also where the flow has another alias of its source."""
    for values in ({}, {"source.cluster.alias": "A"}, {"source.cluster.alias": " eu "}):
        properties = flow_properties(values, "A", "B")
        assert connect_worker_of(properties) == default_worker("A")
        assert flow_of(properties).settings.source_cluster_alias in {"A", "eu"}


def worker(lines: str) -> ConnectWorker:
    """The worker of A->B, as it is stored with the flow of a file."""
    file = parse_mirror_maker_file(HEADER + lines, lambda _, value: value)
    (flow,) = file.flows
    return connect_worker_of(properties_of(flow))


def test_names_of_a_file() -> None:
    """Goal: a takeover reads, and a hand-back writes, what MirrorMaker 2 writes and reads."""
    assert worker("") == default_worker("A")
    named = "B.group.id = g\nB.offset.storage.topic = x\n"
    assert worker(named) == ("g", "x", "")
    assert worker(named + "offset.storage.topic = all \n") == ("g", "all", "")
    assert worker("A->B.offsets.storage.topic = own\n") == (*default_worker("A")[:2], "own")
    unread = ("group.id", "A.group.id", "A.offset.storage.topic", "A->B.offset.storage.topic")
    for key in (*unread, "offsets.storage.topic", "B.offsets.storage.topic"):
        assert worker(f"{key} = other\n") == default_worker("A"), key
    assert worker("A->B.source.cluster.alias = eu\nB.group.id = g\n") == (
        "g",
        *default_worker("A")[1:],
    )


def test_an_empty_name_is_an_error() -> None:
    file = parse_mirror_maker_file(HEADER + "B.group.id =\n", lambda _, value: value)
    assert str(file.problems[0]) == "line 6: B.group.id is '': expected a name"
