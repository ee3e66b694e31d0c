"""`twinlog flows`: what is refused before any cluster is asked, and what tables show."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from twinlog.interfaces.cli import flows as commands
from twinlog.interfaces.cli.main import main
from twinlog.operations.results import ChangedTopics

NOWHERE = "127.0.0.1:1"
CREATE = ("create", "--bootstrap-server", NOWHERE, "--source", "A", "--target", "B")
SOURCE = ("--source-bootstrap-server", "127.0.0.1:2")
TRANSLATE = ("translate", "--bootstrap-server", NOWHERE, "--flow", "A->B")
HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["flows", *map(str, words)])


@pytest.fixture
def hasty(tmp_path: Path) -> tuple[str, str]:
    """Options with which an unreachable cluster is reported soon."""
    file = tmp_path / "command.properties"
    file.write_text("default.api.timeout.ms=100\nrequest.timeout.ms=100\n")
    return "--command-config", str(file)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            (*SOURCE, "--topics", "("),
            (
                "A->B.topics is '(': expected regular expressions, comma-separated (missing ), "
                "unterminated subpattern at position 0)"
            ),
        ),
        (
            (*SOURCE, "--config", "topcs=x"),
            "A->B.topcs: unknown property, which MirrorMaker 2 ignores: did you mean A->B.topics?",
        ),
        (
            (*SOURCE, "--config", "replication.policy.seperator=_"),
            (
                "A->B.replication.policy.seperator: Kafka's replication policies have no such "
                "property: did you mean A->B.replication.policy.separator?"
            ),
        ),
        (
            (*SOURCE, "--config", "ssl.protocol=x"),
            (
                "A->B.ssl.protocol: MirrorMaker 2 does not read a client property here: write "
                "A->B.source.consumer.ssl.protocol, or A.ssl.protocol"
            ),
        ),
        (
            (*SOURCE, "--config", "transforms=x"),
            (
                "A->B: transforms.x.type is missing; write it for the flow: "
                "SOURCE->TARGET.transforms.x.type; MirrorMaker 2 does not read it without a prefix"
            ),
        ),
        (
            (*SOURCE, "--config", "enabled=false"),
            "enabled cannot be set: it follows from the aliases of the flow",
        ),
        ((), "bootstrap.servers of the source is missing: expected HOST:PORT,HOST:PORT,..."),
        (
            (*SOURCE, "--source", "A/x"),
            "the alias 'A/x' is not valid: expected ASCII letters, digits, '.', '_', '-'",
        ),
        (
            (*SOURCE, "--source", "B"),
            "source and target have the same alias B: expected different ones",
        ),
        (
            (*SOURCE, "--target", "B.paused"),
            (
                "INVALID_MIRROR_NAME: 'A-to-B.paused' ends with .paused, which is reserved by "
                "KIP-1279; the flow A->B.paused is stored with this name: choose other aliases"
            ),
        ),
    ],
)
def test_a_flow_that_cannot_be_is_refused_in_one_line(words: tuple[str, ...], error: str) -> None:
    """Goal: the rules are those of mirror-maker, and the message has the property."""
    result = run(*CREATE, *words)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {error}\n"


def test_misspelt_client_properties_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "source.properties"
    file.write_text("bootstrap.servers=127.0.0.1:2\nfetch.max.bites=1\n")
    result = run(*CREATE, "--source-config", file)
    assert result.exit_code == 1
    assert "Kafka's consumer has no property fetch.max.bites: did you mean" in result.stderr


def test_properties_that_differ_are_noted(hasty: tuple[str, str], tmp_path: Path) -> None:
    """Goal: what has another effect than in MirrorMaker 2 is told; references need no providers."""
    file = tmp_path / "source.properties"
    file.write_text("bootstrap.servers=127.0.0.1:2\nclient.id=${env:HOME}\nfetch.min.bytes=3\n")
    result = run(*CREATE, *hasty, "--source-config", file, "--config", "tasks.max=4")
    assert result.exit_code == 1  # no cluster there
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert [line.split(": ")[1] for line in warnings] == [
        "A.consumer.fetch.min.bytes",
        "A->B.tasks.max",
        "flow A->B",
    ]
    assert NOWHERE in result.stderr


@pytest.mark.parametrize(
    ("config", "is_noted"),
    [
        ("heartbeats.replication.enabled=true", True),
        ("heartbeats.replication.enabled=false", False),
        ("twinlog.source.heartbeats.enabled=true", False),
    ],
)
def test_heartbeats_that_no_node_writes_are_noted(
    hasty: tuple[str, str], config: str, *, is_noted: bool
) -> None:
    """Goal: the author knows why client libraries may not see the source from the target."""
    result = run(*CREATE, *hasty, *SOURCE, "--config", config)
    warning = "Warning: flow A->B: its nodes write no heartbeats to A; MirrorMaker 2 does. "
    assert (warning in result.stderr) == is_noted
    assert NOWHERE in result.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("create", "--source", "A"), "--bootstrap-server is missing"),
        (("create", "--bootstrap-server", NOWHERE, "--source", "A"), "--target is missing"),
        (
            (*CREATE, *SOURCE, "--topics", "a", "--config", "topics=b"),
            "--topics and --config topics=... are both given",
        ),
        ((*CREATE, *SOURCE, "--config", "topics"), "'topics': expected KEY=VALUE"),
        (
            ("import-positions", "--bootstrap-server", NOWHERE, "--flow", "A->B", "--group", "g"),
            "Missing option '--on'",
        ),
        (TRANSLATE, "expected exactly one of --offset, --group and --timestamp"),
        (
            (*TRANSLATE, "--group", "g", "--offset", "1"),
            "expected exactly one of --offset, --group and --timestamp",
        ),
        ((*TRANSLATE, "--topic", "t", "--offset", "1"), "--offset needs --topic and --partition"),
        ((*TRANSLATE, "--group", "g", "--topic", "t"), "without --topic and --partition"),
        ((*TRANSLATE, "--timestamp", "1", "--partition", "0"), "--partition needs --topic"),
        ((*TRANSLATE, "--timestamp", "1", "--from-checkpoints"), "needs --group"),
        ((*TRANSLATE, "--group", "g", "--from-checkpoints", "--to-source"), "needs --group"),
        ((*TRANSLATE, "--timestamp", "yesterday"), "expected milliseconds since 1970, or a time"),
        ((*TRANSLATE, "--timestamp", "2026-11-26T14:30:00"), "such as 2026-11-26T14:30:00Z"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(words: tuple[str, ...], error: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert error in result.stderr


@pytest.mark.parametrize("flow", ["A->B", "A-to-B"])
@pytest.mark.parametrize(
    "time", ["1795703400000", "2026-11-26T14:30:00Z", "2026-11-26T15:30+01:00"]
)
def test_flows_and_times_have_two_forms(flow: str, time: str, hasty: tuple[str, str]) -> None:
    """Goal: they are understood; only then the cluster is asked, which is not there."""
    asked = ("--flow", flow, "--timestamp", time)
    result = run("translate", "--bootstrap-server", NOWHERE, *hasty, *asked)
    assert result.exit_code == 1
    assert NOWHERE in result.stderr


def test_a_file_with_errors_creates_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(HEADER + "A->B.enabled = true\nA->B.tasks.max = x\n")
    result = run("create", "--file", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 5: A->B.tasks.max is 'x'")


def test_a_file_without_flows_that_copy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(HEADER)
    result = run("create", "--file", file)
    assert result.exit_code == 1
    first, *_, last = result.stderr.splitlines()
    assert first == "A->B only writes heartbeats: twinlog mirror-maker does it"
    assert "has no such flow that copies topics" in last


def test_what_a_file_has_is_not_given_twice(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(HEADER)
    result = run("create", "--file", file, "--config", "topics=x")
    assert result.exit_code == 2
    assert "--config cannot be used with --file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "topics", "line"),
    [
        ((), (), "Paused flow A-to-B, with no topic"),
        ((), ("t", "u"), "Paused flow A-to-B, with 2 topic(s): [t, u]"),
        (("--topic", "t"), ("t",), "Paused 1 topic(s) of flow A-to-B: [t]"),
    ],
)
def test_what_was_paused_is_told(
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    topics: tuple[str, ...],
    line: str,
) -> None:
    """Goal: the line tells a flow that is paused as a whole from some of its topics."""
    monkeypatch.setattr(commands, "call", lambda *_: ChangedTopics("A-to-B", "paused", topics))
    result = run("pause", "--bootstrap-server", NOWHERE, "--flow", "A->B", *arguments)
    assert (result.exit_code, result.stdout) == (0, f"{line}\n")
