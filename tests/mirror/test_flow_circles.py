"""Twin of flow_circles.py."""

import pytest

from twinlog.mirror.flow_circles import Circle, find_circle
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file

IDENTITY = "replication.policy.class = IdentityReplicationPolicy\n"
SEPARATOR = "A->B.replication.policy.separator = __\n"


def circle(flows: str, text: str = "") -> Circle | None:
    """The circle of a file with these flows: `A->B B->A`."""
    pairs = flows.split()
    aliases = sorted({alias for pair in pairs for alias in pair.split("->")})
    lines = [f"clusters = {','.join(aliases)}", "emit.heartbeats.enabled = false"]
    lines += [f"{alias}.bootstrap.servers = {alias}:9092" for alias in aliases]
    lines += [f"{pair}.enabled = true" for pair in pairs]
    file = parse_mirror_maker_file("\n".join(lines) + "\n" + text, lambda _, value: value)
    assert file.problems == ()
    assert len(file.flows) == len(pairs)
    return find_circle(file.flows)


MESH = " ".join(f"{a}->{b}" for a in "ABCDEF" for b in "ABCDEF" if a != b)


@pytest.mark.parametrize(
    ("flows", "text"),
    [
        ("A->B", ""),
        ("A->B B->A", ""),
        ("A->B B->A", "replication.policy.separator = __\n"),
        ("A->B B->C", ""),
        ("A->B B->C", IDENTITY),
        ("A->B A->C B->D C->D", IDENTITY),
        ("A->B B->C C->A", ""),
        ("A->H B->H H->A H->B", ""),
        (MESH, ""),
        ("A->B B->A", f"{IDENTITY}A->B.topics = a-.*\nB->A.topics = b-.*\n"),
        ("A->B B->A", f"{IDENTITY}A->B.topics = orders\nB->A.topics.exclude = orders\n"),
        ("A->B B->A", f"{IDENTITY}A->B.topics =\n"),
        # What A gets back of its own it gets once: B knows itself in the name.
        ("A->B B->A", "A->B.source.cluster.alias = X\n"),
        (
            "A->B B->A",
            f"{SEPARATOR}A->B.topics = a\nA->B.heartbeats.replication.enabled = false\n",
        ),
        # B->A does not know A__heartbeats for a heartbeats topic.
        ("A->B B->A", f"{SEPARATOR}A->B.topics = a\nB->A.topics = b\n"),
        ("us.west->us.east", ""),
        ("us.west->us.east us.east->us.west", "replication.policy.separator = _\n"),
    ],
)
def test_flows_that_form_no_circle(flows: str, text: str) -> None:
    """Goal: ordinary ways to connect clusters are without a warning."""
    assert circle(flows, text) is None


STRIPPED = """
{0}.transforms = r
{0}.transforms.r.type = RegexRouter
{0}.transforms.r.regex = [AB][.](.*)
{0}.transforms.r.replacement = $1
{0}.twinlog.offset.map = true
"""


@pytest.mark.parametrize(
    ("flows", "text", "expected"),
    [
        (
            "A->B B->A",
            IDENTITY,
            Circle(("A->B", "B->A"), "A", ("orders", "orders", "orders")),
        ),
        (
            "us.west->us.east us.east->us.west",
            "",
            Circle(
                ("us.east->us.west", "us.west->us.east"),
                "us.east",
                ("orders", "us.east.orders", "us.west.us.east.orders"),
            ),
        ),
        (
            "A->B B->A",
            "A->B.replication.policy.class = IdentityReplicationPolicy\n",
            Circle(("A->B", "B->A"), "A", ("orders", "orders", "B.orders")),
        ),
        (
            "A->B B->A",
            "source.cluster.alias = X\n",
            Circle(("A->B", "B->A"), "A", ("orders", "X.orders", "X.X.orders")),
        ),
        (
            "A->B B->A",
            "".join(map(STRIPPED.format, ("A->B", "B->A"))),
            Circle(("A->B", "B->A"), "A", ("orders", "orders", "orders")),
        ),
        (
            "A->B B->A",
            f"{SEPARATOR}A->B.topics = orders\n",
            Circle(("A->B", "B->A"), "A", ("heartbeats", "A__heartbeats", "B.A__heartbeats")),
        ),
        (
            "A->B B->C C->A",
            IDENTITY,
            Circle(("A->B", "B->C", "C->A"), "A", ("orders", "orders", "orders", "orders")),
        ),
        (
            "A->B B->A",
            f"{IDENTITY}topics = eu\\\\.[a-z]+-(events|logs)\nB->A.topics = .*\n",
            Circle(("A->B", "B->A"), "A", ("eu.a-events", "eu.a-events", "eu.a-events")),
        ),
        (
            "A->B B->A",
            f"{IDENTITY}topics.exclude = orders, heartbeats\n",
            Circle(("A->B", "B->A"), "A", ("payments", "payments", "payments")),
        ),
        (
            "A->B B->A",
            f"{IDENTITY}topics = prod-\\\\d+-.*\nheartbeats.replication.enabled = false\n",
            Circle(("A->B", "B->A"), "A", ("prod-1-orders",) * 3),
        ),
    ],
)
def test_flows_that_form_a_circle(flows: str, text: str, expected: Circle) -> None:
    """Goal: whatever the reason, what a flow copies comes back, and is copied again."""
    assert circle(flows, text) == expected


def test_all_flows_of_circles_are_named() -> None:
    """Goal: two circles that share a cluster, and a flow that is in none."""
    found = circle("A->B B->A A->C C->A C->D", IDENTITY)
    assert found is not None
    assert found.flows == ("A->B", "A->C", "B->A", "C->A")


def test_a_policy_that_cannot_be_loaded_has_no_part_in_a_circle() -> None:
    """Goal: its remote names are unknown, of which there is another warning."""
    assert circle("A->B B->A", "A->B.replication.policy.class = x.Mine\n" + IDENTITY) is None
