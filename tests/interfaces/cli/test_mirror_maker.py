"""`twinlog mirror-maker` and `twinlog kafka-mirror-maker`: files and flags, explained."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner, Result

import twinlog
from twinlog.interfaces.cli.main import main
from twinlog.local import commands
from twinlog.mirror.mirror_maker_report import line_warnings
from twinlog.node import mirror_maker
from twinlog.operations.mirror_maker import check_file

KAFKAS = ROOT / "tests" / "data" / "mirror-maker" / "connect-mirror-maker.properties"
HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text(HEADER)
    return path


def test_flows_and_lines_are_printed() -> None:
    result = run("mirror-maker", "--check", KAFKAS)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "A->B .* .* A.orders every 1 s every 60 s -"
    meaning = "topics that are mirrored; a stored flow loses what is not selected (A->B)"
    assert f"33 used A->B.topics = .* {meaning}" in lines
    assert any(line.startswith("52 not needed offset.storage.replication") for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "transaction.producer = true",
        "transforms = to\ntransforms.to.type = org.apache.kafka.connect.transforms.ValueToKey\n",
    ],
)
def test_a_flow_without_a_map_of_offsets_shows_no_checkpoints(file: Path, line: str) -> None:
    file.write_text(HEADER + "\n".join(f"A->B.{each}" for each in line.split("\n")))
    flow = json.loads(run("mirror-maker", "--check", "--json", file).stdout)["flows"][0]
    assert (flow["heartbeats_seconds"], flow["checkpoints_seconds"]) == (1, None)


def test_a_reader_that_has_seen_enough_gets_no_error() -> None:
    """As of `twinlog mirror-maker --check FILE | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [*commands.TWINLOG, "mirror-maker", "--check", str(KAFKAS)],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_the_name_of_kafkas_script_is_an_alias() -> None:
    assert run("connect-mirror-maker", "--check", KAFKAS).exit_code == 0


def test_json_has_all() -> None:
    result = run("mirror-maker", "--check", "--json", KAFKAS)
    data = json.loads(result.stdout)
    assert data["errors"] == data["warnings"] == []
    assert data["flows"][0]["source"] == "A"
    assert data["flows"][0]["remote_topic"] == "A.orders"
    assert data["flows"][0]["heartbeats_seconds"] == 1
    assert data["lines"][0] == {
        "number": 21,
        "key": "clusters",
        "value": "A, B",
        "verdict": "USED",
        "text": "aliases of 2 clusters",
        "warns": False,
    }


def test_only_flows_to_some_clusters(file: Path) -> None:
    data = json.loads(run("mirror-maker", "--check", "--json", file, "--clusters", "B").stdout)
    assert [flow["target"] for flow in data["flows"]] == ["B"]
    refused = run("mirror-maker", "--check", file, "--clusters", "C")
    assert refused.exit_code == 1
    assert "--clusters has 'C': expected one of A, B" in refused.stderr
    assert "expected one FILE" in run("mirror-maker", "--check", file, "B").stderr
    assert "needs at least one alias" in run("mirror-maker", "--check", file, "--clusters").stderr


@pytest.mark.parametrize("first", ["--check", "--takeover", "--hand-back"])
def test_one_action_at_a_time(file: Path, first: str) -> None:
    second = "--takeover" if first != "--takeover" else "--check"
    refused = run("mirror-maker", first, second, file)
    assert refused.exit_code == 2
    assert "at most one of --check, --takeover and --hand-back" in refused.stderr


def test_a_file_with_errors_runs_nothing(file: Path) -> None:
    file.write_text(HEADER + "A->B.tasks.max = x\n")
    result = run("mirror-maker", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 5: A->B.tasks.max is 'x'")


@pytest.mark.parametrize("words", [("mirror-maker",), ("flows", "create", "--file")])
def test_a_start_warns_of_unknown_lines(file: Path, words: tuple[str, ...]) -> None:
    """Goal: one line for each, without its value, also where nothing runs."""
    file.write_text(HEADER + "A->B.tasks.max = x\nA->B.topics.exlude = secret.*\nA.topics = x\n")
    assert run(*words, file).stderr.splitlines()[:2] == [
        (
            "Warning: line 6: A->B.topics.exlude: unknown property, which MirrorMaker 2 ignores: "
            "did you mean A->B.topics.exclude?"
        ),
        (
            "Warning: line 7: A.topics: MirrorMaker 2 does not read it of a cluster: write topics "
            "for all flows, or SOURCE->TARGET.topics for one"
        ),
    ]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("connect-mirror-maker", 0),
        ("kip-382-flow", 0),
        ("kip-382-multicluster", 0),
        ("kip-382-properties", 2),  # emit.heartbeats and sync.group.offsets, which nobody reads
    ],
)
def test_published_files_start_with_few_warnings(name: str, count: int) -> None:
    report = check_file(KAFKAS.with_name(f"{name}.properties")).report
    assert len(list(line_warnings(report.lines))) == count


def test_a_file_without_flows_runs_nothing(file: Path) -> None:
    file.write_text(
        HEADER.replace("enabled = true", "enabled = false") + "emit.heartbeats.enabled = false\n"
    )
    result = run("mirror-maker", file)
    assert result.exit_code == 1
    assert "there is no flow" in result.stderr


def test_all_errors_are_printed_and_the_status_is_1(file: Path) -> None:
    file.write_text(HEADER + "A->B.tasks.max = x\nA.security.protocol = TLS\ntransforms = t\n")
    assert "mirrors topics from A to B" in run("mirror-maker", "--check", file).stdout
    result = run("mirror-maker", "--check", file)
    assert result.exit_code == 1
    assert [line.partition(" is ")[0] for line in result.stderr.splitlines()] == [
        "Error: line 5: A->B.tasks.max",
        "Error: line 6: cluster A: security.protocol",
        "Error: line 7: A->B: transforms.t.type",
    ]
    data = run("mirror-maker", "--check", "--json", file)
    assert data.exit_code == 1
    assert len(json.loads(data.stdout)["errors"]) == 3


def test_client_properties_are_checked(file: Path) -> None:
    """Goal: what twinlog's client refuses is known before anything runs."""
    file.write_text(HEADER + "A.security.protocol = TLS\nB.ssl.provider = x\n")
    result = run("mirror-maker", "--check", file)
    assert result.exit_code == 1
    expected = "Error: line 5: cluster A: security.protocol is 'TLS': expected one of PLAINTEXT"
    assert result.stderr.startswith(expected)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("5 error A.security.protocol = TLS") for line in lines)
    assert "twinlog's client does not use it" in result.stdout


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (("A.ssl.truststore.location=/none", "A.security.protocol=SSL"), 5),
        (("A.security.protocol=SSL", "A.ssl.truststore.location=/none"), 6),
        (("A.security.protocol=TLS",), 5),
        (("A.bootstrap.servers=a",), 5),
        (("A.consumer.request.timeout.ms=x",), 5),
        (("ssl.truststore.type=JKS", "B.security.protocol=SSL"), 5),
    ],
)
def test_errors_of_clients_have_their_line(file: Path, lines: tuple[str, ...], number: int) -> None:
    """Goal: the line is that of the property, not of `security.protocol` that makes it count."""
    file.write_text(HEADER + "\n".join(lines) + "\n")
    errors = run("mirror-maker", "--check", file).stderr.splitlines()
    assert [error.partition(":")[2].partition(":")[0] for error in errors] == [f" line {number}"]


def test_references_are_resolved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_TOPICS", "orders-.*")
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    file.write_text(
        f"{HEADER}config.providers=e\nconfig.providers.e.class={provider}\n"
        "A->B.topics = ${e:MM2_TOPICS}\n"
    )
    assert "orders-.*" in run("mirror-maker", "--check", file).stdout
    monkeypatch.delenv("MM2_TOPICS")
    result = run("mirror-maker", "--check", file)
    assert result.exit_code == 1
    assert "line 7: A->B.topics: cannot resolve ${env:MM2_TOPICS}" in result.stderr


def test_secrets_are_not_printed(file: Path) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    file.write_text(
        HEADER + "A.security.protocol=SASL_SSL\nA.sasl.mechanism=PLAIN\n"
        f'A.sasl.jaas.config={module} required username="u" password="hunter2";\n'
        "B.ssl.keystore.key=hunter2\nA.consumer.sasl.jas.config=hunter2\n"
    )
    for flags in ((), ("--json",)):
        assert "hunter2" not in run("mirror-maker", "--check", file, *flags).output


def test_bytes_that_are_not_ascii_are_latin_1(file: Path) -> None:
    file.write_bytes(HEADER.encode() + b"A->B.topics = \xe9\n")
    result = run("mirror-maker", "--check", "--json", file)
    data = json.loads(result.stdout)
    assert data["flows"][0]["topics"] == "\xe9"
    assert "read as ISO-8859-1" in data["warnings"][0]


def test_a_malformed_file_is_one_error(file: Path) -> None:
    file.write_text("a = \\u12\n")
    result = run("mirror-maker", "--check", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 1 is no valid line of a properties file")


def test_the_former_script(tmp_path: Path) -> None:
    consumer, producer = tmp_path / "consumer", tmp_path / "producer"
    consumer.write_text("bootstrap.servers=a:1\ngroup.id=mm\nfetch.min.bytes=1\n")
    producer.write_text("bootstrap.servers=b:1\nacks=all\n")
    files = ("--consumer.config", consumer, "--producer.config", producer)
    words = ("kafka-mirror-maker", *files, "--new.consumer", "--num.streams", 2, "--check")
    result = run(*words, "--include", "orders,foo.*")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "mm->target orders|foo.* - orders - - -"
    assert "not at the offsets of the group 'mm'" in result.stdout
    assert result.stderr.splitlines() == [
        "Warning: acks is not used by twinlog",
        "Warning: fetch.min.bytes is not used by twinlog",
    ]
    refused = run(*words, "--include", "x", "--message.handler", "x.Y")
    assert refused.exit_code == 1
    assert "Error: --message.handler is 'x.Y'" in refused.stderr
    assert json.loads(run(*words, "--whitelist", "x", "--json").stdout)["errors"] == []


def test_the_former_script_has_a_version() -> None:
    """As each of Kafka's scripts: without the flags that are required otherwise."""
    result = run("kafka-mirror-maker", "--version")
    assert (result.exit_code, result.stdout) == (0, f"{twinlog.__version__} (twinlog)\n")


def test_each_node_gets_the_options_of_the_command(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: two instances on one host have nodes of different names."""
    given: list[Sequence[str]] = []
    metrics: list[tuple[str, int] | None] = []

    class Maker:
        def __init__(self, *given_to: Any) -> None:
            given.append(given_to[2])
            metrics.append(given_to[4])

        async def run(self) -> int:
            return 0

        def stop(self) -> None:
            """Nothing runs."""

    monkeypatch.setattr(mirror_maker, "MirrorMaker", Maker)
    assert run("mirror-maker", file, "--node", "second", "--lanes", "2").exit_code == 0
    assert run("mirror-maker", file, "--metrics-address", ":9404").exit_code == 0
    (first, other) = map(" ".join, given)
    assert metrics == [None, ("127.0.0.1", 9404)]
    refused = run("mirror-maker", file, "--metrics-address", ":0")
    assert (refused.exit_code, len(given)) == (2, 2)
    assert "name a port from 1 to 65535" in refused.stderr
    assert "--node second --lanes 2" in first
    assert "--node" not in other
