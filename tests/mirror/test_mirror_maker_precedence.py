"""Twin of mirror_maker_precedence.py; test_mirror_maker_java.py compares precedence with Java's."""

import pytest

from twinlog.mirror.mirror_maker_file import Flow, parse_mirror_maker_file
from twinlog.mirror.mirror_maker_precedence import target_properties
from twinlog.mirror.properties_text import last_values, parse_lines

HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
B->A.emit.heartbeats.enabled = false
"""


def flow(text: str) -> Flow:
    (found,) = parse_mirror_maker_file(text, lambda _, value: value).flows
    return found


def test_precedence_of_a_connection_property() -> None:
    """Goal: from the lowest to the highest, each overrides those before."""
    rising = [
        "A->B.source.cluster.ssl.protocol",
        "A->B.consumer.ssl.protocol",
        "ssl.protocol",
        "A.ssl.protocol",
        "A.consumer.ssl.protocol",
        "A->B.source.consumer.ssl.protocol",
    ]
    for count in range(1, len(rising) + 1):
        text = HEADER + "".join(f"{key}={n}\n" for n, key in enumerate(rising[:count]))
        assert flow(text).source_client["ssl.protocol"] == str(count - 1)


def test_precedence_of_a_property_of_the_target_producer() -> None:
    rising = [
        "A->B.producer.batch.size",
        "B.producer.batch.size",
        "A->B.target.producer.batch.size",
        "A->B.producer.override.batch.size",
    ]
    for count in range(1, len(rising) + 1):
        text = HEADER + "".join(f"{key}={n}\n" for n, key in enumerate(rising[:count]))
        assert flow(text).target.producer["batch.size"] == str(count - 1)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("ssl.protocol = x", "ssl.protocol", "x"),
        ("B.ssl.protocol = x", "ssl.protocol", "x"),
        ("B.producer.client.id = x", "client.id", "x"),
        ("B.producer.ssl.protocol = x", "ssl.protocol", None),
        ("B.admin.client.id = x", "client.id", None),
        ("A->B.producer.override.client.id = x", "client.id", None),
        # A right of the node on this machine is no property of a producer.
        ("B.producer.mirror.allowed.paths = /", "mirror.allowed.paths", None),
    ],
)
def test_what_the_client_on_a_target_has(line: str, name: str, value: str | None) -> None:
    """Goal: only what holds for all flows to the cluster."""
    found = target_properties(last_values(parse_lines(HEADER + line)), "B")
    item = found.get(name)
    assert (item and item.value) == value
    assert found["bootstrap.servers"].value == "b:9092"
