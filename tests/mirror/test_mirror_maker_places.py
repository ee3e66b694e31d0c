"""Twin of mirror_maker_places.py; tests/mirror/test_mirror_maker_lines.py has whole lines."""

import pytest

from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file
from twinlog.mirror.mirror_maker_places import LinePlace, LinePlaces
from twinlog.mirror.properties_text import Property

HEADER = """\
clusters = A, A.b, topics
A.bootstrap.servers = a:9092
A.b.bootstrap.servers = b:9092
topics.bootstrap.servers = c:9092
emit.heartbeats.enabled = false
A->A.b.enabled = true
"""


def places_of(*lines: str) -> tuple[LinePlaces, tuple[Property, ...]]:
    """The places of a file, and these lines of it."""
    file = parse_mirror_maker_file(HEADER + "\n".join(lines), lambda _, value: value)
    return LinePlaces(file), file.properties[-len(lines) :]


@pytest.mark.parametrize(
    ("key", "source", "target", "rest"),
    [
        ("A->A.b.topics", "A", "A.b", "topics"),
        ("A->topics.topics", "A", "topics", "topics"),
        ("A.b->A.enabled", "A.b", "A", "enabled"),
        ("A.b.ssl.protocol", "A.b", "", "ssl.protocol"),
        ("A.ssl.protocol", "A", "", "ssl.protocol"),
        ("topics.ssl.protocol", "topics", "", "ssl.protocol"),
        # MirrorMaker 2 reads these without a prefix, whatever a cluster is called.
        ("topics.exclude", "", "", "topics.exclude"),
        ("ssl.protocol", "", "", "ssl.protocol"),
        ("A.", "", "", "A."),
        ("C.ssl.protocol", "", "", "C.ssl.protocol"),
        ("A->A.topics", "", "", "A->A.topics"),
    ],
)
def test_a_place(key: str, source: str, target: str, rest: str) -> None:
    """Goal: the longest prefix of a flow counts, then the longest one of a cluster."""
    places, _ = places_of("tasks.max = 1")
    place = places.place(key)
    assert (place.source, place.target, place.rest) == (source, target, rest)
    assert place.prefix + place.rest == key


def test_the_name_of_a_flow() -> None:
    assert LinePlace("A", "A.b", "A->A.b.", "topics").flow == "A->A.b"


def test_which_flows_exist() -> None:
    """Goal: of all pairs, those with topics or heartbeats."""
    places, _ = places_of("A->topics.emit.heartbeats.enabled = true\\u0020")
    assert len(places.pairs) == 6
    assert places.existing == {"A->A.b", "A->topics"}
    assert places.added == {"A->topics"}, "for MirrorMaker 2, the value is not the word true"


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("A->A.b.tasks.max = 2", [("A", "A.b")]),
        ("topics->A.tasks.max = 2", []),
        ("A.b.ssl.protocol = x", [("A", "A.b")]),
        ("topics.ssl.protocol = x", []),
        ("tasks.max = 2", [("A", "A.b")]),
    ],
)
def test_the_flows_that_a_line_is_about(line: str, candidates: list[tuple[str, str]]) -> None:
    places, (item,) = places_of(line)
    assert places.candidates(item) == candidates


def test_the_line_that_has_precedence() -> None:
    lines = ("tasks.max = 1", "A->A.b.tasks.max = 2", "topics->A.topics = x")
    places, (general, own, other) = places_of(*lines)
    assert places.precedence(general, "tasks.max") == f"line {own.line} has precedence"
    assert (places.flows(general), places.flows(own)) == ("", "A->A.b")
    assert places.precedence(other, "topics") == "flow topics->A is not enabled"
    places, (_, lone) = places_of("A->A.b.enabled = false", "topics = x")
    assert places.precedence(lone, "topics") == "no flow exists that has it"


def test_the_line_of_a_client_that_has_precedence() -> None:
    lines = ("ssl.protocol = x", "A.ssl.protocol = y", "A.b.ssl.protocol = z")
    places, (general, own, _) = places_of(*lines)
    assert places.client_precedence(general, "client", "ssl.protocol") == (
        f"line {own.line} has precedence"
    )
    places, (other,) = places_of("topics.ssl.protocol = x")
    assert places.client_precedence(other, "client", "ssl.protocol") == (
        "no flow that copies topics has it"
    )
