"""Twin of mirror_maker_report.py; test_mirror_maker_java.py compares remote names with Java's."""

from importlib.metadata import EntryPoint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.flow_settings import DEFAULT_POLICY, IDENTITY_POLICY, PACKAGE
from twinlog.mirror.mirror_maker_file import Problem, parse_mirror_maker_file
from twinlog.mirror.mirror_maker_lines import LineVerdict
from twinlog.mirror.mirror_maker_report import FlowRow, MirrorMakerReport, report
from twinlog.mirror.replication_policy import ENTRY_POINTS

HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""


def reported(text: str, targets: tuple[str, ...] = ()) -> MirrorMakerReport:
    return report(parse_mirror_maker_file(text, lambda _, value: value), targets)


def test_flows_are_rows() -> None:
    text = HEADER + "A->B.topics = x.*, y\nsync.group.offsets.enabled = true\n"
    there, back = reported(text).flows
    assert there == FlowRow(
        source="A",
        target="B",
        mirrors_topics=True,
        topics="x.*|y",
        topics_exclude=r"mm2.*\.internal|.*\.replica|__.*",
        groups=".*",
        groups_exclude="console-consumer-.*|connect-.*|__.*",
        remote_topic="A.orders",
        heartbeats_seconds=1,
        checkpoints_seconds=60,
        group_offsets_seconds=60,
    )
    assert not back.mirrors_topics
    assert (back.heartbeats_seconds, back.checkpoints_seconds) == (1, None)
    assert back.group_offsets_seconds is None


ROUTER = """
A->B.transforms = r
A->B.transforms.r.type = RegexRouter
A->B.transforms.r.regex = .*
A->B.transforms.r.replacement = eu-$0
"""


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ("", "A.orders"),
        ("replication.policy.separator = _", "A_orders"),
        ("replication.policy.separator = _\nA->B.source.cluster.alias = eu", "eu_orders"),
        (f"replication.policy.class = {IDENTITY_POLICY}", "orders"),
        ("replication.policy.class = IdentityReplicationPolicy", "orders"),
        ("replication.policy.class = LegacyReplicationPolicy", "orders"),
        (f"replication.policy.class = {PACKAGE}LegacyReplicationPolicy", "orders"),
        ("replication.policy.class = x.Mine", None),
        (ROUTER, "A.orders"),
        (f"{ROUTER}A->B.twinlog.offset.map = true", "eu-A.orders"),
    ],
)
def test_the_example_of_a_remote_name(properties: str, name: str | None) -> None:
    assert reported(HEADER + properties).flows[0].remote_topic == name


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, IDENTITY_POLICY])
def test_what_a_policy_of_kafka_refuses_is_an_error(policy: str) -> None:
    """As a start refuses it: `A` and `orders` could not be told apart in `Aorders`."""
    text = f"{HEADER}replication.policy.class = {policy}\nreplication.policy.separator =\n"
    assert [error.partition(", ")[0] for error in reported(text).errors] == [
        f"flow {flow}: replication.policy.separator is '': expected letters"
        for flow in ("A->B", "B->A")
    ]


def test_a_policy_that_is_not_installed_is_an_error() -> None:
    """As a start refuses it; of one that is installed, only the names are unknown."""
    text = HEADER + "A->B.replication.policy.class = x.Mine\n"
    result = reported(text)
    (error,) = result.errors
    assert error == (
        "line 5: A->B.replication.policy.class is 'x.Mine', which 0 installed packages register: "
        "expected one of DefaultReplicationPolicy, IdentityReplicationPolicy, or a policy of your "
        "own (docs/api.md), since Java classes cannot be loaded"
    )
    assert result.lines[4].verdict is LineVerdict.ERROR
    assert result.warnings == ()
    point = EntryPoint("x.Mine", "mine:Policy", ENTRY_POINTS)
    file = parse_mirror_maker_file(text, lambda _, value: value)
    result = report(file, registered=lambda: [point])
    assert result.errors == ()
    assert "which is not loaded now: remote names are unknown" in result.warnings[0]


def test_a_policy_without_a_name_is_an_error() -> None:
    (error,) = reported(HEADER + "A->B.replication.policy.class =\n").errors
    assert error.startswith("line 5: A->B.replication.policy.class is '', expected one of Default")


