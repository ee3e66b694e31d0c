"""A rolling restart from the previous version to this one, under load.

The previous version is a wheel, built from the last commit before engines had an interface. It
creates nothing that this version cannot read, and the other way round: nodes of both run side by
side, and each reads states, statuses and configuration that the other has written.
"""

import secrets
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import librdkafka_tools
import pytest
from chaos_harness import Ordeal, ordeal
from checkout import ROOT

pytestmark = [
    pytest.mark.last,
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

PREVIOUS = "63977781c594a345dfd8d3f13b4f5a3abd7cb0fc"
NODES = ("one", "other")


def _run(*command: str) -> bytes:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Build and install the previous version; return the environment that runs it."""
    known = subprocess.run(
        ["git", "cat-file", "-e", PREVIOUS], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip("the clone has no history")
    place = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(_run("git", "archive", PREVIOUS))) as archive:
        archive.extractall(place / "source", filter="data")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    plain = ("--no-deps", "--no-build-isolation")
    _run(*pip, "wheel", *plain, "--wheel-dir", str(place), str(place / "source"))
    (wheel,) = place.glob("*.whl")
    _run(*pip, "install", "--no-deps", "--target", str(place / "installed"), str(wheel))
    assert not (place / "installed" / "twinlog" / "engines" / "base.py").exists()
    return {"PYTHONPATH": str(place / "installed")}


def _start(mirror: Ordeal, name: str, environment: Mapping[str, str] | None = None) -> None:
    mirror.stage.start_node(name, "--lanes", "1", environment=environment)


def _stop(mirror: Ordeal, name: str) -> None:
    node = mirror.stage.nodes[name]
    node.signal(15)
    assert node.end() == 0


def _await_both(mirror: Ordeal) -> None:
    """Wait until both nodes own state partitions, and every partition makes progress.

    The progress alone does not show that a node has started: the other one mirrors all.
    """
    librdkafka_tools.await_shares(mirror.stage, len(NODES))
    mirror.await_all()


def test_a_rolling_restart_from_the_previous_version(
    tmp_path: Path, previous: Mapping[str, str]
) -> None:
    """Goal: a destination of the previous version continues, and both versions run side by side."""
    with ordeal(tmp_path, secrets.token_hex(4), 300.0) as mirror:
        for name in NODES:
            _start(mirror, name, previous)
        _await_both(mirror)
        _stop(mirror, "one")
        _start(mirror, "one")
        _await_both(mirror)
        mirror.say("both versions run")
        _stop(mirror, "one")  # the previous version takes over what this one has written
        mirror.await_all()
        _start(mirror, "one")
        _await_both(mirror)
        _stop(mirror, "other")
        _start(mirror, "other")
        _await_both(mirror)
        mirror.prove()
