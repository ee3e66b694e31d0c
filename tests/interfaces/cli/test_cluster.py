"""Twin of twinlog.interfaces.cli.cluster: the commands, as a user types them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import DOCS
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

Twinlog = Callable[..., subprocess.CompletedProcess[str]]
_LINES = re.MULTILINE | re.DOTALL


@pytest.fixture
def twinlog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Twinlog:
    """Run a twinlog command in a process of its own, with a state folder of the test's own."""
    monkeypatch.setenv("TWINLOG_STATE", str(tmp_path))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from twinlog.interfaces.cli.main import main; main(prog_name='twinlog')"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.long
@pytest.mark.broker
def test_a_cluster_serves_until_cluster_down(twinlog: Twinlog) -> None:
    """It serves after `up` has ended, restarts after a kill, and `down` leaves nothing."""
    try:
        up = twinlog("cluster", "up", "one", "--config", "log.segment.bytes=1048576")
        assert up.returncode == 0, up.stderr
        bootstrap = up.stdout.strip()
        assert "twinlog cluster down one" in up.stderr
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=120).brokers
        again = twinlog("cluster", "up", "one")
        assert again.returncode == 1
        assert "cluster 'one' is already running" in again.stderr
        assert twinlog("cluster", "kill", "one", "1").returncode == 0
        (row,) = json.loads(twinlog("cluster", "list", "--json").stdout)
        assert (row["state"], row["nodes"]) == ("not running", {"1": "down"})
        started = twinlog("cluster", "start", "one", "1")
        assert started.returncode == 0, started.stderr
        (row,) = json.loads(twinlog("cluster", "list", "--json").stdout)
        assert (row["state"], row["bootstrap_servers"]) == ("up", bootstrap)
    finally:
        down = twinlog("cluster", "down", "--all")
    assert (down.returncode, down.stdout, down.stderr) == (0, "", "")
    assert json.loads(twinlog("cluster", "list", "--json").stdout) == []
    assert not Path(row["directory"]).exists()


def of_the_page(heading: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands below a heading of docs/security.md, exactly as printed."""
    page = DOCS.joinpath("security.md").read_text()
    block = re.search(
        rf"^### {heading}$.*?^```\n(.*?)^```$", page[page.index("## Try it") :], _LINES
    )
    assert block is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-ec", block[1]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.broker
def test_a_cluster_with_authentication_follows_the_documentation(
    twinlog: Twinlog, tmp_path: Path
) -> None:
    """As in docs/security.md: users connect to a listener of their own, with their ACLs' rights."""
    try:
        done = of_the_page("Rights and denials", tmp_path)
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(twinlog("cluster", "list", "--json").stdout)
        users = row["listeners"]["USERS"]
        assert f"USERS (SASL_PLAINTEXT): {users}" in done.stderr
        assert twinlog("cluster", "list").stdout.endswith(f"  USERS={users}\n")
        bootstrap, *acls = done.stdout.splitlines()
        assert bootstrap == row["bootstrap_servers"]
        assert "principal=User:alice" in "".join(acls)
        client = {
            "bootstrap.servers": users,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
        }
        alice, new = AdminClient(client), [NewTopic("t")]
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            alice.create_topics(new)["t"].result(120)
        root = AdminClient({"bootstrap.servers": bootstrap})
        root.create_topics(new)["t"].result(120)
    finally:
        twinlog("cluster", "down", "--all")


@pytest.mark.broker
def test_a_mirror_over_tls_refuses_clients_without_certificate(
    twinlog: Twinlog, tmp_path: Path
) -> None:
    """As in docs/security.md; a client without the certificate is refused."""
    try:
        done = of_the_page("A mirror over TLS", tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("Created mirror secure\n")
        file = tmp_path / "secure.properties"
        file.write_text(re.sub("ssl.keystore.*", "", file.read_text()))
        rows = {row["name"]: row for row in json.loads(twinlog("cluster", "list", "--json").stdout)}
        server = rows["destination"]["bootstrap_servers"]
        arguments = ("--create", "--mirror", "other", "--mirror-config", str(file))
        refused = twinlog("mirrors", "--bootstrap-server", server, *arguments)
        assert refused.returncode == 1
        assert f"{rows['secure']['listeners']['TLS']}: TLS handshake failed: " in refused.stderr
    finally:
        twinlog("cluster", "down", "--all")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["up", "x", "--kafka-version", "2.8.0"], 1, "2.8.0: expected 3.9.0 or newer"),
        (["up", "../x"], 1, "invalid cluster name"),
        (["up", "x", "--brokers", "4"], 2, "1<=x<=3"),
        (["up", "x", "--config", "a"], 2, "expected KEY=VALUE"),
        (["up", "x", "--config", "listeners=A://:1"], 2, "listeners cannot be set"),
        (["up", "x", "--listener", "WORD"], 2, "expected NAME=PROTOCOL"),
        (["up", "x", "--listener", "WORD=TLS"], 2, "SASL_PLAINTEXT, SASL_SSL"),
        (["up", "x", "--listener", "CONTROLLER=SSL"], 2, "listener CONTROLLER already exists"),
        (["up", "x", "--listener", "TLS=SSL"], 2, "--listener TLS=SSL needs a certificate"),
        (["down", "x"], 1, "no cluster 'x' on this machine; clusters: none"),
        (["down"], 2, "specify a cluster name or --all"),
        (["down", "x", "--all"], 2, "specify a cluster name or --all"),
        (["kill", "x", "1"], 1, "no cluster 'x' on this machine"),
        (["start", "x", "1"], 1, "no cluster 'x' on this machine"),
        (["start", "x", "y"], 2, "not a valid integer"),
    ],
)
def test_errors_are_one_line(
    twinlog: Twinlog, arguments: list[str], status: int, words: str
) -> None:
    """A failure is status 1 and one line, wrong usage is 2; standard output stays empty."""
    done = twinlog("cluster", *arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert status == 2 or len(done.stderr.splitlines()) == 1


def test_debug_shows_a_traceback(twinlog: Twinlog) -> None:
    """--debug shows the origin of an error."""
    done = twinlog("--debug", "cluster", "down", "x")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_empty_cluster_list_prints_only_a_hint(twinlog: Twinlog) -> None:
    """Standard output is empty, and standard error has a hint."""
    done = twinlog("cluster", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "twinlog cluster up" in done.stderr