def test_a_circle_of_flows_with_unchanged_names_is_a_warning() -> None:
    """MirrorMaker 2 mirrors the same records without end (IdentityReplicationPolicy)."""
    identity = f"replication.policy.class = {IDENTITY_POLICY}\n"
    assert reported(HEADER + identity).warnings == ()
    text = HEADER + "B->A.enabled = true\n"
    assert reported(text).warnings == ()
    (warning,) = reported(text + identity).warnings
    assert warning.startswith("flows A->B, B->A form a circle: what they copy comes back to them")
    assert "(orders of A becomes orders, then orders)" in warning
    one_way = f"B->A.{identity}"
    assert "orders of A becomes A.orders, then A.orders" in reported(text + one_way).warnings[0]


def test_a_circle_is_a_warning_where_each_cluster_has_a_command_of_its_own() -> None:
    """Goal: `--clusters` selects one direction of the circle, and the other site runs the other."""
    identity = f"replication.policy.class = {IDENTITY_POLICY}\n"
    circle = f"{HEADER}B->A.enabled = true\n{identity}"
    for target in ("A", "B"):
        (warning,) = reported(circle, (target,)).warnings
        assert warning.startswith("flows A->B, B->A form a circle")
    third = circle.replace("clusters = A, B", "clusters = A, B, C\nC.bootstrap.servers = c:9092")
    assert "clusters = A, B, C" in third
    beside = f"{third}B->C.enabled = true\nB->C.topics = other\n"
    assert reported(beside, ("C",)).warnings == (), "a flow that is in no circle"


def test_a_circle_of_heartbeats_alone_has_other_advice() -> None:
    """Goal: different topics do not end it, as heartbeats are copied whatever `topics` is."""
    separator = "A->B.topics = orders\nA->B.replication.policy.separator = __\n"
    (warning,) = reported(HEADER + "B->A.enabled = true\n" + separator).warnings
    assert "(heartbeats of A becomes A__heartbeats, then B.A__heartbeats)" in warning
    assert (
        "set heartbeats.replication.enabled=false for those whose topics do not match it, or"
        in warning
    )
    assert "different topics" not in warning


def test_group_offsets_without_checkpoints_are_a_warning() -> None:
    text = HEADER + "sync.group.offsets.enabled=true\nemit.checkpoints.enabled=false\n"
    assert "no effect without checkpoints" in reported(text).warnings[0]


JSON_VALUES = """\
value.converter = org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable = false
"""


@pytest.mark.parametrize(
    ("types", "more", "lacking"),
    [
        ("MaskField$Value", "", {"t0": "value.converter"}),
        ("MaskField$Value", "value.converter = StringConverter\n", {"t0": "value.converter"}),
        ("MaskField$Value", JSON_VALUES, {}),
        ("MaskField$Key", JSON_VALUES, {"t0": "key.converter"}),
        ("ValueToKey", "", {"t0": "value.converter"}),
        # Keys that are made of values are objects, and then one of their fields.
        ("ValueToKey ExtractField$Key", f"{JSON_VALUES}key.converter = StringConverter\n", {}),
        ("ExtractField$Key ValueToKey", JSON_VALUES, {"t0": "key.converter"}),
        ("InsertHeader", "", {}),
    ],
)
def test_transforms_of_fields_without_a_converter_are_a_warning(
    types: str, more: str, lacking: dict[str, str]
) -> None:
    """Goal: --check tells it, before the first record with a value fails."""
    options = {
        "MaskField": ("fields = a",),
        "ValueToKey": ("fields = a",),
        "ExtractField": ("field = a",),
        "InsertHeader": ("header = h", "value.literal = x"),
    }
    lines = [f"A->B.transforms = {','.join(f't{n}' for n in range(len(types.split())))}"]
    for number, name in enumerate(types.split()):
        prefix = f"A->B.transforms.t{number}."
        lines.append(f"{prefix}type = org.apache.kafka.connect.transforms.{name}")
        lines += [f"{prefix}{option}" for option in options[name.partition("$")[0]]]
    text = "".join(f"{line}\n" for line in lines)
    more = "".join(f"A->B.{line}\n" for line in more.splitlines())
    result = reported(HEADER + text + more)
    assert result.errors == ()
    assert [w.partition(" that is not null")[0] for w in result.warnings] == [
        f"flow A->B: transforms.{name} needs fields, which {converter} does not read: it fails "
        f"with each {converter.partition('.')[0]}"
        for name, converter in lacking.items()
    ]


def test_transforms_with_mistakes_are_reported_by_these() -> None:
    """Goal: a malformed list of transforms is an error with its line, and ends no check."""
    text = "A->B.transforms = a,,b\nA->B.transforms.a.type = MaskField$Value\n"
    result = reported(HEADER + text)
    assert any("line 5" in error and "a,,b" in error for error in result.errors)
    assert result.warnings == ()


def test_text_that_is_not_ascii_is_a_warning() -> None:
    assert reported(HEADER + "topics = \xe9\n").warnings == (
        "line 5 is not ASCII: it is read as ISO-8859-1, as Java does",
    )
    # Java's escape is ASCII, and has one meaning.
    assert reported(HEADER + "topics = \\u00fc\n").warnings == ()


def test_only_flows_to_the_given_clusters() -> None:
    assert [row.target for row in reported(HEADER, ("A",)).flows] == ["A"]
    assert reported(HEADER, ("C",)).errors == ("--clusters has 'C': expected one of A, B",)
    text = HEADER + "emit.heartbeats.enabled = false\n"
    assert reported(text, ("A",)).errors == ("no flow has a target of --clusters A",)


def test_errors_are_those_of_the_file_and_of_its_clients() -> None:
    file = parse_mirror_maker_file(HEADER + "tasks.max = x\n", lambda _, value: value)
    result = report(file, client_problems=[Problem(2, "refused")])
    assert result.errors[0] == "line 2: refused"
    assert result.errors[1].startswith("line 5: tasks.max is 'x'")
    assert result.lines[1].verdict is LineVerdict.ERROR


def test_aliases_that_give_a_flow_no_valid_name_are_an_error() -> None:
    """Goal: what the start refuses is known before, with the line; heartbeats need no name."""
    text = HEADER.replace("B", "B.paused")
    result = reported(text)
    (error,) = result.errors
    assert error.startswith(
        "line 1: INVALID_MIRROR_NAME: 'A-to-B.paused' ends with .paused, which is reserved by "
        "KIP-1279; the flow A->B.paused is stored"
    )
    assert result.lines[0].verdict is LineVerdict.ERROR
    assert reported(text, ("A",)).errors == ()
    back = text.replace("A->B.paused", "B.paused->A")
    assert reported(back).errors == ()
    long = HEADER.replace("B", "b" * 245)
    assert "the mirror name has 250 characters, expected at most 249" in reported(long).errors[0]
    wrong = reported(HEADER.replace("B", "B!.paused")).errors
    assert [error for error in wrong if "INVALID_MIRROR_NAME" in error] == []
    assert wrong


KEYS = st.sampled_from(
    [
        "topics",
        "enabled",
        "bootstrap.servers",
        "consumer.ssl.protocol",
        "source.cluster.ssl.protocol",
        "transforms",
        "name",
        "x.y",
        "consumer",
        "",
        ".",
        "A.topics",
        "replication.policy.class",
        "emit.heartbeats.enabled",
    ]
)
PREFIXES = st.sampled_from(["", "A.", "B.", "C.", "A->B.", "A->A.", "A->", "->", "B->A.", "A->C."])


@given(
    lines=st.lists(st.tuples(PREFIXES, KEYS, st.sampled_from(["true", "(", "", "a,b"]))),
    targets=st.sets(st.sampled_from("ABC")),
)
def test_every_file_has_a_report(lines: list[tuple[str, str, str]], targets: set[str]) -> None:
    """Goal: each line is explained, whatever the others are; a file is right or has errors."""
    text = HEADER + "".join(f"{prefix}{key}={value}\n" for prefix, key, value in lines)
    result = reported(text, tuple(sorted(targets)))
    assert len(result.lines) >= 4
    assert all(line.text for line in result.lines)
    assert bool(result.flows) or bool(result.errors)
    marked = {line.number for line in result.lines if line.verdict is LineVerdict.ERROR}
    assert not marked or result.errors
